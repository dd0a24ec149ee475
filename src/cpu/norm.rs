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

/// The moments of a row by `moments`, of the row as it is or, where that has lost something to
/// overflow or underflow, scaled.
///
/// `moments` is given the scale and eps for it, and returns what eps has been added to, a mean square,
/// with what else it has found. The result is the scale, that mean square, and the rest.
#[inline(always)]
pub(super) fn row_moments<T, C, M>(
    row: &mut Row<'_, T, T>,
    ctx: C,
    eps: f64,
    moments: impl Fn(&mut Row<'_, T, T>, T::Accumulator, f64) -> (f64, M),
) -> (T::Accumulator, f64, M)
where
    T: Dtype,
    C: Context,
{
    let safe = T::Accumulator::SAFE_MEAN_SQUARE..f64::INFINITY;
    let plain = moments(row, T::Accumulator::ONE, eps);
    let (scale, (mean_square, rest)) = if safe.contains(&plain.0) {
        (T::Accumulator::ONE, plain)
    } else {
        scaled_moments(row, ctx, eps, plain, &moments)
    };
    (scale, mean_square, rest)
}

/// The scale that the largest magnitude of a row asks for, and the moments of the row scaled by it:
/// `plain` of a row of zeros or with an infinity or a NaN, of which no scale makes anything better.
///
/// Out of line and so without the instruction set's vectors: it is a rare row that comes here.
#[cold]
#[inline(never)]
fn scaled_moments<T, C, M>(
    row: &mut Row<'_, T, T>,
    ctx: C,
    eps: f64,
    plain: (f64, M),
    moments: &impl Fn(&mut Row<'_, T, T>, T::Accumulator, f64) -> (f64, M),
) -> (T::Accumulator, (f64, M))
where
    T: Dtype,
    C: Context,
{
    let scale = row_scale(row, ctx);
    if scale == T::Accumulator::ONE {
        return (scale, plain);
    }
    // Eps as it adds to a mean square of scaled values, without overflow on the way.
    let root = eps.sqrt() * scale.to_f64();
    (scale, moments(row, scale, root * root))
}

/// The scale that the largest magnitude of a row asks for.
pub(super) fn row_scale<T: Dtype, C: Context>(row: &mut Row<'_, T, T>, ctx: C) -> T::Accumulator {
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
        let (scale, mean_square, ()) = row_moments(
            row,
            ctx,
            self.eps,
            #[inline(always)]
            |row, scale, eps| {
                let squares = sum_of_squares(row, ctx, scale);
                let mean = squares.to_f64() / row.axis_size() as f64;
                (mean + eps, ())
            },
        );
        let rstd = T::Accumulator::from_f64(mean_square.sqrt().recip());
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

    /// Both the variance and the emitted deviations are corrected by what the rounded mean lacks.
    #[inline(always)]
    fn run<C: Context>(&self, row: &mut Row<'_, T, T>, ctx: C) {
        let (scale, variance, moments) = row_moments(
            row,
            ctx,
            self.eps,
            #[inline(always)]
            |row, scale, eps| {
                let moments = moments(row, ctx, scale);
                (moments.variance + eps, moments)
            },
        );
        // Where eps vanishes beside the scale of a constant row, the root is 0 and so are all
        // deviations: a finite factor keeps their products 0. Not `min`, which would turn a NaN into
        // the largest number.
        let largest = T::Accumulator::LARGEST.to_f64();
        let rstd = variance.sqrt().recip();
        let rstd = T::Accumulator::from_f64(if rstd > largest { largest } else { rstd });
        let mean = moments.mean;
        let residual = T::Accumulator::from_f64(moments.residual);
        let constant = moments.mean_square > 0.0 && moments.of_constant(row, ctx);
        let rstd = if constant { T::Accumulator::ZERO } else { rstd };
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
