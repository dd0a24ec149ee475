//! Runs an op along any dims: the kernels work on the last axis, so others are moved there, and
//! several are merged into one.

use std::borrow::Cow;

use candle_core::shape::{Dim, Dims};
use candle_core::{DType, Error as CandleError, Result, Tensor};

use crate::custom_op::{apply, apply_in_shape, apply_to_columns, check};
use crate::error::Error;
use crate::problem::{Op, RowResult, INTEGER_DTYPES};

/// A reduction over `dims`, which stay as axes of length 1 if `keepdim`.
pub(super) fn reduce<Ds: Dims>(op: Op, x: &Tensor, dims: Ds, keepdim: bool) -> Result<Tensor> {
    debug_assert_eq!(op.result(), RowResult::Scalar);
    let rows = Rows::new(op, x, dims, keepdim)?;
    apply_in_shape(op, &rows.x, &[], Some(rows.result.into()))
}

/// The elements in another dtype.
pub(crate) fn cast(t: &Tensor, dtype: DType) -> Result<Tensor> {
    match t.elem_count() {
        // Candle's GPU kernels are not launched on nothing without an error, and it slices what is not there.
        0 => Tensor::zeros(t.shape(), dtype, t.device()),
        _ => t.to_dtype(dtype),
    }
}

/// A reduction with two results over `dims`.
pub(super) fn reduce_to_pair<Ds: Dims>(
    op: Op,
    x: &Tensor,
    dims: Ds,
    keepdim: bool,
) -> Result<(Tensor, Tensor)> {
    debug_assert_eq!(op.result(), RowResult::Pair);
    let rows = Rows::new(op, x, dims, keepdim)?;
    let planes = apply(op, &rows.x, &[])?;
    let plane = |i| planes.narrow(0, i, 1)?.reshape(rows.result.as_slice());
    Ok((plane(0)?, plane(1)?))
}

/// A tensor with the dims to reduce as its last axis.
struct Rows<'a> {
    x: Cow<'a, Tensor>,
    /// The shape that the caller expects of a result.
    result: Vec<usize>,
}

impl<'a> Rows<'a> {
    /// The dims are merged in the order of the shape, whatever the order in which they are given,
    /// and the others are left in theirs, which makes the result contiguous. With no dims at all
    /// every element is a row of its own.
    fn new<Ds: Dims>(op: Op, x: &'a Tensor, dims: Ds, keepdim: bool) -> Result<Self> {
        let mut dims = indexes(op, x, dims)?;
        let widened = !op.takes_integers() && INTEGER_DTYPES.contains(&x.dtype());
        let dtype = if widened { DType::F64 } else { x.dtype() };
        check(op, dtype, x.shape(), &dims)?;
        dims.sort_unstable();
        let mut result = Vec::with_capacity(x.rank());
        let sizes = x.dims().iter().enumerate();
        result.extend(sizes.filter_map(|(i, size)| match dims.contains(&i) {
            true => keepdim.then_some(1),
            false => Some(*size),
        }));
        let x = if widened {
            Cow::Owned(to_f64(x)?)
        } else {
            Cow::Borrowed(x)
        };
        if dims == [x.rank().wrapping_sub(1)] {
            return Ok(Rows { x, result });
        }
        let kept: Vec<usize> = (0..x.rank()).filter(|i| !dims.contains(i)).collect();
        let x = last(&x, &kept, &dims)?;
        let x = match dims.len() {
            0 => x.unsqueeze(x.rank())?,
            1 => x,
            _ => {
                let (outer, merged) = x.dims().split_at(kept.len());
                let width = merged.iter().product();
                x.reshape([outer, &[width]].concat())?
            }
        };
        Ok(Rows {
            x: Cow::Owned(x),
            result,
        })
    }
}

/// Integers as f64, for what is computed in fractions.
fn to_f64(x: &Tensor) -> Result<Tensor> {
    // Candle's GPU kernels cast i64 to f64, but not the narrow signed integers: our sum of single
    // elements makes i64 of them.
    let is_narrow = matches!(x.dtype(), DType::I16 | DType::I32);
    if !x.device().is_cpu() && is_narrow && x.elem_count() > 0 {
        return reduce(Op::Sum, x, (), false)?.to_dtype(DType::F64);
    }
    cast(x, DType::F64)
}

