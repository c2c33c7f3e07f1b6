// walk_ring.cuh - weights on their way to the warps that multiply: each has a ring of slots in
// shared memory, filled by a warp of its own, so that it never waits for the copy engine to take a
// copy. What is copied goes through the same pieces in the same order as what is used, a ring
// ahead; a piece is one tile, or one segment of it, or of two tiles side by side.
#ifndef KERNELS_CUDA_WALK_RING_CUH
#define KERNELS_CUDA_WALK_RING_CUH

#include "kernels/cuda/forms.cuh"
#include "kernels/cuda/hopper.cuh"
#include "kernels/cuda/walk.h"

static constexpr uint32_t WARPS = 16, THREADS = WARPS * 32;
static constexpr uint32_t MULS = 8; // warps that multiply; the others fill their rings
static constexpr uint32_t SLOT = 4736, SLOTS_MAX = 8;

// Units in a slot; two tiles side by side have a half each.
static constexpr __host__ __device__ uint32_t slot_units(uint32_t unit_blocks, uint32_t unit_bytes)
{
    return unit_bytes == F16_BLOCK ? 8 : unit_blocks == 1 ? 16 : unit_bytes == Q4K_UNIT ? 4 : 2;
}

static_assert(8 * F16_BLOCK <= SLOT && 16 * Q8M_BLOCK <= SLOT && 4 * Q4K_UNIT <= SLOT &&
                  2 * K8_UNIT <= SLOT && SLOT % 32 == 0,
              "what a slot holds");

// The pieces of one product that a warp has, one after the other.
struct walk_share {
    uint32_t at, stride, part, tile, segment;

    __device__ __forceinline__ walk_share(const walk_weights &w, uint32_t product_i, uint32_t warp)
    {
        warp ^= product_i % 2 * (MULS / 2); // so that small products do not meet in one ring
        segment = warp & ((1u << w.segments_log2) - 1);
        at = blockIdx.x + gridDim.x * (warp >> w.segments_log2);
        stride = gridDim.x * (MULS >> w.segments_log2);
        part = 1; // in turn: the one before the next
    }
    // The next piece is of tile `tile` of part `part`; false: there is none.
    __device__ __forceinline__ bool next(const walk_weights &w)
    {
        if (at >= w.tile_end[2]) return false;
        if (w.paired == WALK_IN_TURN) {
            part ^= 1;
            tile = at;
            if (part == 1) at += stride;
            return true;
        }
        part = w.paired ? 0 : (at >= w.tile_end[0]) + (at >= w.tile_end[1]);
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
    // Units of the piece in one slot.
    __device__ __forceinline__ uint32_t in_slot(const walk_weights &w) const
    {
        cuda_form f = (cuda_form)w.form[part];
        return slot_units(cuda_unit_blocks(f), cuda_unit_bytes(f)) >>
               (w.paired == WALK_SIDE_BY_SIDE);
    }
};

// As barrier_wait, but asleep for up to a millisecond at a time: of a warp that others beside it
// are not to wait for.
__device__ __forceinline__ void wait_aside(uint64_t *b, uint32_t parity)
{
    asm volatile("{\n.reg .pred p;\n"
                 "again: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1, %2;\n"
                 "@p bra done;\nbra again;\ndone:\n}" ::"r"(shared_address(b)),
                 "r"(parity), "r"(1000000)
                 : "memory");
}

// A ring as the warp that fills it has it: one lane's.
struct walk_feed {
    char *slots;
    uint64_t *full, *empty;
    const walk_weights *weights; // of all products
    uint32_t n_products, n_slots, slot, parity, product_i;
    walk_share share;
    const char *from, *beside; // what is to be copied next of a piece, and of the tile beside it
    uint32_t left, most;

