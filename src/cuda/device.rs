//! What a GPU takes: device limits, addresses with their guards, and its stream.
//!
//! A call allocates its output and nothing else, copies nothing to the device and never
//! synchronises, so it can be captured in a CUDA graph.

use std::sync::{Arc, Mutex, PoisonError};

use candle_core::backend::BackendStorage;
use candle_core::cuda_backend::cudarc::driver::{
    sys::CUdevice_attribute, CudaStream, DevicePtr, DevicePtrMut, DeviceRepr, SyncOnDrop,
};
use candle_core::cuda_backend::{CudaDType, CudaStorageSlice, WrapErr};
use candle_core::{CudaDevice, CudaStorage, DType, Result};

use super::{launch, workspace};
use crate::plan::{DeviceLimits, Plan, Tier};
use crate::problem::{Problem, MAX_OPERANDS, MAX_RESULTS};
use crate::tuning::SPLIT_K_BLOCKS;

/// Runs a problem into new results.
pub(crate) fn run(
    problem: &Problem,
    x: &CudaStorage,
    operands: &[Option<&CudaStorage>],
) -> Result<Vec<CudaStorage>> {
    let results = 0..problem.op.results().len();
    let mut results = results
        .map(|i| {
            let dtype = problem.op.result_dtype(i, problem.dtype);
            room(x.device(), dtype, problem.result_len(i))
        })
        .collect::<Result<Vec<_>>>()?;
    run_into(
        problem,
        x,
        operands,
        &mut results.iter_mut().collect::<Vec<_>>(),
    )?;
    Ok(results)
}

/// Uninitialised memory for a result.
pub(super) fn room(device: &CudaDevice, dtype: DType, len: usize) -> Result<CudaStorage> {
    fn of<T: CudaDType + DeviceRepr>(device: &CudaDevice, len: usize) -> Result<CudaStorage> {
        // SAFETY: a kernel writes every element of a result before anything can read it.
        let slice = unsafe { device.alloc::<T>(len)? };
        Ok(CudaStorage::wrap_cuda_slice(slice, device.clone()))
    }
    match dtype {
        DType::F16 => of::<half::f16>(device, len),
        DType::BF16 => of::<half::bf16>(device, len),
        DType::F32 => of::<f32>(device, len),
        DType::F64 => of::<f64>(device, len),
        DType::U8 => of::<u8>(device, len),
        DType::U32 => of::<u32>(device, len),
        DType::I16 => of::<i16>(device, len),
        DType::I32 => of::<i32>(device, len),
        DType::I64 => of::<i64>(device, len),
        other => candle_core::bail!("no kernel writes {other:?}"),
    }
}

