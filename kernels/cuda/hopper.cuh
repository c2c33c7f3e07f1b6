// hopper.cuh - the warpgroup's tensor-core step, tiles fetched by the copy engine, clusters of two.
//
// Operands lie in shared memory as the copy engine brings them: core matrices of 8 rows x 8 values
// (128 bytes, a row after the other), neighbours along k one after the other, groups of 8 rows at a
// stride. Without a swizzle: a core matrix covers all banks once.
#ifndef KERNELS_CUDA_HOPPER_CUH
#define KERNELS_CUDA_HOPPER_CUH

#include "kernels/cuda/common.cuh"

#include <cuda.h>

// An operand's first core matrix at p; k_bytes: to the next along k, row_bytes: to the next 8 rows.
__device__ __forceinline__ uint64_t operand_at(const void *p, uint32_t k_bytes, uint32_t row_bytes)
{
    return (uint64_t)(shared_address(p) >> 4 & 0x3fff) | (uint64_t)(k_bytes >> 4) << 16 |
           (uint64_t)(row_bytes >> 4) << 32;
}

// The same brought by boxes of 64 values (128 bytes) wide with the copy engine's swizzle of 128 bytes,
// p on a border of 1024: 8 rows are 1024 bytes. Along rows for a step's k side by side; for rows of k,
// columns_bytes: from 64 columns to the next 64.
__device__ __forceinline__ uint64_t swizzled_at(const void *p, uint32_t columns_bytes)
{
    return (uint64_t)(shared_address(p) >> 4 & 0x3fff) | (uint64_t)(columns_bytes >> 4) << 16 |
           (uint64_t)(1024 >> 4) << 32 | (uint64_t)1 << 62;
}

__device__ __forceinline__ uint64_t operand_further(uint64_t operand, uint32_t bytes)
{
    return operand + (bytes >> 4);
}

__device__ __forceinline__ void wgmma_begin()
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

__device__ __forceinline__ void wgmma_commit()
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

// Until at most n of the committed groups run.
template <int n> __device__ __forceinline__ void wgmma_wait()
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(n) : "memory");
}

// The accumulators are read or written by plain code from here on: nothing moves across.
template <int n> __device__ __forceinline__ void wgmma_settle(float (&d)[n])
{
#pragma unroll
    for (int i = 0; i < n; i++)
        asm volatile("" : "+f"(d[i])::"memory");
}

template <uint32_t n> __device__ __forceinline__ void registers_more()
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(n));
}

template <uint32_t n> __device__ __forceinline__ void registers_less()
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(n));
}

// --- barriers ---

// Of some of the block's threads, by number: meet, or say so and go on.
__device__ __forceinline__ void threads_meet(uint32_t barrier, uint32_t n)
{
    asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(n) : "memory");
}

__device__ __forceinline__ void threads_arrive(uint32_t barrier, uint32_t n)
{
    asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(n) : "memory");
}

// What was written by plain stores is there for the tensor core, once all have met.
__device__ __forceinline__ void written_for_wgmma()
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

__device__ __forceinline__ void barrier_init_for(uint64_t *b, uint32_t arrivals)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(b)), "r"(arrivals));
}

__device__ __forceinline__ void barrier_arrive(uint64_t *b)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(b)) : "memory");
}

// At the same barrier of block `rank` of the cluster. (Release at the scope of a cluster would fence
// all memory, a microsecond; what was read by a waited-for step needs none.)
__device__ __forceinline__ void barrier_arrive_at(uint64_t *b, uint32_t rank)
{
    asm volatile("{\n.reg .b32 a;\n"
                 "mapa.shared::cluster.u32 a, %0, %1;\n"
                 "mbarrier.arrive.shared::cluster.b64 _, [a];\n}" ::"r"(
                     shared_address(b)),
                 "r"(rank)
                 : "memory");
}

__device__ __forceinline__ uint32_t cluster_rank()
{
    uint32_t r;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(r));
    return r;
}

__device__ __forceinline__ void cluster_meet()
{
    asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}

// --- tiles by the copy engine; x, y: the box's first element in the map ---

__device__ __forceinline__ void fetch_box(void *to, const CUtensorMap *map, uint32_t x, uint32_t y,
                                          uint64_t *full)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%2, %3}], [%4];" ::"r"(shared_address(to)),
                 "l"(map), "r"(x), "r"(y), "r"(shared_address(full))
                 : "memory");
}

// Into the same place of every block in `blocks` (a bit each), counted by each one's own barrier.
__device__ __forceinline__ void fetch_box_to(void *to, const CUtensorMap *map, uint32_t x,
                                             uint32_t y, uint64_t *full, uint16_t blocks)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
                 ".multicast::cluster [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(shared_address(to)),
                 "l"(map), "r"(x), "r"(y), "r"(shared_address(full)), "h"(blocks)
                 : "memory");
}

