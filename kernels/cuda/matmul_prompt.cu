// Products of many rows: tiles of 128 rows and up to 256 outputs. A block is three warpgroups: one
// thread of the first lets the copy engine fill a ring of stages (64 values of k), the other two
// multiply, 64 rows each. Two blocks of a cluster take neighbouring rows of the same outputs, and
// each brings both of them half of the weights. A persistent grid walks the tiles, a band of rows
// first, so that what is in the cache is read again. Rows lie in shared memory as the copy engine's
// swizzle leaves them, weights as the core matrices that they are in memory. Between segments the
// sums wait in `out`, each in its own thread's places.
#include "kernels/cuda/hopper.cuh"

static constexpr uint32_t ROWS = 128, GROUP = 8; // GROUP: rows of a core matrix
static constexpr uint32_t BAND = 8;              // clusters' rows that tiles go through together
static constexpr uint32_t STEP = 2;              // blocks of k in a stage
static constexpr uint32_t STEP_BYTES = STEP * BLOCK_IN * 2, X_BYTES = ROWS * STEP_BYTES;
static constexpr uint32_t GROUP_BYTES = STEP * F16_BLOCK;
static_assert(STEP_BYTES == 128, "a row of a stage is as wide as the swizzle");

// By the number of outputs in a tile: a stage holds 128 rows' part, then the outputs'.
template <uint32_t OUTS> struct ring_of {
    static constexpr uint32_t half_groups = OUTS / GROUP / 2; // what one block of a cluster brings
    static constexpr uint32_t half_bytes = half_groups * GROUP_BYTES;
    static constexpr uint32_t bytes = X_BYTES + 2 * half_bytes;
    static constexpr uint32_t slots = 200 * 1024 / bytes;
    static constexpr uint32_t shared_bytes = 1024 + slots * bytes;
};

struct prompt_args {
    CUtensorMap x, w;
    float *out;
    const int32_t *exponents;
    const float *bias;
    uint32_t n_blocks, segment_blocks, n_out, out_stride, n_rows, n_row_pairs, n_tiles;
    int32_t w_exponent;
};

struct tile_place {
    uint32_t row_pair, out_tile;
};

// Tiles go through a band of rows, then to the next outputs; when all are done, to the next band.
static __device__ __forceinline__ tile_place place_of(const prompt_args &a, uint32_t tile)
{
    uint32_t of_band = BAND * (a.n_tiles / a.n_row_pairs), first = tile / of_band * BAND;
    uint32_t n_rows = min(BAND, a.n_row_pairs - first);
    return {first + tile % of_band % n_rows, tile % of_band / n_rows};
}

// The stages of a tile come segment by segment, STEP blocks each, a shorter one at a segment's end.
template <uint32_t OUTS>
static __device__ void fill_ring(const prompt_args &a, char *stages, uint64_t *full,
                                 uint64_t *empty)
{
    using ring = ring_of<OUTS>;
    uint32_t rank = cluster_rank();
    ring_place at = {0, 1}; // a ring that nobody has used yet is empty
    for (uint32_t tile = blockIdx.x / 2; tile < a.n_tiles; tile += gridDim.x / 2) {
        tile_place t = place_of(a, tile);
        uint32_t row_tile = t.row_pair * 2 + rank, out_tile = t.out_tile;
        uint32_t w_group = out_tile * (OUTS / GROUP) + rank * ring::half_groups;
        for (uint32_t begin = 0; begin < a.n_blocks; begin += a.segment_blocks) {
            uint32_t end = min(begin + a.segment_blocks, a.n_blocks);
            for (uint32_t b = begin; b < end; b += STEP) {
                char *to = stages + at.slot * ring::bytes;
                barrier_wait(empty + at.slot, at.parity);
                barrier_expect(full + at.slot, ring::bytes);
                fetch_box(to, &a.x, b * BLOCK_IN, row_tile * ROWS, full + at.slot);
                fetch_box_to(to + X_BYTES + rank * ring::half_bytes, &a.w, b * (F16_BLOCK / 8),
                             w_group, full + at.slot, 3);
                at.next(ring::slots);
            }
        }
    }
}

