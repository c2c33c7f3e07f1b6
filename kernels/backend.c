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

bool backend_takes(op_kind op, dtype t)
{
    switch (op) {
    case OP_KV_WRITE:
    case OP_ATTENTION:
        return t == DT_F32 || t == DT_F16 || t == DT_BF16;
    case OP_RMS_NORM:
    case OP_ROPE:
    case OP_SILU_MUL:
    case OP_GELU_MUL:
    case OP_ADD:
    case OP_CHECK_FINITE:
    case OP_SAMPLE:
        return t == DT_F32;
    case OP_COPY:
        return dtype_get(t) != NULL;
    case OP_EMBED:
    case OP_MATMUL:
        return false;
    }
    return false;
}
