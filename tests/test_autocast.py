"""Proves mixed precision: autocast chooses the dtypes of torch's own lists, caches casts of weights, nests, reaches backward and
custom functions; GradScaler scales, skips and recovers."""

import threading
import warnings

import pytest
import torch
from helpers import check, moved, reference, same

nn, F = torch.nn, torch.nn.functional
HALVES = (torch.bfloat16, torch.float16)


def randn(*shape, dtype=torch.float32):
    return torch.randn(*shape, dtype=dtype).to("accel")


# ------------------------------------------------------------------------------------------------------------- dtype lists
def lists():
    """Operators and arguments of torch's own autocast tests for CUDA, by the list that they belong to."""
    from torch.testing._internal.autocast_test_lists import AutocastTestLists

    made = AutocastTestLists(torch.device("accel"))
    places = {
        "lower": [(torch, made.torch_fp16), (torch._C._nn, made.nn_fp16), (torch, made.linalg_fp16)],
        "float32": [(torch, made.torch_fp32), (torch._C._nn, made.nn_fp32)],
        "promote": [(torch, made.torch_need_autocast_promote)],
        "builtin": [(torch, made.torch_expect_builtin_promote)],
    }
    for kind, groups in places.items():
        for module, entries in groups:
            for name, args, *rest in entries:
                if name.startswith("cudnn") or name == "equal":
                    continue  # operators that carry another device in their name; a result that is a Python bool
                if name == "einsum":
                    args, rest = (args, randn(2, 3, 4, 5), randn(2, 3, 4, 5)), []
                yield kind, module, name, args, rest[0] if rest else None


@pytest.mark.filterwarnings("ignore:.*(chain_matmul|torch.cross).*:UserWarning")
@pytest.mark.parametrize("half", HALVES)
def test_operators_of_every_list(half):
    wrong, count = [], 0

    def to_half(value):
        is_half = isinstance(value, torch.Tensor) and value.dtype == torch.float16
        return value.to(half) if is_half else value

    for kind, module, name, args, extra in lists():
        kwargs = extra if isinstance(extra, dict) else {}
        args = torch.utils._pytree.tree_map(to_half, args if isinstance(args, tuple) else (args,))
        function = getattr(module, name, None) or getattr(torch._C._nn, name, None) or getattr(torch.linalg, name[7:])
        with torch.autocast("accel", half):
            result = function(*args, **kwargs)
        first = next(t for t in torch.utils._pytree.tree_leaves(result) if isinstance(t, torch.Tensor))
        expected = {"lower": half, "float32": torch.float32, "promote": torch.float32, "builtin": extra}[kind]
        if kind == "builtin" and extra == torch.float16:
            expected = half
        count += 1
        if first.dtype != expected or first.device.type != "accel":
            wrong.append(f"{kind} {name}: {first.dtype} on {first.device}, expected {expected}")
    assert not wrong, "\n".join(wrong)
    assert count > 80


@pytest.mark.smoke
def test_a_few_operators_by_hand():
    a, h = randn(4, 4), randn(4, 4).bfloat16()
    with torch.autocast("accel"):
        assert (a @ a).dtype == torch.get_autocast_dtype("accel")
    with torch.autocast("accel", torch.bfloat16):
        assert (a @ a).dtype == torch.bfloat16
        assert F.linear(a, a).dtype == torch.bfloat16
        assert (a + a).dtype == torch.float32 and (h + h).dtype == torch.bfloat16 and (a + h).dtype == torch.float32
        assert h.softmax(0).dtype == h.exp().dtype == h.sum().dtype == torch.float32
        assert h.sum(dtype=torch.float64).dtype == torch.float64
        assert F.layer_norm(h, (4,)).dtype == torch.float32
        assert F.cross_entropy(h, torch.zeros(4, dtype=torch.long, device="accel")).dtype == torch.float32
        assert torch.cat([a, h]).dtype == torch.float32 and torch.stack([h, h]).dtype == torch.bfloat16
        assert F.scaled_dot_product_attention(a[None], a[None], a[None]).dtype == torch.bfloat16
        assert (a.double() @ a.double()).dtype == torch.float64  # double is left alone
        assert torch.mm(a.long().abs() + 1, a.long().abs() + 1).dtype == torch.int64
        assert F.conv2d(a[None, None], a[None, None]).dtype == torch.bfloat16
        assert (
            a.norm().dtype == torch.float32 and h.norm().dtype == torch.float32 and h.norm(dim=0).dtype == torch.float32
        )
    assert (a @ a).dtype == torch.float32


def test_values_are_those_of_explicit_casts():
    a, b = torch.randn(5, 6), torch.randn(6, 7)

    def autocast(a, b):
        with torch.autocast(a.device.type, torch.bfloat16):
            return a @ b, F.linear(a, b.t()), (a @ b).softmax(1)

    def by_hand(a, b):
        half = a.bfloat16() @ b.bfloat16()
        return half, F.linear(a.bfloat16(), b.bfloat16().t()), half.float().softmax(1)

    same(autocast(a.to("accel"), b.to("accel")), by_hand(a.to("accel"), b.to("accel")))
    same(autocast(a.to("accel"), b.to("accel")), by_hand(a.to(reference()), b.to(reference())))


