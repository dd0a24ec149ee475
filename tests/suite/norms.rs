//! Norms beyond the two of every model: what is left out, other dtypes of the sides, residuals; and their
//! gradients by kernels of their own.

use candle_rowwise::ops::{self, NormOptions};
use candle_rowwise::problem::Op;

use crate::common::data::h_values;
use crate::common::*;

fn var(t: &Tensor) -> Result<Var> {
    Ok(Var::from_tensor(t)?)
}

fn gradient(grads: &candle_core::backprop::GradStore, var: &Var) -> Tensor {
    let grad = grads.get(var.as_tensor());
    grad.expect("no gradient for a tracked tensor").clone()
}

/// What one norm gives: y, dx, and the gradients of the sides that there are.
struct Pass {
    y: Tensor,
    dx: Tensor,
    dweight: Option<Tensor>,
    dbias: Option<Tensor>,
}

fn pass(
    centred: bool,
    x: &Tensor,
    sides: [Option<&Tensor>; 2],
    offset: f64,
    g: &Tensor,
) -> Result<Pass> {
    let x = var(x)?;
    let [weight, bias] = sides.map(|side| side.map(var).transpose());
    let (weight, bias) = (weight?, bias?);
    let mut options = NormOptions::new(1e-5).weight_offset(offset);
    if let Some(weight) = &weight {
        options = options.weight(weight.as_tensor());
    }
    if let Some(bias) = &bias {
        options = options.bias(bias.as_tensor());
    }
    let y = match centred {
        true => ops::layer_norm_with(x.as_tensor(), &options)?,
        false => ops::rms_norm_with(x.as_tensor(), &options)?,
    };
    let grads = (&y * g)?.sum_all()?.backward()?;
    Ok(Pass {
        dx: gradient(&grads, &x),
        dweight: weight.map(|w| gradient(&grads, &w)),
        dbias: bias.map(|b| gradient(&grads, &b)),
        y,
    })
}

/// A01, for every combination of weight and bias, each of the input's dtype or f32: what is left out
/// counts as 1 and as 0.
fn a01(device: &Device) -> Result<()> {
    let dtypes = ops_dtypes();
    for (dtype, (shape, centred)) in dtypes.into_iter().flat_map(|dtype| {
        let shapes = [(2, 2, 8), (3, 1, 301), (1, 2, 1025)];
        let shapes = shapes.into_iter().flat_map(|s| [(s, false), (s, true)]);
        shapes.map(move |s| (dtype, s))
    }) {
        let (a, b, width) = shape;
        let x = tensor(&h_values(a * b * width), shape, dtype, device)?;
        let g = tensor(&normal(71, a * b * width), shape, dtype, device)?;
        let w: Vec<f64> = (0..width).map(|j| 1. + (j % 8) as f64 / 8.).collect();
        let c: Vec<f64> = (0..width).map(|j| (j % 8) as f64 / 4.).collect();
        let wide = float::wide(dtype);
        let full = |w: &[f64], dtype| tensor(w, width, dtype, device);
        let (ones, zeros) = (
            full(&vec![1.; width], dtype)?,
            full(&vec![0.; width], dtype)?,
        );
        for (has_weight, has_bias) in [(true, true), (true, false), (false, true), (false, false)] {
            let weight = if has_weight {
                full(&w, dtype)?
            } else {
                ones.clone()
            };
            let bias = if has_bias {
                full(&c, dtype)?
            } else {
                zeros.clone()
            };
            let all = pass(centred, &x, [Some(&weight), Some(&bias)], 0., &g)?;
            for side_dtype in [dtype, wide] {
                let what =
                    format!("{dtype:?} {shape:?} {centred} {has_weight} {has_bias} {side_dtype:?}");
                let (w, c) = (full(&w, side_dtype)?, full(&c, side_dtype)?);
                let sides = [has_weight.then_some(&w), has_bias.then_some(&c)];
                let got = pass(centred, &x, sides, 0., &g)?;
                assert_same(&format!("{what} y"), &got.y, &values(&all.y)?)?;
                assert_same(&format!("{what} dx"), &got.dx, &values(&all.dx)?)?;
                assert_eq!(
                    (got.dweight.is_some(), got.dbias.is_some()),
                    (has_weight, has_bias)
                );
                for (side, all) in [
                    (got.dweight, all.dweight.as_ref()),
                    (got.dbias, all.dbias.as_ref()),
                ] {
                    let (Some(side), Some(all)) = (side, all) else {
                        continue;
                    };
                    assert_eq!(side.dtype(), side_dtype, "{what}");
                    // The same sum, rounded to the side's own dtype.
                    assert_bits_eq(&what, &side.to_dtype(dtype)?, all)?;
                }
            }
        }
    }
    Ok(())
}

