"""Proves torch.func on the device: grad, vjp, jvp, vmap, Jacobians, Hessians, functional modules, as on the native device."""

import pytest
import torch
from helpers import check, moved, on_accel, same
from torch import func

nn, F = torch.nn, torch.nn.functional


# ----------------------------------------------------------------------------------------------------------------------- grad
@pytest.mark.smoke
def test_grad_and_vjp():
    def run(x, w):
        loss = lambda w: (x @ w).tanh().square().sum()  # noqa: E731
        value, has_aux = func.grad_and_value(lambda w: (loss(w), x), has_aux=True)(w)[1]
        out, pull = func.vjp(lambda x, w: x @ w, x, w)
        return func.grad(loss)(w), func.grad(func.grad(lambda s: (s**3).sum()))(w[0, 0]), value, has_aux, out, pull(out)

    check(run, torch.randn(3, 4), torch.randn(4, 2))


def test_jvp_and_linearize():
    def run(x, t):
        primal, tangent = func.jvp(lambda x: (x @ x.t()).exp(), (x,), (t,))
        out, linear = func.linearize(lambda x: x.sin(), x)
        return primal, tangent, out, linear(t)

    check(run, torch.randn(3, 4), torch.randn(3, 4))


def test_jacobians_and_hessians():
    def run(x):
        f = lambda x: (x**3).cumsum(0)  # noqa: E731
        return (
            func.jacrev(f)(x),
            func.jacfwd(f)(x),
            func.hessian(lambda x: f(x).sum())(x),
            func.jacrev(func.jacrev(f))(x),
        )

    check(run, torch.randn(4))
    check(lambda x: func.jacrev(lambda x: x.sin(), chunk_size=2)(x), torch.randn(5))


# ----------------------------------------------------------------------------------------------------------------------- vmap
VMAPPED = {
    "mm": lambda x, y: x @ y,
    "dot": lambda x, y: torch.dot(x[:, 0], y[0]),
    "softmax": lambda x, y: (x + y.t()).softmax(-1),
    "index": lambda x, y: x[torch.tensor([0, 2], device=x.device)] + y.sum(),
    "conv": lambda x, y: F.conv1d(x[None], y[:, :, None][:, :3]),
    "layer_norm": lambda x, y: F.layer_norm(x, (4,), y[:, 0], y[:, 1]),
    "where": lambda x, y: torch.where(x > 0, x, y.t()),
    "cat": lambda x, y: torch.cat([x, y.t()]).cumsum(0),
    "sort": lambda x, y: x.sort(-1)[0] * y.t(),
    "solve": lambda x, y: torch.linalg.solve(x @ y + 5 * torch.eye(3, device=x.device), x),
    "in place": lambda x, y: x.clone().mul_(y.t()).add_(1),
    "views": lambda x, y: x.t()[1:].reshape(-1).unfold(0, 2, 3),
    "scalar": lambda x, y: x * 2 + y.sum() / 3,
}


@pytest.mark.smoke
@pytest.mark.parametrize("name", VMAPPED)
def test_vmap(name):
    function = VMAPPED[name]
    x, y = torch.randn(5, 3, 4), torch.randn(5, 4, 3)
    check(lambda x, y: func.vmap(function)(x, y), x, y)
    check(lambda x, y: func.vmap(function, in_dims=(0, None))(x, y[0]), x, y)
    check(lambda x, y: func.vmap(function, in_dims=(1, 0), out_dims=-1)(x.transpose(0, 1), y), x, y)


def test_vmap_agrees_with_a_loop():
    x = torch.randn(4, 3, 3, device="accel")
    same(func.vmap(torch.linalg.det)(x), torch.stack([torch.linalg.det(one) for one in x]), rtol=1e-5)
    same(func.vmap(lambda a: a @ a, chunk_size=2)(x), x @ x, rtol=1e-6)
    same(func.vmap(func.vmap(lambda a: a * 2))(x), x * 2)


def test_vmap_randomness():
    x = torch.zeros(4, 3, device="accel")
    torch.manual_seed(1)
    different = func.vmap(lambda a: a + torch.rand_like(a), randomness="different")(x)
    assert len({tuple(row) for row in different.tolist()}) == 4
    shared = func.vmap(lambda a: a + torch.rand(3, device="accel"), randomness="same")(x)
    assert len({tuple(row) for row in shared.tolist()}) == 1
    dropped = func.vmap(lambda a: F.dropout(a + 1, 0.5), randomness="different")(torch.zeros(4, 50, device="accel"))
    assert len({tuple(row) for row in dropped.tolist()}) == 4
    with pytest.raises(RuntimeError, match="random"):
        func.vmap(lambda a: a + torch.rand_like(a))(x)
    on_accel([different, shared, dropped])


