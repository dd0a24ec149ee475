//! Instruction sets: code written once over lanes, compiled for each, picked at run time.
//!
//! The lanes are plain arrays that the compiler makes vectors of. Only what it has no pattern for is
//! written for an instruction set: conversions of f16, and loads of f32 with a mask and by cache lines. No step differs in its result
//! from one instruction set to the other, so a row has the same bits on all that fuse a
//! multiply-add in hardware or in software, that is on all.

use super::element::Element;
use super::half_bits;
use super::monoids::Sum;
use super::op::ReduceOp;
use super::tile::{copy_partial, Tile, LANES};
use super::walk::prefetch;

/// Work to be compiled for an instruction set. `call` must be `#[inline(always)]`, and what it
/// calls in its loops inlined too: the instruction set is a property of the function that all of
/// it ends up in.
pub trait Kernel {
    /// What it makes.
    type Output;
    /// Does the work.
    fn call(self) -> Self::Output;
}

/// f16 values per conversion.
pub const HALVES: usize = 16;

/// [`Isa::sum_pairs_f32`] of any elements.
#[inline(always)]
pub fn sum_pairs<I: Isa, T: Element>(isa: I, pairs: &[[T; 2 * LANES]]) -> Sum<T::Acc> {
    let mut even = <Sum<T::Acc> as ReduceOp>::identity();
    let mut odd = even;
    for pair in pairs {
        prefetch(pair);
        let (tiles, _) = pair.as_chunks::<LANES>();
        even.accumulate(&Tile::new(T::widen(isa, &tiles[0]), 0, LANES));
        odd.accumulate(&Tile::new(T::widen(isa, &tiles[1]), 0, LANES));
    }
    even.join(odd)
}

/// An instruction set that the machine has.
pub trait Isa: Copy + Send + Sync + 'static {
    /// Runs work compiled for it.
    fn run<K: Kernel>(self, kernel: K) -> K::Output;
    /// Fewer than `LANES` elements, and zeros after them.
    #[inline(always)]
    fn load_partial_f32(self, from: &[f32]) -> [f32; LANES] {
        copy_partial(from)
    }
    /// Two states fold the tiles of each pair, one each, and are joined.
    #[inline(always)]
    fn sum_pairs_f32(self, pairs: &[[f32; 2 * LANES]]) -> Sum<f32> {
        sum_pairs(self, pairs)
    }
    /// f16 bits to f32, exactly.
    fn widen_f16(self, bits: &[u16; HALVES]) -> [f32; HALVES];
    /// f32 to the nearest f16, ties to even.
    fn narrow_f16(self, values: &[f32; HALVES]) -> [u16; HALVES];
}

/// What the compiler's target has: SSE2 on x86-64, NEON on AArch64.
#[derive(Debug, Clone, Copy)]
pub struct Portable;

impl Isa for Portable {
    #[inline(never)]
    fn run<K: Kernel>(self, kernel: K) -> K::Output {
        kernel.call()
    }
    #[inline(always)]
    fn widen_f16(self, bits: &[u16; HALVES]) -> [f32; HALVES] {
        let mut wide = [0.0; HALVES];
        for (wide, bits) in wide.iter_mut().zip(bits) {
            *wide = half_bits::f16_to_f32(*bits);
        }
        wide
    }
    #[inline(always)]
    fn narrow_f16(self, values: &[f32; HALVES]) -> [u16; HALVES] {
        let mut bits = [0; HALVES];
        for (bits, value) in bits.iter_mut().zip(values) {
            *bits = half_bits::f32_to_f16(*value);
        }
        bits
    }
}

