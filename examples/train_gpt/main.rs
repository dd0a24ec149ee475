//! Trains a small GPT on the characters of a text, with norms, softmax and cross-entropy from
//! candle-rowwise, then has it write some text and draws the loss curve:
//!
//! ```text
//! cargo run --release --example train_gpt
//! cargo run --release --example train_gpt -- --compare --steps 200
//! cargo run --release --features cuda --example train_gpt -- --cuda --width 256 --layers 6 FILE
//! ```
//!
//! With `--compare` a twin on candle's composed ops is trained as well, from the same weights and on
//! the same data, and the two loss curves are compared.

mod chart;
#[allow(dead_code)] // Each example takes what it needs.
#[path = "../common/mod.rs"]
mod common;
mod model;
mod sample;
mod text;
mod train;
#[path = "../common/weights.rs"]
mod weights;

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{ensure, Context, Result};
use candle_core::Device;
use clap::Parser;
use indicatif::{ProgressBar, ProgressStyle};
use plotters::style::RGBColor;

use chart::Curve;
use common::{device, device_name, show_time, Table};
use model::{Config, RowOps};
use text::Text;
use train::{largest_difference, train, Plan, Trained};

/// Trains a small GPT on the characters of a text
#[derive(Parser)]
struct Args {
    /// The text, in UTF-8; without one, Shakespeare's sonnets
    text: Option<PathBuf>,

    /// Training steps
    #[arg(long, default_value_t = 600)]
    steps: usize,

    /// Layers of the model
    #[arg(long, default_value_t = 2)]
    layers: usize,

    /// Width of the hidden state, a multiple of the heads
    #[arg(long, default_value_t = 64)]
    width: usize,

    /// Attention heads
    #[arg(long, default_value_t = 4)]
    heads: usize,

    /// Characters that the model looks back on
    #[arg(long, default_value_t = 64)]
    context: usize,

    /// Windows of text in a step
    #[arg(long, default_value_t = 16)]
    batch: usize,

    /// Largest learning rate: it rises at first and falls then
    #[arg(long, default_value_t = 3e-3)]
    lr: f64,

    /// Of the initial weights, the order of the text and the sample
    #[arg(long, default_value_t = 0)]
    seed: u64,

    /// Characters to write at the end
    #[arg(long, default_value_t = 400)]
    sample: usize,

    /// Where the loss curve is drawn to
    #[arg(long, default_value = "train_gpt.svg")]
    chart: PathBuf,

    /// Train a twin on candle's composed ops and compare the losses
    #[arg(long)]
    compare: bool,

    /// Run on the GPU (needs a build with `--features cuda`)
    #[arg(long)]
    cuda: bool,
}

/// How far the two losses of a step may be apart, on the CPU, for as long as rounding has not yet
/// been driven apart by training itself.
const TOLERANCE: f32 = 1e-4;
const COMPARED_STEPS: usize = 50;

const TEMPERATURE: f64 = 0.8;

const OURS: &str = "candle-rowwise";
const THEIRS: &str = "candle, composed";

impl Args {
    fn text(&self) -> Result<String> {
        match &self.text {
            None => Ok(include_str!("text.txt").to_string()),
            Some(path) => std::fs::read_to_string(path)
                .with_context(|| format!("{} cannot be read", path.display())),
        }
    }

    fn check(&self) -> Result<()> {
        for (name, value) in [
            ("--steps", self.steps),
            ("--layers", self.layers),
            ("--width", self.width),
            ("--heads", self.heads),
            ("--context", self.context),
            ("--batch", self.batch),
        ] {
            ensure!(value > 0, "{name} must be at least 1");
        }
        ensure!(
            self.width.is_multiple_of(self.heads),
            "--width {} is not a multiple of --heads {}",
            self.width,
            self.heads
        );
        ensure!(
            self.lr > 0. && self.lr.is_finite(),
            "--lr must be a positive number"
        );
        Ok(())
    }
}

