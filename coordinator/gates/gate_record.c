#include "coordinator/gates/gate_record.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

status gate_record_open(gate_record *out, uint32_t n_rows, uint32_t n_vocab, errmsg *e)
{
    *out = (gate_record){.n_rows = n_rows, .n_vocab = n_vocab};
    out->logits = calloc((size_t)n_rows * n_vocab, sizeof *out->logits);
    out->tokens = calloc(n_rows, sizeof *out->tokens);
    out->filled = calloc(n_rows, sizeof *out->filled);
    if (out->logits == NULL || out->tokens == NULL || out->filled == NULL) {
        gate_record_close(out);
        return errmsg_set(e, ST_RESOURCES,
                          "no memory for %u rows of %u logits: a shorter -p takes less", n_rows,
                          n_vocab);
    }
    gate_record_clear(out);
    return ST_OK;
}

void gate_record_close(gate_record *r)
{
    free(r->logits);
    free(r->tokens);
    free(r->filled);
    *r = (gate_record){0};
}

void gate_record_clear(gate_record *r)
{
    for (uint32_t i = 0; i < r->n_rows; i++) {
        r->tokens[i] = TOKEN_NONE;
        r->filled[i] = false;
    }
}

float *gate_record_rows(gate_record *r, uint32_t row, uint32_t n)
{
    CHECK(row <= r->n_rows && n <= r->n_rows - row);
    for (uint32_t i = 0; i < n; i++)
        r->filled[row + i] = true;
    return r->logits + (size_t)row * r->n_vocab;
}

static uint32_t bits_of(float x)
{
    uint32_t b;
    memcpy(&b, &x, sizeof b);
    return b;
}

/* Values that differ in a row, and the first of them. */
static uint32_t row_differences(const float *x, const float *y, uint32_t n, uint32_t *first)
{
    if (memcmp(x, y, n * sizeof *x) == 0) return 0;
    uint32_t n_different = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (bits_of(x[i]) != bits_of(y[i]) && n_different++ == 0) *first = i;
    }
    return n_different;
}

void gate_record_swap(gate_record *a, gate_record *b)
{
    gate_record first = *a;
    *a = *b;
    *b = first;
}

void gate_record_compare(gate_arm *a, const gate_record *reference, const gate_record *got,
                         uint32_t begin, uint32_t end)
{
    CHECK(reference->n_vocab == got->n_vocab && end <= reference->n_rows && end <= got->n_rows);
    uint32_t n_vocab = got->n_vocab, row = 0, column = 0;
    uint64_t n_different = 0;
    for (uint32_t i = begin; i < end; i++) {
        if (!reference->filled[i] || !got->filled[i]) {
            gate_arm_red(a, "row %u was not walked by %s", i,
                         got->filled[i] ? "the reference" : "this arm");
            return;
        }
        uint32_t first = 0;
        uint32_t n = row_differences(reference->logits + (size_t)i * n_vocab,
                                     got->logits + (size_t)i * n_vocab, n_vocab, &first);
        if (n > 0 && n_different == 0) {
            row = i;
            column = first;
        }
        n_different += n;
        if (reference->tokens[i] != TOKEN_NONE) a->n_tokens++;
    }
    a->n_rows += end - begin;
    a->n_values += (uint64_t)(end - begin) * n_vocab;
    if (n_different > 0) {
        float want = reference->logits[(size_t)row * n_vocab + column];
        float have = got->logits[(size_t)row * n_vocab + column];
        gate_arm_red(a,
                     "row %u column %u is %.9g (0x%08x), the reference has %.9g (0x%08x); %" PRIu64
                     " of %" PRIu64 " values differ",
                     row, column, (double)have, bits_of(have), (double)want, bits_of(want),
                     n_different, (uint64_t)(end - begin) * n_vocab);
    }
    for (uint32_t i = begin; i < end; i++) {
        if (reference->tokens[i] == got->tokens[i]) continue;
        gate_arm_red(a, "token %u was drawn after row %u, the reference drew %u", got->tokens[i], i,
                     reference->tokens[i]);
        break;
    }
}
