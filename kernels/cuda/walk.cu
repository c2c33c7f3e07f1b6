// The walk of one row through all layers (walk.h). The row of a product is made anew by every
// block, in its shared memory.
#include "kernels/cuda/activation.cuh"
#include "kernels/cuda/walk_attention.cuh"

static constexpr uint32_t SHARED_MAX = 227 * 1024;

struct __align__(16) block_state
{
    uint64_t full[MULS][SLOTS_MAX], empty[MULS][SLOTS_MAX];
    float parts[2][MULS][8];
    float sums[8], post_sums[8];
    uint32_t maxima[WARPS];
    walk_product product[2]; // the one in hand and the next
    walk_angles angles[WALK_VIEWS];
    // then the row or an attention item, all products' walk_weights, the rings
};

// All blocks of the launch meet: what any of them wrote before it arrives is read (past the first
// cache) by all after they waited. by: the block's threads that have written, the first ones.
static __device__ __forceinline__ void arrive_all(uint32_t *count, uint32_t by)
{
    if (threadIdx.x < by) asm volatile("bar.sync 10, %0;" ::"r"(by) : "memory");
    if (threadIdx.x == 0) // for all of the block
        asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(count) : "memory");
}

static __device__ __forceinline__ void await_all(const uint32_t *count, uint32_t target)
{
    uint32_t now;
    if (threadIdx.x == 0) {
        do {
            asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(now) : "l"(count) : "memory");
        } while ((int32_t)(now - target) < 0);
    }
    meet_block();
}

// --- the row of a product, in the order that `chain` reads, scaled; its exponent is returned ---

// Of the f16 numbers; 16 inputs further it is 16 further.
static __device__ __forceinline__ uint32_t place_of(uint32_t k)
{
    return ((k / 16 * 4 + k % 8 / 2) * 2 + k % 16 / 8) * 2 + k % 2;
}

static __device__ int row_exponent(uint32_t largest, uint32_t *room)
{
    largest = __reduce_max_sync(~0u, largest);
    if (threadIdx.x % 32 == 0) room[threadIdx.x / 32] = largest;
    meet_block();
    largest = room[0];
#pragma unroll
    for (uint32_t w = 1; w < WARPS; w++)
        largest = max(largest, room[w]);
    return cuda_scale_exponent(largest);
}

static __device__ int take_row(__half *xs, const float *x, uint32_t n, uint32_t *room)
{
    constexpr uint32_t QUADS = WALK_IN_MAX / 4 / THREADS;
    float4 v[QUADS];
    uint32_t largest = 0, n_quads = n / 4;
#pragma unroll
    for (uint32_t j = 0; j < QUADS; j++) {
        uint32_t i = j * THREADS + threadIdx.x;
        v[j] = i < n_quads ? __ldcg((const float4 *)x + i) : make_float4(0, 0, 0, 0);
    }
#pragma unroll
    for (uint32_t j = 0; j < QUADS; j++) {
        largest = max(largest, max(magnitude_bits(v[j].x), magnitude_bits(v[j].y)));
        largest = max(largest, max(magnitude_bits(v[j].z), magnitude_bits(v[j].w)));
    }
    int exponent = row_exponent(largest, room);
    float scale = pow2(exponent);
    __half *first = xs + place_of(threadIdx.x * 4), *second = xs + place_of(threadIdx.x * 4 + 2);
#pragma unroll
    for (uint32_t j = 0; j < QUADS; j++) {
        uint32_t a = scaled_pair(v[j].x, v[j].y, scale), b = scaled_pair(v[j].z, v[j].w, scale);
        if (j * THREADS + threadIdx.x >= n_quads) continue;
        *(uint32_t *)(first + j * THREADS * 4) = a;
        *(uint32_t *)(second + j * THREADS * 4) = b;
    }
    return exponent;
}

