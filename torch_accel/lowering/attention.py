"""Rules of fused attention, in terms of products and a softmax; float32 inside for half types."""

import math

import torch

from .emitter import Emitter, Value, opmath
from .matmul import matmul
from .norm import softmax
from .reduce import largest, total
from .registry import NotLowerable, lowers


def _swap(b: Emitter, x: Value) -> Value:
    return b.transpose(x, [*range(x.rank - 2), x.rank - 1, x.rank - 2])


def _scores(b: Emitter, query: Value, key: Value, is_causal: bool, mask: Value | None, scale) -> tuple[Value, float]:
    """The masked scores and the scale."""
    factor = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    scores = b.multiply(matmul(b, query, _swap(b, key)), factor)
    if is_causal:
        rows, columns = (b.iota(scores.shape, scores.rank + i, torch.int32) for i in (-2, -1))
        scores = b.select(b.compare(rows, columns, "GE"), scores, b.lift(-math.inf, scores.dtype))
    if mask is not None:
        masked = b.select(mask, scores, b.lift(-math.inf, scores.dtype)) if mask.dtype == torch.bool else None
        scores = masked or b.add(scores, b.cast(mask, scores.dtype))
    return scores, factor


@lowers("aten._scaled_dot_product_flash_attention_for_cpu.default", static=("dropout_p", "scale"))
def attention(b, out, query, key, value, dropout_p=0.0, is_causal=False, attn_mask=None, scale=None):
    if dropout_p:
        raise NotLowerable("fused attention with dropout")
    scores, _ = _scores(b, query, key, is_causal, attn_mask, scale)
    weights = softmax(b, out, scores, scores.rank - 1, False)
    top = largest(b, scores, [scores.rank - 1])
    spread = b.exponential(b.subtract(scores, b.reshape(top, (*top.shape, 1))))
    logsumexp = b.add(b.log(total(b, spread, [scores.rank - 1])), top)
    return matmul(b, b.cast(weights, value.dtype), value), logsumexp


@lowers("aten._scaled_dot_product_flash_attention_for_cpu_backward.default", static=("dropout_p", "scale"))
def attention_backward(
    b, out, grad, query, key, value, result, logsumexp, dropout_p, is_causal, attn_mask=None, scale=None
):
    if dropout_p:
        raise NotLowerable("fused attention with dropout")
    dtype = query.dtype
    scores, factor = _scores(b, query, key, is_causal, attn_mask, scale)
    logsumexp = b.reshape(b.cast(logsumexp, scores.dtype), (*logsumexp.shape, 1))
    weights = b.exponential(b.subtract(scores, logsumexp))
    wide = opmath(dtype)
    product = total(b, b.multiply(b.cast(grad, wide), b.cast(result, wide)), [grad.rank - 1], True)
    inner = b.multiply(weights, b.subtract(matmul(b, grad, _swap(b, value)), product))
    inner = b.cast(b.multiply(inner, factor), dtype)
    d_value = matmul(b, _swap(b, b.cast(weights, dtype)), grad)
    return matmul(b, inner, key), matmul(b, _swap(b, inner), query), d_value
