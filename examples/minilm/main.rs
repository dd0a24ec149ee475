//! Sentence embeddings by all-MiniLM-L6-v2, its BERT encoder built on this crate's softmax and
//! layer norm:
//!
//! ```text
//! scripts/fetch-minilm.sh
//! cargo run --release --example minilm -- "A cat sat on the mat." "A kitten rests on a rug."
//! ```
//!
//! `--compare` runs candle-transformers' BERT on the same weights and sentences, and exits with an
//! error where the two differ by more than the bounds in `compare.rs`.

#[path = "../common/mod.rs"]
mod common;
mod compare;
mod model;

use std::path::PathBuf;

use anyhow::{Context, Result};
use candle_core::{DType, Tensor};
use candle_nn::VarBuilder;
use candle_rowwise::ops;
use candle_transformers::models::bert::Config;
use clap::Parser;
use tokenizers::{PaddingParams, Tokenizer, TruncationParams};

use common::{device, device_name, to_f64s, Precision};

/// Sentence embeddings by all-MiniLM-L6-v2, on candle-rowwise's softmax and layer norm.
#[derive(Parser)]
struct Args {
    /// What to embed [default: eight sentences on three subjects]
    sentences: Vec<String>,

    /// The folder with model.safetensors, config.json and tokenizer.json
    #[arg(long, value_name = "DIR", default_value = "models/all-MiniLM-L6-v2")]
    model: PathBuf,

    /// Compare with candle-transformers' BERT; fail if the results differ too much
    #[arg(long)]
    compare: bool,

    /// What the model runs in
    #[arg(long, value_enum, default_value_t = Precision::F32)]
    dtype: Precision,

    /// Run on the GPU (needs a build with `--features cuda`)
    #[arg(long)]
    cuda: bool,
}

/// Of clearly different lengths, so that the batch has padding to be masked.
const SENTENCES: [&str; 8] = [
    "A cat sat on the mat.",
    "A kitten is resting on the rug.",
    "The dog chased a squirrel up the old oak at the far end of the garden.",
    "The central bank raised interest rates by a quarter of a point on Thursday.",
    "Borrowing became more expensive after the decision of the monetary authority.",
    "Rust checks at compile time that no reference outlives the value that it borrows from.",
    "The borrow checker rejects dangling references.",
    "Softmax!",
];

/// The length that the model was published with; the tokenizer's file says 128.
const MAX_TOKENS: usize = 256;

/// Sentences as the model takes them, padded to the longest.
pub struct Batch {
    /// (batch, tokens), u32.
    pub ids: Tensor,
    /// (batch, tokens), f32: 1 for a token, 0 for padding.
    pub mask: Tensor,
}

fn tokenize(
    tokenizer: &Tokenizer,
    sentences: &[String],
    device: &candle_core::Device,
) -> Result<Batch> {
    let encodings = tokenizer
        .encode_batch(sentences.to_vec(), true)
        .map_err(anyhow::Error::msg)
        .context("the sentences cannot be tokenized")?;
    let tokens = encodings.first().map_or(0, |e| e.len());
    let shape = (encodings.len(), tokens);
    let flat = |part: fn(&tokenizers::Encoding) -> &[u32]| -> Vec<u32> {
        encodings.iter().flat_map(part).copied().collect()
    };
    Ok(Batch {
        ids: Tensor::from_vec(flat(|e| e.get_ids()), shape, device)?,
        mask: Tensor::from_vec(flat(|e| e.get_attention_mask()), shape, device)?
            .to_dtype(DType::F32)?,
    })
}

fn load_tokenizer(args: &Args, config: &Config) -> Result<Tokenizer> {
    let path = args.model.join("tokenizer.json");
    let mut tokenizer = Tokenizer::from_file(&path)
        .map_err(anyhow::Error::msg)
        .with_context(|| format!("{} cannot be read", path.display()))?;
    // The file asks for padding to 128 tokens whatever the sentences.
    tokenizer.with_padding(Some(PaddingParams {
        pad_id: config.pad_token_id as u32,
        ..Default::default()
    }));
    tokenizer
        .with_truncation(Some(TruncationParams {
            max_length: MAX_TOKENS.min(config.max_position_embeddings),
            ..Default::default()
        }))
        .map_err(anyhow::Error::msg)?;
    Ok(tokenizer)
}

/// The cosines of unit vectors with each other.
fn cosines(embeddings: &Tensor) -> Result<Tensor> {
    Ok(embeddings.matmul(&embeddings.t()?)?)
}

fn show_cosines(sentences: &[String], embeddings: &Tensor) -> Result<()> {
    for (number, sentence) in (1..).zip(sentences) {
        println!("{number:>3}  {sentence}");
    }
    println!("\nCosine similarity:");
    // As many columns as there are sentences, so by hand and not as a `Table`.
    let numbers = 1..=sentences.len();
    let headings: String = numbers.clone().map(|n| format!("{n:>8}")).collect();
    println!("   {headings}");
    let values = to_f64s(&cosines(embeddings)?)?;
    for (number, row) in numbers.zip(values.chunks(sentences.len())) {
        let cells: String = row.iter().map(|cosine| format!("{cosine:>8.3}")).collect();
        println!("{number:>3}{cells}");
    }
    println!();
    Ok(())
}

fn main() -> Result<()> {
    let args = Args::parse();
    let device = device(args.cuda)?;
    let dtype = args.dtype.dtype();

    let path = args.model.join("config.json");
    let text = std::fs::read_to_string(&path).with_context(|| {
        let path = path.display();
        format!("{path} cannot be read (scripts/fetch-minilm.sh fetches the model; --model says where it is)")
    })?;
    let config: Config = serde_json::from_str(&text)
        .with_context(|| format!("{} is not a BERT configuration", path.display()))?;
    let tokenizer = load_tokenizer(&args, &config)?;
    let path = args.model.join("model.safetensors");
    let weights =
        std::fs::read(&path).with_context(|| format!("{} cannot be read", path.display()))?;
    let load = |dtype| VarBuilder::from_slice_safetensors(&weights, dtype, &device);

    let sentences = if args.sentences.is_empty() {
        SENTENCES.map(String::from).to_vec()
    } else {
        args.sentences.clone()
    };
    let batch = tokenize(&tokenizer, &sentences, &device)?;
    let (rows, tokens) = batch.ids.dims2()?;
    println!(
        "all-MiniLM-L6-v2 in {} on {}: {rows} sentences of up to {tokens} tokens\n",
        dtype.as_str(),
        device_name(&device)
    );

    let model = model::Encoder::load(load(dtype)?, &config)?;
    let hidden = model.forward(&batch)?;
    let embeddings = model::pool(&hidden, &batch.mask, ops::sum_keepdim)?;
    show_cosines(&sentences, &embeddings)?;

    if args.compare {
        let reference =
            candle_transformers::models::bert::BertModel::load(load(DType::F32)?, &config)?;
        compare::run(&model, &reference, &config, &batch, dtype)?;
    }
    Ok(())
}
