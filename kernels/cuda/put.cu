// Small pieces of host memory to their places: they travel with the launch, so that the host's
// memory is free when the call returns and the copy engine takes no part.
#include "kernels/cuda/common.cuh"

static __global__ void put(const __grid_constant__ cuda_parcels p)
{
    kernel_begin();
    auto &piece = p.piece[blockIdx.x];
    for (uint32_t i = threadIdx.x; i < piece.bytes; i += blockDim.x)
        ((uint8_t *)piece.to)[i] = p.data[piece.at + i];
}

cudaError_t cuda_launch_put(cudaStream_t s, const cuda_parcels *p)
{
    return start(put, p->n, 256, 0, s, *p);
}
