/* The values of a shape. A tensor is cut into pieces of whole blocks, and a piece's bits come from
 * a generator seeded by seed, tensor and piece: whichever thread writes it, and when, it is the
 * same.
 *
 * Bits are drawn eight bytes at a time and taken as they come: as the quants of a block, whose
 * scales are then written over them, or as sign and mantissa of floats, whose exponent is then
 * fixed. */
#include "coordinator/machine/inventory.h"
#include "coordinator/commands/random_tokens.h"
#include "coordinator/shape/shape.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PIECE_BYTES   (256u << 10)
#define N_THREADS_MAX 64u
#define NONE          UINT32_MAX

/* Where a block of random bytes has its scales, as f16: value = d * (about spread) + second, with
 * second = factor * d so that the mean is 0. spread is the root mean square of what d multiplies
 * when quants and inner scales are uniform. Layouts: the GGUF specification. */
typedef struct {
    dtype type;
    uint32_t d_at, second_at; /* bytes from the start of the block */
    float spread, factor;
} quant_layout;

static const quant_layout quants[] = {
    {DT_Q4_0, 0, NONE, 4.6f, 0},    {DT_Q4_1, 0, 2, 4.6f, -7.5f},
    {DT_Q5_0, 0, NONE, 9.2f, 0},    {DT_Q5_1, 0, 2, 9.2f, -15.5f},
    {DT_Q8_0, 0, NONE, 73.9f, 0},   {DT_Q2_K, 80, 82, 13.9f, 1.5f},
    {DT_Q3_K, 108, NONE, 43.3f, 0}, {DT_Q4_K, 0, 2, 258.0f, 7.5f},
    {DT_Q5_K, 0, 2, 527.0f, 15.5f}, {DT_Q6_K, 208, NONE, 1366.0f, 0},
    {DT_IQ4_NL, 0, NONE, 67.4f, 0}, {DT_IQ4_XS, 0, NONE, 1246.0f, 0},
};

/* Floats: the bits that stay random, and where the exponent lies. */
typedef struct {
    dtype type;
    uint32_t bits, exponent_at, bias;
    uint64_t random; /* of one value */
} float_layout;

static const float_layout floats[] = {
    {DT_F32, 32, 23, 127, 0x807fffff},
    {DT_F16, 16, 10, 15, 0x83ff},
    {DT_BF16, 16, 7, 127, 0x807f},
};
#define COUNT(a) (sizeof(a) / sizeof *(a))

static const quant_layout *quant_of(dtype t)
{
    for (size_t i = 0; i < COUNT(quants); i++) {
        if (quants[i].type == t) return &quants[i];
    }
    return NULL;
}

static const float_layout *float_of(dtype t)
{
    for (size_t i = 0; i < COUNT(floats); i++) {
        if (floats[i].type == t) return &floats[i];
    }
    return NULL;
}

bool shape_has_values(dtype t)
{
    return quant_of(t) != NULL || float_of(t) != NULL;
}

/* To nearest, away from 0 in the middle; |x| is far below f16's largest. */
static uint16_t f16_of(float x)
{
    int e = 0;
    double m = frexp(fabs((double)x), &e); /* m * 2^e, 0.5 <= m < 1 */
    if (x == 0) return 0;
    if (e < -13) { /* below the normal numbers, which share the smallest exponent */
        m = ldexp(m, e + 13);
        e = -13;
    }
    uint32_t bits = (uint32_t)(e + 13) * 1024 + (uint32_t)(m * 2048 + 0.5);
    return (uint16_t)(bits | (x < 0 ? 0x8000u : 0));
}

/* --- one piece ----------------------------------------------------------------------------------
 */

static void draw(uint64_t *to, uint64_t n, uint64_t state)
{
    for (uint64_t i = 0; i < n; i++)
        to[i] = random_next(&state);
}

static void set_scales(unsigned char *at, uint64_t bytes, const quant_layout *q, float spread)
{
    const uint32_t block_bytes = dtype_get(q->type)->block_bytes;
    const uint16_t d = f16_of(spread / q->spread), second = f16_of(spread / q->spread * q->factor);
    for (uint64_t i = 0; i < bytes; i += block_bytes) {
        memcpy(at + i + q->d_at, &d, sizeof d);
        if (q->second_at != NONE) memcpy(at + i + q->second_at, &second, sizeof second);
    }
}

/* Magnitudes lie in [2^e, 2^(e+1)), evenly: their root mean square is 2^e * sqrt(7/3). */
static void set_exponents(uint64_t *at, uint64_t n, const float_layout *f, float spread)
{
    int e = (int)lround(log2((double)spread / sqrt(7.0 / 3.0))) + (int)f->bias;
    uint64_t random = f->random, exponent = (uint64_t)e << f->exponent_at;
    for (uint32_t bits = f->bits; bits < 64; bits *= 2) {
        random |= random << bits;
        exponent |= exponent << bits;
    }
    for (uint64_t i = 0; i < n; i++)
        at[i] = (at[i] & random) | exponent;
}

