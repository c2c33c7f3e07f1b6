/* Weights to the device: pieces of whole tiles of rows go through two pinned buffers, so that the
 * copy from the file's mapping, by several threads, the copy to the device and the repacking overlap,
 * within a weight and from one to the next. */
#include "kernels/cuda/device.h"

#include "kernels/cpu/pool.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* One allocation. */
struct cuda_weight {
    cuda_weight *next;
    void *device;
};

status cuda_loader_open(backend_device *d, uint32_t n_threads, errmsg *e)
{
    cuda_loader *l = &d->loader;
    TRY(pool_open(&l->copiers, n_threads < CUDA_COPIERS_MAX ? n_threads : CUDA_COPIERS_MAX, NULL,
                  NULL, e));
    TRY_CUDA(d, cudaEventCreateWithFlags(&l->handed, cudaEventDisableTiming), e);
    TRY_CUDA(d, cudaStreamCreateWithFlags(&l->stream, cudaStreamNonBlocking), e);
    TRY_CUDA(d, cudaMalloc((void **)&l->max_bits, sizeof *l->max_bits), e);
    for (int i = 0; i < 2; i++) {
        TRY_CUDA(d, cudaHostAlloc(&l->host[i], CUDA_PIECE_BYTES, cudaHostAllocDefault), e);
        TRY_CUDA(d, cudaMalloc(&l->device[i], CUDA_PIECE_BYTES), e);
        TRY_CUDA(d, cudaEventCreateWithFlags(&l->free[i], cudaEventDisableTiming), e);
    }
    return ST_OK;
}

void cuda_loader_close(backend_device *d)
{
    cuda_loader *l = &d->loader;
    if (l->stream != NULL) (void)cudaStreamSynchronize(l->stream);
    for (cuda_weight *w = d->weights, *next; w != NULL; w = next) {
        next = w->next;
        (void)cudaFree(w->device);
        free(w);
    }
    d->weights = NULL;
    for (int i = 0; i < 2; i++) {
        if (l->host[i] != NULL) (void)cudaFreeHost(l->host[i]);
        (void)cudaFree(l->device[i]);
        if (l->free[i] != NULL) (void)cudaEventDestroy(l->free[i]);
    }
    (void)cudaFree(l->max_bits);
    if (l->handed != NULL) (void)cudaEventDestroy(l->handed);
    pool_close(l->copiers);
    if (l->stream != NULL) (void)cudaStreamDestroy(l->stream);
    *l = (cuda_loader){0};
}

bool cuda_weight_type(dtype t)
{
    switch (t) {
    case DT_F32:
    case DT_F16:
    case DT_BF16:
    case DT_Q8_0:
    case DT_Q4_0:
    case DT_Q4_1:
    case DT_Q5_0:
    case DT_Q5_1:
    case DT_Q2_K:
    case DT_Q3_K:
    case DT_Q4_K:
    case DT_Q5_K:
    case DT_Q6_K:
    case DT_IQ4_NL:
    case DT_IQ4_XS:
        return true;
    default:
        return false;
    }
}

/* A form of super-blocks where no segment ends inside one. */
static cuda_form form_of(dtype t, uint32_t n_in)
{
    uint32_t n_blocks = cuda_blocks_in(n_in), n_segments = cuda_segments(n_in);
    uint32_t segment_blocks = (n_blocks + n_segments - 1) / n_segments;
    bool whole = n_in % 256 == 0 && (n_segments == 1 || segment_blocks % 8 == 0);
    switch (t) {
    case DT_F32:
        return FORM_ROWS;
    case DT_F16:
    case DT_BF16:
        return FORM_F16;
    case DT_Q4_1:
    case DT_Q5_1:
        return FORM_Q8M;
    case DT_Q4_K:
        return whole ? FORM_Q4K : FORM_F16;
    case DT_Q6_K:
        return whole ? FORM_Q6K : FORM_F16;
    case DT_Q2_K:
    case DT_Q3_K:
    case DT_Q5_K:
    case DT_IQ4_XS:
        return whole ? FORM_K8 : FORM_F16;
    default: /* Q8_0, Q4_0, Q5_0, IQ4_NL */
        return FORM_Q8;
    }
}