// `start` in clusters of two blocks, neighbours along x.
template <class... P, class... A>
static inline cudaError_t start_pairs(void (*kernel)(P...), dim3 grid, uint32_t threads,
                                      uint32_t shared_bytes, cudaStream_t s, const A &...args)
{
    cudaLaunchAttribute attributes[2] = {};
    attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[0].val.programmaticStreamSerializationAllowed = 1;
    attributes[1].id = cudaLaunchAttributeClusterDimension;
    attributes[1].val.clusterDim.x = 2;
    attributes[1].val.clusterDim.y = attributes[1].val.clusterDim.z = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = dim3(threads);
    config.dynamicSmemBytes = shared_bytes;
    config.stream = s;
    config.attrs = attributes;
    config.numAttrs = 2;
    return cudaLaunchKernelEx(&config, kernel, args...);
}

// --- steps ---

// The operands of a product that go by number: its sums, the first of the list, in text and in registers.
#define WGMMA_D_32 \
    "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15," \
    "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define WGMMA_D_64 \
    WGMMA_D_32 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47," \
    "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define WGMMA_D_128 \
    WGMMA_D_64 ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79," \
    "%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95," \
    "%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111," \
    "%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"
#define WGMMA_REGS_8(k, d, i) \
    k(d[i]), k(d[i + 1]), k(d[i + 2]), k(d[i + 3]), k(d[i + 4]), k(d[i + 5]), k(d[i + 6]), \
        k(d[i + 7])
#define WGMMA_REGS_32(k, d, i) \
    WGMMA_REGS_8(k, d, i), WGMMA_REGS_8(k, d, i + 8), WGMMA_REGS_8(k, d, i + 16), \
        WGMMA_REGS_8(k, d, i + 24)
#define WGMMA_REGS_64(k, d, i) WGMMA_REGS_32(k, d, i), WGMMA_REGS_32(k, d, i + 32)
#define WGMMA_REGS_128(k, d, i) WGMMA_REGS_64(k, d, i), WGMMA_REGS_64(k, d, i + 64)

// d[64 rows x n] += a[64 x 16] b[16 x n], both in shared memory; m sums a thread.
#define WGMMA_SHARED(n, m, at_b) \
    __device__ __forceinline__ void wgmma(float (&d)[m], uint64_t a, uint64_t b) \
    { \
        asm volatile("wgmma.mma_async.sync.aligned.m64n" #n "k16.f32.f16.f16 {" WGMMA_D_##m \
                     "}, %" #m ", %" #at_b ", 1, 1, 1, 0, 0;" \
                     : WGMMA_REGS_##m("+f", d, 0) \
                     : "l"(a), "l"(b)); \
    }
WGMMA_SHARED(256, 128, 129)
WGMMA_SHARED(128, 64, 65)
WGMMA_SHARED(64, 32, 33)

// The same with a in registers, as mma_step takes it. add: "1", with kind "+f"; "0", with "=f": from
// zero, d is only written. sideways: "1" where b has its columns side by side (rows of k).
#define WGMMA_REGISTERS(name, n, m, at_1, at_2, at_3, at_b, add, kind, sideways) \
    __device__ __forceinline__ void name(float (&d)[m], uint32_t a0, uint32_t a1, uint32_t a2, \
                                         uint32_t a3, uint64_t b) \
    { \
        asm volatile("wgmma.mma_async.sync.aligned.m64n" #n "k16.f32.f16.f16 {" WGMMA_D_##m \
                     "}, {%" #m ",%" #at_1 ",%" #at_2 ",%" #at_3 "}, %" #at_b ", " add \
                     ", 1, 1, " sideways ";" \
                     : WGMMA_REGS_##m(kind, d, 0) \
                     : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(b)); \
    }
WGMMA_REGISTERS(wgmma_rows_from, 256, 128, 129, 130, 131, 132, "1", "+f", "0")
WGMMA_REGISTERS(wgmma_rows_begin, 256, 128, 129, 130, 131, 132, "0", "=f", "0")
WGMMA_REGISTERS(wgmma_from, 128, 64, 65, 66, 67, 68, "1", "+f", "1")
WGMMA_REGISTERS(wgmma_from, 64, 32, 33, 34, 35, 36, "1", "+f", "1")

// Where in a ring of n slots, and the parity of its barriers there.
struct ring_place {
    uint32_t slot, parity;
    __device__ __forceinline__ void next(uint32_t n)
    {
        if (++slot == n) {
            slot = 0;
            parity ^= 1;
        }
    }
};

#endif