/* The values of one piece into words, which has room for bytes rounded up to 8. */
static void make_piece(uint64_t *words, uint64_t bytes, const gguf_tensor *t, bool tied,
                       uint64_t state)
{
    const uint64_t n = (bytes + 7) / 8;
    if (t->n_dims == 1) { /* norms */
        const float one = 1;
        for (uint64_t i = 0; i < bytes / sizeof one; i++)
            memcpy((char *)words + i * sizeof one, &one, sizeof one);
        return;
    }
    bool embedding = strcmp(t->name, "token_embd.weight") == 0 && !tied;
    float spread = embedding ? 1 : 1 / sqrtf((float)t->dim[0]);
    draw(words, n, state);
    if (quant_of(t->type) != NULL)
        set_scales((unsigned char *)words, bytes, quant_of(t->type), spread);
    else
        set_exponents(words, n, float_of(t->type), spread);
}

/* --- all of them --------------------------------------------------------------------------------
 */

typedef struct {
    pthread_t thread;
    int fd, error;
    uint32_t thread_i, n_threads;
    const gguf *g;
    const shape *s;
    const volatile int *interrupt;
} filler;

static uint64_t piece_bytes(dtype t)
{
    uint32_t block = dtype_get(t)->block_bytes;
    return PIECE_BYTES / block * block;
}

static int write_piece(int fd, const void *from, uint64_t bytes, uint64_t at)
{
    for (const char *p = from; bytes > 0;) {
        ssize_t n = pwrite(fd, p, bytes, (off_t)at);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return n < 0 ? errno : ENOSPC;
        p += n;
        at += (uint64_t)n;
        bytes -= (uint64_t)n;
    }
    return 0;
}

/* This thread's pieces of tensor i; pieces are dealt round over the threads. */
static void fill_tensor(filler *f, uint64_t i, uint64_t *n_pieces, uint64_t *words)
{
    const gguf_tensor *t = gguf_tensor_at(f->g, i);
    const uint64_t piece = piece_bytes(t->type);
    for (uint64_t at = 0, k = 0; at < t->bytes && f->error == 0; at += piece, k++) {
        if ((*n_pieces)++ % f->n_threads != f->thread_i) continue;
        if (f->interrupt != NULL && __atomic_load_n(f->interrupt, __ATOMIC_RELAXED) != 0) {
            f->error = EINTR;
            return;
        }
        uint64_t bytes = t->bytes - at < piece ? t->bytes - at : piece;
        uint64_t state = f->s->seed;
        state = random_next(&state) ^ i;
        state = random_next(&state) ^ k;
        make_piece(words, bytes, t, f->s->tied, random_next(&state));
        f->error = write_piece(f->fd, words, bytes, t->offset + at);
    }
}

static void *filler_main(void *arg)
{
    filler *f = arg;
    uint64_t *words = malloc(PIECE_BYTES + 8), n_pieces = 0;
    if (words == NULL) f->error = ENOMEM;
    for (uint64_t i = 0; i < gguf_n_tensors(f->g) && f->error == 0; i++)
        fill_tensor(f, i, &n_pieces, words);
    free(words);
    return NULL;
}

static status run_fillers(filler *f, uint32_t n, errmsg *e)
{
    int error = 0;
    uint32_t n_started = 0;
    while (error == 0 && n_started < n) {
        error = pthread_create(&f[n_started].thread, NULL, filler_main, &f[n_started]);
        if (error == 0) n_started++;
    }
    for (uint32_t i = 0; i < n_started; i++) {
        pthread_join(f[i].thread, NULL);
        if (error == 0) error = f[i].error;
    }
    if (error == 0) return ST_OK;
    if (error == EINTR) return errmsg_set(e, ST_INTERRUPTED, "interrupted");
    return errmsg_set(e, ST_RESOURCES, "%s cannot be filled: %s", f->s->name, strerror(error));
}

status shape_fill(int fd, const shape *s, uint32_t n_threads, const volatile int *interrupt,
                  errmsg *e)
{
    if (n_threads == 0) n_threads = inventory_cores();
    if (n_threads > N_THREADS_MAX) n_threads = N_THREADS_MAX;
    gguf *g = NULL;
    int own = fcntl(fd, F_DUPFD_CLOEXEC, 3);
    if (own < 0) return errmsg_set(e, ST_RESOURCES, "%s: %s", s->name, strerror(errno));
    TRY(gguf_open_fds(&g, &own, 1, e));
    filler f[N_THREADS_MAX];
    for (uint32_t i = 0; i < n_threads; i++) {
        f[i] = (filler){.fd = fd,
                        .thread_i = i,
                        .n_threads = n_threads,
                        .g = g,
                        .s = s,
                        .interrupt = interrupt};
    }
    status st = run_fillers(f, n_threads, e);
    gguf_close(g);
    return st;
}
