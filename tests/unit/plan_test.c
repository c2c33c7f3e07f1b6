#include "common/boundary.h"
#include "common/cuda_form.h"
#include "common/journal.h"
#include "common/plan.h"
#include "common/readback.h"
#include "common/wire.h"
#include "tests/support/gguf_build.h"
#include "tests/support/tap.h"

#include <stdlib.h>
#include <string.h>

typedef struct {
    gguf *file;
    model_desc *m;
} fixture;

static int begin(void **state)
{
    errmsg e = {0};
    fixture *f = calloc(1, sizeof *f);
    llama_spec s = llama_spec_default();
    s.n_layers = 5;
    s.n_ctx = 1000;
    s.rope_freqs = true;
    gguf_build *b = gguf_build_llama(&s);
    int fd = gguf_build_fd(b);
    gguf_build_free(b);
    f->m = calloc(1, sizeof *f->m);
    assert_int_equal(gguf_open_fds(&f->file, &fd, 1, &e), ST_OK);
    assert_int_equal(model_read(f->m, f->file, &e), ST_OK);
    *state = f;
    return 0;
}

static int end(void **state)
{
    fixture *f = *state;
    gguf_close(f->file);
    free(f->m);
    free(f);
    return 0;
}

static plan planned(const fixture *f, uint32_t n_stages, const plan_request *r)
{
    plan p;
    errmsg e = {0};
    doors d = doors_default();
    d.n_stages = n_stages;
    status s = plan_make(&p, f->m, &d, r, &e);
    if (s != ST_OK) print_error("# %s\n", e.text);
    assert_int_equal(s, ST_OK);
    return p;
}

static void refused_as(status code, const fixture *f, const plan_request *r, const char *part)
{
    plan p;
    errmsg e = {0};
    doors d = doors_default();
    assert_int_equal(plan_make(&p, f->m, &d, r, &e), code);
    if (strstr(e.text, part) == NULL) print_error("# %s does not say %s\n", e.text, part);
    assert_non_null(strstr(e.text, part));
}

static void refused(const fixture *f, const plan_request *r, const char *part)
{
    refused_as(ST_USAGE, f, r, part);
}

static void defaults_are_as_stated(void **state)
{
    const fixture *f = *state;
    plan p = planned(f, 1, &(plan_request){.kv_type = DT_F16});
    assert_int_equal(p.n_ctx, 1000); /* the model's own, below 4096 */
    assert_int_equal(p.n_sessions, 1);
    assert_int_equal(p.rows_max, 256);
    assert_int_equal(p.n_readback, 16);
    assert_int_equal(p.n_blocks[0], 16);
    assert_int_equal(p.stage[0].device.kind, DEVICE_CPU);
    assert_int_equal(p.stage[0].slots_bytes, 0);
    p = planned(f, 1, &(plan_request){.kv_type = DT_F32, .n_ctx = 100});
    assert_int_equal(p.rows_max, 100); /* a chunk is not longer than the context */
    p = planned(f, 1, &(plan_request){.kv_type = DT_F32, .n_ctx = 5000});
    assert_int_equal(p.n_ctx, 5000); /* more than trained for is the user's choice */
}

