//! The same Llama-style layer on candle-nn and on candle-rowwise: what changes in its source, in its
//! output and in its gradients (docs/swapping.md).
//!
//! ```text
//! cargo run --release --example swap_llama
//! ```

#[allow(dead_code)] // Each example takes what it needs.
#[path = "../common/mod.rs"]
mod common;
mod on_candle;
mod on_rowwise;
#[allow(dead_code)]
#[path = "../common/weights.rs"]
mod weights;

use anyhow::{ensure, Context, Result};
use candle_core::backprop::GradStore;
use candle_core::{DType, Tensor, Var};
use candle_nn::{Module, VarBuilder, VarMap};
use clap::Parser;
use rand::rngs::StdRng;
use rand::SeedableRng;
use rand_distr::{Distribution, StandardNormal};

use common::{device, device_name, show_error, to_f64s, worse, Table};

/// The same Llama-style layer on candle-nn and on candle-rowwise
#[derive(Parser)]
struct Args {
    /// Sequences
    #[arg(long, default_value_t = 2)]
    batch: usize,

    /// Tokens of a sequence
    #[arg(long, default_value_t = 64)]
    seq: usize,

    /// Width of the hidden state: a multiple of twice the heads
    #[arg(long, default_value_t = 128)]
    hidden: usize,

    /// Attention heads
    #[arg(long, default_value_t = 4)]
    heads: usize,

    /// Of the random input and weights
    #[arg(long, default_value_t = 0)]
    seed: u64,

    /// Run on the GPU (needs a build with `--features cuda`)
    #[arg(long)]
    cuda: bool,
}

pub struct Sizes {
    pub hidden: usize,
    pub heads: usize,
}

impl Sizes {
    /// The MLP's width: 8/3 of the hidden width, as in Llama, up to a multiple of 64.
    pub fn inner(&self) -> usize {
        (self.hidden * 8).div_ceil(3).next_multiple_of(64)
    }
}

/// More than rounding does to outputs of about 1.
const TOLERANCE: f64 = 1e-4;

fn main() -> Result<()> {
    let args = Args::parse();
    let (hidden, heads) = (args.hidden, args.heads);
    ensure!(
        args.batch > 0 && args.seq > 0 && hidden > 0 && heads > 0,
        "--batch, --seq, --hidden and --heads must be at least 1"
    );
    ensure!(
        hidden % heads == 0 && hidden / heads % 2 == 0,
        "--hidden {hidden} is no multiple of twice --heads {heads}"
    );
    let device = device(args.cuda)?;
    println!(
        "What changes in the layer's source:\n\n{}",
        difference_of_sources()
    );

    // Both layers have the same variables.
    let map = VarMap::new();
    let vb = VarBuilder::from_varmap(&map, DType::F32, &device);
    let sizes = Sizes { hidden, heads };
    let theirs = on_candle::Layer::new(&sizes, vb.clone())?;
    let ours = on_rowwise::Layer::new(&sizes, vb)?;
    weights::initialise(&map, args.seed)?;
    let random = StdRng::seed_from_u64(args.seed.wrapping_add(1));
    let elements = args.batch * args.seq * hidden;
    let x: Vec<f32> = StandardNormal.sample_iter(random).take(elements).collect();
    let x = Tensor::from_vec(x, (args.batch, args.seq, hidden), &device)?;
    let x = Var::from_tensor(&x)?;

    let (their_y, our_y) = (theirs.forward(&x)?, ours.forward(&x)?);
    let largest = largest(&to_f64s(&(&their_y - &our_y)?)?);
    println!(
        "Largest difference of the outputs on {}, which are up to {:.1}: {}\n",
        device_name(&device),
        to_f64s(&our_y)?.iter().fold(0., |a: f64, y| a.max(y.abs())),
        show_error(largest)
    );
    ensure!(largest < TOLERANCE, "the outputs differ");

    let gradients = |y: Tensor| y.sqr()?.mean_all()?.backward();
    compare(&map, &x, &gradients(their_y)?, &gradients(our_y)?)
}

/// The lines in which the two files differ, as a diff.
fn difference_of_sources() -> String {
    let theirs = include_str!("on_candle.rs").lines();
    let ours = include_str!("on_rowwise.rs").lines();
    let changed: Vec<_> = theirs.zip(ours).filter(|(a, b)| a != b).collect();
    let minus = changed.iter().map(|(a, _)| format!("-{a}\n"));
    let plus = changed.iter().map(|(_, b)| format!("+{b}\n"));
    minus.chain(plus).collect()
}

/// Prints which gradients arrive. That ours are right, the tests and the example `transformer_layer`
/// show.
fn compare(map: &VarMap, x: &Var, theirs: &GradStore, ours: &GradStore) -> Result<()> {
    let variables = map.data().lock();
    let variables = variables.ok().context("the weights are lost")?;
    let mut named: Vec<(&str, &Var)> = variables.iter().map(|(n, v)| (n.as_str(), v)).collect();
    named.sort_by_key(|(name, _)| *name);
    named.push(("(the input)", x));
    let mut table = Table::new("lll", ["gradient of", "candle-nn", "candle-rowwise"]);
    let mut arrived = 0;
    for (name, var) in &named {
        let ours = ours.get(var.as_tensor());
        let theirs = theirs.get(var.as_tensor());
        arrived += usize::from(ours.is_some());
        let cell = match (theirs, ours) {
            (None, _) => "missing".to_string(),
            (Some(_), None) => "arrives".to_string(),
            (Some(theirs), Some(ours)) => {
                let error = length(&(theirs - ours)?)? / length(ours)?;
                match error < TOLERANCE {
                    true => "arrives".to_string(),
                    false => format!("off by {:.0} %", error * 100.),
                }
            }
        };
        table.row([*name, &cell, ours.map_or("missing", |_| "arrives")]);
    }
    println!("{table}");
    ensure!(
        arrived == named.len(),
        "only {arrived} of {} gradients arrive with candle-rowwise",
        named.len()
    );
    Ok(())
}

fn largest(values: &[f64]) -> f64 {
    values.iter().fold(0., |a, v| worse(a, v.abs()))
}

fn length(t: &Tensor) -> Result<f64> {
    Ok(to_f64s(t)?.iter().map(|v| v * v).sum::<f64>().sqrt())
}
