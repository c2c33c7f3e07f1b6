/* The plain reference of the product with floats: a piece of each weight row is converted, then
 * every output goes on with its own sixteen lanes. */
#include "kernels/cpu/convert.h"
#include "kernels/cpu/isa_ops.h"
#include "kernels/cpu/lanes_ref.h"

#define PIECE 512u /* values converted at a time; a multiple of 16 */

void matmul_ref(float *out, const void *w, dtype type, uint32_t n_in, uint32_t n_out,
                const float *x, const void *bias, uint32_t n_rows, uint32_t o_begin,
                uint32_t o_end, float *scratch)
{
    (void)scratch;
    uint64_t row_bytes = dtype_bytes(type, n_in);
    float piece[PIECE];
    for (uint32_t o = o_begin; o < o_end; o++) {
        const char *w_row = (const char *)w + o * row_bytes;
        for (uint32_t r = 0; r < n_rows; r++) {
            lanes sum = {{0}};
            for (uint32_t i0 = 0; i0 < n_in; i0 += PIECE) {
                uint32_t n = n_in - i0 < PIECE ? n_in - i0 : PIECE;
                to_f32_ref(piece, w_row + dtype_bytes(type, i0), type, n);
                const float *x_piece = x + (uint64_t)r * n_in + i0;
                for (uint32_t i = 0; i < n; i++) lanes_add_product(&sum, i, piece[i], x_piece[i]);
            }
            float y = lanes_tree(&sum);
            if (bias != NULL) y += load_f32((const char *)bias + 4ull * o);
            out[(uint64_t)r * n_out + o] = y;
        }
    }
}
