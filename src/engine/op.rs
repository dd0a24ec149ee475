//! [`ReduceOp`]: what is folded.

use super::reducer::Reducer;
use super::tile::{Tile, LANES};
use super::tree::{through_memory, tree};

/// A monoid with `W` independent lanes.
///
/// # Laws
/// For all states `a`, `b`, `c`:
/// - `identity().join(a)` and `a.join(identity())` are `a`;
/// - `a.join(b).join(c)` is `a.join(b.join(c))`, and `a.join(b)` is `b.join(a)`: exactly, or up to
///   rounding. A state that cares for the order of values carries their positions, as
///   [`ArgMax`](super::ArgMax) does: lanes and workers fold values that are not neighbours.
/// - folding values into one state is joining the states that each part of them gives.
///
/// A state is plain data of any size, copied freely between workers.
///
/// # A new monoid
/// Four methods are to be written: [`identity`](ReduceOp::identity),
/// [`accumulate_lane`](ReduceOp::accumulate_lane), [`join`](ReduceOp::join) and
/// [`lane`](ReduceOp::lane). The [module documentation](super) shows one that runs. For speed keep
/// one array per field (`[f32; W]`), not an array of structs, and mark the methods
/// `#[inline(always)]`: they are compiled into the vector code of each instruction set.
pub trait ReduceOp<const W: usize = LANES>: Copy + Send + Sync + 'static {
    /// What is folded in.
    type Value: Copy;

    /// The same monoid with one lane: what a row's fold ends in.
    type Single: ReduceOp<1, Value = Self::Value, Single = Self::Single>;

    /// The state of no values.
    fn identity() -> Self;

    /// Folds one value, at `position` along the axis, into one lane (`lane < W`).
    fn accumulate_lane(&mut self, lane: usize, value: Self::Value, position: i64);

    /// Folds a tile: its value in lane `i` into lane `i` of the state. Values of a partial tile
    /// that are not the row's are left out.
    #[inline(always)]
    fn accumulate(&mut self, tile: &Tile<Self::Value, W>) {
        let values = tile.values();
        if tile.is_full() {
            for (lane, value) in values.into_iter().enumerate() {
                self.accumulate_lane(lane, value, tile.position(lane));
            }
        } else {
            for (lane, value) in values.into_iter().enumerate().take(tile.live()) {
                self.accumulate_lane(lane, value, tile.position(lane));
            }
        }
    }

    /// The state of the values of both, lane by lane.
    fn join(self, other: Self) -> Self;

    /// One lane (`lane < W`) on its own.
    fn lane(&self, lane: usize) -> Self::Single;

    /// Joins the lanes: the upper half onto the lower, until one is left.
    #[inline(always)]
    fn reduce(self) -> Self::Single {
        let state = through_memory(self);
        let mut lanes = [state.lane(0); W];
        for (lane, single) in lanes.iter_mut().enumerate() {
            *single = state.lane(lane);
        }
        tree(lanes, Self::Single::join)
    }

    /// Joins the states that the participants of one row hold, in row order, through `reducer`.
    ///
    /// The default, [`Reducer::generic`], is right for every monoid. A state made of a scalar may
    /// override it with [`Reducer::sum`], [`Reducer::max`] or [`Reducer::min`].
    #[inline(always)]
    fn join_parallel<R: Reducer>(states: &[Self::Single], reducer: &R) -> Self::Single {
        reducer.generic(states.iter().copied())
    }
}

/// One state or a tuple of up to four that a single walk folds: see
/// [`reduce_into`](super::reduce_into).
pub trait States: Copy + Send + Sync + 'static {
    /// The states with one lane each.
    type Singles: Copy + Send + Sync + 'static;
    /// What a walk leaves of them: a [`Partials`] for each.
    type Partials;

    /// The states of no values.
    fn identity() -> Self;
    /// The states of the values of both.
    fn join(self, other: Self) -> Self;
    /// Collapses the lanes of each.
    fn reduce(self) -> Self::Singles;
    /// The one-lane states of the values of both.
    fn join_singles(a: Self::Singles, b: Self::Singles) -> Self::Singles;
    /// What one participant that walked the whole row holds.
    fn one(singles: Self::Singles) -> Self::Partials;
    /// What several participants hold, in row order.
    fn many(singles: Vec<Self::Singles>) -> Self::Partials;
}

/// What a walk leaves of one state: the states of the row's participants, not yet joined.
///
/// [`pjoin`](super::pjoin) makes the row's state of it; there is no other way to its value, so the
/// join cannot be forgotten.
#[derive(Debug, Clone)]
#[must_use = "the states of the row's participants are joined by `pjoin`"]
pub struct Partials<M>(pub(crate) Held<M>);

/// How many participants there are.
#[derive(Debug, Clone)]
pub(crate) enum Held<M> {
    /// One worker walked the row.
    One(M),
    /// The row was split; the states are in row order.
    Many(Vec<M>),
}

impl<S: ReduceOp<LANES>> States for S {
    type Singles = S::Single;
    type Partials = Partials<S::Single>;

    #[inline(always)]
    fn identity() -> Self {
        <S as ReduceOp<LANES>>::identity()
    }
    #[inline(always)]
    fn join(self, other: Self) -> Self {
        ReduceOp::<LANES>::join(self, other)
    }
    #[inline(always)]
    fn reduce(self) -> S::Single {
        ReduceOp::<LANES>::reduce(self)
    }
    #[inline(always)]
    fn join_singles(a: S::Single, b: S::Single) -> S::Single {
        a.join(b)
    }
    #[inline(always)]
    fn one(singles: S::Single) -> Self::Partials {
        Partials(Held::One(singles))
    }
    fn many(singles: Vec<S::Single>) -> Self::Partials {
        Partials(Held::Many(singles))
    }
}

macro_rules! states_of_tuples {
    ($($state:ident . $index:tt),+) => {
        impl<$($state: ReduceOp<LANES>),+> States for ($($state,)+) {
            type Singles = ($($state::Single,)+);
            type Partials = ($(Partials<$state::Single>,)+);

            #[inline(always)]
            fn identity() -> Self {
                ($(<$state as ReduceOp<LANES>>::identity(),)+)
            }
            #[inline(always)]
            fn join(self, other: Self) -> Self {
                ($(ReduceOp::<LANES>::join(self.$index, other.$index),)+)
            }
            #[inline(always)]
            fn reduce(self) -> Self::Singles {
                ($(ReduceOp::<LANES>::reduce(self.$index),)+)
            }
            #[inline(always)]
            fn join_singles(a: Self::Singles, b: Self::Singles) -> Self::Singles {
                ($(a.$index.join(b.$index),)+)
            }
            #[inline(always)]
            fn one(singles: Self::Singles) -> Self::Partials {
                ($(Partials(Held::One(singles.$index)),)+)
            }
            fn many(singles: Vec<Self::Singles>) -> Self::Partials {
                ($(Partials(Held::Many(singles.iter().map(|s| s.$index).collect())),)+)
            }
        }
    };
}

states_of_tuples!(A.0, B.1);
states_of_tuples!(A.0, B.1, C.2);
states_of_tuples!(A.0, B.1, C.2, D.3);
