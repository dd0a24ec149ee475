//! The view of a tensor: candle's names, candle's arguments, candle's answers.

use candle_rowwise::TensorRowwise;

use crate::common::*;

/// Each of candle's reductions beside ours of the same name, called in the same way.
fn names(device: &Device) -> Result<()> {
    let x = tensor(&normal(120, 2 * 3 * 4), (2, 3, 4), DType::F32, device)?;
    macro_rules! same {
        ($($method:ident($($dim:expr)?);)+) => {$(
            let (ours, theirs) = (x.rowwise().$method($($dim)?)?, x.$method($($dim)?)?);
            let what = stringify!($method($($dim)?));
            assert_eq!(ours.shape(), theirs.shape(), "{what}");
            assert_eq!(ours.dtype(), theirs.dtype(), "{what}");
            let expected: Vec<Expect> = values(&theirs)?
                .iter()
                .map(|&value| Expect { value, bound: 1e-5 * (1. + value.abs()) })
                .collect();
            check(what, &ours, &expected)?;
        )+};
    }
    same!(
        sum(1);
        sum((0, 2));
        sum(D::Minus1);
        sum_keepdim(1);
        sum_keepdim(vec![0, 1]);
        sum_all();
        mean(0);
        mean((1, 2));
        mean_keepdim(1);
        mean_all();
        max(1);
        max(D::Minus2);
        max_keepdim(2);
        max_all();
        min(0);
        min_keepdim(D::Minus1);
        min_all();
        argmax(1);
        argmax_keepdim(1);
        argmin(2);
        argmin_keepdim(D::Minus1);
        var(1);
        var_keepdim(2);
        log_sum_exp(1);
        log_sum_exp((0, 1));
        norm();
    );
    let scalar = tensor(&[-2.], (), DType::F32, device)?;
    let view = scalar.rowwise();
    for y in [
        view.sum_all()?,
        view.mean_all()?,
        view.max_all()?,
        view.min_all()?,
    ] {
        assert_eq!(y.rank(), 0);
        assert_same("scalar", &y, &[-2.])?;
    }
    Ok(())
}

/// Gradients pass through the view.
fn gradient(device: &Device) -> Result<()> {
    let x = Var::new(&[[1f32, 2.], [3., 4.]], device)?;
    let grads = x.rowwise().mean_all()?.backward()?;
    assert_same(
        "dx",
        grads.get(x.as_tensor()).expect("a gradient"),
        &[0.25; 4],
    )
}

on_devices! {
    names: names_cpu, names_cuda;
    gradient: gradient_cpu, gradient_cuda;
}
