//! Runs an op along any dim: the kernels work on the last axis, so another one is moved there.

use candle_core::shape::Dim;
use candle_core::{Result, Tensor, D};

use crate::custom_op::{apply, check};
use crate::error::Error;
use crate::problem::Op;

/// A reduction over `dim`, which stays as an axis of length 1 if `keepdim`.
pub(super) fn reduce<Dm: Dim>(op: Op, x: &Tensor, dim: Dm, keepdim: bool) -> Result<Tensor> {
    let (x, dim) = dim_last(op, x, dim)?;
    let y = apply(op, &x, &[])?.squeeze(D::Minus1)?;
    if keepdim {
        y.unsqueeze(dim)
    } else {
        Ok(y)
    }
}

/// An op that makes a row of each row along `dim`. The result is contiguous.
pub(super) fn map<Dm: Dim>(op: Op, x: &Tensor, dim: Dm) -> Result<Tensor> {
    let (x, dim) = dim_last(op, x, dim)?;
    let y = apply(op, &x, &[])?;
    if dim + 1 == y.rank() {
        return Ok(y);
    }
    let mut back: Vec<usize> = (0..y.rank() - 1).collect();
    back.insert(dim, y.rank() - 1);
    // What comes after may be one of candle's fused ops, which refuse strides.
    y.permute(back)?.contiguous()
}

/// `x` with `dim` moved to the last place and the others left in their order, and the index of
/// `dim`. The order of the others makes the result of a reduction contiguous.
fn dim_last<Dm: Dim>(op: Op, x: &Tensor, dim: Dm) -> Result<(Tensor, usize)> {
    let dim = index(op, x, dim)?;
    check(op, x, dim)?;
    if dim + 1 == x.rank() {
        return Ok((x.clone(), dim));
    }
    let mut order: Vec<usize> = (0..x.rank()).filter(|i| *i != dim).collect();
    order.push(dim);
    Ok((x.permute(order)?, dim))
}

/// The index that `dim` stands for in the shape of `x`, or our own error if there is none.
pub(super) fn index<Dm: Dim>(op: Op, x: &Tensor, dim: Dm) -> Result<usize> {
    use candle_core::Error as E;
    match dim.to_index(x.shape(), op.name()) {
        // A Dim of the caller's own making may answer anything.
        Ok(dim) if dim < x.rank() => Ok(dim),
        Ok(dim) => Err(out_of_range(op, x, dim as i64)),
        Err(E::DimOutOfRange { dim, .. }) => Err(out_of_range(op, x, dim.into())),
        Err(E::WithBacktrace { inner, .. }) if matches!(*inner, E::DimOutOfRange { .. }) => {
            let dim = match *inner {
                E::DimOutOfRange { dim, .. } => dim,
                _ => 0,
            };
            Err(out_of_range(op, x, dim.into()))
        }
        Err(other) => Err(other),
    }
}

fn out_of_range(op: Op, x: &Tensor, dim: i64) -> candle_core::Error {
    Error::DimOutOfRange {
        op: op.name(),
        dim,
        shape: x.shape().clone(),
    }
    .into()
}
