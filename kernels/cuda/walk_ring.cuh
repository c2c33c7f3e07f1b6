// walk_ring.cuh - weights on their way to the warps of a walk: each of the 16 has a ring of slots in
// shared memory, and lane w of a warp of its own fills ring w. Both sides go through the same pieces
// in the same order; a piece is one tile, or one segment of it.
#ifndef KERNELS_CUDA_WALK_RING_CUH
#define KERNELS_CUDA_WALK_RING_CUH

#include "kernels/cuda/forms.cuh"
#include "kernels/cuda/walk.h"

static constexpr uint32_t WARPS = 16, THREADS = WARPS * 32; // that multiply
static constexpr uint32_t SLOT = 2432, SLOTS_MAX = 8;

// The pieces of one product that a warp has.
struct walk_share
{
    uint32_t segment, first, stride, n_pieces, n_tiles;
    bool paired; // part 0 and part 1 of a tile in turn

    __device__ __forceinline__ walk_share(const walk_product *p, uint32_t product_i, uint32_t warp)
    {
        uint32_t n_segments = p->n_segments, n = 0;
        warp ^= product_i % 2 * (WARPS / 2); // so that small products do not meet in one ring
        segment = warp % n_segments;
        first = blockIdx.x + gridDim.x * (warp / n_segments);
        stride = gridDim.x * (WARPS / n_segments);
        paired = p->end == WALK_SILU || p->end == WALK_GELU;
        n_tiles = p->part[0].n_tiles;
        for (uint32_t i = 1; !paired && i < p->n_parts; i++)
            n_tiles += p->part[i].n_tiles;
        if (first < n_tiles) n = (n_tiles - first + stride - 1) / stride;
        n_pieces = paired ? 2 * n : n;
    }
    __device__ __forceinline__ void piece(const walk_product *p, uint32_t i, uint32_t *part,
                                          uint32_t *tile) const
    {
        *part = paired ? i % 2 : 0;
        *tile = first + (paired ? i / 2 : i) * stride;
        while (!paired && *tile >= p->part[*part].n_tiles)
            *tile -= p->part[(*part)++].n_tiles;
    }
    // Units [begin, begin + n) of the tile are the segment's.
    __device__ __forceinline__ void units(const walk_product *p, uint32_t n_units, uint32_t *begin,
                                          uint32_t *n) const
    {
        uint32_t each = (n_units + p->n_segments - 1) / p->n_segments;
        *begin = min(segment * each, n_units);
        *n = min(each, n_units - *begin);
    }
};

__device__ __forceinline__ bool barrier_test(uint64_t *b, uint32_t parity)
{
    uint32_t done;
    asm volatile("{\n.reg .pred p;\nmbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\n"
                 "selp.b32 %0, 1, 0, p;\n}"
                 : "=r"(done)
                 : "r"(shared_address(b)), "r"(parity)
                 : "memory");
    return done != 0;
}

__device__ __forceinline__ void barrier_arrive(uint64_t *b)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(b)) : "memory");
}

struct walk_ring
{
    char *slots;
    uint64_t *full, *empty;
    uint32_t n_slots, slot, parity;

    __device__ __forceinline__ void step()
    {
        if (++slot == n_slots) {
            slot = 0;
            parity ^= 1;
        }
    }
};

// What a lane of the copying warp is at.
struct walk_feeder
{
    const walk_product *p;
    walk_share share;
    const char *from;
    uint32_t left, most, product_i, piece; // left: bytes of the piece; most: in a slot

    // Have something left to copy, from the next piece if need be; false: all is copied.
    __device__ __forceinline__ bool find(const walk_args &a, uint32_t warp)
    {
        while (left == 0) {
            if (piece == share.n_pieces) {
                if (product_i + 1 >= a.n_products) return false;
                p++;
                piece = 0;
                share = walk_share(p, ++product_i, warp);
                continue;
            }
            uint32_t part, tile, begin, n;
            share.piece(p, piece++, &part, &tile);
            cuda_form form = (cuda_form)p->part[part].form;
            uint32_t unit_bytes = cuda_unit_bytes(form);
            uint32_t n_units = p->n_blocks / cuda_unit_blocks(form);
            share.units(p, n_units, &begin, &n);
            from = p->part[part].data + ((uint64_t)tile * n_units + begin) * unit_bytes;
            left = n * unit_bytes;
            most = SLOT / unit_bytes * unit_bytes;
        }
        return true;
    }
};

// Fill ring w, for all products: lane w of the warp that copies. The lanes stay together.
static __device__ void feed(const walk_args &a, walk_ring ring, uint32_t warp)
{
    constexpr uint32_t ALL = (1u << WARPS) - 1;
    walk_feeder f = {a.product, walk_share(a.product, 0, warp), nullptr, 0, 0, 0, 0};
    while (true) {
        bool some = f.find(a, warp);
        if (!__any_sync(ALL, some)) return;
        bool free = some && barrier_test(ring.empty + ring.slot, ring.parity ^ 1);
        if (free) {
            uint32_t n = min(f.left, f.most);
            barrier_expect(ring.full + ring.slot, n);
            bulk_copy(ring.slots + ring.slot * SLOT, f.from, n, ring.full + ring.slot);
            ring.step();
            f.from += n;
            f.left -= n;
        }
        if (!__any_sync(ALL, free)) __nanosleep(32);
    }
}

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
        __syncwarp();
        if (lane == 0) barrier_arrive(ring.empty + ring.slot);
        ring.step();
        n -= m;
        x += m * X_UNIT;
    }
    return d[0];
}

#endif
