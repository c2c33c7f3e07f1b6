#include "kernels/cpu/isa.h"
#include "kernels/cpu/isa_ops.h"

#include "common/cpu_features.h"

#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

ISA_TABLE(ref, ref);
ISA_TABLE(avx2, avx2);
ISA_TABLE(avx512, avx512);
ISA_TABLE(amx, avx512);

/* Tiles are state that the kernel keeps for those only who ask for it, once for the whole process;
 * threads that exist already get it, too. */
static bool runs_amx(void)
{
    enum { REQUEST_PERMISSION = 0x1023, TILE_DATA = 18 }; /* ARCH_REQ_XCOMP_PERM, XFEATURE */
    return cpu_has_amx() && syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
}

const cpu_isa *cpu_isa_get(const char *name)
{
    bool any = strcmp(name, "auto") == 0;
    if ((any || strcmp(name, "amx") == 0) && runs_amx()) return &cpu_isa_amx;
    if ((any || strcmp(name, "avx512") == 0) && cpu_has_avx512()) return &cpu_isa_avx512;
    if ((any || strcmp(name, "avx2") == 0) && cpu_has_avx2()) return &cpu_isa_avx2;
    if (any || strcmp(name, "ref") == 0) return &cpu_isa_ref;
    return NULL;
}
