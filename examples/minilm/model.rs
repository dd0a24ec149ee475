//! A BERT encoder on candle-rowwise: its softmax in the attention, its layer norms, and its sum in
//! the pooling. Everything else is candle's.

use candle_core::{DType, Result, Tensor, D};
use candle_nn::{embedding, linear, Embedding, Linear, Module, VarBuilder};
use candle_rowwise::nn::{layer_norm, ops::softmax_last_dim, LayerNorm};
use candle_transformers::models::bert::{Config, HiddenAct};

use crate::Batch;

/// The encoder; [`pool`] makes sentence embeddings of what it returns.
pub struct Encoder {
    embeddings: Embeddings,
    layers: Vec<Layer>,
}

impl Encoder {
    pub fn load(vb: VarBuilder, config: &Config) -> Result<Self> {
        let (size, heads) = (config.hidden_size, config.num_attention_heads);
        if heads == 0 || size % heads != 0 {
            candle_core::bail!("a hidden size of {size} cannot be shared by {heads} heads");
        }
        let layers = (0..config.num_hidden_layers)
            .map(|i| Layer::load(vb.pp("encoder.layer").pp(i), config))
            .collect::<Result<_>>()?;
        Ok(Encoder {
            embeddings: Embeddings::load(vb.pp("embeddings"), config)?,
            layers,
        })
    }

    /// The last hidden states: (batch, tokens, hidden).
    pub fn forward(&self, batch: &Batch) -> Result<Tensor> {
        let mut x = self.embeddings.forward(&batch.ids)?;
        let mask = additive_mask(&batch.mask)?.to_dtype(x.dtype())?;
        for layer in &self.layers {
            x = layer.forward(&x, &mask)?;
        }
        Ok(x)
    }
}

/// What is added to attention scores, (batch, 1, 1, tokens): 0 for a token, minus infinity for
/// padding. No row is all padding: each sentence has at least its two marker tokens.
pub fn additive_mask(mask: &Tensor) -> Result<Tensor> {
    // ln(1) = 0 and ln(0) = -inf.
    mask.log()?.unsqueeze(1)?.unsqueeze(1)
}

/// Sentence embeddings in f32: the mean over each sentence's tokens, scaled to length 1.
/// `sum_keepdim` is whose sum to use.
pub fn pool(
    hidden: &Tensor,
    mask: &Tensor,
    sum_keepdim: impl Fn(&Tensor, usize) -> Result<Tensor>,
) -> Result<Tensor> {
    let mask = mask.unsqueeze(2)?;
    let masked = hidden.to_dtype(DType::F32)?.broadcast_mul(&mask)?;
    let mean = sum_keepdim(&masked, 1)?
        .broadcast_div(&sum_keepdim(&mask, 1)?)?
        .squeeze(1)?;
    let length = sum_keepdim(&mean.sqr()?, 1)?.sqrt()?;
    mean.broadcast_div(&length)
}

struct Embeddings {
    words: Embedding,
    positions: Embedding,
    /// Of segment 0, the only one here.
    segment: Tensor,
    norm: LayerNorm,
}

impl Embeddings {
    fn load(vb: VarBuilder, config: &Config) -> Result<Self> {
        let size = config.hidden_size;
        let segments = embedding(config.type_vocab_size, size, vb.pp("token_type_embeddings"))?;
        Ok(Embeddings {
            words: embedding(config.vocab_size, size, vb.pp("word_embeddings"))?,
            positions: embedding(
                config.max_position_embeddings,
                size,
                vb.pp("position_embeddings"),
            )?,
            segment: segments.embeddings().narrow(0, 0, 1)?,
            norm: layer_norm(size, config.layer_norm_eps, vb.pp("LayerNorm"))?,
        })
    }

    fn forward(&self, ids: &Tensor) -> Result<Tensor> {
        let tokens = ids.dim(1)?;
        let positions = self.positions.embeddings().narrow(0, 0, tokens)?;
        let x = self.words.forward(ids)?.broadcast_add(&self.segment)?;
        self.norm.forward(&x.broadcast_add(&positions)?)
    }
}

struct Layer {
    attention: Attention,
    attention_norm: LayerNorm,
    up: Linear,
    activation: HiddenAct,
    down: Linear,
    output_norm: LayerNorm,
}

impl Layer {
    fn load(vb: VarBuilder, config: &Config) -> Result<Self> {
        let (size, inner) = (config.hidden_size, config.intermediate_size);
        let norm = |vb| layer_norm(size, config.layer_norm_eps, vb);
        Ok(Layer {
            attention: Attention::load(vb.pp("attention"), config)?,
            attention_norm: norm(vb.pp("attention.output.LayerNorm"))?,
            up: linear(size, inner, vb.pp("intermediate.dense"))?,
            activation: config.hidden_act,
            down: linear(inner, size, vb.pp("output.dense"))?,
            output_norm: norm(vb.pp("output.LayerNorm"))?,
        })
    }

    fn forward(&self, x: &Tensor, mask: &Tensor) -> Result<Tensor> {
        let attended = self.attention.forward(x, mask)?;
        let x = self.attention_norm.forward(&(attended + x)?)?;
        let inner = self.up.forward(&x)?;
        let inner = match self.activation {
            HiddenAct::Gelu => inner.gelu_erf()?,
            HiddenAct::GeluApproximate => inner.gelu()?,
            HiddenAct::Relu => inner.relu()?,
        };
        self.output_norm.forward(&(self.down.forward(&inner)? + x)?)
    }
}

struct Attention {
    query: Linear,
    key: Linear,
    value: Linear,
    output: Linear,
    heads: usize,
}

impl Attention {
    fn load(vb: VarBuilder, config: &Config) -> Result<Self> {
        let size = config.hidden_size;
        let projection = |name| linear(size, size, vb.pp(name));
        Ok(Attention {
            query: projection("self.query")?,
            key: projection("self.key")?,
            value: projection("self.value")?,
            output: projection("output.dense")?,
            heads: config.num_attention_heads,
        })
    }

    fn forward(&self, x: &Tensor, mask: &Tensor) -> Result<Tensor> {
        let (batch, tokens, size) = x.dims3()?;
        let head_size = size / self.heads;
        // (batch, heads, tokens, head size)
        let heads = |projection: &Linear| {
            projection
                .forward(x)?
                .reshape((batch, tokens, self.heads, head_size))?
                .transpose(1, 2)?
                .contiguous()
        };
        let (query, key, value) = (heads(&self.query)?, heads(&self.key)?, heads(&self.value)?);
        let scores = (query.matmul(&key.t()?)? / (head_size as f64).sqrt())?;
        let weights = softmax_last_dim(&scores.broadcast_add(mask)?)?;
        let mixed = weights.matmul(&value)?.transpose(1, 2)?;
        self.output.forward(&mixed.flatten_from(D::Minus2)?)
    }
}
