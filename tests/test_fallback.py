"""Proves the CPU fallback: what a backend lacks runs on the CPU when the policy allows it, gives the CPU's results, is counted
with bytes and the user's line, and never touches views and factories.

Operators are sent there by force, since the native route of the CPU lacks none.
"""

import contextlib
import copy
import threading
import warnings

import pytest
import torch
from helpers import check_grads, on_accel, run_ok, run_python, same

import torch_accel

EXTENSION = torch_accel.accel._require_extension()


@pytest.fixture(autouse=True)
def no_fallbacks():
    """Overrides the common fixture: fallbacks are allowed here."""
    torch_accel.reset_counters()
    torch.manual_seed(0)
    with torch_accel.fallback("allow"):
        yield


@contextlib.contextmanager
def forced(*operators):
    try:
        for operator in operators:
            EXTENSION.set_op_policy(operator, "fallback")
        yield
    finally:
        for operator in operators:
            EXTENSION.set_op_policy(operator, "")


def fallbacks():
    return torch_accel.counters()["fallbacks"]


def counts():
    return {operator: row["count"] for operator, row in fallbacks().items()}


# ------------------------------------------------------------------------------------------------------------------ policies
@pytest.mark.smoke
def test_allow_runs_on_the_cpu_and_counts():
    a, b = torch.randn(3, 4), torch.randn(4, 5)
    expected = a @ b
    x, y = a.to("accel"), b.to("accel")
    torch_accel.reset_counters()
    with forced("aten::mm"), warnings.catch_warnings():
        warnings.simplefilter("error")
        result = x @ y
        x @ y
    on_accel(result)
    same(result, expected)
    row = fallbacks()["aten::mm"]
    assert row["count"] == 2
    assert row["bytes"] == 2 * 4 * (12 + 20 + 15)  # both operands to the CPU, the result back
    x @ y
    assert counts() == {"aten::mm": 2}


@pytest.mark.smoke
def test_error_runs_and_copies_nothing():
    x = torch.randn(3, 3, device="accel")
    torch_accel.reset_counters()
    before = x.clone()
    with forced("aten::mm", "aten::add_.Tensor"), torch_accel.fallback("error"):
        with pytest.raises(NotImplementedError, match=r"torch_accel: aten::mm: expected a kernel on backend cpu"):
            x @ x
        with pytest.raises(NotImplementedError, match=r"torch_accel.fallback"):
            x.add_(1)
    assert fallbacks() == {}
    assert torch_accel.counters()["copies"]["device_to_host"] == {"count": 0, "bytes": 0}
    same(x, before)
    same(x @ x, before.cpu() @ before.cpu())


def test_warn_warns_once_for_each_operator():
    x = torch.randn(3, 3, device="accel")
    with forced("aten::mm", "aten::neg"), torch_accel.fallback("warn"), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            x @ x
            -x
    messages = [str(w.message) for w in caught]
    assert len(messages) == 2, messages
    assert "aten::mm" in messages[0] and "aten::neg" in messages[1]
    assert "torch_accel" in messages[0] and "ran on the CPU" in messages[0] and "test_fallback.py" in messages[0]
    assert counts() == {"aten::mm": 3, "aten::neg": 3}


def test_a_warning_that_is_an_error_leaves_everything_usable():
    x = torch.ones(3, 3, device="accel")
    with forced("aten::mm"), torch_accel.fallback("warn"), warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning, match="aten::mm"):
            x @ x
        x @ x  # the second time is not reported
    same(x @ x, torch.full((3, 3), 3.0))


def test_the_policy_is_a_call_or_a_context():
    assert EXTENSION.get_fallback() == "allow"
    with torch_accel.fallback("error"):
        with torch_accel.fallback("warn"):
            assert EXTENSION.get_fallback() == "warn"
            with contextlib.suppress(KeyError), torch_accel.fallback("allow"):
                assert EXTENSION.get_fallback() == "allow"
                raise KeyError
            assert EXTENSION.get_fallback() == "warn"
        assert EXTENSION.get_fallback() == "error"
    assert EXTENSION.get_fallback() == "allow"
    torch_accel.fallback("error")
    assert EXTENSION.get_fallback() == "error"
    for wrong in ("never", "", None, 3):
        with pytest.raises(ValueError, match="warn, allow, error"):
            torch_accel.fallback(wrong)
    assert EXTENSION.get_fallback() == "error"


