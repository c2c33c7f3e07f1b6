/* model_impl.h - what the model_*.c files share; nobody else includes it. */
#ifndef COMMON_MODEL_IMPL_H
#define COMMON_MODEL_IMPL_H

#include "common/model_arch.h"

/* One model being read. */
typedef struct {
    const gguf *g;
    const model_arch *arch;
    model_desc *m;
    errmsg *e;
} model_reader;

#define MODEL_KEY_BYTES 128
typedef struct {
    char text[MODEL_KEY_BYTES];
} model_key;

/* "ARCH.suffix" */
model_key model_key_of(const model_reader *r, const char *suffix);

/* Set *r->e to ST_BAD_MODEL, the file's name and the line; returns ST_BAD_MODEL. */
status model_refuse(const model_reader *r, const char *format, ...) PRINTF_LIKE(2, 3);

/* The number at ARCH.suffix, between min and max. Absent: ST_OK with *out unchanged and *has false;
 * has may be NULL, absent is ST_BAD_MODEL then. Any other type or value: ST_BAD_MODEL. */
MUST_USE status model_u32(const model_reader *r, const char *suffix, uint32_t min, uint32_t max,
                          uint32_t *out, bool *has);
MUST_USE status model_f32(const model_reader *r, const char *suffix, float min, float max,
                          float *out, bool *has);

/* The rope of the model but its tensor: kind, scaling, base, factors. n_head and n_ctx_train are
 * already in *r->m. */
MUST_USE status model_read_rope(const model_reader *r);

/* Kinds of layers, the window and the rotation of window layers. The rope is already in *r->m. */
MUST_USE status model_read_window(const model_reader *r);

/* After the tensors are resolved: the frequency factors, if any, are usable. */
MUST_USE status model_check_freq_factors(const model_reader *r);

#endif
