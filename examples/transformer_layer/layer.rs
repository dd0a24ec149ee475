//! The layer: `x + attention(rms_norm(x))`, then `x + mlp(rms_norm(x))`, with causal attention and a
//! SwiGLU MLP. Position embeddings are left out: nothing in them is row-wise.

use candle_core::{DType, Device, Result, Tensor, Var, D};

use crate::Random;

#[derive(Debug, Clone, Copy)]
pub struct Sizes {
    pub batch: usize,
    pub seq: usize,
    pub hidden: usize,
    pub heads: usize,
}

impl Sizes {
    /// The MLP's width: 8/3 of the hidden width, as in Llama, up to a multiple of 64.
    pub fn inner(&self) -> usize {
        (self.hidden * 8).div_ceil(3).next_multiple_of(64)
    }
}

/// Whose row-wise ops the layer runs on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowOps {
    Ours,
    /// candle's forms made of many small ops, which have gradients.
    CandleComposed,
    /// candle's fused kernels, which have none.
    CandleFused,
}

pub const EPS: f32 = 1e-6;

impl RowOps {
    pub const ALL: [RowOps; 3] = [RowOps::Ours, RowOps::CandleComposed, RowOps::CandleFused];

    pub fn name(self) -> &'static str {
        match self {
            RowOps::Ours => "candle-rowwise",
            RowOps::CandleComposed => "candle, composed",
            RowOps::CandleFused => "candle, fused",
        }
    }

    fn rms_norm(self, x: &Tensor, weight: &Tensor) -> Result<Tensor> {
        match self {
            RowOps::Ours => candle_rowwise::nn::ops::rms_norm(x, weight, EPS),
            RowOps::CandleComposed => candle_nn::ops::rms_norm_slow(x, weight, EPS),
            RowOps::CandleFused => candle_nn::ops::rms_norm(x, weight, EPS),
        }
    }

    fn softmax(self, x: &Tensor) -> Result<Tensor> {
        match self {
            RowOps::Ours => candle_rowwise::nn::ops::softmax_last_dim(x),
            RowOps::CandleComposed => candle_nn::ops::softmax(x, D::Minus1),
            RowOps::CandleFused => candle_nn::ops::softmax_last_dim(x),
        }
    }
}

/// What the layer is a function of, on the CPU: its weights, its input, and what its output is
/// compared with to have a loss.
pub struct Data {
    named: Vec<(&'static str, Tensor)>,
    target: Tensor,
}

impl Data {
    pub fn random(sizes: &Sizes, dtype: DType, random: &mut Random) -> anyhow::Result<Self> {
        let (hidden, inner) = (sizes.hidden, sizes.inner());
        let io = [sizes.batch, sizes.seq, hidden];
        // Keeps the size of what passes through.
        let mut matrix = |from: usize, to: usize| {
            random.normal(&[from, to], 0., (from as f32).sqrt().recip(), dtype)
        };
        let mut named = vec![
            ("wq", matrix(hidden, hidden)?),
            ("wk", matrix(hidden, hidden)?),
            ("wv", matrix(hidden, hidden)?),
            ("wo", matrix(hidden, hidden)?),
            ("gate", matrix(hidden, inner)?),
            ("up", matrix(hidden, inner)?),
            ("down", matrix(inner, hidden)?),
        ];
        named.push(("norm1", random.normal(&[hidden], 1., 0.1, dtype)?));
        named.push(("norm2", random.normal(&[hidden], 1., 0.1, dtype)?));
        named.push(("x", random.normal(&io, 0., 1., dtype)?));
        Ok(Data {
            named,
            target: random.normal(&io, 0., 1., DType::F32)?,
        })
    }
}

/// The layer with its input and weights as variables.
pub struct Layer {
    heads: usize,
    variables: Vec<(&'static str, Var)>,
    target: Tensor,
    mask: Tensor,
}

impl Layer {
    pub fn new(sizes: &Sizes, data: &Data, dtype: DType, device: &Device) -> Result<Self> {
        let variable = |(name, value): &(&'static str, Tensor)| {
            let value = value.to_dtype(dtype)?.to_device(device)?;
            Ok((*name, Var::from_tensor(&value)?))
        };
        Ok(Layer {
            heads: sizes.heads,
            variables: data.named.iter().map(variable).collect::<Result<_>>()?,
            target: data.target.to_dtype(DType::F64)?.to_device(device)?,
            mask: causal_mask(sizes.seq, dtype, device)?,
        })
    }

    /// The input and the weights, by name.
    pub fn variables(&self) -> &[(&'static str, Var)] {
        &self.variables
    }

    fn variable(&self, name: &str) -> Result<&Tensor> {
        match self.variables.iter().find(|(known, _)| *known == name) {
            Some((_, var)) => Ok(var.as_tensor()),
            None => candle_core::bail!("the layer has no variable {name}"),
        }
    }

    /// The mean squared difference of the layer's output and the target, in f64: it is to show the
    /// rounding of the layer, not its own.
    pub fn loss(&self, rows: RowOps) -> Result<Tensor> {
        let output = self.forward(rows)?.to_dtype(DType::F64)?;
        (output - &self.target)?.sqr()?.mean_all()
    }

    fn forward(&self, rows: RowOps) -> Result<Tensor> {
        let x = self.variable("x")?;
        let normed = rows.rms_norm(x, self.variable("norm1")?)?;
        let x = (x + self.attention(&normed, rows)?)?;
        let normed = rows.rms_norm(&x, self.variable("norm2")?)?;
        let gate = normed.broadcast_matmul(self.variable("gate")?)?.silu()?;
        let up = normed.broadcast_matmul(self.variable("up")?)?;
        x + (gate * up)?.broadcast_matmul(self.variable("down")?)?
    }

    fn attention(&self, x: &Tensor, rows: RowOps) -> Result<Tensor> {
        let (batch, seq, hidden) = x.dims3()?;
        let head_size = hidden / self.heads;
        // (batch, heads, tokens, head size)
        let heads = |weight| {
            x.broadcast_matmul(self.variable(weight)?)?
                .reshape((batch, seq, self.heads, head_size))?
                .transpose(1, 2)?
                .contiguous()
        };
        let (query, key, value) = (heads("wq")?, heads("wk")?, heads("wv")?);
        let scores = (query.matmul(&key.t()?)? / (head_size as f64).sqrt())?;
        let weights = rows.softmax(&scores.broadcast_add(&self.mask)?)?;
        let mixed = weights.matmul(&value)?.transpose(1, 2)?;
        mixed
            .flatten_from(D::Minus2)?
            .broadcast_matmul(self.variable("wo")?)
    }
}

/// What is added to (tokens, tokens) scores: minus infinity where a token would see a later one.
pub fn causal_mask(seq: usize, dtype: DType, device: &Device) -> Result<Tensor> {
    let value = |i: usize| {
        let (query, key) = (i / seq, i % seq);
        if key > query {
            f32::NEG_INFINITY
        } else {
            0.
        }
    };
    let mask: Vec<f32> = (0..seq * seq).map(value).collect();
    Tensor::from_vec(mask, (seq, seq), device)?.to_dtype(dtype)
}
