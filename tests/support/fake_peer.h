/* fake_peer.h - the cpu backend with boxes and windows (kernels/peer.h) in this process's memory,
 * so that what stages say and do at a boundary between devices is tested without one. */
#ifndef TESTS_SUPPORT_FAKE_PEER_H
#define TESTS_SUPPORT_FAKE_PEER_H

#include "kernels/peer.h"

#include <stdatomic.h>

/* What goes wrong, and what was seen; reset by fake_peer_backend. */
typedef struct {
    bool no_box, no_window;    /* cannot be opened */
    bool same_device;          /* both stages lie on one */
    bool corrupt;              /* every put alters its last byte */
    _Atomic bool silent;       /* puts do not signal */
    bool no_memop;             /* the devices lack it */
    bool link_works;           /* NCCL is there */
    _Atomic uint32_t n_boxes, n_windows, n_links, n_pins; /* open now */
    _Atomic uint32_t n_puts[PEER_SIGNALS];
    _Atomic uint32_t n_orphans; /* boxes closed under an open window */
} fake_peer;

extern fake_peer fake;

/* A cpu table with that peer, static. */
const backend *fake_peer_backend(void);

#endif
