#include "kernels/cpu/isa.h"
#include "kernels/cpu/isa_ops.h"

#include <string.h>

ISA_TABLE(ref);
ISA_TABLE(avx2);
ISA_TABLE(avx512);

static bool runs_avx2(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
           __builtin_cpu_supports("f16c");
}

static bool runs_avx512(void)
{
    return runs_avx2() && __builtin_cpu_supports("avx512f") &&
           __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512dq");
}

const cpu_isa *cpu_isa_get(const char *name)
{
    bool any = strcmp(name, "auto") == 0;
    if ((any || strcmp(name, "avx512") == 0) && runs_avx512()) return &cpu_isa_avx512;
    if ((any || strcmp(name, "avx2") == 0) && runs_avx2()) return &cpu_isa_avx2;
    if (any || strcmp(name, "ref") == 0) return &cpu_isa_ref;
    return NULL;
}