static void stages_add_up(void **state)
{
    const fixture *f = *state;
    plan_request r = {
        .kv_type = DT_F16, .n_ctx = 300, .n_sessions = 3, .n_chunk = 40, .n_readback = 7};
    for (uint32_t n = 1; n <= 5; n++) {
        plan p = planned(f, n, &r);
        uint64_t weights = 0, total = readback_bytes(7, 320, p.n_sessions) + sizeof(run_block),
                 slots = 0;
        assert_int_equal(p.n_blocks[0], 15);
        for (uint32_t s = 0; s < n; s++) {
            const stage_plan *sp = &p.stage[s];
            uint32_t n_layers = sp->layer_end - sp->layer_begin;
            assert_int_equal(sp->layer_begin, s > 0 ? p.stage[s - 1].layer_end : 0);
            /* K and V, 15 blocks of 64 positions, 2 heads of 16, f16 */
            assert_int_equal(sp->kv_bytes, n_layers * 2 * 15 * 64 * 2 * 16 * 2);
            assert_int_equal(sp->weights_bytes, fence_stage_bytes(&p.cuts, f->m, s));
            uint64_t in = n == 1 ? 0 : boundary_bytes(40, s == 0 ? 0 : 64, 0);
            assert_int_equal(sp->slots_bytes, in);
            slots += in;
            weights += sp->weights_bytes;
            uint64_t edges = n == 1 ? 0 : 40 * (sizeof(row_header) + 64 * sizeof(float));
            edges += 40 * (sizeof(wire_row) + sizeof(uint32_t)); /* of a step */
            assert_int_equal(sp->process_bytes, PLAN_PROCESS_BYTES + edges);
            total += sp->kv_bytes + sp->scratch_bytes + sp->host_bytes + sp->process_bytes + in;
        }
        assert_int_equal(p.stage[n - 1].layer_end, 5);
        assert_int_equal(p.slots_total_bytes, slots);
        assert_int_equal(p.weights_total_bytes, weights);
        /* Of a session 300 tokens, 5 blocks and their links; of 15 blocks tokens, twice. */
        uint64_t books = 3 * (300 * 4 + 5 * (4 + 16) + 5 * 4) + 15 * (65 * 4 + 64 * 4 + 40);
        assert_int_equal(p.coordinator_bytes, PLAN_PROCESS_BYTES + 320 * PLAN_PIECE_BYTES + books);
        assert_int_equal(p.total_bytes, total + p.coordinator_bytes);
        assert_int_equal(p.journal_bytes, 0);
    }
}

static void check_pieces(const uint64_t *at, const uint64_t *bytes, uint32_t n, uint64_t whole)
{
    for (uint32_t i = 0; i < n; i++) {
        assert_int_equal(at[i] % 64, 0);
        assert_true(at[i] + bytes[i] <= (i + 1 < n ? at[i + 1] : whole));
    }
}

static void pieces_do_not_overlap(void **state)
{
    const fixture *f = *state;
    const uint32_t rows[] = {1, 7, 256, 4096}, ctx[] = {1, 64, 65, 1000};
    for (uint32_t i = 0; i < 16; i++) {
        uint64_t r = rows[i / 4], per_ctx = (ctx[i % 4] + 63) / 64;
        scratch_layout s;
        scratch_layout_make(&s, f->m, rows[i / 4], ctx[i % 4],
                            (stage_role){.last_stage = true, .keeps = true});
        const uint64_t at[] = {s.hidden,   s.normed, s.q,            s.k,      s.v,      s.attn,
                               s.gate,     s.up,     s.frequency[0], s.cos[0], s.sin[0], s.tokens,
                               s.position, s.table,  s.tables,       s.live,   s.finite, s.sent,
                               s.logits, s.kept_logits, s.sampler};
        const uint64_t bytes[] = {r * 256,
                                  r * 256,
                                  r * 256,
                                  r * 128,
                                  r * 128,
                                  r * 256,
                                  r * 384,
                                  r * 384,
                                  64,
                                  r * 32,
                                  r * 32,
                                  r * 4,
                                  r * 4,
                                  r * 4,
                                  r * 4 * per_ctx,
                                  r,
                                  r + 64,
                                  r * 256,
                                  16 * 320 * 4,
                                  16 * 320 * 4,
                                  sampler_scratch_bytes(320)};
        check_pieces(at, bytes, 21, s.bytes);
        scratch_layout on_cuda = s;
        scratch_layout_make(&on_cuda, f->m, rows[i / 4], ctx[i % 4],
                            (stage_role){true, true, true});
        assert_int_equal(on_cuda.sampler, s.sampler);
        assert_int_equal(on_cuda.bytes, s.sampler); /* nothing behind it */
        scratch_layout_make(&s, f->m, rows[i / 4], ctx[i % 4], (stage_role){0});
        assert_int_equal(s.bytes, s.logits);
        host_layout h;
        stage_limits l = {ctx[i % 4], 3, rows[i / 4], 5, {9, 0}, true, true};
        host_layout_make(&h, f->m, &l);
        const uint64_t h_at[] = {h.rows,     h.tokens,           h.position,       h.table,
                                 h.tables,   h.live,             h.finite,         h.sent,
                                 h.readback_seen, h.branches, h.branch_tables[0], h.block_users[0],
                                 h.history,  h.logits, h.sample_rows, h.sample_results};
        const uint64_t h_bytes[] = {2 * r * sizeof(wire_row),
                                    r * 4,
                                    r * 4,
                                    r * 4,
                                    r * 4 * per_ctx,
                                    r,
                                    r + 64,
                                    r * 256,
                                    20,
                                    120,
                                    12 * per_ctx,
                                    36,
                                    9 * 256,
                                    16 * 320 * 4,
                                    64 * 1152,
                                    64 * 16};
        check_pieces(h_at, h_bytes, 16, h.bytes);
    }
}

