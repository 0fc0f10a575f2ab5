"""Proves autograd on the device: hooks, higher derivatives, checkpointing, custom functions, anomaly mode, saved tensors, gradients
across devices, grad modes; numbers bit for bit as on the native device."""

import gc
import warnings

import pytest
import torch
from helpers import check, check_grads, on_accel, reference, run_ok, same
from torch.utils.checkpoint import checkpoint, checkpoint_sequential


def randn(*shape, dtype=torch.float32):
    return torch.randn(*shape, dtype=dtype).to("accel").requires_grad_()


# --------------------------------------------------------------------------------------------------------------------- basics
@pytest.mark.smoke
def test_backward_and_accumulation():
    def run(x, w):
        for _ in range(3):
            ((x @ w).relu() ** 2).sum().backward()
        first = x.grad.clone()
        x.grad.zero_()
        grad = x.grad
        (x * 2).sum().backward()
        assert x.grad is grad  # accumulated in place
        x.grad = None
        (x * 3).sum().backward()
        return first, grad, x.grad, w.grad

    check(run, torch.randn(3, 4, requires_grad=True), torch.randn(4, 5, requires_grad=True))


def test_grad_of_several_outputs_and_options():
    def run(x, y):
        a, b = x * y, x.sin()
        grads = torch.autograd.grad([a, b], [x, y], [torch.ones_like(a), 2 * torch.ones_like(b)], retain_graph=True)
        (alone,) = torch.autograd.grad(a.sum(), x, retain_graph=True)
        unused = torch.autograd.grad(b.sum(), [x, y], allow_unused=True, retain_graph=True)
        assert unused[1] is None
        zeros = torch.autograd.grad(b.sum(), [x, y], materialize_grads=True, retain_graph=True)
        batched = torch.autograd.grad(a, x, torch.eye(3, device=x.device), is_grads_batched=True)
        return grads, alone, unused[0], zeros, batched

    check(run, torch.randn(3, requires_grad=True), torch.randn(3, requires_grad=True))


def test_errors_of_the_graph():
    x = randn(3)
    y = x.exp().sum()
    y.backward()
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        y.backward()
    with pytest.raises(RuntimeError, match="scalar outputs"):
        x.exp().backward()
    with pytest.raises(RuntimeError, match="does not require grad"):
        x.detach().sum().backward()
    with pytest.raises(RuntimeError, match="leaf Variable that requires grad"):
        x.add_(1)
    z = x.exp()
    w = z * z
    z.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        w.sum().backward()
    with pytest.raises(RuntimeError, match="Mismatch in shape"):
        x.exp().backward(torch.ones(4, device="accel"))
    with pytest.raises(RuntimeError, match="accel:0"):
        x.exp().backward(torch.ones(3))


def test_in_place_and_views_in_the_graph():
    def run(x):
        y = x * 1
        y[1:, ::2].mul_(3)
        y[0] = y[1] * 2
        y.t()[2].add_(x[:, 0].mean())
        z = y.view(-1)
        z.relu_()
        a, b = y.clone().chunk(2, 1)
        return y, a * b, y.expand(2, 4, 4).sum(0), torch.as_strided(y.clone(), (2, 3), (3, 1), 2)

    check_grads(run, torch.randn(4, 4, requires_grad=True))


def test_gradients_keep_the_layout_contract():
    x = randn(4, 3)
    (x.t().contiguous() * 2).sum().backward()
    assert x.grad.stride() == (3, 1)
    image = torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last).to("accel").requires_grad_()
    (image * image).sum().backward()
    assert image.grad.is_contiguous(memory_format=torch.channels_last)


# ---------------------------------------------------------------------------------------------------------------------- hooks
@pytest.mark.smoke
def test_tensor_hooks():
    seen = []
    x = randn(3)
    y = x * 2
    y.register_hook(lambda g: seen.append(("y", g.device.type)))
    handle = x.register_hook(lambda g: g * 10)
    x.register_post_accumulate_grad_hook(lambda p: seen.append(("x", p.grad.tolist())))
    y.retain_grad()
    y.sum().backward()
    assert seen == [("y", "accel"), ("x", [20.0, 20.0, 20.0])]
    same(y.grad, torch.ones(3))
    handle.remove()
    x.grad = None
    (x * 2).sum().backward()
    assert x.grad.tolist() == [2.0, 2.0, 2.0]
    with pytest.raises(RuntimeError, match="hook"):
        y.detach().register_hook(print)


