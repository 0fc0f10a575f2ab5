"""Proves random numbers: seeds, states and generators of the device, and that the same seed gives the numbers of the native
device, whether a generator is passed, the default one is used, or the operator has no generator argument at all."""

import pytest
import torch
from helpers import check, reference, run_ok, same

import torch_accel

DRAWS = {
    "rand": lambda d, g: torch.rand(5, device=d, generator=g),
    "rand half": lambda d, g: torch.rand(5, device=d, dtype=torch.float16, generator=g),
    "randn": lambda d, g: torch.randn(3, 7, device=d, generator=g),
    "randn large": lambda d, g: torch.randn(40, device=d, dtype=torch.float64, generator=g),
    "randn complex": lambda d, g: torch.randn(4, device=d, dtype=torch.complex64, generator=g),
    "randint": lambda d, g: torch.randint(3, 90, (9,), device=d, generator=g),
    "randperm": lambda d, g: torch.randperm(17, device=d, generator=g),
    "normal of tensors": lambda d, g: torch.normal(torch.zeros(4, device=d), torch.ones(4, device=d), generator=g),
    "normal of scalars": lambda d, g: torch.normal(1.0, 2.0, (5,), device=d, generator=g),
    "normal_": lambda d, g: torch.empty(5, device=d).normal_(1, 2, generator=g),
    "uniform_": lambda d, g: torch.empty(5, device=d).uniform_(-1, 1, generator=g),
    "random_": lambda d, g: torch.empty(5, device=d, dtype=torch.long).random_(generator=g),
    "random_ below": lambda d, g: torch.empty(5, device=d).random_(10, generator=g),
    "random_ between": lambda d, g: torch.empty(5, device=d, dtype=torch.int32).random_(-5, 10, generator=g),
    "bernoulli": lambda d, g: torch.bernoulli(torch.full((9,), 0.5, device=d), generator=g),
    "bernoulli_": lambda d, g: torch.empty(9, device=d).bernoulli_(0.3, generator=g),
    "bernoulli_ of tensor": lambda d, g: torch.empty(9, device=d).bernoulli_(
        torch.full((9,), 0.5, device=d), generator=g
    ),
    "cauchy_": lambda d, g: torch.empty(5, device=d).cauchy_(generator=g),
    "exponential_": lambda d, g: torch.empty(5, device=d).exponential_(generator=g),
    "geometric_": lambda d, g: torch.empty(5, device=d).geometric_(0.5, generator=g),
    "log_normal_": lambda d, g: torch.empty(5, device=d).log_normal_(generator=g),
    "multinomial": lambda d, g: torch.multinomial(torch.arange(1.0, 9, device=d), 4, generator=g),
    "multinomial with replacement": lambda d, g: torch.multinomial(torch.ones(3, device=d), 9, True, generator=g),
    "poisson": lambda d, g: torch.poisson(torch.full((5,), 4.0, device=d), generator=g),
    "binomial": lambda d, g: torch.binomial(
        torch.full((5,), 9.0, device=d), torch.full((5,), 0.3, device=d), generator=g
    ),
}

# Drawn from the default generator only.
SEEDED = {
    "dropout": lambda x: torch.nn.functional.dropout(x, 0.4),
    "dropout_": lambda x: torch.nn.functional.dropout(x, 0.4, inplace=True),
    "native_dropout": lambda x: torch.native_dropout(x, 0.4, True),
    "alpha_dropout": lambda x: torch.nn.functional.alpha_dropout(x, 0.4, training=True),
    "feature_alpha_dropout": lambda x: torch.nn.functional.feature_alpha_dropout(x, 0.4, training=True),
    "dropout2d": lambda x: torch.nn.functional.dropout2d(x[None], 0.4),
    "rrelu": lambda x: torch.nn.functional.rrelu(x, training=True),
    "gumbel_softmax": lambda x: torch.nn.functional.gumbel_softmax(x),
    "rand_like": torch.rand_like,
    "randn_like": torch.randn_like,
    "randint_like": lambda x: torch.randint_like(x, 50),
    "fractional_max_pool2d": lambda x: torch.nn.functional.fractional_max_pool2d(x[None], 2, output_size=3),
    "sdpa with dropout": lambda x: torch.nn.functional.scaled_dot_product_attention(x, x, x, dropout_p=0.3),
    "standard_gamma": lambda x: torch._standard_gamma(x.abs() + 0.5),
    "sample_dirichlet": lambda x: torch._sample_dirichlet(x.abs() + 0.5),
    "distribution": lambda x: torch.distributions.StudentT(x.abs() + 2).sample((2,)),
    "svd_lowrank": lambda x: torch.svd_lowrank(x[0], 2)[1],
    "init": lambda x: torch.nn.init.trunc_normal_(torch.empty_like(x)),
    "orthogonal": lambda x: torch.nn.init.orthogonal_(torch.empty_like(x[0])),
}


