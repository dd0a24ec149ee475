#!/usr/bin/env python3
"""Tests of benches/peers.py and benches/compare.py that need no GPU and no PyTorch: `python3 benches/test_peers.py`."""

import contextlib
import io
import math
import re
import sys
import tempfile
import types
import unittest
from pathlib import Path
from unittest import mock

import compare
import peers
from figures import (
    OURS, Point, PointWriter, default_shapes, geometric_mean, parse_shape, read_points, rows_for, width_of,
)  # fmt: skip


def point(provider, op="softmax", dtype="bf16", shape="32768x4096", fraction=0.5, us=100.0):
    return Point(provider, op, dtype, shape, us, 1000.0, us * fraction, fraction)


class Folder(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)


class Shapes(unittest.TestCase):
    def test_rows_and_width(self):
        self.assertEqual(parse_shape("32768x4096"), (32768, 4096))

    def test_widths_are_those_of_our_bench(self):
        ours = Path(__file__).with_name("cuda.rs").read_text()
        widths = re.search(r"WIDTHS: [^=]*= \[([^]]*)\]", ours)[1]
        self.assertEqual([width for _, width in default_shapes()], [int(width) for width in re.findall(r"\d+", widths)])
        self.assertIn("WIDTH_ELEMENTS: usize = 1 << 27;", ours)
        self.assertEqual(rows_for(1 << 10), 1 << 17)

    def test_what_is_no_shape_is_refused(self):
        for text in ["", "12", "3x", "x3", "0x4", "-1x4", "2x3x4", "ax4", "2 x3", "1e3x4"]:
            with self.subTest(text), self.assertRaises(ValueError):
                parse_shape(text)

    def test_columns_have_no_width(self):
        self.assertEqual(width_of("2x3"), 3)
        self.assertIsNone(width_of("64x4096x512"))

    def test_default_shapes_are_of_about_a_gibibyte_moved(self):
        for rows, width in default_shapes():
            moved = 2 * 2 * rows * width
            self.assertTrue(0.35 * 2**30 <= moved <= 0.75 * 2**30, (rows, width))
        self.assertIn((32768, 4096), default_shapes())
        self.assertEqual(rows_for(1 << 40), 1)


class Means(unittest.TestCase):
    def test_geometric_mean(self):
        self.assertAlmostEqual(geometric_mean([0.5, 2.0]), 1.0)
        self.assertAlmostEqual(geometric_mean([2.0, 4.0, 8.0]), 4.0)
        self.assertIsNone(geometric_mean([]))


class Files(Folder):
    def test_points_come_back(self):
        path = self.folder / "points.csv"
        writer = PointWriter(path)
        writer.write(point("liger", us=12.5))
        # Before it is closed: a run may be stopped at any time.
        self.assertEqual(read_points(path), [point("liger", us=12.5)])
        writer.close()

    def test_the_rust_bench_writes_no_provider(self):
        path = self.folder / "ours.csv"
        path.write_text("op,dtype,shape,us,gbs,copy_us,fraction\nsoftmax,bf16,32768x4096,130.7,4108.1,128.1,0.98\n")
        (read,) = read_points(path)
        self.assertEqual((read.provider, read.place), (OURS, ("softmax", "bf16", "32768x4096")))
        self.assertEqual((read.us, read.fraction), (130.7, 0.98))

    def test_half_a_row_is_left_out(self):
        path = self.folder / "cut.csv"
        writer = PointWriter(path)
        writer.write(point("quack"))
        writer.close()
        path.write_text(path.read_text() + "quack,sum,bf16,3")
        self.assertEqual(read_points(path), [point("quack")])
        writer = PointWriter(path, resume=True)
        writer.write(point("quack", op="max"))
        writer.close()
        self.assertEqual(read_points(path), [point("quack"), point("quack", op="max")])

    def test_another_file_is_refused(self):
        path = self.folder / "other.csv"
        path.write_text("a,b\n1,2\n")
        with self.assertRaisesRegex(ValueError, "no column"):
            read_points(path)

    def test_without_resume_a_file_begins_anew(self):
        path = self.folder / "points.csv"
        for provider in ["liger", "quack"]:
            writer = PointWriter(path)
            writer.write(point(provider))
            writer.close()
        self.assertEqual(read_points(path), [point("quack")])


