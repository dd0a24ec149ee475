//! Any strides, any dim: an op on a view gives the bits of the op on a packed copy.

use candle_rowwise::ops;
use candle_rowwise::problem::Rows;

use crate::common::data::h_values;
use crate::common::ops::{over_dim, over_dims, run, sides, Over, DTYPES};
use crate::common::*;

/// Views of one storage, by what is unusual about them.
fn views(dtype: DType, device: &Device) -> Result<Vec<(&'static str, Tensor)>> {
    let flat = tensor(&h_values(4096), 4096, dtype, device)?;
    let five = flat.reshape((4, 4, 4, 4, 16))?;
    Ok(vec![
        ("a vector", flat.clone()),
        ("a vector from element 3", flat.narrow(0, 3, 100)?),
        (
            "a gap between rows",
            flat.reshape((64, 64))?.narrow(1, 5, 33)?,
        ),
        ("transposed", flat.reshape((64, 64))?.t()?),
        (
            "transposed outside",
            flat.reshape((16, 16, 16))?.transpose(0, 1)?,
        ),
        (
            "gaps on two levels",
            flat.reshape((16, 16, 16))?
                .narrow(1, 2, 7)?
                .narrow(2, 3, 9)?,
        ),
        (
            "gaps on every level",
            five.narrow(0, 1, 3)?
                .narrow(1, 1, 3)?
                .narrow(2, 1, 3)?
                .narrow(3, 1, 3)?
                .narrow(4, 1, 15)?,
        ),
        ("permuted outside", five.permute((3, 1, 2, 0, 4))?),
        ("permuted throughout", five.permute((4, 2, 0, 3, 1))?),
        (
            "one row for all",
            flat.narrow(0, 1, 50)?.broadcast_as((6, 5, 50))?,
        ),
        (
            "one element per row",
            flat.narrow(0, 1, 6)?
                .reshape((6, 1))?
                .broadcast_as((6, 50))?,
        ),
        (
            "broadcast in the middle",
            flat.narrow(0, 1, 60)?
                .reshape((3, 1, 20))?
                .broadcast_as((3, 7, 20))?,
        ),
        ("a column", flat.reshape((64, 64))?.narrow(1, 9, 1)?),
        ("a row of one", flat.reshape((4096, 1))?),
    ])
}

fn every_view(device: &Device) -> Result<()> {
    for dtype in DTYPES {
        for (name, view) in views(dtype, device)? {
            let packed = tensor(&values(&view)?, view.shape(), dtype, device)?;
            assert!(packed.is_contiguous());
            for op in Op::ALL {
                let what = format!("{} {dtype:?} {name}", op.name());
                let sides = sides(op, view.dim(D::Minus1)?, dtype, device)?;
                let (got, expected) = (run(op, &view, &sides)?, run(op, &packed, &sides)?);
                assert_bits_eq(&what, &got, &expected)?;
                assert!(got.is_contiguous(), "{what}");
            }
        }
    }
    Ok(())
}

/// Rows that begin at any element of a vector, and results that do: with lanes enough to move vectors for each
/// other, on the tiers of one warp, a block and a cluster, and rows that end at any element of a vector or fill
/// their last chunk.
fn every_place(device: &Device) -> Result<()> {
    for dtype in [DType::BF16, DType::F32] {
        let per_vector = 16 / dtype.size_in_bytes();
        for (rows, width) in [
            (17, 265),
            (9, 521),
            (9, 1024),
            (9, 1027),
            (9, 2046),
            (3, 9219),
        ] {
            let x = tensor(&normal(94, rows * width), (rows, width), dtype, device)?;
            for op in Op::ALL {
                if op.is_reduction() && !matches!(op, Op::Sum | Op::LogSumExp) {
                    continue;
                }
                let sides = sides(op, width, dtype, device)?;
                // Each alone, so that it and its result begin with a vector.
                let alone: Vec<Tensor> = (0..rows)
                    .map(|i| {
                        let row = tensor(&values(&x.narrow(0, i, 1)?)?, (1, width), dtype, device)?;
                        Ok(run(op, &row, &sides)?)
                    })
                    .collect::<Result<_>>()?;
                let expected = Tensor::cat(&alone, 0)?;
                for places in 0..per_vector {
                    let before = Tensor::zeros(places, dtype, device)?;
                    let moved = Tensor::cat(&[before, x.flatten_all()?], 0)?;
                    let moved = moved
                        .narrow(0, places, rows * width)?
                        .reshape((rows, width))?;
                    let what = format!(
                        "{} {dtype:?} {rows} rows of {width}, {places} on",
                        op.name()
                    );
                    assert_bits_eq(&what, &run(op, &moved, &sides)?, &expected)?;
                }
            }
        }
    }
    Ok(())
}

