//! RMS norm and layer norm, also of a sum.
//!
//! Both run a plain pass first. Only where its sum of squares has overflowed, or is so small that
//! squares have been lost below the smallest normal number, is the row computed again, scaled by a
//! power of two that brings its largest magnitude near 1; eps is scaled along.

use super::extrema::{row_extreme, LargestMagnitude};
use super::moments::moments;
use super::squares::sum_of_squares;
use super::{beside, side, Dtype, Launch, OperandRows};
use crate::engine::isa::Isa;
use crate::engine::{load, reduce, Context, Float, Number, Row, RowBody, Tile, LANES};
use crate::problem::{Op, Problem, Rows};
use candle_core::{CpuStorage, Result, WithDType};
use std::borrow::Cow;
use std::mem::MaybeUninit;

/// What the accumulators' ranges mean for sums of squares.
pub(super) trait Range: Float {
    /// A mean square (plus eps) from here on has lost nothing to underflow: squares have been
    /// rounded to at least 24 (53) bits below it.
    const SAFE_MEAN_SQUARE: f64;
    /// Twice the distance of 1 to the next number.
    const TWO_ULP: f64;
    /// The largest power of two by which to scale up.
    const MAX_SCALE: i32;
}

impl Range for f32 {
    // 2^-126 is the smallest normal number.
    const SAFE_MEAN_SQUARE: f64 = 1.0 / (1u128 << 102) as f64;
    const TWO_ULP: f64 = 2.0 * f32::EPSILON as f64;
    const MAX_SCALE: i32 = 126;
}

impl Range for f64 {
    // 2^-1022 is the smallest normal number; this is 2^-969.
    const SAFE_MEAN_SQUARE: f64 = f64::MIN_POSITIVE * (1u64 << 53) as f64;
    const TWO_ULP: f64 = 2.0 * f64::EPSILON;
    const MAX_SCALE: i32 = 1022;
}

/// A power of two that brings `magnitude` into [1, 2) or, for a subnormal, near it; 1 where there
/// is none, that is for 0, infinities and NaN.
fn scale_for(magnitude: f64, max_scale: i32) -> f64 {
    if magnitude == 0.0 || !magnitude.is_finite() {
        return 1.0;
    }
    // The exponent of the bits; of a subnormal f64 it is the lowest, and the limit holds anyway.
    let exponent = ((magnitude.to_bits() >> 52) & 0x7ff) as i32 - 1023;
    f64::from_bits(((1023 - exponent.clamp(-max_scale, 1022)) as u64) << 52)
}

