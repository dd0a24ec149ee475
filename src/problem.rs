//! What is to be computed, checked: the op, the dtype, and where every row lies.
//!
//! All validation of shapes happens here, in 64 bits, before a plan is made or a kernel is run.
//! A [`Problem`] that exists is one that every device and tier can run.

use candle_core::{DType, Layout, Shape};

use crate::error::{Error, Result};
use crate::tuning::row_bands;

/// An op with its options. One value of this describes one kernel's worth of work.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum Op {
    /// Sum of the row.
    Sum,
    /// Sum of the row divided by its length, before it is rounded.
    Mean,
    /// Product of the row.
    Prod,
    /// Largest value of the row; NaN if the row has one.
    Max,
    /// Smallest value of the row; NaN if the row has one.
    Min,
    /// Smallest and largest value of the row.
    MinMax,
    /// Largest magnitude of the row; NaN if the row has one.
    AbsMax,
    /// Index of the largest value; of the first NaN if the row has one; ties to the lowest.
    ArgMax,
    /// Index of the smallest value; of the first NaN if the row has one; ties to the lowest.
    ArgMin,
    /// 1 if any value of the row is not 0 (a NaN is not), else 0.
    Any,
    /// 1 if no value of the row is 0, else 0.
    All,
    /// Sum of magnitudes.
    NormL1,
    /// Root of the sum of squares.
    NormL2,
    /// Sum of squares divided by the length.
    MeanOfSquares,
    /// `sum((x - mean)^2) / (n - correction)`.
    Var {
        /// What is taken off the length: 0 for the population variance, 1 for the unbiased one.
        correction: usize,
    },
    /// Root of [`Op::Var`].
    Std {
        /// As in [`Op::Var`].
        correction: usize,
    },
    /// `log(sum(exp(row)))`.
    LogSumExp,
    /// `exp(x - max) / sum(exp(x - max))`.
    Softmax,
    /// `x - logsumexp(row)`.
    LogSoftmax,
    /// The gradient of [`Op::Softmax`], or of [`Op::LogSoftmax`], given that of its result.
    SoftmaxGradient {
        /// Whether it is that of the logarithm.
        log: bool,
    },
    /// [`Op::Softmax`] or [`Op::LogSoftmax`] of logits that are made of the input.
    SoftmaxWith {
        /// Whether it is the logarithm.
        log: bool,
        /// How the logits are made, as far as that is no operand.
        logits: Logits,
    },
    /// The gradient of [`Op::SoftmaxWith`], given that of its result; beside it that of the sink.
    SoftmaxWithGradient {
        /// Whether it is that of the logarithm.
        log: bool,
        /// As in [`Op::SoftmaxWith`].
        logits: Logits,
        /// Whether it is the gradient of the logits, and so of an added mask, not that of the input.
        of_logits: bool,
    },
    /// `x / sqrt(mean(x^2) + eps) * weight`.
    RmsNorm {
        /// Added to the mean square, in f32 or wider whatever the dtype.
        eps: f64,
    },
    /// `x / max(sqrt(sum(x^2)), eps)`.
    L2Normalize {
        /// What shorter rows are divided by, in f32 or wider whatever the dtype.
        eps: f64,
    },
    /// The gradient of [`Op::L2Normalize`].
    L2NormalizeGradient {
        /// As in [`Op::L2Normalize`].
        eps: f64,
    },
    /// `(x - mean) / sqrt(var + eps) * weight + bias`, the population variance.
    LayerNorm {
        /// Added to the variance, in f32 or wider whatever the dtype.
        eps: f64,
    },
    /// The cross-entropy of the row, logits, with its target, a class; and, for the gradient, the largest
    /// logit and the factor of the exponentials relative to it.
    CrossEntropy(CrossEntropy),
    /// The gradient of [`Op::CrossEntropy`] times a factor for each row, and the loss, in one pass.
    CrossEntropyWithGradient(CrossEntropy),
    /// The gradient times a factor for each row, from what [`Op::CrossEntropy`] has left.
    CrossEntropyGradient(CrossEntropy),
    /// The weight of each row's target; 0 where it is ignored or no class. The rows are not read.
    TargetWeights {
        /// How many classes there are; the rows may be narrower.
        classes: usize,
        /// As in [`CrossEntropy`].
        ignore_index: Option<i64>,
    },
    /// [`Op::RmsNorm`] of `x + residual`, and that sum.
    AddRmsNorm {
        /// As in [`Op::RmsNorm`].
        eps: f64,
    },
    /// [`Op::LayerNorm`] of `x + residual`, and that sum.
    AddLayerNorm {
        /// As in [`Op::LayerNorm`].
        eps: f64,
    },
    /// The gradient of [`Op::RmsNorm`] with respect to x and, if asked for, over bands of rows, to the
    /// weight.
    RmsNormGradient {
        /// As in [`Op::RmsNorm`].
        eps: f64,
        /// Whether sums over rows are asked for.
        sums: bool,
    },
    /// The gradient of [`Op::LayerNorm`] with respect to x and, if asked for, over bands of rows, to weight
    /// and bias.
    LayerNormGradient {
        /// As in [`Op::LayerNorm`].
        eps: f64,
        /// Whether sums over rows are asked for.
        sums: bool,
    },
}

