//! RMS norm and layer norm.
//!
//! Both run a plain pass first. Only where its sum of squares has overflowed, or is so small that
//! squares have been lost below the smallest normal number, is the row computed again, scaled by a
//! power of two that brings its largest magnitude near 1; eps is scaled along.

use super::extrema::{row_extreme, LargestMagnitude};
use super::moments::moments;
use super::squares::sum_of_squares;
use super::Dtype;
use crate::engine::{load, reduce, Context, Float, Number, Row, RowBody};

/// What the accumulators' ranges mean for sums of squares.
pub(super) trait Range: Float {
    /// A mean square (plus eps) from here on has lost nothing to underflow: squares have been
    /// rounded to at least 24 (53) bits below it.
    const SAFE_MEAN_SQUARE: f64;
    /// Twice the distance of 1 to the next number.
    const TWO_ULP: f64;
    /// The largest power of two by which to scale up.
    const MAX_SCALE: i32;
}

impl Range for f32 {
    // 2^-126 is the smallest normal number.
    const SAFE_MEAN_SQUARE: f64 = 1.0 / (1u128 << 102) as f64;
    const TWO_ULP: f64 = 2.0 * f32::EPSILON as f64;
    const MAX_SCALE: i32 = 126;
}

impl Range for f64 {
    // 2^-1022 is the smallest normal number; this is 2^-969.
    const SAFE_MEAN_SQUARE: f64 = f64::MIN_POSITIVE * (1u64 << 53) as f64;
    const TWO_ULP: f64 = 2.0 * f64::EPSILON;
    const MAX_SCALE: i32 = 1022;
}

/// A power of two that brings `magnitude` into [1, 2) or, for a subnormal, near it; 1 where there
/// is none, that is for 0, infinities and NaN.
fn scale_for(magnitude: f64, max_scale: i32) -> f64 {
    if magnitude == 0.0 || !magnitude.is_finite() {
        return 1.0;
    }
    // The exponent of the bits; of a subnormal f64 it is the lowest, and the limit holds anyway.
    let exponent = ((magnitude.to_bits() >> 52) & 0x7ff) as i32 - 1023;
    f64::from_bits(((1023 - exponent.clamp(-max_scale, 1022)) as u64) << 52)
}

/// One go at a row: as it is, or scaled.
#[derive(Clone, Copy)]
pub(super) struct Attempt<A> {
    /// What each value is multiplied by: a power of two, 1 in a plain attempt.
    pub(super) scale: A,
    last: bool,
}

impl<A: Range> Attempt<A> {
    #[inline(always)]
    pub(super) fn plain() -> Self {
        Attempt {
            scale: A::ONE,
            last: false,
        }
    }

    pub(super) fn scaled(scale: A) -> Self {
        Attempt { scale, last: true }
    }

    /// `eps` as it adds to a mean square of scaled values, without overflow on the way.
    #[inline(always)]
    fn scaled_eps(&self, eps: f64) -> f64 {
        if !self.last {
            return eps;
        }
        let root = eps.sqrt() * self.scale.to_f64();
        root * root
    }

    /// True where the mean square has lost nothing to overflow or underflow, or nothing better can
    /// be had.
    #[inline(always)]
    pub(super) fn holds(&self, mean_square_and_eps: f64) -> bool {
        self.last || (A::SAFE_MEAN_SQUARE..f64::INFINITY).contains(&mean_square_and_eps)
    }
}

/// The largest magnitude of a row, as the scale that it asks for.
#[cold]
pub(super) fn row_scale<T, C>(row: &mut Row<'_, T, T>, ctx: C) -> T::Accumulator
where
    T: Dtype,
    C: Context,
{
    let magnitude = row_extreme::<LargestMagnitude, _, _, _>(row, ctx).to_f64();
    T::Accumulator::from_f64(scale_for(magnitude, T::Accumulator::MAX_SCALE))
}

/// `x / sqrt(mean(x^2) + eps) * weight`.
pub(super) struct RmsNorm<'a, T> {
    pub weight: &'a [T],
    pub eps: f64,
}

impl<T: Dtype> RowBody for RmsNorm<'_, T> {
    type Element = T;
    type Output = T;
    const COST: usize = 4;

    fn output_width(&self, width: usize) -> usize {
        width
    }

    #[inline(always)]
    fn run<C: Context>(&self, row: &mut Row<'_, T, T>, ctx: C) {
        let mut attempt = Attempt::plain();
        let rstd = loop {
            let squares = sum_of_squares(row, ctx, attempt.scale);
            let mean = squares.to_f64() / row.axis_size() as f64;
            let mean_and_eps = mean + attempt.scaled_eps(self.eps);
            if attempt.holds(mean_and_eps) {
                break T::Accumulator::from_f64(mean_and_eps.sqrt().recip());
            }
            attempt = Attempt::scaled(row_scale(row, ctx));
        };
        let scale = attempt.scale;
        reduce(
            row,
            ctx,
            #[inline(always)]
            |x| {
                let weight = load(ctx, self.weight, x);
                x.map(|x| x.mul(scale).mul(rstd))
                    .zip(&weight, |x, weight| x.mul(weight))
            },
        );
    }
}

/// `(x - mean) / sqrt(var + eps) * weight + bias`, with the population variance.
pub(super) struct LayerNorm<'a, T> {
    pub weight: &'a [T],
    pub bias: &'a [T],
    pub eps: f64,
}

impl<T: Dtype> RowBody for LayerNorm<'_, T> {
    type Element = T;
    type Output = T;
    const COST: usize = 6;

    fn output_width(&self, width: usize) -> usize {
        width
    }

    /// The mean of the first walk is rounded to the accumulator's type. The second walk, over the
    /// residuals, finds what it lacks, and both the variance and the emitted deviations are
    /// corrected by that.
    #[inline(always)]
    fn run<C: Context>(&self, row: &mut Row<'_, T, T>, ctx: C) {
        let mut attempt = Attempt::plain();
        let (mean, residual, rstd) = loop {
            let moments = moments(row, ctx, attempt.scale);
            let variance_and_eps = moments.variance + attempt.scaled_eps(self.eps);
            if attempt.holds(variance_and_eps) {
                // Where eps vanishes beside the scale of a constant row, the root is 0 and so are all
                // deviations: a finite factor keeps their products 0.
                let largest = T::Accumulator::LARGEST.to_f64();
                let rstd = variance_and_eps.sqrt().recip();
                // Not `min`, which would turn a NaN into the largest number.
                let rstd = if rstd > largest { largest } else { rstd };
                let rstd = T::Accumulator::from_f64(rstd);
                let constant = moments.of_constant(row, ctx);
                let rstd = if constant { T::Accumulator::ZERO } else { rstd };
                let residual = T::Accumulator::from_f64(moments.residual);
                break (moments.mean, residual, rstd);
            }
            attempt = Attempt::scaled(row_scale(row, ctx));
        };
        let scale = attempt.scale;
        reduce(
            row,
            ctx,
            #[inline(always)]
            |x| {
                let weight = load(ctx, self.weight, x);
                let bias = load(ctx, self.bias, x);
                let mut values = x
                    .map(|x| x.mul(scale).sub(mean).sub(residual).mul(rstd))
                    .values();
                for (value, (weight, bias)) in values.iter_mut().zip(weight.into_iter().zip(bias)) {
                    *value = value.mul_add(weight, bias);
                }
                values
            },
        );
    }
}
