/* The walk of one row (walk.h): its products and pools described to the kernel, once per range. */
#include "kernels/cuda/walk.h"

#include "kernels/cuda/device.h"

#include <stdlib.h>

struct backend_walk {
    backend_device *device;
    walk_args args;
    void *memory[5]; /* products, pools, partial, arrived, meet */
};

static bool takes_weight(const dev_weight *w)
{
    return w->type != DT_F32 && w->n_in % BLOCK_IN == 0 && w->n_in <= WALK_IN_MAX;
}

static bool takes(const walk_desc *w)
{
    const kv_args *kv = &w->layer[0].kv;
    bool head = w->output.data.addr != 0;
    if (kv->type != DT_F16 || kv->n_head % 16 != 0 || kv->n_head > WALK_HEAD_MAX) return false;
    if (w->n_embd > WALK_NORM_MAX || (head && !takes_weight(&w->output))) return false;
    for (uint32_t i = 0; i < w->n_layers; i++) {
        const walk_layer *l = &w->layer[i];
        const dev_weight *all[] = {&l->attn_q,   &l->attn_k, &l->attn_v,  &l->attn_output,
                                   &l->ffn_gate, &l->ffn_up, &l->ffn_down};
        for (size_t j = 0; j < sizeof all / sizeof *all; j++)
            if (!takes_weight(all[j])) return false;
    }
    return true;
}

static void add_part(walk_product *p, const dev_weight *w, dev_ptr bias, dev_ptr out)
{
    cuda_matrix m = cuda_matrix_of(w);
    uint32_t i = p->n_parts++;
    p->part[i].data = m.data;
    p->part[i].bias = cuda_address(bias);
    p->part[i].out = cuda_address(out);
    p->part[i].form = m.form;
    p->part[i].n_out = m.n_out;
    p->part[i].n_tiles = (m.n_out + TILE_OUT - 1) / TILE_OUT;
    p->part[i].exponent = m.exponent;
    p->n_in = m.n_in;
    p->n_blocks = cuda_blocks_in(m.n_in);
    p->n_segments = cuda_segments(m.n_in);
}

static void describe_layer(walk_product p[4], const walk_desc *w, uint32_t layer_i)
{
    const walk_layer *l = &w->layer[layer_i];
    const dev_ptr none = {0};
    for (int i = 0; i < 4; i++)
        p[i] = (walk_product){.end = WALK_STORE};
    p[0].x = p[2].x = cuda_address(w->hidden);
    p[0].norm = cuda_address(l->attn_norm);
    add_part(&p[0], &l->attn_q, l->attn_q_bias, w->q);
    add_part(&p[0], &l->attn_k, l->attn_k_bias, w->k);
    add_part(&p[0], &l->attn_v, l->attn_v_bias, w->v);
    p[1].x = cuda_address(w->attn);
    p[1].end = p[3].end = WALK_ADD;
    add_part(&p[1], &l->attn_output, none, w->hidden);
    p[2].norm = cuda_address(l->ffn_norm);
    p[2].end = w->gelu ? WALK_GELU : WALK_SILU;
    add_part(&p[2], &l->ffn_gate, none, w->gate);
    add_part(&p[2], &l->ffn_up, none, w->gate);
    p[3].x = cuda_address(w->gate);
    p[3].is_hidden = layer_i + 1 == w->n_layers;
    add_part(&p[3], &l->ffn_down, none, w->hidden);
}

static status put(const backend_device *d, void *to, const void *from, uint64_t bytes, errmsg *e)
{
    TRY_CUDA(d, cudaMemcpy(to, from, bytes, cudaMemcpyHostToDevice), e);
    return ST_OK;
}

/* Products and pools to the device, from host memory of that size. */
static status describe(backend_walk *k, const walk_desc *w, walk_product *products,
                       walk_pools *pools, errmsg *e)
{
    for (uint32_t i = 0; i < w->n_layers; i++) {
        describe_layer(products + 4 * i, w, i);
        pools[i] =
            (walk_pools){cuda_address(w->layer[i].kv.k), cuda_address(w->layer[i].kv.v)};
    }
    k->args.n_products = 4 * w->n_layers;
    if (w->output.data.addr != 0) {
        walk_product *head = &products[k->args.n_products++];
        *head = (walk_product){.x = cuda_address(w->hidden), .norm = cuda_address(w->output_norm)};
        add_part(head, &w->output, (dev_ptr){0}, w->logits);
    }
    uint32_t n_in_max = 0;
    for (uint32_t i = 0; i < k->args.n_products; i++)
        if (products[i].n_in > n_in_max) n_in_max = products[i].n_in;
    k->args.x_bytes = cuda_walk_x_bytes(n_in_max, w->layer[0].kv.n_head);
    TRY(put(k->device, k->memory[0], products, k->args.n_products * sizeof *products, e));
    return put(k->device, k->memory[1], pools, w->n_layers * sizeof *pools, e);
}

static void fill_args(backend_walk *k, const walk_desc *w)
{
    const kv_args *kv = &w->layer[0].kv;
    walk_args *a = &k->args;
    a->n_layers = w->n_layers;
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
    a->finite = cuda_address(w->finite);
    a->product = k->memory[0];
    a->pools = k->memory[1];
    a->partial = k->memory[2];
    a->arrived = k->memory[3];
    a->meet = k->memory[4];
}

static status open_all(backend_walk *k, const walk_desc *w, errmsg *e)
{
    const backend_device *d = k->device;
    uint64_t n_products = 4ull * w->n_layers + 1, n_cells = (w->n_ctx + ATTN_CELL - 1) / ATTN_CELL;
    const uint64_t bytes[] = {
        n_products * sizeof(walk_product), w->n_layers * sizeof(walk_pools),
        cuda_partial_floats(1, w->n_heads, w->layer[0].kv.n_head, (uint32_t)n_cells) * sizeof(float),
        w->n_heads * sizeof(uint32_t), 2 * sizeof(uint32_t)};
    TRY_CUDA(d, cudaSetDevice(d->ordinal), e);
    for (int i = 0; i < 5; i++) {
        dev_ptr p;
        TRY(backend_cuda()->alloc(k->device, &p, bytes[i], e));
        k->memory[i] = cuda_address(p);
    }
    fill_args(k, w);
    walk_product *products = malloc(n_products * sizeof *products);
    walk_pools *pools = malloc(w->n_layers * sizeof *pools);
    status s = products != NULL && pools != NULL
                   ? describe(k, w, products, pools, e)
                   : errmsg_set(e, ST_RESOURCES, "%s: no memory for a walk", d->name);
    free(products);
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
    for (int i = 0; i < 5; i++)
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
