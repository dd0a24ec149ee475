//! The ops under test, by [`Op`]: for tests that run all of them.

use candle_core::shape::{Dim, Dims};
use candle_core::{DType, Device, Tensor, D};
use candle_rowwise::ops;
use candle_rowwise::plan::{with_tier, Tier};
use candle_rowwise::problem::Op;

use super::{float, normal, tensor, values, Result};

pub const DTYPES: [DType; 4] = [DType::F16, DType::BF16, DType::F32, DType::F64];

/// Runs the public function of `op` over the last axis, which a reduction keeps. The two results of
/// a row of min_max are neighbours along it.
pub fn run(op: Op, x: &Tensor, sides: &[Tensor]) -> candle_core::Result<Tensor> {
    let last = D::Minus1;
    trace(op, x);
    match op {
        Op::Sum => ops::sum_keepdim(x, last),
        Op::Mean => ops::mean_keepdim(x, last),
        Op::Prod => ops::prod_keepdim(x, last),
        Op::Max => ops::max_keepdim(x, last),
        Op::Min => ops::min_keepdim(x, last),
        Op::MinMax => {
            let (min, max) = ops::min_max_keepdim(x, last)?;
            // Candle's GPU kernels put no narrow signed integers together.
            let device = match x.dtype() {
                DType::I16 | DType::I32 => &Device::Cpu,
                _ => x.device(),
            };
            Tensor::cat(&[min.to_device(device)?, max.to_device(device)?], last)
        }
        Op::AbsMax => ops::abs_max_keepdim(x, last),
        Op::ArgMax => ops::argmax_keepdim(x, last),
        Op::ArgMin => ops::argmin_keepdim(x, last),
        Op::Any => ops::any_keepdim(x, last),
        Op::All => ops::all_keepdim(x, last),
        Op::NormL1 => ops::norm_l1_keepdim(x, last),
        Op::NormL2 => ops::norm_l2_keepdim(x, last),
        Op::MeanOfSquares => ops::mean_of_squares_keepdim(x, last),
        Op::Var { correction } => ops::var_keepdim(x, last, correction),
        Op::Std { correction } => ops::std_keepdim(x, last, correction),
        Op::LogSumExp => ops::logsumexp_keepdim(x, last),
        Op::Softmax => ops::softmax(x, last),
        Op::LogSoftmax => ops::log_softmax(x, last),
        Op::RmsNorm { eps } => ops::rms_norm(x, &sides[0], eps),
        Op::LayerNorm { eps } => ops::layer_norm(x, &sides[0], &sides[1], eps),
        _ => panic!("{}: no test knows how to run it", op.name()),
    }
}

/// What a call gives when it is forced onto a tier; `None` where that cannot run it. Any other error is one.
pub fn forced<T, E: std::fmt::Display>(
    tier: Tier,
    call: impl FnOnce() -> std::result::Result<T, E>,
) -> std::result::Result<Option<T>, E> {
    match with_tier(tier, call) {
        Err(err) if err.to_string().contains("tier cannot run") => Ok(None),
        answer => answer.map(Some),
    }
}

/// With `ROWWISE_TEST_TRACE=1`, says what runs next: of a launch that does not end nothing else is known.
fn trace(op: Op, x: &Tensor) {
    if super::devices::is_on("ROWWISE_TEST_TRACE") {
        eprintln!("{} {:?} {:?}", op.name(), x.dtype(), x.layout());
    }
}

pub type Over<T> = fn(&Tensor, T) -> candle_core::Result<Tensor>;

