//! Calls that make no sense are errors that name the op, the dim and the shapes. Nothing panics.

use candle_rowwise::{nn, ops};

use crate::common::data::h_values;
use crate::common::ops::{over_dims, Over};
use crate::common::*;

/// The message of an error, which must hold all of `parts`.
#[track_caller]
pub fn assert_error<T>(result: candle_core::Result<T>, parts: &[&str]) {
    let Err(err) = result else {
        panic!("no error, though one with {parts:?} is due")
    };
    let message = err.to_string();
    for part in parts {
        assert!(message.contains(part), "{part:?} is not in: {message}");
    }
}

/// Every function over a dim, with the name that errors show.
fn over_dim<T: candle_core::shape::Dim>() -> Vec<(&'static str, Over<T>)> {
    let mut functions: Vec<(&str, Over<T>)> =
        vec![("softmax", ops::softmax), ("log-softmax", ops::log_softmax)];
    for (op, function, keepdim) in crate::common::ops::over_dim() {
        functions.extend([(op.name(), function), (op.name(), keepdim)]);
    }
    functions
}

fn wrong_dim(device: &Device) -> Result<()> {
    let x = tensor(&h_values(6), (2, 3), DType::F32, device)?;
    let scalar = tensor(&[1.], (), DType::F32, device)?;
    for (name, function) in over_dim::<usize>() {
        let parts = [name, "dim 2 is out of range", "[2, 3]"];
        assert_error(function(&x, 2), &parts);
        assert_error(function(&x, usize::MAX), &[name, "out of range", "[2, 3]"]);
        assert_error(function(&scalar, 0), &[name, "dim 0 is out of range", "[]"]);
    }
    for (name, function) in over_dim::<D>() {
        let parts = [name, "dim -3 is out of range", "[2, 3]"];
        assert_error(function(&x, D::Minus(3)), &parts);
        assert_error(function(&x, D::Minus(0)), &[name, "out of range"]);
        assert_error(
            function(&scalar, D::Minus1),
            &[name, "dim -1 is out of range"],
        );
    }
    assert_error(nn::ops::softmax_last_dim(&scalar), &["softmax", "dim -1"]);
    let w = tensor(&[1.], 1, DType::F32, device)?;
    let parts = ["dim -1 is out of range", "[]"];
    assert_error(ops::rms_norm(&scalar, &w, 1e-5), &parts);
    assert_error(ops::layer_norm(&scalar, &w, &w, 1e-5), &parts);
    Ok(())
}

/// A dim of the caller's own that answers what no tensor has.
fn lying_dim(device: &Device) -> Result<()> {
    #[derive(Clone, Copy)]
    struct Lie;
    impl candle_core::shape::Dim for Lie {
        fn to_index(&self, _: &candle_core::Shape, _: &'static str) -> candle_core::Result<usize> {
            Ok(7)
        }
        fn to_index_plus_one(
            &self,
            _: &candle_core::Shape,
            _: &'static str,
        ) -> candle_core::Result<usize> {
            Ok(8)
        }
    }
    let x = tensor(&h_values(6), (2, 3), DType::F32, device)?;
    for (name, function) in over_dim::<Lie>() {
        assert_error(
            function(&x, Lie),
            &[name, "dim 7 is out of range", "[2, 3]"],
        );
    }
    Ok(())
}

/// A dim that is given twice, or does not exist beside one that does.
fn wrong_dims(device: &Device) -> Result<()> {
    let x = tensor(&h_values(6), (2, 3), DType::F32, device)?;
    for (op, function, keepdim) in over_dims::<Vec<usize>>() {
        for function in [function, keepdim] {
            let parts = [op.name(), "dim 1 of shape [2, 3]", "more than once"];
            assert_error(function(&x, vec![1, 0, 1]), &parts);
            let parts = [op.name(), "dim 2 is out of range", "[2, 3]"];
            assert_error(function(&x, vec![0, 2]), &parts);
        }
    }
    for (op, function, _) in over_dims::<(usize, D)>() {
        let parts = [op.name(), "dim 1 of shape [2, 3]", "more than once"];
        assert_error(function(&x, (1, D::Minus1)), &parts);
        let parts = [op.name(), "dim -3 is out of range", "[2, 3]"];
        assert_error(function(&x, (1, D::Minus(3))), &parts);
    }
    Ok(())
}

