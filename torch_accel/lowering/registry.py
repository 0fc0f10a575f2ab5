"""The table of lowering rules.

A rule is a function rule(b, out, *args, **kwargs): `b` is the Emitter, `out` the Layout of the result (a tuple of
layouts where the operator returns several tensors), the rest the operator's arguments in schema order, tensors as
`Value`s, run-time scalars as weak rank-0 `Value`s, everything else as it was called. Keyword arguments that a rule does
not name and that say nothing about values (device, memory format, ...) are not passed. A rule returns a `Value` per
result; the interpreter converts it to the dtype of `out`. It raises NotLowerable for what it cannot express.
"""

import dataclasses
import functools
import inspect
from collections.abc import Callable

import torch

_IGNORED = {"device", "layout", "pin_memory", "memory_format", "non_blocking", "dtype", "generator", "copy"}


class NotLowerable(NotImplementedError):
    """No rule, decomposition or composite implementation expresses the call."""


@dataclasses.dataclass(frozen=True)
class Rule:
    fn: Callable
    static: frozenset[str]
    random: bool
    names: frozenset[str]

    def __call__(self, b, out, args, kwargs):
        kept = {name: v for name, v in kwargs.items() if name in self.names or name not in _IGNORED}
        return self.fn(b, out, *args, **kept)


RULES: dict[str, Rule] = {}


def lowers(*ops: str, static: tuple[str, ...] = (), random: bool = False):
    """Registers the decorated rule for operators such as "aten.add.Tensor".

    static: arguments that must be constants though their type is Scalar or float. random: the rule also takes `seed` and
    `offset`, uint64 scalars, by keyword.
    """

    def register(fn):
        names = frozenset(inspect.signature(fn).parameters)
        for op in ops:
            if op in RULES:
                raise RuntimeError(f"torch_accel: lowers({op!r}): expected one rule per operator, got a second one")
            RULES[op] = Rule(fn, frozenset(static), random, names)
        return fn

    return register


@functools.cache
def overload(op: str) -> torch._ops.OpOverload:
    """The operator of a name such as "aten.add.Tensor". Raises NotLowerable if torch has none."""
    namespace, name, over = op.split(".")
    try:
        return getattr(getattr(getattr(torch.ops, namespace), name), over)
    except AttributeError:
        raise NotLowerable(f"torch_accel: {op}: expected an operator of this torch, got an unknown name") from None


@functools.cache
def runtime_scalars(op: str) -> tuple[str, ...]:
    """Names of the number arguments of `op` that are run-time inputs. All others are constants."""
    rule = RULES.get(op)
    if rule is None:
        return ()
    kinds = {"number", "float", "Scalar", "Optional[number]", "Optional[float]", "List[number]"}
    arguments = overload(op)._schema.arguments
    return tuple(a.name for a in arguments if str(a.type) in kinds and a.name not in rule.static)
