/* walk.h - all layers of a range for one row in one launch: what the kernel is told.
 *
 * A block on every SM goes through the products in order; between two of them all blocks meet. Half
 * of its warps multiply; the others copy weights to a ring for each of them, as far ahead as there is
 * room, through every border: what a product waits for (the row, the other blocks) costs little
 * bandwidth. The operations are those of the single ops, in their order: the same bits.
 *
 * A norm after a block needs its whole output: that is stored, and every block that makes the next
 * product's row norms it and adds it to the hidden state for itself. The first block keeps the sum, in
 * the one of two places that nobody reads then. After the last layer there is one such row more. */
#ifndef KERNELS_CUDA_WALK_H
#define KERNELS_CUDA_WALK_H

#include "kernels/cuda/launch.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What becomes of a sum: stored; added to what stands there; activation of part 0 times part 1. */
typedef enum { WALK_STORE, WALK_ADD, WALK_SILU, WALK_GELU } walk_end;

/* Products of one row with up to three matrices of equal n_in. */
#define WALK_PARTS 3u
typedef struct {
    struct {
        const float *bias; /* NULL: none */
        float *out;
        uint32_t n_out;
        int32_t exponent;
    } part[WALK_PARTS];
    const float *x, *norm; /* norm NULL: x as it is */
    const float *y, *post; /* post not NULL: x + y through that norm takes x's place, and is kept */
    float *sum;            /* here */
    uint32_t n_in;
    uint32_t end;          /* walk_end */
    uint32_t finite_i;     /* which flag tells of NaN and infinity in the result, or WALK_NO_FLAG */
} walk_product;
#define WALK_NO_FLAG 2u

/* How a warp goes through tile t of part 0 and of part 1, whose sums are multiplied: one after the
 * other; or, where both have one form, both at once. */
typedef enum { WALK_SINGLE, WALK_IN_TURN, WALK_SIDE_BY_SIDE } walk_pairing;

/* Where the weights of a product are: a copy of all of them stays in every block's shared memory. */
typedef struct {
    const char *data[WALK_PARTS];
    uint16_t tile_end[WALK_PARTS]; /* of the parts' tiles one after the other; paired: all the same */
    uint8_t form[WALK_PARTS];
    uint8_t segments_log2;
    uint16_t n_blocks;
    uint16_t paired;               /* walk_pairing */
} walk_weights;

/* One layer's pools of f16, and what its heads go through before. */
typedef struct {
    void *k, *v;
    const float *q_norm, *k_norm; /* [n_head]; NULL: none */
    uint32_t view_i;
} walk_pools;

/* Layers that turn heads and see positions alike. */
#define WALK_VIEWS 2u
typedef struct {
    const float *cos, *sin; /* [n_rot / 2] */
    const uint32_t *table;  /* [1] */
    uint32_t n_rot, neox, window;
} walk_view;

typedef struct {
    const walk_product *product; /* device: [4 n_layers], and one more for the head or the last sum */
    const walk_weights *weights; /* device: [n_products] */
    const walk_pools *pools;     /* device: [n_layers] */
    uint32_t n_layers, n_products;
    uint32_t n_rows;             /* of products: n_products, or one more whose sum alone is asked for */
    uint32_t n_heads, n_kv_heads, n_head, n_cells_max;
    uint32_t more;               /* norms of heads or after a block, a window, two views */
    float rms_eps, attn_scale;
    const float *q, *k, *v;
    float *attn;
    walk_view view[WALK_VIEWS];
    const uint32_t *position, *tables;
    const uint8_t *live;         /* [1]; 0: the launch does nothing. NULL: it lives */
    float *partial;              /* [n_heads, n_cells_max, n_head + 2] */
    uint32_t *arrived;           /* [n_heads]: cells of a group of heads that are done; zeros between */
    uint32_t *meet;              /* [2]: blocks that have met, over all launches; and when this began */
    uint8_t *finite;             /* [2]: hidden, logits: 1 where one is not finite */
    uint32_t x_bytes;            /* shared memory for the row or an attention item */
} walk_args;

#define WALK_IN_MAX   16384u /* n_in of a product */
#define WALK_NORM_MAX 8192u  /* n_in of one with a norm */
#define WALK_POST_MAX 4096u  /* n_embd where norms follow blocks */
#define WALK_TILES_MAX 65535u
#define WALK_HEAD_MAX 256u   /* n_head, a multiple of 16 */

/* Once per device. */
cudaError_t cuda_walk_setup(void);
/* What stays of a block's shared memory for the rings; they take at least WALK_RINGS_MIN. */
int64_t cuda_walk_rings_bytes(uint32_t n_products, uint32_t x_bytes);
#define WALK_RINGS_MIN (128 * 1024)
/* x_bytes for rows of up to n_in values. */
uint32_t cuda_walk_x_bytes(uint32_t n_in, uint32_t n_head);
cudaError_t cuda_launch_walk(cudaStream_t s, const walk_args *a, uint32_t n_sms);

#ifdef __cplusplus
}
#endif

#endif