#[cfg(target_arch = "x86_64")]
pub use x86::{Avx2, Avx512};

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{Isa, Kernel, ReduceOp, Sum, HALVES, LANES};
    use std::arch::x86_64::*;

    /// AVX2 with FMA and F16C. A value of it exists only where the machine has them.
    #[derive(Debug, Clone, Copy)]
    pub struct Avx2(());

    impl Avx2 {
        /// `None` where the machine lacks it.
        pub fn detect() -> Option<Self> {
            (is_x86_feature_detected!("avx2")
                && is_x86_feature_detected!("fma")
                && is_x86_feature_detected!("f16c"))
            .then_some(Avx2(()))
        }
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    fn run_avx2<K: Kernel>(kernel: K) -> K::Output {
        kernel.call()
    }

    impl Isa for Avx2 {
        #[inline(always)]
        fn run<K: Kernel>(self, kernel: K) -> K::Output {
            // SAFETY: `detect`, the only way to a value of `Avx2`, found the features.
            unsafe { run_avx2(kernel) }
        }
        #[inline(always)]
        fn widen_f16(self, bits: &[u16; HALVES]) -> [f32; HALVES] {
            let mut wide = [0.0; HALVES];
            for (narrow, wide) in bits.chunks_exact(8).zip(wide.chunks_exact_mut(8)) {
                // SAFETY: the chunks are 8 elements long, 16 and 32 bytes, and the unaligned forms
                // ask for no alignment. `detect` found F16C and AVX.
                unsafe {
                    let halves = _mm_loadu_si128(narrow.as_ptr().cast());
                    _mm256_storeu_ps(wide.as_mut_ptr(), _mm256_cvtph_ps(halves));
                }
            }
            wide
        }
        #[inline(always)]
        fn narrow_f16(self, values: &[f32; HALVES]) -> [u16; HALVES] {
            let mut bits = [0; HALVES];
            for (wide, narrow) in values.chunks_exact(8).zip(bits.chunks_exact_mut(8)) {
                // SAFETY: as in `widen_f16`.
                unsafe {
                    let floats = _mm256_loadu_ps(wide.as_ptr());
                    let halves = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(floats);
                    _mm_storeu_si128(narrow.as_mut_ptr().cast(), halves);
                }
            }
            bits
        }
    }

    /// AVX-512 F, BW, DQ and VL. A value of it exists only where the machine has them.
    #[derive(Debug, Clone, Copy)]
    pub struct Avx512(());

    impl Avx512 {
        /// `None` where the machine lacks it.
        pub fn detect() -> Option<Self> {
            (is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512dq")
                && is_x86_feature_detected!("avx512vl")
                && Avx2::detect().is_some())
            .then_some(Avx512(()))
        }
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
    fn run_avx512<K: Kernel>(kernel: K) -> K::Output {
        kernel.call()
    }

    impl Isa for Avx512 {
        #[inline(always)]
        fn run<K: Kernel>(self, kernel: K) -> K::Output {
            // SAFETY: `detect`, the only way to a value of `Avx512`, found the features.
            unsafe { run_avx512(kernel) }
        }
        #[inline(always)]
        fn load_partial_f32(self, from: &[f32]) -> [f32; LANES] {
            let mut tile = [0.0; LANES];
            // As many ones as elements; of 32 or more, all.
            let live = u32::MAX
                .checked_shr(LANES.saturating_sub(from.len()) as u32)
                .unwrap_or(0);
            // SAFETY: the masks are of the first elements of the slice, and a masked load does not touch
            // what is masked out; the offset of 16 elements is added without a promise. The stores are of
            // 16 floats each. `detect` found AVX-512 F.
            unsafe {
                let low = _mm512_maskz_loadu_ps(live as u16, from.as_ptr());
                let after = from.as_ptr().wrapping_add(16);
                let high = _mm512_maskz_loadu_ps((live >> 16) as u16, after);
                _mm512_storeu_ps(tile.as_mut_ptr(), low);
                _mm512_storeu_ps(tile.as_mut_ptr().add(16), high);
            }
            tile
        }
        /// By loads of whole cache lines, wherever the elements begin: a load across two lines takes as
        /// long as two, and of large allocations, which begin 16 bytes into a line, every one is.
        ///
        /// Of blocks of lines as long as a pair the first begins `skew` elements before the elements do,
        /// so lane `l` of the pairs adds up in place `l + skew` of the blocks, and those that fall out at
        /// the end come first in the next block. Who adds what in which order is the same.
        #[inline(always)]
        fn sum_pairs_f32(self, pairs: &[[f32; 2 * LANES]]) -> Sum<f32> {
            const { assert!(LANES == 32, "two vectors a tile") };
            if pairs.is_empty() {
                return <Sum<f32> as ReduceOp>::identity();
            }
            let elements = pairs.as_flattened();
            let skew = elements.as_ptr().addr() % 64 / 4;
            let first = elements.as_ptr().wrapping_sub(skew);
            let mut lanes = [0.0; LANES];
            // SAFETY: `detect` found AVX-512 F. There is a block; the blocks but for the places below `skew`
            // of the first one are elements, as are those places after the last block, and a masked load
            // does not touch what is masked out. The stores are of 16 floats each.
            unsafe {
                let begin = u16::MAX << skew;
                let mut sums = [_mm512_set1_ps(-0.0); 4];
                let mut at = first;
                for i in 0..pairs.len() {
                    for (j, sum) in sums.iter_mut().enumerate() {
                        let line = at.wrapping_add(16 * j);
                        let line = if i == 0 && j == 0 {
                            _mm512_mask_loadu_ps(*sum, begin, line)
                        } else {
                            _mm512_loadu_ps(line)
                        };
                        *sum = _mm512_add_ps(*sum, line);
                    }
                    at = at.wrapping_add(2 * LANES);
                }
                let rest = _mm512_maskz_loadu_ps(!begin, at);
                sums[0] = _mm512_mask_add_ps(sums[0], !begin, sums[0], rest);
                let low = _mm512_add_ps(sums[0], sums[2]);
                let high = _mm512_add_ps(sums[1], sums[3]);
                let places =
                    _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
                let places = _mm512_add_epi32(places, _mm512_set1_epi32(skew as i32));
                let back = |a, b| _mm512_permutex2var_ps(a, places, b);
                _mm512_storeu_ps(lanes.as_mut_ptr(), back(low, high));
                _mm512_storeu_ps(lanes.as_mut_ptr().add(16), back(high, low));
            }
            Sum::of_lanes(lanes)
        }
        #[inline(always)]
        fn widen_f16(self, bits: &[u16; HALVES]) -> [f32; HALVES] {
            let mut wide = [0.0; HALVES];
            // SAFETY: 16 halves are 32 bytes and 16 floats 64, and the unaligned forms ask for no
            // alignment. `detect` found AVX-512 F.
            unsafe {
                let halves = _mm256_loadu_si256(bits.as_ptr().cast());
                _mm512_storeu_ps(wide.as_mut_ptr(), _mm512_cvtph_ps(halves));
            }
            wide
        }
        #[inline(always)]
        fn narrow_f16(self, values: &[f32; HALVES]) -> [u16; HALVES] {
            let mut bits = [0; HALVES];
            // SAFETY: as in `widen_f16`.
            unsafe {
                let floats = _mm512_loadu_ps(values.as_ptr());
                let halves = _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(floats);
                _mm256_storeu_si256(bits.as_mut_ptr().cast(), halves);
            }
            bits
        }
    }
}

/// Calls `$f($isa, ...)` with the best instruction set of the machine.
macro_rules! with_best_isa {
    ($f:expr $(, $arg:expr)*) => {{
        #[cfg(target_arch = "x86_64")]
        {
            use $crate::engine::isa::{Avx2, Avx512, Portable};
            match (Avx512::detect(), Avx2::detect()) {
                (Some(isa), _) => $f(isa $(, $arg)*),
                (None, Some(isa)) => $f(isa $(, $arg)*),
                (None, None) => $f(Portable $(, $arg)*),
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        {
            $f($crate::engine::isa::Portable $(, $arg)*)
        }
    }};
}
pub(crate) use with_best_isa;

#[cfg(test)]
mod tests {
    use super::*;

    fn check_conversions(isa: impl Isa) {
        for block in 0..(65536 / HALVES) {
            let bits: [u16; HALVES] = std::array::from_fn(|i| (block * HALVES + i) as u16);
            let wide = isa.widen_f16(&bits);
            for (bits, wide) in bits.into_iter().zip(wide) {
                let want = half::f16::from_bits(bits).to_f32();
                assert!(wide == want || (wide.is_nan() && want.is_nan()), "{bits:x}");
            }
            let back = isa.narrow_f16(&wide);
            for (bits, back) in bits.into_iter().zip(back) {
                let nan = half::f16::from_bits(bits).is_nan();
                assert!(back == bits || (nan && half::f16::from_bits(back).is_nan()));
            }
        }
        // Between the f16: ties, what overflows, what underflows.
        for step in 0..(1u32 << 18) {
            let value = f32::from_bits(step << 14 | step & 1 | (step & 2) << 12);
            let got = isa.narrow_f16(&[value; HALVES])[3];
            let want = half::f16::from_f32(value);
            assert!(
                got == want.to_bits() || (want.is_nan() && half::f16::from_bits(got).is_nan()),
                "{value:e}"
            );
        }
    }

    /// Loads of part of a tile beside copies, and sums of pairs wherever they begin beside tiles added up.
    fn check_loads(isa: impl Isa) {
        let values: [f32; 64 * 5 + 16] =
            std::array::from_fn(|i| ((37 * i) % 101) as f32 / 7.0 - 6.0);
        for len in 0..LANES {
            let got = isa.load_partial_f32(&values[..len]);
            assert_eq!(got[..len], values[..len]);
            assert!(got[len..].iter().all(|value| *value == 0.0));
        }
        for begin in 0..16 {
            let (pairs, _) = values[begin..].as_chunks::<{ 2 * LANES }>();
            for count in 0..=5 {
                let pairs = &pairs[..count];
                assert_eq!(isa.sum_pairs_f32(pairs), sum_pairs(Portable, pairs));
            }
        }
        let zeros = isa.sum_pairs_f32(&[[-0.0; 2 * LANES]; 2]);
        assert!(ReduceOp::<LANES>::reduce(zeros).value().is_sign_negative());
    }

    #[test]
    fn partial_loads_are_copies_and_sums_do_not_depend_on_where_they_begin() {
        check_loads(Portable);
        #[cfg(target_arch = "x86_64")]
        {
            if let Some(isa) = Avx2::detect() {
                check_loads(isa);
            }
            if let Some(isa) = Avx512::detect() {
                check_loads(isa);
            }
        }
    }

    #[test]
    fn every_f16_converts_as_in_software() {
        check_conversions(Portable);
        #[cfg(target_arch = "x86_64")]
        {
            if let Some(isa) = Avx2::detect() {
                check_conversions(isa);
            }
            if let Some(isa) = Avx512::detect() {
                check_conversions(isa);
            }
        }
    }
}
