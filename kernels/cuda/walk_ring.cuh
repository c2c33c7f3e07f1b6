// walk_ring.cuh - weights on their way to the warps of a walk. A product's tiles go to the block's
// warps in rounds: in each, a warp has a piece (one tile, or one segment of it; of a paired product
// one tile of each part), copied in n_chunks chunks. The ring's slots are filled in the order of
// rounds, chunks, warps, by one more warp; a warp that uses a chunk knows its place from that order.
// Where a piece has fewer chunks than another of its product, the rest of its slots stay empty.
#ifndef KERNELS_CUDA_WALK_RING_CUH
#define KERNELS_CUDA_WALK_RING_CUH

#include "kernels/cuda/forms.cuh"
#include "kernels/cuda/walk.h"

static constexpr uint32_t WARPS = 16, THREADS = WARPS * 32; // that multiply
static constexpr uint32_t SLOT = WALK_SLOT, SLOTS_MAX = 48;

// A product's pieces in this block.
struct walk_round
{
    uint32_t n_tiles;  // of the block (pairs of tiles, where paired)
    uint32_t first;    // the round's first of them
    uint32_t n_warps;  // that have a piece in the round

    __device__ __forceinline__ walk_round(const walk_weights &w)
    {
        uint32_t all = w.tile_end[2];
        n_tiles = blockIdx.x < all ? (all - blockIdx.x + gridDim.x - 1) / gridDim.x : 0;
        first = 0;
        n_warps = min(n_tiles << w.segments_log2, WARPS);
    }
    __device__ __forceinline__ void next(const walk_weights &w)
    {
        first += WARPS >> w.segments_log2;
        n_warps = min((n_tiles - min(first, n_tiles)) << w.segments_log2, WARPS);
    }
};

// What `warp` has in a round: units [begin, begin + n) of a tile of a part (paired: of part 0 and of
// part 1).
struct walk_piece
{
    uint32_t part, tile, segment, begin, n, n_units;

    __device__ __forceinline__ walk_piece(const walk_weights &w, const walk_round &r, uint32_t warp)
    {
        segment = warp & ((1u << w.segments_log2) - 1);
        tile = blockIdx.x + gridDim.x * (r.first + (warp >> w.segments_log2));
        part = (tile >= w.tile_end[0]) + (tile >= w.tile_end[1]);
        if (part > 0) tile -= w.tile_end[part - 1];
        n_units = w.n_blocks / cuda_unit_blocks((cuda_form)w.form[part]);
        uint32_t each = (n_units + (1u << w.segments_log2) - 1) >> w.segments_log2;
        begin = min(segment * each, n_units);
        n = min(each, n_units - begin);
    }
};

__device__ __forceinline__ void barrier_arrive(uint64_t *b)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(b)) : "memory");
}

// A place in the order of slots.
struct walk_ring
{
    char *slots;
    uint64_t *full, *empty;
    uint32_t n_slots, slot, parity;

    __device__ __forceinline__ void skip(uint32_t n) // fewer than n_slots
    {
        slot += n;
        if (slot >= n_slots) {
            slot -= n_slots;
            parity ^= 1;
        }
    }
    __device__ __forceinline__ void skip_many(uint32_t n)
    {
        uint32_t at = slot + n, turns = at / n_slots;
        slot = at - turns * n_slots;
        parity ^= turns & 1;
    }
};

