"""Text of a StableHLO function, built one operation at a time in generic form.

Every attribute spelling of StableHLO that the package uses is in this file, and only operations of StableHLO v1.0 are
emitted. Methods take and return `Value`s: the name of an SSA value with its shape and torch dtype. Elementwise methods
broadcast as torch does and accept Python numbers, which become constants of the other operand's dtype.
"""

import dataclasses
import functools
import math

import torch

TYPES = {
    torch.bool: "i1",
    torch.int8: "i8",
    torch.int16: "i16",
    torch.int32: "i32",
    torch.int64: "i64",
    torch.uint8: "ui8",
    torch.uint16: "ui16",
    torch.uint32: "ui32",
    torch.uint64: "ui64",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.float32: "f32",
    torch.float64: "f64",
    torch.complex64: "complex<f32>",
    torch.complex128: "complex<f64>",
    torch.float8_e4m3fn: "f8E4M3FN",
    torch.float8_e5m2: "f8E5M2",
    torch.float8_e4m3fnuz: "f8E4M3FNUZ",
    torch.float8_e5m2fnuz: "f8E5M2FNUZ",
}
HALF = {torch.float16, torch.bfloat16} | {dtype for dtype in TYPES if "float8" in str(dtype)}
REAL_OF = {torch.complex64: torch.float32, torch.complex128: torch.float64}
COMPLEX_OF = {real: dtype for dtype, real in REAL_OF.items()}
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclasses.dataclass(frozen=True, slots=True)
class Value:
    """An SSA value. `weak` marks a run-time scalar, which counts as a Python number in type promotion."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    weak: bool = False

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def numel(self) -> int:
        return math.prod(self.shape)

    @property
    def type(self) -> str:
        return tensor_type(self.shape, self.dtype)


def tensor_type(shape, dtype: torch.dtype) -> str:
    return f"tensor<{''.join(f'{size}x' for size in shape)}{TYPES[dtype]}>"


def opmath(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which torch computes on `dtype`: float32 for the half types."""
    return torch.float32 if dtype in HALF else dtype


def broadcast_shape(*shapes) -> tuple[int, ...]:
    rank = max(map(len, shapes))
    padded = [(1,) * (rank - len(shape)) + tuple(shape) for shape in shapes]
    return tuple(next((size for size in sizes if size != 1), 1) for sizes in zip(*padded, strict=True))


def literal(value, dtype: torch.dtype) -> str:
    """One element of `dtype` as MLIR text. What has no exact decimal form (NaN, inf, -0.0) is given by its bits."""
    if dtype.is_complex:
        value, real = complex(value), REAL_OF[dtype]
        return f"({literal(value.real, real)}, {literal(value.imag, real)})"
    if dtype.is_floating_point:
        value = float(value)
        if math.isfinite(value) and (value or math.copysign(1, value) > 0) and dtype.itemsize > 1:
            return f"{value:.1f}" if value == int(value) and abs(value) < 1e6 else f"{value:.17e}"
        bits = torch.tensor(value, dtype=torch.float64).to(dtype).view(_BITS[dtype.itemsize]).item()
        return f"0x{bits & (256**dtype.itemsize - 1):0{2 * dtype.itemsize}X}"
    if dtype == torch.bool:
        return "true" if value else "false"
    low = torch.iinfo(dtype).min
    return str((int(value) - low) % 256**dtype.itemsize + low)


def _array(numbers) -> str:
    return "array<i64" + (": " + ", ".join(map(str, map(int, numbers))) if numbers else "") + ">"


def _list(numbers) -> str:
    return "[" + ", ".join(map(str, numbers)) + "]"


