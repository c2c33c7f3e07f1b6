#include "kernels/cpu/numa.h"

#include "common/log.h"

#include <errno.h>
#include <hwloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct numa {
    hwloc_topology_t topology;
    hwloc_obj_t node;
};

/* "0, 1" into text. */
static void list_nodes(hwloc_topology_t t, char *text, size_t bytes)
{
    size_t used = 0;
    text[0] = '\0';
    hwloc_obj_t o = NULL;
    while ((o = hwloc_get_next_obj_by_type(t, HWLOC_OBJ_NUMANODE, o)) != NULL) {
        int n = snprintf(text + used, bytes - used, "%s%u", used > 0 ? ", " : "", o->os_index);
        if (n < 0 || (size_t)n >= bytes - used) return;
        used += (size_t)n;
    }
}

status numa_open(numa **out, uint32_t node, errmsg *e)
{
    *out = NULL;
    numa *n = calloc(1, sizeof *n);
    if (n == NULL) return errmsg_set(e, ST_RESOURCES, "cpu: no memory for the topology");
    if (hwloc_topology_init(&n->topology) != 0 || hwloc_topology_load(n->topology) != 0) {
        status s = errmsg_set(e, ST_RESOURCES, "cpu:%u: the machine's topology cannot be read",
                              node);
        numa_close(n);
        return s;
    }
    n->node = hwloc_get_numanode_obj_by_os_index(n->topology, node);
    if (n->node == NULL || hwloc_bitmap_iszero(n->node->cpuset)) {
        char nodes[128];
        list_nodes(n->topology, nodes, sizeof nodes);
        status s = errmsg_set(e, ST_RESOURCES, "cpu:%u: %s; this machine's nodes are %s", node,
                              n->node == NULL ? "no such NUMA node"
                                              : "none of the NUMA node's processors may be used",
                              nodes);
        numa_close(n);
        return s;
    }
    *out = n;
    return ST_OK;
}

void numa_close(numa *n)
{
    if (n == NULL) return;
    if (n->topology != NULL) hwloc_topology_destroy(n->topology);
    free(n);
}

void numa_bind_thread(numa *n)
{
    if (hwloc_set_cpubind(n->topology, n->node->cpuset, HWLOC_CPUBIND_THREAD) != 0)
        log_warn("cpu:%u: a thread could not be bound to the node: %s", n->node->os_index,
                 strerror(errno));
}

void numa_bind_memory(numa *n, void *p, uint64_t bytes)
{
    if (hwloc_set_area_membind(n->topology, p, bytes, n->node->nodeset, HWLOC_MEMBIND_BIND,
                               HWLOC_MEMBIND_BYNODESET) != 0)
        log_warn("cpu:%u: memory could not be bound to the node: %s", n->node->os_index,
                 strerror(errno));
}
