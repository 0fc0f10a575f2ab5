"""Rules of resampling whose weights separate by dimension: each dimension is a product with a constant matrix."""

import torch

from .emitter import Emitter, Value, opmath
from .index import rows
from .registry import lowers


def separable(b: Emitter, x: Value, matrices, backward: bool) -> Value:
    """Applies matrices [outputs, inputs], one per trailing dimension of x; their transposes if `backward`."""
    x = b.cast(x, opmath(x.dtype))
    for k, matrix in enumerate(matrices):
        dim = x.rank - len(matrices) + k
        weights = b.dense((matrix.t() if backward else matrix).to(x.dtype))
        x = b.dot(x, weights, ((dim,), (1,)))
        x = b.transpose(x, [*range(dim), x.rank - 1, *range(dim, x.rank - 1)])
    return x


def averages(outputs: int, inputs: int) -> torch.Tensor:
    """Adaptive average pooling: output i is the mean of inputs floor(i n / m) .. ceil((i + 1) n / m)."""
    matrix = torch.zeros(outputs, inputs, dtype=torch.float64)
    for i in range(outputs):
        low, high = i * inputs // outputs, -(-(i + 1) * inputs // outputs)
        matrix[i, low:high] = 1 / (high - low)
    return matrix


def _source(outputs: int, inputs: int, corners: bool, scale) -> torch.Tensor:
    """The position in the input of each output, not below zero."""
    i = torch.arange(outputs, dtype=torch.float64)
    if corners:
        return i * ((inputs - 1) / (outputs - 1) if outputs > 1 else 0)
    return ((i + 0.5) * (1 / scale if scale else inputs / outputs) - 0.5).clamp(min=0)


def linear(outputs: int, inputs: int, corners: bool, scale) -> torch.Tensor:
    """Linear interpolation."""
    position = _source(outputs, inputs, corners, scale)
    low = position.floor().long().clamp(max=inputs - 1)
    high, part, rows = (low + 1).clamp(max=inputs - 1), position - low, torch.arange(outputs)
    matrix = torch.zeros(outputs, inputs, dtype=torch.float64)
    matrix.index_put_((rows, low), 1 - part, accumulate=True)
    return matrix.index_put_((rows, high), part, accumulate=True)


def nearest(outputs: int, inputs: int, scale, exact: bool = False) -> torch.Tensor:
    """The nearest input below (torch's legacy rule) or, if `exact`, the nearest of pixel centres."""
    factor = torch.tensor(1 / scale if scale else inputs / outputs, dtype=torch.float32)
    position = (torch.arange(outputs, dtype=torch.float32) + (0.5 if exact else 0)) * factor
    matrix = torch.zeros(outputs, inputs, dtype=torch.float64)
    matrix[torch.arange(outputs), position.floor().long().clamp(max=inputs - 1)] = 1
    return matrix


def _matrices(make, large, small, *rest):
    """One matrix per spatial dimension; the trailing arguments are lists over the dimensions."""
    return [make(m, n, *more) for m, n, *more in zip(large, small, *rest, strict=True)]


@lowers("aten._adaptive_avg_pool2d.default", "aten._adaptive_avg_pool3d.default")
def adaptive_avg_pool(b, out, x, output_size):
    rank = len(output_size)
    return separable(b, x, _matrices(averages, output_size, x.shape[-rank:]), False)


def _adaptive_backward(rank: int) -> None:
    @lowers(f"aten._adaptive_avg_pool{rank}d_backward.default")
    def rule(b, out, grad, x):
        return separable(b, grad, _matrices(averages, grad.shape[-rank:], x.shape[-rank:]), True)


def _linear(name: str, rank: int) -> None:
    @lowers(f"aten.{name}.default", static=("scales", "scales_d", "scales_h", "scales_w"))
    def forward(b, out, x, output_size, align_corners, *scales):
        scales = scales or (None,) * rank
        return separable(b, x, _matrices(linear, output_size, x.shape[2:], [align_corners] * rank, scales), False)

    @lowers(f"aten.{name}_backward.default", static=("scales", "scales_d", "scales_h", "scales_w"))
    def backward(b, out, grad, output_size, input_size, align_corners, *scales):
        scales = scales or (None,) * rank
        return separable(b, grad, _matrices(linear, output_size, input_size[2:], [align_corners] * rank, scales), True)


def _nearest(name: str, rank: int, exact: bool) -> None:
    @lowers(f"aten.{name}.default", static=("scales", "scales_d", "scales_h", "scales_w"))
    def forward(b, out, x, output_size, *scales):
        scales = scales or (None,) * rank
        for k, matrix in enumerate(_matrices(nearest, output_size, x.shape[2:], scales, [exact] * rank)):
            x = rows(b, x, 2 + k, b.dense(matrix.argmax(1)))
        return x

    @lowers(f"aten.{name}_backward.default", static=("scales", "scales_d", "scales_h", "scales_w"))
    def backward(b, out, grad, output_size, input_size, *scales):
        scales = scales or (None,) * rank
        return separable(b, grad, _matrices(nearest, output_size, input_size[2:], scales, [exact] * rank), True)


for _name, _rank in (("linear1d", 1), ("bilinear2d", 2), ("trilinear3d", 3)):
    _linear(f"upsample_{_name}", _rank)
for _rank in (1, 2, 3):
    _nearest(f"upsample_nearest{_rank}d", _rank, False)
    _nearest(f"_upsample_nearest_exact{_rank}d", _rank, True)
for _rank in (2, 3):
    _adaptive_backward(_rank)
