//! A Llama-style layer, forward and backward, on this crate's ops and on candle's:
//!
//! ```text
//! cargo run --release --example transformer_layer
//! cargo run --release --features cuda --example transformer_layer -- --cuda --dtype bf16 --hidden 2048
//! ```
//!
//! The first table takes the ops one by one at the layer's shapes: how far each result is from one
//! computed in f64, how long it takes, and whether the gradient arrives. The second takes the whole
//! layer. Both hold candle's built-in functions beside ours.

#[path = "../common/mod.rs"]
mod common;
mod exact;
mod layer;
mod layer_table;
mod op_table;

use anyhow::{ensure, Result};
use candle_core::{DType, Device, Tensor};
use clap::Parser;
use rand::rngs::StdRng;
use rand::SeedableRng;
use rand_distr::{Distribution, Normal};

use common::{device, device_name, Precision};
use layer::Sizes;

/// A Llama-style layer, forward and backward, on candle-rowwise and on candle.
#[derive(Parser)]
struct Args {
    /// Sequences
    #[arg(long, default_value_t = 2)]
    batch: usize,

    /// Tokens of a sequence
    #[arg(long, default_value_t = 256)]
    seq: usize,

    /// Width of the hidden state, a multiple of the heads
    #[arg(long, default_value_t = 512)]
    hidden: usize,

    /// Attention heads
    #[arg(long, default_value_t = 8)]
    heads: usize,

    /// What the layer runs in
    #[arg(long, value_enum, default_value_t = Precision::F32)]
    dtype: Precision,

    /// Of the random input and weights
    #[arg(long, default_value_t = 0)]
    seed: u64,

    /// Run on the GPU (needs a build with `--features cuda`)
    #[arg(long)]
    cuda: bool,
}

/// What the largest tensor of the layer may hold: 4 GiB in f32, several of which are alive at once.
const MOST_ELEMENTS: usize = 1 << 30;

impl Args {
    /// The sizes asked for, once they are known to make sense.
    fn sizes(&self) -> Result<Sizes> {
        let named = [
            ("--batch", self.batch),
            ("--seq", self.seq),
            ("--hidden", self.hidden),
            ("--heads", self.heads),
        ];
        for (name, value) in named {
            ensure!(value > 0, "{name} must be at least 1");
        }
        let (hidden, heads) = (self.hidden, self.heads);
        ensure!(
            hidden % heads == 0,
            "--hidden {hidden} is not a multiple of --heads {heads}"
        );
        let sizes = Sizes {
            batch: self.batch,
            seq: self.seq,
            hidden,
            heads,
        };
        let fits = |factors: &[usize]| {
            let product = factors.iter().try_fold(1usize, |a, b| a.checked_mul(*b));
            product.is_some_and(|elements| elements <= MOST_ELEMENTS)
        };
        ensure!(
            fits(&[hidden, hidden, 3])
                && fits(&[self.batch, heads, self.seq, self.seq])
                && fits(&[self.batch, self.seq, sizes.inner()]),
            "these sizes make tensors of more than {MOST_ELEMENTS} elements"
        );
        Ok(sizes)
    }
}

/// Normally distributed numbers, the same on every run and device.
pub struct Random(StdRng);

impl Random {
    /// A tensor in `dtype` on the CPU.
    pub fn normal(&mut self, shape: &[usize], mean: f32, std: f32, dtype: DType) -> Result<Tensor> {
        let normal = Normal::new(mean, std)?;
        let elements = shape.iter().product();
        let values: Vec<f32> = normal.sample_iter(&mut self.0).take(elements).collect();
        Ok(Tensor::from_vec(values, shape, &Device::Cpu)?.to_dtype(dtype)?)
    }
}

fn main() -> Result<()> {
    let args = Args::parse();
    let sizes = args.sizes()?;
    let device = device(args.cuda)?;
    let dtype = args.dtype.dtype();
    println!(
        "Llama-style layer in {} on {}: batch {}, {} tokens, hidden {}, {} heads, MLP {}, seed {}\n",
        dtype.as_str(),
        device_name(&device),
        sizes.batch,
        sizes.seq,
        sizes.hidden,
        sizes.heads,
        sizes.inner(),
        args.seed,
    );
    let mut random = Random(StdRng::seed_from_u64(args.seed));
    op_table::run(&sizes, dtype, &device, &mut random)?;
    layer_table::run(&sizes, dtype, &device, &mut random)
}
