"""Rules of indexing. Every index is checked (Emitter.check): an error word says which record was out of range."""

import torch

from . import views
from .emitter import HALF, Emitter, Value
from .pointwise import extreme, scaled
from .program import Layout
from .registry import NotLowerable, lowers


def wrapped(b: Emitter, index: Value, size: int, negative: bool = True) -> Value:
    """`index` with negative indices counted from the end; what is out of range is reported."""
    if index.dtype in (torch.bool, torch.uint8):
        raise NotLowerable("the shape of a mask's result depends on its data")
    low = -size if negative else 0
    b.check(b.or_(b.compare(index, low, "LT"), b.compare(index, size, "GE")))
    return b.select(b.compare(index, 0, "LT"), b.add(index, size), index) if negative else index


def coordinates(b: Emitter, indices) -> Value:
    """Stacks index values of one shape along a new last dimension."""
    indices = [b.cast(v, torch.int64) for v in indices]
    return b.concatenate([b.reshape(v, (*v.shape, 1)) for v in indices], indices[0].rank)


def _along(b: Emitter, x: Value, dim: int, index: Value) -> Value:
    """Coordinates in x of what gather and scatter address: `index` in `dim`, the own position elsewhere."""
    own = [b.iota(index.shape, i) for i in range(index.rank)]
    own[dim] = b.cast(wrapped(b, index, x.shape[dim], negative=False), torch.int64)
    return coordinates(b, own)


def _scalarless(b: Emitter, *values):
    """0-dim values as vectors: gather and scatter of a scalar mean its only element."""
    return [b.reshape(v, (1,)) if v.rank == 0 else v for v in values]


@lowers("aten.gather.default")
def gather(b, out, x, dim, index, sparse_grad=False):
    x, index = _scalarless(b, x, index)
    if 0 in index.shape:
        return b.const(0, x.dtype, out.sizes)
    where = _along(b, x, dim % x.rank, index)
    every = list(range(x.rank))
    return b.reshape(b.gather(x, where, [], every, every, [1] * x.rank, index.shape), out.sizes)


def _scatter(b: Emitter, out, x, dim, index, source, fn) -> Value:
    x, index, source = _scalarless(b, x, index, source)
    if 0 in index.shape:
        return b.reshape(x, out.sizes)
    source = b.slice(source, [0] * source.rank, index.shape)
    where = _along(b, x, dim % x.rank, index)
    every = list(range(x.rank))
    return b.reshape(b.scatter(x, where, source, [], every, every, fn), out.sizes)


@lowers("aten.scatter.src")
def scatter(b, out, x, dim, index, source):
    return _scatter(b, out, x, dim, index, source, lambda old, new: new)


@lowers("aten.scatter.value")
def scatter_value(b, out, x, dim, index, value):
    source = b.broadcast(b.cast(b.lift(value, x.dtype), x.dtype), index.shape)
    return _scatter(b, out, x, dim, index, source, lambda old, new: new)


@lowers("aten.scatter_add.default")
def scatter_add(b, out, x, dim, index, source):
    return _scatter(b, out, x, dim, index, source, b.add)


@lowers("aten.scatter.reduce")
def scatter_reduce(b, out, x, dim, index, source, reduce):
    return _scatter(b, out, x, dim, index, source, b.add if reduce == "add" else b.multiply)


@lowers("aten.scatter.value_reduce")
def scatter_value_reduce(b, out, x, dim, index, value, reduce):
    source = b.broadcast(b.cast(b.lift(value, x.dtype), x.dtype), index.shape)
    return scatter_reduce(b, out, x, dim, index, source, reduce)


@lowers("aten.scatter_reduce.two")
def scatter_reduce_two(b, out, x, dim, index, source, reduce, include_self=True):
    combine = {
        "sum": b.add,
        "prod": b.multiply,
        "amax": lambda p, q: extreme(b, p, q, "maximum"),
        "amin": lambda p, q: extreme(b, p, q, "minimum"),
    }
    if not include_self or reduce not in combine:
        raise NotLowerable(f"scatter_reduce with {reduce!r}, include_self={include_self}")
    return _scatter(b, out, x, dim, index, source, combine[reduce])


def rows(b: Emitter, x: Value, dim: int, index: Value) -> Value:
    """x.index_select(dim, index) for an index of any rank, whose dimensions take the place of `dim`."""
    sizes = [1 if i == dim else n for i, n in enumerate(x.shape)]
    shape = (*x.shape[:dim], *index.shape, *x.shape[dim + 1 :])
    offsets = [i for i in range(len(shape)) if i < dim or i >= dim + index.rank]
    if 0 in shape:
        return b.const(0, x.dtype, shape)
    return b.gather(x, coordinates(b, [index]), offsets, [dim], [dim], sizes, shape)


@lowers("aten.index_select.default")
def index_select(b, out, x, dim, index):
    x, index = _scalarless(b, x, index)
    dim %= x.rank
    return b.reshape(rows(b, x, dim, wrapped(b, index, x.shape[dim], negative=False)), out.sizes)


@lowers("aten.index_add.default")
def index_add(b, out, x, dim, index, source, alpha=1):
    x, index, source = _scalarless(b, x, index, source)
    dim %= x.rank
    where = coordinates(b, [wrapped(b, index, x.shape[dim], negative=False)])
    window = [i for i in range(x.rank) if i != dim]
    return b.reshape(b.scatter(x, where, scaled(b, source, alpha), window, [dim], [dim], b.add), out.sizes)


