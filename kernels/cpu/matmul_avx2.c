#include "kernels/cpu/v16_avx2.h"

#include "kernels/cpu/matmul_v16.h"
