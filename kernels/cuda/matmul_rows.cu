// Products of 2 to 64 rows, and several of the same rows in one launch: the weights are streamed once
// for all rows. A warpgroup makes 64 outputs of every row: its warps turn two tiles of 8 outputs each
// to f16 in registers, the first operand of the warpgroup's step; the rows are the second, read by the
// tensor core from shared memory. Weights and rows come by asynchronous copies, some stages ahead: the
// first ones' weights before the kernel in front, which writes the rows, has ended.
//
// Up to four warpgroups share a block and its rows: as few as put no more than one block on an SM.
#include "kernels/cuda/forms.cuh"
#include "kernels/cuda/hopper.cuh"

static constexpr uint32_t SHARED_MAX = 227 * 1024, OUTS = 64, TILES = OUTS / TILE_OUT;
static constexpr uint32_t GROUP_ROWS = 8, GROUP_BLOCK = GROUP_ROWS * BLOCK_IN * 2; // of prepared rows

struct rows_args {
    const char *x; // as cuda_prepare_many leaves them
    const int32_t *exponents;
    uint32_t n_blocks, segment_blocks, n_rows;
    struct {
        const char *w;
        float *out;
        const float *bias;
        uint32_t n_out, block_end; // the part's blocks of the grid end there
        int32_t exponent;
    } part[CUDA_ROWS_PARTS];
};

template <class form, uint32_t WARPGROUPS> constexpr uint32_t stage_blocks()
{
    if (form::unit_blocks > 1) return form::unit_blocks;
    return (form::unit_bytes == F16_BLOCK ? 4u : 8u) / (WARPGROUPS == 4 ? 2 : 1);
}

template <class form, uint32_t ROWS, uint32_t WARPGROUPS> struct stage_of {
    static constexpr uint32_t blocks = stage_blocks<form, WARPGROUPS>();
    static constexpr uint32_t units = blocks / form::unit_blocks;
    static constexpr uint32_t tile_bytes = units * form::unit_bytes;
    static constexpr uint32_t x_at = WARPGROUPS * TILES * tile_bytes, group_bytes = blocks * GROUP_BLOCK;
    static constexpr uint32_t bytes = x_at + ROWS / GROUP_ROWS * group_bytes;
    static constexpr uint32_t n = SHARED_MAX / bytes < 8 ? SHARED_MAX / bytes : 8;
    static_assert(n >= 2 && x_at % 128 == 0 && bytes % 128 == 0, "a stage's place");
};

// Blocks of inputs that one stage holds; a segment's end ends a stage.
struct stage_place {
    uint32_t at, end;
    __device__ __forceinline__ uint32_t count(uint32_t most) const
    {
        return min(most, end - at);
    }
    __device__ __forceinline__ void next(const rows_args &a, uint32_t n)
    {
        at += n;
        if (at == end) end = min(end + a.segment_blocks, a.n_blocks);
    }
};

__device__ __forceinline__ void copy_16(char *to, const char *from)
{
    asm volatile("cp.async.cg.shared.global.L2::256B [%0], [%1], 16;" ::"r"(shared_address(to)), "l"(from)
                 : "memory");
}

__device__ __forceinline__ void copies_commit()
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

template <uint32_t n> __device__ __forceinline__ void copies_wait() // until at most n are under way
{
    asm volatile("cp.async.wait_group %0;" ::"n"(n) : "memory");
}

// The warp's two tiles, from[i] being where each begins or null.
template <class form, class stage>
static __device__ __forceinline__ void fetch_weights(char *to, const char *const from[2], uint32_t at,
                                                     uint32_t n)
{
    uint32_t o = threadIdx.x % 32 * 16, n_bytes = n / form::unit_blocks * form::unit_bytes;
    uint64_t skip = (uint64_t)(at / form::unit_blocks) * form::unit_bytes;
    to += threadIdx.x / 32 * 2 * stage::tile_bytes;
#pragma unroll
    for (uint32_t t = 0; t < 2; t++) {
        if (from[t] == nullptr) break;
#pragma unroll
        for (uint32_t j = 0; j < stage::tile_bytes; j += 512)
            if (j + o < n_bytes) copy_16(to + t * stage::tile_bytes + j + o, from[t] + skip + j + o);
    }
}

