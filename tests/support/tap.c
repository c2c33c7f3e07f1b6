#include "tests/support/tap.h"

#include <stdlib.h>
#include <unistd.h>

void tap_begin(unsigned limit_s)
{
    cmocka_set_message_output(CM_OUTPUT_TAP);
    alarm(limit_s);
}

const char *tap_shared_dir(void)
{
    const char *dir = getenv("MEMRA_SHARED");
    if (dir == NULL) dir = MEMRA_SOURCE_DIR "/../shared";
    return access(dir, R_OK) == 0 ? dir : NULL;
}
