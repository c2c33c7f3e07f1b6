/* probe.h - the byte probe that every edge passes before traffic.
 *
 * Capability queries lie: a copy may report success and write nothing. So a pattern of 1, 8, 16 and
 * rows_max rows goes through both slots of every edge, the same way as a step's rows, and the
 * receiver compares every byte with what the sender must have sent. */
#ifndef STAGE_PROBE_H
#define STAGE_PROBE_H

#include "stage/edges.h"

#define PROBES_PER_EDGE 8u

/* The sender's part, over x->out; hidden is scratch on the device. corrupt: one byte of what is
 * sent is altered (canary). ST_OK also when the receiver has spoken meanwhile: it has seen
 * enough. */
MUST_USE status probe_send_all(edges *x, dev_ptr hidden, bool corrupt, errmsg *e);

/* The receiver's part, over x->in. ST_PROTOCOL names edge, slot, rows, row and element that differ,
 * or says what did not come; counted in n_probes when all are equal. */
MUST_USE status probe_receive_all(edges *x, dev_ptr hidden, errmsg *e);

#endif
