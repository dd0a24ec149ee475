//! Cross-entropy of logits with class indices, and its gradient.

use candle_core::{DType, Result, Tensor, D};

use super::dims;
use super::gradient::Backward;
use super::reduce::{logsumexp_keepdim, sum, sum_keepdim};
use super::softmax::probabilities;
use crate::custom_op::{apply, check, device_limits, run};
use crate::error::Error;
use crate::problem::{accumulator_dtype, CrossEntropy, Op};

/// What the losses of all rows are made into.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Reduction {
    /// One loss for each row.
    None,
    /// Their sum over the sum of the weights of the rows' targets; rows that are ignored have none.
    #[default]
    Mean,
    /// Their sum.
    Sum,
}

/// The options of [`cross_entropy`]. By default no target is ignored, labels are not smoothed, all classes
/// have weight 1, there is no z-loss and no soft cap, and losses are averaged.
///
/// ```
/// use candle_rowwise::ops::{CrossEntropyOptions, Reduction};
/// let options = CrossEntropyOptions::default()
///     .ignore_index(-100)
///     .label_smoothing(0.1)
///     .reduction(Reduction::Sum);
/// # let _ = options;
/// ```
#[derive(Debug, Clone, Default)]
pub struct CrossEntropyOptions<'a> {
    ignore_index: Option<i64>,
    label_smoothing: f64,
    class_weights: Option<&'a Tensor>,
    z_loss: f64,
    soft_cap: Option<f64>,
    reduction: Reduction,
    checked: bool,
}

impl<'a> CrossEntropyOptions<'a> {
    /// Rows with this target do not count: their loss and their gradient are exactly 0, and they are not
    /// read. It may be a class or none; PyTorch's default is -100.
    pub fn ignore_index(mut self, target: i64) -> Self {
        self.ignore_index = Some(target);
        self
    }

    /// Spreads this part of a target's weight over all classes; from 0 to below 1.
    pub fn label_smoothing(mut self, smoothing: f64) -> Self {
        self.label_smoothing = smoothing;
        self
    }

    /// A weight for each class: as many as there are, of f32 or the logits' dtype, any strides. They have
    /// no gradient.
    pub fn class_weights(mut self, weights: &'a Tensor) -> Self {
        self.class_weights = Some(weights);
        self
    }

    /// Adds this many times the square of the row's logsumexp to each loss; finite and not negative. It is
    /// not weighted by class.
    pub fn z_loss(mut self, coefficient: f64) -> Self {
        self.z_loss = coefficient;
        self
    }

    /// Logits x become `cap * tanh(x / cap)`; positive and finite.
    pub fn soft_cap(mut self, cap: f64) -> Self {
        self.soft_cap = Some(cap);
        self
    }

    /// What the losses of all rows are made into.
    pub fn reduction(mut self, reduction: Reduction) -> Self {
        self.reduction = reduction;
        self
    }

    /// On a GPU, makes a target that is no class an error, as it is on the CPU. That takes a copy of the
    /// targets to the host, and so a synchronisation.
    pub fn checked(mut self, checked: bool) -> Self {
        self.checked = checked;
        self
    }
}