cuda_matrix cuda_matrix_of(const dev_weight *w)
{
    return (cuda_matrix){cuda_address(w->data), form_of(w->type, w->n_in), w->n_in, w->n_out, w->exponent};
}

static uint64_t tile_bytes(cuda_form form, dtype type, uint32_t n_in)
{
    if (form == FORM_ROWS) return TILE_OUT * dtype_bytes(type, n_in);
    return cuda_tile_bytes(form, n_in);
}

uint64_t cuda_weight_bytes(dtype type, uint32_t n_in, uint32_t n_out)
{
    uint64_t n_tiles = ((uint64_t)n_out + TILE_OUT - 1) / TILE_OUT;
    return n_tiles * tile_bytes(form_of(type, n_in), type, n_in);
}

static status add_weight(backend_device *d, void **out, uint64_t bytes, errmsg *e)
{
    dev_ptr p;
    cuda_weight *w = calloc(1, sizeof *w);
    *out = NULL;
    if (w == NULL) return errmsg_set(e, ST_RESOURCES, "%s: no memory for a weight", d->name);
    status s = backend_cuda()->alloc(d, &p, bytes, e);
    if (s != ST_OK) {
        free(w);
        return s;
    }
    *w = (cuda_weight){d->weights, cuda_address(p)};
    d->weights = w;
    *out = w->device;
    return ST_OK;
}

typedef struct {
    char *to;
    const char *from;
    uint64_t bytes;
    _Atomic int error; /* errno of a page that cannot be had */
} host_copy;

/* A part of whole pages: brought in at once where the kernel can, so that the copy does not trap for
 * each. */
static void copy_part(void *arg, uint32_t part_i, uint32_t n_parts)
{
    host_copy *c = arg;
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), begin, end;
    pool_range(c->bytes, page, part_i, n_parts, &begin, &end);
    uintptr_t first = (uintptr_t)(c->from + begin) / page * page;
    uint64_t n = (uintptr_t)(c->from + end) - first;
    if (n > 0 && madvise((void *)first, n, MADV_POPULATE_READ) != 0 &&
        (errno == EFAULT || errno == EIO)) {
        c->error = errno;
        return;
    }
    memcpy(c->to + begin, c->from + begin, end - begin);
}

static status copy_in(backend_device *d, void *to, const void *from, uint64_t bytes, errmsg *e)
{
    host_copy c = {.to = to, .from = from, .bytes = bytes};
    uint32_t n = pool_n_threads(d->loader.copiers);
    pool_run(d->loader.copiers, copy_part, &c, bytes < CUDA_SERIAL_BYTES ? 1 : n);
    if (c.error == 0) return ST_OK;
    return errmsg_set(e, ST_BAD_MODEL, "%s: weights cannot be read: %s: the model file is cut short "
                      "or damaged", d->name, strerror(c.error));
}

/* What was put on the loader's stream so far is what queues wait for (cuda_enter). */
static status hand_over(backend_device *d, errmsg *e)
{
    TRY_CUDA(d, cudaEventRecord(d->loader.handed, d->loader.stream), e);
    d->loader.n_handed++;
    return ST_OK;
}

/* One piece of the file's bytes on the device, when its copy's turn on the loader's stream comes.
 * *piece: which buffer, to be given back by free_piece. */
static status send_piece(backend_device *d, const void *from, uint64_t bytes, uint32_t *piece,
                         errmsg *e)
{
    cuda_loader *l = &d->loader;
    *piece = l->turn++ % 2;
    TRY_CUDA(d, cudaEventSynchronize(l->free[*piece]), e);
    TRY(copy_in(d, l->host[*piece], from, bytes, e));
    TRY_CUDA(d,
             cudaMemcpyAsync(l->device[*piece], l->host[*piece], bytes, cudaMemcpyHostToDevice,
                             l->stream),
             e);
    return ST_OK;
}

static status free_piece(backend_device *d, uint32_t piece, errmsg *e)
{
    TRY_CUDA(d, cudaEventRecord(d->loader.free[piece], d->loader.stream), e);
    return ST_OK;
}