# ------------------------------------------------------------------------------------------------------------- same numbers
@pytest.mark.parametrize("name", DRAWS)
def test_generator_argument(name):
    draw = DRAWS[name]
    native, ours = (torch.Generator(device=d).manual_seed(11) for d in (reference(), "accel"))
    states = [torch.get_rng_state(), torch.accel.get_rng_state()]
    for _ in range(2):  # the second draw continues the first
        result = draw("accel", ours)
        same(result, draw(reference(), native), name)
        assert result.device.type == "accel"
    same(ours.get_state(), native.get_state(), "state afterwards")
    same([torch.get_rng_state(), torch.accel.get_rng_state()], states, "default generators")


@pytest.mark.parametrize("name", DRAWS)
def test_default_generator(name):
    torch.manual_seed(12)
    expected = [DRAWS[name](reference(), None) for _ in range(2)]
    torch.manual_seed(12)
    before = torch.get_rng_state()
    actual = [DRAWS[name]("accel", None) for _ in range(2)]
    same(actual, expected, name)
    same(torch.get_rng_state(), before, "the CPU's own generator")


@pytest.mark.parametrize("name", SEEDED)
def test_operators_without_a_generator_argument(name):
    x = torch.randn(3, 8, 8)
    torch.manual_seed(13)
    cpu = torch.get_rng_state()
    result = check(lambda x: [SEEDED[name](x), torch.rand(2, device=x.device)], x)
    torch.manual_seed(20)  # the seed that check starts from
    cpu = torch.get_rng_state()
    again = [SEEDED[name](x.to("accel")), torch.rand(2, device="accel")]
    same(again, result, "once more")
    same(torch.get_rng_state(), cpu, "the CPU's own generator")


@pytest.mark.smoke
def test_dropout_and_its_gradient_use_one_mask():
    x = torch.ones(1000, device="accel", requires_grad=True)
    y = torch.nn.functional.dropout(x, 0.25)
    y.sum().backward()
    same(x.grad, y)
    assert set(y.tolist()) == {0.0, 1 / 0.75} or torch.allclose(y.max(), torch.tensor(1 / 0.75, device="accel"))
    assert 150 < (y == 0).sum().item() < 350
    assert torch.nn.functional.dropout(x, 0.25, training=False) is not None
    same(torch.nn.functional.dropout(x, 0.25, training=False), x)


def test_non_contiguous_targets_are_filled():
    # Values in the gaps stay.
    def run(device):
        base = torch.full((6, 6), 7.0, device=device)
        base[::2, 1::2].uniform_(10, 20)
        base.t()[1::2].normal_(-50)
        torch.randn(6, out=base[:, 0]) if device == "cpu" else torch.randn(6, out=base[:, 0], device=device)
        return base

    torch.manual_seed(1)
    expected = run("cpu")
    torch.manual_seed(1)
    actual = run("accel")
    if reference().type == "cpu":
        same(actual, expected)
    assert (actual[::2, 2] == 7).all() and (actual[1::2, 1] < 0).all()


# ---------------------------------------------------------------------------------------------------------- seeds and states
@pytest.mark.smoke
def test_seeds():
    torch.manual_seed(5)
    a = torch.rand(3, device="accel")
    assert torch.accel.initial_seed() == 5 == torch.initial_seed()
    torch.accel.manual_seed(5)
    same(torch.rand(3, device="accel"), a)
    torch.accel.manual_seed_all(5)
    same(torch.rand(3, device="accel"), a)
    torch.accel.seed()
    first = torch.accel.initial_seed()
    torch.accel.seed_all()
    assert first != 5 and torch.accel.initial_seed() != first
    assert not torch.equal(torch.rand(3, device="accel"), a)


def test_the_device_has_its_own_sequence():
    torch.manual_seed(6)
    a = torch.rand(3, device="accel")
    torch.rand(100)  # draws on the CPU do not move the device's sequence
    b = torch.rand(3, device="accel")
    torch.manual_seed(6)
    torch.rand(7)
    same(torch.rand(6, device="accel"), torch.cat([a, b]))
    state = torch.get_rng_state()
    torch.rand(50, device="accel")
    torch.nn.functional.dropout(torch.ones(50, device="accel"), 0.5)
    torch.native_dropout(torch.ones(50, device="accel"), 0.5, True)
    same(torch.get_rng_state(), state)


def test_state_of_the_default_generator():
    state = torch.accel.get_rng_state()
    assert state.device.type == "cpu" and state.dtype == torch.uint8
    a = torch.randn(9, device="accel")
    torch.accel.set_rng_state(state)
    same(torch.randn(9, device="accel"), a)
    torch.accel.set_rng_state(state, "accel:0")
    same(torch.randn(9, device="accel"), a)
    states = torch.accel.get_rng_state_all()
    assert len(states) == torch.accel.device_count()
    b = torch.randn(9, device="accel")
    torch.accel.set_rng_state_all(states)
    same(torch.randn(9, device="accel"), b)
    same(torch.get_device_module("accel").get_rng_state(0), torch.accel.default_generators[0].get_state())


