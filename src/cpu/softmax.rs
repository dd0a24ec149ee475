//! Softmax, log-softmax and logsumexp.
//!
//! All three subtract the row's maximum first. The rulings on special values follow from IEEE
//! arithmetic with nothing added: a NaN makes the maximum NaN, a +inf gives `inf - inf`, and a row
//! of -inf `-inf - -inf`, all of them NaN for the whole row; an -inf beside finite values has
//! `exp(-inf) = 0` exactly.

use candle_core::{CpuStorage, DType, Result, WithDType};

use super::beside::{self, Beside};
use super::extrema::row_max;
use super::soft_cap::soft_capped;
use super::{fold, plain_body, Canonical, Dtype, Launch, OperandRows};
use crate::engine::isa::Isa;
use crate::engine::{
    self, load, once, pjoin, reduce, reduce_into, stage_into, Context, Element, Float, Number,
    ReduceOp, Row, RowBody, Tile, LANES,
};
use crate::problem::{Logits, Problem};

plain_body!(
    /// `exp(x - max) / sum(exp(x - max))`.
    Softmax
);

impl<T: Dtype> RowBody for Softmax<T> {
    type Element = T;
    type Output = T;
    const COST: usize = 12;

    fn output_width(&self, width: usize) -> usize {
        width
    }

    #[inline(always)]
    fn run<C: Context>(&self, row: &mut Row<'_, T, T>, ctx: C) {
        let max = row_max(row, ctx);
        let (sum, mut exps) = stage_into(
            row,
            ctx,
            engine::Sum::<T::Accumulator>::identity(),
            #[inline(always)]
            |sum, x| {
                let exps = x.map(|x| x.sub(max).exp());
                sum.accumulate(&exps);
                exps.values()
            },
        );
        let inverse = T::Accumulator::ONE.div(pjoin(sum, ctx).value());
        reduce(
            &mut exps,
            ctx,
            #[inline(always)]
            |exps| exps.map(|exp| exp.mul(inverse)).values(),
        );
    }
}

/// The sum of `exp(x - max)` over a row.
#[inline(always)]
fn sum_exp<T: Dtype, C: Context>(
    row: &mut Row<'_, T, T>,
    ctx: C,
    max: T::Accumulator,
) -> T::Accumulator {
    fold(
        row,
        ctx,
        engine::Sum::<T::Accumulator>::identity(),
        #[inline(always)]
        |x| x.map(|x| x.sub(max).exp()),
    )
    .value()
}

plain_body!(
    /// `x - max - log(sum(exp(x - max)))`, in this order: the logarithm is small beside a large
    /// maximum and would be lost if it were added to it first.
    LogSoftmax
);

impl<T: Dtype> RowBody for LogSoftmax<T> {
    type Element = T;
    type Output = T;
    const COST: usize = 12;

    fn output_width(&self, width: usize) -> usize {
        width
    }

    #[inline(always)]
    fn run<C: Context>(&self, row: &mut Row<'_, T, T>, ctx: C) {
        let max = row_max(row, ctx);
        let log = sum_exp(row, ctx, max).ln();
        reduce(
            row,
            ctx,
            #[inline(always)]
            |x| x.map(|x| x.sub(max).sub(log)).values(),
        );
    }
}

plain_body!(
    /// `max + log(sum(exp(x - max)))`; an infinite maximum is the result itself.
    LogSumExp
);

impl<T: Dtype> RowBody for LogSumExp<T> {
    type Element = T;
    type Output = T;
    const COST: usize = 7;

    fn output_width(&self, _: usize) -> usize {
        1
    }

    #[inline(always)]
    fn run<C: Context>(&self, row: &mut Row<'_, T, T>, ctx: C) {
        let max = row_max(row, ctx);
        let result = if max.abs() == T::Accumulator::HIGHEST {
            max
        } else {
            // One rounding of the sum: for a sum near 1 the logarithm alone would be rounded to
            // the size of itself, and for one near `exp(-max)` the terms cancel.
            let sum = sum_exp(row, ctx, max);
            T::Accumulator::from_f64(max.to_f64() + sum.to_f64().ln())
        };
        once(row, ctx, || engine::round(ctx, result.canonical()));
    }
}

/// The gradient of softmax, `y * (g - sum(g * y))`, or of its logarithm, `g - y * sum(g)`, with y made of
/// the input again: a half type's result has lost digits that the sum would miss.
pub(super) struct Gradient<'a, T> {
    pub gradient: OperandRows<'a, T>,
    pub log: bool,
}

