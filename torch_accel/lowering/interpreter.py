"""Lowers a Program: direct rules first, then torch's decompositions and composite implementations.

A decomposition runs under a dispatch mode on Meta tensors. Every Meta storage has a cell (a value and its layout), so
views and in-place operators inside a decomposition mean what they mean in torch, by the same reads and writes of strided
layouts as on the tape.
"""

import dataclasses
import functools

import torch
from torch._decomp import decomposition_table
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

from . import views
from .emitter import Emitter, Value
from .program import Layout, Leaf, Lowered, Program, Record, Ref, ScalarRef, StridedRead, StridedWrite
from .registry import RULES, NotLowerable, overload

_NUMBERS = {torch.float64: 1.0, torch.float32: 1.0, torch.int64: 1, torch.bool: True, torch.complex128: 1j}
_COMPOSITE = [
    getattr(torch._C.DispatchKey, name)
    for name in ("CompositeImplicitAutograd", "CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional")
]


@dataclasses.dataclass
class _Cell:
    """What a Meta storage holds. `tensor` keeps the storage alive, so that its address stays its identity."""

    tensor: torch.Tensor
    layout: Layout
    value: Value


@functools.cache
def functional(func) -> torch._ops.OpOverload | None:
    """The overload that returns what `func` (in-place or out=) writes, or None."""
    if str(func) == "prims.copy_to.default":
        return torch.ops.aten.copy.default
    name = func._schema.name.split("::")[1]
    wanted = [(a.name, str(a.type)) for a in func._schema.arguments if not a.is_out]
    packets = [name, name.removesuffix("_"), name.removesuffix("_") + "_functional"]
    for packet in (getattr(torch.ops.aten, p, None) for p in packets):
        for over in packet.overloads() if packet else ():
            found = getattr(packet, over)
            same = [(a.name, str(a.type)) for a in found._schema.arguments] == wanted
            if same and not found._schema.is_mutable and len(found._schema.returns):
                return found
    return None


def _is_tensor(x) -> bool:
    return isinstance(x, torch.Tensor)


def _number(x):
    """A number of the kind of a run-time scalar, for Meta kernels, which look at the kind only."""
    return _NUMBERS[x.dtype] if isinstance(x, Value) and x.weak else x


