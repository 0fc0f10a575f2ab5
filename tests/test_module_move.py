"""Proves that modules move to accel, back and between dtypes as they do for torch's own devices: parameters stay the same
objects, tied weights stay tied, gradients and buffers come along, optimizers keep working."""

import copy

import pytest
import torch
from helpers import moved
from layouts import DEVICE, allocations, bits, both, held, same
from torch import nn

import torch_accel


class Tied(nn.Module):
    """Embedding and output layer with one weight, a buffer, a non-persistent buffer, a list of layers."""

    def __init__(self, device=None):
        super().__init__()
        self.embed = nn.Embedding(5, 3, device=device)
        self.layers = nn.ModuleList([nn.Linear(3, 3, device=device), nn.BatchNorm1d(3, device=device)])
        self.head = nn.Linear(3, 5, bias=False, device=device)
        self.head.weight = self.embed.weight
        self.register_buffer("scale", torch.full((3,), 2.0, device=device))
        self.register_buffer("steps", torch.tensor(7, device=device), persistent=False)
        self.register_buffer("nothing", None)
        self.register_parameter("absent", None)

    def forward(self, tokens):
        x = self.embed(tokens) * self.scale
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def tokens(d):
    return torch.tensor([0, 3, 1, 4], device=d)


def trained(d):
    """One backward has run: gradients and batch statistics are there."""
    torch.manual_seed(0)
    model = Tied().to(d)
    model(tokens(d)).square().sum().backward()
    return model


MOVES = {
    "to accel": ("cpu", lambda m: m.to("accel"), DEVICE),
    "to accel:0": ("cpu", lambda m: m.to("accel:0"), DEVICE),
    "to index": ("cpu", lambda m: m.to(0), DEVICE),
    "to torch.device": ("cpu", lambda m: m.to(torch.device("accel", 0)), DEVICE),
    "to keyword": ("cpu", lambda m: m.to(device="accel"), DEVICE),
    "to like": ("cpu", lambda m: m.to(torch.empty(1, device=DEVICE)), DEVICE),
    "to non_blocking": ("cpu", lambda m: m.to("accel", non_blocking=True), DEVICE),
    "accel()": ("cpu", lambda m: m.accel(), DEVICE),
    "accel(0)": ("cpu", lambda m: m.accel(0), DEVICE),
    "cpu()": (DEVICE, lambda m: m.cpu(), "cpu"),
    "to cpu": (DEVICE, lambda m: m.to("cpu"), "cpu"),
    "accel to accel": (DEVICE, lambda m: m.to("accel"), DEVICE),
    "there and back": ("cpu", lambda m: m.accel().cpu(), "cpu"),
    "back and there": (DEVICE, lambda m: m.cpu().accel(), DEVICE),
}
CASTS = {
    "double": (lambda m: m.double(), torch.float64),
    "half": (lambda m: m.half(), torch.float16),
    "bfloat16": (lambda m: m.bfloat16(), torch.bfloat16),
    "float": (lambda m: m.float(), torch.float32),
    "to dtype": (lambda m: m.to(torch.float64), torch.float64),
    "to device and dtype": (lambda m: m.to("accel", torch.float64), torch.float64),
    "type": (lambda m: m.to(dtype=torch.float16), torch.float16),
}


def parameters_of(model):
    """With every name that a parameter has, the second one of a tied weight too."""
    return dict(model.named_parameters(remove_duplicate=False))


@pytest.mark.smoke
@pytest.mark.parametrize("name", MOVES)
def test_moving_keeps_parameters_the_same_objects(name):
    start, move, end = MOVES[name]
    model = trained(start)
    before = parameters_of(model)
    result = move(model)
    assert result is model
    for key, parameter in parameters_of(model).items():
        assert parameter is before[key], key
        assert type(parameter) is nn.Parameter and parameter.is_leaf and parameter.requires_grad
        assert parameter.device == torch.device(end), key


