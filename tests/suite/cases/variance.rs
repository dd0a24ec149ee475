//! V: variance and normalisation numerics.

use candle_core::Module;
use candle_rowwise::nn::GroupNorm;

use super::{gradient_of, var};
use crate::common::ops::{run, side_values};
use crate::common::*;

/// One row with weight 1 and bias 0, and its gradients, against the reference.
fn right(op: Op, x: &[f64], device: &Device) -> Result<Tensor> {
    let n = x.len();
    let what = format!("{op:?} of {:?}... ({n})", &x[..4]);
    let x = var(x, (1, n), DType::F32, device)?;
    let one = var(&vec![1.; n], n, DType::F32, device)?;
    let zero = var(&vec![0.; n], n, DType::F32, device)?;
    let sides = [one.as_tensor().clone(), zero.as_tensor().clone()];
    let sides = match op {
        Op::RmsNorm { .. } => &sides[..1],
        Op::LayerNorm { .. } => &sides[..],
        _ => &[],
    };
    let side_values = side_values(sides)?;
    let y = run(op, x.as_tensor(), sides)?;
    let row = values(x.as_tensor())?;
    let expected = reference::forward(op, &row, &side_values, DType::F32);
    check(&what, &y, &expected)?;
    let g = tensor(&normal(59, y.elem_count()), y.shape(), DType::F32, device)?;
    let grads = (&y * &g)?.sum_all()?.backward()?;
    let g = values(&g)?;
    let expected = gradient_reference::gradients(op, &row, n, &side_values, &g, DType::F32);
    let dx = gradient_of(&grads, &x);
    check(&format!("{what} dx"), &dx, &expected.dx)?;
    let mut gradients = values(&dx)?;
    if let Some(expected) = expected.sides.first() {
        let dw = gradient_of(&grads, &one);
        check(&format!("{what} dw"), &dw, expected)?;
        gradients.extend(values(&dw)?);
    }
    for v in gradients {
        assert!(v.is_finite(), "{what}: gradient {v}");
    }
    Ok(y)
}

/// Rows far from zero: the variance is no difference of squares, and the mean has more digits than
/// an f32.
fn v01(device: &Device) -> Result<()> {
    let op = Op::LayerNorm { eps: 1e-5 };
    for (m, first) in [
        (0., -1.3416408),
        (100., -1.3415277),
        (1000., -1.3415078),
        (10000., -1.3313334),
    ] {
        let x: Vec<f64> = (0..16).map(|i| m + f64::from(i) * 1e-3).collect();
        let y = right(op, &x, device)?;
        assert_close("first", &y.narrow(1, 0, 1)?, &[first], 1e-6)?;
    }
    for m in [40000., 80000.] {
        let y = right(op, &[m, m + 1., m + 2., m + 3.], device)?;
        let expected = [-1.3416354, -0.4472118, 0.4472118, 1.3416354];
        assert_close("integers", &y, &expected, 1e-7)?;
    }
    let y = right(op, &[1234.; 256], device)?;
    assert_same("constant", &y, &[0.; 256])?;
    let x: Vec<f64> = (0..32768)
        .map(|j| 100. + 0.01 * (f64::from(j % 3) - 1.))
        .collect();
    right(op, &x, device)?;
    let y = right(Op::Var { correction: 0 }, &x, device)?;
    // The f32 that the values are rounded to differ by some of this; the reference has seen them.
    assert_close("population var", &y, &[6.669413e-5], 1e-6)?;
    for m in [0., 100., 1000., 10000.] {
        let x: Vec<f64> = (0..16).map(|i| m + f64::from(i) * 1e-3).collect();
        for correction in [0, 1] {
            right(Op::Var { correction }, &x, device)?;
            right(Op::Std { correction }, &x, device)?;
        }
    }
    for op in [Op::Var { correction: 1 }, Op::Std { correction: 1 }] {
        for value in [1234., 0.1] {
            assert_same("constant", &right(op, &[value; 256], device)?, &[0.])?;
        }
    }
    Ok(())
}

/// Rows whose squares are no f32: right values and gradients.
fn v02(device: &Device) -> Result<()> {
    let huge = [1e30, 2e30, 3e30, 4e30];
    let other = [1e25, -1e25, 2e25, 0.];
    let tiny = [1e-30, 2e-30, 3e-30, 4e-30];
    let edge = [3e38, -3e38, 3e38, 3e38];
    let layer = |eps| Op::LayerNorm { eps };
    let rms = |eps| Op::RmsNorm { eps };
    let std = Op::Std { correction: 0 };
    let known: [(Op, [f64; 4], [f64; 4]); 4] = [
        (
            layer(1e-5),
            huge,
            [-1.3416408, -0.4472136, 0.4472136, 1.3416408],
        ),
        (
            rms(1e-5),
            huge,
            [0.36514838, 0.73029675, 1.0954451, 1.4605935],
        ),
        (rms(1e-6), other, [0.81649658, -0.81649658, 1.6329932, 0.]),
        (
            rms(0.),
            tiny,
            [0.36514838, 0.73029675, 1.0954451, 1.4605935],
        ),
    ];
    for (op, x, y) in known {
        let got = right(op, &x, device)?;
        // The case gives seven digits; the reference has been compared with all of them.
        assert_close(&format!("{op:?}"), &got, &y, 1e-6)?;
    }
    for (op, x) in [
        (layer(1e-6), other),
        (layer(0.), tiny),
        (layer(1e-5), edge),
        (rms(1e-5), edge),
        (layer(1e-5), [3e38; 4]),
        (layer(1e-5), tiny),
        (std, tiny),
        (std, other),
        (std, edge),
        (Op::NormL2, huge),
        (Op::NormL2, tiny),
    ] {
        right(op, &x, device)?;
    }
    assert_close("std", &right(std, &huge, device)?, &[1.1180340e30], 1e-7)?;
    let x = tensor(&huge, (1, 4), DType::F32, device)?;
    let var = candle_rowwise::ops::var(&x, 1, 0)?;
    assert_same("var", &var, &[f64::INFINITY])?;
    v02_group_norm(device)
}

/// The same rows as groups of two channels.
fn v02_group_norm(device: &Device) -> Result<()> {
    let known = [1e30, 1e-30].map(|m| [m, 2. * m, 3. * m, 4. * m]);
    let x = var(&known.concat(), (1, 4, 2), DType::F32, device)?;
    let [w, b] = [1., 0.].map(|v| var(&[v; 4], 4, DType::F32, device));
    let (w, b) = (w?, b?);
    let (wt, bt) = (w.as_tensor().clone(), b.as_tensor().clone());
    let y = GroupNorm::new(wt, bt, 4, 2, 0.)?.forward(&x)?;
    let row = [-1.3416408, -0.4472136, 0.4472136, 1.3416408];
    assert_close("group_norm", &y, &row.repeat(2), 1e-6)?;
    let g = tensor(&normal(61, 8), (1, 4, 2), DType::F32, device)?;
    let grads = (y * g)?.sum_all()?.backward()?;
    for var in [&x, &w, &b] {
        let grad = values(&gradient_of(&grads, var))?;
        assert!(grad.iter().all(|v| v.is_finite()), "{grad:?}");
    }
    Ok(())
}

on_devices! {
    v01: v01_cpu, v01_cuda;
    v02: v02_cpu, v02_cuda;
}
