// walk_heads.cuh - heads of q and k on their way to attention: through their norm, if they have
// one, by rms_norm.cu's operations and one warp each; then turned by rope's.
#ifndef KERNELS_CUDA_WALK_HEADS_CUH
#define KERNELS_CUDA_WALK_HEADS_CUH

#include "kernels/cuda/common.cuh"
#include "kernels/cuda/walk.h"

// What a kernel is told that takes heads of up to HEAD, and walk_args.more or not.
template <uint32_t HEAD_MAX, bool HAS_MORE> struct walk_of : walk_args {
    static constexpr uint32_t HEAD = HEAD_MAX;
    static constexpr bool MORE = HAS_MORE;
};

// cos and sin of the row's position, for all layers of a view.
typedef float2 walk_angles[WALK_HEAD_MAX / 2];

// The row in the step.
struct row_place {
    uint32_t position, tables_at[WALK_VIEWS];
};

// The row in a layer: it sees positions [first, position].
struct layer_place {
    const walk_pools *pools;
    const float2 *angles;
    uint32_t view_i, position, first, tables_at;
};

template <class A> static __device__ row_place place_row(const A &a, walk_angles *angles)
{
    constexpr uint32_t VIEWS = A::MORE ? WALK_VIEWS : 1;
    row_place row = {};
    row.position = __ldg(a.position);
#pragma unroll
    for (uint32_t i = 0; i < VIEWS; i++) {
        row.tables_at[i] = __ldg(a.view[i].table);
        if (threadIdx.x < a.view[i].n_rot / 2)
            angles[i][threadIdx.x] =
                make_float2(__ldg(a.view[i].cos + threadIdx.x), __ldg(a.view[i].sin + threadIdx.x));
    }
    return row;
}

template <class A>
static __device__ __forceinline__ layer_place place_layer(const A &a, const row_place &row,
                                                          const walk_angles *angles, uint32_t i)
{
    const walk_pools *pools = a.pools + i;
    if (!A::MORE) return {pools, angles[0], 0, row.position, 0, row.tables_at[0]};
    uint32_t view_i = __ldg(&pools->view_i), window = a.view[view_i].window, p = row.position;
    return {pools, angles[view_i], view_i, p, window != 0 && p >= window ? p + 1 - window : 0,
            view_i == 0 ? row.tables_at[0] : row.tables_at[1]};
}

// A head of n values to shared memory, by one warp. norm null: as it is.
template <uint32_t HEAD>
static __device__ void norm_head(float *to, const float *x, const float *norm, uint32_t n,
                                 float eps)
{
    constexpr uint32_t EACH = HEAD / 32; // neighbours of a warp in rms_norm.cu
    float v[EACH], w[EACH], sum[EACH];
    uint32_t lane = threadIdx.x % 32;
#pragma unroll
    for (uint32_t j = 0; j < EACH; j++) {
        uint32_t i = j * 32 + lane;
        v[j] = i < n ? __ldcg(x + i) : 0.0f;
        w[j] = i < n && norm != nullptr ? __ldg(norm + i) : 0.0f;
    }
#pragma unroll
    for (uint32_t j = 0; j < EACH; j++)
        sum[j] = warp_sum(__fmaf_rn(v[j], v[j], 0.0f));
#pragma unroll
    for (uint32_t j = 1; j < EACH; j++)
        sum[0] = __fadd_rn(sum[0], sum[j]);
    float s = norm_scale(sum[0], n, eps);
#pragma unroll
    for (uint32_t j = 0; j < EACH; j++) {
        uint32_t i = j * 32 + lane;
        if (i < n) to[i] = norm != nullptr ? __fmul_rn(__fmul_rn(v[j], s), w[j]) : v[j];
    }
    __syncwarp();
}

// Value i of a head, which rope turns or leaves. at(i): before.
template <class F>
static __device__ __forceinline__ float turned(const walk_view &view, const float2 *angles,
                                               uint32_t i, F at)
{
    // Without a branch: so that several are asked for together.
    uint32_t n_pairs = view.n_rot / 2;
    bool turns = i < view.n_rot, second = view.neox ? i >= n_pairs : i % 2 == 1;
    uint32_t first = view.neox ? (second ? i - n_pairs : i) : i - i % 2;
    uint32_t p = view.neox ? first : i / 2, apart = view.neox ? n_pairs : 1;
    float a0 = at(turns ? first : i), b0 = at(turns ? first + apart : i);
    float2 turn = angles[turns ? p : 0];
    float y = second ? __fmaf_rn(b0, turn.x, __fmul_rn(a0, turn.y))
                     : __fmaf_rn(a0, turn.x, -__fmul_rn(b0, turn.y));
    return turns ? y : a0;
}

#endif
