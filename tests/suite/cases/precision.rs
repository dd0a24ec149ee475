//! P: accumulation, saturation, dtypes.

use candle_core::Module;
use candle_rowwise::nn::GroupNorm;
use candle_rowwise::ops;

use super::{gradient_of, var};
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

/// A half sum is added up in f32, on every axis and through views; the mean is no sum that was
/// rounded.
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
    assert_same("f16 mean", &ops::mean(&x, 0)?, &[1.])?;
    let x = ones(&[70000], DType::BF16)?;
    assert_same("bf16 70000", &ops::sum(&x, 0)?, &[70144.])?;
    assert_same("bf16 mean", &ops::mean(&x, 0)?, &[1.])
}

/// One f32 accumulator stops at 2^24.
fn p03(device: &Device) -> Result<()> {
    let x = Tensor::ones(17 << 20, DType::F32, device)?;
    assert_same("17 * 2^20", &ops::sum(&x, 0)?, &[17825792.])?;
    let len = if devices::is_host_run() {
        2_000_000
    } else {
        20_000_000
    };
    let x = Tensor::ones((len, 2), DType::F32, device)?;
    assert_same("axis 0", &ops::sum(&x, 0)?, &[len as f64; 2])?;
    assert_same("mean", &ops::mean(&x, 0)?, &[1., 1.])
}

/// A sum that overflows is no mean that does.
fn p04(device: &Device) -> Result<()> {
    let f32s = [f64::from(3e38f32), f64::from(-3e38f32)];
    let cases: [(DType, Vec<f64>, f64); 7] = [
        (DType::F32, vec![f32s[0]; 2], f32s[0]),
        (DType::F32, vec![f32s[1]; 1000], f32s[1]),
        (DType::F32, [f32s, f32s].concat(), 0.),
        (DType::F64, vec![1e308; 2], 1e308),
        (DType::F64, vec![f64::MAX; 3000], f64::MAX),
        (DType::F16, vec![60000.; 8], 60000.),
        (DType::BF16, vec![3e38; 64], 3e38),
    ];
    for (dtype, row, expected) in cases {
        let what = format!("{dtype:?} {} of {}", row.len(), row[0]);
        let x = tensor(&row, row.len(), dtype, device)?;
        // As far off as a sum of so many values may be.
        let fold = reference::depth(row.len()) * float::unit(float::wide(dtype));
        let expected = Expect {
            value: float::round(dtype, expected),
            bound: fold * row[0].abs(),
        };
        check(&what, &ops::mean(&x, 0)?, &[expected])?;
    }
    let pair = tensor(&[3e38; 2], 2, DType::F32, device)?;
    assert_same("two", &ops::mean(&pair, 0)?, &[f32s[0]])?;
    let pair = tensor(&[1e308; 2], 2, DType::F64, device)?;
    assert_same("two", &ops::mean(&pair, 0)?, &[1e308])?;
    // What is beyond the dtype itself.
    let inf = f64::INFINITY;
    for (row, expected) in [
        ([inf, 1.], inf),
        ([inf, -inf], f64::NAN),
        ([1., f64::NAN], f64::NAN),
    ] {
        let x = tensor(&row, 2, DType::F32, device)?;
        assert_same("mean", &ops::mean(&x, 0)?, &[expected])?;
    }
    Ok(())
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
    assert_same("rms_norm of 2^-12", &y, &[expected; 16])?;

    // The same rows as the groups of four channels each.
    for (v, eps) in [(0., 1e-12), (3., 1e-12), (2f64.powi(-12), 1e-6)] {
        let x = rows(v)?.reshape((1, 8, 2))?;
        let y = GroupNorm::new(w.clone(), b.clone(), 8, 2, eps)?.forward(&x)?;
        let bias: Vec<f64> = values(&b)?.iter().flat_map(|b| [*b; 2]).collect();
        assert_same(&format!("group_norm of {v}"), &y, &bias)?;
    }
    Ok(())
}

/// The normaliser is not added to a large number and lost. (Of cross_entropy: in
/// the tests of losses.)
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

