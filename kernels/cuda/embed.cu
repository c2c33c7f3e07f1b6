// Embedding rows, gathered from a table in host memory, as the file stores them: a block takes a
// run of one row's bytes over the bus at once, and makes of them the values that the cpu makes
// (quant.h).
#include "kernels/cuda/dequant.cuh"

static constexpr uint32_t RUN = 2048; // values; whole blocks of every type, at most 8192 bytes

static __device__ float half_at(const uint8_t *p)
{
    return __half2float(__ushort_as_half(load_u16(p)));
}

// value = s * q, or fma(s, q, m) for the types with a minimum; b begins a run's bytes.
static __device__ float stored_value(dtype type, uint32_t block_values, uint32_t block_bytes,
                                     const uint8_t *b, uint32_t i)
{
    if (type == DT_F32) return __uint_as_float(load_u32(b + 4 * i));
    if (type == DT_F16) return half_at(b + 2 * i);
    if (type == DT_BF16) return __uint_as_float((uint32_t)load_u16(b + 2 * i) << 16);
    b += i / block_values * block_bytes;
    i %= block_values;
    if (block_values == 32) {
        float s = half_at(b), q = (float)block_integer(type, b, i);
        return type == DT_Q4_1 || type == DT_Q5_1 ? __fmaf_rn(s, q, half_at(b + 2))
                                                  : __fmul_rn(s, q);
    }
    int scale, min;
    uint32_t d = super_d(type, b);
    super_scale(type, b, i / 16, &scale, &min);
    float s = __fmul_rn(__half2float(__ushort_as_half((uint16_t)d)), (float)scale);
    float q = (float)super_integer(type, b, i);
    if (type != DT_Q2_K && type != DT_Q4_K && type != DT_Q5_K) return __fmul_rn(s, q);
    float dmin = __half2float(__ushort_as_half((uint16_t)(d >> 16)));
    return __fmaf_rn(s, q, __fmul_rn(-dmin, (float)min));
}

// Loads of 16 bytes may begin before the run and end behind it, never outside its pages.
static __global__ void embed(float *out, const uint8_t *table, dtype type, uint32_t block_values,
                             uint32_t block_bytes, uint32_t n_in, const uint32_t *tokens,
                             float scale)
{
    __shared__ uint4 bytes[RUN * 4 / 16 + 2];
    kernel_begin();
    uint64_t row_bytes = (uint64_t)n_in / block_values * block_bytes;
    uint32_t r = blockIdx.x, first = blockIdx.y * RUN, n = min(RUN, n_in - first);
    const uint8_t *from =
        table + tokens[r] * row_bytes + (uint64_t)(first / block_values) * block_bytes;
    uint32_t skip = (uint32_t)((uintptr_t)from % 16);
    const uint4 *line = (const uint4 *)(from - skip);
    uint32_t n_lines = (skip + n / block_values * block_bytes + 15) / 16;
    for (uint32_t i = threadIdx.x; i < n_lines; i += blockDim.x)
        bytes[i] = line[i];
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < n; i += blockDim.x) {
        float v = stored_value(type, block_values, block_bytes, (const uint8_t *)bytes + skip, i);
        out[(uint64_t)r * n_in + first + i] = scale != 1.0f ? __fmul_rn(v, scale) : v;
    }
}

cudaError_t cuda_launch_embed(cudaStream_t s, float *out, const void *table, dtype type,
                              uint32_t n_in, const uint32_t *tokens, float scale, uint32_t n_rows)
{
    const dtype_info *info = dtype_get(type);
    dim3 grid(n_rows, (n_in + RUN - 1) / RUN);
    return start(embed, grid, 256, 0, s, out, (const uint8_t *)table, type, info->block_values,
                 info->block_bytes, n_in, tokens, scale);
}
