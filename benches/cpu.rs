//! Our CPU ops beside candle's own: `cargo bench --bench cpu [-- FILTER]`.
//!
//! End-to-end time of one call, allocation of the result included, as a model pays it: the fastest
//! of at least 9 calls of each, ours and candle's in turn, so that noise of a shared machine, which
//! only ever adds time, counts as little as it can.
//! Both results are compared with an f64 reference, ours must be within tolerance. Speed in GB/s
//! counts each input element read once and each output element written once.

use std::time::Instant;

use candle_core::{DType, Device, Result, Tensor, D};
use candle_rowwise::ops;

/// An op: its name, how to call ours and candle's, and the reference.
struct Case {
    name: &'static str,
    ours: fn(&Inputs) -> Result<Tensor>,
    candle: fn(&Inputs) -> Result<Tensor>,
    reference: Reference,
}

/// From a row, the weight and the bias to the row's results.
type Reference = fn(&[f64], &[f64], &[f64]) -> Vec<f64>;

struct Inputs {
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
}

const EPS: f64 = 1e-5;

fn cases() -> Vec<Case> {
    vec![
        Case {
            name: "softmax",
            ours: |i| ops::softmax(&i.x, D::Minus1),
            candle: |i| candle_nn::ops::softmax_last_dim(&i.x),
            reference: |x, _, _| {
                let (max, exps) = max_and_sum_exp(x);
                x.iter().map(|v| (v - max).exp() / exps).collect()
            },
        },
        Case {
            name: "log_softmax",
            ours: |i| ops::log_softmax(&i.x, D::Minus1),
            candle: |i| candle_nn::ops::log_softmax(&i.x, D::Minus1),
            reference: |x, _, _| {
                let (max, exps) = max_and_sum_exp(x);
                x.iter().map(|v| v - max - exps.ln()).collect()
            },
        },
        Case {
            name: "rms_norm",
            ours: |i| ops::rms_norm(&i.x, &i.weight, EPS),
            candle: |i| candle_nn::ops::rms_norm(&i.x, &i.weight, EPS as f32),
            reference: |x, w, _| {
                let mean = sum(x.iter().map(|v| v * v)) / x.len() as f64;
                let rstd = (mean + EPS).sqrt().recip();
                x.iter().zip(w).map(|(v, w)| v * rstd * w).collect()
            },
        },
        Case {
            name: "layer_norm",
            ours: |i| ops::layer_norm(&i.x, &i.weight, &i.bias, EPS),
            candle: |i| candle_nn::ops::layer_norm(&i.x, &i.weight, &i.bias, EPS as f32),
            reference: |x, w, b| {
                let n = x.len() as f64;
                let mean = sum(x.iter().copied()) / n;
                let var = sum(x.iter().map(|v| (v - mean) * (v - mean))) / n;
                let rstd = (var + EPS).sqrt().recip();
                let sides = w.iter().zip(b);
                x.iter()
                    .zip(sides)
                    .map(|(v, (w, b))| (v - mean) * rstd * w + b)
                    .collect()
            },
        },
        Case {
            name: "sum",
            ours: |i| ops::sum_keepdim(&i.x, D::Minus1),
            candle: |i| i.x.sum_keepdim(D::Minus1),
            reference: |x, _, _| vec![sum(x.iter().copied())],
        },
        Case {
            name: "max",
            ours: |i| ops::max_keepdim(&i.x, D::Minus1),
            candle: |i| i.x.max_keepdim(D::Minus1),
            reference: |x, _, _| vec![x.iter().copied().fold(f64::NEG_INFINITY, f64::max)],
        },
        Case {
            name: "argmax",
            ours: |i| ops::argmax_keepdim(&i.x, D::Minus1),
            candle: |i| i.x.argmax_keepdim(D::Minus1),
            reference: |x, _, _| {
                let max = x.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let first = x.iter().position(|v| *v == max).unwrap_or(0);
                vec![first as f64]
            },
        },
        Case {
            name: "mean",
            ours: |i| ops::mean_keepdim(&i.x, D::Minus1),
            candle: |i| i.x.mean_keepdim(D::Minus1),
            reference: |x, _, _| vec![sum(x.iter().copied()) / x.len() as f64],
        },
        Case {
            name: "min",
            ours: |i| ops::min_keepdim(&i.x, D::Minus1),
            candle: |i| i.x.min_keepdim(D::Minus1),
            reference: |x, _, _| vec![x.iter().copied().fold(f64::INFINITY, f64::min)],
        },
        Case {
            name: "argmin",
            ours: |i| ops::argmin_keepdim(&i.x, D::Minus1),
            candle: |i| i.x.argmin_keepdim(D::Minus1),
            reference: |x, _, _| {
                let min = x.iter().copied().fold(f64::INFINITY, f64::min);
                let first = x.iter().position(|v| *v == min).unwrap_or(0);
                vec![first as f64]
            },
        },
        Case {
            name: "var",
            ours: |i| ops::var_keepdim(&i.x, D::Minus1, 1),
            candle: |i| i.x.var_keepdim(D::Minus1),
            reference: |x, _, _| {
                let n = x.len() as f64;
                let mean = sum(x.iter().copied()) / n;
                vec![sum(x.iter().map(|v| (v - mean) * (v - mean))) / (n - 1.)]
            },
        },
        Case {
            name: "norm_l2",
            ours: |i| ops::norm_l2_keepdim(&i.x, D::Minus1),
            // Candle's norm is of all elements, by way of a tensor of squares.
            candle: |_| candle_core::bail!("not over a dim"),
            reference: |x, _, _| vec![sum(x.iter().map(|v| v * v)).sqrt()],
        },
        Case {
            name: "logsumexp",
            ours: |i| ops::logsumexp(&i.x, D::Minus1),
            candle: |i| i.x.log_sum_exp(D::Minus1),
            reference: |x, _, _| {
                let (max, exps) = max_and_sum_exp(x);
                vec![max + exps.ln()]
            },
        },
    ]
}

