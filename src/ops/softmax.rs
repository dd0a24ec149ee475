//! Softmax and its logarithm: a row of weights per row.

use candle_core::shape::Dim;
use candle_core::{DType, Result, Shape, Tensor, D};

use super::dims;
use super::gradient::Backward;
use super::reduce::sum_keepdim;
use crate::custom_op::{check, run};
use crate::error::Error;
use crate::problem::{accumulator_dtype, check_logits, Logits, Op};

/// `exp(x) / sum(exp(x))` over `dim`.
///
/// Computed as `exp(x - m) / sum(exp(x - m))` with `m` the largest value of the row, which cannot
/// overflow (Blanchard, Higham and Higham, *Accurately computing the log-sum-exp and softmax
/// functions*, 2021). The sum is one of f32 or wider, so that a long row of half types still adds
/// up to 1.
///
/// - `x`: any shape with at least one dim, any strides; f16, bf16, f32 or f64.
/// - Returns the shape and dtype of `x`, contiguous.
/// - A NaN or a `+inf` anywhere makes the whole row NaN, and so does a row of nothing but `-inf`.
///   Elsewhere a `-inf` gives exactly 0.
/// - Gradient: `y * (g - sum(g * y))`.
/// - The bits of a row depend on the row alone ([module docs](crate::ops)).
///
/// # Errors
/// The dim does not exist, or the dtype is not one of the four.
///
/// ```
/// use candle_core::{Device, Tensor, D};
/// let x = Tensor::new(&[[2f32, 2., f32::NEG_INFINITY, 2., 2.]], &Device::Cpu)?;
/// let y = candle_rowwise::ops::softmax(&x, D::Minus1)?;
/// assert_eq!(y.to_vec2::<f32>()?, [[0.25, 0.25, 0., 0.25, 0.25]]);
/// # Ok::<(), candle_core::Error>(())
/// ```
pub fn softmax<Dm: Dim>(x: &Tensor, dim: Dm) -> Result<Tensor> {
    dims::map(Op::Softmax, x, dim)
}

/// `x - log(sum(exp(x)))` over `dim`, the logarithm of [`softmax`].
///
/// Computed as `(x - m) - log(sum(exp(x - m)))` with `m` the largest value of the row; `x - m`
/// comes first, so that rows of a large magnitude keep the digits in which their elements differ.
///
/// - `x`: any shape with at least one dim, any strides; f16, bf16, f32 or f64.
/// - Returns the shape and dtype of `x`, contiguous.
/// - A NaN or a `+inf` anywhere makes the whole row NaN, and so does a row of nothing but `-inf`.
///   Elsewhere a `-inf` gives `-inf`.
/// - Gradient: `g - softmax(x) * sum(g)`.
/// - The bits of a row depend on the row alone ([module docs](crate::ops)).
///
/// # Errors
/// The dim does not exist, or the dtype is not one of the four.
///
/// ```
/// use candle_core::{Device, Tensor};
/// let x = Tensor::new(&[1e8f32, 1e8], &Device::Cpu)?;
/// let y = candle_rowwise::ops::log_softmax(&x, 0)?.to_vec1::<f32>()?;
/// assert!((y[0] + std::f32::consts::LN_2).abs() < 1e-6);
/// # Ok::<(), candle_core::Error>(())
/// ```
pub fn log_softmax<Dm: Dim>(x: &Tensor, dim: Dm) -> Result<Tensor> {
    dims::map(Op::LogSoftmax, x, dim)
}

/// What [`softmax_with`] and [`log_softmax_with`] do beside a softmax. With the defaults they do nothing.
///
/// ```
/// use candle_rowwise::ops::SoftmaxOptions;
/// let options = SoftmaxOptions::new().scale(0.125).soft_cap(50.).causal(true);
/// # let _ = options;
/// ```
#[derive(Debug, Clone, Copy)]
pub struct SoftmaxOptions<'a> {
    scale: f64,
    temperature: f64,
    temperatures: Option<&'a Tensor>,
    soft_cap: Option<f64>,
    mask: Option<&'a Tensor>,
    causal: bool,
    sinks: Option<&'a Tensor>,
}

impl Default for SoftmaxOptions<'_> {
    fn default() -> Self {
        SoftmaxOptions {
            scale: 1.0,
            temperature: 1.0,
            temperatures: None,
            soft_cap: None,
            mask: None,
            causal: false,
            sinks: None,
        }
    }
}

