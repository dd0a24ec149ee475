//! `LayerNorm` and `RmsNorm`: every form of them, and what a VarBuilder makes.

use std::collections::HashMap;

use candle_core::Module;
use candle_nn::{VarBuilder, VarMap};
use candle_rowwise::nn;

use super::TensorResult;
use crate::common::data::h_values;
use crate::common::ops::DTYPES;
use crate::common::*;
use crate::errors::assert_error;

/// Layers of every kind on layouts of every kind, against the reference, with gradients.
fn layers(device: &Device) -> Result<()> {
    let (rows, width, eps) = (6, 24, 1e-5);
    for dtype in DTYPES {
        let w = Var::from_tensor(&tensor(&normal(1, width), width, dtype, device)?)?;
        let b = Var::from_tensor(&tensor(&normal(2, width), width, dtype, device)?)?;
        let (wt, bt) = (w.as_tensor().clone(), b.as_tensor().clone());
        let (weight, bias) = (values(&wt)?, values(&bt)?);
        let zero = vec![0.; width];
        let with_bias = vec![weight.clone(), bias];
        let no_bias = vec![weight.clone(), zero];
        let rms = vec![weight];
        let layer = Op::LayerNorm { eps };
        let rms_op = Op::RmsNorm { eps };
        type Forward = Box<dyn Fn(&Tensor) -> TensorResult>;
        fn of(module: impl Module + 'static) -> Forward {
            Box::new(move |x| module.forward(x))
        }
        let rms_norm = nn::RmsNorm::new(wt.clone(), eps);
        let inner = rms_norm.clone().into_inner();
        let diff = rms_norm.clone();
        let modules: Vec<(&str, Forward, Op, &[Vec<f64>])> = vec![
            (
                "new",
                of(nn::LayerNorm::new(wt.clone(), bt, eps)),
                layer,
                &with_bias,
            ),
            (
                "no bias",
                of(nn::LayerNorm::new_no_bias(wt.clone(), eps)),
                layer,
                &no_bias,
            ),
            (
                "rms_norm",
                of(nn::LayerNorm::rms_norm(wt, eps)),
                rms_op,
                &rms,
            ),
            ("RmsNorm", of(rms_norm), rms_op, &rms),
            ("into_inner", of(inner), rms_op, &rms),
            (
                "diff",
                Box::new(move |x| diff.forward_diff(x)),
                rms_op,
                &rms,
            ),
        ];
        let flat = tensor(&normal(3, rows * width), rows * width, dtype, device)?;
        for (name, forward, op, sides) in &modules {
            for transposed in [false, true] {
                let what = format!("{name} {dtype:?}, transposed: {transposed}");
                let leaf = match transposed {
                    false => Var::from_tensor(&flat.reshape((2, rows / 2, width))?)?,
                    true => Var::from_tensor(&flat.reshape((2, width, rows / 2))?)?,
                };
                let x = match transposed {
                    false => leaf.as_tensor().clone(),
                    true => leaf.transpose(1, 2)?,
                };
                let y = forward(&x)?;
                let row_values = values(&x)?;
                let expected: Vec<Expect> = row_values
                    .chunks(width)
                    .flat_map(|row| reference::forward(*op, row, sides, dtype))
                    .collect();
                check(&what, &y, &expected)?;
                let grads = y.sum_all()?.backward()?;
                let g = vec![1.; rows * width];
                let expected =
                    gradient_reference::gradients(*op, &row_values, width, sides, &g, dtype);
                let dx = grads.get(leaf.as_tensor()).expect("dx").clone();
                let dx = if transposed { dx.transpose(1, 2)? } else { dx };
                check(&format!("{what} dx"), &dx, &expected.dx)?;
                let dw = grads.get(w.as_tensor()).expect("dw");
                check(&format!("{what} dw"), dw, &expected.sides[0])?;
                if *name == "new" {
                    let db = grads.get(b.as_tensor()).expect("db");
                    check(&format!("{what} db"), db, &expected.sides[1])?;
                } else {
                    assert!(grads.get(b.as_tensor()).is_none(), "{what}");
                }
            }
        }
    }
    Ok(())
}

