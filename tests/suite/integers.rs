//! Integers: sums and products in i64, extrema and their places among themselves, the rest in f64.

use candle_rowwise::ops;

use crate::common::ops::{over_dims, run};
use crate::common::*;

const INTEGERS: [DType; 5] = [DType::U8, DType::U32, DType::I16, DType::I32, DType::I64];

/// The range of a dtype.
fn range(dtype: DType) -> (i64, i64) {
    match dtype {
        DType::U8 => (0, u8::MAX.into()),
        DType::U32 => (0, u32::MAX.into()),
        DType::I16 => (i16::MIN.into(), i16::MAX.into()),
        DType::I32 => (i32::MIN.into(), i32::MAX.into()),
        _ => (i64::MIN, i64::MAX),
    }
}

/// Values all over the range of a dtype, its ends and 0 among them.
fn integers(dtype: DType, n: usize) -> Vec<i64> {
    let (low, high) = range(dtype);
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    (0..n)
        .map(|k| {
            state = state
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            match k % 19 {
                7 => low,
                11 => high,
                13 => 0,
                _ => low.wrapping_add(((state >> 1) % (high.wrapping_sub(low) as u64 | 1)) as i64),
            }
        })
        .collect()
}

/// A tensor of these values, without a detour over floats.
fn tensor_of(
    values: &[i64],
    shape: (usize, usize),
    dtype: DType,
    device: &Device,
) -> Result<Tensor> {
    let t = Tensor::from_slice(values, shape, &Device::Cpu)?;
    Ok(t.to_dtype(dtype)?.to_device(device)?)
}

fn integers_of(t: &Tensor) -> Result<Vec<i64>> {
    let t = t.to_device(&Device::Cpu)?.to_dtype(DType::I64)?;
    Ok(t.flatten_all()?.to_vec1()?)
}

/// What `op` makes of a row, exactly.
fn expected(op: Op, row: &[i64]) -> Vec<i64> {
    let (min, max) = (row.iter().min().unwrap(), row.iter().max().unwrap());
    let place = |end| row.iter().position(|v| v == end).unwrap() as i64;
    match op {
        Op::Sum => vec![row.iter().fold(0, |a, v| a.wrapping_add(*v))],
        Op::Prod => vec![row.iter().fold(1, |a, v| a.wrapping_mul(*v))],
        Op::Max => vec![*max],
        Op::Min => vec![*min],
        Op::MinMax => vec![*min, *max],
        Op::ArgMax => vec![place(max)],
        Op::ArgMin => vec![place(min)],
        Op::Any => vec![row.iter().any(|v| *v != 0).into()],
        Op::All => vec![row.iter().all(|v| *v != 0).into()],
        _ => panic!("{}: not of integers", op.name()),
    }
}

fn of_integers() -> impl Iterator<Item = Op> {
    Op::ALL.into_iter().filter(Op::takes_integers)
}

/// Every dtype over rows on and off every grid, exactly; and the dtype of each result.
fn exactly(device: &Device) -> Result<()> {
    for dtype in INTEGERS {
        for width in [1, 2, 3, 7, 8, 31, 32, 33, 257, 1000, 1025, 4099, 70000] {
            let rows = if width > 1025 { 3 } else { 7 };
            // Every row begins elsewhere in the sequence.
            let mut x = integers(dtype, rows * width);
            // A row of zeros, and one of nothing else.
            x[..width].fill(0);
            x[width..2 * width]
                .iter_mut()
                .for_each(|v| *v = (*v).max(1));
            let t = tensor_of(&x, (rows, width), dtype, device)?;
            for op in of_integers() {
                let what = format!("{} {dtype:?} {rows} rows of {width}", op.name());
                let y = run(op, &t, &[])?;
                let expected: Vec<i64> =
                    x.chunks(width).flat_map(|row| expected(op, row)).collect();
                assert_eq!(integers_of(&y)?, expected, "{what}");
                assert_eq!(y.dtype(), op.output_dtype(dtype), "{what}");
                // A row of its own, and rows with gaps.
                let alone = run(op, &t.narrow(0, rows - 1, 1)?, &[])?;
                assert_bits_eq(&what, &alone, &y.narrow(0, rows - 1, 1)?)?;
                if width > 2 {
                    let cut = t.narrow(1, 1, width - 2)?;
                    let rows = x
                        .chunks(width)
                        .flat_map(|row| self::expected(op, &row[1..width - 1]));
                    assert_eq!(
                        integers_of(&run(op, &cut, &[])?)?,
                        rows.collect::<Vec<_>>(),
                        "{what}"
                    );
                }
            }
        }
    }
    Ok(())
}

