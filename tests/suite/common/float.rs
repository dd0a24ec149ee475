//! The float formats as numbers: how far apart their values are, and how f64 rounds to them.

use candle_core::DType;

/// Bits of the significand (the leading one included), least exponent, largest value.
fn format(dtype: DType) -> (i32, i32, f64) {
    match dtype {
        DType::F16 => (11, -14, 65504.),
        DType::BF16 => (8, -126, f32::from_bits(0x7f7f_0000).into()),
        DType::F32 => (24, -126, f32::MAX.into()),
        DType::F64 => (53, -1022, f64::MAX),
        _ => panic!("{dtype:?} is no float"),
    }
}

pub fn is_float(dtype: DType) -> bool {
    matches!(dtype, DType::F16 | DType::BF16 | DType::F32 | DType::F64)
}

/// The dtype that ops on `dtype` compute in.
pub fn wide(dtype: DType) -> DType {
    match dtype {
        DType::F64 => DType::F64,
        _ => DType::F32,
    }
}

/// The largest relative error of one rounding in `dtype`: half the distance of 1 to the next value.
pub fn unit(dtype: DType) -> f64 {
    (-f64::from(format(dtype).0)).exp2()
}

/// The distance of the values of `dtype` around `v`.
pub fn ulp(dtype: DType, v: f64) -> f64 {
    let (digits, least, _) = format(dtype);
    let exponent = ((v.to_bits() >> 52) & 0x7ff) as i32 - 1023;
    f64::from(exponent.max(least) - digits + 1).exp2()
}

/// `v` rounded to the nearest value of `dtype`, ties to even, to infinity beyond the largest.
pub fn round(dtype: DType, v: f64) -> f64 {
    if dtype == DType::F64 || !v.is_finite() {
        return v;
    }
    let ulp = ulp(dtype, v);
    let rounded = (v / ulp).round_ties_even() * ulp;
    if rounded.abs() > format(dtype).2 {
        return f64::INFINITY.copysign(v);
    }
    rounded
}

#[test]
fn rounding_agrees_with_the_formats() {
    for bits in 0..=u16::MAX {
        let (a, b) = (half::f16::from_bits(bits), half::bf16::from_bits(bits));
        for (dtype, v) in [(DType::F16, a.to_f64()), (DType::BF16, b.to_f64())] {
            let ulp = ulp(dtype, v);
            assert!(v.is_nan() || round(dtype, v) == v, "{dtype:?} {v}");
            assert!(!v.is_finite() || round(dtype, v + 0.49 * ulp.copysign(v)) == v);
        }
    }
    assert_eq!(round(DType::F16, 65519.), 65504.);
    assert_eq!(round(DType::F16, 65520.), f64::INFINITY);
    assert_eq!(round(DType::F32, 1. + 3. / 16777216.), 1. + 4. / 16777216.);
    assert_eq!(round(DType::F32, 1e-46), 0.);
    assert_eq!(ulp(DType::F32, 0.), f64::from(f32::from_bits(1)));
    assert_eq!(ulp(DType::F64, 0.), f64::from_bits(1));
    assert_eq!(unit(DType::F32), f64::from(f32::EPSILON) / 2.);
}
