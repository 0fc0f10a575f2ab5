"""Operators lower to StableHLO programs that compute what torch computes on the CPU."""

import dataclasses

import pytest
import torch
import torch.nn.functional as F
from torch import randn
from tracing import check, execute, trace

from torch_accel.lowering import (
    Layout,
    Leaf,
    NotLowerable,
    Program,
    Record,
    Ref,
    can_lower,
    lower,
    runtime_scalars,
    why_not,
)

NAN, INF = float("nan"), float("inf")
SPECIAL = torch.tensor([0.0, -0.0, 0.5, -0.5, 1.0, 2.5, -2.5, 3.7, NAN, INF, -INF])
INTS = torch.tensor([-9, -8, 7, 0, 5, -1, 2**53 + 1, -(2**53) - 1])
DIVISORS = torch.tensor([2, -3, -3, 7, -5, 1, 2, 3])


@pytest.fixture(autouse=True)
def no_fallbacks():
    """Lowering needs no device, so nothing of it is set up here."""
    torch.manual_seed(0)


def grad(fn):
    """fn and the gradients of its sum by all floating arguments."""

    def run(*inputs):
        inputs = [x.detach().requires_grad_(x.is_floating_point()) for x in inputs]
        result = fn(*inputs)
        return result, *torch.autograd.grad(result.sum(), [x for x in inputs if x.requires_grad])

    return run


def with_nans(*sizes) -> torch.Tensor:
    return torch.where(torch.rand(*sizes) < 0.2, NAN, randn(*sizes))


UNARY = (
    "exp expm1 log log1p sqrt rsqrt sin cos tan tanh sigmoid exp2 log2 log10 reciprocal atan asin acos "
    "atanh sinh cosh asinh acosh erf erfc sign signbit trunc ceil floor round abs neg relu isnan "
    "logical_not square "
)


# ------------------------------------------------------------------------------------------------ elementwise
def test_unary():
    check(lambda x: [getattr(torch, name)(x) for name in UNARY.split()], SPECIAL)


@pytest.mark.parametrize("dtype, tolerance", [(torch.float32, 1e-6), (torch.float64, 1e-14)])
def test_erf_is_accurate(dtype, tolerance):
    x = torch.linspace(-6, 6, 1001, dtype=dtype)
    check(torch.erf, x, rtol=tolerance, atol=0)
    check(torch.erfc, x, rtol=100 * tolerance, atol=0)


@pytest.mark.smoke
def test_integer_division_and_remainder_are_exact():
    def fn(x, y):
        truncated = torch.div(x, y, rounding_mode="trunc")
        return (
            x // y,
            truncated,
            x % y,
            torch.fmod(x, y),
            torch.remainder(5, y),
            2**62 // y,
            x << 1,
            x >> 1,
            x & y,
            ~x,
            x ^ 3,
        )

    check(fn, INTS, DIVISORS, exact=True)
    check(fn, INTS.to(torch.int8), DIVISORS.to(torch.int8), exact=True)


