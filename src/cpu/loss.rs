//! Cross-entropy: the loss of a row, and its gradient with respect to the row's logits.
//!
//! The formulas are in `ops/loss.rs`. A row whose target does not count is not read.

use candle_core::{CpuStorage, DType, Result, WithDType};

use super::beside::{self, Beside};
use super::soft_cap::soft_capped;
use super::{fold, planes, Canonical, Dtype, Launch, OperandRows};
use crate::engine::isa::Isa;
use crate::engine::{
    self, load, once, reduce, Context, Float, Number, ReduceOp, Row, RowBody, Tile, LANES,
};
use crate::problem::{CrossEntropy, Op, Problem};

/// The targets as they are stored.
enum Targets<'a> {
    Words(OperandRows<'a, u32>),
    Longs(OperandRows<'a, i64>),
}

/// The target of a row.
struct Target<A> {
    index: i64,
    ignored: bool,
    /// It is a class, and not ignored.
    counts: bool,
    /// Of that class.
    weight: A,
}

/// What a walk over a row leaves.
struct Folded<A> {
    max: A,
    /// Of exponentials relative to the maximum.
    sum: A,
    /// The weighted distances of all logits from the target's; 0 without smoothing.
    distances: A,
}

/// What the bodies know of the loss.
struct Loss<'a, A> {
    targets: Targets<'a>,
    /// Of classes; `None` where all are 1.
    weights: Option<&'a [A]>,
    weight_total: A,
    classes: usize,
    ignore_index: Option<i64>,
    keep: A,
    smooth: A,
    z_loss: A,
    cap: Option<A>,
}

impl<'a, A: Float + WithDType> Loss<'a, A> {
    fn of(
        problem: &Problem,
        operands: &[Option<&'a CpuStorage>],
        options: &CrossEntropy,
        classes: usize,
        has_weight_sum: bool,
    ) -> Result<Self> {
        let missing = |what: &str| {
            candle_core::Error::Msg(format!(
                "{}: {what} missing (input of shape {:?})",
                problem.op.name(),
                problem.shape
            ))
        };
        let dtype = problem.operands[0].map(|view| view.dtype);
        let targets = match dtype {
            Some(DType::I64) => OperandRows::of(problem, operands, 0)?.map(Targets::Longs),
            _ => OperandRows::of(problem, operands, 0)?.map(Targets::Words),
        };
        let weights = OperandRows::<A>::of(problem, operands, 1)?;
        let weight_sum = match has_weight_sum {
            true => OperandRows::<A>::of(problem, operands, 2)?,
            false => None,
        };
        let number = <A as Float>::from_f64;
        Ok(Loss {
            targets: targets.ok_or_else(|| missing("targets"))?,
            weights: weights.map(|weights| weights.row(0)),
            weight_total: weight_sum
                .and_then(|sum| sum.row(0).first().copied())
                .unwrap_or(number(classes as f64)),
            classes,
            ignore_index: options.ignore_index,
            keep: number(1.0 - options.label_smoothing),
            smooth: number(options.label_smoothing / classes as f64),
            z_loss: number(options.z_loss),
            cap: options.soft_cap.map(number),
        })
    }
}

impl<A: Float> Loss<'_, A> {
    fn target(&self, row: usize) -> Target<A> {
        let index = match &self.targets {
            Targets::Words(rows) => rows.row(row).first().map(|target| i64::from(*target)),
            Targets::Longs(rows) => rows.row(row).first().copied(),
        };
        let index = index.unwrap_or(-1);
        let ignored = self.ignore_index == Some(index);
        let class = usize::try_from(index)
            .ok()
            .filter(|class| !ignored && *class < self.classes);
        let weight = class.map(|class| match self.weights {
            Some(weights) => weights.get(class).copied().unwrap_or(A::NAN),
            None => A::ONE,
        });
        Target {
            index,
            ignored,
            counts: class.is_some(),
            weight: weight.unwrap_or(A::ZERO),
        }
    }

    /// The logits of a tile as the soft cap makes them.
    #[inline(always)]
    fn capped(&self, x: &Tile<A>) -> Tile<A> {
        match self.cap {
            None => *x,
            Some(cap) => x.map(
                #[inline(always)]
                |x| soft_capped(x, cap).0,
            ),
        }
    }

