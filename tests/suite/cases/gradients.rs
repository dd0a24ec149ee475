//! G: gradients missing or wrong.

use candle_nn::Module;
use candle_rowwise::{nn, ops};

use super::{gradient_of, var};
use crate::common::data::h_values;
use crate::common::*;

/// Gradients must agree to 1e-5 of the largest of them: that is the case's bound, and the other
/// side is candle's composed form in f32.
fn agree(what: &str, ours: &[Tensor], theirs: &[Tensor]) -> Result<()> {
    assert_eq!(ours.len(), theirs.len());
    for (i, (ours, theirs)) in ours.iter().zip(theirs).enumerate() {
        let expected = values(theirs)?;
        let largest = expected.iter().fold(0., |a: f64, b| a.max(b.abs()));
        assert!(largest > 0., "{what}: gradient {i} is all zero");
        let expected: Vec<Expect> = expected
            .iter()
            .map(|&value| Expect {
                value,
                bound: 1e-5 * largest,
            })
            .collect();
        check(&format!("{what}: gradient {i}"), ours, &expected)?;
    }
    Ok(())
}

type Model<'a> = &'a dyn Fn(&Tensor, &Tensor, &Tensor) -> candle_core::Result<Tensor>;

/// dx, dw, db of `sum(c * model(x, w, b))`, for x as it is or as the transpose of a tracked tensor.
fn g01_gradients(model: Model, transposed: bool, device: &Device) -> Result<Vec<Tensor>> {
    let (rows, width) = (4, 64);
    let shape = if transposed {
        (width, rows)
    } else {
        (rows, width)
    };
    let x = var(&h_values(rows * width), shape, DType::F32, device)?;
    let w: Vec<f64> = (0..width).map(|j| 1. + j as f64 / 64.).collect();
    let b: Vec<f64> = (0..width).map(|j| j as f64 / 128.).collect();
    let (w, b) = (
        var(&w, width, DType::F32, device)?,
        var(&b, width, DType::F32, device)?,
    );
    let c: Vec<f64> = (0..rows * width).map(|k| h(3 * k + 1)).collect();
    let c = tensor(&c, (rows, width), DType::F32, device)?;
    let input = if transposed {
        x.t()?
    } else {
        x.as_tensor().clone()
    };
    let y = model(&input, w.as_tensor(), b.as_tensor())?;
    let grads = (y * c)?.sum_all()?.backward()?;
    let present = [&x, &w, &b].map(|v| grads.get(v.as_tensor()).cloned());
    Ok(present.into_iter().flatten().collect())
}