class Emitter:
    """Builds one function. `text()` gives the module."""

    def __init__(self, precision: str = "highest"):
        self.precision = {"highest": "HIGHEST", "high": "HIGH", "medium": "DEFAULT"}[precision]
        self.blocks: list[list[str]] = [[]]
        self.constants: list[dict] = [{}]
        self.arguments: list[tuple[Value, str]] = []
        self.checks: list[tuple[Value, int]] = []
        self.position = 0  # number of the record being lowered; names the origin of a check
        self.count = 0

    # ------------------------------------------------------------------------------------------------ structure
    def _fresh(self, shape, dtype) -> Value:
        self.count += 1
        return Value(f"%{self.count}", tuple(shape), dtype)

    def argument(self, shape, dtype, weak: bool = False) -> Value:
        """A further argument of the function."""
        value = Value(f"%arg{len(self.arguments)}", tuple(shape), dtype, weak)
        self.arguments.append(value)
        return value

    def multi(self, name: str, operands, results, attributes: str = "", regions=()) -> list[Value]:
        """Emits an operation with results [(shape, dtype), ...]."""
        values = [self._fresh(*result) for result in results]
        if len(values) == 1:
            names, types = values[0].name, values[0].type
        else:
            base = values[0].name
            names, types = f"{base}:{len(values)}", f"({', '.join(v.type for v in values)})"
            values = [dataclasses.replace(v, name=f"{base}#{i}") for i, v in enumerate(values)]
        line = f'{names} = "stablehlo.{name}"({", ".join(v.name for v in operands)})'
        if regions:
            line += " (" + ", ".join("{" + region + "}" for region in regions) + ")"
        if attributes:
            line += f" {{{attributes}}}"
        self.blocks[-1].append(f"{line} : ({', '.join(v.type for v in operands)}) -> {types}")
        return values

    def op(self, name: str, operands, shape, dtype, attributes: str = "", regions=()) -> Value:
        return self.multi(name, operands, [(shape, dtype)], attributes, regions)[0]

    def region(self, fn, types) -> str:
        """The text of a region whose block takes `types` [(shape, dtype), ...] and returns what fn(*arguments) does."""
        arguments = [self._fresh(*kind) for kind in types]
        self.blocks.append([])
        self.constants.append({})
        results = fn(*arguments)
        results = [results] if isinstance(results, Value) else list(results)
        types = ", ".join(v.type for v in results)
        self.blocks[-1].append(f'"stablehlo.return"({", ".join(v.name for v in results)}) : ({types}) -> ()')
        self.constants.pop()
        head = "^bb0(" + ", ".join(f"{a.name}: {a.type}" for a in arguments) + "):"
        return "\n".join([head, *self.blocks.pop()])

    def text(self, outputs, aliases=None) -> str:
        """The module. `aliases` maps an argument's number to the output that takes over its memory."""
        aliases = aliases or {}
        arguments = ", ".join(
            f"{a.name}: {a.type}" + (f" {{tf.aliasing_output = {aliases[i]} : i32}}" if i in aliases else "")
            for i, a in enumerate(self.arguments)
        )
        types = ", ".join(v.type for v in outputs)
        names = ", ".join(v.name for v in outputs)
        back = f'"func.return"({names}) : ({types}) -> ()'
        body = "\n".join([*self.blocks[0], back])
        return f"module @accel {{\nfunc.func public @main({arguments}) -> ({types}) {{\n{body}\n}}\n}}\n"

    def check(self, bad: Value) -> None:
        """Remembers that the current record is in error where any element of `bad` (bool) is true."""
        if len(self.blocks) == 1 and bad.numel:
            self.checks.append((self.reduce(bad, range(bad.rank), "or", False), self.position))

    def error_word(self) -> Value:
        """int32 scalar: 0, or 1 + the number of the first record whose check failed."""
        word = self.const(0, torch.int32)
        for bad, position in reversed(self.checks):
            word = self.select(bad, self.const(position + 1, torch.int32), word)
        return word

    # ------------------------------------------------------------------------------------------------ constants
    def const(self, value, dtype, shape=()) -> Value:
        """A constant, all elements equal."""
        key = (literal(value, dtype), dtype)
        found = self.constants[-1].get(key)
        if found is None:
            attribute = f"value = dense<{key[0]}> : {tensor_type((), dtype)}"
            found = self.constants[-1][key] = self.op("constant", [], (), dtype, attribute)
        return self.broadcast(found, shape)

    def dense(self, tensor: torch.Tensor) -> Value:
        """The elements of a CPU tensor as a constant."""
        tensor = tensor.detach().resolve_conj().resolve_neg().contiguous()
        shape, dtype = tuple(tensor.shape), tensor.dtype
        if tensor.numel() == 0:
            return self.const(0, dtype, shape)
        if tensor.numel() == 1 or bool((tensor == tensor.reshape(-1)[0]).all()):
            return self.const(tensor.reshape(-1)[0].item(), dtype, shape)
        if dtype == torch.bool:
            return self.cast(self.dense(tensor.to(torch.uint8)), torch.bool)
        raw = bytes(tensor.view(torch.uint8).reshape(-1).tolist()).hex().upper()
        return self.op("constant", [], shape, dtype, f'value = dense<"0x{raw}"> : {tensor_type(shape, dtype)}')

    def iota(self, shape, dim: int, dtype=torch.int64) -> Value:
        return self.op("iota", [], shape, dtype, f"iota_dimension = {dim} : i64")

    # ------------------------------------------------------------------------------------------------ elementwise
    def lift(self, x, dtype) -> Value:
        """A number as a constant of `dtype`; a value as it is."""
        return x if isinstance(x, Value) else self.const(x, dtype)

    def together(self, *operands) -> list[Value]:
        """Lifts numbers to the dtype of the first value and broadcasts all to one shape."""
        dtype = next(x.dtype for x in operands if isinstance(x, Value))
        values = [self.lift(x, dtype) for x in operands]
        shape = broadcast_shape(*(v.shape for v in values))
        return [self.broadcast(v, shape) for v in values]

    def _elementwise(self, name, *operands) -> Value:
        values = self.together(*operands)
        return self.op(name, values, values[0].shape, values[0].dtype)

    def compare(self, x, y, direction: str) -> Value:
        """`direction` is EQ, NE, LT, LE, GT or GE. With a NaN, NE is true and the others are false."""
        x, y = self.together(x, y)
        attribute = f"comparison_direction = #stablehlo<comparison_direction {direction}>"
        return self.op("compare", [x, y], x.shape, torch.bool, attribute)

    def select(self, condition: Value, x, y) -> Value:
        x, y = self.together(x, y) if isinstance(x, Value) or isinstance(y, Value) else (x, y)
        shape = broadcast_shape(condition.shape, x.shape)
        operands = [self.broadcast(condition, shape), self.broadcast(x, shape), self.broadcast(y, shape)]
        return self.op("select", operands, shape, x.dtype)

    def isnan(self, x: Value) -> Value:
        return self.compare(x, x, "NE")

    def real(self, x: Value) -> Value:
        return self.op("real", [x], x.shape, REAL_OF[x.dtype])

    def imag(self, x: Value) -> Value:
        return self.op("imag", [x], x.shape, REAL_OF[x.dtype])

    def complex(self, re: Value, im: Value) -> Value:
        re, im = self.together(re, im)
        return self.op("complex", [re, im], re.shape, COMPLEX_OF[re.dtype])

    def cast(self, x: Value, dtype: torch.dtype) -> Value:
        """Converts as torch does: to bool is `!= 0`, complex to real drops the imaginary part."""
        if x.dtype == dtype:
            return x
        if dtype == torch.bool:
            return self.compare(x, 0, "NE")
        if x.dtype.is_complex and not dtype.is_complex:
            return self.cast(self.real(x), dtype)
        if dtype.is_complex and not x.dtype.is_complex:
            part = self.cast(x, REAL_OF[dtype])
            return self.complex(part, self.const(0, part.dtype))
        if x.dtype.is_floating_point and not dtype.is_floating_point and dtype.itemsize < 4:
            # StableHLO leaves what does not fit undefined (XLA saturates); torch wraps around through a wider integer.
            x = self.op("convert", [x], x.shape, torch.int32)
        return self.op("convert", [x], x.shape, dtype)

    def bitcast(self, x: Value, dtype: torch.dtype) -> Value:
        """The same bits as `dtype`. Narrower: one more dimension at the end; wider: one less."""
        old, new = x.dtype.itemsize, dtype.itemsize
        shape = x.shape if old == new else (*x.shape, old // new) if old > new else x.shape[:-1]
        return self.op("bitcast_convert", [x], shape, dtype)

    def barrier(self, x: Value) -> Value:
        """x, computed in full before anything that uses it; the compiler may not fuse across."""
        return self.op("optimization_barrier", [x], x.shape, x.dtype)

    # ------------------------------------------------------------------------------------------------ shape
    def broadcast(self, x: Value, shape, dims=None) -> Value:
        """Broadcasts; dimension i of x is dims[i] of the result (default: aligned at the end, as torch does)."""
        shape = tuple(shape)
        if x.shape == shape and dims is None:
            return x
        dims = list(range(len(shape) - x.rank, len(shape))) if dims is None else list(dims)
        return self.op("broadcast_in_dim", [x], shape, x.dtype, f"broadcast_dimensions = {_array(dims)}")

    def reshape(self, x: Value, shape) -> Value:
        shape = tuple(shape)
        return x if x.shape == shape else self.op("reshape", [x], shape, x.dtype)

    def transpose(self, x: Value, permutation) -> Value:
        permutation = list(permutation)
        if permutation == list(range(x.rank)):
            return x
        shape = [x.shape[i] for i in permutation]
        return self.op("transpose", [x], shape, x.dtype, f"permutation = {_array(permutation)}")

    def slice(self, x: Value, start, limit, step=None) -> Value:
        step = [1] * x.rank if step is None else step
        shape = tuple(max(0, -(-(hi - lo) // by)) for lo, hi, by in zip(start, limit, step, strict=True))
        if shape == x.shape:
            return x
        attributes = (
            f"start_indices = {_array(start)}, limit_indices = {_array(limit)}, strides = {_array(step)}"  # fmt: skip
        )
        return self.op("slice", [x], shape, x.dtype, attributes)

    def slice_dim(self, x: Value, dim: int, lo: int, hi: int, step: int = 1) -> Value:
        start, limit, by = [0] * x.rank, list(x.shape), [1] * x.rank
        start[dim], limit[dim], by[dim] = lo, hi, step
        return self.slice(x, start, limit, by)

    def pad(self, x: Value, value, low, high, interior=None) -> Value:
        """Negative `low` and `high` cut."""
        interior = [0] * x.rank if interior is None else interior
        if not any([*low, *high, *interior]):
            return x
        edges = zip(x.shape, low, high, interior, strict=True)
        shape = [size + lo + hi + max(size - 1, 0) * gap for size, lo, hi, gap in edges]
        attributes = f"edge_padding_low = {_array(low)}, edge_padding_high = {_array(high)}, interior_padding = {_array(interior)}"
        return self.op("pad", [x, self.lift(value, x.dtype)], shape, x.dtype, attributes)

    def concatenate(self, values, dim: int) -> Value:
        if len(values) == 1:
            return values[0]
        shape = list(values[0].shape)
        shape[dim] = sum(v.shape[dim] for v in values)
        return self.op("concatenate", values, shape, values[0].dtype, f"dimension = {dim} : i64")

    def reverse(self, x: Value, dims) -> Value:
        return self.op("reverse", [x], x.shape, x.dtype, f"dimensions = {_array(list(dims))}") if dims else x

    def update(self, x: Value, part: Value, start) -> Value:
        """x with `part` in place of the block that begins at `start`."""
        if part.shape == x.shape:
            return part
        starts = [self.const(i, torch.int32) for i in start]
        return self.op("dynamic_update_slice", [x, part, *starts], x.shape, x.dtype)

    # ------------------------------------------------------------------------------------------------ reductions
    def _scalars(self, *dtypes):
        return [((), dtype) for dtype in dtypes]

    def reduce(self, x: Value, dims, fn, init) -> Value:
        """Reduces over `dims` with `fn`, the name of a binary operation."""
        dims = sorted(dims)
        if not dims:
            return x
        shape = [size for i, size in enumerate(x.shape) if i not in dims]
        return self.reduce_many(
            [x], dims, [init], lambda a, c: getattr(self, fn + "_" if fn in _WORDS else fn)(a, c), shape
        )[0]

    def reduce_many(self, values, dims, inits, fn, shape=None) -> list[Value]:
        """Reduces several values at once: fn(a0, a1, ..., b0, b1, ...) gives the combined elements."""
        dims = sorted(dims)
        shape = [size for i, size in enumerate(values[0].shape) if i not in dims] if shape is None else shape
        inits = [self.lift(init, v.dtype) for init, v in zip(inits, values, strict=True)]
        types = self._scalars(*(v.dtype for v in values))
        body = self.region(fn, types * 2)
        results = [(shape, v.dtype) for v in values]
        return self.multi("reduce", [*values, *inits], results, f"dimensions = {_array(dims)}", [body])

    def reduce_window(self, values, inits, fn, window, stride, padding, dilation, base_dilation=None) -> list[Value]:
        """Sliding reduction; the lists have one entry per dimension, padding is [(low, high), ...]."""
        base_dilation = [1] * len(window) if base_dilation is None else base_dilation
        shape = []
        for i, size in enumerate(values[0].shape):
            span = (size - 1) * base_dilation[i] + 1 + sum(padding[i]) - dilation[i] * (window[i] - 1) - 1
            shape.append(span // stride[i] + 1)
        inits = [self.lift(init, v.dtype) for init, v in zip(inits, values, strict=True)]
        body = self.region(fn, self._scalars(*(v.dtype for v in values)) * 2)
        attributes = (
            f"window_dimensions = {_array(window)}, window_strides = {_array(stride)}, "
            f"base_dilations = {_array(base_dilation)}, window_dilations = {_array(dilation)}, {self._padding(padding)}"
        )
        return self.multi("reduce_window", [*values, *inits], [(shape, v.dtype) for v in values], attributes, [body])

    def _padding(self, padding) -> str:
        rows = ", ".join(f"[{lo}, {hi}]" for lo, hi in padding)
        return f"padding = dense<[{rows}]> : tensor<{len(padding)}x2xi64>"

    # ------------------------------------------------------------------------------------------------ contractions
    def dot(self, x: Value, y: Value, contract, batch=((), ()), dtype=None) -> Value:
        """dot_general. The result has the batch dimensions, then what is left of x, then of y, in `dtype`."""
        (cx, cy), (bx, by) = contract, batch
        shape = [x.shape[i] for i in bx]
        shape += [size for i, size in enumerate(x.shape) if i not in (*bx, *cx)]
        shape += [size for i, size in enumerate(y.shape) if i not in (*by, *cy)]
        numbers = (
            f"lhs_batching_dimensions = {_list(bx)}, rhs_batching_dimensions = {_list(by)}, "
            f"lhs_contracting_dimensions = {_list(cx)}, rhs_contracting_dimensions = {_list(cy)}"
        )
        attributes = f"dot_dimension_numbers = #stablehlo.dot<{numbers}>, {self._precision(x)}"
        return self.op("dot_general", [x, y], shape, dtype or x.dtype, attributes)

    def _precision(self, x: Value) -> str:
        one = f"#stablehlo<precision {self.precision if x.dtype not in HALF else 'DEFAULT'}>"
        return f"precision_config = [{one}, {one}]"

    def convolution(
        self, x, w, layout, shape, stride, padding, lhs_dilation, rhs_dilation, groups=1, batch_groups=1, dtype=None
    ):
        """`layout` is the text of the dimension numbers, e.g. [b, f, 0, 1]x[o, i, 0, 1]->[b, f, 0, 1]."""
        attributes = (
            f"window_strides = {_array(stride)}, {self._padding(padding)}, lhs_dilation = {_array(lhs_dilation)}, "
            f"rhs_dilation = {_array(rhs_dilation)}, dimension_numbers = #stablehlo.conv<{layout}>, "
            f"feature_group_count = {groups} : i64, batch_group_count = {batch_groups} : i64, {self._precision(x)}"
        )
        return self.op("convolution", [x, w], shape, dtype or x.dtype, attributes)

    def triangular_solve(self, a: Value, y: Value, lower: bool, left: bool, unit: bool) -> Value:
        flags = {"left_side": left, "lower": lower, "unit_diagonal": unit}
        text = ", ".join(f"{name} = {str(bool(flag)).lower()}" for name, flag in flags.items())
        return self.op(
            "triangular_solve", [a, y], y.shape, y.dtype, f"{text}, transpose_a = #stablehlo<transpose NO_TRANSPOSE>"
        )

    def cholesky(self, a: Value, lower: bool) -> Value:
        """The factor in one triangle; the other triangle is undefined."""
        return self.op("cholesky", [a], a.shape, a.dtype, f"lower = {str(lower).lower()}")

    # ------------------------------------------------------------------------------------------------ indexing, order
    def gather(self, x, indices, offset_dims, collapsed, start_map, slice_sizes, shape) -> Value:
        """The last dimension of `indices` holds the start coordinates of the dimensions `start_map`."""
        numbers = (
            f"offset_dims = {_list(offset_dims)}, collapsed_slice_dims = {_list(collapsed)}, "
            f"start_index_map = {_list(start_map)}, index_vector_dim = {indices.rank - 1}"
        )
        attributes = (
            f"dimension_numbers = #stablehlo.gather<{numbers}>, "
            f"slice_sizes = {_array(slice_sizes)}, indices_are_sorted = false"
        )
        return self.op("gather", [x, indices], shape, x.dtype, attributes)

    def scatter(self, x, indices, updates, window_dims, inserted, scatter_map, fn, unique=False) -> Value:
        """x with updates[i] combined by fn(old, new) at indices[i]; what lies outside of x is dropped."""
        numbers = (
            f"update_window_dims = {_list(window_dims)}, inserted_window_dims = {_list(inserted)}, "
            f"scatter_dims_to_operand_dims = {_list(scatter_map)}, index_vector_dim = {indices.rank - 1}"
        )
        attributes = (
            f"scatter_dimension_numbers = #stablehlo.scatter<{numbers}>, indices_are_sorted = false, "
            f"unique_indices = {'true' if unique else 'false'}"
        )
        body = self.region(fn, self._scalars(x.dtype, x.dtype))
        return self.op("scatter", [x, indices, updates], x.shape, x.dtype, attributes, [body])

    def sort(self, values, dim: int, less, stable: bool = True) -> list[Value]:
        """Sorts all values by less(a0, b0, a1, b1, ...)."""
        types = [kind for v in values for kind in self._scalars(v.dtype, v.dtype)]
        attributes = f"dimension = {dim} : i64, is_stable = {'true' if stable else 'false'}"
        return self.multi("sort", values, [(v.shape, v.dtype) for v in values], attributes, [self.region(less, types)])

    def while_loop(self, state, condition, body) -> list[Value]:
        """Runs state = body(*state) while condition(*state) holds."""
        types = [(v.shape, v.dtype) for v in state]
        return self.multi("while", state, types, "", [self.region(condition, types), self.region(body, types)])


_WORDS = {"and", "or", "not"}
_SAME_TYPE = (
    "abs add and atan2 cbrt ceil cosine count_leading_zeros divide exponential exponential_minus_one floor log "
    "log_plus_one logistic maximum minimum multiply negate not or popcnt power remainder round_nearest_afz "
    "round_nearest_even rsqrt shift_left shift_right_arithmetic shift_right_logical sign sine sqrt subtract tanh xor"
)
for _name in _SAME_TYPE.split():
    setattr(Emitter, _name + "_" * (_name in _WORDS), functools.partialmethod(Emitter._elementwise, _name))