// Fill the ring for all products: a whole warp, whose lane w has the piece of warp w in hand.
static __device__ void feed(const walk_weights *weights, uint32_t n_products, walk_ring ring)
{
    uint32_t lane = threadIdx.x % 32;
    for (uint32_t i = 0; i < n_products; i++) {
        const walk_weights &w = weights[i];
        for (walk_round r(w); r.n_warps > 0; r.next(w)) {
            walk_piece p(w, r, min(lane, r.n_warps - 1));
            cuda_form form = (cuda_form)w.form[p.part];
            uint32_t unit_bytes = cuda_unit_bytes(form), left = p.n * unit_bytes;
            uint32_t most = cuda_walk_units(form) * unit_bytes >> w.paired;
            uint64_t at = ((uint64_t)p.tile * p.n_units + p.begin) * unit_bytes;
            const char *from = w.data[p.part] + at, *from_1 = w.data[1] + at;
            for (uint32_t c = 0; c < w.n_chunks; c++) {
                for (uint32_t warp = 0; warp < r.n_warps; warp++) {
                    barrier_wait(ring.empty + ring.slot, ring.parity ^ 1);
                    if (lane == warp) {
                        uint32_t n = min(left, most);
                        uint64_t *full = ring.full + ring.slot;
                        char *to = ring.slots + ring.slot * SLOT;
                        barrier_expect(full, n << w.paired);
                        if (n > 0) bulk_copy(to, from, n, full);
                        if (n > 0 && w.paired) bulk_copy(to + most, from_1, n, full);
                        from += n;
                        from_1 += n;
                        left -= n;
                    }
                    __syncwarp(); // nobody waits for a slot that another's copy would free
                    ring.skip(1);
                }
            }
        }
    }
}

// The row's values for both steps of a block.
__device__ __forceinline__ uint4 row_block(const char *x)
{
    uint2 x0 = *(const uint2 *)x, x1 = *(const uint2 *)(x + 32);
    return make_uint4(x0.x, x0.y, x1.x, x1.y);
}

// A unit of one tile, or of two: the second at unit_1.
template <class form, bool PAIRED>
static __device__ __forceinline__ void multiply_unit(float d[4], const char *unit,
                                                     const char *unit_1, const char *x,
                                                     uint32_t lane)
{
    typename form::reader first(unit, lane), second(PAIRED ? unit_1 : unit, lane);
#pragma unroll
    for (uint32_t j = 0; j < form::unit_blocks; j++) {
        uint4 v = row_block(x + j * 64), w = first.block(j);
        if (PAIRED) {
            uint4 u = second.block(j);
            mma_step(d, w.x, u.x, w.y, u.y, v.x, v.y);
            mma_step(d, w.z, u.z, w.w, u.w, v.z, v.w);
        } else {
            mma_one_row(d, w.x, w.y, v.x, v.y);
            mma_one_row(d, w.z, w.w, v.z, v.w);
        }
    }
}

// The chain of a piece of n units, or of the two of a paired product: in lane 4 o the sums of output
// o, in d[0] and d[2]. x: the lane's values of the first step; stride: of the warp's slots.
template <class form, bool PAIRED>
static __device__ __forceinline__ void chain(float d[4], walk_ring ring, uint32_t n,
                                             uint32_t n_chunks, uint32_t stride, const char *x,
                                             uint32_t lane)
{
    constexpr uint32_t UNITS = form::unit_bytes == F16_BLOCK   ? 8
                               : form::unit_bytes == Q8_BLOCK  ? 16
                               : form::unit_bytes == Q4K_UNIT ? 4
                                                               : 2;
    constexpr uint32_t STEP = PAIRED ? UNITS / 2 : UNITS, X_UNIT = form::unit_blocks * 64;
    for (uint32_t c = 0; c < n_chunks; c++, ring.skip(stride)) {
        const char *at = ring.slots + ring.slot * SLOT, *at_1 = at + STEP * form::unit_bytes;
        uint32_t m = min(n, STEP);
        barrier_wait(ring.full + ring.slot, ring.parity);
        if (form::unit_blocks == 1 && m == STEP) {
#pragma unroll
            for (uint32_t j = 0; j < STEP; j++)
                multiply_unit<form, PAIRED>(d, at + j * form::unit_bytes,
                                            at_1 + j * form::unit_bytes, x + j * X_UNIT, lane);
        } else {
#pragma unroll 1
            for (uint32_t j = 0; j < m; j++)
                multiply_unit<form, PAIRED>(d, at + j * form::unit_bytes,
                                            at_1 + j * form::unit_bytes, x + j * X_UNIT, lane);
        }
        __syncwarp();
        if (lane == 0) barrier_arrive(ring.empty + ring.slot);
        n -= m;
        x += m * X_UNIT;
    }
}

#endif
