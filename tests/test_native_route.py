"""Proves the native route: how arguments of every kind reach the kernels of another device key and how results return.

Nothing is copied on the way; what lies on the CPU by right stays there; a call that fails leaves its operands as they were.
"""

import gc

import pytest
import torch
from helpers import check, on_accel, run_ok, same

import torch_accel


def copies():
    return {kind: row["count"] for kind, row in torch_accel.counters()["copies"].items()}


NO_COPIES = {"host_to_device": 0, "device_to_host": 0, "device_to_device": 0}


# ------------------------------------------------------------------------------------------------------------- no copies
@pytest.mark.smoke
def test_operators_copy_nothing():
    a = torch.randn(16, 16, device="accel")
    torch_accel.reset_counters()
    b = (a @ a.t() + 1.0).relu()[2:7].softmax(-1)
    b.mul_(2).add_(a[:5])
    b.sum(0, keepdim=True).expand(3, 16).contiguous()
    assert copies() == NO_COPIES
    assert torch_accel.counters()["fallbacks"] == {}


def test_in_place_writes_the_memory_that_views_share():
    a = torch.zeros(4, 4, device="accel")
    rows, column, flat = a[1:3], a[:, 0], a.view(-1)
    rows.add_(1)
    column.mul_(5)
    flat[15] = 9
    expected = torch.zeros(4, 4)
    expected[1:3] += 1
    expected[:, 0] *= 5
    expected[3, 3] = 9
    same(a, expected.to("accel"))
    assert a.data_ptr() == flat.data_ptr() == column.data_ptr()
    assert rows.data_ptr() == a.data_ptr() + 16


# --------------------------------------------------------------------------------------------------------------- CPU scalars
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.bool, torch.complex64])
def test_cpu_scalars_combine_and_promote(dtype):
    scalar = torch.tensor(1, dtype=dtype)
    for own in (torch.bfloat16, torch.float32, torch.int32):
        check(lambda a, s=scalar: (a + s, s + a, a * s, torch.where(a > 0, a, s)), torch.arange(6).view(2, 3).to(own))
    assert scalar.device.type == "cpu"