/// Neumaier's sum: what rounding takes off each addition is added up beside it. A plain f64 sum of
/// 128256 exponentials is off by more than our f64 results are.
fn sum(values: impl Iterator<Item = f64>) -> f64 {
    let (mut sum, mut lost) = (0.0f64, 0.0);
    for value in values {
        let next = sum + value;
        lost += if sum.abs() >= value.abs() {
            (sum - next) + value
        } else {
            (value - next) + sum
        };
        sum = next;
    }
    sum + lost
}

fn max_and_sum_exp(x: &[f64]) -> (f64, f64) {
    let max = x.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    (max, sum(x.iter().map(|v| (v - max).exp())))
}

/// Roughly normal values, the same in every run: sums of four uniform ones.
fn values(len: usize, seed: u64) -> Vec<f32> {
    let mut state = seed | 1;
    let mut uniform = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1u64 << 24) as f32 - 0.5
    };
    (0..len)
        .map(|_| 1.7 * (uniform() + uniform() + uniform() + uniform()))
        .collect()
}

fn inputs(rows: usize, width: usize, dtype: DType) -> Result<Inputs> {
    let tensor = |len: usize, seed, shape: &[usize]| {
        Tensor::from_vec(values(len, seed), shape, &Device::Cpu)?.to_dtype(dtype)
    };
    Ok(Inputs {
        x: tensor(rows * width, 1, &[rows, width])?,
        weight: tensor(width, 2, &[width])?,
        bias: tensor(width, 3, &[width])?,
    })
}

fn to_f64(t: &Tensor) -> Result<Vec<f64>> {
    t.flatten_all()?.to_dtype(DType::F64)?.to_vec1()
}

/// The largest error over the first, the last and a middle row, in units of the dtype's rounding
/// at 1 or at the result, whichever is larger.
fn worst_error(case: &Case, inputs: &Inputs, got: &Tensor) -> Result<f64> {
    let (rows, width) = inputs.x.dims2()?;
    let per_row = got.elem_count() / rows;
    let got = got.reshape((rows, per_row))?;
    let (weight, bias) = (to_f64(&inputs.weight)?, to_f64(&inputs.bias)?);
    let unit = match got.dtype() {
        DType::F16 => 2f64.powi(-11),
        DType::BF16 => 2f64.powi(-8),
        DType::F32 => 2f64.powi(-24),
        _ => 2f64.powi(-53),
    };
    let mut worst = 0.0f64;
    for row in [0, rows / 2, rows - 1] {
        let x = to_f64(&inputs.x.narrow(0, row, 1)?)?;
        let want = (case.reference)(&x, &weight, &bias);
        for (i, (got, want)) in to_f64(&got.narrow(0, row, 1)?)?
            .iter()
            .zip(&want)
            .enumerate()
        {
            // What cancels in the result counts as large as it was before.
            let scale = match case.name {
                "sum" => x.iter().map(|v| v.abs()).sum::<f64>() / (width as f64).log2().max(1.0),
                "layer_norm" => (want - bias[i]).abs() + bias[i].abs(),
                _ => want.abs(),
            };
            worst = worst.max((got - want).abs() / (unit * scale.max(1.0)));
        }
    }
    Ok(worst)
}

