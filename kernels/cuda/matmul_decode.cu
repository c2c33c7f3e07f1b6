// Products of one row. A persistent grid, 8 warps a block; each warp owns a ring of bulk copies and
// goes through its tiles of 8 outputs. Where K is cut into segments, that many neighbouring warps
// share a tile, and the first of them adds.
#include "kernels/cuda/forms.cuh"

static constexpr uint32_t WARPS = 8, SLOTS = 8, SHARED_MAX = 227 * 1024;
static constexpr uint32_t FIXED = WARPS * SLOTS * 8 + 2 * WARPS * 32 * 4 + 32;
static constexpr uint32_t STEP_BYTES = 32; // of the row, in the order of the loop below

struct decode_args {
    float *out;
    const char *w;
    const float *x;
    const float *bias;
    uint32_t n_in, n_out, n_segments, n_stages;
    int32_t w_exponent;
};

// A ring's slot: units that one bulk copy brings, about 4 KB.
template <class form> struct ring_of {
    static constexpr uint32_t step = 4352u / form::unit_bytes;
    static constexpr uint32_t bytes = step * form::unit_bytes;
};

// The row's values in the order of the loop below: for each k16 step four lanes of 8 bytes, lane q
// those of k = 2q, 2q + 1, 2q + 8, 2q + 9.
static __device__ __forceinline__ void put_pair(uint32_t *xs, uint32_t k, uint32_t pair)
{
    xs[(k / 16 * 4 + k % 8 / 2) * 2 + k % 16 / 8] = pair;
}

// Take the row to shared memory, scaled; its exponent is returned. All of a row of up to 16384
// values is read at once and kept in registers.
static __device__ int take_row(uint32_t *xs, const float *x, uint32_t n, uint32_t n_blocks,
                               uint32_t *room)
{
    constexpr uint32_t QUADS = 16;
    uint32_t largest = 0, n_quads = n_blocks * 8;
    if (n % 4 == 0 && n_quads <= QUADS * 256 && (uintptr_t)x % 16 == 0) {
        float4 v[QUADS];
#pragma unroll
        for (uint32_t j = 0; j < QUADS; j++) {
            uint32_t i = j * 256 + threadIdx.x;
            v[j] = i < n / 4 ? ((const float4 *)x)[i] : make_float4(0, 0, 0, 0);
        }
#pragma unroll
        for (uint32_t j = 0; j < QUADS; j++) {
            largest = max(largest, max(magnitude_bits(v[j].x), magnitude_bits(v[j].y)));
            largest = max(largest, max(magnitude_bits(v[j].z), magnitude_bits(v[j].w)));
        }
        int exponent = cuda_scale_exponent(block_max(largest, room));
        float scale = pow2(exponent);
#pragma unroll
        for (uint32_t j = 0; j < QUADS; j++) {
            uint32_t i = j * 256 + threadIdx.x;
            if (i >= n_quads) continue;
            put_pair(xs, i * 4, scaled_pair(v[j].x, v[j].y, scale));
            put_pair(xs, i * 4 + 2, scaled_pair(v[j].z, v[j].w, scale));
        }
        return exponent;
    }
    for (uint32_t i = threadIdx.x; i < n; i += 256)
        largest = max(largest, magnitude_bits(x[i]));
    int exponent = cuda_scale_exponent(block_max(largest, room));
    float scale = pow2(exponent);
    for (uint32_t i = threadIdx.x; i < n_blocks * 16; i += 256) {
        uint32_t k = i * 2;
        put_pair(xs, k, scaled_pair(k < n ? x[k] : 0, k + 1 < n ? x[k + 1] : 0, scale));
    }
    return exponent;
}

// The k16 steps of a unit of weights with the row. x: where the lane's part of the first step lies.
template <class form>
static __device__ __forceinline__ void multiply(float d[4], const char *unit, const char *x,
                                                uint32_t lane)
{
    each_block<form>(unit, lane, [&](uint32_t j, uint4 w) {
        const char *at = x + j * 2 * STEP_BYTES;
        uint2 x0 = *(const uint2 *)at, x1 = *(const uint2 *)(at + STEP_BYTES);
        mma_one_row(d, w.x, w.y, x0.x, x0.y);
        mma_one_row(d, w.z, w.w, x1.x, x1.y);
    });
}

