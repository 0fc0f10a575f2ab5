"""Rules of softmax and of the normalisation layers. Half types compute in float32."""

import math

from .emitter import Emitter, Value, opmath
from .reduce import largest, moments, total
from .registry import lowers


def _wide(b: Emitter, *values):
    return [None if v is None else b.cast(v, opmath(v.dtype)) for v in values]


def _shifted(b: Emitter, x: Value, dim: int) -> Value:
    return b.subtract(x, largest(b, x, [dim], True))


@lowers("aten._softmax.default")
def softmax(b, out, x, dim, half_to_float):
    (x,) = _wide(b, x)
    if x.rank == 0:
        return b.subtract(b.add(x, 1), x)
    e = b.exponential(_shifted(b, x, dim % x.rank))
    return b.divide(e, total(b, e, [dim % x.rank], True))


@lowers("aten._safe_softmax.default")
def safe_softmax(b, out, x, dim, dtype=None):
    (x,) = _wide(b, b.cast(x, out.dtype))
    masked = b.compare(largest(b, x, [dim % x.rank], True), -math.inf, "EQ")
    return b.select(masked, b.lift(0, x.dtype), softmax(b, out, x, dim, False))


@lowers("aten._log_softmax.default")
def log_softmax(b, out, x, dim, half_to_float):
    (x,) = _wide(b, x)
    if x.rank == 0:
        return b.subtract(x, x)
    x = _shifted(b, x, dim % x.rank)
    return b.subtract(x, b.log(total(b, b.exponential(x), [dim % x.rank], True)))


@lowers("aten._softmax_backward_data.default")
def softmax_backward(b, out, grad, y, dim, input_dtype):
    grad, y = _wide(b, grad, y)
    product = b.multiply(grad, y)
    return b.subtract(product, b.multiply(y, total(b, product, [dim % y.rank] if y.rank else [], True)))


@lowers("aten._log_softmax_backward_data.default")
def log_softmax_backward(b, out, grad, y, dim, input_dtype):
    grad, y = _wide(b, grad, y)
    return b.subtract(grad, b.multiply(b.exponential(y), total(b, grad, [dim % y.rank] if y.rank else [], True)))


# ------------------------------------------------------------------------------------------------ layer norm
@lowers("aten.native_layer_norm.default", static=("eps",))
def layer_norm(b, out, x, shape, weight, bias, eps):
    x, weight, bias = _wide(b, x, weight, bias)
    mean, variance = moments(b, x, range(x.rank - len(shape), x.rank))
    rstd = b.rsqrt(b.add(variance, eps))
    y = b.multiply(b.subtract(x, mean), rstd)
    y = y if weight is None else b.multiply(y, weight)
    y = y if bias is None else b.add(y, bias)
    return y, b.reshape(mean, out[1].sizes), b.reshape(rstd, out[2].sizes)


@lowers("aten.native_layer_norm_backward.default")
def layer_norm_backward(b, out, grad, x, shape, mean, rstd, weight, bias, output_mask):
    grad, x, mean, rstd, weight = _wide(b, grad, x, mean, rstd, weight)
    outer, inner = list(range(x.rank - len(shape))), list(range(x.rank - len(shape), x.rank))
    kept = [1 if i in inner else n for i, n in enumerate(x.shape)]
    normal = b.multiply(b.subtract(x, b.reshape(mean, kept)), b.reshape(rstd, kept))
    dx = _normal_backward(b, grad if weight is None else b.multiply(grad, weight), normal, b.reshape(rstd, kept), inner)
    return dx, total(b, b.multiply(grad, normal), outer), total(b, grad, outer)


def _normal_backward(b: Emitter, grad: Value, normal: Value, rstd: Value, dims) -> Value:
    """Gradient through (x - mean) * rstd, statistics over `dims`."""
    count = math.prod(grad.shape[i] for i in dims) or 1
    first = b.divide(total(b, grad, dims, True), count)
    second = b.divide(total(b, b.multiply(grad, normal), dims, True), count)
    return b.multiply(b.subtract(b.subtract(grad, first), b.multiply(normal, second)), rstd)


# ------------------------------------------------------------------------------------------------ batch norm
def batch_norm(b, out, x, weight, bias, mean, var, training, momentum, eps):
    """Result, saved mean, saved 1/std, and the new running mean and variance (as they were when not training)."""
    old = (mean, var)
    x, weight, bias, mean, var = _wide(b, x, weight, bias, mean, var)
    dims = [i for i in range(x.rank) if i != 1]
    lift = [x.shape[1] if i == 1 else 1 for i in range(x.rank)]
    new, saved = old, None
    if training:
        batch_mean, batch_var = (b.reshape(v, [x.shape[1]]) for v in moments(b, x, dims))
        count = x.numel // max(x.shape[1], 1)
        if mean is not None:
            unbiased = b.multiply(batch_var, count / max(count - 1, 1))
            momentum = b.cast(b.lift(momentum, mean.dtype), mean.dtype)
            blend = lambda a, c: b.add(b.multiply(a, b.subtract(1, momentum)), b.multiply(c, momentum))  # noqa: E731
            new = blend(mean, batch_mean), blend(var, unbiased)
        mean, var = batch_mean, batch_var
    rstd = b.rsqrt(b.add(var, eps))
    saved = (mean, rstd) if training else (b.const(0, mean.dtype, (0,)),) * 2
    y = b.multiply(b.subtract(x, b.reshape(mean, lift)), b.reshape(rstd, lift))
    y = y if weight is None else b.multiply(y, b.reshape(weight, lift))
    y = y if bias is None else b.add(y, b.reshape(bias, lift))
    return y, *saved, *new


@lowers("aten._native_batch_norm_legit_functional.default", static=("eps",))
def batch_norm_functional(b, out, x, weight, bias, mean, var, training, momentum, eps):
    return batch_norm(b, out, x, weight, bias, mean, var, training, momentum, eps)


@lowers("aten.native_batch_norm.default", "aten._native_batch_norm_legit_no_training.default", static=("eps",))
def native_batch_norm(b, out, x, weight, bias, mean, var, *rest):
    # The update of the running statistics is a second result of the functional form; see program.py.
    training, momentum, eps = rest if len(rest) == 3 else (False, *rest)
    return batch_norm(b, out, x, weight, bias, mean, var, training, momentum, eps)[:3]


@lowers("aten._native_batch_norm_legit.no_stats", static=("eps",))
def batch_norm_no_stats(b, out, x, weight, bias, training, momentum, eps):
    return batch_norm(b, out, x, weight, bias, None, None, True, momentum, eps)[:3]


@lowers("aten.native_batch_norm_backward.default", static=("eps",))
def batch_norm_backward(b, out, grad, x, weight, mean, var, save_mean, save_rstd, train, eps, output_mask):
    grad, x, weight, mean, var, save_mean, save_rstd = _wide(b, grad, x, weight, mean, var, save_mean, save_rstd)
    dims = [i for i in range(x.rank) if i != 1]
    lift = [x.shape[1] if i == 1 else 1 for i in range(x.rank)]
    if not train:
        save_mean, save_rstd = mean, b.rsqrt(b.add(var, eps))
    rstd = b.reshape(save_rstd, lift)
    normal = b.multiply(b.subtract(x, b.reshape(save_mean, lift)), rstd)
    scaled = grad if weight is None else b.multiply(grad, b.reshape(weight, lift))
    dx = _normal_backward(b, scaled, normal, rstd, dims) if train else b.multiply(scaled, rstd)
    return dx, total(b, b.multiply(grad, normal), dims), total(b, grad, dims)
