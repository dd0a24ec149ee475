//! What random calls have found, each as small as it gets.

use candle_core::Module;
use candle_rowwise::nn::GroupNorm;
use candle_rowwise::ops::{self, CrossEntropyOptions, NormOptions, Reduction};

use crate::common::ops::DTYPES;
use crate::common::*;

/// As much is taken off the length as there is, or more: no quotient of what is left and 0, but NaN.
fn no_degrees_of_freedom(device: &Device) -> Result<()> {
    for dtype in DTYPES {
        for width in [2, 3, 1500] {
            let x = tensor(&normal(1, 2 * width), (2, width), dtype, device)?;
            for correction in [width, width + 1, usize::MAX] {
                let nan = [f64::NAN; 2];
                assert_same("var", &ops::var(&x, 1, correction)?, &nan)?;
                assert_same("std", &ops::std(&x, 1, correction)?, &nan)?;
            }
        }
    }
    Ok(())
}

/// Along a dim that is not the last, of a packed tensor: its rows are columns, which have no kernel.
fn l2_normalize_of_columns(device: &Device) -> Result<()> {
    for dtype in DTYPES {
        for shape in [(2, 2, 1), (3, 40, 16), (1, 300, 33)] {
            let n = shape.0 * shape.1 * shape.2;
            let x = tensor(&normal(2, n), shape, dtype, device)?;
            for dim in 0..2 {
                let got = ops::l2_normalize(&x, dim, 1e-12)?;
                let rows = x.transpose(dim, 2)?.contiguous()?;
                let due = ops::l2_normalize(&rows, 2, 1e-12)?.transpose(dim, 2)?;
                assert_bits_eq("columns", &got, &due)?;
            }
        }
    }
    Ok(())
}

/// A row of nothing but -inf has no logarithm of a sum, whatever its target weighs.
fn nothing_but_minus_inf_and_no_weight(device: &Device) -> Result<()> {
    let options = CrossEntropyOptions::default().reduction(Reduction::None);
    for dtype in DTYPES {
        for classes in [1, 3, 1500] {
            let row = vec![f64::NEG_INFINITY; classes];
            let x = tensor(&row, (1, classes), dtype, device)?;
            let t = Tensor::new(&[0u32], device)?;
            for weight in [0., 1.] {
                let weights = tensor(&vec![weight; classes], classes, DType::F32, device)?;
                let options = options.clone().class_weights(&weights);
                let loss = ops::cross_entropy(&x, &t, &options)?;
                assert_same(&format!("weight {weight}"), &loss, &[f64::NAN])?;
            }
        }
    }
    Ok(())
}

/// Nothing to normalise, with a weight of nothing that an offset is added to: candle's GPU backend casts nothing only
/// with an error.
fn norms_of_nothing_with_an_offset(device: &Device) -> Result<()> {
    for dtype in DTYPES {
        let x = Tensor::zeros((2, 0), dtype, device)?;
        // On its own, and behind an offset.
        let wide = Tensor::zeros((0, 3), dtype, device)?;
        for column in [0, 2] {
            let weight = wide.narrow(1, column, 1)?.squeeze(1)?;
            let options = NormOptions::new(1e-5).weight(&weight).weight_offset(1.);
            for y in [
                ops::rms_norm_with(&x, &options)?,
                ops::layer_norm_with(&x, &options)?,
            ] {
                assert_eq!((y.dims(), y.dtype()), (x.dims(), dtype));
            }
        }
    }
    Ok(())
}

/// The same of groups of channels, of which there are none, or of no rows.
fn group_norm_of_nothing(device: &Device) -> Result<()> {
    for dtype in DTYPES {
        for (rows, channels) in [(1, 0), (0, 4)] {
            let x = Tensor::zeros((rows, channels), dtype, device)?;
            let side = Tensor::zeros(channels, dtype, device)?;
            let norm = GroupNorm::new(side.clone(), side, channels, 1, 1e-5)?;
            let y = norm.forward(&x)?;
            assert_eq!((y.dims(), y.dtype()), (x.dims(), dtype));
        }
    }
    Ok(())
}

on_devices! {
    group_norm_of_nothing: group_norm_of_nothing_cpu, group_norm_of_nothing_cuda;
    norms_of_nothing_with_an_offset: norms_of_nothing_with_an_offset_cpu, norms_of_nothing_with_an_offset_cuda;
    no_degrees_of_freedom: no_degrees_of_freedom_cpu, no_degrees_of_freedom_cuda;
    l2_normalize_of_columns: l2_normalize_of_columns_cpu, l2_normalize_of_columns_cuda;
    nothing_but_minus_inf_and_no_weight: nothing_but_minus_inf_and_no_weight_cpu, nothing_but_minus_inf_and_no_weight_cuda;
}
