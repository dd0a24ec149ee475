//! P: accumulation, saturation, dtypes.

use candle_rowwise::ops;

use crate::common::*;

/// The denominator is not summed in a half type, where it stalls.
fn p01(device: &Device) -> Result<()> {
    for (width, dtype, exponent) in [
        (4096, DType::F16, -12),
        (512, DType::BF16, -9),
        (262144, DType::BF16, -18),
    ] {
        let x = Tensor::zeros((1, width), dtype, device)?;
        let expected = vec![2f64.powi(exponent); width];
        assert_same("softmax", &ops::softmax(&x, 1)?, &expected)?;
    }
    let x = Tensor::zeros((1, 4096), DType::F16, device)?;
    let y = ops::log_softmax(&x, D::Minus1)?;
    assert_same("log_softmax", &y, &[-8.3203125; 4096])
}

/// A half sum is added up in f32, on every axis and through views. (mean does not exist here yet.)
fn p02(device: &Device) -> Result<()> {
    let ones = |shape: &[usize], dtype| Tensor::ones(shape, dtype, device);
    let x = ones(&[4096], DType::F16)?;
    assert_same("f16 4096", &ops::sum(&x, 0)?, &[4096.])?;
    let x = ones(&[4096, 2], DType::F16)?;
    assert_same("axis 0", &ops::sum(&x, 0)?, &[4096., 4096.])?;
    assert_same("transposed", &ops::sum(&x.t()?, 1)?, &[4096., 4096.])?;
    let x = ones(&[2, 4096], DType::F16)?;
    assert_same("view over axis 0", &ops::sum(&x.t()?, 0)?, &[4096., 4096.])?;
    let x = ones(&[65520], DType::F16)?;
    assert_same("f16 65520", &ops::sum(&x, 0)?, &[f64::INFINITY])?;
    let x = ones(&[70000], DType::BF16)?;
    assert_same("bf16 70000", &ops::sum(&x, 0)?, &[70144.])
}

/// One f32 accumulator stops at 2^24. (mean does not exist here yet.)
fn p03(device: &Device) -> Result<()> {
    let x = Tensor::ones(17 << 20, DType::F32, device)?;
    assert_same("17 * 2^20", &ops::sum(&x, 0)?, &[17825792.])?;
    let len = if devices::is_host_run() {
        2_000_000
    } else {
        20_000_000
    };
    let x = Tensor::ones((len, 2), DType::F32, device)?;
    assert_same("axis 0", &ops::sum(&x, 0)?, &[len as f64; 2])
}

/// eps is held in f32 or wider: 1e-12 is no 0, and there is no floor in its place.
fn p05(device: &Device) -> Result<()> {
    let dtype = DType::F16;
    let w = tensor(&[1.; 8], 8, dtype, device)?;
    let b = tensor(&normal(50, 8), 8, dtype, device)?;
    let rows = |v: f64| tensor(&[v; 16], (2, 8), dtype, device);
    let bias = values(&b)?.repeat(2);
    for eps in [1e-12, 1e-6] {
        let y = ops::rms_norm(&rows(0.)?, &w, eps)?;
        assert_same("rms_norm of zeros", &y, &[0.; 16])?;
        for v in [0., 3.] {
            let y = ops::layer_norm(&rows(v)?, &w, &b, eps)?;
            assert_same(&format!("layer_norm of {v}"), &y, &bias)?;
        }
    }
    let y = ops::rms_norm(&rows(2f64.powi(-12))?, &w, 1e-6)?;
    let expected = float::round(dtype, 0.23717457);
    assert_same("rms_norm of 2^-12", &y, &[expected; 16])
}

/// The normaliser is not added to a large number and lost. (cross_entropy does not exist here yet.)
fn p06(device: &Device) -> Result<()> {
    let x = tensor(&[1e8, 1e8], (1, 2), DType::F32, device)?;
    let ln2 = std::f64::consts::LN_2;
    assert_close("1e8", &ops::log_softmax(&x, 1)?, &[-ln2, -ln2], 1e-7)?;
    let rows = [0., 0., 0., 0., 0., 1., 1., 1., 0.].map(|v| v - 1e7);
    let x = tensor(&rows, (3, 3), DType::F32, device)?;
    let (a, b, c) = (-1.0986122886681098, -1.551444713932051, -0.861994804058251);
    let expected = [a, a, a, b, b, b + 1., c, c, c - 1.];
    assert_close("-1e7", &ops::log_softmax(&x, 1)?, &expected, 3e-7)
}

/// An index does not pass through a half type. (Integer inputs are not taken yet.)
fn p10(device: &Device) -> Result<()> {
    let mut x = vec![0.; 3000];
    x[2999] = 1.;
    for dtype in [DType::F16, DType::BF16] {
        let x = tensor(&x, 3000, dtype, device)?;
        assert_same("argmax", &ops::argmax(&x, 0)?, &[2999.])?;
    }
    Ok(())
}

on_devices! {
    p01: p01_cpu, p01_cuda;
    p02: p02_cpu, p02_cuda;
    p03: p03_cpu, p03_cuda;
    p05: p05_cpu, p05_cuda;
    p06: p06_cpu, p06_cuda;
    p10: p10_cpu, p10_cuda;
}
