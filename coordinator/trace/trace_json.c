/* Every event is made as a JSON value by the library and put behind a comma; the first thing in a
 * file is a name, so that only it has none before it. */
#include "coordinator/trace/trace_impl.h"

#include "common/amount.h"
#include "common/clock.h"
#include "coordinator/machine/inventory.h"
#include "coordinator/text/text_json.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EVENT_BYTES_MAX 512u
#define PRECISION 15 /* digits: a day in nanoseconds has 14 */
#define NS_PER_US 1000.0

/* --- text ------------------------------------------------------------------------------------- */

void trace_text_put(trace_text *t, const char *text, uint64_t n)
{
    if (t->n + n > t->room) {
        uint64_t room = 2 * (t->n + n);
        char *more = realloc(t->at, room);
        t->failed = t->failed || more == NULL;
        if (more == NULL) return;
        t->at = more;
        t->room = room;
    }
    memcpy(t->at + t->n, text, n);
    t->n += n;
}

/* Takes o, which may be NULL for want of memory. */
static void put(trace_text *out, json_t *o, bool first)
{
    char text[EVENT_BYTES_MAX];
    if (!first) trace_text_put(out, ",", 1);
    trace_text_put(out, "\n", 1);
    size_t n = o != NULL
                   ? json_dumpb(o, text, sizeof text, JSON_COMPACT | JSON_REAL_PRECISION(PRECISION))
                   : 0;
    if (n == 0 || n > sizeof text)
        trace_text_put(out, "{}", 2);
    else
        trace_text_put(out, text, n);
    json_decref(o);
}

/* Stage s has track s + 1. */
static void put_name(trace_text *out, const trace_run *r, const char *what, uint32_t tid,
                     const char *name, bool first)
{
    put(out,
        json_pack("{s:s, s:s, s:i, s:i, s:{s:o}}", "name", what, "ph", "M", "pid", (int)r->pid,
                  "tid", (int)tid, "args", "name", text_json(name)),
        first);
}

void trace_json_names(trace_text *out, const trace_run *r, const char *model)
{
    const uint32_t n = r->plan.cuts.n_stages;
    char name[160], device[INVENTORY_DEVICE_TEXT];
    snprintf(name, sizeof name, "%.100s, %u stage%s", model, n, plural(n));
    put_name(out, r, "process_name", 0, name, r->pid == 1);
    for (uint32_t s = 0; s < n; s++) {
        const stage_plan *sp = &r->plan.stage[s];
        snprintf(name, sizeof name, "stage %u: layers %u..%u, %s", s, sp->layer_begin,
                 sp->layer_end - 1, inventory_device_text(device, sp->device));
        put_name(out, r, "thread_name", s + 1, name, false);
        put(out,
            json_pack("{s:s, s:s, s:i, s:i, s:{s:i}}", "name", "thread_sort_index", "ph", "M",
                      "pid", (int)r->pid, "tid", (int)s + 1, "args", "sort_index", (int)s),
            false);
    }
}

/* --- times ------------------------------------------------------------------------------------ */

/* Microseconds from one to the other; 0 where that is later. */
static double us(uint64_t ns, uint64_t from_ns)
{
    return ns > from_ns ? (double)(ns - from_ns) / NS_PER_US : 0;
}

static json_t *arguments(const trace_event *ev)
{
    return json_pack("{s:I, s:i, s:i, s:i, s:i}", "step", (json_int_t)ev->seq, "rows",
                     (int)ev->n_rows, "round", (int)ev->round, "group", (int)ev->group, "slot",
                     (int)ev->slot);
}

static void put_slice(trace_text *out, const trace_run *r, uint64_t begin_ns, uint32_t tid,
                      const char *name, const trace_event *ev, json_t *args)
{
    put(out,
        json_pack("{s:s, s:s, s:i, s:i, s:f, s:f, s:o}", "name", name, "ph", "X", "pid",
                  (int)r->pid, "tid", (int)tid, "ts", us(ev->begin_ns, begin_ns), "dur",
                  us(ev->end_ns, ev->begin_ns), "args", args),
        false);
}

/* Stretches that may overlap others of their name: begin and end, which find each other by id. */
static void put_stretch(trace_text *out, const trace_run *r, const char *category, const char *name,
                        const char *id, double begin_us, double end_us, json_t *args)
{
    put(out,
        json_pack("{s:s, s:s, s:s, s:s, s:i, s:i, s:f, s:o}", "name", name, "cat", category, "id",
                  id, "ph", "b", "pid", (int)r->pid, "tid", 0, "ts", begin_us, "args", args),
        false);
    put(out,
        json_pack("{s:s, s:s, s:s, s:s, s:i, s:i, s:f}", "name", name, "cat", category, "id", id,
                  "ph", "e", "pid", (int)r->pid, "tid", 0, "ts", end_us),
        false);
}

