//! `exp` without branches and tables, for lanes.
//!
//! The method is the classic one (Cody and Waite, "Software Manual for the Elementary Functions",
//! 1980): with `n = round(x / ln 2)` and `r = x - n ln 2`, so that `|r| <= ln 2 / 2`,
//! `exp(x) = 2^n exp(r)`. `ln 2` is split in a high part whose product with `n` a fused
//! multiply-add subtracts exactly and a low part. `exp(r)` is its Taylor polynomial, cut where the
//! rest is below a tenth of an ulp: at degree 7 for `f32` (rest 5.2e-9) and 13 for `f64`
//! (rest 4.1e-18). `2^n` is multiplied in two halves, so that results down to the smallest
//! subnormal are rounded once and those beyond the largest number become infinite.
//!
//! Every step is an IEEE operation on one lane, and every fused multiply-add is asked for, so the
//! bits are the same on every instruction set.

/// 1.5 * 2^23: adding it to a float of magnitude below 2^22 leaves the nearest integer in the low
/// bits of the mantissa.
const ROUND_F32: f32 = 12_582_912.0;
/// 1.5 * 2^52, likewise.
const ROUND_F64: f64 = 6_755_399_441_055_744.0;

/// ln 2 rounded to f32, and what that lacks.
const LN2_HI_F32: f32 = std::f32::consts::LN_2;
const LN2_LO_F32: f32 = (std::f64::consts::LN_2 - LN2_HI_F32 as f64) as f32;
/// ln 2 rounded to f64, and what that lacks: ln 2 = 0.693147180559945309417232121458176568...
const LN2_HI_F64: f64 = std::f64::consts::LN_2;
const LN2_LO_F64: f64 = 2.319_046_813_846_299_6e-17;

/// `e^x`, error below 1.5 ulp.
#[inline(always)]
pub(crate) fn exp_f32(x: f32) -> f32 {
    // Beyond these the result is 0 or inf all the same. A NaN passes through both comparisons.
    let x = if x < -110.0 { -110.0 } else { x };
    let x = if x > 100.0 { 100.0 } else { x };
    let shifted = x.mul_add(std::f32::consts::LOG2_E, ROUND_F32);
    let n = shifted - ROUND_F32;
    let r = n.mul_add(-LN2_HI_F32, x);
    let r = n.mul_add(-LN2_LO_F32, r);
    let mut q = 1.0 / 5040.0;
    q = r.mul_add(q, 1.0 / 720.0);
    q = r.mul_add(q, 1.0 / 120.0);
    q = r.mul_add(q, 1.0 / 24.0);
    q = r.mul_add(q, 1.0 / 6.0);
    q = r.mul_add(q, 0.5);
    // 1 + (r + r^2 q): the largest term is added last, so that its rounding is all that counts.
    let p = (r * r).mul_add(q, r) + 1.0;
    // For a NaN these are some numbers, and a NaN times any number is a NaN.
    let n = (shifted.to_bits() as i32).wrapping_sub(ROUND_F32.to_bits() as i32);
    let half = n >> 1;
    let rest = n.wrapping_sub(half);
    p * pow2_f32(half) * pow2_f32(rest)
}

/// `2^n` for a normal result.
#[inline(always)]
fn pow2_f32(n: i32) -> f32 {
    f32::from_bits((n.wrapping_add(127) as u32) << 23)
}

/// `e^x`, error below 1.5 ulp.
#[inline(always)]
pub(crate) fn exp_f64(x: f64) -> f64 {
    let x = if x < -760.0 { -760.0 } else { x };
    let x = if x > 720.0 { 720.0 } else { x };
    let shifted = x.mul_add(std::f64::consts::LOG2_E, ROUND_F64);
    let n = shifted - ROUND_F64;
    let r = n.mul_add(-LN2_HI_F64, x);
    let r = n.mul_add(-LN2_LO_F64, r);
    let mut q = 1.0 / 6_227_020_800.0;
    q = r.mul_add(q, 1.0 / 479_001_600.0);
    q = r.mul_add(q, 1.0 / 39_916_800.0);
    q = r.mul_add(q, 1.0 / 3_628_800.0);
    q = r.mul_add(q, 1.0 / 362_880.0);
    q = r.mul_add(q, 1.0 / 40_320.0);
    q = r.mul_add(q, 1.0 / 5040.0);
    q = r.mul_add(q, 1.0 / 720.0);
    q = r.mul_add(q, 1.0 / 120.0);
    q = r.mul_add(q, 1.0 / 24.0);
    q = r.mul_add(q, 1.0 / 6.0);
    q = r.mul_add(q, 0.5);
    let p = (r * r).mul_add(q, r) + 1.0;
    let n = (shifted.to_bits() as i64).wrapping_sub(ROUND_F64.to_bits() as i64);
    // The halves fit 32 bits, for which every instruction set shifts and adds.
    let n = n as i32;
    let half = n >> 1;
    let rest = n.wrapping_sub(half);
    p * pow2_f64(half) * pow2_f64(rest)
}

