/* loan.h - inside of the cuda backend: memory that another process uses (kernels/loan.h). */
#ifndef KERNELS_CUDA_LOAN_H
#define KERNELS_CUDA_LOAN_H

#include "kernels/cuda/device.h"
#include "kernels/loan.h"

extern const backend_loan cuda_loan_table;

#endif