impl<T: Dtype> RowBody for Gradient<'_, T> {
    type Element = T;
    type Output = T;
    const COST: usize = 14;

    fn output_width(&self, width: usize) -> usize {
        width
    }

    #[inline(always)]
    fn run<C: Context>(&self, row: &mut Row<'_, T, T>, ctx: C) {
        let gradient = self.gradient.row(row.index());
        let max = row_max(row, ctx);
        let states = (
            engine::Sum::<T::Accumulator>::identity(),
            engine::Sum::<T::Accumulator>::identity(),
        );
        let ((sum, weighted), mut exps) = stage_into(
            row,
            ctx,
            states,
            #[inline(always)]
            |(sum, weighted), x| {
                let exps = x.map(|x| x.sub(max).exp());
                sum.accumulate(&exps);
                let gradient = beside(ctx, gradient, x);
                if self.log {
                    weighted.accumulate(&x.with(gradient));
                } else {
                    weighted.accumulate(&x.with(exps.zip(&gradient, |e, g| e.mul(g))));
                }
                exps.values()
            },
        );
        let inverse = T::Accumulator::ONE.div(pjoin(sum, ctx).value());
        let weighted = pjoin(weighted, ctx).value();
        if self.log {
            let factor = T::Accumulator::ZERO.sub(weighted.mul(inverse));
            reduce(
                &mut exps,
                ctx,
                #[inline(always)]
                |exps| exps.zip(&beside(ctx, gradient, exps), |e, g| e.mul_add(factor, g)),
            );
        } else {
            let mean = weighted.mul(inverse);
            reduce(
                &mut exps,
                ctx,
                #[inline(always)]
                |exps| {
                    exps.zip(&beside(ctx, gradient, exps), |e, g| {
                        e.mul(inverse).mul(g.sub(mean))
                    })
                },
            );
        }
    }
}

/// What an operand's row has at the positions of a tile, or the one value that it repeats.
#[inline(always)]
fn beside<C, T, A>(ctx: C, row: &[T], tile: &Tile<A>) -> [T::Acc; LANES]
where
    C: Context,
    T: Element,
    A: Copy,
{
    match row {
        [_] => [load(ctx, row, &Tile::new([(); LANES], 0, LANES))[0]; LANES],
        _ => load(ctx, row, tile),
    }
}

/// Rows of a mask: added, or hiding keys where they are 0.
enum Mask<Same, F32, U8> {
    None,
    Added(Same),
    AddedF32(F32),
    Kept(U8),
}

/// How logits are made of rows.
pub(super) struct Rules<'a, T: Dtype> {
    logits: Logits,
    mask: Mask<OperandRows<'a, T>, OperandRows<'a, f32>, OperandRows<'a, u8>>,
    temperature: Option<OperandRows<'a, T::Accumulator>>,
    sink: Option<OperandRows<'a, T::Accumulator>>,
}

impl<'a, T: Dtype<Accumulator: WithDType>> Rules<'a, T> {
    /// The operands are the mask, the temperatures and the sinks, from `first` on.
    pub fn new(
        problem: &Problem,
        operands: &[Option<&'a CpuStorage>],
        first: usize,
        logits: Logits,
    ) -> Result<Self> {
        let mask = match problem.operands[first].map(|view| view.dtype) {
            None => Mask::None,
            Some(DType::U8) => Mask::Kept(OperandRows::required(problem, operands, first)?),
            Some(dtype) if dtype == problem.dtype => {
                Mask::Added(OperandRows::required(problem, operands, first)?)
            }
            Some(_) => Mask::AddedF32(OperandRows::required(problem, operands, first)?),
        };
        Ok(Rules {
            logits,
            mask,
            temperature: OperandRows::of(problem, operands, first + 1)?,
            sink: OperandRows::of(problem, operands, first + 2)?,
        })
    }
}

impl<'a, T: Dtype> Rules<'a, T> {
    fn row(&self, index: usize, width: usize) -> RowRules<'a, T> {
        let scale = T::Accumulator::from_f64(self.logits.scale);
        let seen = |queries: usize| (index % queries + width + 1).saturating_sub(queries);
        RowRules {
            factor: match &self.temperature {
                Some(values) => scale.div(first(values, index)),
                None => scale,
            },
            soft_cap: self.logits.soft_cap.map(T::Accumulator::from_f64),
            mask: match &self.mask {
                Mask::None => Mask::None,
                Mask::Added(rows) => Mask::Added(rows.row(index)),
                Mask::AddedF32(rows) => Mask::AddedF32(rows.row(index)),
                Mask::Kept(rows) => Mask::Kept(rows.row(index)),
            },
            visible: self.logits.queries.map_or(width, seen) as i64,
            hides: self.logits.queries.is_some() || !matches!(self.mask, Mask::None),
            sink: self.sink.as_ref().map(|values| first(values, index)),
        }
    }
}

