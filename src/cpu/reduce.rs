//! Reductions that are one fold: one walk, one state, and a last step.

use std::marker::PhantomData;

use candle_core::WithDType;

use super::extrema::Extremum;
use super::{fold, Canonical, Dtype, Stored};
use crate::engine::{self, once, Context, MinMax, Number, ReduceOp, Row, RowBody, LANES};

/// A fold and what becomes of its state.
pub(super) trait Fold<T: Stored>: Send + Sync + 'static {
    type State: ReduceOp<LANES, Value = T::Acc>;
    type Output: WithDType + Default;
    /// The results of a row, in order.
    type Results: IntoIterator<Item = Self::Output>;
    /// How many those are.
    const RESULTS: usize = 1;
    /// As [`RowBody::COST`].
    const COST: usize = 1;

    /// What is folded of a value.
    #[inline(always)]
    fn of(value: T::Acc) -> T::Acc {
        value
    }

    /// The walk.
    #[inline(always)]
    fn state<C: Context>(row: &mut Row<'_, T, Self::Output>, ctx: C) -> Joined<T, Self> {
        fold(
            row,
            ctx,
            Self::State::identity(),
            #[inline(always)]
            |x| x.map(Self::of),
        )
    }

    fn results<C: Context>(state: Joined<T, Self>, ctx: C) -> Self::Results;
}

/// The state of a whole row.
type Joined<T, F> = <<F as Fold<T>>::State as ReduceOp<LANES>>::Single;

/// The body of a [`Fold`].
pub(super) struct Folded<T, F>(PhantomData<fn(T, F)>);

impl<T, F> Folded<T, F> {
    pub(super) fn new() -> Self {
        Folded(PhantomData)
    }
}

impl<T: Stored, F: Fold<T>> RowBody for Folded<T, F> {
    type Element = T;
    type Output = F::Output;
    const COST: usize = F::COST;

    fn output_width(&self, _: usize) -> usize {
        F::RESULTS
    }

    #[inline(always)]
    fn run<C: Context>(&self, row: &mut Row<'_, T, F::Output>, ctx: C) {
        let state = F::state(row, ctx);
        once(row, ctx, || F::results(state, ctx));
    }
}

/// The sum of a row; of integers an i64.
pub(super) struct Sum;

impl<T: Stored> Fold<T> for Sum {
    type State = engine::Sum<T::Acc>;
    type Output = T::Total;
    type Results = [T::Total; 1];

    #[inline(always)]
    fn state<C: Context>(row: &mut Row<'_, T, T::Total>, ctx: C) -> engine::Sum<T::Acc, 1> {
        engine::pjoin(engine::sum(row, ctx), ctx)
    }

    #[inline(always)]
    fn results<C: Context>(state: engine::Sum<T::Acc, 1>, ctx: C) -> [T::Total; 1] {
        engine::round(ctx, state.value().canonical())
    }
}

/// The product of a row; of integers an i64.
pub(super) struct Prod;

impl<T: Stored> Fold<T> for Prod {
    type State = engine::Prod<T::Acc>;
    type Output = T::Total;
    type Results = [T::Total; 1];

    #[inline(always)]
    fn results<C: Context>(state: engine::Prod<T::Acc, 1>, ctx: C) -> [T::Total; 1] {
        engine::round(ctx, state.value().canonical())
    }
}

/// The sum of magnitudes. Floats only: the magnitude of the lowest integer is none.
pub(super) struct NormL1;

impl<T: Dtype> Fold<T> for NormL1 {
    type State = engine::Sum<T::Acc>;
    type Output = T;
    type Results = [T; 1];

    #[inline(always)]
    fn of(value: T::Acc) -> T::Acc {
        value.abs()
    }

    #[inline(always)]
    fn results<C: Context>(state: engine::Sum<T::Acc, 1>, ctx: C) -> [T; 1] {
        engine::round(ctx, state.value().canonical())
    }
}

/// The value at an end of a row: [`Largest`](super::extrema::Largest) and the like.
pub(super) struct Extreme<E>(PhantomData<fn(E)>);

impl<T: Stored, E: Extremum<T::Acc>> Fold<T> for Extreme<E> {
    type State = E::State;
    type Output = T;
    type Results = [T; 1];

    #[inline(always)]
    fn results<C: Context>(state: Joined<T, Self>, ctx: C) -> [T; 1] {
        engine::round(ctx, E::value(state).canonical())
    }
}

/// The smallest and the largest value.
pub(super) struct BothEnds;

impl<T: Stored> Fold<T> for BothEnds {
    type State = MinMax<T::Acc>;
    type Output = T;
    type Results = [T; 2];
    const RESULTS: usize = 2;
    const COST: usize = 2;

    #[inline(always)]
    fn results<C: Context>(state: MinMax<T::Acc, 1>, ctx: C) -> [T; 2] {
        let [min] = engine::round(ctx, state.min().canonical());
        let [max] = engine::round(ctx, state.max().canonical());
        [min, max]
    }
}

/// 1 where `holds`, else 0. Sums of it tell any from none: they are folded faster than the largest
/// of it, which the compiler takes for a logic of single bits (any of (512, 1000) u8 on one thread:
/// 185 us, the sum 25; 2026-11-30, 2-core x86-64 VM).
#[inline(always)]
fn truth<A: Number>(holds: bool) -> A {
    if holds {
        A::ONE
    } else {
        A::ZERO
    }
}

/// Whether any value is not 0, and a NaN is not.
pub(super) struct Any;

impl<T: Stored> Fold<T> for Any {
    type State = engine::Sum<T::Acc>;
    type Output = u8;
    type Results = [u8; 1];

    #[inline(always)]
    fn of(value: T::Acc) -> T::Acc {
        truth(value != T::Acc::ZERO)
    }

    #[inline(always)]
    fn results<C: Context>(nonzeros: engine::Sum<T::Acc, 1>, _: C) -> [u8; 1] {
        [u8::from(nonzeros.value() > T::Acc::ZERO)]
    }
}

/// Whether no value is 0.
pub(super) struct All;

impl<T: Stored> Fold<T> for All {
    type State = engine::Sum<T::Acc>;
    type Output = u8;
    type Results = [u8; 1];

    #[inline(always)]
    fn of(value: T::Acc) -> T::Acc {
        truth(value == T::Acc::ZERO)
    }

    #[inline(always)]
    fn results<C: Context>(zeros: engine::Sum<T::Acc, 1>, _: C) -> [u8; 1] {
        [u8::from(zeros.value() == T::Acc::ZERO)]
    }
}
