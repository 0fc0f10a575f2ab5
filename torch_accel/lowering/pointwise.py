"""Rules of elementwise operators. Half types compute in float32; the interpreter rounds to the result's dtype."""

import functools
import math

import torch
from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND as KIND
from torch._prims_common import elementwise_dtypes

from .emitter import REAL_OF, Emitter, Value, opmath
from .registry import lowers


@functools.cache
def _sample(dtype: torch.dtype, weak: bool, scalar: bool):
    """A stand-in for an operand: a number of the right kind or an empty tensor."""
    if weak:
        return 1j if dtype.is_complex else 1.0 if dtype.is_floating_point else True if dtype == torch.bool else 1
    return torch.empty(() if scalar else (1,), dtype=dtype, device="meta")


def common_dtype(*operands, to_float: bool = False) -> torch.dtype:
    """The dtype in which torch computes on these operands (values and numbers)."""
    samples = [_sample(x.dtype, x.weak, x.rank == 0) if isinstance(x, Value) else x for x in operands]
    kind = KIND.INT_TO_FLOAT if to_float else KIND.DEFAULT
    return opmath(elementwise_dtypes(*samples, type_promotion_kind=kind)[1])


def operands(b: Emitter, *xs, to_float: bool = False) -> list[Value]:
    """The operands in the dtype in which torch computes on them."""
    dtype = common_dtype(*xs, to_float=to_float)
    return [b.cast(b.lift(x, dtype), dtype) for x in xs]


def is_one(x) -> bool:
    return not isinstance(x, Value) and x == 1


def scaled(b: Emitter, x: Value, factor) -> Value:
    """x * factor for a number or run-time scalar `factor`."""
    return x if is_one(factor) else b.multiply(x, b.cast(b.lift(factor, x.dtype), x.dtype))


# ------------------------------------------------------------------------------------------------ one operand
_FLOAT_UNARY = {
    "exp": "exponential",
    "expm1": "exponential_minus_one",
    "log": "log",
    "log1p": "log_plus_one",
    "sqrt": "sqrt",
    "rsqrt": "rsqrt",
    "sin": "sine",
    "cos": "cosine",
    "tanh": "tanh",
    "sigmoid": "logistic",
}
_ROUNDING = {"ceil": "ceil", "floor": "floor", "round": "round_nearest_even"}


def _unary(name: str, method: str, to_float: bool) -> None:
    @lowers(f"aten.{name}.default")
    def rule(b, out, x):
        if not to_float and not x.dtype.is_floating_point:
            return x
        return getattr(b, method)(*operands(b, x, to_float=to_float))


for _name, _method in _FLOAT_UNARY.items():
    _unary(_name, _method, to_float=True)
for _name, _method in _ROUNDING.items():
    _unary(_name, _method, to_float=False)


def _composed(name: str):
    """Registers fn(b, x) on the value in its computation dtype, integers as floats."""

    def register(fn):
        @lowers(f"aten.{name}.default")
        def rule(b, out, x):
            return fn(b, *operands(b, x, to_float=True))

        return fn

    return register


_composed("tan")(lambda b, x: b.divide(b.sine(x), b.cosine(x)))
_composed("exp2")(lambda b, x: b.power(b.lift(2.0, x.dtype), x))
_composed("log2")(lambda b, x: b.divide(b.log(x), math.log(2)))
_composed("log10")(lambda b, x: b.divide(b.log(x), math.log(10)))
_composed("reciprocal")(lambda b, x: b.divide(b.lift(1, x.dtype), x))
_composed("atan")(lambda b, x: b.atan2(x, 1))
_composed("asin")(lambda b, x: b.atan2(x, b.sqrt(b.multiply(b.subtract(1, x), b.add(x, 1)))))
_composed("acos")(lambda b, x: b.atan2(b.sqrt(b.multiply(b.subtract(1, x), b.add(x, 1))), x))
_composed("atanh")(lambda b, x: b.multiply(b.subtract(b.log_plus_one(x), b.log_plus_one(b.negate(x))), 0.5))
_composed("erf")(lambda b, x: erf(b, x))
_composed("erfc")(lambda b, x: erfc(b, x))