def test_the_policy_holds_in_other_threads():
    x, outcomes = torch.randn(3, 3, device="accel"), []

    def work():
        try:
            x @ x
            outcomes.append("ran")
        except NotImplementedError:
            outcomes.append("refused")

    with forced("aten::mm"):
        for policy in ("error", "allow"):
            with torch_accel.fallback(policy):
                thread = threading.Thread(target=work)
                thread.start()
                thread.join()
    assert outcomes == ["refused", "ran"]


def test_counters_add_up_over_threads():
    x = torch.randn(8, 8, device="accel")
    expected = -x.cpu()
    results = []

    def work():
        for _ in range(50):
            results.append(-x)

    with forced("aten::neg"):
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    row = fallbacks()["aten::neg"]
    assert row["count"] == 200 == sum(row["sources"].values()) and row["bytes"] == 200 * 2 * 256
    assert all(torch.equal(result.cpu(), expected) for result in results)


def test_the_policy_reaches_backward():
    """Backward runs in a thread of torch's own."""
    x = torch.randn(3, 3, device="accel", requires_grad=True)
    y = x.tanh()
    with forced("aten::tanh_backward"):
        with torch_accel.fallback("error"), pytest.raises(NotImplementedError, match="tanh_backward"):
            y.sum().backward(retain_graph=True)
        y.sum().backward()
    same(x.grad, 1 - x.detach().tanh() ** 2, rtol=1e-6, atol=1e-6)
    assert counts() == {"aten::tanh_backward": 1}


@pytest.mark.parametrize("policy", ["warn", "error"])
def test_the_environment_sets_the_policy(policy):
    done = run_python(
        """
        import torch
        torch.ones(1, device="accel")
        import torch_accel
        from torch_accel import _C
        _C.set_op_policy("aten::mm", "fallback")
        x = torch.eye(2, device="accel")
        print(_C.get_fallback())
        try:
            print((x @ x).tolist())
        except NotImplementedError as error:
            print("refused")
        """,
        TORCH_ACCEL_FALLBACK=policy,
    )
    assert done.returncode == 0, done.stderr
    result = "refused" if policy == "error" else "[[1.0, 0.0], [0.0, 1.0]]"
    assert done.stdout.split("\n") == [policy, result, ""]
    assert ("aten::mm" in done.stderr) == (policy == "warn")
    if policy == "warn":
        assert "<string>:10" in done.stderr


def test_nonsense_in_the_environment_is_reported_at_first_use():
    done = run_python(
        """
        import torch
        print("imported")
        try:
            torch.ones(1, device="accel")
        except Exception as error:
            print(error)
        """,
        TORCH_ACCEL_FALLBACK="nonsense",
    )
    assert done.returncode == 0 and done.stderr == "", done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "imported"
    for word in ("TORCH_ACCEL_FALLBACK", "warn", "allow", "error", "nonsense"):
        assert word in lines[1]


# ------------------------------------------------------------------------------------------------------------------ counters
@pytest.mark.smoke
def test_the_users_line_is_counted():
    x = torch.randn(2, 2, device="accel")

    def helper():
        return torch.nn.functional.linear(x, x)  # below torch's Python: this line is the user's

    with forced("aten::mm", "aten::addmm"):
        for _ in range(3):
            helper()
        module = torch.nn.Linear(2, 2, device="accel")
        module(x)
    lines = {source: n for row in fallbacks().values() for source, n in row["sources"].items()}
    first = helper.__code__.co_firstlineno + 1
    assert lines == {f"{__file__}:{first}": 3, f"{__file__}:{first + 6}": 1}


def test_the_line_of_a_backward_is_the_users_where_one_waits():
    x = torch.randn(2, 2, device="accel", requires_grad=True)
    y = x.tanh().sum()
    with forced("aten::tanh_backward"):
        y.backward()
    (source,) = fallbacks()["aten::tanh_backward"]["sources"]
    assert source == "(no Python frame)" or source.startswith(__file__)


