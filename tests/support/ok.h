/* ok.h - a call that must end well, else the test fails with its message: OK(session_step(s, .., &e)). The
 * surrounding function has an errmsg called e. */
#ifndef TESTS_SUPPORT_OK_H
#define TESTS_SUPPORT_OK_H

#include "common/status.h"
#include "tests/support/tap.h"

#define OK(expr)                                                                                   \
    do {                                                                                           \
        errmsg_clear(&e);                                                                          \
        if ((expr) != ST_OK) fail_msg("%s: %s", #expr, e.text);                                    \
    } while (0)

#endif