@_composed("sinh")
def sinh(b: Emitter, x: Value) -> Value:
    # In terms of expm1: no cancellation near zero; e / (e + 1) + e would overflow too early, so halve first.
    e = b.exponential_minus_one(b.abs(x))
    half = b.multiply(b.add(e, b.divide(e, b.add(e, 1))), 0.5)
    large = b.exponential(b.subtract(b.abs(x), math.log(2)))
    result = b.select(b.compare(b.abs(x), 20, "LT"), half, large)
    return b.select(b.compare(x, 0, "LT"), b.negate(result), b.select(b.compare(x, 0, "EQ"), x, result))


@_composed("cosh")
def cosh(b: Emitter, x: Value) -> Value:
    shifted = b.subtract(b.abs(x), math.log(2))
    return b.add(b.exponential(shifted), b.multiply(b.exponential(b.negate(b.abs(x))), 0.5))


@_composed("asinh")
def asinh(b: Emitter, x: Value) -> Value:
    a = b.abs(x)
    square = b.multiply(a, a)
    small = b.log_plus_one(b.add(a, b.divide(square, b.add(b.sqrt(b.add(square, 1)), 1))))
    large = b.add(b.log(a), math.log(2))
    result = b.select(b.compare(a, 1e9, "LT"), small, large)
    return b.select(b.compare(x, 0, "LT"), b.negate(result), b.select(b.compare(x, 0, "EQ"), x, result))


@_composed("acosh")
def acosh(b: Emitter, x: Value) -> Value:
    y = b.subtract(x, 1)
    small = b.log_plus_one(b.add(y, b.sqrt(b.add(b.multiply(y, y), b.multiply(y, 2)))))
    return b.select(b.compare(x, 1e9, "LT"), small, b.add(b.log(x), math.log(2)))


@lowers("aten.neg.default")
def neg(b, out, x):
    return b.negate(x)


@lowers("aten.abs.default")
def absolute(b, out, x):
    return b.op("abs", [x], x.shape, REAL_OF.get(x.dtype, x.dtype)) if x.dtype != torch.bool else x


@lowers("aten.sign.default")
def sign(b, out, x):
    # A NaN gives 0 in torch and NaN in StableHLO.
    if x.dtype == torch.bool:
        return x
    return b.subtract(b.cast(b.compare(x, 0, "GT"), x.dtype), b.cast(b.compare(x, 0, "LT"), x.dtype))


@lowers("aten.trunc.default")
def trunc(b, out, x):
    if not x.dtype.is_floating_point:
        return x
    down = b.floor(b.abs(x))
    return b.select(b.isnan(x), x, b.select(_sign_bit(b, x), b.negate(down), down))


@lowers("aten.bitwise_not.default")
def bitwise_not(b, out, x):
    return b.not_(x)


@lowers("aten.logical_not.default")
def logical_not(b, out, x):
    return b.not_(b.cast(x, torch.bool))


@lowers("aten.isnan.default")
def isnan(b, out, x):
    return b.isnan(x) if x.dtype.is_floating_point or x.dtype.is_complex else b.const(False, torch.bool, x.shape)


@lowers("aten.complex.default")
def complex_(b, out, real, imag):
    return b.complex(real, imag)


# ------------------------------------------------------------------------------------------------ erf
@functools.cache
def _chebyshev(terms: int) -> tuple[float, ...]:
    """Coefficients of erfc(x) exp(x^2) (x + 1) on x = 3 (1 + t) / (1 - t), t in [-1, 1)."""

    def sample(t):
        x = 3 * (1 + t) / (1 - t)
        if x < 5:
            return math.erfc(x) * math.exp(x * x) * (x + 1)
        # The asymptotic continued fraction; exact to double precision here.
        tail = x
        for k in range(60, 0, -1):
            tail = x + k / 2 / tail
        return (x + 1) / tail / math.sqrt(math.pi)

    n = 4 * terms
    nodes = [math.pi * (k + 0.5) / n for k in range(n)]
    samples = [sample(math.cos(node)) for node in nodes]
    return tuple(2 / n * sum(s * math.cos(j * a) for s, a in zip(samples, nodes, strict=True)) for j in range(terms))


