/* demo.h - where the demo model is: what runs when no -m is given.
 *
 * Looked for relative to this program only: ../share/memra-pp/demo.gguf of an installation, else
 * launch/demo/demo.gguf in a folder above (the source tree that the build folder lies in). */
#ifndef COORDINATOR_DEMO_H
#define COORDINATOR_DEMO_H

#include <stddef.h>

/* The path into out; NULL: not found, or it does not fit. */
const char *demo_path(char *out, size_t bytes);

/* The same for a program in the folder `dir`, as tests ask. */
const char *demo_path_near(const char *dir, char *out, size_t bytes);

#endif
