//! Every op in f64, two-pass with compensated sums, and how far a good implementation may be from
//! it.
//!
//! Bounds are stated before the last rounding, in the unit roundoff `u` of the dtype that is
//! computed in (2^-24, for f64 inputs 2^-53), and are first-order:
//!
//! - Adding up n terms in a tree of depth `log2 n` costs `u * depth * sum |t|`. Eight are added to
//!   the depth for what real folds do at their leaves, where a lane adds a few elements one after
//!   the other; a sum in sequence over a long row (depth n) does not pass.
//! - exp is good to 2 ulp (4u), and its argument `x - m` to `u |x - m|` absolute, which is relative
//!   in the result. A fold that rescales its sums to a new maximum pays the same once more per
//!   level at most, which the factor of 2 on depth and argument covers.
//! - The finished value may be off by 4 ulp of the dtype that is computed in, for the few roundings
//!   of the formula itself.

use candle_core::DType;
use candle_rowwise::problem::Op;

use super::check::Expect;
use super::float;

/// A sum of f64s whose own error does not matter, and the sum of magnitudes.
#[derive(Default, Clone, Copy)]
pub struct Total {
    high: f64,
    low: f64,
    pub magnitude: f64,
}

impl Total {
    pub fn of(terms: impl IntoIterator<Item = f64>) -> Self {
        let mut total = Self::default();
        for t in terms {
            total.add(t);
        }
        total
    }

    /// Neumaier's compensated step.
    pub fn add(&mut self, t: f64) {
        let sum = self.high + t;
        self.low += if self.high.abs() >= t.abs() {
            (self.high - sum) + t
        } else {
            (t - sum) + self.high
        };
        self.high = sum;
        self.magnitude += t.abs();
    }

    pub fn value(&self) -> f64 {
        // With infinities among the terms the compensation is NaN, and the plain sum is right.
        if self.high.is_finite() {
            self.high + self.low
        } else {
            self.high
        }
    }
}

/// The units of roundoff that a sum of `n` terms may lose.
pub fn depth(n: usize) -> f64 {
    (n.max(1) as f64).log2().ceil() + 8.
}

