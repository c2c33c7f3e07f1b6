#include "coordinator/machine/inventory.h"

#include "common/cpu_features.h"

#include <hwloc.h>
#include <hwloc/memattrs.h>
#include <inttypes.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

/* --- memory --------------------------------------------------------------------------------- */

/* The number that follows `key` at the start of a line of the file at path. */
static bool read_keyed(const char *path, const char *key, uint64_t *out)
{
    FILE *f = fopen(path, "re");
    if (f == NULL) return false;
    char line[256];
    bool found = false;
    size_t n = strlen(key);
    while (!found && fgets(line, sizeof line, f) != NULL) {
        found = strncmp(line, key, n) == 0 && sscanf(line + n, "%" SCNu64, out) == 1;
    }
    fclose(f);
    return found;
}

/* A file of one number; "max" and absent files give false. */
static bool read_number(const char *path, uint64_t *out)
{
    return read_keyed(path, "", out);
}

/* What a control group's limit leaves: file pages that are not in use can be given up for others.
 * UINT64_MAX when it sets none. */
static uint64_t group_left(const char *dir)
{
    char path[600];
    uint64_t limit, used, inactive_file = 0;
    snprintf(path, sizeof path, "%s/memory.max", dir);
    if (!read_number(path, &limit)) return UINT64_MAX;
    snprintf(path, sizeof path, "%s/memory.current", dir);
    if (!read_number(path, &used)) return UINT64_MAX;
    snprintf(path, sizeof path, "%s/memory.stat", dir);
    if (read_keyed(path, "inactive_file ", &inactive_file)) {
        used -= inactive_file < used ? inactive_file : used;
    }
    return limit > used ? limit - used : 1;
}

/* The least that our group and those above it leave. */
static uint64_t groups_left(void)
{
    FILE *f = fopen("/proc/self/cgroup", "re");
    if (f == NULL) return UINT64_MAX;
    char line[512], dir[560] = "";
    while (fgets(line, sizeof line, f) != NULL) {
        if (strncmp(line, "0::/", 4) != 0) continue;
        line[strcspn(line, "\n")] = '\0';
        snprintf(dir, sizeof dir, "/sys/fs/cgroup%s", line + 3);
    }
    fclose(f);
    uint64_t least = UINT64_MAX;
    while (strlen(dir) >= strlen("/sys/fs/cgroup")) {
        uint64_t left = group_left(dir);
        if (left < least) least = left;
        *strrchr(dir, '/') = '\0';
    }
    return least;
}

uint64_t inventory_memory_available(void)
{
    uint64_t kib;
    if (!read_keyed("/proc/meminfo", "MemAvailable:", &kib)) return 0;
    uint64_t left = groups_left();
    return kib * 1024 < left ? kib * 1024 : left;
}

/* --- processors ----------------------------------------------------------------------------- */

uint32_t inventory_cores(void)
{
    /* Machines of more than CPU_SETSIZE processors need a larger set. */
    for (int n = CPU_SETSIZE; n <= 64 * CPU_SETSIZE; n *= 2) {
        cpu_set_t *set = CPU_ALLOC(n);
        if (set == NULL) return 1;
        int count = 0;
        if (sched_getaffinity(0, CPU_ALLOC_SIZE(n), set) == 0) {
            count = CPU_COUNT_S(CPU_ALLOC_SIZE(n), set);
        }
        CPU_FREE(set);
        if (count > 0) return (uint32_t)count;
    }
    return 1;
}

/* The processor has AMX tiles of bytes, and the kernel would keep them for a process. */
static bool keeps_amx(void)
{
    enum { GET_SUPPORTED = 0x1021, TILE_DATA = 18 }; /* ARCH_GET_XCOMP_SUPP, XFEATURE */
    uint64_t supported = 0;
    return cpu_has_amx() &&
           syscall(SYS_arch_prctl, GET_SUPPORTED, &supported) == 0 && supported >> TILE_DATA & 1;
}