def test_node_and_module_hooks():
    seen = []
    x = randn(2, 3)
    y = x.exp()
    y.grad_fn.register_prehook(lambda grads: seen.append("pre") or tuple(g * 2 for g in grads))
    y.grad_fn.register_hook(lambda gi, go: seen.append("post"))
    y.sum().backward()
    same(x.grad, 2 * x.detach().exp())
    assert seen == ["pre", "post"] and y.grad_fn.name() == "ExpBackward0"

    module = torch.nn.Linear(3, 2).to("accel")
    module.register_full_backward_pre_hook(lambda m, go: (go[0] * 3,))
    module.register_full_backward_hook(lambda m, gi, go: (gi[0] * 2,))
    x.grad = None
    module(x).sum().backward()
    same(x.grad, 6 * torch.ones(2, 2) @ module.weight.detach().cpu(), rtol=1e-6)
    multi = []
    a, b = randn(2), randn(2)
    torch.autograd.graph.register_multi_grad_hook([a, b], lambda grads: multi.append([g.device.type for g in grads]))
    (a * b).sum().backward()
    assert multi == [["accel", "accel"]]


def test_an_exception_in_a_hook_reaches_the_caller():
    def fail(grad):
        raise KeyError("from the hook")

    x = randn(3)
    y = x * 2
    y.register_hook(fail)
    with pytest.raises(KeyError, match="from the hook"):
        y.sum().backward()
    assert x.grad is None
    (x * 2).sum().backward()
    assert x.grad.tolist() == [2.0, 2.0, 2.0]


# --------------------------------------------------------------------------------------------------------- higher derivatives
def test_double_and_triple_backward():
    def run(x):
        y = (x.sin() * x.exp()).sum()
        (first,) = torch.autograd.grad(y, x, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), x, create_graph=True)
        second.square().sum().backward()
        return first, second, x.grad

    check(run, torch.randn(4, requires_grad=True))


def test_gradient_penalty_of_a_network():
    def run(m, x):
        (grad,) = torch.autograd.grad(m(x).sum(), x, create_graph=True)
        return (grad.norm(2, dim=1) - 1).pow(2).mean()

    module = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Softplus(), torch.nn.Linear(8, 1))
    check_grads(run, module, torch.randn(5, 4, requires_grad=True))


def test_functional_derivatives():
    def run(x):
        f = lambda x: (x**3).sum() * x  # noqa: E731
        v = torch.ones_like(x)
        functional = torch.autograd.functional
        return (
            functional.jacobian(f, x),
            functional.jacobian(f, x, vectorize=True),
            functional.hessian(lambda x: (x**3).sum(), x),
            functional.vjp(f, x, v),
            functional.jvp(f, x, v),
            functional.hvp(lambda x: (x**3).sum(), x, v),
        )

    check(run, torch.randn(3))


@pytest.mark.parametrize(
    "function",
    [
        lambda a, b: a @ b,
        lambda a, b: (a * b.t()).softmax(0),
        lambda a, b: torch.nn.functional.conv1d(a[None], b.t()[None, :, :2]),
        lambda a, b: torch.nn.functional.layer_norm(a, (4,), b[:, 0], b[:, 1]),
        lambda a, b: a[[0, 2, 2]].index_add(0, torch.tensor([1, 0], device=a.device), b.t()[:2]),
        lambda a, b: torch.cat([a, b.t()]).cumsum(0).logsumexp(1),
        lambda a, b: torch.linalg.solve(a @ b + 9 * torch.eye(3, device=a.device, dtype=a.dtype), a),
    ],
)
def test_gradcheck(function):
    a, b = randn(3, 4, dtype=torch.float64), randn(4, 3, dtype=torch.float64)
    assert torch.autograd.gradcheck(function, (a, b), check_forward_ad=True)
    assert torch.autograd.gradgradcheck(function, (a, b))


