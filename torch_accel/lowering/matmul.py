"""Rules of matrix products. Half types multiply as they are and accumulate in float32."""

import torch

from .emitter import Emitter, Value, opmath
from .pointwise import scaled
from .registry import lowers


def matmul(b: Emitter, x: Value, y: Value) -> Value:
    """[..., n, k] @ [..., k, m] with equal leading dimensions, in the accumulation dtype."""
    batch = tuple(range(x.rank - 2))
    if x.dtype == torch.bool:
        x, y = b.cast(x, torch.int32), b.cast(y, torch.int32)
    return b.dot(x, y, ((x.rank - 1,), (y.rank - 2,)), (batch, batch), opmath(x.dtype))


@lowers("aten.mm.default", "aten.bmm.default", "aten.mm.dtype", "aten.bmm.dtype")
def mm(b, out, x, y, out_dtype=None):
    return matmul(b, x, y)


@lowers("aten.dot.default")
def dot(b, out, x, y):
    return b.dot(x, y, ((0,), (0,)), dtype=opmath(x.dtype))


@lowers("aten.mv.default")
def mv(b, out, x, y):
    return b.dot(x, y, ((1,), (0,)), dtype=opmath(x.dtype))


@lowers("aten.addmm.default", "aten.baddbmm.default")
def addmm(b, out, bias, x, y, beta=1, alpha=1):
    product = scaled(b, matmul(b, x, y), alpha)
    if not isinstance(beta, Value) and beta == 0:  # then NaNs of the bias do not count
        return product
    return b.add(product, scaled(b, b.cast(bias, product.dtype), beta))


@lowers("aten.addmv.default")
def addmv(b, out, bias, x, y, beta=1, alpha=1):
    product = scaled(b, mv(b, out, x, y), alpha)
    if not isinstance(beta, Value) and beta == 0:
        return product
    return b.add(product, scaled(b, b.cast(bias, product.dtype), beta))
