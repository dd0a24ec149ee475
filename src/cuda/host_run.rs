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
use crate::plan::{DeviceLimits, Plan};
use crate::problem::Problem;

/// How ops on CPU tensors run inside [`with`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HostRun {
    /// What the order of the threads, and when sent bytes arrive, are drawn from.
    pub seed: u64,
    /// The device that plans are made for.
    pub limits: DeviceLimits,
}

thread_local! {
    static RUN: Cell<Option<HostRun>> = const { Cell::new(None) };
    static CALLS: Cell<u64> = const { Cell::new(0) };
}

/// Runs `f` with all ops on CPU tensors of this thread going to the kernels, each by the plan of
/// `run.limits`. A failure names the seed and the call's number, counted from the start of `f`.
pub fn with<R>(run: HostRun, f: impl FnOnce() -> R) -> R {
    /// Restores what was before, also when `f` panics.
    struct Restore(Option<HostRun>, u64);
    impl Drop for Restore {
        fn drop(&mut self) {
            RUN.set(self.0);
            CALLS.set(self.1);
        }
    }
    let _restore = Restore(RUN.replace(Some(run)), CALLS.replace(0));
    f()
}

/// How ops run on this thread, if [`with`] says so: to be handed on to threads that a test starts.
pub fn current() -> Option<HostRun> {
    RUN.get()
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
    sides: &[&CpuStorage],
) -> Option<Result<CpuStorage>> {
    let run = RUN.get()?;
    let call = CALLS.get() + 1;
    CALLS.set(call);
    Some(run_call(problem, x, sides, run, call))
}

fn run_call(
    problem: &Problem,
    x: &CpuStorage,
    sides: &[&CpuStorage],
    run: HostRun,
    call: u64,
) -> Result<CpuStorage> {
    let plan = Plan::select(problem, &run.limits)?;
    let call = Call {
        problem,
        plan: &plan,
        run,
        call,
    };
    Ok(match problem.output_dtype() {
        DType::F16 => f16::to_cpu_storage_owned(call.run(x, sides)?),
        DType::BF16 => bf16::to_cpu_storage_owned(call.run(x, sides)?),
        DType::F64 => f64::to_cpu_storage_owned(call.run(x, sides)?),
        DType::U32 => u32::to_cpu_storage_owned(call.run(x, sides)?),
        _ => f32::to_cpu_storage_owned(call.run(x, sides)?),
    })
}

struct Call<'a> {
    problem: &'a Problem,
    plan: &'a Plan,
    run: HostRun,
    call: u64,
}

impl Call<'_> {
    fn run<O: WithDType>(&self, x: &CpuStorage, sides: &[&CpuStorage]) -> Result<Vec<O>> {
        let len = self.problem.output_len();
        let mut y: Vec<O> = Vec::with_capacity(len);
        let bytes = len * size_of::<O>();
        // SAFETY: within the capacity. Any bits are a value of these types; these are NaNs in the
        // float formats, for an element that no thread writes.
        unsafe {
            y.as_mut_ptr().cast::<u8>().write_bytes(0xff, bytes);
            y.set_len(len);
        }
        // SAFETY: plain values that the shim keeps.
        unsafe { rw_host_run_begin(self.run.seed, self.call) };
        let mut addresses = Addresses {
            x: input(x)?,
            sides: [0; 2],
            y: open(y.as_mut_ptr().cast(), bytes, Access::WriteOnce),
        };
        for (address, side) in addresses.sides.iter_mut().zip(sides) {
            *address = input(side)?;
        }
        // SAFETY: the addresses are of live allocations that match the problem, which was checked
        // against their layouts; `y` is written by nobody else, and the shim has returned from the
        // kernel, or given it up, when this returns. There is no stream.
        let launched =
            unsafe { launch::launch(self.problem, self.plan, &addresses, ptr::null_mut()) };
        // SAFETY: it takes nothing.
        let ended = unsafe { rw_host_run_end() };
        launched
            .and_then(|()| result::check(ended, self.problem))
            .map_err(|err| candle_core::Error::msg(format!("{err}\n  plan: {}", self.plan)))?;
        Ok(y)
    }
}

/// What a kernel may do with memory: `rw_host_run_access` of tests/host_run/host_run.h.
#[repr(i32)]
enum Access {
    Read = 0,
    WriteOnce = 1,
}

/// Names memory to the shim, and answers its address.
fn open(data: *const c_void, bytes: usize, access: Access) -> u64 {
    // SAFETY: the shim keeps the address and follows it only in kernels.
    unsafe { rw_host_run_buffer(data, bytes as u64, access as i32) };
    data.expose_provenance() as u64
}

fn input(storage: &CpuStorage) -> Result<u64> {
    fn of<T>(data: &[T]) -> u64 {
        open(data.as_ptr().cast(), size_of_val(data), Access::Read)
    }
    Ok(match storage {
        CpuStorage::U8(data) => of(data),
        CpuStorage::U32(data) => of(data),
        CpuStorage::I16(data) => of(data),
        CpuStorage::I32(data) => of(data),
        CpuStorage::I64(data) => of(data),
        CpuStorage::F16(data) => of(data),
        CpuStorage::BF16(data) => of(data),
        CpuStorage::F32(data) => of(data),
        CpuStorage::F64(data) => of(data),
        other => candle_core::bail!(
            "no kernel reads {:?}",
            candle_core::backend::BackendStorage::dtype(other)
        ),
    })
}

// tests/host_run/host_run.h
extern "C" {
    fn rw_host_run_begin(seed: u64, call: u64);
    fn rw_host_run_buffer(data: *const c_void, bytes: u64, access: i32);
    fn rw_host_run_end() -> i32;
    fn rw_host_run_has_asan() -> i32;
    fn rw_host_run_fault(fault: i32, seed: u64) -> i32;
}
