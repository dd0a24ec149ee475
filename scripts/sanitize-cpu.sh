#!/usr/bin/env bash
# Runs tests on the CPU under AddressSanitizer: what the CPU engine's unsafe code reads and writes.
#
#     scripts/sanitize-cpu.sh                        the unit tests, and the suite's tests on the CPU
#     scripts/sanitize-cpu.sh cases:: fuzz::found    of the suite those with one of these in their name
#
# A stable toolchain does: it ships the runtime, and RUSTC_BOOTSTRAP=1 has it take the flag. Only this package, its
# unit tests and the suite are instrumented, and what they instantiate of others; the dependencies are those of any
# other build, and their allocations are watched all the same. Builds go to target/asan, or to CARGO_TARGET_DIR.
set -euo pipefail

# Cargo calls this script in place of rustc for this package (see below).
if [[ ${ROWWISE_SANITIZE_RUSTC:-} == 1 ]]; then
    for argument; do
        # The build script is no part of what is tested.
        [[ $argument == build_script_build ]] && exec "$@"
    done
    RUSTC_BOOTSTRAP=1 exec "$@" -Zsanitizer=address
fi

script=$(realpath "$0")
cd "$(dirname "$script")/.."
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-target/asan} CARGO_INCREMENTAL=0
export RUSTC_WORKSPACE_WRAPPER=$script ROWWISE_SANITIZE_RUSTC=1
# A leak is not what this looks for: rayon's threads, and what tests keep for good, are alive at the end.
export ASAN_OPTIONS=detect_leaks=0:detect_stack_use_after_return=1:${ASAN_OPTIONS:-}
export ROWWISE_FUZZ_CASES=${ROWWISE_FUZZ_CASES:-60} ROWWISE_FUZZ_SEED=${ROWWISE_FUZZ_SEED:-1}

# At the level of other builds, 2, instrumented code takes more than a quarter of an hour to compile.
one='profile.dev.package.candle-rowwise.opt-level=0'
cargo test --config "$one" --lib
cargo test --config "$one" --test suite -- "$@"
