// Products of many rows: tiles of 128 rows and 128 outputs, 8 warps of 64 x 32, both operands in the
// order of the tensor core already, so that a stage is a few bulk copies and no shuffling. Between
// segments the sums wait in `out`, each in its own thread's places.
#include "kernels/cuda/common.cuh"

static constexpr uint32_t ROWS = 128, OUTS = 128, STEP = 2, SLOTS = 3; // STEP: blocks a stage
static constexpr uint32_t X_GROUP = STEP * 1024, X_BYTES = ROWS / 16 * X_GROUP;

struct prompt_args {
    float *out;
    const char *w, *prepared;
    const int32_t *exponents;
    const float *bias;
    uint32_t n_in, n_out, n_rows, n_segments;
    int32_t w_exponent;
};

template <class form> __host__ __device__ constexpr uint32_t slot_bytes()
{
    return X_BYTES + OUTS / TILE_OUT * STEP * form::bytes;
}

// A segment's sum joins those before it; the last one is finished.
static __device__ __forceinline__ void put(const prompt_args &a, uint32_t r, uint32_t o, float sum,
                                           bool first, bool last)
{
    if (r >= a.n_rows || o >= a.n_out) return;
    float *place = &a.out[(uint64_t)r * a.n_out + o];
    if (!first) sum = __fadd_rn(*place, sum);
    *place = last ? finish_sum(sum, a.exponents[r] + a.w_exponent, a.bias, o) : sum;
}

