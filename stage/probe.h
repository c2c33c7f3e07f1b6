/* probe.h - the byte probe that every edge passes before traffic.
 *
 * Capability queries lie: a copy may report success and write nothing. So a pattern of 1, 8, 16 and
 * rows_max rows goes through both slots of every edge, the same way as a step's rows, and the
 * receiver compares every byte with what the sender must have sent. */
#ifndef STAGE_PROBE_H
#define STAGE_PROBE_H

#include "stage/edges.h"

/* Send to the stage after, check what the stage before sends; hidden is scratch on the device.
 * corrupt: one byte of what is sent is altered (canary). ST_PROTOCOL names edge, slot, rows, row and
 * element that differ. Nothing to do with one stage. */
MUST_USE status probe_edges(edges *x, dev_ptr hidden, bool corrupt, errmsg *e);

#endif