/// The fused norms and softmax of candle record no backward for contiguous input.
fn g01(device: &Device) -> Result<()> {
    let pairs: [(&str, Model, Model); 5] = [
        (
            "rms_norm",
            &|x, w, _| nn::ops::rms_norm(x, w, 1e-5),
            &|x, w, _| candle_nn::ops::rms_norm_slow(x, w, 1e-5),
        ),
        (
            "RmsNorm",
            &|x, w, _| nn::RmsNorm::new(w.clone(), 1e-5).forward(x),
            &|x, w, _| candle_nn::RmsNorm::new(w.clone(), 1e-5).forward_diff(x),
        ),
        (
            "layer_norm",
            &|x, w, b| nn::ops::layer_norm(x, w, b, 1e-5),
            &|x, w, b| candle_nn::ops::layer_norm_slow(x, w, b, 1e-5),
        ),
        (
            "LayerNorm",
            &|x, w, b| nn::LayerNorm::new(w.clone(), b.clone(), 1e-5).forward(x),
            &|x, w, b| candle_nn::ops::layer_norm_slow(x, w, b, 1e-5),
        ),
        (
            "softmax_last_dim",
            &|x, w, b| nn::ops::softmax_last_dim(&x.broadcast_mul(w)?.broadcast_add(b)?),
            &|x, w, b| candle_nn::ops::softmax(&x.broadcast_mul(w)?.broadcast_add(b)?, D::Minus1),
        ),
    ];
    for (name, ours, theirs) in pairs {
        for transposed in [false, true] {
            let what = format!("{name}, transposed: {transposed}");
            let ours = g01_gradients(ours, transposed, device)?;
            agree(&what, &ours, &g01_gradients(theirs, transposed, device)?)?;
        }
    }

    // linear -> norm -> linear: everything upstream of the norm as well.
    let weights = [
        var(&h_values(64 * 16), (64, 16), DType::F32, device)?,
        var(&h_values(64), 64, DType::F32, device)?,
        var(&normal(40, 64 * 3), (64, 3), DType::F32, device)?,
    ];
    let x = tensor(&normal(41, 5 * 16), (5, 16), DType::F32, device)?;
    let gradients = |norm: Model| -> Result<Vec<Tensor>> {
        let hidden = x.matmul(&weights[0].t()?)?;
        let hidden = norm(&hidden, weights[1].as_tensor(), weights[1].as_tensor())?;
        let grads = hidden
            .matmul(weights[2].as_tensor())?
            .sqr()?
            .sum_all()?
            .backward()?;
        Ok(weights.iter().map(|w| gradient_of(&grads, w)).collect())
    };
    for (name, ours, theirs) in pairs.into_iter().take(4) {
        let what = format!("linear, {name}, linear");
        agree(&what, &gradients(ours)?, &gradients(theirs)?)?;
    }
    Ok(())
}

/// A gradient that is one broadcast scalar, and one that arrives transposed, are the same as a
/// packed one. bf16 input with an f32 weight is taken, and dw is f32.
fn g04(device: &Device) -> Result<()> {
    let shape = (2, 1024, 256);
    let x = tensor(&h_values(2 * 1024 * 256), shape, DType::BF16, device)?;
    let w = tensor(&[1.; 256], 256, DType::F32, device)?;
    type Norm = fn(&Tensor, &Tensor) -> candle_core::Result<Tensor>;
    let norms: [(&str, Norm); 3] = [
        ("rms_norm", |x, w| ops::rms_norm(x, w, 1e-6)),
        ("layer_norm", |x, w| ops::layer_norm(x, w, w, 1e-6)),
        ("softmax", |x, w| {
            ops::softmax(&x.broadcast_mul(&w.to_dtype(x.dtype())?)?, D::Minus1)
        }),
    ];
    let ones = tensor(&vec![1.; 2 * 1024 * 256], shape, DType::BF16, device)?;
    for (name, norm) in norms {
        let gradients = |loss: &dyn Fn(Tensor) -> candle_core::Result<Tensor>| {
            let (x, w) = (Var::from_tensor(&x)?, Var::from_tensor(&w)?);
            let y = norm(x.as_tensor(), w.as_tensor())?;
            assert_eq!(y.dtype(), DType::BF16);
            let grads = loss(y)?.backward()?;
            anyhow::Ok([gradient_of(&grads, &x), gradient_of(&grads, &w)])
        };
        let packed = gradients(&|y| (y * &ones)?.sum_all())?;
        let broadcast = gradients(&|y| y.sum_all())?;
        let transposed =
            gradients(&|y| (y.transpose(1, 2)? * ones.transpose(1, 2)?.contiguous()?)?.sum_all())?;
        assert_eq!(packed[0].dtype(), DType::BF16);
        assert_eq!(packed[1].dtype(), DType::F32);
        for i in 0..2 {
            assert_bits_eq(&format!("{name} broadcast {i}"), &broadcast[i], &packed[i])?;
            assert_bits_eq(
                &format!("{name} transposed {i}"),
                &transposed[i],
                &packed[i],
            )?;
        }
    }
    Ok(())
}

