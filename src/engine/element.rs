//! Dtypes: how a stored element becomes a number to fold, and a number an element to store.

use super::half_bits::{bf16_to_f32, f32_to_bf16};
use super::isa::{sum_pairs, Isa, HALVES};
use super::monoids::Sum;
use super::number::Number;
use super::scratch::Scratch;
use super::tile::{copy_partial, LANES};

/// An element type of an input row.
///
/// | element | accumulates in |
/// |---|---|
/// | `f16`, `bf16`, `f32` | `f32` |
/// | `f64` | `f64` |
/// | `u8`, `u32`, `i16`, `i32`, `i64` | `i64` |
pub trait Element: Copy + Default + Send + Sync + 'static {
    /// What its values are folded in.
    type Acc: Number + Scratch + Element<Acc = Self::Acc>;

    #[doc(hidden)]
    fn widen<I: Isa, const W: usize>(isa: I, from: &[Self; W]) -> [Self::Acc; W];

    /// Fewer than `LANES` elements, widened, and zeros after them.
    #[doc(hidden)]
    #[inline(always)]
    fn widen_partial<I: Isa>(isa: I, from: &[Self]) -> [Self::Acc; LANES] {
        Self::widen(isa, &copy_partial(from))
    }

    /// [`Isa::sum_pairs_f32`] of elements of this type.
    #[doc(hidden)]
    #[inline(always)]
    fn sum_pairs<I: Isa>(isa: I, pairs: &[[Self; 2 * LANES]]) -> Sum<Self::Acc> {
        sum_pairs(isa, pairs)
    }
}

/// An element type that a walk can emit: made of a number of type `A` by one rounding, to nearest,
/// ties to even; for a narrow integer the nearest that it has.
pub trait Output<A>: Copy + Default + Send + Sync + 'static {
    #[doc(hidden)]
    fn narrow<I: Isa, const W: usize>(isa: I, from: &[A; W]) -> [Self; W];
}

macro_rules! same_element {
    ($($t:ident $({$($more:item)+})?),+) => {$(
        impl Element for $t {
            type Acc = $t;
            #[inline(always)]
            fn widen<I: Isa, const W: usize>(_: I, from: &[Self; W]) -> [Self; W] {
                *from
            }
            $($($more)+)?
        }

        impl Output<$t> for $t {
            #[inline(always)]
            fn narrow<I: Isa, const W: usize>(_: I, from: &[Self; W]) -> [Self; W] {
                *from
            }
        }
    )+};
}

same_element!(
    f32 {
        #[inline(always)]
        fn widen_partial<I: Isa>(isa: I, from: &[Self]) -> [Self; LANES] {
            isa.load_partial_f32(from)
        }
        #[inline(always)]
        fn sum_pairs<I: Isa>(isa: I, pairs: &[[Self; 2 * LANES]]) -> Sum<Self> {
            isa.sum_pairs_f32(pairs)
        }
    },
    f64,
    i64
);

macro_rules! integer_element {
    ($($t:ident),+) => {$(
        impl Element for $t {
            type Acc = i64;
            #[inline(always)]
            fn widen<I: Isa, const W: usize>(_: I, from: &[Self; W]) -> [i64; W] {
                let mut to = [0; W];
                for (to, from) in to.iter_mut().zip(from) {
                    *to = i64::from(*from);
                }
                to
            }
        }

        impl Output<i64> for $t {
            #[inline(always)]
            fn narrow<I: Isa, const W: usize>(_: I, from: &[i64; W]) -> [Self; W] {
                let mut to = [0; W];
                for (to, from) in to.iter_mut().zip(from) {
                    *to = (*from).clamp(i64::from($t::MIN), i64::from($t::MAX)) as $t;
                }
                to
            }
        }
    )+};
}

integer_element!(u8, u32, i16, i32);

impl Element for half::bf16 {
    type Acc = f32;
    #[inline(always)]
    fn widen<I: Isa, const W: usize>(_: I, from: &[Self; W]) -> [f32; W] {
        let mut to = [0.0; W];
        for (to, from) in to.iter_mut().zip(from) {
            *to = bf16_to_f32(from.to_bits());
        }
        to
    }
}

impl Output<f32> for half::bf16 {
    #[inline(always)]
    fn narrow<I: Isa, const W: usize>(_: I, from: &[f32; W]) -> [Self; W] {
        let mut to = [Self::ZERO; W];
        for (to, from) in to.iter_mut().zip(from) {
            *to = Self::from_bits(f32_to_bf16(*from));
        }
        to
    }
}

impl Element for half::f16 {
    type Acc = f32;
    #[inline(always)]
    fn widen<I: Isa, const W: usize>(isa: I, from: &[Self; W]) -> [f32; W] {
        let mut to = [0.0; W];
        for (to, from) in to.chunks_mut(HALVES).zip(from.chunks(HALVES)) {
            let mut bits = [0; HALVES];
            for (bits, from) in bits.iter_mut().zip(from) {
                *bits = from.to_bits();
            }
            for (to, wide) in to.iter_mut().zip(isa.widen_f16(&bits)) {
                *to = wide;
            }
        }
        to
    }
}

impl Output<f32> for half::f16 {
    #[inline(always)]
    fn narrow<I: Isa, const W: usize>(isa: I, from: &[f32; W]) -> [Self; W] {
        let mut to = [Self::ZERO; W];
        for (to, from) in to.chunks_mut(HALVES).zip(from.chunks(HALVES)) {
            let mut values = [0.0; HALVES];
            for (value, from) in values.iter_mut().zip(from) {
                *value = *from;
            }
            for (to, bits) in to.iter_mut().zip(isa.narrow_f16(&values)) {
                *to = Self::from_bits(bits);
            }
        }
        to
    }
}