/// The options of [`Op::CrossEntropy`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CrossEntropy {
    /// Rows with this target do not count.
    pub ignore_index: Option<i64>,
    /// The part of a target's weight that is spread over all classes, below 1.
    pub label_smoothing: f64,
    /// The coefficient of the squared logsumexp.
    pub z_loss: f64,
    /// Logits x are `cap * tanh(x / cap)`.
    pub soft_cap: Option<f64>,
}

impl CrossEntropy {
    /// True where the logits are the elements, and only the target's class is expected: kernels of their own
    /// walk such rows.
    pub fn is_plain(&self) -> bool {
        self.label_smoothing == 0. && self.soft_cap.is_none()
    }
}

/// How the logits of a softmax are made of its input: `cap(x * scale / temperature) + mask`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Logits {
    /// What the input is multiplied with.
    pub scale: f64,
    /// `c` of `cap(x) = c * tanh(x / c)`.
    pub soft_cap: Option<f64>,
    /// Of a causal mask, how many queries follow each other: row `i` is query `q = i % queries`, and sees the
    /// keys up to `q + keys - queries`.
    pub queries: Option<usize>,
}

/// What an op makes of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowResult {
    /// One value.
    Scalar,
    /// Two values: those of all rows, then the second ones of all rows.
    Pair,
    /// A row as wide as the input's.
    Row,
    /// So many vectors as wide as the row for each band of rows, summed over the rows of the band: the
    /// parts of a sum over all rows, in an order that does not depend on who computes them
    /// ([`Problem::bands`]). f32, or f64 of f64.
    Bands(usize),
}

impl Op {
    /// Every op that is no gradient and takes no other operands than weights, with options that have a value;
    /// for tables and tests. Softmax with options and the losses have tests of their own: no operand made for
    /// any row fits them (a target must be a class of its row).
    pub const ALL: [Op; 21] = [
        Op::Sum,
        Op::Mean,
        Op::Prod,
        Op::Max,
        Op::Min,
        Op::MinMax,
        Op::AbsMax,
        Op::ArgMax,
        Op::ArgMin,
        Op::Any,
        Op::All,
        Op::NormL1,
        Op::NormL2,
        Op::MeanOfSquares,
        Op::Var { correction: 1 },
        Op::Std { correction: 0 },
        Op::LogSumExp,
        Op::Softmax,
        Op::LogSoftmax,
        Op::RmsNorm { eps: 1e-6 },
        Op::LayerNorm { eps: 1e-5 },
    ];

    /// The other ops, with options that have a value.
    pub const FUSED: [Op; 8] = [
        Op::L2Normalize { eps: 1e-6 },
        Op::L2NormalizeGradient { eps: 1e-6 },
        Op::AddRmsNorm { eps: 1e-6 },
        Op::AddLayerNorm { eps: 1e-5 },
        Op::RmsNormGradient {
            eps: 1e-6,
            sums: true,
        },
        Op::RmsNormGradient {
            eps: 1e-6,
            sums: false,
        },
        Op::LayerNormGradient {
            eps: 1e-5,
            sums: true,
        },
        Op::LayerNormGradient {
            eps: 1e-5,
            sums: false,
        },
    ];