/// Over the first axis, and both: what the last axis of a copy gives.
fn other_dims(device: &Device) -> Result<()> {
    for dtype in INTEGERS {
        if !device.is_cpu() && matches!(dtype, DType::I16 | DType::I32) {
            // Candle has no kernel that packs these.
            continue;
        }
        let x = integers(dtype, 35);
        let x = tensor_of(&x, (5, 7), dtype, device)?;
        let packed = integers_of(&x.t()?)?;
        let packed = tensor_of(&packed, (7, 5), dtype, device)?;
        for (op, function, keepdim) in over_dims::<Vec<usize>>() {
            let what = format!("{} {dtype:?}", op.name());
            let y = function(&x, vec![0])?;
            assert_bits_eq(&what, &y, &function(&packed, vec![1])?)?;
            assert_eq!(keepdim(&x, vec![0])?.dims(), [1, 7], "{what}");
            let all = function(&x.flatten_all()?, vec![0])?;
            assert_bits_eq(&what, &function(&x, vec![1, 0])?, &all)?;
        }
    }
    Ok(())
}

/// What is computed in fractions takes them as f64.
fn as_f64(device: &Device) -> Result<()> {
    for dtype in INTEGERS {
        let x = integers(dtype, 3 * 100);
        let x = tensor_of(&x, (3, 100), dtype, device)?;
        let wide = x
            .to_device(&Device::Cpu)?
            .to_dtype(DType::F64)?
            .to_device(device)?;
        for op in Op::ALL
            .into_iter()
            .filter(|op| op.is_reduction() && !op.takes_integers())
        {
            let what = format!("{} {dtype:?}", op.name());
            let y = run(op, &x, &[])?;
            assert_eq!(y.dtype(), DType::F64, "{what}");
            assert_bits_eq(&what, &y, &run(op, &wide, &[])?)?;
        }
    }
    Ok(())
}

/// What a comparison returns can be asked for any and all.
fn masks(device: &Device) -> Result<()> {
    let x = tensor(&[1., 2., 3., 4., 5., 6.], (2, 3), DType::F32, device)?;
    assert_same("any", &ops::any(&x.gt(3.)?, 1)?, &[0., 1.])?;
    assert_same("all", &ops::all(&x.lt(6.)?, 1)?, &[1., 0.])?;
    assert_same("count", &ops::sum(&x.gt(2.)?, (0, 1))?, &[4.])
}

/// Beyond i64 sums and products wrap, as candle's own do.
fn beyond_i64(device: &Device) -> Result<()> {
    let x = Tensor::new(&[[i64::MAX, 1], [i64::MIN, -1]], device)?;
    assert_eq!(integers_of(&ops::sum(&x, 1)?)?, [i64::MIN, i64::MAX]);
    let x = Tensor::new(&[[1i64 << 62, 4], [i64::MIN, -1]], device)?;
    assert_eq!(integers_of(&ops::prod(&x, 1)?)?, [0, i64::MIN]);
    Ok(())
}

/// An integer result is part of no graph, and asking for its gradient harms nothing.
fn no_gradient(device: &Device) -> Result<()> {
    let x = Var::from_tensor(&Tensor::new(&[1u32, 2, 3], device)?)?;
    for y in [ops::sum(x.as_tensor(), 0)?, ops::max(x.as_tensor(), 0)?] {
        assert!(!y.track_op());
    }
    let floats = Var::new(&[1f32, 2., 3.], device)?;
    for y in [
        ops::any(floats.as_tensor(), 0)?,
        ops::argmin(floats.as_tensor(), 0)?,
    ] {
        assert!(!y.track_op());
    }
    Ok(())
}

on_devices! {
    exactly: exactly_cpu, exactly_cuda;
    other_dims: other_dims_cpu, other_dims_cuda;
    as_f64: as_f64_cpu, as_f64_cuda;
    masks: masks_cpu, masks_cuda;
    beyond_i64: beyond_i64_cpu, beyond_i64_cuda;
    no_gradient: no_gradient_cpu, no_gradient_cuda;
}
