//! B: many rows.

use candle_rowwise::ops;
use half::bf16;

use crate::common::ops::{run, sides};
use crate::common::*;

/// More rows than a grid's second dimension takes: every one is right. Row i is `(i mod 7) + h(j)`,
/// so that a slip by a row shows. (group_norm and a middle axis of other reductions come later.)
fn b01(device: &Device) -> Result<()> {
    let cases = [
        (Op::RmsNorm { eps: 1e-6 }, 88320, 128),
        (Op::RmsNorm { eps: 1e-6 }, 110336, 128),
        (Op::LayerNorm { eps: 1e-5 }, 65536, 16),
        (Op::Sum, 131072, 1),
        (Op::Softmax, 131072, 1),
        (Op::ArgMax, 131072, 3),
    ];
    for (op, rows, width) in cases {
        let rows = if devices::is_host_run() {
            rows / 64
        } else {
            rows
        };
        let row = |i: usize| (0..width).map(move |j| (i % 7) as f32 + h(j) as f32);
        let x: Vec<f32> = (0..rows).flat_map(row).collect();
        let x = Tensor::from_vec(x, (rows, width), device)?;
        let sides = sides(op, width, DType::F32, device)?;
        let y = run(op, &x, &sides)?.to_dtype(DType::F32)?;
        let first = run(op, &x.narrow(0, 0, 7)?, &sides)?;
        let first = first
            .to_dtype(DType::F32)?
            .flatten_all()?
            .to_vec1::<f32>()?;
        let y = y.flatten_all()?.to_vec1::<f32>()?;
        let per_row = first.len() / 7;
        for (i, row) in y.chunks(per_row).enumerate() {
            let expected = &first[i % 7 * per_row..][..per_row];
            assert_eq!(row, expected, "{} {rows} rows: row {i}", op.name());
        }
    }
    let many = if devices::is_host_run() { 700 } else { 70000 };
    for shape in [(many, 3, 5), (5, 3, many)] {
        let rows = shape.0 * shape.2;
        let x = Tensor::ones(shape, DType::F32, device)?;
        assert_same("middle axis", &ops::sum(&x, 1)?, &vec![3.; rows])?;
    }
    Ok(())
}

/// More than 2^23 rows of a width that is no multiple of a vector, against slices of them.
fn b02(device: &Device) -> Result<()> {
    const SLICE: usize = 8192;
    let most = if devices::is_host_run() {
        1 << 15
    } else {
        1 << 23
    };
    let (rows, width) = (most + 64, 6);
    // The sequence has a period of 101.
    let period: Vec<bf16> = (0..101).map(|k| bf16::from_f64(h(k))).collect();
    let x: Vec<bf16> = period.iter().copied().cycle().take(rows * width).collect();
    let x = Tensor::from_vec(x, (rows, width), device)?;
    let op = Op::LayerNorm { eps: 1e-5 };
    let sides = sides(op, width, DType::BF16, device)?;
    let y = run(op, &x, &sides)?;
    for start in (0..rows).step_by(SLICE) {
        let len = SLICE.min(rows - start);
        let alone = run(op, &x.narrow(0, start, len)?, &sides)?;
        let alone = alone.flatten_all()?.to_vec1::<bf16>()?;
        let within = y.narrow(0, start, len)?.flatten_all()?.to_vec1::<bf16>()?;
        assert!(alone == within, "rows {start} to {}", start + len);
    }
    Ok(())
}

on_devices! {
    b01: b01_cpu, b01_cuda;
    b02: b02_cpu, b02_cuda;
}