    /// The name that errors, plans and candle's graph show.
    pub const fn name(&self) -> &'static str {
        match self {
            Op::Sum => "sum",
            Op::Mean => "mean",
            Op::Prod => "prod",
            Op::Max => "max",
            Op::Min => "min",
            Op::MinMax => "min-max",
            Op::AbsMax => "abs-max",
            Op::ArgMax => "argmax",
            Op::ArgMin => "argmin",
            Op::Any => "any",
            Op::All => "all",
            Op::NormL1 => "norm-l1",
            Op::NormL2 => "norm-l2",
            Op::MeanOfSquares => "mean-of-squares",
            Op::Var { .. } => "var",
            Op::Std { .. } => "std",
            Op::LogSumExp => "logsumexp",
            Op::Softmax => "softmax",
            Op::LogSoftmax => "log-softmax",
            Op::SoftmaxGradient { log: false } => "softmax-gradient",
            Op::SoftmaxGradient { log: true } => "log-softmax-gradient",
            Op::SoftmaxWith { log: false, .. } => "softmax-with",
            Op::SoftmaxWith { log: true, .. } => "log-softmax-with",
            Op::SoftmaxWithGradient { log: false, .. } => "softmax-with-gradient",
            Op::SoftmaxWithGradient { log: true, .. } => "log-softmax-with-gradient",
            Op::RmsNorm { .. } => "rms-norm",
            Op::L2Normalize { .. } => "l2-normalize",
            Op::L2NormalizeGradient { .. } => "l2-normalize-gradient",
            Op::LayerNorm { .. } => "layer-norm",
            Op::CrossEntropy(_) => "cross-entropy",
            Op::CrossEntropyWithGradient(_) => "cross-entropy-with-gradient",
            Op::CrossEntropyGradient(_) => "cross-entropy-gradient",
            Op::TargetWeights { .. } => "target-weights",
            Op::AddRmsNorm { .. } => "add-rms-norm",
            Op::AddLayerNorm { .. } => "add-layer-norm",
            Op::RmsNormGradient { .. } => "rms-norm-gradient",
            Op::LayerNormGradient { .. } => "layer-norm-gradient",
        }
    }

    /// What the op makes: the result that it is known by, and what else the kernel writes in the same
    /// pass.
    pub const fn results(&self) -> &'static [RowResult] {
        match self {
            Op::Softmax | Op::LogSoftmax | Op::RmsNorm { .. } | Op::LayerNorm { .. } => {
                &[RowResult::Row]
            }
            Op::SoftmaxGradient { .. } | Op::SoftmaxWith { .. } => &[RowResult::Row],
            Op::L2Normalize { .. } | Op::L2NormalizeGradient { .. } => &[RowResult::Row],
            Op::SoftmaxWithGradient { .. } => &[RowResult::Row, RowResult::Scalar],
            Op::AddRmsNorm { .. } | Op::AddLayerNorm { .. } => &[RowResult::Row, RowResult::Row],
            Op::RmsNormGradient { sums: true, .. } => &[RowResult::Row, RowResult::Bands(1)],
            Op::LayerNormGradient { sums: true, .. } => &[RowResult::Row, RowResult::Bands(2)],
            Op::RmsNormGradient { .. } | Op::LayerNormGradient { .. } => &[RowResult::Row],
            Op::MinMax => &[RowResult::Pair],
            Op::CrossEntropy(_) => &[RowResult::Scalar, RowResult::Pair],
            Op::CrossEntropyWithGradient(_) => &[RowResult::Row, RowResult::Scalar],
            Op::CrossEntropyGradient(_) => &[RowResult::Row],
            _ => &[RowResult::Scalar],
        }
    }

    /// The first of [`Op::results`].
    pub const fn result(&self) -> RowResult {
        self.results()[0]
    }

    /// Rows of the input's dtype that the kernel keeps on chip between walks: the input, and those
    /// operands that it reads more than once.
    pub const fn cached_rows(&self) -> usize {
        match self {
            Op::SoftmaxGradient { .. }
            | Op::SoftmaxWithGradient { .. }
            | Op::RmsNormGradient { .. }
            | Op::L2NormalizeGradient { .. }
            | Op::LayerNormGradient { .. } => 2,
            _ => 1,
        }
    }

    /// True where one of the results is summed over bands of rows.
    pub const fn sums_over_rows(&self) -> bool {
        let results = self.results();
        matches!(results[results.len() - 1], RowResult::Bands(_))
    }

    /// True where rows go by bands, each staged while the one before it is worked on; those that are summed over
    /// rows do.
    pub const fn goes_by_bands(&self) -> bool {
        matches!(
            self,
            Op::RmsNormGradient { .. }
                | Op::L2NormalizeGradient { .. }
                | Op::LayerNormGradient { .. }
        )
    }

    /// True for a reduction: one result or two per row.
    pub const fn is_reduction(&self) -> bool {
        !matches!(self.result(), RowResult::Row)
    }

    /// True where the op takes integers as they are.
    pub const fn takes_integers(&self) -> bool {
        matches!(
            self,
            Op::Sum
                | Op::Prod
                | Op::Max
                | Op::Min
                | Op::MinMax
                | Op::ArgMax
                | Op::ArgMin
                | Op::Any
                | Op::All
        )
    }

    /// False for an op whose result has no derivative with respect to the input.
    pub const fn has_derivative(&self) -> bool {
        !matches!(
            self,
            Op::ArgMax
                | Op::ArgMin
                | Op::Any
                | Op::All
                | Op::CrossEntropyWithGradient(_)
                | Op::CrossEntropyGradient(_)
                | Op::TargetWeights { .. }
                | Op::SoftmaxGradient { .. }
                | Op::SoftmaxWithGradient { .. }
                | Op::RmsNormGradient { .. }
                | Op::L2NormalizeGradient { .. }
                | Op::LayerNormGradient { .. }
        )
    }

    /// What the op takes beside its rows, at most [`MAX_OPERANDS`].
    pub const fn operands(&self) -> &'static [Operand] {
        const WEIGHT: Operand = side("weight");
        const BIAS: Operand = side("bias");
        const RESIDUAL: Operand = Operand::rows("residual");
        const TARGETS: Operand =
            Operand::values("targets").of(OperandDType::OneOf(&[DType::U32, DType::I64]));
        const CLASS_WEIGHTS: Operand = Operand::vector("class weights")
            .of(OperandDType::Accumulator)
            .or_none();
        const WEIGHT_SUM: Operand = Operand::values("sum of class weights").or_none();
        const FACTORS: Operand = Operand::values("gradient");
        const SCALES: Operand = FACTORS.or_none();
        const STATISTICS: Operand = Operand::values("statistics");
        const MASK: Operand = Operand::rows("mask")
            .of(OperandDType::InputF32OrU8)
            .or_none();
        const TEMPERATURE: Operand = Operand::values("temperature").or_none();
        const SINK: Operand = Operand::values("sinks").or_none();
        const GRADIENT: Operand = Operand::rows("the gradient of the result");
        match self {
            Op::RmsNorm { .. } | Op::LayerNorm { .. } => &[WEIGHT, BIAS],
            Op::AddRmsNorm { .. } | Op::AddLayerNorm { .. } => &[RESIDUAL, WEIGHT, BIAS],
            Op::RmsNormGradient { .. } | Op::LayerNormGradient { .. } => &[GRADIENT, WEIGHT],
            Op::CrossEntropy(_) => &[TARGETS, CLASS_WEIGHTS, WEIGHT_SUM],
            Op::CrossEntropyWithGradient(_) => &[TARGETS, CLASS_WEIGHTS, WEIGHT_SUM, SCALES],
            Op::CrossEntropyGradient(_) => {
                &[TARGETS, CLASS_WEIGHTS, FACTORS, STATISTICS, STATISTICS]
            }
            Op::TargetWeights { .. } => &[TARGETS, CLASS_WEIGHTS],
            Op::SoftmaxGradient { .. } | Op::L2NormalizeGradient { .. } => &[GRADIENT],
            Op::SoftmaxWith { .. } => &[MASK, TEMPERATURE, SINK],
            Op::SoftmaxWithGradient { .. } => &[GRADIENT, MASK, TEMPERATURE, SINK],
            _ => &[],
        }
    }

    /// The dtype of result `index` for an input of `dtype`.
    pub const fn result_dtype(&self, index: usize, dtype: DType) -> DType {
        match self.results()[index] {
            _ if index == 0 => self.output_dtype(dtype),
            RowResult::Row => dtype,
            _ => accumulator_dtype(dtype),
        }
    }

    /// The dtype of the first result for an input of `dtype`.
    pub const fn output_dtype(&self, dtype: DType) -> DType {
        match self {
            Op::ArgMax | Op::ArgMin => DType::U32,
            Op::Any | Op::All => DType::U8,
            // Of integers, the widest: a narrow one would wrap.
            Op::Sum | Op::Prod if !is_float(dtype) => DType::I64,
            Op::CrossEntropy(_) | Op::TargetWeights { .. } => accumulator_dtype(dtype),
            _ => dtype,
        }
    }

    /// Elements of an operand that all rows of `width` elements share.
    pub const fn vector_len(&self, width: usize) -> usize {
        match self {
            Op::TargetWeights { classes, .. } => *classes,
            _ => width,
        }
    }

    /// The value over an axis without elements (`None`: there is none). Only asked of reductions.
    pub const fn empty_value(&self) -> Option<f64> {
        match self {
            Op::Sum | Op::NormL1 | Op::NormL2 | Op::AbsMax | Op::Any => Some(0.0),
            Op::Prod | Op::All => Some(1.0),
            Op::LogSumExp => Some(f64::NEG_INFINITY),
            Op::Mean | Op::MeanOfSquares | Op::Var { .. } | Op::Std { .. } => Some(f64::NAN),
            _ => None,
        }
    }
}