def test_reset_and_copies():
    torch_accel.reset_counters()
    host = torch.randn(6, 4)
    x = host.to("accel")
    x.cpu()
    x.t()[1:].cpu()
    x[2:].copy_(host[:4])
    copies = torch_accel.counters()["copies"]
    assert copies["host_to_device"] == {"count": 2, "bytes": 96 + 64}
    assert copies["device_to_host"]["count"] == 2 and copies["device_to_host"]["bytes"] == 96 + 72
    assert copies["device_to_device"] == {"count": 0, "bytes": 0}
    with forced("aten::neg"):
        -x
    assert counts() == {"aten::neg": 1}
    torch_accel.reset_counters()
    assert torch_accel.counters() == {
        "fallbacks": {},
        "copies": {kind: {"count": 0, "bytes": 0} for kind in copies},
    }


def test_item_and_scalars_count_as_copies_to_the_host():
    x = torch.randn(4, device="accel")
    torch_accel.reset_counters()
    x[0].item()
    float(x[1])
    bool(x[2] > 0)
    assert torch_accel.counters()["fallbacks"] == {}
    # As torch sees it: one copy of one element for each.
    row = torch_accel.counters()["copies"]["device_to_host"]
    assert row["count"] in (0, 3), row


# ------------------------------------------------------------------------------------------------------ what falls back right
def compare(operators, function, *tensors):
    """`function` on accel with the operators sent to the CPU, against the CPU itself. All arguments are compared afterwards."""
    expected_args = [t.clone() for t in tensors]
    torch.manual_seed(3)
    expected = function(*expected_args)
    args = [t.to("accel") for t in tensors]
    addresses = [t.data_ptr() for t in args]
    torch_accel.reset_counters()
    torch.manual_seed(3)
    with forced(*operators):
        actual = function(*args)
    assert set(operators) <= set(counts()), f"{operators} did not fall back: {counts()}"
    on_accel(actual)
    same(actual, expected)
    same(args, expected_args, "arguments afterwards")
    assert [t.data_ptr() for t in args] == addresses
    return actual, args


@pytest.mark.smoke
def test_in_place():
    x = torch.randn(4, 4)

    def run(x):
        y = x.add_(1)
        assert y is x
        x.t()[1:].mul_(torch.full((3, 1), 2.0, device=x.device))
        x[:, ::2].relu_()
        return x

    compare(["aten::add_.Tensor", "aten::mul_.Tensor", "aten::relu_"], run, x)


def test_out():
    def run(a, right, gaps):
        assert torch.add(a, 1, out=right) is right
        torch.mul(a, 2, out=gaps[::2, 1:4])
        empty = a.new_empty(0)
        assert torch.sub(a, 3, out=empty) is empty and empty.shape == a.shape
        values, indices = a.new_empty(0), a.new_empty(0, dtype=torch.long)
        torch.topk(a, 2, out=(values, indices))
        return empty, values, indices

    operators = ["aten::add.out", "aten::mul.out", "aten::sub.out", "aten::topk.values"]
    compare(operators, run, torch.randn(3, 3), torch.zeros(3, 3), torch.full((6, 5), 7.0))


def test_lists():
    def run(a, b):
        cat = torch.cat([a, b, a])
        torch._foreach_add_([a, b], [b, a], alpha=2)
        return cat, torch._foreach_mul([a, b], 3.0), list(torch.split_copy(a, 2))

    operators = ["aten::cat", "aten::_foreach_add_.List", "aten::_foreach_mul.Scalar", "aten::split_copy.Tensor"]
    compare(operators, run, torch.randn(3, 3), torch.randn(3, 3))


def test_optional_and_index_lists():
    def run(a, i):
        a.index_put_((i.cpu(), i), torch.tensor(9.0, device=a.device))
        return a[i], a[:, i], a[i.cpu()], torch.clamp(a, min=a[0])

    compare(
        ["aten::index.Tensor", "aten::index_put_", "aten::clamp.Tensor"],
        run,
        torch.randn(4, 4),
        torch.tensor([2, 0, 1]),
    )


def test_an_argument_given_twice_is_one_tensor():
    def run(a):
        a.addmm_(a, a)
        return torch.mul(a, a), a.add_(a)

    compare(["aten::addmm_", "aten::mul.Tensor", "aten::add_.Tensor"], run, torch.randn(3, 3))


def test_views_of_one_storage_as_operands():
    def run(a):
        a[0].add_(a[1])
        a[:, 0].copy_(torch.dot(a[0], a[1]).expand(3))
        return a.diagonal().mul_(2)

    compare(["aten::add_.Tensor", "aten::dot", "aten::mul_.Tensor"], run, torch.randn(3, 3))