static void kv_bytes_bound_the_blocks(void **state)
{
    const fixture *f = *state;
    uint64_t block = plan_kv_bytes(f->m, 5, 1, DT_F32); /* 2 * 5 layers * 2 heads * 64 * 16 * 4 */
    assert_int_equal(block, 81920);
    plan_request r = {.kv_type = DT_F32, .n_ctx = 128, .n_sessions = 8, .kv_bytes = 10 * block + 5};
    assert_int_equal(planned(f, 2, &r).n_blocks[0], 10);
    r.kv_bytes = 100 * block;
    assert_int_equal(planned(f, 2, &r).n_blocks[0], 16); /* no more than the sessions can fill */
    r.kv_bytes = 2 * block;
    assert_int_equal(planned(f, 2, &r).n_blocks[0], 2);
    r.kv_bytes = 2 * block - 1;
    refused_as(ST_RESOURCES, f, &r, "a context of 64 would fit");
    r.kv_bytes = block - 1;
    refused_as(ST_RESOURCES, f, &r, "not even the smallest context fits (--kv-bytes, --ctx)");
    r.kv_bytes = 1;
    refused_as(ST_RESOURCES, f, &r, "too few");
}

/* A model of three layers, the first two of which see a window. */
static void windows_are_counted_apart(void **state)
{
    const fixture *f = *state;
    model_desc *m = malloc(sizeof *m);
    *m = *f->m;
    m->n_layers = 3;
    m->window = 100;
    m->rope_window = m->rope;
    m->layer[0].kind = m->layer[1].kind = LAYER_WINDOW;
    fixture w = {.m = m};
    plan_request r = {.kv_type = DT_F32, .n_ctx = 1000, .n_sessions = 4, .n_chunk = 64};
    const uint64_t block = 2 * 2 * 64 * 16 * 4; /* of one layer: K and V of two heads of 16, f32 */
    plan p = planned(&w, 2, &r); /* layers 0 | 1 2 */
    assert_int_equal(plan_window_blocks(m, 1000, 64), 4); /* 163 positions, wherever they begin */
    assert_int_equal(plan_window_blocks(m, 1000, 1), 3);
    assert_int_equal(plan_window_blocks(m, 100, 64), 2); /* no more than a context */
    assert_int_equal(plan_window_blocks(f->m, 1000, 64), 0);
    assert_int_equal(p.n_blocks[KV_CLASS_GLOBAL], 4 * 16);
    assert_int_equal(p.n_blocks[KV_CLASS_WINDOW], 4 * 4);
    assert_int_equal(p.stage[0].kv_bytes, 16 * block);
    assert_int_equal(p.stage[1].kv_bytes, (16 + 64) * block);
    /* One session needs 16 global blocks and 4 window blocks of two layers. */
    r.kv_bytes = 24 * block - 1;
    refused_as(ST_RESOURCES, &w, &r, "a context of 960 would fit");
    r.kv_bytes = 3 * block;
    refused_as(ST_RESOURCES, &w, &r, "a context of 64 would fit");
    r.kv_bytes = 24 * block;
    p = planned(&w, 2, &r);
    assert_true(p.n_blocks[KV_CLASS_GLOBAL] == 16 && p.n_blocks[KV_CLASS_WINDOW] == 4);
    for (r.kv_bytes = 24 * block; r.kv_bytes < 100 * block; r.kv_bytes += block / 3) {
        p = planned(&w, 2, &r);
        uint64_t used = p.stage[0].kv_bytes + p.stage[1].kv_bytes;
        assert_in_range(used, r.kv_bytes > 96 * block ? 96 * block : r.kv_bytes - 2 * block,
                        r.kv_bytes);
        assert_true(p.n_blocks[KV_CLASS_GLOBAL] >= 16 && p.n_blocks[KV_CLASS_WINDOW] >= 4);
    }
    m->layer[2].kind = LAYER_WINDOW; /* blocks of the global class cost nothing then */
    r.kv_bytes = 30 * block;
    p = planned(&w, 1, &r);
    assert_true(p.n_blocks[KV_CLASS_GLOBAL] == 64 && p.n_blocks[KV_CLASS_WINDOW] == 10);
    assert_int_equal(p.stage[0].kv_bytes, 30 * block);
    r.kv_bytes = 5 * block;
    refused_as(ST_RESOURCES, &w, &r, "a context of 64 would fit");
    free(m);
}

