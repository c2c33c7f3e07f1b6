/* The law over stage objects, on a small random model: the bits of a row do not depend on cuts,
 * chunks, other rows, forks, threads or instruction set. */
#include "kernels/cpu/isa.h"
#include "tests/support/gguf_build.h"
#include "tests/support/stage_chain.h"
#include "tests/support/tap.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define N_TOKENS 300u /* over the border of an attention cell and several KV blocks */
#define N_LAYERS 5u

static llama_spec small(void)
{
    llama_spec s = llama_spec_default();
    s.n_layers = N_LAYERS;
    s.n_ctx = 512;
    return s;
}

/* gemma3, whose window layers keep one or two blocks; five of the layers, to fit the cuts. */
static llama_spec windowed(void)
{
    llama_spec s = llama_spec_arch("gemma3");
    s.n_layers = N_LAYERS;
    s.n_ctx = 512;
    return s;
}

static gguf *built(const gguf_build *b)
{
    gguf *g = NULL;
    errmsg e = {0};
    int fd = gguf_build_fd(b);
    status s = gguf_open_fds(&g, &fd, 1, &e);
    if (s != ST_OK) print_error("# %s\n", e.text);
    assert_int_equal(s, ST_OK);
    return g;
}

static gguf *small_file(const llama_spec *s)
{
    gguf_build *b = gguf_build_llama(s);
    gguf *g = built(b);
    gguf_build_free(b);
    return g;
}

static chain_spec spec_of(dtype kv_type)
{
    chain_spec s = chain_spec_default();
    s.n_ctx = 512;
    s.rows_max = N_TOKENS;
    s.n_blocks = 32;
    s.kv_type = kv_type;
    return s;
}

static uint32_t token_at(uint32_t i)
{
    return (i * 2654435761u >> 7) % 320;
}

static void fill_tokens(uint32_t *tokens, uint32_t n, uint32_t from)
{
    for (uint32_t i = 0; i < n; i++)
        tokens[i] = token_at(from + i);
}

/* Logits after each of n <= N_TOKENS tokens, [n, n_vocab], owned by the caller. */
static float *logits_of(const llama_spec *m, const chain_spec *s, uint32_t n, uint32_t chunk,
                        uint64_t *bytes)
{
    chain c;
    chain_session session;
    uint32_t tokens[N_TOKENS];
    chain_open(&c, small_file(m), s);
    *bytes = (uint64_t)n * c.model->n_vocab * sizeof(float);
    float *logits = malloc(*bytes);
    fill_tokens(tokens, n, 0);
    session_begin(&c, &session, 1);
    session_feed(&c, &session, tokens, n, chunk, logits);
    chain_close(&c);
    return logits;
}

static void set_cuts(chain_spec *s, uint32_t mask)
{
    s->n_cuts = 0;
    for (uint32_t cut = 1; cut < N_LAYERS; cut++) {
        if ((mask >> (cut - 1)) & 1) s->cut[s->n_cuts++] = cut;
    }
}

static void every_cut_is_equal(void **state)
{
    (void)state;
    const dtype kv[] = {DT_F32, DT_F16, DT_BF16};
    const dtype type[] = {DT_F32, DT_Q8_0, DT_BF16};
    for (uint32_t t = 0; t < 3; t++) {
        llama_spec m = small();
        m.type = type[t];
        m.tied = t == 1;
        chain_spec s = spec_of(kv[t]);
        uint64_t bytes;
        float *one = logits_of(&m, &s, 70, 70, &bytes);
        for (uint32_t mask = 1; mask < 1u << (N_LAYERS - 1); mask++) {
            set_cuts(&s, mask);
            float *many = logits_of(&m, &s, 70, 70, &bytes);
            assert_memory_equal(one, many, bytes);
            free(many);
        }
        free(one);
    }
}

/* A device that goes through a row's layers and head in one launch: here it makes nothing, and keeps
 * what it is told, stage after stage. */
static struct {
    walk_desc w;
    walk_layer layer[N_LAYERS];
} told[2];
static uint32_t n_told;

static status whole_open(backend_device *d, backend_walk **out, const walk_desc *w, errmsg *e)
{
    (void)d;
    (void)e;
    assert_true(n_told < 2 && w->n_layers <= N_LAYERS);
    told[n_told].w = *w;
    memcpy(told[n_told++].layer, w->layer, w->n_layers * sizeof *w->layer);
    *out = (backend_walk *)(uintptr_t)64;
    return ST_OK;
}

