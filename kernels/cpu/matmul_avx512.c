#include "kernels/cpu/v16_avx512.h"

#include "kernels/cpu/matmul_v16.h"