def test_float_division():
    check(
        lambda x, y: (x // y, torch.div(x, y, rounding_mode="trunc"), x % y, torch.fmod(x, y)),
        randn(200) * 9,
        randn(200),
        exact=True,
    )


def test_type_promotion():
    def fn(i, f, mask, half, zero_dim):
        sums = i + 1.5, i + f, i * mask, half * 2.5, half + f[0], mask + zero_dim, i / 2, mask + 1, i + True
        compared = i < 1.5, half < 0.1, mask == 1, i == f, zero_dim > 2.5
        return sums, compared, torch.where(mask, i, 1.5), torch.where(mask, i, f)

    check(
        fn, torch.arange(5), randn(5), torch.tensor([True, False, True, True, False]), randn(5).half(), torch.tensor(3)
    )


def test_casts():
    dtypes = ["int8", "int16", "int32", "int64", "uint8", "bool", "float16", "bfloat16", "float64", "complex64"]
    check(
        lambda x: [x.to(getattr(torch, d)) for d in dtypes],
        torch.tensor([0.0, -0.0, 1.7, -1.7, 100.0, -100.0]),
        exact=True,
    )
    check(lambda x: x.to(torch.uint8), torch.tensor([-1.0, 300.0]), exact=True)


def test_constants_keep_their_bits():
    check(lambda x: x * x.new_tensor([-0.0, NAN, INF, -INF, 1e-30, 0.1]), torch.ones(1), exact=True)
    check(lambda x: 1 / torch.full((2,), -0.0).mul(x), torch.ones(2), exact=True)


def test_nan_wins_in_extremes():
    def fn(x):
        pairs = torch.maximum(x, x.flip(0)), torch.minimum(x, x.flip(0)), torch.fmax(x, x.flip(0))
        return pairs, x.amax(), x.amin(0), x.max(1), x.argmax(0), x.argmin(1), x.clamp(-0.5, 0.5), x.cummax(1)

    check(fn, with_nans(5, 7), exact=True)


def test_activations_and_gradients():
    def fn(x):
        own = F.gelu(x) + F.gelu(x, approximate="tanh") + F.silu(x) + torch.sigmoid(x) + x.tanh() + x.relu()
        decomposed = F.softplus(x) + F.leaky_relu(x) + F.elu(x) + F.hardtanh(x) + F.hardswish(x) + F.mish(x)
        return own + decomposed

    check(grad(fn), randn(50))


# ------------------------------------------------------------------------------------------------ reductions, products
def test_reductions():
    def fn(x):
        sums = x.sum(), x.sum(0), x.mean(1, keepdim=True), x.prod(), x.logsumexp(1), x.norm(), x.norm(dim=1)
        spread = x.var(), x.std(1), x.var(0, correction=0), torch.var_mean(x, 1)
        order = (
            x.amax(0),
            x.max(),
            x.argmax(),
            x.argmax(1),
            x.argmin(0),
            x.max(1),
            x.min(0),
            (x > 0).any(),
            (x > 0).all(1),
        )
        return sums, spread, order, x.cumsum(0), x.cumsum(1), x.cumprod(1)

    check(fn, randn(5, 7))


def test_empty_reductions():
    check(lambda x: (x.sum(), x.sum(1), x.mean(), x.prod(), x.any(), x.all(), x.cumsum(1), x.var()), torch.empty(3, 0))


def test_halves_accumulate_in_float32():
    x = torch.full((4096,), 0.01, dtype=torch.bfloat16)
    check(lambda x: (x.sum(), x.mean()), x, exact=True)
    a, c = randn(64, 512).bfloat16(), randn(512, 64).bfloat16()
    check(lambda a, c: (a @ c, a.half() @ c.half()), a, c, rtol=1e-2, atol=1e-2)
    assert "tensor<64x64xf32>" in lower(trace(lambda a, c: a @ c, a, c)[0]).text


def test_products():
    def fn(x, y, c):
        scaled = torch.addmm(c, x, y, beta=0.5, alpha=2), torch.addmm(c, x, y, beta=0)
        return scaled, x @ y, x.t() @ x, x[None].expand(2, -1, -1) @ y[None], x @ y[:, 0], F.linear(x, y.t(), c[0])

    check(fn, randn(3, 4), randn(4, 5), randn(3, 5))
    check(lambda x: (x @ x, x.long() @ x.long()), torch.arange(9, dtype=torch.int32).reshape(3, 3), exact=True)


def test_matmul_precision_is_in_the_text():
    program = trace(lambda x: x @ x, randn(3, 3))[0]
    assert "precision HIGHEST" in lower(program).text
    assert "precision DEFAULT" in lower(dataclasses.replace(program, precision="medium")).text


# ------------------------------------------------------------------------------------------------ layers
@pytest.mark.smoke
def test_softmax():
    check(grad(lambda x: (F.softmax(x, 1) * torch.arange(7)).sum() + (F.log_softmax(x, 0) ** 2).sum()), randn(5, 7))
    check(lambda x: (F.softmax(x, -1), F.log_softmax(x, -1)), randn(5, 7).bfloat16())


def test_normalisations():
    check(
        grad(lambda x, w, c: F.layer_norm(x, (7,), w, c).pow(2)), randn(5, 7), randn(7), randn(7), rtol=1e-4, atol=1e-4
    )
    check(
        grad(lambda x, w, c: F.group_norm(x, 2, w, c).pow(2)), randn(3, 4, 5), randn(4), randn(4), rtol=1e-4, atol=1e-4
    )
    check(lambda x, m, v: F.batch_norm(x, m, v, training=True), randn(3, 4, 5), randn(4), torch.rand(4))
    for training in (True, False):
        check(
            grad(lambda x, w, c: F.batch_norm(x, torch.zeros(4), torch.ones(4), w, c, training).pow(2)),  # noqa: B023
            randn(3, 4, 5),
            randn(4),
            randn(4),
            rtol=1e-4,
            atol=1e-4,
        )


@pytest.mark.parametrize(
    "fn, x, w, channels",
    [
        (lambda *a: F.conv2d(*a, stride=2, padding=1, groups=2), (2, 4, 9, 8), (6, 2, 3, 3), 6),
        (lambda *a: F.conv1d(*a, stride=3, padding=2, dilation=2), (2, 4, 19), (6, 4, 3), 6),
        (lambda *a: F.conv3d(*a, padding=1), (1, 2, 4, 5, 3), (3, 2, 2, 3, 1), 3),
        (
            lambda *a: F.conv_transpose2d(*a, stride=2, padding=1, output_padding=1, groups=2),
            (2, 4, 5, 6),
            (4, 3, 3, 3),
            6,
        ),
        (lambda *a: F.conv_transpose2d(*a, dilation=3, output_padding=1), (2, 3, 4, 4), (3, 2, 2, 2), 2),
    ],
)
def test_convolution(fn, x, w, channels):
    check(grad(fn), randn(x), randn(w), randn(channels), rtol=1e-4, atol=1e-4)


def test_pooling_and_resampling():
    x = randn(2, 3, 9, 8)
    check(grad(lambda x: F.max_pool2d(x, 3, 2, 1).pow(2)), x)
    check(lambda x: F.max_pool2d(x, 3, 2, 1, ceil_mode=True, return_indices=True), x)
    check(grad(lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True).pow(2)), x)
    check(lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True, count_include_pad=False), x)
    check(grad(lambda x: F.adaptive_avg_pool2d(x, (3, 3)).pow(2)), x)
    check(grad(lambda x: F.interpolate(x, scale_factor=2, mode="bilinear").pow(2)), x)
    check(grad(lambda x: F.interpolate(x, size=(5, 13)).pow(2)), x)


