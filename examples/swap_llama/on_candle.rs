//! A Llama-style layer. There are two of this file, which differ in their `use` lines alone.

use candle_core::{DType, Result, Tensor, D};
use candle_nn::ops::softmax_last_dim;
use candle_nn::rotary_emb::rope_slow;
use candle_nn::{linear_no_bias, rms_norm, Linear, Module, RmsNorm, VarBuilder};

use crate::Sizes;

/// `x + attention(norm(x))`, then `x + mlp(norm(x))`.
pub struct Layer {
    attention_norm: RmsNorm,
    attention: Attention,
    mlp_norm: RmsNorm,
    mlp: Mlp,
}

impl Layer {
    pub fn new(sizes: &Sizes, vb: VarBuilder) -> Result<Self> {
        Ok(Self {
            attention_norm: rms_norm(sizes.hidden, 1e-6, vb.pp("attention_norm"))?,
            attention: Attention::new(sizes, vb.pp("attention"))?,
            mlp_norm: rms_norm(sizes.hidden, 1e-6, vb.pp("mlp_norm"))?,
            mlp: Mlp::new(sizes, vb.pp("mlp"))?,
        })
    }
}

impl Module for Layer {
    /// From and to (batch, tokens, hidden).
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let x = (x + self.attention.forward(&self.attention_norm.forward(x)?)?)?;
        &x + self.mlp.forward(&self.mlp_norm.forward(&x)?)?
    }
}

/// Causal attention with rotary position embeddings.
struct Attention {
    heads: usize,
    query: Linear,
    key: Linear,
    value: Linear,
    output: Linear,
}

impl Attention {
    fn new(sizes: &Sizes, vb: VarBuilder) -> Result<Self> {
        let linear = |name| linear_no_bias(sizes.hidden, sizes.hidden, vb.pp(name));
        Ok(Self {
            heads: sizes.heads,
            query: linear("query")?,
            key: linear("key")?,
            value: linear("value")?,
            output: linear("output")?,
        })
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let (batch, seq, hidden) = x.dims3()?;
        let size = hidden / self.heads;
        let split = |linear: &Linear| {
            let x = linear.forward(x)?.reshape((batch, seq, self.heads, size))?;
            x.transpose(1, 2)?.contiguous()
        };
        let (cos, sin) = rotations(seq, size, x)?;
        let query = rope_slow(&split(&self.query)?, &cos, &sin)?;
        let key = rope_slow(&split(&self.key)?, &cos, &sin)?;
        let scores = (query.matmul(&key.t()?)? / (size as f64).sqrt())?;
        let weights = softmax_last_dim(&scores.broadcast_add(&causal_mask(seq, x)?)?)?;
        let mixed = weights.matmul(&split(&self.value)?)?.transpose(1, 2)?;
        self.output.forward(&mixed.flatten_from(D::Minus2)?)
    }
}

/// The SwiGLU MLP.
struct Mlp {
    gate: Linear,
    up: Linear,
    down: Linear,
}

impl Mlp {
    fn new(sizes: &Sizes, vb: VarBuilder) -> Result<Self> {
        let inner = sizes.inner();
        Ok(Self {
            gate: linear_no_bias(sizes.hidden, inner, vb.pp("gate"))?,
            up: linear_no_bias(sizes.hidden, inner, vb.pp("up"))?,
            down: linear_no_bias(inner, sizes.hidden, vb.pp("down"))?,
        })
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let gate = self.gate.forward(x)?.silu()?;
        self.down.forward(&(gate * self.up.forward(x)?)?)
    }
}

/// Cosines and sines (tokens, size / 2) by which pairs of features are turned, like `x` in dtype and
/// device.
fn rotations(seq: usize, size: usize, x: &Tensor) -> Result<(Tensor, Tensor)> {
    let position = Tensor::arange(0, seq as u32, x.device())?.to_dtype(DType::F32)?;
    let pairs: Vec<f32> = (0..size / 2)
        .map(|pair| 10_000f32.powf(-2. * pair as f32 / size as f32))
        .collect();
    let frequency = Tensor::from_vec(pairs, (1, size / 2), x.device())?;
    let angle = position.unsqueeze(1)?.broadcast_mul(&frequency)?;
    Ok((
        angle.cos()?.to_dtype(x.dtype())?,
        angle.sin()?.to_dtype(x.dtype())?,
    ))
}

/// What is added to (tokens, tokens) scores: minus infinity where a token would see a later one.
fn causal_mask(seq: usize, x: &Tensor) -> Result<Tensor> {
    let hidden = |i: usize| i % seq > i / seq;
    let mask: Vec<f32> = (0..seq * seq)
        .map(|i| if hidden(i) { f32::NEG_INFINITY } else { 0. })
        .collect();
    Tensor::from_vec(mask, (seq, seq), x.device())?.to_dtype(x.dtype())
}
