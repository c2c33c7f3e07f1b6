#include "coordinator/commands/preview.h"
#include "coordinator/commands/output.h"
#include "coordinator/machine/placement.h"

#include <stdlib.h>
#include <string.h>

status preview_open(preview *out, const common_options *c, errmsg *e)
{
    status s;
    *out = (preview){.any_pre = c->any_pre};
    TRY(options_model(c, e));
    TRY_DONE(s, options_open_model(c, &out->file, e));
    out->model = malloc(sizeof *out->model);
    out->plan = malloc(sizeof *out->plan);
    if (out->model == NULL || out->plan == NULL) {
        s = errmsg_set(e, ST_RESOURCES, "no memory for the model's description");
        goto done;
    }
    TRY_DONE(s, model_read(out->model, out->file, e));
    TRY_DONE(s, placement_plan(out->plan, out->model, &c->doors, &c->plan, e));
done:
    if (s != ST_OK) preview_close(out);
    return s;
}

status preview_words(preview *p, errmsg *e)
{
    tokenizer_options how = {.any_pre = p->any_pre};
    return tokenizer_open_with(&p->words, p->file, p->model->n_vocab, how, e);
}

void preview_close(preview *p)
{
    if (p->words != NULL) tokenizer_close(p->words);
    if (p->file != NULL) gguf_close(p->file);
    free(p->model);
    free(p->plan);
    *p = (preview){0};
}

const char *preview_kv_word(const plan *p)
{
    return p->kv_type == DT_F32 ? "f32" : p->kv_type == DT_F16 ? "f16" : "bf16";
}

status prompt_read(prompt *out, const char *text, const char *file, errmsg *e)
{
    *out = (prompt){0};
    if (text != NULL && file != NULL) {
        return errmsg_set(e, ST_USAGE, "-p and -f both give the prompt; one of them is enough");
    }
    if (file != NULL) return input_read(file, PROMPT_BYTES_MAX, &out->text, &out->bytes, e);
    if (text == NULL) text = "";
    out->text = strdup(text);
    if (out->text == NULL) return errmsg_set(e, ST_RESOURCES, "no memory for the prompt");
    out->bytes = strlen(text);
    return ST_OK;
}

void prompt_free(prompt *p)
{
    free(p->text);
    *p = (prompt){0};
}
