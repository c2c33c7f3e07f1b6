// forms.cuh - how weights lie in a tile (launch.h) and how a lane makes its operand registers of
// them: per block of 32 inputs four registers, those of two k16 steps.
//
// load(unit, lane): what the lane needs of a unit. each(raw, f): f(j, registers) for that unit's
// blocks in order; each_block does both. The f16 numbers are those
// that dequant.cuh's value rounds to, but for form_q4k: a product of a scale and a small integer is
// exact in f32, so that one fused multiply-add rounds as the difference of two products does.
#ifndef KERNELS_CUDA_FORMS_CUH
#define KERNELS_CUDA_FORMS_CUH

#include "kernels/cuda/common.cuh"

// Where value (output o within its tile, input k within its block) stands in a block: lane * 8 + i.
__host__ __device__ __forceinline__ uint32_t value_place(uint32_t o, uint32_t k)
{
    uint32_t lane = o * 4 + k % 8 / 2;
    return lane * 8 + k / 16 * 4 + k % 16 / 8 * 2 + k % 2;
}

// The input of a block that a lane's value i is: value_place's inverse.
__host__ __device__ __forceinline__ uint32_t value_input(uint32_t lane, uint32_t i)
{
    return i / 4 * 16 + i % 4 / 2 * 8 + lane % 4 * 2 + i % 2;
}

// And in a block of FORM_F16.
__host__ __device__ __forceinline__ uint32_t core_place(uint32_t o, uint32_t k)
{
    return k / 8 * 64 + o * 8 + k % 8;
}

struct form_f16 {
    static constexpr uint32_t unit_blocks = 1, bytes = F16_BLOCK, unit_bytes = bytes;
    // Four core matrices dealt out to the warp. block: in shared memory.
    static __device__ __forceinline__ uint4 operand(const char *block, uint32_t lane)
    {
        uint4 v;
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                     : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                     : "r"(shared_address(block) + lane * 16)
                     : "memory");
        return v;
    }
    typedef uint4 raw;
    static __device__ __forceinline__ raw load(const char *unit, uint32_t lane)
    {
        return operand(unit, lane);
    }
    template <class F> static __device__ __forceinline__ void each(const raw &r, F f)
    {
        f(0, r);
    }
};

struct form_q8 {
    static constexpr uint32_t unit_blocks = 1, bytes = Q8_BLOCK, unit_bytes = bytes;
    // Bytes b + 128 become the f16 numbers 1024 + b + 128; 1152 is taken off, then d q is rounded.
    static __device__ __forceinline__ uint32_t pair(uint32_t packed, uint32_t selector, __half2 d)
    {
        uint32_t biased = __byte_perm(packed, 0x64646464u, selector);
        __half2 v = *reinterpret_cast<__half2 *>(&biased);
        v = __hmul2_rn(__hsub2_rn(v, __half2half2(__ushort_as_half(0x6480))), d);
        return *reinterpret_cast<uint32_t *>(&v);
    }
    struct raw {
        uint2 bytes;
        __half d;
    };
    static __device__ __forceinline__ raw load(const char *unit, uint32_t lane)
    {
        return {*reinterpret_cast<const uint2 *>(unit + lane * 8),
                *reinterpret_cast<const __half *>(unit + 256 + lane / 4 * 2)};
    }
    template <class F> static __device__ __forceinline__ void each(const raw &r, F f)
    {
        __half2 d = __half2half2(r.d);
        f(0, make_uint4(pair(r.bytes.x, 0x4140, d), pair(r.bytes.x, 0x4342, d),
                        pair(r.bytes.y, 0x4140, d), pair(r.bytes.y, 0x4342, d)));
    }
};

// What `field` puts above a field of 6 bits: 2^(23 - at) for at = 0, 6, 12. In registers that the
// compiler cannot make anew, so that one instruction masks and joins.
struct field_bases
{
    uint32_t at[3];
    __device__ __forceinline__ field_bases()
    {
#pragma unroll
        for (uint32_t i = 0; i < 3; i++)
            asm volatile("mov.b32 %0, %1;" : "=r"(at[i]) : "r"((127u + 23 - 6 * i) << 23));
    }
};