static void whole_close(backend_walk *w)
{
    (void)w;
}

static status whole_walk(backend_queue *q, const backend_walk *w, bool head)
{
    (void)q;
    (void)w;
    (void)head;
    return ST_OK;
}

static backend whole_backend(void)
{
    backend table = *backend_cpu();
    table.walk_open = whole_open;
    table.walk_close = whole_close;
    table.walk = whole_walk;
    n_told = 0;
    return table;
}

/* The launch hears of every norm, and of each layer's kind as the model, not the range, counts it. */
static void one_launch_is_told_of_kinds_and_norms(void **state)
{
    (void)state;
    backend table = whole_backend();
    llama_spec m = windowed();
    chain_spec s = spec_of(DT_F32);
    s.backend = &table;
    s.n_cuts = 1;
    s.cut[0] = 2;
    chain c;
    chain_open(&c, small_file(&m), &s);
    assert_int_equal(n_told, 2);
    for (uint32_t i = 0, il = 0; i < 2; i++) {
        const walk_desc *w = &told[i].w;
        assert_int_equal(w->n_kinds, 2);
        assert_int_equal(w->kind[LAYER_GLOBAL].window, 0);
        assert_int_equal(w->kind[LAYER_WINDOW].window, m.window);
        assert_true(w->kind[0].rows.table.addr != w->kind[1].rows.table.addr);
        assert_true(w->kind[0].rope.cos.addr != w->kind[1].rope.cos.addr);
        assert_int_equal(w->output.data.addr != 0, i == 1);
        for (uint32_t k = 0; k < w->n_layers; k++, il++) {
            const walk_layer *l = &told[i].layer[k];
            assert_int_equal(l->kind_i, c.model->layer[il].kind);
            assert_true(l->attn_q_norm.addr != 0 && l->attn_k_norm.addr != 0);
            assert_true(l->attn_post_norm.addr != 0 && l->ffn_post_norm.addr != 0);
        }
    }
    assert_int_equal(c.model->layer[2].kind, LAYER_GLOBAL); /* the second range begins with one */
    chain_close(&c);
}

/* A row that has ended in a round walks nowhere: what the walk before it left is not its result. */
static void an_ended_row_commits_nothing(void **state)
{
    (void)state;
    backend table = whole_backend();
    llama_spec m = small();
    chain_spec s = spec_of(DT_F32);
    s.backend = &table;
    chain c;
    chain_session session;
    uint32_t token = 1, n_committed = 1;
    errmsg e = {0};
    chain_open(&c, small_file(&m), &s);
    float *logits = malloc(c.model->n_vocab * sizeof *logits);
    session_begin(&c, &session, 1);
    session_feed(&c, &session, &token, 1, 1, logits); /* in one launch, with its head */
    wire_row ended = {.session = 1, .generation = session.generation, .branch = session.branch,
                      .position = 1, .token = token, .flags = ROW_LOGITS, .readback = 0,
                      .sampler_i = WIRE_NONE};
    assert_int_equal(stage_rows(c.stage[0], &ended, 1, 0, &e), ST_OK);
    assert_int_equal(stage_head(c.stage[0], NULL, &c.results, c.seq + 1, &n_committed, NULL, c.poison, &e), ST_OK);
    assert_int_equal(n_committed, 0);
    assert_int_equal(atomic_load(&chain_result(&c, 0)->commit), c.seq);
    free(logits);
    chain_close(&c);
}

/* The same for other architectures: prompts over the window, several chunks, isas and threads. */
static void other_architectures_are_equal(void **state)
{
    (void)state;
    static const char *const arch[] = {"qwen2", "qwen3", "gemma3"}, *const isa[] = {"ref", "avx2"};
    for (uint32_t t = 0; t < 3; t++) {
        llama_spec m = llama_spec_arch(arch[t]);
        m.n_layers = N_LAYERS;
        m.n_ctx = 512;
        m.type = t == 1 ? DT_BF16 : DT_F32;
        chain_spec s = spec_of(t == 0 ? DT_F16 : DT_F32);
        uint64_t bytes;
        float *one = logits_of(&m, &s, 200, 200, &bytes);
        const uint32_t mask[] = {1, 2, 8, 15, 6}, chunk[] = {200, 64, 23, 100, 1};
        for (uint32_t i = 0; i < 5; i++) {
            set_cuts(&s, mask[i]);
            s.isa = i < 2 && cpu_isa_get(isa[i]) != NULL ? isa[i] : "auto";
            s.n_threads = 1 + i % 3;
            float *many = logits_of(&m, &s, 200, chunk[i], &bytes);
            assert_memory_equal(one, many, bytes);
            free(many);
        }
        free(one);
    }
}

