//! The gradient of every op in every dtype, by every way that a gradient can arrive, against the
//! f64 reference.

use candle_core::backprop::GradStore;

use crate::common::data::h_values;
use crate::common::ops::{over_dim, run, side_values, sides, suited, Over, DTYPES};
use crate::common::*;

fn differentiable() -> impl Iterator<Item = Op> {
    Op::ALL.into_iter().filter(Op::has_derivative)
}

/// How the gradient of the result comes to be laid out.
#[derive(Debug, Clone, Copy)]
enum Arrives {
    Packed,
    /// One scalar, broadcast: the loss is the plain sum.
    Broadcast,
    Transposed,
}

/// Runs `op` and its backward pass, and compares dx and the gradients of all sides.
fn compare(
    what: &str,
    op: Op,
    x: &Tensor,
    sides: &[Tensor],
    x_of: impl Fn(&Tensor) -> candle_core::Result<Tensor>,
    arrives: Arrives,
) -> Result<()> {
    let what = format!("{} {:?} {what} {arrives:?}", op.name(), x.dtype());
    let leaf = Var::from_tensor(x)?;
    let side_vars: Vec<Var> = sides
        .iter()
        .map(Var::from_tensor)
        .collect::<Result<_, _>>()?;
    let tracked: Vec<Tensor> = side_vars.iter().map(|v| v.as_tensor().clone()).collect();
    let used = x_of(leaf.as_tensor())?;
    let y = run(op, &used, &tracked)?;
    let g = match arrives {
        Arrives::Broadcast => vec![1.; y.elem_count()],
        // As if a loss had measured it.
        _ => normal(21, y.elem_count()),
    };
    let g = tensor(&g, y.shape(), y.dtype(), y.device())?;
    let loss = match arrives {
        Arrives::Packed => (&y * &g)?.sum_all()?,
        Arrives::Broadcast => y.sum_all()?,
        Arrives::Transposed => {
            let last = y.rank() - 1;
            (y.transpose(0, last)? * g.transpose(0, last)?.contiguous()?)?.sum_all()?
        }
    };
    let grads = loss.backward()?;

    let width = used.dim(D::Minus1)?;
    let expected = gradient_reference::gradients(
        op,
        &values(&used)?,
        width,
        &side_values(sides)?,
        &values(&g)?,
        x.dtype(),
    );
    // In the order of the elements of the leaf, whatever was done to it before the op.
    let dx = x_of(of(&what, &grads, &leaf))?;
    check(&format!("{what} dx"), &dx, &expected.dx)?;
    assert_eq!(dx.dtype(), x.dtype(), "{what}");
    for (i, (var, expected)) in side_vars.iter().zip(&expected.sides).enumerate() {
        let name = op.operands()[i].name;
        check(&format!("{what} d{name}"), of(&what, &grads, var), expected)?;
    }
    Ok(())
}

/// The gradient of a variable, which must be there.
fn of<'a>(what: &str, grads: &'a GradStore, var: &Var) -> &'a Tensor {
    let grad = grads.get(var.as_tensor());
    grad.unwrap_or_else(|| panic!("{what}: no gradient for a tracked tensor"))
}

fn every_op_and_dtype(device: &Device) -> Result<()> {
    for op in differentiable() {
        for dtype in DTYPES {
            for width in [1, 2, 5, 31, 64, 257, 1025] {
                let x = suited(op, normal(22, 6 * width), width);
                let x = tensor(&x, (2, 3, width), dtype, device)?;
                let sides = sides(op, width, dtype, device)?;
                for arrives in [Arrives::Packed, Arrives::Broadcast, Arrives::Transposed] {
                    let what = format!("width {width}");
                    compare(&what, op, &x, &sides, |x| Ok(x.clone()), arrives)?;
                }
            }
        }
    }
    Ok(())
}

