// Weights of a packed form as FORM_F16, for products of many rows: the values that form::operand
// makes, so that no product sees which way a weight took. A warp per block of a tile.
#include "kernels/cuda/common.cuh"

template <class form>
static __global__ void __launch_bounds__(256)
    expand(uint32_t *to, const char *from, uint64_t n_blocks)
{
    kernel_begin();
    uint32_t lane = threadIdx.x % 32;
    uint64_t stride = (uint64_t)gridDim.x * 8;
#pragma unroll 4
    for (uint64_t b = (uint64_t)blockIdx.x * 8 + threadIdx.x / 32; b < n_blocks; b += stride) {
        uint4 v = form::operand(from + b * form::bytes, lane);
        uint32_t *at = to + b * (F16_BLOCK / 4) + lane; // a register is a core matrix's word
        at[0] = v.x;
        at[32] = v.y;
        at[64] = v.z;
        at[96] = v.w;
    }
}

cudaError_t cuda_expand(cudaStream_t s, void *to, const cuda_matrix *w, uint32_t tile,
                        uint32_t n_tiles, uint32_t n_sms)
{
    uint64_t blocks_in = cuda_blocks_in(w->n_in);
    const char *from = (const char *)w->data + tile * blocks_in * form_q8::bytes;
    return start(expand<form_q8>, n_sms * 8, 256, 0, s, (uint32_t *)to, from,
                 n_tiles * blocks_in);
}
