// walk_ring.cuh - weights on their way to the warps of a walk: each has a ring of slots in shared
// memory, which its lane 0 fills, a slot for each that was used. What is copied goes through the same
// pieces in the same order as what is used, some slots ahead; a piece is one tile, or one segment of
// it.
#ifndef KERNELS_CUDA_WALK_RING_CUH
#define KERNELS_CUDA_WALK_RING_CUH

#include "kernels/cuda/forms.cuh"
#include "kernels/cuda/walk.h"

static constexpr uint32_t WARPS = 16, THREADS = WARPS * 32; // that multiply
static constexpr uint32_t SLOT = 2432, SLOTS_MAX = 8;

// Bytes of whole units in a slot.
__device__ __forceinline__ uint32_t slot_bytes(cuda_form form)
{
    return form == FORM_F16   ? SLOT / F16_BLOCK * F16_BLOCK
           : form == FORM_Q8  ? SLOT / Q8_BLOCK * Q8_BLOCK
           : form == FORM_Q8M ? SLOT / Q8M_BLOCK * Q8M_BLOCK
           : form == FORM_Q4K ? SLOT / Q4K_UNIT * Q4K_UNIT
           : form == FORM_Q6K ? SLOT / Q6K_UNIT * Q6K_UNIT
                              : SLOT / K8_UNIT * K8_UNIT;
}

// The pieces of one product that a warp has, one after the other.
struct walk_share
{
    uint32_t at, stride, part, tile, segment;

    __device__ __forceinline__ walk_share(const walk_weights &w, uint32_t product_i, uint32_t warp)
    {
        warp ^= product_i % 2 * (WARPS / 2); // so that small products do not meet in one ring
        segment = warp & ((1u << w.segments_log2) - 1);
        at = blockIdx.x + gridDim.x * (warp >> w.segments_log2);
        stride = gridDim.x * (WARPS >> w.segments_log2);
        part = 1; // paired: the one before the next
    }
    // The next piece is of tile `tile` of part `part`; false: there is none.
    __device__ __forceinline__ bool next(const walk_weights &w)
    {
        if (at >= w.tile_end[2]) return false;
        if (w.paired) {
            part ^= 1;
            tile = at;
            if (part == 1) at += stride;
            return true;
        }
        part = (at >= w.tile_end[0]) + (at >= w.tile_end[1]);
        tile = at - (part > 0 ? w.tile_end[part - 1] : 0);
        at += stride;
        return true;
    }
    // Units [begin, begin + n) of n_units are the segment's.
    __device__ __forceinline__ void units(const walk_weights &w, uint32_t n_units, uint32_t *begin,
                                          uint32_t *n) const
    {
        uint32_t each = (n_units + (1u << w.segments_log2) - 1) >> w.segments_log2;
        *begin = min(segment * each, n_units);
        *n = min(each, n_units - *begin);
    }
};

// A warp's ring. from, left, most: what is to be copied next of a piece; known to lane 0 only.
struct walk_ring
{
    char *slots;
    uint64_t *full;
    const walk_weights *weights; // of all products
    uint32_t n_products, n_slots, slot, parity, next_slot, product_i;
    walk_share share;
    const char *from;
    uint32_t left, most;

    // Have something left to copy, from the next piece if need be; false: all is copied.
    __device__ __forceinline__ bool find()
    {
        while (left == 0) {
            const walk_weights &w = weights[product_i];
            if (!share.next(w)) {
                if (product_i + 1 >= n_products) return false;
                product_i++;
                share = walk_share(weights[product_i], product_i, threadIdx.x / 32);
                continue;
            }
            cuda_form form = (cuda_form)w.form[share.part];
            uint32_t unit_bytes = cuda_unit_bytes(form), begin, n;
            uint32_t n_units = w.n_blocks / cuda_unit_blocks(form);
            share.units(w, n_units, &begin, &n);
            from = w.data[share.part] + ((uint64_t)share.tile * n_units + begin) * unit_bytes;
            left = n * unit_bytes;
            most = slot_bytes(form);
        }
        return true;
    }
    // Lane 0: copy into the next slot, which must be free.
    __device__ __forceinline__ void copy()
    {
        if (!find()) return;
        uint32_t n = min(left, most);
        barrier_expect(full + next_slot, n);
        bulk_copy(slots + next_slot * SLOT, from, n, full + next_slot);
        from += n;
        left -= n;
        if (++next_slot == n_slots) next_slot = 0;
    }
    // The slot in hand is used: by the whole warp.
    __device__ __forceinline__ void step()
    {
        __syncwarp();
        if (threadIdx.x % 32 == 0) copy();
        if (++slot == n_slots) {
            slot = 0;
            parity ^= 1;
        }
    }
};

// The sum of a piece's chain; x: the lane's values of its first step. The output of lane 4 o is
// valid.
template <class form>
static __device__ __forceinline__ float chain(walk_ring &ring, uint32_t n, const char *x,
                                              uint32_t lane)
{
    constexpr uint32_t STEP = SLOT / form::unit_bytes, X_UNIT = form::unit_blocks * 64;
    float d[4] = {0, 0, 0, 0};
    auto multiply = [&](const char *unit, const char *at) {
        form::each(unit, lane, [&](uint32_t j, uint4 w) {
            uint2 x0 = *(const uint2 *)(at + j * 64), x1 = *(const uint2 *)(at + j * 64 + 32);
            mma_one_row(d, w.x, w.y, x0.x, x0.y);
            mma_one_row(d, w.z, w.w, x1.x, x1.y);
        });
    };
    while (n > 0) {
        const char *at = ring.slots + ring.slot * SLOT;
        uint32_t m = min(n, STEP);
        barrier_wait(ring.full + ring.slot, ring.parity);
        if (m == STEP) {
#pragma unroll
            for (uint32_t j = 0; j < STEP; j++)
                multiply(at + j * form::unit_bytes, x + j * X_UNIT);
        } else {
            for (uint32_t j = 0; j < m; j++)
                multiply(at + j * form::unit_bytes, x + j * X_UNIT);
        }
        ring.step();
        n -= m;
        x += m * X_UNIT;
    }
    return d[0];
}

#endif
