//! Every op and dtype against f64, at odd widths, on every instruction set, split or not, at any
//! strides.

use candle_core::Shape;

use super::*;
use crate::engine::isa::Portable;
#[cfg(target_arch = "x86_64")]
use crate::engine::isa::{Avx2, Avx512};

const WIDTHS: [usize; 22] = [
    1, 2, 3, 5, 7, 31, 33, 63, 65, 127, 129, 255, 257, 511, 513, 1000, 1023, 1025, 4097, 5003,
    8193, 70000,
];

/// The result of a row in f64, and beside each value the size of what was added up to it: what
/// rounding errors are relative to.
fn reference(op: Op, x: &[f64], weight: &[f64], bias: &[f64]) -> Vec<(f64, f64)> {
    let n = x.len() as f64;
    let max = x.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let min = x.iter().copied().fold(f64::INFINITY, f64::min);
    let sum_exp: f64 = x.iter().map(|v| (v - max).exp()).sum();
    let place = |end: f64| x.iter().position(|v| *v == end).unwrap() as f64;
    let (sum, l1) = (x.iter().sum::<f64>(), x.iter().map(|v| v.abs()).sum());
    let squares: f64 = x.iter().map(|v| v * v).sum();
    let spread = |correction| {
        let squares: f64 = x.iter().map(|v| (v - sum / n) * (v - sum / n)).sum();
        squares / (n - correction as f64)
    };
    match op {
        Op::Sum => vec![(sum, l1)],
        Op::Mean => vec![(sum / n, l1 / n)],
        // Each factor is rounded once.
        Op::Prod => vec![(x.iter().product(), n * x.iter().product::<f64>().abs())],
        Op::Max => vec![(max, 0.0)],
        Op::Min => vec![(min, 0.0)],
        Op::MinMax => vec![(min, 0.0), (max, 0.0)],
        Op::AbsMax => vec![(max.max(-min), 0.0)],
        Op::ArgMax => vec![(place(max), 0.0)],
        Op::ArgMin => vec![(place(min), 0.0)],
        Op::Any => vec![(f64::from(x.iter().any(|v| *v != 0.0)), 0.0)],
        Op::All => vec![(f64::from(x.iter().all(|v| *v != 0.0)), 0.0)],
        Op::NormL1 => vec![(l1, l1)],
        Op::NormL2 => vec![(squares.sqrt(), squares.sqrt())],
        Op::MeanOfSquares => vec![(squares / n, squares / n)],
        Op::Var { correction } => vec![(spread(correction), spread(correction))],
        Op::Std { correction } => vec![(spread(correction).sqrt(), spread(correction).sqrt())],
        Op::LogSumExp => vec![(max + sum_exp.ln(), max.abs() + sum_exp.ln() + 1.0)],
        Op::Softmax => x
            .iter()
            .map(|v| {
                // The rounding of `v - max` is relative to itself, and an absolute error there is a
                // relative one here.
                let y = (v - max).exp() / sum_exp;
                (y, y * (1.0 + max - v))
            })
            .collect(),
        Op::LogSoftmax => x
            .iter()
            .map(|v| (v - max - sum_exp.ln(), max - v + sum_exp.ln() + 1.0))
            .collect(),
        Op::RmsNorm { eps } => {
            let rstd = (x.iter().map(|v| v * v).sum::<f64>() / n + eps)
                .sqrt()
                .recip();
            let row = x.iter().zip(weight).map(|(v, w)| v * rstd * w);
            row.map(|y| (y, y.abs())).collect()
        }
        Op::LayerNorm { eps } => {
            let mean = x.iter().sum::<f64>() / n;
            let var = x.iter().map(|v| (v - mean) * (v - mean)).sum::<f64>() / n;
            let rstd = (var + eps).sqrt().recip();
            x.iter()
                .zip(weight.iter().zip(bias))
                .map(|(v, (w, b))| {
                    let normed = (v - mean) * rstd;
                    // The mean is off by a rounding of the mean deviation, which is below 1 / rstd.
                    (normed * w + b, (normed.abs() + 1.0) * w.abs() + b.abs())
                })
                .collect()
        }
        op => panic!("{}: no reference", op.name()),
    }
}