// A row through rms_norm.cu's operations, then take_row's. get(v): the row's norm_values; called
// when the norm's weights are asked for.
template <uint32_t EACH, class G>
static __device__ int take_normed(__half *xs, const float *norm, uint32_t n, float eps,
                                  block_state &b, G get)
{
    float v[EACH], w[EACH];
    uint32_t largest = 0, t = threadIdx.x;
    norm_values(w, norm, n, load_norm);
    get(v);
    float s = row_scale(v, n, eps, b.sums);
#pragma unroll
    for (uint32_t j = 0; j < EACH; j++) {
        v[j] = __fmul_rn(__fmul_rn(v[j], s), w[j]);
        largest = max(largest, magnitude_bits(v[j]));
    }
    int exponent = row_exponent(largest, b.maxima);
    float scale = pow2(exponent);
    if (t >= NORM_THREADS) return exponent;
    __half *to = xs + place_of(t);
#pragma unroll
    for (uint32_t j = 0; j < EACH; j++) {
        __half h = __float2half_rn(__fmul_rn(v[j], scale));
        if (j * NORM_THREADS + t < n) to[j * NORM_THREADS] = h;
    }
    return exponent;
}

// --- products ---

static __device__ float activated(uint32_t end, float g)
{
    return end == WALK_SILU ? silu(g) : gelu(g);
}

// f(form's structure)
template <class F> static __device__ __forceinline__ auto with(cuda_form form, F f)
{
    switch (form) {
    case FORM_F16:
        return f(form_f16());
    case FORM_Q8:
        return f(form_q8());
    case FORM_Q8M:
        return f(form_q8m());
    case FORM_Q4K:
        return f(form_q4k());
    case FORM_Q6K:
        return f(form_q6k());
    default:
        return f(form_k8());
    }
}

// The sum of a tile's segments, each by a warp of its own: in the first one's.
static __device__ __forceinline__ float joined(block_state &b, const walk_weights &w, float sum,
                                               uint32_t *turn)
{
    uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, n_segments = 1u << w.segments_log2;
    if (n_segments == 1) return sum;
    if (lane % 4 == 0) b.parts[*turn][warp][lane / 4] = sum;
    asm volatile("bar.sync %0, %1;" ::"r"((warp >> w.segments_log2) + 2), "r"(32 * n_segments)
                 : "memory");
    for (uint32_t s = 1; s < n_segments; s++)
        sum = __fadd_rn(sum, b.parts[*turn][(warp + s) % MULS][lane / 4]);
    *turn ^= 1;
    return sum;
}

// The warp's pieces of a product; the row is in xs.
static __device__ void multiply(const walk_args &a, walk_ring &ring, block_state &b,
                                const walk_weights &w, uint32_t product_i, const __half *xs,
                                int exponent)
{
    const walk_product &p = b.product[product_i % 2];
    uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, turn = 0, begin, n;
    walk_share share(w, product_i, warp);
    float gate = 0;
    while (share.next(w)) {
        __syncwarp();
        cuda_form form = (cuda_form)w.form[share.part];
        uint32_t part_i = w.paired == WALK_SIDE_BY_SIDE ? 1 : share.part;
        auto &part = p.part[part_i];
        share.units(w, w.n_blocks / cuda_unit_blocks(form), &begin, &n);
        uint32_t o = share.tile * TILE_OUT + lane / 4;
        bool mine = lane % 4 == 0 && share.segment == 0 && o < part.n_out;
        float before = mine && p.end == WALK_ADD ? __ldcg(part.out + o) : 0, sum;
        const char *x = (const char *)xs + begin * cuda_unit_blocks(form) * 64 + lane % 4 * 8;
        if (w.paired == WALK_SIDE_BY_SIDE) {
            float2 both = with(form, [&](auto f) { return chains<decltype(f)>(ring, n, x, lane); });
            gate = joined(b, w, both.x, &turn);
            gate = activated(p.end,
                             finish_sum(gate, exponent + p.part[0].exponent, p.part[0].bias, o));
            sum = both.y;
        } else {
            sum = with(form, [&](auto f) { return chain<decltype(f)>(ring, n, x, lane); });
        }
        sum = joined(b, w, sum, &turn);
        if (!mine) continue;
        float y = finish_sum(sum, exponent + part.exponent, part.bias, o);
        if (w.paired && part_i == 0) {
            gate = activated(p.end, y);
            continue;
        }
        if (w.paired) y = __fmul_rn(gate, y);
        if (p.end == WALK_ADD) y = __fadd_rn(before, y);
        part.out[o] = y;
        if (p.finite_i != WALK_NO_FLAG && magnitude_bits(y) >= 0x7f800000u)
            a.finite[p.finite_i] = 1;
    }
}

