#include "kernels/cpu/words_avx512.h"
#include "kernels/cpu/tiles_amx.h"

#undef V16_ISA
#define V16_ISA amx
#include "kernels/cpu/fixed_v16.h"
