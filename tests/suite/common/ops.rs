//! The ops under test, by [`Op`]: for tests that run all of them.

use candle_core::{DType, Device, Tensor, D};
use candle_rowwise::ops;
use candle_rowwise::problem::Op;

use super::{float, normal, tensor, values, Result};

pub const DTYPES: [DType; 4] = [DType::F16, DType::BF16, DType::F32, DType::F64];

/// Runs the public function of `op` over the last axis, which a reduction keeps.
pub fn run(op: Op, x: &Tensor, sides: &[Tensor]) -> candle_core::Result<Tensor> {
    match op {
        Op::Sum => ops::sum_keepdim(x, D::Minus1),
        Op::Max => ops::max_keepdim(x, D::Minus1),
        Op::ArgMax => ops::argmax_keepdim(x, D::Minus1),
        Op::LogSumExp => ops::logsumexp_keepdim(x, D::Minus1),
        Op::Softmax => ops::softmax(x, D::Minus1),
        Op::LogSoftmax => ops::log_softmax(x, D::Minus1),
        Op::RmsNorm { eps } => ops::rms_norm(x, &sides[0], eps),
        Op::LayerNorm { eps } => ops::layer_norm(x, &sides[0], &sides[1], eps),
        _ => panic!("{}: no test knows how to run it", op.name()),
    }
}

/// Weights around 1, biases around 0, for rows of `width`.
pub fn sides(op: Op, width: usize, dtype: DType, device: &Device) -> Result<Vec<Tensor>> {
    op.sides()
        .iter()
        .enumerate()
        .map(|(i, name)| {
            let centre = if *name == "weight" { 1. } else { 0. };
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
