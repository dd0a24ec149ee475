//! Normalisation of rows: the last axis, as in candle-nn.

use candle_core::shape::Dim;
use candle_core::{DType, Result, Tensor, D};

use super::dims;
use super::gradient::Backward;
use super::reduce::{max_keepdim, norm_l2_keepdim, sum, sum_keepdim};
use crate::custom_op::{apply, apply_to_sum, check, run};
use crate::error::Error;
use crate::problem::{accumulator_dtype, Op, Rows};

/// Root-mean-square norm of the last axis: `x / sqrt(mean(x^2) + eps) * weight`.
///
/// Zhang and Sennrich, *Root Mean Square Layer Normalization*, 2019 (arXiv:1910.07467).
///
/// - `x`: any shape with at least one dim, any strides; f16, bf16, f32 or f64.
/// - `weight`: one vector as long as the last axis, any strides; the dtype of `x`, or f32 beside a
///   half type.
/// - `eps`: finite and not negative; held in f32 or wider, so that 1e-12 is no 0 for f16.
/// - Returns the shape and dtype of `x`, rounded once, after the weight.
/// - Rows whose squares overflow or vanish are handled. A NaN or an infinity in a row makes it NaN
///   wherever the formula does. With eps 0, a row of zeros is 0/0, and its result is undefined.
/// - Gradients, with `r = 1 / sqrt(mean(x^2) + eps)`, `h = x * r` and `t = weight * g`:
///   `dx = r * (t - h * mean(h * t))`, and `dweight` is the sum of `g * h` over all rows, added up
///   in f32 or wider whatever the dtype.
/// - The bits of a row depend on the row, the weight and eps alone ([module docs](crate::ops)).
///
/// # Errors
/// `x` has no dims, eps is negative or not finite, the weight's shape, dtype or device do not fit,
/// or the dtype is not one of the four.
///
/// ```
/// use candle_core::{Device, Tensor};
/// let x = Tensor::new(&[[3f32, -3., 3., -3.]], &Device::Cpu)?;
/// let w = Tensor::new(&[1f32, 1., 2., 2.], &Device::Cpu)?;
/// let y = candle_rowwise::ops::rms_norm(&x, &w, 0.)?;
/// assert_eq!(y.to_vec2::<f32>()?, [[1., -1., 2., -2.]]);
/// # Ok::<(), candle_core::Error>(())
/// ```
pub fn rms_norm(x: &Tensor, weight: &Tensor, eps: f64) -> Result<Tensor> {
    rms_norm_with(x, &NormOptions::new(eps).weight(weight))
}

/// Layer norm of the last axis: `(x - mean) / sqrt(var + eps) * weight + bias`, with the population
/// variance.
///
/// Ba, Kiros and Hinton, *Layer Normalization*, 2016 (arXiv:1607.06450). The variance is taken of
/// the differences from the mean, never as a difference of squares, so that rows far from zero keep
/// their digits.
///
/// - `x`: any shape with at least one dim, any strides; f16, bf16, f32 or f64.
/// - `weight`, `bias`: one vector each, as long as the last axis, any strides; the dtype of `x`, or
///   f32 beside a half type.
/// - `eps`: finite and not negative; held in f32 or wider, so that 1e-12 is no 0 for f16.
/// - Returns the shape and dtype of `x`, rounded once, after weight and bias.
/// - Rows whose squares overflow or vanish are handled. A NaN or an infinity makes a row NaN. A
///   constant row gives exactly the bias; with eps 0 it is 0/0, and its result is undefined.
/// - Gradients, with `r = 1 / sqrt(var + eps)`, `h = (x - mean) * r` and `t = weight * g`:
///   `dx = r * (t - mean(t) - h * mean(h * t))`; `dweight` and `dbias` are the sums of `g * h` and
///   of `g` over all rows, added up in f32 or wider whatever the dtype.
/// - The bits of a row depend on the row, weight, bias and eps alone ([module docs](crate::ops)).
///
/// # Errors
/// `x` has no dims, eps is negative or not finite, the shape, dtype or device of weight or bias do
/// not fit, or the dtype is not one of the four.
///
/// ```
/// use candle_core::{Device, Tensor};
/// let x = Tensor::new(&[[4f32, 6., 4., 6.]], &Device::Cpu)?;
/// let w = Tensor::new(&[1f32, 1., 2., 2.], &Device::Cpu)?;
/// let b = Tensor::new(&[0f32, 0., 0., 10.], &Device::Cpu)?;
/// let y = candle_rowwise::ops::layer_norm(&x, &w, &b, 0.)?;
/// assert_eq!(y.to_vec2::<f32>()?, [[-1., 1., -2., 12.]]);
/// # Ok::<(), candle_core::Error>(())
/// ```
pub fn layer_norm(x: &Tensor, weight: &Tensor, bias: &Tensor, eps: f64) -> Result<Tensor> {
    layer_norm_with(x, &NormOptions::new(eps).weight(weight).bias(bias))
}

