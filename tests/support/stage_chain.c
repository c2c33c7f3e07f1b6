#include "tests/support/stage_chain.h"

#include "tests/support/tap.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

chain_spec chain_spec_default(void)
{
    return (chain_spec){.kv_type = DT_F32,
                        .isa = "auto",
                        .n_threads = 1,
                        .rows_max = 32,
                        .n_ctx = 256,
                        .n_branches = 4,
                        .n_blocks = 16};
}

static void must(status s, const errmsg *e)
{
    if (s != ST_OK) print_error("# %s\n", e->text);
    assert_int_equal(s, ST_OK);
}

static void plan_chain(chain *c, const chain_spec *s)
{
    errmsg e = {0};
    doors d = doors_default();
    d.n_stages = c->n_stages;
    d.splits = s->n_cuts > 0 ? SPLITS_LIST : SPLITS_EVEN;
    d.n_cuts = s->n_cuts;
    memcpy(d.cut, s->cut, sizeof s->cut);
    plan_request r = {.n_ctx = s->n_ctx,
                      .n_sessions = s->n_branches,
                      .kv_type = s->kv_type,
                      .n_chunk = s->rows_max,
                      .n_readback = s->rows_max};
    if (model_n_kinds(c->model) == 1)
        r.kv_bytes = plan_kv_bytes(c->model, c->model->n_layers, s->n_blocks, s->kv_type);
    must(plan_make(&c->plan, c->model, &d, &r, &e), &e);
}

static void open_stage(chain *c, const chain_spec *s, uint32_t i)
{
    errmsg e = {0};
    const plan *p = &c->plan;
    wire_config *w = &c->config[i];
    *w = (wire_config){.stage_i = i,
                       .n_stages = c->n_stages,
                       .n_layers = c->model->n_layers,
                       .layer_begin = p->stage[i].layer_begin,
                       .layer_end = p->stage[i].layer_end,
                       .n_ctx = p->n_ctx,
                       .n_branches = p->n_sessions,
                       .rows_max = p->rows_max,
                       .n_readback = p->n_readback,
                       .n_blocks = {p->n_blocks[0], p->n_blocks[1]},
                       .kv_type = p->kv_type,
                       .n_threads = s->n_threads,
                       .journal_out_fd = s->keeps ? 0 : -1,
                       .numa_node = WIRE_NONE};
    strcpy(w->isa, s->isa);
    stage_options o = {.backend = s->backend != NULL ? s->backend : backend_cpu(),
                       .config = w,
                       .file = c->file,
                       .model = c->model,
                       .meanwhile = s->meanwhile,
                       .meanwhile_ctx = s->meanwhile_ctx};
    must(stage_open(&c->stage[i], &o, &e), &e);
    stage_facts f = stage_facts_get(c->stage[i]);
    assert_int_equal(f.weights_bytes, p->stage[i].weights_bytes);
    assert_int_equal(f.kv_bytes, p->stage[i].kv_bytes);
    if (s->keeps) return;
    assert_int_equal(f.scratch_bytes, p->stage[i].scratch_bytes);
    assert_int_equal(f.host_bytes, p->stage[i].host_bytes);
}

void chain_open(chain *c, gguf *file, const chain_spec *s)
{
    errmsg e = {0};
    *c = (chain){.file = file, .n_stages = s->n_cuts + 1, .model = malloc(sizeof *c->model)};
    must(model_read(c->model, file, &e), &e);
    plan_chain(c, s);
    c->n_classes = model_n_kinds(c->model);
    for (uint32_t k = 0; k < c->n_classes; k++) {
        c->n_blocks[k] = c->plan.n_blocks[k];
        c->refs[k] = calloc(c->n_blocks[k], sizeof **c->refs);
    }
    c->carry = calloc((size_t)s->rows_max * c->model->n_embd, sizeof *c->carry);
    c->rows = calloc(s->rows_max, sizeof *c->rows);
    c->poison = calloc(s->rows_max, sizeof *c->poison);
    must(readback_create(&c->results, &c->results_fd, s->rows_max, c->model->n_vocab,
                         s->n_branches, &e),
         &e);
    for (uint32_t i = 0; i < c->n_stages; i++)
        open_stage(c, s, i);
}

void chain_close(chain *c)
{
    for (uint32_t i = 0; i < c->n_stages; i++)
        stage_close(c->stage[i]);
    readback_unmap(&c->results);
    close(c->results_fd);
    free(c->carry);
    free(c->rows);
    free(c->poison);
    for (uint32_t k = 0; k < KV_POOLS; k++)
        free(c->refs[k]);
    free(c->model);
    gguf_close(c->file);
}