    /// What distances of logits are summed from: rows of a large magnitude keep the digits in which their
    /// elements differ.
    fn origin(target_logit: A) -> A {
        if target_logit.abs() <= A::LARGEST {
            target_logit
        } else {
            A::ZERO
        }
    }

    #[inline(always)]
    fn fold<T, U, C>(&self, row: &mut Row<'_, T, U>, ctx: C, target_logit: A) -> Folded<A>
    where
        T: Dtype<Accumulator = A>,
        U: Copy + Default + Send,
        C: Context,
        A: engine::Element<Acc = A>,
    {
        let max = fold(
            row,
            ctx,
            engine::Max::<A>::identity(),
            #[inline(always)]
            |x| self.capped(x),
        )
        .value();
        let origin = Self::origin(target_logit);
        let sums = engine::reduce_into(
            row,
            ctx,
            (engine::Sum::<A>::identity(), engine::Sum::<A>::identity()),
            #[inline(always)]
            |(sum, distances): &mut (engine::Sum<A>, engine::Sum<A>), x| {
                let z = self.capped(x);
                sum.accumulate(&z.map(|z| z.sub(max).exp()));
                if self.smooth != A::ZERO {
                    let weights = self.weights_at(ctx, x);
                    let mut terms = z.map(|z| z.sub(origin)).values();
                    for (term, weight) in terms.iter_mut().zip(weights) {
                        // A class without weight takes no part, not even with -inf.
                        *term = if weight == A::ZERO {
                            A::ZERO
                        } else {
                            term.mul(weight)
                        };
                    }
                    distances.accumulate(&z.with(terms));
                }
            },
        );
        Folded {
            max,
            sum: engine::pjoin(sums.0, ctx).value(),
            distances: engine::pjoin(sums.1, ctx).value(),
        }
    }

    /// The weights of the classes of a tile.
    #[inline(always)]
    fn weights_at<C: Context>(&self, ctx: C, tile: &Tile<A>) -> [A; LANES]
    where
        A: engine::Element<Acc = A>,
    {
        match self.weights {
            Some(weights) => load(ctx, weights, tile),
            None => [A::ONE; LANES],
        }
    }

    fn loss(&self, target: &Target<A>, target_logit: A, folded: &Folded<A>) -> A {
        let log_sum = folded.sum.ln();
        let hot = self.keep.mul(target.weight);
        // Without weight, an infinite distance does not count; a NaN does.
        let mut loss = if hot == A::ZERO {
            folded.sum.sub(folded.sum)
        } else {
            hot.mul(folded.max.sub(target_logit).add(log_sum))
        };
        if self.smooth != A::ZERO {
            let distance = folded.max.sub(Self::origin(target_logit)).add(log_sum);
            let all = self
                .weight_total
                .mul_add(distance, A::ZERO.sub(folded.distances));
            loss = loss.add(self.smooth.mul(all));
        }
        if self.z_loss != A::ZERO {
            let lse = folded.max.add(log_sum);
            loss = loss.add(self.z_loss.mul(lse).mul(lse));
        }
        loss
    }

    /// What the loss of a row is that does not count: 0 of an ignored one.
    fn uncounted(target: &Target<A>) -> A {
        if target.ignored {
            A::ZERO
        } else {
            A::NAN
        }
    }

    /// What `exp(z - max)` is multiplied with for the part of the gradient that goes with the
    /// probabilities.
    fn factor(&self, target: &Target<A>, folded: &Folded<A>) -> A {
        let mut all = (self.keep).mul_add(target.weight, self.smooth.mul(self.weight_total));
        if self.z_loss != A::ZERO {
            let lse = folded.max.add(folded.sum.ln());
            all = all.add(A::from_f64(2.0).mul(self.z_loss).mul(lse));
        }
        all.div(folded.sum)
    }

    /// The target's logit.
    fn target_logit<T, C>(&self, ctx: C, logit: T) -> A
    where
        T: Dtype<Accumulator = A>,
        C: Context,
    {
        let place = Tile::<A>::new([A::ZERO; LANES], 0, 1);
        let wide = Tile::new(load(ctx, &[logit], &place), 0, 1);
        let [capped, ..] = self.capped(&wide).values();
        capped
    }
}

/// The loss of each row, with what its gradient can be computed from in one walk: the largest logit, and
/// the factor of the exponentials relative to it.
struct Losses<'a, T: Dtype> {
    loss: Loss<'a, T::Accumulator>,
    /// Where rows begin.
    x: &'a (dyn Fn(usize, i64) -> Option<T> + Sync),
    statistics: Beside<'a, T::Accumulator>,
}