impl<'a> SoftmaxOptions<'a> {
    /// The defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// Multiplies every element first: `1 / sqrt(head_dim)`, say. Finite.
    pub fn scale(self, scale: f64) -> Self {
        SoftmaxOptions { scale, ..self }
    }

    /// Divides every element: positive and finite.
    pub fn temperature(self, temperature: f64) -> Self {
        SoftmaxOptions {
            temperature,
            ..self
        }
    }

    /// Divides the elements of each row by a value of its own, beside what [`temperature`](Self::temperature)
    /// divides by: a tensor that broadcasts to the shape of the input with a length of 1 along the softmax's
    /// dim, of the input's dtype or f32. Its values should be positive, which is not checked.
    pub fn temperatures(self, temperatures: &'a Tensor) -> Self {
        SoftmaxOptions {
            temperatures: Some(temperatures),
            ..self
        }
    }

    /// Then keeps what comes of it within `-cap .. cap`, by `cap * tanh(x / cap)`: positive and finite.
    pub fn soft_cap(self, cap: f64) -> Self {
        SoftmaxOptions {
            soft_cap: Some(cap),
            ..self
        }
    }

    /// Then masks: a tensor that broadcasts to the shape of the input. One of the input's dtype or f32 is
    /// added; one of u8 keeps the keys where it is not 0 and hides the others, whose elements are then part of
    /// no arithmetic, be they NaN. It is never expanded in memory.
    pub fn mask(self, mask: &'a Tensor) -> Self {
        SoftmaxOptions {
            mask: Some(mask),
            ..self
        }
    }

    /// Hides from query `i` of `q` the keys `j > i + k - q` of `k`. The keys are the dim of the softmax, the
    /// queries the last one of the others; without others there is one query, the last.
    pub fn causal(self, causal: bool) -> Self {
        SoftmaxOptions { causal, ..self }
    }

    /// Adds `exp(sink)` to the sum of each row last: a further logit that takes part and is not in the result.
    /// A tensor that broadcasts as for [`temperatures`](Self::temperatures), typically of one value a head, of
    /// the input's dtype or f32.
    pub fn sinks(self, sinks: &'a Tensor) -> Self {
        SoftmaxOptions {
            sinks: Some(sinks),
            ..self
        }
    }
}

/// [`softmax`] over `dim` with options, in one pass: with
/// `z = soft_cap(x * scale / temperature) + mask`, `exp(z) / (exp(sink) + sum(exp(z)))`.
///
/// - `x`: any shape with at least one dim, any strides; f16, bf16, f32 or f64.
/// - Returns the shape and dtype of `x`, contiguous. Half types are computed in f32 and rounded once.
/// - With a mask, or `causal`, a key whose `z` is `-inf` is hidden: its weight and its gradient are exactly 0.
///   A row of nothing but hidden keys is all zeros, and so is its gradient. Without a mask it is NaN, as in
///   [`softmax`]. A NaN in a key that a boolean mask or `causal` hides does not spread; in any other it makes
///   the row NaN, and so does a `z` of `+inf`.
/// - Gradients, with `p` the result and `dz = p * (g - sum(g * p))`: `dx = dz * z'(x)`, of an added mask `dz`,
///   of a sink `-p_sink * sum(g * p)`, of a temperature `-sum(dx * x) / temperature`, the last three summed,
///   in f32 or wider, over what they were broadcast to. `dx` and the sink's take one kernel; the mask's takes a
///   second one, with a tensor as large as `x`, the temperature's a product and a sum.
/// - The bits of a row depend on the row, its masks and options alone ([module docs](crate::ops)).
///
/// # Errors
/// The dim does not exist, the dtype is not one of the four, an option is out of its range, or the shape, dtype
/// or device of a mask, of sinks or of temperatures does not fit.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_rowwise::ops::{softmax_with, SoftmaxOptions};
/// let x = Tensor::zeros((2, 4), candle_core::DType::F32, &Device::Cpu)?;
/// let y = softmax_with(&x, 1, &SoftmaxOptions::new().causal(true))?;
/// let third = 1. / 3.;
/// assert_eq!(y.to_vec2::<f32>()?, [[third, third, third, 0.], [0.25; 4]]);
/// # Ok::<(), candle_core::Error>(())
/// ```
pub fn softmax_with<Dm: Dim>(x: &Tensor, dim: Dm, options: &SoftmaxOptions) -> Result<Tensor> {
    with(false, x, dim, options)
}

