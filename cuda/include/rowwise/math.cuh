// Elementary functions and constants, each for f32 and f64. The library is compiled without
// contraction of a*b+c (-fmad=false): where a fused multiply-add is wanted it is written, so that
// the bits of an expression do not depend on the kernel it is compiled into.
#pragma once

#include "intrinsics.cuh"

namespace rowwise {

template <class A>
struct Limits;

template <>
struct Limits<float> {
    RW_DEVICE static float infinity() { return bits_to_float(0x7f800000u); }
    RW_DEVICE static float nan() { return bits_to_float(0x7fc00000u); }
    RW_DEVICE static float largest() { return bits_to_float(0x7f7fffffu); }
    // Sums of squares below this may have lost terms to underflow: 2^-100.
    RW_DEVICE static float small_square() { return bits_to_float(0x0d800000u); }
};

template <>
struct Limits<double> {
    RW_DEVICE static double infinity() { return __longlong_as_double(0x7ff0000000000000ll); }
    RW_DEVICE static double nan() { return __longlong_as_double(0x7ff8000000000000ll); }
    RW_DEVICE static double largest() { return __longlong_as_double(0x7fefffffffffffffll); }
    // 2^-900.
    RW_DEVICE static double small_square() { return __longlong_as_double(0x07b0000000000000ll); }
};

RW_DEVICE float fused(float a, float b, float c) { return fmaf(a, b, c); }
RW_DEVICE double fused(double a, double b, double c) { return fma(a, b, c); }

RW_DEVICE float absolute(float x) { return fabsf(x); }
RW_DEVICE double absolute(double x) { return fabs(x); }

RW_DEVICE bool is_nan(float x) { return x != x; }
RW_DEVICE bool is_nan(double x) { return x != x; }

// exp(x) for x <= 0; NaN for NaN, 0 for -inf. Error below 2 ulp.
//
// x log2(e) = n + f with n the nearest integer: n by adding 1.5 * 2^23, whose low bits then hold
// n + 127, the exponent field of 2^n; f by two fused multiply-adds with log2(e) in two parts. n is
// held at -126, so that 2^n stays normal; below, f takes the rest, and the last product rounds into
// the subnormals once.
RW_DEVICE float exp_nonpositive(float x) {
    constexpr float kLog2eHigh = 0x1.715476p+0f;
    constexpr float kLog2eLow = 0x1.4ae0cp-26f;
    constexpr float kMagic = 12582912.0f + 127.0f;
    const float shifted = fmaxf(fmaf(x, kLog2eHigh, kMagic), kMagic - 126.0f);
    const float n = shifted - kMagic;
    const float f = fmaf(x, kLog2eLow, fmaf(x, kLog2eHigh, -n));
    return exp2_reduced(f) * bits_to_float(float_to_bits(shifted) << 23);
}
RW_DEVICE double exp_nonpositive(double x) { return exp(x); }

RW_DEVICE float natural_log(float x) { return logf(x); }
RW_DEVICE double natural_log(double x) { return log(x); }

RW_DEVICE float divide(float a, float b) { return __fdiv_rn(a, b); }
RW_DEVICE double divide(double a, double b) { return a / b; }

RW_DEVICE float square_root(float x) { return __fsqrt_rn(x); }
RW_DEVICE double square_root(double x) { return sqrt(x); }

// 2^-k with 2^k <= |x| < 2^(k+1), held to where both it and its square are normal numbers: what x
// is multiplied with so that its square neither overflows nor vanishes. x is finite and not 0.
RW_DEVICE float inverse_magnitude(float x) {
    const int exponent = static_cast<int>((float_to_bits(x) >> 23) & 0xffu) - 127;
    const int k = max_of(-126, min_of(126, exponent));
    return bits_to_float(static_cast<u32>(127 - k) << 23);
}
RW_DEVICE double inverse_magnitude(double x) {
    const int exponent = ((__double2hiint(x) >> 20) & 0x7ff) - 1023;
    const int k = max_of(-1022, min_of(1022, exponent));
    return __hiloint2double((1023 - k) << 20, 0);
}

}  // namespace rowwise
