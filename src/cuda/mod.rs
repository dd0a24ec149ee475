//! The host side of the kernels: their C ABI, and the two that call it, a GPU (feature `cuda`) and the
//! kernels' build for the host (feature `host-kernels`, for tests).

#[cfg(feature = "cuda")]
pub(crate) mod cluster;
#[cfg(feature = "cuda")]
mod device;
#[cfg(all(feature = "host-kernels", not(feature = "cuda")))]
pub mod host_run;
mod launch;
mod result;
#[allow(dead_code)] // bindgen declares the whole header
mod sys;
#[cfg(feature = "cuda")]
mod workspace;

#[cfg(feature = "cuda")]
pub use device::run_into;
#[cfg(feature = "cuda")]
pub(crate) use device::{limits, run};
