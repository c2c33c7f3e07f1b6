#include "coordinator/shape/shape.h"
#include "common/amount.h"

#include "common/clock.h"
#include "common/doortext.h"
#include "common/model.h"
#include "coordinator/shape/gguf_write.h"
#include "coordinator/machine/inventory.h"
#include "coordinator/commands/output.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* --- names --------------------------------------------------------------------------------------
 */

#define N_CTX_DEFAULT 131072u

/* Published configurations of Llama 3.1 and 3.2, Qwen3 and Gemma 3 (its positions unstretched). */
static const struct {
    const char *name, *arch;
    uint32_t n_layers, n_embd, n_ff, n_heads, n_kv_heads;
    uint32_t n_head; /* 0: n_embd / n_heads */
    uint32_t n_vocab, window;
    bool tied;
} known[] = {
    {"1b", "llama", 16, 2048, 8192, 32, 8, 0, 128256, 0, true},
    {"3b", "llama", 28, 3072, 8192, 24, 8, 0, 128256, 0, true},
    {"8b", "llama", 32, 4096, 14336, 32, 8, 0, 128256, 0, false},
    {"70b", "llama", 80, 8192, 28672, 64, 8, 0, 128256, 0, false},
    {"405b", "llama", 126, 16384, 53248, 128, 8, 0, 128256, 0, false},
    {"qwen3-4b", "qwen3", 36, 2560, 9728, 32, 8, 128, 151936, 0, true},
    {"gemma3-4b", "gemma3", 34, 2560, 10240, 8, 4, 256, 262208, 1024, true},
};
#define COUNT(a)    (sizeof(a) / sizeof *(a))
#define KNOWN_NAMES "1b, 3b, 8b, 70b, 405b, qwen3-4b, gemma3-4b"

static bool take_known(shape *s, const char *item, size_t n)
{
    for (size_t i = 0; i < COUNT(known); i++) {
        if (!doortext_is(item, n, known[i].name)) continue;
        *s = (shape){.arch = known[i].arch,
                     .window = known[i].window,
                     .n_layers = known[i].n_layers,
                     .n_embd = known[i].n_embd,
                     .n_ff = known[i].n_ff,
                     .n_heads = known[i].n_heads,
                     .n_kv_heads = known[i].n_kv_heads,
                     .n_head = known[i].n_head,
                     .n_vocab = known[i].n_vocab,
                     .tied = known[i].tied};
        return true;
    }
    return false;
}

/* --- "key=number" -------------------------------------------------------------------------------
 */

#define KEYS "layers, embd, ff, heads, kv-heads, head, vocab, tied, ctx, seed"

static status take_pair(shape *s, const char *item, size_t n, errmsg *e)
{
    uint32_t tied = s->tied;
    const struct {
        const char *key;
        uint32_t *to;
        uint64_t max;
    } keys[] = {
        {"layers", &s->n_layers, LAYERS_MAX},
        {"embd", &s->n_embd, MODEL_WIDTH_MAX},
        {"ff", &s->n_ff, MODEL_WIDTH_MAX},
        {"heads", &s->n_heads, MODEL_WIDTH_MAX},
        {"kv-heads", &s->n_kv_heads, MODEL_WIDTH_MAX},
        {"head", &s->n_head, 2 * ROPE_PAIRS_MAX},
        {"vocab", &s->n_vocab, SAMPLER_VOCAB_MAX},
        {"ctx", &s->n_ctx_train, PLAN_CTX_MAX},
        {"tied", &tied, 1},
        {"seed", NULL, UINT64_MAX},
    };
    char quoted[DOORTEXT_QUOTE_BYTES];
    const char *equals = memchr(item, '=', n);
    for (size_t i = 0; equals != NULL && i < COUNT(keys); i++) {
        uint64_t value = 0;
        if (!doortext_is(item, (size_t)(equals - item), keys[i].key)) continue;
        bool zero_is_fine = keys[i].to == NULL || keys[i].to == &tied;
        if (doortext_number(equals + 1, n - (size_t)(equals + 1 - item), keys[i].max, &value) !=
                NUMBER_OK ||
            (value == 0 && !zero_is_fine)) {
            return errmsg_set(e, ST_USAGE, "--shape: %s; rule: a number from %d to %llu",
                              doortext_quote(quoted, item, n), zero_is_fine ? 0 : 1,
                              (unsigned long long)keys[i].max);
        }
        if (keys[i].to != NULL)
            *keys[i].to = (uint32_t)value;
        else
            s->seed = value;
        s->tied = tied != 0;
        return ST_OK;
    }
    return errmsg_set(e, ST_USAGE,
                      "--shape: %s is neither a known shape (" KNOWN_NAMES
                      ") in the first place nor KEY=NUMBER (" KEYS ")",
                      doortext_quote(quoted, item, n));
}

