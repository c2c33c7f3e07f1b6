#include "kernels/backend.h"

#include <stddef.h>

const backend *backend_get(device_kind kind)
{
    return kind == DEVICE_CUDA ? backend_cuda() : backend_cpu();
}

const char *backend_names(void)
{
    return backend_cuda() != NULL ? "cpu, cuda" : "cpu";
}
