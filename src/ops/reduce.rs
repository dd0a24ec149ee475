use crate::custom_op::{apply, check};
use crate::problem::Op;
use candle_core::{shape::Dim, Result, Tensor, D};
macro_rules! reduction {
    ($name:ident, $keep:ident, $op:expr) => {
        /// Reduction (skeleton).
        pub fn $name<Dm: Dim>(x: &Tensor, dim: Dm) -> Result<Tensor> {
            let d = dim.to_index(x.shape(), $op.name())?;
            $keep(x, d)?.squeeze(d)
        }
        /// Reduction (skeleton).
        pub fn $keep<Dm: Dim>(x: &Tensor, dim: Dm) -> Result<Tensor> {
            along($op, x, dim)
        }
    };
}
reduction!(sum, sum_keepdim, Op::Sum);
reduction!(max, max_keepdim, Op::Max);
reduction!(argmax, argmax_keepdim, Op::ArgMax);
reduction!(logsumexp, logsumexp_keepdim, Op::LogSumExp);
fn along<Dm: Dim>(op: Op, x: &Tensor, dim: Dm) -> Result<Tensor> {
    let dim = dim.to_index(x.shape(), op.name())?;
    check(op, x, dim)?;
    if dim + 1 == x.rank() {
        apply(op, x, &[])
    } else {
        apply(op, &x.transpose(dim, D::Minus1)?, &[])?.transpose(dim, D::Minus1)
    }
}