static status send_bytes(backend_device *d, char *to, const char *from, uint64_t bytes, errmsg *e)
{
    for (uint64_t at = 0; at < bytes; at += CUDA_PIECE_BYTES) {
        uint64_t n = bytes - at < CUDA_PIECE_BYTES ? bytes - at : CUDA_PIECE_BYTES;
        uint32_t piece;
        TRY(send_piece(d, from + at, n, &piece, e));
        TRY_CUDA(d,
                 cudaMemcpyAsync(to + at, d->loader.device[piece], n, cudaMemcpyDeviceToDevice,
                                 d->loader.stream),
                 e);
        TRY(free_piece(d, piece, e));
    }
    return ST_OK;
}

/* Rows of host's matrix, as tiles of w->data. */
static status send_tiles(backend_device *d, const dev_weight *w, const char *host, errmsg *e)
{
    cuda_loader *l = &d->loader;
    cuda_form form = form_of(w->type, w->n_in);
    uint64_t row_bytes = dtype_bytes(w->type, w->n_in);
    uint32_t rows_max = (uint32_t)(CUDA_PIECE_BYTES / row_bytes) / TILE_OUT * TILE_OUT;
    if (rows_max == 0) {
        return errmsg_set(e, ST_BAD_MODEL, "%s: weight rows of %llu bytes are too long", d->name,
                          (unsigned long long)row_bytes);
    }
    TRY_CUDA(d, cudaMemsetAsync(l->max_bits, 0, sizeof *l->max_bits, l->stream), e);
    for (uint32_t o = 0; o < w->n_out; o += rows_max) {
        uint32_t n = w->n_out - o < rows_max ? w->n_out - o : rows_max, piece;
        char *to =
            (char *)cuda_address(w->data) + o / TILE_OUT * tile_bytes(form, w->type, w->n_in);
        TRY(send_piece(d, host + o * row_bytes, n * row_bytes, &piece, e));
        TRY_CUDA(
            d, cuda_repack(l->stream, to, form, l->device[piece], w->type, w->n_in, n, l->max_bits),
            e);
        TRY(free_piece(d, piece, e));
    }
    return ST_OK;
}

/* BF16 becomes f16 when the largest magnitude of all of it is known. */
static status scale_tensor(backend_device *d, dev_weight *w, uint64_t bytes, errmsg *e)
{
    cuda_loader *l = &d->loader;
    uint32_t max_bits = 0;
    TRY_CUDA(
        d,
        cudaMemcpyAsync(&max_bits, l->max_bits, sizeof max_bits, cudaMemcpyDeviceToHost, l->stream),
        e);
    TRY_CUDA(d, cudaStreamSynchronize(l->stream), e);
    w->exponent = cuda_scale_exponent(max_bits);
    TRY_CUDA(d, cuda_scale_bf16(l->stream, cuda_address(w->data), bytes / 2, w->exponent), e);
    return ST_OK;
}

status cuda_weight_open(backend_device *d, dev_weight *out, const void *host, dtype type,
                        uint32_t n_in, uint32_t n_out, errmsg *e)
{
    cuda_form form = form_of(type, n_in);
    uint64_t bytes = cuda_weight_bytes(type, n_in, n_out);
    void *device;
    TRY_CUDA(d, cudaSetDevice(d->ordinal), e);
    TRY(add_weight(d, &device, bytes, e));
    *out = (dev_weight){{(uintptr_t)device}, type, n_in, n_out, 0};
    if (form == FORM_ROWS) {
        TRY(send_bytes(d, device, host, (uint64_t)n_out * dtype_bytes(type, n_in), e));
    } else {
        TRY(send_tiles(d, out, host, e));
    }
    if (type == DT_BF16) TRY(scale_tensor(d, out, bytes, e));
    return hand_over(d, e);
}

status cuda_weights_from_host(backend_device *d, dev_ptr *out, const void *host, uint64_t bytes,
                              errmsg *e)
{
    void *device;
    TRY_CUDA(d, cudaSetDevice(d->ordinal), e);
    TRY(add_weight(d, &device, bytes > 0 ? bytes : 1, e));
    TRY(send_bytes(d, device, host, bytes, e));
    *out = (dev_ptr){(uintptr_t)device};
    return hand_over(d, e);
}
