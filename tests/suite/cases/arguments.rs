//! A: arguments that may be left out.

use candle_core::Module;
use candle_rowwise::nn::{GroupNorm, LayerNorm};

use super::{gradient_of, var};
use crate::common::data::h_values;
use crate::common::*;

/// Weight only, bias only, neither: the same bits as with ones for the weight and zeros for the bias
/// that is not given, and gradients only of what is. The layers ask for both; what is not given is a
/// constant then, but for the bias of a layer norm, which can be left out.
fn a01(device: &Device) -> Result<()> {
    let dtype = DType::F32;
    let x = var(&h_values(32), (2, 2, 8), dtype, device)?;
    let g = tensor(&normal(60, 32), (2, 2, 8), dtype, device)?;
    for (name, len) in [("layer_norm", 8), ("group_norm", 2)] {
        let w: Vec<f64> = (0..len).map(|j| 1. + j as f64 / 8.).collect();
        let b: Vec<f64> = (0..len).map(|j| j as f64 / 4.).collect();
        let one = Tensor::ones(len, dtype, device)?;
        let zero = one.zeros_like()?;
        let run = |w: &Tensor, b: Option<&Tensor>| match (name, b) {
            ("layer_norm", Some(b)) => LayerNorm::new(w.clone(), b.clone(), 1e-5).forward(&x),
            ("layer_norm", None) => LayerNorm::new_no_bias(w.clone(), 1e-5).forward(&x),
            (_, b) => {
                GroupNorm::new(w.clone(), b.unwrap_or(&zero).clone(), 2, 2, 1e-5)?.forward(&x)
            }
        };
        for (weight_given, bias_given) in
            [(true, true), (true, false), (false, true), (false, false)]
        {
            let what = format!("{name}, weight: {weight_given}, bias: {bias_given}");
            let (w, b) = (var(&w, len, dtype, device)?, var(&b, len, dtype, device)?);
            let weight = if weight_given { w.as_tensor() } else { &one };
            let y = run(weight, bias_given.then_some(b.as_tensor()))?;
            // With everything given: variables that hold the ones and zeros.
            let all_w = Var::from_tensor(weight)?;
            let all_b = Var::from_tensor(if bias_given { b.as_tensor() } else { &zero })?;
            let all = run(all_w.as_tensor(), Some(all_b.as_tensor()))?;
            assert_bits_eq(&what, &y, &all)?;

            let grads = (&y * &g)?.sum_all()?.backward()?;
            let all_grads = (&all * &g)?.sum_all()?.backward()?;
            let pairs = [
                ("dx", true, &x, &x),
                ("dw", weight_given, &w, &all_w),
                ("db", bias_given, &b, &all_b),
            ];
            for (gradient, given, var, all_var) in pairs {
                if given {
                    let expected = gradient_of(&all_grads, all_var);
                    assert_bits_eq(
                        &format!("{what} {gradient}"),
                        &gradient_of(&grads, var),
                        &expected,
                    )?;
                } else {
                    assert!(grads.get(var.as_tensor()).is_none(), "{what} {gradient}");
                }
            }
        }
    }
    Ok(())
}

on_devices! {
    a01: a01_cpu, a01_cuda;
}
