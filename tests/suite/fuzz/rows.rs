//! Reductions over any set of dims, and the ops along any dim that take no options.

use candle_core::D;
use candle_rowwise::ops;
use candle_rowwise::plan::Tier;
use proptest::prelude::*;
use proptest::sample::select;

use super::input::{fills, floats, inputs, numbers, packed, Fill, Input, INTEGERS};
use super::{check_form, check_tier, fuzz, regressions, tiers, Tally};
use crate::common::ops::{over_dim, over_dims};
use crate::common::*;

#[derive(Debug, Clone)]
struct Case {
    op: Op,
    x: Input,
    /// By bit, of those that there are; of an op over one dim the lowest.
    dims: u8,
    keepdim: bool,
    tier: Tier,
}

fn reductions() -> Vec<Op> {
    let plain = over_dim::<usize>().into_iter().map(|(op, _, _)| op);
    let others = |op: &Op| !matches!(op, Op::Var { .. } | Op::Std { .. });
    plain.filter(others).collect()
}

fn cases() -> BoxedStrategy<Case> {
    let any_op = prop_oneof![
        6 => select(reductions()),
        2 => (0usize..4, any::<bool>()).prop_map(|(correction, root)| match root {
            true => Op::Std { correction },
            false => Op::Var { correction },
        }),
        2 => select(vec![Op::Softmax, Op::LogSoftmax]),
        1 => select(vec![1e-12, 1e-3, 1., 0.]).prop_map(|eps| Op::L2Normalize { eps }),
    ];
    let dtypes = prop_oneof![3 => floats(), 1 => select(INTEGERS.to_vec())];
    let rest = (inputs(dtypes, fills()), any::<u8>(), any::<bool>(), tiers());
    (any_op, rest)
        .prop_map(|(op, (mut x, dims, keepdim, tier))| {
            if !op.is_reduction() && !float::is_float(x.dtype) {
                x.dtype = DType::F32;
            }
            // Of both signs a sum's parts may be beyond the range, and the sum is not.
            if let (Op::Sum, Fill::Huge { .. }) = (op, x.fill) {
                x.fill = Fill::Huge { one_sign: true };
            }
            Case {
                op,
                x,
                dims,
                keepdim,
                tier,
            }
        })
        .boxed()
}

impl Case {
    fn is_over_one(&self) -> bool {
        matches!(self.op, Op::ArgMax | Op::ArgMin) || !self.op.is_reduction()
    }

    /// Those that are reduced, in order.
    fn dims(&self) -> Vec<usize> {
        let rank = self.x.shape.len();
        if self.is_over_one() {
            return vec![usize::from(self.dims) % rank];
        }
        (0..rank).filter(|i| self.dims >> i & 1 == 1).collect()
    }

    fn build(&self, device: &Device) -> Result<Tensor> {
        let is_product = self.op == Op::Prod && float::is_float(self.x.dtype);
        if !is_product {
            return self.x.build(device);
        }
        // Few factors that are not 1 or -1: no part of a product is beyond the range of any dtype.
        let n = self.x.stored_len();
        let every = n.div_ceil(16).max(1);
        let factor = |(k, v): (usize, f64)| match v.is_finite() && v != 0. {
            true if k % every == 0 => 1.5f64.powf((1000. * v).sin()).copysign(v),
            true => 1f64.copysign(v),
            false => v,
        };
        let v = numbers(self.x.fill, self.x.dtype, self.x.seed, n);
        let v: Vec<f64> = v.into_iter().enumerate().map(factor).collect();
        self.x.place(&v, device)
    }

    fn call(&self, x: &Tensor) -> candle_core::Result<Vec<Tensor>> {
        let dims = self.dims();
        if self.is_over_one() {
            let dim = dims[0];
            return Ok(vec![match (self.op, self.keepdim) {
                (Op::ArgMax, false) => ops::argmax(x, dim)?,
                (Op::ArgMax, true) => ops::argmax_keepdim(x, dim)?,
                (Op::ArgMin, false) => ops::argmin(x, dim)?,
                (Op::ArgMin, true) => ops::argmin_keepdim(x, dim)?,
                (Op::Softmax, _) => ops::softmax(x, dim)?,
                (Op::LogSoftmax, _) => ops::log_softmax(x, dim)?,
                (Op::L2Normalize { eps }, _) => {
                    ops::l2_normalize(x, D::Minus(x.rank() - dim), eps)?
                }
                (op, _) => panic!("{}: not over one dim", op.name()),
            }]);
        }
        match (self.op, self.keepdim) {
            (Op::Var { correction }, false) => Ok(vec![ops::var(x, dims, correction)?]),
            (Op::Var { correction }, true) => Ok(vec![ops::var_keepdim(x, dims, correction)?]),
            (Op::Std { correction }, false) => Ok(vec![ops::std(x, dims, correction)?]),
            (Op::Std { correction }, true) => Ok(vec![ops::std_keepdim(x, dims, correction)?]),
            (op, keepdim) => over_dims::<Vec<usize>>()
                .into_iter()
                .filter(|(other, _, _)| *other == op)
                .map(|(_, plain, kept)| {
                    if keepdim {
                        kept(x, dims.clone())
                    } else {
                        plain(x, dims.clone())
                    }
                })
                .collect(),
        }
    }
}