/// The value of a row.
fn first<A: Float>(values: &OperandRows<'_, A>, row: usize) -> A {
    values.row(row).first().copied().unwrap_or(A::NAN)
}

/// How logits are made of one row.
struct RowRules<'a, T: Dtype> {
    factor: T::Accumulator,
    soft_cap: Option<T::Accumulator>,
    mask: Mask<&'a [T], &'a [f32], &'a [u8]>,
    visible: i64,
    hides: bool,
    sink: Option<T::Accumulator>,
}

impl<T: Dtype> RowRules<'_, T> {
    /// The logits of a tile; -inf where a key is hidden.
    #[inline(always)]
    fn logits<C: Context>(&self, ctx: C, x: &Tile<T::Accumulator>) -> [T::Accumulator; LANES] {
        let mut z = x.map(|x| x.mul(self.factor)).values();
        if let Some(cap) = self.soft_cap {
            for z in &mut z {
                *z = soft_capped(*z, cap).0;
            }
        }
        match self.mask {
            Mask::None => {}
            Mask::Added(mask) => {
                for (z, mask) in z.iter_mut().zip(beside(ctx, mask, x)) {
                    *z = z.add(mask);
                }
            }
            Mask::AddedF32(mask) => {
                for (z, mask) in z.iter_mut().zip(beside(ctx, mask, x)) {
                    *z = z.add(T::Accumulator::from_f64(mask.into()));
                }
            }
            Mask::Kept(mask) => {
                for (z, kept) in z.iter_mut().zip(beside(ctx, mask, x)) {
                    *z = if kept != 0 {
                        *z
                    } else {
                        T::Accumulator::LOWEST
                    };
                }
            }
        }
        if x.first() + LANES as i64 > self.visible {
            for (lane, z) in z.iter_mut().enumerate() {
                if x.position(lane) >= self.visible {
                    *z = T::Accumulator::LOWEST;
                }
            }
        }
        z
    }

    /// The derivative of a logit by the element that it is made of.
    #[inline(always)]
    fn slope(&self, x: T::Accumulator) -> T::Accumulator {
        match self.soft_cap {
            None => self.factor,
            Some(cap) => self.factor.mul(soft_capped(x.mul(self.factor), cap).1),
        }
    }

    /// Whether a key is hidden, given its logit; or a row, given its largest.
    #[inline(always)]
    fn is_hidden(&self, z: T::Accumulator) -> bool {
        self.hides && z == T::Accumulator::LOWEST
    }
}

/// Softmax of logits, or its logarithm.
pub(super) struct With<'a, T: Dtype> {
    pub rules: Rules<'a, T>,
    pub log: bool,
}

impl<T: Dtype> RowBody for With<'_, T> {
    type Element = T;
    type Output = T;
    const COST: usize = 20;

    fn output_width(&self, width: usize) -> usize {
        width
    }

    #[inline(always)]
    fn run<C: Context>(&self, row: &mut Row<'_, T, T>, ctx: C) {
        let rules = self.rules.row(row.index(), row.axis_size());
        let (max, mut logits) = stage_into(
            row,
            ctx,
            engine::Max::<T::Accumulator>::identity(),
            #[inline(always)]
            |max, x| {
                let logits = rules.logits(ctx, x);
                max.accumulate(&x.with(logits));
                logits
            },
        );
        let max = with_sink(pjoin(max, ctx).value(), rules.sink);
        let hidden = rules.is_hidden(max);
        let shift = if hidden { T::Accumulator::ZERO } else { max };
        let sum = reduce_into(
            &mut logits,
            ctx,
            engine::Sum::<T::Accumulator>::identity(),
            #[inline(always)]
            |sum, z| sum.accumulate(&z.map(|z| z.sub(shift).exp())),
        );
        let mut sum = pjoin(sum, ctx).value();
        if let Some(sink) = rules.sink {
            sum = sum.add(sink.sub(shift).exp());
        }
        if self.log {
            let log = if hidden {
                T::Accumulator::ZERO
            } else {
                sum.ln()
            };
            reduce(
                &mut logits,
                ctx,
                #[inline(always)]
                |z| z.map(|z| z.sub(shift).sub(log)).values(),
            );
        } else {
            let inverse = if hidden {
                T::Accumulator::ZERO
            } else {
                T::Accumulator::ONE.div(sum)
            };
            reduce(
                &mut logits,
                ctx,
                #[inline(always)]
                |z| z.map(|z| z.sub(shift).exp().mul(inverse)).values(),
            );
        }
    }
}