/// What a norm scales or shifts rows by.
const fn side(name: &'static str) -> Operand {
    Operand::vector(name).of(OperandDType::InputOrF32).or_none()
}

/// Operands that an op may have, given or not.
pub const MAX_OPERANDS: usize = 5;

/// Results that an op may have.
pub const MAX_RESULTS: usize = 3;

/// How an operand lies beside the rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OperandKind {
    /// One vector as long as a row, which all rows share: a weight.
    Vector,
    /// A row for every row, or one value for all of a row: a residual, a mask, an upstream gradient.
    Rows,
    /// One value for every row: a target, a temperature.
    Values,
}

/// Which dtypes an operand may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OperandDType {
    /// The input's.
    Input,
    /// The input's, or f32 beside a half type.
    InputOrF32,
    /// That which the input accumulates in.
    Accumulator,
    /// The input's, or f32 beside a half type, or u8.
    InputF32OrU8,
    /// One of these.
    OneOf(&'static [DType]),
}

/// An input that an op takes beside its rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Operand {
    /// Its name in errors.
    pub name: &'static str,
    /// How it lies beside the rows.
    pub kind: OperandKind,
    /// Which dtypes it may have.
    pub dtype: OperandDType,
    /// Whether it may be left out.
    pub optional: bool,
}

impl Operand {
    /// A vector of the input's dtype that must be given.
    pub const fn vector(name: &'static str) -> Self {
        Operand {
            name,
            kind: OperandKind::Vector,
            dtype: OperandDType::Input,
            optional: false,
        }
    }

    /// Rows of the input's dtype that must be given.
    pub const fn rows(name: &'static str) -> Self {
        Operand {
            kind: OperandKind::Rows,
            ..Self::vector(name)
        }
    }

