//! Sums of squares, safe where squares overflow or vanish.

use super::norm::{row_scale, Attempt};
use super::{plain_body, Canonical, Dtype};
use crate::engine::{
    self, once, pjoin, reduce_into, Context, Float, Number, ReduceOp, Row, RowBody, SumOfSquares,
};

/// The sum of squares of a row times `scale`.
#[inline(always)]
pub(super) fn sum_of_squares<T: Dtype, C: Context>(
    row: &mut Row<'_, T, T>,
    ctx: C,
    scale: T::Accumulator,
) -> T::Accumulator {
    let squares = reduce_into(
        row,
        ctx,
        SumOfSquares::<T::Accumulator>::identity(),
        #[inline(always)]
        |squares, x| squares.accumulate(&x.map(|x| x.mul(scale))),
    );
    pjoin(squares, ctx).value()
}

/// The sum of squares of a row, scaled if it must be, and the scale of the row.
#[inline(always)]
fn safe_sum_of_squares<T: Dtype, C: Context>(row: &mut Row<'_, T, T>, ctx: C) -> (f64, f64) {
    // No loop over attempts: here the compiler knows the factor to be 1, and leaves it out.
    let squares = sum_of_squares(row, ctx, T::Accumulator::ONE).to_f64();
    if Attempt::<T::Accumulator>::plain().holds(squares / row.axis_size() as f64) {
        return (squares, 1.0);
    }
    let scale = row_scale(row, ctx);
    let squares = sum_of_squares(row, ctx, scale);
    (squares.to_f64(), scale.to_f64())
}

plain_body!(
    /// The root of the sum of squares of a row.
    NormL2
);

impl<T: Dtype> RowBody for NormL2<T> {
    type Element = T;
    type Output = T;
    const COST: usize = 1;

    fn output_width(&self, _: usize) -> usize {
        1
    }

    #[inline(always)]
    fn run<C: Context>(&self, row: &mut Row<'_, T, T>, ctx: C) {
        let (squares, scale) = safe_sum_of_squares(row, ctx);
        let norm = T::Accumulator::from_f64(squares.sqrt() / scale).canonical();
        once(row, ctx, || engine::round(ctx, norm));
    }
}

plain_body!(
    /// The sum of squares of a row, divided by its length.
    MeanOfSquares
);

impl<T: Dtype> RowBody for MeanOfSquares<T> {
    type Element = T;
    type Output = T;
    const COST: usize = 1;

    fn output_width(&self, _: usize) -> usize {
        1
    }

    #[inline(always)]
    fn run<C: Context>(&self, row: &mut Row<'_, T, T>, ctx: C) {
        let (squares, scale) = safe_sum_of_squares(row, ctx);
        // Divided twice: the square of the scale may be no number.
        let mean = squares / row.axis_size() as f64 / scale / scale;
        let mean = T::Accumulator::from_f64(mean).canonical();
        once(row, ctx, || engine::round(ctx, mean));
    }
}