def test_vmap_errors():
    x = torch.ones(3, 2, device="accel")
    with pytest.raises(RuntimeError, match="vmap: It looks like you're (attempting to use|calling)"):
        func.vmap(lambda a: a.item() if a.dim() == 0 else a.sum().item())(x)
    with pytest.raises(ValueError, match="same size in the mapped dimension"):
        func.vmap(lambda a, b: a + b)(x, torch.ones(4, 2, device="accel"))
    same(func.vmap(lambda a: a + 1)(x), x + 1)


# -------------------------------------------------------------------------------------------------------------------- modules
def model():
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))


@pytest.mark.smoke
def test_per_sample_gradients():
    def run(module, x, y):
        parameters = {name: p.detach() for name, p in module.named_parameters()}

        def loss(parameters, x, y):
            return F.cross_entropy(func.functional_call(module, parameters, (x[None],)), y[None])

        return func.vmap(func.grad(loss), in_dims=(None, 0, 0))(parameters, x, y)

    grads = check(run, model(), torch.randn(5, 4), torch.randint(0, 3, (5,)))
    assert grads["0.weight"].shape == (5, 8, 4)


def test_per_sample_gradients_sum_to_the_gradient():
    module = moved(model(), "accel")
    x, y = torch.randn(5, 4, device="accel"), torch.randint(0, 3, (5,), device="accel")
    F.cross_entropy(module(x), y, reduction="sum").backward()
    parameters = {name: p.detach() for name, p in module.named_parameters()}
    loss = lambda p, x, y: F.cross_entropy(func.functional_call(module, p, (x[None],)), y[None])  # noqa: E731
    each = func.vmap(func.grad(loss), in_dims=(None, 0, 0))(parameters, x, y)
    same(
        {n: g.sum(0) for n, g in each.items()}, {n: p.grad for n, p in module.named_parameters()}, rtol=1e-4, atol=1e-6
    )


def test_ensembles():
    def run(modules, x):
        parameters, buffers = func.stack_module_state(modules)
        base = modules[0]
        return func.vmap(lambda p, b: func.functional_call(base, (p, b), (x,)))(parameters, buffers)

    check(run, [model(), model(), model()], torch.randn(2, 4))


def test_functional_call_leaves_the_module():
    module = moved(nn.BatchNorm1d(4), "accel")
    before = module.running_mean.clone()
    buffers = {name: b.clone() for name, b in module.named_buffers()}
    x = torch.randn(6, 4, device="accel") + 5
    func.functional_call(module, buffers, (x,))
    same(module.running_mean, before)
    assert (buffers["running_mean"] > 0.1).all()
    weights = {"weight": torch.full((4,), 2.0, device="accel")}
    same(func.functional_call(module.eval(), weights, (x,)), 2 * module(x))


def test_jacobian_of_a_network():
    def run(module, x):
        parameters = dict(module.named_parameters())
        call = lambda p, x: func.functional_call(module, p, (x,))  # noqa: E731
        return func.jacrev(call)(parameters, x), func.vmap(func.jacrev(call, argnums=1), in_dims=(None, 0))(
            parameters, x
        )

    check(run, model(), torch.randn(2, 4))


def test_hessian_vector_product():
    def run(module, x, v):
        parameters = {name: p.detach() for name, p in module.named_parameters()}
        loss = lambda p: func.functional_call(module, p, (x,)).square().sum()  # noqa: E731
        return func.jvp(func.grad(loss), (parameters,), (v,))[1]

    module = model()
    check(run, module, torch.randn(2, 4), {name: torch.randn_like(p) for name, p in module.named_parameters()})


# ---------------------------------------------------------------------------------------------------------- custom, functionalize
def test_custom_function_under_transforms():
    class Cube(torch.autograd.Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(x):
            return x**3

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.save_for_backward(*inputs)

        @staticmethod
        def backward(ctx, grad):
            (x,) = ctx.saved_tensors
            return grad * 3 * x * x

    def run(x):
        cube = Cube.apply
        return func.vmap(func.grad(cube))(x), func.jacrev(func.jacrev(cube))(x), func.vmap(cube)(x)

    check(run, torch.randn(4))


def test_functionalize():
    def run(x):
        def body(x):
            y = x.clone()
            y[1:].add_(1)
            y.view(-1)[0] = 7
            return y

        return func.functionalize(body)(x), func.functionalize(body, remove="mutations_and_views")(x)

    check(run, torch.randn(3, 2))


def test_levels_of_grad():
    x = torch.randn(3, device="accel")
    outer = func.grad(lambda x: func.grad(lambda y: (x * y * y).sum())(x).sum())(x)
    same(outer, 4 * x, rtol=1e-6)  # the inner gradient at y = x is 2 x x
