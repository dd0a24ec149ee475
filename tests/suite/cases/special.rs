//! S: NaN, infinities and masks.

use candle_rowwise::ops;

use super::{gradient_of, var};
use crate::common::data::h_values;
use crate::common::ops::DTYPES;
use crate::common::*;

const INF: f64 = f64::INFINITY;

/// A row of nothing but -inf, one with a NaN and one with a +inf are NaN throughout, at every
/// length and in every dtype.
fn s01(device: &Device) -> Result<()> {
    for dtype in DTYPES {
        for width in [1, 2, 31, 32, 33, 127, 128, 1024, 1025, 8192, 70000, 300000] {
            let mut x = vec![-INF; width];
            let nan = vec![f64::NAN; width];
            // At the start, in the middle and at the end of the row, wherever that is folded.
            let places = [0, width / 2, width - 1];
            let mut rows = vec![x.clone()];
            for (special, fill) in [(f64::NAN, 0.5), (INF, 0.5), (f64::NAN, -INF), (INF, -INF)] {
                for place in places {
                    x.fill(fill);
                    x[place] = special;
                    rows.push(x.clone());
                }
            }
            if devices::is_host_run() && width > 1025 {
                // At the end alone.
                rows.drain(1..rows.len() - 3);
            }
            // Long rows one by one: the memory of all of them at once is not what is tested.
            for row in rows {
                let t = tensor(&row, (1, width), dtype, device)?;
                let what = format!("{dtype:?} {width}");
                assert_same(&format!("softmax {what}"), &ops::softmax(&t, 1)?, &nan)?;
                let y = ops::log_softmax(&t, 1)?;
                assert_same(&format!("log_softmax {what}"), &y, &nan)?;
            }
        }
    }
    Ok(())
}

/// A scaled softmax under a mask that hides all keys of a query: zeros there, forward and backward, and in
/// all other rows the bits of a run without that query. Whatever the mask is broadcast from.
fn s02(device: &Device) -> Result<()> {
    let shape = [2, 2, 4, 4];
    let x = tensor(&h_values(64), shape.as_slice(), DType::F32, device)?;
    let g = tensor(&normal(44, 64), shape.as_slice(), DType::F32, device)?;
    for batches in [1, 2] {
        for heads in [1, 2] {
            let kept: Vec<u8> = (0..batches * heads * 16)
                .map(|k| {
                    let (batch, i, j) = (k / 16 / heads, k / 4 % 4, k % 4);
                    u8::from(j <= i && !(batch == 0 && i == 1))
                })
                .collect();
            let mask = Tensor::from_vec(kept, (batches, heads, 4, 4), device)?;
            let full = mask.broadcast_as(shape.as_slice())?;
            // What is added for the same: 0 and -inf.
            let added = full.where_cond(&x.zeros_like()?, &(x.ones_like()? * -INF)?)?;
            let run = |x: &Tensor, g: &Tensor, mask: &Tensor| -> Result<[Tensor; 2]> {
                let x = Var::from_tensor(x)?;
                let options = ops::SoftmaxOptions::new().scale(0.5).mask(mask);
                let y = ops::softmax_with(x.as_tensor(), 3, &options)?;
                let dx = gradient_of(&(&y * g)?.sum_all()?.backward()?, &x);
                Ok([y, dx])
            };
            let got = run(&x, &g, &mask)?;
            let without = |t: &Tensor| Tensor::cat(&[t.narrow(2, 0, 1)?, t.narrow(2, 2, 2)?], 2);
            let others = run(&without(&x)?, &without(&g)?, &without(&full)?)?;
            let by_adding = run(&x, &g, &added)?;
            for i in 0..2 {
                let what = format!("S02 ({batches}, {heads}) {}", ["y", "dx"][i]);
                let hidden = got[i].narrow(0, 0, 1)?.narrow(2, 1, 1)?;
                assert_same(&what, &hidden, &[0.; 8])?;
                let rest = |t: &Tensor| -> Result<Tensor> {
                    Ok(t.narrow(0, 2 - batches, batches)?.contiguous()?)
                };
                let rest_of_got = rest(&without(&got[i])?)?;
                assert_bits_eq(&what, &rest_of_got, &rest(&others[i])?)?;
                assert_bits_eq(&format!("{what} by adding"), &by_adding[i], &got[i])?;
            }
        }
    }
    Ok(())
}