    /// One value for every row, of the accumulator's dtype, that must be given.
    pub const fn values(name: &'static str) -> Self {
        Operand {
            kind: OperandKind::Values,
            dtype: OperandDType::Accumulator,
            ..Self::vector(name)
        }
    }

    /// The same, and it may be left out.
    pub const fn or_none(self) -> Self {
        Operand {
            optional: true,
            ..self
        }
    }

    /// The same in other dtypes.
    pub const fn of(self, dtype: OperandDType) -> Self {
        Operand { dtype, ..self }
    }

    /// True where `dtype` is one that the operand may have beside an input of `input`.
    pub fn takes(&self, dtype: DType, input: DType) -> bool {
        match self.dtype {
            OperandDType::Input => dtype == input,
            OperandDType::InputOrF32 => dtype == input || dtype == accumulator_dtype(input),
            OperandDType::Accumulator => dtype == accumulator_dtype(input),
            OperandDType::InputF32OrU8 => {
                dtype == input || dtype == accumulator_dtype(input) || dtype == DType::U8
            }
            OperandDType::OneOf(dtypes) => dtypes.contains(&dtype),
        }
    }

    /// The shape that it must have for `op` beside an input of `shape`.
    pub fn shape(&self, op: Op, shape: &Shape) -> Shape {
        let mut dims = shape.dims().to_vec();
        match self.kind {
            OperandKind::Vector => Shape::from(op.vector_len(dims.last().copied().unwrap_or(1))),
            OperandKind::Rows => shape.clone(),
            OperandKind::Values => {
                if let Some(last) = dims.last_mut() {
                    *last = 1;
                }
                Shape::from(dims)
            }
        }
    }
}

/// Where the values of an operand lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OperandView {
    /// Its dtype.
    pub dtype: DType,
    /// Its row for each row of the input: contiguous, or of one value (axis stride 0).
    pub rows: Rows,
}

impl OperandView {
    /// The view of an operand's layout; `None` where it must be packed first.
    pub fn of(operand: &Operand, layout: &Layout, dtype: DType, rows: usize) -> Option<Self> {
        let rows = match operand.kind {
            OperandKind::Vector => layout.is_contiguous().then(|| Rows {
                offset: layout.start_offset(),
                strides: [0; MAX_OUTER_DIMS],
                ..Rows::contiguous(rows, 0)
            }),
            OperandKind::Values => Rows::of(layout),
            OperandKind::Rows => Rows::of_repeated(layout).or_else(|| Rows::of(layout)),
        };
        // Columns are what only the input may be.
        let rows = rows.filter(|rows| rows.inner == 1)?;
        Some(OperandView { dtype, rows })
    }
}

/// Outer dims that a row view may have after merging the ones that walk memory as one.
pub const MAX_OUTER_DIMS: usize = 3;

/// Elements from one element of a row to the next up to which kernels read columns where they lie: they count the
/// bytes between them in 32 bits.
pub const MAX_AXIS_STRIDE: usize = (1 << 32) / 8 - 1;

/// Where the rows of a tensor lie: contiguous rows with any strides between them, or columns, rows
/// that lie side by side with any stride along them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rows {
    /// Elements before the first row.
    pub offset: usize,
    /// How many rows lie side by side: 1 where rows are contiguous. The outer dims then count panels
    /// of so many.
    pub inner: usize,
    /// Elements from one element of a row to the next: 1 where rows are contiguous.
    pub axis_stride: usize,
    /// Sizes of the outer dims, outermost first; unused ones are 1.
    pub sizes: [usize; MAX_OUTER_DIMS],
    /// Strides of the outer dims in elements; unused ones are 0.
    pub strides: [usize; MAX_OUTER_DIMS],
}

impl Rows {
    /// The row view of a layout's last axis, or `None` where rows are neither contiguous nor side by
    /// side, or have more than [`MAX_OUTER_DIMS`] independent outer strides (or several, and 2^32 rows).
    ///
    /// A layout of rank 0 is one row of one element, one of rank 1 is one row.
    pub fn of(layout: &Layout) -> Option<Self> {
        let (dims, strides) = (layout.dims(), layout.stride());
        let rank = dims.len();
        let (width, axis_stride) = match rank {
            0 => (1, 1),
            _ => (dims[rank - 1], strides[rank - 1]),
        };
        let is_contiguous = width <= 1 || axis_stride == 1;
        // Innermost first: an outer dim merges into the one inside it when it continues its walk.
        let mut merged: Vec<(usize, usize)> = Vec::with_capacity(MAX_OUTER_DIMS);
        for i in (0..rank.saturating_sub(1)).rev() {
            let (size, stride) = (dims[i], strides[i]);
            if size == 1 {
                continue;
            }
            match merged.last_mut() {
                Some((inner_size, inner_stride))
                    if inner_size.checked_mul(*inner_stride) == Some(stride) =>
                {
                    *inner_size *= size
                }
                _ => merged.push((size, stride)),
            }
        }
        let inner = match merged.first() {
            _ if is_contiguous => 1,
            // A stride of 0 repeats one element, and a shorter one than the panel's width overlaps.
            Some(&(size, 1)) if axis_stride >= size && axis_stride <= MAX_AXIS_STRIDE => {
                merged.remove(0);
                size
            }
            _ => return None,
        };
        // Kernels find a row among several outer dims by 32-bit division.
        let rows: usize = merged.iter().map(|(size, _)| size).product();
        if merged.len() > MAX_OUTER_DIMS || (merged.len() > 1 && rows > u32::MAX as usize) {
            return None;
        }
        let mut view = Rows {
            offset: layout.start_offset(),
            inner,
            axis_stride: if is_contiguous { 1 } else { axis_stride },
            sizes: [1; MAX_OUTER_DIMS],
            strides: [0; MAX_OUTER_DIMS],
        };
        for (slot, (size, stride)) in merged.into_iter().enumerate() {
            view.sizes[MAX_OUTER_DIMS - 1 - slot] = size;
            view.strides[MAX_OUTER_DIMS - 1 - slot] = stride;
        }
        Some(view)
    }

