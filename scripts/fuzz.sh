#!/usr/bin/env bash
# Fuzzes for long: random calls of every family of ops against the f64 reference (docs/testing.md).
#
#     scripts/fuzz.sh                       on the CPU, 10 minutes a family
#     scripts/fuzz.sh --host-run            the CUDA kernels, run on the host
#     scripts/fuzz.sh --gpu                 on a GPU
#     scripts/fuzz.sh --seconds 3600        how long each family may take
#     scripts/fuzz.sh --cases 100000        and how many cases it is to run at most
#     scripts/fuzz.sh --seed 7              which ones
#     scripts/fuzz.sh norms                 one family: its name in tests/suite/fuzz
#
# A failure is made small, shown, and kept in tests/suite/fuzz/regressions, to be committed.
set -euo pipefail
cd "$(dirname "$0")/.."

features=() filter=fuzz:: suffix=_cpu
export ROWWISE_FUZZ_SECONDS=600
while (($#)); do
    case $1 in
        --host-run) features=(--features host-kernels) suffix=host_run ;;
        --gpu) features=(--features cuda) suffix=_cuda ;;
        --seconds) export ROWWISE_FUZZ_SECONDS=$2; shift ;;
        --cases) export ROWWISE_FUZZ_CASES=$2; shift ;;
        --seed) export ROWWISE_FUZZ_SEED=$2; shift ;;
        -*) sed -n '2,/^set/s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
        *) filter=$1 ;;
    esac
    shift
done
if [[ $suffix == _cuda ]]; then
    # One test at a time has the GPU, and there must be one.
    export ROWWISE_REQUIRE_GPU=1 RUST_TEST_THREADS=1
fi
# Names hold both: fuzz::norms_cpu, fuzz::host_run::norms.
tests=$(cargo test --quiet "${features[@]}" --test suite -- --list 2>/dev/null |
    sed -n 's/: test$//p' | grep '^fuzz::' | grep -e "$suffix" | grep -e "$filter")
# shellcheck disable=SC2086
exec cargo test "${features[@]}" --test suite -- --exact $tests