def test_forward_mode():
    import torch.autograd.forward_ad as forward_ad

    def run(x, t):
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(x, t)
            y = (dual @ dual.t()).tanh()
            y[0].mul_(2)
            primal, tangent = forward_ad.unpack_dual(y)
            return primal, tangent

    check(run, torch.randn(3, 4), torch.randn(3, 4))


# -------------------------------------------------------------------------------------------------------------- checkpointing
@pytest.mark.smoke
@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpoint(reentrant):
    """Recomputes, with the same random numbers, and gives the gradients of the plain run."""

    def block(x):
        calls.append(1)
        return torch.nn.functional.dropout(module(x).tanh(), 0.5)

    module = torch.nn.Linear(4, 4).to("accel")
    x = randn(6, 4)
    calls, grads = [], []
    for way in (block, lambda x: checkpoint(block, x, use_reentrant=reentrant)):
        x.grad = module.weight.grad = None
        torch.manual_seed(5)
        out = way(x)
        torch.rand(7, device="accel")  # other draws in between
        out.square().sum().backward()
        grads.append((out.detach(), x.grad, module.weight.grad))
    same(grads[1], grads[0])
    assert len(calls) == 3


def test_checkpoint_frees_what_it_saves():
    def layers(x):
        for _ in range(8):
            x = x.sin()
        return x

    x = randn(1024)
    kept = []
    for way in (layers, lambda x: checkpoint(layers, x, use_reentrant=False)):
        gc.collect()
        before = torch.accel.memory_allocated()
        y = way(x)
        kept.append(torch.accel.memory_allocated() - before)
        y.sum().backward()
        del y
    assert kept == [8 * 4096, 4096]  # seven inner results and the output, against the output


def test_checkpoint_sequences_and_early_stop():
    model = torch.nn.Sequential(*[torch.nn.Linear(4, 4) for _ in range(4)]).to("accel")
    x = randn(2, 4)
    for reentrant in (True, False):
        out = checkpoint_sequential(model, 2, x, use_reentrant=reentrant)
        same(out, model(x))
        out.sum().backward()
    policy = torch.utils.checkpoint.create_selective_checkpoint_contexts
    context = lambda: policy([torch.ops.aten.addmm.default])  # noqa: E731
    y = checkpoint(model, x, use_reentrant=False, context_fn=context)
    (grad,) = torch.autograd.grad(y.sum(), x)
    same(grad, torch.autograd.grad(model(x).sum(), x)[0])


# -------------------------------------------------------------------------------------------------------------- custom functions
class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, factor):
        ctx.save_for_backward(x)
        ctx.factor = factor
        ctx.mark_non_differentiable(mask := x > 0)
        return x * factor, mask

    @staticmethod
    def backward(ctx, grad, _):
        (x,) = ctx.saved_tensors
        assert x.device.type == grad.device.type
        return grad * ctx.factor + 0 * x, None


def test_custom_function():
    def run(x):
        y, mask = Scale.apply(x, 3.0)
        assert not mask.requires_grad
        return y.sum() + (y * y).sum()

    check_grads(run, torch.randn(3, requires_grad=True))
    x = randn(3, dtype=torch.float64)
    assert torch.autograd.gradgradcheck(lambda x: Scale.apply(x, 2.0)[0], (x,))


