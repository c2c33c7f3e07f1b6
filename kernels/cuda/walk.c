/* The walk of one row (walk.h): its products and pools described to the kernel, once per range. */
#include "kernels/cuda/walk.h"

#include "kernels/cuda/device.h"

#include <stdlib.h>

enum { PRODUCTS, WEIGHTS, POOLS, PARTIAL, ARRIVED, MEET, SUMS, N_MEMORY };
_Static_assert(WALK_VIEWS == WALK_KINDS, "a view for each kind of layer");

struct backend_walk {
    backend_device *device;
    walk_args args;
    void *memory[N_MEMORY];
    bool has_head, has_post;
};

static bool takes_weight(const dev_weight *w)
{
    return w->type != DT_F32 && w->n_in % BLOCK_IN == 0 && w->n_in <= WALK_IN_MAX &&
           w->n_out <= WALK_TILES_MAX * TILE_OUT;
}

/* The largest row of any product. */
static uint32_t x_bytes_of(const walk_desc *w)
{
    const uint32_t n_in[] = {w->n_embd, w->n_heads * w->layer[0].kv.n_head, w->n_ff};
    uint32_t most = n_in[0];
    for (int i = 1; i < 3; i++)
        if (n_in[i] > most) most = n_in[i];
    return cuda_walk_x_bytes(most, w->layer[0].kv.n_head);
}

static uint32_t n_products_of(const walk_desc *w)
{
    return 4 * w->n_layers + (w->output.data.addr != 0);
}

/* Norms follow blocks: in every layer, or in none. */
static bool has_post(const walk_desc *w)
{
    return w->layer[0].attn_post_norm.addr != 0;
}

static bool takes_layer(const walk_desc *w, const walk_layer *l)
{
    const dev_weight *all[] = {&l->attn_q,   &l->attn_k, &l->attn_v,  &l->attn_output,
                               &l->ffn_gate, &l->ffn_up, &l->ffn_down};
    for (size_t j = 0; j < sizeof all / sizeof *all; j++)
        if (!takes_weight(all[j])) return false;
    return (l->attn_post_norm.addr != 0) == has_post(w) && (l->ffn_post_norm.addr != 0) == has_post(w);
}

static bool takes(const walk_desc *w)
{
    const kv_args *kv = &w->layer[0].kv;
    bool head = w->output.data.addr != 0;
    if (kv->type != DT_F16 || kv->n_head % 16 != 0 || kv->n_head > WALK_HEAD_MAX) return false;
    if (w->n_embd > (has_post(w) ? WALK_POST_MAX : WALK_NORM_MAX)) return false;
    if (head && !takes_weight(&w->output)) return false;
    if (cuda_walk_rings_bytes(n_products_of(w), x_bytes_of(w)) < WALK_RINGS_MIN) return false;
    for (uint32_t i = 0; i < w->n_layers; i++)
        if (!takes_layer(w, &w->layer[i])) return false;
    return true;
}

/* What the kernel for llama's layers lacks. */
static bool needs_more(const walk_desc *w)
{
    bool more = has_post(w) || w->n_kinds > 1 || w->kind[0].window != 0;
    for (uint32_t i = 0; i < w->n_layers; i++)
        more |= w->layer[i].attn_q_norm.addr != 0 || w->layer[i].attn_k_norm.addr != 0;
    return more;
}

/* A product on its way to the device. */
typedef struct {
    walk_product *p;
    walk_weights *w;
    uint32_t n_parts, n_tiles;
} draft;

static draft begin_product(walk_product *p, walk_weights *w, walk_end end, dev_ptr x, dev_ptr norm)
{
    *p = (walk_product){.end = end,
                        .x = cuda_address(x),
                        .norm = cuda_address(norm),
                        .finite_i = WALK_NO_FLAG};
    *w = (walk_weights){.paired = end == WALK_SILU || end == WALK_GELU ? WALK_IN_TURN : WALK_SINGLE};
    return (draft){p, w, 0, 0};
}

static void add_part(draft *d, const dev_weight *weight, dev_ptr bias, dev_ptr out)
{
    cuda_matrix m = cuda_matrix_of(weight);
    uint32_t i = d->n_parts++, n_segments = cuda_segments(m.n_in);
    if (!d->w->paired || i == 0) d->n_tiles += (m.n_out + TILE_OUT - 1) / TILE_OUT;
    d->p->part[i].bias = cuda_address(bias);
    d->p->part[i].out = cuda_address(out);
    d->p->part[i].n_out = m.n_out;
    d->p->part[i].exponent = m.exponent;
    d->p->n_in = m.n_in;
    d->w->data[i] = m.data;
    d->w->form[i] = (uint8_t)m.form;
    if (d->w->paired && i == 1 && d->w->form[0] == d->w->form[1]) d->w->paired = WALK_SIDE_BY_SIDE;
    d->w->n_blocks = (uint16_t)cuda_blocks_in(m.n_in);
    while (1u << d->w->segments_log2 < n_segments)
        d->w->segments_log2++;
    for (uint32_t k = i; k < WALK_PARTS; k++)
        d->w->tile_end[k] = (uint16_t)d->n_tiles;
}

