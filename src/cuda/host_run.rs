//! The CUDA kernels on the host, for tests without a GPU: the same device code, built as C++ on a shim
//! that runs the threads of a launch as fibers, in an order drawn from a seed (tests/host_run,
//! docs/testing.md). It checks kernels; it is slow, and no way to compute.

use std::cell::Cell;
use std::ffi::c_void;
use std::ptr;

use candle_core::{CpuStorage, DType, Result, WithDType};
use half::{bf16, f16};

use super::launch::{self, Addresses};
use super::result;
use crate::plan::{DeviceLimits, Plan, Tier};
use crate::problem::{Problem, RowResult, MAX_OPERANDS, MAX_RESULTS};
use crate::tuning::{MAX_TEAMS, TEAM_BYTES, WORKSPACE_BYTES};

/// The device that plans are made for, but where [`plan::with_limits`](crate::plan::with_limits) names
/// another: an H200 with few multiprocessors, since all blocks of a team live at once.
pub const LIMITS: DeviceLimits = DeviceLimits {
    multiprocessors: 3,
    ..DeviceLimits::H200
};

thread_local! {
    static SEED: Cell<Option<u64>> = const { Cell::new(None) };
    static CALLS: Cell<u64> = const { Cell::new(0) };
}

/// Runs `f` with all ops on CPU tensors of this thread going to the kernels, the order of their threads
/// drawn from `seed`. A failure names the seed and the call's number, counted from the start of `f`.
pub fn with<R>(seed: u64, f: impl FnOnce() -> R) -> R {
    /// Restores what was before, also when `f` panics.
    struct Restore(Option<u64>, u64);
    impl Drop for Restore {
        fn drop(&mut self) {
            SEED.set(self.0);
            CALLS.set(self.1);
        }
    }
    let _restore = Restore(SEED.replace(Some(seed)), CALLS.replace(0));
    f()
}

/// The seed of the innermost [`with`], if any: to be handed on to threads that a test starts.
pub fn seed() -> Option<u64> {
    SEED.get()
}

/// The calls of kernels since the start of the innermost [`with`].
pub fn calls() -> u64 {
    CALLS.get()
}

/// Whether the kernels are built with AddressSanitizer and UndefinedBehaviorSanitizer; if not, every
/// access of theirs is checked by the shim.
pub fn has_sanitizers() -> bool {
    // SAFETY: it takes nothing and answers a constant.
    unsafe { rw_host_run_has_asan() != 0 }
}

/// Runs one of the kernels of tests/host_run/faults.cu, by number, and answers what was noticed.
#[doc(hidden)]
pub fn run_fault(fault: i32, seed: u64) -> std::result::Result<(), String> {
    // SAFETY: the kernel works on memory of its own. Those that leave it end the process, or are
    // stopped before they do.
    match unsafe { rw_host_run_fault(fault, seed) } {
        0 => Ok(()),
        status => Err(result::message(status)),
    }
}

/// Runs a problem if [`with`] says so. As for the CPU engine, the problem is not empty and matches the
/// storages.
pub(crate) fn run(
    problem: &Problem,
    x: &CpuStorage,
    operands: &[Option<&CpuStorage>],
) -> Option<Result<Vec<CpuStorage>>> {
    let seed = SEED.get()?;
    CALLS.set(CALLS.get() + 1);
    Some(run_call(problem, x, operands, seed))
}

fn run_call(
    problem: &Problem,
    x: &CpuStorage,
    operands: &[Option<&CpuStorage>],
    seed: u64,
) -> Result<Vec<CpuStorage>> {
    let plan = Plan::select(problem, &LIMITS)?;
    let results = 0..problem.op.results().len();
    let mut results = results
        .map(|i| {
            let dtype = problem.op.result_dtype(i, problem.dtype);
            poisoned(dtype, problem.result_len(i))
        })
        .collect::<Result<Vec<_>>>()?;
    // SAFETY: plain values that the shim keeps.
    unsafe { rw_host_run_begin(seed, CALLS.get()) };
    let mut workspace = Workspace::of(&plan);
    let mut addresses = Addresses {
        x: input(x)?,
        operands: [0; MAX_OPERANDS],
        results: [0; MAX_RESULTS],
        workspace: workspace.as_mut().map_or(0, Workspace::open),
    };
    for (address, operand) in addresses.operands.iter_mut().zip(operands) {
        if let Some(operand) = operand {
            *address = input(operand)?;
        }
    }
    let kinds = problem.op.results();
    for ((address, result), kind) in addresses.results.iter_mut().zip(&mut results).zip(kinds) {
        *address = output(result, *kind)?;
    }
    // SAFETY: the addresses are of live allocations that match the problem, which was checked
    // against their layouts; the results are written by nobody else, and the shim has returned from the
    // kernel, or given it up, when this returns. There is no stream.
    let launched = unsafe { launch::launch(problem, &plan, &addresses, ptr::null_mut()) };
    // SAFETY: it takes nothing.
    let ended = unsafe { rw_host_run_end() };
    launched
        .and_then(|()| result::check(ended, problem))
        .map_err(|err| candle_core::Error::msg(format!("{err}\n  plan: {plan}")))?;
    if !workspace.is_none_or(|w| w.counters_are_zero()) {
        candle_core::bail!("the counters of the workspace are not 0 after {plan}");
    }
    Ok(results)
}

