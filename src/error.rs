//! The typed error of every op. Each variant names the op and carries the shapes that it is about.
//! The public functions return candle's error, which wraps this one and shows its message.

use candle_core::{DType, Shape};

/// What can be wrong with a call, found before anything runs.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The dim does not exist in the shape.
    #[error("{op}: dim {dim} is out of range for shape {shape:?}")]
    DimOutOfRange {
        op: &'static str,
        dim: i64,
        shape: Shape,
    },

    /// The op has no value over an axis without elements.
    #[error("{op}: dim {dim} of shape {shape:?} is empty, and {op} of nothing has no value")]
    EmptyAxis {
        op: &'static str,
        dim: usize,
        shape: Shape,
    },

    /// The axis is longer than the op's u32 index can say.
    #[error(
        "{op}: dim {dim} of shape {shape:?} has {len} elements, more than a u32 index can count"
    )]
    AxisTooLong {
        op: &'static str,
        dim: usize,
        len: usize,
        shape: Shape,
    },

    /// The op is not defined for the dtype.
    #[error("{op}: dtype {dtype:?} of the input of shape {shape:?} is not supported; supported: {supported}")]
    UnsupportedDType {
        op: &'static str,
        dtype: DType,
        shape: Shape,
        supported: &'static str,
    },

    /// A weight or bias has another dtype than the input.
    #[error("{op}: {argument} has dtype {got:?}, the input of shape {shape:?} has {expected:?}")]
    DTypeMismatch {
        op: &'static str,
        argument: &'static str,
        expected: DType,
        got: DType,
        shape: Shape,
    },

    /// A weight or bias does not have the shape that the input asks for.
    #[error("{op}: {argument} has shape {got:?}, the input of shape {input:?} needs {expected:?}")]
    ShapeMismatch {
        op: &'static str,
        argument: &'static str,
        expected: Shape,
        got: Shape,
        input: Shape,
    },

    /// Two tensors of one call are on different devices.
    #[error("{op}: {argument} of shape {got_shape:?} is on {got}, the input of shape {shape:?} is on {expected}")]
    DeviceMismatch {
        op: &'static str,
        argument: &'static str,
        expected: String,
        got: String,
        got_shape: Shape,
        shape: Shape,
    },

    /// An option is outside the values that the op is defined for.
    #[error("{op}: {option} is {value}, it must be {expected} (input of shape {shape:?})")]
    InvalidOption {
        op: &'static str,
        option: &'static str,
        value: String,
        expected: &'static str,
        shape: Shape,
    },

    /// A forced tier cannot run the problem on this device.
    #[error("{op}: the {tier} tier cannot run {rows} rows of {width} {dtype:?}: {reason}")]
    TierRefused {
        op: &'static str,
        tier: &'static str,
        rows: usize,
        width: usize,
        dtype: DType,
        reason: String,
    },

    /// The device refused a launch that the plan thought legal.
    #[error("{op}: CUDA error {code} ({message}) launching {rows} rows of {width} {dtype:?}")]
    Launch {
        op: &'static str,
        code: i32,
        message: String,
        rows: usize,
        width: usize,
        dtype: DType,
    },
}

/// The crate's own result.
pub type Result<T> = std::result::Result<T, Error>;

impl From<Error> for candle_core::Error {
    fn from(err: Error) -> Self {
        candle_core::Error::wrap(err)
    }
}
