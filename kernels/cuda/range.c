#include "kernels/range.h"

#include <nvtx3/nvToolsExt.h>

void range_push(const char *name)
{
    nvtxRangePushA(name);
}

void range_pop(void)
{
    nvtxRangePop();
}
