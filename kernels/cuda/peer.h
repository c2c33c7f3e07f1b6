/* peer.h - inside of the cuda backend: boundaries between devices (kernels/peer.h). */
#ifndef KERNELS_CUDA_PEER_H
#define KERNELS_CUDA_PEER_H

#include "kernels/cuda/device.h"
#include "kernels/peer.h"

extern const backend_peer cuda_peer_table;

/* A call that may fail without the context being lost: ST_OK or ST_RESOURCES with its line. */
status cuda_may_fail(const backend_device *d, cudaError_t error, const char *call, errmsg *e);

/* nccl.c */
status cuda_link_offer(backend_queue *q, peer_link **out, uint64_t slot_bytes, peer_blob *offer,
                       errmsg *e);
status cuda_link_accept(backend_queue *q, peer_link **out, uint64_t slot_bytes,
                        const peer_blob *offer, errmsg *e);
status cuda_link_ready(peer_link *l, errmsg *e);
status cuda_link_send(peer_link *l, uint32_t slot, dev_ptr from, uint64_t bytes);
status cuda_link_receive(peer_link *l, dev_ptr to, uint64_t bytes);
status cuda_link_received(peer_link *l, peer_state *out);
void cuda_link_abort(peer_link *l);
void cuda_link_close(peer_link *l);

#endif