/// What a norm does beside normalising: by default nothing.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_rowwise::ops::{rms_norm_with, NormOptions};
/// let x = Tensor::new(&[[3f32, -3., 3., -3.]], &Device::Cpu)?;
/// let w = Tensor::new(&[0f32, 0., 1., 1.], &Device::Cpu)?;
/// // As Gemma stores its weights.
/// let y = rms_norm_with(&x, &NormOptions::new(0.).weight(&w).weight_offset(1.))?;
/// assert_eq!(y.to_vec2::<f32>()?, [[1., -1., 2., -2.]]);
/// # Ok::<(), candle_core::Error>(())
/// ```
#[derive(Debug, Clone, Copy)]
#[must_use]
pub struct NormOptions<'a> {
    weight: Option<&'a Tensor>,
    bias: Option<&'a Tensor>,
    weight_offset: f64,
    eps: f64,
}

impl<'a> NormOptions<'a> {
    /// No weight and no bias. `eps` is finite and not negative; held in f32 or wider, so that 1e-12 is no
    /// 0 for f16.
    pub fn new(eps: f64) -> Self {
        NormOptions {
            weight: None,
            bias: None,
            weight_offset: 0.,
            eps,
        }
    }

    /// What normalised values are multiplied with: one vector as long as the axis, of any strides; the dtype
    /// of the input, or f32 beside a half type.
    pub fn weight(self, weight: &'a Tensor) -> Self {
        NormOptions {
            weight: Some(weight),
            ..self
        }
    }

    /// What is added at the end: one vector like the weight.
    pub fn bias(self, bias: &'a Tensor) -> Self {
        NormOptions {
            bias: Some(bias),
            ..self
        }
    }

    /// Added to the weight, in f32 or wider: 1 for models like Gemma, whose weights are stored without it. It
    /// is finite; without a weight it has no effect.
    pub fn weight_offset(self, offset: f64) -> Self {
        NormOptions {
            weight_offset: offset,
            ..self
        }
    }

    /// The weight and the offset as one vector.
    fn full_weight(&self, op: Op, x: &Tensor) -> Result<Option<Tensor>> {
        let Some(weight) = self.weight else {
            return Ok(None);
        };
        if self.weight_offset == 0. {
            return Ok(Some(weight.clone()));
        }
        if !self.weight_offset.is_finite() {
            return Err(Error::InvalidOption {
                op: op.name(),
                option: "weight_offset",
                value: self.weight_offset.to_string(),
                expected: "finite",
                shape: x.shape().clone(),
            }
            .into());
        }
        // A sum of another dtype or shape is refused later, as the weight would be.
        let wide = dims::cast(weight, accumulator_dtype(weight.dtype()))?;
        match wide.elem_count() {
            0 => Ok(Some(wide)),
            _ => Ok(Some((wide + self.weight_offset)?)),
        }
    }
}

/// [`rms_norm`] with options: with or without a weight, an offset of the weight, or a bias.
///
/// `x / sqrt(mean(x^2) + eps) * (weight_offset + weight) + bias`, each as in [`rms_norm`]. Rows may have any
/// strides between them: the heads of a (batch, seq, heads, dim) tensor are normalised where they lie,
/// transposed or not.
///
/// Gradients are those of [`rms_norm`]; `dbias` is the sum of `g` over all rows, added up in f32 or wider.
///
/// # Errors
/// As [`rms_norm`], also for the bias, and where the offset is not finite.
///
/// See [`NormOptions`] for an example.
pub fn rms_norm_with(x: &Tensor, options: &NormOptions) -> Result<Tensor> {
    norm(Op::RmsNorm { eps: options.eps }, x, options)
}

