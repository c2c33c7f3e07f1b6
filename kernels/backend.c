#include "kernels/backend.h"

const char *backend_names(void)
{
    return "cpu";
}