class Comparing(Folder):
    FILES = [
        [point(OURS, fraction=0.9), point(OURS, dtype="f32", fraction=0.8), point(OURS, op="prod")],
        [point("pytorch", fraction=0.3), point("quack", fraction=1.0), point("pytorch", dtype="f32", fraction=0.2)],
        [point("liger", op="sum")],
    ]

    def test_ours_beside_the_fastest(self):
        comparisons = compare.compare(compare.merge(self.FILES))
        found = {comparison.ours.dtype: comparison for comparison in comparisons}
        self.assertEqual({dtype: c.fastest.provider for dtype, c in found.items()}, {"bf16": "quack", "f32": "pytorch"})
        self.assertAlmostEqual(found["bf16"].ratio, 0.9)
        self.assertAlmostEqual(found["f32"].ratio, 4.0)

    def test_the_later_file_counts(self):
        merged = compare.merge([[point(OURS, fraction=0.9)], [point(OURS, fraction=0.7)]])
        self.assertEqual([p.fraction for p in merged[OURS].values()], [0.7])

    def test_table(self):
        text = compare.markdown(compare.merge(self.FILES))
        mean = math.sqrt(0.9 * 4.0)
        self.assertIn(f"Geometric mean of all ratios: {mean:.2f} over 2 points, 1 of them below 0.99.", text)
        self.assertIn("| bf16 | 32768×4096 | 100.0 (0.90) | QuACK | 100.0 (1.00) | 0.90 |", text)
        self.assertIn("without a counterpart: candle-rowwise 1, Liger 1.", text)

    def test_rows_of_the_table_go_by_size(self):
        shapes = ["4096x50257", "262144x256", "64x4096x512", "64x8192", "16384x8192"]
        files = [[point(provider, shape=shape) for shape in shapes] for provider in (OURS, "quack")]
        comparisons = sorted(compare.compare(compare.merge(files)), key=compare.order)
        ordered = ["262144x256", "64x8192", "16384x8192", "4096x50257", "64x4096x512"]
        self.assertEqual([comparison.ours.shape for comparison in comparisons], ordered)

    def test_nothing_in_common(self):
        self.assertIn("No point", compare.markdown(compare.merge([[point("liger")]])))

    def test_a_line_takes_the_shape_with_the_most_rows(self):
        points = [point(OURS, shape=shape, fraction=f) for shape, f in [("64x8192", 0.2), ("16384x8192", 0.9)]]
        points += [point(OURS, shape="4096x50257", fraction=0.5), point(OURS, shape="2x4096x2", fraction=0.1)]
        (merged,) = compare.merge([points]).values()
        self.assertEqual(compare.lines_of(merged, "softmax", "bf16"), ([(8192, 0.9)], [(50257, 0.5)]))

    def test_without_matplotlib_there_is_a_table(self):
        paths = []
        for i, points in enumerate(self.FILES):
            paths.append(str(self.folder / f"{i}.csv"))
            writer = PointWriter(paths[-1])
            for each in points:
                writer.write(each)
            writer.close()
        table, plots = self.folder / "table.md", self.folder / "plots"
        said = io.StringIO()
        with mock.patch.dict(sys.modules, {"matplotlib": None}), contextlib.redirect_stderr(said):
            with contextlib.redirect_stdout(io.StringIO()):
                compare.main([*paths, "--markdown", str(table), "--plots", str(plots)])
        self.assertIn("no pictures", said.getvalue())
        self.assertIn("### softmax", table.read_text())

    def test_pictures(self):
        try:
            import matplotlib  # noqa: F401
        except ImportError:
            self.skipTest("no matplotlib")
        written = compare.plot(compare.merge(self.FILES), self.folder / "plots", "png")
        self.assertEqual(sorted(path.name for path in written), ["prod.png", "softmax.png", "sum.png"])
        self.assertTrue(all(path.stat().st_size > 1000 for path in written))