def test_losses_and_embedding():
    check(grad(lambda x, t: F.cross_entropy(x, t, ignore_index=2)), randn(5, 7), torch.tensor([1, 2, 3, 4, 5]))
    check(grad(lambda w, i: F.embedding(i, w, padding_idx=2).pow(2)), randn(6, 4), torch.tensor([[1, 2], [5, 1]]))


# ------------------------------------------------------------------------------------------------ indexing, shapes
def test_index_reads():
    def fn(x, i, k):
        several = x[i, k], x[:, None][i, :, k], x[-1], x[[-1, 0]]
        return (
            several,
            x[i],
            x[:, i],
            x.index_select(1, i),
            x.gather(1, k.view(2, 1) + 2),
            torch.take_along_dim(x, i[:, None], 0),
        )

    check(fn, randn(5, 7), torch.tensor([0, 3]), torch.tensor([1, 1]), exact=True)


def test_index_writes():
    def fn(x, i):
        puts = x.index_put((i,), torch.ones(2, 7)), x.index_put((i, i), torch.ones(()), accumulate=True)
        scatters = x.scatter(1, i[:, None], 5.0), x.scatter_add(0, i[:, None].expand(2, 7), torch.ones(2, 7))
        return puts, scatters, x.index_add(0, i, torch.ones(2, 7)), x.scatter(0, i[:, None], x[:2])

    check(fn, randn(5, 7), torch.tensor([0, 3]))


def test_index_out_of_range_names_the_step():
    program, contents, numbers, _ = trace(lambda x, i: (x + 1)[i], randn(5), torch.tensor([1, 4]))
    lowered = lower(program)
    contents[1] = torch.tensor([1, 5])
    position = next(n for n, step in enumerate(program.steps) if step.op == "aten.index.Tensor")
    assert execute(lowered, contents, numbers)[1] == position + 1
    contents[1] = torch.tensor([-5, 0])
    assert execute(lowered, contents, numbers)[1] == 0


def test_rearrangements_and_factories():
    def fn(x):
        joined = torch.cat([x, x * 2], 1), torch.stack([x, x], 1), x.repeat(2, 3), F.pad(x, (1, -1, 2, 0), value=3.0)
        moved = x.flip(0, 1), x.roll(2), x.roll((1, -2), (0, 1)), x.tril(1), x.triu(-1), x.split(2), x.chunk(2, 1)
        made = torch.arange(5), torch.arange(0, 1, 0.1), torch.full((2,), 3.0), torch.eye(3), torch.linspace(0, 1, 5)
        return joined, moved, made, torch.ones_like(x), x.new_full((2,), 7), torch.scalar_tensor(2.0)

    check(fn, randn(5, 7), rtol=0, atol=1e-7)


def test_order():
    x = with_nans(5, 7)
    check(lambda x: (torch.sort(x, stable=True), torch.sort(x, dim=0, descending=True, stable=True)), x, exact=True)
    check(lambda x: (x.topk(3), x.topk(2, 0, largest=False), x.argsort()), randn(5, 7), exact=True)


def test_complex():
    def fn(x):
        return x * x, x + 1j, x.abs(), torch.view_as_real(x).clone(), x.real + 1, x @ x.t(), x.exp()

    check(fn, torch.randn(3, 3, dtype=torch.complex64))


