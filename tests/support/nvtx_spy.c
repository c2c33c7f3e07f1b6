/* Stands for a profiler: a library that NVTX loads where NVTX_INJECTION64_PATH names it, and that
 * writes a line for each range that ends, "DEPTH NAME", to the file that NVTX_SPY_FILE names. */
#include <fcntl.h>
#include <nvtx3/nvToolsExt.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define DEPTH_MAX 16

static int fd = -1;
static _Thread_local const char *open_range[DEPTH_MAX];
static _Thread_local int depth;

static int push(const char *name)
{
    if (depth < DEPTH_MAX) open_range[depth] = name;
    return depth++;
}

static int pop(void)
{
    char line[128];
    if (--depth < 0) depth = 0; /* one too many: told by a depth of 0 without a name */
    int n =
        snprintf(line, sizeof line, "%d %s\n", depth, depth < DEPTH_MAX ? open_range[depth] : "");
    if (write(fd, line, (size_t)n) != n) abort();
    return depth;
}

int InitializeInjectionNvtx2(NvtxGetExportTableFunc_t get_table);
int InitializeInjectionNvtx2(NvtxGetExportTableFunc_t get_table)
{
    const NvtxExportTableCallbacks *callbacks = get_table(NVTX_ETID_CALLBACKS);
    NvtxFunctionTable table;
    unsigned int n;
    const char *path = getenv("NVTX_SPY_FILE");
    if (callbacks == NULL || path == NULL) return 0;
    fd = open(path, O_WRONLY | O_CREAT | O_APPEND, 0644);
    if (fd < 0 || !callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE, &table, &n)) return 0;
    *table[NVTX_CBID_CORE_RangePushA] = (NvtxFunctionPointer)push;
    *table[NVTX_CBID_CORE_RangePop] = (NvtxFunctionPointer)pop;
    return 1;
}