/// The moments of a row by `moments`, of the row as it is or, where that has lost something to
/// overflow or underflow, scaled.
///
/// `moments` is given the scale and eps for it, and returns what eps has been added to, a mean square,
/// with what else it has found. The result is the scale, that mean square, and the rest.
#[inline(always)]
pub(super) fn row_moments<T, C, M>(
    row: &mut Row<'_, T, T>,
    ctx: C,
    eps: f64,
    moments: impl Fn(&mut Row<'_, T, T>, T::Accumulator, f64) -> (f64, M),
) -> (T::Accumulator, f64, M)
where
    T: Dtype,
    C: Context,
{
    let safe = T::Accumulator::SAFE_MEAN_SQUARE..f64::INFINITY;
    let plain = moments(row, T::Accumulator::ONE, eps);
    let (scale, (mean_square, rest)) = if safe.contains(&plain.0) {
        (T::Accumulator::ONE, plain)
    } else {
        scaled_moments(row, ctx, eps, plain, &moments)
    };
    (scale, mean_square, rest)
}

/// The scale that the largest magnitude of a row asks for, and the moments of the row scaled by it:
/// `plain` of a row of zeros or with an infinity or a NaN, of which no scale makes anything better.
///
/// Out of line and so without the instruction set's vectors: it is a rare row that comes here.
#[cold]
#[inline(never)]
fn scaled_moments<T, C, M>(
    row: &mut Row<'_, T, T>,
    ctx: C,
    eps: f64,
    plain: (f64, M),
    moments: &impl Fn(&mut Row<'_, T, T>, T::Accumulator, f64) -> (f64, M),
) -> (T::Accumulator, (f64, M))
where
    T: Dtype,
    C: Context,
{
    let scale = row_scale(row, ctx);
    if scale == T::Accumulator::ONE {
        return (scale, plain);
    }
    // Eps as it adds to a mean square of scaled values, without overflow on the way.
    let root = eps.sqrt() * scale.to_f64();
    (scale, moments(row, scale, root * root))
}

/// The scale that the largest magnitude of a row asks for.
pub(super) fn row_scale<T: Dtype, C: Context>(row: &mut Row<'_, T, T>, ctx: C) -> T::Accumulator {
    let magnitude = row_extreme::<LargestMagnitude, _, _, _>(row, ctx).to_f64();
    T::Accumulator::from_f64(scale_for(magnitude, T::Accumulator::MAX_SCALE))
}

/// A weight and a bias, where they are given.
pub(super) type Sides<'a, A> = [Option<Cow<'a, [A]>>; 2];

/// RMS norm or layer norm of the launch's rows.
pub(super) fn norm<I: Isa, T: Dtype>(
    launch: &Launch<'_, I, T>,
    sides: &Sides<'_, T::Accumulator>,
) -> Result<CpuStorage> {
    let [weight, bias] = sides.each_ref().map(Option::as_deref);
    match launch.problem.op {
        Op::RmsNorm { eps } => launch.run(&RmsNorm::<T> {
            weight,
            bias,
            divisor: Divisor::Root { eps },
        }),
        Op::L2Normalize { eps } => launch.run(&RmsNorm::<T> {
            weight,
            bias,
            divisor: Divisor::Length { eps },
        }),
        Op::LayerNorm { eps } => launch.run(&LayerNorm::<T> { weight, bias, eps }),
        op => candle_core::bail!("{}: not a norm", op.name()),
    }
}

/// `op` of the rows with a residual added to each, and the sums: the same as one after the other.
pub(super) fn add_norm<I: Isa, T: Dtype<Accumulator: WithDType>>(
    launch: &Launch<'_, I, T>,
    op: Op,
    operands: &[Option<&CpuStorage>],
) -> Result<Vec<CpuStorage>> {
    /// Rows per task: some microseconds' work.
    const TASK: usize = 1 << 14;
    let problem = launch.problem;
    let (rows, width) = (problem.rows, problem.width);
    let Some(residual) = OperandRows::<T>::of(problem, operands, 0)? else {
        candle_core::bail!("{}: no residual", problem.op.name())
    };
    let rows_per_task = (TASK / width).max(1);
    // SAFETY: `add_row` writes every element of its room, and the rooms of the rows are all of it.
    let sums: Vec<T> = unsafe {
        beside::fill_chunks(
            problem,
            rows * width,
            rows_per_task * width,
            |task, room| {
                for (i, room) in room.chunks_mut(width).enumerate() {
                    let row = task * rows_per_task + i;
                    let start = problem.input.start(row);
                    let x = launch.x.get(start..start + width).unwrap_or(&[]);
                    add_row(launch.isa, x, residual.row(row), room);
                }
            },
        )?
    };
    let of_sums = Problem {
        op,
        input: Rows::contiguous(rows, width),
        ..problem.clone()
    };
    let sides = [
        side::<T>(problem, operands, 1)?,
        side::<T>(problem, operands, 2)?,
    ];
    let normed = norm(&Launch::new(launch.isa, &of_sums, &sums)?, &sides)?;
    Ok(vec![normed, T::to_cpu_storage_owned(sums)])
}

/// Writes `x + residual`, which may be one value for all of the row, rounded once.
fn add_row<I: Isa, T: Dtype>(isa: I, x: &[T], residual: &[T], room: &mut [MaybeUninit<T>]) {
    for (k, to) in room.chunks_mut(LANES).enumerate() {
        let (mut a, mut b) = ([T::default(); LANES], [T::default(); LANES]);
        for i in 0..to.len() {
            let at = k * LANES + i;
            a[i] = x.get(at).copied().unwrap_or_default();
            b[i] = match residual {
                [value] => *value,
                row => row.get(at).copied().unwrap_or_default(),
            };
        }
        let (mut a, b) = (T::widen(isa, &a), T::widen(isa, &b));
        for (a, b) in a.iter_mut().zip(b) {
            *a = a.add(b);
        }
        for (to, sum) in to.iter_mut().zip(T::narrow(isa, &a)) {
            to.write(sum);
        }
    }
}

/// The values of a side at the positions of a tile; `absent` everywhere where it was left out.
#[inline(always)]
pub(super) fn side_at<C: Context, A: Range + crate::engine::Element<Acc = A>>(
    ctx: C,
    side: Option<&[A]>,
    tile: &Tile<A>,
    absent: A,
) -> [A; LANES] {
    match side {
        Some(side) => load(ctx, side, tile),
        None => [absent; LANES],
    }
}

/// What a row is divided by.
#[derive(Clone, Copy)]
pub(super) enum Divisor {
    /// The root of the mean square plus eps.
    Root { eps: f64 },
    /// The root of the sum of squares, but eps where it is less.
    Length { eps: f64 },
}

impl Divisor {
    /// Eps as it stands beside squares.
    fn squared_eps(self) -> f64 {
        match self {
            Divisor::Root { eps } => eps,
            Divisor::Length { eps } => eps * eps,
        }
    }

    /// The square of the divisor, given [`Divisor::squared_eps`] as scaled as the row; and whether it is that
    /// alone.
    fn square(self, squares: f64, width: usize, squared_eps: f64) -> (f64, bool) {
        match self {
            Divisor::Root { .. } => (squares / width as f64 + squared_eps, false),
            // Not so of a NaN.
            Divisor::Length { .. } if squares < squared_eps => (squared_eps, true),
            Divisor::Length { .. } => (squares, false),
        }
    }

    /// What a sum is divided by where the gradient has a mean for the root, and a sum for the length.
    pub fn count(self, width: usize) -> f64 {
        match self {
            Divisor::Root { .. } => width as f64,
            Divisor::Length { .. } => 1.,
        }
    }
}

/// `x / divisor * weight + bias`.
pub(super) struct RmsNorm<'a, T: Dtype> {
    pub weight: Option<&'a [T::Accumulator]>,
    pub bias: Option<&'a [T::Accumulator]>,
    pub divisor: Divisor,
}