/* What was left out, and what does not go together. */
static status settle(shape *s, errmsg *e)
{
    const struct {
        const char *key;
        uint32_t value;
    } needed[] = {{"layers", s->n_layers},
                  {"embd", s->n_embd},
                  {"ff", s->n_ff},
                  {"heads", s->n_heads},
                  {"vocab", s->n_vocab}};
    for (size_t i = 0; i < COUNT(needed); i++) {
        if (needed[i].value == 0)
            return errmsg_set(e, ST_USAGE, "--shape: %s= is missing; see --help", needed[i].key);
    }
    if (s->n_kv_heads == 0) s->n_kv_heads = s->n_heads;
    if (s->n_ctx_train == 0) s->n_ctx_train = N_CTX_DEFAULT;
    if (s->n_head == 0) {
        if (s->n_embd % s->n_heads != 0)
            return errmsg_set(e, ST_USAGE, "--shape: %u wide and %u heads: name head=", s->n_embd,
                              s->n_heads);
        s->n_head = s->n_embd / s->n_heads;
    }
    if (s->n_heads % s->n_kv_heads != 0)
        return errmsg_set(e, ST_USAGE, "--shape: %u heads are no multiple of %u kv-heads",
                          s->n_heads, s->n_kv_heads);
    if (s->n_head % 2 != 0 || s->n_head > 2 * ROPE_PAIRS_MAX ||
        (uint64_t)s->n_head * s->n_heads > MODEL_WIDTH_MAX)
        return errmsg_set(e, ST_USAGE,
                          "--shape: %u heads of %u values; rule: even, %u at most, %u together",
                          s->n_heads, s->n_head, 2 * ROPE_PAIRS_MAX, MODEL_WIDTH_MAX);
    return ST_OK;
}

static status take_type(shape *s, const char *type, errmsg *e)
{
    char names[200] = "";
    size_t at = 0;
    for (uint32_t t = 0; t < DT_COUNT; t++) {
        const dtype_info *info = dtype_get(t);
        if (info == NULL || !info->supported || !shape_has_values((dtype)t)) continue;
        if (strcasecmp(info->name, type) == 0) {
            s->type = (dtype)t;
            const uint64_t rows[] = {s->n_embd, s->n_ff, (uint64_t)s->n_heads * s->n_head};
            for (size_t i = 0; i < COUNT(rows); i++) {
                if (rows[i] % info->block_values == 0) continue;
                return errmsg_set(e, ST_USAGE,
                                  "--type %s: rows of %llu values are not whole blocks of %u",
                                  info->name, (unsigned long long)rows[i], info->block_values);
            }
            return ST_OK;
        }
        if (at < sizeof names)
            at += (size_t)snprintf(names + at, sizeof names - at, "%s%s", at > 0 ? ", " : "",
                                   info->name);
    }
    char quoted[DOORTEXT_QUOTE_BYTES];
    return errmsg_set(e, ST_USAGE, "--type=%s is none that this build multiplies; rule: %s",
                      doortext_quote(quoted, type, strlen(type)), names);
}