@pytest.mark.smoke
@pytest.mark.parametrize("name", MOVES)
def test_moving_keeps_tied_weights_tied(name):
    start, move, _ = MOVES[name]
    model = move(trained(start))
    assert model.head.weight is model.embed.weight
    with torch.no_grad():
        model.head.weight.fill_(3)
    assert model.embed.weight.sum().item() == 45
    assert len(list(model.parameters())) == 5


@pytest.mark.parametrize("name", MOVES)
def test_moving_keeps_values_gradients_buffers_and_results(name):
    start, move, end = MOVES[name]
    wanted, model = trained("cpu"), move(trained(start))
    for key, parameter in parameters_of(wanted).items():
        same(parameters_of(model)[key].data, parameter.data, key)
        same(parameters_of(model)[key].grad, parameter.grad, f"{key}.grad")
        assert parameters_of(model)[key].grad.device == torch.device(end)
    for key, buffer in wanted.named_buffers():
        actual = dict(model.named_buffers())[key]
        assert actual.device == torch.device(end) and torch.equal(bits(actual), bits(buffer)), key
    assert model.nothing is None and model.absent is None
    out = model(tokens(end))
    out.square().sum().backward()
    expected = wanted(tokens("cpu"))
    expected.square().sum().backward()
    assert torch.equal(bits(out), bits(expected))
    assert torch.equal(bits(model.head.weight.grad), bits(wanted.head.weight.grad))


@pytest.mark.parametrize("name", CASTS)
def test_casting_keeps_objects_and_ties(name):
    cast, dtype = CASTS[name]
    model = trained(DEVICE)
    before, grads = parameters_of(model), {k: p.grad for k, p in parameters_of(model).items()}
    assert cast(model) is model
    for key, parameter in parameters_of(model).items():
        assert parameter is before[key] and parameter.dtype == dtype and parameter.device == DEVICE
        assert parameter.grad is grads[key] and parameter.grad.dtype == dtype and parameter.grad.device == DEVICE
    assert model.head.weight is model.embed.weight
    assert model.scale.dtype == dtype and model.steps.dtype == torch.int64
    assert model.layers[1].num_batches_tracked.dtype == torch.int64
    reference = cast(trained("cpu")) if "device" not in name else trained("cpu").to(dtype)
    assert torch.equal(bits(model.head.weight), bits(reference.head.weight))
    assert torch.equal(bits(model.head.weight.grad), bits(reference.head.weight.grad))
    out = model.eval()(tokens(DEVICE))
    assert out.dtype == dtype and torch.equal(bits(out), bits(reference.eval()(tokens("cpu"))))


@pytest.mark.parametrize("name", CASTS)
def test_moving_and_then_casting_gives_results_of_the_new_dtype(name):
    cast, dtype = CASTS[name]
    for model in (cast(Tied().accel()), cast(Tied()).accel()):
        assert model(tokens(DEVICE)).dtype == dtype
        assert {p.dtype for p in model.parameters()} == {dtype}


@pytest.mark.parametrize("tie", ["before", "after"])
def test_optimizers_made_before_the_move_go_on_working(tie):
    """The usual advice is to move first; torch's devices allow the other order, because parameters keep their identity."""

    def losses(d, first):
        torch.manual_seed(0)
        model = Tied()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1) if first else None
        model.to(d)
        optimizer = optimizer or torch.optim.Adam(model.parameters(), lr=0.1)
        out = []
        for _ in range(3):
            optimizer.zero_grad()
            loss = model(tokens(d)).square().sum()
            loss.backward()
            optimizer.step()
            out.append(loss.item())
        return out, {p.device.type for p in optimizer.state}

    first = tie == "before"
    actual, devices = losses(DEVICE, first)
    assert devices == {"accel"}
    assert actual == losses("cpu", first)[0] and actual[2] < actual[0]


def test_moving_away_after_a_forward_pass():
    """Saved tensors and views of the old parameters keep the old memory."""
    model = nn.Linear(3, 2, device=DEVICE)
    view = model.weight.detach()[0]
    out = model(torch.ones(4, 3, device=DEVICE))
    model.cpu()
    assert view.device == DEVICE and model.weight.device.type == "cpu"
    assert torch.equal(view.cpu(), model.weight.detach()[0])
    model(torch.ones(4, 3)).sum().backward()
    assert model.weight.grad.device.type == "cpu" and out.device == DEVICE
    model.accel()
    model(torch.ones(4, 3, device=DEVICE)).sum().backward()
    assert model.weight.grad.device == DEVICE and model.weight.grad.tolist() == [[8] * 3] * 2


