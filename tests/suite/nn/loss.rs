//! The losses over classes: values, gradients, targets that are no class, and errors. Cases of CASES
//! are named by their ids.

use candle_rowwise::nn::loss::{cross_entropy, nll};
use candle_rowwise::nn::ops::softmax;

use crate::common::data::h_values;
use crate::common::*;
use crate::errors::assert_error;

fn targets(targets: &[u32], device: &Device) -> Result<Tensor> {
    Ok(Tensor::new(targets, device)?)
}

/// Candle-nn's answers in f32, with the same gradients; and nll of the logarithms is the same loss.
fn as_candle_nn(device: &Device) -> Result<()> {
    let (rows, classes) = (7, 12);
    let z = Var::from_tensor(&tensor(
        &normal(20, rows * classes),
        (rows, classes),
        DType::F32,
        device,
    )?)?;
    let target = targets(&[3, 0, 11, 5, 5, 1, 7], device)?;
    let close = |value: f64| Expect { value, bound: 1e-6 };
    let theirs = candle_nn::loss::cross_entropy(&z, &target)?;
    let their_dz = theirs.backward()?;
    let their_dz = values(their_dz.get(&z).expect("a gradient"))?;
    let log_probs = candle_nn::ops::log_softmax(z.as_tensor(), 1)?;
    for (what, ours) in [
        ("cross_entropy", cross_entropy(&z, &target)?),
        ("nll", nll(&log_probs, &target)?),
        ("of i64", cross_entropy(&z, &target.to_dtype(DType::I64)?)?),
        ("of u8", cross_entropy(&z, &target.to_dtype(DType::U8)?)?),
    ] {
        assert_eq!(ours.dims(), [0usize; 0], "{what}");
        let loss = values(&theirs)?[0];
        check(what, &ours, &[close(loss)])?;
        let grads = ours.backward()?;
        let dz = grads.get(&z).expect("a gradient");
        let expected: Vec<Expect> = their_dz.iter().copied().map(close).collect();
        check(&format!("{what} dz"), dz, &expected)?;
    }
    Ok(())
}

/// Logits of any strides, and targets of any.
fn layouts(device: &Device) -> Result<()> {
    let z = tensor(&normal(21, 5 * 9), (9, 5), DType::F32, device)?.t()?;
    let all = targets(&[1, 9, 8, 9, 0, 9, 4, 9, 2, 9], device)?;
    let target = all.reshape((5, 2))?.narrow(1, 0, 1)?.squeeze(1)?;
    let (packed_z, packed) = (z.contiguous()?, target.contiguous()?);
    for loss in [cross_entropy, nll] {
        let (ours, of_packed) = (loss(&z, &target)?, loss(&packed_z, &packed)?);
        assert_bits_eq("strided", &ours, &of_packed)?;
    }
    Ok(())
}

/// u8 can say 255, for which candle's gather gives 0.
fn largest_target(device: &Device) -> Result<()> {
    let z = tensor(&[-2.; 256], (1, 256), DType::F32, device)?;
    let target = Tensor::new(&[255u8], device)?;
    assert_same("nll", &nll(&z, &target)?, &[2.])
}

/// G05: logits and probabilities are as they were, and a second backward pass gives the same.
fn g05(device: &Device) -> Result<()> {
    let z = tensor(&h_values(40), (4, 10), DType::F32, device)?;
    let z = Var::from_tensor(&z)?;
    let p = softmax(&z, 1)?;
    let before = p.copy()?;
    let (first, second) = (
        targets(&[0, 3, 9, 5], device)?,
        targets(&[1, 1, 2, 2], device)?,
    );
    type Loss = fn(&Tensor, &Tensor) -> candle_core::Result<Tensor>;
    let loss = |of: Loss, p: &Tensor| of(p, &first)? + (of(p, &second)? * 0.5)?;
    let ours = loss(cross_entropy, &p)?;
    assert_bits_eq("after forward", &p, &before)?;
    let (once, twice) = (ours.backward()?, ours.backward()?);
    assert_bits_eq("after backward", &p, &before)?;
    let [once, twice] = [once, twice].map(|grads| grads.get(&z).expect("dz").clone());
    assert_bits_eq("twice", &once, &twice)?;
    let theirs = candle_nn::ops::softmax(z.as_tensor(), 1)?;
    let theirs = loss(candle_nn::loss::cross_entropy, &theirs)?.backward()?;
    let expected: Vec<Expect> = values(theirs.get(&z).expect("dz"))?
        .into_iter()
        .map(|value| Expect { value, bound: 1e-6 })
        .collect();
    check("dz", &once, &expected)
}

/// P06: the normaliser is not lost beside large logits, and the loss of half logits is f32.
fn p06(device: &Device) -> Result<()> {
    let z = tensor(&[1e8, 1e8], (1, 2), DType::F32, device)?;
    let loss = cross_entropy(&z, &targets(&[1], device)?)?;
    assert_close("1e8", &loss, &[std::f64::consts::LN_2], 1e-7)?;
    for dtype in [DType::BF16, DType::F16] {
        let z = Var::from_tensor(&tensor(&normal(22, 800), (8, 100), dtype, device)?)?;
        let target = targets(&[99, 0, 7, 50, 3, 3, 64, 31], device)?;
        let wide = z.to_dtype(DType::F32)?;
        for loss_of in [cross_entropy, nll] {
            let loss = loss_of(&z, &target)?;
            assert_eq!(loss.dtype(), DType::F32);
            assert_bits_eq("of half logits", &loss, &loss_of(&wide, &target)?)?;
            let dz = loss.backward()?.get(&z).expect("dz").clone();
            assert_eq!(dz.dtype(), dtype);
        }
    }
    Ok(())
}

