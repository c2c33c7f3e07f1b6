// Embedding rows, gathered from any of the weights' forms; exact but for the roundings that the
// form itself made (launch.h).
#include "kernels/cuda/forms.cuh"

// A value of a super-block: the lane's word or words, its scale undone.
static __device__ float unit_value(cuda_form form, const char *unit, uint32_t o, uint32_t k)
{
    uint32_t place = value_place(o, k % BLOCK_IN), lane = place / 8, i = place % 8, block = k / 32;
    if (form == FORM_Q4K) {
        uint32_t word = *(const uint32_t *)(unit + block / 4 * 512 + lane * 16 + block % 4 * 4);
        const uint8_t *s = (const uint8_t *)unit + form_q4k::scales_at + o * 16 + block * 2;
        const __half *d = (const __half *)(unit + form_q4k::d_at + o * 4);
        float scale = __fmul_rn(__half2float(d[0]), (float)s[0]);
        float min = __fmul_rn(__half2float(d[1]), (float)s[1]);
        return __half2float(
            __float2half_rn(__fmaf_rn(scale, (float)(word >> (4 * i) & 15), -min)));
    }
    if (form == FORM_K8) {
        const uint8_t *s = (const uint8_t *)unit + form_k8::scales_at + o * 32 + k / 16 * 2;
        const __half *d = (const __half *)(unit + form_k8::d_at + o * 4);
        float scale = __fmul_rn(__half2float(d[0]), (float)((int)s[0] - 128));
        float min = __fmul_rn(__half2float(d[1]), (float)s[1]);
        int q = (int)(uint8_t)unit[block * 256 + place] - 128;
        return __half2float(__float2half_rn(__fmaf_rn(scale, (float)q, -min)));
    }
    uint32_t words[3], f = block % 2 * 8 + i;
    for (uint32_t c = 0; c < 3; c++) {
        uint32_t w = block / 2 * 3 + c;
        words[c] = *(const uint32_t *)(unit + w / 4 * 512 + lane * 16 + w % 4 * 4);
    }
    uint32_t q = f < 15 ? words[f / 5] >> (f % 5 * 6) & 63
                        : words[0] >> 30 | words[1] >> 30 << 2 | words[2] >> 30 << 4;
    int s = (int)(uint8_t)unit[form_q6k::scales_at + o * 16 + k / 16] - 128;
    float d = __half2float(*(const __half *)(unit + form_q6k::d_at + o * 2));
    return __half2float(
        __float2half_rn(__fmul_rn(__fmul_rn(d, (float)s), (float)((int)q - 32))));
}

static __device__ float weight_value(const cuda_matrix &w, uint32_t o, uint32_t k)
{
    const char *data = (const char *)w.data;
    if (w.form == FORM_ROWS) return ((const float *)data)[(uint64_t)o * w.n_in + k];
    uint32_t unit_in = cuda_unit_blocks(w.form) * BLOCK_IN;
    const char *unit = data + o / TILE_OUT * cuda_tile_bytes(w.form, w.n_in) +
                       (uint64_t)(k / unit_in) * cuda_unit_bytes(w.form);
    if (cuda_unit_blocks(w.form) > 1)
        return unit_value(w.form, unit, o % TILE_OUT, k % unit_in);
    if (w.form == FORM_F16) {
        float v = __half2float(((const __half *)unit)[core_place(o % TILE_OUT, k % BLOCK_IN)]);
        int half = -w.exponent / 2;
        return __fmul_rn(__fmul_rn(v, pow2(half)), pow2(-w.exponent - half));
    }
    uint32_t place = value_place(o % TILE_OUT, k % BLOCK_IN);
    float q = (float)((int)(uint8_t)unit[place] - 128);
    const __half *scales = (const __half *)(unit + 256);
    if (w.form == FORM_Q8) return __fmul_rn(__half2float(scales[o % TILE_OUT]), q);
    const __half *both = scales + o % TILE_OUT * 2;
    return __fmaf_rn(__half2float(both[0]), q, __half2float(both[1]));
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
