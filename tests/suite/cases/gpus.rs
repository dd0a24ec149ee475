//! D05: everything on a GPU that is not the first, and on two at once. It takes two GPUs alike in one machine.

use std::process::Command;

use candle_core::backend::BackendDevice;
use candle_core::cuda_backend::cudarc::driver::{result, sys};
use candle_core::Storage;
use candle_rowwise::cuda::run_into;
use candle_rowwise::ops;
use candle_rowwise::problem::Problem;

use super::{gradient_of, var};
use crate::common::data::h_values;
use crate::common::ops::{run, side_values, sides};
use crate::common::*;

/// Set for the process in which [`d05_cuda`] runs what it tests.
const ALONE: &str = "ROWWISE_TEST_ALONE";

/// Whether this process has made anything on a GPU: without a context it has no memory there.
fn is_in_use(ordinal: i32) -> Result<bool> {
    result::init()?;
    let device = result::device::get(ordinal)?;
    let (mut flags, mut active) = (0, 0);
    // SAFETY: the driver writes two numbers.
    unsafe { sys::cuDevicePrimaryCtxGetState(device, &mut flags, &mut active) }.result()?;
    Ok(active != 0)
}

/// The case itself, forward and backward.
fn layer_norm(device: &Device) -> Result<Vec<Tensor>> {
    let (op, width) = (Op::LayerNorm { eps: 1e-12 }, 768);
    let x = var(
        &normal(110, 3 * 102 * width),
        (3, 102, width),
        DType::F32,
        device,
    )?;
    let sides = sides(op, width, DType::F32, device)?;
    let y = run(op, x.as_tensor(), &sides)?;
    assert!(y.device().same_device(device));
    let known = side_values(&sides)?;
    let rows = values(x.as_tensor())?;
    let rows = rows.chunks(width);
    let due: Vec<_> = rows
        .flat_map(|row| reference::forward(op, row, &known, DType::F32))
        .collect();
    check("layer norm (3, 102, 768)", &y, &due)?;
    let g = tensor(
        &h_values(3 * 102 * width),
        (3, 102, width),
        DType::F32,
        device,
    )?;
    let grads = (&y * &g)?.sum_all()?.backward()?;
    let dx = gradient_of(&grads, &x);
    assert!(dx.device().same_device(device));
    Ok(vec![y.detach(), dx])
}

/// Rows of every tier: in a warp, a block, a cluster, teams of blocks that a workspace is for, and columns.
fn every_tier(device: &Device) -> Result<Vec<Tensor>> {
    let of = |seed, rows: usize, width: usize, dtype| {
        tensor(&normal(seed, rows * width), (rows, width), dtype, device)
    };
    let teams = of(111, 1, 4_194_304, DType::F32)?;
    let long = of(112, 1, 1_000_003, DType::F32)?;
    let columns = of(113, 300, 70, DType::F32)?;
    Ok(vec![
        ops::sum(&teams, 1)?,
        ops::softmax(&long, 1)?,
        ops::softmax(&of(114, 3, 262_144, DType::BF16)?, 1)?,
        ops::log_softmax(&of(115, 5, 20_000, DType::F32)?, 1)?,
        ops::softmax(&of(116, 7, 3000, DType::F16)?, 1)?,
        ops::argmax(&of(117, 100, 40, DType::F32)?, 1)?,
        ops::softmax(&columns, 0)?,
        ops::sum(&columns, 0)?,
    ])
}

fn everything(device: &Device) -> Result<Vec<Tensor>> {
    let mut results = layer_norm(device)?;
    results.extend(every_tier(device)?);
    let on_host = results.iter().map(|y| y.to_device(&Device::Cpu));
    Ok(on_host.collect::<candle_core::Result<_>>()?)
}

/// In a process of its own, since the other tests of this one use the first GPU: there, nothing is made on it.
#[test]
fn d05_cuda() -> Result<()> {
    if devices::is_on(ALONE) {
        let device = Device::new_cuda(1)?;
        everything(&device)?;
        assert!(is_in_use(1)?);
        assert!(!is_in_use(0)?, "something was made on the first GPU");
        return Ok(());
    }
    if devices::two_gpus("d05_cuda").is_none() {
        return Ok(());
    }
    let alone = Command::new(std::env::current_exe()?)
        .args(["--exact", "cases::gpus::d05_cuda", "--nocapture"])
        .env(ALONE, "1")
        .output()?;
    let said = [alone.stdout, alone.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    assert!(
        alone.status.success() && said.contains("1 passed"),
        "alone on the second GPU: {}\n{said}",
        alone.status
    );
    Ok(())
}

/// One GPU after the other from one thread, and both at once from several: each has its own workspaces, limits and
/// attributes of kernels, and all give the same bits.
#[test]
fn d05_both_at_once_cuda() -> Result<()> {
    let Some(gpus) = devices::two_gpus("d05_both_at_once_cuda") else {
        return Ok(());
    };
    let expected = everything(gpus[0])?;
    let again = |device: &Device| -> Result<()> {
        let results = everything(device)?;
        assert_eq!(results.len(), expected.len());
        for (i, (got, due)) in results.iter().zip(&expected).enumerate() {
            assert_bits_eq(&format!("result {i} on {:?}", device.location()), got, due)?;
        }
        Ok(())
    };
    again(gpus[1])?;
    let rounds = devices::at_pace(5, 1, 1);
    std::thread::scope(|scope| {
        // Two threads that stay with one, and one that takes turns.
        let orders = [[gpus[0], gpus[0]], [gpus[1], gpus[1]], [gpus[1], gpus[0]]];
        let again = &again;
        let callers = orders.map(|order| {
            scope.spawn(move || (0..rounds).try_for_each(|_| order.into_iter().try_for_each(again)))
        });
        callers
            .into_iter()
            .try_for_each(|caller| caller.join().expect("a caller panicked"))
    })
}

/// What lies on another GPU than the input is refused, before a kernel follows its address.
#[test]
fn d05_apart_cuda() -> Result<()> {
    let Some([first, second]) = devices::two_gpus("d05_apart_cuda") else {
        return Ok(());
    };
    let x = tensor(&h_values(6 * 40), (6, 40), DType::F32, second)?;
    let weight = tensor(&h_values(40), 40, DType::F32, first)?;
    let refused = ops::rms_norm(&x, &weight, 1e-6).map(|_| ());
    let message = refused.expect_err("a weight on another GPU").to_string();
    assert!(
        message.contains("rms-norm") && message.contains("weight"),
        "{message}"
    );

    let problem = Problem::new(Op::Softmax, x.layout(), DType::F32, &[])?;
    let (storage, _) = x.storage_and_layout();
    let Storage::Cuda(storage) = &*storage else {
        anyhow::bail!("not on a GPU")
    };
    for (device, is_taken) in [(first, false), (second, true)] {
        let mut y = device
            .as_cuda_device()?
            .zeros_impl(&(6, 40).into(), DType::F32)?;
        let answer = run_into(&problem, storage, &[], &mut [&mut y]);
        assert_eq!(answer.is_ok(), is_taken, "{answer:?}");
    }
    Ok(())
}
