//! L: strides, offsets, broadcast, alignment.

use candle_rowwise::ops::{self, NormOptions};

use super::{gradient_of, var};
use crate::common::data::h_values;
use crate::common::ops::{run, sides};
use crate::common::*;

/// The same tensor in memory of its own, packed.
fn copied(x: &Tensor) -> Result<Tensor> {
    tensor(&values(x)?, x.shape(), x.dtype(), x.device())
}

/// Every op on a view is every op on a copy.
fn equals_copy(what: &str, x: &Tensor) -> Result<()> {
    for op in Op::ALL {
        let sides = sides(op, x.dim(D::Minus1)?, x.dtype(), x.device())?;
        let (view, copy) = (run(op, x, &sides)?, run(op, &copied(x)?, &sides)?);
        assert_bits_eq(&format!("{} {what}", op.name()), &view, &copy)?;
    }
    Ok(())
}

/// Cut columns, and an index on a middle axis: contiguous for candle, though with an odd stride on
/// a dim of one and an offset.
fn l01(device: &Device) -> Result<()> {
    let x = tensor(&h_values(16), (4, 4), DType::F32, device)?.narrow(1, 0, 2)?;
    equals_copy("cut", &x)?;
    let total = ops::sum(&ops::softmax(&x, 1)?.flatten_all()?, 0)?;
    assert_close("total", &total, &[4.], 1e-6)?;
    let x = tensor(&h_values(8 * 2048), (1, 8, 2048), DType::F32, device)?;
    let x = x.narrow(1, 7, 1)?.squeeze(1)?;
    assert!(x.is_contiguous());
    assert_eq!(x.layout().start_offset(), 14336);
    assert_eq!(x.stride(), [16384, 1]);
    equals_copy("indexed", &x)
}

/// A transposed view and a broadcast one, over axes that are not innermost.
fn l02(device: &Device) -> Result<()> {
    let x = tensor(&[1., 2., 3., 4., 5., 6.], (2, 3), DType::F32, device)?;
    assert_same("sum", &ops::sum(&x.t()?, D::Minus1)?, &[5., 7., 9.])?;
    assert_same("prod", &ops::prod(&x.t()?, D::Minus1)?, &[4., 10., 18.])?;
    assert_same("mean", &ops::mean(&x.t()?, D::Minus1)?, &[2.5, 3.5, 4.5])?;
    let x = tensor(&[1., 2., 3.], (1, 1, 3, 1), DType::F32, device)?;
    let x = x.broadcast_as((7, 5, 3, 2))?;
    let y = ops::sum(&ops::sum(&x, 3)?, 0)?;
    assert_eq!(y.dims(), [5, 3]);
    assert_same("broadcast", &y, &[14., 28., 42.].repeat(5))?;
    let y = ops::mean(&x, (0, 3))?;
    assert_eq!(y.dims(), [5, 3]);
    assert_same("mean", &y, &[1., 2., 3.].repeat(5))?;
    let y = ops::prod_keepdim(&x, (3, 0))?;
    assert_eq!(y.dims(), [1, 5, 3, 1]);
    let expected = [1., 2f64.powi(14), 3f64.powi(14)].repeat(5);
    assert_same("prod", &y, &expected)?;
    equals_copy("broadcast", &x)
}

/// The last stride is not 1: statistics and scaled values come from the same elements, and the
/// gradient comes back in logical order.
fn l03(device: &Device) -> Result<()> {
    for (rows, width, dtype) in [(32, 32, DType::F32), (64, 4096, DType::BF16)] {
        let leaf = tensor(&h_values(rows * width), (width, rows), dtype, device)?;
        for op in [Op::RmsNorm { eps: 1e-6 }, Op::Softmax] {
            let what = format!("{} ({rows}, {width})", op.name());
            let sides = sides(op, width, dtype, device)?;
            let g = tensor(&normal(60, rows * width), (rows, width), dtype, device)?;
            let of_view = Var::from_tensor(&leaf)?;
            let y = run(op, &of_view.t()?, &sides)?;
            let grads = (&y * &g)?.sum_all()?.backward()?;
            let dx = gradient_of(&grads, &of_view).t()?;
            let of_copy = Var::from_tensor(&copied(&leaf.t()?)?)?;
            let expected = run(op, of_copy.as_tensor(), &sides)?;
            let grads = (&expected * &g)?.sum_all()?.backward()?;
            assert_bits_eq(&what, &y, &expected)?;
            assert_bits_eq(&what, &dx, &gradient_of(&grads, &of_copy))?;
        }
    }
    Ok(())
}

/// Each operand of the residual norms has strides of its own, the weight too.
fn l04(device: &Device) -> Result<()> {
    for dtype in [DType::F32, DType::BF16] {
        let x = tensor(&h_values(16 * 1536), (16, 1536), dtype, device)?.narrow(1, 512, 512)?;
        let r = tensor(&normal(64, 16 * 512), (16, 512), dtype, device)?;
        let w = tensor(&normal(65, 512 * 4), (512, 4), dtype, device)?;
        let w = w.narrow(1, 1, 1)?.squeeze(1)?;
        assert_eq!((x.stride(), w.stride()), (&[1536, 1][..], &[4][..]));
        let copies = [copied(&x)?, copied(&w)?];
        for norm in [ops::add_rms_norm, ops::add_layer_norm] {
            let of = |x: &Tensor, w: &Tensor| norm(x, &r, &NormOptions::new(1e-6).weight(w));
            let (y, sum) = of(&x, &w)?;
            let (expected, expected_sum) = of(&copies[0], &copies[1])?;
            assert_bits_eq("normed", &y, &expected)?;
            assert_bits_eq("sum", &sum, &expected_sum)?;
        }
    }
    Ok(())
}

/// Rows that begin at no multiple of a vector.
fn l05(device: &Device) -> Result<()> {
    let x = tensor(&h_values(19 * 3584), (19, 3584), DType::F16, device)?;
    equals_copy("3584", &x)?;
    let x = tensor(&h_values(104 * 30064), (104, 30064), DType::F16, device)?;
    for (row, column, rows) in [(2, 1, 7), (3, 6, 7)] {
        let view = x.narrow(0, row, rows)?.narrow(1, column, 30000)?;
        let y = ops::softmax(&view, 1)?;
        assert_bits_eq("30000", &y, &ops::softmax(&copied(&view)?, 1)?)?;
    }
    let x = tensor(&h_values(8 * 1024 + 1), 8 * 1024 + 1, DType::BF16, device)?;
    equals_copy("from 1", &x.narrow(0, 1, 8 * 1024)?.reshape((8, 1024))?)?;
    // A side input from an odd offset, and one with a stride.
    let x = var(&normal(61, 4 * 512), (4, 512), DType::F32, device)?;
    let w = tensor(&normal(62, 513), 513, DType::F32, device)?.narrow(0, 1, 512)?;
    let b = tensor(&normal(63, 512 * 4), (512, 4), DType::F32, device)?;
    let b = b.narrow(1, 2, 1)?.squeeze(1)?;
    assert_eq!(b.stride(), [4]);
    let y = ops::layer_norm(x.as_tensor(), &w, &b, 1e-5)?;
    let expected = ops::layer_norm(x.as_tensor(), &copied(&w)?, &copied(&b)?, 1e-5)?;
    assert_bits_eq("sides", &y, &expected)
}

on_devices! {
    l01: l01_cpu, l01_cuda;
    l02: l02_cpu, l02_cuda;
    l03: l03_cpu, l03_cuda;
    l04: l04_cpu, l04_cuda;
    l05: l05_cpu, l05_cuda;
}
