#!/usr/bin/env python3
"""Times the row-wise ops of PyTorch, torch.compile, Liger and QuACK on one GPU, as benches/cuda.rs times ours.

    benches/peers.py [--csv peers.csv] [--ops softmax,rms-norm] [--shape 32768x4096]... [--seconds 240]

Device time between two events around repeated launches, the inputs rotated through more memory than the L2 cache
holds, the median of several runs, beside it a device-to-device copy of as many bytes as the op must move. What is timed
is checked against f64. The CSV is that of the Rust bench with a column for the provider; benches/compare.py puts the
two side by side.

Ops have the names that our bench has. Where peers' ops are not quite ours: an argmax of PyTorch is of 8 bytes, not 4; a
gradient of softmax reads the softmax where ours reads its input; gradients of norms end with the sum over partial
sums of dweight and dbias, which our bench leaves out; PyTorch and Liger divide cross-entropy with gradient into a pass
forward and one backward, and Liger's waits for the host in each call.
"""

import argparse
import importlib
import importlib.metadata
import importlib.util
import os
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from figures import Point, PointWriter, default_shapes, parse_shape, read_points, width_of

LAUNCHES = 20
RUNS = 7
# What the timing of one point may take, in seconds; slow ones are launched less often.
POINT_SECONDS = 0.2
# Inputs rotate through at least this many bytes.
ROTATION_BYTES = 400 << 20
EPS = 1e-6
ITEM_BYTES = {"bf16": 2, "f16": 2, "f32": 4, "f64": 8}
FEW_WIDTHS = [1024, 4096, 16384, 65536, 131072, 50257]


@dataclass(frozen=True)
class Op:
    """What an op must move for a row: rows of its dtype, elements of it, other bytes. `sides` are its inputs beside
    the row."""

    rows: int
    elements: int = 0
    other: int = 0
    sides: tuple = ()

    def bytes(self, rows, width, item):
        return rows * (self.rows * width * item + self.elements * item + self.other)


REDUCTION = Op(1, elements=1)
OPS = {
    "softmax": Op(2),
    "rms-norm": Op(2, sides=("weight",)),
    "layer-norm": Op(2, sides=("weight", "bias")),
    "cross-entropy": Op(1, other=16, sides=("target",)),
    "softmax-gradient": Op(3),
    "rms-norm-gradient": Op(3, sides=("weight",)),
    "layer-norm-gradient": Op(3, sides=("weight", "bias")),
    "cross-entropy-with-gradient": Op(2, other=8, sides=("target",)),
    "add-rms-norm": Op(4, sides=("residual", "weight")),
    "log-softmax": Op(2),
    "log-softmax-gradient": Op(3),
    "sum": REDUCTION,
    "max": REDUCTION,
    "argmax": Op(1, other=4),
    "logsumexp": REDUCTION,
    "var": REDUCTION,
    "mean-of-squares": REDUCTION,
}


def forward_of(op):
    """The op whose gradient `op` is, or `op` itself."""
    return op.removesuffix("-gradient").removesuffix("-with")


# Inputs