class Lowering(TorchDispatchMode):
    """Runs operators on Meta tensors and emits what they do."""

    def __init__(self, b: Emitter):
        super().__init__()
        self.b = b
        self.cells: dict[int, _Cell] = {}
        self.seed: tuple[Value, Value] | None = None
        self.drawn = 0
        self.active: list = []  # operators whose decomposition is running

    # ------------------------------------------------------------------------------------------------ tensors and values
    def _cell(self, tensor) -> _Cell:
        storage = tensor.untyped_storage()
        cell = self.cells.get(storage._cdata)
        if cell is None:
            raise NotLowerable(
                "torch_accel: lowering: expected a traced tensor, got one that a decomposition made unseen"
            )
        return cell

    def value(self, tensor: torch.Tensor) -> Value:
        """The value of a tensor: read through its layout if Meta, a constant if on the CPU."""
        if tensor.device.type != "meta":
            return self.b.dense(tensor)
        cell, layout = self._cell(tensor), Layout.of(tensor)
        return views.read(self.b, cell.value, cell.layout, layout)

    def store(self, tensor: torch.Tensor, value: Value) -> None:
        """Writes `value` into a Meta tensor."""
        cell, layout = self._cell(tensor), Layout.of(tensor)
        value = self.b.broadcast(self.b.cast(value, layout.dtype), layout.sizes)
        if layout == cell.layout or (views.is_dense(layout) and tensor.untyped_storage().nbytes() == tensor.nbytes):
            cell.value, cell.layout = value, layout
            return
        if not views.is_dense(cell.layout):
            whole = Layout((tensor.untyped_storage().nbytes() // tensor.dtype.itemsize,), (1,), 0, layout.dtype)
            cell.value, cell.layout = views.read(self.b, cell.value, cell.layout, whole), whole
        cell.value = views.write(self.b, cell.value, value, cell.layout, layout)

    def tensor(self, value: Value, layout: Layout) -> torch.Tensor:
        """A new Meta tensor that holds `value`. Its storage is its own, so strides that overlap become contiguous ones:
        a decomposition may write into a clone that keeps the strides."""
        if not views.is_dense(layout):
            layout = Layout.contiguous(layout.sizes, layout.dtype)
        fresh = torch.empty_strided(layout.sizes, layout.strides, dtype=layout.dtype, device="meta")
        self.cells[fresh.untyped_storage()._cdata] = _Cell(fresh, Layout.of(fresh), value)
        return fresh

    # ------------------------------------------------------------------------------------------------ operators
    def by_rule(self, rule, out, args, kwargs) -> list[Value]:
        """Values of a rule's results, with the dtypes and shapes that `out` says."""
        if rule.random:
            if self.seed is None:
                raise NotLowerable("torch_accel: expected seed and offset of a random operator, got none")
            seed, offset = self.seed
            kwargs = {**kwargs, "seed": seed, "offset": self.b.add(offset, self.drawn)}
            self.drawn += sum(views.numel(layout) for layout in out if layout)
        result = rule(self.b, out[0] if len(out) == 1 else out, args, kwargs)
        results = [result] if isinstance(result, Value) else list(result)
        for i, layout in enumerate(out):
            if layout is None:
                results[i] = None
                continue
            results[i] = self.b.cast(results[i], layout.dtype)
            if results[i].shape != tuple(layout.sizes):
                raise RuntimeError(
                    f"torch_accel: lowering: expected shape {layout.sizes}, got {results[i].shape} (wrong rule)"
                )
        return results

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if any(a.name == "device" for a in func._schema.arguments) and func is not torch.ops.aten._to_copy.default:
            kwargs = {**kwargs, "device": torch.device("meta")}
        tensors = [x for x in tree_flatten((args, kwargs))[0] if _is_tensor(x)]
        to_meta = str(kwargs.get("device")) == "meta"
        if tensors and not to_meta and all(t.device.type == "cpu" for t in tensors):
            return func(*args, **kwargs)  # torch.tensor(1.0) inside of a decomposition
        rule = RULES.get(str(func))
        if rule is not None:
            return self._run_rule(rule, func, args, kwargs)
        if func.is_view or torch.Tag.inplace_view in func.tags:
            return func(*args, **kwargs)
        if func._schema.is_mutable:
            return self._run_mutable(func, args, kwargs)
        return self._decompose(func, args, kwargs)

    def _run_rule(self, rule, func, args, kwargs):
        to_meta = functools.partial(tree_map, lambda x: x.to("meta") if _is_tensor(x) and x.dim() else _number(x))
        results = func(*to_meta(args), **to_meta(kwargs))
        flat, spec = tree_flatten(results)
        out = [Layout.of(r) if _is_tensor(r) else None for r in flat]
        to_values = functools.partial(tree_map, lambda x: self.value(x) if _is_tensor(x) else x)
        values = self.by_rule(rule, out, to_values(args), to_values(kwargs))
        fresh = [self.tensor(v, layout) if layout else None for v, layout in zip(values, out, strict=True)]
        return torch.utils._pytree.tree_unflatten(fresh, spec)

    def _run_mutable(self, func, args, kwargs):
        found = functional(func)
        if found is None:
            raise NotLowerable(f"torch_accel: {func}: expected a functional counterpart, got none")
        given = {a.name: v for a, v in zip(func._schema.arguments, args, strict=False)} | kwargs
        names = {a.name for a in func._schema.arguments if a.is_out}
        written = [given[a.name] for a in func._schema.arguments if a.alias_info and a.alias_info.is_write]
        with self:
            results = found(*args, **{name: v for name, v in kwargs.items() if name not in names})
        targets, sources = tree_flatten(written)[0], tree_flatten(results)[0]
        for target, source in zip(targets, sources, strict=True):
            self.store(target, self.value(source))
        returned = written[0] if len(written) == 1 else tuple(written)
        return returned if func._schema.returns else None

    def _decompose(self, func, args, kwargs):
        # Some decompositions end in a primitive that is implemented by the operator they came from.
        if self.active.count(func) > 3:
            raise NotLowerable(
                f"torch_accel: {func}: expected a rule or a decomposition, got one that leads back to it"
            )
        self.active.append(func)
        try:
            with self:
                if func in decomposition_table:
                    return decomposition_table[func](*args, **kwargs)
                for key in _COMPOSITE:
                    if func.has_kernel_for_dispatch_key(key):
                        return func._op_dk(key, *args, **kwargs)
        finally:
            self.active.pop()
        raise NotLowerable(f"torch_accel: {func}: expected a rule or a decomposition, got none")

    # ------------------------------------------------------------------------------------------------ records
    def record(self, op: str, outputs, args, kwargs, layouts) -> list[Value | None]:
        """Lowers one operator call. `args` and `kwargs` hold Values, whose layouts are in `layouts` by name of the value."""
        func, rule = overload(op), RULES.get(op)
        kwargs = dict(kwargs)
        seed = kwargs.pop("seed", None), kwargs.pop("offset", None)
        self.seed = None if seed[0] is None else tuple(self.b.op("convert", [v], (), torch.uint64) for v in seed)
        self.drawn = 0
        if rule is not None and outputs is not None:
            return self.by_rule(rule, outputs, args, kwargs)

        def to_tensor(x):
            if not isinstance(x, Value):
                return x
            if x.weak and rule is None:
                raise NotLowerable(
                    f"torch_accel: {op}: expected constants, got a run-time scalar (see runtime_scalars)"
                )
            return x if x.weak else self.tensor(x, layouts[x.name])

        args, kwargs = tree_map(to_tensor, (list(args), kwargs))
        try:
            with torch.no_grad():
                results = self.__torch_dispatch__(func, (), tuple(args), kwargs)
        except NotLowerable:
            raise
        except Exception as error:  # a decomposition that looks at data, a Meta kernel that is missing, ...
            raise NotLowerable(f"torch_accel: {op}: {type(error).__name__}: {error}") from error
        values = [self.value(r) if _is_tensor(r) else None for r in tree_flatten(results)[0]]
        shapes = [v and v.shape for v in values]
        if outputs is not None and shapes != [layout and tuple(layout.sizes) for layout in outputs]:
            raise NotLowerable(
                f"torch_accel: {op}: expected the shapes that were recorded, got {shapes} by decomposition"
            )
        dtypes = [layout and layout.dtype for layout in outputs or ()]
        return [v and self.b.cast(v, dtype) for v, dtype in zip(values, dtypes, strict=True)] if outputs else values


def _live(program: Program) -> tuple[list[int], list[bool]]:
    """First value number of each step, and whether an output needs the step."""
    first, count = [], len(program.leaves)
    for step in program.steps:
        first.append(count)
        count += len(step.outputs) if isinstance(step, Record) else 1
    needed = [False] * count
    for index in program.outputs:
        needed[index] = True
    live = [False] * len(program.steps)
    for i in reversed(range(len(live))):
        step = program.steps[i]
        width = len(step.outputs) if isinstance(step, Record) else 1
        live[i] = any(needed[first[i] : first[i] + width])
        if live[i]:
            for index in _operands(step):
                needed[index] = True
    return first, live


def _argument(values, scalars, x):
    """The value that an argument of a record stands for."""
    if isinstance(x, Ref):
        return values[x.index]
    return scalars[x.index] if isinstance(x, ScalarRef) else x


def _operands(step) -> list[int]:
    if isinstance(step, StridedRead):
        return [step.value]
    if isinstance(step, StridedWrite):
        return [step.value, step.part]
    return [x.index for x in tree_flatten((list(step.args), step.kwargs))[0] if isinstance(x, Ref)]


def lower(program: Program) -> Lowered:
    """Lowers a program to a StableHLO module. Steps that no output needs vanish.

    Raises NotLowerable (a NotImplementedError) with the operator's name if a record has no lowering.
    """
    b = Emitter(program.precision)
    run = Lowering(b)
    values: list[Value | None] = [b.argument(leaf.layout.sizes, leaf.layout.dtype) for leaf in program.leaves]
    layouts = {v.name: leaf.layout for v, leaf in zip(values, program.leaves, strict=True)}
    scalars, packs = _scalars(b, program.scalars)
    first, live = _live(program)
    for i, step in enumerate(program.steps):
        b.position = i
        if not live[i]:
            values += [None] * (len(step.outputs) if isinstance(step, Record) else 1)
        elif isinstance(step, StridedRead):
            value = views.read(b, values[step.value], step.written, step.read)
            values.append(value)
            layouts[value.name] = dataclasses.replace(step.read, offset=0)
        elif isinstance(step, StridedWrite):
            value = views.write(b, values[step.value], values[step.part], step.written, step.write)
            values.append(value)
            layouts[value.name] = step.written
        else:
            args, kwargs = tree_map(functools.partial(_argument, values, scalars), (list(step.args), step.kwargs))
            try:
                results = run.record(step.op, step.outputs, args, kwargs, layouts)
            except NotLowerable as error:
                raise NotLowerable(f"torch_accel: lowering of {step.op}: {error}") from error
            for value, layout in zip(results, step.outputs, strict=True):
                values.append(value)
                if value is not None:
                    layouts[value.name] = layout
    outputs = [values[i] for i in program.outputs]
    aliases = _aliases(program, outputs)
    has_error_word = program.checked and bool(b.checks)
    results = [*outputs, b.error_word()] if has_error_word else outputs
    return Lowered(b.text(results, aliases), packs, aliases, has_error_word)


def _scalars(b: Emitter, dtypes):
    """The run-time scalars, unpacked from one argument per dtype."""
    values: list[Value | None] = [None] * len(dtypes)
    packs = []
    for dtype in sorted(set(dtypes), key=str):
        members = tuple(i for i, other in enumerate(dtypes) if other == dtype)
        packed = b.argument((len(members),), dtype)
        packs.append((dtype, members))
        for k, i in enumerate(members):
            values[i] = dataclasses.replace(b.reshape(b.slice(packed, [k], [k + 1]), ()), weak=True)
    return values, tuple(packs)


def _aliases(program: Program, outputs) -> dict[int, int]:
    aliases: dict[int, int] = {}
    for i in program.donated:
        leaf = program.leaves[i].layout
        for k, value in enumerate(outputs):
            if k not in aliases.values() and value.shape == tuple(leaf.sizes) and value.dtype == leaf.dtype:
                aliases[i] = k
                break
    return aliases


# ------------------------------------------------------------------------------------------------ queries
def why_not(op: str, args, kwargs=None, outputs=None) -> str | None:
    """Why a call cannot be lowered; None if it can. Nothing is kept: the rules run on a scratch emitter.

    `args` and `kwargs` hold a Layout for each tensor, and the types float, int, bool, complex for run-time scalars.
    `outputs` are the layouts of the results; without them the Meta kernels are asked.
    """
    b = Emitter()
    layouts: dict[str, Layout] = {}
    kinds = {float: torch.float64, int: torch.int64, bool: torch.bool, complex: torch.complex128}

    def value(x):
        if isinstance(x, Layout):
            leaf = Leaf(x)
            argument = b.argument(leaf.layout.sizes, leaf.layout.dtype)
            layouts[argument.name] = x
            return argument
        return b.argument((), kinds[x], weak=True) if isinstance(x, type) and x in kinds else x

    args, kwargs = tree_map(value, (list(args), kwargs or {}))
    try:
        Lowering(b).record(op, outputs, args, kwargs, layouts)
    except Exception as error:  # whatever a decomposition raises means that this call has no lowering
        return str(error) or type(error).__name__
    return None


def can_lower(op: str, args, kwargs=None, outputs=None) -> bool:
    """Whether a call can be lowered; arguments as for `why_not`."""
    return why_not(op, args, kwargs, outputs) is None