// Groups of 8 rows; those past the last are left as they are: they are columns of their own.
template <class stage, uint32_t ROWS, uint32_t THREADS>
static __device__ __forceinline__ void fetch_rows(char *to, const rows_args &a, uint32_t at, uint32_t n)
{
    constexpr uint32_t PIECES = stage::group_bytes / 16;
#pragma unroll
    for (uint32_t j = 0; j < ROWS / GROUP_ROWS * PIECES; j += THREADS) {
        uint32_t group = (j + threadIdx.x) / PIECES, piece = (j + threadIdx.x) % PIECES;
        if (group * GROUP_ROWS >= a.n_rows || piece >= n * (GROUP_BLOCK / 16)) continue;
        copy_16(to + stage::x_at + group * stage::group_bytes + piece * 16,
                a.x + ((uint64_t)group * a.n_blocks + at) * GROUP_BLOCK + piece * 16);
    }
}

// d[64 outputs x rows] += w[64 x 16] x[16 x rows]: w in registers as mma_step takes it.
__device__ __forceinline__ void wgmma_rows(float (&d)[8], uint32_t a0, uint32_t a1, uint32_t a2,
                                           uint32_t a3, uint64_t x)
{
    asm volatile("wgmma.mma_async.sync.aligned.m64n16k16.f32.f16.f16 {%0,%1,%2,%3,%4,%5,%6,%7}, "
                 "{%8,%9,%10,%11}, %12, 1, 1, 1, 0;"
                 : WGMMA_OUT_8(d, 0)
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(x));
}

__device__ __forceinline__ void wgmma_rows(float (&d)[16], uint32_t a0, uint32_t a1, uint32_t a2,
                                           uint32_t a3, uint64_t x)
{
    asm volatile("wgmma.mma_async.sync.aligned.m64n32k16.f32.f16.f16 "
                 "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15}, "
                 "{%16,%17,%18,%19}, %20, 1, 1, 1, 0;"
                 : WGMMA_OUT_8(d, 0), WGMMA_OUT_8(d, 8)
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(x));
}

__device__ __forceinline__ void wgmma_rows(float (&d)[32], uint32_t a0, uint32_t a1, uint32_t a2,
                                           uint32_t a3, uint64_t x)
{
    asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {" WGMMA_D_32 "}, "
                 "{%32,%33,%34,%35}, %36, 1, 1, 1, 0;"
                 : WGMMA_OUT_32(d, 0)
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(x));
}

// The n blocks of a stage.
template <class form, class stage, uint32_t SUMS>
static __device__ __forceinline__ void multiply(float (&d)[SUMS], const char *at, uint32_t n)
{
    uint32_t lane = threadIdx.x % 32;
    const char *w = at + threadIdx.x / 32 * 2 * stage::tile_bytes;
    uint64_t x = operand_at(at + stage::x_at, GROUP_BLOCK / 4, stage::group_bytes);
    wgmma_settle(d);
#pragma unroll
    for (uint32_t u = 0; u < stage::units; u++) {
        if (u * form::unit_blocks >= n) break;
        uint4 low[form::unit_blocks];
        form::each(w + u * form::unit_bytes, lane, [&](uint32_t j, uint4 v) { low[j] = v; });
        form::each(w + stage::tile_bytes + u * form::unit_bytes, lane, [&](uint32_t j, uint4 v) {
            uint64_t rows = operand_further(x, (u * form::unit_blocks + j) * GROUP_BLOCK);
            wgmma_begin();
            wgmma_rows(d, low[j].x, v.x, low[j].y, v.y, rows);
            wgmma_rows(d, low[j].z, v.z, low[j].w, v.w, operand_further(rows, GROUP_BLOCK / 2));
            wgmma_commit();
            wgmma_wait<1>();
        });
    }
    wgmma_wait<0>();
    wgmma_settle(d);
}

