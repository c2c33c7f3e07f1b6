/* The walk of one row (walk.h): its products and pools described to the kernel, once per range. */
#include "kernels/cuda/walk.h"

#include "kernels/cuda/device.h"

#include <stdlib.h>

enum { PRODUCTS, WEIGHTS, POOLS, PARTIAL, ARRIVED, MEET, N_MEMORY };

struct backend_walk {
    backend_device *device;
    walk_args args;
    void *memory[N_MEMORY];
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

static bool takes(const walk_desc *w)
{
    const kv_args *kv = &w->layer[0].kv;
    bool head = w->output.data.addr != 0;
    if (kv->type != DT_F16 || kv->n_head % 16 != 0 || kv->n_head > WALK_HEAD_MAX) return false;
    if (w->n_embd > WALK_NORM_MAX || (head && !takes_weight(&w->output))) return false;
    if (cuda_walk_rings_bytes(n_products_of(w), x_bytes_of(w)) < WALK_RINGS_MIN) return false;
    for (uint32_t i = 0; i < w->n_layers; i++) {
        const walk_layer *l = &w->layer[i];
        const dev_weight *all[] = {&l->attn_q,   &l->attn_k, &l->attn_v,  &l->attn_output,
                                   &l->ffn_gate, &l->ffn_up, &l->ffn_down};
        for (size_t j = 0; j < sizeof all / sizeof *all; j++)
            if (!takes_weight(all[j])) return false;
    }
    return true;
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

static void describe_layer(walk_product p[4], walk_weights weights[4], const walk_desc *w,
                           uint32_t layer_i)
{
    const walk_layer *l = &w->layer[layer_i];
    const dev_ptr none = {0};
    draft d = begin_product(&p[0], &weights[0], WALK_STORE, w->hidden, l->attn_norm);
    add_part(&d, &l->attn_q, l->attn_q_bias, w->q);
    add_part(&d, &l->attn_k, l->attn_k_bias, w->k);
    add_part(&d, &l->attn_v, l->attn_v_bias, w->v);
    d = begin_product(&p[1], &weights[1], WALK_ADD, w->attn, none);
    add_part(&d, &l->attn_output, none, w->hidden);
    d = begin_product(&p[2], &weights[2], w->gelu ? WALK_GELU : WALK_SILU, w->hidden, l->ffn_norm);
    add_part(&d, &l->ffn_gate, none, w->gate);
    add_part(&d, &l->ffn_up, none, w->gate);
    d = begin_product(&p[3], &weights[3], WALK_ADD, w->gate, none);
    add_part(&d, &l->ffn_down, none, w->hidden);
    if (layer_i + 1 == w->n_layers) p[3].finite_i = 0;
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
    walk_args *a = &k->args;
    for (uint32_t i = 0; i < w->n_layers; i++) {
        describe_layer(products + 4 * i, weights + 4 * i, w, i);
        pools[i] =
            (walk_pools){cuda_address(w->layer[i].kv.k), cuda_address(w->layer[i].kv.v)};
    }
    if (a->n_products > 4 * w->n_layers) {
        uint32_t i = 4 * w->n_layers;
        draft d = begin_product(&products[i], &weights[i], WALK_STORE, w->hidden, w->output_norm);
        add_part(&d, &w->output, (dev_ptr){0}, w->logits);
        products[i].finite_i = 1;
    }
    TRY(put(k->device, k->memory[PRODUCTS], products, a->n_products * sizeof *products, e));
    TRY(put(k->device, k->memory[WEIGHTS], weights, a->n_products * sizeof *weights, e));
    return put(k->device, k->memory[POOLS], pools, w->n_layers * sizeof *pools, e);
}

static void fill_args(backend_walk *k, const walk_desc *w)
{
    const kv_args *kv = &w->layer[0].kv;
    walk_args *a = &k->args;
    a->n_layers = w->n_layers;
    a->n_products = n_products_of(w);
    a->x_bytes = x_bytes_of(w);
    a->n_heads = w->n_heads;
    a->n_kv_heads = kv->n_kv_heads;
    a->n_head = kv->n_head;
    a->n_rot = w->rope.n_rot;
    a->neox = w->rope.neox;
    a->n_cells_max = (w->n_ctx + ATTN_CELL - 1) / ATTN_CELL;
    a->rms_eps = w->rms_eps;
    a->attn_scale = w->attn_scale;
    a->q = cuda_address(w->q);
    a->k = cuda_address(w->k);
    a->v = cuda_address(w->v);
    a->cos = cuda_address(w->rope.cos);
    a->sin = cuda_address(w->rope.sin);
    a->attn = cuda_address(w->attn);
    a->position = cuda_address(w->rows.position);
    a->table = cuda_address(w->rows.table);
    a->tables = cuda_address(w->rows.tables);
    a->live = cuda_address(w->rows.live);
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
    uint64_t n = n_products_of(w);
    uint32_t n_cells = (w->n_ctx + ATTN_CELL - 1) / ATTN_CELL;
    const uint64_t bytes[N_MEMORY] = {
        [PRODUCTS] = n * sizeof(walk_product),
        [WEIGHTS] = n * sizeof(walk_weights),
        [POOLS] = w->n_layers * sizeof(walk_pools),
        [PARTIAL] = 4 * cuda_partial_floats(1, w->n_heads, w->layer[0].kv.n_head, n_cells),
        [ARRIVED] = w->n_heads * sizeof(uint32_t),
        [MEET] = 2 * sizeof(uint32_t)};
    TRY_CUDA(d, cudaSetDevice(d->ordinal), e);
    for (int i = 0; i < N_MEMORY; i++) {
        dev_ptr p;
        TRY(backend_cuda()->alloc(k->device, &p, bytes[i], e));
        k->memory[i] = cuda_address(p);
    }
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
    CHECK(!head || a.n_products > 4 * a.n_layers);
    if (!head) a.n_products = 4 * a.n_layers;
    TRY(cuda_enter(q));
    return cuda_result(q->device, cuda_launch_walk(q->stream, &a, q->device->n_sms),
                       "cuda_launch_walk", NULL);
}