class Options(unittest.TestCase):
    def refused(self, *arguments):
        with self.assertRaises(SystemExit), contextlib.redirect_stderr(io.StringIO()):
            peers.parse_options(arguments)

    def test_defaults(self):
        options = peers.parse_options([])
        self.assertEqual(options.shapes, default_shapes())
        self.assertEqual(options.ops, list(peers.OPS))
        self.assertIsNone(options.compile_shapes)

    def test_shapes_once_each(self):
        options = peers.parse_options(["--shape", "3x5", "--shape", "2x4", "--shape", "3x5"])
        self.assertEqual(options.shapes, [(3, 5), (2, 4)])

    def test_shapes_of_our_csv(self):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "ours.csv"
            writer = PointWriter(path)
            for shape in ["2x4", "2x4x8", "3x5"]:
                writer.write(point(OURS, shape=shape))
            writer.close()
            with contextlib.redirect_stdout(io.StringIO()) as said:
                options = peers.parse_options(["--shapes-of", str(path)])
        self.assertEqual(options.shapes, [(2, 4), (3, 5)])
        self.assertIn("columns", said.getvalue())

    def test_widths_to_compile(self):
        self.assertEqual(peers.parse_widths("256,1024"), {256, 1024})
        self.assertIn(4096, peers.parse_widths("few"))

    def test_what_is_not_there_is_refused(self):
        self.refused("--ops", "softmix")
        self.refused("--dtypes", "bf17")
        self.refused("--providers", "apex")
        self.refused("--shape", "12")
        self.refused("--compile-shapes", "some")
        self.refused("--shapes-of", "/nowhere.csv")


class Bytes(unittest.TestCase):
    """As `Problem::ideal_bytes` counts them."""

    def test_rows_and_what_goes_with_each(self):
        rows, width = 8, 100
        for op, dtype, of_a_row in [
            ("softmax", "bf16", 400),
            ("add-rms-norm", "f32", 1600),
            ("layer-norm-gradient", "bf16", 600),
            ("sum", "bf16", 202),
            ("argmax", "f32", 404),
            # The target of 4 bytes, the loss in f32 and the pair of statistics; with the gradient, no pair.
            ("cross-entropy", "bf16", 200 + 4 + 4 + 8),
            ("cross-entropy-with-gradient", "bf16", 400 + 4 + 4),
        ]:
            with self.subTest(op):
                self.assertEqual(peers.OPS[op].bytes(rows, width, peers.ITEM_BYTES[dtype]), rows * of_a_row)

    def test_rotation_leaves_the_cache(self):
        for size in [1, 1 << 20, 100 << 20, 1 << 30]:
            self.assertGreaterEqual(peers.rotation(size), 2)
        self.assertEqual(peers.rotation(100 << 20), 4)
        self.assertEqual(peers.rotation(1), 4096)

    def test_forward_ops(self):
        self.assertEqual(peers.forward_of("log-softmax-gradient"), "log-softmax")
        self.assertEqual(peers.forward_of("cross-entropy-with-gradient"), "cross-entropy")
        self.assertEqual(peers.forward_of("sum"), "sum")


class Timing(unittest.TestCase):
    def test_fast_ops_are_timed_as_ours(self):
        self.assertEqual(peers.plan_runs(130e-6), (peers.LAUNCHES, peers.RUNS))

    def test_slow_ones_stay_within_the_limit(self):
        for estimate in [1e-3, 2e-3, 4e-3, 10e-3]:
            launches, runs = peers.plan_runs(estimate)
            self.assertGreaterEqual(runs, 3)
            self.assertLessEqual(estimate * launches * (runs + 1), peers.POINT_SECONDS)
        self.assertEqual(peers.plan_runs(1.0), (3, 3))

    def test_median_of_a_launch_and_turns_in_order(self):
        turns = []

        class Clock:
            times = iter([3.0, 500.0, 40.0, 20.0, 60.0])

            def synchronize(self):
                pass

            def seconds(self, launches):
                for launch in launches:
                    launch()
                return next(self.times)

        with mock.patch.object(peers, "plan_runs", return_value=(20, 3)):
            self.assertEqual(peers.median_seconds(Clock(), turns.append), 2.0)
        self.assertEqual(turns, [0, 0, 1, 2, *range(80)])


class Fake:
    """A provider."""

    def __init__(self, name, compiles=False):
        self.name, self.compiles = name, compiles