fn ops_dtypes() -> [DType; 4] {
    crate::common::ops::DTYPES
}

/// A weight that is stored less 1 gives what the whole weight gives, gradients included.
fn weight_offset(device: &Device) -> Result<()> {
    for dtype in ops_dtypes() {
        for centred in [false, true] {
            let width = 40;
            let x = tensor(&normal(72, 3 * width), (3, width), dtype, device)?;
            let g = tensor(&normal(73, 3 * width), (3, width), dtype, device)?;
            // Sums with 1 that no dtype rounds.
            let less: Vec<f64> = (0..width).map(|j| (j % 16) as f64 / 64.).collect();
            let whole: Vec<f64> = less.iter().map(|w| 1. + w).collect();
            let less = tensor(&less, width, dtype, device)?;
            let whole = tensor(&whole, width, dtype, device)?;
            let got = pass(centred, &x, [Some(&less), None], 1., &g)?;
            let expected = pass(centred, &x, [Some(&whole), None], 0., &g)?;
            assert_bits_eq("y", &got.y, &expected.y)?;
            assert_bits_eq("dx", &got.dx, &expected.dx)?;
            let (got, expected) = (got.dweight.unwrap(), expected.dweight.unwrap());
            assert_bits_eq("dweight", &got, &expected)?;
        }
    }
    let x = tensor(&h_values(4), (1, 4), DType::F32, device)?;
    let err = ops::rms_norm_with(
        &x,
        &NormOptions::new(0.)
            .weight(&x.get(0)?)
            .weight_offset(f64::NAN),
    );
    let err = err.unwrap_err().to_string();
    assert!(
        err.contains("rms-norm") && err.contains("weight_offset"),
        "{err}"
    );
    Ok(())
}

/// R8: the fused pair has the bits of the two ops, whatever lies how; the gradients are those of G03.
fn add_norm(device: &Device) -> Result<()> {
    let widths: &[usize] = match devices::is_host_run() {
        true => &[1, 5, 33, 257, 1025, 9000],
        false => &[1, 2, 5, 31, 33, 257, 1000, 1025, 5003, 70_000],
    };
    for dtype in ops_dtypes() {
        for &width in widths {
            let rows = if width > 5000 { 2 } else { 6 };
            let x = tensor(&normal(74, rows * width), (rows, width), dtype, device)?;
            let r = tensor(&normal(75, rows * width), (rows, width), dtype, device)?;
            let row = r.get(0)?.unsqueeze(0)?.broadcast_as((rows, width))?;
            let value = r.narrow(1, 0, 1)?.broadcast_as((rows, width))?;
            let transposed = r.t()?.contiguous()?.t()?;
            let w = tensor(&normal(76, width), width, dtype, device)?;
            let wide = w.to_dtype(float::wide(dtype))?;
            let options = NormOptions::new(1e-6);
            for residual in [&r, &row, &value, &transposed] {
                let expected_sum = (&x + residual)?;
                for options in [options.weight(&w), options, options.weight(&wide).bias(&w)] {
                    let what = format!("{dtype:?} {width} {:?}", residual.stride());
                    let (y, sum) = ops::add_rms_norm(&x, residual, &options)?;
                    assert_bits_eq(&what, &sum, &expected_sum)?;
                    let expected = ops::rms_norm_with(&expected_sum, &options)?;
                    assert_bits_eq(&what, &y, &expected)?;
                    let (y, sum) = ops::add_layer_norm(&x, residual, &options)?;
                    assert_bits_eq(&what, &sum, &expected_sum)?;
                    let expected = ops::layer_norm_with(&expected_sum, &options)?;
                    assert_bits_eq(&what, &y, &expected)?;
                }
            }
        }
    }
    // Shapes and dtypes that do not fit.
    let x = tensor(&h_values(8), (2, 4), DType::F32, device)?;
    for bad in [x.t()?, x.to_dtype(DType::BF16)?, x.narrow(1, 0, 3)?] {
        let err = ops::add_rms_norm(&x, &bad, &NormOptions::new(0.))
            .unwrap_err()
            .to_string();
        assert!(
            err.contains("add-rms-norm") && err.contains("residual"),
            "{err}"
        );
    }
    let nothing = Tensor::zeros((0, 4), DType::F32, device)?;
    let (y, sum) = ops::add_layer_norm(&nothing, &nothing, &NormOptions::new(0.))?;
    assert_eq!((y.dims(), sum.dims()), (&[0, 4][..], &[0, 4][..]));
    Ok(())
}