def _erfc_positive(b: Emitter, x: Value) -> Value:
    """erfc for x >= 0: a Chebyshev series in t = (x - 3) / (x + 3), by Clenshaw's recurrence."""
    t = b.divide(b.subtract(x, 3), b.add(x, 3))
    t = b.select(b.compare(x, 1e30, "GT"), b.lift(1, x.dtype), t)
    later, last = b.lift(0, x.dtype), b.lift(0, x.dtype)
    coefficients = _chebyshev(30 if x.dtype == torch.float64 else 14)
    for c in reversed(coefficients[1:]):
        later, last = b.add(b.subtract(b.multiply(b.multiply(t, 2), later), last), c), later
    series = b.add(b.subtract(b.multiply(t, later), last), coefficients[0] / 2)
    return b.divide(b.multiply(series, b.exponential(b.negate(b.multiply(x, x)))), b.add(x, 1))


def erf(b: Emitter, x: Value) -> Value:
    """Taylor's series up to 1, 1 - erfc beyond; odd and exact at 0."""
    square = b.multiply(x, x)
    terms = 20 if x.dtype == torch.float64 else 11
    series = b.lift(0.0, x.dtype)
    for n in reversed(range(terms)):
        series = b.add(
            b.multiply(series, square), 2 / math.sqrt(math.pi) * (-1) ** n / (math.factorial(n) * (2 * n + 1))
        )
    large = b.subtract(1, _erfc_positive(b, b.abs(x)))
    large = b.select(b.compare(x, 0, "LT"), b.negate(large), large)
    result = b.select(b.compare(b.abs(x), 1, "LE"), b.multiply(x, series), large)
    return b.select(b.isnan(x), x, result)


def erfc(b: Emitter, x: Value) -> Value:
    positive = _erfc_positive(b, b.abs(x))
    small = b.subtract(1, erf(b, x))
    result = b.select(b.compare(x, 0.5, "LT"), small, positive)
    return b.select(b.isnan(x), x, result)


# ------------------------------------------------------------------------------------------------ arithmetic
@lowers("aten.add.Tensor", "aten.add.Scalar")
def add(b, out, x, y, alpha=1):
    x, y = operands(b, x, y)
    return b.add(x, scaled(b, y, alpha))


@lowers("aten.sub.Tensor", "aten.sub.Scalar")
def sub(b, out, x, y, alpha=1):
    x, y = operands(b, x, y)
    return b.subtract(x, scaled(b, y, alpha))


@lowers("aten.rsub.Tensor", "aten.rsub.Scalar")
def rsub(b, out, x, y, alpha=1):
    x, y = operands(b, x, y)
    return b.subtract(y, scaled(b, x, alpha))


@lowers("aten.mul.Tensor", "aten.mul.Scalar")
def mul(b, out, x, y):
    return b.multiply(*operands(b, x, y))


@lowers("aten.div.Tensor", "aten.div.Scalar")
def div(b, out, x, y):
    return b.divide(*operands(b, x, y, to_float=True))


def floor_div(b: Emitter, x: Value, y: Value) -> Value:
    """x // y as Python; for floats the steps of torch, so that results are integers also where x / y rounds up."""
    rest = b.remainder(x, y)
    off = b.and_(b.compare(rest, 0, "NE"), b.xor(b.compare(rest, 0, "LT"), b.compare(y, 0, "LT")))
    if not x.dtype.is_floating_point:
        return b.subtract(b.divide(x, y), b.cast(off, x.dtype))
    quotient = b.divide(b.subtract(x, rest), y)
    quotient = b.select(off, b.subtract(quotient, 1), quotient)
    down = b.floor(quotient)
    down = b.select(b.compare(b.subtract(quotient, down), 0.5, "GT"), b.add(down, 1), down)
    ratio = b.divide(x, y)
    zero = b.multiply(ratio, 0)
    down = b.select(b.compare(quotient, 0, "EQ"), zero, down)
    return b.select(b.compare(y, 0, "EQ"), ratio, down)


