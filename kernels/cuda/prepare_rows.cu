// Activations for the tensor core, row by row, a block for each.
#include "kernels/cuda/activation.cuh"

// What a row is made of: eight values from the k-th on.
struct row_as_it_is
{
    const float *x;
    __device__ __forceinline__ void take(float (&v)[8], uint64_t at) const
    {
        *(float4 *)v = *(const float4 *)(x + at);
        *(float4 *)(v + 4) = *(const float4 *)(x + at + 4);
    }
    __device__ __forceinline__ float one(uint64_t at) const
    {
        return x[at];
    }
};

template <bool GELU> struct row_of_glu
{
    const float *gate, *up;
    __device__ __forceinline__ void take(float (&v)[8], uint64_t at) const
    {
        float u[8];
        row_as_it_is{gate}.take(v, at);
        row_as_it_is{up}.take(u, at);
        activate<GELU>(v);
#pragma unroll
        for (uint32_t i = 0; i < 8; i++)
            v[i] = __fmul_rn(v[i], u[i]);
    }
    __device__ __forceinline__ float one(uint64_t at) const
    {
        return __fmul_rn(GELU ? gelu(gate[at]) : silu(gate[at]), up[at]);
    }
};

// A block per row, which its threads hold: n of a multiple of 8, up to 8 for each thread and EACH.
template <uint32_t EACH, uint32_t THREADS, class S>
static __global__ void __launch_bounds__(THREADS)
    prepare_many(uint4 *prepared, int32_t *exponents, const S source, uint32_t n)
{
    __shared__ uint32_t room[THREADS / 32];
    kernel_begin();
    uint32_t r = blockIdx.x, n_chunks = cuda_blocks_in(n) * 4, largest = 0;
    uint64_t row = (uint64_t)r * n;
    float v[EACH][8];
#pragma unroll
    for (uint32_t j = 0; j < EACH; j++) {
        uint32_t c = j * THREADS + threadIdx.x;
#pragma unroll
        for (uint32_t i = 0; i < 8; i++)
            v[j][i] = 0;
        if (c * 8 < n) source.take(v[j], row + c * 8);
#pragma unroll
        for (uint32_t i = 0; i < 8; i++)
            largest = max(largest, magnitude_bits(v[j][i]));
    }
    put_prepared<EACH, THREADS>(prepared, exponents, r, n_chunks, v, largest, room);
}

// The same for any n, each value made twice.
template <class S>
static __global__ void __launch_bounds__(256)
    prepare_any(uint4 *prepared, int32_t *exponents, const S source, uint32_t n)
{
    __shared__ uint32_t room[8];
    kernel_begin();
    uint32_t r = blockIdx.x, n_chunks = cuda_blocks_in(n) * 4, largest = 0;
    uint64_t row = (uint64_t)r * n;
    for (uint32_t i = threadIdx.x; i < n; i += 256)
        largest = max(largest, magnitude_bits(source.one(row + i)));
    int exponent = cuda_scale_exponent(block_max(largest, room));
    if (threadIdx.x == 0) exponents[r] = exponent;
    uint4 *to = prepared + (uint64_t)r * n_chunks;
    for (uint32_t c = threadIdx.x; c < n_chunks; c += 256) {
        float v[8];
        for (uint32_t i = 0; i < 8; i++)
            v[i] = c * 8 + i < n ? source.one(row + c * 8 + i) : 0.0f;
        to[c] = chunk_of(v, pow2(exponent));
    }
}

template <class S>
static cudaError_t prepare(cudaStream_t s, void *to, int32_t *exponents, S source, bool aligned,
                           uint32_t n, uint32_t n_rows)
{
    uint4 *prepared = (uint4 *)to;
    if (n % 8 != 0 || n > 16384 || !aligned)
        return start(prepare_any<S>, n_rows, 256, 0, s, prepared, exponents, source, n);
    if (n <= 4096)
        return start(prepare_many<2, 256, S>, n_rows, 256, 0, s, prepared, exponents, source, n);
    if (n_rows <= CUDA_ROWS_MAX) // an SM for each
        return start(prepare_many<2, 1024, S>, n_rows, 1024, 0, s, prepared, exponents, source, n);
    return start(prepare_many<8, 256, S>, n_rows, 256, 0, s, prepared, exponents, source, n);
}

cudaError_t cuda_prepare_many(cudaStream_t s, void *prepared, int32_t *exponents, const float *x,
                              uint32_t n, uint32_t n_rows)
{
    return prepare(s, prepared, exponents, row_as_it_is{x}, (uintptr_t)x % 16 == 0, n, n_rows);
}

cudaError_t cuda_prepare_glu(cudaStream_t s, void *prepared, int32_t *exponents, const float *gate,
                             const float *up, bool gelu, uint32_t n, uint32_t n_rows)
{
    bool aligned = ((uintptr_t)gate | (uintptr_t)up) % 16 == 0;
    if (gelu)
        return prepare(s, prepared, exponents, row_of_glu<true>{gate, up}, aligned, n, n_rows);
    return prepare(s, prepared, exponents, row_of_glu<false>{gate, up}, aligned, n, n_rows);
}