/// G03: the gradient of the sum is added behind the norm's, with both results used, and one alone.
fn g03(device: &Device) -> Result<()> {
    let (rows, width) = (8, 256);
    let of = |f: &dyn Fn(usize) -> f64| -> Vec<f64> { (0..rows * width).map(f).collect() };
    let xs = of(&h);
    let rs = of(&|k| h(5 * k + 2));
    let ws: Vec<f64> = (0..width).map(|j| 1. + j as f64 / 256.).collect();
    let (a, b) = (of(&|k| h(7 * k)), of(&|k| h(11 * k)));
    let zero = vec![0.; rows * width];
    for (centred, (a, b)) in [false, true]
        .into_iter()
        .flat_map(|centred| [(&a, &b), (&a, &zero), (&zero, &b)].map(|uses| (centred, uses)))
    {
        let x = var(&tensor(&xs, (rows, width), DType::F32, device)?)?;
        let r = var(&tensor(&rs, (rows, width), DType::F32, device)?)?;
        let w = var(&tensor(&ws, width, DType::F32, device)?)?;
        let bias = var(&tensor(&ws, width, DType::F32, device)?)?;
        let options = NormOptions::new(1e-6)
            .weight(w.as_tensor())
            .bias(bias.as_tensor());
        let (y, s) = match centred {
            true => ops::add_layer_norm(x.as_tensor(), r.as_tensor(), &options)?,
            false => ops::add_rms_norm(x.as_tensor(), r.as_tensor(), &options)?,
        };
        let a_t = tensor(a, (rows, width), DType::F32, device)?;
        let b_t = tensor(b, (rows, width), DType::F32, device)?;
        let used = |v: &Vec<f64>| v.iter().any(|v| *v != 0.);
        let loss = match (used(a), used(b)) {
            (true, true) => ((y * &a_t)?.sum_all()? + (s * &b_t)?.sum_all()?)?,
            (true, false) => (y * &a_t)?.sum_all()?,
            _ => (s * &b_t)?.sum_all()?,
        };
        let grads = loss.backward()?;
        let sums: Vec<f64> = xs.iter().zip(&rs).map(|(x, r)| x + r).collect();
        let op = match centred {
            true => Op::LayerNorm { eps: 1e-6 },
            false => Op::RmsNorm { eps: 1e-6 },
        };
        let sides = vec![ws.clone(); if centred { 2 } else { 1 }];
        let expected = gradient_reference::gradients(op, &sums, width, &sides, a, DType::F32);
        let dx: Vec<Expect> = expected
            .dx
            .iter()
            .zip(b.iter())
            .map(|(e, b)| Expect {
                value: e.value + b,
                bound: e.bound + float::unit(DType::F32) * (e.value.abs() + b.abs()),
            })
            .collect();
        check("dx", &gradient(&grads, &x), &dx)?;
        check("dresidual", &gradient(&grads, &r), &dx)?;
        if used(a) {
            check("dweight", &gradient(&grads, &w), &expected.sides[0])?;
            let total: Vec<f64> = (0..width)
                .map(|j| a.iter().skip(j).step_by(width).sum())
                .collect();
            assert_close("dbias", &gradient(&grads, &bias), &total, 1e-6)?;
        }
    }
    Ok(())
}