/// The views of this file do reach what is read in place and what is packed.
#[test]
fn the_views_take_both_ways() -> Result<()> {
    let views = views(DType::F32, &Device::Cpu)?;
    let in_place = |name: &str| {
        let view = views.iter().find(|(n, _)| *n == name);
        let (_, view) = view.expect("a view of that name");
        Rows::of(view.layout())
    };
    let columns = in_place("transposed");
    assert!(columns.is_some_and(|rows| !rows.is_contiguous()));
    let in_place = |name: &str| in_place(name).is_some_and(|rows| rows.is_contiguous());
    assert!(in_place("a vector from element 3"));
    assert!(in_place("gaps on two levels"));
    assert!(in_place("transposed outside"));
    assert!(in_place("one row for all"));
    assert!(!in_place("transposed"));
    assert!(!in_place("gaps on every level"));
    assert!(!in_place("one element per row"));
    Ok(())
}

/// Over every dim, by index and from the end: the op on a copy that has the dim last.
fn every_dim(device: &Device) -> Result<()> {
    let maps: [Over<usize>; 2] = [ops::softmax, ops::log_softmax];
    let x = tensor(&normal(90, 2 * 3 * 4 * 5), (2, 3, 4, 5), DType::F32, device)?;
    for dim in 0..4 {
        let mut order: Vec<usize> = (0..4).filter(|i| *i != dim).collect();
        order.push(dim);
        let last = x.permute(order.as_slice())?;
        let packed = tensor(&values(&last)?, last.shape(), DType::F32, device)?;
        for (op, function, keepdim) in over_dim() {
            let expected = function(&packed, 3)?;
            let got = function(&x, dim)?;
            assert_bits_eq(op.name(), &got, &expected)?;
            assert!(got.is_contiguous());
            let kept = keepdim(&x, dim)?;
            let mut shape = x.dims().to_vec();
            shape[dim] = 1;
            assert_eq!(kept.dims(), shape);
            assert!(kept.is_contiguous());
            assert_bits_eq(op.name(), &kept.squeeze(dim)?, &expected)?;
        }
        for function in maps {
            let got = function(&x, dim)?;
            assert_eq!(got.dims(), x.dims());
            assert!(got.is_contiguous());
            let got = got.permute(order.as_slice())?;
            assert_bits_eq("map", &got, &function(&packed, 3)?)?;
        }
        let (from_end, by_index) = (D::Minus(4 - dim), dim);
        let (a, b) = (ops::softmax(&x, from_end)?, ops::softmax(&x, by_index)?);
        assert_bits_eq("from the end", &a, &b)?;
        assert_bits_eq(
            "from the end",
            &ops::sum(&x, from_end)?,
            &ops::sum(&x, dim)?,
        )?;
    }
    Ok(())
}

/// Over several dims at once, in any order: the op on a copy that has them merged at the end.
fn every_set_of_dims(device: &Device) -> Result<()> {
    let shape = [2, 3, 4, 5];
    let x = tensor(&normal(91, 2 * 3 * 4 * 5), (2, 3, 4, 5), DType::F32, device)?;
    // The same values, laid out the other way around.
    let reversed = x.permute((3, 2, 1, 0))?.contiguous()?;
    let reversed = reversed.permute((3, 2, 1, 0))?;
    for set in 0..16 {
        let dims: Vec<usize> = (0..4).filter(|i| set >> i & 1 == 1).collect();
        let kept: Vec<usize> = (0..4).filter(|i| !dims.contains(i)).collect();
        let (outer, width): (Vec<usize>, usize) = (
            kept.iter().map(|i| shape[*i]).collect(),
            dims.iter().map(|i| shape[*i]).product(),
        );
        let order = [kept.as_slice(), &dims].concat();
        let packed = values(&x.permute(order)?)?;
        let packed = tensor(
            &packed,
            [outer.as_slice(), &[width]].concat(),
            DType::F32,
            device,
        )?;
        let backwards: Vec<usize> = dims.iter().rev().copied().collect();
        let ones = (0..4).map(|i| if dims.contains(&i) { 1 } else { shape[i] });
        let ones: Vec<usize> = ones.collect();
        for (op, function, keepdim) in over_dims::<Vec<usize>>() {
            let what = format!("{} over {dims:?}", op.name());
            let expected = function(&packed, vec![outer.len()])?;
            for x in [&x, &reversed] {
                let got = function(x, dims.clone())?;
                assert_eq!(got.dims(), outer, "{what}");
                assert_bits_eq(&what, &got, &expected)?;
                assert!(got.is_contiguous(), "{what}");
                assert_bits_eq(&what, &function(x, backwards.clone())?, &expected)?;
                let kept = keepdim(x, dims.clone())?;
                assert_eq!(kept.dims(), ones, "{what}");
                assert_bits_eq(&what, &kept.reshape(outer.as_slice())?, &expected)?;
            }
        }
    }
    // A scalar has one way to be reduced.
    let scalar = tensor(&[-3.], (), DType::F32, device)?;
    assert_same("sum", &ops::sum(&scalar, ())?, &[-3.])?;
    assert_same("norm", &ops::norm_l2_keepdim(&scalar, ())?, &[3.])?;
    assert_eq!(ops::mean(&scalar, ())?.rank(), 0);
    Ok(())
}

on_devices! {
    every_set_of_dims: every_set_of_dims_cpu, every_set_of_dims_cuda;
    every_view: every_view_cpu, every_view_cuda;
    every_place: every_place_cpu, every_place_cuda;
    every_dim: every_dim_cpu, every_dim_cuda;
}
