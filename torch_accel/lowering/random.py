"""Rules of random operators: Philox 4x32-10 from (seed, offset), which are run-time inputs.

Element i uses counter (offset + i // 4) and lane i % 4, so results do not depend on how a program is compiled.
"""

import math

import torch

from .emitter import Emitter, Value, opmath
from .index import sorted_pair
from .reduce import scan
from .registry import lowers

_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)


def _halves(b: Emitter, x: Value) -> tuple[Value, Value]:
    """Low and high 32 bits of a uint64."""
    low = b.op("convert", [b.and_(x, 0xFFFFFFFF)], x.shape, torch.uint32)
    return low, b.op("convert", [b.shift_right_logical(x, 32)], x.shape, torch.uint32)


def bits(b: Emitter, count: int, seed: Value, offset: Value) -> Value:
    """`count` random uint32."""
    blocks = -(-count // 4)
    counter = b.add(b.iota([blocks], 0, torch.uint64), offset)
    c0, c1 = _halves(b, counter)
    c2 = c3 = b.const(0, torch.uint32, [blocks])
    k0, k1 = _halves(b, seed)
    for _ in range(10):
        products = [
            b.multiply(b.op("convert", [c], c.shape, torch.uint64), m)
            for c, m in zip((c0, c2), _MULTIPLIERS, strict=True)
        ]
        (low0, high0), (low1, high1) = (_halves(b, p) for p in products)
        c0, c1, c2, c3 = b.xor(b.xor(high1, c1), k0), low1, b.xor(b.xor(high0, c3), k1), low0
        k0, k1 = b.add(k0, _WEYL[0]), b.add(k1, _WEYL[1])
    lanes = b.concatenate([b.reshape(c, [blocks, 1]) for c in (c0, c1, c2, c3)], 1)
    return b.slice(b.reshape(lanes, [4 * blocks]), [0], [count])


def uniform01(b: Emitter, sizes, dtype: torch.dtype, seed: Value, offset: Value) -> Value:
    """Uniform in [0, 1): 24 random bits, 53 for float64."""
    count = math.prod(sizes)
    if dtype != torch.float64:
        raw = b.shift_right_logical(bits(b, count, seed, offset), 8)
        return b.reshape(b.multiply(b.op("convert", [raw], raw.shape, torch.float32), 2.0**-24), sizes)
    raw = b.reshape(bits(b, 2 * count, seed, offset), [count, 2])
    high, low = (b.op("convert", [b.slice_dim(raw, 1, i, i + 1)], [count, 1], torch.uint64) for i in (0, 1))
    wide = b.shift_right_logical(b.or_(b.shift_left(high, 32), low), 11)
    return b.reshape(b.multiply(b.op("convert", [wide], wide.shape, torch.float64), 2.0**-53), sizes)


def normal01(b: Emitter, sizes, dtype: torch.dtype, seed: Value, offset: Value) -> Value:
    """Standard normal, by Box and Muller."""
    u = uniform01(b, [2, *sizes], dtype, seed, offset)
    first, second = (b.reshape(b.slice_dim(u, 0, i, i + 1), sizes) for i in (0, 1))
    radius = b.sqrt(b.multiply(b.log_plus_one(b.negate(first)), -2))
    return b.multiply(radius, b.cosine(b.multiply(second, 2 * math.pi)))


@lowers("aten.rand.default", "aten.rand_like.default", "aten.rand.generator", random=True)
def rand(b, out, _, *, seed, offset):
    return uniform01(b, out.sizes, opmath(out.dtype), seed, offset)


@lowers("aten.randn.default", "aten.randn_like.default", "aten.randn.generator", random=True)
def randn(b, out, _, *, seed, offset):
    return normal01(b, out.sizes, opmath(out.dtype), seed, offset)


@lowers("aten.uniform.default", random=True)
def uniform(b, out, x, low=0.0, high=1.0, *, seed, offset):
    u = uniform01(b, out.sizes, opmath(out.dtype), seed, offset)
    low, high = (b.cast(b.lift(v, u.dtype), u.dtype) for v in (low, high))
    return b.add(b.multiply(u, b.subtract(high, low)), low)


@lowers("aten.normal_functional.default", random=True)
def normal(b, out, x, mean=0.0, std=1.0, *, seed, offset):
    z = normal01(b, out.sizes, opmath(out.dtype), seed, offset)
    mean, std = (b.cast(b.lift(v, z.dtype), z.dtype) for v in (mean, std))
    return b.add(b.multiply(z, std), mean)


@lowers("aten.bernoulli.p", random=True)
def bernoulli_p(b, out, x, p, *, seed, offset):
    u = uniform01(b, out.sizes, torch.float32, seed, offset)
    return b.compare(u, b.cast(b.lift(p, u.dtype), u.dtype), "LT")


@lowers("aten.bernoulli.default", random=True)
def bernoulli(b, out, p, *, seed, offset):
    return b.compare(uniform01(b, out.sizes, opmath(p.dtype), seed, offset), b.cast(p, opmath(p.dtype)), "LT")


@lowers("aten.native_dropout.default", random=True)
def native_dropout(b, out, x, p, train, *, seed, offset):
    if train is False:
        return x, b.const(True, torch.bool, x.shape)
    u = uniform01(b, x.shape, torch.float32, seed, offset)
    p = b.cast(b.lift(p, u.dtype), u.dtype)
    mask = b.compare(u, p, "GE")
    wide = b.cast(x, opmath(x.dtype))
    scale = b.select(b.compare(p, 1, "EQ"), b.lift(0, p.dtype), b.divide(b.lift(1, p.dtype), b.subtract(1, p)))
    return b.multiply(b.multiply(wide, b.cast(mask, wide.dtype)), b.cast(scale, wide.dtype)), mask


@lowers("aten.randint.default", "aten.randint.low", random=True)
def randint(b, out, *bounds, seed, offset):
    low, high = (0, bounds[0]) if len(bounds) == 2 else bounds[:2]
    count = math.prod(out.sizes)
    raw = b.reshape(bits(b, 2 * count, seed, offset), [count, 2])
    first, second = (b.op("convert", [b.slice_dim(raw, 1, i, i + 1)], [count, 1], torch.uint64) for i in (0, 1))
    drawn = b.remainder(b.or_(b.shift_left(first, 32), second), high - low)
    return b.add(b.op("convert", [b.reshape(drawn, out.sizes)], out.sizes, torch.int64), low)


@lowers("aten.randperm.default", random=True)
def randperm(b, out, n, *, seed, offset):
    return sorted_pair(b, uniform01(b, [n], torch.float64, seed, offset), 0, False)[1]


@lowers("aten.multinomial.default", random=True)
def multinomial(b, out, p, num_samples, replacement=False, *, seed, offset):
    p = b.cast(p, opmath(p.dtype))
    if not replacement:  # the largest of p / exponential: sampling without replacement
        u = uniform01(b, p.shape, p.dtype, seed, offset)
        race = b.divide(p, b.negate(b.log_plus_one(b.negate(u))))
        return b.slice_dim(sorted_pair(b, race, p.rank - 1, True)[1], p.rank - 1, 0, num_samples)
    cumulative = scan(b, [p], p.rank - 1, lambda a, c: [b.add(a[0], c[0])], [0])[0]
    total = b.slice_dim(cumulative, p.rank - 1, p.shape[-1] - 1, p.shape[-1])
    draw = b.multiply(uniform01(b, out.sizes, p.dtype, seed, offset), total)
    below = b.compare(b.reshape(cumulative, (*p.shape[:-1], 1, p.shape[-1])), b.reshape(draw, (*draw.shape, 1)), "LE")
    return b.minimum(b.reduce(b.cast(below, out.dtype), [draw.rank], "add", 0), p.shape[-1] - 1)
