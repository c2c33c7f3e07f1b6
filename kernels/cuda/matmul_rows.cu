// Products of 2 to 64 rows, and several of the same rows in one launch: the weights are streamed
// once for all rows. A warp turns two tiles of 8 outputs to f16 in registers, the first operand of
// the tensor core's step; the rows, eight at a time, are the second, from shared memory. Weights
// and rows come by asynchronous copies, some stages ahead: the first ones' weights before the
// kernel in front, which writes the rows, has ended.
//
// Four warps are a team of 64 outputs. Up to four teams share a block and its rows: as few as put
// no more than one block on an SM. Where two segments leave SMs idle, two teams take one each.
#include "kernels/cuda/forms.cuh"

static constexpr uint32_t SHARED_MAX = 227 * 1024, OUTS = 64, TILES = OUTS / TILE_OUT;
static constexpr uint32_t GROUP_ROWS = 8, ROW_BLOCK = BLOCK_IN * 2; // bytes of a prepared row
static constexpr uint32_t GROUP_BLOCK = GROUP_ROWS * ROW_BLOCK;

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

// Of a block: teams, of which LINES share outputs and have a segment each.
template <uint32_t ROWS_, uint32_t TEAMS_, uint32_t LINES_> struct shape {
    static constexpr uint32_t ROWS = ROWS_, TEAMS = TEAMS_, LINES = LINES_, THREADS = 128 * TEAMS;
    static constexpr uint32_t GROUPS = ROWS / GROUP_ROWS;
};

template <class form, uint32_t TEAMS> constexpr uint32_t stage_blocks()
{
    if (form::unit_blocks > 1) return form::unit_blocks;
    return (form::unit_bytes == F16_BLOCK ? 4u : 8u) / (TEAMS == 4 ? 2 : 1);
}

// What is brought at a time: all tiles' weights, then each line's rows.
template <class form, class of> struct stage_of {
    static constexpr uint32_t blocks = stage_blocks<form, of::TEAMS>();
    static constexpr uint32_t units = blocks / form::unit_blocks;
    static constexpr uint32_t tile_bytes = units * form::unit_bytes;
    static constexpr uint32_t x_at = of::TEAMS * TILES * tile_bytes,
                              group_bytes = blocks * GROUP_BLOCK;
    static constexpr uint32_t bytes = x_at + of::LINES * of::GROUPS * group_bytes;
    static constexpr uint32_t n = SHARED_MAX / bytes < 8 ? SHARED_MAX / bytes : 8;
    static_assert(n >= 2 && x_at % 128 == 0 && bytes % 128 == 0, "a stage's place");
    static_assert(of::LINES == 1 || bytes >= 128 * of::ROWS / 2 * 4,
                  "a line's sums have room in one");
};

// The blocks of inputs of a stage, [at, at + count) of the first line; a segment's end ends a
// stage.
template <class of> struct stage_place {
    uint32_t at, end;
    __device__ __forceinline__ stage_place(const rows_args &a)
        : at(0), end(min(a.segment_blocks, a.n_blocks))
    {
    }
    __device__ __forceinline__ bool there(const rows_args &a) const
    {
        return at < (of::LINES > 1 ? a.segment_blocks : a.n_blocks);
    }
    __device__ __forceinline__ uint32_t line_at(const rows_args &a, uint32_t line) const
    {
        return at + line * a.segment_blocks;
    }
    __device__ __forceinline__ uint32_t count(const rows_args &a, uint32_t line,
                                              uint32_t most) const
    {
        uint32_t from = line_at(a, line), to = line > 0 ? a.n_blocks : end;
        return from < to ? min(most, to - from) : 0;
    }
    __device__ __forceinline__ void next(const rows_args &a, uint32_t most)
    {
        at += count(a, 0, most);
        if (at == end) end = min(end + a.segment_blocks, a.n_blocks);
    }
};

