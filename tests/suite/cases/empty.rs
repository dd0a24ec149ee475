//! E: empty tensors.

use candle_rowwise::ops;

use super::{gradient_of, var};
use crate::common::ops::over_dim;
use crate::common::*;

/// Over an empty axis there is the value of nothing, or an error that says so; over another axis an
/// empty result.
fn e01(device: &Device) -> Result<()> {
    let ends = [Op::Max, Op::Min, Op::MinMax, Op::ArgMax, Op::ArgMin];
    for dtype in [
        DType::F16,
        DType::BF16,
        DType::F32,
        DType::F64,
        DType::U8,
        DType::I64,
    ] {
        for (op, function, keepdim) in over_dim::<usize>() {
            let what = format!("{} {dtype:?}", op.name());
            // What is not of integers is of f64.
            let computed = match (float::is_float(dtype), op.takes_integers()) {
                (false, false) => DType::F64,
                _ => dtype,
            };
            let x = Tensor::zeros((4, 0), dtype, device)?;
            match op.empty_value() {
                Some(value) => {
                    let y = function(&x, 1)?;
                    assert_same(&what, &y, &[value; 4])?;
                    assert_eq!(y.dtype(), op.output_dtype(computed), "{what}");
                    assert_eq!(keepdim(&x, 1)?.dims(), [4, 1], "{what}");
                }
                None => {
                    assert!(ends.contains(&op), "{what}");
                    let message = function(&x, 1)
                        .expect_err("no value over nothing")
                        .to_string();
                    assert!(message.contains("dim 1 of shape [4, 0]"), "{message}");
                }
            }
            for shape in [(2, 0), (36, 0)] {
                let x = Tensor::zeros(shape, dtype, device)?;
                assert_eq!(function(&x, 0)?.dims(), [0], "{what}");
                assert_eq!(keepdim(&x, 0)?.dims(), [1, 0], "{what}");
                assert_eq!(
                    function(&x, 0)?.dtype(),
                    op.output_dtype(computed),
                    "{what}"
                );
            }
            let x = Tensor::zeros((0, 1), dtype, device)?;
            assert_eq!(function(&x, 1)?.dims(), [0], "{what}");
            if let Some(value) = op.empty_value() {
                assert_same(&what, &function(&x, 0)?, &[value])?;
            }
        }
    }
    for (op, expected) in [
        (Op::Sum, 0.),
        (Op::Prod, 1.),
        (Op::NormL1, 0.),
        (Op::NormL2, 0.),
        (Op::AbsMax, 0.),
        (Op::Any, 0.),
        (Op::All, 1.),
        (Op::LogSumExp, f64::NEG_INFINITY),
    ] {
        assert_eq!(op.empty_value(), Some(expected), "{}", op.name());
    }
    let nan = [
        Op::Mean,
        Op::Var { correction: 0 },
        Op::Std { correction: 1 },
    ];
    assert!(nan
        .iter()
        .all(|op| op.empty_value().is_some_and(f64::is_nan)));
    let (min, max) = ops::min_max(&Tensor::zeros((2, 0), DType::F32, device)?, 0)?;
    assert_eq!((min.dims(), max.dims()), (&[0][..], &[0][..]));
    let x = Tensor::zeros((4, 0), DType::F32, device)?;
    assert_eq!(ops::softmax(&x, 1)?.dims(), [4, 0]);
    assert_eq!(ops::log_softmax(&x, 1)?.dims(), [4, 0]);
    let x = Tensor::zeros((2, 0), DType::BF16, device)?;
    assert_eq!(ops::softmax(&x, 0)?.dims(), [2, 0]);
    Ok(())
}

/// Norms with no rows, or rows of no width: empty results, gradients of zeros, and the next op
/// works. (cross_entropy does not exist here yet.)
fn e02(device: &Device) -> Result<()> {
    for dtype in [DType::BF16, DType::F32] {
        let x = var(&[], (3, 0, 2520), dtype, device)?;
        let w = var(&[1.; 2520], 2520, dtype, device)?;
        let b = var(&[1.; 2520], 2520, dtype, device)?;
        let y = ops::rms_norm(x.as_tensor(), w.as_tensor(), 1e-6)?;
        assert_eq!(y.dims(), [3, 0, 2520]);
        let grads = y.sum_all()?.backward()?;
        assert_eq!(gradient_of(&grads, &x).dims(), [3, 0, 2520]);
        assert_same("dw", &gradient_of(&grads, &w), &[0.; 2520])?;
        let y = ops::layer_norm(x.as_tensor(), w.as_tensor(), b.as_tensor(), 1e-6)?;
        let grads = y.sum_all()?.backward()?;
        assert_same("dw", &gradient_of(&grads, &w), &[0.; 2520])?;
        assert_same("db", &gradient_of(&grads, &b), &[0.; 2520])?;
    }
    let nothing = Tensor::zeros(0, DType::F32, device)?;
    let x = Tensor::zeros((1, 0), DType::F32, device)?;
    let y = ops::layer_norm(&x, &nothing, &nothing, 1e-5)?;
    assert_eq!(y.dims(), [1, 0]);
    let x = tensor(&[1., 2.], 2, DType::F32, device)?;
    assert_same("the next op", &ops::sum(&x, 0)?, &[3.])
}

on_devices! {
    e01: e01_cpu, e01_cuda;
    e02: e02_cpu, e02_cuda;
}
