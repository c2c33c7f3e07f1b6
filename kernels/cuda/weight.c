/* Weights on a device: where each lies, in which form, and what is left to do when all have come.
 * The way there is the loader's. */
#include "kernels/cuda/loader.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SCALED_MAX 8192u /* weights of BF16 between begin and end */

/* One allocation. */
struct cuda_weight {
    cuda_weight *next;
    void *device;
    uint64_t bytes;
};

/* A table in host memory: a copy of our own, or pages that were registered. */
struct cuda_table {
    struct cuda_table *next;
    void *host;
    bool copied;
};

/* Between begin and end: where the next weight goes, and those whose values wait for their scale.
 */
struct cuda_loading {
    loader *loader;
    char *at, *end;     /* what was reserved and is free */
    uint32_t *max_bits; /* on the device [SCALED_MAX] */
    uint32_t n_scaled;
    struct {
        dev_weight *weight;
        uint64_t bytes;
    } scaled[SCALED_MAX];
};

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

cuda_matrix cuda_matrix_of(const dev_weight *w)
{
    return (cuda_matrix){cuda_address(w->data), cuda_form_of(w->type, w->n_in), w->n_in, w->n_out,
                         w->exponent};
}

/* --- where ---------------------------------------------------------------------------------- */

/* Zeroed memory that is the device's until it closes; not yet counted as held. */
static status add_memory(backend_device *d, void **out, uint64_t bytes, errmsg *e)
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
    d->allocated_bytes -= bytes;
    *w = (cuda_weight){d->weights, cuda_address(p), bytes};
    d->weights = w;
    *out = w->device;
    return ST_OK;
}

/* The next weight's place in what was reserved. */
static status take_place(backend_device *d, void **out, uint64_t bytes, errmsg *e)
{
    struct cuda_loading *l = d->loading;
    uint64_t padded = (bytes + CUDA_WEIGHT_ALIGN - 1) / CUDA_WEIGHT_ALIGN * CUDA_WEIGHT_ALIGN;
    *out = l->at;
    if (padded > (uint64_t)(l->end - l->at)) {
        return errmsg_set(e, ST_RESOURCES,
                          "%s: a weight of %llu bytes, and %llu of those reserved are left",
                          d->name, (unsigned long long)bytes, (unsigned long long)(l->end - l->at));
    }
    l->at += padded;
    d->allocated_bytes += bytes;
    return ST_OK;
}

void cuda_weights_close(backend_device *d)
{
    errmsg ignored = {0};
    if (d->loading != NULL) (void)cuda_weights_end(d, &ignored); /* a load that failed */
    for (cuda_weight *w = d->weights, *next; w != NULL; w = next) {
        next = w->next;
        (void)cudaFree(w->device);
        free(w);
    }
    d->weights = NULL;
    for (struct cuda_table *t = d->tables, *next; t != NULL; t = next) {
        next = t->next;
        (void)(t->copied ? cudaFreeHost(t->host) : cudaHostUnregister(t->host));
        free(t);
    }
    d->tables = NULL;
}

/* --- begin and end -------------------------------------------------------------------------- */

status cuda_weights_begin(backend_device *d, uint64_t bytes, uint32_t n, const file_part *parts,
                          uint32_t n_parts, errmsg *e)
{
    uint64_t reserved = bytes + (uint64_t)n * CUDA_WEIGHT_ALIGN;
    if (d->lends_weights)
        reserved =
            (reserved + PLAN_CUDA_PAGE_BYTES - 1) / PLAN_CUDA_PAGE_BYTES * PLAN_CUDA_PAGE_BYTES;
    void *memory;
    CHECK(d->loading == NULL);
    struct cuda_loading *l = calloc(1, sizeof *l);
    if (l == NULL) return errmsg_set(e, ST_RESOURCES, "%s: no memory to load weights", d->name);
    d->loading = l;
    TRY_CUDA(d, cudaSetDevice(d->ordinal), e);
    /* Its threads begin beside what follows. */
    TRY(loader_open(&l->loader, d, d->n_threads, parts, n_parts, e));
    TRY(add_memory(d, &memory, reserved, e));
    l->at = memory;
    l->end = l->at + reserved;
    TRY_CUDA(d, cudaMalloc((void **)&l->max_bits, SCALED_MAX * sizeof *l->max_bits), e);
    TRY_CUDA(d, cudaMemset(l->max_bits, 0, SCALED_MAX * sizeof *l->max_bits), e);
    TRY_CUDA(d, cudaStreamSynchronize(0), e);
    return ST_OK;
}