/* One token more than the sampler's sums hold. */
static void a_vocabulary_that_cannot_be_sampled_is_refused(void **state)
{
    const fixture *f = *state;
    model_desc *m = malloc(sizeof *m);
    assert_non_null(m);
    *m = *f->m;
    plan p;
    errmsg e = {0};
    doors d = doors_default();
    m->n_vocab = (1u << 22) - 1;
    assert_int_equal(plan_make(&p, m, &d, &(plan_request){.kv_type = DT_F16}, &e), ST_OK);
    m->n_vocab = 1u << 22;
    assert_int_equal(plan_make(&p, m, &d, &(plan_request){.kv_type = DT_F16}, &e), ST_BAD_MODEL);
    assert_non_null(strstr(e.text, "vocabulary of 4194304 tokens: the sampler knows 4194303"));
    free(m);
}

static void requests_out_of_range_are_refused(void **state)
{
    const fixture *f = *state;
    refused(f, &(plan_request){.kv_type = DT_F32, .n_ctx = PLAN_CTX_MAX + 1},
            "context of 16777217");
    refused(f, &(plan_request){.kv_type = DT_F32, .n_ctx = UINT32_MAX}, "out of range");
    refused(f, &(plan_request){.kv_type = DT_F32, .n_chunk = WIRE_ROWS_MAX + 1}, "chunk of 4097");
    refused(f, &(plan_request){.kv_type = DT_F32, .n_sessions = 1025}, "sessions of 1025");
    refused(f, &(plan_request){.kv_type = DT_F32, .n_readback = 4097}, "readback rows of 4097");
    refused(f, &(plan_request){.kv_type = DT_Q8_0}, "KV cache of Q8_0");
    refused(f, &(plan_request){.kv_type = (dtype)77}, "an unknown type");
    plan p;
    errmsg e = {0};
    doors d = doors_default();
    d.n_stages = 6;
    assert_int_equal(plan_make(&p, f->m, &d, &(plan_request){.kv_type = DT_F32}, &e), ST_BAD_DOOR);
    d.n_stages = 1;
    d.step.prime_chunk = 5000;
    errmsg_clear(&e);
    assert_int_equal(plan_make(&p, f->m, &d, &(plan_request){.kv_type = DT_F32}, &e), ST_USAGE);
    d.step.prime_chunk = 700; /* the door asks for longer chunks than planned */
    assert_int_equal(plan_make(&p, f->m, &d, &(plan_request){.kv_type = DT_F32}, &e), ST_OK);
    assert_int_equal(p.rows_max, 700);
}