/// P08: the stored sum is rounded to nearest even, and the norm is that of the stored sum.
fn p08(device: &Device) -> Result<()> {
    let width = 4096;
    let cases = [
        (1., 3. / 512., 1.0078125),
        (1., 1. / 256., 1.),
        (1.0078125, 1. / 256., 1.015625),
    ];
    let fill = |f: &dyn Fn(&(f64, f64, f64)) -> f64| -> Vec<f64> {
        cases.iter().flat_map(|case| vec![f(case); width]).collect()
    };
    let x = tensor(&fill(&|c| c.0), (3, width), DType::BF16, device)?;
    let r = tensor(&fill(&|c| c.1), (3, width), DType::BF16, device)?;
    let (y, sum) = ops::add_rms_norm(&x, &r, &NormOptions::new(1e-6))?;
    assert_same("sum", &sum, &fill(&|c| c.2))?;
    assert_bits_eq("y", &y, &ops::rms_norm_with(&sum, &NormOptions::new(1e-6))?)
}

/// V02, backward: rows whose squares overflow or vanish have the gradients of f64.
fn v02_gradients(device: &Device) -> Result<()> {
    let rows = [
        [1e30, 2e30, 3e30, 4e30],
        [1e25, -1e25, 2e25, 0.],
        [1e-30, -2e-30, 1e-30, 3e-30],
        [3e38, -1e38, 2e38, 0.],
    ];
    for row in rows {
        let row = row.map(|v| f64::from(v as f32));
        for op in [Op::RmsNorm { eps: 1e-6 }, Op::LayerNorm { eps: 1e-6 }] {
            for scale in [1., 1e25, 1e-25] {
                let g = [1., -2., 0.5, 3.].map(|g| f64::from((g * scale) as f32));
                let x = var(&tensor(&row, (1, 4), DType::F32, device)?)?;
                let w = var(&tensor(&[1., 2., 1., 0.5], 4, DType::F32, device)?)?;
                let b = tensor(&[0.; 4], 4, DType::F32, device)?;
                let y = match op {
                    Op::RmsNorm { eps } => ops::rms_norm(x.as_tensor(), w.as_tensor(), eps)?,
                    _ => ops::layer_norm(x.as_tensor(), w.as_tensor(), &b, 1e-6)?,
                };
                let g_t = tensor(&g, (1, 4), DType::F32, device)?;
                let grads = (y * g_t)?.sum_all()?.backward()?;
                let mut sides = vec![vec![1., 2., 1., 0.5]];
                if matches!(op, Op::LayerNorm { .. }) {
                    sides.push(vec![0.; 4]);
                }
                let expected = gradient_reference::gradients(op, &row, 4, &sides, &g, DType::F32);
                let what = format!("{} {row:?} {scale}", op.name());
                check(
                    &format!("{what} dweight"),
                    &gradient(&grads, &w),
                    &expected.sides[0],
                )?;
                let got = values(&gradient(&grads, &x))?;
                assert!(got.iter().all(|v| v.is_finite()), "{what}: {got:?}");
                let most = expected.dx.iter().fold(0f64, |m, e| m.max(e.value.abs()));
                for (got, e) in got.iter().zip(&expected.dx) {
                    let bound = e.bound + 1e-5 * most + 1e-44;
                    assert!((got - e.value).abs() <= bound, "{what}: {got:e} {e:?}");
                }
            }
        }
    }
    Ok(())
}