/// A tracked tensor that the op sees transposed, cut out, or from one dim up.
fn every_layout(device: &Device) -> Result<()> {
    for op in differentiable() {
        for dtype in [DType::BF16, DType::F32] {
            let arrives = Arrives::Packed;
            let x = tensor(&normal(23, 24 * 9), (24, 9), dtype, device)?;
            let sides24 = sides(op, 24, dtype, device)?;
            compare("transposed", op, &x, &sides24, |x| x.t(), arrives)?;
            let sides9 = sides(op, 9, dtype, device)?;
            compare(
                "one row",
                op,
                &x.get(3)?,
                &sides9,
                |x| Ok(x.clone()),
                arrives,
            )?;
            // The rest of the leaf gets a gradient of zeros, which is cut away again.
            let sides5 = sides(op, 5, dtype, device)?;
            compare("cut", op, &x, &sides5, |x| x.narrow(1, 3, 5), arrives)?;
        }
    }
    Ok(())
}

/// Many rows: the sums over them are added up wide.
fn many_rows(device: &Device) -> Result<()> {
    for op in [Op::RmsNorm { eps: 1e-6 }, Op::LayerNorm { eps: 1e-5 }] {
        for dtype in DTYPES {
            let x = tensor(&normal(24, 5000 * 8), (5000, 8), dtype, device)?;
            let sides = sides(op, 8, dtype, device)?;
            for arrives in [Arrives::Packed, Arrives::Broadcast] {
                compare("5000 rows", op, &x, &sides, |x| Ok(x.clone()), arrives)?;
            }
        }
    }
    Ok(())
}

/// Over another dim than the last, by the public functions.
fn other_dims(device: &Device) -> Result<()> {
    use candle_rowwise::ops;
    let reductions = over_dim::<usize>();
    let reductions = reductions
        .iter()
        .flat_map(|(op, a, b)| [(*op, *a), (*op, *b)]);
    let functions: Vec<_> = reductions
        .filter(|(op, _)| op.has_derivative() && *op != Op::MinMax)
        .chain([
            (Op::Softmax, ops::softmax as Over<usize>),
            (Op::LogSoftmax, ops::log_softmax),
        ])
        .collect();
    let x = tensor(&normal(25, 4 * 5 * 6), (4, 5, 6), DType::F32, device)?;
    for (op, function) in functions {
        for dim in 0..3 {
            let what = format!("{} over dim {dim}", op.name());
            let leaf = Var::from_tensor(&x)?;
            let y = function(leaf.as_tensor(), dim)?;
            let g = tensor(&normal(26, y.elem_count()), y.shape(), DType::F32, device)?;
            let grads = (&y * &g)?.sum_all()?.backward()?;
            // The same numbers with the dim moved to the end.
            let last = |t: &Tensor| -> candle_core::Result<Tensor> {
                let mut order: Vec<usize> = (0..3).filter(|i| *i != dim).collect();
                order.push(dim);
                t.permute(order)
            };
            let g_last = match (op.result(), g.rank()) {
                (candle_rowwise::problem::RowResult::Row, _) => last(&g)?,
                _ => g.flatten_all()?,
            };
            let expected = gradient_reference::gradients(
                op,
                &values(&last(&x)?)?,
                x.dim(dim)?,
                &[],
                &values(&g_last)?,
                DType::F32,
            );
            check(&what, &last(of(&what, &grads, &leaf))?, &expected.dx)?;
        }
    }
    Ok(())
}

/// Only what is tracked gets a gradient, and it is the same one.
fn untracked_arguments(device: &Device) -> Result<()> {
    let op = Op::LayerNorm { eps: 1e-5 };
    let inputs = [
        tensor(&h_values(3 * 8), (3, 8), DType::F32, device)?,
        tensor(&normal(27, 8), 8, DType::F32, device)?,
        tensor(&normal(28, 8), 8, DType::F32, device)?,
    ];
    let g = tensor(&normal(29, 24), (3, 8), DType::F32, device)?;
    let run_with = |tracked: [bool; 3]| -> Result<Vec<Option<Tensor>>> {
        let vars: Vec<Var> = inputs
            .iter()
            .map(Var::from_tensor)
            .collect::<Result<_, _>>()?;
        let used: Vec<Tensor> = (0..3)
            .map(|i| match tracked[i] {
                true => vars[i].as_tensor().clone(),
                false => inputs[i].clone(),
            })
            .collect();
        let grads = (run(op, &used[0], &used[1..])? * &g)?
            .sum_all()?
            .backward()?;
        Ok(vars
            .iter()
            .map(|v| grads.get(v.as_tensor()).cloned())
            .collect())
    };
    let all = run_with([true; 3])?;
    for i in 0..3 {
        let mut tracked = [false; 3];
        tracked[i] = true;
        let grads = run_with(tracked)?;
        for (j, (grad, expected)) in grads.iter().zip(&all).enumerate() {
            assert_eq!(grad.is_some(), i == j, "argument {j} of {tracked:?}");
            if let (Some(grad), Some(expected)) = (grad, expected) {
                assert_bits_eq("alone and beside others", grad, expected)?;
            }
        }
    }
    Ok(())
}

