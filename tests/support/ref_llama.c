#include "tests/support/ref_llama.h"

#include "kernels/cpu/quant.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    const gguf *g;
    const char *arch;
    bool neox, gemma;
    uint32_t window, period; /* of `period` layers the last sees everything */
    double base_window;
    uint32_t n_layers, n_embd, n_heads, n_kv, n_head, n_rot, n_ff, n_vocab;
    double eps, base, factor, n_ctx_orig, beta_fast, beta_slow, attn_factor;
    bool linear, yarn;
} ref_model;

static double half_of(uint16_t h)
{
    int e = (h >> 10) & 31, m = h & 1023;
    double x = e == 0 ? ldexp(m, -24) : ldexp(1024 + m, e - 25);
    CHECK(e != 31);
    return h & 0x8000 ? -x : x;
}

static double value_at(const uint8_t *data, dtype type, uint64_t i)
{
    uint16_t h;
    float f;
    uint32_t u;
    switch (type) {
    case DT_F32:
        memcpy(&f, data + 4 * i, 4);
        return (double)f;
    case DT_F16:
        memcpy(&h, data + 2 * i, 2);
        return half_of(h);
    case DT_BF16:
        memcpy(&h, data + 2 * i, 2);
        u = (uint32_t)h << 16;
        memcpy(&f, &u, 4);
        return (double)f;
    case DT_Q8_0:
        memcpy(&h, data + i / 32 * 34, 2);
        return half_of(h) * (int8_t)data[i / 32 * 34 + 2 + i % 32];
    default:
        CHECK(!"a type of the reference");
        return 0;
    }
}

/* All values of a tensor; NULL when there is none of that name. */
static double *load(const ref_model *m, const char *format, uint32_t il)
{
    char name[GGUF_NAME_BYTES];
    errmsg e = {0};
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    snprintf(name, sizeof name, format, il);
#pragma GCC diagnostic pop
    const gguf_tensor *t = gguf_tensor_find(m->g, name);
    if (t == NULL) return NULL;
    uint64_t n = t->dim[0] * t->dim[1];
    uint8_t *stored = malloc(t->bytes);
    double *x = malloc(n * sizeof *x);
    CHECK(stored != NULL && x != NULL && gguf_tensor_read(m->g, t, stored, t->bytes, &e) == ST_OK);
    if (quant_is(t->type) && t->type != DT_Q8_0) {
        float *f = malloc(n * sizeof *f);
        CHECK(f != NULL);
        quant_to_f32_ref(f, stored, t->type, n);
        for (uint64_t i = 0; i < n; i++)
            x[i] = (double)f[i];
        free(f);
    } else {
        for (uint64_t i = 0; i < n; i++)
            x[i] = value_at(stored, t->type, i);
    }
    free(stored);
    return x;
}

static double number(const ref_model *m, const char *suffix, double otherwise)
{
    char key[96];
    const gguf *g = m->g;
    float f;
    uint32_t u;
    snprintf(key, sizeof key, "%s.%s", m->arch, suffix);
    if (gguf_f32(g, key, &f)) return (double)f;
    return gguf_u32(g, key, &u) ? (double)u : otherwise;
}

static void read_model(ref_model *m, const gguf *g)
{
    const char *word = "none";
    uint64_t bytes = 4;
    *m = (ref_model){.g = g};
    CHECK(gguf_string(g, "general.architecture", &m->arch, &bytes));
    m->gemma = strcmp(m->arch, "gemma3") == 0;
    m->neox = strcmp(m->arch, "llama") != 0;
    bytes = 4;
    m->window = (uint32_t)number(m, "attention.sliding_window", 0);
    m->period = (uint32_t)number(m, "attention.sliding_window_pattern", 6);
    m->base_window = number(m, "rope.freq_base_swa", 10000);
    m->n_layers = (uint32_t)number(m, "block_count", 0);
    m->n_embd = (uint32_t)number(m, "embedding_length", 0);
    m->n_ff = (uint32_t)number(m, "feed_forward_length", 0);
    m->n_heads = (uint32_t)number(m, "attention.head_count", 0);
    m->n_kv = (uint32_t)number(m, "attention.head_count_kv", m->n_heads);
    CHECK(m->n_layers > 0 && m->n_embd > 0 && m->n_ff > 0 && m->n_heads > 0 && m->n_kv > 0);
    m->n_head = (uint32_t)number(m, "attention.key_length", m->n_embd / m->n_heads);
    m->n_rot = (uint32_t)number(m, "rope.dimension_count", m->n_head);
    m->n_vocab = (uint32_t)gguf_tensor_find(g, "token_embd.weight")->dim[1];
    m->eps = number(m, "attention.layer_norm_rms_epsilon", 0);
    m->base = number(m, "rope.freq_base", 10000);
    m->factor = number(m, "rope.scaling.factor", 1);
    m->n_ctx_orig = number(m, "rope.scaling.original_context_length",
                           number(m, "context_length", 0));
    m->beta_fast = number(m, "rope.scaling.yarn_beta_fast", 32);
    m->beta_slow = number(m, "rope.scaling.yarn_beta_slow", 1);
    m->attn_factor = number(m, "rope.scaling.attn_factor", 1);
    char key[96];
    snprintf(key, sizeof key, "%s.rope.scaling.type", m->arch);
    (void)gguf_string(g, key, &word, &bytes);
    m->linear = bytes == 6 && memcmp(word, "linear", 6) == 0;
    m->yarn = bytes == 4 && memcmp(word, "yarn", 4) == 0;
    CHECK(m->linear || m->yarn || (bytes == 4 && memcmp(word, "none", 4) == 0));
}