/// [`layer_norm`] with options: with a weight, a bias, both or neither, and an offset of the weight.
///
/// `(x - mean) / sqrt(var + eps) * (weight_offset + weight) + bias`, each as in [`layer_norm`], gradients
/// included: what is left out counts as 1 and as 0, and has none.
///
/// # Errors
/// As [`layer_norm`], and where the offset is not finite.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_rowwise::ops::{layer_norm_with, NormOptions};
/// let x = Tensor::new(&[[4f32, 6., 4., 6.]], &Device::Cpu)?;
/// let y = layer_norm_with(&x, &NormOptions::new(0.))?;
/// assert_eq!(y.to_vec2::<f32>()?, [[-1., 1., -1., 1.]]);
/// # Ok::<(), candle_core::Error>(())
/// ```
pub fn layer_norm_with(x: &Tensor, options: &NormOptions) -> Result<Tensor> {
    norm(Op::LayerNorm { eps: options.eps }, x, options)
}

/// Vectors brought to length 1: `x / max(sqrt(sum(x^2)), eps)` over `dim`, as PyTorch's `normalize`.
///
/// - `x`: any shape with at least one dim, any strides; f16, bf16, f32 or f64.
/// - `eps`: finite and not negative; vectors that are shorter are divided by it. Held in f32 or wider.
/// - Returns the shape and dtype of `x`, contiguous, rounded once.
/// - Vectors whose squares overflow or vanish are handled. A NaN or an infinity makes its vector NaN wherever
///   the formula does; with eps 0 a vector of zeros is 0/0, NaN.
/// - Gradient, with `r` the inverse of what is divided by, and `y = x * r`: `r * (g - y * sum(y * g))`, and
///   `r * g` of vectors shorter than eps.
/// - The bits of a vector depend on the vector and eps alone ([module docs](crate::ops)).
///
/// # Errors
/// The dim does not exist, eps is negative or not finite, or the dtype is not one of the four.
///
/// ```
/// use candle_core::{Device, Tensor};
/// let x = Tensor::new(&[[3f32, 4.], [0., 0.]], &Device::Cpu)?;
/// let y = candle_rowwise::ops::l2_normalize(&x, 1, 1e-12)?;
/// assert_eq!(y.to_vec2::<f32>()?, [[0.6, 0.8], [0., 0.]]);
/// # Ok::<(), candle_core::Error>(())
/// ```
pub fn l2_normalize<Dm: Dim>(x: &Tensor, dim: Dm, eps: f64) -> Result<Tensor> {
    dims::map(Op::L2Normalize { eps }, x, dim)
}

/// A residual connection and the RMS norm after it in one pass: returns
/// `(rms_norm_with(x + residual, options), x + residual)`.
///
/// - `x`, `residual`: one shape and dtype, any strides; f16, bf16, f32 or f64.
/// - The sum is rounded to the dtype, to nearest even, and the norm is that of the rounded sum: the bits of
///   both results are those of the two ops one after the other.
/// - Gradients are those of the two ops one after the other: where both results are used,
///   `dx = dresidual = dnorm + dsum`, with `dnorm` that of [`rms_norm_with`] at the sum.
///
/// # Errors
/// As [`rms_norm_with`], and where the residual's shape, dtype or device is not that of `x`.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_rowwise::ops::{add_rms_norm, NormOptions};
/// let x = Tensor::new(&[[1f32, -4., 2., -1.]], &Device::Cpu)?;
/// let residual = Tensor::new(&[[2f32, 1., 1., -2.]], &Device::Cpu)?;
/// let (y, sum) = add_rms_norm(&x, &residual, &NormOptions::new(0.))?;
/// assert_eq!(sum.to_vec2::<f32>()?, [[3., -3., 3., -3.]]);
/// assert_eq!(y.to_vec2::<f32>()?, [[1., -1., 1., -1.]]);
/// # Ok::<(), candle_core::Error>(())
/// ```
pub fn add_rms_norm(
    x: &Tensor,
    residual: &Tensor,
    options: &NormOptions,
) -> Result<(Tensor, Tensor)> {
    let eps = options.eps;
    add_norm(
        Op::AddRmsNorm { eps },
        Op::RmsNorm { eps },
        x,
        residual,
        options,
    )
}

