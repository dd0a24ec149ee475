//! Every gradient in f64, and how far a good implementation may be from it: the terms of
//! `reference`, carried through the formulas.

use candle_core::DType;
use candle_rowwise::problem::Op;

use super::check::Expect;
use super::float;
use super::reference::{argmax, argmin, depth, factors, Exponentials, Hat, Spread, Squares, Total};

/// The gradients of a whole tensor.
pub struct Gradients {
    pub dx: Vec<Expect>,
    pub sides: Vec<Vec<Expect>>,
}

/// The gradients of `op` on rows of `width`, given that of the result.
pub fn gradients(
    op: Op,
    x: &[f64],
    width: usize,
    sides: &[Vec<f64>],
    grad: &[f64],
    dtype: DType,
) -> Gradients {
    let wide = float::wide(dtype);
    let u = float::unit(wide);
    let rows = x.len() / width;
    let per_row = grad.len() / rows;
    let mut dx = Vec::with_capacity(x.len());
    let mut totals = vec![vec![(Total::default(), 0.); width]; sides.len()];
    for (row, g) in x.chunks(width).zip(grad.chunks(per_row)) {
        dx.extend(input_gradient(op, row, sides, g, u));
        if let Op::RmsNorm { eps } | Op::LayerNorm { eps } = op {
            let hat = Hat::new(sides.len() == 2, row, eps, u);
            for j in 0..width {
                totals[0][j].0.add(g[j] * hat.value[j]);
                totals[0][j].1 += g[j].abs() * hat.error[j];
                if sides.len() == 2 {
                    totals[1][j].0.add(g[j]);
                }
            }
        }
    }
    let finish = |e: Expect| Expect {
        bound: e.bound + 4. * float::ulp(wide, e.value),
        ..e
    };
    let over_rows = |(total, error): (Total, f64)| {
        finish(Expect {
            value: total.value(),
            bound: error + depth(rows) * u * total.magnitude,
        })
    };
    Gradients {
        dx: dx.into_iter().map(finish).collect(),
        sides: totals
            .into_iter()
            .map(|side| side.into_iter().map(over_rows).collect())
            .collect(),
    }
}

