//! The gradients of RMS norm and layer norm: of x row by row, of weight and bias as sums over bands of
//! neighbouring rows.
//!
//! The rows leave what they were normalised by; a second pass over x and the gradient adds up the columns of
//! each band in f64, one row after the other. So the bits do not depend on the number of threads.

use std::mem::MaybeUninit;
use std::ops::Range;

use candle_core::{CpuStorage, Result, WithDType};

use super::beside::{self, Beside};
use super::norm::{centring, inverse_root, side_at, Centring, Divisor};
use super::{side, Dtype, Launch, OperandRows};
use crate::engine::isa::{Isa, Kernel};
use crate::engine::{
    load, pjoin, reduce, reduce_into, Context, Float, Number, ReduceOp, Row, RowBody, Sum, Tile,
    LANES,
};

/// What a row was normalised by: scale, mean, residual, inverse.
type Stats<A> = [A; 4];

/// dx, and with `sums` those of the bands: of `g * h`, and of layer norm (`CENTRED`) of `g`.
pub(super) fn run<I: Isa, T: Dtype<Accumulator: WithDType>, const CENTRED: bool>(
    launch: &Launch<'_, I, T>,
    divisor: Divisor,
    sums: bool,
    operands: &[Option<&CpuStorage>],
) -> Result<Vec<CpuStorage>> {
    let problem = launch.problem;
    let name = problem.op.name();
    let Some(grad) = OperandRows::<T>::of(problem, operands, 0)? else {
        candle_core::bail!("{name}: no gradient")
    };
    let weight = side::<T>(problem, operands, 1)?;
    let gradient = Gradient::<T, CENTRED> {
        grad: &grad,
        weight: weight.as_deref(),
        divisor,
        stats: None,
    };
    if !sums {
        return Ok(vec![launch.run(&gradient)?]);
    }
    let (dx, stats) = beside::fill(problem, 1, |room| {
        launch.run(&Gradient {
            stats: Some(room),
            ..gradient
        })
    })?;
    let vectors = if CENTRED { 2 } else { 1 };
    let edge = |band: usize| {
        // In 128 bits: rows times bands may be more than 64 hold.
        (problem.rows as u128 * band as u128 / problem.bands as u128) as usize
    };
    let len = problem.bands * vectors * problem.width;
    // SAFETY: `BandSum` writes all of `out`.
    let bands: Vec<T::Accumulator> = unsafe {
        beside::fill_chunks(problem, len, problem.width, |task, out| {
            let band = task / vectors;
            launch.isa.run(BandSum {
                isa: launch.isa,
                launch,
                grad: &grad,
                stats: &stats,
                rows: edge(band)..edge(band + 1),
                of_products: task % vectors == 0,
                out,
            });
        })?
    };
    Ok(vec![dx, T::Accumulator::to_cpu_storage_owned(bands)])
}

/// `rstd * (t - mean(t) - h * mean(h * t))` with `t = weight * grad`, without the mean of t unless
/// `CENTRED`; of rows divided by their length, `rstd * (t - h * sum(h * t))`.
struct Gradient<'a, T: Dtype, const CENTRED: bool> {
    grad: &'a OperandRows<'a, T>,
    weight: Option<&'a [T::Accumulator]>,
    divisor: Divisor,
    stats: Option<Beside<'a, Stats<T::Accumulator>>>,
}