static status carry_over(chain *c, uint32_t to, uint32_t n_rows)
{
    const backend *b = backend_cpu();
    backend_event ev;
    uint64_t bytes = (uint64_t)n_rows * c->model->n_embd * sizeof(float);
    backend_queue *q = stage_queue(c->stage[to - 1]);
    TRY(b->download(q, c->carry, stage_hidden(c->stage[to - 1]), bytes));
    TRY(b->event_record(q, &ev));
    TRY(b->event_wait(q, ev));
    q = stage_queue(c->stage[to]);
    TRY(b->upload(q, stage_hidden(c->stage[to]), c->carry, bytes));
    TRY(b->event_record(q, &ev));
    return b->event_wait(q, ev);
}

status chain_step(chain *c, const wire_kv_op *ops, uint32_t n_ops, const wire_row *rows,
                  uint32_t n_rows, const sampler_params *samplers, uint32_t n_samplers, errmsg *e)
{
    c->seq++;
    memset(c->poison, 0, c->plan.rows_max * sizeof *c->poison);
    for (uint32_t i = 0; i < c->n_stages; i++) {
        uint32_t n_committed = 0;
        stage *s = c->stage[i];
        TRY(stage_kv_ops(s, ops, n_ops, e));
        TRY(stage_rows(s, rows, n_rows, n_samplers, e));
        if (i == 0) {
            TRY(stage_embed(s, e));
        } else {
            TRY(carry_over(c, i, n_rows));
        }
        TRY(stage_walk(s, true, c->poison, e));
        if (i + 1 == c->n_stages)
            TRY(stage_head(s, samplers, &c->results, c->seq, &n_committed, NULL,
                           c->poison, e));
    }
    return ST_OK;
}

readback_row *chain_result(const chain *c, uint32_t i)
{
    readback_row *r = readback_row_at(&c->results, i);
    assert_int_equal(atomic_load(&r->commit), c->seq);
    return r;
}

const float *chain_logits(const chain *c, uint32_t i)
{
    readback_row *r = chain_result(c, i);
    assert_int_equal(r->status, ST_OK);
    return r->logits;
}

/* --- sessions --- */

#define OPS_MAX 64u
typedef struct {
    uint32_t n;
    wire_kv_op op[OPS_MAX];
} op_list;

static void add_op(op_list *l, wire_kv_op op)
{
    assert_true(l->n < OPS_MAX);
    l->op[l->n++] = op;
}

static void add_class_op(op_list *l, const chain_session *s, kv_op_kind kind, uint32_t class,
                         uint32_t a, uint32_t b)
{
    add_op(l, (wire_kv_op){.kind = kind,
                           .kv_class = class,
                           .branch = s->branch,
                           .generation = s->generation,
                           .a = a,
                           .b = b});
}

static uint32_t take_block(chain *c, uint32_t class)
{
    for (uint32_t i = 0; i < c->n_blocks[class]; i++) {
        if (c->refs[class][i] != 0) continue;
        c->refs[class][i] = 1;
        return i;
    }
    fail_msg("no block left of class %u", class);
    return 0;
}

static void run_ops(chain *c, const op_list *l)
{
    errmsg e = {0};
    must(chain_step(c, l->op, l->n, NULL, 0, NULL, 0, &e), &e);
}

void session_begin(chain *c, chain_session *s, uint32_t branch)
{
    static uint32_t generation;
    op_list l = {0};
    *s = (chain_session){.branch = branch, .generation = ++generation};
    add_op(&l, (wire_kv_op){.kind = KV_OPEN, .branch = branch, .generation = s->generation});
    run_ops(c, &l);
}

void session_end(chain *c, chain_session *s)
{
    op_list l = {0};
    add_op(&l, (wire_kv_op){.kind = KV_FREE, .branch = s->branch, .generation = s->generation});
    run_ops(c, &l);
    for (uint32_t k = 0; k < c->n_classes; k++) {
        for (uint32_t i = s->table[k].first; i < s->table[k].n; i++)
            c->refs[k][s->table[k].block[i]]--;
    }
}

/* What has slid out of the window of a row at s->n is let go at once: as little as ever is kept. */
static void slide(chain *c, chain_session *s, op_list *l)
{
    const uint32_t class = KV_CLASS_WINDOW, window = c->model->window;
    uint32_t first = s->n + 1 > window ? (s->n + 1 - window) / KV_BLOCK : 0;
    if (c->n_classes <= class || first <= s->table[class].first) return;
    add_class_op(l, s, KV_RELEASE, class, first, 0);
    for (; s->table[class].first < first; s->table[class].first++)
        c->refs[class][s->table[class].block[s->table[class].first]]--;
}

/* Blocks for n more positions. */
static void cover(chain *c, chain_session *s, uint32_t n, op_list *l)
{
    slide(c, s, l);
    for (uint32_t k = 0; k < c->n_classes; k++) {
        for (; s->table[k].n * KV_BLOCK < s->n + n; s->table[k].n++) {
            uint32_t block = take_block(c, k);
            add_class_op(l, s, KV_ALLOC, k, s->table[k].n, block);
            s->table[k].block[s->table[k].n] = block;
        }
    }
}

