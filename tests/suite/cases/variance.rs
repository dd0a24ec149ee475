//! V: variance and normalisation numerics.

use candle_rowwise::ops;

use super::{gradient_of, var};
use crate::common::*;

/// Layer norm with weight 1 and bias 0 against the reference.
fn plain_layer_norm(x: &[f64], eps: f64, device: &Device) -> Result<Tensor> {
    let n = x.len();
    let x = tensor(x, (1, n), DType::F32, device)?;
    let (w, b) = (vec![1.; n], vec![0.; n]);
    let y = ops::layer_norm(
        &x,
        &tensor(&w, n, DType::F32, device)?,
        &tensor(&b, n, DType::F32, device)?,
        eps,
    )?;
    let op = Op::LayerNorm { eps };
    let expected = reference::forward(op, &values(&x)?, &[w, b], DType::F32);
    check("layer_norm", &y, &expected)?;
    Ok(y)
}

/// Rows far from zero: the variance is no difference of squares, and the mean has more digits than
/// an f32. (var and std do not exist here yet.)
fn v01(device: &Device) -> Result<()> {
    for (m, first) in [
        (0., -1.3416408),
        (100., -1.3415277),
        (1000., -1.3415078),
        (10000., -1.3313334),
    ] {
        let x: Vec<f64> = (0..16).map(|i| m + f64::from(i) * 1e-3).collect();
        let y = plain_layer_norm(&x, 1e-5, device)?;
        assert_close("first", &y.narrow(1, 0, 1)?, &[first], 1e-6)?;
    }
    for m in [40000., 80000.] {
        let y = plain_layer_norm(&[m, m + 1., m + 2., m + 3.], 1e-5, device)?;
        let expected = [-1.3416354, -0.4472118, 0.4472118, 1.3416354];
        assert_close("integers", &y, &expected, 1e-7)?;
    }
    let y = plain_layer_norm(&[1234.; 256], 1e-5, device)?;
    assert_same("constant", &y, &[0.; 256])?;
    let x: Vec<f64> = (0..32768)
        .map(|j| 100. + 0.01 * (f64::from(j % 3) - 1.))
        .collect();
    plain_layer_norm(&x, 1e-5, device)?;
    Ok(())
}

/// Rows whose squares are no f32: right values and gradients. (group_norm and std do not exist here
/// yet.)
fn v02(device: &Device) -> Result<()> {
    let huge = [1e30, 2e30, 3e30, 4e30];
    let other = [1e25, -1e25, 2e25, 0.];
    let tiny = [1e-30, 2e-30, 3e-30, 4e-30];
    let edge = [3e38, -3e38, 3e38, 3e38];
    let layer = |eps| Op::LayerNorm { eps };
    let rms = |eps| Op::RmsNorm { eps };
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
        let got = v02_run(op, x, device)?;
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
    ] {
        v02_run(op, x, device)?;
    }
    Ok(())
}

/// One row and its gradients, against the reference.
fn v02_run(op: Op, x: [f64; 4], device: &Device) -> Result<Tensor> {
    let what = format!("{op:?} of {x:?}");
    let x = var(&x, (1, 4), DType::F32, device)?;
    let one = var(&[1.; 4], 4, DType::F32, device)?;
    let zero = var(&[0.; 4], 4, DType::F32, device)?;
    let sides = [one.as_tensor().clone(), zero.as_tensor().clone()];
    let sides = &sides[..op.sides().len()];
    let side_values = [vec![1.; 4], vec![0.; 4]];
    let side_values = &side_values[..sides.len()];
    let y = crate::common::ops::run(op, x.as_tensor(), sides)?;
    let row = values(x.as_tensor())?;
    check(
        &what,
        &y,
        &reference::forward(op, &row, side_values, DType::F32),
    )?;
    let g = tensor(&[1., -2., 0.5, 3.], (1, 4), DType::F32, device)?;
    let grads = (&y * &g)?.sum_all()?.backward()?;
    let g = values(&g)?;
    let expected = gradient_reference::gradients(op, &row, 4, side_values, &g, DType::F32);
    let dx = gradient_of(&grads, &x);
    check(&format!("{what} dx"), &dx, &expected.dx)?;
    let dw = gradient_of(&grads, &one);
    check(&format!("{what} dw"), &dw, &expected.sides[0])?;
    for v in values(&dx)?.iter().chain(&values(&dw)?) {
        assert!(v.is_finite(), "{what}: gradient {v}");
    }
    Ok(y)
}

on_devices! {
    v01: v01_cpu, v01_cuda;
    v02: v02_cpu, v02_cuda;
}
