"""Rules of fused optimizer steps: lists of parameters, gradients and states in, the new lists out."""

from .emitter import opmath
from .registry import NotLowerable, lowers


def _adam(name: str, decoupled: bool) -> None:
    @lowers(f"aten._fused_{name}.default", f"aten._fused_{name}.tensor_lr")
    def rule(
        b, out, params, grads, means, squares, largest, steps, lr, beta1, beta2, weight_decay, eps, amsgrad, maximize,
        grad_scale=None, found_inf=None,
    ):  # fmt: skip
        if amsgrad or grad_scale is not None or found_inf is not None:
            raise NotLowerable(f"_fused_{name} with amsgrad or gradient scaling")
        results = []
        for p, g, m, v, step in zip(params, grads, means, squares, steps, strict=True):
            dtype = opmath(p.dtype)
            p, m, v, step = (b.cast(x, dtype) for x in (p, m, v, step))
            rate, first, second, decay, tiny = (
                b.cast(b.lift(x, dtype), dtype) for x in (lr, beta1, beta2, weight_decay, eps)
            )
            g = b.cast(g, dtype)
            h = b.negate(g) if maximize else g
            if decoupled:
                p = b.multiply(p, b.subtract(1, b.multiply(rate, decay)))
            else:
                h = b.add(h, b.multiply(p, decay))
            m = b.add(b.multiply(m, first), b.multiply(h, b.subtract(1, first)))
            v = b.add(b.multiply(v, second), b.multiply(b.multiply(h, h), b.subtract(1, second)))
            unbias1, unbias2 = (b.subtract(1, b.power(beta, step)) for beta in (first, second))
            scale = b.add(b.divide(b.sqrt(v), b.sqrt(unbias2)), tiny)
            p = b.subtract(p, b.divide(b.multiply(b.divide(rate, unbias1), m), scale))
            results.append((p, g, m, v))
        return [x for column in zip(*results, strict=True) for x in column]


_adam("adam", decoupled=False)
_adam("adamw", decoupled=True)