static bool sees_window(const ref_model *m, uint32_t il)
{
    return m->window != 0 && il % m->period != m->period - 1;
}

/* The yarn paper's ramp, over pairs: 1 where the wave is short (kept), 0 where it is long. */
static double yarn_keep(const ref_model *m, uint32_t i)
{
    double turns[2] = {m->beta_fast, m->beta_slow}, pair[2];
    for (int k = 0; k < 2; k++)
        pair[k] = m->n_rot * log(m->n_ctx_orig / (turns[k] * 2 * M_PI)) / (2 * log(m->base));
    double low = fmax(0, floor(pair[0])), high = fmin(m->n_rot - 1.0, ceil(pair[1]));
    double x = (i - low) / fmax(0.001, high - low);
    return 1 - fmin(1, fmax(0, x));
}

static void rotate(const ref_model *m, double *x, uint32_t n_heads, uint32_t p, const double *freqs,
                   bool local)
{
    for (uint32_t i = 0; i < m->n_rot / 2; i++) {
        double base = local ? m->base_window : m->base;
        double angle = p * pow(base, -2.0 * i / m->n_rot), size = 1;
        if (freqs != NULL) angle /= freqs[i];
        if (m->linear && !local) angle /= m->factor;
        if (m->yarn) {
            double keep = yarn_keep(m, i);
            angle = keep * angle + (1 - keep) * angle / m->factor;
            size = m->attn_factor * (1 + 0.1 * log(m->factor));
        }
        double c = cos(angle) * size, s = sin(angle) * size;
        for (uint32_t h = 0; h < n_heads; h++) {
            double *first = &x[h * m->n_head + (m->neox ? i : 2 * i)];
            double *second = m->neox ? first + m->n_rot / 2 : first + 1;
            double a = *first, b = *second;
            *first = a * c - b * s;
            *second = a * s + b * c;
        }
    }
}

/* out[r, o] = sum x[r, i] w[o, i] (+ bias[o]); frees w and bias. */
static double *project(const double *x, double *w, double *bias, uint32_t n, uint32_t n_in,
                       uint32_t n_out)
{
    double *out = calloc((size_t)n * n_out, sizeof *out);
    CHECK(out != NULL && w != NULL);
    for (uint64_t r = 0; r < n; r++) {
        for (uint64_t o = 0; o < n_out; o++) {
            double sum = bias != NULL ? bias[o] : 0;
            for (uint64_t i = 0; i < n_in; i++)
                sum += x[r * n_in + i] * w[o * n_in + i];
            out[r * n_out + o] = sum;
        }
    }
    free(w);
    free(bias);
    return out;
}

/* Rows of `width`; frees w. */
static double *norm_of(const ref_model *m, const double *x, double *w, uint64_t n, uint32_t width)
{
    double *out = calloc((size_t)n * width, sizeof *out);
    CHECK(out != NULL && w != NULL);
    for (uint64_t r = 0; r < n; r++) {
        const double *row = &x[r * width];
        double sum = 0;
        for (uint32_t i = 0; i < width; i++)
            sum += row[i] * row[i];
        double scale = 1 / sqrt(sum / width + m->eps);
        for (uint32_t i = 0; i < width; i++)
            out[r * width + i] = row[i] * scale * w[i];
    }
    free(w);
    return out;
}

static double *norm(const ref_model *m, const double *x, double *w, uint32_t n)
{
    return norm_of(m, x, w, n, m->n_embd);
}

/* x through the norm of that name where the model has it; frees x when it has. */
static double *norm_if(const ref_model *m, double *x, const char *name, uint32_t il, uint64_t n,
                       uint32_t width)
{
    double *w = load(m, name, il);
    if (w == NULL) return x;
    double *out = norm_of(m, x, w, n, width);
    free(x);
    return out;
}

static void attend(const ref_model *m, double *out, const double *q, const double *k,
                   const double *v, uint32_t p, uint32_t h, uint32_t begin, double *score)
{
    uint64_t kv_width = (uint64_t)m->n_kv * m->n_head, kv = h / (m->n_heads / m->n_kv) * m->n_head;
    double max = -INFINITY, sum = 0;
    for (uint32_t j = begin; j <= p; j++) {
        score[j] = 0;
        for (uint32_t i = 0; i < m->n_head; i++)
            score[j] += q[i] * k[j * kv_width + kv + i];
        score[j] /= sqrt(m->n_head);
        max = fmax(max, score[j]);
    }
    for (uint32_t j = begin; j <= p; j++)
        sum += score[j] = exp(score[j] - max);
    for (uint32_t i = 0; i < m->n_head; i++) {
        out[i] = 0;
        for (uint32_t j = begin; j <= p; j++)
            out[i] += score[j] / sum * v[j * kv_width + kv + i];
    }
}

