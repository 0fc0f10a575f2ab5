"""Rules of reductions and scans. Half types accumulate in float32."""

import math

import torch

from .emitter import Emitter, Value, opmath
from .pointwise import extreme
from .registry import lowers


def axes(dim, rank: int) -> list[int]:
    """The dimensions that `dim` (None, a number or a list) names, normalised and sorted; None and [] name all."""
    if dim is None or (isinstance(dim, (list, tuple)) and not dim):
        return list(range(rank))
    dims = dim if isinstance(dim, (list, tuple)) else [dim]
    return sorted({d % rank for d in dims}) if rank else []


def keep(b: Emitter, reduced: Value, x: Value, dims) -> Value:
    """`reduced` with dimensions of size 1 where x was reduced."""
    return b.reshape(reduced, [1 if i in dims else size for i, size in enumerate(x.shape)])


def total(b: Emitter, x: Value, dims, keepdim: bool = False) -> Value:
    result = b.reduce(x, dims, "add", 0)
    return keep(b, result, x, dims) if keepdim else result


def largest(b: Emitter, x: Value, dims, keepdim: bool = False, name: str = "maximum") -> Value:
    """Maximum or minimum; a NaN wins."""
    if x.dtype == torch.bool:
        result = b.reduce(x, dims, "or" if name == "maximum" else "and", name != "maximum")
    else:
        floats = x.dtype.is_floating_point
        info = None if floats else torch.iinfo(x.dtype)
        worst = math.inf if floats else info.max
        if name == "maximum":
            worst = -math.inf if floats else info.min
        result = b.reduce_many([x], dims, [worst], lambda a, c: extreme(b, a, c, name))[0] if dims else x
    return keep(b, result, x, dims) if keepdim else result


@lowers("aten.sum.default", "aten.sum.dim_IntList")
def sum_(b, out, x, dim=None, keepdim=False, dtype=None):
    return total(b, b.cast(x, opmath(out.dtype)), axes(dim, x.rank), keepdim)


@lowers("aten.mean.default", "aten.mean.dim")
def mean(b, out, x, dim=None, keepdim=False, dtype=None):
    dims = axes(dim, x.rank)
    count = math.prod(x.shape[i] for i in dims)
    result = total(b, b.cast(x, opmath(out.dtype)), dims, keepdim)
    return b.divide(result, count)


@lowers("aten.prod.default", "aten.prod.dim_int")
def prod(b, out, x, dim=None, keepdim=False, dtype=None):
    dims = axes(dim, x.rank)
    result = b.reduce(b.cast(x, opmath(out.dtype)), dims, "multiply", 1)
    return keep(b, result, x, dims) if keepdim else result


@lowers("aten.any.default", "aten.any.dim", "aten.any.dims")
def any_(b, out, x, dim=None, keepdim=False):
    dims = axes(dim, x.rank)
    x = b.cast(x, torch.bool)
    result = b.reduce(x, dims, "or", False)
    return keep(b, result, x, dims) if keepdim else result


@lowers("aten.all.default", "aten.all.dim", "aten.all.dims")
def all_(b, out, x, dim=None, keepdim=False):
    dims = axes(dim, x.rank)
    x = b.cast(x, torch.bool)
    result = b.reduce(x, dims, "and", True)
    return keep(b, result, x, dims) if keepdim else result


@lowers("aten.amax.default")
def amax(b, out, x, dim=(), keepdim=False):
    return largest(b, x, axes(dim, x.rank), keepdim)


@lowers("aten.amin.default")
def amin(b, out, x, dim=(), keepdim=False):
    return largest(b, x, axes(dim, x.rank), keepdim, "minimum")


@lowers("aten.max.default")
def max_(b, out, x):
    return largest(b, x, range(x.rank))


@lowers("aten.min.default")
def min_(b, out, x):
    return largest(b, x, range(x.rank), name="minimum")


def best(b: Emitter, x: Value, dim: int, direction: str) -> tuple[Value, Value]:
    """Extreme element (GT: the largest) along `dim` and its first index (int64). The first NaN wins."""
    if x.dtype == torch.bool:
        x = b.cast(x, torch.uint8)

    def better(a, ia, c, ic):
        wins, same = b.compare(a, c, direction), b.compare(a, c, "EQ")
        if x.dtype.is_floating_point:
            both = b.and_(b.isnan(a), b.isnan(c))
            wins, same = b.or_(wins, b.and_(b.isnan(a), b.not_(b.isnan(c)))), b.or_(same, both)
        wins = b.or_(wins, b.and_(same, b.compare(ia, ic, "LT")))
        return b.select(wins, a, c), b.select(wins, ia, ic)

    if x.dtype.is_floating_point:
        worst = -math.inf if direction == "GT" else math.inf
    else:
        info = torch.iinfo(x.dtype)
        worst = info.min if direction == "GT" else info.max
    index = b.iota(x.shape, dim)
    value, index = b.reduce_many([x, index], [dim], [worst, 2**63 - 1], better)
    return value, index


