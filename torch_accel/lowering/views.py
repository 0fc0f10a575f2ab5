"""Reads and writes of strided layouts.

A value lies in its storage as layout `written`. `read` gives the elements at another layout, `write` replaces them.
Both first look for a *plan*: dimensions of the written layout, split where the other layout needs it, such that the
other layout picks a strided range of each. A plan is a reshape, a slice and a transpose. Where there is none, positions
are computed and gathered or scattered, which is always right.

Dtype views: the written layout is expressed in units that divide both element sizes, the elements of a unit being one
more dimension at the end.
"""

import dataclasses
import math

import torch

from .emitter import REAL_OF, Emitter, Value
from .program import Layout


@dataclasses.dataclass(frozen=True)
class _Plan:
    order: list[int]  # of the written dimensions, by falling stride
    shape: list[int]  # what the transposed value is reshaped to
    start: list[int]
    step: list[int]
    count: list[int]
    dims: list[int]  # which dimension of `shape` each dimension of the other layout picks from


def _by_stride(sizes, strides, keep) -> list[int]:
    return sorted((i for i in range(len(sizes)) if keep(i)), key=lambda i: (-strides[i], i))


def _merge(dims):
    """Merges neighbours [(size, stride), ...] that are one range."""
    merged: list[tuple[int, int]] = []
    for size, stride in dims:
        if merged and merged[-1][1] == size * stride:
            merged[-1] = (merged[-1][0] * size, stride)
        else:
            merged.append((size, stride))
    return merged