/// C03: a target that is no class names its row on the CPU, and makes the loss NaN on a GPU. (What
/// the loss of the other rows is then, only a loss without reduction can say.)
fn c03(device: &Device) -> Result<()> {
    let z = tensor(&h_values(4 * 19), (4, 19), DType::F32, device)?;
    for (wrong, row) in [
        ([3, 19, -4, 18], 1),
        ([3, 18, -4, 18], 2),
        ([3, 18, 0, -100], 3),
        ([i64::MAX, 0, 0, 0], 0),
        ([i64::MIN, 0, 0, 0], 0),
        ([u32::MAX.into(), 0, 0, 0], 0),
    ] {
        let target = Tensor::new(&wrong, device)?;
        // The kernels take cross-entropy's targets wherever they run, and nll's on a GPU alone.
        for (name, loss, on_kernels) in [
            (
                "cross-entropy",
                cross_entropy(&z, &target),
                devices::is_host_run(),
            ),
            ("nll", nll(&z, &target), false),
        ] {
            if device.is_cpu() && !on_kernels {
                let row = format!("row {row} is {}", wrong[row]);
                assert_error(loss, &[name, row.as_str(), "19 classes", "[4, 19]"]);
            } else {
                assert_same(name, &loss?, &[f64::NAN])?;
            }
        }
    }
    Ok(())
}

/// C04: a logit of -inf is a class of probability 0, never a NaN. (Without smoothing, which candle-nn
/// does not have.)
fn c04(device: &Device) -> Result<()> {
    let z = tensor(&[0., f64::NEG_INFINITY, 1.], (1, 3), DType::F32, device)?;
    let z = Var::from_tensor(&z)?;
    let (p, q) = (0.2689414213699951, 0.7310585786300049);
    for (target, loss, dz) in [
        (2, 0.3132616875182228, [p, 0., -p]),
        (1, f64::INFINITY, [p, -1., q]),
    ] {
        let ours = cross_entropy(&z, &targets(&[target], device)?)?;
        assert_close("loss", &ours, &[loss], 1e-6)?;
        let grads = ours.backward()?;
        assert_close("dz", grads.get(&z).expect("dz"), &dz, 1e-6)?;
    }
    Ok(())
}

fn errors(device: &Device) -> Result<()> {
    let z = tensor(&h_values(12), (3, 4), DType::F32, device)?;
    let target = targets(&[0, 1, 2], device)?;
    type Loss = fn(&Tensor, &Tensor) -> candle_core::Result<Tensor>;
    let losses: [(&str, Loss); 2] = [("cross-entropy", cross_entropy), ("nll", nll)];
    for (name, loss) in losses {
        let parts = [name, "the input of shape [12]", "rows, classes"];
        assert_error(loss(&z.flatten_all()?, &target), &parts);
        let parts = [name, "the input of shape [1, 3, 4]", "rows, classes"];
        assert_error(loss(&z.unsqueeze(0)?, &target), &parts);
        let parts = [name, "the target of shape [3, 1]", "one dim: rows"];
        assert_error(loss(&z, &target.unsqueeze(1)?), &parts);
        let parts = [name, "target", "[2]", "[3, 4]", "[3]"];
        assert_error(loss(&z, &targets(&[0, 1], device)?), &parts);
        let parts = [name, "target", "[3]", "F32", "u8, u32 or i64"];
        assert_error(loss(&z, &target.to_dtype(DType::F32)?), &parts);
        let parts = [name, "U32", "[3, 4]", "f16, bf16, f32, f64"];
        assert_error(loss(&z.to_dtype(DType::U32)?, &target), &parts);
        let none = Tensor::zeros((3, 0), DType::F32, device)?;
        assert_error(loss(&none, &target), &[name, "dim 1", "[3, 0]", "empty"]);
    }
    Ok(())
}

/// The mean over no rows is NaN, and nothing has a gradient but zeros.
fn no_rows(device: &Device) -> Result<()> {
    let z = Var::zeros((0, 10), DType::F32, device)?;
    let target = Tensor::zeros(0, DType::U32, device)?;
    let loss = cross_entropy(&z, &target)?;
    assert_same("loss", &loss, &[f64::NAN])?;
    let grads = loss.backward()?;
    assert_eq!(grads.get(&z).expect("dz").dims(), [0, 10]);
    Ok(())
}

on_devices! {
    as_candle_nn: as_candle_nn_cpu, as_candle_nn_cuda;
    layouts: layouts_cpu, layouts_cuda;
    largest_target: largest_target_cpu, largest_target_cuda;
    g05: g05_cpu, g05_cuda;
    p06: p06_cpu, p06_cuda;
    c03: c03_cpu, c03_cuda;
    c04: c04_cpu, c04_cuda;
    errors: errors_cpu, errors_cuda;
    no_rows: no_rows_cpu, no_rows_cuda;
}