/// An index is an integer outside of every graph; what else depends on the input has its gradient.
fn argmax_is_no_part_of_a_graph(device: &Device) -> Result<()> {
    let x = Var::from_tensor(&tensor(&h_values(12), (3, 4), DType::F32, device)?)?;
    let index = candle_rowwise::ops::argmax(x.as_tensor(), 1)?;
    assert_eq!(index.dtype(), DType::U32);
    assert!(!index.track_op());
    let beside = (x.as_tensor().sum_all()? + index.to_dtype(DType::F32)?.sum_all()?)?;
    let grads = beside.backward()?;
    assert_same("beside argmax", of("argmax", &grads, &x), &[1.; 12])
}

/// A loss that uses a value twice, and an op on another op's result.
fn through_several_ops(device: &Device) -> Result<()> {
    // L = sum(c * log_softmax(softmax(x))): the slow way in f64 is candle's own graph.
    let x = tensor(&normal(30, 4 * 10), (4, 10), DType::F64, device)?;
    let c = tensor(&normal(31, 4 * 10), (4, 10), DType::F64, device)?;
    let ours = Var::from_tensor(&x)?;
    let p = candle_rowwise::ops::softmax(ours.as_tensor(), 1)?;
    let y = (candle_rowwise::ops::log_softmax(&p, 1)? + &p)?;
    let ours = of("ours", &(y * &c)?.sum_all()?.backward()?, &ours).clone();
    let theirs = Var::from_tensor(&x)?;
    let p = candle_nn::ops::softmax(theirs.as_tensor(), 1)?;
    let y = (candle_nn::ops::log_softmax(&p, 1)? + &p)?;
    let theirs = of("theirs", &(y * &c)?.sum_all()?.backward()?, &theirs).clone();
    let expected = values(&theirs)?;
    let largest = expected.iter().fold(0., |a: f64, b| a.max(b.abs()));
    let expected: Vec<Expect> = expected
        .iter()
        .map(|&value| Expect {
            value,
            bound: 1e-14 * largest,
        })
        .collect();
    check(
        "softmax, then log_softmax of it and itself",
        &ours,
        &expected,
    )
}

on_devices! {
    every_op_and_dtype: every_op_and_dtype_cpu, every_op_and_dtype_cuda;
    every_layout: every_layout_cpu, every_layout_cuda;
    many_rows: many_rows_cpu, many_rows_cuda;
    other_dims: other_dims_cpu, other_dims_cuda;
    untracked_arguments: untracked_arguments_cpu, untracked_arguments_cuda;
    argmax_is_no_part_of_a_graph: argmax_is_no_part_of_a_graph_cpu, argmax_is_no_part_of_a_graph_cuda;
    through_several_ops: through_several_ops_cpu, through_several_ops_cuda;
}

/// With candle's switch for it, a gradient can be differentiated again.
#[test]
fn second_derivatives() -> Result<()> {
    if !composed::is_on() {
        return composed::run_again(&["gradients::second_derivatives"]);
    }
    // d/dx of sum(c * d/dx logsumexp(x)) = p * (c - sum(c * p)).
    let x = Var::from_tensor(&tensor(&h_values(5), (1, 5), DType::F64, &Device::Cpu)?)?;
    let c = tensor(&normal(32, 5), (1, 5), DType::F64, &Device::Cpu)?;
    let y = candle_rowwise::ops::logsumexp(x.as_tensor(), 1)?.sum_all()?;
    let dx = of("first", &y.backward()?, &x).clone();
    let second = (dx * &c)?.sum_all()?.backward()?;
    let expected =
        gradient_reference::gradients(Op::Softmax, &h_values(5), 5, &[], &values(&c)?, DType::F64);
    check("second", of("second", &second, &x), &expected.dx)
}
