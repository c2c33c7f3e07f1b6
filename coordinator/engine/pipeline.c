/* Opening and closing: plan, check, prepare, then the engine thread takes over. */
#include "coordinator/pipeline.h"

#include "common/log.h"
#include "coordinator/engine/engine.h"
#include "coordinator/machine/inventory.h"
#include "coordinator/engine/kvbooks.h"
#include "coordinator/machine/placement.h"
#include "coordinator/machine/unsplit.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <unistd.h>

#define START_TIMEOUT_MS 30000u
#define HANG_TIMEOUT_MS 5000u
#define RESTART_WINDOW_MS 60000u

pipeline_options pipeline_options_default(const char *model_path, const doors *d)
{
    return (pipeline_options){.model_path = model_path,
                              .doors = d,
                              .start_timeout_ms = START_TIMEOUT_MS,
                              .hang_timeout_ms = HANG_TIMEOUT_MS,
                              .restarts = RESTARTS_DEFAULT,
                              .restart_window_ms = RESTART_WINDOW_MS};
}

static status find_stage_program(pipeline *p, errmsg *e)
{
    if (p->o.stage_program != NULL) {
        snprintf(p->stage_program, sizeof p->stage_program, "%s", p->o.stage_program);
    } else {
        ssize_t n = readlink("/proc/self/exe", p->stage_program, sizeof p->stage_program - 16);
        char *slash = n > 0 ? memrchr(p->stage_program, '/', (size_t)n) : NULL;
        if (slash == NULL)
            return errmsg_set(e, ST_RESOURCES, "cannot find out where this program lies");
        strcpy(slash + 1, "memra-stage");
    }
    if (access(p->stage_program, X_OK) != 0) {
        return errmsg_set(e, ST_RESOURCES, "cannot run the stage program %s: %s (--stage-program)",
                          p->stage_program, strerror(errno));
    }
    return ST_OK;
}

/* *in_memory: bytes of the model that are in memory already, so that free memory is without
 * them. */