// Bits [AT, AT + 6) of x as an f32 number less `less`, exact: they become the low bits of the
// mantissa of 2^(23 - AT).
template <uint32_t AT>
__device__ __forceinline__ float field(const field_bases &bases, uint32_t x, float less)
{
    constexpr uint32_t mask = 63u << AT, base = (127 + 23 - AT) << 23;
    uint32_t joined; // (x & mask) | base
    asm("lop3.b32 %0, %1, %2, %3, 0xea;"
        : "=r"(joined)
        : "r"(x), "n"(mask), "r"(bases.at[AT / 6]));
    return __fsub_rn(__uint_as_float(joined), __fadd_rn(__uint_as_float(base), less));
}

// Byte I of x as f32, plus 2^23.
template <uint32_t I> __device__ __forceinline__ float byte_above(uint32_t x)
{
    return __uint_as_float(__byte_perm(x, 0x4b000000u, 0x7440u | I));
}

__device__ __forceinline__ uint32_t rounded_pair(float a, float b)
{
    __half2 v = __floats2half2_rn(a, b);
    return *reinterpret_cast<uint32_t *>(&v);
}

// Four bytes less `less` (2^23 and what was added to them) times scale plus add, as f16 pairs.
__device__ __forceinline__ uint2 scaled_bytes(uint32_t x, float less, float scale, float add)
{
    float v[4] = {byte_above<0>(x), byte_above<1>(x), byte_above<2>(x), byte_above<3>(x)};
#pragma unroll
    for (uint32_t i = 0; i < 4; i++)
        v[i] = __fmaf_rn(scale, __fsub_rn(v[i], less), add);
    return make_uint2(rounded_pair(v[0], v[1]), rounded_pair(v[2], v[3]));
}

struct form_q8m {
    static constexpr uint32_t unit_blocks = 1, bytes = Q8M_BLOCK, unit_bytes = bytes;
    static constexpr float less = 0x1p23f + 128;
    struct raw {
        uint2 bytes;
        __half2 both;
    };
    static __device__ __forceinline__ raw load(const char *unit, uint32_t lane)
    {
        return {*reinterpret_cast<const uint2 *>(unit + lane * 8),
                *reinterpret_cast<const __half2 *>(unit + 256 + lane / 4 * 4)};
    }
    template <class F> static __device__ __forceinline__ void each(const raw &r, F f)
    {
        float d = __low2float(r.both), m = __high2float(r.both);
        uint2 a = scaled_bytes(r.bytes.x, less, d, m), b = scaled_bytes(r.bytes.y, less, d, m);
        f(0, make_uint4(a.x, a.y, b.x, b.y));
    }
};

// A unit is a super-block of 256 inputs. Nibbles: [2][32 lanes][4 u32], a word for each block, its
// nibble i value i of the lane. Then for each output 8 (scale, min) in two bytes; then for each
// output d and dmin, f16. A permutation of bytes makes 128 plus the integer; scale times 128 goes
// with the minimum: one rounding to f32 more, of 2^-17 of the scale.
struct form_q4k {
    static constexpr uint32_t unit_blocks = 8, unit_bytes = Q4K_UNIT;
    static constexpr uint32_t scales_at = 1024, d_at = 1152;

