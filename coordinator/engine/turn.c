/* Steps that walk split and steps that walk unsplit take turns: in the latter the primary reads and
 * writes K and V that the stages of split steps read and write too, and nothing but the order of
 * steps stands between them. So one of the other kind is issued when all in flight have landed;
 * until then nothing is, or it would wait for ever. Operations on KV are every stage's own work:
 * they go ahead of an unsplit step in a split one of their own.
 *
 * Unsplit walks are an arm to compare with, not a way to be fast: nobody minds the pauses. */
#include "coordinator/engine/engine.h"

bool turn_asks_unsplit(const pipeline *p, walk_path path)
{
    const step_doors *d = &p->step_doors;
    bool split = path == PATH_DECODE ? d->batch_pp : path == PATH_DRAFTS ? d->spec_pp : d->prime_pp;
    return p->n_stages > 1 && !split;
}

bool turn_allows(const pipeline *p, walk_path path)
{
    return !p->turn.held || turn_asks_unsplit(p, path) == p->turn.wanted;
}

bool turn_waits(const pipeline *p)
{
    return p->turn.held && p->n_flights > 0;
}

bool turn_given_up(pipeline *p)
{
    bool held = p->turn.held;
    p->turn.held = false;
    return held;
}

bool turn_take(pipeline *p, bool unsplit, bool wanted)
{
    if (p->n_flights > 0 && p->turn.unsplit != unsplit) {
        p->turn.held = true;
        p->turn.wanted = wanted;
        return false;
    }
    p->turn.unsplit = unsplit;
    p->turn.held = false;
    return true;
}
