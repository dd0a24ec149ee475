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
    // What every value is at least.
    RW_DEVICE static float lowest() { return -infinity(); }
    RW_DEVICE static float nan() { return bits_to_float(0x7fc00000u); }
    RW_DEVICE static float largest() { return bits_to_float(0x7f7fffffu); }
    // Sums of squares below this may have lost terms to underflow: 2^-100.
    RW_DEVICE static float small_square() { return bits_to_float(0x0d800000u); }
};

template <>
struct Limits<double> {
    RW_DEVICE static double infinity() { return bits_to_double(0x7ff0000000000000ull); }
    RW_DEVICE static double lowest() { return -infinity(); }
    RW_DEVICE static double nan() { return bits_to_double(0x7ff8000000000000ull); }
    RW_DEVICE static double largest() { return bits_to_double(0x7fefffffffffffffull); }
    // 2^-900.
    RW_DEVICE static double small_square() { return bits_to_double(0x07b0000000000000ull); }
};

template <>
struct Limits<i32> {
    RW_DEVICE static i32 lowest() { return static_cast<i32>(0x80000000u); }
};

template <>
struct Limits<i64> {
    RW_DEVICE static i64 lowest() { return static_cast<i64>(0x8000000000000000ull); }
};

// An order-reversing map that is its own inverse: the minimum is the maximum of the mirrored.
RW_DEVICE float mirrored(float x) { return -x; }
RW_DEVICE double mirrored(double x) { return -x; }
RW_DEVICE i32 mirrored(i32 x) { return ~x; }
RW_DEVICE u32 mirrored(u32 x) { return ~x; }
RW_DEVICE i64 mirrored(i64 x) { return ~x; }

RW_DEVICE float fused(float a, float b, float c) { return fmaf(a, b, c); }
RW_DEVICE double fused(double a, double b, double c) { return fma(a, b, c); }

RW_DEVICE float absolute(float x) { return fabsf(x); }
RW_DEVICE double absolute(double x) { return fabs(x); }

RW_DEVICE bool is_nan(float x) { return x != x; }
RW_DEVICE bool is_nan(double x) { return x != x; }
RW_DEVICE bool is_nan(i32) { return false; }
RW_DEVICE bool is_nan(i64) { return false; }

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

// The same for -87 <= x <= 0, where no result is subnormal, in five instructions for eight: 2^t of
// the rounded t = x log2(e), and what the rounding left, x - t ln(2), by the first term of its series
// (it is below 2^-17). Error below 2 ulp.
constexpr float kLowestNormalExponent = -87.0f;

RW_DEVICE float exp_normal(float x) {
    constexpr float kLog2e = 0x1.715476p+0f;
    constexpr float kLn2High = 0x1.62e430p-1f;
    constexpr float kLn2Low = -0x1.05c610p-29f;
    const float t = x * kLog2e;
    const float rest = fmaf(t, -kLn2Low, fmaf(t, -kLn2High, x));
    const float power = exp2_reduced(t);
    return fmaf(power, rest, power);
}

// The same to a few bits less, in two instructions: what rounding t = x log2(e) leaves is dropped. Error below
// 2^-22 + |t| 2^-25, which is 2^-18 where the result is the smallest and 2^-21 where it is 2^-15, half of f16's
// smallest step; f16 and bf16 round to 2^-12 and 2^-9.
RW_DEVICE float exp_short(float x) {
    constexpr float kLog2e = 0x1.715476p+0f;
    return exp2_reduced(x * kLog2e);
}

// 2^k exp(x) for x <= 0 and k up to 64, in two instructions as well: multiplied by 2^-k in a last product, it rounds
// into the subnormals of f32 once, where exp_short has none. Error below 2^-18: beside 64, t keeps 17 bits behind the
// point. 0 where 2^k exp(x) is below the normal numbers: with k = 64, below x = -131, where half types have none.
RW_DEVICE float exp_scaled(float x, float k) {
    constexpr float kLog2e = 0x1.715476p+0f;
    return exp2_reduced(fmaf(x, kLog2e, k));
}

