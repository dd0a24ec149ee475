//! Our encoder beside candle-transformers' BERT: how much the results differ, and what the softmaxes
//! and layer norms of one forward pass cost each.

use anyhow::{bail, Result};
use candle_core::{DType, Tensor, D};
use candle_nn::Module;
use candle_transformers::models::bert::{BertModel, Config};

use crate::common::{show_error, show_ratio, show_time, time_each, to_f64s, worse, Table};
use crate::model::{additive_mask, pool, Encoder};
use crate::Batch;

/// In f32, the largest difference of an embedding's and of a hidden state's element.
const LARGEST_DIFFERENCE: f64 = 1e-5;
/// In half types, the smallest cosine of a sentence's two embeddings (the reference stays f32).
const SMALLEST_COSINE: f64 = 0.999;

/// Prints the comparison. An error says which bound was broken.
pub fn run(
    ours: &Encoder,
    reference: &BertModel,
    config: &Config,
    batch: &Batch,
    dtype: DType,
) -> Result<()> {
    let broken = compare_results(ours, reference, batch, dtype)?;
    time_row_ops(config, batch, dtype)?;
    time_forward(ours, reference, batch, dtype)?;
    if let Some(broken) = broken {
        bail!("{broken}");
    }
    Ok(())
}

fn reference_forward(reference: &BertModel, batch: &Batch) -> candle_core::Result<Tensor> {
    let segments = batch.ids.zeros_like()?;
    reference.forward(&batch.ids, &segments, Some(&batch.mask))
}

/// Prints how far the results are apart, and returns what breaks a bound.
fn compare_results(
    ours: &Encoder,
    reference: &BertModel,
    batch: &Batch,
    dtype: DType,
) -> Result<Option<String>> {
    let hidden = ours.forward(batch)?;
    let hidden_ref = reference_forward(reference, batch)?;
    let size = hidden.dim(D::Minus1)?;

    let embeddings = pool(&hidden, &batch.mask, candle_rowwise::ops::sum_keepdim)?;
    let embeddings_ref = pool(&hidden_ref, &batch.mask, |x, dim| x.sum_keepdim(dim))?;
    let (embeddings, embeddings_ref) = (to_f64s(&embeddings)?, to_f64s(&embeddings_ref)?);
    let of_embeddings = max_difference(&embeddings, &embeddings_ref)?;
    let smallest_cosine = embeddings
        .chunks(size)
        .zip(embeddings_ref.chunks(size))
        .map(|(a, b)| cosine(a, b))
        .fold(1.0, |least, cosine| -worse(-least, -cosine));

    // What a padded position holds means nothing and is not compared.
    let mask = to_f64s(&batch.mask)?;
    let (hidden, hidden_ref) = (to_f64s(&hidden)?, to_f64s(&hidden_ref)?);
    let mut of_hidden = 0.0;
    let tokens = hidden.chunks(size).zip(hidden_ref.chunks(size));
    for ((a, b), _) in tokens.zip(&mask).filter(|(_, mask)| **mask != 0.0) {
        of_hidden = worse(of_hidden, max_difference(a, b)?);
    }

    let name = dtype.as_str();
    println!("Ours in {name} beside candle-transformers' BERT in f32:");
    let mut table = Table::new("lrr", ["", "measured", "bound"]);
    let exact = dtype == DType::F32;
    let bound = |bounded: bool, text: String| if bounded { text } else { String::new() };
    let at_most = || format!("<= {}", show_error(LARGEST_DIFFERENCE));
    table.row([
        "largest difference of the sentence embeddings".into(),
        show_error(of_embeddings),
        bound(exact, at_most()),
    ]);
    table.row([
        "largest difference of the last hidden states".into(),
        show_error(of_hidden),
        bound(exact, at_most()),
    ]);
    table.row([
        "smallest cosine of a sentence's two embeddings".into(),
        format!("{smallest_cosine:.7}"),
        bound(!exact, format!(">= {SMALLEST_COSINE}")),
    ]);
    println!("{table}");

    // Asked the way round that a NaN fails.
    let difference = worse(of_embeddings, of_hidden);
    let within = if exact {
        difference <= LARGEST_DIFFERENCE
    } else {
        smallest_cosine >= SMALLEST_COSINE
    };
    Ok((!within).then(|| {
        if exact {
            format!("f32 results differ by {difference:e}, more than {LARGEST_DIFFERENCE:e}")
        } else {
            format!("{name} embeddings have a cosine of {smallest_cosine}, below {SMALLEST_COSINE}")
        }
    }))
}