@lowers("aten.floor_divide.default", "aten.floor_divide.Scalar")
def floor_divide(b, out, x, y):
    return floor_div(b, *operands(b, x, y))


@lowers("aten.div.Tensor_mode", "aten.div.Scalar_mode")
def div_mode(b, out, x, y, rounding_mode=None):
    if rounding_mode is None:
        return div(b, out, x, y)
    x, y = operands(b, x, y)
    if rounding_mode == "floor":
        return floor_div(b, x, y)
    return trunc(b, out, b.divide(x, y))


@lowers("aten.fmod.Tensor", "aten.fmod.Scalar")
def fmod(b, out, x, y):
    return b.remainder(*operands(b, x, y))


@lowers("aten.remainder.Tensor", "aten.remainder.Scalar", "aten.remainder.Scalar_Tensor")
def remainder(b, out, x, y):
    x, y = b.together(*operands(b, x, y))
    rest = b.remainder(x, y)
    off = b.and_(b.compare(rest, 0, "NE"), b.xor(b.compare(rest, 0, "LT"), b.compare(y, 0, "LT")))
    return b.select(off, b.add(rest, y), rest)


@lowers("aten.pow.Tensor_Tensor", "aten.pow.Scalar")
def power(b, out, x, y):
    return b.power(*operands(b, x, y))


@lowers("aten.pow.Tensor_Scalar", static=("exponent",))
def pow_scalar(b, out, x, exponent):
    x = operands(b, x, exponent)[0]
    if exponent in (1, 2, 3, 4):
        return functools.reduce(b.multiply, [x] * int(exponent))
    if exponent == 0.5:
        return b.sqrt(x)
    if exponent in (-1, -2, -0.5) and x.dtype.is_floating_point:
        return (
            b.rsqrt(x) if exponent == -0.5 else b.divide(b.lift(1, x.dtype), x if exponent == -1 else b.multiply(x, x))
        )
    return b.power(x, exponent)


@lowers("aten.atan2.default")
def atan2(b, out, x, y):
    return b.atan2(*operands(b, x, y, to_float=True))


def extreme(b: Emitter, x: Value, y: Value, name: str) -> Value:
    """maximum or minimum; a NaN wins, whatever the plugin's fast-math flags say."""
    x, y = b.together(x, y)
    if x.dtype.is_floating_point:
        chosen = b.compare(x, y, "GE" if name == "maximum" else "LE")
        return b.select(b.or_(chosen, b.isnan(x)), x, y)
    return getattr(b, name)(x, y)


@lowers("aten.maximum.default")
def maximum(b, out, x, y):
    return extreme(b, *operands(b, x, y), "maximum")


@lowers("aten.minimum.default")
def minimum(b, out, x, y):
    return extreme(b, *operands(b, x, y), "minimum")


def _sign_bit(b: Emitter, x: Value) -> Value:
    return b.compare(b.bitcast(x, {2: torch.int16, 4: torch.int32, 8: torch.int64}[x.dtype.itemsize]), 0, "LT")


@lowers("aten.signbit.default")
def signbit(b, out, x):
    if x.dtype == torch.bool:
        return b.const(False, x.dtype, x.shape)
    return _sign_bit(b, x) if x.dtype.is_floating_point else b.compare(x, 0, "LT")


@lowers("aten.copysign.Tensor", "aten.copysign.Scalar")
def copysign(b, out, x, y):
    x, y = b.together(*operands(b, x, y, to_float=True))
    return b.select(_sign_bit(b, y), b.negate(b.abs(x)), b.abs(x))


