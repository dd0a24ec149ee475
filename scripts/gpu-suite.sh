#!/usr/bin/env bash
# Runs the test suite on a GPU as thoroughly as it can be run there:
#
#     scripts/gpu-suite.sh [--out DIR] [--limit SECONDS] [--suite BINARY] [STEP...]
#
# Steps, all of them by default:
#
#     tests                                        every test that needs a GPU
#     big                                          tensors beyond 2^31 elements; 80 GB of GPU memory
#     memcheck racecheck synccheck initcheck       compute-sanitizer over the tests, at their pace for it
#
# Without --suite, it builds the suite; a machine without Rust takes the binary that gpu-bundle.sh packs. Logs go
# to DIR (default: gpu-suite), and the report at the end says what passed, failed, was skipped and why, and did not
# come to its end within the limit (default: 3600 seconds a step).
set -euo pipefail

out=gpu-suite
limit=3600
suite=
steps=()
while [ $# -gt 0 ]; do
    case $1 in
        --out) out=$2; shift 2 ;;
        --limit) limit=$2; shift 2 ;;
        --suite) suite=$2; shift 2 ;;
        tests | big | memcheck | racecheck | synccheck | initcheck) steps+=("$1"); shift ;;
        *) echo "gpu-suite: what is '$1'?" >&2; exit 2 ;;
    esac
done
[ ${#steps[@]} -gt 0 ] || steps=(tests big memcheck racecheck synccheck initcheck)

if [ -z "$suite" ]; then
    cd "$(dirname "$0")/.."
    eval "$(scripts/cuda-toolkit.sh)"
    suite=$(cargo test --release --features cuda --test suite --no-run --message-format=json-render-diagnostics |
        python3 -c '
import json, sys
for line in sys.stdin:
    message = json.loads(line)
    if message.get("executable"):
        print(message["executable"])
')
fi
mkdir -p "$out"
# 2 where the tests of two GPUs in one machine must run as well.
export ROWWISE_REQUIRE_GPU=${ROWWISE_REQUIRE_GPU:-1}

# Of a sanitizer, each group of tests has a process of its own: they start in a minute, and take one core each.
groups=(cases:: determinism:: forward:: fuzz:: gradients:: integers:: layouts:: loss:: norms:: softmax:: tiers::
    cluster:: nn:: streams:: tensor:: errors::)

failures=0
# The line of a step or of one of its groups.
report() { # name log status
    local verdict=ok
    case $3 in
        0) ;;
        124) verdict="not at its end after $limit s" ;;
        *) verdict="FAILED ($3)" ;;
    esac
    if grep -qE '(ERROR|RACECHECK) SUMMARY: ' "$2" && ! grep -qE 'SUMMARY: 0 (errors|hazards)' "$2"; then
        verdict="FOUND: $(grep -E 'SUMMARY: ' "$2" | tail -1 | sed 's/.*SUMMARY: //')"
    fi
    [ "$verdict" = ok ] || failures=$((failures + 1))
    printf '%-24s %4d passed, %d skipped: %s\n' "$1" "$(grep -cE '^test .* ok$' "$2" || true)" \
        "$(grep -c 'is skipped: ' "$2" || true)" "$verdict"
}

run() { # name log command...
    local name=$1 log=$2 status=0
    shift 2
    timeout "$limit" "$@" >"$log" 2>&1 || status=$?
    echo "$status" >"$log.status"
}

sanitize() { # tool
    local tool=$1 threads=2 group pids=() options=()
    # initcheck takes the host's calls in their order: see docs/testing.md.
    [ "$tool" = initcheck ] && threads=1
    # What the driver answers to who asks for a GPU that is not there is no error of ours.
    [ "$tool" != memcheck ] || options=(--report-api-errors no)
    for group in "${groups[@]}"; do
        (
            export ROWWISE_SANITIZED=1
            # It cannot follow clusters of 16.
            [ "$tool" != synccheck ] || export ROWWISE_MAX_CLUSTER=8
            run "$tool" "$out/$tool.${group%::}.log" \
                compute-sanitizer --tool "$tool" "${options[@]}" "$suite" "$group" \
                --skip _cpu --skip cases::large --skip cases::big --test-threads "$threads"
        ) &
        pids+=($!)
    done
    wait "${pids[@]}"
    for group in "${groups[@]}"; do
        local log="$out/$tool.${group%::}.log"
        report "$tool ${group%::}" "$log" "$(cat "$log.status")"
    done
}

for step in "${steps[@]}"; do
    case $step in
        tests) run tests "$out/tests.log" "$suite" _cuda --skip cases::large ;;
        big) ROWWISE_BIG_TESTS=1 run big "$out/big.log" "$suite" cases::large --test-threads 1 --nocapture ;;
        *) sanitize "$step"; continue ;;
    esac
    report "$step" "$out/$step.log" "$(cat "$out/$step.log.status")"
done
grep -h 'is skipped: ' "$out"/*.log | sort -u || true
[ "$failures" = 0 ]
