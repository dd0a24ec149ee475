//! Sums of squares, safe where squares overflow or vanish.

use super::norm::row_moments;
use super::{fold, plain_body, Canonical, Dtype};
use crate::engine::{self, once, Context, Float, Number, ReduceOp, Row, RowBody, SumOfSquares};

/// The sum of squares of a row times `scale`.
#[inline(always)]
pub(super) fn sum_of_squares<T: Dtype, C: Context>(
    row: &mut Row<'_, T, T>,
    ctx: C,
    scale: T::Accumulator,
) -> T::Accumulator {
    let squares = fold(
        row,
        ctx,
        SumOfSquares::<T::Accumulator>::identity(),
        #[inline(always)]
        |x| x.map(|x| x.mul(scale)),
    );
    squares.value()
}

/// The sum of squares of a row, scaled if it must be, and the scale of the row.
#[inline(always)]
fn safe_sum_of_squares<T: Dtype, C: Context>(row: &mut Row<'_, T, T>, ctx: C) -> (f64, f64) {
    let (scale, _, squares) = row_moments(
        row,
        ctx,
        0.0,
        #[inline(always)]
        |row, scale, _| {
            let squares = sum_of_squares(row, ctx, scale).to_f64();
            (squares / row.axis_size() as f64, squares)
        },
    );
    (squares, scale.to_f64())
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
