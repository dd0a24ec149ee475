//! The monoids that come with the engine, one family per file.

mod arg;
mod extrema;
mod logic;
mod logsumexp;
mod pair;
mod prod;
mod sum;
mod welford;

pub use arg::{ArgMax, ArgMin};
pub use extrema::{AbsMax, Max, Min, MinMax};
pub use logic::{All, Any, Count};
pub use logsumexp::OnlineLogSumExp;
pub use pair::Pair;
pub use prod::Prod;
pub use sum::{Sum, SumOfSquares};
pub use welford::Welford;

/// The laws of [`ReduceOp`](super::ReduceOp), checked on a list of values.
#[cfg(test)]
pub(crate) mod laws {
    use crate::engine::{ReduceOp, Tile, LANES};

    /// Folds values one by one, as a row that starts at position `first`.
    fn fold<S: ReduceOp<1>>(values: &[S::Value], first: i64) -> S {
        let mut state = S::identity();
        for (i, value) in values.iter().enumerate() {
            state.accumulate_lane(0, *value, first + i as i64);
        }
        state
    }

    /// Checks identity, associativity, commutativity, and that tiles, whole and partial, fold as
    /// single values do. `same` says whether two states are equal, exactly or up to rounding.
    pub(crate) fn check<S>(values: &[S::Value], same: impl Fn(S::Single, S::Single) -> bool)
    where
        S: ReduceOp<LANES>,
        S::Value: Copy + Default,
    {
        let whole = fold::<S::Single>(values, 0);
        let none = S::Single::identity();
        assert!(same(none.join(whole), whole), "identity on the left");
        assert!(same(whole.join(none), whole), "identity on the right");
        for cut in 0..=values.len() {
            for second in [cut, cut + (values.len() - cut) / 2, values.len()] {
                let a = fold::<S::Single>(&values[..cut], 0);
                let b = fold::<S::Single>(&values[cut..second], cut as i64);
                let c = fold::<S::Single>(&values[second..], second as i64);
                assert!(same(a.join(b).join(c), whole), "parts {cut} {second}");
                assert!(same(a.join(b.join(c)), whole), "associativity {cut} {second}");
                assert!(same(c.join(a).join(b), whole), "commutativity {cut} {second}");
            }
        }
        for live in 0..=values.len().min(2 * LANES) {
            let mut lanes = <S as ReduceOp<LANES>>::identity();
            let mut first = 0;
            for chunk in values[..live].chunks(LANES) {
                // The fill is a value of the row itself, which would change most states.
                let mut tile = [values[0]; LANES];
                tile[..chunk.len()].copy_from_slice(chunk);
                lanes.accumulate(&Tile::new(tile, first, chunk.len()));
                first += chunk.len() as i64;
            }
            let want = fold::<S::Single>(&values[..live], 0);
            assert!(same(ReduceOp::<LANES>::reduce(lanes), want), "tiles of {live}");
            let joined = ReduceOp::<LANES>::join(<S as ReduceOp<LANES>>::identity(), lanes);
            assert!(same(ReduceOp::<LANES>::reduce(joined), want), "join of lanes {live}");
        }
    }

    /// Values of many magnitudes and both signs, some equal, without specials.
    pub(crate) fn values(len: usize) -> Vec<f64> {
        (0..len)
            .map(|k| ((37 * k + 11) % 101) as f64 / 16.0 - 3.0)
            .collect()
    }

    /// Equal up to `ulps` rounding errors of an f64 of the size of `scale`.
    pub(crate) fn close(a: f64, b: f64, scale: f64, ulps: f64) -> bool {
        (a - b).abs() <= ulps * f64::EPSILON * scale || a == b || (a.is_nan() && b.is_nan())
    }
}
