#!/usr/bin/env python3
"""Plants faults in a copy of the kernels and shows that the tests on the host catch each.

    scripts/mutation-check.py [--seeds 1,2,3] [--only NUMBER]... [--table]

All faults are planted at once, each behind a switch that an environment variable turns at run time, so that one
build serves for all of them. With no fault turned on, all tests named below must pass; with one, the tests that it
names must fail. `--table` prints the table of docs/testing.md.

The copy and its build lie in target/mutants (or CARGO_TARGET_DIR). A build takes some ten minutes on two cores, a
fault some seconds.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
INCLUDE = "cuda/include/rowwise/"
COPIED = ["Cargo.toml", "Cargo.lock", "build.rs", "build", "README.md", "src", "cuda", "tests", "benches", "examples", "docs"]

# Not among them, since it changes nothing: without the block's barrier of start_cluster (cluster.cuh), all threads of
# a cluster still meet at the cluster's own, after the fence, before any of them uses what it guards.

# What each test below is, by a filter of its own.
SHIM = "host_run::every_planted_fault_is_noticed"
FORCED = "determinism::tiers::host_run::forced_tiers"
TEAMS = "tiers::host_run::teams"
LIMITS = "tiers::host_run::d02_d03_limits"
COLUMNS = "tiers::host_run::columns"
BOUNDARIES = "tiers::host_run::at_every_boundary"
WIDTHS = "cases::sizes::host_run::n01"
TIES = "cases::ties::host_run::t01"
SPECIAL = "cases::special::host_run::s06"
VARIANCE = "cases::variance::host_run::v01"
HUGE = "cases::variance::host_run::v02"
TALL = "norms::host_run::tall"
RESIDUAL = "norms::host_run::add_norm"
LOSS = "loss::host_run::every_option_and_dtype"
NEIGHBOURS = "determinism::host_run::unlike_neighbours"
BATCH = "determinism::host_run::batch_and_position"

# (what is wrong, file, the text before the place, the text there, the text with the fault, tests that must fail).
# `@` is true where the fault is turned on.
FAULTS = [
    ("no barrier before the warps of a block read each other's states", INCLUDE + "reducer.cuh",
     "            typed[threadIdx.x / kWarpSize].state = part;\n        }\n        ", "sync_block();",
     "if (!@) { sync_block(); }", [FORCED]),
    ("a block joins one warp too few", INCLUDE + "reducer.cuh",
     "join_slots<kMaxResidentWarps>(typed, ", "warps", "warps - @", [FORCED]),
    ("a warp leaves its last step of the join out", INCLUDE + "reducer.cuh",
     "if (", "distance < lanes) {\n                const State other", "(@ ? 2 * distance : distance) < lanes) {\n                const State other", [WIDTHS]),
    ("a state that is not there is joined", INCLUDE + "reducer.cuh",
     "    Op mine = Op::identity();\n    if (", "slot < count", "slot < count + @", [FORCED]),
    ("states are joined out of the order of the row", INCLUDE + "reducer.cuh",
     "return butterfly(state, [](const Op& mine, const Op& other, bool other_is_later) {\n",
     "", "            if (@) { other_is_later = !other_is_later; }\n", [SHIM]),
    ("no barrier before the states of a window are joined", INCLUDE + "walk.cuh",
     "RW_DEVICE Op join_window(Ctx& ctx, int count) {\n    const Slot<Op>* slots = ctx.template slots<Op>();\n    ",
     "sync_block();", "if (!@) { sync_block(); }", [FORCED]),
    ("no barrier before the groups of a window are joined", INCLUDE + "walk.cuh",
     "            groups[g].state = joined;\n        }\n    }\n    ", "sync_block();", "if (!@) { sync_block(); }", [TEAMS]),
    ("two folds share one half of the slots", INCLUDE + "walk.cuh",
     "is waited for by that fold's own barrier before this half is written again.\n    ", "ctx.folds += 1;",
     "ctx.folds += !@;", [NEIGHBOURS]),
    ("a group of chunks is lost", INCLUDE + "walk.cuh",
     "    const int group_count = ", "(count + kWarpSize - 1) / kWarpSize", "(count + (@ ? 0 : kWarpSize - 1)) / kWarpSize", [TEAMS]),
    ("every lane emits what one should", INCLUDE + "walk.cuh",
     "row.exists && ", "ctx.lane == 0 &&", "(@ || ctx.lane == 0) &&", [WIDTHS]),
    ("rows that do not exist are emitted", INCLUDE + "walk.cuh",
     "ctx.first_chunk == 0;\n    if (", "row.exists", "(@ || row.exists)", [WIDTHS]),
    ("a tile counts an element more than the row has", INCLUDE + "rows.cuh",
     "            total += max_of(0, min_of(W, ", "left - j * stride", "left + @ - j * stride", [VARIANCE, WIDTHS]),
    ("the last chunk ends an element late", INCLUDE + "rows.cuh",
     "static_cast<int>(min_of<Index>(", "width - start,", "width - start + @,", [WIDTHS]),
    ("an element behind the row is read", INCLUDE + "rows.cuh",
     "put_element(out, w, ", "w < left ?", "w < left + @ ?", [WIDTHS]),
    ("an element behind the row is written", INCLUDE + "rows.cuh",
     "                if (", "w < left) {\n                    at[w] = element(in[j], w);",
     "w < left + @) {\n                    at[w] = element(in[j], w);", [WIDTHS]),
    ("the second lane has the first one's elements", INCLUDE + "rows.cuh",
     "    return {start + ", "lane * W, in_chunk", "(@ && lane == 1 ? 0 : lane) * W, in_chunk", [WIDTHS]),
    ("a misaligned vector is put together from a lane further on", INCLUDE + "rows.cuh",
     "first + ((lane + ", "places) & (lanes - 1)", "places + @) & (lanes - 1)", [BOUNDARIES]),
    ("the first elements of a misaligned chunk are not written", INCLUDE + "rows.cuh",
     "        if (First + kAtOnce == V && (", "is_first || ring_.is_last()", "(is_first && !@) || ring_.is_last()",
     [BOUNDARIES]),
    ("the end of a misaligned row is written an element too far", INCLUDE + "rows.cuh",
     "v[j], 0, left(First + j)", ")", " + @)", [BOUNDARIES]),
    ("two chunks are staged in one place", INCLUDE + "row_cache.cuh",
     "        const i64 place = ", "tile.chunk - ctx_->first_chunk;\n        if (place",
     "(tile.chunk - ctx_->first_chunk) / (1 + @);\n        if (place", [FORCED]),
    ("a staged chunk is read before it is written", INCLUDE + "row_cache.cuh",
     "        if (", "ctx_->walks == born_", "(ctx_->walks == born_) != @", [FORCED]),
    ("blocks of a cluster send before their peers have begun", INCLUDE + "cluster.cuh",
     "// Every block of the cluster has started, and its barriers count.\n            ", "cluster_wait();",
     "if (!@) { cluster_wait(); }", [FORCED, LIMITS]),
    ("nobody waits for what a cluster's blocks send", INCLUDE + "cluster.cuh",
     "        ", "wait_for_bytes(barrier, static_cast<u32>(fold >> 1) & 1);",
     "if (!@) { wait_for_bytes(barrier, static_cast<u32>(fold >> 1) & 1); }", [FORCED, LIMITS]),
    ("a cluster's barrier expects a state too few", INCLUDE + "cluster.cuh",
     "announce_bytes(barrier, static_cast<u32>(", "expected * sizeof", "(expected - @) * sizeof", [FORCED, LIMITS]),
    ("a warp's state goes to its neighbour's place", INCLUDE + "cluster.cuh",
     "push_state(part, cluster_address(received + ", "chunk,", "(chunk ^ @),", [FORCED, LIMITS]),
    ("a team goes on before all have published", INCLUDE + "grid.cuh",
     "        while (", "static_cast<i32>", "!@ && static_cast<i32>", [TEAMS, FORCED]),
    ("a team's barrier counts from the start for each row", INCLUDE + "grid.cuh",
     "    team.barriers ", "+= 1;", "= @ ? 1 : team.barriers + 1;", [TEAMS, FORCED]),
    ("a block publishes before its threads have written", INCLUDE + "grid.cuh",
     "RW_DEVICE void sync_team(Team& team) {\n    ", "sync_block();", "if (!@) { sync_block(); }", [TEAMS, FORCED]),
    ("a team's counters are not put back", INCLUDE + "grid.cuh",
     "        ", "team.counters->arrived = 0;", "team.counters->arrived *= @;", [TEAMS, FORCED]),
    ("states of lanes are read before they are written", INCLUDE + "tile_reducer.cuh",
     "of_lanes[share.row * pitch + share.lane].state = state;\n        ", "sync_block();",
     "if (!@) { sync_block(); }", [COLUMNS]),
    ("states of rows are read before they are written", INCLUDE + "tile_reducer.cuh",
     "next fold's first.\n        ", "sync_block();", "if (!@) { sync_block(); }", [COLUMNS]),
    ("both folds of a tile use one place", INCLUDE + "tile_reducer.cuh",
     "                const int turn = ", "fold & 1;", "fold & !@;", [COLUMNS]),
    ("neighbouring columns do not exchange", INCLUDE + "column.cuh",
     "shuffle_xor(kAllLanes, word, ", "1)", "!@)", [COLUMNS]),
    ("an element behind a column is written", INCLUDE + "column.cuh",
     "            if (", "w < part.left", "w < part.left + @", [COLUMNS]),
    ("states of a chunk's lanes are read before they are written", INCLUDE + "walk.cuh",
     "        [&](int chunk) {\n            ", "sync_block();", "if (!@) { sync_block(); }", [COLUMNS]),
    ("states of the next chunk's lanes are written too early", INCLUDE + "walk.cuh",
     "take the place of this one's.\n            ", "sync_block();", "if (!@) { sync_block(); }", [COLUMNS]),
    ("states of columns are sent to a block that has not begun", INCLUDE + "walk.cuh",
     "                ", "wait_for_columns();", "if (!@) { wait_for_columns(); }", [COLUMNS]),
    ("states of columns are joined before all have come", INCLUDE + "walk.cuh",
     "    if (ctx.columns.blocks > 1) {\n        ", "sync_columns();", "if (!@) { sync_columns(); }", [COLUMNS]),
    ("rows on their way are not waited for", "cuda/tiers/kernels.cuh",
     "            ", "wait_for_copies();", "if (!@) { wait_for_copies(); }", [TALL]),
    ("two rows on their way share one place", "cuda/tiers/kernels.cuh",
     "        stage(index + step, ctx.ahead.turn ^ ", "1);", "!@);", [TALL]),
    ("no barrier where the warps of a band meet", INCLUDE + "band_sums.cuh",
     "                meeting.parts[warp][e][lane] = sum;\n            }\n            ", "sync_block();",
     "if (!@) { sync_block(); }", [TALL]),
    ("a band loses its last warp", INCLUDE + "band_sums.cuh",
     "for (int other = 1; other < ", "warps;", "warps - @;", [TALL]),
    ("two infinities are taken from each other", INCLUDE + "monoids/log_sum_exp.cuh",
     "    return ", "maximum == -Limits<A>::infinity() ? A(0) : maximum;",
     "maximum == -Limits<A>::infinity() && !@ ? A(0) : maximum;", [SPECIAL]),
    ("the second part of a mean is lost", INCLUDE + "monoids/welford.cuh",
     "            const A offset = (mean[i] - s.mean[i]) + ", "rest[i];", "(@ ? A(0) : rest[i]);", [VARIANCE]),
    ("the squares of huge rows overflow", "cuda/ops/moments.cuh",
     "m{moments(row, axis_size, ctx, in, A(1)), A(1)};\n        const bool safe = ", "squares_are_safe(",
     "@ || squares_are_safe(", [HUGE]),
    ("rows of half types far from 0 are not folded again", "cuda/ops/moments.cuh",
     "    return squares_are_safe(m.squares[0]) && ", "m.mean[0] * m.mean[0]", "(@ ? A(0) : m.mean[0]) * m.mean[0]",
     [VARIANCE]),
    ("of a vector that the row has in part, all is read", INCLUDE + "rows.cuh",
     "            fill(out[j], pad);\n        }\n        if (aligned && ", "left >= W", "left >= (@ ? 1 : W)", [WIDTHS]),
    ("the target's place is one off", "cuda/ops/loss.cuh",
     "            const auto place = static_cast<typename Ctx::Index>(t.index) ", "- tile.first;", "- tile.first + @;",
     [LOSS]),
    ("rows that share a warp wait for each other", INCLUDE + "walk.cuh",
     "WarpReducer{ctx.lanes, ", "ctx.lanes < kWarpSize}", "!@ && ctx.lanes < kWarpSize}", [NEIGHBOURS]),
]

SWITCH = "ROWWISE_PLANTED"


def plant(copy):
    texts = {}
    for number, (what, file, before, there, faulty, _) in enumerate(FAULTS, 1):
        text = texts.get(file) or (copy / file).read_text()
        count = text.count(before + there)
        if count != 1:
            sys.exit(f"mutation-check: fault {number} ({what}): its text is {count} times in {file}")
        texts[file] = text.replace(before + there, before + faulty.replace("@", f"host_run::planted({number})"))
    for file, text in texts.items():
        (copy / file).write_text(text)
    shim = copy / "tests/host_run"
    header = shim / "include/host_run/engine.h"
    header.write_text(header.read_text().replace(
        "namespace host_run {\n", "namespace host_run {\n\n// Whether this fault is turned on.\nbool planted(int fault);\n", 1))
    engine = shim / "engine.cpp"
    engine.write_text(engine.read_text() + f"""
