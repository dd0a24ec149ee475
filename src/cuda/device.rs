//! What a GPU takes: device limits, addresses with their guards, and its stream.
//!
//! A call allocates its output and nothing else, copies nothing to the device and never
//! synchronises, so it can be captured in a CUDA graph.

use candle_core::backend::BackendStorage;
use candle_core::cuda_backend::cudarc::driver::{
    sys::CUdevice_attribute, CudaSlice, CudaStream, DevicePtr, DevicePtrMut, DeviceRepr,
};
use candle_core::cuda_backend::{CudaDType, WrapErr};
use candle_core::{CudaStorage, DType, Result};

use super::launch;
use crate::plan::{DeviceLimits, Plan};
use crate::problem::Problem;
use crate::tuning::MAX_CLUSTER_BLOCKS;

/// Runs a problem into a new output.
pub(crate) fn run(
    problem: &Problem,
    x: &CudaStorage,
    sides: &[&CudaStorage],
) -> Result<CudaStorage> {
    let device = x.device().clone();
    let len = problem.output_len();
    // SAFETY (all): run_into writes every element of the output before anything can read it.
    let mut y = match problem.output_dtype() {
        DType::F16 => {
            CudaStorage::wrap_cuda_slice(unsafe { device.alloc::<half::f16>(len)? }, device)
        }
        DType::BF16 => {
            CudaStorage::wrap_cuda_slice(unsafe { device.alloc::<half::bf16>(len)? }, device)
        }
        DType::F32 => CudaStorage::wrap_cuda_slice(unsafe { device.alloc::<f32>(len)? }, device),
        DType::F64 => CudaStorage::wrap_cuda_slice(unsafe { device.alloc::<f64>(len)? }, device),
        _ => CudaStorage::wrap_cuda_slice(unsafe { device.alloc::<u32>(len)? }, device),
    };
    run_into(problem, x, sides, &mut y)?;
    Ok(y)
}

/// Runs a problem into an output that the caller allocated, of the problem's output dtype and with
/// room for its output: what a benchmark times, and what a caller with its own memory uses. The
/// launch goes to the stream of the input's device.
///
/// # Errors
///
/// An output of another dtype or of fewer elements, or a launch that the device refuses.
pub fn run_into(
    problem: &Problem,
    x: &CudaStorage,
    sides: &[&CudaStorage],
    y: &mut CudaStorage,
) -> Result<()> {
    match problem.dtype {
        DType::F16 => run_dtype::<half::f16>(problem, x, sides, y),
        DType::BF16 => run_dtype::<half::bf16>(problem, x, sides, y),
        DType::F64 => run_dtype::<f64>(problem, x, sides, y),
        _ => run_dtype::<f32>(problem, x, sides, y),
    }
}

fn run_dtype<T: CudaDType + DeviceRepr>(
    problem: &Problem,
    x: &CudaStorage,
    sides: &[&CudaStorage],
    y: &mut CudaStorage,
) -> Result<()> {
    if problem.output_dtype() == DType::U32 && problem.dtype != DType::U32 {
        run_slices::<T, u32>(problem, x, sides, y)
    } else {
        run_slices::<T, T>(problem, x, sides, y)
    }
}

fn run_slices<T: CudaDType + DeviceRepr, O: CudaDType + DeviceRepr>(
    problem: &Problem,
    x: &CudaStorage,
    sides: &[&CudaStorage],
    y: &mut CudaStorage,
) -> Result<()> {
    let stream = x.device().cuda_stream();
    let x = x.as_cuda_slice::<T>()?;
    let sides = sides
        .iter()
        .map(|side| side.as_cuda_slice::<T>())
        .collect::<Result<Vec<_>>>()?;
    let y = y.as_cuda_slice_mut::<O>()?;
    if y.len() < problem.output_len() {
        candle_core::bail!(
            "{}: the output has room for {} elements, shape {:?} needs {}",
            problem.op.name(),
            y.len(),
            problem.output_shape(),
            problem.output_len()
        );
    }
    let plan = Plan::select(problem, &device_limits(&stream)?)?;
    launch_slices(problem, &plan, x, &sides, y, &stream)
}

fn launch_slices<T, O>(
    problem: &Problem,
    plan: &Plan,
    x: &CudaSlice<T>,
    sides: &[&CudaSlice<T>],
    y: &mut CudaSlice<O>,
    stream: &CudaStream,
) -> Result<()> {
    // The runtime that launches works on the thread's current context.
    stream.context().bind_to_thread().w()?;
    // The guards order this launch after what other streams still do to the slices, and what they
    // do next after this launch: they must outlive it.
    let (x, _x_guard) = x.device_ptr(stream);
    let (y, _y_guard) = y.device_ptr_mut(stream);
    let guarded: Vec<_> = sides.iter().map(|side| side.device_ptr(stream)).collect();
    let mut addresses = launch::Addresses {
        x,
        sides: [0; 2],
        y,
    };
    for (address, (side, _)) in addresses.sides.iter_mut().zip(&guarded) {
        *address = *side;
    }
    // SAFETY: the addresses are of live slices of this stream's context, which the guards keep in
    // order; the problem was checked against their layouts when it was made, the output's length
    // just now, and &mut keeps the output from being read or written elsewhere meanwhile.
    unsafe { launch::launch(problem, plan, &addresses, stream.cu_stream().cast())? };
    Ok(())
}

/// What the planner must know of the GPU behind a stream.
fn device_limits(stream: &CudaStream) -> Result<DeviceLimits> {
    let context = stream.context();
    let ask = |attribute| context.attribute(attribute).w();
    Ok(DeviceLimits {
        shared_bytes_per_block: ask(
            CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN,
        )? as usize,
        max_blocks: ask(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X)? as usize,
        max_cluster: match ask(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH)? {
            0 => 1,
            _ => MAX_CLUSTER_BLOCKS,
        },
    })
}
