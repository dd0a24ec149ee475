//! The whole layer, forward and backward, on each kind of row-wise ops.

use anyhow::{bail, Result};
use candle_core::backprop::GradStore;
use candle_core::{DType, Device, Tensor};

use crate::common::{show_error, show_time, time_each, to_f64s, worse, Table};
use crate::layer::{Data, Layer, RowOps, Sizes};
use crate::Random;

pub fn run(sizes: &Sizes, dtype: DType, device: &Device, random: &mut Random) -> Result<()> {
    let data = Data::random(sizes, dtype, random)?;
    let layer = Layer::new(sizes, &data, dtype, device)?;

    // The same numbers in f64. The composed ops are the ones of candle's that have gradients.
    let exact = Layer::new(sizes, &data, DType::F64, device)?;
    let exact_loss = exact.loss(RowOps::CandleComposed)?;
    let exact_gradients = exact_loss.backward()?;
    let exact_loss = scalar(&exact_loss)?;

    let forward = RowOps::ALL.map(|rows| {
        let layer = &layer;
        move || layer.loss(rows)
    });
    let both = RowOps::ALL.map(|rows| {
        let layer = &layer;
        move || {
            let loss = layer.loss(rows)?;
            loss.backward()?;
            Ok(loss)
        }
    });
    let forward_times = time_each(device, &[&forward[0], &forward[1], &forward[2]])?;
    let both_times = time_each(device, &[&both[0], &both[1], &both[2]])?;

    let headings = [
        "row-wise ops",
        "loss",
        "its error",
        "forward",
        "and backward",
        "gradients",
        "their error",
        "missing",
        "wrong",
    ];
    let mut table = Table::new("lrrrrrrll", headings);
    let mut losses = Vec::new();
    for (i, rows) in RowOps::ALL.into_iter().enumerate() {
        let loss = layer.loss(rows)?;
        let gradients = compare(&layer, &loss.backward()?, &exact, &exact_gradients)?;
        let loss = scalar(&loss)?;
        losses.push(loss);
        table.row([
            rows.name().to_string(),
            format!("{loss:.8}"),
            show_error((loss - exact_loss).abs()),
            show_time(forward_times[i]),
            show_time(both_times[i]),
            format!("{} of {}", gradients.right, layer.variables().len()),
            show_error(gradients.error),
            list(&gradients.missing),
            list(&gradients.wrong),
        ]);
    }
    println!("{table}");
    println!(
        "Loss on candle-rowwise less the loss on candle's composed ops: {:.1e}\n\
         error: against the layer in f64; of a gradient, |g - g64| / |g64|, the largest of those that\n\
         are right. wrong: further off than 10 %, as a path that it should come by is cut.",
        losses[0] - losses[1]
    );
    Ok(())
}

/// How the gradients of a layer compare with the exact ones.
struct Gradients {
    right: usize,
    /// The largest relative error of the right ones.
    error: f64,
    missing: Vec<&'static str>,
    wrong: Vec<&'static str>,
}

/// Beyond what rounding can do in any dtype here.
const WRONG: f64 = 0.1;

/// A gradient much smaller than the layer's largest is nothing but cancelled rounding (that of the
/// queries is, for a single token): it is judged as if it were this fraction of the largest.
const SMALL: f64 = 1e-3;

fn compare(layer: &Layer, got: &GradStore, exact: &Layer, want: &GradStore) -> Result<Gradients> {
    let mut gradients = Gradients {
        right: 0,
        error: 0.0,
        missing: Vec::new(),
        wrong: Vec::new(),
    };
    let mut wanted = Vec::new();
    for (name, exact) in exact.variables() {
        match want.get(exact.as_tensor()) {
            Some(want) => wanted.push(to_f64s(want)?),
            None => bail!("the layer in f64 has no gradient for {name}"),
        }
    }
    let largest = wanted.iter().map(|want| length(want)).fold(0.0, worse);
    for ((name, variable), want) in layer.variables().iter().zip(&wanted) {
        let Some(got) = got.get(variable.as_tensor()) else {
            gradients.missing.push(name);
            continue;
        };
        let got = to_f64s(got)?;
        let difference: Vec<_> = got.iter().zip(want).map(|(a, b)| a - b).collect();
        let error = length(&difference) / worse(length(want), SMALL * largest);
        if error < WRONG {
            gradients.right += 1;
            gradients.error = worse(gradients.error, error);
        } else {
            gradients.wrong.push(name);
        }
    }
    Ok(gradients)
}

fn length(values: &[f64]) -> f64 {
    values.iter().map(|v| v * v).sum::<f64>().sqrt()
}

fn scalar(x: &Tensor) -> Result<f64> {
    Ok(x.to_dtype(DType::F64)?.to_scalar()?)
}

fn list(names: &[&str]) -> String {
    if names.is_empty() {
        "-".into()
    } else {
        names.join(" ")
    }
}