class Order(unittest.TestCase):
    def test_coverage_order_is_a_permutation_and_begins_in_the_middle(self):
        for count in range(20):
            ordered = peers.coverage_order(list(range(count)))
            self.assertEqual(sorted(ordered), list(range(count)))
        self.assertEqual(peers.coverage_order(list(range(7))), [3, 1, 5, 0, 2, 4, 6])

    def test_what_compiles_comes_last(self):
        providers = [Fake("slow", compiles=True), Fake("fast")]
        ordered = peers.tasks(providers, ["sum", "max"], ["bf16", "f32"], [(2, 8), (4, 4)])
        self.assertEqual([task.provider.name for task in ordered], ["fast"] * 8 + ["slow"] * 8)
        self.assertEqual(len({task.key for task in ordered}), 16)

    def test_only_some_shapes_are_compiled(self):
        providers = [Fake("slow", compiles=True), Fake("fast")]
        ordered = peers.tasks(providers, ["sum"], ["bf16"], [(2, 8), (4, 4)], {4})
        self.assertEqual([task.key for task in ordered if task.provider.compiles], [("slow", "sum", "bf16", "4x4")])

    def test_workers_share_all_that_compiles(self):
        providers = [Fake("a", compiles=True), Fake("b", compiles=True), Fake("fast")]
        ordered = peers.tasks(providers, ["sum", "max"], ["bf16"], [(rows, 8) for rows in range(1, 13)])
        shares = [peers.share(ordered, f"{i}/4") for i in range(4)]
        keys = [task.key for share in shares for task in share]
        self.assertEqual(sorted(keys), sorted(task.key for task in ordered if task.provider.compiles))
        for share in shares:
            self.assertEqual({task.provider.name for task in share}, {"a", "b"})


class Running(Folder):
    def setUp(self):
        super().setUp()
        self.path = self.folder / "peers.csv"
        self.ordered = peers.tasks([Fake("one"), Fake("two")], ["sum", "max"], ["bf16"], [(2, 8)])
        self.said = []

    def run_all(self, measure, seconds=None, clock=lambda: 0.0, resume=False):
        writer = PointWriter(self.path, resume)
        left = peers.run_tasks(self.ordered, measure, writer, seconds, clock, self.said.append)
        writer.close()
        return left

    def measured(self, task):
        return point(task.provider.name, task.op, task.dtype, "2x8")

    def test_all_points_are_written(self):
        self.assertEqual(self.run_all(self.measured), [])
        self.assertEqual(len(read_points(self.path)), 4)

    def test_the_time_is_kept(self):
        now = [0.0]

        def measure(task):
            now[0] += 10.0
            return self.measured(task)

        left = self.run_all(measure, seconds=15.0, clock=lambda: now[0])
        self.assertEqual((len(left), len(read_points(self.path))), (2, 2))
        self.assertIn("2 of 4 points are left", self.said[-1])
        # What is left is what a second run does.
        self.run_all(self.measured, resume=True)
        written = [(each.provider, *each.place) for each in read_points(self.path)]
        self.assertEqual(written, [task.key for task in self.ordered])

    def test_what_fails_is_said_and_left_out(self):
        def measure(task):
            if task.provider.name == "one":
                raise RuntimeError("\n  no such width \nmore")
            return self.measured(task) if task.op == "sum" else None

        self.run_all(measure)
        self.assertEqual([(each.provider, each.op) for each in read_points(self.path)], [("two", "sum")])
        self.assertIn("one sum bf16 2x8 left out: RuntimeError: no such width", self.said)

    def test_a_lost_gpu_ends_the_run(self):
        def measure(task):
            if task.op == "max":
                raise peers.LostGpu("an illegal address")
            return self.measured(task)

        left = self.run_all(measure)
        self.assertEqual((len(left), len(read_points(self.path))), (2, 2))

    def test_a_missing_provider_is_said_and_left_out(self):
        missing = ["liger_kernel", "liger_kernel.ops", "quack", "cutlass", "nvidia_cutlass_dsl"]
        torch = types.SimpleNamespace(__version__="2.11")
        with mock.patch.dict(sys.modules, dict.fromkeys(missing)), mock.patch("importlib.util.find_spec"):
            loaded = peers.load_providers(["pytorch", "liger", "quack"], torch, self.said.append)
        self.assertEqual([provider.name for provider in loaded], ["pytorch"])
        self.assertIn("pytorch 2.11", self.said)
        self.assertTrue(any(line.startswith("liger left out:") for line in self.said), self.said)
        self.assertTrue(any(line.startswith("quack left out:") for line in self.said), self.said)

    def test_without_pytorch_it_says_so(self):
        with mock.patch.dict(sys.modules, {"torch": None}), contextlib.redirect_stdout(io.StringIO()) as said:
            peers.main(["--csv", str(self.path)])
        self.assertIn("skipped", said.getvalue())
        self.assertFalse(self.path.exists())


if __name__ == "__main__":
    unittest.main()