/// What no op is defined for: integers for softmax and norms, fp8 for all.
fn dtypes(device: &Device) -> Result<()> {
    let supported = "f16, bf16, f32, f64";
    for dtype in [DType::U8, DType::U32, DType::I64] {
        let x = Tensor::zeros((2, 3), dtype, device)?;
        let dtype_name = format!("{dtype:?}");
        let parts = ["softmax", dtype_name.as_str(), "[2, 3]", supported];
        for dim in [0, 1] {
            assert_error(ops::softmax(&x, dim), &parts);
            assert_error(ops::log_softmax(&x, dim), &parts);
        }
        let w = Tensor::zeros(3, dtype, device)?;
        assert_error(ops::rms_norm(&x, &w, 0.), &["rms-norm", &dtype_name]);
    }
    if device.is_cpu() {
        let x = Tensor::zeros((2, 3), DType::F32, device)?.to_dtype(DType::F8E4M3)?;
        for (name, function) in over_dim::<usize>() {
            for dim in [0, 1] {
                assert_error(function(&x, dim), &[name, "F8E4M3", "[2, 3]", supported]);
            }
        }
    }
    Ok(())
}

/// Over an axis without elements only what has a value over nothing.
fn empty_axis(device: &Device) -> Result<()> {
    let x = Tensor::zeros((2, 0, 3), DType::F32, device)?;
    let ends = ["max", "min", "min-max", "argmax", "argmin"];
    for (name, function) in over_dim::<usize>() {
        if ends.contains(&name) {
            assert_error(function(&x, 1), &[name, "dim 1", "[2, 0, 3]", "empty"]);
        } else {
            function(&x, 1)?;
        }
    }
    for (op, function, _) in over_dims::<(usize, usize)>() {
        if ends.contains(&op.name()) {
            let parts = [op.name(), "dim 1", "[2, 0, 3]", "empty"];
            assert_error(function(&x, (2, 1)), &parts);
        } else {
            assert_eq!(function(&x, (2, 1))?.dims(), [2]);
        }
    }
    let x = Tensor::zeros((2, 0), DType::F32, device)?;
    assert_error(ops::max(&x, D::Minus1), &["max", "dim 1", "[2, 0]"]);
    Ok(())
}

/// One element more than an index can count, which takes no memory.
fn axis_too_long(device: &Device) -> Result<()> {
    for dtype in [DType::U8, DType::F32] {
        let x = Tensor::zeros((2, 1), dtype, device)?.broadcast_as((2, (1 << 32) + 1))?;
        for (name, function) in [
            ("argmax", ops::argmax as Over<usize>),
            ("argmin", ops::argmin),
        ] {
            let parts = [name, "dim 1", "[2, 4294967297]", "4294967297 elements"];
            assert_error(function(&x, 1), &parts);
        }
    }
    Ok(())
}

fn mismatched_sides(device: &Device) -> Result<()> {
    let x = tensor(&h_values(8), (2, 4), DType::F32, device)?;
    // Zeros: candle's own `ones` of no elements fails on the GPU.
    let side = |shape: &[usize], dtype| Tensor::zeros(shape, dtype, device);
    let good = side(&[4], DType::F32)?;
    for shape in [&[3][..], &[5], &[1], &[], &[1, 4], &[2, 4], &[0]] {
        let bad = side(shape, DType::F32)?;
        let got = format!("{shape:?}");
        let parts = ["rms-norm", "weight", got.as_str(), "[2, 4]", "[4]"];
        assert_error(ops::rms_norm(&x, &bad, 1e-5), &parts);
        let parts = ["layer-norm", "weight", got.as_str(), "[2, 4]", "[4]"];
        assert_error(ops::layer_norm(&x, &bad, &good, 1e-5), &parts);
        let parts = ["layer-norm", "bias", got.as_str(), "[2, 4]", "[4]"];
        assert_error(ops::layer_norm(&x, &good, &bad, 1e-5), &parts);
    }
    for dtype in [DType::F16, DType::F64, DType::U32] {
        let bad = side(&[4], dtype)?;
        let got = format!("{dtype:?}");
        let parts = ["rms-norm", "weight", got.as_str(), "F32", "[2, 4]"];
        assert_error(ops::rms_norm(&x, &bad, 1e-5), &parts);
        let parts = ["layer-norm", "bias", got.as_str(), "F32", "[2, 4]"];
        assert_error(ops::layer_norm(&x, &good, &bad, 1e-5), &parts);
    }
    // f32 beside a half type is taken, another half type is not.
    let x = x.to_dtype(DType::F16)?;
    assert_eq!(ops::rms_norm(&x, &good, 1e-5)?.dtype(), DType::F16);
    let bad = side(&[4], DType::BF16)?;
    assert_error(ops::rms_norm(&x, &bad, 1e-5), &["weight", "BF16", "F16"]);
    assert_error(ops::layer_norm(&x, &good, &bad, 1e-5), &["bias", "BF16"]);
    // Empty input: the same checks.
    let x = Tensor::zeros((0, 4), DType::F32, device)?;
    let bad = side(&[3], DType::F32)?;
    assert_error(ops::rms_norm(&x, &bad, 1e-5), &["weight", "[3]", "[0, 4]"]);
    Ok(())
}

