/* worth.h - whether verifying drafts is worth its time: measured costs, and an account of what it
 * was.
 *
 * Costs, by rows: a plain round in a full pipe, and a verifying step. While nobody has measured a
 * step of so many rows, it is taken to cost as much as fewer rows several times over (no step costs
 * more than its rows one by one), or what lies between two that were measured.
 *
 * The account is in nanoseconds. Whatever is done because of drafts is booked as it came out: the
 * time that plain rounds would have taken for the same tokens, less the time that went by. Plain
 * steps put WORTH_RATE of their time into it. What is expected to lose is tried only when the
 * account covers the loss, and an empty account ends speculation until plain steps have filled it.
 * So a run is slower than a plain one by WORTH_RATE, and once by the excess of one step over what
 * was expected, however wrong the expectations are, as far as the plain round was measured; that is
 * the time between its rounds, so that what a step loses at its ends is not held against drafts.
 *
 * Pure: no clock, no pipeline. */
#ifndef COORDINATOR_WORTH_H
#define COORDINATOR_WORTH_H

#include <stdbool.h>
#include <stdint.h>

#define WORTH_CELLS 64u
#define WORTH_RATE  (1.0 / 256)

typedef struct {
    double round_ns[WORTH_CELLS]; /* by rows; 0: not known */
    double step_ns[WORTH_CELLS];  /* from when it is issued until it is back, beside its like */
    double hope_ns[WORTH_CELLS];  /* the same, doubted more with every plain round */
    double credit_ns;
    double since_round_ns;        /* verified since a plain round was measured */
    bool on;                      /* it gained when it was weighed last */
} worth;

/* Of n_all sessions that generate each `turns` steps take an equal share in turn. */
typedef struct {
    uint32_t n_all, turns;
} worth_crowd;

/* A verifying step: its rows, the tokens it is expected to give, the time its drafts cost. */
typedef struct {
    uint32_t n_rows;
    double tokens, draft_ns;
} wager;

#define WORTH_NONE UINT32_MAX

/* What to do: the wager that gives most, or a probe that the account covers; WORTH_NONE: plain
 * rounds, also while their time is not known or is to be measured again. */
uint32_t worth_choose(worth *w, worth_crowd c, const wager *of, uint32_t n);

/* Measured: a plain round of c.n_all rows; a step of n_rows, from the one before it (or its drafts,
 * or its issue, what is last) to its end. */
void worth_measure_round(worth *w, worth_crowd c, double ns);
void worth_measure_step(worth *w, worth_crowd c, uint32_t n_rows, double ns);

/* Done: plain rounds as long as they want to be; and what was done because of drafts, giving
 * `tokens`, its n_rows walked (of all its rounds). */
void worth_book_plain(worth *w, worth_crowd c, double ns);
void worth_book(worth *w, worth_crowd c, uint32_t n_rows, double tokens, double ns);
/* What else was spent on drafts. */
void worth_pay(worth *w, double ns);
/* Put the time of so many plain rounds into the account; false: nobody knows it yet. */
bool worth_allow(worth *w, worth_crowd c, double rounds);

#endif
