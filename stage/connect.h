/* connect.h - each boundary gets its transport, tried in order, and shows every byte before
 * traffic.
 *
 * The receiver leads. It offers the first transport that its device could do (or the forced one
 * alone); the sender accepts or refuses; what was accepted carries the byte probe (stage/probe.h);
 * when that fails, or the sender refuses, the receiver says so, loudly, and offers the next.
 * Sampled tokens (no hidden state) always cross through host memory, pinned where a device is at
 * one end.
 *
 * Boundaries are connected in ascending order, each by both its stages, so that nobody waits in a
 * ring. */
#ifndef STAGE_CONNECT_H
#define STAGE_CONNECT_H

#include "stage/edges.h"

/* Connect both edges of the stage; nothing to do with one stage. hidden: device scratch for
 * rows_max rows. corrupt: a byte of every probe that is sent is altered (canary). ST_RESOURCES: a
 * forced transport or signal cannot work here (*e names boundary, door and cause); ST_PROTOCOL: the
 * byte probe failed and nothing is left to try; ST_CLOSED, ST_TIMEOUT. */
MUST_USE status edges_connect(edges *x, dev_ptr hidden, bool corrupt, errmsg *e);

/* One of them, for a neighbour that was replaced (after edge_renew). */
MUST_USE status edge_connect(edges *x, edge *g, dev_ptr hidden, bool corrupt, errmsg *e);

#endif