/// What `op` makes of one row.
pub fn forward(op: Op, row: &[f64], sides: &[Vec<f64>], dtype: DType) -> Vec<Expect> {
    let wide = float::wide(dtype);
    let u = float::unit(wide);
    // The result, with the roundings of the formula itself added to the bound.
    let finish = |value: f64, bound: f64| Expect {
        value,
        bound: bound + 4. * float::ulp(wide, value),
    };
    match op {
        Op::Sum => {
            let total = Total::of(row.iter().copied());
            vec![finish(
                total.value(),
                depth(row.len()) * u * total.magnitude,
            )]
        }
        Op::Mean => {
            let (total, n) = (Total::of(row.iter().copied()), row.len() as f64);
            let error = depth(row.len()) * u * total.magnitude;
            vec![finish(total.value() / n, error / n)]
        }
        Op::Prod => {
            let value: f64 = row.iter().product();
            vec![finish(value, factors(row) * u * value.abs())]
        }
        Op::Max => vec![Expect::exactly(row[argmax(row)])],
        Op::Min => vec![Expect::exactly(row[argmin(row)])],
        Op::MinMax => [argmin(row), argmax(row)]
            .map(|i| Expect::exactly(row[i]))
            .to_vec(),
        Op::AbsMax => {
            let magnitudes: Vec<f64> = row.iter().map(|x| x.abs()).collect();
            vec![Expect::exactly(magnitudes[argmax(&magnitudes)])]
        }
        Op::ArgMax => vec![Expect::exactly(argmax(row) as f64)],
        Op::ArgMin => vec![Expect::exactly(argmin(row) as f64)],
        Op::Any => vec![Expect::exactly(row.iter().any(|x| *x != 0.).into())],
        Op::All => vec![Expect::exactly(row.iter().all(|x| *x != 0.).into())],
        Op::NormL1 => {
            let total = Total::of(row.iter().map(|x| x.abs()));
            let error = depth(row.len()) * u * total.magnitude;
            vec![finish(total.value(), error)]
        }
        Op::NormL2 => {
            let squares = Squares::new(row, u);
            let norm = squares.total.sqrt() / squares.scale;
            vec![finish(norm, norm * squares.error / 2.)]
        }
        Op::MeanOfSquares => {
            let squares = Squares::new(row, u);
            let mean = squares.total / row.len() as f64 / squares.scale / squares.scale;
            vec![finish(mean, mean * squares.error)]
        }
        Op::Var { correction } | Op::Std { correction } => {
            let spread = Spread::new(row, correction, u);
            vec![match op {
                Op::Var { .. } => {
                    let [var, error] =
                        [spread.var, spread.var_error].map(|v| v / spread.scale / spread.scale);
                    finish(var, error)
                }
                // sqrt(v + e) - sqrt(v) is below e / sqrt(v).
                _ => {
                    let std = spread.var.sqrt();
                    let error = if std == 0. {
                        0.
                    } else {
                        spread.var_error / std
                    };
                    finish(std / spread.scale, error / spread.scale)
                }
            }]
        }
        Op::LogSumExp => {
            let e = Exponentials::new(row, u);
            match e.special {
                Some(_) => vec![Expect::exactly(e.max)],
                // One element, or all others too small to count: nothing is computed.
                None if e.log_total == 0. => vec![Expect::exactly(e.max)],
                None => vec![finish(e.max + e.log_total, e.log_error)],
            }
        }
        Op::Softmax => {
            let e = Exponentials::new(row, u);
            row.iter()
                .map(|&x| match e.special {
                    Some(()) => Expect::exactly(f64::NAN),
                    None if x == f64::NEG_INFINITY => Expect::exactly(0.),
                    None => {
                        let p = e.probability(x);
                        finish(p, p * e.relative_error(x))
                    }
                })
                .collect()
        }
        Op::LogSoftmax => {
            let e = Exponentials::new(row, u);
            row.iter()
                .map(|&x| match e.special {
                    Some(()) => Expect::exactly(f64::NAN),
                    None if x == f64::NEG_INFINITY => Expect::exactly(x),
                    None => finish(
                        (x - e.max) - e.log_total,
                        e.log_error + u * (e.max - x).abs(),
                    ),
                })
                .collect()
        }
        Op::RmsNorm { eps } | Op::LayerNorm { eps } => {
            let constant = row[0].is_finite() && row.iter().all(|x| *x == row[0]);
            if matches!(op, Op::LayerNorm { .. }) && eps > 0. && constant {
                // Nothing is left of a constant row, whatever its mean rounds to.
                return sides[1].iter().map(|b| Expect::exactly(*b)).collect();
            }
            let hat = Hat::new(matches!(op, Op::LayerNorm { .. }), row, eps, u);
            (0..row.len())
                .map(|j| {
                    let scaled = hat.value[j] * sides[0][j];
                    let bias = sides.get(1).map_or(0., |b| b[j]);
                    let error = hat.error[j] * sides[0][j].abs() + 2. * u * scaled.abs();
                    finish(scaled + bias, error)
                })
                .collect()
        }
        Op::L2Normalize { eps } => {
            let squares = Squares::new(row, u);
            let norm = squares.total.sqrt() / squares.scale;
            // Not the larger of both as f64 has it: a NaN stays one.
            let is_short = norm < eps;
            let error = squares.error / 2. + 4. * u;
            row.iter()
                .map(|x| {
                    let value = match is_short {
                        true => x / eps,
                        false => x * squares.scale / squares.total.sqrt(),
                    };
                    let error = if value == 0. { 0. } else { error * value.abs() };
                    finish(value, error)
                })
                .collect()
        }
        _ => panic!("{}: no reference", op.name()),
    }
}

/// The first NaN, else the first of the largest.
pub fn argmax(row: &[f64]) -> usize {
    let mut best = 0;
    for (i, v) in row.iter().enumerate() {
        if v.is_nan() {
            return i;
        }
        if *v > row[best] {
            best = i;
        }
    }
    best
}

/// The first NaN, else the first of the smallest.
pub fn argmin(row: &[f64]) -> usize {
    let negated: Vec<f64> = row.iter().map(|x| -x).collect();
    argmax(&negated)
}

/// How many multiplications of the row's product may round: one by a power of two does not.
pub fn factors(row: &[f64]) -> f64 {
    let mantissa = |x: &f64| x.to_bits() << 12;
    row.iter().filter(|x| mantissa(x) != 0).count() as f64
}

/// A power of two that brings the largest magnitude near 1.
fn scale_of(row: &[f64]) -> f64 {
    let largest = row.iter().fold(0., |a: f64, x| a.max(x.abs()));
    if largest == 0. || !largest.is_finite() {
        return 1.;
    }
    (-largest.log2().floor().clamp(-1000., 1000.)).exp2()
}

/// The least magnitude of the dtype with this unit roundoff.
fn least(u: f64) -> f64 {
    let dtypes = [DType::F32, DType::F64];
    let dtype = dtypes.into_iter().find(|dtype| float::unit(*dtype) == u);
    float::ulp(dtype.expect("a dtype to compute in"), 0.)
}

