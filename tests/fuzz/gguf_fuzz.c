/* gguf_fuzz.c - any bytes as a model file: refused with one line, or open and as gguf.h promises.
 *
 * Input: a file; or 'S', a u32 length, that many bytes of a first part, and a second part. */
#include "common/model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static model_desc model;

static int file_of(const uint8_t *data, size_t n)
{
    int fd = memfd_create("fuzz", MFD_CLOEXEC);
    CHECK(fd >= 0 && pwrite(fd, data, n, 0) == (ssize_t)n);
    return fd;
}

static void check_line(const errmsg *e, status s)
{
    CHECK(s == ST_BAD_MODEL && e->code == s && e->text[0] != '\0');
    CHECK(strlen(e->text) < sizeof e->text - 1); /* not cut off */
    CHECK(strchr(e->text, '\n') == NULL);
}

static void check_tensors(const gguf *g)
{
    uint64_t held = 0, files = 0;
    for (uint32_t i = 0; i < gguf_n_files(g); i++)
        files += gguf_file_bytes(g, i);
    for (uint64_t i = 0; i < gguf_n_tensors(g); i++) {
        const gguf_tensor *t = gguf_tensor_at(g, i);
        const dtype_info *info = dtype_get(t->type);
        CHECK(gguf_tensor_find(g, t->name) == t);
        CHECK(info != NULL && t->n_dims >= 1 && t->n_dims <= 4 &&
              t->dim[0] % info->block_values == 0);
        uint64_t values = 1;
        for (int d = 0; d < 4; d++) {
            CHECK(t->dim[d] > 0);
            values *= t->dim[d];
        }
        CHECK(t->bytes == dtype_bytes(t->type, values) && t->file_i < gguf_n_files(g));
        uint64_t bytes = gguf_file_bytes(g, t->file_i);
        CHECK(t->offset <= bytes && t->bytes <= bytes - t->offset && t->offset % 8 == 0);
        uint8_t first[64];
        errmsg e = {0};
        CHECK(gguf_tensor_read(g, t, first, t->bytes < 64 ? t->bytes : 64, &e) == ST_OK);
        held += t->bytes;
    }
    CHECK(held <= files);
    uint64_t n = gguf_n_tensors(g) < 64 ? gguf_n_tensors(g) : 64;
    for (uint64_t i = 0; i < n; i++) {
        for (uint64_t j = 0; j < i; j++) {
            const gguf_tensor *a = gguf_tensor_at(g, i), *b = gguf_tensor_at(g, j);
            CHECK(strcmp(a->name, b->name) != 0);
            CHECK(a->file_i != b->file_i || a->offset + a->bytes <= b->offset ||
                  b->offset + b->bytes <= a->offset);
        }
    }
}

static void check_key(const gguf *g, const char *key)
{
    uint32_t u;
    float f;
    bool b;
    const char *text;
    uint64_t bytes, n = gguf_array_n(g, key);
    unsigned as = gguf_u32(g, key, &u) + gguf_f32(g, key, &f) + gguf_bool(g, key, &b);
    if (gguf_string(g, key, &text, &bytes)) {
        CHECK(text[bytes] == '\0' && strlen(text) <= bytes);
        as++;
    }
    CHECK(as <= 1 && (gguf_type_name(g, key) != NULL) == gguf_has(g, key));
    float *reals = NULL;
    uint32_t *numbers = NULL;
    gguf_str *strings = NULL;
    uint64_t got[3];
    status s = gguf_array_f32(g, key, 0, &reals, &got[0], NULL);
    CHECK((s == ST_OK) == (reals != NULL) && got[0] == (s == ST_OK ? n : 0));
    s = gguf_array_u32(g, key, 0, &numbers, &got[1], NULL);
    CHECK((s == ST_OK) == (numbers != NULL) && got[1] == (s == ST_OK ? n : 0));
    s = gguf_array_str(g, key, 0, &strings, &got[2], NULL);
    CHECK((s == ST_OK) == (strings != NULL) && got[2] == (s == ST_OK ? n : 0));
    uint64_t sum = 0;
    for (uint64_t i = 0; i < got[2]; i++) {
        for (uint32_t j = 0; j < strings[i].bytes; j++)
            sum += (uint8_t)strings[i].text[j];
    }
    CHECK(sum < UINT64_MAX && (as == 0 || n == 0));
    free(reals);
    free(numbers);
    free(strings);
}

static void check_model(const gguf *g)
{
    errmsg e = {0};
    status s = model_read(&model, g, &e);
    if (s != ST_OK) {
        check_line(&e, s);
        return;
    }
    uint64_t bytes = 0;
    for (uint32_t il = 0; il < model.n_layers; il++) {
        CHECK(model.layer[il].attn_q.t != NULL && model.layer[il].ffn_down.t != NULL);
        bytes += model_layer_bytes(&model, il);
    }
    CHECK(bytes > 0 && model.n_layers >= 1 && model.n_layers <= LAYERS_MAX);
    CHECK(model.n_heads % model.n_kv_heads == 0 && model.n_head % 2 == 0);
    CHECK(model.rope.n_rot >= 2 && model.rope.n_rot <= model.n_head && model.rope.n_rot % 2 == 0);
    CHECK(model.rope.n_rot / 2 <= ROPE_PAIRS_MAX && model.rope.factor >= 1.0f);
    CHECK(model.token_embd.t->dim[1] == model.n_vocab && model.output.t != NULL);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static const char *const keys[] = {"general.architecture",
                                       "general.alignment",
                                       "tokenizer.ggml.tokens",
                                       "split.no",
                                       "tokenizer.ggml.scores",
                                       "tokenizer.ggml.token_type",
                                       "llama.block_count",
                                       "x",
                                       "absent"};
    int fds[2];
    uint32_t n_fds = 1;
    if (n >= 5 && data[0] == 'S') {
        size_t first =
            data[1] | (size_t)data[2] << 8 | (size_t)data[3] << 16 | (size_t)data[4] << 24;
        if (first > n - 5) first = n - 5;
        fds[0] = file_of(data + 5, first);
        fds[1] = file_of(data + 5 + first, n - 5 - first);
        n_fds = 2;
    } else {
        fds[0] = file_of(data, n);
    }
    gguf *g = NULL;
    errmsg e = {0};
    status s = gguf_open_fds(&g, fds, n_fds, &e);
    if (s != ST_OK) {
        CHECK(g == NULL);
        check_line(&e, s);
        return 0;
    }
    check_tensors(g);
    for (unsigned i = 0; i < sizeof keys / sizeof *keys; i++)
        check_key(g, keys[i]);
    check_model(g);
    gguf_close(g);
    return 0;
}