/// [`log_softmax`] over `dim` with options, in one pass: the logarithm of [`softmax_with`].
///
/// - `x`, the options, the result's shape and dtype, hidden keys, determinism: as for [`softmax_with`]. Where
///   that is 0 for a hidden key, this is `-inf`; the gradient of a hidden key is 0, and what arrives there
///   counts for nothing.
/// - Gradients: as for [`softmax_with`] with `dz = g - p * sum(g)`, of a sink `-p_sink * sum(g)`.
///
/// # Errors
/// As for [`softmax_with`].
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_rowwise::ops::{log_softmax_with, SoftmaxOptions};
/// let x = Tensor::new(&[f32::NAN, 7., 7.], &Device::Cpu)?;
/// let mask = Tensor::new(&[0u8, 1, 1], &Device::Cpu)?;
/// let y = log_softmax_with(&x, 0, &SoftmaxOptions::new().mask(&mask))?.to_vec1::<f32>()?;
/// assert!(y[0] == f32::NEG_INFINITY && (y[1] + std::f32::consts::LN_2).abs() < 1e-6);
/// # Ok::<(), candle_core::Error>(())
/// ```
pub fn log_softmax_with<Dm: Dim>(x: &Tensor, dim: Dm, options: &SoftmaxOptions) -> Result<Tensor> {
    with(true, x, dim, options)
}

fn with<Dm: Dim>(log: bool, x: &Tensor, dim: Dm, options: &SoftmaxOptions) -> Result<Tensor> {
    let op = |scale, queries| Op::SoftmaxWith {
        log,
        logits: Logits {
            scale,
            soft_cap: options.soft_cap,
            queries,
        },
    };
    let dim = dims::index(op(1.0, None), x, dim)?;
    let queries = options.causal.then(|| {
        let mut others = x.dims().iter().enumerate().rev();
        let last = others.find(|(i, _)| *i != dim);
        last.map_or(1, |(_, len)| *len).max(1)
    });
    let op = op(options.scale / options.temperature, queries);
    check(op, x.dtype(), x.shape(), &[dim])?;
    let invalid = |option, value: f64, expected| Error::InvalidOption {
        op: op.name(),
        option,
        value: value.to_string(),
        expected,
        shape: x.shape().clone(),
    };
    if !options.scale.is_finite() {
        return Err(invalid("scale", options.scale, "finite").into());
    }
    if !(options.temperature > 0.0 && options.temperature.is_finite()) {
        let expected = "positive and finite";
        return Err(invalid("temperature", options.temperature, expected).into());
    }
    if let Op::SoftmaxWith { logits, .. } = op {
        // Of dims in another order, queries are right by how they were made.
        let any_queries = Logits {
            queries: None,
            ..logits
        };
        check_logits(op, &any_queries, x.rank(), x.shape())?;
    }
    let accumulator = accumulator_dtype(x.dtype());
    let mut values = x.dims().to_vec();
    values[dim] = 1;
    let values = Shape::from(values);
    let value = |name, given: Option<&Tensor>| -> Result<Option<Tensor>> {
        let Some(given) = given else { return Ok(None) };
        check_dtype(op, name, given, x, &[x.dtype(), accumulator])?;
        let wide = dims::cast(given, accumulator)?;
        broadcast(op, name, &wide, x, &values).map(Some)
    };
    let mut temperature = value("temperature", options.temperatures)?;
    let sinks = value("sinks", options.sinks)?;
    let mut mask = options.mask.cloned();
    if let Some(given) = &mut mask {
        let dtypes = [x.dtype(), DType::F32, DType::U8];
        check_dtype(op, "mask", given, x, &dtypes)?;
        // A gradient is summed over what the mask is broadcast to, and not in a half type. Beside f64, f32 is
        // f64 already.
        let is_added = given.dtype() != DType::U8;
        if is_added && (given.track_op() || x.dtype() == DType::F64) {
            *given = dims::cast(given, accumulator)?;
        }
        *given = broadcast(op, "mask", given, x, x.shape())?;
    }
    let tracked = [&mask, &temperature, &sinks];
    let tracked = tracked
        .iter()
        .filter(|t| t.as_ref().is_some_and(|t| t.track_op()));
    if tracked.count() < 3 {
        return dims::map_beside(op, x, dim, &[mask, temperature, sinks]);
    }
    // Candle differentiates by two operands at most: the temperature goes first, on its own.
    let mut wide = x.to_dtype(accumulator)?;
    if let Some(temperature) = temperature.take() {
        wide = wide.broadcast_div(&temperature)?;
    }
    let mask = mask.map(|mask| match mask.dtype() {
        DType::U8 => Ok(mask),
        _ => mask.to_dtype(accumulator),
    });
    dims::map_beside(op, &wide, dim, &[mask.transpose()?, None, sinks])?.to_dtype(x.dtype())
}