/// The sum over rows is not kept in bf16, where it stalls at 256.
fn g06(device: &Device) -> Result<()> {
    let signs: Vec<f64> = (0..64).map(|j| 1. - 2. * f64::from(j % 2)).collect();
    let x = tensor(&signs.repeat(4096), (4096, 64), DType::BF16, device)?;
    let w = var(&[1.; 64], 64, DType::BF16, device)?;
    let b = var(&[0.; 64], 64, DType::BF16, device)?;
    let expected: Vec<f64> = signs.iter().map(|s| 4096. * s).collect();
    let grads = ops::rms_norm(&x, w.as_tensor(), 1e-6)?
        .sum_all()?
        .backward()?;
    assert_same("rms_norm dw", &gradient_of(&grads, &w), &expected)?;
    let y = ops::layer_norm(&x, w.as_tensor(), b.as_tensor(), 1e-6)?;
    let grads = y.sum_all()?.backward()?;
    assert_same("layer_norm dw", &gradient_of(&grads, &w), &expected)?;
    assert_same("layer_norm db", &gradient_of(&grads, &b), &[4096.; 64])
}

/// prod beside zeros: g times the product of the others, without a division by x.
fn g02(device: &Device) -> Result<()> {
    let rows = [2., 0., 3., 4., 0., 2., 0., 5.];
    let expected = [0., 24., 0., 0., 0., 0., 0., 0.];
    for dtype in ops_dtypes() {
        let x = var(&rows, (2, 4), dtype, device)?;
        let grads = ops::prod(x.as_tensor(), 1)?.sum_all()?.backward()?;
        assert_same("last axis", &gradient_of(&grads, &x), &expected)?;
        // The same lanes over axis 0 of the transposed view, and of a tensor that is laid out so.
        let grads = ops::prod(&x.t()?, 0)?.sum_all()?.backward()?;
        assert_same("axis 0", &gradient_of(&grads, &x), &expected)?;
        let t = Var::from_tensor(&x.t()?.contiguous()?)?;
        let grads = ops::prod(t.as_tensor(), 0)?.sum_all()?.backward()?;
        assert_same("laid out", &gradient_of(&grads, &t).t()?, &expected)?;
    }
    // Against plain products, zeros among them, at lengths on and off powers of two.
    for width in [1, 2, 3, 5, 8, 31, 33] {
        let row: Vec<f64> = (0..width).map(|k| h(k + 7).clamp(-2., 2.)).collect();
        for zeros in [vec![], vec![width / 2], vec![0, width - 1]] {
            let mut row = row.clone();
            zeros.iter().for_each(|k| row[*k] = 0.);
            let x = var(&row, (1, width), DType::F64, device)?;
            let grads = (ops::prod(x.as_tensor(), 1)? * 3.)?.sum_all()?.backward()?;
            let g = [3.];
            let expected =
                gradient_reference::gradients(Op::Prod, &row, width, &[], &g, DType::F64);
            check(
                &format!("{width} {zeros:?}"),
                &gradient_of(&grads, &x),
                &expected.dx,
            )?;
        }
    }
    Ok(())
}

/// Spreads where there is none: 0 of equal values, and of a length that the correction uses up NaN.
fn g07(device: &Device) -> Result<()> {
    for dtype in ops_dtypes() {
        // 3 is the case's; no multiple of 0.1 is exact.
        for value in [3., 0.1] {
            for correction in [0, 1] {
                let x = var(&[value; 16 * 12], (16, 12), dtype, device)?;
                let y = ops::std(x.as_tensor(), 0, correction)?;
                assert_same("std", &y, &[0.; 12])?;
                let grads = y.sum_all()?.backward()?;
                assert_same("std dx", &gradient_of(&grads, &x), &[0.; 16 * 12])?;
                let y = ops::var(x.as_tensor(), 0, correction)?;
                assert_same("var", &y, &[0.; 12])?;
                let grads = y.sum_all()?.backward()?;
                assert_same("var dx", &gradient_of(&grads, &x), &[0.; 16 * 12])?;
            }
        }
        type Spread = fn(&Tensor, usize, usize) -> candle_core::Result<Tensor>;
        for spread in [ops::var as Spread, ops::std] {
            for (correction, expected) in [(0, 0.), (1, f64::NAN), (2, f64::NAN)] {
                let x = var(&h_values(100), (1, 10, 10), dtype, device)?;
                let y = spread(x.as_tensor(), 0, correction)?;
                let what = format!("{dtype:?} length one, correction {correction}");
                assert_same(&what, &y, &[expected; 100])?;
                let grads = y.sum_all()?.backward()?;
                assert_same(&what, &gradient_of(&grads, &x), &[expected; 100])?;
            }
        }
    }
    Ok(())
}