void *cuda_weights_last(const backend_device *d, uint64_t *bytes)
{
    *bytes = d->weights->bytes;
    return d->weights->device;
}

/* BF16 becomes f16 when the largest magnitude of all of a weight is known. */
static status scale_all(backend_device *d, struct cuda_loading *l, errmsg *e)
{
    static const cudaStream_t stream = 0;
    uint32_t *max_bits = malloc(l->n_scaled * sizeof *max_bits);
    if (max_bits == NULL)
        return errmsg_set(e, ST_RESOURCES, "%s: no memory to load weights", d->name);
    status s = cuda_result(
        d,
        cudaMemcpy(max_bits, l->max_bits, l->n_scaled * sizeof *max_bits, cudaMemcpyDeviceToHost),
        "cudaMemcpy", e);
    for (uint32_t i = 0; s == ST_OK && i < l->n_scaled; i++) {
        dev_weight *w = l->scaled[i].weight;
        w->exponent = cuda_scale_exponent(max_bits[i]);
        s = cuda_result(
            d, cuda_scale_bf16(stream, cuda_address(w->data), l->scaled[i].bytes / 2, w->exponent),
            "cuda_scale_bf16", e);
    }
    free(max_bits);
    TRY(s);
    TRY_CUDA(d, cudaStreamSynchronize(stream), e);
    return ST_OK;
}

status cuda_weights_end(backend_device *d, errmsg *e)
{
    struct cuda_loading *l = d->loading;
    d->loading = NULL;
    TRY_CUDA(d, cudaSetDevice(d->ordinal), e);
    status s = loader_close(l->loader, e);
    if (s == ST_OK && l->n_scaled > 0) s = scale_all(d, l, e);
    (void)cudaFree(l->max_bits);
    free(l);
    return s;
}

/* --- one weight ----------------------------------------------------------------------------- */

static void send_bytes(loader *l, char *to, const char *from, uint64_t bytes)
{
    for (uint64_t at = 0; at < bytes; at += LOADER_PIECE_BYTES) {
        uint64_t n = bytes - at < LOADER_PIECE_BYTES ? bytes - at : LOADER_PIECE_BYTES;
        loader_put(l,
                   &(load_piece){.to = to + at, .from = from + at, .bytes = n, .form = FORM_ROWS});
    }
}

/* Whole tiles of rows at a time. */
static status send_tiles(backend_device *d, const dev_weight *w, const char *host,
                         uint32_t *max_bits, errmsg *e)
{
    cuda_form form = cuda_form_of(w->type, w->n_in);
    uint64_t row_bytes = dtype_bytes(w->type, w->n_in);
    uint32_t rows_max = (uint32_t)(LOADER_PIECE_BYTES / row_bytes) / TILE_OUT * TILE_OUT;
    if (rows_max == 0) {
        return errmsg_set(
            e, ST_BAD_MODEL, "%s: weight rows of %llu bytes are too long: %llu at most", d->name,
            (unsigned long long)row_bytes, (unsigned long long)(LOADER_PIECE_BYTES / TILE_OUT));
    }
    for (uint32_t o = 0; o < w->n_out; o += rows_max) {
        uint32_t n = w->n_out - o < rows_max ? w->n_out - o : rows_max;
        char *to = (char *)cuda_address(w->data) + o / TILE_OUT * cuda_tile_bytes(form, w->n_in);
        loader_put(d->loading->loader, &(load_piece){to, host + o * row_bytes, n * row_bytes, form,
                                                     w->type, w->n_in, n, max_bits});
    }
    return ST_OK;
}