def _ignoring_nan(name: str, method: str) -> None:
    @lowers(f"aten.{name}.default")
    def rule(b, out, x, y):
        x, y = b.together(*operands(b, x, y))
        result = extreme(b, x, y, method)
        return b.select(b.isnan(x), y, b.select(b.isnan(y), x, result)) if x.dtype.is_floating_point else result


_ignoring_nan("fmax", "maximum")
_ignoring_nan("fmin", "minimum")


@lowers("aten.addcmul.default")
def addcmul(b, out, x, y, z, value=1):
    x, y, z = operands(b, x, y, z)
    return b.add(x, b.multiply(scaled(b, y, value), z))


@lowers("aten.addcdiv.default")
def addcdiv(b, out, x, y, z, value=1):
    x, y, z = operands(b, x, y, z, to_float=True)
    return b.add(x, b.divide(scaled(b, y, value), z))


@lowers("aten.lerp.Scalar", "aten.lerp.Tensor")
def lerp(b, out, start, end, weight):
    start, end, weight = operands(b, start, end, weight)
    gap = b.subtract(end, start)
    near = b.add(start, b.multiply(weight, gap))
    far = b.subtract(end, b.multiply(gap, b.subtract(1, weight)))
    return b.select(b.compare(b.abs(weight), 0.5, "LT"), near, far)


# ------------------------------------------------------------------------------------------------ comparison, logic
def _compare(name: str) -> None:
    @lowers(f"aten.{name}.Tensor", f"aten.{name}.Scalar")
    def rule(b, out, x, y):
        return b.compare(*operands(b, x, y), name.upper())


for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    _compare(_name)


def _logic(name: str) -> None:
    method = name + "_" * (name != "xor")

    @lowers(f"aten.bitwise_{name}.Tensor", f"aten.bitwise_{name}.Scalar", f"aten.bitwise_{name}.Scalar_Tensor")
    def bitwise(b, out, x, y):
        return getattr(b, method)(*operands(b, x, y))

    @lowers(f"aten.logical_{name}.default")
    def logical(b, out, x, y):
        return getattr(b, method)(b.cast(x, torch.bool), b.cast(y, torch.bool))


for _name in ("and", "or", "xor"):
    _logic(_name)


@lowers(
    "aten.bitwise_left_shift.Tensor",
    "aten.bitwise_left_shift.Tensor_Scalar",
    "aten.__lshift__.Scalar",
    "aten.__lshift__.Tensor",
)
def left_shift(b, out, x, y):
    return b.shift_left(*operands(b, x, y))


@lowers(
    "aten.bitwise_right_shift.Tensor",
    "aten.bitwise_right_shift.Tensor_Scalar",
    "aten.__rshift__.Scalar",
    "aten.__rshift__.Tensor",
)
def right_shift(b, out, x, y):
    x, y = operands(b, x, y)
    return (
        b.shift_right_logical(x, y)
        if x.dtype in (torch.uint8, torch.uint16, torch.uint32, torch.uint64)
        else b.shift_right_arithmetic(x, y)
    )


@lowers("aten.where.self", "aten.where.ScalarSelf", "aten.where.ScalarOther", "aten.where.Scalar")
def where(b, out, condition, x, y):
    x, y = (b.cast(b.lift(v, out.dtype), out.dtype) for v in (x, y))
    return b.select(b.cast(condition, torch.bool), x, y)


@lowers("aten.masked_fill.Scalar", "aten.masked_fill.Tensor")
def masked_fill(b, out, x, mask, value):
    return b.select(mask, b.cast(b.lift(value, x.dtype), x.dtype), x)


@lowers("aten.clamp.default", "aten.clamp.Tensor")
def clamp(b, out, x, min=None, max=None):
    x, low, high = (None if v is None else b.cast(b.lift(v, out.dtype), opmath(out.dtype)) for v in (x, min, max))
    x = x if low is None else extreme(b, x, low, "maximum")
    return x if high is None else extreme(b, x, high, "minimum")


