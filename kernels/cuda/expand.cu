// Weights of a packed form as FORM_F16, for products of many rows: the registers that the form
// makes are words of core matrices, so that no product sees which way a weight took. A warp per
// unit.
#include "kernels/cuda/forms.cuh"

template <class form>
static __global__ void __launch_bounds__(256) expand(uint32_t *to, const char *from, uint64_t n)
{
    kernel_begin();
    uint32_t lane = threadIdx.x % 32;
    uint64_t unit = (uint64_t)blockIdx.x * 8 + threadIdx.x / 32;
    if (unit >= n) return;
    to += unit * form::unit_blocks * (F16_BLOCK / 4) + lane;
    each_block<form>(from + unit * form::unit_bytes, lane, [&](uint32_t j, uint4 v) {
        uint32_t *at = to + j * (F16_BLOCK / 4);
        at[0] = v.x;
        at[32] = v.y;
        at[64] = v.z;
        at[96] = v.w;
    });
}

cudaError_t cuda_expand(cudaStream_t s, void *to, const cuda_matrix *w, uint32_t tile,
                        uint32_t n_tiles)
{
    const char *from = (const char *)w->data + tile * cuda_tile_bytes(w->form, w->n_in);
    uint64_t n = (uint64_t)n_tiles * (cuda_blocks_in(w->n_in) / cuda_unit_blocks(w->form));
    if (w->form == FORM_F16) return cudaErrorInvalidValue; // needs none, and lies in shared memory
    return with_form(w->form, [&](auto form) {
        return start(expand<decltype(form)>, dim3((uint32_t)((n + 7) / 8)), 256, 0, s,
                     (uint32_t *)to, from, n);
    });
}