static double *attention(const ref_model *m, const double *x, uint32_t il, uint32_t n)
{
    uint32_t q_width = m->n_heads * m->n_head, kv_width = m->n_kv * m->n_head;
    double *freqs = load(m, "rope_freqs.weight", 0);
    double *q = project(x, load(m, "blk.%u.attn_q.weight", il), load(m, "blk.%u.attn_q.bias", il),
                        n, m->n_embd, q_width);
    double *k = project(x, load(m, "blk.%u.attn_k.weight", il), load(m, "blk.%u.attn_k.bias", il),
                        n, m->n_embd, kv_width);
    double *v = project(x, load(m, "blk.%u.attn_v.weight", il), load(m, "blk.%u.attn_v.bias", il),
                        n, m->n_embd, kv_width);
    q = norm_if(m, q, "blk.%u.attn_q_norm.weight", il, (uint64_t)n * m->n_heads, m->n_head);
    k = norm_if(m, k, "blk.%u.attn_k_norm.weight", il, (uint64_t)n * m->n_kv, m->n_head);
    double *out = calloc((size_t)n * q_width, sizeof *out), *score = calloc(n, sizeof *score);
    bool local = sees_window(m, il);
    CHECK(out != NULL && score != NULL);
    for (uint32_t p = 0; p < n; p++) {
        uint32_t begin = local && p >= m->window ? p - m->window + 1 : 0;
        rotate(m, &q[(size_t)p * q_width], m->n_heads, p, freqs, local);
        rotate(m, &k[(size_t)p * kv_width], m->n_kv, p, freqs, local);
        for (uint32_t h = 0; h < m->n_heads; h++) {
            size_t at = (size_t)p * q_width + (size_t)h * m->n_head;
            attend(m, &out[at], &q[at], k, v, p, h, begin, score);
        }
    }
    free(freqs);
    free(q);
    free(k);
    free(v);
    free(score);
    double *result =
        project(out, load(m, "blk.%u.attn_output.weight", il), NULL, n, q_width, m->n_embd);
    free(out);
    return norm_if(m, result, "blk.%u.post_attention_norm.weight", il, n, m->n_embd);
}

static double gate_of(const ref_model *m, double x)
{
    if (!m->gemma) return x / (1 + exp(-x));
    return 0.5 * x * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}

static double *feed_forward(const ref_model *m, const double *x, uint32_t il, uint32_t n)
{
    double *gate = project(x, load(m, "blk.%u.ffn_gate.weight", il), NULL, n, m->n_embd, m->n_ff);
    double *up = project(x, load(m, "blk.%u.ffn_up.weight", il), NULL, n, m->n_embd, m->n_ff);
    for (uint64_t i = 0; i < (uint64_t)n * m->n_ff; i++)
        gate[i] = gate_of(m, gate[i]) * up[i];
    double *out = project(gate, load(m, "blk.%u.ffn_down.weight", il), NULL, n, m->n_ff, m->n_embd);
    free(gate);
    free(up);
    return norm_if(m, out, "blk.%u.post_ffw_norm.weight", il, n, m->n_embd);
}

/* x += y; frees y */
static void add(double *x, double *y, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++)
        x[i] += y[i];
    free(y);
}

double *ref_llama_logits(const gguf *g, const uint32_t *tokens, uint32_t n, uint32_t *n_vocab)
{
    ref_model m;
    read_model(&m, g);
    uint64_t n_hidden = (uint64_t)n * m.n_embd;
    double *table = load(&m, "token_embd.weight", 0), *x = calloc(n_hidden, sizeof *x);
    CHECK(table != NULL && x != NULL);
    for (uint32_t r = 0; r < n; r++) {
        CHECK(tokens[r] < m.n_vocab);
        memcpy(&x[(uint64_t)r * m.n_embd], &table[(uint64_t)tokens[r] * m.n_embd],
               m.n_embd * sizeof *x);
    }
    double scale = m.gemma ? (double)sqrtf((float)m.n_embd) : 1;
    for (uint64_t i = 0; i < n_hidden; i++)
        x[i] *= scale;
    for (uint32_t il = 0; il < m.n_layers; il++) {
        double *h = norm(&m, x, load(&m, "blk.%u.attn_norm.weight", il), n);
        add(x, attention(&m, h, il, n), n_hidden);
        free(h);
        h = norm(&m, x, load(&m, "blk.%u.ffn_norm.weight", il), n);
        add(x, feed_forward(&m, h, il, n), n_hidden);
        free(h);
    }
    double *last = norm(&m, x, load(&m, "output_norm.weight", 0), n),
           *head = load(&m, "output.weight", 0);
    if (head == NULL) {
        head = table;
        table = NULL;
    }
    double *logits = project(last, head, NULL, n, m.n_embd, m.n_vocab);
    free(table);
    free(last);
    free(x);
    *n_vocab = m.n_vocab;
    return logits;
}