def test_moving_frees_what_was_there():
    with allocations() as allocated:
        model = nn.Linear(100, 100, bias=False, device=DEVICE)
        model.weight.grad = torch.zeros(100, 100, device=DEVICE)
        assert allocated()[0] == 2 * held(40000)
        model.cpu()
        assert allocated()[0] == 0
        model.accel()
        assert allocated()[0] == 2 * held(40000)
        model.double()
        assert allocated()[0] == 2 * held(80000)
        del model
        assert allocated()[0] == 0


def test_tied_weights_take_memory_once():
    with allocations() as allocated:
        model = Tied().accel()
        sizes = [p.nbytes for p in model.parameters()] + [b.nbytes for b in model.buffers()]
        assert allocated()[0] == sum(map(held, sizes))
        del model
        assert allocated()[0] == 0


def test_each_parameter_is_copied_once():
    model = Tied()
    torch_accel.reset_counters()
    model.accel()
    copied = torch_accel.counters()["copies"]["host_to_device"]
    sizes = [p.nbytes for p in parameters_of(model).values()] + [b.nbytes for b in model.buffers()]
    assert copied["bytes"] <= sum(sizes) and copied["count"] <= len(sizes)
    torch_accel.reset_counters()
    model.accel(), model.to("accel"), model.float()
    assert torch_accel.counters()["copies"]["host_to_device"]["count"] == 0


def test_parameters_that_share_memory_but_are_two_objects():
    """Torch unties these on a move; so do we. They stay tied under moves that change nothing."""

    def run(d):
        one, other = nn.Linear(2, 2, bias=False, device=d), nn.Linear(2, 2, bias=False, device=d)
        other.weight = nn.Parameter(one.weight.detach())
        model = nn.Sequential(one, other)
        model.to(one.weight.device)
        before = one.weight.data_ptr() == other.weight.data_ptr()
        model.double()
        return before, one.weight.data_ptr() == other.weight.data_ptr()

    both(run)


def test_frozen_and_integer_parameters():
    model = nn.Linear(2, 2)
    model.weight.requires_grad_(False)
    model.counts = nn.Parameter(torch.arange(3), requires_grad=False)
    before = model.weight
    model.accel()
    assert model.weight is before and not model.weight.requires_grad and model.bias.requires_grad
    assert model.counts.tolist() == [0, 1, 2] and model.counts.device == DEVICE
    model.half()
    assert model.counts.dtype == torch.int64 and model.weight.dtype == torch.float16


def test_parameter_lists_dicts_and_hooks_survive():
    model = nn.Module()
    model.weights = nn.ParameterList([nn.Parameter(torch.ones(2)), nn.Parameter(torch.zeros(3))])
    model.named = nn.ParameterDict({"a": nn.Parameter(torch.ones(2))})
    seen = []
    model.weights[0].register_hook(lambda grad: seen.append(grad.device))
    model.weights[0].note = "kept"
    model.accel()
    assert [p.device for p in model.parameters()] == [DEVICE] * 3
    (model.weights[0].sum() + model.named["a"].sum()).backward()
    assert seen == [DEVICE] and model.weights[0].note == "kept"


