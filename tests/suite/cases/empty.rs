//! E: empty tensors.

use candle_rowwise::ops;

use super::{gradient_of, var};
use crate::common::*;

/// Over an empty axis there is the value of nothing, or an error that says so; over another axis an
/// empty result.
fn e01(device: &Device) -> Result<()> {
    let inf = f64::INFINITY;
    let x = Tensor::zeros((4, 0), DType::F32, device)?;
    assert_same("sum", &ops::sum(&x, 1)?, &[0.; 4])?;
    assert_same("logsumexp", &ops::logsumexp(&x, 1)?, &[-inf; 4])?;
    assert_eq!(ops::sum_keepdim(&x, 1)?.dims(), [4, 1]);
    assert_eq!(ops::softmax(&x, 1)?.dims(), [4, 0]);
    assert_eq!(ops::log_softmax(&x, 1)?.dims(), [4, 0]);
    for result in [ops::max(&x, 1), ops::argmax(&x, 1)] {
        let message = result.expect_err("no value over nothing").to_string();
        assert!(message.contains("dim 1 of shape [4, 0]"), "{message}");
    }
    for shape in [(2, 0), (36, 0)] {
        let x = Tensor::zeros(shape, DType::BF16, device)?;
        for y in [
            ops::sum(&x, 0)?,
            ops::max(&x, 0)?,
            ops::argmax(&x, 0)?,
            ops::logsumexp(&x, 0)?,
        ] {
            assert_eq!(y.dims(), [0]);
        }
        assert_eq!(ops::softmax(&x, 0)?.dims(), [shape.0, 0]);
        assert_eq!(ops::max_keepdim(&x, 0)?.dims(), [1, 0]);
    }
    let x = Tensor::zeros((0, 1), DType::F64, device)?;
    assert_eq!(ops::max(&x, 1)?.dims(), [0]);
    assert_eq!(ops::argmax(&x, 1)?.dtype(), DType::U32);
    assert_eq!(ops::sum(&x, 0)?.dims(), [1]);
    assert_same("column of nothing", &ops::sum(&x, 0)?, &[0.])
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