def test_generator_objects():
    g = torch.Generator(device="accel")
    assert g.device == torch.device("accel", 0)
    assert g.manual_seed(9) is g and g.initial_seed() == 9
    a = torch.rand(4, device="accel", generator=g)
    clone = g.clone_state()
    state = g.get_state()
    b = torch.rand(4, device="accel", generator=g)
    assert not torch.equal(a, b)
    same(torch.rand(4, device="accel", generator=clone), b)
    other = torch.Generator(device="accel")
    assert other.set_state(state) is other
    same(torch.rand(4, device="accel", generator=other), b)
    same(torch.rand(4, device="accel", generator=g.manual_seed(9)), a)
    assert g.seed() != 9 and g.initial_seed() != 9


def test_default_generator_can_be_passed():
    torch.manual_seed(8)
    a = torch.rand(3, device="accel")
    torch.manual_seed(8)
    default = torch.accel.default_generators[0]
    same(torch.rand(3, device="accel", generator=default), a)
    assert len(torch.accel.default_generators) == torch.accel.device_count()


def test_generators_of_other_devices_are_refused():
    cpu, ours = torch.Generator(), torch.Generator(device="accel")
    state = cpu.get_state(), ours.get_state()
    for name, draw in DRAWS.items():
        with pytest.raises(RuntimeError, match=r"(?i)generator.*(accel|cpu)|(accel|cpu).*generator"):
            draw("accel", cpu)
            pytest.fail(f"{name} took a CPU generator")
        with pytest.raises(RuntimeError, match=r"(?i)generator"):
            draw("cpu", ours)
            pytest.fail(f"{name} on the CPU took an accel generator")
    same((cpu.get_state(), ours.get_state()), state)


def test_a_state_of_the_wrong_kind_is_refused():
    g = torch.Generator(device="accel")
    with pytest.raises((RuntimeError, TypeError)):
        g.set_state(torch.zeros(3, dtype=torch.uint8))
    with pytest.raises((RuntimeError, TypeError)):
        g.set_state(torch.zeros(3))
    torch.rand(2, device="accel", generator=g.manual_seed(1))


def test_pickled_generator_continues():
    import copy
    import pickle

    g = torch.Generator(device="accel").manual_seed(4)
    torch.rand(3, device="accel", generator=g)
    for twin in (pickle.loads(pickle.dumps(g)), copy.copy(g), copy.deepcopy(g)):
        assert twin.device == g.device
        state = g.get_state()
        same(torch.rand(3, device="accel", generator=twin), torch.rand(3, device="accel", generator=g))
        g.set_state(state)


@pytest.mark.parametrize("kwargs", [{"device_type": "accel"}, {"devices": [0], "device_type": "accel"}])
def test_fork_rng(kwargs):
    torch.manual_seed(2)
    a, host = torch.rand(3, device="accel"), torch.rand(3)
    torch.manual_seed(2)
    with torch.random.fork_rng(**kwargs):
        torch.manual_seed(99)
        torch.rand(5, device="accel")
        torch.rand(5)
    same(torch.rand(3, device="accel"), a)
    same(torch.rand(3), host)


def test_fork_rng_for_the_cpu_alone_leaves_the_device():
    torch.manual_seed(2)
    with torch.random.fork_rng(devices=[], device_type="accel"):
        a = torch.rand(3, device="accel")
    assert not torch.equal(torch.rand(3, device="accel"), a)


def test_two_requests_with_generators_do_not_disturb_each_other():
    def tokens(seed, steps, other=None):
        g = torch.Generator(device="accel").manual_seed(seed)
        out = []
        for _ in range(steps):
            out.append(torch.multinomial(torch.ones(50, device="accel"), 1, generator=g).item())
            if other is not None:
                torch.multinomial(torch.ones(50, device="accel"), 3, generator=other)
                torch.rand(2, device="accel")
        return out

    assert tokens(1, 8) == tokens(1, 8, torch.Generator(device="accel").manual_seed(2))


def test_seed_before_first_use_is_kept():
    out = run_ok(
        """
        import torch
        torch.manual_seed(1)
        torch.manual_seed(42)
        assert not torch.accel.is_initialized()
        a = torch.rand(4, device="accel")
        torch.manual_seed(42)
        assert torch.equal(a, torch.rand(4, device="accel"))
        assert torch.accel.initial_seed() == 42
        print(a.tolist())
        """,
    )
    torch.manual_seed(42)
    assert out.strip() == str(torch.rand(4, device="accel").tolist())


def test_without_a_seed_processes_draw_different_numbers():
    code = "import torch; print(torch.rand(4, device='accel').tolist())"
    assert run_ok(code) != run_ok(code)


def test_data_loader_and_random_split_on_the_device():
    data = torch.utils.data.TensorDataset(torch.arange(10, device="accel"))
    a, b = torch.utils.data.random_split(data, [7, 3], generator=torch.Generator().manual_seed(1))
    assert sorted(a.indices + b.indices) == list(range(10))
    torch.manual_seed(1)
    batches = [batch[0] for batch in torch.utils.data.DataLoader(data, 4, shuffle=True)]
    assert all(batch.device.type == "accel" for batch in batches)
    assert sorted(torch.cat(batches).tolist()) == list(range(10))
    assert torch_accel.counters()["fallbacks"] == {}
