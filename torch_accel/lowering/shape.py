"""Rules of factories and of operators that rearrange elements into new storage."""

import torch

from .registry import RULES, lowers


@lowers("aten.full.default", "aten.full_like.default", "aten.fill.Scalar", "aten.fill.Tensor")
def full(b, out, _, value):
    return b.broadcast(b.cast(b.lift(value, out.dtype), out.dtype), out.sizes)


@lowers("aten.new_full.default")
def new_full(b, out, x, size, value):
    return full(b, out, size, value)


@lowers("aten.scalar_tensor.default")
def scalar_tensor(b, out, value):
    return b.cast(b.lift(value, out.dtype), out.dtype)


def _constant(value, *ops):
    @lowers(*(f"aten.{op}" for op in ops))
    def rule(b, out, *args):
        return b.const(value, out.dtype, out.sizes)


_constant(0, "zeros.default", "zeros_like.default", "new_zeros.default", "zero.default", "_efficientzerotensor.default")
_constant(
    0,
    "empty.memory_format",
    "empty_like.default",
    "new_empty.default",
    "empty_strided.default",
    "new_empty_strided.default",
)
_constant(1, "ones.default", "ones_like.default", "new_ones.default")


@lowers("aten.arange.default")
def arange(b, out, end):
    return arange_step(b, out, 0, end)


@lowers("aten.arange.start")
def arange_start(b, out, start, end):
    return arange_step(b, out, start, end)


@lowers("aten.arange.start_step", static=("start", "end", "step"))
def arange_step(b, out, start, end, step=1):
    # Computed in a wide type from the index, as torch does, so that no error accumulates.
    wide = torch.float64 if out.dtype.is_floating_point else torch.int64
    return b.add(b.multiply(b.iota(out.sizes, 0, wide), step), start)


@lowers("aten.eye.default", "aten.eye.m")
def eye(b, out, *sizes):
    rows, columns = (b.iota(out.sizes, i, torch.int32) for i in (0, 1))
    return b.compare(rows, columns, "EQ")


@lowers("aten.cat.default")
def cat(b, out, tensors, dim=0):
    kept = [t for t in tensors if t.shape != (0,) or len(out.sizes) == 1]
    return (
        b.concatenate([b.cast(t, out.dtype) for t in kept], dim % len(out.sizes))
        if kept
        else b.const(0, out.dtype, out.sizes)
    )


@lowers("aten.stack.default")
def stack(b, out, tensors, dim=0):
    dim %= len(out.sizes)
    parts = [b.cast(b.reshape(t, [*t.shape[:dim], 1, *t.shape[dim:]]), out.dtype) for t in tensors]
    return b.concatenate(parts, dim)


@lowers("aten.flip.default")
def flip(b, out, x, dims):
    return b.reverse(x, sorted({d % x.rank for d in dims})) if x.rank else x


@lowers("aten.roll.default")
def roll(b, out, x, shifts, dims=()):
    shifts, dims = ([v] if isinstance(v, int) else list(v) for v in (shifts, dims))
    if not dims:
        return b.reshape(roll(b, out, b.reshape(x, [x.numel]), shifts, [0]), x.shape)
    for shift, dim in zip(shifts, (d % x.rank for d in dims), strict=True):
        size = x.shape[dim]
        cut = -shift % size if size else 0
        if cut:
            x = b.concatenate([b.slice_dim(x, dim, cut, size), b.slice_dim(x, dim, 0, cut)], dim)
    return x


@lowers("aten.repeat.default")
def repeat(b, out, x, repeats):
    rank = len(repeats)
    sizes = [1] * (rank - x.rank) + list(x.shape)
    spread = [n for pair in zip(repeats, sizes, strict=True) for n in pair]
    value = b.broadcast(b.reshape(x, sizes), spread, [2 * i + 1 for i in range(rank)])
    return b.reshape(value, out.sizes)


@lowers("aten.constant_pad_nd.default")
def constant_pad(b, out, x, pad, value=0):
    pairs = [(pad[i], pad[i + 1]) for i in range(0, len(pad), 2)]
    pairs = [(0, 0)] * (x.rank - len(pairs)) + pairs[::-1]
    fill = b.cast(b.lift(value, x.dtype), x.dtype)
    return b.pad(x, fill, [lo for lo, _ in pairs], [hi for _, hi in pairs])


def _triangle(name: str, direction: str) -> None:
    @lowers(f"aten.{name}.default")
    def rule(b, out, x, diagonal=0):
        rows, columns = (b.iota(x.shape, x.rank + i, torch.int32) for i in (-2, -1))
        return b.select(b.compare(b.subtract(columns, rows), diagonal, direction), x, b.lift(0, x.dtype))


_triangle("tril", "LE")
_triangle("triu", "GE")


@lowers("aten._unsafe_view.default", "aten._reshape_copy.default", "aten.view_copy.default")
def unsafe_view(b, out, x, size):
    return b.reshape(x, out.sizes)


def _foreach(name: str, base: str, lists: int) -> None:
    """A foreach operator: the rule of `base` on each element of the first `lists` arguments."""

    @lowers(f"aten._foreach_{name}")
    def rule(b, out, *args, **kwargs):
        out = out if isinstance(out, (tuple, list)) else (out,)
        results = []
        for i, layout in enumerate(out):
            own = [a[i] if k < lists else a for k, a in enumerate(args)]
            results.append(RULES[base](b, layout, own, kwargs))
        return results


for _op in ("add", "sub", "mul", "div"):
    _foreach(f"{_op}.Scalar", f"aten.{_op}.Tensor", 1)
    _foreach(f"{_op}.List", f"aten.{_op}.Tensor", 2)
    _foreach(f"{_op}.ScalarList", f"aten.{_op}.Tensor", 2)
    if _op != "sub":
        _foreach(f"{_op}.Tensor", f"aten.{_op}.Tensor", 1)
for _op in ("sqrt", "neg", "abs", "exp", "reciprocal", "sigmoid", "tanh", "log"):
    _foreach(f"{_op}.default", f"aten.{_op}.default", 1)
for _op in ("addcmul", "addcdiv"):
    _foreach(f"{_op}.Scalar", f"aten.{_op}.default", 3)
    _foreach(f"{_op}.ScalarList", f"aten.{_op}.default", 4)
_foreach("lerp.Scalar", "aten.lerp.Scalar", 2)
_foreach("lerp.List", "aten.lerp.Tensor", 3)
_foreach("zero.default", "aten.zeros_like.default", 1)
_foreach("copy.default", "aten.copy.default", 2)