/// A residual connection and the layer norm after it in one pass: returns
/// `(layer_norm_with(x + residual, options), x + residual)`, otherwise as [`add_rms_norm`].
///
/// # Errors
/// As [`layer_norm_with`], and where the residual's shape, dtype or device is not that of `x`.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_rowwise::ops::{add_layer_norm, NormOptions};
/// let x = Tensor::new(&[[1f32, 2., 3., 4.]], &Device::Cpu)?;
/// let residual = Tensor::new(&[[3f32, 4., 1., 2.]], &Device::Cpu)?;
/// let (y, sum) = add_layer_norm(&x, &residual, &NormOptions::new(0.))?;
/// assert_eq!(sum.to_vec2::<f32>()?, [[4., 6., 4., 6.]]);
/// assert_eq!(y.to_vec2::<f32>()?, [[-1., 1., -1., 1.]]);
/// # Ok::<(), candle_core::Error>(())
/// ```
pub fn add_layer_norm(
    x: &Tensor,
    residual: &Tensor,
    options: &NormOptions,
) -> Result<(Tensor, Tensor)> {
    let eps = options.eps;
    add_norm(
        Op::AddLayerNorm { eps },
        Op::LayerNorm { eps },
        x,
        residual,
        options,
    )
}

fn norm(op: Op, x: &Tensor, options: &NormOptions) -> Result<Tensor> {
    check(op, x.dtype(), x.shape(), &[dims::index(op, x, D::Minus1)?])?;
    let weight = options.full_weight(op, x)?;
    apply(op, x, &[weight.as_ref(), options.bias])
}

fn add_norm(
    fused: Op,
    op: Op,
    x: &Tensor,
    residual: &Tensor,
    options: &NormOptions,
) -> Result<(Tensor, Tensor)> {
    let last = dims::index(fused, x, D::Minus1)?;
    check(fused, x.dtype(), x.shape(), &[last])?;
    let weight = options.full_weight(fused, x)?;
    // Its kernels read rows, and no values that stand for one.
    let residual = match Rows::of_repeated(residual.layout()) {
        Some(_) => residual.contiguous()?,
        None => residual.clone(),
    };
    apply_to_sum(fused, op, x, &residual, &[weight.as_ref(), options.bias])
}

/// The gradients of a norm by its own kernel: dx row by row, and in the same pass, over the rows of each
/// band, the sums that dweight and dbias are made of. They are joined in f32 or wider and rounded once.
pub(super) fn fused_gradient(
    op: Op,
    x: &Tensor,
    operands: &[Option<&Tensor>],
    grad: &Tensor,
    wanted: &[bool],
) -> Result<Vec<Option<Tensor>>> {
    let operand = |index: usize| operands.get(index).copied().flatten();
    let is_wanted = |index: usize| wanted.get(index).copied().unwrap_or(false);
    let (fused, bias_is_summed) = match op {
        Op::LayerNorm { eps } => {
            let sums = is_wanted(1) || is_wanted(2);
            (Op::LayerNormGradient { eps, sums }, true)
        }
        Op::L2Normalize { eps } => {
            let dx = run(Op::L2NormalizeGradient { eps }, x, &[Some(grad)])?;
            return Ok(dx.into_iter().map(Some).collect());
        }
        Op::RmsNorm { eps } => {
            let sums = is_wanted(1);
            (Op::RmsNormGradient { eps, sums }, false)
        }
        _ => candle_core::bail!("{}: not a norm", op.name()),
    };
    let mut results = run(fused, x, &[Some(grad), operand(0)])?.into_iter();
    let dx = results.next().filter(|_| is_wanted(0));
    let sums = match results.next() {
        Some(bands) => Some(sum(&bands, 0)?),
        None => None,
    };
    let side = |index: usize| -> Result<Option<Tensor>> {
        match (operand(index), &sums) {
            (Some(side), Some(sums)) if is_wanted(index + 1) => {
                sums.get(index)?.to_dtype(side.dtype()).map(Some)
            }
            _ => Ok(None),
        }
    };
    let dbias = match operand(1).filter(|_| is_wanted(2)) {
        Some(bias) if !bias_is_summed => Some(sum_rows(&grad.to_dtype(bias.dtype())?)?),
        _ => None,
    };
    Ok(vec![
        dx,
        side(0)?,
        match bias_is_summed {
            true => side(1)?,
            false => dbias,
        },
    ])
}

/// Rows divided by the root of their mean square (plus eps), and by what they were divided.
struct Normalised {
    /// The normalised rows.
    hat: Tensor,
    /// Divisors of length 1 along the last axis. Their product, which may fit no float where the
    /// squares of a row do not, is the root.
    divisors: Vec<Tensor>,
}