def _argbest(name: str, direction: str) -> None:
    @lowers(f"aten.arg{name}.default")
    def argbest(b, out, x, dim=None, keepdim=False):
        if dim is None or x.rank == 0:
            return b.reshape(best(b, b.reshape(x, [x.numel]), 0, direction)[1], out.sizes)
        return b.reshape(best(b, x, dim % x.rank, direction)[1], out.sizes)

    @lowers(f"aten.{name}.dim")
    def along(b, out, x, dim, keepdim=False):
        if x.rank == 0:
            return x, b.const(0, torch.int64)
        value, index = best(b, x, dim % x.rank, direction)
        return b.reshape(value, out[0].sizes), b.reshape(index, out[1].sizes)


_argbest("max", "GT")
_argbest("min", "LT")


def moments(b: Emitter, x: Value, dims, correction=0) -> tuple[Value, Value]:
    """Mean and variance over `dims`, which stay with size 1; two passes, as the squares of a difference."""
    count = math.prod(x.shape[i] for i in dims)
    mean_ = b.divide(total(b, x, dims, True), count) if count else b.const(math.nan, x.dtype, keep_shape(x, dims))
    gap = b.subtract(x, mean_)
    squares = total(b, b.multiply(gap, gap), dims, True)
    return mean_, b.divide(squares, float(max(count - correction, 0)))


def keep_shape(x: Value, dims) -> list[int]:
    return [1 if i in dims else size for i, size in enumerate(x.shape)]


@lowers("aten.var.correction", static=("correction",))
def var(b, out, x, dim=None, correction=None, keepdim=False):
    x = b.cast(x, opmath(out.dtype))
    result = moments(b, x, axes(dim, x.rank), 1 if correction is None else correction)[1]
    return b.reshape(result, out.sizes)


@lowers("aten.std.correction", static=("correction",))
def std(b, out, x, dim=None, correction=None, keepdim=False):
    return b.sqrt(var(b, out, x, dim, correction, keepdim))


@lowers("aten.var_mean.correction", static=("correction",))
def var_mean(b, out, x, dim=None, correction=None, keepdim=False):
    x = b.cast(x, opmath(out[0].dtype))
    mean_, variance = moments(b, x, axes(dim, x.rank), 1 if correction is None else correction)
    return b.reshape(variance, out[0].sizes), b.reshape(mean_, out[1].sizes)


# ------------------------------------------------------------------------------------------------ scans
def scan(b: Emitter, values, dim: int, fn, neutral):
    """Inclusive scan along `dim` in log2(n) steps: fn(earlier, later) on lists of values."""
    size, shift = values[0].shape[dim], 1
    while shift < size:
        low = [shift if i == dim else 0 for i in range(values[0].rank)]
        high = [-n for n in low]
        earlier = [b.pad(v, n, low, high) for v, n in zip(values, neutral, strict=True)]
        values = fn(earlier, values)
        shift *= 2
    return values


@lowers("aten.cumsum.default")
def cumsum(b, out, x, dim, dtype=None):
    x = b.cast(x, opmath(out.dtype))
    return scan(b, [x], dim % x.rank, lambda a, c: [b.add(a[0], c[0])], [0])[0] if x.rank else x


@lowers("aten.cumprod.default")
def cumprod(b, out, x, dim, dtype=None):
    x = b.cast(x, opmath(out.dtype))
    return scan(b, [x], dim % x.rank, lambda a, c: [b.multiply(a[0], c[0])], [1])[0] if x.rank else x


def _running_best(name: str, direction: str) -> None:
    @lowers(f"aten.{name}.default")
    def rule(b, out, x, dim):
        if x.rank == 0:
            return x, b.const(0, torch.int64)
        key = b.cast(x, torch.uint8) if x.dtype == torch.bool else x

        def later(a, c):
            wins = b.compare(c[0], a[0], direction[0] + "E")
            wins = b.or_(wins, b.isnan(c[0])) if key.dtype.is_floating_point else wins
            wins = b.or_(wins, b.compare(a[1], 0, "LT"))
            return [b.select(wins, c[0], a[0]), b.select(wins, c[1], a[1])]

        return scan(b, [key, b.iota(x.shape, dim % x.rank)], dim % x.rank, later, [0, -1])


_running_best("cummax", "GT")
_running_best("cummin", "LT")