@lowers("aten.clamp_min.default", "aten.clamp_min.Tensor")
def clamp_min(b, out, x, low):
    return clamp(b, out, x, low)


@lowers("aten.clamp_max.default", "aten.clamp_max.Tensor")
def clamp_max(b, out, x, high):
    return clamp(b, out, x, None, high)


# ------------------------------------------------------------------------------------------------ activations
@lowers("aten.relu.default")
def relu(b, out, x):
    return b.select(b.compare(x, 0, "LE"), b.lift(0, x.dtype), x)


@lowers("aten.threshold_backward.default")
def threshold_backward(b, out, grad, x, threshold):
    grad = b.cast(grad, out.dtype)
    return b.select(b.compare(x, b.cast(b.lift(threshold, x.dtype), x.dtype), "LE"), b.lift(0, grad.dtype), grad)


@lowers("aten.gelu.default")
def gelu(b, out, x, approximate="none"):
    (x,) = operands(b, x)
    return b.multiply(x, _gelu_cdf(b, x, approximate)[0])


def _gelu_cdf(b: Emitter, x: Value, approximate: str) -> tuple[Value, Value]:
    """The factor of x in gelu and the derivative of that factor."""
    if approximate == "none":
        cdf = b.multiply(b.add(erf(b, b.multiply(x, math.sqrt(0.5))), 1), 0.5)
        density = b.multiply(b.exponential(b.multiply(b.multiply(x, x), -0.5)), 1 / math.sqrt(2 * math.pi))
        return cdf, density
    beta, cubic, square = math.sqrt(2 / math.pi), 0.044715, b.multiply(x, x)
    t = b.tanh(b.multiply(b.multiply(x, b.add(b.multiply(square, cubic), 1)), beta))
    slope = b.multiply(b.add(b.multiply(square, 3 * cubic), 1), beta)
    density = b.multiply(b.multiply(b.subtract(1, b.multiply(t, t)), slope), 0.5)
    return b.multiply(b.add(t, 1), 0.5), density


@lowers("aten.gelu_backward.default")
def gelu_backward(b, out, grad, x, approximate="none"):
    grad, x = operands(b, grad, x)
    cdf, density = _gelu_cdf(b, x, approximate)
    return b.multiply(grad, b.add(cdf, b.multiply(x, density)))


@lowers("aten.silu.default")
def silu(b, out, x):
    (x,) = operands(b, x)
    return b.multiply(x, b.logistic(x))


@lowers("aten.silu_backward.default")
def silu_backward(b, out, grad, x):
    grad, x = operands(b, grad, x)
    s = b.logistic(x)
    return b.multiply(b.multiply(grad, s), b.add(b.multiply(x, b.subtract(1, s)), 1))


@lowers("aten.sigmoid_backward.default")
def sigmoid_backward(b, out, grad, y):
    grad, y = operands(b, grad, y)
    return b.multiply(grad, b.multiply(b.subtract(1, y), y))


@lowers("aten.tanh_backward.default")
def tanh_backward(b, out, grad, y):
    grad, y = operands(b, grad, y)
    return b.multiply(grad, b.subtract(1, b.multiply(y, y)))


@lowers("aten.hardshrink_backward.default", "aten.softshrink_backward.default")
def shrink_backward(b, out, grad, x, lambd):
    (wide,) = operands(b, x)
    inside = b.compare(b.abs(wide), b.cast(b.lift(lambd, wide.dtype), wide.dtype), "LE")
    return b.select(inside, b.lift(0, grad.dtype), grad)


# ------------------------------------------------------------------------------------------------ copies
@lowers("aten._to_copy.default", "aten.clone.default", "aten.lift_fresh_copy.default", "aten.alias_copy.default")
def copy_of(b, out, x):
    return x


@lowers("aten.copy.default")
def copy(b, out, x, source):
    return b.broadcast(b.cast(source, x.dtype), x.shape)
