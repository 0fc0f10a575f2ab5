"""The input of lowering as plain data: what the recorder hands over when a tape misses the cache.

Values are numbered: first the leaves, in order, then the outputs of the steps, in order. A *value* is an array with the
shape of the tensor that wrote it; its `Layout` says where in the storage each element lies, so a value that was written
by a transposed tensor is an array of the transposed shape. Whoever records owes lowering five things:

1. Operators are functional. `add_` and `add.out` are recorded as `aten.add.Tensor`, then a write. Views are not recorded
   at all.
2. A tensor argument is `Ref(number)` if the tensor has exactly the layout of the value; otherwise a `StridedRead` of
   that value comes first and its output is the argument.
3. A write that covers the whole storage, each element once, replaces the cell's value and layout: no step. Any other
   write is a `StridedWrite` into the cell's value, whose layout stays. If that layout does not cover the storage, read it
   first as ([numel of the storage], [1], 0); a cell that nothing has written is a `Leaf` of zeros or a record of
   `aten.zeros.default`.
4. Numbers are constants in `args`, except those that `registry.runtime_scalars(op)` names: these are `ScalarRef`s, and
   their values are arguments of the executable, so they are no part of the cache key (their kind is). A 0-dim CPU tensor
   argument that is a wrapped number is a ScalarRef too; one that is a real tensor is a leaf. A number that equals the
   default of its argument (alpha=1) stays a constant: most calls say nothing, and then nothing is multiplied.
5. A random operator gets two more keyword arguments, `seed` and `offset`: int64 ScalarRefs; each call needs an offset
   that is past the numbers drawn before. `native_batch_norm`, which writes its running statistics without saying so, is
   recorded as `aten._native_batch_norm_legit_functional.default`, whose last two results are then written.
"""

import dataclasses
from typing import Any

import torch


@dataclasses.dataclass(frozen=True, slots=True)
class Layout:
    """Sizes, strides and offset, in elements of `dtype`, of a strided tensor in its storage."""

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    dtype: torch.dtype

    @staticmethod
    def of(tensor: torch.Tensor) -> "Layout":
        return Layout(tuple(tensor.shape), tuple(tensor.stride()), tensor.storage_offset(), tensor.dtype)

    @staticmethod
    def contiguous(sizes, dtype: torch.dtype) -> "Layout":
        strides = [1]
        for size in reversed(sizes[1:]):
            strides.insert(0, strides[0] * max(size, 1))
        return Layout(tuple(sizes), tuple(strides[: len(sizes)]), 0, dtype)


@dataclasses.dataclass(frozen=True, slots=True)
class Leaf:
    """A device buffer: an array of shape `layout.sizes` and dtype `layout.dtype`."""

    layout: Layout


@dataclasses.dataclass(frozen=True, slots=True)
class Ref:
    """A tensor argument: the value with this number."""

    index: int


@dataclasses.dataclass(frozen=True, slots=True)
class ScalarRef:
    """A number argument: entry `index` of `Program.scalars`."""

    index: int


@dataclasses.dataclass(frozen=True, slots=True)
class Record:
    """A functional operator, e.g. `aten.add.Tensor`.

    args, kwargs: the operator's arguments in schema order; `Ref`, `ScalarRef`, None, numbers, strings, torch constants
    (dtype, layout, memory format) or lists of these. outputs: one layout per result tensor, lists flattened, None for
    a result that is undefined; each entry, also None, takes one value number.
    """

    op: str
    args: tuple[Any, ...]
    outputs: tuple[Layout | None, ...]
    kwargs: dict[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, slots=True)
class StridedRead:
    """One value of shape `read.sizes`: the elements of `value`, which lies as `written`, that lie at `read`."""

    value: int
    written: Layout
    read: Layout


@dataclasses.dataclass(frozen=True, slots=True)
class StridedWrite:
    """One value of layout `written`: `value` with `part` (an array of shape `write.sizes`) written at `write`."""

    value: int
    part: int
    written: Layout
    write: Layout


@dataclasses.dataclass(frozen=True, slots=True)
class Program:
    """scalars: dtypes of the run-time numbers (float64, float32, int64, bool, complex128). outputs: value numbers, in
    the order of the results. donated: leaves whose memory the program may reuse. precision: what
    `torch.get_float32_matmul_precision()` says. checked: whether index errors are reported."""

    leaves: tuple[Leaf, ...]
    steps: tuple[Record | StridedRead | StridedWrite, ...]
    outputs: tuple[int, ...]
    scalars: tuple[torch.dtype, ...] = ()
    donated: tuple[int, ...] = ()
    precision: str = "highest"
    checked: bool = True


@dataclasses.dataclass(frozen=True, slots=True)
class Lowered:
    """A module and how to call it.

    Arguments: the leaves in order, then one 1-D array per entry of `scalar_arguments`, which says which scalars it packs.
    Results: the program's outputs in order, then, if `has_error_word`, an int32 scalar: 0 or 1 + the number of the step
    whose index was out of range. `aliases` maps a donated leaf to the output that takes its memory.
    """

    text: str
    scalar_arguments: tuple[tuple[torch.dtype, tuple[int, ...]], ...]
    aliases: dict[int, int]
    has_error_word: bool