impl<T: Dtype> RowBody for Losses<'_, T> {
    type Element = T;
    type Output = T::Accumulator;
    const COST: usize = 10;

    fn output_width(&self, _: usize) -> usize {
        1
    }

    #[inline(always)]
    fn run<C: Context>(&self, row: &mut Row<'_, T, T::Accumulator>, ctx: C) {
        let target = self.loss.target(row.index());
        let logit = (self.x)(row.index(), target.index).filter(|_| target.counts);
        let (loss, statistics) = match logit {
            None => {
                let zero = T::Accumulator::ZERO;
                (Loss::<T::Accumulator>::uncounted(&target), [zero, zero])
            }
            Some(logit) => {
                let logit = self.loss.target_logit(ctx, logit);
                let folded = self.loss.fold(row, ctx, logit);
                (
                    self.loss.loss(&target, logit, &folded),
                    [folded.max, self.loss.factor(&target, &folded)],
                )
            }
        };
        // SAFETY: once for this row.
        let places = unsafe { self.statistics.row(row) };
        for (place, value) in places.iter_mut().zip(statistics) {
            place.write(value);
        }
        once(row, ctx, || [loss.canonical()]);
    }
}

/// Where the gradient gets a row's maximum and factor from.
enum Statistics<'a, T: Dtype> {
    /// From the row; the loss is written on the way.
    Row {
        x: &'a (dyn Fn(usize, i64) -> Option<T> + Sync),
        losses: Beside<'a, T::Accumulator>,
    },
    /// From what [`Losses`] has left.
    Left {
        maxima: OperandRows<'a, T::Accumulator>,
        factors: OperandRows<'a, T::Accumulator>,
    },
}

/// The gradient with respect to the logits, times a number for each row. That of a row that is ignored is
/// 0 whatever it is multiplied with; that of a row whose target is no class is NaN.
struct Gradient<'a, T: Dtype> {
    loss: Loss<'a, T::Accumulator>,
    statistics: Statistics<'a, T>,
    /// `None`: 1.
    scales: Option<OperandRows<'a, T::Accumulator>>,
}

impl<T: Dtype> RowBody for Gradient<'_, T> {
    type Element = T;
    type Output = T;
    const COST: usize = 16;

    fn output_width(&self, width: usize) -> usize {
        width
    }

    #[inline(always)]
    fn run<C: Context>(&self, row: &mut Row<'_, T, T>, ctx: C) {
        let loss = &self.loss;
        let target = loss.target(row.index());
        let nothing = Loss::<T::Accumulator>::uncounted(&target);
        let first = |rows: &OperandRows<'_, T::Accumulator>| {
            rows.row(row.index()).first().copied().unwrap_or(Float::NAN)
        };
        let scale = self.scales.as_ref().map_or(T::Accumulator::ONE, first);
        let (max, factor) = match &self.statistics {
            Statistics::Left { maxima, factors } => (first(maxima), first(factors)),
            Statistics::Row { x, losses } => {
                let logit = x(row.index(), target.index).filter(|_| target.counts);
                let (value, max, factor) = match logit {
                    None => (nothing, nothing, nothing),
                    Some(logit) => {
                        let logit = loss.target_logit(ctx, logit);
                        let folded = loss.fold(row, ctx, logit);
                        (
                            loss.loss(&target, logit, &folded),
                            folded.max,
                            loss.factor(&target, &folded),
                        )
                    }
                };
                // SAFETY: once for this row.
                if let [place] = unsafe { losses.row(row) } {
                    place.write(value.canonical());
                }
                (max, factor)
            }
        };
        if !target.counts {
            reduce(row, ctx, |_| [nothing; LANES]);
            return;
        }
        let factor = factor.mul(scale);
        let smooth = loss.smooth.mul(scale);
        let hot = loss.keep.mul(target.weight).mul(scale);
        reduce(
            row,
            ctx,
            #[inline(always)]
            |x| {
                let mut expected = [smooth; LANES];
                if loss.smooth != T::Accumulator::ZERO {
                    expected = loss.weights_at(ctx, x);
                    for weight in &mut expected {
                        *weight = weight.mul(smooth);
                    }
                }
                let place = usize::try_from(target.index - x.first());
                if let Some(place) = place.ok().and_then(|place| expected.get_mut(place)) {
                    *place = place.add(hot);
                }
                let gradient = |z: T::Accumulator, expected: T::Accumulator| {
                    let exp = z.sub(max).exp();
                    exp.mul_add(factor, T::Accumulator::ZERO.sub(expected))
                };
                match loss.cap {
                    None => x.zip(&expected, gradient),
                    Some(cap) => x.zip(
                        &expected,
                        #[inline(always)]
                        |x, expected| {
                            let (z, slope) = soft_capped(x, cap);
                            gradient(z, expected).mul(slope)
                        },
                    ),
                }
            },
        );
    }
}

