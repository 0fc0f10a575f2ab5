"""Records what a function does on CPU tensors as a lowering Program, and runs lowered programs on a PJRT CPU plugin.

The recorder is the model of the one in C++: storages are cells, views are layouts, in-place operators become functional
ones and a write. It runs the function for real, so the expected results come with the program.
"""

import dataclasses
import functools

import numpy
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

from torch_accel.lowering import (
    Layout,
    Leaf,
    Program,
    Record,
    Ref,
    ScalarRef,
    StridedRead,
    StridedWrite,
    lower,
    runtime_scalars,
)
from torch_accel.lowering.interpreter import functional
from torch_accel.lowering.views import is_dense

# Dtypes that numpy has not travel as integers of the same size.
CARRIER = {torch.bfloat16: torch.int16, torch.float8_e4m3fn: torch.int8, torch.float8_e5m2: torch.int8}
aten = torch.ops.aten


@dataclasses.dataclass
class Cell:
    storage: torch.UntypedStorage
    value: int
    layout: Layout


def covers(tensor: torch.Tensor) -> bool:
    return is_dense(Layout.of(tensor)) and tensor.untyped_storage().nbytes() == tensor.nbytes


class Trace(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.cells: dict[int, Cell] = {}
        self.leaves, self.contents, self.steps, self.scalars, self.numbers = [], [], [], [], []
        self.count = 0  # of the values that steps make
        self.off = False

    # Values of steps are numbered from 0 here and shifted behind the leaves in `program`; leaf i is ~i.
    def step(self, step, width: int = 1) -> int:
        self.steps.append(step)
        self.count += width
        return self.count - width

    def cell(self, tensor: torch.Tensor) -> Cell:
        storage = tensor.untyped_storage()
        found = self.cells.get(storage._cdata)
        if found is None:
            whole = (
                tensor
                if covers(tensor)
                else torch.empty(0, dtype=tensor.dtype).set_(storage, 0, [storage.nbytes() // tensor.dtype.itemsize])
            )
            self.leaves.append(Leaf(Layout.of(whole)))
            self.contents.append(whole.detach().clone())
            found = self.cells[storage._cdata] = Cell(storage, ~(len(self.leaves) - 1), Layout.of(whole))
        return found

    def read(self, tensor: torch.Tensor) -> int:
        cell, layout = self.cell(tensor), Layout.of(tensor)
        if cell.layout == layout:
            return cell.value
        return self.step(StridedRead(cell.value, cell.layout, layout))

    def write(self, tensor: torch.Tensor, value: int) -> None:
        cell, layout = self.cell(tensor), Layout.of(tensor)
        if covers(tensor):
            cell.value, cell.layout = value, layout
            return
        size = tensor.untyped_storage().nbytes() // cell.layout.dtype.itemsize
        if not is_dense(cell.layout) or functools.reduce(lambda a, c: a * c, cell.layout.sizes, 1) != size:
            whole = Layout((size,), (1,), 0, cell.layout.dtype)
            cell.value, cell.layout = self.step(StridedRead(cell.value, cell.layout, whole)), whole
        cell.value = self.step(StridedWrite(cell.value, value, cell.layout, layout))

    def scalar(self, number) -> ScalarRef:
        kinds = {bool: torch.bool, int: torch.int64, float: torch.float64, complex: torch.complex128}
        self.scalars.append(kinds[type(number)])
        self.numbers.append(number)
        return ScalarRef(len(self.scalars) - 1)

    def record(self, func, args, kwargs, results) -> list[int]:
        op, names = str(func), set(runtime_scalars(str(func)))

        def convert(name, x, default):
            if isinstance(x, torch.Tensor):
                return Ref(self.read(x))
            if isinstance(x, (list, tuple)):
                return [convert(name, item, None) for item in x]
            number = isinstance(x, (bool, int, float, complex))
            return self.scalar(x) if number and name in names and x != default else x

        def wrapped(a, x):
            """A number where a tensor is wanted."""
            number = isinstance(x, (bool, int, float, complex))
            return self.scalar(x) if number and str(a.type) == "Tensor" else convert(a.name, x, a.default_value)

        schema = {a.name: a for a in func._schema.arguments}
        new_args = tuple(wrapped(a, x) for a, x in zip(func._schema.arguments, args, strict=False))
        new_kwargs = {name: wrapped(schema[name], x) for name, x in kwargs.items() if name != "generator"}
        if torch.Tag.nondeterministic_seeded in func.tags:
            new_kwargs |= {"seed": self.scalar(1234), "offset": self.scalar(0)}
        flat = tree_flatten(results)[0]
        outputs = tuple(Layout.of(r) if isinstance(r, torch.Tensor) else None for r in flat)
        first = self.step(Record(op, new_args, outputs, new_kwargs), len(outputs))
        return list(range(first, first + len(outputs)))

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func.is_view or torch.Tag.inplace_view in func.tags or func is aten.lift_fresh.default:
            for x in tree_flatten((args, kwargs))[0]:
                if isinstance(x, torch.Tensor):
                    self.cell(x)
            return func(*args, **kwargs)
        if func in (aten.native_batch_norm.default, aten._native_batch_norm_legit.default) and args[3] is not None:
            return self.batch_norm(args)
        if not func._schema.is_mutable:
            results = func(*args, **kwargs)
            if any(
                r.untyped_storage()._cdata in self.cells
                for r in tree_flatten(results)[0]
                if isinstance(r, torch.Tensor)
            ):
                return results  # unsafe_split and the like: views that do not say so
            for result, value in zip(tree_flatten(results)[0], self.record(func, args, kwargs, results), strict=True):
                if isinstance(result, torch.Tensor):
                    self.cells[result.untyped_storage()._cdata] = Cell(
                        result.untyped_storage(), value, Layout.of(result)
                    )
            return results
        found, given = (
            functional(func),
            dict(zip([a.name for a in func._schema.arguments], args, strict=False)) | kwargs,
        )
        outs = {a.name for a in func._schema.arguments if a.is_out}
        written = tree_flatten(
            [given[a.name] for a in func._schema.arguments if a.alias_info and a.alias_info.is_write]
        )[0]
        rest = {name: x for name, x in kwargs.items() if name not in outs}
        results = found(*args, **rest)
        for target, result, value in zip(
            written, tree_flatten(results)[0], self.record(found, args, rest, results), strict=True
        ):
            if result.dtype != target.dtype:
                layout = dataclasses.replace(Layout.of(result), dtype=target.dtype)
                value = self.step(Record("aten._to_copy.default", (Ref(value),), (layout,), {"dtype": target.dtype}))
            self.write(target, value)
        return func(*args, **kwargs)

    def batch_norm(self, args):
        func = aten._native_batch_norm_legit_functional.default
        copies = [a.clone() if i in (3, 4) and a is not None else a for i, a in enumerate(args)]
        results = func(*copies)
        values = self.record(func, args, {}, results)
        for result, value in zip(results[:3], values, strict=False):
            self.cells[result.untyped_storage()._cdata] = Cell(result.untyped_storage(), value, Layout.of(result))
        for target, result, value in zip(args[3:5], results[3:], values[3:], strict=True):
            self.write(target, value)
            target.copy_(result)
        return results[:3]

    def program(self, outputs) -> Program:
        """`outputs`: tensors whose values are the results."""
        for_numpy = []
        for tensor in outputs:
            value = self.read(tensor)
            carrier = CARRIER.get(tensor.dtype)
            if carrier:
                layout = Layout.contiguous(tensor.shape, tensor.dtype)
                value = self.step(StridedRead(value, layout, dataclasses.replace(layout, dtype=carrier)))
            for_numpy.append(value)
        # Leaves of dtypes without a numpy form arrive as integers and are read by a dtype view first.
        leaves, first, extra = [], {}, []
        for i, leaf in enumerate(self.leaves):
            carrier = CARRIER.get(leaf.layout.dtype)
            leaves.append(Leaf(dataclasses.replace(leaf.layout, dtype=carrier or leaf.layout.dtype)))
            if carrier:
                first[i] = len(self.leaves) + len(extra)
                extra.append(StridedRead(i, leaves[i].layout, leaf.layout))
        shift = len(leaves) + len(extra)

        def number(i: int) -> int:
            return i + shift if i >= 0 else first.get(~i, ~i)

        def renumber(step):
            if isinstance(step, StridedRead):
                return dataclasses.replace(step, value=number(step.value))
            if isinstance(step, StridedWrite):
                return dataclasses.replace(step, value=number(step.value), part=number(step.part))
            args, kwargs = tree_map(
                lambda x: Ref(number(x.index)) if isinstance(x, Ref) else x, (list(step.args), step.kwargs)
            )
            return dataclasses.replace(step, args=tuple(args), kwargs=kwargs)

        steps = (*extra, *map(renumber, self.steps))
        return Program(tuple(leaves), steps, tuple(map(number, for_numpy)), tuple(self.scalars))


# ------------------------------------------------------------------------------------------------ execution
@functools.cache
def client():
    """A PJRT client; skips the test where the extension for tests or a CPU plugin is missing."""
    core = pytest.importorskip("torch_accel._core_test", reason="torch_accel._core_test is not built")
    pjrt = pytest.importorskip("torch_accel.pjrt", reason="torch_accel.pjrt is missing")
    path = pjrt.plugin_path()
    if path is None:
        pytest.skip("no PJRT CPU plugin: install lammps-jax-pjrt-cpu or xla-cpu-pjrt")
    return core.open(path)


def to_numpy(tensor: torch.Tensor) -> numpy.ndarray:
    tensor = tensor.detach().resolve_conj().resolve_neg().contiguous()
    carrier = CARRIER.get(tensor.dtype)
    return (tensor.view(carrier) if carrier else tensor).numpy()


def execute(lowered, contents, numbers=()):
    """Results as CPU tensors (dtypes without a numpy form as integers), and the error word."""
    numpy_of = {
        torch.bool: bool,
        torch.int64: numpy.int64,
        torch.float64: numpy.float64,
        torch.complex128: numpy.complex128,
    }
    arrays = [to_numpy(t) for t in contents]
    arrays += [
        numpy.array([numbers[i] for i in members], numpy_of[dtype]) for dtype, members in lowered.scalar_arguments
    ]
    results = [torch.from_numpy(numpy.array(r)) for r in client().compile(lowered.text).execute(arrays)]
    word = int(results.pop()) if lowered.has_error_word else 0
    return results, word


def trace(fn, *inputs):
    """Program, contents of its leaves, run-time numbers, expected results: all tensors of fn's result, then the inputs."""
    recorder = Trace()
    for x in tree_flatten(inputs)[0]:
        if isinstance(x, torch.Tensor):
            recorder.cell(x)
    with recorder:
        results = fn(*inputs)
    outputs = [x for x in tree_flatten((results, inputs))[0] if isinstance(x, torch.Tensor)]
    program = recorder.program(outputs)
    return program, recorder.contents, recorder.numbers, [x.detach() for x in outputs]


def check(fn, *inputs, rtol=None, atol=None, exact=False):
    """Runs fn on CPU tensors, lowers what it did, executes that, and compares all results and the inputs after it."""
    program, contents, numbers, expected = trace(fn, *inputs)
    lowered = lower(program)
    results, word = execute(lowered, contents, numbers)
    assert word == 0
    assert len(results) == len(expected)
    for result, want in zip(results, expected, strict=True):
        if want.dtype in CARRIER:
            result = result.view(want.dtype)
        if exact:
            rtol = atol = 0
        torch.testing.assert_close(result.reshape(want.shape), want.contiguous(), rtol=rtol, atol=atol, equal_nan=True)
    return lowered