/// Squares that overflow or vanish: the norm is right, and so is its gradient.
fn p07(device: &Device) -> Result<()> {
    let half = std::f64::consts::FRAC_1_SQRT_2;
    // The row, its norm, the gradient.
    type Case = (DType, Vec<f64>, f64, Vec<f64>);
    let cases: [Case; 8] = [
        (DType::F32, vec![1e20, 1., 1.], 1e20, vec![1., 1e-20, 1e-20]),
        (DType::F16, vec![600., 800.], 1000., vec![0.6, 0.8]),
        (DType::F16, vec![200.; 3], 346.41016, vec![0.57735027; 3]),
        (DType::F32, vec![1e-30; 2], 1.41421356e-30, vec![half; 2]),
        (
            DType::F64,
            vec![1e200; 2],
            1.414213562373095e200,
            vec![half; 2],
        ),
        (
            DType::F64,
            vec![1e-200; 2],
            1.414213562373095e-200,
            vec![half; 2],
        ),
        (
            DType::BF16,
            vec![2f64.powi(100); 4],
            2f64.powi(101),
            vec![0.5; 4],
        ),
        // The norm itself is no f32; the direction still is.
        (DType::F32, vec![3e38; 2], f64::INFINITY, vec![half; 2]),
    ];
    for (dtype, row, norm, direction) in cases {
        let what = format!("{dtype:?} {row:?}");
        let x = var(&row, row.len(), dtype, device)?;
        let y = ops::norm_l2(x.as_tensor(), 0)?;
        let relative = 4. * float::unit(dtype).max(1e-9);
        assert_close(&what, &y, &[norm], relative)?;
        let dx = gradient_of(&y.backward()?, &x);
        assert_close(&format!("{what} dx"), &dx, &direction, relative)?;
    }
    // The mean of squares: right where their sum overflows, infinite where it is.
    let x = tensor(&[1.5e19; 100], 100, DType::F32, device)?;
    assert_close("mean", &ops::mean_of_squares(&x, 0)?, &[2.25e38], 3e-7)?;
    let x = tensor(&[1e20, 1.], 2, DType::F32, device)?;
    assert_same("mean", &ops::mean_of_squares(&x, 0)?, &[f64::INFINITY])?;
    let x = tensor(&[3e-23; 7], 7, DType::F32, device)?;
    let expected = Expect {
        value: 9e-46,
        bound: 1e-48,
    };
    check("tiny", &ops::mean_of_squares(&x, 0)?, &[expected])
}

/// Integers are added up in i64, not in their own narrow type; their mean is a fraction.
fn p09(device: &Device) -> Result<()> {
    let x = Tensor::new(vec![200u8; 1000], device)?;
    let sum = ops::sum(&x, 0)?;
    assert_eq!(sum.dtype(), DType::I64);
    assert_same("sum", &sum, &[200000.])?;
    let mean = ops::mean(&x, 0)?;
    assert_eq!(mean.dtype(), DType::F64);
    assert_same("mean", &mean, &[200.])?;
    let big = 1i64 << 62;
    let x = Tensor::new(&[big, big, -big], device)?;
    assert_eq!(ops::sum(&x, 0)?.to_scalar::<i64>()?, big);
    Ok(())
}

/// Integers are compared as integers, and an index does not pass through a half type.
fn p10(device: &Device) -> Result<()> {
    let tokens = [49406i64, 320, 1125, 539, 320, 2368, 49407];
    let x = Tensor::new(&tokens, device)?;
    assert_same("argmax", &ops::argmax(&x, 0)?, &[6.])?;
    let exact = 1i64 << 53;
    let x = Tensor::new(&[exact, exact + 1, exact], device)?;
    assert_same("argmax", &ops::argmax(&x, 0)?, &[1.])?;
    assert_eq!(ops::max(&x, 0)?.to_scalar::<i64>()?, 9007199254740993);
    let x = Tensor::new(&[1u32 << 24, (1 << 24) + 1], device)?;
    assert_same("argmax", &ops::argmax(&x, 0)?, &[1.])?;
    let mut x = vec![0.; 3000];
    x[2999] = 1.;
    for dtype in [DType::F16, DType::BF16] {
        let x = tensor(&x, 3000, dtype, device)?;
        assert_same("argmax", &ops::argmax(&x, 0)?, &[2999.])?;
        assert_same("argmin", &ops::argmin(&x.neg()?, 0)?, &[2999.])?;
    }
    Ok(())
}

on_devices! {
    p01: p01_cpu, p01_cuda;
    p02: p02_cpu, p02_cuda;
    p03: p03_cpu, p03_cuda;
    p04: p04_cpu, p04_cuda;
    p05: p05_cpu, p05_cuda;
    p06: p06_cpu, p06_cuda;
    p07: p07_cpu, p07_cuda;
    p09: p09_cpu, p09_cuda;
    p10: p10_cpu, p10_cuda;
}
