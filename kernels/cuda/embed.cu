// Embedding rows, gathered from any of the weights' forms; exact but for the roundings that the
// form itself made (launch.h).
#include "kernels/cuda/common.cuh"

static __device__ float weight_value(const cuda_matrix &w, uint32_t o, uint32_t k)
{
    const char *data = (const char *)w.data;
    if (w.form == FORM_ROWS) return ((const float *)data)[(uint64_t)o * w.n_in + k];
    uint64_t block = (uint64_t)(o / TILE_OUT) * cuda_blocks_in(w.n_in) + k / BLOCK_IN;
    uint32_t place = value_place(w.form, o % TILE_OUT, k % BLOCK_IN);
    if (w.form == FORM_F16) {
        float v = __half2float(((const __half *)(data + block * F16_BLOCK))[place]);
        int half = -w.exponent / 2;
        return __fmul_rn(__fmul_rn(v, pow2(half)), pow2(-w.exponent - half));
    }
    const char *b = data + block * Q8_BLOCK;
    float d = __half2float(((const __half *)(b + 256))[o % TILE_OUT]);
    return __fmul_rn(d, (float)((int)(uint8_t)b[place] - 128));
}

static __global__ void embed(float *out, const cuda_matrix table, const uint32_t *tokens,
                             float scale)
{
    kernel_begin();
    uint32_t r = blockIdx.x, token = tokens[r];
    for (uint32_t i = threadIdx.x; i < table.n_in; i += blockDim.x) {
        float v = weight_value(table, token, i);
        out[(uint64_t)r * table.n_in + i] = scale != 1.0f ? __fmul_rn(v, scale) : v;
    }
}

cudaError_t cuda_launch_embed(cudaStream_t s, float *out, const cuda_matrix *table,
                              const uint32_t *tokens, float scale, uint32_t n_rows)
{
    return start(embed, n_rows, 256, 0, s, out, *table, tokens, scale);
}
