//! The memory in which the blocks of a team agree on a row (split-K): one workspace a stream, made
//! once and kept, so that a call allocates nothing and two streams share nothing.
//!
//! Calls on one stream run one after the other, and each leaves the counters at 0 for the next.
//!
//! Candle's default device runs on the per-thread default stream: one handle that stands for another
//! stream in every thread. Its workspaces are the threads' own, and end with them.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use candle_core::cuda_backend::cudarc::driver::{sys, CudaSlice, CudaStream, DevicePtr};
use candle_core::cuda_backend::WrapErr;
use candle_core::Result;

use crate::tuning::WORKSPACE_BYTES;

/// A stream's handle and its context's: an address each. A workspace holds on to its stream, so the
/// handle of one that has a workspace is never given to another.
type Key = (usize, usize);
type Workspaces = HashMap<Key, CudaSlice<u8>>;

/// `CU_STREAM_PER_THREAD` of cuda.h.
const PER_THREAD_STREAM: usize = 2;

static SHARED: Mutex<Option<Workspaces>> = Mutex::new(None);

thread_local! {
    static OF_THREAD: RefCell<Workspaces> = RefCell::new(Workspaces::new());
}

/// The device address of the workspace of `stream`; `None` where there is none yet and the stream is
/// being captured into a graph, to which the allocation would then belong, and in a thread that ends.
///
/// # Errors
/// Where there is no memory for it.
pub(super) fn of(stream: &Arc<CudaStream>) -> Result<Option<u64>> {
    let handle = stream.cu_stream() as usize;
    let key = (stream.context().cu_ctx() as usize, handle);
    if handle == PER_THREAD_STREAM {
        return OF_THREAD
            .try_with(|workspaces| find_or_make(&mut workspaces.borrow_mut(), key, stream))
            .unwrap_or(Ok(None));
    }
    // A thread that has panicked here has left the map as it was.
    let mut workspaces = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
    find_or_make(workspaces.get_or_insert_default(), key, stream)
}

fn find_or_make(
    workspaces: &mut Workspaces,
    key: Key,
    stream: &Arc<CudaStream>,
) -> Result<Option<u64>> {
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
