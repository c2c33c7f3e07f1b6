#include "kernels/cpu/v16_avx2.h"

#include "kernels/cpu/attention_v16.h"