impl Normalised {
    /// `rows / sqrt(mean(rows^2) + root_eps^2)`. Squares are taken of rows that have been brought
    /// to a magnitude of 1, so that they neither overflow nor vanish.
    fn new(rows: &Tensor, root_eps: &Tensor) -> Result<Self> {
        let unit = max_keepdim(&rows.abs()?, D::Minus1)?.broadcast_maximum(root_eps)?;
        let rows = rows.broadcast_div(&unit)?;
        let eps = root_eps.broadcast_div(&unit)?.sqr()?;
        let root = (mean_keepdim(&rows.sqr()?)? + eps)?.sqrt()?;
        Ok(Self {
            hat: rows.broadcast_div(&root)?,
            divisors: vec![root, unit],
        })
    }

    /// The same of `x - mean(x)`.
    fn centred(x: &Tensor, root_eps: &Tensor) -> Result<Self> {
        // A sum of huge values overflows though their mean does not. A power of two scales exactly,
        // and this one is far enough from both ends of the range that nothing else is lost.
        let huge = match x.dtype() {
            DType::F64 => 2f64.powi(512),
            _ => 2f64.powi(64),
        };
        let largest = max_keepdim(&x.abs()?, D::Minus1)?;
        let one = largest.ones_like()?;
        let scale = largest.gt(huge)?.where_cond(&(&one * huge)?, &one)?;
        let x = x.broadcast_div(&scale)?;
        let rows = x.broadcast_sub(&mean_keepdim(&x)?)?;
        // The mean is rounded at the magnitude of the row; what is left of it is not.
        let rows = rows.broadcast_sub(&mean_keepdim(&rows)?)?;
        let mut this = Self::new(&rows, &root_eps.broadcast_div(&scale)?)?;
        this.divisors.push(scale);
        Ok(this)
    }

    /// `t - hat * mean(hat * t)`, divided by the root.
    fn project(&self, t: &Tensor) -> Result<Tensor> {
        let along = mean_keepdim(&(&self.hat * t)?)?;
        let mut dx = (t - self.hat.broadcast_mul(&along)?)?;
        for divisor in &self.divisors {
            dx = dx.broadcast_div(divisor)?;
        }
        Ok(dx)
    }
}

/// dx and dweight.
pub(super) fn rms_norm_gradient(pass: &Backward, eps: f64) -> Result<Vec<Option<Tensor>>> {
    let rows = Normalised::new(&pass.x, &root_eps(pass, eps)?)?;
    let t = weighted(pass)?;
    Ok(vec![
        wanted(pass, 0, || rows.project(&t))?,
        wanted(pass, 1, || sum_rows(&(&pass.grad * &rows.hat)?))?,
        wanted(pass, 2, || sum_rows(&pass.grad))?,
    ])
}

/// dx.
pub(super) fn l2_normalize_gradient(pass: &Backward, eps: f64) -> Result<Option<Tensor>> {
    let length = norm_l2_keepdim(&pass.x, D::Minus1)?;
    let least = (length.ones_like()? * eps)?;
    let divisor = length.maximum(&least)?;
    let hat = pass.x.broadcast_div(&divisor)?;
    let along = sum_keepdim(&(&hat * &pass.grad)?, D::Minus1)?;
    let along = length
        .ge(&least)?
        .where_cond(&along, &along.zeros_like()?)?;
    (&pass.grad - hat.broadcast_mul(&along)?)?
        .broadcast_div(&divisor)
        .map(Some)
}

/// dx, dweight and dbias.
pub(super) fn layer_norm_gradient(pass: &Backward, eps: f64) -> Result<Vec<Option<Tensor>>> {
    let rows = Normalised::centred(&pass.x, &root_eps(pass, eps)?)?;
    let t = weighted(pass)?;
    let t = t.broadcast_sub(&mean_keepdim(&t)?)?;
    Ok(vec![
        wanted(pass, 0, || rows.project(&t))?,
        wanted(pass, 1, || sum_rows(&(&pass.grad * &rows.hat)?))?,
        wanted(pass, 2, || sum_rows(&pass.grad))?,
    ])
}

/// The gradient of what the weight is multiplied with.
fn weighted(pass: &Backward) -> Result<Tensor> {
    match pass.operands.first() {
        Some(Some(weight)) => pass.grad.broadcast_mul(weight),
        _ => Ok(pass.grad.clone()),
    }
}

