"""Proves list operators and optimizers: every torch.optim optimizer, with and without foreach and fused kernels, takes the same
steps as on the native device, to the bit; states are saved, loaded and moved."""

import copy
import io
import warnings

import pytest
import torch
from helpers import check, moved, on_accel, reference, same

optim = torch.optim
UNARY = [
    "abs",
    "acos",
    "asin",
    "atan",
    "ceil",
    "clone",
    "cos",
    "cosh",
    "erf",
    "erfc",
    "exp",
    "expm1",
    "floor",
    "frac",
    "lgamma",
    "log",
    "log10",
    "log1p",
    "log2",
    "neg",
    "reciprocal",
    "round",
    "rsqrt",
    "sigmoid",
    "sign",
    "sin",
    "sinh",
    "sqrt",
    "tan",
    "tanh",
    "trunc",
]
BINARY = ["add", "sub", "mul", "div", "maximum", "minimum", "clamp_max", "clamp_min", "pow"]


def tensors():
    """Mixed shapes, a view with gaps, an empty one, a scalar."""
    return [
        torch.rand(3, 4) + 0.1,
        (torch.rand(8, 3) + 0.1)[::2],
        torch.rand(2, 5).t() + 0.1,
        torch.rand(0),
        torch.rand(()) + 1,
    ]


# ----------------------------------------------------------------------------------------------------------- list operators
@pytest.mark.parametrize("name", UNARY)
def test_unary_list_operators(name):
    def run(xs):
        results = getattr(torch, f"_foreach_{name}")(xs)
        if name != "clone":
            getattr(torch, f"_foreach_{name}_")(xs)
        return results, xs

    check(run, tensors())
    check(run, [t.double() for t in tensors()])


@pytest.mark.smoke
@pytest.mark.parametrize("name", BINARY)
def test_binary_list_operators(name):
    function, inplace = getattr(torch, f"_foreach_{name}"), getattr(torch, f"_foreach_{name}_")

    def run(xs, ys):
        results = [function(xs, ys), function(xs, 2.5), function(xs, [1.0, 2.0, 0.5, 3.0, 2.0])]
        inplace(xs, ys)
        inplace(xs, 1.5)
        inplace(xs, [1.0, 2.0, 0.5, 3.0, 2.0])
        return results, xs

    check(run, tensors(), tensors())


def test_other_list_operators():
    def run(xs, ys, zs):
        results = [
            torch._foreach_add(xs, ys, alpha=2),
            torch._foreach_addcmul(xs, ys, zs, value=0.5),
            torch._foreach_addcdiv(xs, ys, zs, [1.0, 2.0, 3.0, 4.0, 5.0]),
            torch._foreach_addcdiv(xs, ys, zs, torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0])),  # scalars in a CPU tensor
            torch._foreach_lerp(xs, ys, 0.3),
            torch._foreach_lerp(xs, ys, zs),
            torch._foreach_norm(xs),
            torch._foreach_norm(xs, 1),
            torch._foreach_max([x for x in xs if x.numel()]),
            torch._foreach_mul(xs, torch.tensor(3.0)),  # one scalar tensor for all
            torch._foreach_div(xs, torch.tensor(3.0, device=xs[0].device)),
            torch._foreach_pow(2.0, xs),
        ]
        torch._foreach_copy_(xs, zs)
        torch._foreach_addcmul_(xs, ys, zs, 0.5)
        torch._foreach_lerp_(xs, ys, 0.3)
        torch._foreach_zero_(ys)
        return results, xs, ys

    check(run, tensors(), tensors(), tensors())


def test_copies_between_devices_by_list():
    host, device = tensors(), [t.to("accel") * 0 for t in tensors()]
    torch._foreach_copy_(device, host)
    same([t.cpu() for t in device], [t.contiguous() if i == 1 else t for i, t in enumerate(host)])
    back = [torch.empty_like(t) for t in host]
    torch._foreach_copy_(back, device)
    for one, other in zip(back, host, strict=True):
        assert torch.equal(one, other)


def test_gradients_through_list_operators():
    def run(xs):
        leaves = [x.clone().requires_grad_() for x in xs]
        ys = torch._foreach_mul(torch._foreach_exp(leaves), 2.0)
        sum(y.sum() for y in ys).backward()
        return [leaf.grad for leaf in leaves]

    check(run, tensors())


