//! What a GPU takes: device limits, addresses with their guards, and its stream.
//!
//! A call allocates its output and nothing else, copies nothing to the device and never
//! synchronises, so it can be captured in a CUDA graph.

use std::sync::{Arc, Mutex, PoisonError};

use candle_core::backend::BackendStorage;
use candle_core::cuda_backend::cudarc::driver::{
    sys::CUdevice_attribute, CudaSlice, CudaStream, DevicePtr, DevicePtrMut, DeviceRepr,
};
use candle_core::cuda_backend::{CudaDType, WrapErr};
use candle_core::{CudaDevice, CudaStorage, DType, Result};

use super::{launch, workspace};
use crate::plan::{DeviceLimits, Plan, Tier};
use crate::problem::Problem;
use crate::tuning::SPLIT_K_BLOCKS;

/// Runs a problem into a new output.
pub(crate) fn run(
    problem: &Problem,
    x: &CudaStorage,
    sides: &[&CudaStorage],
) -> Result<CudaStorage> {
    let (device, len) = (x.device(), problem.output_len());
    let mut y = match problem.output_dtype() {
        DType::F16 => room::<half::f16>(device, len),
        DType::BF16 => room::<half::bf16>(device, len),
        DType::F64 => room::<f64>(device, len),
        DType::U8 => room::<u8>(device, len),
        DType::U32 => room::<u32>(device, len),
        DType::I16 => room::<i16>(device, len),
        DType::I32 => room::<i32>(device, len),
        DType::I64 => room::<i64>(device, len),
        _ => room::<f32>(device, len),
    }?;
    run_into(problem, x, sides, &mut y)?;
    Ok(y)
}

/// Uninitialised memory for an output.
pub(super) fn room<T: CudaDType + DeviceRepr>(
    device: &CudaDevice,
    len: usize,
) -> Result<CudaStorage> {
    // SAFETY: run_into writes every element of the output before anything can read it.
    let slice = unsafe { device.alloc::<T>(len)? };
    Ok(CudaStorage::wrap_cuda_slice(slice, device.clone()))
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
        DType::F16 => run_from::<half::f16>(problem, x, sides, y),
        DType::BF16 => run_from::<half::bf16>(problem, x, sides, y),
        DType::F64 => run_from::<f64>(problem, x, sides, y),
        DType::U8 => run_from::<u8>(problem, x, sides, y),
        DType::U32 => run_from::<u32>(problem, x, sides, y),
        DType::I16 => run_from::<i16>(problem, x, sides, y),
        DType::I32 => run_from::<i32>(problem, x, sides, y),
        DType::I64 => run_from::<i64>(problem, x, sides, y),
        _ => run_from::<f32>(problem, x, sides, y),
    }
}

fn run_from<T: CudaDType + DeviceRepr>(
    problem: &Problem,
    x: &CudaStorage,
    sides: &[&CudaStorage],
    y: &mut CudaStorage,
) -> Result<()> {
    match problem.output_dtype() {
        dtype if dtype == problem.dtype => run_slices::<T, T>(problem, x, sides, y),
        DType::U8 => run_slices::<T, u8>(problem, x, sides, y),
        DType::U32 => run_slices::<T, u32>(problem, x, sides, y),
        // Sums and products of integers.
        _ => run_slices::<T, i64>(problem, x, sides, y),
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
    let limits = device_limits(&stream)?;
    let mut plan = Plan::select(problem, &limits)?;
    let mut workspace = None;
    if plan.tier == Tier::SplitK {
        workspace = workspace::of(&stream)?;
        if workspace.is_none() {
            // The same bits, from one block.
            let no_teams = DeviceLimits {
                split_k_blocks: 0,
                ..limits
            };
            plan = Plan::select(problem, &no_teams)?;
        }
    }
    launch_slices(problem, &plan, x, &sides, y, &stream, workspace)
}

fn launch_slices<T, O>(
    problem: &Problem,
    plan: &Plan,
    x: &CudaSlice<T>,
    sides: &[&CudaSlice<T>],
    y: &mut CudaSlice<O>,
    stream: &Arc<CudaStream>,
    workspace: Option<u64>,
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
        workspace: workspace.unwrap_or_default(),
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

/// What the planner must know of a GPU.
pub(crate) fn limits(device: &CudaDevice) -> Result<DeviceLimits> {
    device_limits(&device.cuda_stream())
}

/// What the planner must know of the GPU behind a stream. Asked once of each device.
fn device_limits(stream: &CudaStream) -> Result<DeviceLimits> {
    static KNOWN: Mutex<Vec<(usize, DeviceLimits)>> = Mutex::new(Vec::new());
    let context = stream.context();
    let ordinal = context.ordinal();
    // A thread that has panicked here has left the list as it was.
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, limits)) = known.iter().find(|(device, _)| *device == ordinal) {
        return Ok(*limits);
    }
    use CUdevice_attribute as Attribute;
    let ask = |attribute| -> Result<usize> { Ok(context.attribute(attribute).w()? as usize) };
    context.bind_to_thread().w()?;
    let limits = DeviceLimits {
        shared_bytes_per_block: ask(
            Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN,
        )?,
        max_blocks: ask(Attribute::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X)?,
        multiprocessors: ask(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
        shared_bytes_per_multiprocessor: ask(
            Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR,
        )?,
        split_k_blocks: match (
            ask(Attribute::CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH)?,
            ask(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
        ) {
            (0, _) => 0,
            (_, 9..) => SPLIT_K_BLOCKS,
            _ => 1,
        },
        max_cluster: launch::max_cluster()?,
    };
    known.push((ordinal, limits));
    Ok(limits)
}