// A segment's sums: added to what the segments before it left in out; the last one's finished.
template <uint32_t SUMS>
static __device__ void put(const rows_args &a, uint32_t part, const float (&d)[SUMS], uint32_t out0,
                           bool first, bool last)
{
    uint32_t lane = threadIdx.x % 32, n_out = a.part[part].n_out;
    float *out = a.part[part].out;
#pragma unroll
    for (uint32_t i = 0; i < SUMS; i++) {
        uint32_t r = i / 4 * 8 + lane % 4 * 2 + i % 2, o = out0 + i % 4 / 2 * 8 + lane / 4;
        if (r >= a.n_rows || o >= n_out) continue;
        float *to = out + (uint64_t)r * n_out + o, v = d[i];
        if (!first) v = __fadd_rn(*to, v);
        *to = last ? finish_sum(v, a.exponents[r] + a.part[part].exponent, a.part[part].bias, o) : v;
    }
}

template <class form, uint32_t ROWS, uint32_t WARPGROUPS>
static __global__ void __launch_bounds__(128 * WARPGROUPS, 1)
    matmul_rows(const __grid_constant__ rows_args a)
{
    using stage = stage_of<form, ROWS, WARPGROUPS>;
    constexpr uint32_t THREADS = 128 * WARPGROUPS;
    extern __shared__ __align__(128) char shared[];
    uint32_t part = (blockIdx.x >= a.part[0].block_end) + (blockIdx.x >= a.part[1].block_end);
    uint32_t block = blockIdx.x - (part > 0 ? a.part[part - 1].block_end : 0);
    uint32_t tile = block * WARPGROUPS * TILES + threadIdx.x / 32 * 2;
    uint32_t n_tiles = (a.part[part].n_out + TILE_OUT - 1) / TILE_OUT;
    uint64_t tile_bytes = (uint64_t)(a.n_blocks / form::unit_blocks) * form::unit_bytes;
    const char *from = a.part[part].w + tile * tile_bytes;
    const char *const w[2] = {tile < n_tiles ? from : nullptr,
                              tile + 1 < n_tiles ? from + tile_bytes : nullptr};

    asm volatile("griddepcontrol.launch_dependents;");
    stage_place in = {0, min(a.segment_blocks, a.n_blocks)}, ahead = in;
    auto each_first = [&](auto fetch) {
        stage_place p = in;
        for (uint32_t i = 0; i + 1 < stage::n; i++) {
            uint32_t n = p.at < a.n_blocks ? p.count(stage::blocks) : 0;
            fetch(shared + i * stage::bytes, p.at, n);
            if (n > 0) p.next(a, n);
        }
        return p;
    };
    each_first([&](char *to, uint32_t at, uint32_t n) { fetch_weights<form, stage>(to, w, at, n); });
    asm volatile("griddepcontrol.wait;" ::: "memory");
    ahead = each_first([&](char *to, uint32_t at, uint32_t n) {
        fetch_rows<stage, ROWS, THREADS>(to, a, at, n);
        copies_commit();
    });

    float d[ROWS / 2];
    uint32_t slot = 0, free_slot = stage::n - 1;
    bool begins = true;
    while (in.at < a.n_blocks) {
        uint32_t n = in.count(stage::blocks);
        copies_wait<stage::n - 2>();
        written_for_wgmma();
        __syncthreads(); // the stage is there, and all have used the one before it
        if (ahead.at < a.n_blocks) {
            uint32_t m = ahead.count(stage::blocks);
            fetch_weights<form, stage>(shared + free_slot * stage::bytes, w, ahead.at, m);
            fetch_rows<stage, ROWS, THREADS>(shared + free_slot * stage::bytes, a, ahead.at, m);
            ahead.next(a, m);
        }
        copies_commit();
        if (begins) {
#pragma unroll
            for (uint32_t i = 0; i < ROWS / 2; i++)
                d[i] = 0;
        }
        multiply<form, stage>(d, shared + slot * stage::bytes, n);
        begins = in.at + n == in.end;
        if (begins)
            put(a, part, d, tile * TILE_OUT, in.end <= a.segment_blocks, in.end == a.n_blocks);
        in.next(a, n);
        free_slot = slot;
        if (++slot == stage::n) slot = 0;
    }
}

