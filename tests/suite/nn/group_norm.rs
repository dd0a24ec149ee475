//! `GroupNorm`: on every layout and dtype against the reference, with gradients, and its errors.

use candle_core::Module;
use candle_nn::{VarBuilder, VarMap};
use candle_rowwise::nn::{self, GroupNorm};

use crate::common::data::h_values;
use crate::common::ops::DTYPES;
use crate::common::*;
use crate::errors::assert_error;

const BATCH: usize = 3;
const CHANNELS: usize = 6;
const SPACE: usize = 10;
const EPS: f64 = 1e-5;

/// What is due: the result, and the gradients of x, weight and bias.
struct Due {
    y: Vec<Expect>,
    dx: Vec<Expect>,
    dw: Vec<Expect>,
    db: Vec<Expect>,
}

/// From the reference of layer norm: a group is a row whose weight and bias repeat those of its
/// channels.
fn due(groups: usize, x: &[f64], w: &[f64], b: &[f64], g: &[f64], dtype: DType) -> Due {
    let op = Op::LayerNorm { eps: EPS };
    let wide = float::wide(dtype);
    let channels = CHANNELS / groups;
    let width = channels * SPACE;
    let spread = |v: &[f64]| -> Vec<f64> { v.iter().flat_map(|v| [*v; SPACE]).collect() };
    let zero = Expect::exactly(0.);
    let (mut y, mut dx) = (Vec::new(), Vec::new());
    let mut sides = [vec![zero; CHANNELS], vec![zero; CHANNELS]];
    for (i, (row, g)) in x.chunks(width).zip(g.chunks(width)).enumerate() {
        let first = i % groups * channels;
        let of_row = [w, b].map(|v| spread(&v[first..first + channels]));
        y.extend(reference::forward(op, row, &of_row, dtype));
        let of_row = gradient_reference::gradients(op, row, width, &of_row, g, dtype);
        dx.extend(of_row.dx);
        for (side, terms) in sides.iter_mut().zip(of_row.sides) {
            for (j, term) in terms.iter().enumerate() {
                let total = &mut side[first + j / SPACE];
                total.value += term.value;
                // Adding up may round each time.
                let roundings = float::unit(wide) * (BATCH * SPACE) as f64;
                total.bound += term.bound + roundings * term.value.abs();
            }
        }
    }
    let [dw, db] = sides;
    Due { y, dx, dw, db }
}

/// All groupings, from instance norm to layer norm, of inputs packed, transposed and cut.
fn layouts(device: &Device) -> Result<()> {
    let elements = BATCH * CHANNELS * SPACE;
    for dtype in DTYPES {
        for groups in [1, 2, 3, CHANNELS] {
            for layout in ["packed", "channels last", "cut", "one dim", "three dims"] {
                let what = format!("{dtype:?}, {groups} groups, {layout}");
                let shape: &[usize] = match layout {
                    "channels last" => &[BATCH, SPACE, CHANNELS],
                    "cut" => &[BATCH, CHANNELS + 2, SPACE],
                    "three dims" => &[BATCH, CHANNELS, 1, 5, 2],
                    _ => &[BATCH, CHANNELS, SPACE],
                };
                let leaf = normal(7, shape.iter().product());
                let leaf = Var::from_tensor(&tensor(&leaf, shape, dtype, device)?)?;
                let view = |t: &Tensor| match layout {
                    "channels last" => t.transpose(1, 2),
                    "cut" => t.narrow(1, 1, CHANNELS),
                    _ => Ok(t.clone()),
                };
                let x = view(leaf.as_tensor())?;
                let side = |seed| -> Result<Var> {
                    let t = tensor(&normal(seed, CHANNELS), CHANNELS, dtype, device)?;
                    Ok(Var::from_tensor(&t)?)
                };
                let (w, b) = (side(8)?, side(9)?);
                let (wt, bt) = (w.as_tensor().clone(), b.as_tensor().clone());
                let layer = GroupNorm::new(wt, bt, CHANNELS, groups, EPS)?;
                let y = layer.forward(&x)?;
                assert_eq!((y.shape(), y.dtype()), (x.shape(), dtype), "{what}");

                let g = tensor(&normal(10, elements), x.shape(), dtype, device)?;
                let grads = (&y * &g)?.sum_all()?.backward()?;
                let due = due(
                    groups,
                    &values(&x)?,
                    &values(w.as_tensor())?,
                    &values(b.as_tensor())?,
                    &values(&g)?,
                    dtype,
                );
                let grad = |var: &Var| grads.get(var.as_tensor()).expect("a gradient").clone();
                check(&what, &y, &due.y)?;
                check(&format!("{what} dx"), &view(&grad(&leaf))?, &due.dx)?;
                check(&format!("{what} dw"), &grad(&w), &due.dw)?;
                check(&format!("{what} db"), &grad(&b), &due.db)?;
            }
        }
    }
    Ok(())
}

