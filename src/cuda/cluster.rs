//! Exchanges within clusters on the GPU: the output, the guards, and the launch.

use candle_core::backend::BackendStorage;
use candle_core::cuda_backend::cudarc::driver::{DevicePtr, DevicePtrMut, DeviceRepr};
use candle_core::cuda_backend::{CudaDType, WrapErr};
use candle_core::{CudaStorage, DType, Result};

use super::device::room;
use super::launch;
use crate::exchange::{Exchange, Trial};
use crate::plan::DeviceLimits;

/// Runs an exchange that is not empty into a new output.
pub(crate) fn run(
    exchange: &Exchange,
    trial: &Trial,
    limits: &DeviceLimits,
    x: &CudaStorage,
) -> Result<CudaStorage> {
    match exchange.dtype {
        DType::I32 => run_words::<i32>(exchange, trial, limits, x),
        DType::U32 => run_words::<u32>(exchange, trial, limits, x),
        _ => run_words::<f32>(exchange, trial, limits, x),
    }
}

fn run_words<T: CudaDType + DeviceRepr>(
    exchange: &Exchange,
    trial: &Trial,
    limits: &DeviceLimits,
    x: &CudaStorage,
) -> Result<CudaStorage> {
    let mut storage = room(x.device(), exchange.dtype, exchange.output_len)?;
    let stream = x.device().cuda_stream();
    // The runtime that launches works on the thread's current context.
    stream.context().bind_to_thread().w()?;
    // The guards order this launch after what other streams still do to the slices, and what they
    // do next after this launch: they must outlive it.
    let (x, _x_guard) = x.as_cuda_slice::<T>()?.device_ptr(&stream);
    let y = storage.as_cuda_slice_mut::<T>()?;
    let (y, y_guard) = y.device_ptr_mut(&stream);
    // SAFETY: the addresses are of live slices of this stream's context, which the guards keep in
    // order; the exchange was made of the layout that candle has of x, and y has just been
    // allocated for all of its output.
    unsafe {
        let stream = stream.cu_stream().cast();
        launch::launch_exchange(exchange, trial, limits.max_blocks, x, y, stream)?;
    }
    drop(y_guard);
    Ok(storage)
}