    // Byte I of x, of less than 128, as f32 plus 128.
    template <uint32_t I> static __device__ __forceinline__ float above(uint32_t x)
    {
        return __uint_as_float(__byte_perm(x, 0x43000000u, 0x7044u | I << 8));
    }
    static __device__ __forceinline__ uint4 block(uint32_t x, float scale, float min)
    {
        uint32_t even = x & 0x0f0f0f0fu, odd = x >> 4 & 0x0f0f0f0fu;
        float add = __fmaf_rn(scale, -128.0f, -min);
        float q[8] = {above<0>(even), above<0>(odd), above<1>(even), above<1>(odd),
                      above<2>(even), above<2>(odd), above<3>(even), above<3>(odd)};
#pragma unroll
        for (uint32_t i = 0; i < 8; i++)
            q[i] = __fmaf_rn(scale, q[i], add);
        return make_uint4(rounded_pair(q[0], q[1]), rounded_pair(q[2], q[3]),
                          rounded_pair(q[4], q[5]), rounded_pair(q[6], q[7]));
    }
    struct raw {
        uint4 nibbles[2], scales;
        __half2 both;
    };
    static __device__ __forceinline__ raw load(const char *unit, uint32_t lane)
    {
        return {{*reinterpret_cast<const uint4 *>(unit + lane * 16),
                 *reinterpret_cast<const uint4 *>(unit + 512 + lane * 16)},
                *reinterpret_cast<const uint4 *>(unit + scales_at + lane / 4 * 16),
                *reinterpret_cast<const __half2 *>(unit + d_at + lane / 4 * 4)};
    }
    template <class F> static __device__ __forceinline__ void each(const raw &r, F f)
    {
        float d = __low2float(r.both), m = __high2float(r.both);
        float d0 = __fmul_rn(d, -0x1p23f), m0 = __fmul_rn(m, -0x1p23f); // exact
        uint32_t scales[4] = {r.scales.x, r.scales.y, r.scales.z, r.scales.w};
#pragma unroll
        for (uint32_t h = 0; h < 2; h++) {
            uint4 q = r.nibbles[h];
            uint32_t words[4] = {q.x, q.y, q.z, q.w};
#pragma unroll
            for (uint32_t j = 0; j < 4; j++) {
                uint32_t sm = scales[h * 2 + j / 2] >> (j % 2 * 16);
                float scale = __fmaf_rn(d, byte_above<0>(sm), d0);
                float min = __fmaf_rn(m, byte_above<1>(sm), m0);
                f(h * 4 + j, block(words[j], scale, min));
            }
        }
    }
};

// A unit is a super-block of 256 inputs: [3][32 lanes][4 u32] of values, three words for each two
// blocks: five fields of 6 bits in each word and a sixteenth in the words' upper 2 bits. Then for
// each output 16 scales (bytes, plus 128), one for each k16 step; then for each output d, f16.
struct form_q6k {
    static constexpr uint32_t unit_blocks = 8, unit_bytes = Q6K_UNIT;
    static constexpr uint32_t scales_at = 1536, d_at = 1664;

    struct raw {
        uint4 fields[3], scales;
        __half d;
    };
    static __device__ __forceinline__ raw load(const char *unit, uint32_t lane)
    {
        return {{*reinterpret_cast<const uint4 *>(unit + lane * 16),
                 *reinterpret_cast<const uint4 *>(unit + 512 + lane * 16),
                 *reinterpret_cast<const uint4 *>(unit + 1024 + lane * 16)},
                *reinterpret_cast<const uint4 *>(unit + scales_at + lane / 4 * 16),
                *reinterpret_cast<const __half *>(unit + d_at + lane / 4 * 2)};
    }
    template <class F> static __device__ __forceinline__ void each(const raw &r, F f)
    {
        float d = __half2float(r.d);
        uint32_t scales[4] = {r.scales.x, r.scales.y, r.scales.z, r.scales.w};
        uint32_t words[12] = {r.fields[0].x, r.fields[0].y, r.fields[0].z, r.fields[0].w,
                              r.fields[1].x, r.fields[1].y, r.fields[1].z, r.fields[1].w,
                              r.fields[2].x, r.fields[2].y, r.fields[2].z, r.fields[2].w};
        field_bases bases;
#pragma unroll
        for (uint32_t t = 0; t < 4; t++) {
            float v[16];
#pragma unroll
            for (uint32_t c = 0; c < 3; c++) {
                uint32_t x = words[t * 3 + c], y = x >> 12;
                v[c * 5] = field<0>(bases, x, 32);
                v[c * 5 + 1] = field<6>(bases, x, 32);
                v[c * 5 + 2] = field<12>(bases, x, 32);
                v[c * 5 + 3] = field<6>(bases, y, 32);
                v[c * 5 + 4] = field<12>(bases, y, 32);
            }
            uint32_t a = words[t * 3], b = words[t * 3 + 1], c = words[t * 3 + 2];
            v[15] = field<0>(bases, a >> 30 | (b >> 28 & 12) | (c >> 26 & 48), 32);
            constexpr float above = 0x1p23f + 128;
            float by[4] = {__fmul_rn(d, __fsub_rn(byte_above<0>(scales[t]), above)),
                           __fmul_rn(d, __fsub_rn(byte_above<1>(scales[t]), above)),
                           __fmul_rn(d, __fsub_rn(byte_above<2>(scales[t]), above)),
                           __fmul_rn(d, __fsub_rn(byte_above<3>(scales[t]), above))};
            uint32_t pairs[8];
#pragma unroll
            for (uint32_t i = 0; i < 8; i++)
                pairs[i] = rounded_pair(__fmul_rn(by[i / 2], v[2 * i]),
                                        __fmul_rn(by[i / 2], v[2 * i + 1]));
            f(2 * t, make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]));
            f(2 * t + 1, make_uint4(pairs[4], pairs[5], pairs[6], pairs[7]));
        }
    }
};