static void check_chunks(dtype kv_type, const uint32_t *chunk, uint32_t n_chunks, uint32_t n)
{
    llama_spec m = small();
    uint64_t bytes;
    chain_spec s = spec_of(kv_type);
    float *whole = logits_of(&m, &s, n, n, &bytes);
    set_cuts(&s, 2);
    for (uint32_t i = 0; i < n_chunks; i++) {
        float *cut = logits_of(&m, &s, n, chunk[i], &bytes);
        assert_memory_equal(whole, cut, bytes);
        free(cut);
    }
    free(whole);
}

static void chunks_are_equal(void **state)
{
    (void)state;
    check_chunks(DT_F32, (uint32_t[]){1, 2, 3, 7, 64}, 5, 80);
    check_chunks(DT_F16, (uint32_t[]){1, 5, 64}, 3, 80);
    check_chunks(DT_BF16, (uint32_t[]){1, 257}, 2, N_TOKENS); /* over an attention cell's border */
}

static void isa_and_threads_are_equal(void **state)
{
    (void)state;
    const char *const isa[] = {"ref", "avx2", "avx512", "amx"};
    const dtype type[] = {DT_F32, DT_F16, DT_BF16, DT_Q8_0, DT_Q4_1};
    for (uint32_t t = 0; t < 5; t++) {
        llama_spec m = small();
        uint64_t bytes;
        m.type = type[t];
        m.biases = t == 1;
        m.rope_freqs = t == 2;
        chain_spec s = spec_of(t == 1 ? DT_F16 : t == 2 ? DT_BF16 : DT_F32);
        float *first = logits_of(&m, &s, 80, 50, &bytes);
        for (uint32_t i = 0; i < 4; i++) {
            if (cpu_isa_get(isa[i]) == NULL) {
                if (t == 0) print_message("# skipped: %s is not on this machine\n", isa[i]);
                continue;
            }
            s.isa = isa[i];
            s.n_threads = i + 1;
            float *other = logits_of(&m, &s, 80, 50, &bytes);
            assert_memory_equal(first, other, bytes);
            free(other);
        }
        free(first);
    }
}

/* Sessions that join at different times: each equals itself alone. */
static void check_batch(llama_spec m)
{
    enum { N = 3, STEPS = 90 };
    chain_spec spec = spec_of(DT_F16);
    set_cuts(&spec, 5);
    chain c;
    chain_session s[N];
    chain_open(&c, small_file(&m), &spec);
    uint64_t n_vocab = c.model->n_vocab;
    float *alone = malloc(STEPS * n_vocab * sizeof *alone), *row[N];
    float *together = malloc(N * STEPS * n_vocab * sizeof *together);
    for (uint32_t i = 0; i < N; i++)
        session_begin(&c, &s[i], i);
    for (uint32_t step = 0; step < STEPS; step++) {
        chain_session *here[N];
        uint32_t tokens[N], n = 0;
        for (uint32_t k = N; k-- > 0;) { /* last session first: another order than by branch */
            if (step < 20 * k) continue;
            uint32_t at = step - 20 * k;
            here[n] = &s[k];
            tokens[n] = token_at(1000 * k + at);
            row[n++] = &together[(k * STEPS + at) * n_vocab];
        }
        sessions_feed(&c, here, tokens, n, row);
    }
    for (uint32_t k = 0; k < N; k++) {
        uint32_t tokens[STEPS], n = STEPS - 20 * k;
        session_end(&c, &s[k]);
        fill_tokens(tokens, n, 1000 * k);
        session_begin(&c, &s[k], k);
        session_feed(&c, &s[k], tokens, n, 31, alone);
        session_end(&c, &s[k]);
        assert_memory_equal(alone, &together[k * STEPS * n_vocab], n * n_vocab * sizeof(float));
    }
    chain_close(&c);
    free(alone);
    free(together);
}

static void batch_is_equal_to_alone(void **state)
{
    (void)state;
    check_batch(small());
    check_batch(windowed());
}

