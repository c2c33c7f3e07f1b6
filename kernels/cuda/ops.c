/* The ops of the cuda table: addresses taken apart, the right kernel chosen, rows cut where scratch
 * asks for it (rows do not depend on each other, so that no cut shows). */
#include "kernels/cuda/device.h"

#define PROMPT_RUN  32u /* rows of one table side by side, on average, that attention takes together */

/* Put a kernel on the queue: enter, launch, check. */
#define LAUNCH(q, kernel, ...)                                                                     \
    do {                                                                                           \
        TRY(cuda_enter(q));                                                                        \
        TRY(cuda_result((q)->device, kernel((q)->stream, __VA_ARGS__), #kernel, NULL));            \
    } while (0)

status cuda_embed(backend_queue *q, dev_ptr out, const dev_weight *table, dev_ptr tokens,
                  float scale, uint32_t n_rows)
{
    if (n_rows == 0) return ST_OK;
    LAUNCH(q, cuda_launch_embed, cuda_address(out), cuda_address(table->data), table->type, table->n_in,
           cuda_address(tokens), scale, n_rows);
    return ST_OK;
}

/* --- products ------------------------------------------------------------------------------- */

/* Rows of x in the tensor core's order; they may be there from the product before. */
static status prepare(backend_queue *q, uint64_t x, uint32_t n, uint32_t n_rows)
{
    if (q->prepared_rows == n_rows && q->prepared_x == x && q->prepared_n == n) return ST_OK;
    const float *rows = (const float *)(uintptr_t)x;
    LAUNCH(q, cuda_prepare_many, q->prepared, q->exponents, rows, n, n_rows);
    q->prepared_x = x;
    q->prepared_n = n;
    q->prepared_rows = n_rows;
    return ST_OK;
}

/* Rows of n values that `prepared` holds: whole tiles of a product. */
static uint32_t prepared_rows_max(uint32_t n)
{
    uint64_t row_bytes = (uint64_t)cuda_blocks_in(n) * BLOCK_IN * 2;
    uint32_t rows = (uint32_t)(CUDA_PREPARED_BYTES / row_bytes) / 128 * 128;
    CHECK(rows > 0);
    return rows < CUDA_PREPARED_ROWS ? rows : CUDA_PREPARED_ROWS;
}

static status norm(backend_queue *q, dev_ptr out, dev_ptr x, dev_ptr y, dev_ptr w, uint32_t n,
                   float eps, uint32_t n_rows)
{
    if (n_rows == 0) return ST_OK;
    float *to = cuda_address(out), *from = cuda_address(x);
    const float *more = cuda_address(y), *by = cuda_address(w);
    if (n_rows == 1 || n_rows > prepared_rows_max(n) ||
        !cuda_rms_norm_prepares(to, from, more, by, n)) {
        LAUNCH(q, cuda_launch_rms_norm, to, from, more, by, n, eps, n_rows);
        return ST_OK;
    }
    LAUNCH(q, cuda_launch_rms_norm_prepare, to, from, more, by, n, eps, n_rows, q->prepared,
           q->exponents);
    q->prepared_x = out.addr; /* most norms are a product's rows next */
    q->prepared_n = n;
    q->prepared_rows = n_rows;
    return ST_OK;
}

status cuda_rms_norm(backend_queue *q, dev_ptr out, dev_ptr x, dev_ptr w, uint32_t n, float eps,
                     uint32_t n_rows)
{
    return norm(q, out, x, (dev_ptr){0}, w, n, eps, n_rows);
}

status cuda_add_rms_norm(backend_queue *q, dev_ptr out, dev_ptr x, dev_ptr y, dev_ptr w, uint32_t n,
                         float eps, uint32_t n_rows)
{
    return norm(q, out, x, y, w, n, eps, n_rows);
}

/* What is prepared is stale once its source has been written. */
static void forget_if_written(backend_queue *q, uint64_t out, uint64_t bytes)
{
    uint64_t end = q->prepared_x + (uint64_t)q->prepared_n * q->prepared_rows * sizeof(float);
    if (out < end && q->prepared_x < out + bytes) q->prepared_rows = 0;
}

/* Prepared rows, many: a packed weight is expanded first, as much as has room at a time. */
static status many(backend_queue *q, float *out, const cuda_matrix *m, const float *bias,
                   uint32_t n_rows)
{
    const backend_device *d = q->device;
    if (m->form == FORM_F16)
        return cuda_result(d,
                           cuda_matmul_many(q->stream, &d->prompt, out, m->n_out, m, q->prepared,
                                            q->exponents, bias, n_rows),
                           "cuda_matmul_many", NULL);
    uint64_t tile_bytes = (uint64_t)cuda_blocks_in(m->n_in) * F16_BLOCK;
    uint32_t tiles_max = (uint32_t)(CUDA_EXPANDED_BYTES / tile_bytes) / 32 * 32;
    uint32_t n_tiles = (m->n_out + TILE_OUT - 1) / TILE_OUT;
    CHECK(tiles_max > 0);
    for (uint32_t t = 0; t < n_tiles; t += tiles_max) {
        uint32_t n = n_tiles - t < tiles_max ? n_tiles - t : tiles_max, o = t * TILE_OUT;
        uint32_t n_out = m->n_out - o < n * TILE_OUT ? m->n_out - o : n * TILE_OUT;
        cuda_matrix part = {q->expanded, FORM_F16, m->n_in, n_out, m->exponent};
        TRY(cuda_result(d, cuda_expand(q->stream, q->expanded, m, t, n), "cuda_expand",
                        NULL));
        TRY(cuda_result(d,
                        cuda_matmul_many(q->stream, &d->prompt, out + o, m->n_out, &part,
                                         q->prepared, q->exponents, bias != NULL ? bias + o : NULL,
                                         n_rows),
                        "cuda_matmul_many", NULL));
    }
    return ST_OK;
}

static status few(backend_queue *q, const cuda_product *p, uint32_t n, uint32_t n_rows)
{
    return cuda_result(q->device,
                       cuda_matmul_rows(q->stream, p, n, q->prepared, q->exponents, n_rows,
                                        q->device->n_sms),
                       "cuda_matmul_rows", NULL);
}

static status prepared_product(backend_queue *q, float *out, const cuda_matrix *m,
                               const float *bias, uint32_t n_rows)
{
    if (n_rows > CUDA_ROWS_MAX) return many(q, out, m, bias, n_rows);
    const cuda_product p = {out, m, bias};
    return few(q, &p, 1, n_rows);
}

static status product(backend_queue *q, float *out, const cuda_matrix *m, uint64_t x,
                      const float *bias, uint32_t n_rows)
{
    const backend_device *d = q->device;
    if (n_rows == 1) {
        const float *row = (const float *)(uintptr_t)x;
        return cuda_result(d, cuda_matmul_one(q->stream, out, m, row, bias, d->n_sms),
                           "cuda_matmul_one", NULL);
    }
    TRY(prepare(q, x, m->n_in, n_rows));
    return prepared_product(q, out, m, bias, n_rows);
}

status cuda_matmul(backend_queue *q, dev_ptr out, const dev_weight *w, dev_ptr x, dev_ptr bias,
                   uint32_t n_rows)
{
    if (n_rows == 0) return ST_OK;
    cuda_matrix m = cuda_matrix_of(w);
    const backend_device *d = q->device;
    TRY_CUDA(d, cudaSetDevice(d->ordinal), NULL);
    uint32_t rows_max = prepared_rows_max(w->n_in);
    for (uint32_t r = 0; r < n_rows; r += rows_max) {
        uint32_t n = n_rows - r < rows_max ? n_rows - r : rows_max;
        float *to = (float *)cuda_address(out) + (uint64_t)r * w->n_out;
        uint64_t from = x.addr + (uint64_t)r * w->n_in * sizeof(float);
        if (m.form == FORM_ROWS) {
            TRY(cuda_result(d,
                            cuda_matmul_f32(q->stream, to, &m, (const float *)(uintptr_t)from,
                                            cuda_address(bias), n),
                            "cuda_matmul_f32", NULL));
        } else {
            TRY(product(q, to, &m, from, cuda_address(bias), n));
        }
        forget_if_written(q, (uintptr_t)to, (uint64_t)n * w->n_out * sizeof(float));
    }
    return ST_OK;
}

/* They share one launch. */
static bool together(const dev_product *p, uint32_t n, uint32_t n_rows)
{
    cuda_matrix first = cuda_matrix_of(p[0].w);
    if (n > CUDA_ROWS_PARTS || n_rows < 2 || n_rows > CUDA_ROWS_MAX) return false;
    for (uint32_t i = 0; i < n; i++) {
        cuda_matrix m = cuda_matrix_of(p[i].w);
        if (m.form == FORM_ROWS || m.form != first.form || m.n_in != first.n_in) return false;
    }
    return true;
}

status cuda_matmuls(backend_queue *q, const dev_product *p, uint32_t n, dev_ptr x, uint32_t n_rows)
{
    cuda_matrix m[CUDA_ROWS_PARTS];
    cuda_product all[CUDA_ROWS_PARTS];
    for (uint32_t i = 0, run; i < n; i += run) { /* neighbours of one form */
        run = 1;
        while (i + run < n && together(p + i, run + 1, n_rows))
            run++;
        if (run == 1) {
            TRY(cuda_matmul(q, p[i].out, p[i].w, x, p[i].bias, n_rows));
            continue;
        }
        for (uint32_t k = 0; k < run; k++) {
            m[k] = cuda_matrix_of(p[i + k].w);
            all[k] = (cuda_product){cuda_address(p[i + k].out), &m[k], cuda_address(p[i + k].bias)};
        }
        TRY_CUDA(q->device, cudaSetDevice(q->device->ordinal), NULL);
        TRY(prepare(q, x.addr, m[0].n_in, n_rows));
        TRY(few(q, all, run, n_rows));
        for (uint32_t k = 0; k < run; k++)
            forget_if_written(q, p[i + k].out.addr, (uint64_t)n_rows * m[k].n_out * sizeof(float));
    }
    return ST_OK;
}

/* The product of the activations is made where the next product reads it. */
status cuda_ffn(backend_queue *q, dev_ptr out, const dev_weight *gate, const dev_weight *up,
                const dev_weight *down, dev_ptr x, dev_ptr a, dev_ptr b, bool gelu, uint32_t n_rows)
{
    const dev_ptr none = {0};
    const dev_product both[2] = {{a, gate, none}, {b, up, none}};
    cuda_matrix m = cuda_matrix_of(down);
    uint32_t n = down->n_in, rows_max = prepared_rows_max(n);
    TRY(cuda_matmuls(q, both, 2, x, n_rows));
    if (n_rows == 1 || m.form == FORM_ROWS) {
        TRY(gelu ? cuda_gelu_mul(q, a, a, b, (uint64_t)n_rows * n)
                 : cuda_silu_mul(q, a, a, b, (uint64_t)n_rows * n));
        return cuda_matmul(q, out, down, a, none, n_rows);
    }
    for (uint32_t r = 0; r < n_rows; r += rows_max) {
        uint32_t rows = n_rows - r < rows_max ? n_rows - r : rows_max;
        uint64_t at = (uint64_t)r * n;
        LAUNCH(q, cuda_prepare_glu, q->prepared, q->exponents, (float *)cuda_address(a) + at,
               (float *)cuda_address(b) + at, gelu, n, rows);
        float *to = (float *)cuda_address(out) + (uint64_t)r * down->n_out;
        TRY(prepared_product(q, to, &m, NULL, rows));
    }
    return ST_OK;
}

/* --- the rest ------------------------------------------------------------------------------- */

status cuda_rope_angles(backend_queue *q, dev_ptr cos, dev_ptr sin, const rope_waves *w,
                        dev_ptr position, uint32_t n_rows)
{
    if (n_rows == 0) return ST_OK;
    LAUNCH(q, cuda_launch_rope_angles, cuda_address(cos), cuda_address(sin),
           cuda_address(w->frequency), w->magnitude, w->n_pairs, cuda_address(position), n_rows);
    return ST_OK;
}

status cuda_rope(backend_queue *q, dev_ptr x, const rope_args *a, uint32_t n_heads, uint32_t n_head,
                 uint32_t n_rows)
{
    CHECK(a->n_rot % 2 == 0 && a->n_rot <= n_head);
    if (n_rows == 0) return ST_OK;
    LAUNCH(q, cuda_launch_rope, cuda_address(x), cuda_address(a->cos), cuda_address(a->sin),
           a->n_rot, a->neox, n_heads, n_head, n_rows);
    return ST_OK;
}

status cuda_silu_mul(backend_queue *q, dev_ptr out, dev_ptr gate, dev_ptr up, uint64_t n)
{
    if (n == 0) return ST_OK;
    LAUNCH(q, cuda_launch_silu_mul, cuda_address(out), cuda_address(gate), cuda_address(up), n);
    return ST_OK;
}

status cuda_gelu_mul(backend_queue *q, dev_ptr out, dev_ptr gate, dev_ptr up, uint64_t n)
{
    if (n == 0) return ST_OK;
    LAUNCH(q, cuda_launch_gelu_mul, cuda_address(out), cuda_address(gate), cuda_address(up), n);
    return ST_OK;
}

status cuda_add(backend_queue *q, dev_ptr x, dev_ptr y, uint64_t n)
{
    if (n == 0) return ST_OK;
    LAUNCH(q, cuda_launch_add, cuda_address(x), cuda_address(y), n);
    return ST_OK;
}

status cuda_check_finite(backend_queue *q, dev_ptr flags, dev_ptr x, uint32_t n, uint32_t n_rows)
{
    if (n_rows == 0) return ST_OK;
    LAUNCH(q, cuda_launch_check_finite, cuda_address(flags), cuda_address(x), n, n_rows);
    return ST_OK;
}

status cuda_sample(backend_queue *q, dev_ptr out, dev_ptr logits, const sample_args *a,
                   uint32_t n_rows)
{
    CHECK(a->n_vocab > 0 && a->n_vocab <= SAMPLER_VOCAB_MAX);
    uint32_t rows_max = (uint32_t)(CUDA_PREPARED_BYTES / cuda_sample_bytes(a->n_vocab));
    for (uint32_t r = 0; r < n_rows; r += rows_max) {
        cuda_sampling part = {.out = (sample_result *)cuda_address(out) + r,
                              .rows = a->rows + r,
                              .logits = (const float *)cuda_address(logits) + (uint64_t)r * a->n_vocab,
                              .flags = cuda_address(a->flags),
                              .tokens = cuda_address(a->tokens),
                              .live = cuda_address(a->live),
                              .scratch = q->prepared,
                              .n_vocab = a->n_vocab};
        LAUNCH(q, cuda_launch_sample, &part, n_rows - r < rows_max ? n_rows - r : rows_max);
    }
    return ST_OK;
}

/* --- K and V -------------------------------------------------------------------------------- */

static cuda_kv kv_of(const kv_args *kv, const row_args *rows)
{
    return (cuda_kv){.k = cuda_address(kv->k),
                     .v = cuda_address(kv->v),
                     .type = kv->type,
                     .n_kv_heads = kv->n_kv_heads,
                     .n_head = kv->n_head,
                     .position = cuda_address(rows->position),
                     .table = cuda_address(rows->table),
                     .tables = cuda_address(rows->tables),
                     .live = cuda_address(rows->live)};
}

status cuda_kv_write(backend_queue *q, const kv_args *kv, dev_ptr k, dev_ptr v,
                     const row_args *rows, uint32_t n_rows)
{
    if (n_rows == 0) return ST_OK;
    cuda_kv a = kv_of(kv, rows);
    const cuda_turn none = {0};
    LAUNCH(q, cuda_launch_kv_write, &a, cuda_address(k), cuda_address(v), &none, n_rows);
    return ST_OK;
}

/* Cells' results have room. */
static bool cells_fit(const kv_args *kv, uint32_t n_cells, uint32_t n_heads, uint32_t n_rows)
{
    return cuda_partial_floats(n_rows, n_heads, kv->n_head, n_cells) * sizeof(float) <=
           CUDA_PARTIAL_BYTES;
}

/* A block per cell where whole rows would leave the device idle and the cells' results have room.
 */
static uint32_t cells_of(const backend_queue *q, const kv_args *kv, uint32_t n_cells,
                         uint32_t n_heads, uint32_t n_rows, bool f16)
{
    if (n_cells < 2) return 0;
    if (cuda_attention_blocks(n_rows, n_heads, kv->n_kv_heads, f16) >= 2 * q->device->n_sms)
        return 0;
    return cells_fit(kv, n_cells, n_heads, n_rows) ? n_cells : 0;
}

static bool is_f16(const kv_args *kv)
{
    return kv->type == DT_F16 && kv->n_head % 8 == 0 && kv->n_head <= 256;
}

/* Many rows, and few tables among them. */
static bool is_prompt(const kv_args *kv, const row_args *rows, uint32_t n_rows)
{
    return is_f16(kv) && cuda_attention_prompt_takes(kv->n_head) && rows->n_runs > 0 &&
           n_rows / PROMPT_RUN >= rows->n_runs;
}

static uint32_t n_cells_of(const row_args *rows)
{
    return (uint32_t)(((uint64_t)rows->n_positions + ATTN_CELL - 1) / ATTN_CELL);
}

/* Few rows, which have a block for each cell. */
static bool is_few(const kv_args *kv, const row_args *rows, uint32_t n_heads, uint32_t n_rows)
{
    return is_f16(kv) && cuda_attention_rows_takes(kv->n_head) && rows->n_positions > 0 &&
           n_rows <= CUDA_ROWS_MAX && cells_fit(kv, n_cells_of(rows), n_heads, n_rows);
}

status cuda_attention(backend_queue *q, dev_ptr out, dev_ptr x, const kv_args *kv,
                      const row_args *rows, uint32_t n_heads, float scale, uint32_t window,
                      uint32_t n_rows)
{
    CHECK(kv->n_head <= ATTENTION_HEAD_MAX && n_heads % kv->n_kv_heads == 0);
    if (n_rows == 0) return ST_OK;
    cuda_kv a = kv_of(kv, rows);
    bool f16 = is_f16(kv);
    if (is_prompt(kv, rows, n_rows)) {
        const cuda_turn none = {0};
        LAUNCH(q, cuda_launch_attention_prompt, &q->device->prompt, cuda_address(out),
               cuda_address(x), &a, &none, n_heads, scale, window, n_rows);
        return ST_OK;
    }
    uint32_t n_cells = n_cells_of(rows);
    if (is_few(kv, rows, n_heads, n_rows)) {
        const cuda_turn none = {0};
        LAUNCH(q, cuda_launch_attention_rows, cuda_address(out), cuda_address(x), &a, &none, n_heads,
               scale, window, n_rows, q->partial, n_cells);
        return ST_OK;
    }
    n_cells = cells_of(q, kv, n_cells, n_heads, n_rows, f16);
    if (f16) {
        LAUNCH(q, cuda_launch_attention_f16, cuda_address(out), cuda_address(x), &a, n_heads, scale,
               window, n_rows, q->partial, n_cells);
    } else {
        LAUNCH(q, cuda_launch_attention, cuda_address(out), cuda_address(x), &a, n_heads, scale,
               window, n_rows, q->partial, n_cells);
    }
    return ST_OK;
}

/* Queries and keys of a prompt or of few rows are turned where they are read. */
status cuda_turn_attention(backend_queue *q, dev_ptr out, dev_ptr x, dev_ptr k, dev_ptr v,
                           const rope_args *turn, const kv_args *kv, const row_args *rows,
                           uint32_t n_heads, float scale, uint32_t window, uint32_t n_rows)
{
    CHECK(kv->n_head <= ATTENTION_HEAD_MAX && n_heads % kv->n_kv_heads == 0);
    CHECK(turn->n_rot % 2 == 0 && turn->n_rot <= kv->n_head);
    cuda_kv a = kv_of(kv, rows);
    cuda_turn by = {cuda_address(turn->cos), cuda_address(turn->sin), turn->n_rot, turn->neox};
    bool prompt = is_prompt(kv, rows, n_rows), few_rows = is_few(kv, rows, n_heads, n_rows);
    if (!(prompt || few_rows) ||
        !cuda_turns(&by, &a, cuda_address(x), cuda_address(k), cuda_address(v))) {
        TRY(cuda_rope(q, x, turn, n_heads, kv->n_head, n_rows));
        TRY(cuda_rope(q, k, turn, kv->n_kv_heads, kv->n_head, n_rows));
        TRY(cuda_kv_write(q, kv, k, v, rows, n_rows));
        return cuda_attention(q, out, x, kv, rows, n_heads, scale, window, n_rows);
    }
    LAUNCH(q, cuda_launch_kv_write, &a, cuda_address(k), cuda_address(v), &by, n_rows);
    if (!prompt) {
        LAUNCH(q, cuda_launch_attention_rows, cuda_address(out), cuda_address(x), &a, &by, n_heads,
               scale, window, n_rows, q->partial, n_cells_of(rows));
        return ST_OK;
    }
    LAUNCH(q, cuda_launch_attention_prompt, &q->device->prompt, cuda_address(out), cuda_address(x),
           &a, &by, n_heads, scale, window, n_rows);
    return ST_OK;
}

static uint64_t head_bytes(const kv_args *kv)
{
    return dtype_bytes(kv->type, (uint64_t)KV_BLOCK * kv->n_head);
}

status cuda_kv_copy_block(backend_queue *q, const kv_args *kv, uint32_t to, uint32_t from,
                          uint32_t n_positions)
{
    CHECK(n_positions <= KV_BLOCK);
    if (to == from || n_positions == 0) return ST_OK;
    uint64_t pitch = head_bytes(kv), block = pitch * kv->n_kv_heads;
    uint64_t width = dtype_bytes(kv->type, (uint64_t)n_positions * kv->n_head);
    TRY(cuda_enter(q));
    for (int i = 0; i < 2; i++) {
        char *pool = cuda_address(i == 0 ? kv->k : kv->v);
        TRY_CUDA(q->device,
                 cudaMemcpy2DAsync(pool + to * block, pitch, pool + from * block, pitch, width,
                                   kv->n_kv_heads, cudaMemcpyDeviceToDevice, q->stream),
                 NULL);
    }
    return ST_OK;
}

status cuda_kv_wipe_block(backend_queue *q, const kv_args *kv, uint32_t block)
{
    uint64_t bytes = head_bytes(kv) * kv->n_kv_heads;
    TRY(cuda_enter(q));
    TRY_CUDA(q->device,
             cudaMemsetAsync((char *)cuda_address(kv->k) + block * bytes, 0, bytes, q->stream),
             NULL);
    TRY_CUDA(q->device,
             cudaMemsetAsync((char *)cuda_address(kv->v) + block * bytes, 0, bytes, q->stream),
             NULL);
    return ST_OK;
}
