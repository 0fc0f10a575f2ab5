"""Proves recurrent layers and cells, against the native device.

Torch's layers take another way on the CPU than on other devices: one matrix product over all steps for the input, where others
take one for each; and where the native key has no fused LSTM and GRU cell (the CPU), accel composes it. So these are compared
with tolerances of a few units in the last place; what is composed alike has to agree to the bit.
"""

import pytest
import torch
from helpers import check, check_grads, moved, same

# Rounding of single sums, over five steps.
TIGHT = {torch.float32: {"rtol": 2e-5, "atol": 2e-6}, torch.float64: {"rtol": 1e-12, "atol": 1e-13}}
LAYERS = {
    "lstm": lambda **k: torch.nn.LSTM(6, 8, **k),
    "gru": lambda **k: torch.nn.GRU(6, 8, **k),
    "rnn tanh": lambda **k: torch.nn.RNN(6, 8, **k),
    "rnn relu": lambda **k: torch.nn.RNN(6, 8, nonlinearity="relu", **k),
}
OPTIONS = {
    "plain": {},
    "two layers": {"num_layers": 2},
    "bidirectional": {"num_layers": 2, "bidirectional": True},
    "batch first": {"batch_first": True},
    "no bias": {"bias": False},
    "bidirectional, no bias, batch first": {"bidirectional": True, "bias": False, "batch_first": True},
}


def state(name, *shape, **kwargs):
    return tuple(torch.randn(*shape, **kwargs) for _ in range(2)) if name == "lstm" else torch.randn(*shape, **kwargs)


@pytest.mark.smoke
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("name", LAYERS)
def test_layers(name, options):
    options = OPTIONS[options]
    module = LAYERS[name](**options)
    x = torch.randn(5, 3, 6, requires_grad=True)
    check_grads(lambda m, x: m(x), module, x, **TIGHT[torch.float32])
    directions = options.get("num_layers", 1) * (2 if options.get("bidirectional") else 1)
    batch = 5 if options.get("batch_first") else 3
    hidden = state(name, directions, batch, 8, requires_grad=True)
    check_grads(lambda m, x, h: m(x, h), module, x, hidden, **TIGHT[torch.float32])


@pytest.mark.parametrize("name", LAYERS)
def test_double_precision_and_unbatched(name):
    module = LAYERS[name]().double()
    check_grads(lambda m, x: m(x), module, torch.randn(5, 6, dtype=torch.float64), **TIGHT[torch.float64])


@pytest.mark.parametrize("name", LAYERS)
def test_without_gradients(name):
    module = LAYERS[name](num_layers=2)
    with torch.no_grad():
        check(lambda m, x: m(x), module, torch.randn(5, 3, 6), **TIGHT[torch.float32])
    with torch.inference_mode():
        check(lambda m, x: m(x), module.eval(), torch.randn(5, 3, 6), **TIGHT[torch.float32])


@pytest.mark.parametrize("name", LAYERS)
def test_dropout_between_layers(name):
    module = LAYERS[name](num_layers=3, dropout=0.4)
    check_grads(lambda m, x: m(x), module, torch.randn(5, 3, 6, requires_grad=True), **TIGHT[torch.float32])


def test_lstm_with_projections():
    module = torch.nn.LSTM(6, 8, num_layers=2, proj_size=4, bidirectional=True)
    x = torch.randn(5, 3, 6, requires_grad=True)
    check_grads(lambda m, x: m(x), module, x, **TIGHT[torch.float32])
    hidden = torch.randn(4, 3, 4), torch.randn(4, 3, 8)
    check_grads(lambda m, x, h: m(x, h), module, x, hidden, **TIGHT[torch.float32])