// call(rows, warpgroups) with constants for the template, as many rows as there are or more.
template <class F>
static cudaError_t with_shape(uint32_t n_rows, uint32_t n_warpgroups, F call)
{
    using one = std::integral_constant<uint32_t, 1>;
    using two = std::integral_constant<uint32_t, 2>;
    using four = std::integral_constant<uint32_t, 4>;
    auto rows = [&](auto r) {
        return n_warpgroups == 1 ? call(r, one()) : n_warpgroups == 2 ? call(r, two()) : call(r, four());
    };
    if (n_rows <= 16) return rows(std::integral_constant<uint32_t, 16>());
    if (n_rows <= 32) return rows(std::integral_constant<uint32_t, 32>());
    return rows(std::integral_constant<uint32_t, 64>());
}

cudaError_t cuda_matmul_rows_setup(void)
{
    cudaError_t e = cudaSuccess;
    for (cuda_form f : {FORM_F16, FORM_Q8, FORM_Q4K, FORM_Q6K}) {
        for (uint32_t n_rows : {16, 32, 64}) {
            for (uint32_t n_warpgroups : {1, 2, 4}) {
                if (e == cudaSuccess) e = with_form(f, [&](auto form) {
                    return with_shape(n_rows, n_warpgroups, [](auto r, auto g) {
                        return cudaFuncSetAttribute(
                            (const void *)matmul_rows<decltype(form), r.value, g.value>,
                            cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED_MAX);
                    });
                });
            }
        }
    }
    return e;
}

static uint32_t blocks_of(const cuda_product *p, uint32_t n, uint32_t n_warpgroups)
{
    uint32_t blocks = 0, outs = OUTS * n_warpgroups;
    for (uint32_t i = 0; i < n; i++)
        blocks += (p[i].w->n_out + outs - 1) / outs;
    return blocks;
}

cudaError_t cuda_matmul_rows(cudaStream_t s, const cuda_product *p, uint32_t n, const void *prepared,
                             const int32_t *exponents, uint32_t n_rows, uint32_t n_sms)
{
    if (n == 0 || n > CUDA_ROWS_PARTS || n_rows > CUDA_ROWS_MAX) return cudaErrorInvalidValue;
    const cuda_form form = p->w->form;
    uint32_t n_units = cuda_blocks_in(p->w->n_in) / cuda_unit_blocks(form);
    uint32_t n_segments = cuda_segments(p->w->n_in), n_warpgroups = 1;
    while (n_warpgroups < 4 && blocks_of(p, n, n_warpgroups) > n_sms)
        n_warpgroups *= 2;
    rows_args a = {};
    a.x = (const char *)prepared;
    a.exponents = exponents;
    a.n_blocks = n_units * cuda_unit_blocks(form);
    a.segment_blocks = (n_units + n_segments - 1) / n_segments * cuda_unit_blocks(form);
    a.n_rows = n_rows;
    for (uint32_t i = 0; i < CUDA_ROWS_PARTS; i++) {
        const cuda_product *from = p + min(i, n - 1); // past the last: never begun
        const cuda_matrix *w = from->w;
        if (w->n_in != p->w->n_in || w->form != form) return cudaErrorInvalidValue;
        a.part[i] = {(const char *)w->data, from->out, from->bias, w->n_out,
                     blocks_of(p, min(i + 1, n), n_warpgroups), w->exponent};
    }
    return with_form(form, [&](auto f) {
        return with_shape(n_rows, n_warpgroups, [&](auto r, auto g) {
            using stage = stage_of<decltype(f), r.value, g.value>;
            return start(matmul_rows<decltype(f), r.value, g.value>,
                         dim3(blocks_of(p, n, n_warpgroups)), 128 * g.value, stage::n * stage::bytes, s,
                         a);
        });
    });
}
