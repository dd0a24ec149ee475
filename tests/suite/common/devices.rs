//! The devices that a test body runs on.

/// Makes tests of bodies `fn(&Device) -> Result<()>`: one on the CPU, with the `cuda` feature one on
/// the GPU, and with `host-kernels` one that runs the GPU's kernels on the host, named as the body in
/// a module `host_run`. The first two names are written out, so that they can be searched for.
macro_rules! on_devices {
    ($($body:ident: $cpu:ident, $cuda:ident;)+) => {$(
        #[test]
        fn $cpu() -> anyhow::Result<()> {
            $body(&candle_core::Device::Cpu)
        }

        #[cfg(feature = "cuda")]
        #[test]
        fn $cuda() -> anyhow::Result<()> {
            match $crate::common::devices::cuda(stringify!($cuda)) {
                Some(device) => $crate::common::devices::on_gpu(device, $body),
                None => Ok(()),
            }
        }
    )+

        #[cfg(all(feature = "host-kernels", not(feature = "cuda")))]
        mod host_run {
            $(
                #[test]
                fn $body() -> anyhow::Result<()> {
                    $crate::common::devices::on_host_run(super::$body)
                }
            )+
        }
    };
}

/// Whether this test runs the GPU's kernels on the host, where a device thread takes microseconds:
/// sizes that decide nothing are to be small.
#[cfg(all(feature = "host-kernels", not(feature = "cuda")))]
pub fn is_host_run() -> bool {
    candle_rowwise::cuda::host_run::seed().is_some()
}

#[cfg(not(all(feature = "host-kernels", not(feature = "cuda"))))]
pub fn is_host_run() -> bool {
    false
}

/// Whether a switch of the environment is at 1.
pub fn is_on(switch: &str) -> bool {
    std::env::var(switch).is_ok_and(|v| v == "1")
}

/// Whether a GPU test is to launch little: under compute-sanitizer (`ROWWISE_SANITIZED=1`) a launch takes
/// a hundred times as long, and one of each kind tells as much as many.
pub fn is_sanitized() -> bool {
    is_on("ROWWISE_SANITIZED")
}

/// Of sizes or counts those that this run has the time for: on a CPU or a GPU, under compute-sanitizer,
/// and where the kernels run on the host.
pub fn at_pace<T>(full: T, sanitized: T, host_run: T) -> T {
    match (is_host_run(), is_sanitized()) {
        (true, _) => host_run,
        (_, true) => sanitized,
        _ => full,
    }
}

/// `f` for a thread that a test starts: its ops run where this thread's do.
#[cfg(all(feature = "host-kernels", not(feature = "cuda")))]
pub fn handed_on<R>(f: impl Fn() -> R + Sync) -> impl Fn() -> R + Sync {
    use candle_rowwise::cuda::host_run::{seed, with};
    let seed = seed();
    move || match seed {
        Some(seed) => with(seed, &f),
        None => f(),
    }
}

#[cfg(not(all(feature = "host-kernels", not(feature = "cuda"))))]
pub fn handed_on<R>(f: impl Fn() -> R + Sync) -> impl Fn() -> R + Sync {
    f
}

/// Runs a body on the kernels' build for the host: under each of the seeds of `ROWWISE_HOST_SEEDS`
/// (comma-separated; by default one).
#[cfg(all(feature = "host-kernels", not(feature = "cuda")))]
pub fn on_host_run(
    body: impl Fn(&candle_core::Device) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    use candle_rowwise::cuda::host_run::with;
    let seeds = std::env::var("ROWWISE_HOST_SEEDS").unwrap_or_else(|_| "1".into());
    for seed in seeds.split(',') {
        with(seed.trim().parse()?, || body(&candle_core::Device::Cpu))?;
    }
    Ok(())
}

/// Runs a body on a GPU, with clusters of no more blocks than `ROWWISE_MAX_CLUSTER` says, if it does.
#[cfg(feature = "cuda")]
pub fn on_gpu(
    device: &candle_core::Device,
    body: impl FnOnce(&candle_core::Device) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    use candle_rowwise::plan::{with_limits, DeviceLimits};
    match std::env::var("ROWWISE_MAX_CLUSTER") {
        Ok(most) => {
            let limits = DeviceLimits {
                max_cluster: most.parse()?,
                ..DeviceLimits::H200
            };
            with_limits(limits, || body(device))
        }
        Err(_) => body(device),
    }
}

/// How many GPUs there must be: `ROWWISE_REQUIRE_GPU`, by default none.
#[cfg(feature = "cuda")]
fn required() -> usize {
    let required = std::env::var("ROWWISE_REQUIRE_GPU").unwrap_or_default();
    match required.as_str() {
        "" => 0,
        number => (number.parse()).unwrap_or_else(|_| {
            panic!("ROWWISE_REQUIRE_GPU is `{number}`, and takes a number of GPUs")
        }),
    }
}

/// The first GPU. Without one the test is skipped, and the run says so once; it fails instead where
/// `ROWWISE_REQUIRE_GPU` says that there must be one.
#[cfg(feature = "cuda")]
pub fn cuda(test: &str) -> Option<&'static candle_core::Device> {
    use std::io::Write;
    use std::sync::OnceLock;
    static DEVICE: OnceLock<Result<candle_core::Device, String>> = OnceLock::new();
    // Loading the driver panics where there is none.
    let device = DEVICE.get_or_init(|| {
        let reason = match std::panic::catch_unwind(|| candle_core::Device::new_cuda(0)) {
            Ok(Ok(device)) => return Ok(device),
            Ok(Err(err)) => err.to_string(),
            Err(_) => "the CUDA driver cannot be loaded".to_string(),
        };
        // Past the capture of passing tests' output.
        let _ = writeln!(std::io::stderr(), "GPU tests are skipped: {reason}");
        Err(reason)
    });
    match device {
        Ok(device) => Some(device),
        Err(reason) if required() >= 1 => {
            panic!(
                "{test}: ROWWISE_REQUIRE_GPU says that there is a GPU, and there is none: {reason}"
            )
        }
        Err(_) => None,
    }
}

/// The first two GPUs. With fewer the test is skipped, and says so; it fails instead where `ROWWISE_REQUIRE_GPU=2`
/// says that there must be two.
#[cfg(feature = "cuda")]
pub fn two_gpus(test: &str) -> Option<[&'static candle_core::Device; 2]> {
    use std::io::Write;
    use std::sync::OnceLock;
    static SECOND: OnceLock<Result<candle_core::Device, String>> = OnceLock::new();
    let second = || candle_core::Device::new_cuda(1).map_err(|err| err.to_string());
    let reason = match cuda(test) {
        Some(first) => match SECOND.get_or_init(second) {
            Ok(second) => return Some([first, second]),
            Err(reason) => reason.as_str(),
        },
        None => "there is none",
    };
    if required() >= 2 {
        panic!("{test}: ROWWISE_REQUIRE_GPU says that there are two GPUs, and there is no second: {reason}")
    }
    // Past the capture of passing tests' output.
    let _ = writeln!(
        std::io::stderr(),
        "{test} is skipped: it takes two GPUs in one machine: {reason}"
    );
    None
}