def test_random_operators():
    """The numbers of the same seed, and the generator moves on."""

    def run(a):
        a.normal_()
        first, second = torch.bernoulli(a.sigmoid()), torch.bernoulli(a.sigmoid())
        return first, second, torch.native_dropout(a, 0.5, True), torch.rand(3, device=a.device)

    compare(["aten::normal_", "aten::bernoulli_.Tensor", "aten::native_dropout"], run, torch.randn(4, 4))

    generator = torch.Generator(device="accel").manual_seed(5)
    with forced("aten::uniform_"):
        a = [torch.empty(4, device="accel").uniform_(generator=generator) for _ in range(2)]
    generator.manual_seed(5)
    same(a, [torch.empty(4, device="accel").uniform_(generator=generator) for _ in range(2)])
    with forced("aten::uniform_"), pytest.raises(RuntimeError, match="(?i)generator"):
        torch.empty(4, device="accel").uniform_(generator=torch.Generator())


def test_running_statistics():
    def run(x, mean, var, weight):
        out = torch.nn.functional.batch_norm(x, mean, var, weight, training=True)
        return out, torch.nn.functional.batch_norm(x, mean, var, weight)

    data = torch.randn(5, 4, 3), torch.zeros(4), torch.ones(4), torch.rand(4)
    compare(["aten::native_batch_norm"], run, *data)


def test_counters_of_batches_and_modules():
    torch_accel.reset_counters()
    with forced("aten::native_batch_norm"):
        module = torch.nn.BatchNorm1d(4).to("accel")
        module(torch.randn(5, 4, device="accel"))
    assert counts() == {"aten::native_batch_norm": 1}
    assert module.running_mean.abs().sum().item() > 0 and module.running_mean.device.type == "accel"


def test_results_that_are_an_argument_come_back_as_it():
    x = torch.randn(3, 3, device="accel")
    with forced("aten::relu_"):
        assert torch.relu_(x) is x


def test_dtypes_and_layouts_come_back_as_the_cpu_gives_them():
    def run(a):
        return a.double(), a.long(), a.bool(), a.t() @ a, a.softmax(0), a.sum((0, 1))

    compare(["aten::_softmax", "aten::mm", "aten::sum.dim_IntList"], run, torch.randn(4, 4).t())

    image = torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last)
    (result,), _ = compare(["aten::gelu"], lambda x: [torch.nn.functional.gelu(x)], image)
    assert result.is_contiguous(memory_format=torch.channels_last)


def test_sparse_operands():
    def run(a):
        return (a.to_sparse() @ a).relu(), a.to_sparse().to_dense()

    compare(["aten::relu"], run, torch.eye(3))


def test_complex_conjugates():
    z = torch.randn(3, 3, dtype=torch.complex64)
    compare(["aten::mm", "aten::add.Tensor"], lambda z: [z.conj() @ z, z.conj() + 1], z)


def test_gradients():
    operators = ("aten::mm", "aten::tanh", "aten::tanh_backward", "aten::convolution", "aten::convolution_backward")

    def run(x, w):
        if x.device.type != "accel":
            return (x @ x).tanh(), torch.nn.functional.conv1d(x, w)
        with forced(*operators):
            y = (x @ x).tanh(), torch.nn.functional.conv1d(x, w)
            grads = torch.autograd.grad([y[0].sum(), y[1].sum()], [x, w], retain_graph=True)
            on_accel(grads)
        return y

    check_grads(run, torch.randn(4, 4, requires_grad=True), torch.randn(2, 4, 3, requires_grad=True))
    assert set(operators) <= set(counts())


def test_a_training_step_with_everything_possible_on_the_cpu():
    def train(module, x, y):
        optimizer = torch.optim.AdamW(module.parameters(), lr=0.1, foreach=False)
        for _ in range(3):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(module(x), y).backward()
            optimizer.step()
        return dict(module.named_parameters())

    operators = [
        "aten::addmm",
        "aten::mm",
        "aten::relu",
        "aten::threshold_backward",
        "aten::_log_softmax",
        "aten::nll_loss_forward",
        "aten::nll_loss_backward",
        "aten::_log_softmax_backward_data",
        "aten::mul_.Tensor",
        "aten::lerp_.Scalar",
        "aten::addcmul_",
        "aten::addcdiv_",
        "aten::sqrt",
        "aten::add_.Tensor",
        "aten::div.Tensor",
        "aten::sum.dim_IntList",
    ]
    module = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
    x, y = torch.randn(5, 4), torch.randint(0, 3, (5,))
    ours = copy.deepcopy(module).to("accel")
    with forced(*operators):
        actual = train(ours, x.to("accel"), y.to("accel"))
    same(actual, train(module, x, y))
    assert len(counts()) > 10


