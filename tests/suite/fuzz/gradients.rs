//! The gradient of every op that has one, of rows laid out in several ways.

use candle_rowwise::plan::Tier;
use proptest::prelude::*;
use proptest::sample::select;

use super::input::{floats, lengths, most_elements, numbers, seeds, tame_fills, Fill};
use super::{added_up, check_tier, fuzz, regressions, tiers, Tally};
use crate::common::ops::{run, side_values, sides, suited};
use crate::common::*;

#[derive(Debug, Clone)]
struct Case {
    op: Op,
    dtype: DType,
    rows: usize,
    width: usize,
    fill: Fill,
    /// Whether the tracked tensor is the transpose.
    transposed: bool,
    /// Whether the gradient that arrives is one value for all.
    broadcast: bool,
    seed: u64,
    tier: Tier,
}

fn cases() -> BoxedStrategy<Case> {
    let ops: Vec<Op> = Op::ALL.into_iter().filter(Op::has_derivative).collect();
    let shape = (1usize..40, lengths(most_elements() / 2))
        .prop_map(|(rows, width)| (rows.min(most_elements() / width).max(1), width));
    let rest = (any::<bool>(), any::<bool>(), seeds(), tiers());
    (select(ops), floats(), shape, tame_fills(), rest)
        .prop_map(|(op, dtype, (rows, width), fill, rest)| {
            let (transposed, broadcast, seed, tier) = rest;
            // Of zero rows a norm without eps has none, and the rest is as of a constant.
            let fill = if fill == Fill::Zeros {
                Fill::Constant
            } else {
                fill
            };
            Case {
                op,
                dtype,
                rows,
                width,
                fill,
                transposed,
                broadcast,
                seed,
                tier,
            }
        })
        .boxed()
}

fn test(case: &Case, tally: &Tally, device: &Device) -> Result<()> {
    let Case {
        op,
        dtype,
        rows,
        width,
        ..
    } = *case;
    let what = format!("{case:?}");
    let v = suited(
        op,
        numbers(case.fill, dtype, case.seed, rows * width),
        width,
    );
    let x = tensor(&v, (rows, width), dtype, device)?;
    let leaf = match case.transposed {
        true => Var::from_tensor(&x.t()?.contiguous()?)?,
        false => Var::from_tensor(&x)?,
    };
    let rows_of = |t: &Tensor| match case.transposed {
        true => t.t(),
        false => Ok(t.clone()),
    };
    let sides = sides(op, width, dtype, device)?;
    let vars = sides.iter().map(Var::from_tensor);
    let vars = vars.collect::<candle_core::Result<Vec<_>>>()?;
    let tracked: Vec<Tensor> = vars.iter().map(|v| v.as_tensor().clone()).collect();
    let pass = || -> candle_core::Result<Vec<Tensor>> {
        let y = run(op, &rows_of(leaf.as_tensor())?, &tracked)?;
        let g = match case.broadcast {
            true => vec![1.; y.elem_count()],
            false => normal(case.seed ^ 3, y.elem_count()),
        };
        let g = Tensor::from_vec(g, y.shape(), &Device::Cpu)?.to_dtype(y.dtype())?;
        let g = g.to_device(device)?;
        let loss = match case.broadcast {
            true => y.sum_all()?,
            false => (&y * &g)?.sum_all()?,
        };
        let grads = loss.backward()?;
        let mut all = vec![g];
        for var in [&leaf].into_iter().chain(&vars) {
            all.push(grads.get(var.as_tensor()).expect("no gradient").clone());
        }
        Ok(all)
    };
    let all = pass()?;
    tally.add(op.name());
    let dx = rows_of(&all[1])?;
    assert_eq!((dx.dims(), dx.dtype()), (x.dims(), dtype), "{what}");
    let due = gradient_reference::gradients(
        op,
        &values(&x)?,
        width,
        &side_values(&sides)?,
        &values(&all[0])?,
        dtype,
    );
    check(&format!("{what} dx"), &dx, &added_up(dtype, &due.dx))?;
    for (i, due) in due.sides.iter().enumerate() {
        let due = added_up(dtype, due);
        check(
            &format!("{what} d{}", op.operands()[i].name),
            &all[2 + i],
            &due,
        )?;
    }
    check_tier(&what, case.tier, device, tally, &all, pass)
}

pub fn gradients(device: &Device) -> Result<()> {
    let file = regressions!("gradients");
    fuzz("gradients", file, cases(), |case, tally| {
        test(case, tally, device)
    })
}
