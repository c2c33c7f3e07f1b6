/* devices: what a stage can be placed on here. */
#include "common/amount.h"
#include "coordinator/machine/gpus.h"
#include "coordinator/machine/inventory.h"
#include "coordinator/commands/options.h"
#include "coordinator/commands/output.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>

#define USAGE "devices [--json]"
#define ABOUT                                                                                      \
    "Lists the devices that --devices (MEMRA_PP_DEVICES) can name on this machine: cpu is\n"       \
    "all usable cores, cpu:K one NUMA node, a number (shown as cuda:N) a CUDA device;\n"           \
    "and says whether this build can use CUDA devices."

static status print_table(const inventory *v, const gpu_list *gpus, errmsg *e)
{
    char a[AMOUNT_TEXT], name[32];
    TRY(output_line(e, "%-8s %-6s %-12s %s", "device", "cores", "memory free", "what"));
    TRY(output_line(e, "%-8s %-6u %-12s %s; instruction sets: %s", "cpu", v->n_cores,
                    amount_mb(a, v->memory_available_bytes),
                    v->cpu_name[0] != '\0' ? v->cpu_name : "unknown processor", inventory_isas()));
    for (uint32_t i = 0; i < v->n_nodes; i++) {
        const inventory_node *n = &v->node[i];
        snprintf(name, sizeof name, "cpu:%u", n->index);
        TRY(output_line(e, "%-8s %-6u %-12s NUMA node %u of %s", name, n->n_cores,
                        n->memory_free_bytes > 0 ? amount_mb(a, n->memory_free_bytes)
                                                 : "unknown",
                        n->index, amount_said(n->memory_bytes)));
    }
    for (uint32_t i = 0; i < gpus->n; i++) {
        const gpu *g = &gpus->at[i];
        snprintf(name, sizeof name, "cuda:%u", g->ordinal);
        TRY(output_line(e, "%-8s %-6s %-12s %s of %s, sm_%u%u, %s", name, "-",
                        amount_mb(a, g->memory_free_bytes), g->name,
                        amount_said(g->memory_bytes), g->major, g->minor, g->uuid));
        errmsg why = {0};
        if (gpu_usable(g, &why) != ST_OK)
            TRY(output_line(e, "%-8s not usable: %s", name, why.text));
    }
    for (uint32_t i = 0; i < gpus->n * gpus->n; i++) {
        const gpu *from = &gpus->at[i / gpus->n], *to = &gpus->at[i % gpus->n];
        if (from->ordinal >= to->ordinal) continue;
        TRY(output_line(e, "cuda:%u to cuda:%u: %s", from->ordinal, to->ordinal,
                        gpu_link_word(gpus_link(gpus, from->ordinal, to->ordinal))));
    }
    return output_line(e, "backends of this build: %s%s", inventory_backends(),
                       !inventory_has_cuda() ? "; CUDA devices: not in this build"
                       : gpus->n == 0        ? "; CUDA devices: none here"
                                             : "");
}

static status print_json(const inventory *v, const gpu_list *gpus, errmsg *e)
{
    json_t *devices = json_array();
    json_array_append_new(devices,
                          json_pack("{s:s, s:s, s:s, s:i, s:I}", "device", "cpu", "backend", "cpu",
                                    "name", v->cpu_name, "cores", (int)v->n_cores,
                                    "memory_free_bytes", (json_int_t)v->memory_available_bytes));
    for (uint32_t i = 0; i < v->n_nodes; i++) {
        const inventory_node *n = &v->node[i];
        char name[32];
        snprintf(name, sizeof name, "cpu:%u", n->index);
        json_array_append_new(devices,
                              json_pack("{s:s, s:s, s:i, s:i, s:I, s:I}", "device", name, "backend",
                                        "cpu", "numa_node", (int)n->index, "cores", (int)n->n_cores,
                                        "memory_bytes", (json_int_t)n->memory_bytes,
                                        "memory_free_bytes", (json_int_t)n->memory_free_bytes));
    }
    for (uint32_t i = 0; i < gpus->n; i++) {
        const gpu *g = &gpus->at[i];
        char name[32];
        snprintf(name, sizeof name, "cuda:%u", g->ordinal);
        json_t *peers = json_object();
        for (uint32_t k = 0; k < gpus->n; k++) {
            if (k == i) continue;
            char peer[32];
            snprintf(peer, sizeof peer, "cuda:%u", gpus->at[k].ordinal);
            json_object_set_new(peers, peer, json_string(gpu_link_word(gpus->link[i][k])));
        }
        json_array_append_new(devices, json_pack("{s:s, s:s, s:s, s:s, s:i, s:I, s:I, s:o}",
                                                 "device", name, "backend", "cuda", "name", g->name,
                                                 "uuid", g->uuid, "capability",
                                                 (int)(g->major * 10 + g->minor), "memory_bytes",
                                                 (json_int_t)g->memory_bytes, "memory_free_bytes",
                                                 (json_int_t)g->memory_free_bytes, "peers", peers));
    }
    json_t *all = json_pack("{s:o, s:s, s:s, s:b}", "devices", devices, "isa", inventory_isas(),
                            "backends", inventory_backends(), "cuda", gpus->n > 0);
    return output_json(all, e);
}

int cmd_devices(int argc, char **argv)
{
    common_options c;
    errmsg e = {0};
    const command_form form = {USAGE, ABOUT, NULL, 0, NULL, 0, NULL, NULL};
    int code;
    if (!options_begin(&c, argc, argv, &form, &code)) return code;
    inventory *v = malloc(sizeof *v);
    status s = v == NULL ? errmsg_set(&e, ST_RESOURCES, "no memory for the device list")
                         : inventory_read(v, &e);
    gpu_list gpus = {0};
    errmsg why = {0};
    status asked = ST_OK;
    if (s == ST_OK && inventory_has_cuda())
        asked = gpus_read(&gpus, c.stage_program, INVENTORY_PROBE_MS, &interrupted, &why);
    if (asked == ST_INTERRUPTED)
        s = asked;
    else if (asked != ST_OK)
        fprintf(stderr, "memra-pp: warning: CUDA devices: %s\n", why.text);
    if (s == ST_OK) s = c.json ? print_json(v, &gpus, &e) : print_table(v, &gpus, &e);
    free(v);
    return s == ST_OK ? 0 : command_failed(&e);
}
