/* The ops without KV: each cuts its outputs between the threads and calls the ISA table. */
#include "kernels/cpu/device.h"

#include "common/fmath.h"

#include <string.h>

/* Values per cut of an element-wise op: whole cache lines. */
#define VALUES_UNIT 64u

typedef struct {
    const backend_device *d;
    float *out;
    const dev_weight *w;
    const uint32_t *tokens;
    const float *x, *y;
    const void *extra; /* norm weight or bias */
    const fixed_rows *fixed; /* NULL: each thread makes them for itself */
    uint8_t *flags;
    const rope_args *rope;
    float value;       /* scale or eps */
    uint32_t n, n_heads, n_rows;
    uint64_t n_values;
} op;

static void run(const op *o, pool_fn fn, uint64_t work)
{
    pool_run(o->d->threads, fn, (void *)o, device_n_parts(o->d, work));
}

static void embed_part(void *arg, uint32_t part_i, uint32_t n_parts)
{
    const op *o = arg;
    uint64_t begin, end, n = o->w->n_in, row_bytes = dtype_bytes(o->w->type, n);
    pool_range(o->n_rows, 1, part_i, n_parts, &begin, &end);
    const char *table = host_of(o->w->data);
    for (uint64_t r = begin; r < end; r++) {
        float *out = o->out + r * n;
        CHECK(o->tokens[r] < o->w->n_out);
        o->d->isa->to_f32(out, table + o->tokens[r] * row_bytes, o->w->type, n);
        if (o->value != 1.0f) {
            for (uint64_t i = 0; i < n; i++) out[i] *= o->value;
        }
    }
}

status cpu_embed(backend_queue *q, dev_ptr out, const dev_weight *table, dev_ptr tokens,
                 float scale, uint32_t n_rows)
{
    op o = {.d = q->device, .out = host_of(out), .w = table, .tokens = host_of(tokens),
            .value = scale, .n_rows = n_rows};
    run(&o, embed_part, (uint64_t)n_rows * table->n_in / 8);
    return ST_OK;
}

static void rms_norm_part(void *arg, uint32_t part_i, uint32_t n_parts)
{
    const op *o = arg;
    uint64_t begin, end;
    pool_range(o->n_rows, 1, part_i, n_parts, &begin, &end);
    for (uint64_t r = begin; r < end; r++)
        o->d->isa->rms_norm_row(o->out + r * o->n, o->x + r * o->n, o->extra, o->n, o->value);
}

status cpu_rms_norm(backend_queue *q, dev_ptr out, dev_ptr x, dev_ptr w, uint32_t n, float eps,
                    uint32_t n_rows)
{
    op o = {.d = q->device, .out = host_of(out), .x = host_of(x), .extra = host_of(w), .n = n,
            .value = eps, .n_rows = n_rows};
    run(&o, rms_norm_part, (uint64_t)n_rows * n / 8);
    return ST_OK;
}

static void matmul_part(void *arg, uint32_t part_i, uint32_t n_parts)
{
    const op *o = arg;
    uint64_t begin, end;
    pool_range(o->w->n_out, 16, part_i, n_parts, &begin, &end);
    o->d->isa->matmul(o->out, host_of(o->w->data), o->w->type, o->w->n_in, o->w->n_out, o->x,
                      o->extra, o->n_rows, (uint32_t)begin, (uint32_t)end,
                      device_scratch(o->d, part_i));
}

/* Rows of a product whose threads make them for themselves: less work than to wait for another. */
#define OWN_VALUES_MAX 16384u
#define OWN_BYTES (CPU_SCRATCH_FLOATS * 4ull - CPU_FIXED_SCRATCH)

static void fixed_part(void *arg, uint32_t part_i, uint32_t n_parts)
{
    const op *o = arg;
    uint64_t begin, end;
    pool_range(o->n_rows, 1, part_i, n_parts, &begin, &end);
    o->d->isa->fixed_rows(o->fixed, o->x, o->w->type, (uint32_t)begin, (uint32_t)end);
}

