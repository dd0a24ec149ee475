//! Means, and variances about them.

use std::marker::PhantomData;

use super::norm::{row_scale, Attempt, Range};
use super::{plain_body, Canonical, Dtype};
use crate::engine::{
    self, once, pjoin, reduce_into, Context, Float, MinMax, Number, ReduceOp, Row, RowBody,
    SumOfSquares,
};

/// The mean of a row times `scale`, before it is rounded.
#[inline(always)]
fn scaled_mean<T: Dtype, C: Context>(
    row: &mut Row<'_, T, T>,
    ctx: C,
    scale: T::Accumulator,
) -> f64 {
    let sum = reduce_into(
        row,
        ctx,
        engine::Sum::<T::Accumulator>::identity(),
        #[inline(always)]
        |sum, x| sum.accumulate(&x.map(|x| x.mul(scale))),
    );
    pjoin(sum, ctx).value().to_f64() / row.axis_size() as f64
}

plain_body!(
    /// The mean of a row. Where the sum has overflowed, that of the row scaled to a magnitude of 1.
    Mean
);

impl<T: Dtype> RowBody for Mean<T> {
    type Element = T;
    type Output = T;
    const COST: usize = 1;

    fn output_width(&self, _: usize) -> usize {
        1
    }

    #[inline(always)]
    fn run<C: Context>(&self, row: &mut Row<'_, T, T>, ctx: C) {
        let mut mean = scaled_mean(row, ctx, T::Accumulator::ONE);
        if !mean.is_finite() {
            let scale = row_scale(row, ctx);
            mean = scaled_mean(row, ctx, scale) / scale.to_f64();
        }
        let mean = T::Accumulator::from_f64(mean).canonical();
        once(row, ctx, || engine::round(ctx, mean));
    }
}

/// Mean and population variance of a row that was scaled.
pub(super) struct Moments<A> {
    /// The mean, rounded.
    pub mean: A,
    /// What that lacks: the mean of the deviations from it.
    pub residual: f64,
    /// That of the squares of deviations from the rounded mean.
    mean_square: f64,
    /// The variance about the mean itself.
    pub variance: f64,
}

/// The moments of a row times `scale`, in two walks. The mean of the first is rounded to the
/// accumulator's type. The second, over the residuals, finds what it lacks, and the variance is
/// corrected by that.
#[inline(always)]
pub(super) fn moments<T: Dtype, C: Context>(
    row: &mut Row<'_, T, T>,
    ctx: C,
    scale: T::Accumulator,
) -> Moments<T::Accumulator> {
    let width = row.axis_size() as f64;
    let mean = T::Accumulator::from_f64(scaled_mean(row, ctx, scale));
    let (residuals, squares) = reduce_into(
        row,
        ctx,
        (
            engine::Sum::<T::Accumulator>::identity(),
            SumOfSquares::<T::Accumulator>::identity(),
        ),
        #[inline(always)]
        |(residuals, squares), x| {
            let deviation = x.map(|x| x.mul(scale).sub(mean));
            residuals.accumulate(&deviation);
            squares.accumulate(&deviation);
        },
    );
    let residual = pjoin(residuals, ctx).value().to_f64() / width;
    let mean_square = pjoin(squares, ctx).value().to_f64() / width;
    // A NaN stays one: `max` would take the 0.
    let variance = mean_square - residual * residual;
    Moments {
        mean,
        residual,
        mean_square,
        variance: if variance < 0.0 { 0.0 } else { variance },
    }
}

impl<A: Range> Moments<A> {
    /// True where all values of the row are equal and the variance, which should be 0, is what the
    /// rounding of the mean has left.
    #[inline(always)]
    pub(super) fn of_constant<T, C>(&self, row: &mut Row<'_, T, T>, ctx: C) -> bool
    where
        T: Dtype<Accumulator = A>,
        C: Context,
    {
        // Deviations of the size of the mean's own rounding: a row of one value, perhaps.
        let noise = self.mean.to_f64() * A::TWO_ULP;
        self.mean_square > 0.0 && self.mean_square <= noise * noise && is_constant(row, ctx)
    }
}

/// True where all values of the row are equal.
#[cold]
#[inline(never)]
fn is_constant<T: Dtype, C: Context>(row: &mut Row<'_, T, T>, ctx: C) -> bool {
    let ends = reduce_into(row, ctx, MinMax::<T::Accumulator>::identity(), |ends, x| {
        ends.accumulate(x)
    });
    let ends = pjoin(ends, ctx);
    ends.min() == ends.max()
}

/// The variance of a row, or the root of it. Where squares have overflowed or vanished, that of the
/// row scaled to a magnitude of 1.
pub(super) struct Spread<T> {
    correction: usize,
    root: bool,
    of: PhantomData<fn(T)>,
}

impl<T> Spread<T> {
    pub(super) fn variance(correction: usize) -> Self {
        Spread {
            correction,
            root: false,
            of: PhantomData,
        }
    }

    pub(super) fn deviation(correction: usize) -> Self {
        Spread {
            root: true,
            ..Self::variance(correction)
        }
    }
}

impl<T: Dtype> RowBody for Spread<T> {
    type Element = T;
    type Output = T;
    const COST: usize = 4;

    fn output_width(&self, _: usize) -> usize {
        1
    }

    #[inline(always)]
    fn run<C: Context>(&self, row: &mut Row<'_, T, T>, ctx: C) {
        let mut attempt = Attempt::plain();
        let variance = loop {
            let moments = moments(row, ctx, attempt.scale);
            if attempt.holds(moments.variance) {
                let constant = moments.of_constant(row, ctx);
                break if constant { 0.0 } else { moments.variance };
            }
            attempt = Attempt::scaled(row_scale(row, ctx));
        };
        let width = row.axis_size();
        // NaN where the correction leaves nothing to divide by.
        let variance = match width.checked_sub(self.correction) {
            None | Some(0) => f64::NAN,
            Some(degrees) => variance * (width as f64 / degrees as f64),
        };
        let scale = attempt.scale.to_f64();
        let spread = if self.root {
            variance.sqrt() / scale
        } else {
            variance / scale / scale
        };
        let spread = T::Accumulator::from_f64(spread).canonical();
        once(row, ctx, || engine::round(ctx, spread));
    }
}