def test_python_scalars_stay_wrapped_numbers():
    check(lambda a: (a + 1.5, 2 * a, a**2, 1 / a, a / 3, a // 2, a % 2), torch.arange(1, 7, dtype=torch.float16))
    check(lambda a: (a + 1.5, a * 2, a / 3, a // 2), torch.arange(1, 7))
    check(lambda a: a + (1 + 2j), torch.arange(1, 7))


def test_cpu_scalar_is_read_and_filled_in():
    a = torch.zeros(3, device="accel")
    a.fill_(torch.tensor(2.5))
    a[1] = torch.tensor(7.0)
    a.add_(torch.tensor(1.0), alpha=2)
    same(a, torch.tensor([4.5, 9.0, 4.5], device="accel"))
    assert torch.lerp(a, a * 2, torch.tensor(0.5)).device.type == "accel"
    a.masked_fill_(a > 5, torch.tensor(0.0))
    same(a, torch.tensor([4.5, 0.0, 4.5], device="accel"))


def test_cpu_tensors_with_dimensions_are_refused_by_name():
    a = torch.ones(3, device="accel")
    for call in (
        lambda: a + torch.ones(3),
        lambda: torch.ones(3) + a,
        lambda: a.add_(torch.ones(3)),
        lambda: torch.cat([a, torch.ones(3)]),
        lambda: torch.where(a > 0, a, torch.ones(3)),
        lambda: torch.nn.functional.linear(torch.ones(2, 3, device="accel"), torch.ones(4, 3)),
        lambda: torch.mm(torch.ones(2, 3), torch.ones(3, 2, device="accel")),
        lambda: torch.nn.functional.embedding(torch.zeros(2, dtype=torch.long), torch.ones(3, 3, device="accel")),
    ):
        with pytest.raises(RuntimeError, match="accel:0") as raised:
            call()
        assert "cpu" in str(raised.value)
        same(a, torch.ones(3).to("accel"))


def test_a_cpu_tensor_is_never_written_with_an_accel_result():
    host = torch.ones(())
    for call in (
        lambda: host.add_(torch.ones((), device="accel")),
        lambda: torch.add(torch.ones(3, device="accel"), 1, out=torch.empty(3)),
        lambda: torch.add(torch.ones((), device="accel"), 1, out=host),
    ):
        # In-place on a CPU scalar runs on accel's key and has no right to the CPU's memory.
        with pytest.raises(RuntimeError, match="accel:0"):
            call()
    assert host.item() == 1.0


# ------------------------------------------------------------------------------------------------------- CPU index tensors
INDEX_CASES = {
    "index": lambda a, i, m: a[i],
    "index of second dimension": lambda a, i, m: a[:, i],
    "mask": lambda a, i, m: a[m],
    "two indices": lambda a, i, m: a[i, i],
    "index and None": lambda a, i, m: a[None, i, None],
    "index_put": lambda a, i, m: torch.index_put(a, (i,), torch.tensor(5.0, device=a.device)),
    "index_put_ accumulate": lambda a, i, m: a.index_put_((i, i), torch.tensor(1.0, device=a.device), accumulate=True),
    "setitem": lambda a, i, m: a.__setitem__((slice(None), i), 3.0) or a,
    "setitem mask": lambda a, i, m: a.__setitem__(m, 3.0) or a,
    "setitem mask with a CPU scalar": lambda a, i, m: a.__setitem__(m, torch.tensor(3.0)) or a,
}


@pytest.mark.parametrize("case", INDEX_CASES)
def test_cpu_index_tensors(case):
    index, mask = torch.tensor([2, 0, 3, 3]), torch.tensor([True, False, False, True])
    source = torch.randn(4, 4)
    torch_accel.reset_counters()
    result = check(lambda a: INDEX_CASES[case](a, index, mask), source)
    assert index.device.type == mask.device.type == "cpu"
    # The same with indices on the device, and with one of each.
    device = check(lambda a: INDEX_CASES[case](a, index.to(a.device), mask.to(a.device)), source)
    same(device, result)
    if case == "two indices":
        same(source.to("accel")[index, index.to("accel")], result)


def test_gradient_through_a_cpu_index():
    index = torch.tensor([2, 0, 2])
    a = torch.randn(4, 3).to("accel").requires_grad_()
    (a[index] ** 2).sum().backward()
    reference = a.detach().cpu().requires_grad_()
    (reference[index] ** 2).sum().backward()
    same(a.grad, reference.grad)


def test_index_errors_are_index_errors():
    a = torch.randn(4, 4, device="accel")
    with pytest.raises(IndexError, match="out of bounds"):
        a[torch.tensor([4])]
    with pytest.raises(IndexError):
        a[7]
    with pytest.raises(IndexError, match="too many indices"):
        a[0, 0, 0]


# ----------------------------------------------------------------------------------------- device, dtype, optional, list
@pytest.mark.parametrize("device", ["accel", "accel:0", torch.device("accel"), torch.device("accel", 0)])
def test_device_arguments(device):
    a = torch.arange(5, device=device)
    assert a.device == torch.device("accel", 0)
    assert a.new_zeros(2, device=device).device == torch.device("accel", 0)
    assert torch.zeros_like(torch.ones(2), device=device).device == torch.device("accel", 0)
    assert torch.full_like(a, 3, device="cpu").device == torch.device("cpu")
    assert torch.empty_like(a, device="meta").device == torch.device("meta")


def test_unknown_device_index_names_the_count():
    for call in (lambda: torch.ones(1, device="accel:3"), lambda: torch.ones(1).to("accel:3")):
        with pytest.raises((IndexError, RuntimeError), match="accel:3"):
            call()


def test_dtype_arguments():
    a = torch.randn(3, 4)
    check(lambda a: (a.sum(dtype=torch.float64), a.mean(0, dtype=torch.float64), a.softmax(1, dtype=torch.float64)), a)
    check(lambda a: (a.to(torch.float16), a.long(), a.to(torch.complex64), a.bfloat16().float()), a)
    check(lambda a: (a.cumsum(0, dtype=torch.float64), a.bool().sum(), a.to(torch.int8).prod()), a)


def test_optional_tensor_arguments():
    x, weight, bias = torch.randn(2, 4, 5), torch.randn(5), torch.randn(5)
    for w, b in ((None, None), (weight, None), (weight, bias)):
        check(lambda x, w, b: torch.nn.functional.layer_norm(x, (5,), w, b), x, w, b)
    check(lambda a, low: torch.clamp(a, min=low), x, bias)
    check(lambda a, high: torch.clamp(a, max=high), x, bias)
    check(lambda a, b: (torch.searchsorted(b, a), torch.bucketize(a, b)), x, bias.sort()[0])
    check(lambda a, w: torch.bincount(a, w), torch.tensor([1, 1, 3]), torch.randn(3))
    check(lambda a: torch.bincount(a), torch.tensor([1, 1, 3]))


def test_list_arguments():
    parts = [torch.randn(2, 3), torch.randn(1, 3), torch.randn(4, 3)]
    check(lambda parts: (torch.cat(parts), torch.vstack(parts)), parts)
    check(lambda a: torch.stack([a, a.neg(), a]), parts[0])
    check(lambda a: (a.split([1, 1]), a.chunk(2, 1), a.unbind(0), torch.tensor_split(a, 3, 1)), parts[0])
    check(lambda parts: torch.block_diag(*parts), parts)
    check(lambda parts: torch.einsum("ij,kj->ik", *parts), parts[:2])
    check(lambda parts: torch.meshgrid(*[p.view(-1) for p in parts], indexing="ij"), parts)


def test_cat_skips_empty_legacy_tensors_and_keeps_memory_format():
    check(lambda a, e: torch.cat([e, a, e]), torch.randn(2, 3), torch.empty(0))
    image = torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last)
    result = check(lambda a: torch.cat([a, a], 1), image)
    assert result.is_contiguous(memory_format=torch.channels_last)


# ------------------------------------------------------------------------------------------------------------- out=, aliasing
def test_out_is_resized_and_keeps_its_identity():
    a = torch.randn(3, 4)
    out = torch.empty(0, device="accel")
    result = torch.add(a.to("accel"), 1, out=out)
    assert result is out and out.shape == (3, 4) and out.untyped_storage().nbytes() == 48
    same(out, torch.add(a, 1))


def test_out_that_grows_keeps_storage_identity_for_its_views():
    base = torch.zeros(2, device="accel")
    view = base.view(2)
    storage = base.untyped_storage()._cdata
    with pytest.warns(UserWarning, match="was resized"):
        torch.add(torch.arange(6.0, device="accel"), 0, out=base)
    assert base.shape == (6,) and base.untyped_storage()._cdata == storage
    assert view.untyped_storage()._cdata == storage
    base[0] = 42
    assert view[0].item() == 42  # the view sees the new memory


@pytest.mark.parametrize("make", [lambda t: t[:, ::2], lambda t: t.t()[1:4, :3], lambda t: t[1:4].t()[:3]])
def test_out_that_is_a_view_writes_only_that_view(make):
    def run(a, big):
        target = make(big)
        torch.mul(a.expand(target.shape), 2, out=target)
        return big

    check(run, torch.randn(()), torch.full((6, 6), 77.0))


def test_multiple_outs():
    a = torch.randn(4, 5)
    values, indices = torch.empty(0, device="accel"), torch.empty(0, dtype=torch.long, device="accel")
    result = torch.max(a.to("accel"), 1, out=(values, indices))
    assert result[0] is values and result[1] is indices
    same([values, indices], list(torch.max(a, 1)))


def test_out_of_a_wrong_dtype_raises_and_leaves_it():
    out = torch.full((3,), 7, dtype=torch.int32, device="accel")
    with pytest.raises(RuntimeError, match="can't be cast"):
        torch.add(torch.ones(3, device="accel"), 1, out=out)
    assert out.tolist() == [7, 7, 7]


def test_in_place_returns_the_same_object():
    a = torch.randn(3, device="accel")
    assert a.add_(1) is a and a.relu_() is a and a.t_() is a and a.squeeze_() is a and a.resize_(5) is a
    assert torch.ops.aten.add_.Tensor(a, a) is a


def test_results_that_alias_arguments_keep_the_storage():
    a = torch.randn(2, 3, 4, device="accel")
    for result in (
        a.to(torch.float32),
        a.contiguous(),
        a.to("accel"),
        a.reshape(6, 4),
        a.flatten(),
        a.view_as(a),
        a.expand_as(a),
        a.real,
        torch.atleast_3d(a),
        a.nan_to_num_(),
        torch.nn.functional.dropout(a, 0.5, training=False),
    ):
        assert result.untyped_storage()._cdata == a.untyped_storage()._cdata
    assert a.contiguous() is a and a.to(torch.float32) is a
    assert a.reshape(6, 4)._base is a


def test_results_that_share_one_new_storage():
    # Both parts of one allocation come back over one accel storage.
    pieces = torch.ops.aten.split_copy.Tensor(torch.arange(6, device="accel"), 3)
    assert pieces[0].untyped_storage()._cdata != pieces[1].untyped_storage()._cdata
    values, vectors = torch.linalg.eigh(torch.eye(3, device="accel"))
    assert values.untyped_storage()._cdata != vectors.untyped_storage()._cdata


# ------------------------------------------------------------------------------------------------------------ exception safety
FAILING = {
    "shape": lambda a, b: torch.mm(a, b),
    "in-place shape": lambda a, b: a.add_(torch.ones(7, device="accel")),
    "out dtype": lambda a, b: torch.bitwise_and(a, a),
    "lapack": lambda a, b: torch.linalg.cholesky(-torch.eye(3, device="accel")),
    "lapack into out": lambda a, b: torch.linalg.inv(torch.zeros(2, 2, device="accel"), out=b[:, :2]),
    "index": lambda a, b: a[torch.tensor([99])],
    "in-place index": lambda a, b: a.index_fill_(0, torch.tensor([99], device="accel"), 1.0),
    "list": lambda a, b: torch.cat([a, a.view(-1)]),
    "foreach": lambda a, b: torch._foreach_add_([a, b], [b, torch.ones(9, device="accel")]),
    "device": lambda a, b: torch.add(a, torch.ones(4)),
    "scalar out of a larger tensor": lambda a, b: a.item(),
    "generator": lambda a, b: a.normal_(generator=torch.Generator()),
    "resize": lambda a, b: torch.add(a, 1, out=b.expand(2, 3, 3)),
}


@pytest.mark.parametrize("case", FAILING)
def test_a_failing_call_leaves_operands_and_memory_as_they_were(case):
    a, b = torch.ones(4, 3, device="accel"), torch.full((3, 3), 2.0, device="accel")[:2]
    torch.mm(a, b.t())  # whatever is allocated once is allocated now
    facts = [(t.data_ptr(), t.shape, t.stride(), t.storage_offset(), t.untyped_storage().nbytes()) for t in (a, b)]
    gc.collect()
    before = torch.accel.memory_allocated()
    for _ in range(3):
        with pytest.raises((RuntimeError, IndexError, torch.linalg.LinAlgError)):
            FAILING[case](a, b)
    gc.collect()
    assert torch.accel.memory_allocated() == before
    assert facts == [
        (t.data_ptr(), t.shape, t.stride(), t.storage_offset(), t.untyped_storage().nbytes()) for t in (a, b)
    ]
    b.fill_(2)
    same(a @ b.t(), torch.full((4, 2), 6.0))
    a.add_(1)
    assert a.sum().item() == 24.0


def test_a_list_operator_that_fails_has_done_its_first_elements_as_on_the_cpu():
    lists = {device: [torch.ones(4, device=device), torch.ones(3, device=device)] for device in ("cpu", "accel")}
    for device, tensors in lists.items():
        with pytest.raises(RuntimeError, match="size"):
            torch._foreach_add_(tensors, [torch.ones(4, device=device), torch.ones(9, device=device)])
    same(lists["accel"], lists["cpu"])


def test_an_out_that_a_failing_call_has_resized_is_usable():
    gc.collect()
    before = torch.accel.memory_allocated()
    out = torch.empty(0, device="accel")
    with pytest.raises(torch.linalg.LinAlgError):
        torch.linalg.inv(torch.zeros(3, 3, device="accel"), out=out)
    gc.collect()
    assert torch.accel.memory_allocated() - before == out.untyped_storage().nbytes()
    assert torch.linalg.inv(torch.eye(3, device="accel"), out=out) is out
    same(out, torch.eye(3).t())
    assert torch.accel.memory_allocated() - before == out.untyped_storage().nbytes() == 36


def test_memory_is_true_through_calls_that_replace_storage():
    gc.collect()
    base = torch.accel.memory_allocated()
    a = torch.empty(256, device="accel")
    assert torch.accel.memory_allocated() - base == 1024
    a.resize_(1024)
    assert torch.accel.memory_allocated() - base == 4096
    torch.add(torch.ones(2048, device="accel"), 1, out=a.resize_(0))
    assert torch.accel.memory_allocated() - base == 8192
    b = a.view(2, 1024).t()
    c = b + 1
    assert torch.accel.memory_allocated() - base == 16384
    del a
    assert torch.accel.memory_allocated() - base == 16384
    del b, c
    assert torch.accel.memory_allocated() == base


# ---------------------------------------------------------------------------------------------------------- devices and errors
@pytest.mark.smoke
def test_two_devices():
    """One process: it has two accel devices over one backend."""
    run_ok(
        """
        import torch
        assert torch.accel.device_count() == 2
        zero, one = torch.arange(3.0, device="accel"), torch.arange(3.0, device="accel:1")
        assert zero.device.index == 0 and one.device.index == 1

        # Operators run on the operand's device and keep the current one.
        assert (one + 1).device.index == 1 and torch.accel.current_device() == 0
        assert torch.ones_like(one).device.index == 1 and one.new_empty(2).device.index == 1
        assert torch.stack([one, one]).device.index == 1 and one.sum().device.index == 1
        with torch.accel.device(1):
            assert torch.ones(1, device="accel").device.index == 1
            assert (zero + 1).device.index == 0 and torch.accel.current_device() == 1
            torch.ones(1, device="accel:0")
            assert torch.accel.current_device() == 1
        assert torch.accel.current_device() == 0
        torch.accel.set_device(1)
        try:
            zero.view(7)
        except RuntimeError:
            pass
        assert torch.accel.current_device() == 1
        torch.accel.set_device(0)

        def message(call):
            try:
                call()
            except RuntimeError as error:
                return str(error)
            raise AssertionError("expected an error")

        for call in (lambda: zero + one, lambda: one.add_(zero), lambda: torch.cat([zero, one]),
                     lambda: torch.add(zero, 1, out=one), lambda: torch._foreach_add([zero], [one])):
            text = message(call)
            assert "accel:0" in text and "accel:1" in text, text
        assert one.tolist() == zero.tolist() == [0, 1, 2]

        # Copies cross, gradients follow, statistics and generators are each device's own.
        leaf = torch.ones(3, device="accel", requires_grad=True)
        (leaf.to("accel:1") * one).sum().backward()
        assert leaf.grad.device.index == 0 and leaf.grad.tolist() == [0, 1, 2]
        before = [torch.accel.memory_allocated(i) for i in (0, 1)]
        big = torch.empty(1000, dtype=torch.uint8, device="accel:1")
        assert [torch.accel.memory_allocated(i) - b for i, b in enumerate(before)] == [0, 1000]
        torch.manual_seed(3)
        same = torch.equal(torch.randn(5, device="accel:0").cpu(), torch.randn(5, device="accel:1").cpu())
        assert same, "torch.manual_seed seeds every device"
        torch.randn(5, device="accel:0")
        assert not torch.equal(torch.randn(5, device="accel:0").cpu(), torch.randn(5, device="accel:1").cpu())
        g = torch.Generator(device="accel:1").manual_seed(1)
        assert torch.randn(3, device="accel:1", generator=g).device.index == 1

        # An optimizer over two devices, and a stream of the other one.
        ps = [torch.nn.Parameter(torch.ones(2, device=d)) for d in ("accel:0", "accel:1")]
        for foreach in (False, True):
            opt = torch.optim.AdamW(ps, foreach=foreach)
            sum((p * p).sum().to("accel:0") for p in ps).backward()
            opt.step()
        assert torch.equal(ps[0].cpu(), ps[1].cpu()) and ps[1].device.index == 1
        stream = torch.Stream(device="accel:1")
        with stream:
            assert torch.accel.current_device() == 1
        assert torch.accel.current_device() == 0
        """,
        TORCH_ACCEL_BACKEND="cpu,cpu",
    )


# ------------------------------------------------------------------------------------------------------------ custom operators
@pytest.fixture
def library():
    with torch.library._scoped_library("accel_test", "FRAGMENT") as lib:
        yield lib


def test_custom_operator_that_knows_only_the_cpu(library):
    seen = []

    def plus_cpu(a, b):
        seen.append((a.device.type, a.data_ptr(), b.device.type))
        return a + b

    library.define("plus(Tensor a, Tensor b) -> Tensor")
    library.impl("plus", plus_cpu, "CPU")
    a = torch.arange(3.0, device="accel")
    torch_accel.reset_counters()
    result = torch.ops.accel_test.plus(a, a)
    assert seen == [("cpu", a.data_ptr(), "cpu")] and copies() == NO_COPIES
    same(result, torch.tensor([0.0, 2.0, 4.0], device="accel"))
    assert result.device.type == "accel"


def test_custom_operator_writes_its_argument(library):
    library.define("fill_and_count(Tensor(a!) a, Tensor[] others, Device? device=None) -> (Tensor(a!), int)")

    @torch.library.impl(library, "fill_and_count", "CPU")
    def fill_and_count(a, others, device=None):
        a.copy_(sum(others))
        return a, len(others)

    a, b = torch.zeros(3, device="accel"), torch.ones(3, device="accel")
    result, count = torch.ops.accel_test.fill_and_count(a, [b, b, b])
    assert result is a and count == 3
    same(a, torch.full((3,), 3.0, device="accel"))


def test_custom_operator_with_a_name_for_the_device_of_its_own(library):
    library.define("where_am_i(Tensor a) -> Tensor")
    library.impl("where_am_i", lambda a: a + 1, "CPU")
    library.impl("where_am_i", lambda a: a + 2, "PrivateUse1")
    assert torch.ops.accel_test.where_am_i(torch.zeros((), device="accel")).item() == 2


def test_python_custom_op_and_its_gradient():
    @torch.library.custom_op("accel_test::scaled_square", mutates_args=())
    def scaled_square(x: torch.Tensor, factor: float) -> torch.Tensor:
        return x * x * factor

    scaled_square.register_autograd(
        lambda ctx, grad: (grad * 2 * ctx.saved_tensors[0] * ctx.factor, None),
        setup_context=lambda ctx, inputs, output: (
            (
                ctx.save_for_backward(inputs[0]),
                setattr(ctx, "factor", inputs[1]),
            )
            and None
        ),
    )
    x = torch.arange(3.0, device="accel", requires_grad=True)
    y = scaled_square(x, 0.5)
    y.sum().backward()
    same([y, x.grad], [torch.tensor([0.0, 0.5, 2.0]), torch.tensor([0.0, 1.0, 2.0])])
    on_accel([y, x.grad])

    @scaled_square.register_kernel("accel")
    def _(x, factor):
        return torch.full_like(x, 3.0)

    assert scaled_square(x, 0.5).tolist() == [3.0, 3.0, 3.0]
    assert scaled_square(x.cpu(), 0.5).tolist() == [0.0, 0.5, 2.0]


def test_python_custom_op_that_mutates():
    @torch.library.custom_op("accel_test::double_", mutates_args={"x"})
    def double_(x: torch.Tensor) -> None:
        x.mul_(2)

    x = torch.arange(4.0, device="accel")
    double_(x[1:3])
    assert x.tolist() == [0.0, 2.0, 4.0, 3.0]


def test_overriding_a_kernel_of_the_device():
    code = """
        import torch
        calls = []
        def fake_cos(x):
            calls.append(x.device.type)
            return torch.sin(x)
        x = torch.ones(2, device="accel")
        library = torch.library.Library("aten", "IMPL")
        library.impl("cos", fake_cos, "PrivateUse1")
        assert torch.equal(x.cos(), x.sin()) and calls == ["accel"]
        assert not torch.equal(x.cpu().cos(), x.cpu().sin())
        library._destroy()
        assert not torch.equal(x.cos(), x.sin()) and calls == ["accel"]
    """
    run_ok(code)


def test_dispatch_modes_see_accel_tensors():
    from torch.utils._python_dispatch import TorchDispatchMode

    class Log(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            names.append(func.name())
            return func(*args, **(kwargs or {}))

    names = []
    a = torch.ones(2, 2, device="accel")
    with Log():
        b = (a @ a).relu().view(-1)
    assert names == ["aten::mm", "aten::relu", "aten::view"]
    on_accel(b)


def test_tensor_subclasses():
    class Tagged(torch.Tensor):
        pass

    a = torch.ones(3, device="accel").as_subclass(Tagged)
    b = a * 2 + a
    assert type(b) is Tagged and type(b[1:]) is Tagged and b.device.type == "accel"
    assert b.tolist() == [3.0, 3.0, 3.0]