/// The cross-entropy of logits with class indices.
///
/// For logits x of V classes and a target t, with z = x, or `cap * tanh(x / cap)` under a soft cap,
/// class weights w (1 unless given) with sum W, label smoothing e and the coefficient k of the z-loss, the
/// loss of a row is
///
/// ```text
/// lse  = log(sum(exp(z)))
/// loss = (1 - e) w_t (lse - z_t) + e/V sum_c(w_c (lse - z_c)) + k lse^2
/// ```
///
/// as in PyTorch's function of that name; the z-loss is that of Chowdhery et al., *PaLM*, 2022, the soft cap
/// that of Gemma Team, *Gemma 2*, 2024.
///
/// - `logits`: (..., V), any strides; f16, bf16, f32 or f64. They are never modified.
/// - `targets`: (...), u32 or i64, any strides.
/// - Returns f32, or f64 of f64: a scalar, or without reduction the shape of `targets`. Nothing is
///   rounded to a half type on the way.
/// - The mean divides by the sum of `w_t` over the rows that count. Of no such row it is NaN, and its
///   gradient is exactly 0. The mean or sum takes in the z-loss.
/// - A target that is neither a class nor ignored is an error on the CPU. On a GPU, which would have to
///   wait for the answer, nothing is read out of bounds, and the loss of that row and its gradient are
///   NaN; an error with [`CrossEntropyOptions::checked`].
/// - A `-inf` logit has probability 0; the loss of a row is `+inf` where its target has, or where any class
///   that smoothing gives a weight to has, and never NaN for it. A NaN or a `+inf` in a row makes it NaN, as
///   does a row of nothing but `-inf`. A soft cap comes first, and makes them `cap` and `-cap`.
/// - The gradient, with p = softmax(z) and g what arrives at the row's loss, is
///
///   ```text
///   dx_j = g dz_j/dx_j (p_j ((1 - e) w_t + e/V W + 2 k lse) - e/V w_j - [j = t] (1 - e) w_t)
///   ```
///
///   since `dlse/dz_j` is p_j, and `dz_j/dx_j` is 1, or `1 - tanh(x_j / cap)^2`. It is computed by one walk
///   over the logits that writes it as it goes, from two numbers a row that are kept of the loss: no
///   probabilities are ever in memory.
/// - A vocabulary of any size is one pass over the logits; few rows of a large one are shared by blocks all
///   over a GPU. Nothing synchronises.
/// - The bits of a row's loss and gradient depend on the row, its target and the options alone
///   ([module docs](crate::ops)).
///
/// # Errors
/// `logits` have no dims, no classes or an integer dtype; `targets` or the class weights have another
/// shape, dtype or device than they should; an option is outside of its range; a target is no class.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_rowwise::ops::{cross_entropy, CrossEntropyOptions, Reduction};
/// let logits = Tensor::new(&[[0f32, 0., 0., 0.], [3., 7., 1., 2.]], &Device::Cpu)?;
/// let targets = Tensor::new(&[1u32, 3], &Device::Cpu)?;
/// let options = CrossEntropyOptions::default().ignore_index(3);
/// let loss = cross_entropy(&logits, &targets, &options)?;
/// assert!((loss.to_scalar::<f32>()? - 4f32.ln()).abs() < 1e-6);
/// let losses = cross_entropy(&logits, &targets, &options.reduction(Reduction::None))?;
/// assert_eq!(losses.to_vec1::<f32>()?[1], 0.);
/// # Ok::<(), candle_core::Error>(())
/// ```
pub fn cross_entropy(
    logits: &Tensor,
    targets: &Tensor,
    options: &CrossEntropyOptions,
) -> Result<Tensor> {
    let call = Call::new(logits, targets, options)?;
    let operands = [
        Some(&call.targets),
        call.weights.as_ref(),
        call.weight_sum.as_ref(),
    ];
    let losses = apply(Op::CrossEntropy(call.options), logits, &operands)?;
    call.reduce(losses, || call.divisor())
}