static void check_forks(llama_spec m)
{
    const uint32_t at[] = {1, 63, 64, 65, 128};
    enum { MORE = 40 };
    chain_spec spec = spec_of(DT_F32);
    set_cuts(&spec, 6);
    chain c;
    chain_open(&c, small_file(&m), &spec);
    uint64_t n_vocab = c.model->n_vocab, bytes = MORE * n_vocab * sizeof(float);
    float *parent = malloc(bytes), *child = malloc(bytes);
    float *fresh = malloc((128 + MORE) * n_vocab * sizeof *fresh);
    for (uint32_t i = 0; i < sizeof at / sizeof *at; i++) {
        chain_session a, b, f;
        uint32_t tokens[128 + MORE], other[128 + MORE];
        fill_tokens(tokens, at[i] + MORE, 0);
        fill_tokens(other, at[i] + MORE, 0);
        fill_tokens(other + at[i], MORE, 5000);
        session_begin(&c, &a, 0);
        session_feed(&c, &a, tokens, at[i], 50, NULL);
        session_split(&c, &a, &b, 1);
        session_feed(&c, &a, tokens + at[i], MORE / 2, 7, parent);
        session_feed(&c, &b, other + at[i], MORE, 9, child);
        session_feed(&c, &a, tokens + at[i] + MORE / 2, MORE / 2, 3, parent + MORE / 2 * n_vocab);
        session_begin(&c, &f, 2);
        session_feed(&c, &f, tokens, at[i] + MORE, 100, fresh);
        assert_memory_equal(parent, fresh + at[i] * n_vocab, bytes);
        session_end(&c, &f);
        session_begin(&c, &f, 2);
        session_feed(&c, &f, other, at[i] + MORE, 100, fresh);
        assert_memory_equal(child, fresh + at[i] * n_vocab, bytes);
        session_end(&c, &a);
        session_end(&c, &b);
        session_end(&c, &f);
    }
    chain_close(&c);
    free(parent);
    free(child);
    free(fresh);
}

static void forks_are_equal_to_fresh(void **state)
{
    (void)state;
    check_forks(small());
    check_forks(windowed());
}

/* Back to n of its tokens; from the first on where the window before n is gone. */
static void back_to(chain *c, chain_session *s, const uint32_t *tokens, uint32_t n)
{
    uint32_t window = c->model->window, begin = n + 1 > window ? n + 1 - window : 0;
    if (begin / KV_BLOCK >= s->table[KV_CLASS_WINDOW].first) {
        session_cut(c, s, n);
        return;
    }
    session_cut(c, s, 0);
    session_feed(c, s, tokens, n, 64, NULL);
}

/* Back to n positions and on with other tokens, also where a fork still holds the old ones. */
static void check_truncation(llama_spec m)
{
    const uint32_t to[] = {0, 1, 64, 149};
    enum { LONG = 150, MORE = 30 };
    chain_spec spec = spec_of(DT_BF16);
    set_cuts(&spec, 1);
    chain c;
    chain_open(&c, small_file(&m), &spec);
    uint64_t n_vocab = c.model->n_vocab, bytes = MORE * n_vocab * sizeof(float);
    float *again = malloc(bytes), *fresh = malloc((LONG + MORE) * n_vocab * sizeof *fresh);
    for (uint32_t i = 0; i < sizeof to / sizeof *to; i++) {
        chain_session a, b, f;
        uint32_t tokens[LONG + MORE];
        fill_tokens(tokens, LONG, 0);
        session_begin(&c, &a, 3);
        session_feed(&c, &a, tokens, LONG, 64, NULL);
        session_split(&c, &a, &b, 0);
        back_to(&c, &a, tokens, to[i]);
        fill_tokens(tokens + to[i], MORE, 9000);
        session_feed(&c, &a, tokens + to[i], MORE, 8, again);
        session_begin(&c, &f, 1);
        session_feed(&c, &f, tokens, to[i] + MORE, 64, fresh);
        assert_memory_equal(again, fresh + to[i] * n_vocab, bytes);
        session_end(&c, &f);
        fill_tokens(tokens, LONG + MORE, 0); /* the fork has kept its own */
        session_feed(&c, &b, tokens + LONG, MORE, 5, again);
        session_begin(&c, &f, 1);
        session_feed(&c, &f, tokens, LONG + MORE, 64, fresh);
        assert_memory_equal(again, fresh + LONG * n_vocab, bytes);
        session_end(&c, &a);
        session_end(&c, &b);
        session_end(&c, &f);
    }
    chain_close(&c);
    free(again);
    free(fresh);
}

