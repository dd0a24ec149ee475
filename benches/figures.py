"""What the benches write: points of op, dtype and shape, in the CSV of `cargo bench --bench cuda -- --csv FILE`."""

import csv
import math
from dataclasses import dataclass
from pathlib import Path

OURS = "candle-rowwise"
COLUMNS = ["provider", "op", "dtype", "shape", "us", "gbs", "copy_us", "fraction"]
# One read and one write of so many elements are 0.5 GiB of halves and 1 GiB of f32.
ELEMENTS = 1 << 27
WIDTHS = [256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072, 262144]
ODD_WIDTHS = [257, 1000, 5003, 50257, 151936]


@dataclass(frozen=True)
class Point:
    """What was timed: fractions are those of the speed of a copy of the same bytes in the same run."""

    provider: str
    op: str
    dtype: str
    shape: str
    us: float
    gbs: float
    copy_us: float
    fraction: float

    @property
    def place(self):
        return self.op, self.dtype, self.shape

    def row(self):
        return [
            self.provider, self.op, self.dtype, self.shape,
            f"{self.us:.3f}", f"{self.gbs:.1f}", f"{self.copy_us:.3f}", f"{self.fraction:.4f}",
        ]  # fmt: skip


def parse_shape(text):
    """(rows, width) of ROWSxWIDTH."""
    parts = text.split("x")
    if len(parts) != 2 or not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise ValueError(f"a shape is ROWSxWIDTH, such as 32768x4096, not {text}")
    return int(parts[0]), int(parts[1])


def width_of(shape):
    """The width of a row; `None` where rows are columns in memory (OUTERxWIDTHxINNER)."""
    parts = shape.split("x")
    return int(parts[1]) if len(parts) == 2 else None


def rows_for(width):
    """The power of two that brings the elements nearest to [`ELEMENTS`]."""
    return 1 << max(0, round(math.log2(ELEMENTS / width)))


def default_shapes():
    return [(rows_for(width), width) for width in WIDTHS + ODD_WIDTHS]


def read_points(path):
    """The points of a CSV. Where it has no column for the provider, it is ours. A row that a run was stopped in is
    left out."""
    points = []
    with Path(path).open(newline="") as file:
        reader = csv.DictReader(file)
        missing = set(COLUMNS[1:]) - set(reader.fieldnames or [])
        if missing:
            raise ValueError(f"{path} has no column {', '.join(sorted(missing))}")
        for row in reader:
            try:
                times = [float(row[column]) for column in COLUMNS[4:]]
            except (TypeError, ValueError):
                continue
            names = [row[column] for column in COLUMNS[1:4]]
            points.append(Point(row.get("provider") or OURS, *names, *times))
    return points


class PointWriter:
    """Writes a CSV row by row, so that a run that is stopped leaves what it has measured."""

    def __init__(self, path, resume=False):
        path = Path(path)
        self.done = {}
        if resume and path.exists() and path.stat().st_size:
            self.done = {(point.provider, *point.place): point for point in read_points(path)}
        # Written anew, so that half a row at the end is gone.
        self.file = path.open("w", newline="")
        self.csv = csv.writer(self.file, lineterminator="\n")
        self.csv.writerow(COLUMNS)
        for point in self.done.values():
            self.csv.writerow(point.row())
        self.file.flush()

    def write(self, point):
        self.csv.writerow(point.row())
        self.file.flush()

    def close(self):
        self.file.close()


def geometric_mean(values):
    """`None` of nothing."""
    values = list(values)
    if not values:
        return None
    return math.exp(sum(math.log(value) for value in values) / len(values))
