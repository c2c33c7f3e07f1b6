/* loan.h - inside of the cpu backend: pools in shared memory (kernels/loan.h). */
#ifndef KERNELS_CPU_LOAN_H
#define KERNELS_CPU_LOAN_H

#include "kernels/loan.h"

extern const backend_loan cpu_loan_table;

#endif