/// [`cross_entropy`] and its gradient with respect to the logits, in one pass over them: for a training step
/// that has no use for a graph through the loss.
///
/// - Returns the loss, as [`cross_entropy`] does, and the gradient of it: the shape and dtype of `logits`,
///   contiguous, rounded once. Without reduction, that is the gradient of the sum of the losses: each row
///   has its own. Neither is part of a graph.
/// - All else is as in [`cross_entropy`], bits included.
///
/// # Errors
/// As in [`cross_entropy`].
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_rowwise::ops::{cross_entropy_with_gradient, CrossEntropyOptions};
/// let logits = Tensor::new(&[[0f32, f32::NEG_INFINITY, 0., f32::NEG_INFINITY]], &Device::Cpu)?;
/// let targets = Tensor::new(&[2i64], &Device::Cpu)?;
/// let options = CrossEntropyOptions::default();
/// let (loss, gradient) = cross_entropy_with_gradient(&logits, &targets, &options)?;
/// assert!((loss.to_scalar::<f32>()? - 2f32.ln()).abs() < 1e-6);
/// assert_eq!(gradient.to_vec2::<f32>()?, [[0.5, 0., -0.5, 0.]]);
/// # Ok::<(), candle_core::Error>(())
/// ```
pub fn cross_entropy_with_gradient(
    logits: &Tensor,
    targets: &Tensor,
    options: &CrossEntropyOptions,
) -> Result<(Tensor, Tensor)> {
    let logits = &logits.detach();
    let call = Call::new(logits, targets, options)?;
    // What every gradient is divided by must be known before the pass.
    let divisor = match call.reduction {
        Reduction::Mean => Some(call.divisor()?),
        Reduction::None | Reduction::Sum => None,
    };
    let scales = match &divisor {
        Some(divisor) => Some(call.for_each_row(&divisor.recip()?)?),
        None => None,
    };
    let operands = [
        Some(&call.targets),
        call.weights.as_ref(),
        call.weight_sum.as_ref(),
        scales.as_ref(),
    ];
    let results = run(
        Op::CrossEntropyWithGradient(call.options),
        logits,
        &operands,
    )?;
    let [gradient, losses] = <[Tensor; 2]>::try_from(results)
        .map_err(|_| candle_core::Error::Msg("cross-entropy: not two results".into()))?;
    let loss = call.reduce(losses, || match divisor {
        Some(divisor) => Ok(divisor),
        None => call.divisor(),
    })?;
    Ok((loss, gradient))
}

/// A call with everything checked.
struct Call<'a> {
    logits: &'a Tensor,
    /// (..., 1)
    targets: Tensor,
    /// In the dtype that is computed in.
    weights: Option<Tensor>,
    /// A value for each row, where label smoothing asks for it.
    weight_sum: Option<Tensor>,
    options: CrossEntropy,
    reduction: Reduction,
}

impl<'a> Call<'a> {
    fn new(logits: &'a Tensor, targets: &Tensor, options: &CrossEntropyOptions) -> Result<Self> {
        let op = CrossEntropy {
            ignore_index: options.ignore_index,
            label_smoothing: options.label_smoothing,
            z_loss: options.z_loss,
            soft_cap: options.soft_cap,
        };
        let this = Op::CrossEntropy(op);
        let (name, shape) = (this.name(), logits.shape());
        let dim = dims::index(this, logits, D::Minus1)?;
        check(this, logits.dtype(), shape, &[dim])?;
        check_options(name, logits, &op)?;
        let classes = logits.dim(dim)?;
        check_shape(name, "targets", logits, &shape.dims()[..dim], targets)?;
        if !matches!(targets.dtype(), DType::U32 | DType::I64) {
            return Err(Error::OperandDType {
                op: name,
                argument: "targets",
                got: targets.dtype(),
                supported: "u32, i64",
                shape: shape.clone(),
            }
            .into());
        }
        let wide = accumulator_dtype(logits.dtype());
        let weights = match options.class_weights {
            None => None,
            Some(weights) => {
                check_shape(name, "class weights", logits, &[classes], weights)?;
                if weights.dtype() != DType::F32 && weights.dtype() != logits.dtype() {
                    return Err(Error::DTypeMismatch {
                        op: name,
                        argument: "class weights",
                        expected: logits.dtype(),
                        got: weights.dtype(),
                        shape: shape.clone(),
                    }
                    .into());
                }
                Some(dims::cast(&weights.detach(), wide)?)
            }
        };
        // The kernels answer with a NaN, and so they do where a test has them run on the host.
        let on_kernels = device_limits(logits).is_some();
        let on_host = logits.device().is_cpu() && targets.device().is_cpu() && !on_kernels;
        if on_host || options.checked {
            check_targets(name, logits, classes, targets, op.ignore_index)?;
        }
        let mut call = Call {
            logits,
            targets: targets.unsqueeze(dim)?,
            weights,
            weight_sum: None,
            options: op,
            reduction: options.reduction,
        };
        if let (Some(weights), true) = (&call.weights, op.label_smoothing > 0.0) {
            call.weight_sum = Some(call.for_each_row(&sum(weights, 0)?)?);
        }
        Ok(call)
    }