/// An operand must be of one of these dtypes.
fn check_dtype(
    op: Op,
    name: &'static str,
    operand: &Tensor,
    x: &Tensor,
    dtypes: &[DType],
) -> Result<()> {
    if dtypes.contains(&operand.dtype()) {
        return Ok(());
    }
    Err(Error::DTypeMismatch {
        op: op.name(),
        argument: name,
        expected: x.dtype(),
        got: operand.dtype(),
        shape: x.shape().clone(),
    }
    .into())
}

/// An operand as the view of this shape, or our own error.
fn broadcast(
    op: Op,
    name: &'static str,
    operand: &Tensor,
    x: &Tensor,
    shape: &Shape,
) -> Result<Tensor> {
    let fits = operand.rank() <= shape.rank()
        && (operand.dims().iter().rev())
            .zip(shape.dims().iter().rev())
            .all(|(got, expected)| got == expected || *got == 1);
    if fits {
        return operand.broadcast_as(shape);
    }
    Err(Error::ShapeMismatch {
        op: op.name(),
        argument: name,
        expected: shape.clone(),
        got: operand.shape().clone(),
        input: x.shape().clone(),
    }
    .into())
}

/// The softmax of the last axis, for the gradients of the ops that are made of it.
pub(super) fn probabilities(x: &Tensor) -> Result<Tensor> {
    softmax(x, D::Minus1)
}

/// dx by the kernel that reads the input and the gradient once, of softmax or of its logarithm.
pub(super) fn fused_gradient(log: bool, x: &Tensor, grad: &Tensor) -> Result<Vec<Option<Tensor>>> {
    let dx = run(Op::SoftmaxGradient { log }, x, &[Some(grad)])?;
    Ok(dx.into_iter().map(Some).collect())
}

/// dx = y * (g - sum(g * y)).
pub(super) fn softmax_gradient(pass: &Backward) -> Result<Option<Tensor>> {
    // The result of a half type has lost digits that the sum below would miss.
    let y = if pass.is_half {
        probabilities(&pass.x)?
    } else {
        pass.res.clone()
    };
    let total = sum_keepdim(&(&y * &pass.grad)?, D::Minus1)?;
    (y * pass.grad.broadcast_sub(&total)?).map(Some)
}

/// dx = g - softmax(x) * sum(g).
pub(super) fn log_softmax_gradient(pass: &Backward) -> Result<Option<Tensor>> {
    let total = sum_keepdim(&pass.grad, D::Minus1)?;
    // Not exp of the result: its absolute error would become a relative one.
    (&pass.grad - probabilities(&pass.x)?.broadcast_mul(&total)?).map(Some)
}

/// The gradients of the input, the mask, the temperature and the sinks by the kernel.
pub(super) fn fused_gradient_with(
    log: bool,
    logits: &Logits,
    x: &Tensor,
    operands: &[Option<&Tensor>],
    grad: &Tensor,
    wanted: &[bool],
) -> Result<Vec<Option<Tensor>>> {
    let [mask, temperature, sinks] = [0, 1, 2].map(|i| operands.get(i).copied().flatten());
    let is_wanted = |i: usize| wanted.get(i).copied().unwrap_or(false);
    // What is summed further is not rounded to a half type before.
    let accumulator = accumulator_dtype(x.dtype());
    let sums = is_wanted(1) || is_wanted(2);
    let widened = |t: &Tensor| match t.dtype() {
        DType::F16 | DType::BF16 if sums => t.to_dtype(accumulator),
        _ => Ok(t.clone()),
    };
    let (wide, grad) = (widened(x)?.detach(), widened(grad)?);
    let mask_rows = mask.map(widened).transpose()?;
    let results = |of_logits| {
        let op = Op::SoftmaxWithGradient {
            log,
            logits: *logits,
            of_logits,
        };
        let operands = [Some(&grad), mask_rows.as_ref(), temperature, sinks];
        run(op, &wide, &operands)
    };
    let narrowed = |t: &Tensor, like: &Tensor| t.to_dtype(like.dtype());
    let mut of_input = results(false)?.into_iter();
    let (Some(dx), Some(of_sinks)) = (of_input.next(), of_input.next()) else {
        candle_core::bail!("softmax-with-gradient: two results");
    };
    let of_mask = match mask {
        Some(mask) if is_wanted(1) => results(true)?.first().map(|dz| narrowed(dz, mask)),
        _ => None,
    };
    let of_temperature = match temperature {
        Some(temperature) if is_wanted(2) => {
            // Hidden keys have gradients of 0, whatever they are.
            let products = dx.eq(0.0)?.where_cond(&dx.zeros_like()?, &(&dx * &wide)?)?;
            let total = sum_keepdim(&products, D::Minus1)?;
            Some((total / temperature.detach())?.neg())
        }
        _ => None,
    };
    Ok(vec![
        is_wanted(0).then(|| narrowed(&dx, x)).transpose()?,
        of_mask.transpose()?,
        of_temperature.transpose()?,
        is_wanted(3).then_some(of_sinks),
    ])
}