// A segment's sums join those before them; the last ones are finished. All outputs of the tile are
// there: eight pairs at a time, their loads together.
template <int N>
static __device__ __forceinline__ void put_row(const prompt_args &a, const float (&d)[N],
                                               uint32_t h, float *to, uint32_t out0, float2 scale,
                                               bool first, bool last)
{
#pragma unroll
    for (uint32_t t0 = 0; t0 < N / 4; t0 += 8) {
        float2 v[8];
#pragma unroll
        for (uint32_t t = 0; t < 8; t++)
            v[t] = make_float2(d[(t0 + t) * 4 + h * 2], d[(t0 + t) * 4 + h * 2 + 1]);
        if (!first) {
            float2 before[8];
#pragma unroll
            for (uint32_t t = 0; t < 8; t++)
                before[t] = *(const float2 *)(to + (t0 + t) * 8);
#pragma unroll
            for (uint32_t t = 0; t < 8; t++) {
                v[t].x = __fadd_rn(before[t].x, v[t].x);
                v[t].y = __fadd_rn(before[t].y, v[t].y);
            }
        }
        if (last) { // finish_sum, its powers of two made once
#pragma unroll
            for (uint32_t t = 0; t < 8; t++) {
                v[t].x = __fmul_rn(__fmul_rn(v[t].x, scale.x), scale.y);
                v[t].y = __fmul_rn(__fmul_rn(v[t].y, scale.x), scale.y);
            }
            if (a.bias != nullptr) {
#pragma unroll
                for (uint32_t t = 0; t < 8; t++) {
                    v[t].x = __fadd_rn(v[t].x, a.bias[out0 + (t0 + t) * 8]);
                    v[t].y = __fadd_rn(v[t].y, a.bias[out0 + (t0 + t) * 8 + 1]);
                }
            }
        }
#pragma unroll
        for (uint32_t t = 0; t < 8; t++)
            *(float2 *)(to + (t0 + t) * 8) = v[t];
    }
}

// The same at the end of the outputs, or where rows do not begin on 8 bytes: one by one.
template <int N>
static __device__ __forceinline__ void put_some(const prompt_args &a, const float (&d)[N],
                                                uint32_t h, float *to, uint32_t out0, int exponent,
                                                bool first, bool last)
{
#pragma unroll
    for (uint32_t i = 0; i < N / 2; i++) {
        uint32_t at = i / 2 * 8 + i % 2;
        if (out0 + at >= a.n_out) continue;
        float v = d[i / 2 * 4 + h * 2 + i % 2];
        if (!first) v = __fadd_rn(to[at], v);
        to[at] = last ? finish_sum(v, exponent, a.bias, out0 + at) : v;
    }
}

template <int N>
static __device__ __forceinline__ void put(const prompt_args &a, const float (&d)[N], uint32_t row,
                                           uint32_t out_tile, bool first, bool last)
{
    constexpr uint32_t OUTS = 2 * N;
    uint32_t lane = threadIdx.x % 32, out0 = out_tile * OUTS + lane % 4 * 2;
    bool whole = (out_tile + 1) * OUTS <= a.n_out && a.out_stride % 2 == 0;
#pragma unroll
    for (uint32_t h = 0; h < 2; h++) {
        uint32_t r = row + lane / 4 + h * 8;
        if (r >= a.n_rows) continue;
        int exponent = a.exponents[r] + a.w_exponent, half = -exponent / 2;
        float *to = a.out + (uint64_t)r * a.out_stride + out0;
        if (whole)
            put_row(a, d, h, to, out0, make_float2(pow2(half), pow2(-exponent - half)), first,
                    last);
        else
            put_some(a, d, h, to, out0, exponent, first, last);
    }
}

static __device__ __forceinline__ void release(uint64_t *empty)
{
    if (threadIdx.x % 32 < 2) barrier_arrive_at(empty, threadIdx.x % 32);
}