fn seconds(f: fn(&Inputs) -> Result<Tensor>, inputs: &Inputs) -> Result<f64> {
    let start = Instant::now();
    let result = f(inputs)?;
    let elapsed = start.elapsed().as_secs_f64();
    drop(std::hint::black_box(result));
    Ok(elapsed)
}

fn fastest(times: &[f64]) -> f64 {
    times.iter().copied().fold(f64::INFINITY, f64::min)
}

fn run(case: &Case, rows: usize, width: usize, dtype: DType) -> Result<()> {
    let inputs = inputs(rows, width, dtype)?;
    let ours = (case.ours)(&inputs)?;
    let error = worst_error(case, &inputs, &ours)?;
    assert!(
        error < 8.0,
        "{} {dtype:?} ({rows}, {width}): off by {error} units",
        case.name
    );
    let bytes =
        rows * width * dtype.size_in_bytes() + ours.elem_count() * ours.dtype().size_in_bytes();
    drop(ours);
    // candle may lack the dtype.
    let candle_error = match (case.candle)(&inputs) {
        Ok(got) => Some(worst_error(case, &inputs, &got)?),
        Err(_) => None,
    };
    let (mut ours, mut candle) = (Vec::new(), Vec::new());
    let start = Instant::now();
    while ours.len() < 9 || (start.elapsed().as_secs_f64() < 0.2 && ours.len() < 2001) {
        ours.push(seconds(case.ours, &inputs)?);
        if candle_error.is_some() && (candle.len() < 9 || start.elapsed().as_secs_f64() < 1.0) {
            candle.push(seconds(case.candle, &inputs)?);
        }
    }
    let ours = fastest(&ours);
    print!(
        "{:<12} {:<5} {:<15} {:>10.1} {:>7.1} {:>6.1}",
        case.name,
        format!("{dtype:?}").to_lowercase(),
        format!("({rows}, {width})"),
        ours * 1e6,
        bytes as f64 / ours / 1e9,
        error,
    );
    match candle_error {
        Some(error) => {
            let candle = fastest(&candle);
            println!(
                " {:>10.1} {:>9.3e} {:>7.2}",
                candle * 1e6,
                error,
                candle / ours
            );
        }
        None => println!(" {:>10} {:>9} {:>7}", "-", "-", "-"),
    }
    Ok(())
}

const SHAPES: [(usize, usize); 10] = [
    (4096, 4096),
    (4096, 64),
    (1, 4096),
    (32, 4096),
    (512, 1000),
    (65536, 32),
    (16384, 128),
    (16, 32000),
    (1, 128256),
    (2, 4194304),
];

fn main() -> Result<()> {
    // Cargo passes `--bench`; the rest are words that all must occur in a line's name.
    let filters: Vec<String> = std::env::args()
        .skip(1)
        .filter(|a| !a.starts_with("--"))
        .collect();
    println!(
        "{:<12} {:<5} {:<15} {:>10} {:>7} {:>6} {:>10} {:>9} {:>7}",
        "op", "dtype", "shape", "ours us", "GB/s", "err", "candle us", "err", "ratio"
    );
    for case in cases() {
        for dtype in [DType::F32, DType::BF16, DType::F16, DType::F64] {
            for (rows, width) in SHAPES {
                let name = format!("{} {dtype:?} ({rows},{width})", case.name).to_lowercase();
                if filters.iter().all(|f| name.contains(f.as_str())) {
                    run(&case, rows, width, dtype)?;
                }
            }
        }
    }
    Ok(())
}