status shape_parse(shape *out, const char *text, const char *type, errmsg *e)
{
    const char *at = text, *item;
    size_t n;
    *out = (shape){.arch = "llama"};
    for (bool first = true; doortext_next(&at, ',', &item, &n); first = false) {
        if (first && take_known(out, item, n)) continue;
        TRY(take_pair(out, item, n, e));
    }
    if (out->seed == 0) out->seed = 1;
    TRY(settle(out, e));
    TRY(take_type(out, type != NULL ? type : "q8_0", e));
    char shown[SHAPE_NAME_BYTES - 24];
    snprintf(shown, sizeof shown, "%s", text);
    output_clean(shown);
    snprintf(out->name, sizeof out->name, "random %s %s", shown, dtype_get(out->type)->name);
    return ST_OK;
}

/* --- the file -----------------------------------------------------------------------------------
 */

/* A key of the architecture's own. */
static void write_u32(gguf_write *w, const shape *s, const char *suffix, uint32_t value)
{
    char key[GGUF_NAME_BYTES];
    snprintf(key, sizeof key, "%s.%s", s->arch, suffix);
    gguf_write_u32(w, key, value);
}

static void write_f32(gguf_write *w, const shape *s, const char *suffix, float value)
{
    char key[GGUF_NAME_BYTES];
    snprintf(key, sizeof key, "%s.%s", s->arch, suffix);
    gguf_write_f32(w, key, value);
}

static bool is_llama(const shape *s)
{
    return strcmp(s->arch, "llama") == 0;
}

static void write_keys(gguf_write *w, const shape *s)
{
    gguf_write_text(w, "general.architecture", s->arch);
    gguf_write_text(w, "general.name", s->name);
    write_u32(w, s, "block_count", s->n_layers);
    write_u32(w, s, "context_length", s->n_ctx_train);
    write_u32(w, s, "embedding_length", s->n_embd);
    write_u32(w, s, "feed_forward_length", s->n_ff);
    write_u32(w, s, "attention.head_count", s->n_heads);
    write_u32(w, s, "attention.head_count_kv", s->n_kv_heads);
    write_u32(w, s, "attention.key_length", s->n_head);
    write_u32(w, s, "attention.value_length", s->n_head);
    if (s->window != 0) write_u32(w, s, "attention.sliding_window", s->window);
    write_u32(w, s, "rope.dimension_count", s->n_head);
    write_u32(w, s, "vocab_size", s->n_vocab);
    write_f32(w, s, "rope.freq_base", is_llama(s) ? 500000.0f : 1000000.0f);
    write_f32(w, s, "attention.layer_norm_rms_epsilon", is_llama(s) ? 1e-5f : 1e-6f);
    gguf_write_text(w, "tokenizer.ggml.model", "no_vocab");
}

/* What some architectures have: norms of heads, norms after a block. */
enum { HEAD_NORM = 1, POST_NORM = 2 };

static int norms_of(const shape *s)
{
    return is_llama(s) ? 0 : strcmp(s->arch, "gemma3") == 0 ? HEAD_NORM | POST_NORM : HEAD_NORM;
}

static void write_layer(gguf_write *w, const shape *s, uint32_t il)
{
    uint64_t q = (uint64_t)s->n_heads * s->n_head, kv = (uint64_t)s->n_kv_heads * s->n_head;
    const struct {
        const char *name;
        uint64_t row, rows; /* rows 0: a vector */
        int norm;           /* 0: of every architecture */
    } list[] = {
        {"attn_norm", s->n_embd, 0, 0},
        {"attn_q", s->n_embd, q, 0},
        {"attn_k", s->n_embd, kv, 0},
        {"attn_v", s->n_embd, kv, 0},
        {"attn_q_norm", s->n_head, 0, HEAD_NORM},
        {"attn_k_norm", s->n_head, 0, HEAD_NORM},
        {"attn_output", q, s->n_embd, 0},
        {"post_attention_norm", s->n_embd, 0, POST_NORM},
        {"ffn_norm", s->n_embd, 0, 0},
        {"ffn_gate", s->n_embd, s->n_ff, 0},
        {"ffn_up", s->n_embd, s->n_ff, 0},
        {"ffn_down", s->n_ff, s->n_embd, 0},
        {"post_ffw_norm", s->n_embd, 0, POST_NORM},
    };
    for (size_t i = 0; i < COUNT(list); i++) {
        char name[GGUF_NAME_BYTES];
        if (list[i].norm != 0 && (norms_of(s) & list[i].norm) == 0) continue;
        snprintf(name, sizeof name, "blk.%u.%s.weight", il, list[i].name);
        gguf_write_tensor(w, name, list[i].rows == 0 ? DT_F32 : s->type, list[i].row, list[i].rows);
    }
}

