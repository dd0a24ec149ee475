//! Statuses of the C ABI as errors.

use std::ffi::CStr;

use candle_core::DType;

use super::sys;
use crate::error::{Error, Result};
use crate::exchange::Exchange;
use crate::problem::Problem;

/// The error that a status stands for, if any.
pub(super) fn check(status: i32, problem: &Problem) -> Result<()> {
    check_launch(
        status,
        problem.op.name(),
        [problem.rows, problem.width],
        problem.dtype,
    )
}

/// The same of an exchange, whose vectors count as rows.
pub(super) fn check_exchange(status: i32, exchange: &Exchange) -> Result<()> {
    let rows = exchange.clusters * exchange.ranks;
    check_launch(
        status,
        exchange.op.name(),
        [rows, exchange.width],
        exchange.dtype,
    )
}

fn check_launch(
    status: i32,
    op: &'static str,
    [rows, width]: [usize; 2],
    dtype: DType,
) -> Result<()> {
    if status == sys::RW_OK as i32 {
        return Ok(());
    }
    Err(Error::Launch {
        op,
        code: status,
        message: message(status),
        rows,
        width,
        dtype,
    })
}

/// The error of a question to the device that has failed.
#[cfg(feature = "cuda")]
pub(super) fn check_query(asked: &'static str, status: i32) -> Result<()> {
    if status == sys::RW_OK as i32 {
        return Ok(());
    }
    Err(Error::Query {
        asked,
        code: status,
        message: message(status),
    })
}

/// A status in words.
pub(super) fn message(status: i32) -> String {
    // SAFETY: rw_status_message answers every status with a NUL-terminated string that lives at least
    // until this thread's next call of the ABI.
    let message = unsafe { CStr::from_ptr(sys::rw_status_message(status)) };
    message.to_string_lossy().into_owned()
}
