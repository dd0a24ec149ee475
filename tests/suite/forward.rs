//! Every op in every dtype over widths on and off every grid, against the f64 reference and against
//! candle where candle is right.

use candle_rowwise::ops;

use crate::common::data::spread;
use crate::common::ops::{run, safe_reach, side_values, sides, suited, DTYPES};
use crate::common::*;

const WIDTHS: [usize; 45] = [
    1, 2, 3, 5, 7, 8, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257, 320, 511,
    512, 513, 1000, 1023, 1024, 1025, 1536, 2047, 2048, 2049, 4095, 4096, 4097, 5003, 8191, 8192,
    8193, 16384, 32768, 32769, 65536, 70000,
];

/// Fewer rows where they are long, for the time of the reference.
fn rows_of(width: usize) -> usize {
    match width {
        0..=1025 => 37,
        1026..=8193 => 5,
        _ => 3,
    }
}

/// Compares all rows of `x` with the reference; then the same rows read in other ways: fewer of
/// them, from a misaligned start, and with a gap behind each.
fn compare(op: Op, x: Vec<f64>, width: usize, dtype: DType, device: &Device) -> Result<()> {
    let x = suited(op, x, width);
    let rows = x.len() / width;
    let what = format!("{} {dtype:?} {rows} rows of {width}", op.name());
    let packed = tensor(&x, (rows, width), dtype, device)?;
    let sides = sides(op, width, dtype, device)?;
    let side_values = side_values(&sides)?;
    let expected: Vec<Expect> = values(&packed)?
        .chunks(width)
        .flat_map(|row| reference::forward(op, row, &side_values, dtype))
        .collect();
    let y = run(op, &packed, &sides)?;
    check(&what, &y, &expected)?;

    for fewer in [1, 3] {
        let part = run(op, &packed.narrow(0, 0, fewer)?, &sides)?;
        let same = y.narrow(0, 0, fewer)?;
        assert_bits_eq(&format!("{what}, the first {fewer}"), &part, &same)?;
    }
    let one = packed.flatten_all()?.narrow(0, 0, 1)?;
    let shifted = Tensor::cat(&[one, packed.flatten_all()?], 0)?.narrow(0, 1, x.len())?;
    let shifted = run(op, &shifted.reshape((rows, width))?, &sides)?;
    assert_bits_eq(&format!("{what}, from element 1"), &shifted, &y)?;

    let gap = packed.narrow(1, 0, 1)?;
    let gapped = Tensor::cat(&[&gap, &packed, &gap, &gap], 1)?.narrow(1, 1, width)?;
    assert_eq!(gapped.stride(), [width + 3, 1]);
    assert_bits_eq(&format!("{what}, gapped"), &run(op, &gapped, &sides)?, &y)
}

fn sweep(op: Op, device: &Device) -> Result<()> {
    for dtype in DTYPES {
        for (i, width) in WIDTHS.into_iter().enumerate() {
            // Where the kernels run on the host, a third of the widths, others for each dtype.
            if devices::is_host_run() && (i + dtype.size_in_bytes()) % 3 != 0 {
                continue;
            }
            let rows = rows_of(width);
            compare(op, normal(7, rows * width), width, dtype, device)?;
            if devices::is_host_run() && width > 1025 {
                continue;
            }
            let wide = spread(8, 3 * width, safe_reach(dtype));
            compare(op, wide, width, dtype, device)?;
        }
    }
    Ok(())
}

fn sum(device: &Device) -> Result<()> {
    sweep(Op::Sum, device)
}

fn mean(device: &Device) -> Result<()> {
    sweep(Op::Mean, device)
}

fn prod(device: &Device) -> Result<()> {
    sweep(Op::Prod, device)
}

fn max(device: &Device) -> Result<()> {
    sweep(Op::Max, device)
}

fn min(device: &Device) -> Result<()> {
    sweep(Op::Min, device)
}

fn min_max(device: &Device) -> Result<()> {
    sweep(Op::MinMax, device)
}

fn abs_max(device: &Device) -> Result<()> {
    sweep(Op::AbsMax, device)
}

fn argmax(device: &Device) -> Result<()> {
    sweep(Op::ArgMax, device)
}

fn argmin(device: &Device) -> Result<()> {
    sweep(Op::ArgMin, device)
}

fn any(device: &Device) -> Result<()> {
    sweep(Op::Any, device)
}

fn all(device: &Device) -> Result<()> {
    sweep(Op::All, device)
}

fn norm_l1(device: &Device) -> Result<()> {
    sweep(Op::NormL1, device)
}

fn norm_l2(device: &Device) -> Result<()> {
    sweep(Op::NormL2, device)
}

fn mean_of_squares(device: &Device) -> Result<()> {
    sweep(Op::MeanOfSquares, device)
}

fn var(device: &Device) -> Result<()> {
    sweep(Op::Var { correction: 1 }, device)
}

fn std(device: &Device) -> Result<()> {
    sweep(Op::Std { correction: 0 }, device)
}

fn logsumexp(device: &Device) -> Result<()> {
    sweep(Op::LogSumExp, device)
}

fn softmax(device: &Device) -> Result<()> {
    sweep(Op::Softmax, device)
}

fn log_softmax(device: &Device) -> Result<()> {
    sweep(Op::LogSoftmax, device)
}

fn rms_norm(device: &Device) -> Result<()> {
    sweep(Op::RmsNorm { eps: 1e-6 }, device)
}

fn layer_norm(device: &Device) -> Result<()> {
    sweep(Op::LayerNorm { eps: 1e-5 }, device)
}

