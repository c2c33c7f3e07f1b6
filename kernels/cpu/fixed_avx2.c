#include "kernels/cpu/words_avx2.h"
#include "kernels/cpu/tiles_none.h"

#include "kernels/cpu/fixed_v16.h"
