//! The numbers that accumulators hold: `f32`, `f64` and `i64`.

use super::tree::Tree;

/// A number that states are made of and that a [`Reducer`](super::Reducer) combines.
///
/// Integers wrap around at 64 bits; floats are IEEE 754.
pub trait Number:
    Tree + Copy + PartialOrd + Default + Send + Sync + 'static + std::fmt::Debug
{
    /// The additive identity. For floats -0.0: `-0.0 + x` is `x` for both zeros, `0.0 + -0.0` not.
    const ADD_IDENTITY: Self;
    /// Zero.
    const ZERO: Self;
    /// One.
    const ONE: Self;
    /// No number is below it: -inf, or the lowest integer.
    const LOWEST: Self;
    /// No number is above it: +inf, or the highest integer.
    const HIGHEST: Self;

    /// `self + other`.
    fn add(self, other: Self) -> Self;
    /// `self * other`.
    fn mul(self, other: Self) -> Self;
    /// `self * a + b`, rounded once for floats.
    fn mul_add(self, a: Self, b: Self) -> Self;
    /// The magnitude. That of the lowest integer is itself.
    fn abs(self) -> Self;
    /// True for a NaN; never for an integer.
    fn is_nan(self) -> bool;
}

/// The larger of two numbers; NaN if either is one.
#[inline(always)]
pub(crate) fn max<T: Number>(a: T, b: T) -> T {
    if b > a || b.is_nan() {
        b
    } else {
        a
    }
}

/// The smaller of two numbers; NaN if either is one.
#[inline(always)]
pub(crate) fn min<T: Number>(a: T, b: T) -> T {
    if b < a || b.is_nan() {
        b
    } else {
        a
    }
}

macro_rules! float_number {
    ($t:ident) => {
        impl Number for $t {
            const ADD_IDENTITY: Self = -0.0;
            const ZERO: Self = 0.0;
            const ONE: Self = 1.0;
            const LOWEST: Self = $t::NEG_INFINITY;
            const HIGHEST: Self = $t::INFINITY;

            #[inline(always)]
            fn add(self, other: Self) -> Self {
                self + other
            }
            #[inline(always)]
            fn mul(self, other: Self) -> Self {
                self * other
            }
            #[inline(always)]
            fn mul_add(self, a: Self, b: Self) -> Self {
                $t::mul_add(self, a, b)
            }
            #[inline(always)]
            fn abs(self) -> Self {
                $t::abs(self)
            }
            #[inline(always)]
            fn is_nan(self) -> bool {
                $t::is_nan(self)
            }
        }
    };
}

float_number!(f32);
float_number!(f64);

impl Number for i64 {
    const ADD_IDENTITY: Self = 0;
    const ZERO: Self = 0;
    const ONE: Self = 1;
    const LOWEST: Self = i64::MIN;
    const HIGHEST: Self = i64::MAX;

    #[inline(always)]
    fn add(self, other: Self) -> Self {
        self.wrapping_add(other)
    }
    #[inline(always)]
    fn mul(self, other: Self) -> Self {
        self.wrapping_mul(other)
    }
    #[inline(always)]
    fn mul_add(self, a: Self, b: Self) -> Self {
        self.wrapping_mul(a).wrapping_add(b)
    }
    #[inline(always)]
    fn abs(self) -> Self {
        self.wrapping_abs()
    }
    #[inline(always)]
    fn is_nan(self) -> bool {
        false
    }
}

/// A floating-point accumulator: `f32` or `f64`.
pub trait Float: Number {
    /// The quiet NaN that results carry, whatever NaN made them.
    const NAN: Self;
    /// The largest finite number.
    const LARGEST: Self;

    /// `self - other`.
    fn sub(self, other: Self) -> Self;
    /// `self / other`.
    fn div(self, other: Self) -> Self;
    /// The nearest number of this type.
    fn from_f64(value: f64) -> Self;
    /// The same number, exactly.
    fn to_f64(self) -> f64;
    /// `e^self`, error below 1.5 ulp (`f32`) and 2 ulp (`f64`); exact at 0, 0 from -inf, NaN from
    /// NaN. Without branches or tables, so that a loop over lanes becomes vector code.
    ///
    /// See the engine's `exp.rs` for the method.
    fn exp(self) -> Self;
    /// The natural logarithm; one per row, so the platform's own.
    fn ln(self) -> Self;
}

impl Float for f32 {
    const NAN: Self = f32::NAN;
    const LARGEST: Self = f32::MAX;

    #[inline(always)]
    fn sub(self, other: Self) -> Self {
        self - other
    }
    #[inline(always)]
    fn div(self, other: Self) -> Self {
        self / other
    }
    #[inline(always)]
    fn from_f64(value: f64) -> Self {
        value as f32
    }
    #[inline(always)]
    fn to_f64(self) -> f64 {
        self as f64
    }
    #[inline(always)]
    fn exp(self) -> Self {
        super::exp::exp_f32(self)
    }
    fn ln(self) -> Self {
        // Through f64: one rounding, the same on every platform up to the last bit of an f64.
        f64::ln(self as f64) as f32
    }
}

impl Float for f64 {
    const NAN: Self = f64::NAN;
    const LARGEST: Self = f64::MAX;

    #[inline(always)]
    fn sub(self, other: Self) -> Self {
        self - other
    }
    #[inline(always)]
    fn div(self, other: Self) -> Self {
        self / other
    }
    #[inline(always)]
    fn from_f64(value: f64) -> Self {
        value
    }
    #[inline(always)]
    fn to_f64(self) -> f64 {
        self
    }
    #[inline(always)]
    fn exp(self) -> Self {
        super::exp::exp_f64(self)
    }
    fn ln(self) -> Self {
        f64::ln(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nan_wins_on_either_side() {
        assert!(max(f32::NAN, 1.0).is_nan() && max(1.0, f32::NAN).is_nan());
        assert!(min(f64::NAN, 1.0).is_nan() && min(1.0, f64::NAN).is_nan());
        assert_eq!(max(f32::NEG_INFINITY, 1.0), 1.0);
        assert_eq!(min(i64::MAX, i64::MIN), i64::MIN);
    }

    #[test]
    fn identities_leave_every_number_alone_bit_for_bit() {
        for v in [0.0f32, -0.0, 1.5, f32::INFINITY, f32::NEG_INFINITY] {
            assert_eq!(f32::ADD_IDENTITY.add(v).to_bits(), v.to_bits());
            assert_eq!(f32::ONE.mul(v).to_bits(), v.to_bits());
        }
    }
}