static wire_row row_of(chain_session *s, uint32_t token, uint32_t readback_i)
{
    return (wire_row){.session = s->branch + 100,
                      .generation = s->generation,
                      .branch = s->branch,
                      .position = s->n++,
                      .token = token,
                      .flags = ROW_LIVE | ROW_LOGITS,
                      .readback = readback_i,
                      .sampler_i = WIRE_NONE};
}

void session_feed(chain *c, chain_session *s, const uint32_t *tokens, uint32_t n, uint32_t chunk,
                  float *logits)
{
    uint64_t n_vocab = c->model->n_vocab;
    errmsg e = {0};
    assert_true(chunk <= c->plan.rows_max);
    for (uint32_t at = 0; at < n; at += chunk) {
        uint32_t m = n - at < chunk ? n - at : chunk;
        op_list l = {0};
        cover(c, s, m, &l);
        for (uint32_t i = 0; i < m; i++)
            c->rows[i] = row_of(s, tokens[at + i], i);
        must(chain_step(c, l.op, l.n, c->rows, m, NULL, 0, &e), &e);
        for (uint32_t i = 0; i < m && logits != NULL; i++)
            memcpy(&logits[(at + i) * n_vocab], chain_logits(c, i), n_vocab * sizeof(float));
    }
}

void sessions_feed(chain *c, chain_session *const *s, const uint32_t *tokens, uint32_t n,
                   float *const *logits)
{
    op_list l = {0};
    errmsg e = {0};
    assert_true(n <= c->plan.rows_max);
    for (uint32_t i = 0; i < n; i++) {
        cover(c, s[i], 1, &l);
        c->rows[i] = row_of(s[i], tokens[i], i);
    }
    must(chain_step(c, l.op, l.n, c->rows, n, NULL, 0, &e), &e);
    for (uint32_t i = 0; i < n; i++)
        memcpy(logits[i], chain_logits(c, i), c->model->n_vocab * sizeof(float));
}

uint32_t session_sample(chain *c, chain_session *s, uint32_t token, const sampler_params *p)
{
    errmsg e = {0};
    op_list l = {0};
    cover(c, s, 1, &l);
    wire_row row = row_of(s, token, 0);
    row.flags = ROW_LIVE | ROW_SAMPLE;
    row.sampler_i = 0;
    must(chain_step(c, l.op, l.n, &row, 1, p, 1, &e), &e);
    assert_int_equal(chain_result(c, 0)->status, ST_OK);
    return chain_result(c, 0)->token;
}

/* The blocks with position n - 1 become the session's own, if they are partly filled and shared. */
static void own_last(chain *c, chain_session *s, op_list *l)
{
    uint32_t last = s->n / KV_BLOCK;
    for (uint32_t k = 0; k < c->n_classes && s->n % KV_BLOCK != 0; k++) {
        uint32_t from = s->table[k].block[last];
        if (c->refs[k][from] == 1) continue;
        uint32_t to = take_block(c, k);
        add_class_op(l, s, KV_ALLOC, k, last, to);
        add_op(l, (wire_kv_op){
                      .kind = KV_COPY, .kv_class = k, .a = to, .b = from, .c = s->n % KV_BLOCK});
        c->refs[k][from]--;
        s->table[k].block[last] = to;
    }
}

void session_split(chain *c, chain_session *from, chain_session *to, uint32_t branch)
{
    op_list l = {0};
    session_begin(c, to, branch);
    to->n = from->n;
    memcpy(to->table, from->table, sizeof to->table);
    for (uint32_t k = 0; k < c->n_classes; k++) {
        add_class_op(&l, to, KV_FORK, k, to->table[k].n * KV_BLOCK, from->branch);
        for (uint32_t i = to->table[k].first; i < to->table[k].n; i++)
            c->refs[k][to->table[k].block[i]]++;
    }
    own_last(c, to, &l);
    run_ops(c, &l);
}

void session_cut(chain *c, chain_session *s, uint32_t n)
{
    op_list l = {0};
    s->n = n;
    for (uint32_t k = 0; k < c->n_classes; k++) {
        add_class_op(&l, s, KV_TRUNCATE, k, n, 0);
        while (s->table[k].n > (n + KV_BLOCK - 1) / KV_BLOCK) {
            uint32_t i = --s->table[k].n;
            if (i >= s->table[k].first) c->refs[k][s->table[k].block[i]]--;
        }
        if (s->table[k].first > s->table[k].n) s->table[k].first = s->table[k].n;
    }
    own_last(c, s, &l);
    run_ops(c, &l);
}

double logits_error(const float *a, const double *truth, uint64_t n)
{
    double error = 0, size = 0;
    for (uint64_t i = 0; i < n; i++) {
        double d = (double)a[i] - truth[i];
        error += d * d;
        size += truth[i] * truth[i];
    }
    return error / size;
}
