//! Gradients composed of tensor ops, which candle's switch for second derivatives asks for.

use anyhow::{ensure, Result};

/// Candle's switch. It is read once a process.
const SWITCH: &str = "CANDLE_GRAD_DO_NOT_DETACH";

/// Whether this process composes gradients.
pub fn is_on() -> bool {
    std::env::var(SWITCH).is_ok()
}

/// Runs these tests of this binary again, with the switch, in a process of their own: all of them pass.
pub fn run_again(tests: &[&str]) -> Result<()> {
    let output = std::process::Command::new(std::env::current_exe()?)
        .arg("--exact")
        .args(tests)
        .env(SWITCH, "1")
        .output()?;
    let said = String::from_utf8_lossy(&output.stdout);
    // A name that is no test's would pass unseen.
    let passed = format!("{} passed; 0 failed", tests.len());
    ensure!(output.status.success() && said.contains(&passed), "{said}");
    Ok(())
}