// The same in f64: x = n ln(2) + r with ln(2) in two parts, the Taylor series of exp(r) to r^13
// (|r| <= ln(2)/2 leaves less than 2^-57), and 2^n in two factors, so that the last product rounds
// into the subnormals once. Error below 1 ulp.
RW_DEVICE double exp_nonpositive(double x) {
    constexpr double kLog2e = 0x1.71547652b82fep+0;
    constexpr double kLn2High = 0x1.62e42fefa3800p-1;
    constexpr double kLn2Low = 0x1.ef35793c76730p-45;
    constexpr double kMagic = 6755399441055744.0;  // 1.5 * 2^52: its low bits hold the integer
    constexpr double kInverseFactorials[] = {1.0 / 6227020800.0, 1.0 / 479001600.0, 1.0 / 39916800.0,
                                             1.0 / 3628800.0,    1.0 / 362880.0,    1.0 / 40320.0,
                                             1.0 / 5040.0,       1.0 / 720.0,       1.0 / 120.0,
                                             1.0 / 24.0,         1.0 / 6.0,         0.5,
                                             1.0,                1.0};
    // Below -746 the result is 0; fmax drops a NaN, the residual below does not.
    const double shifted = fma(fmax(x, -746.0), kLog2e, kMagic);
    const double n = shifted - kMagic;
    const double clamped = x < -746.0 ? -746.0 : x;
    const double r = fma(n, -kLn2Low, fma(n, -kLn2High, clamped));
    double series = kInverseFactorials[0];
#pragma unroll
    for (int i = 1; i < 14; ++i) {
        series = fma(series, r, kInverseFactorials[i]);
    }
    const int exponent = __double2loint(shifted);
    const int half = exponent / 2;
    const double low = __hiloint2double((1023 + half) << 20, 0);
    const double high = __hiloint2double((1023 + exponent - half) << 20, 0);
    return series * low * high;
}

RW_DEVICE float natural_log(float x) { return logf(x); }
RW_DEVICE double natural_log(double x) { return log(x); }

// Newton steps from the estimate to full precision.
template <class A>
constexpr int kNewtonSteps = sizeof(A) == 4 ? 1 : 3;

// The library's own division and roots, in place of the operators: those call a subroutine for rare
// operands, and around a call the compiler spills whatever lives in registers. A step whose residual
// is not finite is left out, so that 0 and the infinities give what IEEE 754 says; subnormal f64
// operands count as 0.

// 1 / x, to within an ulp.
template <class A>
RW_DEVICE A reciprocal(A x) {
    A y = reciprocal_estimate(x);
#pragma unroll
    for (int i = 0; i < kNewtonSteps<A>; ++i) {
        const A residual = fused(-x, y, A(1));
        y = is_nan(residual) ? y : fused(y, residual, y);
    }
    return y;
}

// a / b, correctly rounded but where a, b or the quotient is near the ends of the range: one step on
// the quotient (Markstein, "IA-64 and Elementary Functions", 2000).
template <class A>
RW_DEVICE A divide(A a, A b) {
    const A inverse = reciprocal(b);
    const A quotient = a * inverse;
    const A residual = fused(-quotient, b, a);
    return is_nan(residual) ? quotient : fused(residual, inverse, quotient);
}

// 1 / sqrt(x), to within an ulp.
template <class A>
RW_DEVICE A inverse_square_root(A x) {
    A y = inverse_square_root_estimate(x);
#pragma unroll
    for (int i = 0; i < kNewtonSteps<A>; ++i) {
        const A residual = fused(-(x * y), y, A(1));
        y = is_nan(residual) ? y : fused(A(0.5) * y, residual, y);
    }
    return y;
}

// sqrt(x), to within an ulp.
template <class A>
RW_DEVICE A square_root(A x) {
    // 0 and infinity, whose inverse roots are no factors, are roots of themselves.
    return x > A(0) && x <= Limits<A>::largest() ? x * inverse_square_root(x) : x;
}

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