/// What a result may be off by. `magnitude` is the size of what was added up.
///
/// The fold: 32 additions per lane, 5 to join the lanes, and two per doubling of the number of
/// chunks, each one rounding. The arithmetic around it: four roundings. The output: for halves one
/// ulp, for the others what the arithmetic has already.
fn tolerance(want: f64, magnitude: f64, width: usize, dtype: DType) -> f64 {
    if magnitude == 0.0 {
        return 0.0;
    }
    let chunks = (width as f64 / 1024.0).max(1.0);
    let folds = (width as f64).min(32.0 + 5.0) + 2.0 * chunks.log2().ceil();
    let accumulator = match dtype {
        DType::F64 => DType::F64,
        _ => DType::F32,
    };
    let arithmetic = magnitude * (folds + 4.0) * unit(accumulator);
    match dtype {
        DType::F16 | DType::BF16 => ulp(want, dtype) + arithmetic,
        // The reference is an f64 computation itself, one addition after the other.
        DType::F64 => 4.0 * ulp(want, dtype) + arithmetic + magnitude * width as f64 * unit(dtype),
        _ => 4.0 * ulp(want, dtype) + arithmetic,
    }
}

fn check_against_reference(op: Op, inputs: &Inputs) {
    let (dtype, width) = (inputs.x.dtype(), inputs.width);
    let (x, got) = (to_f64(&inputs.x), to_f64(&inputs.run(op)));
    let (weight, bias) = (to_f64(&inputs.weight), to_f64(&inputs.bias));
    let got = by_row(op, &got, x.len() / width);
    for (r, (x, got)) in x.chunks(width).zip(got).enumerate() {
        let want = reference(op, x, &weight, &bias);
        assert_eq!(want.len(), got.len());
        for (j, (got, (want, magnitude))) in got.iter().zip(want).enumerate() {
            let tolerance = tolerance(want, magnitude, width, dtype);
            // What is no f16 is infinite.
            if dtype == DType::F16 && want - tolerance > 65520.0 {
                assert_eq!(*got, f64::INFINITY, "{op:?} width {width}");
                continue;
            }
            assert!(
                (got - want).abs() <= tolerance || (got.is_nan() && want.is_nan()),
                "{op:?} {dtype:?} width {width} row {r} element {j}: got {got:e}, want {want:e}, \
                 tolerance {tolerance:e}"
            );
        }
    }
}

#[test]
fn n01_every_op_and_dtype_at_odd_widths() {
    for width in WIDTHS {
        let rows = if width > 5000 { 2 } else { 3 };
        let x: Vec<f64> = (0..rows * width)
            .map(|k| h(k) + (k / width) as f64 / 2.0)
            .collect();
        for dtype in DTYPES {
            let inputs = Inputs::new(&x, width, dtype);
            for op in Op::ALL {
                if op == Op::Prod {
                    // Factors of which no product is beyond the dtype.
                    let every = width.div_ceil(8);
                    let factor = |(k, v): (usize, &f64)| match k % every {
                        0 => 1.0 + v.abs() / 8.0,
                        _ => 1.0f64.copysign(*v),
                    };
                    let x: Vec<f64> = x.iter().enumerate().map(factor).collect();
                    check_against_reference(op, &Inputs::new(&x, width, dtype));
                } else {
                    check_against_reference(op, &inputs);
                }
            }
        }
    }
}

#[test]
fn bits_are_the_same_on_every_instruction_set() {
    for width in [1, 7, 31, 33, 257, 1025, 5003, 70000] {
        let x: Vec<f64> = (0..2 * width)
            .map(|k| h(k) * 1.37 + h(3 * k) / 64.0)
            .collect();
        for dtype in DTYPES {
            let inputs = Inputs::new(&x, width, dtype);
            for op in Op::ALL {
                let want = bits(&inputs.run_isa(op, Portable));
                assert_eq!(want, bits(&inputs.run(op)), "{op:?} {dtype:?} {width} best");
                #[cfg(target_arch = "x86_64")]
                {
                    if let Some(isa) = Avx2::detect() {
                        let got = bits(&inputs.run_isa(op, isa));
                        assert_eq!(want, got, "{op:?} {dtype:?} {width} AVX2");
                    }
                    if let Some(isa) = Avx512::detect() {
                        let got = bits(&inputs.run_isa(op, isa));
                        assert_eq!(want, got, "{op:?} {dtype:?} {width} AVX-512");
                    }
                }
            }
        }
    }
}