/// A bias without the mean removed, which only a config can ask for, is added before the rounding.
fn bias_without_mean(device: &Device) -> Result<()> {
    let config = nn::LayerNormConfig {
        eps: 1e-6,
        remove_mean: false,
        affine: true,
    };
    for dtype in DTYPES {
        let named = [("weight", normal(4, 16)), ("bias", normal(5, 16))];
        let tensors: HashMap<String, Tensor> = named
            .iter()
            .map(|(name, v)| Ok((name.to_string(), tensor(v, 16, dtype, device)?)))
            .collect::<Result<_>>()?;
        let sides = [values(&tensors["weight"])?, values(&tensors["bias"])?];
        let vb = VarBuilder::from_tensors(tensors, dtype, device);
        let layer = nn::layer_norm(16, config, vb)?;
        assert!(!layer.remove_mean());
        let x = tensor(&normal(6, 5 * 16), (5, 16), dtype, device)?;
        let op = Op::RmsNorm { eps: 1e-6 };
        let wide = float::wide(dtype);
        let expected: Vec<Expect> = values(&x)?
            .chunks(16)
            .flat_map(|row| reference::forward(op, row, &sides[..1], dtype))
            .zip(sides[1].iter().cycle())
            .map(|(e, b)| Expect {
                value: e.value + b,
                bound: e.bound + float::ulp(wide, e.value + b),
            })
            .collect();
        check(&format!("{dtype:?}"), &layer.forward(&x)?, &expected)?;
    }
    Ok(())
}

/// Layers that a VarBuilder makes: the same tensors and options as candle_nn's.
fn loading(device: &Device) -> Result<()> {
    let map = VarMap::new();
    let vb = VarBuilder::from_varmap(&map, DType::F32, device);
    let ours = nn::layer_norm(8, 1e-3, vb.pp("a"))?;
    let theirs = candle_nn::layer_norm(8, 1e-3, vb.pp("a"))?;
    assert_same("weight", ours.weight(), &[1.; 8])?;
    assert_same("bias", ours.bias().expect("a bias"), &[0.; 8])?;
    assert_eq!(ours.eps(), theirs.eps());
    assert_eq!(ours.remove_mean(), theirs.remove_mean());
    let plain = nn::layer_norm_no_bias(8, 1e-3, vb.pp("b"))?;
    assert!(plain.bias().is_none() && plain.remove_mean());
    let rms = nn::rms_norm(8, 1e-3, vb.pp("c"))?;
    assert_eq!(rms.eps(), 1e-3);
    assert!(!rms.clone().into_inner().remove_mean());
    // The variables of the map are the layers' own, so that training reaches them.
    let x = tensor(&h_values(16), (2, 8), DType::F32, device)?;
    let y = ours.forward(&plain.forward(&rms.forward(&x)?)?)?;
    let grads = y.sqr()?.sum_all()?.backward()?;
    assert_eq!(map.all_vars().len(), 4);
    for var in map.all_vars() {
        assert!(grads.get(var.as_tensor()).is_some());
    }
    // PyTorch's old names.
    let old = ["gamma", "beta"].map(|name| (name.to_string(), ours.weight().clone()));
    let vb = VarBuilder::from_tensors(HashMap::from(old), DType::F32, device);
    nn::layer_norm(8, 1e-3, vb)?;
    assert!(nn::rms_norm(
        9,
        1e-3,
        VarBuilder::from_varmap(&map, DType::F32, device).pp("c")
    )
    .is_err());
    Ok(())
}

/// That form checks both of its tensors, as the ops do that the others are.
fn sides_without_mean(device: &Device) -> Result<()> {
    let config = nn::LayerNormConfig {
        remove_mean: false,
        ..Default::default()
    };
    let x = tensor(&h_values(8), (2, 4), DType::F32, device)?;
    let layer = |weight: &Tensor, bias: &Tensor| {
        let named = [("weight", weight), ("bias", bias)];
        let tensors = named.map(|(name, t)| (name.to_string(), t.clone()));
        let vb = VarBuilder::from_tensors(HashMap::from(tensors), weight.dtype(), device);
        nn::layer_norm(weight.elem_count(), config, vb)?.forward(&x)
    };
    let of = |n: usize, dtype| Tensor::zeros(n, dtype, device);
    let (four, eight) = (of(4, DType::F32)?, of(8, DType::F32)?);
    layer(&four, &four)?;
    let parts = ["rms-norm", "weight", "[8]", "[2, 4]", "[4]"];
    assert_error(layer(&eight, &eight), &parts);
    let wide = of(4, DType::F64)?;
    assert_error(layer(&wide, &wide), &["rms-norm", "weight", "F64", "F32"]);
    Ok(())
}

on_devices! {
    sides_without_mean: sides_without_mean_cpu, sides_without_mean_cuda;
    layers: layers_cpu, layers_cuda;
    bias_without_mean: bias_without_mean_cpu, bias_without_mean_cuda;
    loading: loading_cpu, loading_cuda;
}