def test_moving_a_model_with_only_some_parameters_there():
    model = nn.Sequential(nn.Linear(2, 2, device=DEVICE), nn.Linear(2, 2))
    with pytest.raises(RuntimeError, match="device"):
        model(torch.ones(1, 2, device=DEVICE))
    model.to("accel")
    assert model(torch.ones(1, 2, device=DEVICE)).device == DEVICE


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("swap", [False, True])
def test_switches_of_torch_future(overwrite, swap):
    """torch.__future__ lets users choose how parameters are replaced; each choice has to work."""
    old = (
        torch.__future__.get_overwrite_module_params_on_conversion(),
        torch.__future__.get_swap_module_params_on_conversion(),
    )
    torch.__future__.set_overwrite_module_params_on_conversion(overwrite)
    torch.__future__.set_swap_module_params_on_conversion(swap)
    try:
        model = nn.Linear(3, 2)
        values, before = model.weight.detach().clone(), model.weight
        model(torch.ones(1, 3)).sum().backward()
        model.accel()
        assert (model.weight is before) == (swap or not overwrite)
        assert model.weight.device == DEVICE and model.weight.grad.device == DEVICE
        assert torch.equal(model.weight.cpu(), values)
        model.double().cpu()
        assert torch.equal(model.weight, values.double()) and model.weight.grad.dtype == torch.float64
        state = {k: v.detach().clone().accel() for k, v in model.state_dict().items()}
        model.accel().load_state_dict(state)
        assert torch.equal(model.weight.cpu(), values.double())
    finally:
        torch.__future__.set_overwrite_module_params_on_conversion(old[0])
        torch.__future__.set_swap_module_params_on_conversion(old[1])


# ----------------------------------------------------------------------------------------------- to_empty, meta, state dicts
@pytest.mark.smoke
def test_to_empty_and_materialising_from_meta():
    with torch.device("meta"):
        model = Tied()
    model.to_empty(device="accel")
    assert {t.device for t in [*model.parameters(), *model.buffers()]} == {DEVICE}
    assert model.embed.weight.shape == (5, 3)
    source = trained("cpu")
    model.load_state_dict(source.state_dict())
    assert torch.equal(bits(model.embed.weight), bits(source.embed.weight))
    moved_model = Tied().to_empty(device="accel", recurse=False)
    assert moved_model.scale.device == DEVICE and moved_model.embed.weight.device.type == "cpu"
    with torch.device("meta"):
        empty = Tied()
    with pytest.raises(NotImplementedError, match="meta"):
        empty.to("accel")


@pytest.mark.parametrize("state_device", ["cpu", "accel"])
@pytest.mark.parametrize("model_device", ["cpu", "accel"])
@pytest.mark.parametrize("assign", [False, True])
def test_load_state_dict(model_device, state_device, assign):
    source = trained("cpu")
    state = moved(dict(source.state_dict()), state_device)
    model = Tied(model_device)
    before = model.layers[0].weight
    pointer = before.data_ptr()
    result = model.load_state_dict(state, assign=assign)
    assert result.missing_keys == [] and result.unexpected_keys == []
    for key, value in source.state_dict().items():
        assert torch.equal(bits(model.state_dict()[key]), bits(value)), key
    if assign:
        assert model.layers[0].weight.device.type == state_device
        assert model.layers[0].weight.data_ptr() == state["layers.0.weight"].data_ptr()
        assert type(model.layers[0].weight) is nn.Parameter and model.layers[0].weight.requires_grad
    else:
        assert model.layers[0].weight is before and before.data_ptr() == pointer
        assert model.layers[0].weight.device.type == model_device
        assert model.head.weight is model.embed.weight
    with pytest.raises(RuntimeError, match="size mismatch"):
        model.load_state_dict(state | {"scale": torch.ones(4, device=state_device)})
    with pytest.raises(RuntimeError, match="Missing key"):
        model.load_state_dict({})


def test_state_dict_shares_memory_and_stays_where_it_is():
    model = trained(DEVICE)
    state = model.state_dict()
    assert {v.device for v in state.values()} == {DEVICE}
    assert state["embed.weight"].data_ptr() == model.embed.weight.data_ptr() == state["head.weight"].data_ptr()
    assert not state["embed.weight"].requires_grad
    state["embed.weight"].zero_()
    assert model.head.weight.abs().sum().item() == 0
    assert set(state) == set(Tied().state_dict())


def test_deepcopy_and_modules_made_there():
    model = trained(DEVICE)
    twin = copy.deepcopy(model)
    assert twin.head.weight is twin.embed.weight and twin.head.weight is not model.head.weight
    assert {t.device for t in [*twin.parameters(), *twin.buffers()]} == {DEVICE}
    made = Tied("accel")
    assert {t.device for t in [*made.parameters(), *made.buffers()]} == {DEVICE}
    torch.manual_seed(0)
    with torch.device("accel"):
        inside = nn.Linear(3, 3)
    torch.manual_seed(0)
    assert torch.equal(inside.weight, nn.Linear(3, 3, device="accel").weight)


