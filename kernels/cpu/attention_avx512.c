#include "kernels/cpu/v16_avx512.h"

#include "kernels/cpu/attention_v16.h"
