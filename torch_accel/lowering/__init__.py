"""Lowering of recorded ATen operators to StableHLO text; see program.py for the input and registry.py for the rules.

Pure Python on torch, without the extension module: what is lowered is data, what comes out is text.
"""

from . import (  # noqa: F401  (they fill the table of rules)
    attention,
    conv,
    index,
    linalg,
    matmul,
    norm,
    optimizer,
    pointwise,
    random,
    reduce,
    resample,
    shape,
)
from .interpreter import can_lower, lower, why_not
from .program import Layout, Leaf, Lowered, Program, Record, Ref, ScalarRef, StridedRead, StridedWrite
from .registry import RULES, NotLowerable, lowers, runtime_scalars

__all__ = [
    "RULES",
    "Layout",
    "Leaf",
    "Lowered",
    "NotLowerable",
    "Program",
    "Record",
    "Ref",
    "ScalarRef",
    "StridedRead",
    "StridedWrite",
    "can_lower",
    "lower",
    "lowers",
    "runtime_scalars",
    "why_not",
]