/// Rows far from zero, where a variance from squares or an exp without a shift fails.
fn far_from_zero(device: &Device) -> Result<()> {
    for op in Op::ALL {
        for dtype in DTYPES {
            for width in [3, 320, 1025, 16384] {
                let x: Vec<f64> = normal(9, 5 * width).iter().map(|v| 300. + v).collect();
                compare(op, x, width, dtype, device)?;
            }
        }
    }
    Ok(())
}

/// Candle's own ops in f32, which are right there, if less exactly.
fn agrees_with_candle(device: &Device) -> Result<()> {
    for width in [1, 5, 64, 1000] {
        let x = tensor(&normal(10, 6 * width), (2, 3, width), DType::F32, device)?;
        let w = &sides(Op::LayerNorm { eps: 0. }, width, DType::F32, device)?;
        let (w, b) = (&w[0], &w[1]);
        for dim in 0..3 {
            let pairs = [
                ("sum", ops::sum(&x, dim)?, x.sum(dim)?),
                (
                    "sum_keepdim",
                    ops::sum_keepdim(&x, dim)?,
                    x.sum_keepdim(dim)?,
                ),
                ("max", ops::max(&x, dim)?, x.max(dim)?),
                (
                    "max_keepdim",
                    ops::max_keepdim(&x, dim)?,
                    x.max_keepdim(dim)?,
                ),
                ("argmax", ops::argmax(&x, dim)?, x.argmax(dim)?),
                (
                    "argmax_keepdim",
                    ops::argmax_keepdim(&x, dim)?,
                    x.argmax_keepdim(dim)?,
                ),
                ("mean", ops::mean(&x, dim)?, x.mean(dim)?),
                (
                    "mean_keepdim",
                    ops::mean_keepdim(&x, dim)?,
                    x.mean_keepdim(dim)?,
                ),
                ("min", ops::min(&x, dim)?, x.min(dim)?),
                ("argmin", ops::argmin(&x, dim)?, x.argmin(dim)?),
                ("var", ops::var(&x, dim, 1)?, x.var(dim)?),
                ("sum of all", ops::sum(&x, (0, 1, 2))?, x.sum_all()?),
                (
                    "sum of two",
                    ops::sum(&x, (0, dim.max(1)))?,
                    x.sum((0, dim.max(1)))?,
                ),
                (
                    "mean of two",
                    ops::mean(&x, (2, dim.min(1)))?,
                    x.mean((2, dim.min(1)))?,
                ),
                ("norm", ops::norm_l2(&x, (0, 1, 2))?, x.norm()?),
                ("logsumexp", ops::logsumexp(&x, dim)?, x.log_sum_exp(dim)?),
                (
                    "softmax",
                    ops::softmax(&x, dim)?,
                    candle_nn::ops::softmax(&x, dim)?,
                ),
                (
                    "log_softmax",
                    ops::log_softmax(&x, dim)?,
                    candle_nn::ops::log_softmax(&x, dim)?,
                ),
            ];
            for (name, ours, theirs) in pairs {
                agree(&format!("{name} of {width}, dim {dim}"), &ours, &theirs)?;
            }
        }
        let ours = ops::rms_norm(&x, w, 1e-5)?;
        agree("rms_norm", &ours, &candle_nn::ops::rms_norm(&x, w, 1e-5)?)?;
        let ours = ops::layer_norm(&x, w, b, 1e-5)?;
        let theirs = candle_nn::ops::layer_norm(&x, w, b, 1e-5)?;
        agree("layer_norm", &ours, &theirs)?;
    }
    Ok(())
}

/// The same shape and dtype, and values apart by no more than candle's own error: f32 sums of up to
/// a thousand terms around 1, one after the other.
fn agree(what: &str, ours: &Tensor, theirs: &Tensor) -> Result<()> {
    assert_eq!(ours.shape(), theirs.shape(), "{what}");
    assert_eq!(ours.dtype(), theirs.dtype(), "{what}");
    let bound = 1000. * float::unit(DType::F32);
    let expected: Vec<Expect> = values(theirs)?
        .iter()
        .map(|&value| Expect {
            value,
            bound: bound * (1. + value.abs()),
        })
        .collect();
    check(what, ours, &expected)
}

on_devices! {
    sum: sum_cpu, sum_cuda;
    mean: mean_cpu, mean_cuda;
    prod: prod_cpu, prod_cuda;
    max: max_cpu, max_cuda;
    min: min_cpu, min_cuda;
    min_max: min_max_cpu, min_max_cuda;
    abs_max: abs_max_cpu, abs_max_cuda;
    argmax: argmax_cpu, argmax_cuda;
    argmin: argmin_cpu, argmin_cuda;
    any: any_cpu, any_cuda;
    all: all_cpu, all_cuda;
    norm_l1: norm_l1_cpu, norm_l1_cuda;
    norm_l2: norm_l2_cpu, norm_l2_cuda;
    mean_of_squares: mean_of_squares_cpu, mean_of_squares_cuda;
    var: var_cpu, var_cuda;
    std: std_cpu, std_cuda;
    logsumexp: logsumexp_cpu, logsumexp_cuda;
    softmax: softmax_cpu, softmax_cuda;
    log_softmax: log_softmax_cpu, log_softmax_cuda;
    rms_norm: rms_norm_cpu, rms_norm_cuda;
    layer_norm: layer_norm_cpu, layer_norm_cuda;
    far_from_zero: far_from_zero_cpu, far_from_zero_cuda;
    agrees_with_candle: agrees_with_candle_cpu, agrees_with_candle_cuda;
}