const char *inventory_isas(void)
{
    if (keeps_amx()) return "amx, avx512, avx2, ref";
    return cpu_has_avx512() ? "avx512, avx2, ref" : cpu_has_avx2() ? "avx2, ref" : "ref";
}

const char *inventory_backends(void)
{
    return MEMRA_BACKENDS;
}

bool inventory_has_cuda(void)
{
    return strstr(MEMRA_BACKENDS, "cuda") != NULL;
}

/* --- topology ------------------------------------------------------------------------------- */

static status topology_open(hwloc_topology_t *out, errmsg *e)
{
    /* Devices behind buses are not asked for: their discovery would load vendor libraries. */
    if (hwloc_topology_init(out) != 0) {
        return errmsg_set(e, ST_RESOURCES, "the machine's topology cannot be read (hwloc init)");
    }
    if (hwloc_topology_load(*out) != 0) {
        hwloc_topology_destroy(*out);
        return errmsg_set(e, ST_RESOURCES, "the machine's topology cannot be read (hwloc load)");
    }
    return ST_OK;
}

static void read_nodes(inventory *out, hwloc_topology_t topology)
{
    /* Node objects come in logical order; nodes of memory alone have no cores and are no device. */
    hwloc_obj_t o = NULL;
    while ((o = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_NUMANODE, o)) != NULL) {
        int n_cores = o->cpuset == NULL ? 0 : hwloc_bitmap_weight(o->cpuset);
        if (n_cores <= 0 || out->n_nodes == INVENTORY_NODES_MAX) continue;
        uint32_t i = out->n_nodes++;
        for (; i > 0 && out->node[i - 1].index > o->os_index; i--)
            out->node[i] = out->node[i - 1];
        out->node[i] = (inventory_node){.index = o->os_index,
                                        .n_cores = (uint32_t)n_cores,
                                        .memory_bytes = o->attr->numanode.local_memory};
        char path[96], key[64];
        uint64_t kib;
        snprintf(path, sizeof path, "/sys/devices/system/node/node%u/meminfo", o->os_index);
        snprintf(key, sizeof key, "Node %u MemFree:", o->os_index);
        if (read_keyed(path, key, &kib)) out->node[i].memory_free_bytes = kib * 1024;
    }
}

status inventory_read(inventory *out, errmsg *e)
{
    memset(out, 0, sizeof *out);
    out->n_cores = inventory_cores();
    out->memory_available_bytes = inventory_memory_available();
    hwloc_topology_t topology;
    TRY(topology_open(&topology, e));
    hwloc_obj_t package = hwloc_get_obj_by_type(topology, HWLOC_OBJ_PACKAGE, 0);
    const char *name = package == NULL ? NULL : hwloc_obj_get_info_by_name(package, "CPUModel");
    if (name != NULL) snprintf(out->cpu_name, sizeof out->cpu_name, "%s", name);
    read_nodes(out, topology);
    hwloc_topology_destroy(topology);
    if (out->n_nodes == 0) {
        return errmsg_set(e, ST_RESOURCES, "no NUMA node with cores that this process may use");
    }
    return ST_OK;
}

/* The bandwidth that a node's own cores have to its memory; 0: not stated. */
static uint64_t node_bandwidth(hwloc_topology_t topology, uint32_t index)
{
    hwloc_obj_t o = hwloc_get_numanode_obj_by_os_index(topology, index);
    if (o == NULL || o->cpuset == NULL) return 0;
    struct hwloc_location from = {.type = HWLOC_LOCATION_TYPE_CPUSET,
                                  .location.cpuset = o->cpuset};
    hwloc_uint64_t mib_per_s = 0;
    if (hwloc_memattr_get_value(topology, HWLOC_MEMATTR_ID_BANDWIDTH, o, &from, 0, &mib_per_s) != 0)
        return 0;
    return mib_per_s << 20;
}

