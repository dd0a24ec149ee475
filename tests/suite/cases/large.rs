//! B03 and B04: offsets and rows beyond 2^31 and 2^32. Up to 60 GB of GPU memory, so only where
//! `ROWWISE_BIG_TESTS=1` asks for them.

use std::io::Write;

use candle_rowwise::ops::{self, CrossEntropyOptions, NormOptions, Reduction};

use crate::common::*;

/// A tensor of so many rows on the GPU. They repeat with a period that no power of two is a multiple of,
/// so that a row that is read 2^31 or 2^32 elements off is another one.
fn rows_of(rows: usize, width: usize, dtype: DType, device: &Device) -> Result<Tensor> {
    let period = (((1 << 25) / width) | 1).min(rows);
    let some = Tensor::randn(0f32, 1f32, (period, width), device)?.to_dtype(dtype)?;
    let times = rows.div_ceil(period);
    let last = some.narrow(0, 0, rows - (times - 1) * period)?;
    let mut parts = vec![some; times - 1];
    parts.push(last);
    Ok(Tensor::cat(&parts, 0)?)
}

/// The rows around elements 2^31 and 2^32, and the last five.
fn critical(rows: usize, width: usize) -> Vec<usize> {
    let around = [31, 32].map(|log2| (1usize << log2) / width);
    let around = around
        .into_iter()
        .flat_map(|row| row.saturating_sub(1)..=row + 1);
    let mut found: Vec<usize> = around.chain(rows - 5..rows).collect();
    found.retain(|row| *row < rows);
    found.dedup();
    found
}

/// One row in memory of its own. (Reading a view back copies all of what it looks into.)
fn row_of(t: &Tensor, row: usize) -> Result<Tensor> {
    Ok(t.narrow(0, row, 1)?.affine(1., 0.)?)
}

/// Critical rows of the results, against the same rows run alone.
fn assert_alone<const N: usize>(
    what: &str,
    (rows, width): (usize, usize),
    results: [&Tensor; N],
    alone: impl Fn(usize) -> Result<[Tensor; N]>,
) -> Result<()> {
    for row in critical(rows, width) {
        for (i, (y, alone)) in results.iter().zip(alone(row)?).enumerate() {
            let what = format!("{what} ({rows}, {width}): result {i}, row {row}");
            assert_bits_eq(&what, &row_of(y, row)?, &alone.affine(1., 0.)?)?;
        }
    }
    Ok(())
}

/// Runs a body where big tests are asked for, and says so where they are not.
fn big(test: &str, body: impl Fn(&Device) -> Result<()>) -> Result<()> {
    if !devices::is_on("ROWWISE_BIG_TESTS") {
        // Past the capture of passing tests' output.
        writeln!(
            std::io::stderr(),
            "{test} is skipped: ROWWISE_BIG_TESTS=1 runs it, on a GPU of 80 GB"
        )?;
        return Ok(());
    }
    match devices::cuda(test) {
        Some(device) => body(device),
        None => Ok(()),
    }
}

#[test]
fn b03_residual_cuda() -> Result<()> {
    big("b03_residual_cuda", |device| {
        let (rows, width) = (1_048_641, 4096);
        let x = rows_of(rows, width, DType::BF16, device)?;
        let r = rows_of(rows, width, DType::BF16, device)?;
        let w = rows_of(1, width, DType::BF16, device)?.squeeze(0)?;
        let options = NormOptions::new(1e-6).weight(&w);
        let (y, sum) = ops::add_rms_norm(&x, &r, &options)?;
        assert_alone("residual", (rows, width), [&y, &sum], |row| {
            let (x, r) = (row_of(&x, row)?, row_of(&r, row)?);
            Ok(ops::add_rms_norm(&x, &r, &options)?.into())
        })
    })
}

#[test]
fn b03_softmax_cuda() -> Result<()> {
    big("b03_softmax_cuda", |device| {
        let (rows, width) = (2_097_153, 1024);
        let x = rows_of(rows, width, DType::F16, device)?;
        let y = ops::softmax(&x, 1)?;
        assert_alone("softmax", (rows, width), [&y], |row| {
            Ok([ops::softmax(&row_of(&x, row)?, 1)?])
        })?;
        for row in critical(rows, width) {
            let total = ops::sum(&row_of(&y, row)?.to_dtype(DType::F32)?, 1)?;
            assert_close("total", &total, &[1.], 1e-3)?;
        }
        Ok(())
    })
}