@lowers("aten.embedding.default")
def embedding(b, out, weight, index, padding_idx=-1, scale_grad_by_freq=False, sparse=False):
    return rows(b, weight, 0, wrapped(b, index, weight.shape[0], negative=False))


@lowers("aten.embedding_dense_backward.default")
def embedding_dense_backward(b, out, grad, index, num_weights, padding_idx, scale_grad_by_freq):
    if scale_grad_by_freq:
        raise NotLowerable("embedding_dense_backward with scale_grad_by_freq")
    wide = torch.float32 if grad.dtype in HALF else grad.dtype
    index = b.cast(b.reshape(index, [index.numel]), torch.int64)
    # A row outside of the result is dropped; that is where the padding goes.
    index = b.select(b.compare(index, padding_idx, "EQ"), b.lift(num_weights, torch.int64), index)
    zeros = b.const(0, wide, out.sizes)
    grad = b.reshape(b.cast(grad, wide), [index.numel, out.sizes[1]])
    return b.scatter(zeros, coordinates(b, [index]), grad, [1], [0], [0], b.add)


def _advanced(b: Emitter, x: Value, indices):
    """For x[indices]: coordinates, indexed dimensions, shape of the indices, where their dimensions go in the result."""
    dims = [i for i, index in enumerate(indices) if index is not None]
    together_ = b.together(
        *(
            wrapped(b, b.cast(indices[i], torch.int64) if indices[i].dtype == torch.int32 else indices[i], x.shape[i])
            for i in dims
        )
    )
    adjacent = dims == list(range(dims[0], dims[-1] + 1))
    return coordinates(b, together_), dims, together_[0].shape, dims[0] if adjacent else 0


@lowers("aten.index.Tensor", "aten._unsafe_index.Tensor")
def index_(b, out, x, indices):
    where, dims, shape, place = _advanced(b, x, indices)
    rest = [n for i, n in enumerate(x.shape) if i not in dims]
    result = (*rest[:place], *shape, *rest[place:])
    if 0 in result or 0 in x.shape:
        return b.const(0, x.dtype, result)
    offsets = [i for i in range(len(result)) if i < place or i >= place + len(shape)]
    return b.gather(x, where, offsets, dims, dims, [1 if i in dims else n for i, n in enumerate(x.shape)], result)


@lowers("aten.index_put.default", "aten._unsafe_index_put.default")
def index_put(b, out, x, indices, values, accumulate=False):
    where, dims, shape, place = _advanced(b, x, indices)
    rest = [n for i, n in enumerate(x.shape) if i not in dims]
    result = (*rest[:place], *shape, *rest[place:])
    if 0 in result:
        return x
    values = b.broadcast(b.cast(values, x.dtype), result)
    window = [i for i in range(len(result)) if i < place or i >= place + len(shape)]
    return b.scatter(x, where, values, window, dims, dims, b.add if accumulate else lambda old, new: new)


@lowers("aten.as_strided_scatter.default")
def as_strided_scatter(b, out, x, source, size, stride, storage_offset=None):
    place = Layout(tuple(size), tuple(stride), storage_offset or 0, x.dtype)
    return views.write(b, x, source, Layout.contiguous(x.shape, x.dtype), place)


@lowers("aten.take.default")
def take(b, out, x, index):
    return rows(b, b.reshape(x, [x.numel]), 0, wrapped(b, index, x.numel))


@lowers("aten.histc.default", static=("min", "max"))
def histc(b, out, x, bins=100, min=0, max=0):
    if min == max:
        raise NotLowerable("the range of histc without min and max depends on its data")
    x = b.cast(b.reshape(x, [x.numel]), torch.float64)
    place = b.floor(b.multiply(b.subtract(x, min), bins / (max - min)))
    place = b.select(b.compare(x, max, "EQ"), b.lift(bins - 1, x.dtype), place)
    inside = b.and_(b.compare(x, min, "GE"), b.compare(x, max, "LE"))
    place = b.cast(b.select(inside, place, b.lift(bins, x.dtype)), torch.int64)
    zeros = b.const(0, torch.int64, out.sizes)
    return b.scatter(zeros, coordinates(b, [place]), b.const(1, torch.int64, place.shape), [], [0], [0], b.add)


# ------------------------------------------------------------------------------------------------ order
def sorted_pair(b: Emitter, x: Value, dim: int, descending: bool) -> tuple[Value, Value]:
    """Stable sort along `dim`: values and int64 indices. NaN counts as the largest."""
    key = b.cast(x, torch.uint8) if x.dtype == torch.bool else x

    def less(a, c, ia, ic):
        if descending:
            a, c = c, a
        result = b.compare(a, c, "LT")
        return b.or_(result, b.and_(b.isnan(c), b.not_(b.isnan(a)))) if key.dtype.is_floating_point else result

    return tuple(b.sort([key, b.iota(x.shape, dim)], dim, less))


@lowers("aten.sort.default")
def sort(b, out, x, dim=-1, descending=False):
    if x.rank == 0:
        return x, b.const(0, torch.int64)
    return sorted_pair(b, x, dim % x.rank, descending)


@lowers("aten.sort.stable")
def sort_stable(b, out, x, stable=None, dim=-1, descending=False):
    return sort(b, out, x, dim, descending)


@lowers("aten.topk.default")
def topk(b, out, x, k, dim=-1, largest=True, sorted=True):
    if x.rank == 0:
        return x, b.const(0, torch.int64)
    dim %= x.rank
    return tuple(b.slice_dim(v, dim, 0, k) for v in sorted_pair(b, x, dim, largest))