#[test]
fn bits_do_not_depend_on_threads_or_splits_or_other_rows() {
    // The last two widths are of two segments and more, so that few rows are split.
    for width in [33, 1025, 70000, 100_003] {
        let rows = 5;
        let x: Vec<f64> = (0..rows * width)
            .map(|k| h(k) * 1.37 + h(3 * k) / 64.0)
            .collect();
        for dtype in [DType::BF16, DType::F32] {
            let all = Inputs::new(&x, width, dtype);
            let alone = Inputs::new(&x[2 * width..3 * width], width, dtype);
            for op in Op::ALL {
                let with_threads = |threads, inputs: &Inputs| {
                    rayon::ThreadPoolBuilder::new()
                        .num_threads(threads)
                        .build()
                        .unwrap()
                        .install(|| bits(&inputs.run(op)))
                };
                let want = with_threads(1, &all);
                for threads in [2, 16] {
                    assert_eq!(
                        want,
                        with_threads(threads, &all),
                        "{op:?} {dtype:?} {width}"
                    );
                }
                let want = by_row(op, &want, rows);
                for threads in [1, 2, 16] {
                    assert_eq!(
                        want[2],
                        with_threads(threads, &alone),
                        "{op:?} {dtype:?} {width} alone, {threads} threads"
                    );
                }
            }
        }
    }
}

#[test]
fn strided_and_offset_rows_are_read_in_place() {
    let width = 131;
    let x: Vec<f64> = (0..4 * 3 * 400).map(h).collect();
    for dtype in DTYPES {
        let inputs = Inputs::new(&x, width, dtype);
        let whole = Layout::contiguous((4, 3, 400));
        // Columns 7.., rows of a transposed outer dim, and one row broadcast.
        let cut = whole.narrow(2, 7, width).unwrap();
        let swapped = cut.transpose(0, 1).unwrap();
        let broadcast = cut.narrow(0, 1, 1).unwrap();
        let broadcast = broadcast.broadcast_as(Shape::from((5, 3, width))).unwrap();
        for layout in [cut, swapped, broadcast] {
            let dims = layout.dims().to_vec();
            let mut packed = Vec::new();
            for i in 0..dims[0] {
                for j in 0..dims[1] {
                    let at =
                        layout.start_offset() + i * layout.stride()[0] + j * layout.stride()[1];
                    packed.extend_from_slice(&x[at..at + width]);
                }
            }
            let packed = Inputs::new(&packed, width, dtype);
            for op in Op::ALL {
                let got = bits(&inputs.run_layout(op, &layout));
                assert_eq!(got, bits(&packed.run(op)), "{op:?} {dtype:?} {dims:?}");
            }
        }
    }
}

#[test]
fn a_storage_that_ends_early_is_an_error() {
    let inputs = Inputs::new(&vec![1.0; 99], 10, DType::F32);
    for op in Op::ALL {
        let problem = inputs.problem(op, &Layout::contiguous((10, 10)));
        let err = run(&problem, &inputs.x, &inputs.sides(op)).unwrap_err();
        assert!(err.to_string().contains(op.name()), "{err}");
    }
    let op = Op::RmsNorm { eps: 1e-6 };
    let problem = inputs.problem(op, &Layout::contiguous((9, 10)));
    assert!(run(&problem, &inputs.x, &[]).is_err(), "no weight");
}

#[test]
fn no_rows() {
    let x = storage(&[], DType::F32);
    let none = Problem::new(Op::Max, &Layout::contiguous((0, 5)), DType::F32, &[]).unwrap();
    assert_eq!(to_f64(&one(run(&none, &x, &[]))).len(), 0);
}