def test_errors_of_the_cpu_kernel_come_through():
    x = torch.randn(3, 4, device="accel")
    before = x.clone()
    with forced("aten::mm", "aten::add_.Tensor"):
        with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
            x @ x
        with pytest.raises(RuntimeError, match="size of tensor"):
            x.add_(torch.ones(7, device="accel"))
        with pytest.raises(RuntimeError, match="accel:0"):
            x @ torch.ones(4, 2)
    same(x, before)


def test_custom_operator_forced_to_the_cpu():
    with torch.library._scoped_library("accel_fallback_test", "FRAGMENT") as library:
        library.define("twice(Tensor a) -> Tensor")
        library.impl("twice", lambda a: a * 2, "CPU")
        x = torch.ones(3, device="accel")
        with forced("accel_fallback_test::twice"):
            result = torch.ops.accel_fallback_test.twice(x)
        on_accel(result)
        assert result.tolist() == [2, 2, 2] and counts() == {"accel_fallback_test::twice": 1}


# ---------------------------------------------------------------------------------------------------------- what never does
@pytest.mark.smoke
@pytest.mark.parametrize(
    "operator",
    [
        "view",
        "as_strided",
        "transpose.int",
        "permute",
        "slice.Tensor",
        "select.int",
        "expand",
        "unfold",
        "detach",
        "alias",
        "t",
        "unsqueeze",
        "diagonal",
        "view_as_real",
        "split.Tensor",
        "unbind.int",
        "_reshape_alias",
        "empty.memory_format",
        "empty_strided",
        "resize_",
        "set_",
        "full",
        "ones",
        "randn",
        "zeros",
        "_copy_from",
        "set_.source_Storage",
    ],
)
def test_views_factories_and_structural_operators_refuse(operator):
    operator = f"aten::{operator}"
    before = EXTENSION.op_policy(operator)
    with pytest.raises(ValueError, match="views, factories and structural operators never fall back"):
        EXTENSION.set_op_policy(operator, "fallback")
    assert EXTENSION.op_policy(operator) == before


def test_policies_of_operators():
    assert EXTENSION.op_policy("aten::mm") == "native"
    assert EXTENSION.op_policy("aten::view") == "structural"
    assert EXTENSION.op_policy("aten::empty.memory_format") == "structural"
    assert EXTENSION.op_policy("aten::matmul") == "composite"
    with forced("aten::mm"):
        assert EXTENSION.op_policy("aten::mm") == "fallback"
    assert EXTENSION.op_policy("aten::mm") == "native"
    EXTENSION.set_op_policy("aten::mm", "native")
    assert EXTENSION.op_policy("aten::mm") == "native"
    EXTENSION.set_op_policy("aten::mm", "")
    for wrong in ("aten::no_such_operator", "nonsense", "aten::add.NoSuchOverload"):
        with pytest.raises(ValueError, match="expected an operator such as"):
            EXTENSION.set_op_policy(wrong, "fallback")
        with pytest.raises(ValueError, match="expected an operator such as"):
            EXTENSION.op_policy(wrong)
    with pytest.raises(ValueError, match="expected native, fallback"):
        EXTENSION.set_op_policy("aten::mm", "sometimes")


def test_nothing_of_ordinary_use_falls_back():
    with torch_accel.fallback("error"):
        model = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).to("accel")
        optimizer = torch.optim.AdamW(model.parameters())
        x = torch.randn(2, 3, 8, device="accel")
        model(x).sum().backward()
        optimizer.step()
        repr(x)
    assert fallbacks() == {}


def test_info_shows_the_counters():
    out = run_ok(
        """
        import torch
        from torch_accel import _C, info
        _C.set_op_policy("aten::mm", "fallback")
        x = torch.ones(2, 2, device="accel")
        x @ x
        collected = info.collect()
        assert collected["counters"]["fallbacks"]["aten::mm"]["count"] == 1
        print(info.render(collected))
        """,
        TORCH_ACCEL_FALLBACK="allow",
    )
    assert "aten::mm" in out and "1 calls, 32 bytes" in out