class Inputs:
    """The tensors of one dtype and shape, made when they are first asked for and shared by all ops and providers."""

    def __init__(self, torch, dtype, rows, width, count=None):
        self.torch, self.dtype, self.rows, self.width = torch, dtype, rows, width
        self.item = ITEM_BYTES[dtype]
        self.torch_dtype = {
            "bf16": torch.bfloat16,
            "f16": torch.float16,
            "f32": torch.float32,
            "f64": torch.float64,
        }[dtype]
        self.count = count or rotation(rows * width * self.item)
        self.made = {}
        self.copies = {}

    def of(self, name):
        """A list of `count` tensors of rows (`x`, `residual`, `gradient`) or targets, or of vectors."""
        if name not in self.made:
            torch = self.torch
            if name == "target":
                make = lambda: torch.randint(0, self.width, (self.rows,), device="cuda")
            elif name in ("weight", "bias"):
                vector = torch.randn(self.width, device="cuda", dtype=self.torch_dtype)
                make = lambda: vector
            else:
                make = lambda: torch.randn(self.rows, self.width, device="cuda", dtype=self.torch_dtype)
            self.made[name] = [make() for _ in range(self.count)]
        return self.made[name]

    def arguments(self, op):
        """For each turn, the op's row and sides."""
        return list(zip(*(self.of(name) for name in ("x", *OPS[op].sides))))

    def leaves(self, op):
        """Arguments that gradients are asked of. They share the memory of the others."""

        def leaf(tensor):
            return tensor.detach().requires_grad_() if tensor.is_floating_point() else tensor

        return [tuple(leaf(tensor) for tensor in arguments) for arguments in self.arguments(op)]

    def copy_seconds(self, gpu, size):
        """Of copies that read and write `size` bytes in all."""
        if size not in self.copies:
            half = max(1, size // 2)
            pairs = [
                [self.torch.zeros(half, dtype=self.torch.uint8, device="cuda") for _ in range(2)]
                for _ in range(rotation(half))
            ]
            self.copies[size] = median_seconds(gpu, lambda i: pairs[i % len(pairs)][1].copy_(pairs[i % len(pairs)][0]))
        return self.copies[size]


def rotation(size):
    """Sets of `size` bytes that are more than the L2 cache holds."""
    return min(4096, max(2, ROTATION_BYTES // max(1, size)))


# Providers: each makes the launch of an op, a function of the number of the launch that returns the result (of
# gradients, that of the input), or `None` where it has no such op.


def torch_forward(torch, op):
    """The op as users of PyTorch write it, or `None`."""
    functional = torch.nn.functional

    def rms_norm(x, weight):
        return functional.rms_norm(x, x.shape[-1:], weight, EPS)

    def layer_norm(x, weight, bias):
        return functional.layer_norm(x, x.shape[-1:], weight, bias, EPS)

    def add_rms_norm(x, residual, weight):
        sum = x + residual
        return functional.rms_norm(sum, sum.shape[-1:], weight, EPS), sum

    return {
        "softmax": lambda x: functional.softmax(x, -1),
        "log-softmax": lambda x: functional.log_softmax(x, -1),
        "rms-norm": rms_norm,
        "layer-norm": layer_norm,
        "add-rms-norm": add_rms_norm,
        "cross-entropy": lambda x, target: functional.cross_entropy(x, target, reduction="none"),
        "sum": lambda x: x.sum(-1),
        "max": lambda x: x.amax(-1),
        "argmax": lambda x: x.argmax(-1),
        "logsumexp": lambda x: x.logsumexp(-1),
        "var": lambda x: x.var(-1),
        "mean-of-squares": lambda x: x.square().mean(-1),
    }.get(op)


def first(result):
    return result[0] if isinstance(result, (tuple, list)) else result


def in_turn(function, arguments):
    """A launch of a function of one turn's arguments."""
    return lambda i: first(function(*arguments[i % len(arguments)]))


def through_autograd(torch, function, inputs, op):
    """A launch of the op, if it is a gradient that of the backward pass alone, from the forward function."""
    if op == forward_of(op):
        return in_turn(function, inputs.arguments(op))
    leaves = inputs.leaves(op)
    if op == "cross-entropy-with-gradient":
        ones = torch.ones(inputs.rows, device="cuda")

        def both(x, target):
            loss = first(function(x, target))
            return torch.autograd.grad(loss, x, ones.to(loss.dtype))

        return in_turn(both, leaves)
    turns = [
        (first(function(*tensors)), [tensor for tensor in tensors if tensor.requires_grad], gradient)
        for tensors, gradient in zip(leaves, inputs.of("gradient"))
    ]
    return in_turn(lambda y, wanted, gradient: torch.autograd.grad(y, wanted, gradient, retain_graph=True), turns)


class PyTorch:
    name = "pytorch"
    compiles = False

    def __init__(self, torch):
        self.torch = torch
        self.version = torch.__version__

    def launch(self, op, inputs):
        torch = self.torch
        # Results of reductions can be given, and a norm reads its input once where squares would be stored.
        into = {
            "sum": torch.sum,
            "max": torch.amax,
            "argmax": torch.argmax,
            "logsumexp": torch.logsumexp,
            "var": torch.var,
        }.get(op)
        if into is not None:
            out = torch.empty(inputs.rows, device="cuda", dtype=torch.int64 if op == "argmax" else inputs.torch_dtype)
            return in_turn(lambda x: into(x, dim=-1, out=out), inputs.arguments(op))
        if op == "mean-of-squares":
            norm = torch.linalg.vector_norm
            # Of halves the norm's square is rounded once, at its end.
            wide = torch.float32 if inputs.item == 2 else inputs.torch_dtype
            return in_turn(lambda x: norm(x, dim=-1, dtype=wide).square_().div_(inputs.width), inputs.arguments(op))
        function = torch_forward(torch, forward_of(op))
        return function and through_autograd(torch, function, inputs, op)


class TorchCompile:
    name = "torch-compile"
    compiles = True

    def __init__(self, torch):
        self.torch = torch
        self.version = torch.__version__
        # Graphs are kept for launch after launch.
        import torch._functorch.config as config

        if hasattr(config, "donated_buffer"):
            config.donated_buffer = False

    def launch(self, op, inputs):
        # Each shape has its own code, as a first call of a shape has; none counts as one too many of a function.
        self.torch._dynamo.reset()
        function = torch_forward(self.torch, forward_of(op))
        return function and through_autograd(self.torch, self.torch.compile(function, dynamic=False), inputs, op)


class Liger:
    name = "liger"
    compiles = False

    def __init__(self, torch):
        from liger_kernel.ops.cross_entropy import LigerCrossEntropyFunction
        from liger_kernel.ops.fused_add_rms_norm import LigerFusedAddRMSNormFunction
        from liger_kernel.ops.layer_norm import LigerLayerNormFunction
        from liger_kernel.ops.rms_norm import LigerRMSNormFunction
        from liger_kernel.ops.softmax import LigerSoftmaxFunction

        self.torch = torch
        self.version = importlib.metadata.version("liger-kernel")
        # The last arguments of norms: no weight offset, casts as in Llama, and the gradient not in dy's place.
        norm_options = (EPS, 0.0, "llama", False)
        self.loss = LigerCrossEntropyFunction.apply
        # No weight, ignored index, z-loss or label smoothing.
        self.loss_options = (None, -100, 0.0, 0.0)
        self.functions = {
            "softmax": LigerSoftmaxFunction.apply,
            "rms-norm": lambda x, weight: LigerRMSNormFunction.apply(x, weight, *norm_options),
            "layer-norm": lambda x, weight, bias: LigerLayerNormFunction.apply(x, weight, bias, EPS),
            "add-rms-norm": lambda x, residual, weight: LigerFusedAddRMSNormFunction.apply(
                x, residual, weight, *norm_options
            ),
            "cross-entropy": lambda x, target: self.loss(x, target, *self.loss_options, "none"),
        }

    def launch(self, op, inputs):
        torch = self.torch
        if op == "cross-entropy-with-gradient":
            # It writes the gradient over the logits, which others still need. The sum's gradient of 1 spares it
            # the pass that scales the gradient.
            turns = [(x.clone().requires_grad_(), target) for x, target in inputs.arguments(op)]

            def both(x, target):
                loss = first(self.loss(x, target, *self.loss_options, "sum"))
                return torch.autograd.grad(loss, x)

            return in_turn(both, turns)
        function = self.functions.get(forward_of(op))
        return function and through_autograd(torch, function, inputs, op)


class Quack:
    name = "quack"
    compiles = True

    def __init__(self, torch):
        find_dsl_packages()
        # The package has functions of these names, so that its modules are not had by `from quack import`.
        self.softmax, self.norm, self.loss = (
            importlib.import_module(f"quack.{name}") for name in ("softmax", "rmsnorm", "cross_entropy")
        )
        self.torch = torch
        self.version = importlib.metadata.version("quack-kernels")

    def launch(self, op, inputs):
        softmax, norm, loss = self.softmax, self.norm, self.loss
        arguments = inputs.arguments(op)
        if op == "softmax":
            return in_turn(softmax.softmax_fwd, arguments)
        if op == "softmax-gradient":
            turns = [(gradient, self.torch.softmax(x, -1)) for (x,), gradient in zip(arguments, inputs.of("gradient"))]
            return in_turn(softmax.softmax_bwd, turns)
        if op == "rms-norm":
            return in_turn(lambda x, weight: norm.rmsnorm_fwd(x, weight, eps=EPS), arguments)
        if op == "add-rms-norm":
            return in_turn(
                lambda x, residual, weight: norm.rmsnorm_fwd(x, weight, residual=residual, eps=EPS), arguments
            )
        if op == "rms-norm-gradient":
            turns = [
                (x, weight, gradient, norm.rmsnorm_fwd(x, weight, eps=EPS, store_rstd=True)[2])
                for (x, weight), gradient in zip(arguments, inputs.of("gradient"))
            ]
            return in_turn(norm.rmsnorm_bwd, turns)
        if op in ("layer-norm", "layer-norm-gradient"):
            # It takes no other weights.
            turns = [(x, weight.float(), bias.float()) for x, weight, bias in arguments]
            if op == "layer-norm":
                return in_turn(lambda x, weight, bias: norm.layernorm_fwd(x, weight, bias, EPS), turns)
            turns = [
                (x, weight, gradient, *norm.layernorm_fwd(x, weight, bias, EPS, True, True)[1:])
                for (x, weight, bias), gradient in zip(turns, inputs.of("gradient"))
            ]
            return in_turn(norm.layernorm_bwd, turns)
        if op == "cross-entropy":
            return in_turn(loss.cross_entropy_fwd, arguments)
        if op == "cross-entropy-with-gradient":
            return in_turn(lambda x, target: loss.cross_entropy_fwd(x, target, return_dx=True)[1], arguments)
        return None


def find_dsl_packages():
    """nvidia-cutlass-dsl keeps its modules in a folder of its own, which a .pth file names; one that is only on
    PYTHONPATH has no such files read."""
    if importlib.util.find_spec("cutlass") is not None:
        return
    found = importlib.util.find_spec("nvidia_cutlass_dsl")
    for folder in (found and found.submodule_search_locations) or []:
        packages = Path(folder) / "dsl_packages"
        if packages.is_dir():
            sys.path.append(str(packages))
            os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), str(packages)]))


