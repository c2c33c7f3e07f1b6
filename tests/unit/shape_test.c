/* Shapes: what is understood and refused, that the file is a model of that shape and as good as
 * nothing of it in memory, and that its values depend on the seed alone. */
#include "tests/support/tap.h"

#include "coordinator/shape/shape.h"

#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define SMALL "layers=2,embd=256,ff=512,heads=4,kv-heads=2,vocab=1000"

static shape parsed(const char *text, const char *type)
{
    shape s;
    errmsg e = {0};
    if (shape_parse(&s, text, type, &e) != ST_OK) fail_msg("%s: %s", text, e.text);
    return s;
}

static void refused(const char *text, const char *type, const char *part)
{
    shape s;
    errmsg e = {0};
    if (shape_parse(&s, text, type, &e) != ST_USAGE) fail_msg("'%s' was not refused", text);
    if (strstr(e.text, part) == NULL) fail_msg("no '%s' in: %s", part, e.text);
}

static int opened(const shape *s)
{
    int fd;
    errmsg e = {0};
    if (shape_open(&fd, s, &e) != ST_OK) fail_msg("%s", e.text);
    return fd;
}

static gguf *file_of(int fd)
{
    gguf *g;
    errmsg e = {0};
    int own = dup(fd);
    if (gguf_open_fds(&g, &own, 1, &e) != ST_OK) fail_msg("%s", e.text);
    return g;
}

static void names_and_pairs(void **state)
{
    (void)state;
    shape s = parsed("8b", NULL);
    assert_int_equal(s.n_layers, 32);
    assert_int_equal(s.n_head, 128);
    assert_int_equal(s.type, DT_Q8_0);
    assert_false(s.tied);
    s = parsed("gemma3-4b,layers=7", NULL);
    assert_int_equal(s.n_layers, 7);
    assert_int_equal(s.n_head, 256);
    assert_int_equal(s.window, 1024);
    assert_string_equal(s.arch, "gemma3");
    s = parsed("1b,layers=3,ctx=77,seed=18446744073709551615", "bf16");
    assert_int_equal(s.n_layers, 3);
    assert_int_equal(s.n_embd, 2048);
    assert_int_equal(s.n_ctx_train, 77);
    assert_int_equal(s.type, DT_BF16);
    assert_true(s.tied && s.seed == UINT64_MAX);
    s = parsed("layers=5,embd=96,ff=32,heads=3,vocab=50,head=64,tied=1", "F32");
    assert_int_equal(s.n_kv_heads, 3);
    assert_int_equal(s.n_head, 64);
    assert_true(s.tied);
}

static void what_cannot_be_meant_is_refused(void **state)
{
    (void)state;
    refused("", NULL, "neither a known shape");
    refused("9b", NULL, "1b, 3b, 8b, 70b");
    refused("layers=4,8b", NULL, "in the first place");
    refused("8b,", NULL, "KEY=NUMBER");
    refused("8b,layers=0", NULL, "from 1 to 512");
    refused("8b,layers=-1", NULL, "from 1 to 512");
    refused("8b,layers=513", NULL, "from 1 to 512");
    refused("8b,tied=2", NULL, "from 0 to 1");
    refused("8b,seed=18446744073709551616", NULL, "seed");
    refused("layers=3", NULL, "embd= is missing");
    refused("8b,embd=100", NULL, "name head=");
    refused("8b,kv-heads=5", NULL, "no multiple");
    refused("8b,head=127", NULL, "even");
    refused("8b,heads=1048576,kv-heads=1,head=512", NULL, "together");
    refused("8b", "q9", "Q8_0");
    refused("8b,ff=100", "q8_0", "whole blocks of 32");
}