/// Tall: the sum over rows of a bf16 weight is within an ulp of f64, and the same every time.
fn tall(device: &Device) -> Result<()> {
    let shapes: &[(usize, usize)] = match devices::is_host_run() {
        // The last three have more rows than bands: on the warp tier, in blocks and in clusters.
        true => &[
            (1003, 64),
            (300, 40),
            (61, 520),
            (16_901, 64),
            (530, 4200),
            (270, 8200),
        ],
        false => &[(20_003, 64), (3001, 257), (700, 1025)],
    };
    for &(rows, width) in shapes {
        let x = tensor(
            &normal(77, rows * width),
            (rows, width),
            DType::BF16,
            device,
        )?;
        let g = tensor(
            &normal(78, rows * width),
            (rows, width),
            DType::BF16,
            device,
        )?;
        let w = tensor(&vec![1.; width], width, DType::BF16, device)?;
        let xs = values(&x)?;
        let gs = values(&g)?;
        for centred in [false, true] {
            let sides = [Some(&w), centred.then_some(&w)];
            let first = pass(centred, &x, sides, 0., &g)?;
            let (mut dw, mut db) = (vec![0f64; width], vec![0f64; width]);
            for (row, g) in xs.chunks(width).zip(gs.chunks(width)) {
                let mean = match centred {
                    true => row.iter().sum::<f64>() / width as f64,
                    false => 0.,
                };
                let var = row.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / width as f64;
                for j in 0..width {
                    dw[j] += g[j] * (row[j] - mean) / (var + 1e-5).sqrt();
                    db[j] += g[j];
                }
            }
            within_an_ulp("dweight", first.dweight.as_ref().unwrap(), &dw)?;
            if let Some(got) = &first.dbias {
                within_an_ulp("dbias", got, &db)?;
            }
            let times = if device.is_cuda() { 100 } else { 5 };
            for time in 0..devices::at_pace(times, 2, 2) {
                let again = pass(centred, &x, sides, 0., &g)?;
                if time < 2 {
                    assert_bits_eq("dx again", &again.dx, &first.dx)?;
                }
                let (again, first) = (again.dweight.unwrap(), first.dweight.clone().unwrap());
                assert_bits_eq("dweight again", &again, &first)?;
            }
        }
    }
    Ok(())
}

fn within_an_ulp(what: &str, got: &Tensor, expected: &[f64]) -> Result<()> {
    for (got, expected) in values(got)?.iter().zip(expected) {
        let ulp = float::ulp(DType::BF16, *expected);
        assert!(
            (got - expected).abs() <= ulp,
            "{what}: {got} for {expected}"
        );
    }
    Ok(())
}

/// A million rows: the sums over them are as close.
fn a_million_rows(device: &Device) -> Result<()> {
    let (rows, width) = (devices::at_pace(1_000_003, 100_003, 4003), 64);
    // 101 values that no row's length divides: any two rows of so many differ.
    let period: Vec<f32> = (0..101).map(|k| h(k) as f32).collect();
    let elements = |from: usize| {
        let elements = period.iter().cycle().skip(from).take(rows * width);
        elements
            .map(|v| half::bf16::from_f32(*v))
            .collect::<Vec<_>>()
    };
    let x = Tensor::from_vec(elements(0), (rows, width), device)?;
    let g = Tensor::from_vec(elements(17), (rows, width), device)?;
    let w = tensor(&vec![1.; width], width, DType::BF16, device)?;
    for centred in [false, true] {
        // What each of the 101 rows adds, and how often.
        let (mut dw, mut db) = (vec![0f64; width], vec![0f64; width]);
        for start in 0..101.min(rows) {
            let times = (rows - start).div_ceil(101) as f64;
            let at = |j: usize| h((start * width + j) % 101);
            let mean = match centred {
                true => (0..width).map(at).sum::<f64>() / width as f64,
                false => 0.,
            };
            let var = (0..width).map(|j| (at(j) - mean).powi(2)).sum::<f64>() / width as f64;
            for j in 0..width {
                let g = times * h((start * width + j + 17) % 101);
                dw[j] += g * (at(j) - mean) / (var + 1e-5).sqrt();
                db[j] += g;
            }
        }
        let sides = [Some(&w), centred.then_some(&w)];
        let got = pass(centred, &x, sides, 0., &g)?;
        within_an_ulp("dweight", &got.dweight.unwrap(), &dw)?;
        if let Some(got) = &got.dbias {
            within_an_ulp("dbias", got, &db)?;
        }
    }
    Ok(())
}

