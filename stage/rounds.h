/* rounds.h - the rows of a step as its rounds go by.
 *
 * A step names groups of rows and a number of rounds; every stage walks, for each round, the groups
 * in their order. Between two rounds a row moves on by one position; its token, and whether it
 * still lives, are decided by the last stage and travel with the row, so that no stage decides for
 * itself. Owned by the worker thread. */
#ifndef STAGE_ROUNDS_H
#define STAGE_ROUNDS_H

#include "common/boundary.h"
#include "common/wire.h"

typedef struct {
    step_view v;        /* of the step in hand */
    wire_row *row;      /* [room]: of the round in hand, or of the next once a group was walked */
    uint32_t *drawn;    /* [room] */
    poison_mark *poison; /* [room]: where a row was found to hold NaN or infinity */
    uint32_t room, n_ctx;
    uint32_t n_rows, n_groups, group_end[WIRE_GROUPS_MAX]; /* of it, also when its frame is gone */
} rounds;

/* Rows that a step of several rounds may have. ST_RESOURCES. */
uint32_t rounds_room(uint32_t rows_max, uint32_t n_branches);
MUST_USE status rounds_open(rounds *out, const wire_config *c, errmsg *e);
void rounds_close(rounds *x);

/* Begin with the first round of a valid step, whose frame stays until the last one. Where it goes
 * on, rows keep token and live bit: the last stage knows them, the others learn them with the rows.
 * ST_PROTOCOL: more rows than there is room for, or it goes on with others than the step before
 * had. */
MUST_USE status rounds_begin(rounds *x, const step_view *v, errmsg *e);

/* The rows of group g, where their drawn tokens go, and their marks, which stay for the step. */
wire_row *rounds_group(const rounds *x, uint32_t g, uint32_t *n_rows);
uint32_t *rounds_drawn(const rounds *x, uint32_t g);
poison_mark *rounds_poison(const rounds *x, uint32_t g);

/* Rows of group g that live. */
uint32_t rounds_live(const rounds *x, uint32_t g);

/* The slot of every boundary that group g takes in this round of a step; ROUND_BEFORE: in the last
 * one of the step that it goes on after. */
#define ROUND_BEFORE UINT32_MAX
uint32_t rounds_slot(const wire_step *s, uint32_t round, uint32_t g);

/* Rows of group g that have had their rounds with this one are dead in the next; not those that
 * have had all of the step. */
void rounds_expire(rounds *x, uint32_t round, uint32_t g);

/* Group g was walked: its rows stand at their next positions. rounds_next: as they will, while the
 * group is still being walked. */
void rounds_advance(rounds *x, uint32_t g);
void rounds_next(const rounds *x, uint32_t g, wire_row *out);

/* Last stage, before that (or behind it): rows take what they drew; those that drew a stop id, drew
 * nothing or have had their rounds are dead from now on, but for those that have had all rounds of
 * the step. */
void rounds_settle(rounds *x, uint32_t round, uint32_t g);

#endif