/// Every reduction to one value over one dim or several, without and with keepdim.
pub fn over_dims<T: Dims>() -> Vec<(Op, Over<T>, Over<T>)> {
    vec![
        (Op::Sum, ops::sum, ops::sum_keepdim),
        (Op::Mean, ops::mean, ops::mean_keepdim),
        (Op::Prod, ops::prod, ops::prod_keepdim),
        (Op::Max, ops::max, ops::max_keepdim),
        (Op::Min, ops::min, ops::min_keepdim),
        (Op::AbsMax, ops::abs_max, ops::abs_max_keepdim),
        (Op::AbsMax, ops::norm_linf, ops::norm_linf_keepdim),
        (Op::Any, ops::any, ops::any_keepdim),
        (Op::All, ops::all, ops::all_keepdim),
        (Op::NormL1, ops::norm_l1, ops::norm_l1_keepdim),
        (Op::NormL2, ops::norm_l2, ops::norm_l2_keepdim),
        (
            Op::MeanOfSquares,
            ops::mean_of_squares,
            ops::mean_of_squares_keepdim,
        ),
        (
            Op::Var { correction: 1 },
            |x, dims| ops::var(x, dims, 1),
            |x, dims| ops::var_keepdim(x, dims, 1),
        ),
        (
            Op::Std { correction: 0 },
            |x, dims| ops::std(x, dims, 0),
            |x, dims| ops::std_keepdim(x, dims, 0),
        ),
        (Op::LogSumExp, ops::logsumexp, ops::logsumexp_keepdim),
        (
            Op::MinMax,
            |x, dims| Ok(ops::min_max(x, dims)?.0),
            |x, dims| Ok(ops::min_max_keepdim(x, dims)?.0),
        ),
        (
            Op::MinMax,
            |x, dims| Ok(ops::min_max(x, dims)?.1),
            |x, dims| Ok(ops::min_max_keepdim(x, dims)?.1),
        ),
    ]
}

/// Every reduction to one value over one dim, without and with keepdim.
pub fn over_dim<T: Dim>() -> Vec<(Op, Over<T>, Over<T>)> {
    let mut functions = over_dims();
    functions.push((Op::ArgMax, ops::argmax, ops::argmax_keepdim));
    functions.push((Op::ArgMin, ops::argmin, ops::argmin_keepdim));
    functions
}

/// Rows of `width` that `op` can be compared on: of a product, factors of which no part is beyond
/// the range of any dtype, and most of which are 1 or -1; for other ops the values themselves.
pub fn suited(op: Op, values: Vec<f64>, width: usize) -> Vec<f64> {
    if op != Op::Prod {
        return values;
    }
    let every = width.div_ceil(16);
    let factor = |(k, v): (usize, f64)| {
        let exponent = if k % every == 0 {
            (1000. * v).sin()
        } else {
            0.
        };
        1.5f64.powf(exponent).copysign(v)
    };
    values.into_iter().enumerate().map(factor).collect()
}

/// Weights around 1, biases around 0, for rows of `width`.
pub fn sides(op: Op, width: usize, dtype: DType, device: &Device) -> Result<Vec<Tensor>> {
    // What an op may also do without, and the reference does not know, is left out.
    let count = match op {
        Op::RmsNorm { .. } => 1,
        _ => op.operands().len(),
    };
    op.operands()
        .iter()
        .take(count)
        .enumerate()
        .map(|(i, operand)| {
            let centre = if operand.name == "weight" { 1. } else { 0. };
            let v: Vec<f64> = normal(900 + i as u64, width)
                .iter()
                .map(|v| centre + 0.5 * v)
                .collect();
            tensor(&v, width, dtype, device)
        })
        .collect()
}

/// The sides as numbers, for the reference.
pub fn side_values(sides: &[Tensor]) -> Result<Vec<Vec<f64>>> {
    sides.iter().map(values).collect()
}

/// A reach for [`super::data::spread`] that overflows neither a square nor a sum in the dtype that
/// is computed in, and that the dtype can hold.
pub fn safe_reach(dtype: DType) -> f64 {
    match (dtype, float::wide(dtype)) {
        (DType::F16, _) => 8.,
        (_, DType::F32) => 20.,
        _ => 100.,
    }
}