template <class form> __global__ void __launch_bounds__(256, 2) matmul_prompt(const prompt_args a)
{
    extern __shared__ __align__(128) char shared[];
    __shared__ uint64_t full[SLOTS];
    kernel_begin();
    constexpr uint32_t SLOT = slot_bytes<form>(), W_TILE = STEP * form::bytes;
    uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    uint32_t n_blocks = cuda_blocks_in(a.n_in), n_tiles = (a.n_out + TILE_OUT - 1) / TILE_OUT;
    uint32_t n_groups = (a.n_rows + 15) / 16;
    uint32_t segment_blocks = (n_blocks + a.n_segments - 1) / a.n_segments;
    uint32_t group0 = blockIdx.x * (ROWS / 16), tile0 = blockIdx.y * (OUTS / TILE_OUT);

    if (threadIdx.x == 0) {
        for (uint32_t i = 0; i < SLOTS; i++) barrier_init(full + i);
        barrier_init_done();
    }
    __syncthreads();

    // Stages in order: segment by segment, STEP blocks each, a shorter one at a segment's end.
    uint32_t next = 0, next_end = min(segment_blocks, n_blocks), next_slot = 0;
    auto issue = [&] { // by warp 0
        if (next >= n_blocks) return;
        uint32_t n = min(STEP, next_end - next);
        char *to = shared + next_slot * SLOT;
        if (lane == 0)
            barrier_expect(full + next_slot, ROWS / 16 * n * 1024 + OUTS / TILE_OUT * n * form::bytes);
        __syncwarp();
        if (lane < ROWS / 16) { // groups and tiles past the end: the last one again, never stored
            uint32_t g = min(group0 + lane, n_groups - 1);
            bulk_copy(to + lane * X_GROUP, a.prepared + ((uint64_t)g * n_blocks + next) * 1024,
                      n * 1024, full + next_slot);
        } else if (lane < ROWS / 16 + OUTS / TILE_OUT) {
            uint32_t i = lane - ROWS / 16, t = min(tile0 + i, n_tiles - 1);
            bulk_copy(to + X_BYTES + i * W_TILE, a.w + ((uint64_t)t * n_blocks + next) * form::bytes,
                      n * form::bytes, full + next_slot);
        }
        next += n;
        if (next == next_end) next_end = min(next_end + segment_blocks, n_blocks);
        if (++next_slot == SLOTS) next_slot = 0;
    };
    if (warp == 0) {
        for (uint32_t i = 0; i < SLOTS; i++) issue();
    }

    uint32_t row_warp = warp / 4, out_warp = warp % 4, slot = 0, parity = 0;
    float d[4][4][4];
    for (uint32_t begin = 0; begin < n_blocks; begin += segment_blocks) {
        uint32_t end = min(begin + segment_blocks, n_blocks);
#pragma unroll
        for (int g = 0; g < 4; g++) {
#pragma unroll
            for (int t = 0; t < 4; t++) d[g][t][0] = d[g][t][1] = d[g][t][2] = d[g][t][3] = 0;
        }
        for (uint32_t b = begin; b < end; b += STEP) {
            uint32_t n = min(STEP, end - b);
            const char *x = shared + slot * SLOT + row_warp * 4 * X_GROUP;
            const char *w = shared + slot * SLOT + X_BYTES + out_warp * 4 * W_TILE;
            barrier_wait(full + slot, parity);
            for (uint32_t j = 0; j < n; j++) {
                uint4 wv[4];
#pragma unroll
                for (int t = 0; t < 4; t++)
                    wv[t] = form::operand(w + t * W_TILE + j * form::bytes, lane);
#pragma unroll
                for (int g = 0; g < 4; g++) {
                    const uint4 *xg = (const uint4 *)(x + g * X_GROUP + j * 1024) + lane;
                    uint4 x0 = xg[0], x1 = xg[32];
#pragma unroll
                    for (int t = 0; t < 4; t++) {
                        mma_step(d[g][t], x0.x, x0.y, x0.z, x0.w, wv[t].x, wv[t].y);
                        mma_step(d[g][t], x1.x, x1.y, x1.z, x1.w, wv[t].z, wv[t].w);
                    }
                }
            }
            __syncthreads();
            if (warp == 0) issue();
            if (++slot == SLOTS) {
                slot = 0;
                parity ^= 1;
            }
        }
        uint32_t r0 = (group0 + row_warp * 4) * 16 + lane / 4;
        uint32_t o0 = (tile0 + out_warp * 4) * TILE_OUT + lane % 4 * 2;
        // Not known before the loop above: 64 addresses held through it would be spilled.
        asm volatile("" : "+r"(r0), "+r"(o0));
#pragma unroll
        for (int g = 0; g < 4; g++) {
#pragma unroll
            for (int t = 0; t < 4; t++) {
#pragma unroll
                for (int v = 0; v < 4; v++)
                    put(a, r0 + g * 16 + v / 2 * 8, o0 + t * TILE_OUT + v % 2, d[g][t][v],
                        begin == 0, end == n_blocks);
            }
        }
    }
}

template <class form> static cudaError_t launch(cudaStream_t s, const prompt_args &a)
{
    dim3 grid((a.n_rows + ROWS - 1) / ROWS, (a.n_out + OUTS - 1) / OUTS);
    return start(matmul_prompt<form>, grid, 256, SLOTS * slot_bytes<form>(), s, a);
}

template <class form> static cudaError_t allow()
{
    return cudaFuncSetAttribute(matmul_prompt<form>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                SLOTS * slot_bytes<form>());
}

extern "C" cudaError_t cuda_decode_setup(void);

cudaError_t cuda_matmul_setup(void)
{
    cudaError_t e = cuda_decode_setup();
    if (e == cudaSuccess) e = allow<form_f16>();
    if (e == cudaSuccess) e = allow<form_q8>();
    return e;
}

cudaError_t cuda_matmul_many(cudaStream_t s, float *out, const cuda_matrix *w, const void *prepared,
                             const int32_t *exponents, const float *bias, uint32_t n_rows)
{
    prompt_args a = {out,       (const char *)w->data, (const char *)prepared, exponents,
                     bias,      w->n_in,               w->n_out,               n_rows,
                     cuda_segments(w->n_in), w->exponent};
    return w->form == FORM_Q8 ? launch<form_q8>(s, a) : launch<form_f16>(s, a);
}
