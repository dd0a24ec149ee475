//! N: sizes off the grid.

use candle_rowwise::ops;

use crate::common::data::h_values;
use crate::common::ops::{run, side_values, sides, suited};
use crate::common::*;

/// `op` on rows of these values, against the reference.
fn right(op: Op, x: &[f64], rows: usize, dtype: DType, device: &Device) -> Result<Tensor> {
    let width = x.len() / rows;
    let what = format!("{} {dtype:?} {rows} rows of {width}", op.name());
    let x = suited(op, x.to_vec(), width);
    let x = tensor(&x, (rows, width), dtype, device)?;
    let sides = sides(op, width, dtype, device)?;
    let y = run(op, &x, &sides)?;
    let side_values = side_values(&sides)?;
    let expected: Vec<Expect> = values(&x)?
        .chunks(width)
        .flat_map(|row| reference::forward(op, row, &side_values, dtype))
        .collect();
    check(&what, &y, &expected)?;
    // The case's own bound for the norms: 1e-6 of the row's scale, which is 1.
    if dtype == DType::F32 && !sides.is_empty() {
        let expected: Vec<Expect> = expected
            .iter()
            .map(|e| Expect {
                value: e.value,
                bound: 1e-6 * e.value.abs().max(1.),
            })
            .collect();
        check(&what, &y, &expected)?;
    }
    Ok(y)
}

/// The tail of a row is handled, and nothing beside it enters the statistics.
fn n01(device: &Device) -> Result<()> {
    let sweep = [
        1, 2, 3, 5, 7, 31, 33, 63, 65, 127, 129, 255, 257, 320, 511, 513, 1000, 1023, 1025, 1536,
        2047, 2049, 4097, 5003, 8191, 8193,
    ];
    for dtype in [DType::BF16, DType::F32] {
        for width in sweep {
            let rows = if width > 1025 { 3 } else { 37 };
            let x: Vec<f64> = h_values(rows * width).iter().map(|v| 5. + v).collect();
            for op in Op::ALL {
                right(op, &x, rows, dtype, device)?;
            }
        }
    }
    Ok(())
}

/// argmax and argmin on a short axis that is not innermost.
fn n02(device: &Device) -> Result<()> {
    for middle in [101, 65, 100, 127] {
        let (outer, inner) = (37, 53);
        let x = normal(70, outer * middle * inner);
        let t = tensor(&x, (outer, middle, inner), DType::F32, device)?;
        let x = values(&t)?;
        let (mut largest, mut smallest) = (Vec::new(), Vec::new());
        for o in 0..outer {
            for i in 0..inner {
                let column: Vec<f64> = (0..middle)
                    .map(|m| x[(o * middle + m) * inner + i])
                    .collect();
                largest.push(reference::argmax(&column) as f64);
                smallest.push(reference::argmin(&column) as f64);
            }
        }
        assert_same("argmax", &ops::argmax(&t, 1)?, &largest)?;
        assert_same("argmin", &ops::argmin(&t, 1)?, &smallest)?;
    }
    Ok(())
}

/// Rows around what fits into the shared memory of a GPU.
fn n03(device: &Device) -> Result<()> {
    let rows = if device.is_cpu() { 2 } else { 16 };
    for width in [33024, 36864, 40448, 57344, 58000, 61000, 131072, 262144] {
        for op in [Op::Softmax, Op::LogSoftmax, Op::LayerNorm { eps: 1e-5 }] {
            right(op, &normal(71, rows * width), rows, DType::F32, device)?;
        }
    }
    Ok(())
}

/// Padding is not joined in. (cross_entropy does not exist here yet.)
fn n04(device: &Device) -> Result<()> {
    let x = Tensor::zeros((1, 10), DType::F32, device)?;
    let y = ops::logsumexp(&x, 1)?;
    assert_close("logsumexp", &y, &[std::f64::consts::LN_10], 1e-7)?;
    let x = tensor(&[-7.; 30], (3, 10), DType::F32, device)?;
    assert_same("max", &ops::max(&x, 1)?, &[-7.; 3])?;
    assert_same("min", &ops::min(&x.neg()?, 1)?, &[7.; 3])?;
    assert_same("all", &ops::all(&x, 1)?, &[1.; 3])?;
    let x = Tensor::ones((3, 10), DType::F32, device)?;
    assert_same("prod", &ops::prod(&x, 1)?, &[1.; 3])
}

on_devices! {
    n01: n01_cpu, n01_cuda;
    n02: n02_cpu, n02_cuda;
    n03: n03_cpu, n03_cuda;
    n04: n04_cpu, n04_cuda;
}