/// dx of one row, with the error of all but the last few roundings.
fn input_gradient(op: Op, row: &[f64], sides: &[Vec<f64>], g: &[f64], u: f64) -> Vec<Expect> {
    let n = row.len();
    let fold = depth(n) * u;
    match op {
        Op::Sum => vec![Expect::exactly(g[0]); n],
        Op::Mean => vec![Expect::exactly(g[0] / n as f64); n],
        Op::Prod => {
            // Products of what is before and of what is behind an element.
            let mut before = vec![1.; n + 1];
            let mut behind = vec![1.; n + 1];
            for i in 0..n {
                before[i + 1] = before[i] * row[i];
                behind[n - 1 - i] = behind[n - i] * row[n - 1 - i];
            }
            (0..n)
                .map(|i| relative(g[0] * (before[i] * behind[i + 1]), (factors(row) + 1.) * u))
                .collect()
        }
        Op::Max => share(row, row[argmax(row)], g[0]),
        Op::Min => share(row, row[argmin(row)], g[0]),
        Op::MinMax => {
            let min = share(row, row[argmin(row)], g[0]);
            let max = share(row, row[argmax(row)], g[1]);
            let both = min.iter().zip(max);
            // Both shares are rounded, and where all are equal may cancel.
            both.map(|(a, b)| Expect {
                value: a.value + b.value,
                bound: match a.value == 0. || b.value == 0. {
                    true => 0.,
                    false => u * (a.value.abs() + b.value.abs()),
                },
            })
            .collect()
        }
        Op::AbsMax => {
            let magnitudes: Vec<f64> = row.iter().map(|x| x.abs()).collect();
            let shares = share(&magnitudes, magnitudes[argmax(&magnitudes)], g[0]);
            let signed = row.iter().zip(shares);
            signed
                .map(|(x, e)| Expect::exactly(e.value * sign(*x)))
                .collect()
        }
        Op::NormL1 => row
            .iter()
            .map(|x| Expect::exactly(g[0] * sign(*x)))
            .collect(),
        Op::NormL2 => {
            let squares = Squares::new(row, u);
            let norm = squares.total.sqrt();
            row.iter()
                .map(|x| match norm == 0. {
                    true => Expect::exactly(0.),
                    false => relative(x * squares.scale / norm * g[0], squares.error / 2. + 6. * u),
                })
                .collect()
        }
        Op::MeanOfSquares => row
            .iter()
            .map(|x| relative(2. * x / n as f64 * g[0], 4. * u))
            .collect(),
        Op::Var { correction } => {
            let spread = Spread::new(row, correction, u);
            let slope = 2. * g[0] / spread.degrees;
            spread
                .deviations
                .iter()
                .map(|d| Expect {
                    value: slope * d / spread.scale,
                    bound: slope.abs() * (6. * u * d.abs() + spread.mean_error) / spread.scale,
                })
                .collect()
        }
        Op::Std { correction } => {
            let spread = Spread::new(row, correction, u);
            let squares = Squares::new(&spread.deviations, u);
            let norm = squares.total.sqrt() / squares.scale;
            let slope = g[0] / spread.degrees.sqrt();
            let norm_error =
                squares.error / 2. + 8. * u + spread.mean_error * (n as f64).sqrt() / norm;
            spread
                .deviations
                .iter()
                .map(|d| match norm == 0. && !slope.is_nan() {
                    true => Expect::exactly(0.),
                    false => Expect {
                        value: slope * (d / norm),
                        bound: slope.abs() * (d.abs() * norm_error + spread.mean_error) / norm,
                    },
                })
                .collect()
        }
        Op::LogSumExp => {
            let e = Exponentials::new(row, u);
            row.iter()
                .map(|&x| match e.special {
                    Some(()) if e.max == f64::NEG_INFINITY => Expect::exactly(0.),
                    Some(()) => Expect::exactly(f64::NAN),
                    None => {
                        let value = e.probability(x) * g[0];
                        relative(value, e.relative_error(x))
                    }
                })
                .collect()
        }
        Op::Softmax => {
            let e = Exponentials::new(row, u);
            let terms = row.iter().zip(g).map(|(x, g)| e.probability(*x) * g);
            let dot = Total::of(terms);
            let dot_error = Total::of(row.iter().zip(g).map(|(&x, g)| {
                let p = e.probability(x);
                if p == 0. {
                    0.
                } else {
                    p * g.abs() * e.relative_error(x)
                }
            }));
            row.iter()
                .zip(g)
                .map(|(&x, g)| {
                    let p = e.probability(x);
                    if p == 0. {
                        return Expect::exactly(0.);
                    }
                    let difference = g - dot.value();
                    Expect {
                        value: p * difference,
                        bound: p * difference.abs() * e.relative_error(x)
                            + p * (fold * dot.magnitude
                                + dot_error.value()
                                + u * (g.abs() + dot.value().abs())),
                    }
                })
                .collect()
        }
        Op::LogSoftmax => {
            let e = Exponentials::new(row, u);
            let total = Total::of(g.iter().copied());
            row.iter()
                .zip(g)
                .map(|(&x, g)| {
                    let p = e.probability(x);
                    if p == 0. {
                        return Expect::exactly(*g);
                    }
                    let part = relative(p * total.value(), e.relative_error(x) + u);
                    Expect {
                        value: g - part.value,
                        bound: part.bound + p * fold * total.magnitude,
                    }
                })
                .collect()
        }
        Op::RmsNorm { eps } => {
            let hat = Hat::new(false, row, eps, u);
            let t: Vec<f64> = g.iter().zip(&sides[0]).map(|(g, w)| g * w).collect();
            let errors: Vec<f64> = t.iter().map(|t| 2. * u * t.abs()).collect();
            project(&hat, &t, &errors, fold, u)
        }
        Op::LayerNorm { eps } => {
            let hat = Hat::new(true, row, eps, u);
            let t: Vec<f64> = g.iter().zip(&sides[0]).map(|(g, w)| g * w).collect();
            let total = Total::of(t.iter().copied());
            let mean = total.value() / n as f64;
            let mean_error = fold * total.magnitude / n as f64;
            let errors: Vec<f64> = t
                .iter()
                .map(|t| 2. * u * (t.abs() + mean.abs()) + mean_error)
                .collect();
            let t: Vec<f64> = t.iter().map(|t| t - mean).collect();
            project(&hat, &t, &errors, fold, u)
        }
        _ => panic!("{}: no gradient", op.name()),
    }
}