def test_share_memory_and_requires_grad_and_zero_grad_and_type():
    model = trained(DEVICE)
    assert model.share_memory() is model
    model.zero_grad(set_to_none=False)
    assert model.head.weight.grad.abs().sum().item() == 0
    model.zero_grad()
    assert model.head.weight.grad is None
    model.requires_grad_(False)
    assert not any(p.requires_grad for p in model.parameters())
    model.type(torch.float64)
    assert model.scale.dtype == torch.float64 and model.scale.device == DEVICE


@pytest.mark.parametrize(
    "make",
    [
        lambda: (nn.LSTM(3, 4, num_layers=2, bidirectional=True), torch.ones(5, 2, 3)),
        lambda: (nn.GRU(3, 4, batch_first=True), torch.ones(2, 5, 3)),
        lambda: (nn.MultiheadAttention(4, 2, batch_first=True), torch.ones(2, 5, 4)),
        lambda: (nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten()), torch.ones(2, 3, 5, 5)),
        lambda: (nn.utils.parametrizations.weight_norm(nn.Linear(3, 4)), torch.ones(2, 3)),
        lambda: (nn.utils.parametrizations.spectral_norm(nn.Linear(3, 4)), torch.ones(2, 3)),
    ],
    ids=["LSTM", "GRU", "attention", "conv", "weight_norm", "spectral_norm"],
)
def test_modules_with_state_of_their_own(make):
    torch.manual_seed(0)
    module, x = make()
    arguments = (x, x, x) if isinstance(module, nn.MultiheadAttention) else (x,)

    def run(m, d):
        torch.manual_seed(0)
        return torch.utils._pytree.tree_leaves(m(*moved(arguments, d)))[0]

    there = copy.deepcopy(module).accel()
    actual, expected = run(there, DEVICE), run(module, "cpu")
    assert actual.device == DEVICE
    assert torch.allclose(actual.cpu(), expected, rtol=1e-5, atol=1e-6)
    actual.square().sum().backward()
    expected.square().sum().backward()
    for one, other in zip(there.parameters(), module.parameters(), strict=True):
        assert one.device == DEVICE and one.grad.device == DEVICE
        assert torch.allclose(one.grad.cpu(), other.grad, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("move", [lambda m: m.to("accel"), lambda m: m.accel()], ids=["to", "accel"])
def test_lazy_modules_move_before_they_know_their_shape(move):
    module = nn.LazyLinear(4)
    before = module.weight
    move(module)
    assert module.weight.device == DEVICE
    assert module(torch.ones(2, 3, device=DEVICE)).shape == (2, 4)
    assert module.weight is before and type(module.weight) is nn.Parameter and module.weight.device == DEVICE


def test_moving_between_two_accel_devices(run_ok):
    run_ok(
        """
        import torch
        from torch import nn
        a, b = nn.Linear(2, 2), nn.Linear(2, 2)
        b.weight = a.weight
        model = nn.Sequential(a, b)
        weight = a.weight
        model.to("accel:1")
        assert a.weight is b.weight is weight and weight.device == torch.device("accel:1")
        model(torch.ones(1, 2, device="accel:1")).sum().backward()
        assert weight.grad.device == torch.device("accel:1")
        model.to("accel:0")
        assert a.weight is b.weight is weight and weight.device == torch.device("accel:0")
        assert weight.grad.device == torch.device("accel:0") and torch.accel.memory_allocated(1) == 0
        with torch.accel.device(1):
            model.accel()
        assert weight.device == torch.device("accel:1"), weight.device
        model.to("accel")
        assert weight.device == torch.device("accel:0"), weight.device
        assert model(torch.ones(1, 2, device="accel")).device == torch.device("accel:0")
        """,
        TORCH_ACCEL_BACKEND="cpu,cpu",
    )