/* Where norms follow blocks: the block's output, and the second place of the hidden state. */
typedef struct {
    dev_ptr y, hidden;
} walk_sums;

/* The block before the product has a norm after it. */
static void add_sum(walk_product *p, dev_ptr y, dev_ptr post, dev_ptr sum)
{
    p->y = cuda_address(y);
    p->post = cuda_address(post);
    p->sum = cuda_address(sum);
}

static void describe_layer(walk_product p[4], walk_weights weights[4], const walk_desc *w,
                           const walk_sums *sums, uint32_t layer_i)
{
    const walk_layer *l = &w->layer[layer_i];
    const dev_ptr none = {0}, out = has_post(w) ? sums->y : w->hidden;
    const dev_ptr between = has_post(w) && layer_i > 0 ? sums->hidden : w->hidden;
    const walk_end end = has_post(w) ? WALK_STORE : WALK_ADD;
    draft d = begin_product(&p[0], &weights[0], WALK_STORE, between, l->attn_norm);
    if (layer_i > 0) add_sum(&p[0], out, l[-1].ffn_post_norm, w->hidden);
    add_part(&d, &l->attn_q, l->attn_q_bias, w->q);
    add_part(&d, &l->attn_k, l->attn_k_bias, w->k);
    add_part(&d, &l->attn_v, l->attn_v_bias, w->v);
    d = begin_product(&p[1], &weights[1], end, w->attn, none);
    add_part(&d, &l->attn_output, none, out);
    d = begin_product(&p[2], &weights[2], w->gelu ? WALK_GELU : WALK_SILU, w->hidden, l->ffn_norm);
    add_sum(&p[2], out, l->attn_post_norm, sums->hidden);
    add_part(&d, &l->ffn_gate, none, w->gate);
    add_part(&d, &l->ffn_up, none, w->gate);
    d = begin_product(&p[3], &weights[3], end, w->gate, none);
    add_part(&d, &l->ffn_down, none, out);
    if (layer_i + 1 == w->n_layers && !has_post(w)) p[3].finite_i = 0;
}

/* What follows the last layer: the head, the last sum, or both. */
static void describe_end(walk_product *p, walk_weights *weights, const walk_desc *w,
                         const walk_sums *sums)
{
    bool head = w->output.data.addr != 0;
    draft d = begin_product(p, weights, WALK_STORE, has_post(w) ? sums->hidden : w->hidden,
                            head ? w->output_norm : (dev_ptr){0});
    if (has_post(w)) add_sum(p, sums->y, w->layer[w->n_layers - 1].ffn_post_norm, w->hidden);
    p->n_in = w->n_embd;
    if (!head) return;
    add_part(&d, &w->output, (dev_ptr){0}, w->logits);
    p->finite_i = 1;
}

static status put(const backend_device *d, void *to, const void *from, uint64_t bytes, errmsg *e)
{
    TRY_CUDA(d, cudaMemcpy(to, from, bytes, cudaMemcpyHostToDevice), e);
    return ST_OK;
}

/* The descriptions to the device, from host memory of their size. */
static status describe(backend_walk *k, const walk_desc *w, walk_product *products,
                       walk_weights *weights, walk_pools *pools, errmsg *e)
{
    uint32_t n = 4 * w->n_layers;
    uint64_t row = (uint64_t)(uintptr_t)k->memory[SUMS];
    const walk_sums sums = {{row}, {row + w->n_embd * sizeof(float)}};
    for (uint32_t i = 0; i < w->n_layers; i++) {
        const walk_layer *l = &w->layer[i];
        describe_layer(products + 4 * i, weights + 4 * i, w, &sums, i);
        pools[i] = (walk_pools){.k = cuda_address(l->kv.k),
                                .v = cuda_address(l->kv.v),
                                .q_norm = cuda_address(l->attn_q_norm),
                                .k_norm = cuda_address(l->attn_k_norm),
                                .view_i = l->kind_i};
    }
    describe_end(products + n, weights + n, w, &sums);
    TRY(put(k->device, k->memory[PRODUCTS], products, (n + 1) * sizeof *products, e));
    TRY(put(k->device, k->memory[WEIGHTS], weights, (n + 1) * sizeof *weights, e));
    return put(k->device, k->memory[POOLS], pools, w->n_layers * sizeof *pools, e);
}