def _split(dims, strides):
    """Splits dimensions so that each of `strides` that can be the stride of a dimension is one."""
    for wanted in strides:
        result = []
        for size, stride in dims:
            inner = wanted // stride if stride else 0
            if inner > 1 and wanted % stride == 0 and inner < size and size % inner == 0:
                result += [(size // inner, wanted), (inner, stride)]
            else:
                result.append((size, stride))
        dims = result
    return dims


def _match(dims, offset: int, other):
    """start, step, count, picked dimension: how `other` [(size, stride), ...] at `offset` lies in `dims`."""
    start = []
    for size, stride in dims:
        start.append(min(offset // stride, size - 1) if stride else 0)
        offset -= start[-1] * stride
    if offset:
        return None
    step, count, picks = [1] * len(dims), [1] * len(dims), []
    for size, stride in other:
        for k, (extent, unit) in enumerate(dims):
            if unit and stride % unit == 0 and k not in picks and start[k] + (stride // unit) * (size - 1) < extent:
                step[k], count[k] = stride // unit, size
                picks.append(k)
                break
        else:
            return None
    return start, step, count, picks


def _plan(written: Layout, other) -> _Plan | None:
    """A plan for `other`: its offset and its dimensions [(size, stride), ...], by falling stride, merged."""
    offset, other = other[0] - written.offset, other[1]
    if offset < 0:
        return None
    order = _by_stride(written.sizes, written.strides, lambda i: True)
    kept = [(written.sizes[i], written.strides[i]) for i in order if written.sizes[i] != 1]
    strides = [stride for _, stride in other]
    merged = _merge(kept)
    for dims in (kept, merged, _split(merged, strides), _split(kept, strides)):
        found = _match(dims, offset, other)
        if found:
            return _Plan(order, [size for size, _ in dims], *found)
    return None


def _inverse(permutation) -> list[int]:
    result = [0] * len(permutation)
    for i, k in enumerate(permutation):
        result[k] = i
    return result


class _Access:
    """The layout of a read or write, without dimensions of size 1 and stride 0, sorted and merged."""

    def __init__(self, layout: Layout):
        sizes, strides = layout.sizes, layout.strides
        self.layout = layout
        self.order = _by_stride(sizes, strides, lambda i: sizes[i] != 1 and strides[i] != 0)
        self.sorted = [(sizes[i], strides[i]) for i in self.order]
        self.merged = _merge(self.sorted)

    def plan(self, written: Layout) -> _Plan | None:
        for dims in (self.sorted, self.merged):
            plan = _plan(written, (self.layout.offset, dims))
            if plan:
                return plan
        return None

    def expand(self, b: Emitter, value: Value) -> Value:
        """From the sorted (or merged) order to the shape of the layout."""
        value = b.reshape(value, [size for size, _ in self.sorted])
        kept = sorted(self.order)
        value = b.transpose(value, [self.order.index(i) for i in kept])
        return b.broadcast(value, self.layout.sizes, None if len(kept) == len(self.layout.sizes) else kept)

    def shrink(self, b: Emitter, part: Value) -> Value:
        """The inverse: from the shape of the layout to the sorted order. Of repeated elements the first is taken."""
        limit = [size if i in self.order else 1 for i, size in enumerate(part.shape)]
        part = b.slice(part, [0] * part.rank, limit)
        kept = sorted(self.order)
        part = b.reshape(part, [part.shape[i] for i in kept])
        return b.transpose(part, [kept.index(i) for i in self.order])


# ------------------------------------------------------------------------------------------------ any layout
def _extent(layout: Layout) -> tuple[int, int]:
    """First position and one past the last."""
    last = sum((size - 1) * stride for size, stride in zip(layout.sizes, layout.strides, strict=True))
    return layout.offset, layout.offset + last + 1


def _positions(b: Emitter, layout: Layout, base: int) -> Value:
    """Position of each element minus `base`, shape [..., 1]."""
    dtype = torch.int64 if _extent(layout)[1] > 2**31 - 1 else torch.int32
    result = b.const(layout.offset - base, dtype, layout.sizes)
    for i, stride in enumerate(layout.strides):
        if stride and layout.sizes[i] > 1:
            result = b.add(result, b.multiply(b.iota(layout.sizes, i, dtype), stride))
    return b.reshape(result, (*layout.sizes, 1))


def numel(layout: Layout) -> int:
    return math.prod(layout.sizes)


def is_dense(layout: Layout) -> bool:
    """Whether the elements fill one range of the storage, each position once."""
    order = _by_stride(layout.sizes, layout.strides, lambda i: layout.sizes[i] != 1)
    dims = [(layout.sizes[i], layout.strides[i]) for i in order]
    return _merge(dims) in ([], [(numel(layout), 1)])


def _flat(b: Emitter, value: Value, layout: Layout, low: int, high: int) -> Value:
    """The storage positions low..high as a 1-D value, zeros where `layout` has no element."""
    if is_dense(layout):
        first, last = _extent(layout)
        flat = b.reshape(b.transpose(value, _by_stride(layout.sizes, layout.strides, lambda i: True)), [value.numel])
        return b.pad(flat, 0, [first - low], [high - last])
    zeros = b.const(0, value.dtype, [high - low])
    return _scatter(b, zeros, value, layout, low)


def _scatter(b: Emitter, flat: Value, part: Value, layout: Layout, base: int) -> Value:
    return b.scatter(flat, _positions(b, layout, base), part, [], [0], [0], lambda old, new: new)


def _gather(b: Emitter, flat: Value, layout: Layout, base: int) -> Value:
    return b.gather(flat, _positions(b, layout, base), [], [0], [0], [1], layout.sizes)


# ------------------------------------------------------------------------------------------------ dtypes
def _unit(a: torch.dtype, c: torch.dtype) -> torch.dtype:
    """The dtype in whose elements both layouts are expressed."""
    if a == c:
        return a
    real = {REAL_OF.get(a, a), REAL_OF.get(c, c)}
    if len(real) == 1:
        return real.pop()
    return {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[
        min(REAL_OF.get(d, d).itemsize for d in (a, c))
    ]


def _narrow(layout: Layout, unit: torch.dtype) -> Layout:
    """`layout` in elements of `unit`."""
    ratio = layout.dtype.itemsize // unit.itemsize
    if ratio == 1:
        return dataclasses.replace(layout, dtype=unit)
    strides = tuple(stride * ratio for stride in layout.strides)
    return Layout((*layout.sizes, ratio), (*strides, 1), layout.offset * ratio, unit)


def _to_unit(b: Emitter, value: Value, unit: torch.dtype) -> Value:
    if value.dtype == unit:
        return value
    if value.dtype.is_complex:
        parts = [b.reshape(part, (*value.shape, 1)) for part in (b.real(value), b.imag(value))]
        value = b.concatenate(parts, value.rank)
        if value.dtype == unit:
            return value
        wide = b.bitcast(value, unit)
        return b.reshape(wide, (*value.shape[:-1], -(-value.shape[-1] * value.dtype.itemsize // unit.itemsize)))
    if value.dtype == torch.bool:
        value = b.cast(value, torch.uint8)
    return b.bitcast(value, unit) if value.dtype != unit else value


def _from_unit(b: Emitter, value: Value, dtype: torch.dtype) -> Value:
    if value.dtype == dtype:
        return value
    if dtype.is_complex:
        real, rows = REAL_OF[dtype], value.shape[:-1]
        pairs = value
        if value.dtype != real:
            ratio = real.itemsize // value.dtype.itemsize
            pairs = b.bitcast(b.reshape(value, (*rows, 2, ratio) if ratio > 1 else (*rows, 2)), real)
        parts = [b.reshape(b.slice_dim(pairs, len(rows), i, i + 1), rows) for i in (0, 1)]
        return b.complex(*parts)
    if dtype == torch.bool:
        return b.cast(b.bitcast(value, torch.uint8) if value.dtype != torch.uint8 else value, torch.bool)
    return b.bitcast(value, dtype)


# ------------------------------------------------------------------------------------------------ read and write
def read(b: Emitter, value: Value, written: Layout, wanted: Layout) -> Value:
    """The elements at `wanted` of `value`, which lies as `written`; zeros where nothing was written.

    The result has shape wanted.sizes and dtype wanted.dtype. `wanted` may overlap itself.
    """
    if written == wanted:
        return value
    if 0 in wanted.sizes or 0 in written.sizes:
        return b.const(0, wanted.dtype, wanted.sizes)
    unit = _unit(written.dtype, wanted.dtype)
    dtype = wanted.dtype
    value, written, wanted = _to_unit(b, value, unit), _narrow(written, unit), _narrow(wanted, unit)
    return _from_unit(b, _read(b, value, written, wanted), dtype)


def _read(b: Emitter, value: Value, written: Layout, wanted: Layout) -> Value:
    access = _Access(wanted)
    plan = access.plan(written)
    if plan is None:
        low, high = min(_extent(written)[0], wanted.offset), max(_extent(written)[1], _extent(wanted)[1])
        return _gather(b, _flat(b, value, written, low, high), wanted, low)
    value = b.reshape(b.transpose(value, plan.order), plan.shape)
    ranges = list(zip(plan.start, plan.step, plan.count, strict=True))
    limit = [start + step * (count - 1) + 1 for start, step, count in ranges]
    value = b.slice(value, plan.start, limit, plan.step)
    rest = [k for k in range(len(plan.shape)) if k not in plan.dims]
    value = b.transpose(value, [*plan.dims, *rest])
    return access.expand(b, value)


def write(b: Emitter, value: Value, part: Value, written: Layout, place: Layout) -> Value:
    """`value`, which lies as `written`, with `part` written at `place`; the result lies as `written`.

    `part` has shape place.sizes and dtype place.dtype. Positions of `place` that `written` has not are dropped.
    """
    if written == place:
        return part
    if 0 in place.sizes or 0 in written.sizes:
        return value
    unit = _unit(written.dtype, place.dtype)
    dtype = written.dtype
    value, part = _to_unit(b, value, unit), _to_unit(b, part, unit)
    if dtype != place.dtype:
        # XLA:CPU of 2026 (seen with PJRT API 0.115, not with 0.81) updates a bitcast value in place while the part is still
        # being computed from it: the rows of a flip come out twice.
        part = b.barrier(part)
    return _from_unit(b, _write(b, value, part, _narrow(written, unit), _narrow(place, unit)), dtype)


def _write(b: Emitter, value: Value, part: Value, written: Layout, place: Layout) -> Value:
    access = _Access(place)
    plan = access.plan(written)
    part = access.shrink(b, part)
    if plan is None:
        low, high = min(_extent(written)[0], place.offset), max(_extent(written)[1], _extent(place)[1])
        flat = _flat(b, value, written, low, high)
        dims = access.sorted
        sizes, strides = tuple(size for size, _ in dims), tuple(stride for _, stride in dims)
        flat = _scatter(b, flat, part, Layout(sizes, strides, place.offset, place.dtype), low)
        return _read(b, flat, Layout((high - low,), (1,), low, place.dtype), written)
    base = b.reshape(b.transpose(value, plan.order), plan.shape)
    part = b.reshape(part, [plan.count[k] for k in plan.dims])
    if plan.dims != list(range(len(plan.shape))):
        rank = len(plan.dims)
        part = b.transpose(part, sorted(range(rank), key=lambda i: plan.dims[i]))
        part = b.reshape(part, plan.count)
    if all(step == 1 for step in plan.step):
        base = b.update(base, part, plan.start)
    else:
        ranges = zip(plan.shape, plan.start, plan.step, plan.count, strict=True)
        high = [size - start - step * (count - 1) - 1 for size, start, step, count in ranges]
        gaps = [step - 1 for step in plan.step]
        mask = b.pad(b.const(True, torch.bool, part.shape), False, plan.start, high, gaps)
        base = b.select(mask, b.pad(part, 0, plan.start, high, gaps), base)
    shape = [written.sizes[i] for i in plan.order]
    return b.transpose(b.reshape(base, shape), _inverse(plan.order))
