//! The memory in which the blocks of a team agree on a row (split-K): one workspace a stream, made
//! once and kept, so that a call allocates nothing and two streams share nothing.
//!
//! Calls on one stream run one after the other, and each leaves the counters at 0 for the next.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use candle_core::cuda_backend::cudarc::driver::{sys, CudaSlice, CudaStream, DevicePtr};
use candle_core::cuda_backend::WrapErr;
use candle_core::Result;

use crate::tuning::WORKSPACE_BYTES;

/// A stream's handle and its context's: an address each. A workspace holds on to its stream, so the
/// handle of one that has a workspace is never given to another.
type Key = (usize, usize);

static WORKSPACES: Mutex<Option<HashMap<Key, CudaSlice<u8>>>> = Mutex::new(None);

/// The device address of the workspace of `stream`; `None` where there is none yet and the stream is
/// being captured into a graph, to which the allocation would then belong.
///
/// # Errors
/// Where there is no memory for it.
pub(super) fn of(stream: &Arc<CudaStream>) -> Result<Option<u64>> {
    let key = (
        stream.context().cu_ctx() as usize,
        stream.cu_stream() as usize,
    );
    // A thread that has panicked here has left the map as it was.
    let mut workspaces = WORKSPACES.lock().unwrap_or_else(PoisonError::into_inner);
    let workspaces = workspaces.get_or_insert_default();
    if let Some(workspace) = workspaces.get(&key) {
        return Ok(Some(workspace.device_ptr(stream).0));
    }
    let status = stream.capture_status().w()?;
    if status != sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE {
        return Ok(None);
    }
    let workspace = stream.alloc_zeros::<u8>(WORKSPACE_BYTES).w()?;
    let address = workspace.device_ptr(stream).0;
    workspaces.insert(key, workspace);
    Ok(Some(address))
}