/// Ties share the gradient of an end; at zeros, where norms have no derivative, it is 0.
fn g08(device: &Device) -> Result<()> {
    let x = var(&[0.; 15], (3, 5), DType::F32, device)?;
    let grads = ops::max(x.as_tensor(), 1)?.sum_all()?.backward()?;
    let fifth = f64::from(0.2f32);
    assert_same("zeros", &gradient_of(&grads, &x), &[fifth; 15])?;
    let x = var(
        &[2., -2., 1., 2., -0., -1., -0., 0.],
        (2, 4),
        DType::F32,
        device,
    )?;
    let g = tensor(&[3., f64::INFINITY], 2, DType::F32, device)?;
    let grads = (ops::max(x.as_tensor(), 1)? * g)?.sum_all()?.backward()?;
    let inf = f64::INFINITY;
    let expected = [1.5, 0., 0., 1.5, inf, 0., inf, inf];
    assert_same("ties", &gradient_of(&grads, &x), &expected)?;
    // A NaN has won: the NaNs are what ties.
    let x = var(&[f64::NAN, 7., f64::NAN], (1, 3), DType::F32, device)?;
    for y in [ops::max(x.as_tensor(), 1)?, ops::min(x.as_tensor(), 1)?] {
        let grads = y.sum_all()?.backward()?;
        assert_same("NaN", &gradient_of(&grads, &x), &[0.5, 0., 0.5])?;
    }

    let third = f64::from(1f32 / 3.);
    let x = var(&[2., -2., 1., 2.], (1, 4), DType::F32, device)?;
    let y = ops::norm_linf(x.as_tensor(), 1)?;
    let dx = gradient_of(&y.sum_all()?.backward()?, &x);
    assert_same("L-inf", &dx, &[third, -third, 0., third])?;
    let y = ops::min(x.as_tensor(), 1)?;
    let dx = gradient_of(&y.sum_all()?.backward()?, &x);
    assert_same("min", &dx, &[0., 1., 0., 0.])?;
    // Both ends of one row; and only one of them used.
    let (min, max) = ops::min_max(x.as_tensor(), 1)?;
    let dx = gradient_of(&(min + max * 6.)?.sum_all()?.backward()?, &x);
    assert_same("both ends", &dx, &[3., 1., 0., 3.])?;
    let (min, _) = ops::min_max(x.as_tensor(), 1)?;
    let dx = gradient_of(&min.sum_all()?.backward()?, &x);
    assert_same("one end", &dx, &[0., 1., 0., 0.])?;

    for dtype in ops_dtypes() {
        let x = var(&[0., -0., 0., 0., -0., 0.], (2, 3), dtype, device)?;
        for y in [
            ops::norm_l1(x.as_tensor(), 1)?,
            ops::norm_l2(x.as_tensor(), 1)?,
            ops::norm_linf(x.as_tensor(), 1)?,
            ops::mean_of_squares(x.as_tensor(), 1)?,
        ] {
            assert_same("norm of zeros", &y, &[0.; 2])?;
            let dx = gradient_of(&y.sum_all()?.backward()?, &x);
            assert_same("at zeros", &dx, &[0.; 6])?;
        }
        let x = var(&[3., 0., -4.], (1, 3), dtype, device)?;
        let dx = gradient_of(&ops::norm_l1(x.as_tensor(), 1)?.sum_all()?.backward()?, &x);
        assert_same("L1", &dx, &[1., 0., -1.])?;
    }
    Ok(())
}