    /// A scalar as a value for each row.
    fn for_each_row(&self, scalar: &Tensor) -> Result<Tensor> {
        scalar.broadcast_as(self.targets.shape())
    }

    /// The sum of the weights of the targets of rows that count, a scalar.
    fn divisor(&self) -> Result<Tensor> {
        let wide = accumulator_dtype(self.logits.dtype());
        if self.weights.is_none() && self.options.ignore_index.is_none() {
            let rows = self.targets.elem_count();
            return Tensor::ones((), wide, self.logits.device())?.affine(rows as f64, 0.0);
        }
        let op = Op::TargetWeights {
            classes: self.logits.dim(D::Minus1)?,
            ignore_index: self.options.ignore_index,
        };
        // Rows of one element stand for the rows, which are not read.
        let rows = self.logits.detach().narrow(D::Minus1, 0, 1)?;
        let weights = run(op, &rows, &[Some(&self.targets), self.weights.as_ref()])?;
        match weights.as_slice() {
            [weights] => sum(&weights.flatten_all()?, 0),
            _ => candle_core::bail!("{}: not one result", op.name()),
        }
    }

    /// Losses of (..., 1) as the reduction makes them.
    fn reduce(&self, losses: Tensor, divisor: impl FnOnce() -> Result<Tensor>) -> Result<Tensor> {
        let total = |losses: &Tensor| sum(&losses.flatten_all()?, 0);
        match self.reduction {
            Reduction::None => losses.squeeze(D::Minus1),
            Reduction::Sum => total(&losses),
            Reduction::Mean => total(&losses)? / divisor()?,
        }
    }
}

fn check_options(name: &'static str, logits: &Tensor, options: &CrossEntropy) -> Result<()> {
    let check = |is_right: bool, option: &'static str, value: f64, expected: &'static str| {
        if is_right {
            return Ok(());
        }
        Err(Error::InvalidOption {
            op: name,
            option,
            value: value.to_string(),
            expected,
            shape: logits.shape().clone(),
        })
    };
    let smoothing = options.label_smoothing;
    let is_right = (0.0..1.0).contains(&smoothing);
    check(
        is_right,
        "label_smoothing",
        smoothing,
        "at least 0 and below 1",
    )?;
    let z_loss = options.z_loss;
    let is_right = z_loss >= 0.0 && z_loss.is_finite();
    check(is_right, "z_loss", z_loss, "finite and not negative")?;
    if let Some(cap) = options.soft_cap {
        // It is divided by, in the dtype that is computed in.
        let is_right = cap > 0.0
            && match accumulator_dtype(logits.dtype()) {
                DType::F64 => cap.is_normal() && cap.recip().is_normal(),
                _ => (cap as f32).is_normal() && (cap.recip() as f32).is_normal(),
            };
        let expected = "positive, and it and its inverse finite in the dtype that is computed in";
        check(is_right, "soft_cap", cap, expected)?;
    }
    Ok(())
}

fn check_shape(
    name: &'static str,
    argument: &'static str,
    logits: &Tensor,
    expected: &[usize],
    got: &Tensor,
) -> Result<()> {
    if got.dims() == expected {
        return Ok(());
    }
    Err(Error::ShapeMismatch {
        op: name,
        argument,
        expected: expected.into(),
        got: got.shape().clone(),
        input: logits.shape().clone(),
    }
    .into())
}