static status open_model(pipeline *p, uint64_t *in_memory, errmsg *e)
{
    struct stat st;
    *in_memory = 0;
    if (p->o.model_fd <= 0) return gguf_open(&p->file, p->o.model_path, e);
    int fd = fcntl(p->o.model_fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
    if (fd < 0 || fstat(fd, &st) != 0)
        return errmsg_set(e, ST_RESOURCES, "%s: %s", p->o.model_path, strerror(errno));
    *in_memory = (uint64_t)st.st_blocks * 512;
    return gguf_open_fds(&p->file, &fd, 1, e);
}

static status read_and_plan(pipeline *p, errmsg *e)
{
    TRY(placement_resolve(&p->doors, &p->gpus, p->o.stage_program, p->interrupt, e));
    uint64_t in_memory;
    TRY(open_model(p, &in_memory, e));
    p->model = malloc(sizeof *p->model);
    if (p->model == NULL) return errmsg_set(e, ST_RESOURCES, "no memory for the model description");
    TRY(model_read(p->model, p->file, e));
    TRY(placement_plan(&p->plan, p->model, &p->doors, &p->o.plan, e));
    TRY(unsplit_check(&p->plan, &p->gpus, &p->doors, &p->step_doors, e));
    TRY(unsplit_check_shard(&p->plan, &p->gpus, &p->doors, e));
    TRY(unsplit_check_streams(&p->plan, &p->gpus, &p->doors, e));
    TRY(placement_fits(&p->plan, &p->gpus, e));
    uint64_t available = inventory_memory_available();
    TRY(plan_fits(&p->plan, p->model, available > 0 ? available + in_memory : 0, e));
    p->n_stages = p->plan.one_process ? 1 : p->plan.cuts.n_stages;
    if (p->plan.cuts.moved)
        log_info("an even cut was moved off a place where this model cannot be cut");
    return ST_OK;
}

static status make_books(pipeline *p, errmsg *e)
{
    p->frame_bytes = wire_frame_bytes_max();
    p->frame = aligned_alloc(16, p->frame_bytes);
    p->branch_used = calloc(p->plan.n_sessions, sizeof *p->branch_used);
    p->branch_generation = calloc(p->plan.n_sessions, sizeof *p->branch_generation);
    p->sessions = calloc(p->plan.n_sessions, sizeof *p->sessions);
    if (p->frame == NULL || p->branch_used == NULL || p->branch_generation == NULL ||
        p->sessions == NULL)
        return errmsg_set(e, ST_RESOURCES, "no memory for the coordinator's books");
    TRY(kvbooks_open(p, e));
    TRY(mirror_open(&p->mirror, &p->plan, p->n_pools, e));
    TRY(replay_prepare(p, e));
    TRY(schedule_prepare(p, e));
    p->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (p->wake_fd < 0) return errmsg_set(e, ST_RESOURCES, "eventfd: %s", strerror(errno));
    return ST_OK;
}

/* Everything but the thread. */
static void release(pipeline *p)
{
    launch_release(p);
    schedule_release(p);
    kvbooks_close(p);
    mirror_close(&p->mirror);
    replay_release(p);
    if (p->wake_fd >= 0) close(p->wake_fd);
    free(p->frame);
    free(p->branch_used);
    free(p->sessions);
    free(p->branch_generation);
    free(p->model);
    free(p->model_path);
    if (p->file != NULL) gguf_close(p->file);
    pthread_cond_destroy(&p->changed);
    pthread_mutex_destroy(&p->lock);
    free(p);
}

static pipeline *make_empty(const pipeline_options *o, const volatile int *interrupt)
{
    pipeline *p = calloc(1, sizeof *p);
    if (p == NULL) return NULL;
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->changed, NULL);
    p->o = *o;
    p->o.model_path = p->model_path = strdup(o->model_path);
    p->doors = *o->doors;
    p->step_doors = p->doors.step;
    if (p->o.start_timeout_ms == 0) p->o.start_timeout_ms = START_TIMEOUT_MS;
    if (p->o.hang_timeout_ms == 0) p->o.hang_timeout_ms = HANG_TIMEOUT_MS;
    if (p->o.restart_window_ms == 0) p->o.restart_window_ms = RESTART_WINDOW_MS;
    if (p->o.restarts == 0) p->o.plan.journal_bytes = 0; /* nobody would read them */
    if (p->o.restarts > RESTARTS_MAX) p->o.restarts = RESTARTS_MAX;
    p->edge_epoch = 1;
    p->interrupt = interrupt;
    p->dir.lock_fd = p->wake_fd = p->run_block_fd = p->readback_fd = p->loan_fd = -1;
    p->death_pipe[0] = p->death_pipe[1] = p->stage_program_fd = -1;
    for (uint32_t s = 0; s < STAGES_MAX; s++) {
        p->boundary_fd[s] = p->journal_fd[s] = -1;
        p->stage[s].process.pidfd = -1;
    }
    return p;
}

static status start(pipeline *p, errmsg *e)
{
    int rc = pthread_create(&p->thread, NULL, engine_main, p);
    if (rc != 0)
        return errmsg_set(e, ST_RESOURCES, "cannot start the engine thread: %s", strerror(rc));
    pthread_mutex_lock(&p->lock);
    while (p->phase != PHASE_READY && p->phase != PHASE_DEAD)
        pthread_cond_wait(&p->changed, &p->lock);
    status s = ST_OK;
    if (p->phase == PHASE_DEAD) s = errmsg_set(e, p->failure.code, "%s", p->failure.text);
    p->closing = s != ST_OK;
    pthread_mutex_unlock(&p->lock);
    if (s != ST_OK) {
        engine_wake(p);
        pthread_join(p->thread, NULL);
    }
    return s;
}

status pipeline_open(pipeline **out, const pipeline_options *o, const volatile int *interrupt,
                     errmsg *e)
{
    *out = NULL;
    pipeline *p = make_empty(o, interrupt);
    if (p == NULL) return errmsg_set(e, ST_RESOURCES, "no memory for a pipeline");
    status s =
        p->model_path != NULL ? read_and_plan(p, e) : errmsg_set(e, ST_RESOURCES, "no memory");
    if (s == ST_OK) s = find_stage_program(p, e);
    if (s == ST_OK) s = make_books(p, e);
    if (s == ST_OK) s = launch_prepare(p, e);
    if (s == ST_OK) s = start(p, e);
    if (s != ST_OK) {
        release(p);
        return s;
    }
    *out = p;
    return ST_OK;
}