/// logsumexp of a row of -inf has no derivative: 0, not NaN, and no NaN for its neighbours.
fn g09(device: &Device) -> Result<()> {
    let n = f64::NEG_INFINITY;
    let rows = [n, n, n, n, 0., n, 1., n, 0., 1., 2., 3.];
    for dtype in ops_dtypes() {
        for weights in [[0., 1., 1.], [1., 1., 1.]] {
            let x = var(&rows, (3, 4), dtype, device)?;
            let g = tensor(&weights, 3, dtype, device)?;
            let y = ops::logsumexp(x.as_tensor(), 1)?;
            assert_eq!(values(&y)?[0], n);
            // The weight times -inf is no number; the gradient still is.
            let grads = (y * g)?.sum_all()?.backward()?;
            let what = format!("{dtype:?} {weights:?}");
            let dx = gradient_of(&grads, &x);
            assert_same(&what, &dx.get(0)?, &[0.; 4])?;
            let row1 = [0.2689414213699951, 0., 0.7310585786300049, 0.];
            let row2 = [0.03205860328, 0.08714431874, 0.23688281808, 0.64391425989];
            // 4 ulp of f32, as for the softmax that the gradient is, or one rounding of the dtype.
            let relative = (8. * float::unit(DType::F32)).max(2. * float::unit(dtype));
            assert_close(&what, &dx.get(1)?, &row1, relative)?;
            assert_close(&what, &dx.get(2)?, &row2, relative)?;

            let x = var(&rows[4..], (2, 4), dtype, device)?;
            let y = ops::log_softmax(x.as_tensor(), 1)?;
            let grads = y.narrow(1, 2, 1)?.sum_all()?.backward()?;
            let dx = values(&gradient_of(&grads, &x))?;
            assert!(dx.iter().all(|v| v.is_finite()), "{what}: {dx:?}");
        }
    }
    Ok(())
}

fn ops_dtypes() -> [DType; 4] {
    crate::common::ops::DTYPES
}

/// One row of zeros in one dimension, ten times over the same variables.
fn g10(device: &Device) -> Result<()> {
    let x = var(&[0.; 4], 4, DType::F32, device)?;
    let w = var(&[1.; 4], 4, DType::F32, device)?;
    let b = var(&[0.; 4], 4, DType::F32, device)?;
    for _ in 0..10 {
        let y = ops::rms_norm(x.as_tensor(), w.as_tensor(), 1e-5)?;
        let grads = y.sum_all()?.neg()?.backward()?;
        assert_same("rms_norm dw", &gradient_of(&grads, &w), &[0.; 4])?;
        assert_close(
            "rms_norm dx",
            &gradient_of(&grads, &x),
            &[-316.227766; 4],
            1e-6,
        )?;
        let y = ops::layer_norm(x.as_tensor(), w.as_tensor(), b.as_tensor(), 1e-5)?;
        assert_same("layer_norm y", &y, &[0.; 4])?;
        let grads = y.sum_all()?.neg()?.backward()?;
        assert_same("layer_norm dx", &gradient_of(&grads, &x), &[0.; 4])?;
        assert_same("layer_norm dw", &gradient_of(&grads, &w), &[0.; 4])?;
        assert_same("layer_norm db", &gradient_of(&grads, &b), &[-1.; 4])?;
    }
    Ok(())
}

on_devices! {
    g01: g01_cpu, g01_cuda;
    g02: g02_cpu, g02_cuda;
    g04: g04_cpu, g04_cuda;
    g06: g06_cpu, g06_cuda;
    g07: g07_cpu, g07_cuda;
    g08: g08_cpu, g08_cuda;
    g09: g09_cpu, g09_cuda;
    g10: g10_cpu, g10_cuda;
}
