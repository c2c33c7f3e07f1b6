#include "kernels/cpu/isa.h"
#include "kernels/cpu/isa_ops.h"

#include <cpuid.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

ISA_TABLE(ref, ref);
ISA_TABLE(avx2, avx2);
ISA_TABLE(avx512, avx512);
ISA_TABLE(amx, avx512);

static bool runs_avx2(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
           __builtin_cpu_supports("f16c");
}

static bool runs_avx512(void)
{
    return runs_avx2() && __builtin_cpu_supports("avx512f") &&
           __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vnni");
}

/* Tiles are state that the kernel keeps for those only who ask for it, once for the whole process;
 * threads that exist already get it, too. */
static bool runs_amx(void)
{
    enum { REQUEST_PERMISSION = 0x1023, TILE_DATA = 18 }; /* ARCH_REQ_XCOMP_PERM, XFEATURE */
    unsigned a, b, c, d;
    if (!runs_avx512() || !__get_cpuid_count(7, 0, &a, &b, &c, &d)) return false;
    bool tiles = d >> 24 & 1, bytes = d >> 25 & 1;
    return tiles && bytes && syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
}

const cpu_isa *cpu_isa_get(const char *name)
{
    bool any = strcmp(name, "auto") == 0;
    if ((any || strcmp(name, "amx") == 0) && runs_amx()) return &cpu_isa_amx;
    if ((any || strcmp(name, "avx512") == 0) && runs_avx512()) return &cpu_isa_avx512;
    if ((any || strcmp(name, "avx2") == 0) && runs_avx2()) return &cpu_isa_avx2;
    if (any || strcmp(name, "ref") == 0) return &cpu_isa_ref;
    return NULL;
}
