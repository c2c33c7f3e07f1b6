/* tap.h - what every unit test program starts with: cmocka printing TAP, with a time limit. */
#ifndef TESTS_SUPPORT_TAP_H
#define TESTS_SUPPORT_TAP_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

/* Print TAP and end the program (SIGALRM) if it runs longer than limit_s seconds. */
void tap_begin(unsigned limit_s);

/* The folder of handed test data, or NULL: MEMRA_SHARED, else ../shared beside the source tree. */
const char *tap_shared_dir(void);

#endif