/// Per-head norms of transposed queries: read where they lie.
fn qk_norm(device: &Device) -> Result<()> {
    let (batch, seq, heads, dim) = (2, 5, 3, 24);
    let n = batch * seq * heads * dim;
    for dtype in ops_dtypes() {
        let q = tensor(&normal(79, n), (batch, seq, heads, dim), dtype, device)?;
        let w = tensor(&normal(80, dim), dim, dtype, device)?;
        let view = q.transpose(1, 2)?;
        let rows = candle_rowwise::problem::Rows::of(view.layout());
        assert!(
            rows.is_some_and(|rows| rows.is_contiguous()),
            "packed first"
        );
        let options = NormOptions::new(1e-6).weight(&w);
        let got = ops::rms_norm_with(&view, &options)?;
        assert_bits_eq(
            "view",
            &got,
            &ops::rms_norm_with(&view.contiguous()?, &options)?,
        )?;
    }
    Ok(())
}

/// One row of l2_normalize and its gradient.
fn l2_reference(x: &[f64], g: &[f64], eps: f64, dtype: DType) -> (Vec<Expect>, Vec<Expect>) {
    let scale = x.iter().fold(0f64, |m, v| m.max(v.abs())).max(eps);
    let scale = if scale > 0. { scale } else { 1. };
    let length = x.iter().map(|v| (v / scale).powi(2)).sum::<f64>().sqrt() * scale;
    let divisor = length.max(eps);
    let y: Vec<f64> = x.iter().map(|v| v / divisor).collect();
    let along = |f: &dyn Fn(f64) -> f64| -> f64 { y.iter().zip(g).map(|(y, g)| f(y * g)).sum() };
    let (sum, magnitude) = match length < eps {
        true => (0., 0.),
        false => (along(&|p| p), along(&f64::abs)),
    };
    let u = (reference::depth(x.len()) + 16.) * float::unit(float::wide(dtype));
    let expect = |value: f64, magnitude: f64| Expect {
        value,
        bound: u * magnitude + float::ulp(dtype, value),
    };
    let dx = y.iter().zip(g).map(|(y, g)| {
        let value = (g - y * sum) / divisor;
        expect(value, (g.abs() + y.abs() * magnitude) / divisor)
    });
    let dx = dx.collect();
    (y.iter().map(|y| expect(*y, y.abs())).collect(), dx)
}