static void matmul_fixed_part(void *arg, uint32_t part_i, uint32_t n_parts)
{
    const op *o = arg;
    const dev_weight *w = o->w;
    float *scratch = device_scratch(o->d, part_i);
    uint64_t begin, end;
    pool_range(w->n_out, 16, part_i, n_parts, &begin, &end);
    fixed_rows own = {(char *)scratch + CPU_FIXED_SCRATCH, w->n_in, o->n_rows};
    if (o->fixed == NULL) o->d->isa->fixed_rows(&own, o->x, w->type, 0, o->n_rows);
    o->d->isa->matmul_fixed(o->out, host_of(w->data), w->type, w->n_out,
                            o->fixed == NULL ? &own : o->fixed, o->extra, (uint32_t)begin,
                            (uint32_t)end, scratch);
}

/* As many rows at a time as their fixed points have room for. */
static void matmul_fixed(const op *all)
{
    op o = *all;
    const uint32_t n_in = o.w->n_in, n_all = o.n_rows;
    const uint64_t work = (uint64_t)n_in * o.w->n_out / 64;
    if ((uint64_t)n_all * n_in <= OWN_VALUES_MAX &&
        fixed_bytes(o.w->type, n_in, n_all) <= OWN_BYTES) {
        run(&o, matmul_fixed_part, work * n_all);
        return;
    }
    const uint32_t unit = fixed_rows_fit(o.w->type, n_in, n_all, FIXED_BYTES);
    CHECK(unit > 0);
    for (uint32_t r = 0; r < n_all; r += unit) {
        fixed_rows some = {o.d->fixed, n_in, n_all - r < unit ? n_all - r : unit};
        o.fixed = &some;
        o.n_rows = some.n_rows;
        o.x = all->x + (uint64_t)r * n_in;
        o.out = all->out + (uint64_t)r * o.w->n_out;
        run(&o, fixed_part, (uint64_t)o.n_rows * n_in / 2);
        run(&o, matmul_fixed_part, work * o.n_rows);
    }
}

status cpu_matmul(backend_queue *q, dev_ptr out, const dev_weight *w, dev_ptr x, dev_ptr bias,
                  uint32_t n_rows)
{
    if (n_rows == 0) return ST_OK;
    op o = {.d = q->device, .out = host_of(out), .w = w, .x = host_of(x), .extra = host_of(bias),
            .n_rows = n_rows};
    if (quant_is(w->type))
        matmul_fixed(&o);
    else
        run(&o, matmul_part, (uint64_t)n_rows * w->n_in * w->n_out / 16);
    return ST_OK;
}

typedef struct {
    const rope_waves *waves;
    const uint32_t *position;
    float *cos, *sin;
    uint32_t n_rows;
} angles;

static void angles_part(void *arg, uint32_t part_i, uint32_t n_parts)
{
    const angles *a = arg;
    const double *frequency = host_of(a->waves->frequency), by = a->waves->magnitude;
    uint64_t begin, end, n_pairs = a->waves->n_pairs;
    pool_range(a->n_rows * n_pairs, VALUES_UNIT, part_i, n_parts, &begin, &end);
    for (uint64_t i = begin; i < end; i++) {
        double s, c;
        fm_sincos((double)a->position[i / n_pairs] * frequency[i % n_pairs], &s, &c);
        a->cos[i] = (float)(c * by);
        a->sin[i] = (float)(s * by);
    }
}

status cpu_rope_angles(backend_queue *q, dev_ptr cos, dev_ptr sin, const rope_waves *w,
                       dev_ptr position, uint32_t n_rows)
{
    const backend_device *d = q->device;
    angles a = {w, host_of(position), host_of(cos), host_of(sin), n_rows};
    pool_run(d->threads, angles_part, &a, device_n_parts(d, (uint64_t)n_rows * w->n_pairs * 32));
    return ST_OK;
}

static void rope_part(void *arg, uint32_t part_i, uint32_t n_parts)
{
    const op *o = arg;
    const rope_args *a = o->rope;
    const float *cos = host_of(a->cos), *sin = host_of(a->sin);
    uint64_t begin, end, n_pairs = a->n_rot / 2, row = (uint64_t)o->n_heads * o->n;
    pool_range(o->n_rows, 1, part_i, n_parts, &begin, &end);
    for (uint64_t r = begin; r < end; r++)
        o->d->isa->rope_row(o->out + r * row, cos + r * n_pairs, sin + r * n_pairs, a->n_rot,
                            a->neox, o->n_heads, o->n);
}

status cpu_rope(backend_queue *q, dev_ptr x, const rope_args *a, uint32_t n_heads, uint32_t n_head,
                uint32_t n_rows)
{
    CHECK(a->n_rot % 2 == 0 && a->n_rot <= n_head);
    op o = {.d = q->device, .out = host_of(x), .rope = a, .n_heads = n_heads, .n = n_head,
            .n_rows = n_rows};
    run(&o, rope_part, (uint64_t)n_rows * n_heads * n_head / 2);
    return ST_OK;
}