/// The larger of a row's largest logit and its sink; NaN if either is one.
fn with_sink<A: Float>(max: A, sink: Option<A>) -> A {
    match sink {
        Some(sink) if sink > max || sink.is_nan() => sink,
        _ => max,
    }
}

/// The gradient of [`With`], and for each row that of its sink.
struct WithGradient<'a, T: Dtype> {
    rules: Rules<'a, T>,
    gradient: OperandRows<'a, T>,
    sinks: Beside<'a, T::Accumulator>,
    log: bool,
    of_logits: bool,
}

impl<T: Dtype> RowBody for WithGradient<'_, T> {
    type Element = T;
    type Output = T;
    const COST: usize = 26;

    fn output_width(&self, width: usize) -> usize {
        width
    }

    #[inline(always)]
    fn run<C: Context>(&self, row: &mut Row<'_, T, T>, ctx: C) {
        let zero = T::Accumulator::ZERO;
        let rules = self.rules.row(row.index(), row.axis_size());
        let gradient = self.gradient.row(row.index());
        let (max, mut logits) = stage_into(
            row,
            ctx,
            engine::Max::<T::Accumulator>::identity(),
            #[inline(always)]
            |max, x| {
                let logits = rules.logits(ctx, x);
                max.accumulate(&x.with(logits));
                logits
            },
        );
        let max = with_sink(pjoin(max, ctx).value(), rules.sink);
        let hidden = rules.is_hidden(max);
        let shift = if hidden { zero } else { max };
        let states = (
            engine::Sum::<T::Accumulator>::identity(),
            engine::Sum::<T::Accumulator>::identity(),
        );
        let (sum, weighted) = reduce_into(
            &mut logits,
            ctx,
            states,
            #[inline(always)]
            |(sum, weighted), z| {
                let exps = z.map(|z| z.sub(shift).exp());
                sum.accumulate(&exps);
                let mut weights = beside(ctx, gradient, z);
                for ((weight, z), e) in weights.iter_mut().zip(z.values()).zip(exps.values()) {
                    let visible = if self.log { *weight } else { weight.mul(e) };
                    *weight = if rules.is_hidden(z) { zero } else { visible };
                }
                weighted.accumulate(&z.with(weights));
            },
        );
        let (mut sum, weighted) = (pjoin(sum, ctx).value(), pjoin(weighted, ctx).value());
        let of_sink = rules.sink.map(|sink| sink.sub(shift).exp());
        if let Some(of_sink) = of_sink {
            sum = sum.add(of_sink);
        }
        let inverse = if hidden {
            zero
        } else {
            T::Accumulator::ONE.div(sum)
        };
        let weight = if self.log {
            weighted
        } else {
            weighted.mul(inverse)
        };
        // SAFETY: asked for once in the run of this row.
        let sinks = unsafe { self.sinks.row(row) };
        if let Some(slot) = sinks.first_mut() {
            let p = of_sink.map_or(zero, |of_sink| of_sink.mul(inverse));
            slot.write(zero.sub(p.mul(weight)));
        }
        reduce(
            row,
            ctx,
            #[inline(always)]
            |x| {
                let z = rules.logits(ctx, x);
                let mut values = beside(ctx, gradient, x);
                for ((value, z), x) in values.iter_mut().zip(z).zip(x.values()) {
                    let p = z.sub(shift).exp().mul(inverse);
                    let dz = match self.log {
                        true => zero.sub(p).mul_add(weight, *value),
                        false => p.mul(value.sub(weight)),
                    };
                    let dx = if self.of_logits {
                        dz
                    } else {
                        dz.mul(rules.slope(x))
                    };
                    *value = if rules.is_hidden(z) { zero } else { dx };
                }
                values
            },
        );
    }
}

/// Runs [`WithGradient`]: its rows, and the gradients of the sinks.
pub(super) fn gradient_with<I: Isa, T: Dtype<Accumulator: WithDType>>(
    launch: &Launch<'_, I, T>,
    operands: &[Option<&CpuStorage>],
    log: bool,
    logits: Logits,
    of_logits: bool,
) -> Result<Vec<CpuStorage>> {
    let problem = launch.problem;
    let (dx, sinks) = beside::fill(problem, 1, |sinks| {
        launch.run(&WithGradient {
            rules: Rules::new(problem, operands, 1, logits)?,
            gradient: OperandRows::required(problem, operands, 0)?,
            sinks,
            log,
            of_logits,
        })
    })?;
    Ok(vec![dx, T::Accumulator::to_cpu_storage_owned(sinks)])
}