PROVIDERS = {provider.name: provider for provider in (PyTorch, TorchCompile, Liger, Quack)}


def load_providers(names, torch, say=print):
    """Those that can be loaded; of each other one, a line that says why it cannot."""
    loaded = []
    for name in names:
        try:
            provider = PROVIDERS[name](torch)
        except Exception as error:
            say(f"{name} left out: {reason(error)}")
        else:
            say(f"{name} {provider.version}")
            loaded.append(provider)
    return loaded


def reason(error):
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0][:120] if lines else ''}"


# Timing


class Gpu:
    """What of a GPU timing needs."""

    def __init__(self, torch):
        self.torch = torch
        self.start, self.end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def synchronize(self):
        self.torch.cuda.synchronize()

    def seconds(self, launches):
        """Device time of calls of a function."""
        # While the device waits, the host gets ahead of it, so that the first call's way is not timed.
        self.torch.cuda._sleep(500_000)
        self.start.record()
        for launch in launches:
            launch()
        self.end.record()
        self.end.synchronize()
        return self.start.elapsed_time(self.end) * 1e-3


def plan_runs(estimate, limit=POINT_SECONDS):
    """Launches of a run and runs, of an op that takes `estimate` seconds: as ours are where that takes no longer than
    `limit`, else fewer, of at least 3 runs of 3."""
    whole = lambda launches, runs: estimate * launches * (runs + 1) <= limit
    for launches, runs in [(LAUNCHES, RUNS), (LAUNCHES, 5), (LAUNCHES, 3), (10, 3), (5, 3)]:
        if whole(launches, runs):
            return launches, runs
    return 3, 3


