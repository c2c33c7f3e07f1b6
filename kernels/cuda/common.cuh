// common.cuh - what the kernels share: tensor-core step, bulk copies with their barriers, powers of
// two, reductions over a block in a fixed order, and exp of fmath.h.
#ifndef KERNELS_CUDA_COMMON_CUH
#define KERNELS_CUDA_COMMON_CUH

#include "kernels/cuda/launch.h"

#include "common/fmath.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

// The operations of fm_expf (fmath.h), its three cases last: no branch.
__device__ __forceinline__ float exp_f32(float x)
{
    float t = __fmaf_rn(x, FM_EXPF_LOG2E, FM_EXPF_MAGIC);
    float n = __fsub_rn(t, FM_EXPF_MAGIC);
    float r = __fmaf_rn(-n, FM_EXPF_LN2_HI, x);
    r = __fmaf_rn(-n, FM_EXPF_LN2_LO, r);
    float p = FM_EXPF_C6;
    p = __fmaf_rn(p, r, FM_EXPF_C5);
    p = __fmaf_rn(p, r, FM_EXPF_C4);
    p = __fmaf_rn(p, r, FM_EXPF_C3);
    p = __fmaf_rn(p, r, FM_EXPF_C2);
    p = __fmaf_rn(p, r, 1.0f);
    p = __fmaf_rn(p, r, 1.0f);
    float y = __uint_as_float(__float_as_uint(p) + (__float_as_uint(t) << 23));
    asm volatile("" : "+f"(y)); // whatever x is
    y = x < FM_EXPF_MIN ? 0.0f : x > FM_EXPF_MAX ? __int_as_float(0x7f800000) : y;
    return x != x ? x : y;
}

// x / y rounded once, as __fdiv_rn does it but without its branch, where divides and may_be_divided
// say so: both are far from the ends of f32, and y is not the one below a power of two, whose
// reciprocal these steps may miss. r: the divisor's near_reciprocal.
__device__ __forceinline__ bool divides(float y)
{
    return y >= 0x1p-20f && y <= 0x1p60f && (__float_as_uint(y) & 0x7fffffu) != 0x7fffffu;
}

__device__ __forceinline__ bool may_be_divided(float x)
{
    float a = fabsf(x);
    return a >= 0x1p-40f && a <= 0x1p60f;
}

__device__ __forceinline__ float near_reciprocal(float y)
{
    float r;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(y));
    return __fmaf_rn(r, __fmaf_rn(-y, r, 1.0f), r);
}

__device__ __forceinline__ float quotient(float x, float y, float r)
{
    float q = __fmul_rn(x, r);
    return __fmaf_rn(r, __fmaf_rn(-y, q, x), q);
}

// 2^e, -126 <= e <= 127
__device__ __forceinline__ float pow2(int e)
{
    return __int_as_float((e + 127) << 23);
}

// An output from its sum: scales undone (in two exact steps unless the result leaves the normal
// numbers), bias added.
__device__ __forceinline__ float finish_sum(float sum, int exponent, const float *bias, uint32_t o)
{
    int half = -exponent / 2;
    float y = __fmul_rn(__fmul_rn(sum, pow2(half)), pow2(-exponent - half));
    return bias != nullptr ? __fadd_rn(y, bias[o]) : y;
}

// One k16 step: d[16 rows x 8 outputs] += a[16 x 16] b[16 x 8].
__device__ __forceinline__ void mma_step(float d[4], uint32_t a0, uint32_t a1, uint32_t a2,
                                         uint32_t a3, uint32_t b0, uint32_t b1)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, "
        "{%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// The same bits with the roles swapped: d[outputs] += w[8 outputs x 16] x[16 x 8 columns], where only
// column 0 is asked for: lanes of the others may hold anything. The output of lane 4 o is d[0]; the
// 8 outputs that the instruction has besides are left undefined, in d[2] and d[3].
__device__ __forceinline__ void mma_one_row(float d[4], uint32_t w0, uint32_t w1, uint32_t x0,
                                            uint32_t x1)
{
    asm("{\n.reg .b32 none;\n"
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, "
        "{%4,none,%5,none}, {%6,%7}, {%0,%1,%2,%3};\n}"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(w0), "r"(w1), "r"(x0), "r"(x1));
}

// --- bulk copies into shared memory, counted by a barrier there ---

__device__ __forceinline__ uint32_t shared_address(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

__device__ __forceinline__ void barrier_init(uint64_t *b)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(b)));
}

__device__ __forceinline__ void barrier_init_done()
{
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void barrier_expect(uint64_t *b, uint32_t bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(b)),
                 "r"(bytes)
                 : "memory");
}

