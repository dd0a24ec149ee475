//! A small GPT: token and position embeddings, layers of `x + attention(norm(x))` and
//! `x + mlp(norm(x))`, a last norm and a linear head. Norms are RMS norms, attention is causal.

use candle_core::{Result, Tensor, D};
use candle_nn::{embedding, linear_no_bias, Embedding, Init, Linear, Module, VarBuilder};

#[derive(Debug, Clone, Copy)]
pub struct Config {
    /// Kinds of tokens.
    pub vocabulary: usize,
    /// The most tokens that a token sees, itself included.
    pub context: usize,
    pub width: usize,
    pub heads: usize,
    pub layers: usize,
}

/// Whose row-wise ops the model runs on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowOps {
    Ours,
    /// candle's forms made of many small ops: those of its own that have gradients.
    CandleComposed,
}

const EPS: f32 = 1e-6;

impl RowOps {
    fn rms_norm(self, x: &Tensor, weight: &Tensor) -> Result<Tensor> {
        match self {
            RowOps::Ours => candle_rowwise::nn::ops::rms_norm(x, weight, EPS),
            RowOps::CandleComposed => candle_nn::ops::rms_norm_slow(x, weight, EPS),
        }
    }

    fn softmax(self, x: &Tensor) -> Result<Tensor> {
        match self {
            RowOps::Ours => candle_rowwise::nn::ops::softmax_last_dim(x),
            RowOps::CandleComposed => candle_nn::ops::softmax(x, D::Minus1),
        }
    }

    fn cross_entropy(self, logits: &Tensor, target: &Tensor) -> Result<Tensor> {
        match self {
            RowOps::Ours => candle_rowwise::nn::loss::cross_entropy(logits, target),
            RowOps::CandleComposed => candle_nn::loss::cross_entropy(logits, target),
        }
    }
}

pub struct Gpt {
    rows: RowOps,
    tokens: Embedding,
    positions: Tensor,
    layers: Vec<Layer>,
    norm: Tensor,
    head: Linear,
    mask: Tensor,
}

impl Gpt {
    pub fn new(config: &Config, rows: RowOps, vb: VarBuilder) -> Result<Self> {
        let Config { context, width, .. } = *config;
        let layer = |i| Layer::new(config, rows, vb.pp("layers").pp(i));
        Ok(Self {
            rows,
            tokens: embedding(config.vocabulary, width, vb.pp("tokens"))?,
            positions: vb.get((context, width), "positions")?,
            layers: (0..config.layers).map(layer).collect::<Result<_>>()?,
            norm: norm_weight(width, "norm", &vb)?,
            head: linear_no_bias(width, config.vocabulary, vb.pp("head"))?,
            mask: causal_mask(context, &vb)?,
        })
    }

    /// From (batch, tokens) ids to the logits (batch, tokens, vocabulary) of what follows each.
    pub fn forward(&self, ids: &Tensor) -> Result<Tensor> {
        let (_, seq) = ids.dims2()?;
        let positions = self.positions.narrow(0, 0, seq)?;
        let mask = self.mask.narrow(0, 0, seq)?.narrow(1, 0, seq)?;
        let mut x = self.tokens.forward(ids)?.broadcast_add(&positions)?;
        for layer in &self.layers {
            x = layer.forward(&x, &mask)?;
        }
        self.head.forward(&self.rows.rms_norm(&x, &self.norm)?)
    }

    /// The mean cross-entropy of what follows each token, in nats.
    pub fn loss(&self, ids: &Tensor, following: &Tensor) -> Result<Tensor> {
        let logits = self.forward(ids)?.flatten_to(1)?;
        self.rows.cross_entropy(&logits, &following.flatten_all()?)
    }
}

struct Layer {
    rows: RowOps,
    heads: usize,
    attention_norm: Tensor,
    query_key_value: Linear,
    output: Linear,
    mlp_norm: Tensor,
    up: Linear,
    down: Linear,
}

impl Layer {
    fn new(config: &Config, rows: RowOps, vb: VarBuilder) -> Result<Self> {
        let width = config.width;
        Ok(Self {
            rows,
            heads: config.heads,
            attention_norm: norm_weight(width, "attention_norm", &vb)?,
            query_key_value: linear_no_bias(width, 3 * width, vb.pp("query_key_value"))?,
            output: linear_no_bias(width, width, vb.pp("output"))?,
            mlp_norm: norm_weight(width, "mlp_norm", &vb)?,
            up: linear_no_bias(width, 4 * width, vb.pp("up"))?,
            down: linear_no_bias(4 * width, width, vb.pp("down"))?,
        })
    }

    fn forward(&self, x: &Tensor, mask: &Tensor) -> Result<Tensor> {
        let normed = self.rows.rms_norm(x, &self.attention_norm)?;
        let x = (x + self.attention(&normed, mask)?)?;
        let normed = self.rows.rms_norm(&x, &self.mlp_norm)?;
        &x + self.down.forward(&self.up.forward(&normed)?.silu()?)?
    }

    fn attention(&self, x: &Tensor, mask: &Tensor) -> Result<Tensor> {
        let (batch, seq, width) = x.dims3()?;
        let size = width / self.heads;
        // (query key value, batch, heads, tokens, size of a head)
        let all = self.query_key_value.forward(x)?;
        let all = all.reshape((batch, seq, 3, self.heads, size))?;
        let all = all.permute((2, 0, 3, 1, 4))?.contiguous()?;
        let (query, key, value) = (all.get(0)?, all.get(1)?, all.get(2)?);
        let scores = (query.matmul(&key.t()?)? / (size as f64).sqrt())?;
        let weights = self.rows.softmax(&scores.broadcast_add(mask)?)?;
        let mixed = weights.matmul(&value)?.transpose(1, 2)?;
        self.output.forward(&mixed.flatten_from(D::Minus2)?)
    }
}

fn norm_weight(width: usize, name: &str, vb: &VarBuilder) -> Result<Tensor> {
    vb.get_with_hints(width, name, Init::Const(1.))
}

/// What is added to (tokens, tokens) scores: minus infinity where a token would see a later one.
fn causal_mask(context: usize, vb: &VarBuilder) -> Result<Tensor> {
    let hidden = |i: usize| i % context > i / context;
    let mask: Vec<f32> = (0..context * context)
        .map(|i| if hidden(i) { f32::NEG_INFINITY } else { 0. })
        .collect();
    Tensor::from_vec(mask, (context, context), vb.device())?.to_dtype(vb.dtype())
}