impl<T: Dtype, const CENTRED: bool> RowBody for Gradient<'_, T, CENTRED> {
    type Element = T;
    type Output = T;
    const COST: usize = 8;

    fn output_width(&self, width: usize) -> usize {
        width
    }

    #[inline(always)]
    fn run<C: Context>(&self, row: &mut Row<'_, T, T>, ctx: C) {
        let (c, is_eps) = match self.divisor {
            Divisor::Root { eps } if CENTRED => (centring(row, ctx, eps), false),
            divisor => {
                let root = inverse_root(row, ctx, divisor);
                let c = Centring {
                    scale: root.scale,
                    mean: T::Accumulator::ZERO,
                    residual: T::Accumulator::ZERO,
                    inverse: root.inverse,
                    rstd: [root.inverse, root.scale],
                };
                (c, root.is_eps)
            }
        };
        if let Some(stats) = &self.stats {
            // SAFETY: called once for this row.
            if let [slot] = unsafe { stats.row(row) } {
                slot.write([c.scale, c.mean, c.residual, c.inverse]);
            }
        }
        let grad = self.grad.row(row.index());
        let repeated = match grad {
            [value] if row.axis_size() > 1 => Some(T::widen(ctx.isa(), &[*value; LANES])),
            _ => None,
        };
        // h and t of a tile.
        let parts = |x: &Tile<T::Accumulator>| {
            let g = match repeated {
                Some(g) => g,
                None => load(ctx, grad, x),
            };
            let mut t = side_at(ctx, self.weight, x, T::Accumulator::ONE);
            for (t, g) in t.iter_mut().zip(g) {
                *t = t.mul(g);
            }
            (x.map(normalised(&c)).values(), t)
        };
        let (total, along) = reduce_into(
            row,
            ctx,
            (
                Sum::<T::Accumulator>::identity(),
                Sum::<T::Accumulator>::identity(),
            ),
            #[inline(always)]
            |(total, along), x| {
                let (mut h, t) = parts(x);
                total.accumulate(&x.with(t));
                for (h, t) in h.iter_mut().zip(t) {
                    *h = h.mul(t);
                }
                along.accumulate(&x.with(h));
            },
        );
        let inverse_width = self.divisor.count(row.axis_size()).recip();
        let mean = |sum: T::Accumulator| T::Accumulator::from_f64(sum.to_f64() * inverse_width);
        let (total, along) = (pjoin(total, ctx).value(), pjoin(along, ctx).value());
        let total = match CENTRED {
            true => mean(total),
            false => T::Accumulator::ZERO,
        };
        let along = match is_eps {
            true => T::Accumulator::ZERO,
            false => mean(along),
        };
        reduce(
            row,
            ctx,
            #[inline(always)]
            |x| {
                let (h, mut t) = parts(x);
                for (t, h) in t.iter_mut().zip(h) {
                    *t = t.sub(total).sub(h.mul(along)).mul(c.rstd[0]).mul(c.rstd[1]);
                }
                t
            },
        );
    }
}

#[inline(always)]
fn normalised<A: Float>(c: &Centring<A>) -> impl Fn(A) -> A + '_ {
    #[inline(always)]
    |x| x.mul(c.scale).sub(c.mean).sub(c.residual).mul(c.inverse)
}

/// One vector of a band: the sum over its rows of `g * h`, or of g.
struct BandSum<'a, I, T: Dtype> {
    isa: I,
    launch: &'a Launch<'a, I, T>,
    grad: &'a OperandRows<'a, T>,
    stats: &'a [Stats<T::Accumulator>],
    rows: Range<usize>,
    of_products: bool,
    out: &'a mut [MaybeUninit<T::Accumulator>],
}

impl<I: Isa, T: Dtype> Kernel for BandSum<'_, I, T> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        /// Columns that are added up at a time, in L1.
        const COLUMNS: usize = 16 * LANES;
        let isa = self.isa;
        let view = self.launch.problem.input;
        for (k, out) in self.out.chunks_mut(COLUMNS).enumerate() {
            let mut sums = [[0f64; LANES]; COLUMNS / LANES];
            for row in self.rows.clone() {
                let [scale, mean, residual, inverse] = self.stats[row];
                let c = Centring {
                    scale,
                    mean,
                    residual,
                    inverse,
                    rstd: [inverse, scale],
                };
                let start = view.start(row) + k * COLUMNS;
                let x = self.launch.x.get(start..start + out.len()).unwrap_or(&[]);
                let grad = self.grad.row(row);
                let repeated = match grad {
                    [value] => Some(T::widen(isa, &[*value; LANES])),
                    _ => None,
                };
                let grad = grad.get(k * COLUMNS..).unwrap_or(&[]);
                for (j, (sums, x)) in sums.iter_mut().zip(x.chunks(LANES)).enumerate() {
                    let g = match repeated {
                        Some(g) => g,
                        None => widened(isa, grad.get(j * LANES..).unwrap_or(&[])),
                    };
                    if self.of_products {
                        let h = widened::<I, T>(isa, x).map(normalised(&c));
                        for (sum, (g, h)) in sums.iter_mut().zip(g.into_iter().zip(h)) {
                            *sum = g.to_f64().mul_add(h.to_f64(), *sum);
                        }
                    } else {
                        for (sum, g) in sums.iter_mut().zip(g) {
                            *sum += g.to_f64();
                        }
                    }
                }
            }
            for (to, sum) in out.iter_mut().zip(sums.as_flattened()) {
                to.write(T::Accumulator::from_f64(*sum));
            }
        }
    }
}

/// The first elements, with zeros after them.
#[inline(always)]
fn widened<I: Isa, T: Dtype>(isa: I, elements: &[T]) -> [T::Accumulator; LANES] {
    match elements.first_chunk::<LANES>() {
        Some(full) => T::widen(isa, full),
        None => {
            let mut tile = [T::default(); LANES];
            for (to, from) in tile.iter_mut().zip(elements) {
                *to = *from;
            }
            T::widen(isa, &tile)
        }
    }
}
