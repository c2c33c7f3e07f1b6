/* How the GPUs of a machine reach each other. */
#include "kernels/cuda/device.h"

static int attribute(enum cudaDeviceP2PAttr what, int from, int to)
{
    int value = 0;
    if (cudaDeviceGetP2PAttribute(&value, what, from, to) == cudaSuccess) return value;
    (void)cudaGetLastError();
    return 0;
}

/* Atomic operations on a peer's memory are what NVLink has and PCIe lacks. */
const char *backend_gpu_link(uint32_t from, uint32_t to)
{
    int a = (int)from, b = (int)to;
    if (attribute(cudaDevP2PAttrAccessSupported, a, b) == 0) return "none";
    return attribute(cudaDevP2PAttrNativeAtomicSupported, a, b) != 0 ? "nvlink" : "pcie";
}