/// What is due of a row of floats, one list for each result.
fn expected(op: Op, row: &[f64], dtype: DType, results: usize) -> Vec<Vec<Expect>> {
    if row.is_empty() && op.is_reduction() {
        let value = op.empty_value().expect("an op with a value of nothing");
        return vec![vec![Expect::exactly(value)]; results];
    }
    let all = match row.is_empty() {
        true => Vec::new(),
        false => reference::forward(op, row, &[], dtype),
    };
    match op {
        Op::MinMax => all.into_iter().map(|e| vec![e]).collect(),
        // Two names of one op.
        Op::AbsMax => vec![all; results],
        _ => vec![all],
    }
}

/// The same of a row of integers that are taken as they are.
fn expected_integer(op: Op, row: &[i64]) -> Vec<i64> {
    let (min, max) = (row.iter().min(), row.iter().max());
    let place = |end: Option<&i64>| row.iter().position(|v| Some(v) == end);
    let due = match op {
        Op::Sum => Some(row.iter().fold(0, |a: i64, v| a.wrapping_add(*v))),
        Op::Prod => Some(row.iter().fold(1, |a: i64, v| a.wrapping_mul(*v))),
        Op::Max => max.copied(),
        Op::Min => min.copied(),
        Op::MinMax => return [min, max].into_iter().flatten().copied().collect(),
        Op::ArgMax => place(max).map(|i| i as i64),
        Op::ArgMin => place(min).map(|i| i as i64),
        Op::Any => Some(row.iter().any(|v| *v != 0).into()),
        Op::All => Some(row.iter().all(|v| *v != 0).into()),
        _ => panic!("{}: not of integers", op.name()),
    };
    vec![due.expect("an end of something")]
}

fn test(case: &Case, tally: &Tally, device: &Device) -> Result<()> {
    let Case { op, tier, .. } = *case;
    let what = format!("{case:?}");
    let x = case.build(device)?;
    let dims = case.dims();
    let of_nothing = dims.iter().any(|d| x.dims()[*d] == 0);
    tally.add(op.name());
    if of_nothing && op.is_reduction() && op.empty_value().is_none() {
        let message = case.call(&x).unwrap_err().to_string();
        let parts = [op.name(), "empty", &format!("{:?}", x.dims())];
        assert!(parts.iter().all(|p| message.contains(p)), "{message}");
        return Ok(());
    }
    let got = case.call(&x)?;

    // The rows as the op should see them, and the shape of its result.
    let kept: Vec<usize> = (0..x.rank()).filter(|i| !dims.contains(i)).collect();
    let order = [kept.as_slice(), &dims].concat();
    let rows = x.permute(order.as_slice())?;
    let width: usize = dims.iter().map(|d| x.dims()[*d]).product();
    let count: usize = kept.iter().map(|d| x.dims()[*d]).product();
    let mut shape = x.dims().to_vec();
    if op.is_reduction() {
        dims.iter().for_each(|d| shape[*d] = 1);
        if !case.keepdim {
            shape = kept.iter().map(|d| x.dims()[*d]).collect();
        }
    }
    let takes = float::is_float(x.dtype()) || op.takes_integers();
    let dtype = if takes { x.dtype() } else { DType::F64 };
    for got in &got {
        check_form(&what, got, &shape, op.output_dtype(dtype));
    }

    if float::is_float(dtype) {
        let rows = values(&rows)?;
        let mut due = vec![Vec::new(); got.len()];
        for i in 0..count {
            let row = &rows[i * width..(i + 1) * width];
            let of_row = expected(op, row, dtype, got.len());
            due.iter_mut()
                .zip(of_row)
                .for_each(|(all, row)| all.extend(row));
        }
        for (got, due) in got.iter().zip(&due) {
            let in_order = match op.is_reduction() {
                true => got.clone(),
                false => got.permute(order.as_slice())?,
            };
            check(&what, &in_order, due)?;
        }
    } else {
        let rows = packed(&rows.to_device(&Device::Cpu)?)?;
        let rows: Vec<i64> = rows.to_dtype(DType::I64)?.flatten_all()?.to_vec1()?;
        let due: Vec<Vec<i64>> = (0..count)
            .map(|i| expected_integer(op, &rows[i * width..(i + 1) * width]))
            .collect();
        for (i, got) in got.iter().enumerate() {
            let got = got.to_device(&Device::Cpu)?.to_dtype(DType::I64)?;
            let got: Vec<i64> = got.flatten_all()?.to_vec1()?;
            let due: Vec<i64> = due.iter().map(|row| row[i]).collect();
            assert_eq!(got, due, "{what}");
        }
    }

    let of_packed = case.call(&packed(&x)?)?;
    for (got, of_packed) in got.iter().zip(&of_packed) {
        assert_bits_eq(&format!("{what}: packed"), got, of_packed)?;
    }
    check_tier(&what, tier, device, tally, &got, || case.call(&x))
}

pub fn rows(device: &Device) -> Result<()> {
    fuzz("rows", regressions!("rows"), cases(), |case, tally| {
        test(case, tally, device)
    })
}
