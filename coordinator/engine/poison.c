/* A session whose rows hold NaN or infinity ends, and only it. The stage that finds such a row
 * marks it, the mark travels with the row, and the last stage says so before it says the step's
 * result. When that step has landed, the session is ended: what stands in line is finished at once,
 * what is in flight when it lands, and its KV is let go when nothing of it is. All of its blocks
 * are tainted (kvbooks.h); a window block that had slid out before is not, as nothing that it held
 * was in sight.
 *
 * A draft may be poisoned and then not be what was drawn: its row is void, and so is its mark; the
 * blocks that it stood in are tainted all the same. */
#include "coordinator/engine/kvbooks.h"

#include "common/log.h"

static session *session_of(const pipeline *p, const wire_poisoned *found)
{
    session *s = found->branch < p->plan.n_sessions ? p->sessions[found->branch] : NULL;
    bool is = s != NULL && s->id == found->session && s->generation == found->generation;
    return is && s->n_steps > 0 ? s : NULL;
}

status poison_found(pipeline *p, const wire_poisoned *found, errmsg *e)
{
    session *s = session_of(p, found);
    if (s == NULL || found->position >= p->plan.n_ctx || found->stage >= p->n_stages ||
        found->in_logits > (found->stage + 1 == p->n_stages)) {
        return errmsg_set(e, ST_PROTOCOL,
                          "NaN in session %u at position %u, by stage %u: there is no such row",
                          found->session, found->position, found->stage);
    }
    if (!poison_covers(s, found->position)) s->poison = *found;
    s->poisoned = true;
    return ST_OK;
}

static bool is_asked_for(const pipeline *p)
{
    for (uint32_t i = 0; i < p->doors.faults.n; i++)
        if (p->doors.faults.list[i].kind == FAULT_NAN) return true;
    return false;
}

static void describe(const pipeline *p, session *s)
{
    const wire_poisoned *x = &s->poison;
    char called[STAGE_CALLED_BYTES];
    errmsg_set(&s->ended, ST_NAN,
               "session %u was ended: NaN or infinity in the %s at position %u, found by %s; %s",
               s->id, x->in_logits != 0 ? "logits" : "hidden state", x->position,
               stage_called(p, x->stage, called),
               is_asked_for(p)
                   ? "--fault asks for it"
                   : "the model file may be damaged, or its values too large for the KV type "
                     "(--kv-type f32)");
}

/* What stands in line, in order; r has just come back and is finished by the caller. */
static void end_line(pipeline *p, session *s, const request *r)
{
    if (s->first == NULL) return;
    bool flies = s->first->generation != NULL && (s->first->n_steps > 0 || s->first == r);
    if (s->waiting)
        admission_leave(p, s);
    else if (!flies) /* a generation in flight stands in no list */
        schedule_unready(p, s);
    while (s->first != NULL) {
        request *x = s->first;
        schedule_remove_first(s);
        x->why = s->ended;
        if (x != r && x->n_steps == 0) schedule_finish(p, x);
    }
}

static void let_go(session *s)
{
    errmsg why = {0};
    kvbooks_taint(s, 0);
    s->paused = false;
    if (kvbooks_truncate(s, 0, &why) != ST_OK)
        log_warn("session %u keeps its KV: %s", s->id, why.text);
}

bool poison_void(session *s, const flight_part *part)
{
    uint64_t end = part->first + part->n_drawn;
    if (!s->poisoned || s->ended.code != ST_OK || s->poison.position < end) return false;
    if (part->poisoned && part->n_rows == 1) return false;
    kvbooks_taint(s, end);
    part->r->generation->undrafted = part->poisoned;
    s->poisoned = false;
    return true;
}

bool poison_ends(pipeline *p, session *s, request *r, uint64_t last)
{
    bool now = s->ended.code == ST_OK && poison_covers(s, last);
    s->poisoned = false;
    if (now) {
        describe(p, s);
        p->n_poisoned++;
        end_line(p, s, r);
    }
    if (s->ended.code == ST_OK) return false;
    r->why = s->ended;
    if (r->n_steps == 0) schedule_finish(p, r);
    if (s->n_steps == 0) let_go(s);
    return true;
}