static void a_shape_is_a_model(void **state)
{
    (void)state;
    static const char *const texts[] = {"70b",      "405b",      "1b",  SMALL,
                                        "qwen3-4b", "gemma3-4b", SMALL ",tied=1"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        shape s = parsed(texts[i], NULL);
        int fd = opened(&s);
        struct stat st;
        assert_int_equal(fstat(fd, &st), 0);
        assert_in_range(st.st_blocks * 512, 0, 512 << 10); /* a header and holes */
        gguf *g = file_of(fd);
        model_desc *m = malloc(sizeof *m);
        errmsg e = {0};
        assert_non_null(m);
        if (model_read(m, g, &e) != ST_OK) fail_msg("%s", e.text);
        assert_int_equal(m->n_layers, s.n_layers);
        assert_int_equal(m->n_head, s.n_head);
        assert_int_equal(m->n_vocab, s.n_vocab);
        assert_int_equal(m->tied, s.tied);
        assert_int_equal(m->layer[0].attn_q.t->type, s.type);
        assert_string_equal(m->arch, s.arch);
        assert_int_equal(m->window, s.window);
        free(m);
        gguf_close(g);
        close(fd);
    }
}

static uint8_t *filled(const shape *s, uint32_t n_threads, uint64_t *bytes)
{
    int fd = opened(s);
    errmsg e = {0};
    struct stat st;
    if (shape_fill(fd, s, n_threads, NULL, &e) != ST_OK) fail_msg("%s", e.text);
    assert_int_equal(fstat(fd, &st), 0);
    *bytes = (uint64_t)st.st_size;
    uint8_t *map = mmap(NULL, *bytes, PROT_READ, MAP_SHARED, fd, 0);
    assert_true(map != MAP_FAILED);
    close(fd);
    return map;
}

static void values_follow_from_the_seed_alone(void **state)
{
    (void)state;
    for (uint32_t t = 0; t < DT_COUNT; t++) {
        const dtype_info *info = dtype_get(t);
        if (info == NULL || !info->supported || !shape_has_values((dtype)t)) continue;
        shape s = parsed(SMALL, info->name), other = parsed(SMALL ",seed=2", info->name);
        uint64_t n[4];
        uint8_t *a = filled(&s, 1, &n[0]), *b = filled(&s, 3, &n[1]), *c = filled(&other, 1, &n[2]);
        assert_true(n[0] == n[1] && memcmp(a, b, n[0]) == 0);
        assert_true(memcmp(a + n[0] / 2, c + n[0] / 2, 4096) != 0);
        munmap(a, n[0]);
        munmap(b, n[1]);
        munmap(c, n[2]);
    }
}

static void floats_have_the_spread_that_is_said(void **state)
{
    (void)state;
    shape s = parsed(SMALL, "f32");
    uint64_t bytes;
    int fd = opened(&s);
    gguf *g = file_of(fd);
    const gguf_tensor *t = gguf_tensor_find(g, "blk.1.ffn_down.weight"),
                      *norm = gguf_tensor_find(g, "blk.0.attn_norm.weight");
    uint8_t *map = filled(&s, 0, &bytes);
    const float *x = (const void *)(map + t->offset), *one = (const void *)(map + norm->offset);
    double sum = 0, squares = 0;
    uint64_t n = t->bytes / sizeof *x;
    for (uint64_t i = 0; i < n; i++) {
        assert_true(isfinite(x[i]));
        sum += (double)x[i];
        squares += (double)x[i] * (double)x[i];
    }
    double spread = sqrt(squares / (double)n) * sqrt(512.0);
    assert_true(spread > 1 / 1.5 && spread < 1.5);
    assert_true(fabs(sum / (double)n) < 0.02 / sqrt(512.0));
    assert_true(one[0] == 1.0f && one[255] == 1.0f);
    munmap(map, bytes);
    gguf_close(g);
    close(fd);
}

static void an_interrupt_ends_the_filling(void **state)
{
    (void)state;
    volatile int interrupt = 1;
    shape s = parsed(SMALL, NULL);
    errmsg e = {0};
    int fd = opened(&s);
    assert_int_equal(shape_fill(fd, &s, 2, &interrupt, &e), ST_INTERRUPTED);
    close(fd);
}

int main(void)
{
    tap_begin(60);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_and_pairs),
        cmocka_unit_test(what_cannot_be_meant_is_refused),
        cmocka_unit_test(a_shape_is_a_model),
        cmocka_unit_test(values_follow_from_the_seed_alone),
        cmocka_unit_test(floats_have_the_spread_that_is_said),
        cmocka_unit_test(an_interrupt_ends_the_filling),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