/// logsumexp at infinities, and where exp without a shift is none.
fn s03(device: &Device) -> Result<()> {
    for dtype in DTYPES {
        let lse = |row: &[f64]| -> Result<Tensor> {
            Ok(ops::logsumexp(&tensor(row, row.len(), dtype, device)?, 0)?)
        };
        assert_same("+inf", &lse(&[INF, 2., 3.])?, &[INF])?;
        assert_same("-inf", &lse(&[-INF, -INF])?, &[-INF])?;
        assert_same("both", &lse(&[-INF, INF])?, &[INF])?;
        assert_same("NaN", &lse(&[INF, f64::NAN])?, &[f64::NAN])?;
        assert_same("one", &lse(&[3.25])?, &[3.25])?;
        let relative = 1e-7f64.max(float::unit(dtype));
        assert_close("100", &lse(&[100., 0.])?, &[100.], relative)?;
        assert_close("-100", &lse(&[-100., -100.])?, &[-99.3068528194], relative)?;
    }
    Ok(())
}

/// The ends of rows of one infinity or of the lowest integer: the start value is no largest finite
/// number.
fn s04(device: &Device) -> Result<()> {
    for dtype in DTYPES {
        for width in [1, 10, 100000] {
            let x = tensor(&vec![-INF; width], width, dtype, device)?;
            assert_same("max", &ops::max(&x, 0)?, &[-INF])?;
            assert_same("argmax", &ops::argmax(&x, 0)?, &[0.])?;
            let mut x = vec![-INF; width];
            x[width - 1] = -3e4;
            let x = tensor(&x, width, dtype, device)?;
            let last = (width - 1) as f64;
            assert_same("last", &ops::argmax(&x, 0)?, &[last])?;
            assert_same("last", &ops::argmin(&x.neg()?, 0)?, &[last])?;
            let x = tensor(&vec![INF; width], width, dtype, device)?;
            assert_same("min", &ops::min(&x, 0)?, &[INF])?;
            assert_same("argmin", &ops::argmin(&x, 0)?, &[0.])?;
            assert_same("argmax", &ops::argmax(&x, 0)?, &[0.])?;
            let (min, max) = ops::min_max(&x, 0)?;
            assert_same("min of both", &min, &[INF])?;
            assert_same("max of both", &max, &[INF])?;
        }
    }
    for width in [1, 10, 100000] {
        let x = Tensor::new(vec![i64::MIN; width], device)?;
        assert_eq!(ops::max(&x, 0)?.to_scalar::<i64>()?, i64::MIN);
        assert_same("argmax", &ops::argmax(&x, 0)?, &[0.])?;
        let x = Tensor::new(vec![i64::MAX; width], device)?;
        assert_eq!(ops::min(&x, 0)?.to_scalar::<i64>()?, i64::MAX);
        assert_same("argmin", &ops::argmin(&x, 0)?, &[0.])?;
        let x = Tensor::zeros(width, DType::U8, device)?;
        assert_same("max", &ops::max(&x, 0)?, &[0.])?;
        assert_same("argmax", &ops::argmax(&x, 0)?, &[0.])?;
    }
    Ok(())
}

/// A NaN wins, and the first of them has the index.
fn s05(device: &Device) -> Result<()> {
    let nan = f64::NAN;
    let with = |n: usize, places: &[usize]| {
        let mut row = h_values(n);
        for p in places {
            row[*p] = nan;
        }
        row
    };
    let rows = [
        (vec![3., nan, 1., 5.], 1.),
        (vec![INF, nan, -INF], 1.),
        (with(400, &[0, 77]), 0.),
        (with(4000, &[0, 77]), 0.),
        (with(4000, &[77, 3999]), 77.),
        (with(1027, &[1026]), 1026.),
    ];
    for dtype in DTYPES {
        for (row, index) in &rows {
            let x = tensor(row, row.len(), dtype, device)?;
            assert_same("max", &ops::max(&x, 0)?, &[nan])?;
            assert_same("argmax", &ops::argmax(&x, 0)?, &[*index])?;
            assert_same("min", &ops::min(&x, 0)?, &[nan])?;
            assert_same("argmin", &ops::argmin(&x, 0)?, &[*index])?;
            let (min, max) = ops::min_max(&x, 0)?;
            assert_same("min of both", &min, &[nan])?;
            assert_same("max of both", &max, &[nan])?;
        }
    }
    Ok(())
}