/// The gradient of the value at an end of the row: shared among those that have it.
fn share(row: &[f64], end: f64, g: f64) -> Vec<Expect> {
    let is_tie = |x: f64| x == end || (x.is_nan() && end.is_nan());
    let ties = row.iter().filter(|x| is_tie(**x)).count() as f64;
    row.iter()
        .map(|&x| Expect::exactly(if is_tie(x) { g / ties } else { 0. }))
        .collect()
}

/// 0 of zeros, NaN of a NaN.
fn sign(x: f64) -> f64 {
    if x == 0. {
        0.
    } else {
        x.signum()
    }
}

fn relative(value: f64, error: f64) -> Expect {
    Expect {
        value,
        bound: if value == 0. { 0. } else { value.abs() * error },
    }
}

/// `rstd * (t - hat * mean(hat * t))`.
fn project(hat: &Hat, t: &[f64], t_errors: &[f64], fold: f64, u: f64) -> Vec<Expect> {
    let n = t.len() as f64;
    let along = Total::of(hat.value.iter().zip(t).map(|(h, t)| h * t));
    let mean = along.value() / n;
    let mean_error = (fold * along.magnitude
        + (0..t.len())
            .map(|j| hat.error[j] * t[j].abs() + hat.value[j].abs() * t_errors[j])
            .sum::<f64>())
        / n;
    (0..t.len())
        .map(|j| {
            let h = hat.value[j];
            let difference = t[j] - h * mean;
            let error = t_errors[j]
                + hat.error[j] * mean.abs()
                + h.abs() * mean_error
                + 3. * u * (h * mean).abs();
            Expect {
                value: hat.rstd * difference,
                bound: hat.rstd * (error + difference.abs() * (hat.rstd_error + 2. * u)),
            }
        })
        .collect()
}

/// The oracle itself against central differences of the forward reference.
#[test]
fn the_gradients_are_those_of_the_reference() {
    use super::data::normal;
    use super::reference::forward;
    let (rows, width, step) = (3, 7, 1e-5);
    let x = normal(1, rows * width);
    let sides = [normal(2, width), normal(3, width)];
    for op in Op::ALL {
        if !op.has_derivative() {
            continue;
        }
        let sides = match op {
            Op::RmsNorm { .. } => &sides[..1],
            _ => &sides[..op.operands().len()],
        };
        let run = |x: &[f64], sides: &[Vec<f64>]| -> Vec<f64> {
            x.chunks(width)
                .flat_map(|row| forward(op, row, sides, DType::F64))
                .map(|e| e.value)
                .collect()
        };
        let g = normal(4, run(&x, sides).len());
        let loss = |x: &[f64], sides: &[Vec<f64>]| -> f64 {
            run(x, sides).iter().zip(&g).map(|(y, g)| y * g).sum()
        };
        let close = |what: &str, expected: f64, plus: f64, minus: f64| {
            let slope = (plus - minus) / (2. * step);
            let error = (slope - expected).abs();
            assert!(
                error < 1e-8 * (1. + slope.abs()),
                "{} d{what}: {expected} is not {slope}",
                op.name()
            );
        };
        let got = gradients(op, &x, width, sides, &g, DType::F64);
        for i in 0..x.len() {
            let moved = |by: f64| {
                let mut x = x.clone();
                x[i] += by;
                loss(&x, sides)
            };
            close("x", got.dx[i].value, moved(step), moved(-step));
        }
        for s in 0..sides.len() {
            for j in 0..width {
                let moved = |by: f64| {
                    let mut sides = sides.to_vec();
                    sides[s][j] += by;
                    loss(&x, &sides)
                };
                close("side", got.sides[s][j].value, moved(step), moved(-step));
            }
        }
    }
}
