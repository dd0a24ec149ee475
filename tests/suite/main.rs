//! The test suite: one binary, so that the crate is linked once.
//!
//! Every body takes a device and runs on the CPU; built with the `cuda` feature it runs on the GPU
//! as well (`common::devices` says what happens without one). What is right is computed here in
//! f64, and how far an answer may be from it follows from the dtype, the op and the length
//! (`common::reference`).

#[macro_use]
mod common;

mod cases;
mod cluster;
mod determinism;
mod errors;
mod forward;
mod fuzz;
mod gradients;
#[cfg(all(feature = "host-kernels", not(feature = "cuda")))]
mod host_run;
mod integers;
mod layouts;
mod loss;
mod nn;
mod norms;
mod softmax;
#[cfg(feature = "cuda")]
mod streams;
mod tensor;
#[cfg(any(feature = "cuda", feature = "host-kernels"))]
mod tiers;
mod training;