impl<T: Dtype> RowBody for RmsNorm<'_, T> {
    type Element = T;
    type Output = T;
    const COST: usize = 4;

    fn output_width(&self, width: usize) -> usize {
        width
    }

    #[inline(always)]
    fn run<C: Context>(&self, row: &mut Row<'_, T, T>, ctx: C) {
        let root = inverse_root(row, ctx, self.divisor);
        let (scale, rstd) = (root.scale, root.inverse);
        match self.bias {
            None => reduce(
                row,
                ctx,
                #[inline(always)]
                |x| {
                    let weight = side_at(ctx, self.weight, x, T::Accumulator::ONE);
                    x.map(|x| x.mul(scale).mul(rstd))
                        .zip(&weight, |x, weight| x.mul(weight))
                },
            ),
            Some(bias) => reduce(
                row,
                ctx,
                #[inline(always)]
                |x| {
                    let weight = side_at(ctx, self.weight, x, T::Accumulator::ONE);
                    let bias = load(ctx, bias, x);
                    let mut values = x.map(|x| x.mul(scale).mul(rstd)).values();
                    for (value, (weight, bias)) in
                        values.iter_mut().zip(weight.into_iter().zip(bias))
                    {
                        *value = value.mul_add(weight, bias);
                    }
                    values
                },
            ),
        }
    }
}

/// What a row is multiplied by, one after the other, in place of the division.
pub(super) struct InverseRoot<A> {
    /// So that its squares are safe.
    pub scale: A,
    pub inverse: A,
    /// Whether it is divided by eps, and not by what it holds.
    pub is_eps: bool,
}

