"""Rules of convolution and pooling, any number of spatial dimensions. Half types accumulate in float32."""

import math

import torch

from .emitter import Emitter, Value, opmath
from .index import coordinates
from .reduce import total
from .registry import NotLowerable, lowers


def _spread(values, rank: int) -> list[int]:
    """One number per spatial dimension; a single number (or a list of one) counts for all."""
    values = [values] if isinstance(values, int) else list(values)
    return values * rank if len(values) == 1 else values


def _numbers(rank: int, lhs: str, rhs: str, out: str) -> str:
    space = ", ".join(map(str, range(rank)))
    return f"[{lhs}, {space}]x[{rhs}, {space}]->[{out}, {space}]"


def _flip(b: Emitter, w: Value, groups: int) -> Value:
    """Weights [o, i / groups, ...] as those of the transposed convolution: [i, o / groups, ...], reversed in space."""
    o, i, space = w.shape[0], w.shape[1], w.shape[2:]
    w = b.reshape(w, [groups, o // groups, i, *space])
    w = b.transpose(w, [0, 2, 1, *range(3, w.rank)])
    return b.reverse(b.reshape(w, [groups * i, o // groups, *space]), range(2, 2 + len(space)))


def _forward(b, x, w, sizes, stride, padding, dilation, groups) -> Value:
    rank, pads = len(stride), []
    for k in range(rank):  # the high padding that gives `sizes`: what no window reaches is cut
        reach = (sizes[2 + k] - 1) * stride[k] + dilation[k] * (w.shape[2 + k] - 1) + 1
        pads.append((padding[k], reach - x.shape[2 + k] - padding[k]))
    ones = [1] * rank
    layout = _numbers(rank, "b, f", "o, i", "b, f")
    return b.convolution(x, w, layout, sizes, stride, pads, ones, dilation, groups, dtype=opmath(x.dtype))


def _transposed(b, x, w, sizes, stride, padding, dilation, groups) -> Value:
    """The gradient of a convolution by its input: x [n, o, ...], w [o, i / groups, ...] -> sizes [n, i, ...]."""
    rank, pads = len(stride), []
    for k in range(rank):
        low = dilation[k] * (w.shape[2 + k] - 1) - padding[k]
        covered = (x.shape[2 + k] - 1) * stride[k] + 1 + low - dilation[k] * (w.shape[2 + k] - 1)
        pads.append((low, sizes[2 + k] - covered))
    layout = _numbers(rank, "b, f", "o, i", "b, f")
    w = _flip(b, w, groups)
    return b.convolution(x, w, layout, sizes, [1] * rank, pads, stride, dilation, groups, dtype=opmath(x.dtype))


def _weight_gradient(b, grad, x, sizes, stride, padding, dilation, groups) -> Value:
    """grad [n, o, ...], x [n, i, ...] -> sizes [o, i / groups, ...]: a convolution over the batch."""
    rank, pads = len(stride), []
    for k in range(rank):
        reach = (grad.shape[2 + k] - 1) * stride[k] + 1 + (sizes[2 + k] - 1) * dilation[k]
        pads.append((padding[k], reach - x.shape[2 + k] - padding[k]))
    layout = _numbers(rank, "f, b", "i, o", "f, b")
    ones = [1] * rank
    return b.convolution(x, grad, layout, sizes, dilation, pads, ones, stride, 1, groups, opmath(x.dtype))


@lowers("aten.convolution.default", "aten.convolution_overrideable.default")
def convolution(b, out, x, w, bias, stride, padding, dilation, transposed, output_padding, groups):
    rank = w.rank - 2
    stride, padding, dilation = (_spread(v, rank) for v in (stride, padding, dilation))
    batched, sizes = x.rank == w.rank, list(out.sizes)
    if not batched:
        x, sizes = b.reshape(x, [1, *x.shape]), [1, *sizes]
    if 0 in sizes or 0 in x.shape:
        y = b.const(0, opmath(x.dtype), sizes)
    else:
        y = (_transposed if transposed else _forward)(b, x, w, sizes, stride, padding, dilation, groups)
    if bias is not None:
        y = b.add(y, b.reshape(b.cast(bias, y.dtype), [bias.numel, *[1] * rank]))
    return b.reshape(y, out.sizes)


@lowers("aten.convolution_backward.default", "aten.convolution_backward_overrideable.default")
def convolution_backward(
    b, out, grad, x, w, bias_sizes, stride, padding, dilation, transposed, output_padding, groups, output_mask
):
    rank = w.rank - 2
    stride, padding, dilation = (_spread(v, rank) for v in (stride, padding, dilation))
    if x.rank != w.rank:
        raise NotLowerable("convolution_backward without a batch dimension")
    dx = dw = db = None
    if 0 in x.shape or 0 in grad.shape:
        zero = lambda layout: layout and b.const(0, layout.dtype, layout.sizes)  # noqa: E731
        return tuple(map(zero, out))
    if output_mask[0]:
        inverse = _forward if transposed else _transposed
        dx = inverse(b, grad, w, x.shape, stride, padding, dilation, groups)
    if output_mask[1]:
        pair = (x, grad) if transposed else (grad, x)
        dw = _weight_gradient(b, *pair, w.shape, stride, padding, dilation, groups)
    if output_mask[2]:
        db = total(b, b.cast(grad, opmath(grad.dtype)), [i for i in range(grad.rank) if i != 1])
    return dx, dw, db


# ------------------------------------------------------------------------------------------------ pooling
def _window(x: Value, rank: int, sizes, kernel, stride, padding, dilation):
    """Window, stride, padding, dilation of all dimensions; the high padding is what the result's size needs."""
    kernel, padding, dilation = (_spread(v, rank) for v in (kernel, padding, dilation))
    stride = _spread(stride, rank) if stride not in ((), []) else kernel
    lead = [1] * (x.rank - rank)
    pads = [(0, 0)] * len(lead)
    for k in range(rank):
        size = x.shape[len(lead) + k]
        reach = (sizes[len(lead) + k] - 1) * stride[k] + dilation[k] * (kernel[k] - 1) + 1
        pads.append((padding[k], reach - size - padding[k]))
    return lead + kernel, lead + stride, pads, lead + dilation


def _max_pool(rank: int) -> None:
    @lowers(f"aten.max_pool{rank}d_with_indices.default")
    def forward(b, out, x, kernel_size, stride=(), padding=0, dilation=1, ceil_mode=False):
        window = _window(x, rank, out[0].sizes, kernel_size, stride, padding, dilation)
        position = b.reshape(b.iota([math.prod(x.shape[-rank:])], 0, torch.int32), x.shape[-rank:])
        position = b.broadcast(position, x.shape)

        # Positions rise along the window, so "later and larger" keeps the first maximum; -1 marks the padding.
        def later(a, ia, c, ic):
            wins = b.or_(b.compare(c, a, "GT"), b.isnan(c)) if x.dtype.is_floating_point else b.compare(c, a, "GT")
            wins = b.or_(b.and_(wins, b.compare(ic, 0, "GE")), b.compare(ia, 0, "LT"))
            return b.select(wins, c, a), b.select(wins, ic, ia)

        worst = -math.inf if x.dtype.is_floating_point else torch.iinfo(x.dtype).min
        return b.reduce_window([x, position], [worst, -1], later, *window)

    @lowers(f"aten.max_pool{rank}d_with_indices_backward.default")
    def backward(b, out, grad, x, kernel_size, stride, padding, dilation, ceil_mode, indices):
        lead, space = grad.shape[:-rank], math.prod(x.shape[-rank:])
        rows, columns = math.prod(lead), math.prod(grad.shape[-rank:])
        wide = opmath(grad.dtype)
        zeros = b.const(0, wide, [rows, space])
        where = coordinates(b, [b.iota([rows, columns], 0), b.reshape(indices, [rows, columns])])
        update = b.reshape(b.cast(grad, wide), [rows, columns])
        return b.reshape(b.scatter(zeros, where, update, [], [0, 1], [0, 1], b.add), x.shape)


def _avg_pool(rank: int) -> None:
    def divisor(b, x, sizes, window, padding, count_include_pad, divisor_override):
        """How many elements each window counts, with the shape of one image."""
        kernel = math.prod(window[0])
        if divisor_override:
            return b.const(divisor_override, x.dtype)
        lead = x.rank - rank
        ones = b.const(1, x.dtype, x.shape[lead:])
        size, stride, pads, dilation = (part[lead:] for part in window)
        if count_include_pad:
            if all(lo >= hi for lo, hi in pads):
                return b.const(kernel, x.dtype)
            # Only what ceil_mode adds beyond the padding does not count.
            low = [lo for lo, _ in pads]
            ones = b.pad(ones, 1, low, low)
            pads = [(0, max(hi - lo, 0) if hi > lo else hi - lo) for lo, hi in pads]
        return b.reduce_window([ones], [0], b.add, size, stride, pads, dilation)[0]

    @lowers(f"aten.avg_pool{rank}d.default")
    def forward(
        b, out, x, kernel_size, stride=(), padding=0, ceil_mode=False, count_include_pad=True, divisor_override=None
    ):
        window = _window(x, rank, out.sizes, kernel_size, stride, padding, 1)
        x = b.cast(x, opmath(x.dtype))
        summed = b.reduce_window([x], [0], b.add, *window)[0]
        return b.divide(summed, divisor(b, x, out.sizes, window, padding, count_include_pad, divisor_override))

    @lowers(f"aten.avg_pool{rank}d_backward.default")
    def backward(b, out, grad, x, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override):
        window = _window(x, rank, grad.shape, kernel_size, stride, padding, 1)
        grad = b.cast(grad, opmath(grad.dtype))
        sample = Value("", x.shape, grad.dtype)
        grad = b.divide(grad, divisor(b, sample, grad.shape, window, padding, count_include_pad, divisor_override))
        # Each element collects from the windows it is in: a sum over the gradient spread out by the stride.
        size, by, pads, _ = window
        spread = []
        for n, g, k, s, (lo, _hi) in zip(x.shape, grad.shape, size, by, pads, strict=True):
            low = k - 1 - lo
            spread.append((low, n + k - 1 - low - ((g - 1) * s + 1)))
        ones = [1] * x.rank
        return b.reduce_window([grad], [0], b.add, size, ones, spread, ones, by)[0]


for _rank in (2, 3):
    _max_pool(_rank)
    _avg_pool(_rank)