static void silu_mul_part(void *arg, uint32_t part_i, uint32_t n_parts)
{
    const op *o = arg;
    uint64_t begin, end;
    pool_range(o->n_values, VALUES_UNIT, part_i, n_parts, &begin, &end);
    o->d->isa->silu_mul(o->out + begin, o->x + begin, o->y + begin, end - begin);
}

status cpu_silu_mul(backend_queue *q, dev_ptr out, dev_ptr gate, dev_ptr up, uint64_t n)
{
    op o = {.d = q->device, .out = host_of(out), .x = host_of(gate), .y = host_of(up),
            .n_values = n};
    if (n > 0) run(&o, silu_mul_part, n);
    return ST_OK;
}

static void gelu_mul_part(void *arg, uint32_t part_i, uint32_t n_parts)
{
    const op *o = arg;
    uint64_t begin, end;
    pool_range(o->n_values, VALUES_UNIT, part_i, n_parts, &begin, &end);
    o->d->isa->gelu_mul(o->out + begin, o->x + begin, o->y + begin, end - begin);
}

status cpu_gelu_mul(backend_queue *q, dev_ptr out, dev_ptr gate, dev_ptr up, uint64_t n)
{
    op o = {.d = q->device, .out = host_of(out), .x = host_of(gate), .y = host_of(up),
            .n_values = n};
    if (n > 0) run(&o, gelu_mul_part, n);
    return ST_OK;
}

static void add_part(void *arg, uint32_t part_i, uint32_t n_parts)
{
    const op *o = arg;
    uint64_t begin, end;
    pool_range(o->n_values, VALUES_UNIT, part_i, n_parts, &begin, &end);
    o->d->isa->add(o->out + begin, o->y + begin, end - begin);
}

status cpu_add(backend_queue *q, dev_ptr x, dev_ptr y, uint64_t n)
{
    op o = {.d = q->device, .out = host_of(x), .y = host_of(y), .n_values = n};
    if (n > 0) run(&o, add_part, n / 8);
    return ST_OK;
}

static void check_finite_part(void *arg, uint32_t part_i, uint32_t n_parts)
{
    const op *o = arg;
    uint64_t begin, end;
    pool_range(o->n_rows, 1, part_i, n_parts, &begin, &end);
    for (uint64_t r = begin; r < end; r++)
        o->flags[r] = o->d->isa->all_finite(o->x + r * o->n, o->n) ? 0 : 1;
}

status cpu_check_finite(backend_queue *q, dev_ptr flags, dev_ptr x, uint32_t n, uint32_t n_rows)
{
    op o = {.d = q->device, .flags = host_of(flags), .x = host_of(x), .n = n, .n_rows = n_rows};
    run(&o, check_finite_part, (uint64_t)n_rows * n / 16);
    return ST_OK;
}

/* What the row's next walk begins with. */
static void feed(const sample_args *a, const sample_row *row, const sample_result *r)
{
    bool goes_on = r->status == ST_OK && row->ends == 0;
    for (uint32_t i = 0; i < row->n_stops; i++)
        goes_on = goes_on && row->stop[i] != r->token;
    uint32_t *tokens = host_of(a->tokens);
    uint8_t *live = host_of(a->live);
    if (tokens != NULL) tokens[row->row_i] = r->status == ST_OK ? r->token : 0;
    if (live != NULL && !goes_on) live[row->row_i] = 0;
}

status cpu_sample(backend_queue *q, dev_ptr out, dev_ptr logits, const sample_args *a,
                  uint32_t n_rows)
{
    (void)q;
    const uint8_t *flags = host_of(a->flags);
    sample_result *results = host_of(out);
    for (uint32_t r = 0; r < n_rows; r++) {
        const sample_row *row = &a->rows[r];
        const float *l = (const float *)host_of(logits) + (uint64_t)r * a->n_vocab;
        sample_result x = {.poisoned = flags[row->row_i]};
        x.status = (uint32_t)sampler_draw(&x.token, l, a->n_vocab, &row->params, row->history,
                                          row->n_history, row->position, host_of(a->scratch));
        feed(a, row, &x);
        results[r] = x;
    }
    return ST_OK;
}