def test_custom_function_in_place_and_once_differentiable():
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.mark_dirty(x)
            return x.mul_(2)

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(ctx, grad):
            return grad * 2

    x = randn(3)
    y = x.clone()
    z = Double.apply(y)
    assert z is y
    z.sum().backward()
    assert x.grad.tolist() == [2.0, 2.0, 2.0]
    (g,) = torch.autograd.grad(Double.apply(x.clone()).square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        g.sum().backward()


def test_an_exception_in_a_custom_backward():
    class Broken(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            raise ValueError("no gradient today")

    x = randn(3)
    with pytest.raises(ValueError, match="no gradient today"):
        Broken.apply(x).sum().backward()
    x.sum().backward()
    assert x.grad.tolist() == [1.0, 1.0, 1.0]


# ----------------------------------------------------------------------------------------------- anomaly mode, saved tensors
def test_anomaly_mode_names_the_forward_line():
    x = torch.zeros(3, device="accel", requires_grad=True)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with torch.autograd.detect_anomaly():
            y = (x.sqrt() * 0).sum()  # the gradient is 0 times infinity
            with pytest.raises(RuntimeError, match="SqrtBackward0.*nan"):
                y.backward()
    texts = "".join(str(w.message) for w in caught)
    assert "y = (x.sqrt() * 0).sum()" in texts and "test_autograd.py" in texts
    with torch.autograd.set_detect_anomaly(True, check_nan=False):
        (x.sqrt() * 0).sum().backward()
    assert x.grad.isnan().all()


@pytest.mark.smoke
def test_saved_tensors_hooks():
    packed = []

    def pack(t):
        packed.append(t.device.type)
        return t.cpu()

    x, w = randn(3, 4), randn(4, 5)
    expected = torch.autograd.grad((x @ w).exp().sum(), [x, w])
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t.to("accel")):
        y = (x @ w).exp().sum()
    same(torch.autograd.grad(y, [x, w]), expected)
    assert packed == ["accel"] * 3
    with (
        torch.autograd.graph.disable_saved_tensors_hooks("not here"),
        pytest.raises(RuntimeError, match="not here"),
        torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t),
    ):
        x.exp()


@pytest.mark.parametrize("pin", [False, True])
def test_save_on_cpu(pin):
    x = randn(1024)
    expected = torch.autograd.grad(x.sin().exp().sum(), x)
    gc.collect()
    before = torch.accel.memory_allocated()
    with torch.autograd.graph.save_on_cpu(pin_memory=pin, device_type="accel"):
        y = x.sin().exp().sum()
    # x itself and the result are left: what backward needs went to the host.
    assert torch.accel.memory_allocated() - before < 4096
    same(torch.autograd.grad(y, x), expected)


# ------------------------------------------------------------------------------------------------------------- across devices
@pytest.mark.smoke
def test_gradients_cross_devices():
    host = torch.randn(3, requires_grad=True)
    ours = randn(3)
    y = host.to("accel") * ours
    z = y.cpu() * host
    z.sum().backward()
    assert host.grad.device.type == "cpu" and ours.grad.device.type == "accel"
    same(ours.grad, (host * host).detach())
    same(host.grad, (2 * host * ours.cpu()).detach(), rtol=1e-6)
    # Once more, from both ends, into the same gradients.
    (host.to("accel").sum() + ours.cpu().sum().to("accel")).backward()
    same(ours.grad, (host * host).detach() + 1)


def test_gradients_of_casts_and_copies():
    def run(x):
        a = x.to(torch.float64).to(torch.float16).float()
        b = torch.zeros_like(x).copy_(x)
        c = x.new_zeros(4, 3)
        c[1:] = x
        d = x.to(x.device, copy=True).contiguous().clone()
        return a, b, c, d

    check_grads(run, torch.randn(3, 3, requires_grad=True))


def test_leaf_on_cpu_used_on_the_device_and_moved():
    p = torch.nn.Parameter(torch.ones(2))
    (p.to("accel") * 2).sum().backward()
    assert p.grad.tolist() == [2.0, 2.0] and p.grad.device.type == "cpu"
    with pytest.raises(RuntimeError, match="accel|device"):
        p.grad = torch.ones(2, device="accel")
    p.data = p.data.to("accel")
    p.grad = None
    (p * 3).sum().backward()
    assert p.grad.device.type == "accel"
    with pytest.raises(RuntimeError, match="gradient with dtype"):
        p.grad = torch.ones(3, device="accel", dtype=torch.float64)