#[inline(always)]
pub(super) fn inverse_root<T: Dtype, C: Context>(
    row: &mut Row<'_, T, T>,
    ctx: C,
    divisor: Divisor,
) -> InverseRoot<T::Accumulator> {
    let (scale, square, is_eps) = row_moments(
        row,
        ctx,
        divisor.squared_eps(),
        #[inline(always)]
        |row, scale, squared_eps| {
            let squares = sum_of_squares(row, ctx, scale);
            divisor.square(squares.to_f64(), row.axis_size(), squared_eps)
        },
    );
    InverseRoot {
        scale,
        inverse: T::Accumulator::from_f64(square.sqrt().recip()),
        is_eps,
    }
}

/// How a row is brought to mean 0 and variance 1: `(x * scale - mean - residual) * inverse`.
pub(super) struct Centring<A> {
    pub scale: A,
    pub mean: A,
    pub residual: A,
    /// `rstd`, or 0 for a row of one value, whose deviations are what rounding has left.
    pub inverse: A,
    /// The inverse root of the variance plus eps of the row as it is, in two factors, since together they may
    /// be no number.
    pub rstd: [A; 2],
}

/// Both the variance and the deviations are corrected by what the rounded mean lacks.
#[inline(always)]
pub(super) fn centring<T: Dtype, C: Context>(
    row: &mut Row<'_, T, T>,
    ctx: C,
    eps: f64,
) -> Centring<T::Accumulator> {
    let (scale, variance, moments) = row_moments(
        row,
        ctx,
        eps,
        #[inline(always)]
        |row, scale, eps| {
            let moments = moments(row, ctx, scale);
            (moments.variance + eps, moments)
        },
    );
    // Where eps vanishes beside the scale of a constant row, the root is 0 and so are all
    // deviations: a finite factor keeps their products 0. Not `min`, which would turn a NaN into
    // the largest number.
    let largest = T::Accumulator::LARGEST.to_f64();
    let rstd = variance.sqrt().recip();
    let is_flat = rstd > largest && eps > 0.0;
    let rstd = T::Accumulator::from_f64(if rstd > largest { largest } else { rstd });
    let flat = T::Accumulator::from_f64(eps.sqrt().recip());
    let constant = moments.mean_square > 0.0 && moments.of_constant(row, ctx);
    Centring {
        scale,
        mean: moments.mean,
        residual: T::Accumulator::from_f64(moments.residual),
        inverse: if constant { T::Accumulator::ZERO } else { rstd },
        rstd: match is_flat {
            true => [flat, T::Accumulator::ONE],
            false => [rstd, scale],
        },
    }
}

/// `(x - mean) / sqrt(var + eps) * weight + bias`, with the population variance.
pub(super) struct LayerNorm<'a, T: Dtype> {
    pub weight: Option<&'a [T::Accumulator]>,
    pub bias: Option<&'a [T::Accumulator]>,
    pub eps: f64,
}

impl<T: Dtype> RowBody for LayerNorm<'_, T> {
    type Element = T;
    type Output = T;
    const COST: usize = 6;

    fn output_width(&self, width: usize) -> usize {
        width
    }

    #[inline(always)]
    fn run<C: Context>(&self, row: &mut Row<'_, T, T>, ctx: C) {
        let c = centring(row, ctx, self.eps);
        reduce(
            row,
            ctx,
            #[inline(always)]
            |x| {
                let weight = side_at(ctx, self.weight, x, T::Accumulator::ONE);
                let bias = side_at(ctx, self.bias, x, T::Accumulator::ZERO);
                let mut values = x
                    .map(|x| x.mul(c.scale).sub(c.mean).sub(c.residual).mul(c.inverse))
                    .values();
                for (value, (weight, bias)) in values.iter_mut().zip(weight.into_iter().zip(bias)) {
                    *value = value.mul_add(weight, bias);
                }
                values
            },
        );
    }
}