    /// The view of rows that each repeat one value (axis stride 0); `None` of others.
    pub fn of_repeated(layout: &Layout) -> Option<Self> {
        let (width, stride) = (layout.dims().last()?, layout.stride().last()?);
        if *width <= 1 || *stride != 0 {
            return None;
        }
        let mut dims = layout.dims().to_vec();
        *dims.last_mut()? = 1;
        let values = Layout::new(
            Shape::from(dims),
            layout.stride().to_vec(),
            layout.start_offset(),
        );
        Some(Rows {
            axis_stride: 0,
            ..Rows::of(&values)?
        })
    }

    /// Rows that follow each other without gaps.
    pub fn contiguous(rows: usize, width: usize) -> Self {
        Rows {
            offset: 0,
            inner: 1,
            axis_stride: 1,
            sizes: [1, 1, rows],
            strides: [0, 0, width],
        }
    }

    /// How many rows there are.
    pub fn count(&self) -> usize {
        self.sizes.iter().product::<usize>() * self.inner
    }

    /// True where the elements of a row follow each other.
    pub fn is_contiguous(&self) -> bool {
        self.axis_stride == 1
    }

    /// The element at which row `row` begins.
    pub fn start(&self, row: usize) -> usize {
        let [_, s1, s2] = self.sizes;
        let (row, column) = (row / self.inner, row % self.inner);
        let (outer, i2) = (row / s2, row % s2);
        let (i0, i1) = (outer / s1, outer % s1);
        self.offset + i0 * self.strides[0] + i1 * self.strides[1] + i2 * self.strides[2] + column
    }

    /// True where row `r + 1` always begins a fixed distance after row `r`.
    pub fn is_single_stride(&self) -> bool {
        self.sizes[0] == 1 && self.sizes[1] == 1 && self.inner == 1
    }
}

/// An op on the last axis of one tensor, with everything checked.
#[derive(Debug, Clone, PartialEq)]
pub struct Problem {
    /// What to compute.
    pub op: Op,
    /// The dtype of the input and of the side inputs.
    pub dtype: DType,
    /// The shape of the input.
    pub shape: Shape,
    /// How many rows there are; may be 0.
    pub rows: usize,
    /// Elements of a row; may be 0 where the op has a value for it.
    pub width: usize,
    /// Where the rows of the input lie.
    pub input: Rows,
    /// The dim that an op which makes rows puts them along in its result: the last one, but for rows
    /// side by side, which stay where they were.
    pub result_dim: usize,
    /// Where the operands lie, in the order of [`Op::operands`]; `None` for those left out.
    pub operands: [Option<OperandView>; MAX_OPERANDS],
    /// Bands of rows for each of which an op keeps sums over rows ([`RowResult::Bands`]).
    pub bands: usize,
}

/// Dtypes that every op takes.
pub const FLOAT_DTYPES: [DType; 4] = [DType::F16, DType::BF16, DType::F32, DType::F64];
pub(crate) const FLOAT_DTYPE_NAMES: &str = "f16, bf16, f32, f64";

/// Dtypes that some reductions take beside those (see [`Op::takes_integers`]).
pub const INTEGER_DTYPES: [DType; 5] = [DType::U8, DType::U32, DType::I16, DType::I32, DType::I64];
const ALL_DTYPE_NAMES: &str = "f16, bf16, f32, f64, u8, u32, i16, i32, i64";

/// True for one of [`FLOAT_DTYPES`].
pub const fn is_float(dtype: DType) -> bool {
    matches!(dtype, DType::F16 | DType::BF16 | DType::F32 | DType::F64)
}

/// What values of a dtype are computed in.
pub const fn accumulator_dtype(dtype: DType) -> DType {
    match dtype {
        DType::F64 => DType::F64,
        _ => DType::F32,
    }
}

