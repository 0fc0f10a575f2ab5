"""Proves deterministic mode: accel refuses, warns, fills and orders as the native device does."""

import warnings

import pytest
import torch
from helpers import check, reference, same


@pytest.fixture(autouse=True)
def deterministic(no_fallbacks):
    before = torch.utils.deterministic.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)
    torch.utils.deterministic.fill_uninitialized_memory = before


@pytest.mark.smoke
def test_uninitialised_memory_is_filled():
    for make in (
        lambda: torch.empty(5, device="accel"),
        lambda: torch.empty_strided((2, 3), (5, 1), device="accel"),
        lambda: torch.empty_like(torch.ones(4, device="accel")),
        lambda: torch.ones(3, device="accel").new_empty(4),
        lambda: torch.empty(0, device="accel").resize_(6),
        lambda: torch.empty(3, device="accel", dtype=torch.float16),
        lambda: torch.empty(3, device="accel", dtype=torch.complex64),
    ):
        assert make().isnan().all()
    assert (torch.empty(5, dtype=torch.int16, device="accel") == 2**15 - 1).all()
    assert torch.empty(5, dtype=torch.bool, device="accel").all()
    torch.utils.deterministic.fill_uninitialized_memory = False
    assert torch.empty(5, device="accel").shape == (5,)


def test_growing_in_place_keeps_what_was_there():
    x = torch.ones(3, device="accel")
    x.resize_(6)
    assert x[:3].tolist() == [1, 1, 1] and x[3:].isnan().all()


def test_index_operators_are_ordered():
    index = torch.tensor([0, 1, 0, 2, 0, 1])

    def run(x, v):
        i = index.to(x.device)
        return (
            x.index_add(0, i, v),
            x.index_put((i,), v, accumulate=True),
            x.index_put((i,), v),
            x.scatter_add(0, i[:, None].expand(-1, 2), v),
            x.scatter(0, i[:, None].expand(-1, 2), v),
            x.scatter_reduce(0, i[:, None].expand(-1, 2), v, "sum"),
            x.cumsum(0),
            x[i],
            torch.bincount(i) if x.device.type == "cpu" or reference().type == "cpu" else i,
        )

    check(run, torch.randn(3, 2), torch.randn(6, 2))


OPERATORS = {
    "kthvalue": lambda d: torch.kthvalue(torch.ones(4, device=d), 2),
    "put_": lambda d: torch.ones(4, device=d).put_(torch.tensor([1], device=d), torch.ones(1, device=d)),
    "put_ accumulate": lambda d: torch.ones(4, device=d).put_(
        torch.tensor([1], device=d), torch.ones(1, device=d), True
    ),
    "median": lambda d: torch.ones(4, device=d).median(0),
    "histc": lambda d: torch.histc(torch.ones(4, device=d)),
    "ctc_loss": lambda d: torch.nn.functional.ctc_loss(
        torch.zeros(3, 1, 3, device=d).log_softmax(2), torch.ones(1, 1, dtype=torch.long, device=d), (3,), (1,)
    ),
    "interpolate backward": lambda d: (
        torch.nn.functional.interpolate(
            torch.ones(1, 1, 4, 4, device=d, requires_grad=True), size=(8, 8), mode="bilinear"
        )
        .sum()
        .backward()
    ),
    "max_pool3d backward": lambda d: (
        torch.nn.functional.max_pool3d(torch.ones(1, 1, 4, 4, 4, device=d, requires_grad=True), 2).sum().backward()
    ),
    "grid_sample backward": lambda d: (
        torch.nn.functional.grid_sample(
            torch.ones(1, 1, 4, 4, device=d, requires_grad=True), torch.zeros(1, 2, 2, 2, device=d), align_corners=False
        )
        .sum()
        .backward()
    ),
    "embedding_bag max backward": lambda d: (
        torch.nn.EmbeddingBag(3, 2, mode="max", device=d)(torch.tensor([[0, 1]], device=d)).sum().backward()
    ),
    "resize_ quantized": lambda d: torch.ones(4, device=d).resize_(2),
}


@pytest.mark.parametrize("name", OPERATORS)
def test_refusals_and_warnings_are_those_of_the_native_device(name):
    def outcome(device):
        try:
            OPERATORS[name](device)
        except RuntimeError as error:
            return "deterministic" in str(error)
        return None

    assert outcome("accel") == outcome(reference())
    torch.use_deterministic_algorithms(True, warn_only=True)

    def warned(device):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            OPERATORS[name](device)
        return any("deterministic" in str(w.message) for w in caught)

    assert warned("accel") == warned(reference())


@pytest.mark.smoke
def test_training_repeats_to_the_bit():
    def train():
        torch.manual_seed(4)
        model = torch.nn.Sequential(
            torch.nn.Embedding(20, 8), torch.nn.Flatten(), torch.nn.Dropout(0.3), torch.nn.Linear(32, 5)
        ).to("accel")
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        for _ in range(4):
            optimizer.zero_grad()
            x = torch.randint(0, 20, (16, 4), device="accel")
            torch.nn.functional.cross_entropy(model(x), x[:, 0] % 5).backward()
            optimizer.step()
        return dict(model.state_dict())

    same(train(), train())