/// The sum of the squares of a row times `scale`.
pub struct Squares {
    pub total: f64,
    pub scale: f64,
    /// Of the total, relative: each square is rounded once.
    pub error: f64,
}

impl Squares {
    pub fn new(row: &[f64], u: f64) -> Self {
        let scale = scale_of(row);
        let total = Total::of(row.iter().map(|x| (x * scale).powi(2)));
        Self {
            total: total.value(),
            scale,
            error: (depth(row.len()) + 1.) * u,
        }
    }
}

/// The variance of a row times `scale`.
pub struct Spread {
    pub scale: f64,
    /// NaN where nothing is left to divide by.
    pub var: f64,
    /// Of the variance, absolute.
    pub var_error: f64,
    /// What the sum of squares is divided by.
    pub degrees: f64,
    /// The deviations from the mean, times `scale`.
    pub deviations: Vec<f64>,
    /// Of each of them, absolute, beside the roundings of its own size.
    pub mean_error: f64,
}

impl Spread {
    pub fn new(row: &[f64], correction: usize, u: f64) -> Self {
        let (n, depth) = (row.len() as f64, depth(row.len()));
        let scale = scale_of(row);
        let degrees = match row.len().checked_sub(correction) {
            None | Some(0) => f64::NAN,
            Some(degrees) => degrees as f64,
        };
        let rows: Vec<f64> = row.iter().map(|x| x * scale).collect();
        let sum = Total::of(rows.iter().copied());
        let high = sum.value() / n;
        let low = Total::of(rows.iter().map(|x| x - high)).value() / n;
        let mut deviations: Vec<f64> = rows.iter().map(|x| (x - high) - low).collect();
        // Nothing is left of equal values, whatever their mean rounds to.
        let constant = row[0].is_finite() && row.iter().all(|x| *x == row[0]);
        if constant {
            deviations.fill(0.);
        }
        let var = Total::of(deviations.iter().map(|d| d * d)).value() / degrees;
        let residual = Total::of(deviations.iter().copied()).magnitude / n;
        // The rounded mean is off by this much, and the mean of the residuals corrects it but for
        // the error of their own sum.
        let shift = depth * u * sum.magnitude / n + u * high.abs();
        let mean_error = depth * u * (residual + shift);
        let around = n / degrees * (shift * shift + shift * mean_error);
        Self {
            scale,
            var,
            var_error: match constant {
                true => 0.,
                false => (depth + 4.) * u * (var + around) + 2. * n / degrees * shift * mean_error,
            },
            degrees,
            deviations,
            mean_error: if constant { 0. } else { mean_error },
        }
    }
}

/// A row under exp.
pub struct Exponentials {
    pub max: f64,
    pub total: f64,
    /// `log(total)`.
    pub log_total: f64,
    /// Relative error of `total`, and so the absolute one of its logarithm, and that of taking it.
    pub log_error: f64,
    total_error: f64,
    u: f64,
    /// The row has a NaN or a +inf, or nothing but -inf.
    pub special: Option<()>,
}

impl Exponentials {
    pub fn new(row: &[f64], u: f64) -> Self {
        let max = row[argmax(row)];
        let special = (!max.is_finite()).then_some(());
        // Where the others add less to 1 than f64 shows, ln_1p of them is still the logarithm.
        let first = argmax(row);
        let others = row.iter().enumerate().filter(|(i, _)| *i != first);
        let others = Total::of(others.map(|(_, x)| (x - max).exp())).value();
        let total = 1. + others;
        let weighted_distance = Total::of(row.iter().map(|x| {
            let e = (x - max).exp();
            if e == 0. {
                0.
            } else {
                e * (max - x)
            }
        }));
        let log_total = others.ln_1p();
        let total_error = u * (2. * depth(row.len()) + 4. + 2. * weighted_distance.value() / total);
        Self {
            max,
            total,
            log_total,
            total_error,
            log_error: total_error + 4. * u * log_total,
            u,
            special,
        }
    }

    pub fn probability(&self, x: f64) -> f64 {
        (x - self.max).exp() / self.total
    }

    /// Of the probability of `x`.
    pub fn relative_error(&self, x: f64) -> f64 {
        self.total_error + self.u * (6. + 2. * (self.max - x))
    }
}

/// A normalised row, before weight and bias.
pub struct Hat {
    pub value: Vec<f64>,
    /// Of each element, absolute.
    pub error: Vec<f64>,
    /// `1 / sqrt(mean square + eps)`.
    pub rstd: f64,
    /// Of `rstd`, relative.
    pub rstd_error: f64,
}