impl Problem {
    /// Checks an op on the last axis of a tensor. `operands` are the layouts and dtypes of what it takes
    /// beside, in the order of [`Op::operands`]; what is missing at the end is left out.
    ///
    /// The layout of the input must be one that [`Rows::of`] takes, those of operands ones that
    /// [`OperandView::of`] takes: the public ops pack what is not. Where rows lie side by side, those of
    /// the result do as well.
    pub fn new(
        op: Op,
        input: &Layout,
        dtype: DType,
        operands: &[Option<(&Layout, DType)>],
    ) -> Result<Self> {
        let shape = input.shape().clone();
        check_dtype(op, dtype, &shape)?;
        check_size(op, &shape)?;
        let rank = shape.rank();
        let width = shape.dims().last().copied().unwrap_or(1);
        let dim = rank.saturating_sub(1);
        check_axis(op, dim, width, &shape)?;
        if let Op::RmsNorm { eps }
        | Op::LayerNorm { eps }
        | Op::L2Normalize { eps }
        | Op::L2NormalizeGradient { eps }
        | Op::AddRmsNorm { eps }
        | Op::AddLayerNorm { eps }
        | Op::RmsNormGradient { eps, .. }
        | Op::LayerNormGradient { eps, .. } = op
        {
            if !(eps >= 0.0 && eps.is_finite()) {
                return Err(Error::InvalidOption {
                    op: op.name(),
                    option: "eps",
                    value: eps.to_string(),
                    expected: "finite and not negative",
                    shape,
                });
            }
        }
        if let Op::SoftmaxWith { logits, .. } | Op::SoftmaxWithGradient { logits, .. } = op {
            check_logits(op, &logits, rank, &shape)?;
        }
        let Some(view) = Rows::of(input) else {
            return Err(Error::NotPacked {
                op: op.name(),
                strides: input.stride().to_vec(),
                shape,
            });
        };
        let rows = shape.dims()[..dim].iter().product();
        let mut views = [None; MAX_OPERANDS];
        let given = operands.iter().copied().chain(std::iter::repeat(None));
        for ((slot, operand), given) in views.iter_mut().zip(op.operands()).zip(given) {
            *slot = check_operand(op, operand, given, dtype, rows, &shape)?;
        }
        // The dims that lie side by side are the last ones before the axis.
        let mut result_dim = dim;
        let mut inside = 1;
        while inside < view.inner && result_dim > 0 {
            result_dim -= 1;
            inside *= shape.dims()[result_dim];
        }
        Ok(Problem {
            op,
            dtype,
            rows,
            width,
            input: view,
            result_dim,
            operands: views,
            bands: match op.goes_by_bands() {
                true => row_bands(op, rows, width, dtype.size_in_bytes()),
                false => rows,
            },
            shape,
        })
    }

    /// The shape of the first result: the input's for a row op (with the last axis at
    /// [`Problem::result_dim`]), with a last axis of 1 for a reduction,
    /// and for one with two results with a first axis of 2 before that.
    pub fn output_shape(&self) -> Shape {
        self.result_shape(0)
    }

    /// The shape of result `index`.
    pub fn result_shape(&self, index: usize) -> Shape {
        let mut dims = self.shape.dims().to_vec();
        match self.op.results()[index] {
            RowResult::Row => {
                if let Some(width) = dims.pop() {
                    dims.insert(self.result_dim, width);
                }
            }
            RowResult::Bands(vectors) => dims = vec![self.bands, vectors, self.width],
            result @ (RowResult::Scalar | RowResult::Pair) => {
                if let Some(last) = dims.last_mut() {
                    *last = 1;
                }
                if result == RowResult::Pair {
                    dims.insert(0, 2);
                }
            }
        }
        Shape::from(dims)
    }

    /// True where there is nothing to read, and so nothing to run.
    pub fn is_empty(&self) -> bool {
        self.rows == 0 || self.width == 0
    }

    /// Elements of the first result.
    pub fn output_len(&self) -> usize {
        self.result_len(0)
    }

    /// Elements of result `index`.
    pub fn result_len(&self, index: usize) -> usize {
        match self.op.results()[index] {
            RowResult::Row => self.rows * self.width,
            RowResult::Scalar => self.rows,
            RowResult::Pair => 2 * self.rows,
            RowResult::Bands(vectors) => self.bands * vectors * self.width,
        }
    }

    /// The dtype of the first result.
    pub fn output_dtype(&self) -> DType {
        self.op.output_dtype(self.dtype)
    }

    /// Bytes that no implementation can avoid moving: each input read once, each output written
    /// once. Vectors that all rows share and sums over rows are left out.
    pub fn ideal_bytes(&self) -> usize {
        let operands = self.op.operands().iter().zip(&self.operands);
        let read = operands.map(|(operand, view)| match (operand.kind, view) {
            (OperandKind::Rows, Some(view)) if view.rows.axis_stride == 1 => {
                self.rows * self.width * view.dtype.size_in_bytes()
            }
            (OperandKind::Rows | OperandKind::Values, Some(view)) => {
                self.rows * view.dtype.size_in_bytes()
            }
            _ => 0,
        });
        let results = self.op.results().iter().enumerate();
        let written = results.map(|(i, result)| match result {
            RowResult::Bands(_) => 0,
            _ => self.result_len(i) * self.op.result_dtype(i, self.dtype).size_in_bytes(),
        });
        let input = self.rows * self.width * self.dtype.size_in_bytes();
        input + read.sum::<usize>() + written.sum::<usize>()
    }
}

