/* draft_model.h - drafts that a second, small model draws.
 *
 * The model has a pipeline of its own, of one stage as a rule, in a process of its own: stages stay
 * what they are, its KV is rolled back by the calls that every session has, and when its process
 * dies it is replaced as any other while the sessions that it drafts for go on plainly. The price
 * is a trip through the coordinator per question, which is small beside a step.
 *
 * Every seat has a thread and a session, which holds the generation's tokens and may be ahead by
 * what was drafted; a question truncates it to what both have, appends what it lacks and generates.
 * It draws with the generation's own sampler and, at each position, the same random number.
 *
 * The vocabularies must be the same: that is the opener's to check. */
#ifndef COORDINATOR_DRAFT_MODEL_H
#define COORDINATOR_DRAFT_MODEL_H

#include "coordinator/pipeline.h"

typedef struct draft_model draft_model;

/* Drafts by p, which serves until close and has room for a session per seat. ST_RESOURCES: no
 * memory. */
MUST_USE status draft_model_open(draft_model **out, pipeline *p, errmsg *e);

/* No seat is taken any more. Waits for the threads that are at work; closes the pipeline. */
void draft_model_close(draft_model *d);

draft_source *draft_model_source(draft_model *d);
pipeline *draft_model_pipeline(draft_model *d);

#endif