/// Largest absolute difference.
pub fn max_difference(a: &[f64], b: &[f64]) -> Result<f64> {
    if a.len() != b.len() {
        bail!("{} values cannot be compared with {}", a.len(), b.len());
    }
    let differences = a.iter().zip(b).map(|(a, b)| (a - b).abs());
    Ok(differences.fold(0.0, worse))
}

/// In f64: the last places of f32 are what is asked about.
fn cosine(a: &[f64], b: &[f64]) -> f64 {
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()
}

/// Prints what the row ops of one forward pass take, over random data of the model's shapes.
fn time_row_ops(config: &Config, batch: &Batch, dtype: DType) -> Result<()> {
    let device = batch.ids.device();
    let (sentences, tokens) = batch.ids.dims2()?;
    let (heads, size) = (config.num_attention_heads, config.hidden_size);
    let normal = |shape: &[usize]| Tensor::randn(0f32, 1., shape, device)?.to_dtype(dtype);

    let scores = normal(&[sentences, heads, tokens, tokens])?
        .broadcast_add(&additive_mask(&batch.mask)?.to_dtype(dtype)?)?;
    let hidden = normal(&[sentences, tokens, size])?;
    let (weight, bias) = (normal(&[size])?, normal(&[size])?);
    let eps = config.layer_norm_eps;
    let norm = candle_rowwise::nn::LayerNorm::new(weight.clone(), bias.clone(), eps);
    let norm_ref = candle_nn::LayerNorm::new(weight, bias, eps);

    // As candle's BERT calls them: the composed softmax, and the layer norm that finds its fused
    // kernel by itself.
    let softmax = time_each(
        device,
        &[
            &|| candle_rowwise::nn::ops::softmax_last_dim(&scores),
            &|| candle_nn::ops::softmax(&scores, D::Minus1),
            &|| candle_nn::ops::softmax_last_dim(&scores),
        ],
    )?;
    let layer_norm = time_each(
        device,
        &[&|| norm.forward(&hidden), &|| norm_ref.forward(&hidden)],
    )?;

    let layers = config.num_hidden_layers as u32;
    println!(
        "Row ops of one forward pass in {}, ours and as candle's BERT calls them:",
        dtype.as_str()
    );
    let headings = ["op", "shape", "calls", "ours", "candle's", "ratio"];
    let mut table = Table::new("llrrrr", headings).grouped(&[("", 3), ("time of all calls", 3)]);
    let mut total = [std::time::Duration::ZERO; 2];
    let calls = [
        ("softmax", &scores, layers, &softmax),
        ("layer norm", &hidden, 2 * layers + 1, &layer_norm),
    ];
    for (name, x, calls, times) in calls {
        let (ours, theirs) = (times[0] * calls, times[1] * calls);
        total = [total[0] + ours, total[1] + theirs];
        table.row([
            name.into(),
            format!("{:?}", x.dims()),
            calls.to_string(),
            show_time(ours),
            show_time(theirs),
            show_ratio(ours, theirs),
        ]);
    }
    table.row([
        "together".into(),
        String::new(),
        String::new(),
        show_time(total[0]),
        show_time(total[1]),
        show_ratio(total[0], total[1]),
    ]);
    println!("{table}");
    println!(
        "candle's softmax_last_dim, which its BERT does not use, takes {} for the {layers} calls.\n",
        show_time(softmax[2] * layers)
    );
    Ok(())
}

fn time_forward(ours: &Encoder, reference: &BertModel, batch: &Batch, dtype: DType) -> Result<()> {
    let times = time_each(
        batch.ids.device(),
        &[&|| ours.forward(batch), &|| {
            reference_forward(reference, batch)
        }],
    )?;
    println!(
        "One forward pass: ours in {} {}, candle-transformers' in f32 {}.",
        dtype.as_str(),
        show_time(times[0]),
        show_time(times[1])
    );
    Ok(())
}