# ------------------------------------------------------------------------------------------------ writes, optimizers
def test_in_place_and_out():
    def fn(x, y):
        x.add_(1).mul_(2)
        x[1:3, ::2].copy_(torch.zeros(2, 4))
        x.t()[1].fill_(7.0)
        x[0].lerp_(x[1], 0.3)
        torch.add(x[0], x[1], out=y[1])
        x.clamp_(min=0).masked_fill_(x > 3, -1.0)

    check(fn, randn(5, 7), randn(3, 7))


def test_a_decomposition_may_write_into_an_expanded_argument():
    check(grad(lambda x, y: torch.diagonal_scatter(x, y)), torch.zeros(3, 5), torch.ones(3))


def test_foreach():
    def fn(x, y):
        sums = torch._foreach_add([x, y], 2.5), torch._foreach_mul([x, y], [x, y]), torch._foreach_sqrt([x, y])
        return sums, torch._foreach_addcdiv([x, y], [x, y], [x, y], [0.1, 0.2]), torch._foreach_norm([x, y])

    check(fn, randn(3).abs() + 1, randn(4).abs() + 1)


@pytest.mark.parametrize("options", [{"foreach": False}, {"foreach": True}, {"fused": True}])
def test_a_changing_learning_rate_changes_no_text(options):
    def step(rate):
        weight = torch.nn.Parameter(torch.arange(6.0))
        optimizer = torch.optim.AdamW([weight], lr=rate, **options)
        weight.grad = torch.ones(6)

        def fn(w, g):
            optimizer.step()

        return trace(fn, weight.data, weight.grad)

    def run(rate):
        program, contents, numbers, expected = step(rate)
        lowered = lower(program)
        results = execute(lowered, contents, numbers)[0]
        torch.testing.assert_close(results[0], expected[0])
        return lowered.text

    assert run(1e-2) == run(3e-3)


# ------------------------------------------------------------------------------------------------ programs
def test_dead_steps_vanish_and_donation_is_marked():
    layout = Layout.contiguous((4,), torch.float32)
    steps = tuple(Record(f"aten.{name}.default", (Ref(0),), (layout,)) for name in ("exp", "sin"))
    lowered = lower(Program((Leaf(layout),), steps, (2,), donated=(0,)))
    assert "exponential" not in lowered.text and "sine" in lowered.text
    assert lowered.aliases == {0: 0} and "tf.aliasing_output = 0" in lowered.text


def test_random_numbers_are_uniform_and_follow_the_seed():
    program, contents, numbers, _ = trace(
        lambda x: (torch.rand(4000), torch.randn(4000), F.dropout(x, 0.25)), torch.ones(4000)
    )
    lowered = lower(program)
    first = execute(lowered, contents, numbers)[0]
    again = execute(lowered, contents, numbers)[0]
    other = execute(lowered, contents, [n + 1 if n == 1234 else n for n in numbers])[0]
    assert all(torch.equal(a, c) for a, c in zip(first, again, strict=True))
    assert not torch.equal(first[0], other[0])
    uniform, normal, kept = first[:3]
    assert (
        uniform.min() >= 0
        and uniform.max() < 1
        and abs(uniform.mean() - 0.5) < 0.03
        and uniform.unique().numel() > 3900
    )
    assert abs(normal.mean()) < 0.08 and abs(normal.std() - 1) < 0.05
    assert abs((kept > 0).float().mean() - 0.75) < 0.04


def test_what_has_no_lowering_is_known_without_lowering():
    x = Layout.contiguous((4,), torch.float32)
    assert can_lower("aten.add.Tensor", [x, float])
    assert can_lower("aten.softplus.default", [x])
    assert "no_such" in why_not("aten.no_such.default", [x])
    assert not can_lower("aten.masked_select.default", [x, Layout.contiguous((4,), torch.bool)])
    with pytest.raises(NotLowerable, match=r"aten\.nonzero\.default"):
        lower(trace(lambda x: x.nonzero(), randn(4))[0])


def test_runtime_scalars():
    assert runtime_scalars("aten.add.Tensor") == ("alpha",)
    assert runtime_scalars("aten.clamp.default") == ("min", "max")
    assert runtime_scalars("aten.pow.Tensor_Scalar") == ()
    assert runtime_scalars("aten.softplus.default") == ()  # by decomposition, which looks at the number


@pytest.mark.smoke
def test_training_steps():
    torch.manual_seed(0)
    models = [
        (torch.nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True), randn(2, 5, 16)),
        (
            torch.nn.Sequential(
                torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU(), torch.nn.MaxPool2d(2)
            ),
            randn(2, 3, 8, 8),
        ),
    ]
    for model, x in models:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

        def fn(x, *parameters, model=model, optimizer=optimizer):
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        check(fn, x, *(p.data for p in model.parameters()), rtol=1e-4, atol=1e-4)
