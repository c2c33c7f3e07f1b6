/* inventory.h - what this machine has for stages to use: memory, cores, NUMA nodes, instruction
 * sets.
 *
 * Asked of the kernel and hwloc at each call; keeps no state, any thread. Only what this process
 * may use counts: its affinity, its allowed NUMA nodes, the memory limit of its control group. */
#ifndef COORDINATOR_INVENTORY_H
#define COORDINATOR_INVENTORY_H

#include "common/doors.h"
#include "coordinator/machine/gpus.h"

#define INVENTORY_NODES_MAX 64u

/* Bytes that new processes can have without swapping: MemAvailable, or what the memory limit of our
 * control group (or of one above it) leaves, if that is less. 0: unknown. */
uint64_t inventory_memory_available(void);

/* Cores in this process's affinity, at least 1. */
uint32_t inventory_cores(void);

/* The backends of this build as one line ("cpu" or "cpu, cuda"), static. */
const char *inventory_backends(void);

/* True when this build can place a stage on a CUDA device; whether there is one: gpus.h. */
#define INVENTORY_PROBE_MS 15000u /* what the answer may take */
bool inventory_has_cuda(void);

typedef struct {
    uint32_t index;             /* K of the device cpu:K */
    uint32_t n_cores;           /* usable ones (hardware threads) */
    uint64_t memory_bytes;      /* of the node; 0: unknown */
    uint64_t memory_free_bytes; /* unused now, page cache not counted; 0: unknown */
} inventory_node;

typedef struct {
    char cpu_name[96]; /* "" when unknown */
    uint32_t n_cores;
    uint64_t memory_available_bytes;
    uint32_t n_nodes;                         /* >= 1; more than INVENTORY_NODES_MAX are left out */
    inventory_node node[INVENTORY_NODES_MAX]; /* ascending index */
} inventory;

/* Fill *out. ST_RESOURCES: the machine's topology cannot be read. */
MUST_USE status inventory_read(inventory *out, errmsg *e);

/* Arithmetic levels that this machine runs, best first, as "amx, avx512, avx2, ref"; static. */
const char *inventory_isas(void);

/* How a person calls the device: "cpu", "cpu:1", "cuda:0"; auto is what this build makes of it. */
#define INVENTORY_DEVICE_TEXT 24
const char *inventory_device_text(char out[INVENTORY_DEVICE_TEXT], device_door device);

/* The bandwidth of the memory behind each of d's devices, as the firmware states it: 0 where it
 * says nothing, and for a stage that is bound to no node. */
void inventory_bandwidths(uint64_t bytes_per_s[STAGES_MAX], const doors *d);

/* Every device that the doors name exists here and can be used by this build; gpus: the CUDA
 * devices here. ST_RESOURCES with *e naming the door, the stage, the device and what there is
 * instead. */
MUST_USE status inventory_check_devices(const doors *d, const gpu_list *gpus, errmsg *e);

#endif
