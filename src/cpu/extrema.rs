//! The ends of a row, and where they are.

use std::marker::PhantomData;

use super::{fold, Stored};
use crate::engine::{self, once, Context, Element, Number, ReduceOp, Row, RowBody, LANES};

/// An end of a row: the value that none of the others lies beyond; NaN if the row has one.
pub(super) trait Extremum<A: Number>: Send + Sync + 'static {
    type State: ReduceOp<LANES, Value = A>;

    fn value(state: <Self::State as ReduceOp<LANES>>::Single) -> A;
}

macro_rules! extremum {
    ($(#[$doc:meta])* $name:ident, $state:ident) => {
        $(#[$doc])*
        pub(super) struct $name;

        impl<A: Number> Extremum<A> for $name {
            type State = engine::$state<A>;

            #[inline(always)]
            fn value(state: engine::$state<A, 1>) -> A {
                state.value()
            }
        }
    };
}

extremum!(
    /// The largest value.
    Largest,
    Max
);
extremum!(
    /// The smallest value.
    Smallest,
    Min
);
extremum!(
    /// The largest magnitude.
    LargestMagnitude,
    AbsMax
);

/// The value at an end of a row.
#[inline(always)]
pub(super) fn row_extreme<E, T, U, C>(row: &mut Row<'_, T, U>, ctx: C) -> T::Acc
where
    E: Extremum<T::Acc>,
    T: Element,
    U: Copy + Default + Send,
    C: Context,
{
    let state = fold(
        row,
        ctx,
        E::State::identity(),
        #[inline(always)]
        |x| *x,
    );
    E::value(state)
}

/// The index of the value at an end of a row: the value first, then the first place that has it.
///
/// Two walks take less than one that carries an index beside each value, [`engine::ArgMax`]:
/// on one thread (65536, 32) f32 1.5 ms and not 4.3, (512, 1000) 153 us and not 191, (32, 4096)
/// 31 us and not 43 (2026-11-29, 2-core x86-64 VM).
pub(super) struct Arg<T, E>(PhantomData<fn(T, E)>);

impl<T, E> Arg<T, E> {
    pub(super) fn new() -> Self {
        Arg(PhantomData)
    }
}

impl<T: Stored, E: Extremum<T::Acc>> RowBody for Arg<T, E> {
    type Element = T;
    type Output = u32;
    const COST: usize = 3;

    fn output_width(&self, _: usize) -> usize {
        1
    }

    #[inline(always)]
    fn run<C: Context>(&self, row: &mut Row<'_, T, u32>, ctx: C) {
        let end = row_extreme::<E, _, _, _>(row, ctx);
        let first = fold(
            row,
            ctx,
            engine::Min::<i64>::identity(),
            #[inline(always)]
            |x| {
                let mut places = x.positions();
                for (place, value) in places.iter_mut().zip(x.values()) {
                    let holds = (value == end) | (value.is_nan() & end.is_nan());
                    *place = if holds { *place } else { i64::MAX };
                }
                x.with(places)
            },
        );
        // `Problem` lets no axis pass that a u32 cannot index, and none without elements.
        let index = first.value() as u32;
        once(row, ctx, || [index]);
    }
}

/// The largest value of a row; NaN if it has one.
#[inline(always)]
pub(super) fn row_max<T, U, C>(row: &mut Row<'_, T, U>, ctx: C) -> T::Acc
where
    T: Element,
    U: Copy + Default + Send,
    C: Context,
{
    row_extreme::<Largest, _, _, _>(row, ctx)
}