// A unit is a super-block of 256 inputs: [8 blocks][32 lanes][8] bytes (integer + 128), then for
// each output 16 pairs of a scale (plus 128) and a minimum, bytes, one for each k16 step; then for
// each output d and dmin, f16.
struct form_k8 {
    static constexpr uint32_t unit_blocks = 8, unit_bytes = K8_UNIT;
    static constexpr uint32_t scales_at = 2048, d_at = 2304;
    static constexpr float less = 0x1p23f + 128;

    struct raw { // the rest has no room in registers
        const char *unit;
        uint32_t lane;
        __half2 both;
    };
    static __device__ __forceinline__ raw load(const char *unit, uint32_t lane)
    {
        return {unit, lane, *reinterpret_cast<const __half2 *>(unit + d_at + lane / 4 * 4)};
    }
    template <class F> static __device__ __forceinline__ void each(const raw &r, F f)
    {
        float d = __low2float(r.both), m = __high2float(r.both);
#pragma unroll
        for (uint32_t j = 0; j < 8; j++) {
            uint2 p = *reinterpret_cast<const uint2 *>(r.unit + j * 256 + r.lane * 8);
            uint32_t s = *reinterpret_cast<const uint32_t *>(r.unit + scales_at + r.lane / 4 * 32 +
                                                             j * 4);
            float s0 = __fmul_rn(d, __fsub_rn(byte_above<0>(s), less));
            float s1 = __fmul_rn(d, __fsub_rn(byte_above<2>(s), less));
            float m0 = __fmul_rn(m, __fsub_rn(0x1p23f, byte_above<1>(s)));
            float m1 = __fmul_rn(m, __fsub_rn(0x1p23f, byte_above<3>(s)));
            uint2 a = scaled_bytes(p.x, less, s0, m0), b = scaled_bytes(p.y, less, s1, m1);
            f(j, make_uint4(a.x, a.y, b.x, b.y));
        }
    }
};

template <class form, class F>
__device__ __forceinline__ void each_block(const char *unit, uint32_t lane, F f)
{
    form::each(form::load(unit, lane), f);
}

// call(form) with the form's structure.
template <class F> static inline cudaError_t with_form(cuda_form form, F call)
{
    switch (form) {
    case FORM_F16:
        return call(form_f16());
    case FORM_Q8:
        return call(form_q8());
    case FORM_Q8M:
        return call(form_q8m());
    case FORM_Q4K:
        return call(form_q4k());
    case FORM_Q6K:
        return call(form_q6k());
    case FORM_K8:
        return call(form_k8());
    default:
        return cudaErrorInvalidValue;
    }
}

#endif