void inventory_bandwidths(uint64_t bytes_per_s[STAGES_MAX], const doors *d)
{
    errmsg ignored = {0};
    hwloc_topology_t topology;
    memset(bytes_per_s, 0, STAGES_MAX * sizeof *bytes_per_s);
    if (topology_open(&topology, &ignored) != ST_OK) return;
    for (uint32_t s = 0; s < d->n_devices; s++) {
        if (d->device[s].kind == DEVICE_CPU_NODE)
            bytes_per_s[s] = node_bandwidth(topology, d->device[s].index);
    }
    hwloc_topology_destroy(topology);
}

/* --- doors ---------------------------------------------------------------------------------- */

const char *inventory_device_text(char out[INVENTORY_DEVICE_TEXT], device_door device)
{
    bool node = device.kind == DEVICE_CPU_NODE;
    if (node || device.kind == DEVICE_CUDA) {
        snprintf(out, INVENTORY_DEVICE_TEXT, "%s:%u", node ? "cpu" : "cuda", device.index);
    } else {
        snprintf(out, INVENTORY_DEVICE_TEXT, "cpu");
    }
    return out;
}

/* "cpu, cpu:0, cpu:1, cuda:0" */
static void devices_line(char *out, size_t bytes, const inventory *v, const gpu_list *gpus)
{
    size_t n = (size_t)snprintf(out, bytes, "cpu");
    for (uint32_t i = 0; i < v->n_nodes && n < bytes; i++) {
        n += (size_t)snprintf(out + n, bytes - n, ", cpu:%u", v->node[i].index);
    }
    for (uint32_t i = 0; i < gpus->n && n < bytes; i++) {
        n += (size_t)snprintf(out + n, bytes - n, ", cuda:%u", gpus->at[i].ordinal);
    }
}

static bool has_node(const inventory *v, uint32_t index)
{
    for (uint32_t i = 0; i < v->n_nodes; i++) {
        if (v->node[i].index == index) return true;
    }
    return false;
}

status inventory_check_devices(const doors *d, const gpu_list *gpus, errmsg *e)
{
    inventory *v = NULL;
    status s = ST_OK;
    char there[320];
    for (uint32_t i = 0; i < d->n_devices && s == ST_OK; i++) {
        device_door device = d->device[i];
        if (device.kind == DEVICE_AUTO || device.kind == DEVICE_CPU) continue;
        if (v == NULL) {
            v = malloc(sizeof *v);
            if (v == NULL) return errmsg_set(e, ST_RESOURCES, "no memory for the device list");
            TRY_DONE(s, inventory_read(v, e));
        }
        devices_line(there, sizeof there, v, gpus);
        if (device.kind == DEVICE_CUDA) {
            const gpu *g = gpus_get(gpus, device.index);
            errmsg why = {0};
            if (g != NULL && gpu_usable(g, &why) == ST_OK) continue;
            if (g != NULL) {
                s = errmsg_set(e, ST_RESOURCES, "%s: stage %u: %s", doors_name(d, DOOR_DEVICES), i,
                               why.text);
                continue;
            }
            s = errmsg_set(e, ST_RESOURCES, "%s: stage %u on cuda:%u: %s; devices here: %s; rule: %s",
                           doors_name(d, DOOR_DEVICES), i, device.index,
                           inventory_has_cuda() ? "no such CUDA device"
                                                : "this build has no CUDA backend",
                           there, doors_table(NULL)[DOOR_DEVICES].rule);
        } else if (!has_node(v, device.index)) {
            s = errmsg_set(e, ST_RESOURCES,
                           "%s: stage %u on cpu:%u: no such NUMA node; devices here: %s; rule: %s",
                           doors_name(d, DOOR_DEVICES), i, device.index, there,
                           doors_table(NULL)[DOOR_DEVICES].rule);
        }
    }
done:
    free(v);
    return s;
}
