/* A free-running step that goes on where another ends: it is issued while that one runs, its rows
 * are that one's rows, with the tokens that they will have drawn, and no stage is idle between the
 * two.
 *
 * So it is for the same generations, in the same groups, for as long as nobody else wants anything:
 * who would join, or leave, or has a prompt, lets the last such step come to its end. A generation
 * that ends in the step before, or is ended, has a dead row in the sequel, which belongs to nobody
 * any more. */
#include "coordinator/engine/engine.h"

#include <string.h>

static flight *last_free_running(pipeline *p)
{
    flight *last = NULL;
    for (uint32_t i = 0; i < p->window; i++) {
        flight *f = &p->flights[i];
        if (f->seq == 0 || f->n_parts == 0) continue;
        if (!f->free_running) return NULL;
        if (last == NULL || f->seq > last->seq) last = f;
    }
    return last;
}

/* Rounds that may follow those of the part; 0: its row is not to go on. */
static uint64_t rounds_after(const flight *k, const flight_part *part)
{
    if (part->r == NULL || part->poisoned || part->rounds < k->rounds) return 0;
    const generation *g = part->r->generation;
    if (g->end != GENERATE_RUNS || g->cancelled) return 0;
    uint64_t left = generation_rounds_left(g), flying = part->rounds - part->n_drawn;
    uint64_t limit = g->limits.n_max - g->n_drawn;
    if (limit <= flying) return 0;
    return left < limit - flying ? left : limit - flying;
}

/* f becomes the sequel of k, or has no parts. */
static void follow(flight *k, flight *f, uint32_t rounds)
{
    for (uint32_t i = 0; i < k->n_parts; i++) {
        const flight_part *before = &k->part[i];
        uint64_t most = rounds_after(k, before);
        session *s = most > 0 ? before->r->session : NULL;
        uint32_t want = most < rounds ? (uint32_t)most : rounds;
        uint32_t n = s != NULL ? batch_reserve(s, want) : 0;
        if (n < want || n == 0) {
            f->n_parts = 0;
            return;
        }
        f->part[f->n_parts++] = (flight_part){.r = before->r,
                                              .first = s->position,
                                              .n_rows = 1,
                                              .rounds = n,
                                              .ahead = before->rounds};
        if (n > f->rounds) f->rounds = n;
    }
}

bool sequel_choose(pipeline *p, flight *f, uint32_t rounds)
{
    flight *k = last_free_running(p);
    if (p->n_stages == 1 || k == NULL || k->after != NULL || k->goes_on || k->unsplit) return false;
    if (k->rounds == 1)
        return false; /* its results may lie with the last stage until that has more to do */
    if (k->seq + 1 != p->next_seq || p->n_kv_ops > WIRE_KV_OPS_MAX / 2) return false;
    if (p->ready_first != NULL || p->waiting != NULL || k->overlap != p->step_doors.overlap)
        return false;
    if (k->ahead != p->step_doors.ahead) return false;
    if (verify_wants(p, k)) return false;
    follow(k, f, rounds);
    if (f->n_parts == 0) return false;
    f->free_running = f->goes_on = f->alone = true;
    f->n_rows = f->n_parts;
    f->n_groups = k->n_groups;
    memcpy(f->group_end, k->group_end, k->n_groups * sizeof *k->group_end);
    f->crowd = k->crowd;
    k->after = f;
    return true;
}

void sequel_give_up(pipeline *p, const flight *f)
{
    for (uint32_t i = 0; i < p->window; i++)
        if (p->flights[i].after == f) p->flights[i].after = NULL;
}

void sequel_leave(flight *f, uint32_t part_i)
{
    flight_part *part = &f->part[part_i];
    part->r->n_steps--;
    part->r->session->n_steps--;
    part->r = NULL;
    part->dead = true;
}

/* To be issued again it must say what its rows are; so must it to the mirror. */
void sequel_begins(flight *f)
{
    step_view v = wire_step_body_view(f->body);
    ((wire_step *)f->body)->flags &= ~STEP_GOES_ON;
    wire_row *row = (wire_row *)(f->body + ((const unsigned char *)v.rows - f->body));
    for (uint32_t i = 0; i < f->n_parts; i++) {
        if (f->part[i].r == NULL)
            row[i].flags &= ~ROW_LIVE;
        else
            row[i].token = f->part[i].r->generation->input;
    }
    f->goes_on = false;
}