impl Hat {
    pub fn new(centred: bool, row: &[f64], eps: f64, u: f64) -> Self {
        let n = row.len() as f64;
        let depth = depth(row.len());
        // Squares that f64 cannot hold either; tiny ones are nothing beside eps.
        let scale = match eps > 0. {
            true => scale_of(row).min(1.),
            false => scale_of(row),
        };
        let eps = eps * scale * scale;
        let scaled: Vec<f64> = row.iter().map(|x| x * scale).collect();
        let sum = Total::of(scaled.iter().copied());
        let (high, low) = if centred {
            // The second pass leaves what the f64 mean itself has lost.
            let high = sum.value() / n;
            let low = Total::of(scaled.iter().map(|x| x - high)).value() / n;
            (high, low)
        } else {
            (0., 0.)
        };
        let rows: Vec<f64> = scaled.iter().map(|x| (x - high) - low).collect();
        let square = Total::of(rows.iter().map(|c| c * c)).value() / n;
        let root = 1. / (square + eps).sqrt();
        let rstd_error = u * (depth / 2. + 4.);
        // The mean, corrected by the mean of the residuals: what is left of its error is that of
        // the second sum, of terms as small as the residuals and the first sum's error.
        let mean_error = if centred {
            let residual = Total::of(rows.iter().copied()).magnitude / n;
            // A mean of subnormals is off by as much as they are apart. Without eps such rows have to be
            // scaled anyway.
            let underflow = match eps > 0. {
                true => least(u),
                false => 0.,
            };
            depth * u * residual + (depth * u).powi(2) * sum.magnitude / n + underflow
        } else {
            0.
        };
        Self {
            error: rows
                .iter()
                .map(|c| match square.is_finite() {
                    true => root * (c.abs() * (rstd_error + 2. * u) + mean_error),
                    // Of infinities everything is exactly 0 or NaN.
                    false => 0.,
                })
                .collect(),
            value: rows.iter().map(|c| c * root).collect(),
            rstd: root * scale,
            rstd_error,
        }
    }
}

#[test]
fn the_reference_is_right_where_the_answer_is_known() {
    let one = |op, row: &[f64]| forward(op, row, &[vec![1.; 4], vec![0.; 4]], DType::F64)[0].value;
    assert_eq!(one(Op::Sum, &[1e100, 1., -1e100, 1.]), 2.);
    assert_eq!(one(Op::Max, &[1., f64::NEG_INFINITY, 3.]), 3.);
    assert_eq!(one(Op::ArgMax, &[1., f64::NAN, 3., f64::NAN]), 1.);
    assert_eq!(one(Op::ArgMax, &[-0., 0.]), 0.);
    assert_eq!(one(Op::Mean, &[1e100, 1., -1e100, 1.]), 0.5);
    assert_eq!(one(Op::Prod, &[3., -2., 0.5]), -3.);
    assert_eq!(one(Op::Min, &[1., f64::INFINITY, -3.]), -3.);
    assert_eq!(one(Op::AbsMax, &[1., -3.]), 3.);
    assert!(one(Op::AbsMax, &[1., f64::NAN]).is_nan());
    assert_eq!(one(Op::ArgMin, &[1., -3., -3.]), 1.);
    assert_eq!(one(Op::Any, &[0., -0.]), 0.);
    assert_eq!(one(Op::Any, &[0., f64::NAN]), 1.);
    assert_eq!(one(Op::All, &[1., f64::NAN]), 1.);
    assert_eq!(one(Op::NormL1, &[1., -3.]), 4.);
    assert_eq!(one(Op::NormL2, &[3e300, -4e300]), 5e300);
    assert_eq!(one(Op::NormL2, &[3e-320, -4e-320]), 5e-320);
    assert_eq!(one(Op::MeanOfSquares, &[1., -7.]), 25.);
    assert_eq!(one(Op::Var { correction: 0 }, &[1e9, 1e9 + 2.]), 1.);
    assert_eq!(one(Op::Var { correction: 1 }, &[1e9, 1e9 + 2.]), 2.);
    assert_eq!(one(Op::Std { correction: 0 }, &[1e300, 3e300]), 1e300);
    assert_eq!(one(Op::Std { correction: 0 }, &[0.1; 7]), 0.);
    assert!(one(Op::Std { correction: 1 }, &[0.1]).is_nan());
    assert_eq!(one(Op::LogSumExp, &[0., 0.]), std::f64::consts::LN_2);
    assert_eq!(one(Op::Softmax, &[5., 5., 5., 5.]), 0.25);
    assert_eq!(one(Op::LogSoftmax, &[5., f64::NEG_INFINITY]), 0.);
    assert_eq!(one(Op::RmsNorm { eps: 0. }, &[3., -3., 3., 3.]), 1.);
    assert_eq!(one(Op::LayerNorm { eps: 0. }, &[9., 7., 9., 7.]), 1.);
}
