//! Sum, max and argmax.

use std::marker::PhantomData;

use super::Dtype;
use crate::engine::{self, once, pjoin, reduce_into, Context, Float, ReduceOp, Row, RowBody};

/// A body without options for elements `T`.
macro_rules! plain_body {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        pub(super) struct $name<T>(PhantomData<fn(T)>);

        impl<T> $name<T> {
            pub(super) fn new() -> Self {
                $name(PhantomData)
            }
        }
    };
}
pub(super) use plain_body;

/// A result of a reduction: a NaN with the same bits whatever NaN made it.
#[inline(always)]
pub(super) fn finish<A: Float>(value: A) -> A {
    if value.is_nan() {
        A::NAN
    } else {
        value
    }
}

plain_body!(
    /// The sum of a row.
    Sum
);

impl<T: Dtype> RowBody for Sum<T> {
    type Element = T;
    type Output = T;
    const COST: usize = 1;

    fn output_width(&self, _: usize) -> usize {
        1
    }

    #[inline(always)]
    fn run<C: Context>(&self, row: &mut Row<'_, T, T>, ctx: C) {
        let sum = reduce_into(
            row,
            ctx,
            engine::Sum::<T::Accumulator>::identity(),
            #[inline(always)]
            |sum, x| sum.accumulate(x),
        );
        let sum = finish(pjoin(sum, ctx).value());
        once(row, ctx, || engine::round(ctx, sum));
    }
}

plain_body!(
    /// The largest value of a row.
    Max
);

impl<T: Dtype> RowBody for Max<T> {
    type Element = T;
    type Output = T;
    const COST: usize = 1;

    fn output_width(&self, _: usize) -> usize {
        1
    }

    #[inline(always)]
    fn run<C: Context>(&self, row: &mut Row<'_, T, T>, ctx: C) {
        let max = finish(row_max(row, ctx));
        once(row, ctx, || engine::round(ctx, max));
    }
}

/// The largest value of a row; NaN if it has one.
#[inline(always)]
pub(super) fn row_max<T: Dtype, C: Context>(row: &mut Row<'_, T, T>, ctx: C) -> T::Accumulator {
    let max = reduce_into(
        row,
        ctx,
        engine::Max::<T::Accumulator>::identity(),
        #[inline(always)]
        |max, x| max.accumulate(x),
    );
    pjoin(max, ctx).value()
}

plain_body!(
    /// The index of the largest value of a row.
    ArgMax
);

impl<T: Dtype> RowBody for ArgMax<T> {
    type Element = T;
    type Output = u32;
    const COST: usize = 5;

    fn output_width(&self, _: usize) -> usize {
        1
    }

    #[inline(always)]
    fn run<C: Context>(&self, row: &mut Row<'_, T, u32>, ctx: C) {
        let best = reduce_into(
            row,
            ctx,
            engine::ArgMax::<T::Accumulator>::identity(),
            #[inline(always)]
            |best, x| best.accumulate(x),
        );
        // `Problem` lets no axis pass that a u32 cannot index, and none without elements.
        let index = pjoin(best, ctx).index().unwrap_or(0) as u32;
        once(row, ctx, || [index]);
    }
}