    // Have something left to copy, from the next piece if need be; false: all is copied.
    __device__ __forceinline__ bool find(uint32_t warp)
    {
        while (left == 0) {
            const walk_weights &w = weights[product_i];
            if (!share.next(w)) {
                if (product_i + 1 >= n_products) return false;
                product_i++;
                share = walk_share(weights[product_i], product_i, warp);
                continue;
            }
            cuda_form form = (cuda_form)w.form[share.part];
            uint32_t unit_bytes = cuda_unit_bytes(form), begin, n;
            uint32_t n_units = w.n_blocks / cuda_unit_blocks(form);
            share.units(w, n_units, &begin, &n);
            uint64_t at = ((uint64_t)share.tile * n_units + begin) * unit_bytes;
            from = w.data[share.part] + at;
            beside = w.paired == WALK_SIDE_BY_SIDE ? w.data[1] + at : nullptr;
            left = n * unit_bytes;
            most = share.in_slot(w) * unit_bytes;
        }
        return true;
    }
    __device__ __forceinline__ void copy()
    {
        uint32_t n = min(left, most);
        barrier_expect(full + slot, beside != nullptr ? 2 * n : n);
        bulk_copy(slots + slot * SLOT, from, n, full + slot);
        if (beside != nullptr) {
            bulk_copy(slots + slot * SLOT + SLOT / 2, beside, n, full + slot);
            beside += n;
        }
        from += n;
        left -= n;
        if (++slot == n_slots) slot = 0;
    }
    // All slots, which nobody has used yet.
    __device__ __forceinline__ void fill(uint32_t warp)
    {
        for (uint32_t i = 0; i < n_slots && find(warp); i++)
            copy();
    }
    // A slot for each that the warp uses in product i.
    __device__ __forceinline__ void follow(uint32_t i, uint32_t warp)
    {
        const walk_weights &w = weights[i];
        walk_share used(w, i, warp);
        while (used.next(w)) {
            uint32_t begin, n, each = used.in_slot(w);
            used.units(w, w.n_blocks / cuda_unit_blocks((cuda_form)w.form[used.part]), &begin, &n);
            for (uint32_t k = 0; k < n; k += each) {
                if (!find(warp)) return;
                wait_aside(empty + slot, parity);
                parity ^= slot + 1 == n_slots;
                copy();
            }
        }
    }
};

// And as the warp that uses it.
struct walk_ring {
    const char *slots;
    uint64_t *full, *empty;
    uint32_t n_slots, slot, parity;

    __device__ __forceinline__ const char *wait() const
    {
        barrier_wait(full + slot, parity);
        return slots + slot * SLOT;
    }
    // The slot in hand is used: by the whole warp.
    __device__ __forceinline__ void step()
    {
        __syncwarp();
        if (threadIdx.x % 32 == 0) barrier_arrive(empty + slot);
        if (++slot == n_slots) {
            slot = 0;
            parity ^= 1;
        }
    }
};

// A lane's two k16 steps of the row.
__device__ __forceinline__ uint4 row_steps(const char *x)
{
    uint2 a = *(const uint2 *)x, b = *(const uint2 *)(x + 32);
    return make_uint4(a.x, a.y, b.x, b.y);
}

// multiply(unit, its row) for the n units of a piece, EACH a slot.
template <class form, uint32_t EACH, class F>
static __device__ __forceinline__ void for_units(walk_ring &ring, uint32_t n, const char *x,
                                                 F multiply)
{
    constexpr uint32_t X_UNIT = form::unit_blocks * 64, MOST = EACH < 8 ? EACH : 8;
    constexpr uint32_t RUN = form::unit_blocks > 1 ? 1 : MOST; // without a branch
    while (n > 0) {
        uint32_t m = min(n, EACH), j = 0;
        const char *at = ring.wait();
        for (; j + RUN <= m; j += RUN) {
#pragma unroll
            for (uint32_t i = 0; i < RUN; i++)
                multiply(at + (j + i) * form::unit_bytes, x + (j + i) * X_UNIT);
        }
        for (; j < m; j++)
            multiply(at + j * form::unit_bytes, x + j * X_UNIT);
        ring.step();
        n -= m;
        x += m * X_UNIT;
    }
}

// The sum of a piece's chain; x: the lane's values of its first step. The output of lane 4 o is
// valid.
template <class form>
static __device__ __forceinline__ float chain(walk_ring &ring, uint32_t n, const char *x,
                                              uint32_t lane)
{
    float d[4] = {0, 0, 0, 0};
    for_units<form, slot_units(form::unit_blocks, form::unit_bytes)>(
        ring, n, x, [&](const char *unit, const char *row) {
            each_block<form>(unit, lane, [&](uint32_t j, uint4 w) {
                uint4 v = row_steps(row + j * 64);
                mma_one_row(d, w.x, w.y, v.x, v.y);
                mma_one_row(d, w.z, w.w, v.z, v.w);
            });
        });
    return d[0];
}

// Of two tiles side by side: a step multiplies both.
template <class form>
static __device__ __forceinline__ float2 chains(walk_ring &ring, uint32_t n, const char *x,
                                                uint32_t lane)
{
    float d[4] = {0, 0, 0, 0};
    for_units<form, slot_units(form::unit_blocks, form::unit_bytes) / 2>(
        ring, n, x, [&](const char *unit, const char *row) {
            uint4 first[form::unit_blocks];
            each_block<form>(unit, lane, [&](uint32_t j, uint4 w) { first[j] = w; });
            each_block<form>(unit + SLOT / 2, lane, [&](uint32_t j, uint4 w) {
                uint4 v = row_steps(row + j * 64);
                mma_step(d, first[j].x, w.x, first[j].y, w.y, v.x, v.y);
                mma_step(d, first[j].z, w.z, first[j].w, w.w, v.z, v.w);
            });
        });
    return make_float2(d[0], d[2]);
}

#endif
