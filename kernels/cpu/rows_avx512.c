#include "kernels/cpu/v16_avx512.h"

#include "kernels/cpu/rows_v16.h"