static void enormous_requests_do_not_overflow(void **state)
{
    const fixture *f = *state;
    plan_request r = {.kv_type = DT_F32,
                      .n_ctx = PLAN_CTX_MAX,
                      .n_sessions = PLAN_SESSIONS_MAX,
                      .n_chunk = WIRE_ROWS_MAX};
    plan p = planned(f, 5, &r);
    assert_int_equal(p.n_blocks[0], 1u << 28);
    assert_true(p.total_bytes > (1ull << 40));
    errmsg e = {0};
    assert_int_equal(plan_fits(&p, f->m, 16ull << 30, &e), ST_RESOURCES);
    model_desc *big = malloc(sizeof *big);
    *big = *f->m;
    big->n_layers = 512;
    big->n_kv_heads = 2048;
    big->n_head = 512;
    doors d = doors_default();
    errmsg_clear(&e);
    assert_int_equal(plan_make(&p, big, &d, &r, &e), ST_RESOURCES);
    assert_non_null(strstr(e.text, "2^60"));
    free(big);
}

static uint64_t in_pages(uint64_t bytes)
{
    return (bytes + (2u << 20) - 1) / (2u << 20) * (2u << 20);
}

/* A stage on a CUDA device counts all that its process takes there; the embedding is not there. */
static void devices_are_counted_whole(void **state)
{
    const fixture *f = *state;
    const model_desc *m = f->m;
    errmsg e = {0};
    plan p;
    doors d = doors_default();
    const plan_request r = {.kv_type = DT_F16, .n_ctx = 1000, .n_sessions = 500, .n_chunk = 64};
    const uint64_t process =
        PLAN_CUDA_CONTEXT_BYTES + PLAN_CUDA_QUEUE_BYTES + PLAN_CUDA_LOADER_BYTES;
    d.n_stages = d.n_devices = 2;
    d.device[0] = (device_door){.kind = DEVICE_CPU};
    d.device[1] = (device_door){.kind = DEVICE_CUDA};
    assert_int_equal(plan_make(&p, m, &d, &r, &e), ST_OK);
    assert_int_equal(p.stage[0].device_bytes, 0);
    uint64_t weights = cuda_form_bytes(DT_F32, 64, 320) + 256; /* head and its norm */
    for (uint32_t il = 2; il < 5; il++) {
        const gguf_tensor *t[MODEL_LAYER_TENSORS];
        uint32_t n = model_layer_tensors(m, il, t);
        assert_int_equal(n, 9);
        for (uint32_t i = 0; i < n; i++)
            weights += t[i]->dim[1] > 1 ? cuda_form_bytes(DT_F32, (uint32_t)t[i]->dim[0],
                                                          (uint32_t)t[i]->dim[1])
                                        : 256;
    }
    uint64_t slots = 4 * 64 * 64 * sizeof(float);
    assert_int_equal(p.stage[1].device_bytes,
                     process + in_pages(weights) + in_pages(p.stage[1].kv_bytes) +
                         in_pages(p.stage[1].scratch_bytes) + in_pages(slots));
    d.device[0] = d.device[1];
    assert_int_equal(plan_make(&p, m, &d, &r, &e), ST_OK);
    assert_true(p.stage[0].device_bytes > process + in_pages(p.stage[0].kv_bytes));
    assert_int_equal(p.stage[0].device_bytes % PLAN_CUDA_PAGE_BYTES, 0);
}