template <uint32_t OUTS>
static __device__ void multiply_tiles(const prompt_args &a, char *stages, uint64_t *full,
                                      uint64_t *empty)
{
    using ring = ring_of<OUTS>;
    uint32_t rank = cluster_rank(), group = threadIdx.x / 128 - 1, warp = threadIdx.x / 32 % 4;
    uint32_t x_at = group * 64 * STEP_BYTES;
    ring_place at = {0, 0};
    float d[OUTS / 2];
    for (uint32_t tile = blockIdx.x / 2; tile < a.n_tiles; tile += gridDim.x / 2) {
        tile_place t = place_of(a, tile);
        uint32_t row_tile = t.row_pair * 2 + rank, out_tile = t.out_tile;
        uint32_t row = row_tile * ROWS + group * 64 + warp * 16;
        for (uint32_t begin = 0; begin < a.n_blocks; begin += a.segment_blocks) {
            uint32_t end = min(begin + a.segment_blocks, a.n_blocks), before = ring::slots,
                     b = begin;
#pragma unroll
            for (int i = 0; i < (int)OUTS / 2; i++)
                d[i] = 0;
            wgmma_settle(d);
            for (; b + 1 < end; b += STEP) {
                uint64_t xs = swizzled_at(stages + at.slot * ring::bytes + x_at, 16);
                uint64_t ws =
                    operand_at(stages + at.slot * ring::bytes + X_BYTES, 128, GROUP_BYTES);
                barrier_wait(full + at.slot, at.parity);
                wgmma_begin();
                wgmma(d, xs, ws);
                wgmma(d, operand_further(xs, 32), operand_further(ws, 256));
                wgmma(d, operand_further(xs, 64), operand_further(ws, 512));
                wgmma(d, operand_further(xs, 96), operand_further(ws, 768));
                wgmma_commit();
                wgmma_wait<1>();
                if (before < ring::slots) release(empty + before);
                before = at.slot;
                at.next(ring::slots);
            }
            if (b < end) { // half a stage
                uint64_t xs = swizzled_at(stages + at.slot * ring::bytes + x_at, 16);
                uint64_t ws =
                    operand_at(stages + at.slot * ring::bytes + X_BYTES, 128, GROUP_BYTES);
                barrier_wait(full + at.slot, at.parity);
                wgmma_begin();
                wgmma(d, xs, ws);
                wgmma(d, operand_further(xs, 32), operand_further(ws, 256));
                wgmma_commit();
                wgmma_wait<1>();
                if (before < ring::slots) release(empty + before);
                before = at.slot;
                at.next(ring::slots);
            }
            wgmma_wait<0>();
            wgmma_settle(d);
            release(empty + before);
            put(a, d, row, out_tile, begin == 0, end == a.n_blocks);
        }
    }
}

template <uint32_t OUTS>
static __global__ void __launch_bounds__(384, 1)
    matmul_prompt(const __grid_constant__ prompt_args a)
{
    extern __shared__ char shared[];
    __shared__ uint64_t full[ring_of<OUTS>::slots], empty[ring_of<OUTS>::slots];
    char *stages = shared + (-shared_address(shared) & 1023);
    if (threadIdx.x == 0) {
        for (uint32_t i = 0; i < ring_of<OUTS>::slots; i++) {
            barrier_init_for(full + i, 1);
            barrier_init_for(empty + i, 16); // warps that multiply, in both blocks
        }
        barrier_init_done();
    }
    cluster_meet();
    kernel_begin();
    if (threadIdx.x < 128) {
        registers_less<40>();
        if (threadIdx.x == 0) fill_ring<OUTS>(a, stages, full, empty);
    } else {
        registers_more<232>();
        multiply_tiles<OUTS>(a, stages, full, empty);
    }
    __syncwarp();
    cluster_meet(); // the other block may still send here
}

typedef decltype(&cuTensorMapEncodeTiled) encode_tiled;

template <uint32_t OUTS> static cudaError_t allow()
{
    return cudaFuncSetAttribute(matmul_prompt<OUTS>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                ring_of<OUTS>::shared_bytes);
}