/// f32 weights beside a half type: their gradients stay f32.
fn wide_weights(device: &Device) -> Result<()> {
    let x = tensor(&normal(11, 2 * 4 * 8), (2, 4, 8), DType::BF16, device)?;
    let side = |seed| -> Result<Var> {
        Ok(Var::from_tensor(&tensor(
            &normal(seed, 4),
            4,
            DType::F32,
            device,
        )?)?)
    };
    let (w, b) = (side(12)?, side(13)?);
    let layer = GroupNorm::new(w.as_tensor().clone(), b.as_tensor().clone(), 4, 2, EPS)?;
    let y = layer.forward(&x)?;
    assert_eq!(y.dtype(), DType::BF16);
    // As in f32 throughout, then rounded.
    let wide = layer.forward(&x.to_dtype(DType::F32)?)?;
    assert_bits_eq("rounded once", &y, &wide.to_dtype(DType::BF16)?)?;
    let grads = y.sqr()?.sum_all()?.backward()?;
    for var in [&w, &b] {
        let grad = grads.get(var.as_tensor()).expect("a gradient");
        assert_eq!(grad.dtype(), DType::F32);
    }
    Ok(())
}

/// Candle-nn's own answers in f32, and its names in a VarBuilder.
fn as_candle_nn(device: &Device) -> Result<()> {
    let map = VarMap::new();
    let vb = VarBuilder::from_varmap(&map, DType::F32, device);
    let ours = nn::group_norm(2, CHANNELS, EPS, vb.pp("norm"))?;
    let theirs = candle_nn::group_norm(2, CHANNELS, EPS, vb.pp("norm"))?;
    assert_eq!(map.all_vars().len(), 2);
    let shape = (BATCH, CHANNELS, 2, SPACE / 2);
    let elements = BATCH * CHANNELS * SPACE;
    let x = tensor(&normal(14, elements), shape, DType::F32, device)?;
    let expected: Vec<Expect> = values(&theirs.forward(&x)?)?
        .into_iter()
        .map(|value| Expect { value, bound: 1e-5 })
        .collect();
    check("as candle-nn", &ours.forward(&x)?, &expected)
}

fn errors(device: &Device) -> Result<()> {
    let side = |n: usize, dtype| Tensor::zeros(n, dtype, device);
    let four = side(4, DType::F32)?;
    let layer =
        |w: &Tensor, b: &Tensor, groups| GroupNorm::new(w.clone(), b.clone(), 4, groups, EPS);
    for groups in [0, 3, 8] {
        let shown = format!("{groups} equal groups");
        let parts = ["group-norm", "4 channels", shown.as_str()];
        assert_error(layer(&four, &four, groups), &parts);
    }
    let none = side(0, DType::F32)?;
    let parts = ["group-norm", "0 channels", "0 equal groups"];
    assert_error(GroupNorm::new(none.clone(), none, 0, 0, EPS), &parts);

    let good = layer(&four, &four, 2)?;
    let input = |shape: &[usize], dtype| -> Result<Tensor> {
        tensor(&h_values(shape.iter().product()), shape, dtype, device)
    };
    let x = input(&[2, 4, 3], DType::F32)?;
    good.forward(&x)?;
    for shape in [&[][..], &[4]] {
        let shown = format!("shape {shape:?}");
        let parts = ["group-norm", shown.as_str(), "batch, channels"];
        assert_error(good.forward(&input(shape, DType::F32)?), &parts);
    }
    let parts = ["group-norm", "num_channels is 4", "dim 1", "[2, 6, 3]"];
    assert_error(good.forward(&input(&[2, 6, 3], DType::F32)?), &parts);
    let parts = ["group-norm", "U32", "[2, 4, 3]", "f16, bf16, f32, f64"];
    assert_error(good.forward(&x.to_dtype(DType::U32)?), &parts);
    let three = side(3, DType::F32)?;
    let parts = ["group-norm", "weight", "[3]", "[2, 4, 3]", "[4]"];
    assert_error(layer(&three, &four, 2)?.forward(&x), &parts);
    let parts = ["group-norm", "bias", "[3]", "[2, 4, 3]", "[4]"];
    assert_error(layer(&four, &three, 2)?.forward(&x), &parts);
    let wide = side(4, DType::F64)?;
    let parts = ["group-norm", "bias", "F64", "F32", "[2, 4, 3]"];
    assert_error(layer(&four, &wide, 2)?.forward(&x), &parts);
    for (eps, shown) in [(-1., "-1"), (f64::NAN, "NaN")] {
        let layer = GroupNorm::new(four.clone(), four.clone(), 4, 2, eps)?;
        assert_error(
            layer.forward(&x),
            &["group-norm", "eps", shown, "[2, 4, 3]"],
        );
    }
    Ok(())
}

on_devices! {
    layouts: layouts_cpu, layouts_cuda;
    wide_weights: wide_weights_cpu, wide_weights_cuda;
    as_candle_nn: as_candle_nn_cpu, as_candle_nn_cuda;
    errors: errors_cpu, errors_cuda;
}

/// Nothing in, nothing out.
#[test]
fn empty() -> Result<()> {
    let w = Tensor::ones(4, DType::F32, &Device::Cpu)?;
    let layer = GroupNorm::new(w.clone(), w, 4, 2, EPS)?;
    for shape in [[0, 4, 3], [2, 4, 0]] {
        let y = layer.forward(&Tensor::zeros(&shape, DType::F32, &Device::Cpu)?)?;
        assert_eq!(y.dims(), shape);
    }
    Ok(())
}
