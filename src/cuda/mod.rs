//! CUDA kernels (skeleton).
use crate::problem::Problem;
use candle_core::{CudaStorage, Result};
/// Runs a problem.
pub(crate) fn run(
    _problem: &Problem,
    _x: &CudaStorage,
    _sides: &[&CudaStorage],
) -> Result<CudaStorage> {
    todo!()
}