/* --- boundaries ------------------------------------------------------------------------------- */

static bool same_crossing(const trace_event *a, const trace_event *b)
{
    return a->seq == b->seq && a->round == b->round && a->group == b->group &&
           a->n_rows == b->n_rows && a->of == b->of; /* the epoch */
}

/* The other half of ev, if it is there: halves before it have lost theirs (a stage was lost). */
static bool find_half(trace_halves *h, const trace_event *ev, trace_event *out)
{
    for (uint64_t i = h->n_taken; i < h->n_put; i++) {
        *out = h->event[i % TRACE_RING_EVENTS];
        if (!same_crossing(out, ev)) continue;
        h->n_taken = i + 1;
        return true;
    }
    return false;
}

static void keep_half(trace_halves *h, const trace_event *ev)
{
    if (h->n_put - h->n_taken == TRACE_RING_EVENTS) h->n_taken++;
    h->event[h->n_put++ % TRACE_RING_EVENTS] = *ev;
}

/* The boundary into stage `to`. */
static void crossing(trace_text *out, trace_run *r, uint64_t begin_ns, uint32_t to,
                     const trace_event *ev)
{
    const uint32_t n = r->plan.cuts.n_stages;
    const bool sent = ev->kind == TRACE_BLOCKED;
    trace_boundary *b = &r->boundary[to];
    trace_event other;
    if (!find_half(sent ? &b->received : &b->sent, ev, &other)) {
        keep_half(sent ? &b->sent : &b->received, ev);
        return;
    }
    /* They are in the slot when the sender is through; the receiver may have them before it looks
     * at its clock. */
    uint64_t in_ns = sent ? ev->end_ns : other.end_ns, out_ns = sent ? other.end_ns : ev->end_ns;
    if (in_ns > out_ns) in_ns = out_ns;
    char name[32], id[48];
    snprintf(name, sizeof name, "%u -> %u", (to + n - 1) % n, to);
    snprintf(id, sizeof id, "%u.%u.%llu", r->pid, to, (unsigned long long)b->n_crossings++);
    put_stretch(out, r, "boundary", name, id, us(in_ns, begin_ns), us(out_ns, begin_ns),
                arguments(ev));
}

/* --- events ----------------------------------------------------------------------------------- */

static void stage_event(trace_text *out, trace_run *r, uint64_t begin_ns, uint32_t s,
                        const trace_event *ev)
{
    const uint32_t n = r->plan.cuts.n_stages;
    put_slice(out, r, begin_ns, s + 1, trace_kind_word(ev->kind), ev, arguments(ev));
    if (n == 1) return;
    if (ev->kind == TRACE_BLOCKED) crossing(out, r, begin_ns, (s + 1) % n, ev);
    if (ev->kind == TRACE_STARVED) crossing(out, r, begin_ns, s, ev);
}

static void engine_event(trace_text *out, const trace_run *r, uint64_t begin_ns,
                         const trace_event *ev)
{
    if (ev->kind == TRACE_STEP) {
        char name[32], id[48];
        snprintf(name, sizeof name, "%s steps", trace_kind_word(ev->of));
        snprintf(id, sizeof id, "%u.s%llu", r->pid, (unsigned long long)ev->seq);
        put_stretch(out, r, "step", name, id, us(ev->begin_ns, begin_ns), us(ev->end_ns, begin_ns),
                    json_pack("{s:I, s:i, s:i, s:i}", "step", (json_int_t)ev->seq, "rows",
                              (int)ev->n_rows, "rounds", (int)ev->round, "groups", (int)ev->group));
        return;
    }
    if (ev->of >= r->plan.cuts.n_stages) return;
    put_slice(out, r, begin_ns, ev->of + 1, trace_kind_word(ev->kind), ev,
              json_pack("{s:i}", "rows", (int)ev->n_rows));
}

void trace_json_event(trace_text *out, trace_run *r, uint64_t begin_ns, uint32_t ring_i,
                      const trace_event *ev)
{
    if (ring_i < r->plan.cuts.n_stages)
        stage_event(out, r, begin_ns, ring_i, ev);
    else
        engine_event(out, r, begin_ns, ev);
}

void trace_json_dropped(trace_text *out, const trace_run *r, uint64_t begin_ns, uint32_t ring_i,
                        uint64_t n)
{
    put(out,
        json_pack("{s:s, s:s, s:s, s:i, s:i, s:f, s:{s:I}}", "name", "events dropped", "ph", "i",
                  "s", "t", "pid", (int)r->pid, "tid",
                  ring_i < r->plan.cuts.n_stages ? (int)ring_i + 1 : 0, "ts",
                  us(now_ns(), begin_ns), "args", "so_far", (json_int_t)n),
        false);
}