#[test]
fn b03_log_softmax_cuda() -> Result<()> {
    big("b03_log_softmax_cuda", |device| {
        let (outer, inner, width) = (669, 128, 50259);
        let rows = outer * inner;
        let x = rows_of(rows, width, DType::BF16, device)?;
        let y = ops::log_softmax(&x.reshape((outer, inner, width))?, D::Minus1)?;
        let y = y.reshape((rows, width))?;
        assert_alone("log-softmax", (rows, width), [&y], |row| {
            Ok([ops::log_softmax(&row_of(&x, row)?, 1)?])
        })
    })
}

#[test]
fn b03_cross_entropy_cuda() -> Result<()> {
    big("b03_cross_entropy_cuda", |device| {
        let (rows, width) = (98_256, 50_000);
        let x = rows_of(rows, width, DType::F16, device)?;
        let targets: Vec<u32> = (0..rows as u32).map(|i| i * 31 % width as u32).collect();
        let targets = Tensor::from_vec(targets, rows, device)?;
        let options = CrossEntropyOptions::default().reduction(Reduction::None);
        let (loss, gradient) = ops::cross_entropy_with_gradient(&x, &targets, &options)?;
        assert_alone("cross-entropy", (rows, width), [&loss, &gradient], |row| {
            let target = targets.narrow(0, row, 1)?;
            let x = row_of(&x, row)?;
            Ok(ops::cross_entropy_with_gradient(&x, &target, &options)?.into())
        })
    })
}

#[test]
fn b03_sum_cuda() -> Result<()> {
    big("b03_sum_cuda", |device| {
        let (rows, width) = (1 << 25, 128);
        let x = rows_of(rows, width, DType::BF16, device)?;
        let y = ops::sum(&x, 1)?;
        assert_alone("sum", (rows, width), [&y], |row| {
            Ok([ops::sum(&row_of(&x, row)?, 1)?])
        })
    })
}

#[test]
fn b04_log_softmax_cuda() -> Result<()> {
    big("b04_log_softmax_cuda", |device| {
        let width = (1 << 31) - 1;
        let x = Tensor::zeros((1, width), DType::F16, device)?;
        let y = ops::log_softmax(&x, 1)?;
        let (min, max) = ops::min_max(&y, 1)?;
        assert_same("least", &min, &[-21.484375])?;
        assert_same("most", &max, &[-21.484375])
    })
}

#[test]
fn b04_softmax_gradient_cuda() -> Result<()> {
    big("b04_softmax_gradient_cuda", |device| {
        let width = (1 << 31) + 2;
        let x = Var::zeros((1, width), DType::BF16, device)?;
        let y = ops::softmax(x.as_tensor(), 1)?;
        // One gradient for all: y (g - g sum(y)) is 0, to the roundings of the sum.
        let grads = ops::sum(&y, 1)?.backward()?;
        let dx = grads.get(x.as_tensor()).expect("a gradient");
        let most = ops::abs_max(dx, 1)?;
        let near = |value, bound| [Expect { value, bound }];
        check("constant", &most, &near(0., 1e-15))?;
        // At the last element alone, it is y (1 - y) there and -y^2 elsewhere.
        let last = y.narrow(1, width - 1, 1)?.affine(1., 0.)?.sum_all()?;
        let grads = last.backward()?;
        let dx = grads.get(x.as_tensor()).expect("a gradient");
        let p = 1. / width as f64;
        let index = ops::argmax(dx, 1)?;
        assert_same("the last", &index, &[(width - 1) as f64])?;
        let (least, most) = ops::min_max(dx, 1)?;
        check("elsewhere", &least, &near(-p * p, p * p / 128.))?;
        check("there", &most, &near(p - p * p, p / 128.))
    })
}

#[test]
fn b04_argmax_cuda() -> Result<()> {
    big("b04_argmax_cuda", |device| {
        let most = 1 << 32;
        let zeros = Tensor::zeros((1, most), DType::U8, device)?;
        let one = Tensor::ones((1, 1), DType::U8, device)?;
        let x = Tensor::cat(&[zeros.narrow(1, 0, most - 1)?, one], 1)?;
        assert_same("argmax", &ops::argmax(&x, 1)?, &[(most - 1) as f64])?;
        let longer = Tensor::zeros((1, most + 1), DType::U8, device)?;
        let err = ops::argmax(&longer, 1).unwrap_err().to_string();
        let length = (most + 1).to_string();
        assert!(err.contains("argmax") && err.contains(&length), "{err}");
        Ok(())
    })
}
