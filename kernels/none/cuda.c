/* Stands for kernels/cuda in a build without a CUDA toolkit. */
#include "kernels/backend.h"

#include <stddef.h>

const backend *backend_cuda(void)
{
    return NULL;
}

status backend_gpus(backend_gpu *out, uint32_t n_max, uint32_t *n, errmsg *e)
{
    (void)out, (void)n_max, (void)e;
    *n = 0;
    return ST_OK;
}

const char *backend_gpu_link(uint32_t from, uint32_t to)
{
    (void)from, (void)to;
    return "none";
}