/// `2^n` for a normal result.
#[inline(always)]
fn pow2_f64(n: i32) -> f64 {
    f64::from_bits((n.wrapping_add(1023) as u32 as u64) << 52)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The error of `got` in units of the last place of an `f32` around `want`.
    fn ulps_f32(got: f32, want: f64) -> f64 {
        let ulp = ((want as f32).abs().max(f32::MIN_POSITIVE).log2().floor() - 23.0).exp2();
        (got as f64 - want).abs() / ulp as f64
    }

    #[test]
    fn f32_error_is_below_one_and_a_half_ulp_over_the_whole_range() {
        // Every 4099th float (a prime step) from -104 to 88.7, both signs.
        let mut worst = 0.0f64;
        let mut bits = 0u32;
        while f32::from_bits(bits) < 104.0 {
            for x in [f32::from_bits(bits), -f32::from_bits(bits)] {
                let want = (x as f64).exp();
                if want < f32::MAX as f64 {
                    worst = worst.max(ulps_f32(exp_f32(x), want));
                }
            }
            bits += 4099;
        }
        assert!(worst < 1.5, "{worst} ulp");
        assert!(worst > 0.4, "{worst} ulp: the measure does not measure");
    }

    #[test]
    fn f64_error_is_below_two_ulp_of_the_platforms_exp() {
        // std's exp is within 1 ulp, so this bounds ours by one more than is asserted.
        let mut worst = 0i64;
        let mut x = -708.0;
        while x < 709.7 {
            let (got, want) = (exp_f64(x), x.exp());
            worst = worst.max((got.to_bits() as i64 - want.to_bits() as i64).abs());
            x += 0.013_7;
        }
        assert!(worst <= 1, "{worst} ulp");
    }

    #[test]
    fn the_low_part_of_ln_2_is_what_the_high_part_lacks() {
        // ln 2 from its series, sum of 1/(k 2^k), in two floats.
        let (mut hi, mut lo) = (0.0f64, 0.0f64);
        for k in (1..=80).rev() {
            let denominator = k as f64 * (k as f64).exp2();
            let term = 1.0 / denominator;
            let rest = (-term).mul_add(denominator, 1.0) / denominator;
            let sum = hi + term;
            let back = sum - hi;
            lo += (hi - (sum - back)) + (term - back) + rest;
            hi = sum;
        }
        let got = (hi - LN2_HI_F64) + lo;
        assert!((got - LN2_LO_F64).abs() < 1e-30, "{got:e}");
    }

    #[test]
    fn special_values() {
        assert_eq!(exp_f32(0.0), 1.0);
        assert_eq!(exp_f32(-0.0), 1.0);
        assert_eq!(exp_f32(f32::NEG_INFINITY).to_bits(), 0);
        assert_eq!(exp_f32(f32::INFINITY), f32::INFINITY);
        assert!(exp_f32(f32::NAN).is_nan() && exp_f32(-f32::NAN).is_nan());
        assert_eq!(exp_f32(-103.9), f32::from_bits(1));
        assert_eq!(exp_f32(-104.1), 0.0);
        assert_eq!(exp_f32(88.8), f32::INFINITY);
        assert_eq!(exp_f64(0.0), 1.0);
        assert_eq!(exp_f64(f64::NEG_INFINITY).to_bits(), 0);
        assert_eq!(exp_f64(f64::INFINITY), f64::INFINITY);
        assert!(exp_f64(f64::NAN).is_nan());
        assert_eq!(exp_f64(-745.1), f64::from_bits(1));
        assert_eq!(exp_f64(-746.0), 0.0);
        assert_eq!(exp_f64(709.8), f64::INFINITY);
    }
}
