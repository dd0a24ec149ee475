use crate::custom_op::{apply, check};
use crate::problem::Op;
use candle_core::{shape::Dim, Result, Tensor, D};
/// Softmax over `dim`.
pub fn softmax<Dm: Dim>(x: &Tensor, dim: Dm) -> Result<Tensor> {
    along(Op::Softmax, x, dim)
}
/// Log-softmax over `dim`.
pub fn log_softmax<Dm: Dim>(x: &Tensor, dim: Dm) -> Result<Tensor> {
    along(Op::LogSoftmax, x, dim)
}
fn along<Dm: Dim>(op: Op, x: &Tensor, dim: Dm) -> Result<Tensor> {
    let dim = dim.to_index(x.shape(), op.name())?;
    check(op, x, dim)?;
    if dim + 1 == x.rank() {
        apply(op, x, &[])
    } else {
        apply(op, &x.transpose(dim, D::Minus1)?, &[])?.transpose(dim, D::Minus1)
    }
}
