#include "coordinator/engine/chunk.h"

#include <math.h>

/* Rows whose products take as long as reading the weights once: a processor's cores read them as
 * fast as they work through a few rows, a GPU through many more (arithmetic per byte). */
#define OVERHEAD_ROWS_CPU 8.0
#define OVERHEAD_ROWS_GPU 128.0

static uint64_t elements(const tensor_ref *t)
{
    return t->t != NULL ? t->t->dim[0] * t->t->dim[1] : 0;
}

static uint64_t layer_elements(const layer_desc *l)
{
    return elements(&l->attn_q) + elements(&l->attn_k) + elements(&l->attn_v) +
           elements(&l->attn_output) + elements(&l->ffn_gate) + elements(&l->ffn_up) +
           elements(&l->ffn_down);
}

chunk_costs chunk_costs_of(const model_desc *m, const plan *p)
{
    bool gpu = false;
    uint64_t row = 0;
    for (uint32_t s = 0; s < p->cuts.n_stages; s++) gpu |= p->stage[s].device.kind == DEVICE_CUDA;
    for (uint32_t il = 0; il < m->n_layers; il++) row += layer_elements(&m->layer[il]);
    /* A product is two operations per element; a key two per element of q, a value two more. Window
     * layers see as much at every position. */
    uint64_t n_global = model_n_layers_of(m, LAYER_GLOBAL, 0, m->n_layers);
    double key = 2.0 * (double)n_global * m->n_heads * m->n_head;
    return (chunk_costs){.n_stages = p->one_process ? 1 : p->cuts.n_stages,
                         .rows_max = p->rows_max,
                         .attention = row > 0 ? key / (double)row : 0,
                         .overhead = gpu ? OVERHEAD_ROWS_GPU : OVERHEAD_ROWS_CPU};
}

double chunk_cost(const chunk_costs *c, uint64_t position, uint64_t n)
{
    return (double)n * (1 + c->attention * ((double)position + (double)n / 2));
}

uint32_t chunk_rows(const chunk_costs *c, uint64_t position, double cost)
{
    uint32_t low = 1, high = c->rows_max; /* low is enough, and what is above high too much */
    while (low < high) {
        uint32_t middle = high - (high - low) / 2;
        if (chunk_cost(c, position, middle) <= cost)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

double chunk_budget(const chunk_costs *c, uint64_t n_rows, double all_cost)
{
    double n_chunks = sqrt((c->n_stages - 1) * (double)n_rows / c->overhead);
    return n_chunks < 1 ? all_cost : all_cost / n_chunks;
}
