// Products of many rows: tiles of 128 rows and 128 outputs, 8 warps of 64 rows each, both operands
// in the order of the tensor core already, so that a stage is copied as it lies. (By 16 bytes a
// thread: two dozen bulk copies a stage, one after the other, held up the warp that issued them.)
// Between segments the sums wait in `out`, each in its own thread's places.
#include "kernels/cuda/forms.cuh"

static constexpr uint32_t WARP_TILES = 4; // of 8 outputs, in each of 4 columns of warps
static constexpr uint32_t ROWS = 128, OUTS = 4 * WARP_TILES * TILE_OUT;
static constexpr uint32_t STEP = 2, SLOTS = 3, BLOCKS_PER_SM = 2; // STEP: blocks of K in a stage
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

static __device__ __forceinline__ void copy_16(char *to, const char *from)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(to)), "l"(from)
                 : "memory");
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

template <class form>
__global__ void __launch_bounds__(256, BLOCKS_PER_SM) matmul_prompt(const prompt_args a)
{
    extern __shared__ __align__(128) char shared[];
    constexpr uint32_t SLOT = slot_bytes<form>(), W_TILE = STEP * form::bytes;
    kernel_begin();
    uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    uint32_t n_blocks = cuda_blocks_in(a.n_in), n_tiles = (a.n_out + TILE_OUT - 1) / TILE_OUT;
    uint32_t n_groups = (a.n_rows + 15) / 16;
    uint32_t segment_blocks = (n_blocks + a.n_segments - 1) / a.n_segments;
    uint32_t group0 = blockIdx.x * (ROWS / 16), tile0 = blockIdx.y * (OUTS / TILE_OUT);

    // Stages in order: segment by segment, STEP blocks each, a shorter one at a segment's end.
    // Groups and tiles past the matrix's end: its last one again, never stored.
    uint32_t next = 0, next_end = min(segment_blocks, n_blocks), next_slot = 0;
    auto fetch = [&] {
        if (next < n_blocks) {
            uint32_t n = min(STEP, next_end - next);
            char *to = shared + next_slot * SLOT;
#pragma unroll
            for (uint32_t i = threadIdx.x; i < X_BYTES / 16; i += 256) {
                uint32_t at = i % (X_GROUP / 16) * 16, g = i / (X_GROUP / 16);
                uint64_t from = (uint64_t)min(group0 + g, n_groups - 1) * n_blocks + next;
                if (at < n * 1024) copy_16(to + g * X_GROUP + at, a.prepared + from * 1024 + at);
            }
#pragma unroll
            for (uint32_t i = threadIdx.x; i < OUTS / TILE_OUT * W_TILE / 16; i += 256) {
                uint32_t at = i % (W_TILE / 16) * 16, t = i / (W_TILE / 16);
                uint64_t from = (uint64_t)min(tile0 + t, n_tiles - 1) * n_blocks + next;
                if (at < n * form::bytes)
                    copy_16(to + X_BYTES + t * W_TILE + at, a.w + from * form::bytes + at);
            }
            next += n;
            if (next == next_end) next_end = min(next_end + segment_blocks, n_blocks);
            if (++next_slot == SLOTS) next_slot = 0;
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
    };
    for (uint32_t i = 0; i + 1 < SLOTS; i++)
        fetch();

    uint32_t row_warp = warp / 4, out_warp = warp % 4, slot = 0;
    float d[4][WARP_TILES][4];
    for (uint32_t begin = 0; begin < n_blocks; begin += segment_blocks) {
        uint32_t end = min(begin + segment_blocks, n_blocks);
#pragma unroll
        for (int g = 0; g < 4; g++) {
#pragma unroll
            for (int t = 0; t < (int)WARP_TILES; t++)
                d[g][t][0] = d[g][t][1] = d[g][t][2] = d[g][t][3] = 0;
        }
        for (uint32_t b = begin; b < end; b += STEP) {
            uint32_t n = min(STEP, end - b);
            const char *x = shared + slot * SLOT + row_warp * 4 * X_GROUP;
            const char *w = shared + slot * SLOT + X_BYTES + out_warp * WARP_TILES * W_TILE;
            asm volatile("cp.async.wait_group %0;" ::"n"(SLOTS - 2) : "memory");
            __syncthreads(); // the stage is here, and the one before it is no longer read
            fetch();
            for (uint32_t j = 0; j < n; j++) {
                uint4 wv[WARP_TILES];
#pragma unroll
                for (int t = 0; t < (int)WARP_TILES; t++)
                    wv[t] = form::operand(w + t * W_TILE + j * form::bytes, lane);
#pragma unroll
                for (int h = 0; h < 2; h++) { // a k16 step: 16 sums that do not wait for each other
#pragma unroll
                    for (int g = 0; g < 4; g++) {
                        uint4 v = ((const uint4 *)(x + g * X_GROUP + j * 1024))[h * 32 + lane];
#pragma unroll
                        for (int t = 0; t < (int)WARP_TILES; t++)
                            mma_step(d[g][t], v.x, v.y, v.z, v.w, h == 0 ? wv[t].x : wv[t].z,
                                     h == 0 ? wv[t].y : wv[t].w);
                    }
                }
            }
            if (++slot == SLOTS) slot = 0;
        }
        uint32_t r0 = (group0 + row_warp * 4) * 16 + lane / 4;
        uint32_t o0 = (tile0 + out_warp * WARP_TILES) * TILE_OUT + lane % 4 * 2;
        // Not known before the loop above: 64 addresses held through it would be spilled.
        asm volatile("" : "+r"(r0), "+r"(o0));
#pragma unroll
        for (int g = 0; g < 4; g++) {
#pragma unroll
            for (int t = 0; t < (int)WARP_TILES; t++) {
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
    prompt_args a = {out,
                     (const char *)w->data,
                     (const char *)prepared,
                     exponents,
                     bias,
                     w->n_in,
                     w->n_out,
                     n_rows,
                     cuda_segments(w->n_in),
                     w->exponent};
    return w->form == FORM_Q8 ? launch<form_q8>(s, a) : launch<form_f16>(s, a);
}