/// The op must be defined for the dtype.
pub fn check_dtype(op: Op, dtype: DType, shape: &Shape) -> Result<()> {
    if is_float(dtype) || (op.takes_integers() && INTEGER_DTYPES.contains(&dtype)) {
        return Ok(());
    }
    Err(Error::UnsupportedDType {
        op: op.name(),
        dtype,
        shape: shape.clone(),
        supported: if op.takes_integers() {
            ALL_DTYPE_NAMES
        } else {
            FLOAT_DTYPE_NAMES
        },
    })
}

/// Elements that a tensor may have, of which a broadcast one may have far more than memory has room for: no count of
/// its rows, elements or bytes is then beyond 63 bits.
pub const MAX_ELEMENTS: usize = 1 << 56;

/// A tensor must not have more elements than can be counted.
pub fn check_size(op: Op, shape: &Shape) -> Result<()> {
    // Of a shape without elements its other dims are counted as well.
    let mut dims = shape.dims().iter().map(|dim| (*dim).max(1));
    let elements = dims.try_fold(1usize, usize::checked_mul);
    match elements {
        Some(elements) if elements <= MAX_ELEMENTS => Ok(()),
        _ => Err(Error::TooManyElements {
            op: op.name(),
            shape: shape.clone(),
        }),
    }
}

/// The op must have a value over an axis of `len` elements, and an index type that can count them.
pub fn check_axis(op: Op, dim: usize, len: usize, shape: &Shape) -> Result<()> {
    if len == 0 && op.is_reduction() && op.empty_value().is_none() {
        return Err(Error::EmptyAxis {
            op: op.name(),
            dim,
            shape: shape.clone(),
        });
    }
    if matches!(op, Op::ArgMax | Op::ArgMin) && len > u32::MAX as usize + 1 {
        return Err(Error::AxisTooLong {
            op: op.name(),
            dim,
            len,
            shape: shape.clone(),
        });
    }
    Ok(())
}

/// Options must be numbers that the formulas are defined for.
pub fn check_logits(op: Op, logits: &Logits, rank: usize, shape: &Shape) -> Result<()> {
    let invalid = |option, value: String, expected| {
        Err(Error::InvalidOption {
            op: op.name(),
            option,
            value,
            expected,
            shape: shape.clone(),
        })
    };
    if !logits.scale.is_finite() {
        return invalid("scale", logits.scale.to_string(), "finite");
    }
    if let Some(cap) = logits.soft_cap {
        // In f32, which half types are computed in, it must not vanish either.
        if !(cap >= f64::from(f32::MIN_POSITIVE) && cap <= f64::from(f32::MAX)) {
            return invalid(
                "soft cap",
                cap.to_string(),
                "positive and finite, in f32 as well",
            );
        }
    }
    match logits.queries {
        Some(queries) if queries == 0 || (rank > 1 && queries != shape.dims()[rank - 2].max(1)) => {
            let expected = "the length of the dim before the keys'";
            invalid("queries", queries.to_string(), expected)
        }
        _ => Ok(()),
    }
}

/// An operand must be there unless it may be left out, and have the shape and a dtype that it should.
fn check_operand(
    op: Op,
    operand: &Operand,
    given: Option<(&Layout, DType)>,
    dtype: DType,
    rows: usize,
    shape: &Shape,
) -> Result<Option<OperandView>> {
    let Some((layout, operand_dtype)) = given else {
        if operand.optional {
            return Ok(None);
        }
        return Err(Error::MissingOperand {
            op: op.name(),
            argument: operand.name,
            shape: shape.clone(),
        });
    };
    let expected = operand.shape(op, shape);
    if layout.shape() != &expected {
        return Err(Error::ShapeMismatch {
            op: op.name(),
            argument: operand.name,
            expected,
            got: layout.shape().clone(),
            input: shape.clone(),
        });
    }
    if !operand.takes(operand_dtype, dtype) {
        return Err(Error::DTypeMismatch {
            op: op.name(),
            argument: operand.name,
            expected: match operand.dtype {
                OperandDType::OneOf([first, ..]) => *first,
                OperandDType::Accumulator => accumulator_dtype(dtype),
                _ => dtype,
            },
            got: operand_dtype,
            shape: shape.clone(),
        });
    }
    if shape.elem_count() == 0 {
        // No stride is ever followed.
        return Ok(None);
    }
    match OperandView::of(operand, layout, operand_dtype, rows) {
        Some(view) => Ok(Some(view)),
        None => Err(Error::NotPacked {
            op: op.name(),
            shape: layout.shape().clone(),
            strides: layout.stride().to_vec(),
        }),
    }
}
