#!/usr/bin/env python3
"""Ours beside the peers: a table of every op and shape, and a picture of every op.

    benches/compare.py ours.csv peers.csv [--markdown FILE] [--plots FOLDER] [--format svg|png]

Takes any number of files, of `cargo bench --bench cuda -- --csv FILE` and of benches/peers.py; of a point that two of
them hold, the later one counts. What is compared is the fraction of copy speed, since files may be of runs whose
machines differ: a ratio above 1 says that ours is nearer to the speed of a copy than the fastest peer. Without
matplotlib there are no pictures.
"""

import argparse
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from figures import OURS, Point, geometric_mean, read_points, width_of

PROVIDERS = {
    OURS: ("candle-rowwise", "#d62728"),
    "pytorch": ("PyTorch", "#7f7f7f"),
    "torch-compile": ("torch.compile", "#1f77b4"),
    "liger": ("Liger", "#2ca02c"),
    "quack": ("QuACK", "#9467bd"),
}


@dataclass(frozen=True)
class Comparison:
    ours: Point
    fastest: Point

    @property
    def ratio(self):
        return self.ours.fraction / self.fastest.fraction


def merge(files):
    """provider -> place -> point, of the points of several files."""
    merged = {}
    for points in files:
        for point in points:
            merged.setdefault(point.provider, {})[point.place] = point
    return merged


def compare(merged):
    """A comparison for every place that ours and a peer have."""
    comparisons = []
    for place, ours in merged.get(OURS, {}).items():
        peers = [points[place] for provider, points in merged.items() if provider != OURS and place in points]
        if peers:
            comparisons.append(Comparison(ours, max(peers, key=lambda point: point.fraction)))
    return comparisons


def order(comparison):
    """Down a table of one op: by dtype, then by size."""
    sizes = [int(size) for size in comparison.ours.shape.split("x")]
    return comparison.ours.dtype, len(sizes), sizes[1], sizes[0]


def label(provider):
    return PROVIDERS.get(provider, (provider, None))[0]


def summary(comparisons):
    ratios = [comparison.ratio for comparison in comparisons]
    slower = sum(ratio < 0.99 for ratio in ratios)
    return f"{geometric_mean(ratios):.2f} over {len(ratios)} points, {slower} of them below 0.99"


def markdown(merged):
    comparisons = compare(merged)
    if not comparisons:
        return "No point is both ours and a peer's.\n"
    ops = sorted({comparison.ours.op for comparison in comparisons})
    lines = [
        "Microseconds (fraction of copy speed). The ratio is our fraction over the fastest peer's: above 1, ours is",
        "faster.",
        "",
        f"Geometric mean of all ratios: {summary(comparisons)}.",
        "",
        "| op | geometric mean | points | least | at |",
        "|---|---|---|---|---|",
    ]
    by_op = {op: sorted((c for c in comparisons if c.ours.op == op), key=order) for op in ops}
    for op, of_op in by_op.items():
        mean = geometric_mean(comparison.ratio for comparison in of_op)
        least = min(of_op, key=lambda comparison: comparison.ratio)
        at = f"{least.ours.dtype} {show(least.ours.shape)}, {label(least.fastest.provider)}"
        lines.append(f"| {op} | {mean:.2f} | {len(of_op)} | {least.ratio:.2f} | {at} |")
    for op, of_op in by_op.items():
        lines += ["", f"### {op}", "", "| dtype | shape | ours | fastest peer | | ratio |", "|---|---|---|---|---|---|"]
        for comparison in of_op:
            ours, fastest = comparison.ours, comparison.fastest
            lines.append(
                f"| {ours.dtype} | {show(ours.shape)} | {cell(ours)} | {label(fastest.provider)} | {cell(fastest)}"
                f" | {comparison.ratio:.2f} |"
            )
    alone = unmatched(merged, comparisons)
    if alone:
        counts = ", ".join(f"{label(provider)} {count}" for provider, count in alone.items())
        lines += ["", f"Points left out, without a counterpart: {counts}."]
    return "\n".join(lines) + "\n"