/// Memory for a result, of NaNs in the float formats: for an element that no thread writes.
fn poisoned(dtype: DType, len: usize) -> Result<CpuStorage> {
    fn of<T: WithDType>(len: usize) -> CpuStorage {
        let mut data: Vec<T> = Vec::with_capacity(len);
        // SAFETY: within the capacity, and any bits are a value of these types.
        unsafe {
            let bytes = data.as_mut_ptr().cast::<u8>();
            bytes.write_bytes(0xff, len * size_of::<T>());
            data.set_len(len);
        }
        T::to_cpu_storage_owned(data)
    }
    Ok(match dtype {
        DType::F16 => of::<f16>(len),
        DType::BF16 => of::<bf16>(len),
        DType::F32 => of::<f32>(len),
        DType::F64 => of::<f64>(len),
        DType::U8 => of::<u8>(len),
        DType::U32 => of::<u32>(len),
        DType::I16 => of::<i16>(len),
        DType::I32 => of::<i32>(len),
        DType::I64 => of::<i64>(len),
        other => candle_core::bail!("no kernel writes {other:?}"),
    })
}

/// What a stream's workspace is to a kernel: counters that are 0, then memory that holds anything.
struct Workspace {
    words: Vec<u64>,
}

impl Workspace {
    const COUNTERS: usize = MAX_TEAMS * TEAM_BYTES / size_of::<u64>();

    fn of(plan: &Plan) -> Option<Self> {
        (plan.tier == Tier::SplitK).then(|| {
            let mut words = vec![u64::MAX; WORKSPACE_BYTES / size_of::<u64>()];
            words[..Self::COUNTERS].fill(0);
            Workspace { words }
        })
    }

    fn open(&mut self) -> u64 {
        let (counters, states) = self.words.split_at_mut(Self::COUNTERS);
        let start = counters.as_mut_ptr().cast();
        open(
            states.as_mut_ptr().cast(),
            size_of_val(states),
            Access::Scratch,
        );
        open(start, size_of_val(counters), Access::ReadWrite)
    }

    fn counters_are_zero(&self) -> bool {
        self.words[..Self::COUNTERS].iter().all(|word| *word == 0)
    }
}

/// What a kernel may do with memory: `rw_host_run_access` of tests/host_run/host_run.h.
#[repr(i32)]
enum Access {
    Read = 0,
    WriteOnce = 1,
    ReadWrite = 2,
    Scratch = 3,
}

/// Names memory to the shim, and answers its address.
fn open(data: *const c_void, bytes: usize, access: Access) -> u64 {
    // SAFETY: the shim keeps the address and follows it only in kernels.
    unsafe { rw_host_run_buffer(data, bytes as u64, access as i32) };
    data.expose_provenance() as u64
}

/// Runs `$body` with `$data` as the typed vector of a storage, for the dtypes that kernels know.
macro_rules! with_data {
    ($storage:expr, $data:ident => $body:expr) => {
        match $storage {
            CpuStorage::U8($data) => $body,
            CpuStorage::U32($data) => $body,
            CpuStorage::I16($data) => $body,
            CpuStorage::I32($data) => $body,
            CpuStorage::I64($data) => $body,
            CpuStorage::F16($data) => $body,
            CpuStorage::BF16($data) => $body,
            CpuStorage::F32($data) => $body,
            CpuStorage::F64($data) => $body,
            _ => candle_core::bail!("a storage of a dtype that no kernel takes"),
        }
    };
}

fn input(storage: &CpuStorage) -> Result<u64> {
    Ok(with_data!(storage, data => {
        open(data.as_ptr().cast(), size_of_val(data.as_slice()), Access::Read)
    }))
}

fn output(storage: &mut CpuStorage, kind: RowResult) -> Result<u64> {
    let access = match kind {
        // A block that streams adds to them, row after row.
        RowResult::Bands(_) => Access::Scratch,
        RowResult::Row | RowResult::Scalar | RowResult::Pair => Access::WriteOnce,
    };
    Ok(with_data!(storage, data => {
        let bytes = size_of_val(data.as_slice());
        open(data.as_mut_ptr().cast(), bytes, access)
    }))
}

// tests/host_run/host_run.h
extern "C" {
    fn rw_host_run_begin(seed: u64, call: u64);
    fn rw_host_run_buffer(data: *const c_void, bytes: u64, access: i32);
    fn rw_host_run_end() -> i32;
    fn rw_host_run_has_asan() -> i32;
    fn rw_host_run_fault(fault: i32, seed: u64) -> i32;
}