/* What lies on a CUDA device is not the host's. */
static void the_host_is_not_asked_for_a_devices_bytes(void **state)
{
    const fixture *f = *state;
    errmsg e = {0};
    plan_request r = {.kv_type = DT_F32, .n_ctx = 20000, .n_sessions = 2};
    plan p = planned(f, 2, &r);
    stage_plan *s = &p.stage[1];
    uint64_t need = p.total_bytes + p.weights_total_bytes - s->weights_bytes - s->kv_bytes -
                    s->scratch_bytes;
    assert_int_equal(plan_fits(&p, f->m, need, &e), ST_RESOURCES);
    s->device = (device_door){.kind = DEVICE_CUDA};
    errmsg_clear(&e);
    assert_int_equal(plan_fits(&p, f->m, need, &e), ST_OK);
    assert_int_equal(plan_fits(&p, f->m, need - 1, &e), ST_RESOURCES);
}

static void what_does_not_fit_is_named(void **state)
{
    const fixture *f = *state;
    errmsg e = {0};
    plan_request r = {.kv_type = DT_F32, .n_ctx = 20000, .n_sessions = 2};
    plan p = planned(f, 2, &r);
    uint64_t need = p.total_bytes + p.weights_total_bytes;
    assert_int_equal(plan_fits(&p, f->m, need, &e), ST_OK);
    assert_int_equal(plan_fits(&p, f->m, 0, &e), ST_OK);
    assert_int_equal(plan_fits(&p, f->m, need - 1, &e), ST_RESOURCES);
    assert_non_null(strstr(e.text, "largest stage is 1 (layers 2-4)"));
    const char *fits = strstr(e.text, "--ctx ");
    assert_non_null(fits);
    /* What is said to fit does, and one block more does not. */
    errmsg_clear(&e);
    assert_int_equal(plan_fits(&p, f->m, need / 2, &e), ST_RESOURCES);
    r.n_ctx = (uint32_t)strtoul(strstr(e.text, "--ctx ") + 6, NULL, 10);
    assert_in_range(r.n_ctx, 64, 19999);
    plan q = planned(f, 2, &r);
    errmsg_clear(&e);
    assert_int_equal(plan_fits(&q, f->m, need / 2, &e), ST_OK);
    r.n_ctx += 64;
    q = planned(f, 2, &r);
    assert_int_equal(plan_fits(&q, f->m, need / 2, &e), ST_RESOURCES);
    errmsg_clear(&e);
    assert_int_equal(plan_fits(&p, f->m, 1000, &e), ST_RESOURCES);
    assert_non_null(strstr(e.text, "no context would fit"));
}

static void devices_are_as_the_door_says(void **state)
{
    const fixture *f = *state;
    plan p;
    errmsg e = {0};
    doors d = doors_default();
    d.n_stages = 3;
    d.n_devices = 3;
    d.device[0] = (device_door){DEVICE_CPU_NODE, 1};
    d.device[1] = (device_door){DEVICE_AUTO, 0};
    d.device[2] = (device_door){DEVICE_CUDA, 4};
    assert_int_equal(plan_make(&p, f->m, &d, &(plan_request){.kv_type = DT_F32}, &e), ST_OK);
    assert_int_equal(p.stage[0].device.kind, DEVICE_CPU_NODE);
    assert_int_equal(p.stage[0].device.index, 1);
    assert_int_equal(p.stage[1].device.kind, DEVICE_CPU);
    assert_int_equal(p.stage[2].device.kind, DEVICE_CUDA);
    assert_int_equal(p.stage[2].device.index, 4);
}