def median_seconds(gpu, launch):
    """Seconds of a launch, the first of which also compiles."""
    launch(0)
    gpu.synchronize()

    def run(number, launches):
        return (
            gpu.seconds([lambda i=i: launch(i) for i in range(number * launches, (number + 1) * launches)]) / launches
        )

    launches, runs = plan_runs(run(0, 3))
    # The first to warm up.
    times = [run(number, launches) for number in range(runs + 1)]
    return statistics.median(times[1:])


# Checking


def check(inputs, op, result):
    """Rows at the ends and in the middle of the result of turn 0 against f64: a coarse net for calls that are wrong."""
    torch = inputs.torch
    picked = sorted({0, inputs.rows // 2, inputs.rows - 1})
    tensors = [
        tensor if tensor.dim() == 1 and name in ("weight", "bias") else tensor[picked]
        for name, tensor in zip(("x", *OPS[op].sides), inputs.arguments(op)[0])
    ]
    tensors = [tensor.double() if tensor.is_floating_point() else tensor for tensor in tensors]
    got = result.detach()[picked]
    if op == "argmax":
        # Of values that are equal, any.
        got = tensors[0].gather(1, got.long().unsqueeze(1)).squeeze(1)
    got = got.double()
    function = torch_forward(torch, "max" if op == "argmax" else forward_of(op))
    if op != forward_of(op):
        tensors[0].requires_grad_()
    want = first(function(*tensors))
    if op == "cross-entropy-with-gradient":
        want = torch.autograd.grad(want.sum(), tensors[0])[0]
    elif op != forward_of(op):
        want = torch.autograd.grad(want, tensors[0], inputs.of("gradient")[0][picked].double())[0]
    unit = {"bf16": 2**-7, "f16": 2**-10}.get(inputs.dtype, 1e-5)
    if want.dim() == 2:
        floor = want.square().mean(-1, keepdim=True).sqrt()
    else:
        floor = 10 * inputs.width**0.5 if op == "sum" else 1.0
    # NaN is far.
    if not ((got - want).abs() <= 4 * unit * (want.abs() + floor)).all():
        raise ArithmeticError("the result is not what f64 says")


# Order


@dataclass(frozen=True)
class Task:
    provider: object
    op: str
    dtype: str
    shape: tuple

    @property
    def key(self):
        rows, width = self.shape
        return self.provider.name, self.op, self.dtype, f"{rows}x{width}"


def coverage_order(items):
    """The middle one, then those in the middle of what lies on either side, and so on: whatever part of it has been
    done is spread over the whole."""
    spans, ordered = [(0, len(items))], []
    while spans:
        nearer = []
        for low, high in spans:
            if low < high:
                middle = (low + high) // 2
                ordered.append(items[middle])
                nearer += [(low, middle), (middle + 1, high)]
        spans = nearer
    return ordered


def tasks(providers, ops, dtypes, shapes, compile_widths=None):
    """First those that cost no compiling to speak of, over all shapes; then the others, dtype by dtype, those of the
    widths that were asked for."""
    shapes = coverage_order(sorted(shapes, key=lambda shape: (shape[1], shape[0])))
    ordered = []
    for compiles in (False, True):
        some = [provider for provider in providers if provider.compiles == compiles]
        for dtype in dtypes:
            for shape in shapes:
                if compiles and compile_widths is not None and shape[1] not in compile_widths:
                    continue
                ordered += [Task(provider, op, dtype, shape) for op in ops for provider in some]
    return ordered


def run_tasks(ordered, measure, writer, seconds=None, clock=time.monotonic, say=print):
    """Measures task by task until the time is up, and writes each point. `measure` returns `None` of an op that a
    provider does not have. Returns the tasks that were not come to."""
    end = None if seconds is None else clock() + seconds
    for i, task in enumerate(ordered):
        if task.key in writer.done:
            continue
        if end is not None and clock() >= end:
            left = len(ordered) - i
            say(f"the time is up: {left} of {len(ordered)} points are left")
            return ordered[i:]
        try:
            point = measure(task)
        except LostGpu as error:
            say(f"{' '.join(task.key)}: {error}; no more can be measured in this process")
            return ordered[i:]
        except Exception as error:
            say(f"{' '.join(task.key)} left out: {reason(error)}")
            continue
        if point is not None:
            writer.write(point)
            say(
                f"{point.provider:14} {point.op:28} {point.dtype:5} {point.shape:>15} {point.us:>10.2f} us"
                f" {point.gbs:>6.0f} GB/s {point.copy_us:>10.2f} us of copy {point.fraction:>7.3f}"
            )
    return []


class LostGpu(Exception):
    """After a fault of a kernel the process has no use of the GPU."""


class Bench:
    """Measures tasks; keeps the inputs of the last dtype and shape."""

    def __init__(self, torch, count=None):
        self.torch = torch
        self.gpu = Gpu(torch)
        self.count = count
        self.inputs = None

    def inputs_of(self, task):
        rows, width = task.shape
        now = self.inputs
        if now is None or (now.dtype, now.rows, now.width) != (task.dtype, rows, width):
            self.inputs = now = None
            self.torch.cuda.empty_cache()
            self.torch.manual_seed(rows * 31 + width)
            self.inputs = Inputs(self.torch, task.dtype, rows, width, self.count)
        return self.inputs

    def measure(self, task):
        try:
            return self.timed(task)
        except Exception as error:
            try:
                self.gpu.synchronize()
                self.torch.cuda.empty_cache()
            except Exception as fault:
                raise LostGpu(reason(fault)) from error
            raise

    def timed(self, task):
        inputs = self.inputs_of(task)
        launch = task.provider.launch(task.op, inputs)
        if launch is None:
            return None
        # Before the first launch is timed, since Liger's loss overwrites its logits.
        check(inputs, task.op, launch(0))
        seconds = median_seconds(self.gpu, launch)
        size = OPS[task.op].bytes(inputs.rows, inputs.width, inputs.item)
        copy = inputs.copy_seconds(self.gpu, size)
        return Point(*task.key, seconds * 1e6, size / seconds * 1e-9, copy * 1e6, copy / seconds)

    def warm(self, task):
        """Compiles without timing: what is compiled stays in the compilers' caches on disk."""
        launch = task.provider.launch(task.op, self.inputs_of(task))
        if launch is not None:
            launch(0)
            self.gpu.synchronize()


class NoWriter:
    done = ()


# The command line


def named(text, known, what):
    names = list(known) if text == "all" else text.split(",")
    for name in names:
        if name not in known:
            raise SystemExit(f"there is no {what} {name}; there are {', '.join(known)}")
    return names


def parse_widths(text):
    """`None` of all, else a set."""
    if text == "all":
        return None
    try:
        return set(FEW_WIDTHS) if text == "few" else {int(width) for width in text.split(",")}
    except ValueError as error:
        raise SystemExit(f"--compile-shapes takes all, few or widths such as 1024,4096, not {text}") from error


def shapes_of(options):
    """Those that were asked for, each once."""
    shapes = [parse_shape(text) for text in options.shape]
    for path in options.shapes_of:
        of_file = {point.shape for point in read_points(path)}
        shapes += [parse_shape(shape) for shape in sorted(of_file) if width_of(shape) is not None]
        if any(width_of(shape) is None for shape in of_file):
            print(f"shapes of {path} that are columns are left out")
    return list(dict.fromkeys(shapes or default_shapes()))


def parse_options(arguments):
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--csv", type=Path, default=Path("peers.csv"), help="where the points go (peers.csv)")
    parser.add_argument("--resume", action="store_true", help="keep the points of the CSV and measure the others")
    parser.add_argument("--providers", default="all", help=f"of {','.join(PROVIDERS)}")
    parser.add_argument("--ops", default="all", help=f"of {','.join(OPS)}")
    parser.add_argument("--dtypes", default="bf16,f32", help=f"of {','.join(ITEM_BYTES)}")
    parser.add_argument("--shape", action="append", default=[], help="ROWSxWIDTH; may be repeated")
    parser.add_argument("--shapes-of", action="append", default=[], metavar="CSV", help="the shapes of that file")
    parser.add_argument("--seconds", type=float, help="stop after so long, compiling included")
    parser.add_argument(
        "--compile-shapes", default="all", help="the widths that torch.compile and QuACK are run on: all, few or a list"
    )
    parser.add_argument(
        "--warm-workers", type=int, default=0, help="compile first, in so many processes, for half of the time at most"
    )
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    options.providers = named(options.providers, PROVIDERS, "provider")
    options.ops = named(options.ops, OPS, "op")
    options.dtypes = named(options.dtypes, ITEM_BYTES, "dtype")
    options.compile_shapes = parse_widths(options.compile_shapes)
    try:
        options.shapes = shapes_of(options)
    except (ValueError, OSError) as error:
        raise SystemExit(str(error)) from error
    return options


def share(ordered, text):
    """The part of a worker that is I/N. Each round begins with another worker, so that no worker has all of one
    provider's tasks."""
    index, count = (int(part) for part in text.split("/"))
    compiled = [task for task in ordered if task.provider.compiles]
    return [task for i, task in enumerate(compiled) if (i + i // count) % count == index]


def warm_workers(count, arguments, seconds):
    """Processes that compile, each a share."""
    limit = ["--seconds", str(seconds / 2)] if seconds else []
    script = str(Path(__file__).resolve())
    started = time.monotonic()
    workers = [
        subprocess.Popen(
            [sys.executable, script, *arguments, *limit, "--worker", f"{i}/{count}"], stdout=subprocess.DEVNULL
        )
        for i in range(count)
    ]
    for worker in workers:
        worker.wait()
    print(f"{count} processes compiled for {time.monotonic() - started:.0f} s", flush=True)


def main(arguments=None):
    arguments = sys.argv[1:] if arguments is None else arguments
    options = parse_options(arguments)
    say = lambda line: print(line, flush=True)
    started = time.monotonic()
    try:
        import torch
    except ImportError as error:
        say(f"skipped: {error}")
        return
    if not torch.cuda.is_available():
        say("skipped: PyTorch sees no GPU")
        return
    say(torch.cuda.get_device_name())
    providers = load_providers(options.providers, torch, say)
    ordered = tasks(providers, options.ops, options.dtypes, options.shapes, options.compile_shapes)
    if options.worker:
        bench = Bench(torch, count=2)
        run_tasks(share(ordered, options.worker), bench.warm, NoWriter(), options.seconds, say=say)
        return
    if options.warm_workers and any(task.provider.compiles for task in ordered):
        warm_workers(options.warm_workers, arguments, options.seconds)
    writer = PointWriter(options.csv, options.resume)
    left = options.seconds and options.seconds - (time.monotonic() - started)
    run_tasks(ordered, Bench(torch).measure, writer, left, say=say)
    writer.close()


if __name__ == "__main__":
    main()
