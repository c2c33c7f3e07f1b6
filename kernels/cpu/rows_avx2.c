#include "kernels/cpu/v16_avx2.h"

#include "kernels/cpu/rows_v16.h"