/* One for each boundary with a hidden state, for all blocks or as many as the bound holds. */
static void journals_are_planned(void **state)
{
    const fixture *f = *state;
    plan_request r = {.kv_type = DT_F16, .journal_bytes = PLAN_JOURNAL_ALL};
    assert_int_equal(planned(f, 1, &r).journal_bytes, 0);
    plan none = planned(f, 3, &(plan_request){.kv_type = DT_F16}), p = planned(f, 3, &r);
    assert_int_equal(p.n_journal_blocks, 16);
    assert_int_equal(p.journal_bytes, 2 * journal_bytes(16, 64));
    assert_int_equal(p.total_bytes, none.total_bytes + p.journal_bytes);
    r.journal_bytes = 2 * journal_bytes(5, 64);
    p = planned(f, 3, &r);
    assert_int_equal(p.n_journal_blocks, 5);
    assert_int_equal(p.journal_bytes, r.journal_bytes);
    r.journal_bytes--;
    assert_int_equal(planned(f, 3, &r).n_journal_blocks, 4);
    r.journal_bytes = 100;
    assert_int_equal(planned(f, 3, &r).journal_bytes, 0);
    /* Rather no journal than no run, unless somebody asked for it. */
    errmsg e = {0};
    uint64_t just = none.total_bytes + none.weights_total_bytes;
    r.journal_bytes = PLAN_JOURNAL_ALL;
    p = planned(f, 3, &r);
    assert_int_equal(plan_fits(&p, f->m, just, &e), ST_OK);
    assert_int_equal(p.journal_bytes, 0);
    assert_int_equal(p.total_bytes, none.total_bytes);
    r.journal_bytes = 2 * journal_bytes(16, 64);
    p = planned(f, 3, &r);
    assert_int_equal(plan_fits(&p, f->m, just, &e), ST_RESOURCES);
    assert_int_equal(p.n_journal_blocks, 16);
}

/* What goes to a journal from a GPU has room there and in host memory; the last stage sends
 * nothing. */
static void rows_on_their_way_are_planned(void **state)
{
    const fixture *f = *state;
    errmsg e = {0};
    plan with, without;
    doors d = doors_default();
    plan_request r = {.kv_type = DT_F16, .n_chunk = 100};
    d.n_stages = d.n_devices = 3;
    d.device[1] = d.device[2] = (device_door){.kind = DEVICE_CUDA};
    assert_int_equal(plan_make(&without, f->m, &d, &r, &e), ST_OK);
    r.journal_bytes = PLAN_JOURNAL_ALL;
    assert_int_equal(plan_make(&with, f->m, &d, &r, &e), ST_OK);
    for (uint32_t s = 0; s < 3; s++) {
        uint64_t more = s == 1 ? 100 * 64 * sizeof(float) : 0;
        assert_int_equal(with.stage[s].scratch_bytes, without.stage[s].scratch_bytes + more);
        assert_int_equal(with.stage[s].host_bytes, without.stage[s].host_bytes + more);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(rows_on_their_way_are_planned, begin, end),
        cmocka_unit_test_setup_teardown(defaults_are_as_stated, begin, end),
        cmocka_unit_test_setup_teardown(stages_add_up, begin, end),
        cmocka_unit_test_setup_teardown(pieces_do_not_overlap, begin, end),
        cmocka_unit_test_setup_teardown(kv_bytes_bound_the_blocks, begin, end),
        cmocka_unit_test_setup_teardown(windows_are_counted_apart, begin, end),
        cmocka_unit_test_setup_teardown(a_vocabulary_that_cannot_be_sampled_is_refused, begin, end),
        cmocka_unit_test_setup_teardown(requests_out_of_range_are_refused, begin, end),
        cmocka_unit_test_setup_teardown(enormous_requests_do_not_overflow, begin, end),
        cmocka_unit_test_setup_teardown(devices_are_counted_whole, begin, end),
        cmocka_unit_test_setup_teardown(the_host_is_not_asked_for_a_devices_bytes, begin, end),
        cmocka_unit_test_setup_teardown(what_does_not_fit_is_named, begin, end),
        cmocka_unit_test_setup_teardown(devices_are_as_the_door_says, begin, end),
        cmocka_unit_test_setup_teardown(journals_are_planned, begin, end),
    };
    tap_begin(60);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
