/* wire_example.h - a configuration that is valid: of the second of two stages on the CPU, of a
 * model of four layers. Standard C without a library: fuzz seeds use it too. */
#ifndef TESTS_SUPPORT_WIRE_EXAMPLE_H
#define TESTS_SUPPORT_WIRE_EXAMPLE_H

#include "common/wire.h"

static inline wire_config wire_example_config(void)
{
    return (wire_config){.stage_i = 1,
                         .n_stages = 2,
                         .epoch = 1,
                         .edge_epoch = 1,
                         .n_layers = 4,
                         .layer_begin = 2,
                         .layer_end = 4,
                         .n_ctx = 64,
                         .n_branches = 1,
                         .rows_max = 8,
                         .n_readback = 1,
                         .kv_type = DT_F16,
                         .device = DEVICE_CPU,
                         .n_threads = 1,
                         .numa_node = WIRE_NONE,
                         .run_block_fd = 3,
                         .readback_fd = 4,
                         .in_fd = 5,
                         .out_fd = 6,
                         .journal_in_fd = 7,
                         .journal_out_fd = -1,
                         .loan_fd = 8,
                         .loans = LOAN_UNSPLIT,
                         .n_seam = 1,
                         .range = {0, 2, 4},
                         .n_model_fds = 1};
}

#endif