/// Runs a problem into results that the caller allocated, each of the problem's dtype for it and with
/// room for its elements: what a benchmark times, and what a caller with its own memory uses. The
/// launch goes to the stream of the input's device.
///
/// # Errors
///
/// A result of another dtype or of fewer elements, one too few of them, an operand or a result on another device
/// than the input, or a launch that the device refuses.
pub fn run_into(
    problem: &Problem,
    x: &CudaStorage,
    operands: &[Option<&CudaStorage>],
    results: &mut [&mut CudaStorage],
) -> Result<()> {
    let op = problem.op;
    let check_dtype = |what: &str, got: DType, expected: DType| {
        if got == expected {
            return Ok(());
        }
        candle_core::bail!("{}: {what} is of {got:?}, not {expected:?}", op.name())
    };
    check_dtype("the input", x.dtype(), problem.dtype)?;
    for (i, operand) in op.operands().iter().enumerate() {
        match (problem.operands[i], operands.get(i).copied().flatten()) {
            (Some(view), Some(storage)) => check_dtype(operand.name, storage.dtype(), view.dtype)?,
            (None, None) => {}
            _ => candle_core::bail!("{}: not the operands of the problem", op.name()),
        }
    }
    if results.len() != op.results().len() {
        candle_core::bail!("{}: {} results", op.name(), op.results().len());
    }
    for (i, result) in results.iter().enumerate() {
        check_dtype(
            "the output",
            result.dtype(),
            op.result_dtype(i, problem.dtype),
        )?;
        if elements(result) < problem.result_len(i) {
            candle_core::bail!(
                "{}: the output has room for {} elements, shape {:?} needs {}",
                op.name(),
                elements(result),
                problem.result_shape(i),
                problem.result_len(i)
            );
        }
    }
    let stream = x.device().cuda_stream();
    // A kernel would follow the address all the same, and find what the input's device has there.
    let gpu = gpu_of(x);
    let beside = operands.iter().flatten().map(|operand| gpu_of(operand));
    let mut beside = beside.chain(results.iter().map(|result| gpu_of(result)));
    if let Some(other) = beside.find(|other| *other != gpu) {
        candle_core::bail!(
            "{}: the input is on GPU {gpu}, and an operand or a result on GPU {other}",
            op.name()
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
    launch_storages(problem, &plan, x, operands, results, &stream, workspace)
}

fn launch_storages(
    problem: &Problem,
    plan: &Plan,
    x: &CudaStorage,
    operands: &[Option<&CudaStorage>],
    results: &mut [&mut CudaStorage],
    stream: &Arc<CudaStream>,
    workspace: Option<u64>,
) -> Result<()> {
    // The runtime that launches works on the thread's current context.
    stream.context().bind_to_thread().w()?;
    let mut addresses = launch::Addresses {
        x: 0,
        operands: [0; MAX_OPERANDS],
        results: [0; MAX_RESULTS],
        workspace: workspace.unwrap_or_default(),
    };
    // The guards order this launch after what other streams still do to the slices, and what they
    // do next after this launch: they must outlive it.
    let mut guards = Vec::with_capacity(1 + operands.len() + results.len());
    let (address, guard) = read(x, stream)?;
    addresses.x = address;
    guards.push(guard);
    for (slot, operand) in addresses.operands.iter_mut().zip(operands) {
        if let Some(operand) = operand {
            let (address, guard) = read(operand, stream)?;
            *slot = address;
            guards.push(guard);
        }
    }
    for (slot, result) in addresses.results.iter_mut().zip(results) {
        let (address, guard) = write(result, stream)?;
        *slot = address;
        guards.push(guard);
    }
    // SAFETY: the addresses are of live slices of this stream's context, which the guards keep in
    // order; the problem was checked against their layouts when it was made, the lengths of the results
    // just now, and &mut keeps these from being read or written elsewhere meanwhile.
    unsafe { launch::launch(problem, plan, &addresses, stream.cu_stream().cast()) }?;
    Ok(())
}

/// Runs `$body` with `$slice` as the typed slice of a storage, for the dtypes that kernels know.
macro_rules! with_slice {
    ($storage:expr, $slice:ident => $body:expr) => {
        match $storage {
            CudaStorageSlice::U8($slice) => $body,
            CudaStorageSlice::U32($slice) => $body,
            CudaStorageSlice::I16($slice) => $body,
            CudaStorageSlice::I32($slice) => $body,
            CudaStorageSlice::I64($slice) => $body,
            CudaStorageSlice::BF16($slice) => $body,
            CudaStorageSlice::F16($slice) => $body,
            CudaStorageSlice::F32($slice) => $body,
            CudaStorageSlice::F64($slice) => $body,
            _ => candle_core::bail!("a storage of a dtype that no kernel takes"),
        }
    };
}

/// The address of what a launch reads, and the guard to hold meanwhile.
fn read<'a>(storage: &'a CudaStorage, stream: &'a CudaStream) -> Result<(u64, SyncOnDrop<'a>)> {
    Ok(with_slice!(&storage.slice, slice => slice.device_ptr(stream)))
}

/// The address of what a launch writes, and the guard to hold meanwhile.
fn write<'a>(
    storage: &'a mut CudaStorage,
    stream: &'a CudaStream,
) -> Result<(u64, SyncOnDrop<'a>)> {
    Ok(with_slice!(&mut storage.slice, slice => slice.device_ptr_mut(stream)))
}

/// Which GPU a storage is on.
fn gpu_of(storage: &CudaStorage) -> usize {
    storage.device().cuda_stream().context().ordinal()
}

/// Elements of a storage; 0 of a dtype that no kernel knows.
fn elements(storage: &CudaStorage) -> usize {
    let len = || -> Result<usize> { Ok(with_slice!(&storage.slice, slice => slice.len())) };
    len().unwrap_or(0)
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