/// The same composed of other ops, for gradients that are differentiated again.
pub(super) fn gradient_with(
    pass: &Backward,
    log: bool,
    logits: &Logits,
) -> Result<Vec<Option<Tensor>>> {
    let operand = |i: usize| pass.operands.get(i).and_then(Option::as_ref);
    let [mask, temperature, sinks] = [0, 1, 2].map(operand);
    let x = &pass.x;
    let mut factor = (x.narrow(D::Minus1, 0, 1)?.ones_like()? * logits.scale)?;
    if let Some(temperature) = temperature {
        factor = (factor / temperature)?;
    }
    let scaled = x.broadcast_mul(&factor)?;
    let (mut z, slope) = match logits.soft_cap {
        None => (scaled, factor),
        Some(cap) => {
            let t = (scaled / cap)?.tanh()?;
            let slope = (1.0 - t.sqr()?)?.broadcast_mul(&factor)?;
            ((t * cap)?, slope)
        }
    };
    let lowest = (z.ones_like()? * f64::NEG_INFINITY)?;
    match mask {
        Some(mask) if mask.dtype() == DType::U8 => z = mask.ne(0u8)?.where_cond(&z, &lowest)?,
        Some(mask) => z = (z + mask)?,
        None => {}
    }
    if let Some(queries) = logits.queries {
        let keys = x.dim(D::Minus1)?;
        let seen: Vec<u8> = (0..queries)
            .flat_map(|i| (0..keys).map(move |j| u8::from(j + queries <= i + keys)))
            .collect();
        let shape = if x.rank() > 1 {
            vec![queries, keys]
        } else {
            vec![keys]
        };
        let seen = Tensor::from_vec(seen, shape, x.device())?.broadcast_as(x.shape())?;
        z = seen.where_cond(&z, &lowest)?;
    }
    let zeros = z.zeros_like()?;
    let hides = mask.is_some() || logits.queries.is_some();
    let hidden = match hides {
        true => z.eq(f64::NEG_INFINITY)?,
        false => z.zeros_like()?.to_dtype(DType::U8)?,
    };
    let visible = |t: &Tensor| hidden.where_cond(&zeros, t);
    let keys = z.dim(D::Minus1)?;
    let all = match sinks {
        Some(sinks) => Tensor::cat(&[&z, sinks], D::Minus1)?,
        None => z.clone(),
    };
    let all = probabilities(&all.contiguous()?)?;
    let p = visible(&all.narrow(D::Minus1, 0, keys)?)?;
    let grad = visible(&pass.grad.contiguous()?)?;
    let total = match log {
        true => sum_keepdim(&grad, D::Minus1)?,
        false => sum_keepdim(&(&grad * &p)?, D::Minus1)?,
    };
    let dz = match log {
        true => visible(&(&grad - p.broadcast_mul(&total)?)?)?,
        false => visible(&(&p * grad.broadcast_sub(&total)?)?)?,
    };
    let dx = visible(&dz.broadcast_mul(&slope)?)?;
    let of_sinks = match sinks {
        Some(_) => Some((all.narrow(D::Minus1, keys, 1)? * total)?.neg()?),
        None => None,
    };
    let of_temperature = match temperature {
        Some(temperature) => {
            let products = sum_keepdim(&visible(&(&dx * x)?)?, D::Minus1)?;
            Some((products / temperature)?.neg()?)
        }
        None => None,
    };
    Ok(vec![Some(dx), Some(dz), of_temperature, of_sinks]
        .into_iter()
        .zip(&pass.wanted)
        .map(|(grad, wanted)| grad.filter(|_| *wanted))
        .collect())
}
