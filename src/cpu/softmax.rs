//! Softmax, log-softmax and logsumexp.
//!
//! All three subtract the row's maximum first. The rulings on special values follow from IEEE
//! arithmetic with nothing added: a NaN makes the maximum NaN, a +inf gives `inf - inf`, and a row
//! of -inf `-inf - -inf`, all of them NaN for the whole row; an -inf beside finite values has
//! `exp(-inf) = 0` exactly.

use super::extrema::row_max;
use super::{fold, plain_body, Canonical, Dtype, OperandRows};
use crate::engine::{
    self, load, once, pjoin, reduce, stage_into, Context, Element, Float, Number, ReduceOp, Row,
    RowBody, Tile, LANES,
};

plain_body!(
    /// `exp(x - max) / sum(exp(x - max))`.
    Softmax
);

impl<T: Dtype> RowBody for Softmax<T> {
    type Element = T;
    type Output = T;
    const COST: usize = 12;

    fn output_width(&self, width: usize) -> usize {
        width
    }

    #[inline(always)]
    fn run<C: Context>(&self, row: &mut Row<'_, T, T>, ctx: C) {
        let max = row_max(row, ctx);
        let (sum, mut exps) = stage_into(
            row,
            ctx,
            engine::Sum::<T::Accumulator>::identity(),
            #[inline(always)]
            |sum, x| {
                let exps = x.map(|x| x.sub(max).exp());
                sum.accumulate(&exps);
                exps.values()
            },
        );
        let inverse = T::Accumulator::ONE.div(pjoin(sum, ctx).value());
        reduce(
            &mut exps,
            ctx,
            #[inline(always)]
            |exps| exps.map(|exp| exp.mul(inverse)).values(),
        );
    }
}

/// The sum of `exp(x - max)` over a row.
#[inline(always)]
fn sum_exp<T: Dtype, C: Context>(
    row: &mut Row<'_, T, T>,
    ctx: C,
    max: T::Accumulator,
) -> T::Accumulator {
    fold(
        row,
        ctx,
        engine::Sum::<T::Accumulator>::identity(),
        #[inline(always)]
        |x| x.map(|x| x.sub(max).exp()),
    )
    .value()
}

plain_body!(
    /// `x - max - log(sum(exp(x - max)))`, in this order: the logarithm is small beside a large
    /// maximum and would be lost if it were added to it first.
    LogSoftmax
);

impl<T: Dtype> RowBody for LogSoftmax<T> {
    type Element = T;
    type Output = T;
    const COST: usize = 12;

    fn output_width(&self, width: usize) -> usize {
        width
    }

    #[inline(always)]
    fn run<C: Context>(&self, row: &mut Row<'_, T, T>, ctx: C) {
        let max = row_max(row, ctx);
        let log = sum_exp(row, ctx, max).ln();
        reduce(
            row,
            ctx,
            #[inline(always)]
            |x| x.map(|x| x.sub(max).sub(log)).values(),
        );
    }
}

plain_body!(
    /// `max + log(sum(exp(x - max)))`; an infinite maximum is the result itself.
    LogSumExp
);

impl<T: Dtype> RowBody for LogSumExp<T> {
    type Element = T;
    type Output = T;
    const COST: usize = 7;

    fn output_width(&self, _: usize) -> usize {
        1
    }

    #[inline(always)]
    fn run<C: Context>(&self, row: &mut Row<'_, T, T>, ctx: C) {
        let max = row_max(row, ctx);
        let result = if max.abs() == T::Accumulator::HIGHEST {
            max
        } else {
            // One rounding of the sum: for a sum near 1 the logarithm alone would be rounded to
            // the size of itself, and for one near `exp(-max)` the terms cancel.
            let sum = sum_exp(row, ctx, max);
            T::Accumulator::from_f64(max.to_f64() + sum.to_f64().ln())
        };
        once(row, ctx, || engine::round(ctx, result.canonical()));
    }
}

/// The gradient of softmax, `y * (g - sum(g * y))`, or of its logarithm, `g - y * sum(g)`, with y made of
/// the input again: a half type's result has lost digits that the sum would miss.
pub(super) struct Gradient<'a, T> {
    pub gradient: OperandRows<'a, T>,
    pub log: bool,
}

impl<T: Dtype> RowBody for Gradient<'_, T> {
    type Element = T;
    type Output = T;
    const COST: usize = 14;

    fn output_width(&self, width: usize) -> usize {
        width
    }

    #[inline(always)]
    fn run<C: Context>(&self, row: &mut Row<'_, T, T>, ctx: C) {
        let gradient = self.gradient.row(row.index());
        let max = row_max(row, ctx);
        let states = (
            engine::Sum::<T::Accumulator>::identity(),
            engine::Sum::<T::Accumulator>::identity(),
        );
        let ((sum, weighted), mut exps) = stage_into(
            row,
            ctx,
            states,
            #[inline(always)]
            |(sum, weighted), x| {
                let exps = x.map(|x| x.sub(max).exp());
                sum.accumulate(&exps);
                let gradient = beside(ctx, gradient, x);
                if self.log {
                    weighted.accumulate(&x.with(gradient));
                } else {
                    weighted.accumulate(&x.with(exps.zip(&gradient, |e, g| e.mul(g))));
                }
                exps.values()
            },
        );
        let inverse = T::Accumulator::ONE.div(pjoin(sum, ctx).value());
        let weighted = pjoin(weighted, ctx).value();
        if self.log {
            let factor = T::Accumulator::ZERO.sub(weighted.mul(inverse));
            reduce(
                &mut exps,
                ctx,
                #[inline(always)]
                |exps| exps.zip(&beside(ctx, gradient, exps), |e, g| e.mul_add(factor, g)),
            );
        } else {
            let mean = weighted.mul(inverse);
            reduce(
                &mut exps,
                ctx,
                #[inline(always)]
                |exps| {
                    exps.zip(&beside(ctx, gradient, exps), |e, g| {
                        e.mul(inverse).mul(g.sub(mean))
                    })
                },
            );
        }
    }
}

/// What an operand's row has at the positions of a tile, or the one value that it repeats.
#[inline(always)]
fn beside<C, T, A>(ctx: C, row: &[T], tile: &Tile<A>) -> [T::Acc; LANES]
where
    C: Context,
    T: Element,
    A: Copy,
{
    match row {
        [_] => [load(ctx, row, &Tile::new([(); LANES], 0, LANES))[0]; LANES],
        _ => load(ctx, row, tile),
    }
}
