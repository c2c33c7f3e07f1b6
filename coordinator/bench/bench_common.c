#include "coordinator/bench/bench.h"

#include "common/clock.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SETTLE_NS NS_PER_S

doors bench_doors(const bench_request *q, uint32_t n_stages)
{
    doors d = q->common->doors;
    if (q->listed) d.from_flag[DOOR_STAGES] = true;
    if (n_stages == d.n_stages) {
        doors_deal_devices(&d);
        return d;
    }
    d.n_stages = n_stages;
    d.stages_set = n_stages > 1;
    if (d.splits == SPLITS_LIST) d.splits = SPLITS_EVEN;
    d.split_old = false;
    d.n_cuts = 0;
    doors_deal_devices(&d);
    return d;
}

void bench_counted(const pipeline *p, uint64_t n_rows, stage_snapshot out[STAGES_MAX])
{
    uint64_t begin = now_ns();
    for (uint32_t s = 0; s < pipeline_plan(p)->cuts.n_stages; s++) {
        for (;;) {
            pipeline_stage(p, s, &out[s]);
            if (out[s].n_rows >= n_rows || now_ns() - begin > SETTLE_NS) break;
            nanosleep(&(struct timespec){.tv_nsec = (long)NS_PER_MS / 10}, NULL);
        }
    }
}

status bench_look_at_model(const bench_request *q, bench_look look, void *ctx, errmsg *e)
{
    gguf *file = NULL;
    status s = ST_OK;
    model_desc *m = malloc(sizeof *m);
    if (m == NULL) return errmsg_set(e, ST_RESOURCES, "no memory for the model's description");
    TRY_DONE(s, options_open_model(q->common, &file, e));
    TRY_DONE(s, model_read(m, file, e));
    s = look(ctx, m, e);
done:
    free(m);
    if (file != NULL) gguf_close(file);
    return s;
}

void bench_model_name(char out[BENCH_NAME_BYTES], const char *path)
{
    const char *slash = strrchr(path, '/');
    const char *name = slash == NULL ? path : slash + 1;
    size_t n = strlen(name);
    if (n >= BENCH_NAME_BYTES) name += n - BENCH_NAME_BYTES + 1;
    memcpy(out, name, strlen(name) + 1);
}

void bench_cuts_text(char out[BENCH_CUTS_BYTES], const fence *f, char separator)
{
    size_t n = 0;
    snprintf(out, BENCH_CUTS_BYTES, "-");
    for (uint32_t s = 1; s < f->n_stages && n < BENCH_CUTS_BYTES - 16; s++) {
        if (s > 1) out[n++] = separator;
        n += (size_t)snprintf(out + n, BENCH_CUTS_BYTES - n, "%u", f->at[s]);
    }
}