def unmatched(merged, comparisons):
    matched = {comparison.ours.place for comparison in comparisons}
    return Counter(provider for provider, points in merged.items() for place in points if place not in matched)


def show(shape):
    return shape.replace("x", "×")


def cell(point):
    return f"{point.us:.1f} ({point.fraction:.2f})"


def lines_of(points, op, dtype):
    """(width, fraction) of rows of powers of two, which are joined by a line, and of the others. Of several shapes
    of a width, the one with the most rows."""
    largest = {}
    for point in points.values():
        width = width_of(point.shape)
        if (point.op, point.dtype) == (op, dtype) and width is not None:
            rows = int(point.shape.split("x")[0])
            largest[width] = max(largest.get(width, (0, 0.0)), (rows, point.fraction))
    joined, others = [], []
    for width, (_, fraction) in sorted(largest.items()):
        (joined if width & (width - 1) == 0 else others).append((width, fraction))
    return joined, others


def plot(merged, folder, suffix):
    """The pictures' paths; empty, with a line that says so, where matplotlib is missing."""
    try:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot
    except ImportError as error:
        print(f"no pictures: {error}", file=sys.stderr)
        return []
    # The same file of the same figures.
    matplotlib.rcParams["svg.hashsalt"] = "candle-rowwise"
    folder.mkdir(parents=True, exist_ok=True)
    every = [point for points in merged.values() for point in points.values() if width_of(point.shape) is not None]
    known = list(PROVIDERS) + sorted(set(merged) - set(PROVIDERS))
    written = []
    for op in sorted({point.op for point in every}):
        dtypes = sorted({point.dtype for point in every if point.op == op})
        figure, axes = pyplot.subplots(
            1, len(dtypes), figsize=(5.5 * len(dtypes), 4), sharey=True, squeeze=False, layout="constrained"
        )
        handles = {}
        for axis, dtype in zip(axes[0], dtypes):
            widths = []
            for provider in known:
                joined, others = lines_of(merged.get(provider, {}), op, dtype)
                widths += [width for width, _ in joined + others]
                front = {"zorder": 3 if provider == OURS else 2, "color": PROVIDERS.get(provider, (None, None))[1]}
                if joined:
                    (line,) = axis.plot(*zip(*joined), marker="o", markersize=4, **front)
                    front["color"] = line.get_color()
                    handles[label(provider)] = line
                if others:
                    (marks,) = axis.plot(*zip(*others), "o", markersize=5, markerfacecolor="none", **front)
                    handles.setdefault(label(provider), marks)
            axis.axhline(1.0, color="black", linewidth=0.6, linestyle=":")
            axis.set_xscale("log", base=2)
            ticks = sorted({width for width in widths if width & (width - 1) == 0}) or sorted(set(widths))
            axis.set_xticks(ticks, [f"{tick // 1024}Ki" if tick >= 1024 else str(tick) for tick in ticks])
            axis.minorticks_off()
            axis.set_ylim(bottom=0)
            axis.set_title(f"{op}, {dtype}")
            axis.set_xlabel("width of a row")
            axis.grid(alpha=0.3)
        axes[0][0].set_ylabel("fraction of copy speed")
        figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=len(handles), frameon=False)
        path = folder / f"{op}.{suffix}"
        figure.savefig(path, metadata={"Date": None} if suffix == "svg" else None, dpi=130)
        pyplot.close(figure)
        written.append(path)
    return written


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("files", nargs="+", type=Path, help="CSV files of the benches")
    parser.add_argument("--markdown", type=Path, help="where the table goes; printed if left out")
    parser.add_argument("--plots", type=Path, help="the folder that pictures go to; none if left out")
    parser.add_argument("--format", choices=["svg", "png"], default="svg")
    options = parser.parse_args(arguments)
    merged = merge(read_points(file) for file in options.files)
    text = markdown(merged)
    if options.markdown:
        options.markdown.write_text(text)
        comparisons = compare(merged)
        if comparisons:
            print(f"geometric mean: {summary(comparisons)}")
    else:
        print(text, end="")
    if options.plots:
        for path in plot(merged, options.plots, options.format):
            print(path, file=sys.stderr)


if __name__ == "__main__":
    main()
