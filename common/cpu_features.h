/* cpu_features.h - what this processor can run, of what the cpu backend knows. Any thread. */
#ifndef COMMON_CPU_FEATURES_H
#define COMMON_CPU_FEATURES_H

#include <stdbool.h>

/* AVX2, FMA, F16C. */
bool cpu_has_avx2(void);
/* That and AVX-512 F, BW, VL, DQ, VNNI. */
bool cpu_has_avx512(void);
/* That and AMX tiles of bytes. They are state that the kernel keeps for those only who ask for
 * it. */
bool cpu_has_amx(void);

#endif