/// Parts of a row that have seen only -inf are joined with the others.
fn s06(device: &Device) -> Result<()> {
    let mut start = vec![-INF; 6144];
    start.extend(&h_values(8192)[6144..]);
    let mut end = vec![-INF; 70000];
    end[69999] = 1.5;
    for dtype in DTYPES {
        for row in [start.clone(), vec![-INF, -INF, 0.25, -INF, 1.], end.clone()] {
            let width = row.len();
            for op in [Op::Softmax, Op::LogSoftmax, Op::LogSumExp] {
                let what = format!("{} {dtype:?} {width}", op.name());
                let x = var(&row, (1, width), dtype, device)?;
                let y = crate::common::ops::run(op, x.as_tensor(), &[])?;
                let expected = reference::forward(op, &row, &[], dtype);
                check(&what, &y, &expected)?;
                // The gradient of log_softmax adds these up: to what f16 holds.
                let g = tensor(&vec![0.0625; y.elem_count()], y.shape(), dtype, device)?;
                let grads = (&y * &g)?.sum_all()?.backward()?;
                let g = values(&g)?;
                let expected = gradient_reference::gradients(op, &row, width, &[], &g, dtype);
                let dx = gradient_of(&grads, &x);
                check(&format!("{what} dx"), &dx, &expected.dx)?;
                assert!(values(&dx)?.iter().all(|v| v.is_finite()), "{what}");
            }
        }
        let x = tensor(&end, (1, 70000), dtype, device)?;
        let mut one_hot = vec![0.; 70000];
        one_hot[69999] = 1.;
        assert_same("one-hot", &ops::softmax(&x, 1)?, &one_hot)?;
        assert_same("logsumexp", &ops::logsumexp(&x, 1)?, &[1.5])?;
    }
    Ok(())
}

/// What each reduction makes of NaN and infinities, at every length.
fn reductions(device: &Device) -> Result<()> {
    let nan = f64::NAN;
    let with = |special: &[f64], width: usize| {
        let mut row = vec![0.5; width];
        // At the start and, the last of them, at the end.
        row[0] = special[0];
        row[width - 1] = special[special.len() - 1];
        row
    };
    // What is in the row; sum and mean, the norms and the mean of squares, product, var and std.
    let cases: [(&[f64], [f64; 4]); 4] = [
        (&[nan], [nan; 4]),
        (&[INF], [INF, INF, INF, nan]),
        (&[-INF, INF], [nan, INF, -INF, nan]),
        (&[-INF, nan], [nan; 4]),
    ];
    for dtype in DTYPES {
        for width in [2, 3, 64, 1025, 70000] {
            for (special, [sum, norm, prod, var]) in cases {
                let what = format!("{special:?} in {width} {dtype:?}");
                let x = tensor(&with(special, width), width, dtype, device)?;
                // Small factors of an infinity do not make a 0 of it, but two halves of a long row
                // may be 0 and infinite.
                if width <= 64 {
                    assert_same(&what, &ops::prod(&x, 0)?, &[prod])?;
                }
                for y in [ops::sum(&x, 0)?, ops::mean(&x, 0)?] {
                    assert_same(&what, &y, &[sum])?;
                }
                for y in [
                    ops::norm_l1(&x, 0)?,
                    ops::norm_l2(&x, 0)?,
                    ops::norm_linf(&x, 0)?,
                    ops::mean_of_squares(&x, 0)?,
                ] {
                    assert_same(&what, &y, &[norm])?;
                }
                assert_same(&what, &ops::var(&x, 0, 0)?, &[var])?;
                assert_same(&what, &ops::std(&x, 0, 1)?, &[var])?;
                assert_same(&what, &ops::all(&x, 0)?, &[1.])?;
                assert_same(&what, &ops::any(&(x * 0.)?, 0)?, &[1.])?;
            }
        }
    }
    Ok(())
}

on_devices! {
    reductions: reductions_cpu, reductions_cuda;
    s01: s01_cpu, s01_cuda;
    s02: s02_cpu, s02_cuda;
    s03: s03_cpu, s03_cuda;
    s04: s04_cpu, s04_cuda;
    s05: s05_cpu, s05_cuda;
    s06: s06_cpu, s06_cuda;
}