__device__ __forceinline__ void copy_16(char *to, const char *from)
{
    asm volatile("cp.async.cg.shared.global.L2::256B [%0], [%1], 16;" ::"r"(shared_address(to)),
                 "l"(from)
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

// The warp's two tiles, from[i] being where each begins or null: blocks [at, at + n).
template <class form, class stage>
static __device__ __forceinline__ void fetch_weights(char *to, const char *const from[2],
                                                     uint32_t at, uint32_t n)
{
    uint32_t o = threadIdx.x % 32 * 16, n_bytes = n / form::unit_blocks * form::unit_bytes;
    uint64_t skip = (uint64_t)(at / form::unit_blocks) * form::unit_bytes;
    to += threadIdx.x / 32 * 2 * stage::tile_bytes;
#pragma unroll
    for (uint32_t t = 0; t < 2; t++) {
        if (from[t] == nullptr) break;
#pragma unroll
        for (uint32_t j = 0; j < stage::tile_bytes; j += 512)
            if (j + o < n_bytes)
                copy_16(to + t * stage::tile_bytes + j + o, from[t] + skip + j + o);
    }
}

// Each line's rows, in groups of 8 as core matrices: [block][4][8 rows][8 x f16]. Rows past the
// last are left as they are: they are columns of their own.
template <class stage, class of>
static __device__ __forceinline__ void fetch_rows(char *to, const rows_args &a,
                                                  const stage_place<of> &p)
{
    constexpr uint32_t PIECES = stage::group_bytes / 16;
#pragma unroll
    for (uint32_t line = 0; line < of::LINES; line++) {
        uint32_t at = p.line_at(a, line), n = p.count(a, line, stage::blocks) * (GROUP_BLOCK / 16);
#pragma unroll
        for (uint32_t j = 0; j < of::GROUPS * PIECES; j += of::THREADS) {
            uint32_t group = (j + threadIdx.x) / PIECES, piece = (j + threadIdx.x) % PIECES;
            uint32_t r = group * GROUP_ROWS + piece % 8;
            if (r >= a.n_rows || piece >= n) continue;
            copy_16(to + stage::x_at + (line * of::GROUPS + group) * stage::group_bytes +
                        piece * 16,
                    a.x + ((uint64_t)r * a.n_blocks + at + piece / 32) * ROW_BLOCK +
                        piece / 8 % 4 * 16);
        }
    }
}

// A unit of the warp's tiles, w and the one after, with its line's rows.
template <class form, class stage, class of>
static __device__ __forceinline__ void multiply_unit(float (&d)[of::ROWS / 2], const char *w,
                                                     const char *x, uint32_t lane)
{
    uint4 low[form::unit_blocks];
    each_block<form>(w, lane, [&](uint32_t j, uint4 v) { low[j] = v; });
    each_block<form>(w + stage::tile_bytes, lane, [&](uint32_t j, uint4 v) {
        uint4 rows[of::GROUPS];
#pragma unroll
        for (uint32_t g = 0; g < of::GROUPS; g++)
            rows[g] = form_f16::operand(x + g * stage::group_bytes + j * GROUP_BLOCK, lane);
#pragma unroll
        for (uint32_t g = 0; g < of::GROUPS; g++)
            mma_step(d + g * 4, low[j].x, v.x, low[j].y, v.y, rows[g].x, rows[g].y);
#pragma unroll
        for (uint32_t g = 0; g < of::GROUPS; g++)
            mma_step(d + g * 4, low[j].z, v.z, low[j].w, v.w, rows[g].z, rows[g].w);
    });
}

// n blocks. All of a stage: without branches, so that a block's loads stand before its forerunner's
// steps.
template <class form, class stage, class of>
static __device__ __forceinline__ void multiply(float (&d)[of::ROWS / 2], const char *at,
                                                uint32_t line, uint32_t n)
{
    constexpr uint32_t X_UNIT = form::unit_blocks * GROUP_BLOCK;
    uint32_t lane = threadIdx.x % 32;
    const char *w = at + threadIdx.x / 32 * 2 * stage::tile_bytes;
    const char *x = at + stage::x_at + line * of::GROUPS * stage::group_bytes;
    if (n == stage::blocks) {
#pragma unroll
        for (uint32_t u = 0; u < stage::units; u++)
            multiply_unit<form, stage, of>(d, w + u * form::unit_bytes, x + u * X_UNIT, lane);
        return;
    }
#pragma unroll 1
    for (uint32_t u = 0; u * form::unit_blocks < n; u++)
        multiply_unit<form, stage, of>(d, w + u * form::unit_bytes, x + u * X_UNIT, lane);
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
        *to =
            last ? finish_sum(v, a.exponents[r] + a.part[part].exponent, a.part[part].bias, o) : v;
    }
}

// The second line's sums, in shared memory that no copy is under way to, added to the first's.
template <uint32_t SUMS>
static __device__ void join_lines(float (&d)[SUMS], float *sums, uint32_t line)
{
    uint32_t t = threadIdx.x % 128;
    __syncthreads();
#pragma unroll
    for (uint32_t i = 0; i < SUMS; i++)
        if (line == 1) sums[i * 128 + t] = d[i];
    __syncthreads();
#pragma unroll
    for (uint32_t i = 0; i < SUMS; i++)
        if (line == 0) d[i] = __fadd_rn(d[i], sums[i * 128 + t]);
}

template <class form, class of>
static __global__ void __launch_bounds__(of::THREADS, 1)
    matmul_rows(const __grid_constant__ rows_args a)
{
    using stage = stage_of<form, of>;
    extern __shared__ __align__(128) char shared[];
    uint32_t part = (blockIdx.x >= a.part[0].block_end) + (blockIdx.x >= a.part[1].block_end);
    uint32_t block = blockIdx.x - (part > 0 ? a.part[part - 1].block_end : 0);
    uint32_t team = threadIdx.x / 128, line = team / (of::TEAMS / of::LINES);
    uint32_t tile = (block * (of::TEAMS / of::LINES) + team % (of::TEAMS / of::LINES)) * TILES +
                    threadIdx.x / 32 % 4 * 2;
    uint32_t n_tiles = (a.part[part].n_out + TILE_OUT - 1) / TILE_OUT;
    uint64_t tile_bytes = (uint64_t)(a.n_blocks / form::unit_blocks) * form::unit_bytes;
    const char *from = a.part[part].w + tile * tile_bytes;
    const char *const w[2] = {tile < n_tiles ? from : nullptr,
                              tile + 1 < n_tiles ? from + tile_bytes : nullptr};

    asm volatile("griddepcontrol.launch_dependents;");
    stage_place<of> in(a), ahead(a);
    for (uint32_t i = 0; i + 1 < stage::n && ahead.there(a); i++, ahead.next(a, stage::blocks))
        fetch_weights<form, stage>(shared + i * stage::bytes, w, ahead.line_at(a, line),
                                   ahead.count(a, line, stage::blocks));
    asm volatile("griddepcontrol.wait;" ::: "memory");
    ahead = in;
    for (uint32_t i = 0; i + 1 < stage::n; i++) {
        if (ahead.there(a)) {
            fetch_rows<stage>(shared + i * stage::bytes, a, ahead);
            ahead.next(a, stage::blocks);
        }
        copies_commit();
    }

    float d[of::ROWS / 2];
    uint32_t slot = 0, free_slot = stage::n - 1;
    bool begins = true;
    while (in.there(a)) {
        copies_wait<stage::n - 2>();
        __syncthreads(); // the stage is there, and all have used the one before it
        if (ahead.there(a)) {
            char *to = shared + free_slot * stage::bytes;
            fetch_weights<form, stage>(to, w, ahead.line_at(a, line),
                                       ahead.count(a, line, stage::blocks));
            fetch_rows<stage>(to, a, ahead);
            ahead.next(a, stage::blocks);
        }
        copies_commit();
        if (begins) {
#pragma unroll
            for (uint32_t i = 0; i < of::ROWS / 2; i++)
                d[i] = 0;
        }
        multiply<form, stage, of>(d, shared + slot * stage::bytes, line,
                                  in.count(a, line, stage::blocks));
        uint32_t end = in.end;
        in.next(a, stage::blocks);
        begins = in.at == end;
        if (begins && of::LINES == 1)
            put(a, part, d, tile * TILE_OUT, end <= a.segment_blocks, end == a.n_blocks);
        free_slot = slot;
        if (++slot == stage::n) slot = 0;
    }
    if (of::LINES == 1) return;
    copies_wait<0>();
    join_lines(d, (float *)shared, line);
    if (line == 0) put(a, part, d, tile * TILE_OUT, true, true);
}

// call(shape) for as many rows as there are or more.
template <class F>
static cudaError_t with_shape(uint32_t n_rows, uint32_t n_teams, uint32_t n_lines, F call)
{
    auto rows = [&](auto r) {
        return n_lines == 2   ? call(shape<r.value, 2, 2>())
               : n_teams == 1 ? call(shape<r.value, 1, 1>())
               : n_teams == 2 ? call(shape<r.value, 2, 1>())
                              : call(shape<r.value, 4, 1>());
    };
    if (n_rows <= 8) return rows(std::integral_constant<uint32_t, 8>());
    if (n_rows <= 16) return rows(std::integral_constant<uint32_t, 16>());
    if (n_rows <= 32) return rows(std::integral_constant<uint32_t, 32>());
    return rows(std::integral_constant<uint32_t, 64>());
}

template <class form> static cudaError_t allow(uint32_t n_rows)
{
    cudaError_t e = cudaSuccess;
    for (uint32_t i = 0; i < 4 && e == cudaSuccess; i++)
        e = with_shape(n_rows, i == 3 ? 2 : 1u << i, i == 3 ? 2 : 1, [](auto of) {
            return cudaFuncSetAttribute((const void *)matmul_rows<form, decltype(of)>,
                                        cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED_MAX);
        });
    return e;
}

cudaError_t cuda_matmul_rows_setup(void)
{
    for (cuda_form f : {FORM_F16, FORM_Q8, FORM_Q8M, FORM_Q4K, FORM_Q6K, FORM_K8}) {
        for (uint32_t n_rows = 8; n_rows <= CUDA_ROWS_MAX; n_rows *= 2) {
            cudaError_t e = with_form(f, [&](auto form) { return allow<decltype(form)>(n_rows); });
            if (e != cudaSuccess) return e;
        }
    }
    return cudaSuccess;
}

static uint32_t blocks_of(const cuda_product *p, uint32_t n, uint32_t n_teams)
{
    uint32_t blocks = 0, outs = OUTS * n_teams;
    for (uint32_t i = 0; i < n; i++)
        blocks += (p[i].w->n_out + outs - 1) / outs;
    return blocks;
}

cudaError_t cuda_matmul_rows(cudaStream_t s, const cuda_product *p, uint32_t n,
                             const void *prepared, const int32_t *exponents, uint32_t n_rows,
                             uint32_t n_sms)
{
    if (n == 0 || n > CUDA_ROWS_PARTS || n_rows > CUDA_ROWS_MAX) return cudaErrorInvalidValue;
    const cuda_form form = p->w->form;
    uint32_t n_units = cuda_blocks_in(p->w->n_in) / cuda_unit_blocks(form);
    uint32_t n_segments = cuda_segments(p->w->n_in), n_teams = 1;
    while (n_teams < 4 && blocks_of(p, n, n_teams) > n_sms)
        n_teams *= 2;
    uint32_t n_lines = n_teams == 1 && n_segments == 2 ? 2 : 1;
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
        a.part[i] = {(const char *)w->data,
                     from->out,
                     from->bias,
                     w->n_out,
                     blocks_of(p, min(i + 1, n), n_teams),
                     w->exponent};
    }
    return with_form(form, [&](auto f) {
        return with_shape(n_rows, n_teams, n_lines, [&](auto of) {
            using stage = stage_of<decltype(f), decltype(of)>;
            return start(matmul_rows<decltype(f), decltype(of)>, dim3(blocks_of(p, n, n_teams)),
                         of.THREADS, stage::n * stage::bytes, s, a);
        });
    });
}