static void truncation_is_forgetting(void **state)
{
    (void)state;
    check_truncation(small());
    check_truncation(windowed());
}

/* A window layer's blocks are few: what a session keeps does not grow with its length, and blocks
 * that it let go serve others. A row whose window was released is refused. */
static void windows_keep_what_they_need(void **state)
{
    (void)state;
    llama_spec m = windowed();
    chain_spec spec = spec_of(DT_F32);
    chain c;
    chain_session s;
    uint32_t tokens[N_TOKENS];
    errmsg e = {0};
    spec.rows_max = 32;
    set_cuts(&spec, 4);
    chain_open(&c, small_file(&m), &spec);
    assert_int_equal(c.plan.n_blocks[KV_CLASS_WINDOW], 4 * 2); /* 24 - 1 + 32 positions */
    assert_int_equal(c.plan.n_blocks[KV_CLASS_GLOBAL], 4 * 8);
    fill_tokens(tokens, N_TOKENS, 0);
    session_begin(&c, &s, 1);
    session_feed(&c, &s, tokens, N_TOKENS, 32, NULL);
    assert_int_equal(s.table[KV_CLASS_GLOBAL].n, 5);
    assert_true(s.table[KV_CLASS_WINDOW].first >= 3);
    wire_row r = {.generation = s.generation, .branch = 1, .position = 100, .flags = ROW_LIVE,
                  .readback = WIRE_NONE, .sampler_i = WIRE_NONE};
    assert_int_equal(chain_step(&c, NULL, 0, &r, 1, NULL, 0, &e), ST_PROTOCOL);
    assert_non_null(strstr(e.text, "the window of position 100 begins at 77"));
    chain_close(&c);
}

/* A drawn token is sampler_draw of the logits and of the history, over forks and cuts of blocks. */
static void drawn_tokens_know_their_history(void **state)
{
    (void)state;
    llama_spec m = small();
    chain_spec spec = spec_of(DT_F32);
    chain one, three;
    chain_session s1, s3, plain, forked;
    sampler_params p = sampler_default();
    p.temperature = 0.8f;
    p.top_p = 0.9f;
    p.repetition_penalty = 1.3f;
    p.frequency_penalty = 0.2f;
    p.penalty_last_n = 100;
    p.seed = 42;
    chain_open(&one, small_file(&m), &spec);
    set_cuts(&spec, 9);
    chain_open(&three, small_file(&m), &spec);
    uint32_t n_vocab = one.model->n_vocab, history[200], n = 0;
    float *logits = malloc(n_vocab * sizeof *logits);
    void *scratch = malloc(sampler_scratch_bytes(n_vocab));
    session_begin(&one, &s1, 0);
    session_begin(&one, &plain, 1);
    session_begin(&three, &s3, 0);
    history[n++] = 1;
    for (; n < 190; n++) {
        uint32_t expected, last = history[n - 1], first = n > 100 ? n - 100 : 0;
        if (n == 70) {
            session_split(&three, &s3, &forked, 2);
            session_end(&three, &s3);
            s3 = forked;
        }
        session_feed(&one, &plain, &last, 1, 1, logits);
        assert_int_equal(sampler_draw(&expected, logits, n_vocab, &p, history + first, n - first,
                                      n - 1, scratch),
                         ST_OK);
        history[n] = session_sample(&one, &s1, last, &p);
        assert_int_equal(history[n], expected);
        assert_int_equal(session_sample(&three, &s3, last, &p), expected);
    }
    free(scratch);
    free(logits);
    chain_close(&one);
    chain_close(&three);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_cut_is_equal),
        cmocka_unit_test(one_launch_is_told_of_kinds_and_norms),
        cmocka_unit_test(an_ended_row_commits_nothing),
        cmocka_unit_test(other_architectures_are_equal),
        cmocka_unit_test(chunks_are_equal),
        cmocka_unit_test(isa_and_threads_are_equal),
        cmocka_unit_test(batch_is_equal_to_alone),
        cmocka_unit_test(forks_are_equal_to_fresh),
        cmocka_unit_test(truncation_is_forgetting),
        cmocka_unit_test(windows_keep_what_they_need),
        cmocka_unit_test(drawn_tokens_know_their_history),
    };
    tap_begin(240);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