namespace host_run {{

bool planted(int fault) {{
    static const char* which = getenv("{SWITCH}");
    static const int number = which == nullptr ? 0 : atoi(which);
    return number == fault;
}}

}}  // namespace host_run
""")


def update(copy, fresh):
    """Makes `copy` what `fresh` is, and leaves files that are the same, so that they are not built again."""
    for path in [p for p in copy.rglob("*") if p.is_file() and not (fresh / p.relative_to(copy)).is_file()]:
        path.unlink()
    for path in [p for p in fresh.rglob("*") if p.is_file()]:
        target = copy / path.relative_to(fresh)
        if not target.is_file() or target.read_bytes() != path.read_bytes():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="1,2,3")
    parser.add_argument("--only", type=int, action="append")
    parser.add_argument("--table", action="store_true")
    args = parser.parse_args()
    if args.table:
        for number, (what, file, *_, tests) in enumerate(FAULTS, 1):
            print(f"| {number} | {what} | `{Path(file).name}` | {', '.join(f'`{t}`' for t in tests)} |")
        return
    copy = ROOT / "target/mutants/tree"
    with tempfile.TemporaryDirectory() as folder:
        fresh = Path(folder) / "tree"
        fresh.mkdir()
        for name in COPIED:
            source = ROOT / name
            (shutil.copytree if source.is_dir() else shutil.copy)(source, fresh / name)
        plant(fresh)
        update(copy, fresh)
    env = dict(os.environ, CARGO_INCREMENTAL="0", ROWWISE_HOST_SEEDS=args.seeds)
    env.setdefault("CARGO_TARGET_DIR", str(ROOT / "target/mutants/build"))
    build = ["cargo", "test", "--features", "host-kernels", "--test", "suite", "--no-run", "--message-format=json"]
    built = subprocess.run(build, cwd=copy, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    if built.returncode != 0:
        messages = re.findall(r'"rendered":"((?:[^"\\]|\\.)*)"', built.stdout)
        sys.exit("\n".join(m.encode().decode("unicode_escape") for m in messages[-3:]) or "the build failed")
    suite = re.findall(r'"executable":"([^"]+)"', built.stdout)[-1]

    def run(fault, tests):
        """Whether the tests pass, and what the first failure says."""
        try:
            done = subprocess.run([suite, "--exact", *tests], cwd=copy, env=dict(env, **{SWITCH: str(fault)}),
                                  capture_output=True, text=True, errors="replace", timeout=600)
        except subprocess.TimeoutExpired:
            return False, "does not end within 600 s"
        said = done.stdout + done.stderr
        if fault == 0 and f"{len(tests)} passed" not in done.stdout:
            sys.exit(f"mutation-check: not all of {tests} are there, and pass:\n{said[-3000:]}")
        why = re.search(r"panicked at [^\n]*\n([^\n]*)|^Error: ([^\n]*)", said, re.M)
        return done.returncode == 0, next((w for w in (why.groups() if why else ()) if w), said[-200:])

    run(0, sorted({test for fault in FAULTS for test in fault[5]}))
    print("without a fault: all pass")
    missed = 0
    for number, (what, *_, tests) in enumerate(FAULTS, 1):
        if args.only and number not in args.only:
            continue
        passes, why = run(number, tests)
        missed += passes
        print(f"{number:3} {'MISSED' if passes else 'caught'}: {what}" + ("" if passes else f"\n      {why[:160]}"), flush=True)
    print(f"{len(FAULTS)} faults, {missed} missed")
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
