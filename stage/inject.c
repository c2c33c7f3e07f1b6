#include "stage/inject.h"

#include "common/clock.h"
#include "common/log.h"

#include <signal.h>
#include <unistd.h>

#define SLICE_MS 20u
#define EXIT_INJECTED 70 /* kind=exit */

static void sleep_ms(uint32_t ms)
{
    struct timespec t = {.tv_sec = ms / 1000, .tv_nsec = (long)(ms % 1000) * (long)NS_PER_MS};
    nanosleep(&t, NULL);
}

status inject_open(injector *out, const char *text, uint32_t stage, stage_words *words,
                   const _Atomic uint32_t *stop, errmsg *e)
{
    *out = (injector){.stage = stage, .words = words, .stop = stop};
    uint32_t fired = atomic_load(&words->faults_fired);
    for (uint32_t i = 0; i < FAULTS_MAX; i++) out->fired[i] = (fired >> i & 1) != 0;
    return fault_parse(&out->faults, text, e);
}

static bool stopped(const injector *in)
{
    return atomic_load_explicit(in->stop, memory_order_acquire) != 0;
}

static void slow(const injector *in, uint32_t ms)
{
    for (uint32_t done = 0; done < ms && !stopped(in); done += SLICE_MS) {
        sleep_ms(ms - done < SLICE_MS ? ms - done : SLICE_MS);
        atomic_fetch_add_explicit(&in->words->progress, 1, memory_order_release);
    }
}

/* Before it is carried out: afterwards there may be nobody to say so. */
static void remember(injector *in, fault_at at, const fault *f)
{
    uint32_t fired = 0, entry = 1u << (f - in->faults.list);
    bool of_a_row = f->kind == FAULT_NAN || f->kind == FAULT_CORRUPT;
    if (at == FAULT_AT_RECOVERY && of_a_row)
        in->put_off |= entry;
    else
        atomic_fetch_or(&in->words->faults_met, entry);
    for (uint32_t i = 0; i < FAULTS_MAX; i++) fired |= (uint32_t)in->fired[i] << i;
    atomic_store(&in->words->faults_fired, fired);
}

static const fault *next_fault(injector *in, fault_at at, uint64_t seq)
{
    uint32_t asked = atomic_load_explicit(&in->words->asked, memory_order_relaxed);
    if (asked == atomic_load_explicit(&in->words->epoch, memory_order_relaxed)) {
        const fault *f =
            fault_match(&in->faults, in->fired, in->stage, FAULT_AT_ASKED, FAULT_STEP_ANY);
        if (f != NULL) return f;
    }
    return fault_match(&in->faults, in->fired, in->stage, at, seq);
}

uint32_t inject_at(injector *in, fault_at at, uint64_t seq)
{
    if (in->faults.n == 0) return 0;
    uint32_t left = 0;
    const fault *f;
    while ((f = next_fault(in, at, seq)) != NULL) {
        remember(in, at, f);
        switch (f->kind) {
        case FAULT_KILL:
            raise(SIGKILL);
            break;
        case FAULT_STOP:
            raise(SIGSTOP);
            break;
        case FAULT_EXIT:
            _exit(EXIT_INJECTED);
        case FAULT_HANG:
            log_warn("injected: hanging");
            while (!stopped(in)) sleep_ms(SLICE_MS);
            break;
        case FAULT_SLOW:
            slow(in, f->slow_ms);
            break;
        case FAULT_CORRUPT:
        case FAULT_CUDA:
        case FAULT_OOM:
        case FAULT_NAN:
        case FAULT_BADMSG:
            left |= 1u << f->kind;
            break;
        }
        if (f->every) break; /* fits again at once; the rest of the list waits for its turn */
    }
    return left;
}

void inject_replayed(injector *in)
{
    atomic_fetch_or(&in->words->faults_met, in->put_off);
    in->put_off = 0;
}