/// Every target, of u8, u32 or i64, must be a class, or be ignored.
pub(crate) fn check_targets(
    name: &'static str,
    logits: &Tensor,
    classes: usize,
    targets: &Tensor,
    ignore_index: Option<i64>,
) -> Result<()> {
    // Of no elements behind an offset candle makes no vector: it slices what is not there.
    if targets.elem_count() == 0 {
        return Ok(());
    }
    let flat = targets.flatten_all()?;
    let find = |targets: &mut dyn Iterator<Item = i64>| {
        let is_class = |target: i64| usize::try_from(target).is_ok_and(|target| target < classes);
        targets
            .enumerate()
            .find(|(_, target)| ignore_index != Some(*target) && !is_class(*target))
    };
    let found = match targets.dtype() {
        DType::U32 => find(&mut flat.to_vec1::<u32>()?.into_iter().map(i64::from)),
        _ => find(&mut flat.to_dtype(DType::I64)?.to_vec1::<i64>()?.into_iter()),
    };
    match found {
        None => Ok(()),
        Some((row, target)) => Err(Error::TargetOutOfRange {
            op: name,
            row,
            target,
            classes,
            shape: logits.shape().clone(),
        }
        .into()),
    }
}

/// dx by a kernel of its own, from what the loss has left of each row.
pub(super) fn fused_gradient(
    options: CrossEntropy,
    x: &Tensor,
    operands: &[Option<&Tensor>],
    grad: &Tensor,
) -> Result<Tensor> {
    let &[targets, weights, _, Some(statistics)] = operands else {
        candle_core::bail!("cross-entropy: nothing is left of the loss for its gradient")
    };
    let (maxima, factors) = (statistics.get(0)?, statistics.get(1)?);
    let operands = [targets, weights, Some(grad), Some(&maxima), Some(&factors)];
    let results = run(Op::CrossEntropyGradient(options), x, &operands)?;
    match <[Tensor; 1]>::try_from(results) {
        Ok([dx]) => Ok(dx),
        Err(_) => candle_core::bail!("cross-entropy: not one gradient"),
    }
}

/// dx by the formula of [`cross_entropy`], in ops that have derivatives themselves.
pub(super) fn cross_entropy_gradient(
    pass: &Backward,
    options: CrossEntropy,
) -> Result<Option<Tensor>> {
    let (x, targets) = (&pass.x, pass.operand(0)?.to_dtype(DType::I64)?);
    let (dtype, device) = (x.dtype(), x.device());
    let classes = x.dim(D::Minus1)?;
    let weights = match pass.operands.get(1) {
        Some(Some(weights)) => weights.clone(),
        _ => Tensor::ones(classes, dtype, device)?,
    };
    let ids = Tensor::arange(0, classes as i64, device)?;
    let at_target = ids.broadcast_eq(&targets)?.to_dtype(dtype)?;
    let hot = at_target.broadcast_mul(&(&weights * (1.0 - options.label_smoothing))?)?;
    let smooth = (&weights * (options.label_smoothing / classes as f64))?;
    let (z, slope) = match options.soft_cap {
        None => (x.clone(), None),
        Some(cap) => {
            let bent = (x / cap)?.tanh()?;
            let slope = bent.sqr()?.affine(-1.0, 1.0)?;
            ((bent * cap)?, Some(slope))
        }
    };
    let mut of_p = sum_keepdim(&hot, D::Minus1)?.broadcast_add(&sum_keepdim(&smooth, 0)?)?;
    if options.z_loss > 0.0 {
        of_p = (of_p + (logsumexp_keepdim(&z, D::Minus1)? * (2.0 * options.z_loss))?)?;
    }
    let mut dx = probabilities(&z)?.broadcast_mul(&of_p)?;
    dx = (dx - hot)?.broadcast_sub(&smooth)?;
    if let Some(slope) = slope {
        dx = (dx * slope)?;
    }
    dx = dx.broadcast_mul(&pass.grad)?;
    if let Some(ignored) = options.ignore_index {
        let ignored = targets.eq(ignored)?.broadcast_as(dx.shape())?;
        dx = ignored.where_cond(&dx.zeros_like()?, &dx)?;
    }
    Ok(Some(dx))
}