def test_versions_move_with_list_operators():
    x = torch.ones(3, device="accel")
    before = x._version
    torch._foreach_add_([x], 1.0)
    assert x._version == before + 1
    leaf = torch.ones(3, device="accel", requires_grad=True)
    y = leaf * 2
    z = y * y
    with torch.no_grad():
        torch._foreach_mul_([y], 3.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        z.sum().backward()


# --------------------------------------------------------------------------------------------------------------- optimizers
OPTIMIZERS = {
    "SGD": [{}, {"momentum": 0.9}, {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1}, {"maximize": True}],
    "Adam": [{}, {"amsgrad": True, "weight_decay": 0.1}, {"decoupled_weight_decay": True}, {"maximize": True}],
    "AdamW": [{}, {"amsgrad": True, "betas": (0.8, 0.9)}],
    "NAdam": [{}, {"weight_decay": 0.1, "decoupled_weight_decay": True}],
    "RAdam": [{}, {"weight_decay": 0.1}],
    "Adamax": [{}, {"weight_decay": 0.1}],
    "Adadelta": [{}, {"weight_decay": 0.1}],
    "Adagrad": [{}, {"lr_decay": 0.1, "initial_accumulator_value": 0.5}],
    "Adafactor": [{}, {"weight_decay": 0.1}],
    "ASGD": [{}, {"t0": 2.0, "weight_decay": 0.1}],
    "RMSprop": [{}, {"centered": True, "momentum": 0.9}],
    "Rprop": [{}, {"etas": (0.4, 1.3)}],
}
FUSED = ("SGD", "Adam", "AdamW", "Adagrad")
CASES = [
    pytest.param(name, options, flags, id=f"{name}-{i}-{'-'.join(flags) or 'default'}")
    for name, all_options in OPTIMIZERS.items()
    for i, options in enumerate(all_options)
    for flags in ({}, {"foreach": True}, {"foreach": False}, *([{"fused": True}] if name in FUSED else []))
]


def model():
    torch.manual_seed(7)
    return torch.nn.Sequential(
        torch.nn.Conv1d(2, 4, 3), torch.nn.BatchNorm1d(4), torch.nn.Tanh(), torch.nn.Flatten(), torch.nn.Linear(24, 3)
    )


def steps(make, module, x, y, count=5, scheduler=None):
    """Train for a few steps. Returns losses, parameters and the optimizer's state, all by value."""
    optimizer = make(module.parameters())
    schedule = scheduler(optimizer) if scheduler else None
    losses = []
    for _ in range(count):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(module(x), y)
        loss.backward()
        optimizer.step()
        if schedule:
            schedule.step()
        losses.append(loss.detach().clone())
    state = [[copy.deepcopy(value) for value in entry.values()] for entry in optimizer.state_dict()["state"].values()]
    return losses, dict(module.named_parameters()), state


def run_on(device, *args, **kwargs):
    torch.manual_seed(8)
    module, x, y = moved((model(), torch.randn(5, 2, 8), torch.randint(0, 3, (5,))), device)
    return steps(*args[:1], module, x, y, *args[1:], **kwargs)


@pytest.mark.parametrize(("name", "options", "flags"), CASES)
def test_optimizers(name, options, flags):
    """Left to choose, torch takes foreach on a device like accel but not on the CPU (Adafactor: on none)."""
    chosen = flags or {"foreach": name != "Adafactor"}

    def make(flags):
        return lambda parameters: getattr(optim, name)(parameters, lr=0.05, **options, **flags)

    same(run_on("accel", make(flags)), run_on(reference(), make(chosen)))


@pytest.mark.smoke
@pytest.mark.parametrize("name", ["SGD", "AdamW"])
def test_default_choice_makes_the_same_steps(name):
    def make(parameters):
        return getattr(optim, name)(parameters, lr=0.05)

    losses, parameters, state = run_on("accel", make)
    same((losses, parameters, state), run_on(reference(), make))
    assert losses[-1] < losses[0]
    on_accel(parameters)


@pytest.mark.parametrize("search", [None, "strong_wolfe"])
def test_lbfgs(search):
    def run(device):
        module, x = moved((torch.nn.Linear(3, 1).double(), torch.randn(6, 3, dtype=torch.float64)), device)
        optimizer = optim.LBFGS(module.parameters(), lr=0.5, max_iter=6, line_search_fn=search)

        def closure():
            optimizer.zero_grad()
            loss = (module(x) - x.sum(1, keepdim=True)).square().mean()
            loss.backward()
            return loss

        return [optimizer.step(closure).detach() for _ in range(3)], dict(module.named_parameters())

    torch.manual_seed(9)
    actual = run("accel")
    torch.manual_seed(9)
    same(actual, run(reference()))


def test_muon():
    def run(device):
        torch.manual_seed(9)
        weight = torch.nn.Parameter(moved(torch.randn(6, 4), device))
        optimizer = optim.Muon([weight], lr=0.05)
        for _ in range(3):
            optimizer.zero_grad()
            weight.square().sum().backward()
            optimizer.step()
        return weight.detach()

    same(run("accel"), run(reference()))


@pytest.mark.parametrize("foreach", [True, False])
@pytest.mark.parametrize("name", ["Adam", "AdamW", "NAdam", "RAdam", "Adamax", "Adadelta", "ASGD", "RMSprop", "Rprop"])
def test_capturable(name, foreach):
    """Keeps its step counter on the device; torch has this for accelerators only, so the plain variant is the reference."""

    def run(capturable):
        p = torch.nn.Parameter(torch.linspace(-1, 2, 7).to("accel"))
        optimizer = getattr(optim, name)([p], lr=0.05, capturable=capturable, foreach=foreach)
        for _ in range(8):
            optimizer.zero_grad()
            (p - 1).pow(4).sum().backward()
            optimizer.step()
        return p.detach()

    # Bias corrections are computed in float32 tensors instead of Python's doubles.
    same(run(True), run(False), rtol=1e-4, atol=1e-5)


def test_differentiable_optimizer():
    def run(x, grad):
        p = x.clone()
        p.grad = grad
        optimizer = optim.SGD([p], lr=0.1, momentum=0.5, weight_decay=0.1, differentiable=True)
        optimizer.step()
        p.square().sum().backward()
        return x.grad, grad.grad, p.detach()

    check(run, torch.randn(3, requires_grad=True), torch.randn(3, requires_grad=True))


def test_tensor_learning_rate():
    for place in ("cpu", "accel"):
        lr = torch.tensor(0.05)

        def make(parameters, lr=lr, place=place):
            return optim.AdamW(parameters, lr=lr.to(place), foreach=False, capturable=place == "accel")

        losses, _, _ = run_on("accel", make)
        assert losses[-1] < losses[0]


@pytest.mark.parametrize(
    "scheduler",
    [
        lambda o: optim.lr_scheduler.StepLR(o, 2),
        lambda o: optim.lr_scheduler.OneCycleLR(o, 0.1, total_steps=10),
        lambda o: optim.lr_scheduler.CosineAnnealingWarmRestarts(o, 2),
    ],
)
def test_schedulers(scheduler):
    same(run_on("accel", optim.AdamW, scheduler=scheduler), run_on(reference(), optim.AdamW, scheduler=scheduler))


def test_parameter_groups_and_frozen_parameters():
    def make(parameters):
        a, b, *rest = parameters
        b.requires_grad_(False)
        return optim.AdamW([{"params": [a], "lr": 0.1}, {"params": [b]}, {"params": rest, "weight_decay": 0.3}])

    same(run_on("accel", make), run_on(reference(), make))


# ------------------------------------------------------------------------------------------------------- saving and moving
@pytest.mark.smoke
@pytest.mark.parametrize("name", ["SGD", "AdamW", "Adagrad"])
@pytest.mark.parametrize("target", ["accel", "cpu"])
def test_saved_and_loaded_training_continues(name, target):
    """Five steps in one go, or three, a file, and two more, on the same device or on the other one."""

    def make(parameters):
        return getattr(optim, name)(parameters, lr=0.05, **({"momentum": 0.9} if name == "SGD" else {}))

    def step(module, optimizer, x, y):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(module(x), y).backward()
        optimizer.step()

    x, y = torch.randn(5, 2, 8), torch.randint(0, 3, (5,))
    whole = moved(model(), "accel")
    optimizer = make(whole.parameters())
    buffer = io.BytesIO()
    for i in range(5):
        if i == 3:
            torch.save({"model": whole.state_dict(), "optimizer": optimizer.state_dict()}, buffer)
        step(whole, optimizer, x.to("accel"), y.to("accel"))

    buffer.seek(0)
    saved = torch.load(buffer, map_location=target, weights_only=True)
    fresh = model().to(target)
    fresh.load_state_dict(saved["model"])
    continued = make(fresh.parameters())
    continued.load_state_dict(saved["optimizer"])
    for state in continued.state.values():
        for key, value in state.items():
            if isinstance(value, torch.Tensor) and key != "step":
                assert value.device.type == target
    for _ in range(2):
        step(fresh, continued, x.to(target), y.to(target))
    if target == "accel" or reference().type == "cpu":
        same(dict(fresh.state_dict()), dict(whole.state_dict()))


def test_state_lies_where_torch_puts_it():
    """The step counter on the CPU (unless fused or capturable), moments on the device."""
    p = torch.nn.Parameter(torch.ones(3, device="accel"))
    p.grad = torch.ones_like(p)
    for flags, place in (({}, "cpu"), ({"fused": True}, "accel"), ({"capturable": True}, "accel")):
        optimizer = optim.Adam([p], **flags)
        optimizer.step()
        state = optimizer.state[p]
        assert state["step"].device.type == place, flags
        assert state["exp_avg"].device.type == "accel"


def test_moving_a_model_keeps_its_optimizer():
    """Made before the move, as on CUDA: parameters stay the same objects."""

    def run(device):
        module = model()
        optimizer = optim.SGD(module.parameters(), lr=0.1)
        module.to(device)
        x, y = torch.linspace(-1, 1, 80).view(5, 2, 8).to(device), torch.arange(5).to(device) % 3
        torch.nn.functional.cross_entropy(module(x), y).backward()
        optimizer.step()
        return dict(module.named_parameters())

    same(run("accel"), run(reference()))


def test_zero_grad_hooks_and_closures():
    p = torch.nn.Parameter(torch.ones(3, device="accel"))
    optimizer = optim.SGD([p], lr=0.1)
    calls = []
    optimizer.register_step_pre_hook(lambda *a: calls.append("pre"))
    optimizer.register_step_post_hook(lambda *a: calls.append("post"))
    loss = optimizer.step(lambda: p.square().sum().backward() or p.square().sum())
    assert calls == ["pre", "post"] and loss.item() == 3.0
    same(p.detach(), torch.full((3,), 0.8))
    grad = p.grad
    optimizer.zero_grad(set_to_none=False)
    assert p.grad is grad and grad.abs().sum().item() == 0
    optimizer.zero_grad()
    assert p.grad is None
    optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(1, device="accel"))]})
    assert len(optimizer.param_groups) == 2


def test_averaging_and_swa():
    def run(device):
        module = model().to(device)
        ema = optim.swa_utils.AveragedModel(module, multi_avg_fn=optim.swa_utils.get_ema_multi_avg_fn(0.9))
        for _ in range(3):
            with torch.no_grad():
                for p in module.parameters():
                    p.mul_(1.5)
            ema.update_parameters(module)
        return dict(ema.module.named_parameters())

    same(run("accel"), run(reference()))


def test_step_in_backward_by_hooks():
    module = torch.nn.Linear(3, 3).to("accel")
    optimizers = {p: optim.SGD([p], lr=0.1) for p in module.parameters()}
    for p in module.parameters():
        p.register_post_accumulate_grad_hook(lambda p: (optimizers[p].step(), optimizers[p].zero_grad()) and None)
    before = module.weight.detach().clone()
    module(torch.ones(2, 3, device="accel")).sum().backward()
    same(module.weight.detach(), before - 0.2, rtol=1e-6)
    assert module.weight.grad is None


def test_no_warnings_from_optimizers():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run_on("accel", optim.AdamW, count=2)
        run_on("accel", lambda p: optim.SGD(p, lr=0.1, fused=True), count=2)