static status make_file(int *fd, const gguf_write *w, errmsg *e)
{
    uint64_t bytes = w->n + w->data_bytes;
    int f = memfd_create("memra-pp-shape", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (f < 0 || ftruncate(f, (off_t)bytes) != 0 || pwrite(f, w->bytes, w->n, 0) != (ssize_t)w->n ||
        fcntl(f, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
        status s = errmsg_set(e, ST_RESOURCES, "cannot make a file of %s in memory: %s",
                              amount_said(bytes), strerror(errno));
        if (f >= 0) close(f);
        return s;
    }
    *fd = f;
    return ST_OK;
}

status shape_open(int *fd, const shape *s, errmsg *e)
{
    gguf_write w;
    *fd = -1;
    gguf_write_begin(&w);
    write_keys(&w, s);
    gguf_write_tensor(&w, "token_embd.weight", s->type, s->n_embd, s->n_vocab);
    for (uint32_t il = 0; il < s->n_layers; il++)
        write_layer(&w, s, il);
    gguf_write_tensor(&w, "output_norm.weight", DT_F32, s->n_embd, 0);
    if (!s->tied) gguf_write_tensor(&w, "output.weight", s->type, s->n_embd, s->n_vocab);
    status st = gguf_write_end(&w, e);
    if (st == ST_OK) st = make_file(fd, &w, e);
    gguf_write_free(&w);
    return st;
}

/* --- for commands -------------------------------------------------------------------------------
 */

status shape_take(shape_options *o, common_options *c, errmsg *e)
{
    if (o->text == NULL && o->type != NULL)
        return errmsg_set(e, ST_USAGE,
                          "--type says how --shape is stored; a file has its own types");
    if (o->text == NULL) return ST_OK;
    if (c->model != NULL && !c->model_is_demo)
        return errmsg_set(e, ST_USAGE, "-m and --shape both give the model; one of them is enough");
    TRY(shape_parse(&o->shape, o->text, o->type, e));
    TRY(shape_open(&c->model_fd, &o->shape, e));
    c->model = o->shape.name;
    c->model_is_demo = false;
    return ST_OK;
}

/* As one stage: the pipelines look again when they know their cuts. */
static status check_memory(const common_options *c, errmsg *e)
{
    const doors one = doors_default();
    gguf *file = NULL;
    status s = ST_OK;
    plan *p = malloc(sizeof *p);
    model_desc *m = malloc(sizeof *m);
    if (p == NULL || m == NULL) {
        s = errmsg_set(e, ST_RESOURCES, "no memory for the model's description");
        goto done;
    }
    TRY_DONE(s, options_open_model(c, &file, e));
    TRY_DONE(s, model_read(m, file, e));
    TRY_DONE(s, plan_make(p, m, &one, &c->plan, e));
    s = plan_fits(p, m, inventory_memory_available(), e);
done:
    if (file != NULL) gguf_close(file);
    free(m);
    free(p);
    return s;
}

status shape_ready(const shape_options *o, const common_options *c, errmsg *e)
{
    if (o == NULL || o->text == NULL) return ST_OK;
    TRY(check_memory(c, e));
    struct stat st = {0};
    uint64_t begin = now_ns();
    TRY(shape_fill(c->model_fd, &o->shape, 0, &interrupted, e));
    (void)fstat(c->model_fd, &st);
    log_info("%s: %s in memory, made in %.1f s", o->shape.name,
             amount_said((uint64_t)st.st_size),
             (double)(now_ns() - begin) / (double)NS_PER_S);
    return ST_OK;
}