/// An op that makes a row of each row along `dim`. The result is contiguous.
pub(super) fn map<Dm: Dim>(op: Op, x: &Tensor, dim: Dm) -> Result<Tensor> {
    let dim = index(op, x, dim)?;
    check(op, x.dtype(), x.shape(), &[dim])?;
    let rows = if dim + 1 == x.rank() {
        x.clone()
    } else {
        let kept: Vec<usize> = (0..x.rank()).filter(|i| *i != dim).collect();
        last(x, &kept, &[dim])?
    };
    if let Some(y) = apply_to_columns(op, &rows, dim)? {
        return Ok(y);
    }
    last_back(apply(op, &rows, &[])?, dim)
}

/// The same beside operands, each of which has a dim for each of those of `x`.
pub(super) fn map_beside(
    op: Op,
    x: &Tensor,
    dim: usize,
    operands: &[Option<Tensor>],
) -> Result<Tensor> {
    let kept: Vec<usize> = (0..x.rank()).filter(|i| *i != dim).collect();
    let operands = operands
        .iter()
        .map(|operand| operand.as_ref().map(|t| last(t, &kept, &[dim])).transpose())
        .collect::<Result<Vec<_>>>()?;
    let operands: Vec<_> = operands.iter().map(Option::as_ref).collect();
    let y = apply(op, &last(x, &kept, &[dim])?, &operands)?;
    last_back(y, dim)
}

/// `y` with its last dim at `dim`, contiguous.
fn last_back(y: Tensor, dim: usize) -> Result<Tensor> {
    if dim + 1 == y.rank() {
        return Ok(y);
    }
    let mut back: Vec<usize> = (0..y.rank() - 1).collect();
    back.insert(dim, y.rank() - 1);
    // What comes after may be one of candle's fused ops, which refuse strides.
    y.permute(back)?.contiguous()
}

/// `x` with its dims in the order `kept`, then `moved`.
fn last(x: &Tensor, kept: &[usize], moved: &[usize]) -> Result<Tensor> {
    let order = [kept, moved].concat();
    if order.is_sorted() {
        return Ok(x.clone());
    }
    x.permute(order)
}

/// The index that `dim` stands for in the shape of `x`, or our own error if there is none.
pub(super) fn index<Dm: Dim>(op: Op, x: &Tensor, dim: Dm) -> Result<usize> {
    let index = dim.to_index(x.shape(), op.name());
    in_range(op, x, index.map_err(|err| own_error(op, x, err))?)
}

/// The indexes that `dims` stand for in the shape of `x`, each of them once.
fn indexes<Ds: Dims>(op: Op, x: &Tensor, dims: Ds) -> Result<Vec<usize>> {
    let dims = dims.to_indexes_internal(x.shape(), op.name());
    let dims = dims.map_err(|err| own_error(op, x, err))?;
    for (i, &dim) in dims.iter().enumerate() {
        in_range(op, x, dim)?;
        if dims[..i].contains(&dim) {
            return Err(Error::RepeatedDim {
                op: op.name(),
                dim,
                shape: x.shape().clone(),
            }
            .into());
        }
    }
    Ok(dims)
}

/// A Dim of the caller's own making may answer anything.
fn in_range(op: Op, x: &Tensor, dim: usize) -> Result<usize> {
    if dim < x.rank() {
        return Ok(dim);
    }
    Err(out_of_range(op, x, dim as i64))
}

/// Candle's error for a dim that does not exist as ours, and others as they are.
fn own_error(op: Op, x: &Tensor, err: CandleError) -> CandleError {
    let dim = match &err {
        CandleError::DimOutOfRange { dim, .. } => *dim,
        CandleError::WithBacktrace { inner, .. } => match **inner {
            CandleError::DimOutOfRange { dim, .. } => dim,
            _ => return err,
        },
        _ => return err,
    };
    out_of_range(op, x, dim.into())
}

fn out_of_range(op: Op, x: &Tensor, dim: i64) -> CandleError {
    Error::DimOutOfRange {
        op: op.name(),
        dim,
        shape: x.shape().clone(),
    }
    .into()
}