// Ask for product i's description; and have it where it is read.
static __device__ __forceinline__ uint32_t call_product(const walk_args &a, uint32_t i)
{
    bool mine = threadIdx.x < sizeof(walk_product) / 4 && i < a.n_rows;
    return mine ? __ldg((const uint32_t *)(a.product + i) + threadIdx.x) : 0;
}

static __device__ __forceinline__ void put_product(block_state &b, uint32_t i, uint32_t word)
{
    if (threadIdx.x < sizeof(walk_product) / 4) ((uint32_t *)&b.product[i % 2])[threadIdx.x] = word;
}

// The row of product i, when all blocks have met; by: the threads that have written it.
template <class A>
static __device__ int take(const A &a, block_state &b, __half *xs, uint32_t i, uint32_t target,
                           uint32_t by)
{
    const walk_product &p = b.product[i % 2];
    if (i > 0) arrive_all(a.meet, by);
    auto meet = [&] {
        if (i > 0) await_all(a.meet, target);
    };
    auto get = [&](auto &v) {
        meet();
        norm_values(v, p.x, p.n_in, load_row);
    };
    if (A::MORE && p.post != nullptr) {
        auto sum = [&](auto &v) {
            uint8_t *finite = i == 4 * a.n_layers ? a.finite : nullptr;
            sum_row(v, p, a.rms_eps, b.post_sums, finite, meet);
        };
        if (p.norm != nullptr)
            return take_normed<WALK_POST_MAX / NORM_THREADS>(xs, p.norm, p.n_in, a.rms_eps, b, sum);
        float v[WALK_POST_MAX / NORM_THREADS]; // the last: no product follows
        sum(v);
        return 0;
    }
    if (p.norm == nullptr) {
        meet();
        return take_row(xs, p.x, p.n_in, b.maxima);
    }
    if (p.n_in <= 16 * NORM_THREADS)
        return take_normed<16>(xs, p.norm, p.n_in, a.rms_eps, b, get);
    return take_normed<WALK_NORM_MAX / NORM_THREADS>(xs, p.norm, p.n_in, a.rms_eps, b, get);
}

// All products and, in between, the attention. ring: of a warp that multiplies; feed: of one that
// does not.
template <class A>
static __device__ __forceinline__ void go(const A &a, walk_ring &ring, walk_feed &feed,
                                          block_state &b, char *row)
{
    __half *xs = (__half *)row;
    uint32_t target = *(volatile uint32_t *)(a.meet + 1), warp = threadIdx.x / 32;
    if (blockIdx.x == 0 && threadIdx.x < 2) a.finite[threadIdx.x] = 0;
    put_product(b, 0, call_product(a, 0));
    row_place place = place_row(a, b.angles);
    meet_block();
    for (uint32_t i = 0; i < a.n_rows; i++) {
        bool in_layer = i < 4 * a.n_layers, begins_layer = i % 4 == 0 && in_layer;
        bool attended = i % 4 == 1 && in_layer; // by all warps
        uint32_t next = call_product(a, i + 1);
        int exponent = take(a, b, xs, i, target, attended ? THREADS : MULS * 32);
        if (A::MORE && i == a.n_products) break; // the row alone was asked for
        put_product(b, i + 1, next);
        meet_block();
        if (warp < MULS) {
            multiply(a, ring, b, feed.weights[i], i, xs, exponent);
        } else {
            if (begins_layer) call_items(a, place_layer(a, place, b.angles, i / 4));
            if (threadIdx.x % 32 == 0) feed.follow(i, warp - MULS);
            __syncwarp();
        }
        if (i + 1 == a.n_rows) break; // nobody waits for the last
        target += gridDim.x;
        if (!begins_layer) continue;
        arrive_all(a.meet, MULS * 32);
        attend(a, place_layer(a, place, b.angles, i / 4), row, [&] { await_all(a.meet, target); });
        target += gridDim.x;
    }
    if (blockIdx.x == 0 && threadIdx.x == 0) a.meet[1] = target;
}

static __host__ __device__ __forceinline__ uint32_t weights_bytes(uint32_t n_products)
{
    return (n_products * (uint32_t)sizeof(walk_weights) + 127) / 128 * 128;
}