fn l2_normalize(device: &Device) -> Result<()> {
    let widths: &[usize] = match devices::is_host_run() {
        true => &[1, 3, 33, 257, 1025, 9000],
        false => &[1, 2, 3, 31, 33, 257, 1000, 1025, 5003, 70_000],
    };
    let check_rows = |x: &[f64], g: &[f64], width: usize, eps: f64, dtype: DType| -> Result<()> {
        let shape = (x.len() / width, width);
        let x_var = var(&tensor(x, shape, dtype, device)?)?;
        let g_t = tensor(g, shape, dtype, device)?;
        let (x, g) = (values(x_var.as_tensor())?, values(&g_t)?);
        let y = ops::l2_normalize(x_var.as_tensor(), 1, eps)?;
        let grads = (&y * &g_t)?.sum_all()?.backward()?;
        let dx = gradient(&grads, &x_var);
        let expected = x.chunks(width).zip(g.chunks(width));
        let (ys, dxs): (Vec<_>, Vec<_>) = expected
            .map(|(x, g)| l2_reference(x, g, eps, dtype))
            .unzip();
        check(&format!("{dtype:?} {width} y"), &y, &ys.concat())?;
        check(&format!("{dtype:?} {width} dx"), &dx, &dxs.concat())?;

        // Over the first dim, of the transposed: the same bits.
        let transposed = x_var.as_tensor().t()?;
        let got = ops::l2_normalize(&transposed, 0, eps)?;
        assert_bits_eq("transposed", &got.t()?.contiguous()?, &y)
    };
    for dtype in ops_dtypes() {
        for &width in widths {
            let rows = if width > 5000 { 2 } else { 5 };
            let mut x = normal(83, rows * width);
            // One row is shorter than eps, and one zero.
            x[..width]
                .iter_mut()
                .for_each(|v| *v *= 1e-4 / width as f64);
            x[width..2 * width].fill(0.);
            let g = normal(84, rows * width);
            check_rows(&x, &g, width, 1e-3, dtype)?;
        }
    }
    let extreme = [
        1e30, -2e30, 1e30, 0., 1e-30, 2e-30, -1e-30, 3e-30, 3e38, 1e38, 0., -1e38,
    ];
    let extreme = extreme.map(|v| f64::from(v as f32));
    check_rows(&extreme, &normal(85, 12), 4, 0., DType::F32)?;
    let nan = tensor(&[1., f64::NAN, 0., 0.], (2, 2), DType::F32, device)?;
    let got = values(&ops::l2_normalize(&nan, 1, 0.)?)?;
    assert!(got.iter().all(|v| v.is_nan()), "{got:?}");
    let err = ops::l2_normalize(&nan, 1, -1.).unwrap_err().to_string();
    assert!(err.contains("l2-normalize") && err.contains("eps"), "{err}");
    Ok(())
}

on_devices! {
    l2_normalize: l2_normalize_cpu, l2_normalize_cuda;
    a01: a01_cpu, a01_cuda;
    weight_offset: weight_offset_cpu, weight_offset_cuda;
    add_norm: add_norm_cpu, add_norm_cuda;
    g03: g03_cpu, g03_cuda;
    p08: p08_cpu, p08_cuda;
    v02_gradients: v02_gradients_cpu, v02_gradients_cuda;
    tall: tall_cpu, tall_cuda;
    a_million_rows: a_million_rows_cpu, a_million_rows_cuda;
    qk_norm: qk_norm_cpu, qk_norm_cuda;
}

/// Composed gradients are those of the kernels.
#[test]
fn composed_gradients() -> Result<()> {
    composed::run_again(&[
        "norms::a01_cpu",
        "norms::g03_cpu",
        "norms::l2_normalize_cpu",
        "norms::v02_gradients_cpu",
        "norms::weight_offset_cpu",
    ])
}

/// The CPU has no tiers to force; its parallelism is what could change bits.
#[test]
fn gradients_on_any_number_of_threads_cpu() -> Result<()> {
    for (rows, width) in [(1, 70_000), (3000, 64), (300, 1025)] {
        let x = tensor(
            &normal(81, rows * width),
            (rows, width),
            DType::BF16,
            &Device::Cpu,
        )?;
        let w = tensor(&normal(82, width), width, DType::BF16, &Device::Cpu)?;
        let run = |threads: usize| -> Result<Vec<Tensor>> {
            let pool = rayon::ThreadPoolBuilder::new()
                .num_threads(threads)
                .build()?;
            pool.install(|| {
                let p = pass(true, &x, [Some(&w), Some(&w)], 0., &x)?;
                Ok([Some(p.dx), p.dweight, p.dbias]
                    .into_iter()
                    .flatten()
                    .collect())
            })
        };
        let one = run(1)?;
        for threads in [2, 16] {
            for (got, expected) in run(threads)?.iter().zip(&one) {
                assert_bits_eq(&format!("{threads} threads"), got, expected)?;
            }
        }
    }
    Ok(())
}