cudaError_t cuda_prompt_setup(cuda_prompt *p)
{
    cudaDriverEntryPointQueryResult found;
    cudaError_t e = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &p->encode_tiled,
                                                     12000, cudaEnableDefault, &found);
    if (e != cudaSuccess) return e;
    if (found != cudaDriverEntryPointSuccess) return cudaErrorNotSupported;
    e = allow<256>();
    if (e == cudaSuccess) e = allow<128>();
    return e == cudaSuccess ? allow<64>() : e;
}

static cudaError_t map_box(const cuda_prompt *p, CUtensorMap *map, CUtensorMapDataType type,
                           const void *data, uint64_t width, uint64_t height, uint64_t pitch_bytes,
                           uint32_t box_width, uint32_t box_height, CUtensorMapSwizzle swizzle)
{
    cuuint64_t size[2] = {width, height}, stride[1] = {pitch_bytes};
    cuuint32_t box[2] = {box_width, box_height}, step[2] = {1, 1};
    CUresult r = ((encode_tiled)p->encode_tiled)(
        map, type, 2, (void *)data, size, stride, box, step, CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle,
        CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    return r == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

template <uint32_t OUTS>
static cudaError_t launch(cudaStream_t s, const cuda_prompt *p, prompt_args &a, const void *w)
{
    uint32_t n_groups = (a.n_out + GROUP - 1) / GROUP;
    cudaError_t e = map_box(p, &a.w, CU_TENSOR_MAP_DATA_TYPE_UINT64, w,
                            (uint64_t)a.n_blocks * (F16_BLOCK / 8), n_groups,
                            (uint64_t)a.n_blocks * F16_BLOCK, GROUP_BYTES / 8,
                            ring_of<OUTS>::half_groups, CU_TENSOR_MAP_SWIZZLE_NONE);
    if (e != cudaSuccess) return e;
    a.n_tiles = a.n_row_pairs * ((a.n_out + OUTS - 1) / OUTS);
    return start_pairs(matmul_prompt<OUTS>, dim3(min(p->n_sms / 2, a.n_tiles) * 2), 384,
                       ring_of<OUTS>::shared_bytes, s, a);
}

// What the grid's turns over the tiles cost: few large tiles leave much of the device idle.
static uint64_t turns_cost(const cuda_prompt *p, const prompt_args &a, uint32_t outs)
{
    uint64_t n_tiles = (uint64_t)a.n_row_pairs * ((a.n_out + outs - 1) / outs);
    return (n_tiles + p->n_sms / 2 - 1) / (p->n_sms / 2) * (outs + 48);
}

cudaError_t cuda_matmul_many(cudaStream_t s, const cuda_prompt *p, float *out, uint32_t out_stride,
                             const cuda_matrix *w, const void *prepared, const int32_t *exponents,
                             const float *bias, uint32_t n_rows)
{
    prompt_args a = {};
    a.out = out;
    a.exponents = exponents;
    a.bias = bias;
    a.n_blocks = cuda_blocks_in(w->n_in);
    a.segment_blocks = (a.n_blocks + cuda_segments(w->n_in) - 1) / cuda_segments(w->n_in);
    a.n_out = w->n_out;
    a.out_stride = out_stride;
    a.n_rows = n_rows;
    a.n_row_pairs = (n_rows + 2 * ROWS - 1) / (2 * ROWS);
    a.w_exponent = w->exponent;
    cudaError_t e = map_box(p, &a.x, CU_TENSOR_MAP_DATA_TYPE_FLOAT16, prepared,
                            (uint64_t)a.n_blocks * BLOCK_IN, n_rows,
                            (uint64_t)a.n_blocks * BLOCK_IN * 2, STEP * BLOCK_IN, ROWS,
                            CU_TENSOR_MAP_SWIZZLE_128B);
    if (e != cudaSuccess) return e;
    uint64_t cost = turns_cost(p, a, 256), cost_128 = turns_cost(p, a, 128);
    uint64_t cost_64 = turns_cost(p, a, 64);
    if (cost <= cost_128 && cost <= cost_64) return launch<256>(s, p, a, w->data);
    return cost_128 <= cost_64 ? launch<128>(s, p, a, w->data) : launch<64>(s, p, a, w->data);
}