fn main() -> Result<()> {
    let args = Args::parse();
    args.check()?;
    let device = device(args.cuda)?;
    let text = Text::new(&args.text()?, args.context)?;
    let config = Config {
        vocabulary: text.vocabulary(),
        context: args.context,
        width: args.width,
        heads: args.heads,
        layers: args.layers,
    };
    let plan = Plan {
        steps: args.steps,
        batch: args.batch,
        lr: args.lr,
        seed: args.seed,
    };
    println!(
        "GPT on {}: {} layers, width {}, {} heads, context {}; {} characters, {} kinds of them",
        device_name(&device),
        config.layers,
        config.width,
        config.heads,
        config.context,
        text.len(),
        config.vocabulary
    );

    let run = |name, rows| with_bar(name, &config, rows, &text, &plan, &device);
    let ours = run(OURS, RowOps::Ours)?;
    let twin = args.compare.then(|| run(THEIRS, RowOps::CandleComposed));
    let theirs = twin.transpose()?;

    let ids = sample::sample(
        &ours.gpt,
        &config,
        text.first(),
        args.sample,
        TEMPERATURE,
        args.seed,
        &device,
    )?;
    println!("{}\n", text.decode(&ids));
    draw(&args.chart, &ours, theirs.as_ref())?;
    println!("Loss curve: {}\n", args.chart.display());
    match theirs {
        None => Ok(()),
        Some(theirs) => compare(&ours, &theirs, &device),
    }
}

/// Trains under a progress bar and prints what came of it.
fn with_bar(
    name: &'static str,
    config: &Config,
    rows: RowOps,
    text: &Text,
    plan: &Plan,
    device: &Device,
) -> Result<Trained> {
    let style = "{prefix} {bar:32} {pos}/{len} steps, {elapsed} gone, {eta} left, loss {msg}";
    let bar = ProgressBar::new(plan.steps as u64)
        .with_style(ProgressStyle::with_template(style)?)
        .with_prefix(name);
    let start = Instant::now();
    let trained = train(config, rows, text, plan, device, |loss| {
        bar.set_message(format!("{loss:.3}"));
        bar.inc(1);
    })?;
    bar.finish_and_clear();
    let took = start.elapsed();

    let losses = &trained.losses;
    let end = &losses[losses.len().saturating_sub(20)..];
    println!(
        "\n{name}: {} parameters, {} steps in {} ({} each)",
        trained.parameters,
        plan.steps,
        show_time(took),
        show_time(took / plan.steps.try_into().unwrap_or(u32::MAX))
    );
    let mut table = Table::new("lrr", ["loss, in nats per character", "before", "after"]);
    let shown = |loss: f32| format!("{loss:.4}");
    let mean = end.iter().sum::<f32>() / end.len() as f32;
    table.row(["of training".into(), shown(losses[0]), shown(mean)]);
    let [before, after] = trained.held_out;
    table.row(["of what is held out".into(), shown(before), shown(after)]);
    println!("{table}");
    Ok(trained)
}

fn draw(path: &Path, ours: &Trained, theirs: Option<&Trained>) -> Result<()> {
    // The twin's curve lies under ours, and is wide enough to be seen there.
    let theirs = theirs.map(|theirs| Curve {
        name: THEIRS,
        color: RGBColor(250, 180, 90),
        width: 5,
        losses: &theirs.losses,
    });
    let ours = Curve {
        name: OURS,
        color: RGBColor(0, 90, 181),
        width: 1,
        losses: &ours.losses,
    };
    let curves: Vec<_> = theirs.into_iter().chain([ours]).collect();
    chart::draw(path, &curves)
}

/// Prints how far the two curves are apart.
fn compare(ours: &Trained, theirs: &Trained, device: &Device) -> Result<()> {
    let compared = ours.losses.len().min(COMPARED_STEPS);
    let early = largest_difference(&ours.losses[..compared], &theirs.losses);
    println!(
        "Largest difference of the two loss curves: {early:.1e} over the first {compared} steps, \
         {:.1e} over all {}",
        largest_difference(&ours.losses, &theirs.losses),
        ours.losses.len()
    );
    // On a GPU candle adds up the gradients of embeddings in any order.
    ensure!(
        early <= TOLERANCE || !device.is_cpu(),
        "the curves differ by more than {TOLERANCE}"
    );
    Ok(())
}