__device__ __forceinline__ void barrier_wait(uint64_t *b, uint32_t parity)
{
    asm volatile("{\n.reg .pred p;\n"
                 "again: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
                 "@p bra done;\nbra again;\ndone:\n}" ::"r"(shared_address(b)),
                 "r"(parity)
                 : "memory");
}

// bytes and both addresses: multiples of 16
__device__ __forceinline__ void bulk_copy(void *to, const void *from, uint32_t bytes, uint64_t *b)
{
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, "
        "[%3];" ::"r"(shared_address(to)),
        "l"(from), "r"(bytes), "r"(shared_address(b))
        : "memory");
}

// --- launches: a kernel may be made ready while the one before it on the stream still runs ---

// First in every kernel: the next may be made ready; nothing is read or written before the kernels
// in front are done.
__device__ __forceinline__ void kernel_begin()
{
    asm volatile("griddepcontrol.launch_dependents;");
    asm volatile("griddepcontrol.wait;" ::: "memory");
}

template <class... P, class... A>
static inline cudaError_t start(void (*kernel)(P...), dim3 grid, uint32_t threads,
                                uint32_t shared_bytes, cudaStream_t s, A... args)
{
    cudaLaunchAttribute early = {};
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = dim3(threads);
    config.dynamicSmemBytes = shared_bytes;
    config.stream = s;
    config.attrs = &early;
    config.numAttrs = 1;
    return cudaLaunchKernelEx(&config, kernel, static_cast<P>(args)...);
}

// --- blocks of 256 threads: sums and maxima in one order ---

__device__ __forceinline__ float warp_sum(float v)
{
    for (int half = 16; half >= 1; half /= 2)
        v = __fadd_rn(v, __shfl_xor_sync(~0u, v, half));
    return v;
}

// The sum over the block's 8 warps, in every thread. room: 8 floats of shared memory, free again
// after the caller's next barrier.
__device__ __forceinline__ float block_sum(float v, float *room)
{
    v = warp_sum(v);
    if (threadIdx.x % 32 == 0) room[threadIdx.x / 32] = v;
    __syncthreads();
    float sum = room[0];
    for (int w = 1; w < 8; w++)
        sum = __fadd_rn(sum, room[w]);
    return sum;
}

// What an RMS norm scales n values by, from the sum of their squares.
__device__ __forceinline__ float norm_scale(float sum, uint32_t n, float eps)
{
    return __frcp_rn(__fsqrt_rn(__fadd_rn(__fdiv_rn(sum, (float)n), eps)));
}

template <uint32_t WARPS = 8> __device__ __forceinline__ uint32_t block_max(uint32_t v, uint32_t *room)
{
    v = __reduce_max_sync(~0u, v);
    if (threadIdx.x % 32 == 0) room[threadIdx.x / 32] = v;
    __syncthreads();
    v = room[0];
    for (uint32_t w = 1; w < WARPS; w++)
        v = max(v, room[w]);
    return v;
}

__device__ __forceinline__ uint32_t magnitude_bits(float x)
{
    return __float_as_uint(x) & 0x7fffffffu;
}

// Two neighbours of a row, scaled and rounded.
__device__ __forceinline__ uint32_t scaled_pair(float a, float b, float scale)
{
    __half2 v =
        __halves2half2(__float2half_rn(__fmul_rn(a, scale)), __float2half_rn(__fmul_rn(b, scale)));
    return *reinterpret_cast<uint32_t *>(&v);
}

// Eight neighbours likewise.
__device__ __forceinline__ uint4 chunk_of(const float v[8], float scale)
{
    return make_uint4(scaled_pair(v[0], v[1], scale), scaled_pair(v[2], v[3], scale),
                      scaled_pair(v[4], v[5], scale), scaled_pair(v[6], v[7], scale));
}

// Row r, held by a block's threads, v[j] being values (j * THREADS + thread) * 8 on: prepared as n_chunks
// chunks, with its exponent. largest: of the thread's magnitudes.
template <uint32_t EACH, uint32_t THREADS = 256>
__device__ __forceinline__ void put_prepared(uint4 *prepared, int32_t *exponents, uint32_t r,
                                             uint32_t n_chunks, const float (&v)[EACH][8],
                                             uint32_t largest, uint32_t room[THREADS / 32])
{
    int exponent = cuda_scale_exponent(block_max<THREADS / 32>(largest, room));
    float scale = pow2(exponent);
    if (threadIdx.x == 0) exponents[r] = exponent;
    uint4 *to = prepared + (uint64_t)r * n_chunks;
#pragma unroll
    for (uint32_t j = 0; j < EACH; j++) {
        uint32_t c = j * THREADS + threadIdx.x;
        if (c < n_chunks) to[c] = chunk_of(v[j], scale);
    }
}

#endif