template <class form>
__global__ void __launch_bounds__(256, 1) matmul_decode(const decode_args a)
{
    using ring = ring_of<form>;
    extern __shared__ __align__(128) char shared[];
    uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    uint64_t *full = (uint64_t *)shared + warp * SLOTS;
    float *parts = (float *)(shared + WARPS * SLOTS * 8); // [2][WARPS][32]
    uint32_t *room = (uint32_t *)(parts + 2 * WARPS * 32);
    char *slots = shared + FIXED + (uint64_t)warp * a.n_stages * ring::bytes;
    char *xs = shared + FIXED + (uint64_t)WARPS * a.n_stages * ring::bytes;

    uint32_t n_blocks = cuda_blocks_in(a.n_in), n_tiles = (a.n_out + TILE_OUT - 1) / TILE_OUT;
    uint32_t n_units = n_blocks / form::unit_blocks;
    uint32_t segment_units = (n_units + a.n_segments - 1) / a.n_segments;
    uint32_t segment = warp % a.n_segments, group = warp / a.n_segments;
    uint32_t begin = min(segment * segment_units, n_units);
    uint32_t mine = min(segment_units, n_units - begin);
    uint32_t n_chunks = (mine + ring::step - 1) / ring::step;
    uint32_t first = blockIdx.x + gridDim.x * group, stride = gridDim.x * (WARPS / a.n_segments);
    uint32_t n_mine = first < n_tiles ? (n_tiles - first + stride - 1) / stride : 0;
    uint32_t total = n_mine * n_chunks;

    // The next product may begin to fill its rings; ours are filled before the kernel in front of
    // us, which writes x, has ended.
    asm volatile("griddepcontrol.launch_dependents;");
    if (lane == 0) {
        for (uint32_t i = 0; i < a.n_stages; i++)
            barrier_init(full + i);
        barrier_init_done();
    }
    __syncwarp();
    uint32_t next_tile = first, next_chunk = 0, next_slot = 0, issued = 0;
    auto issue = [&] {
        uint32_t at = next_chunk * ring::step, n = min(ring::step, mine - at);
        const char *from = a.w + ((uint64_t)next_tile * n_units + begin + at) * form::unit_bytes;
        barrier_expect(full + next_slot, n * form::unit_bytes);
        bulk_copy(slots + next_slot * ring::bytes, from, n * form::unit_bytes, full + next_slot);
        issued++;
        if (++next_slot == a.n_stages) next_slot = 0;
        if (++next_chunk == n_chunks) {
            next_chunk = 0;
            next_tile += stride;
        }
    };
    if (lane == 0) {
        while (issued < a.n_stages && issued < total)
            issue();
    }

    asm volatile("griddepcontrol.wait;" ::: "memory");
    int exponent = take_row((uint32_t *)xs, a.x, a.n_in, n_blocks, room);
    const char *x = xs + lane % 4 * 8;
    __syncthreads();

    float d[4] = {0, 0, 0, 0};
    uint32_t slot = 0, parity = 0, turn = 0, tile = first;
    constexpr uint32_t unit_steps = form::unit_blocks * 2 * STEP_BYTES; // of x
    for (uint32_t m = 0; m < n_mine; m++, tile += stride) {
        for (uint32_t c = 0; c < n_chunks; c++) {
            uint32_t n = min(ring::step, mine - c * ring::step);
            const char *x_at = x + (begin + c * ring::step) * unit_steps;
            const char *at = slots + slot * ring::bytes;
            barrier_wait(full + slot, parity);
            if (n == ring::step) {
#pragma unroll
                for (uint32_t j = 0; j < ring::step; j++)
                    multiply<form>(d, at + j * form::unit_bytes, x_at + j * unit_steps, lane);
            } else {
                for (uint32_t j = 0; j < n; j++)
                    multiply<form>(d, at + j * form::unit_bytes, x_at + j * unit_steps, lane);
            }
            __syncwarp();
            if (lane == 0 && issued < total) issue();
            if (++slot == a.n_stages) {
                slot = 0;
                parity ^= 1;
            }
        }
        float sum = d[0];
        if (a.n_segments > 1) {
            float *part = parts + turn * WARPS * 32;
            part[warp * 32 + lane] = sum;
            asm volatile("bar.sync %0, %1;" ::"r"(group + 1), "r"(32 * a.n_segments) : "memory");
            for (uint32_t i = 1; segment == 0 && i < a.n_segments; i++)
                sum = __fadd_rn(sum, part[(warp + i) * 32 + lane]);
            turn ^= 1;
        }
        uint32_t o = tile * TILE_OUT + lane / 4;
        if (segment == 0 && lane % 4 == 0 && o < a.n_out)
            a.out[o] = finish_sum(sum, exponent + a.w_exponent, a.bias, o);
        d[0] = d[1] = d[2] = d[3] = 0;
    }
}

template <class form> static cudaError_t launch(cudaStream_t s, decode_args a, uint32_t n_sms)
{
    uint32_t ring_bytes = WARPS * ring_of<form>::bytes, x_bytes = cuda_blocks_in(a.n_in) * 64;
    if (FIXED + x_bytes + ring_bytes > SHARED_MAX) return cudaErrorInvalidValue;
    a.n_stages = min((SHARED_MAX - FIXED - x_bytes) / ring_bytes, SLOTS);
    uint32_t bytes = FIXED + a.n_stages * ring_bytes + x_bytes;
    uint32_t n_tiles = (a.n_out + TILE_OUT - 1) / TILE_OUT;
    return start(matmul_decode<form>, min(n_sms, n_tiles), 256, bytes, s, a);
}

cudaError_t cuda_matmul_setup(void)
{
    for (cuda_form f : {FORM_F16, FORM_Q8, FORM_Q8M, FORM_Q4K, FORM_Q6K, FORM_K8}) {
        cudaError_t e = with_form(f, [](auto form) {
            return cudaFuncSetAttribute((const void *)matmul_decode<decltype(form)>,
                                        cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED_MAX);
        });
        if (e != cudaSuccess) return e;
    }
    return cudaSuccess;
}

cudaError_t cuda_matmul_one(cudaStream_t s, float *out, const cuda_matrix *w, const float *x,
                            const float *bias, uint32_t n_sms)
{
    decode_args a = {};
    a.out = out;
    a.w = (const char *)w->data;
    a.x = x;
    a.bias = bias;
    a.n_in = w->n_in;
    a.n_out = w->n_out;
    a.n_segments = cuda_segments(w->n_in);
    a.w_exponent = w->exponent;
    return with_form(w->form, [&](auto f) { return launch<decltype(f)>(s, a, n_sms); });
}