void pipeline_close(pipeline *p)
{
    if (p == NULL) return;
    pthread_mutex_lock(&p->lock);
    p->closing = true;
    pthread_mutex_unlock(&p->lock);
    engine_wake(p);
    pthread_join(p->thread, NULL);
    release(p);
}

status pipeline_check(const pipeline *p, errmsg *e)
{
    pthread_mutex_t *lock = (pthread_mutex_t *)&p->lock;
    pthread_mutex_lock(lock);
    status s = p->failure.code;
    if (s != ST_OK) errmsg_set(e, s, "%s", p->failure.text);
    pthread_mutex_unlock(lock);
    return s;
}

const model_desc *pipeline_model(const pipeline *p)
{
    return p->model;
}

const gguf *pipeline_file(const pipeline *p)
{
    return p->file;
}

const plan *pipeline_plan(const pipeline *p)
{
    return &p->plan;
}

const char *pipeline_run_dir(const pipeline *p)
{
    return p->dir.path;
}

void pipeline_stage(const pipeline *p, uint32_t stage_i, stage_snapshot *out)
{
    pthread_mutex_t *lock = (pthread_mutex_t *)&p->lock;
    pthread_mutex_lock(lock);
    report_stage(p, stage_i, out);
    pthread_mutex_unlock(lock);
}

void pipeline_drafts(const pipeline *p, draft_counts *out)
{
    pthread_mutex_t *lock = (pthread_mutex_t *)&p->lock;
    pthread_mutex_lock(lock);
    *out = p->verify.counts;
    pthread_mutex_unlock(lock);
}

void pipeline_ask_faults(pipeline *p, uint32_t stage_i)
{
    pthread_mutex_lock(&p->lock);
    CHECK(stage_i < p->n_stages);
    atomic_store(&p->block->stage[stage_i].asked, p->stage[stage_i].epoch);
    pthread_mutex_unlock(&p->lock);
}

uint64_t pipeline_recoveries(const pipeline *p, uint64_t from, recovery_record *out, uint32_t max)
{
    pthread_mutex_t *lock = (pthread_mutex_t *)&p->lock;
    pthread_mutex_lock(lock);
    uint64_t n = p->n_records;
    for (uint64_t i = from; i < n && i - from < max; i++)
        if (n - i <= RECOVERIES_KEPT) out[i - from] = p->record[i % RECOVERIES_KEPT];
    pthread_mutex_unlock(lock);
    return n;
}

void pipeline_schedule(const pipeline *p, schedule_snapshot *out)
{
    pthread_mutex_t *lock = (pthread_mutex_t *)&p->lock;
    pthread_mutex_lock(lock);
    *out = (schedule_snapshot){.n_shared_rows = p->n_shared_rows,
                               .n_pauses = p->n_pauses,
                               .n_restored_rows = p->n_restored_rows,
                               .n_waiting = admission_n_waiting(p),
                               .n_sessions = p->n_sessions,
                               .n_blocks_used = p->pool[KV_CLASS_GLOBAL].n_used,
                               .n_blocks_cached = p->prefixes.n_entries};
    pthread_mutex_unlock(lock);
}

bool pipeline_goes_ahead(const pipeline *p)
{
    pthread_mutex_t *lock = (pthread_mutex_t *)&p->lock;
    pthread_mutex_lock(lock);
    bool goes = schedule_goes_ahead(p);
    pthread_mutex_unlock(lock);
    return goes;
}

void pipeline_forget_prefixes(pipeline *p)
{
    pthread_mutex_lock(&p->lock);
    admission_forget(p);
    pthread_mutex_unlock(&p->lock);
}

status pipeline_set_step_doors(pipeline *p, const step_doors *d, errmsg *e)
{
    TRY(unsplit_check(&p->plan, &p->gpus, &p->doors, d, e));
    if (p->n_stages > 1 && unsplit_asked(d) && (p->loans & LOAN_UNSPLIT) == 0)
        return errmsg_set(e, ST_USAGE,
                          "this pipeline was opened for no unsplit walk: its stages lend nothing");
    pthread_mutex_lock(&p->lock);
    p->step_doors = *d;
    pthread_mutex_unlock(&p->lock);
    return ST_OK;
}