template <uint32_t HEAD, bool MORE>
__global__ void __launch_bounds__(THREADS, 1) walk(const __grid_constant__ walk_of<HEAD, MORE> a)
{
    extern __shared__ __align__(128) char shared[];
    if (a.live != nullptr && *a.live == 0) return; // all blocks alike
    block_state &b = *(block_state *)shared;
    char *row = shared + sizeof b, *weights = row + a.x_bytes;
    char *slots = weights + weights_bytes(a.n_products);
    uint32_t warp = threadIdx.x / 32 % MULS;
    uint32_t n_slots = min((uint32_t)(shared + SHARED_MAX - slots) / (MULS * SLOT), SLOTS_MAX);
    if (threadIdx.x < MULS) {
        for (uint32_t i = 0; i < n_slots; i++) {
            barrier_init(&b.full[threadIdx.x][i]);
            barrier_init(&b.empty[threadIdx.x][i]);
        }
        barrier_init_done();
    }
    for (uint32_t i = threadIdx.x; i < a.n_products * sizeof(walk_weights) / 8; i += THREADS)
        ((uint64_t *)weights)[i] = __ldg((const uint64_t *)a.weights + i);
    __syncthreads();
    const walk_weights *w = (const walk_weights *)weights;
    walk_ring ring = {slots + warp * n_slots * SLOT, b.full[warp], b.empty[warp], n_slots, 0, 0};
    walk_feed feed = {slots + warp * n_slots * SLOT,
                      b.full[warp],
                      b.empty[warp],
                      w,
                      a.n_products,
                      n_slots,
                      0,
                      0,
                      0,
                      walk_share(w[0], 0, warp),
                      nullptr,
                      nullptr,
                      0,
                      0};
    if (threadIdx.x >= MULS * 32 && threadIdx.x % 32 == 0) feed.fill(warp);
    __syncwarp();
    go(a, ring, feed, b, row);
}

int64_t cuda_walk_rings_bytes(uint32_t n_products, uint32_t x_bytes)
{
    return (int64_t)SHARED_MAX - (int64_t)sizeof(block_state) - x_bytes - weights_bytes(n_products);
}

uint32_t cuda_walk_x_bytes(uint32_t n_in, uint32_t n_head)
{
    uint32_t item = (uint32_t)(n_head <= WORDS_HEAD_MAX ? sizeof(item_state<WORDS_HEAD_MAX>)
                                                        : sizeof(item_state<WALK_HEAD_MAX>));
    return (max(n_in * 2, item) + 127) / 128 * 128;
}

template <uint32_t HEAD, bool MORE> static cudaError_t setup()
{
    return cudaFuncSetAttribute(walk<HEAD, MORE>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                SHARED_MAX);
}

cudaError_t cuda_walk_setup(void)
{
    cudaError_t e = setup<WORDS_HEAD_MAX, false>();
    if (e == cudaSuccess) e = setup<WORDS_HEAD_MAX, true>();
    return e == cudaSuccess ? setup<WALK_HEAD_MAX, true>() : e;
}

template <uint32_t HEAD, bool MORE>
static cudaError_t launch(cudaStream_t s, const walk_args *a, uint32_t n_sms)
{
    walk_of<HEAD, MORE> all;
    (walk_args &)all = *a;
    cudaLaunchAttribute together = {};
    together.id = cudaLaunchAttributeCooperative;
    together.val.cooperative = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(n_sms);
    config.blockDim = dim3(THREADS);
    config.dynamicSmemBytes = SHARED_MAX;
    config.stream = s;
    config.attrs = &together;
    config.numAttrs = 1;
    return cudaLaunchKernelEx(&config, walk<HEAD, MORE>, all);
}

cudaError_t cuda_launch_walk(cudaStream_t s, const walk_args *a, uint32_t n_sms)
{
    if (a->n_head > WORDS_HEAD_MAX) return launch<WALK_HEAD_MAX, true>(s, a, n_sms);
    return a->more ? launch<WORDS_HEAD_MAX, true>(s, a, n_sms)
                   : launch<WORDS_HEAD_MAX, false>(s, a, n_sms);
}