# ------------------------------------------------------------------------------------------------------------------ packed
@pytest.mark.parametrize("enforce_sorted", [True, False])
def test_packing_and_unpacking(enforce_sorted):
    lengths = torch.tensor([5, 4, 2] if enforce_sorted else [2, 5, 4])

    def run(x):
        packed = torch.nn.utils.rnn.pack_padded_sequence(x, lengths, enforce_sorted=enforce_sorted)
        assert packed.batch_sizes.device.type == "cpu"
        out, out_lengths = torch.nn.utils.rnn.pad_packed_sequence(packed, padding_value=-3.0, total_length=6)
        assert out_lengths.device.type == "cpu" and out_lengths.tolist() == lengths.tolist()
        return packed.data, out

    check_grads(run, torch.randn(5, 3, 2, requires_grad=True))


def test_pack_padded_sequence_takes_lists_and_packs_sequences():
    def run(x):
        packed = torch.nn.utils.rnn.pack_padded_sequence(x, [5, 3, 1], batch_first=True)
        parts = [x[0], x[1, :3], x[2, :1]]
        other = torch.nn.utils.rnn.pack_sequence(parts)
        padded = torch.nn.utils.rnn.pad_sequence(parts, batch_first=True)
        assert packed.batch_sizes.tolist() == other.batch_sizes.tolist()
        return packed.data, other.data, padded, torch.nn.utils.rnn.unpad_sequence(padded, torch.tensor([5, 3, 1]), True)

    check(run, torch.randn(3, 5, 2))


@pytest.mark.smoke
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("name", LAYERS)
def test_packed_input(name, bidirectional):
    module = LAYERS[name](num_layers=2, bidirectional=bidirectional)
    lengths = torch.tensor([2, 5, 4])

    def run(m, x, hidden):
        packed = torch.nn.utils.rnn.pack_padded_sequence(x, lengths, enforce_sorted=False)
        out, last = m(packed, hidden)
        assert out.batch_sizes.device.type == "cpu"
        return torch.nn.utils.rnn.pad_packed_sequence(out)[0], last

    hidden = state(name, 4 if bidirectional else 2, 3, 8, requires_grad=True)
    check_grads(run, module, torch.randn(5, 3, 6, requires_grad=True), hidden, **TIGHT[torch.float32])


def test_packed_sequence_moves_between_devices():
    packed = torch.nn.utils.rnn.pack_padded_sequence(torch.randn(4, 2, 3), [4, 2])
    moved_packed = packed.to("accel")
    assert moved_packed.data.device.type == "accel" and moved_packed.batch_sizes.device.type == "cpu"
    assert not moved_packed.is_cuda and moved_packed.cpu().data.device.type == "cpu"
    same(moved_packed.cpu().data, packed.data)


# ------------------------------------------------------------------------------------------------------------------- cells
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("cell", [torch.nn.LSTMCell, torch.nn.GRUCell, torch.nn.RNNCell])
def test_cells(cell, bias):
    module, x = cell(6, 8, bias=bias), torch.randn(3, 6, requires_grad=True)
    name = "lstm" if cell is torch.nn.LSTMCell else "one state"
    tolerance = {} if cell is torch.nn.RNNCell else TIGHT[torch.float32]
    check_grads(lambda m, x: m(x), module, x, **tolerance)
    check_grads(lambda m, x, h: m(x, h), module, x, state(name, 3, 8, requires_grad=True), **tolerance)
    check_grads(lambda m, x: m(x), module, torch.randn(6, requires_grad=True), **tolerance)

    def unrolled(m, xs):
        hidden = None
        for x in xs:
            hidden = m(x, hidden)
        return hidden

    check_grads(unrolled, module, torch.randn(4, 3, 6, requires_grad=True), **tolerance)


@pytest.mark.parametrize("output", ["h", "c"])
def test_gradient_of_one_output_only(output):
    module = torch.nn.LSTMCell(6, 8)

    def run(m, x, h, c):
        hidden, cell = m(x, (h, c))
        return hidden if output == "h" else cell

    data = torch.randn(3, 6), torch.randn(3, 8), torch.randn(3, 8)
    check_grads(run, module, *[t.requires_grad_() for t in data], **TIGHT[torch.float32])