static walk_view view_of(const walk_kind *kind)
{
    return (walk_view){.cos = cuda_address(kind->rope.cos),
                       .sin = cuda_address(kind->rope.sin),
                       .table = cuda_address(kind->rows.table),
                       .n_rot = kind->rope.n_rot,
                       .neox = kind->rope.neox,
                       .window = kind->window};
}

static void fill_args(backend_walk *k, const walk_desc *w)
{
    const kv_args *kv = &w->layer[0].kv;
    const row_args *rows = &w->kind[0].rows;
    walk_args *a = &k->args;
    a->n_layers = w->n_layers;
    a->more = needs_more(w);
    a->x_bytes = x_bytes_of(w);
    a->n_heads = w->n_heads;
    a->n_kv_heads = kv->n_kv_heads;
    a->n_head = kv->n_head;
    a->n_cells_max = (w->n_ctx + ATTN_CELL - 1) / ATTN_CELL;
    a->rms_eps = w->rms_eps;
    a->attn_scale = w->attn_scale;
    a->q = cuda_address(w->q);
    a->k = cuda_address(w->k);
    a->v = cuda_address(w->v);
    for (uint32_t i = 0; i < WALK_VIEWS; i++) /* one kind: twice the same */
        a->view[i] = view_of(&w->kind[i < w->n_kinds ? i : 0]);
    a->attn = cuda_address(w->attn);
    a->position = cuda_address(rows->position);
    a->tables = cuda_address(rows->tables);
    a->live = cuda_address(rows->live);
    a->finite = cuda_address(w->finite);
    a->product = k->memory[PRODUCTS];
    a->weights = k->memory[WEIGHTS];
    a->pools = k->memory[POOLS];
    a->partial = k->memory[PARTIAL];
    a->arrived = k->memory[ARRIVED];
    a->meet = k->memory[MEET];
}

static status open_all(backend_walk *k, const walk_desc *w, errmsg *e)
{
    const backend_device *d = k->device;
    uint64_t n = 4 * w->n_layers + 1;
    uint32_t n_cells = (w->n_ctx + ATTN_CELL - 1) / ATTN_CELL;
    const uint64_t bytes[N_MEMORY] = {
        [PRODUCTS] = n * sizeof(walk_product),
        [WEIGHTS] = n * sizeof(walk_weights),
        [POOLS] = w->n_layers * sizeof(walk_pools),
        [PARTIAL] = 4 * cuda_partial_floats(1, w->n_heads, w->layer[0].kv.n_head, n_cells),
        [ARRIVED] = w->n_heads * sizeof(uint32_t),
        [MEET] = 2 * sizeof(uint32_t),
        [SUMS] = 2 * w->n_embd * sizeof(float)};
    TRY_CUDA(d, cudaSetDevice(d->ordinal), e);
    for (int i = 0; i < N_MEMORY; i++) {
        dev_ptr p;
        TRY(backend_cuda()->alloc(k->device, &p, bytes[i], e));
        k->memory[i] = cuda_address(p);
    }
    k->has_head = w->output.data.addr != 0;
    k->has_post = has_post(w);
    fill_args(k, w);
    walk_product *products = malloc(bytes[PRODUCTS]);
    walk_weights *weights = malloc(bytes[WEIGHTS]);
    walk_pools *pools = malloc(bytes[POOLS]);
    status s = products != NULL && weights != NULL && pools != NULL
                   ? describe(k, w, products, weights, pools, e)
                   : errmsg_set(e, ST_RESOURCES, "%s: no memory for a walk", d->name);
    free(products);
    free(weights);
    free(pools);
    return s;
}

status cuda_walk_open(backend_device *d, backend_walk **out, const walk_desc *w, errmsg *e)
{
    *out = NULL;
    if (w->n_layers == 0 || !takes(w)) return ST_OK;
    backend_walk *k = calloc(1, sizeof *k);
    if (k == NULL) return errmsg_set(e, ST_RESOURCES, "%s: no memory for a walk", d->name);
    k->device = d;
    status s = open_all(k, w, e);
    if (s != ST_OK) {
        cuda_walk_close(k);
        return s;
    }
    *out = k;
    return ST_OK;
}

void cuda_walk_close(backend_walk *w)
{
    if (w == NULL) return;
    (void)cudaSetDevice(w->device->ordinal);
    for (int i = 0; i < N_MEMORY; i++)
        (void)cudaFree(w->memory[i]);
    free(w);
}

status cuda_walk(backend_queue *q, const backend_walk *w, bool head)
{
    walk_args a = w->args;
    CHECK(!head || w->has_head);
    a.n_products = 4 * a.n_layers + head;
    a.n_rows = w->has_post ? 4 * a.n_layers + 1 : a.n_products;
    TRY(cuda_enter(q));
    return cuda_result(q->device, cuda_launch_walk(q->stream, &a, q->device->n_sms),
                       "cuda_launch_walk", NULL);
}