def test_binary_cross_entropy_is_refused():
    p, t = randn(4).sigmoid(), randn(4).sigmoid()
    with torch.autocast("accel", torch.bfloat16):
        with pytest.raises(RuntimeError, match="unsafe"):
            F.binary_cross_entropy(p, t)
        assert F.binary_cross_entropy_with_logits(p, t).dtype == torch.float32
        with torch.autocast("accel", enabled=False):
            assert F.binary_cross_entropy(p, t).dtype == torch.float32


# ------------------------------------------------------------------------------------------------------------ states, nesting
@pytest.mark.smoke
def test_nesting_and_state():
    a = randn(4, 4)
    assert not torch.is_autocast_enabled("accel")
    with torch.autocast("accel", torch.bfloat16):
        assert torch.is_autocast_enabled("accel") and torch.get_autocast_dtype("accel") == torch.bfloat16
        assert not torch.is_autocast_enabled("cpu") and not torch.is_autocast_enabled("cuda")
        with torch.autocast("accel", enabled=False):
            assert (a @ a).dtype == torch.float32
            with torch.autocast("accel", torch.float16):
                assert (a @ a).dtype == torch.float16
            assert (a @ a).dtype == torch.float32
        assert (a @ a).dtype == torch.bfloat16
        try:
            with torch.autocast("accel", torch.float16):
                raise KeyError
        except KeyError:
            pass
        assert (a @ a).dtype == torch.bfloat16
    assert not torch.is_autocast_enabled("accel")


def test_autocast_of_other_devices_leaves_accel_alone():
    a = randn(4, 4)
    with torch.autocast("cpu", torch.bfloat16):
        assert (a @ a).dtype == torch.float32 and (a.cpu() @ a.cpu()).dtype == torch.bfloat16
    with torch.autocast("accel", torch.bfloat16):
        assert (a.cpu() @ a.cpu()).dtype == torch.float32


def test_unsupported_dtypes_are_refused_or_warned_about():
    for dtype in (torch.float32, torch.int32):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            context = torch.autocast("accel", dtype)
        assert any("not supported" in str(w.message) for w in caught) and not context._enabled
    assert torch.accel.get_amp_supported_dtype() == [torch.float16, torch.bfloat16]


def test_as_a_decorator_and_in_threads():
    a = randn(4, 4)

    @torch.autocast("accel", torch.bfloat16)
    def function(a):
        return a @ a

    assert function(a).dtype == torch.bfloat16
    seen = []
    with torch.autocast("accel", torch.bfloat16):
        thread = threading.Thread(target=lambda: seen.append((a @ a).dtype))
        thread.start()
        thread.join()
    assert seen == [torch.float32]  # autocast belongs to the thread that entered it


def test_weights_are_cast_once():
    class Count(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            casts.append(func.name()) if "_to_copy" in func.name() else None
            return func(*args, **(kwargs or {}))

    weight, x = randn(4, 4).requires_grad_(), randn(4, 4).bfloat16()
    counts = []
    for cache in (True, False):
        casts = []
        with torch.autocast("accel", torch.bfloat16, cache_enabled=cache):
            for _ in range(3):
                with Count():
                    x @ weight
        counts.append(len(casts))
    assert counts == [1, 3]
    with torch.autocast("accel", torch.bfloat16):
        first = x @ weight
        torch.clear_autocast_cache()
        with torch.no_grad():
            weight.add_(1)
        second = x @ weight
    assert not torch.equal(first, second)


# ------------------------------------------------------------------------------------------------------- backward, functions
@pytest.mark.smoke
@pytest.mark.parametrize("half", HALVES)
def test_training_under_autocast(half):
    def train(model, x, y):
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, foreach=True)
        losses = []
        for _ in range(4):
            optimizer.zero_grad()
            with torch.autocast(x.device.type, half):
                logits = model(x)
                assert logits.dtype == half
                # Under a CPU's autocast lists losses differ: compute it outside.
            loss = F.cross_entropy(logits.float(), y)
            loss.backward()
            assert all(p.grad.dtype == torch.float32 for p in model.parameters())
            optimizer.step()
            losses.append(loss.detach())
        return losses, dict(model.named_parameters())

    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))
    losses, _ = check(train, model, torch.randn(8, 6), torch.randint(0, 3, (8,)))
    assert losses[-1] < losses[0]


def test_modules_under_autocast():
    x = randn(2, 3, 8, 8)
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.GroupNorm(2, 4), nn.Flatten(), nn.Linear(144, 5)
    ).to("accel")
    with torch.autocast("accel", torch.bfloat16):
        out = model(x)
    assert out.dtype == torch.bfloat16
    out.float().sum().backward()
    assert model[0].weight.grad.dtype == torch.float32 and model[1].running_mean.dtype == torch.float32
    same(out.float(), model(x), rtol=0.1, atol=0.1)  # bfloat16 has 8 bits