@pytest.mark.parametrize("name", LAYERS)
def test_gradients_against_finite_differences(name):
    module = moved(LAYERS[name]().double(), "accel")
    x = torch.randn(3, 2, 6, dtype=torch.float64).to("accel").requires_grad_()
    assert torch.autograd.gradcheck(lambda x: module(x)[0], (x,))
    weight = module.weight_hh_l0
    assert torch.autograd.gradcheck(
        lambda w: torch.func.functional_call(module, {"weight_hh_l0": w}, (x.detach(),))[0], (weight,)
    )


@pytest.mark.parametrize("name", LAYERS)
def test_double_backward(name):
    """A gradient penalty, as the CPU computes it."""
    module = LAYERS[name]().double()

    def run(m, x):
        out, _ = m(x)
        (grad,) = torch.autograd.grad(out.square().sum(), x, create_graph=True)
        return grad.square().sum()

    x = torch.randn(4, 2, 6, dtype=torch.float64, requires_grad=True)
    check_grads(run, module, x, **TIGHT[torch.float64])


@pytest.mark.parametrize("cell", [torch.nn.LSTMCell, torch.nn.GRUCell, torch.nn.RNNCell])
def test_double_backward_of_cells(cell):
    module = cell(6, 8).double()

    def run(m, x):
        out = m(x)
        out = out[0] if isinstance(out, tuple) else out
        (grad,) = torch.autograd.grad(out.square().sum(), x, create_graph=True)
        return grad.square().sum()

    check_grads(run, module, torch.randn(2, 6, dtype=torch.float64, requires_grad=True), **TIGHT[torch.float64])


# --------------------------------------------------------------------------------------------------------------- life cycle
@pytest.mark.parametrize("name", LAYERS)
def test_module_moves_and_keeps_its_parameters(name):
    module = LAYERS[name](num_layers=2)
    parameters = dict(module.named_parameters())
    x = torch.randn(5, 3, 6)
    expected = module(x)[0]
    module.to("accel")
    assert all(p is parameters[n] for n, p in module.named_parameters())
    assert all(p.device.type == "accel" for p in module.parameters())
    module.flatten_parameters()
    same(module(x.to("accel"))[0], expected, **TIGHT[torch.float32])
    module.cpu()
    same(module(x)[0], expected)


def test_training_reaches_the_cpus_loss():
    def train(model, head, x, y):
        parameters = [*model.parameters(), *head.parameters()]
        optimizer = torch.optim.Adam(parameters, lr=0.02)
        losses = []
        for _ in range(10):
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(head(model(x)[0][-1]), y)
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        return torch.stack(losses)

    losses = check(
        train, torch.nn.LSTM(6, 8), torch.nn.Linear(8, 1), torch.randn(5, 4, 6), torch.randn(4, 1), rtol=1e-4
    )
    assert losses[-1] < losses[0]


def test_autocast():
    module, x = torch.nn.LSTM(6, 8).to("accel"), torch.randn(5, 3, 6, device="accel")
    with torch.autocast("accel", torch.bfloat16):
        out, _ = module(x)
    out.float().sum().backward()
    same(out.float(), module(x)[0], rtol=0.05, atol=0.05)
    assert module.weight_ih_l0.grad.dtype == torch.float32


def test_errors_are_the_cpus():
    for device in ("cpu", "accel"):
        module = torch.nn.GRU(6, 8, device=device)
        with pytest.raises(ValueError, match="input must have the type|dtype"):
            module(torch.randn(5, 3, 6, device=device, dtype=torch.float64))
        with pytest.raises(RuntimeError, match="input.size"):
            module(torch.randn(5, 3, 7, device=device))
        with pytest.raises(RuntimeError, match="Expected hidden size"):
            module(torch.randn(5, 3, 6, device=device), torch.randn(1, 2, 8, device=device))
    with pytest.raises(RuntimeError, match="accel:0"):
        torch.nn.LSTM(6, 8, device="accel")(torch.randn(5, 3, 6))
