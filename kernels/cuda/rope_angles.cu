// cos and sin of the rows' positions, by the operations of fm_sincos: the host's bits.
#include "kernels/cuda/common.cuh"

static constexpr uint32_t THREADS = 128;

// The operations of fm_sincos (fmath.h).
static __device__ void sincos_f64(double x, double *s, double *c)
{
    constexpr double sin_c[] = FM_SIN_SERIES, cos_c[] = FM_COS_SERIES;
    if (!(x >= -FM_SINCOS_MAX && x <= FM_SINCOS_MAX)) {
        *s = *c = __longlong_as_double(0x7ff8000000000000);
        return;
    }
    double n = __dsub_rn(__dadd_rn(__dmul_rn(x, FM_2_BY_PI), FM_ROUND), FM_ROUND);
    double r = __fma_rn(-n, FM_PI_BY_2_HI, x);
    r = __fma_rn(-n, FM_PI_BY_2_LO, r);
    double z = __dmul_rn(r, r), ps = sin_c[7], pc = cos_c[7];
#pragma unroll
    for (int i = 6; i >= 0; i--) {
        ps = __fma_rn(ps, z, sin_c[i]);
        pc = __fma_rn(pc, z, cos_c[i]);
    }
    double sr = __fma_rn(__dmul_rn(r, z), ps, r), cr = __fma_rn(z, pc, 1.0);
    uint32_t quarter = (uint32_t)((long long)n & 3);
    double even = quarter % 2 == 0 ? sr : cr, odd = quarter % 2 == 0 ? cr : sr;
    *s = quarter >= 2 ? -even : even;
    *c = quarter == 1 || quarter == 2 ? -odd : odd;
}

static __global__ void __launch_bounds__(THREADS)
    rope_angles(float *cos, float *sin, const double *frequency, double magnitude,
                uint32_t n_pairs, const uint32_t *position, uint64_t n)
{
    kernel_begin();
    uint64_t i = (uint64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= n) return;
    double s, c, p = (double)position[i / n_pairs];
    sincos_f64(__dmul_rn(p, frequency[i % n_pairs]), &s, &c);
    cos[i] = __double2float_rn(__dmul_rn(c, magnitude));
    sin[i] = __double2float_rn(__dmul_rn(s, magnitude));
}

cudaError_t cuda_launch_rope_angles(cudaStream_t s, float *cos, float *sin,
                                    const double *frequency, double magnitude, uint32_t n_pairs,
                                    const uint32_t *position, uint32_t n_rows)
{
    uint64_t n = (uint64_t)n_rows * n_pairs;
    if (n == 0) return cudaSuccess;
    return start(rope_angles, (uint32_t)((n + THREADS - 1) / THREADS), THREADS, 0, s, cos, sin,
                 frequency, magnitude, n_pairs, position, n);
}