def test_custom_forward_and_backward():
    class Multiply(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type="accel")
        def forward(ctx, a, b):
            seen.append((a.dtype, torch.is_autocast_enabled("accel")))
            ctx.save_for_backward(a, b)
            return a @ b

        @staticmethod
        @torch.amp.custom_bwd(device_type="accel")
        def backward(ctx, grad):
            a, b = ctx.saved_tensors
            seen.append((grad.dtype, torch.is_autocast_enabled("accel")))
            return grad @ b.t(), a.t() @ grad

    class Float(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type="accel", cast_inputs=torch.float32)
        def forward(ctx, a):
            seen.append((a.dtype, torch.is_autocast_enabled("accel")))
            return a * 2

        @staticmethod
        @torch.amp.custom_bwd(device_type="accel")
        def backward(ctx, grad):
            seen.append((grad.dtype, torch.is_autocast_enabled("accel")))
            return grad * 2

    seen = []
    a, b = randn(3, 3).requires_grad_(), randn(3, 3).requires_grad_()
    with torch.autocast("accel", torch.bfloat16):
        y = Multiply.apply(a, b)
        assert y.dtype == torch.bfloat16
    y.sum().backward()
    assert seen == [(torch.float32, True), (torch.bfloat16, True)]
    assert a.grad.dtype == torch.float32

    seen.clear()
    c = randn(3).bfloat16().requires_grad_()
    with torch.autocast("accel", torch.bfloat16):
        z = Float.apply(c)
    z.sum().backward()
    assert seen == [(torch.float32, False), (torch.float32, False)] and z.dtype == torch.float32
    assert c.grad.dtype == torch.bfloat16


def test_checkpoint_under_autocast():
    module = nn.Linear(4, 4).to("accel")
    for reentrant in (True, False):
        x = randn(2, 4).requires_grad_()
        with torch.autocast("accel", torch.bfloat16):
            y = torch.utils.checkpoint.checkpoint(module, x, use_reentrant=reentrant)
            plain = module(x)
        same(y, plain)
        (expected,) = torch.autograd.grad(plain.float().sum(), module.weight)
        module.zero_grad()
        y.float().sum().backward()
        same(module.weight.grad, expected)


# --------------------------------------------------------------------------------------------------------------- GradScaler
@pytest.mark.smoke
@pytest.mark.parametrize("foreach", [True, False])
def test_scaler_trains_like_the_cpus(foreach):
    def train(model, x, y):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=foreach)
        scaler = torch.amp.GradScaler(x.device.type, init_scale=1024.0, growth_interval=2)
        scales = []
        for step in range(6):
            optimizer.zero_grad()
            with torch.autocast(x.device.type, torch.float16):
                out = model(x)
            loss = F.mse_loss(out.float(), y) * (float("inf") if step == 3 else 1.0)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            scales.append(scaler.get_scale())
        return scales, dict(model.named_parameters()), norm.detach()

    model = nn.Linear(6, 2)
    scales, parameters, _ = check(train, model, torch.randn(8, 6), torch.randn(8, 2))
    assert scales == [1024.0, 2048.0, 2048.0, 1024.0, 1024.0, 2048.0]
    assert all(torch.isfinite(p).all() for p in parameters.values())


def test_scaler_skips_a_step_with_infinities():
    p = nn.Parameter(torch.ones(3, device="accel"))
    optimizer, scaler = torch.optim.SGD([p], lr=1.0), torch.amp.GradScaler("accel", init_scale=8.0)
    scaler.scale((p * torch.tensor([1.0, float("inf"), 1.0], device="accel")).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    same(p.detach(), torch.ones(3))
    assert scaler.get_scale() == 4.0
    p.grad = None
    scaler.scale(p.sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    same(p.detach(), torch.zeros(3))


def test_scaler_state_and_fused_optimizers():
    p = nn.Parameter(torch.ones(3, device="accel"))
    optimizer, scaler = torch.optim.AdamW([p], lr=0.1, fused=True), torch.amp.GradScaler("accel", init_scale=8.0)
    for factor in (1.0, float("nan"), 1.0):
        optimizer.zero_grad()
        scaler.scale(p.sum() * factor).backward()
        scaler.step(optimizer)
        scaler.update()
    expected = nn.Parameter(torch.ones(3))
    plain = torch.optim.AdamW([expected], lr=0.1, fused=True)
    for _ in range(2):
        plain.zero_grad()
        expected.sum().backward()
        plain.step()
    same(p.detach(), expected.detach().to(reference()), rtol=1e-6)
    assert optimizer.state[p]["step"].item() == 2
    other = torch.amp.GradScaler("accel")
    other.load_state_dict(scaler.state_dict())
    assert other.get_scale() == scaler.get_scale() == 4.0
    assert not torch.amp.GradScaler("accel", enabled=False).is_enabled()
    same(moved(scaler.scale(torch.ones(2, device="accel")), "cpu"), torch.full((2,), 4.0))