# ------------------------------------------------------------------------------------------------------------------ grad modes
def test_grad_modes():
    x = randn(3)
    with torch.no_grad():
        y = x * 2
        assert not y.requires_grad
        with torch.enable_grad():
            assert (x * 2).requires_grad
        x.add_(1)  # allowed on a leaf here
    with torch.set_grad_enabled(False):
        assert not (x * 2).requires_grad
    with torch.inference_mode():
        z = x * 2
        assert z.is_inference() and not z.requires_grad
        z.add_(1)
        view = z[1:]
        assert view.is_inference()
    with pytest.raises(RuntimeError, match="[Ii]nference tensor"):
        z.requires_grad_()
    with pytest.raises(RuntimeError, match="[Ii]nference"):
        z.add_(1)
    with pytest.raises(RuntimeError, match="Inference tensors cannot be saved"):
        x * z
    clone = z.clone()
    assert not clone.is_inference()
    assert (x * clone).requires_grad
    # As on the CPU, the refused update had already been made.
    same(z, (x * 2 + 2).detach())
    assert not x.detach().requires_grad and x.detach().data_ptr() == x.data_ptr()


def test_results_are_no_inference_tensors_outside_inference_mode():
    x = randn(4, 4)
    for result in (x @ x, x.split(2)[0], torch.linalg.svd(x)[0], x.cpu(), x.cpu().to("accel"), torch.stack([x, x])):
        assert not result.is_inference() and result.requires_grad
        assert result._version == 0


def test_version_counters():
    x = torch.zeros(3, device="accel")
    view = x[1:]
    assert x._version == 0
    x.add_(1)
    view.mul_(2)
    torch.add(x, 1, out=x)
    assert x._version == view._version == 3
    y = x.detach()
    y.add_(1)
    assert x._version == 4
    x.data.add_(1)
    assert x._version == 4
    with torch.autograd._unsafe_preserve_version_counter(x):
        x.add_(1)
    assert x._version == 4


# ------------------------------------------------------------------------------------------------------------ memory, threads
def test_the_graph_is_freed():
    gc.collect()
    before = torch.accel.memory_allocated()
    x = randn(256)
    y = x.exp().sin().sum()
    # x, exp(x), which both gradients need, and y; sin(exp(x)) is gone.
    assert torch.accel.memory_allocated() - before == 2 * 1024 + 4
    y.backward()
    assert torch.accel.memory_allocated() - before == 2 * 1024 + 4
    del y
    assert torch.accel.memory_allocated() - before == 2 * 1024
    del x
    assert torch.accel.memory_allocated() == before


def test_many_backward_calls_from_threads():
    import threading

    w = randn(4, 4)
    data = [torch.randn(3, 4).to("accel") for _ in range(4)]
    expected = [torch.autograd.grad((x @ w).tanh().sum(), w)[0] for x in data]
    results, errors = {}, []

    def work(i):
        try:
            for _ in range(20):
                results[i] = torch.autograd.grad((data[i] @ w).tanh().sum(), w)[0]
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    same([results[i] for i in range(4)], expected)


def test_single_threaded_backward():
    x = randn(3)
    with torch.autograd.set_multithreading_enabled(False):
        (x * x).sum().backward()
    same(x.grad, 2 * x.detach())


def test_backward_runs_on_the_device_of_the_graph():
    """With two devices: each gradient is computed where its forward was, and the caller's current device stays."""
    run_ok(
        """
        import torch
        a = torch.ones(3, device="accel:0", requires_grad=True)
        b = torch.ones(3, device="accel:1", requires_grad=True)
        seen = []
        x, y = a * 2, b * 3
        x.register_hook(lambda g: seen.append((g.device.index, torch.accel.current_device())))
        y.register_hook(lambda g: seen.append((g.device.index, torch.accel.current_device())))
        torch.accel.set_device(1)
        (x + y.to("accel:0")).sum().backward()
        assert sorted(seen) == [(0, 0), (1, 1)], seen
        assert torch.accel.current_device() == 1
        assert a.grad.device.index == 0 and b.grad.device.index == 1
        """,
        TORCH_ACCEL_BACKEND="cpu,cpu",
    )


def test_native_and_accel_graphs_in_one_backward():
    """A graph that has nodes of three kinds: CPU, native device, accel."""
    x, y, z = torch.ones(3, requires_grad=True), torch.ones(3, device=reference(), requires_grad=True), randn(3)
    out = (x.to("accel") * y.to("accel") * z).sum().cpu() + (x * 2).sum()
    out.backward()
    on_accel(z.grad)
    same(z.grad, torch.ones(3))
    same(x.grad, z.detach().cpu() + 2)
