//! [`Reducer`]: how the participants of one row join what they hold.

use super::cascade::cascade;
use super::number::{self, Number};
use super::op::ReduceOp;

/// Joins what the participants of one row hold into one result, which every participant receives.
///
/// On a GPU each participant is a thread and brings its own value. On the CPU one call acts for all
/// of them: it takes their values in row order, and its result goes on in the one flow of control
/// that runs the body. The order of joining is a function of the number of participants alone, and
/// that is a function of the width of the row, so a result has the same bits however many threads
/// there are.
pub trait Reducer {
    /// The join of the states; the identity of none.
    fn generic<M: ReduceOp<1>>(&self, states: impl Iterator<Item = M>) -> M;

    /// The sum; [`Number::ADD_IDENTITY`] of none.
    fn sum<T: Number>(&self, values: impl Iterator<Item = T>) -> T;

    /// The largest, NaN if there is one; [`Number::LOWEST`] of none.
    fn max<T: Number>(&self, values: impl Iterator<Item = T>) -> T;

    /// The smallest, NaN if there is one; [`Number::HIGHEST`] of none.
    fn min<T: Number>(&self, values: impl Iterator<Item = T>) -> T;
}

/// One participant: what it holds is the result.
#[derive(Debug, Clone, Copy, Default)]
pub struct SerialReducer;

impl Reducer for SerialReducer {
    #[inline(always)]
    fn generic<M: ReduceOp<1>>(&self, mut states: impl Iterator<Item = M>) -> M {
        states.next().unwrap_or_else(M::identity)
    }
    #[inline(always)]
    fn sum<T: Number>(&self, mut values: impl Iterator<Item = T>) -> T {
        values.next().unwrap_or(T::ADD_IDENTITY)
    }
    #[inline(always)]
    fn max<T: Number>(&self, mut values: impl Iterator<Item = T>) -> T {
        values.next().unwrap_or(T::LOWEST)
    }
    #[inline(always)]
    fn min<T: Number>(&self, mut values: impl Iterator<Item = T>) -> T {
        values.next().unwrap_or(T::HIGHEST)
    }
}

/// Several workers, each with segments of one row: neighbours are joined pairwise.
#[derive(Debug, Clone, Copy, Default)]
pub struct SplitReducer;

impl Reducer for SplitReducer {
    fn generic<M: ReduceOp<1>>(&self, states: impl Iterator<Item = M>) -> M {
        cascade(states, M::join).unwrap_or_else(M::identity)
    }
    fn sum<T: Number>(&self, values: impl Iterator<Item = T>) -> T {
        cascade(values, T::add).unwrap_or(T::ADD_IDENTITY)
    }
    fn max<T: Number>(&self, values: impl Iterator<Item = T>) -> T {
        cascade(values, number::max).unwrap_or(T::LOWEST)
    }
    fn min<T: Number>(&self, values: impl Iterator<Item = T>) -> T {
        cascade(values, number::min).unwrap_or(T::HIGHEST)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{ArgMax, Sum};

    #[test]
    fn the_split_reducer_joins_every_participant() {
        let values = || (0..7).map(|i| i as f64);
        assert_eq!(SplitReducer.sum(values()), 21.0);
        assert_eq!(SplitReducer.max(values()), 6.0);
        assert_eq!(SplitReducer.min(values()), 0.0);
        assert!(SplitReducer.max([1.0, f64::NAN, 2.0].into_iter()).is_nan());
        let states = values().map(Sum::<f64, 1>::of);
        assert_eq!(SplitReducer.generic(states).value(), 21.0);
    }

    #[test]
    fn the_serial_reducer_has_one_participant() {
        assert_eq!(SerialReducer.sum([3.0f32].into_iter()), 3.0);
        assert_eq!(SerialReducer.max([3i64].into_iter()), 3);
        assert_eq!(SerialReducer.min([3i64].into_iter()), 3);
    }

    #[test]
    fn no_participants_give_the_identity() {
        assert_eq!(SplitReducer.sum(std::iter::empty::<f32>()), 0.0);
        assert_eq!(
            SplitReducer.max(std::iter::empty::<f32>()),
            f32::NEG_INFINITY
        );
        assert_eq!(SerialReducer.min(std::iter::empty::<f32>()), f32::INFINITY);
        let none: ArgMax<f32, 1> = SplitReducer.generic(std::iter::empty());
        assert_eq!(none.index(), None);
    }
}