static status send_weight(backend_device *d, dev_weight *out, const void *host, dtype type,
                          uint32_t n_in, uint32_t n_out, errmsg *e)
{
    struct cuda_loading *l = d->loading;
    uint64_t bytes = cuda_form_bytes(type, n_in, n_out);
    void *device;
    TRY(take_place(d, &device, bytes, e));
    *out = (dev_weight){{(uintptr_t)device}, type, n_in, n_out, 0};
    if (type == DT_F32) {
        send_bytes(l->loader, device, host, (uint64_t)n_out * dtype_bytes(type, n_in));
        return ST_OK;
    }
    CHECK(l->n_scaled < SCALED_MAX);
    TRY(send_tiles(d, out, host, l->max_bits + l->n_scaled, e));
    if (type != DT_BF16) return ST_OK;
    l->scaled[l->n_scaled].weight = out;
    l->scaled[l->n_scaled++].bytes = bytes;
    return ST_OK;
}

/* What comes between begin and end as one of many may also come alone. */
static status end_alone(backend_device *d, status s, errmsg *e)
{
    errmsg ignored = {0};
    status ended = cuda_weights_end(d, s == ST_OK ? e : &ignored);
    return s == ST_OK ? ended : s;
}

status cuda_weight_open(backend_device *d, dev_weight *out, const void *host, dtype type,
                        uint32_t n_in, uint32_t n_out, errmsg *e)
{
    if (d->loading != NULL) return send_weight(d, out, host, type, n_in, n_out, e);
    status s = cuda_weights_begin(d, cuda_form_bytes(type, n_in, n_out), 1, NULL, 0, e);
    if (s == ST_OK) s = send_weight(d, out, host, type, n_in, n_out, e);
    return d->loading != NULL ? end_alone(d, s, e) : s;
}

static status send_vector(backend_device *d, dev_ptr *out, const void *host, uint64_t bytes,
                          errmsg *e)
{
    void *device;
    TRY(take_place(d, &device, bytes, e));
    *out = (dev_ptr){(uintptr_t)device};
    send_bytes(d->loading->loader, device, host, bytes);
    return ST_OK;
}

status cuda_weights_from_host(backend_device *d, dev_ptr *out, const void *host, uint64_t bytes,
                              errmsg *e)
{
    if (d->loading != NULL) return send_vector(d, out, host, bytes, e);
    status s = cuda_weights_begin(d, bytes, 1, NULL, 0, e);
    if (s == ST_OK) s = send_vector(d, out, host, bytes, e);
    return d->loading != NULL ? end_alone(d, s, e) : s;
}

/* --- a table that stays in host memory ------------------------------------------------------ */

/* The pages where it lies become the device's to read; where the driver cannot, a copy in memory
 * that is. */
status cuda_table_open(backend_device *d, dev_weight *out, const void *host, dtype type,
                       uint32_t n_in, uint32_t n_out, errmsg *e)
{
    uint64_t bytes = (uint64_t)n_out * dtype_bytes(type, n_in);
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), at = (uintptr_t)host,
              first = at / page * page;
    uint64_t span = (at + bytes + page - 1) / page * page - first;
    void *there = NULL;
    struct cuda_table *t = calloc(1, sizeof *t);
    if (t == NULL) return errmsg_set(e, ST_RESOURCES, "%s: no memory for a table", d->name);
    *t = (struct cuda_table){d->tables, (void *)first, false};
    d->tables = t;
    TRY_CUDA(d, cudaSetDevice(d->ordinal), e);
    if (cudaHostRegister(t->host, span, cudaHostRegisterMapped | cudaHostRegisterReadOnly) !=
        cudaSuccess) {
        (void)cudaGetLastError(); /* not sticky */
        t->copied = true;
        t->host = NULL;
        TRY_CUDA(d, cudaHostAlloc(&t->host, bytes, cudaHostAllocMapped), e);
        memcpy(t->host, host, bytes);
    }
    TRY_CUDA(d, cudaHostGetDevicePointer(&there, t->host, 0), e);
    *out = (dev_weight){{(uintptr_t)there + (t->copied ? 0 : at - first)}, type, n_in, n_out, 0};
    return ST_OK;
}
