//! Joining many states in a fixed order, two of equal weight at a time.

use std::mem::MaybeUninit;

/// One slot per bit of a count of states. A walk joins the chunks of a segment, a 256th of the row
/// (see `segment_len`): 2^32 chunks per segment would be a row of 2^50 elements.
const LEVELS: usize = 32;

/// Joins states as they come, in the order of a binary counter: two single states make one of
/// weight two, two of weight two one of weight four, and so on; what remains is joined from the
/// last to the first. The tree depends on the number of states alone, and its depth grows with the
/// logarithm of it, and so does the rounding error of a sum.
pub(crate) struct Cascade<S> {
    /// The first `held` slots hold states, the heaviest first.
    slots: [MaybeUninit<S>; LEVELS],
    /// As many as `count` has bits set; counted along, which is less work than counting the bits.
    held: usize,
    count: usize,
}

impl<S: Copy> Cascade<S> {
    #[inline(always)]
    pub(crate) fn new() -> Self {
        Cascade {
            slots: [const { MaybeUninit::uninit() }; LEVELS],
            held: 0,
            count: 0,
        }
    }

    #[inline(always)]
    fn slot(&self, index: usize) -> S {
        debug_assert!(index < self.held);
        // SAFETY: callers pass an index below `held`. `push` writes a slot before it sets `held` to
        // the number after it, so the slots below `held` have always been written.
        unsafe { self.slots[index].assume_init() }
    }

    /// Adds the next state.
    #[inline(always)]
    pub(crate) fn push(&mut self, mut state: S, join: impl Fn(S, S) -> S + Copy) {
        let mut top = self.held;
        for _ in 0..self.count.trailing_ones() {
            top -= 1;
            state = join(self.slot(top), state);
        }
        if let Some(slot) = self.slots.get_mut(top) {
            slot.write(state);
            self.count += 1;
            self.held = top + 1;
        }
    }

    /// The join of all states and a last one, which is returned as it is if it is the only one.
    #[inline(always)]
    pub(crate) fn finish_with(&self, last: S, join: impl Fn(S, S) -> S + Copy) -> S {
        self.join_onto(self.held, last, join)
    }

    /// The join of all states, `None` of none.
    #[inline(always)]
    pub(crate) fn finish(&self, join: impl Fn(S, S) -> S + Copy) -> Option<S> {
        let top = self.held.checked_sub(1)?;
        Some(self.join_onto(top, self.slot(top), join))
    }

    /// Joins the states below `top`, from the last to the first, with what follows them.
    #[inline(always)]
    fn join_onto(&self, top: usize, state: S, join: impl Fn(S, S) -> S + Copy) -> S {
        (0..top)
            .rev()
            .fold(state, |state, i| join(self.slot(i), state))
    }
}

/// Joins all states of an iterator by a [`Cascade`].
#[inline(always)]
pub(crate) fn cascade<S: Copy>(
    states: impl Iterator<Item = S>,
    join: impl Fn(S, S) -> S + Copy,
) -> Option<S> {
    let mut cascade = Cascade::new();
    for state in states {
        cascade.push(state, join);
    }
    cascade.finish(join)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// (first, one past the last, depth): a join that checks that its sides are neighbours.
    fn join(a: (usize, usize, u32), b: (usize, usize, u32)) -> (usize, usize, u32) {
        assert_eq!(a.1, b.0, "joined out of order");
        (a.0, b.1, a.2.max(b.2) + 1)
    }

    #[test]
    fn every_state_is_joined_once_in_order_and_shallowly() {
        assert_eq!(cascade(std::iter::empty(), join), None);
        for n in 1..300usize {
            let (first, end, depth) = cascade((0..n).map(|i| (i, i + 1, 0)), join).unwrap();
            assert_eq!((first, end), (0, n));
            // A counter of k bits: at most k - 1 joins inside a block and k - 1 of the rest.
            assert!(depth <= 2 * (n as f64).log2().ceil() as u32, "{n}: {depth}");
        }
    }
}