/// The weight of each row's target; 0 where it does not count.
struct TargetWeights<'a, T: Dtype> {
    loss: Loss<'a, T::Accumulator>,
}

impl<T: Dtype> RowBody for TargetWeights<'_, T> {
    type Element = T;
    type Output = T::Accumulator;
    const COST: usize = 4;

    fn output_width(&self, _: usize) -> usize {
        1
    }

    #[inline(always)]
    fn run<C: Context>(&self, row: &mut Row<'_, T, T::Accumulator>, ctx: C) {
        let target = self.loss.target(row.index());
        once(row, ctx, || [target.weight]);
    }
}

/// Runs one of the losses.
pub(super) fn run<I: Isa, T>(
    isa: I,
    problem: &Problem,
    x: &[T],
    operands: &[Option<&CpuStorage>],
) -> Result<Vec<CpuStorage>>
where
    T: Dtype<Accumulator: WithDType>,
{
    match problem.op {
        Op::CrossEntropy(options)
        | Op::CrossEntropyWithGradient(options)
        | Op::CrossEntropyGradient(options) => run_loss(isa, problem, x, operands, &options),
        Op::TargetWeights {
            classes,
            ignore_index,
        } => {
            let options = CrossEntropy {
                ignore_index,
                label_smoothing: 0.0,
                z_loss: 0.0,
                soft_cap: None,
            };
            let body = TargetWeights {
                loss: Loss::of(problem, operands, &options, classes, false)?,
            };
            Ok(vec![
                Launch::new(isa, problem, x)?.run::<TargetWeights<'_, T>>(&body)?
            ])
        }
        _ => Err(super::unsupported(problem)),
    }
}

fn run_loss<I: Isa, T>(
    isa: I,
    problem: &Problem,
    x: &[T],
    operands: &[Option<&CpuStorage>],
    options: &CrossEntropy,
) -> Result<Vec<CpuStorage>>
where
    T: Dtype<Accumulator: WithDType>,
{
    let launch = Launch::new(isa, problem, x)?;
    let from_left = matches!(problem.op, Op::CrossEntropyGradient(_));
    let loss = Loss::<_>::of(problem, operands, options, problem.width, !from_left)?;
    let numbers = |i| OperandRows::<T::Accumulator>::of(problem, operands, i);
    let logit = |row, class: i64| {
        let class = usize::try_from(class).ok()?;
        x.get(problem.input.start(row) + class).copied()
    };
    match problem.op {
        Op::CrossEntropy(_) => {
            let (storage, pairs) = beside::fill(problem, 2, |statistics| {
                launch.run(&Losses::<T> {
                    loss,
                    x: &logit,
                    statistics,
                })
            })?;
            let pairs = T::Accumulator::to_cpu_storage_owned(planes(&pairs));
            Ok(vec![storage, pairs])
        }
        Op::CrossEntropyGradient(_) => {
            let (Some(maxima), Some(factors)) = (numbers(3)?, numbers(4)?) else {
                candle_core::bail!("{}: no statistics", problem.op.name())
            };
            let body = Gradient::<T> {
                loss,
                statistics: Statistics::Left { maxima, factors },
                scales: numbers(2)?,
            };
            Ok(vec![launch.run(&body)?])
        }
        _ => {
            let scales = numbers(3)?;
            let (storage, losses) = beside::fill(problem, 1, |losses| {
                launch.run(&Gradient::<T> {
                    loss,
                    statistics: Statistics::Row { x: &logit, losses },
                    scales,
                })
            })?;
            let losses = T::Accumulator::to_cpu_storage_owned(losses);
            Ok(vec![storage, losses])
        }
    }
}
