//! The typed error of every op. Each variant names the op and carries the shapes that it is about.
//! The public functions return candle's error, which wraps this one and shows its message.

use candle_core::{DType, DeviceLocation, Shape};

/// What can be wrong with a call, found before anything runs.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The dim does not exist in the shape.
    #[error("{op}: dim {dim} is out of range for shape {shape:?}")]
    DimOutOfRange {
        /// The op, by the name of [`Op::name`](crate::problem::Op::name).
        op: &'static str,
        /// The dim that was asked for.
        dim: i64,
        /// The shape of the input.
        shape: Shape,
    },

    /// A dim is named twice among those to reduce over.
    #[error("{op}: dim {dim} of shape {shape:?} is given more than once")]
    RepeatedDim {
        /// The op, by the name of [`Op::name`](crate::problem::Op::name).
        op: &'static str,
        /// The dim that is given more than once.
        dim: usize,
        /// The shape of the input.
        shape: Shape,
    },

    /// The op has no value over an axis without elements.
    #[error("{op}: dim {dim} of shape {shape:?} is empty, and {op} of nothing has no value")]
    EmptyAxis {
        /// The op, by the name of [`Op::name`](crate::problem::Op::name).
        op: &'static str,
        /// The dim that was asked for.
        dim: usize,
        /// The shape of the input.
        shape: Shape,
    },

    /// The axis is longer than the op's u32 index can say.
    #[error(
        "{op}: dim {dim} of shape {shape:?} has {len} elements, more than a u32 index can count"
    )]
    AxisTooLong {
        /// The op, by the name of [`Op::name`](crate::problem::Op::name).
        op: &'static str,
        /// The dim that was asked for.
        dim: usize,
        /// The length of the axis.
        len: usize,
        /// The shape of the input.
        shape: Shape,
    },

    /// The op is not defined for the dtype.
    #[error("{op}: dtype {dtype:?} of the input of shape {shape:?} is not supported; supported: {supported}")]
    UnsupportedDType {
        /// The op, by the name of [`Op::name`](crate::problem::Op::name).
        op: &'static str,
        /// The dtype of the input.
        dtype: DType,
        /// The shape of the input.
        shape: Shape,
        /// The dtypes that would do.
        supported: &'static str,
    },

    /// A weight or bias has another dtype than the input.
    #[error("{op}: {argument} has dtype {got:?}, the input of shape {shape:?} has {expected:?}")]
    DTypeMismatch {
        /// The op, by the name of [`Op::name`](crate::problem::Op::name).
        op: &'static str,
        /// The side input, by name.
        argument: &'static str,
        /// What would do.
        expected: DType,
        /// What it was.
        got: DType,
        /// The shape of the input.
        shape: Shape,
    },

    /// An operand that has a dtype of its own is of none that the op takes.
    #[error("{op}: dtype {got:?} of {argument} beside the input of shape {shape:?} is not supported; supported: {supported}")]
    OperandDType {
        /// The op, by the name of [`Op::name`](crate::problem::Op::name).
        op: &'static str,
        /// The operand, by name.
        argument: &'static str,
        /// What it was.
        got: DType,
        /// The dtypes that would do.
        supported: &'static str,
        /// The shape of the input.
        shape: Shape,
    },

    /// An operand that the op cannot do without was not given.
    #[error("{op}: {argument} is missing beside the input of shape {shape:?}")]
    MissingOperand {
        /// The op, by the name of [`Op::name`](crate::problem::Op::name).
        op: &'static str,
        /// The operand, by name.
        argument: &'static str,
        /// The shape of the input.
        shape: Shape,
    },

    /// An operand (a weight, a mask, targets) does not have the shape that the input asks for.
    #[error("{op}: {argument} has shape {got:?}, the input of shape {input:?} needs {expected:?}")]
    ShapeMismatch {
        /// The op, by the name of [`Op::name`](crate::problem::Op::name).
        op: &'static str,
        /// The side input, by name.
        argument: &'static str,
        /// What would do.
        expected: Shape,
        /// What it was.
        got: Shape,
        /// The shape of the input.
        input: Shape,
    },

    /// Two tensors of one call are on different devices.
    #[error("{op}: {argument} of shape {got_shape:?} is on {got:?}, the input of shape {shape:?} is on {expected:?}")]
    DeviceMismatch {
        /// The op, by the name of [`Op::name`](crate::problem::Op::name).
        op: &'static str,
        /// The side input, by name.
        argument: &'static str,
        /// What would do.
        expected: DeviceLocation,
        /// What it was.
        got: DeviceLocation,
        /// The shape of the side input.
        got_shape: Shape,
        /// The shape of the input.
        shape: Shape,
    },

    /// An option is outside the values that the op is defined for.
    #[error("{op}: {option} is {value}, it must be {expected} (input of shape {shape:?})")]
    InvalidOption {
        /// The op, by the name of [`Op::name`](crate::problem::Op::name).
        op: &'static str,
        /// The option, by name.
        option: &'static str,
        /// The value it was given.
        value: String,
        /// What would do.
        expected: &'static str,
        /// The shape of the input.
        shape: Shape,
    },

    /// A tensor has another number of dims than the call is defined for.
    #[error("{op}: {argument} of shape {shape:?} must have {expected}")]
    WrongRank {
        /// The op, by name.
        op: &'static str,
        /// The argument, by name.
        argument: &'static str,
        /// What would do.
        expected: &'static str,
        /// The shape of the argument.
        shape: Shape,
    },

    /// Channels cannot be shared evenly by so many groups.
    #[error("{op}: {channels} channels cannot be split into {groups} equal groups")]
    Groups {
        /// The op, by name.
        op: &'static str,
        /// How many groups were asked for.
        groups: usize,
        /// How many channels there are.
        channels: usize,
    },

    /// Indices are of a dtype that is none.
    #[error("{op}: {argument} of shape {shape:?} has dtype {got:?}; indices are u8, u32 or i64")]
    IndexDType {
        /// The op, by name.
        op: &'static str,
        /// The argument, by name.
        argument: &'static str,
        /// What it was.
        got: DType,
        /// The shape of the argument.
        shape: Shape,
    },

    /// The target of a row is no class, and not the one that is ignored.
    #[error(
        "{op}: the target of row {row} is {target}, the input of shape {shape:?} has {classes} classes"
    )]
    TargetOutOfRange {
        /// The op, by name.
        op: &'static str,
        /// The first such row.
        row: usize,
        /// Its target.
        target: i64,
        /// How many classes there are, from 0 up.
        classes: usize,
        /// The shape of the input.
        shape: Shape,
    },

    /// An op on vectors of the ranks of clusters was given another number of dims.
    #[error("{op}: shape {shape:?} must have three dims: clusters, ranks of a cluster, width")]
    NotClusters {
        /// The op, by name.
        op: &'static str,
        /// The shape of the input.
        shape: Shape,
    },

    /// There are no clusters of so many blocks.
    #[error("{op}: clusters of {size} blocks (dim 1 of shape {shape:?}) do not exist here; there are those of 1 to {limit}")]
    ClusterSize {
        /// The op, by name.
        op: &'static str,
        /// Blocks of a cluster that were asked for.
        size: usize,
        /// Blocks of the largest cluster that the device runs.
        limit: usize,
        /// The shape of the input.
        shape: Shape,
    },

    /// The result would have more elements than can be counted.
    #[error(
        "{op}: the result for an input of shape {shape:?} has more elements than memory can hold"
    )]
    ResultTooLarge {
        /// The op, by name.
        op: &'static str,
        /// The shape of the input.
        shape: Shape,
    },

    /// The input, which is broadcast, has more elements than can be counted
    /// ([`MAX_ELEMENTS`](crate::problem::MAX_ELEMENTS)).
    #[error("{op}: shape {shape:?} has more elements than can be counted")]
    TooManyElements {
        /// The op, by the name of [`Op::name`](crate::problem::Op::name).
        op: &'static str,
        /// The shape of the input.
        shape: Shape,
    },

    /// An input is not contiguous where a kernel needs it, or has more strides than one takes. The
    /// public ops pack such inputs, so only who builds a problem by hand meets this.
    #[error("{op}: shape {shape:?} with strides {strides:?} must be packed first")]
    NotPacked {
        /// The op, by the name of [`Op::name`](crate::problem::Op::name).
        op: &'static str,
        /// The shape of the input.
        shape: Shape,
        /// Its strides, in elements.
        strides: Vec<usize>,
    },

    /// A forced tier cannot run the problem on this device.
    #[error("{op}: the {tier} tier cannot run {rows} rows of {width} {dtype:?}: {reason}")]
    TierRefused {
        /// The op, by the name of [`Op::name`](crate::problem::Op::name).
        op: &'static str,
        /// The tier, by name.
        tier: &'static str,
        /// How many rows there are.
        rows: usize,
        /// Elements of a row.
        width: usize,
        /// The dtype of the input.
        dtype: DType,
        /// Why not.
        reason: String,
    },

    /// The device refused a launch that the plan thought legal.
    #[error("{op}: CUDA error {code} ({message}) launching {rows} rows of {width} {dtype:?}")]
    Launch {
        /// The op, by the name of [`Op::name`](crate::problem::Op::name).
        op: &'static str,
        /// The CUDA error code.
        code: i32,
        /// The CUDA error's text.
        message: String,
        /// How many rows there are.
        rows: usize,
        /// Elements of a row.
        width: usize,
        /// The dtype of the input.
        dtype: DType,
    },

    /// The device would not say what it can do.
    #[error("CUDA error {code} ({message}) asking for {asked}")]
    Query {
        /// What was asked.
        asked: &'static str,
        /// The CUDA error code.
        code: i32,
        /// The CUDA error's text.
        message: String,
    },
}

/// The crate's own result.
pub type Result<T> = std::result::Result<T, Error>;

impl From<Error> for candle_core::Error {
    fn from(err: Error) -> Self {
        candle_core::Error::wrap(err)
    }
}