fn eps(device: &Device) -> Result<()> {
    let x = tensor(&h_values(8), (2, 4), DType::F32, device)?;
    let w = tensor(&[1.; 4], 4, DType::F32, device)?;
    for (eps, shown) in [
        (-1e-5, "-0.00001"),
        (f64::NAN, "NaN"),
        (f64::INFINITY, "inf"),
    ] {
        let parts = ["rms-norm", "eps", shown, "[2, 4]"];
        assert_error(ops::rms_norm(&x, &w, eps), &parts);
        let parts = ["layer-norm", "eps", shown, "[2, 4]"];
        assert_error(ops::layer_norm(&x, &w, &w, eps), &parts);
        assert_error(nn::ops::rms_norm(&x, &w, eps as f32), &["rms-norm", "eps"]);
    }
    Ok(())
}

on_devices! {
    wrong_dim: wrong_dim_cpu, wrong_dim_cuda;
    lying_dim: lying_dim_cpu, lying_dim_cuda;
    wrong_dims: wrong_dims_cpu, wrong_dims_cuda;
    dtypes: dtypes_cpu, dtypes_cuda;
    empty_axis: empty_axis_cpu, empty_axis_cuda;
    axis_too_long: axis_too_long_cpu, axis_too_long_cuda;
    mismatched_sides: mismatched_sides_cpu, mismatched_sides_cuda;
    eps: eps_cpu, eps_cuda;
}

/// Two devices in one call.
#[cfg(feature = "cuda")]
#[test]
fn two_devices_cuda() -> Result<()> {
    let Some(device) = devices::cuda("two_devices_cuda") else {
        return Ok(());
    };
    let x = Tensor::ones((2, 4), DType::F32, device)?;
    let w = Tensor::ones(4, DType::F32, &Device::Cpu)?;
    let parts = ["rms-norm", "weight", "Cpu", "Cuda", "[2, 4]", "[4]"];
    assert_error(ops::rms_norm(&x, &w, 1e-5), &parts);
    Ok(())
}

/// A problem that somebody builds by hand from what the kernels do not take.
#[test]
fn problems_built_by_hand() -> Result<()> {
    use candle_rowwise::problem::Problem;
    use candle_rowwise::Error;
    // One element per row, repeated; columns would be taken.
    let x = tensor(&h_values(2), (2, 1), DType::F32, &Device::Cpu)?.broadcast_as((2, 3))?;
    let problem = Problem::new(Op::Sum, x.layout(), DType::F32, &[]);
    assert!(
        matches!(problem, Err(Error::NotPacked { op: "sum", .. })),
        "{problem:?}"
    );
    let x = tensor(&h_values(6), (3, 2), DType::F32, &Device::Cpu)?;
    let w = x.narrow(1, 1, 1)?.squeeze(1)?.narrow(0, 0, 2)?;
    assert_eq!(w.stride(), [2]);
    let op = Op::RmsNorm { eps: 0. };
    let problem = Problem::new(
        op,
        x.layout(),
        DType::F32,
        &[Some((w.layout(), DType::F32))],
    );
    assert!(
        matches!(problem, Err(Error::NotPacked { .. })),
        "{problem:?}"
    );
    Ok(())
}
