"""The operators whose host cost the benchmarks measure: small tensors, so that the work of the kernel itself vanishes."""

from collections.abc import Callable

import torch
from torch.nn import functional as F

# Calls into the dispatcher that each case makes; a limit per operator counts them.
OPERATORS = {"linear+gelu": 2, "slice.add_": 3}
VIEWS = ("view", "slice")


def cases(device: str) -> dict[str, Callable[[], object]]:
    """Name -> a call on 8x8 float32 tensors on `device`. To be run under torch.no_grad()."""
    generator = torch.Generator().manual_seed(0)

    def matrix(**kwargs: bool) -> torch.Tensor:
        return torch.randn(8, 8, generator=generator).to(device).requires_grad_(kwargs.get("requires_grad", False))

    a, b, c, weight = matrix(), matrix(), matrix(), matrix()
    bias, tracked = weight[0].clone(), matrix(requires_grad=True)

    def mul_under_autograd() -> torch.Tensor:
        with torch.enable_grad():
            return tracked * b

    return {
        "add": lambda: a + b,
        "mm": lambda: a @ b,
        "neg": lambda: torch.neg(a),
        "view": lambda: a.view(64),
        "slice": lambda: a[1:3],
        "scalar add": lambda: a + 1.0,
        "softmax": lambda: torch.softmax(a, -1),
        "linear+gelu": lambda: F.gelu(F.linear(a, weight, bias)),
        "add_": lambda: c.add_(b),
        "slice.add_": lambda: c[1:3].add_(b[1:3]),
        "mul under autograd": mul_under_autograd,
    }