fn wanted(
    pass: &Backward,
    arg: usize,
    grad: impl FnOnce() -> Result<Tensor>,
) -> Result<Option<Tensor>> {
    let is_wanted = pass.wanted.get(arg).copied().unwrap_or(false);
    is_wanted.then(grad).transpose()
}

fn root_eps(pass: &Backward, eps: f64) -> Result<Tensor> {
    Tensor::new(eps.sqrt(), pass.x.device())?.to_dtype(pass.x.dtype())
}

fn mean_keepdim(x: &Tensor) -> Result<Tensor> {
    sum_keepdim(x, D::Minus1)? / x.dim(D::Minus1)? as f64
}

/// The sum over all dims but the last.
fn sum_rows(x: &Tensor) -> Result<Tensor> {
    let width = x.dim(D::Minus1)?;
    sum(&x.reshape(((), width))?, 0)
}

#[cfg(all(test, feature = "host-kernels", not(feature = "cuda")))]
mod tests {
    use candle_core::{DType, Device};

    use super::*;
    use crate::cuda::host_run;
    use crate::plan::{with_tier, Tier};

    fn values(seed: usize, shape: (usize, usize), dtype: DType) -> Tensor {
        let value = |k: usize| (((k * 7919 + seed * 104_729) % 2003) as f32 - 1001.) / 300.;
        let all: Vec<f32> = (0..shape.0 * shape.1).map(value).collect();
        let all = Tensor::from_vec(all, shape, &Device::Cpu).unwrap();
        all.to_dtype(dtype).unwrap()
    }

    fn bits(t: &Tensor) -> Vec<u64> {
        let t = t.to_dtype(DType::F64).unwrap().flatten_all().unwrap();
        let all = t.to_vec1::<f64>().unwrap();
        all.into_iter().map(f64::to_bits).collect()
    }

    /// dx and the sums over the rows of a band have the bits of every other tier, with a gradient that is
    /// packed, one value a row, or missing a weight.
    #[test]
    fn gradients_have_equal_bits_on_every_tier() {
        let mut ran = Vec::new();
        for dtype in [DType::BF16, DType::F16, DType::F32, DType::F64] {
            // In chunks: parts of one, one, some of a block's, of a cluster's.
            for (rows, width) in [
                (300, 3),
                (70, 31),
                (5, 257),
                (3, 1025),
                (700, 600),
                (2, 5003),
                (3, 9001),
            ] {
                let rows = if dtype == DType::BF16 {
                    rows
                } else {
                    rows.min(11)
                };
                let x = values(1, (rows, width), dtype);
                let g = values(2, (rows, width), dtype);
                let repeated = g
                    .narrow(1, 0, 1)
                    .unwrap()
                    .broadcast_as((rows, width))
                    .unwrap();
                let w = values(3, (1, width), dtype).squeeze(0).unwrap();
                let wide = w.to_dtype(accumulator_dtype(dtype)).unwrap();
                for (g, w) in [(&g, Some(&w)), (&repeated, Some(&wide)), (&g, None)] {
                    for op in [
                        Op::RmsNormGradient {
                            eps: 1e-6,
                            sums: true,
                        },
                        Op::LayerNormGradient {
                            eps: 1e-6,
                            sums: true,
                        },
                    ] {
                        host_run::with(7, || {
                            let call = || run(op, &x, &[Some(g), w]);
                            let chosen = call().unwrap();
                            for tier in Tier::ALL {
                                let Ok(got) = with_tier(tier, call) else {
                                    continue;
                                };
                                ran.push(tier);
                                for (got, chosen) in got.iter().zip(&chosen) {
                                    let what = format!(
                                        "{} {dtype:?} ({rows}, {width}) {tier:?}",
                                        op.name()
                                    );
                                    assert!(bits(got) == bits(chosen), "{what}");
                                }
                            }
                            let alone = match op {
                                Op::RmsNormGradient { eps, .. } => {
                                    Op::RmsNormGradient { eps, sums: false }
                                }
                                _ => Op::LayerNormGradient {
                                    eps: 1e-6,
                                    sums: false,
                                },
                            };
                            let alone = run(alone, &x, &[Some(g), w]).unwrap();
                            assert!(bits(&alone[0]) == bits(&chosen[0]), "dx alone");
                        });
                    }
                }
            }
        }
        for tier in [Tier::Warp, Tier::Block, Tier::Cluster, Tier::SplitK] {
            assert!(ran.contains(&tier), "{tier:?} was never forced");
        }
    }
}
