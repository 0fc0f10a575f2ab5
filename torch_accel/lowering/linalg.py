"""Rules of linear algebra that StableHLO has operations for."""

from .emitter import Emitter, Value, broadcast_shape
from .registry import lowers


def solve_triangular(b: Emitter, a: Value, y: Value, lower: bool, left: bool, unit: bool) -> Value:
    """x with a @ x = y (x @ a = y if not `left`), a triangular; batch dimensions broadcast."""
    batch = broadcast_shape(a.shape[:-2], y.shape[:-2])
    a, y = (b.broadcast(v, (*batch, *v.shape[-2:])) for v in (a, y))
    return b.triangular_solve(a, y, lower, left, unit)


@lowers("aten.linalg_solve_triangular.default")
def linalg_solve_triangular(b, out, a, y, upper, left=True, unitriangular=False):
    return solve_triangular(b, a, y, not upper, left, unitriangular)


@lowers("aten.cholesky.default")
def cholesky(b, out, a, upper=False):
    factor = b.cholesky(a, lower=not upper)
    rows, columns = (b.iota(a.shape, a.rank + i) for i in (-2, -1))
    return b.select(b.compare(rows, columns, "LE" if upper else "GE"), factor, b.lift(0, a.dtype))
