"""Capability: page-locked host memory for copies to the device: pin_memory(), factories, sparse tensors, data loaders."""

import copy

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

DEVICE = torch.device("accel", 0)


@pytest.fixture(autouse=True)
def device_in_use():
    torch.accel.init()


@pytest.mark.smoke
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.bool, torch.complex64, torch.int64], ids=str)
def test_pin_memory_copies_into_pinned_memory(dtype):
    x = torch.arange(6).view(2, 3).to(dtype)
    assert not x.is_pinned()
    y = x.pin_memory()
    assert y.is_pinned() and not x.is_pinned() and y.device.type == "cpu" and y.dtype == dtype
    assert torch.equal(x, y) and y.data_ptr() != x.data_ptr()
    assert y.pin_memory() is y
    assert torch.equal(y.to("accel", non_blocking=True).cpu(), x)


def test_what_shares_the_memory_is_pinned_and_what_does_not_is_not():
    x = torch.arange(6.0).pin_memory()
    for view in (x.view(2, 3).t()[1:], x[3:], x.detach(), x.data, x[:0].view(0, 2), x.expand(2, 6)[0], x.real):
        assert view.is_pinned() or view.numel() == 0
    for other in (x.clone(), x + 1, x.to(torch.float64), copy.deepcopy(x), x[2:].contiguous().clone()):
        assert not other.is_pinned()
    numpy = x.numpy()
    numpy[0] = 7
    assert x[0] == 7 and torch.from_numpy(numpy).is_pinned()  # it is a question about the address
    x.add_(1)
    assert x.is_pinned() and numpy[0] == 8
    beyond = torch.arange(6.0)
    assert not beyond.is_pinned()
    assert x.untyped_storage().is_pinned() and not beyond.untyped_storage().is_pinned()
    assert beyond.untyped_storage().pin_memory().is_pinned()


def test_freed_memory_is_not_pinned_any_more():
    for _ in range(50):
        size = 1000
        pinned = torch.ones(size).pin_memory()
        kept = pinned[500:]
        del pinned
        assert kept.is_pinned() and kept.sum() == 500
        del kept
        assert not torch.ones(size).is_pinned()


def test_layout_and_gradients_are_kept():
    x = torch.arange(6.0).view(2, 3).t()
    assert x.pin_memory().stride() == (1, 3) and torch.equal(x.pin_memory(), x)
    x = torch.ones(3, requires_grad=True)
    y = x.pin_memory()
    assert y.is_pinned() and y.requires_grad and not x.is_pinned()
    (y * 2).to("accel").sum().backward()
    assert x.grad.tolist() == [2, 2, 2]
    weight = torch.nn.Linear(2, 2).weight.pin_memory()
    assert weight.is_pinned()
    scalar = torch.tensor(2.5).pin_memory()
    assert scalar.is_pinned() and scalar.shape == ()


FACTORIES = {
    "empty": lambda **pin: torch.empty(3, **pin),
    "zeros": lambda **pin: torch.zeros(3, **pin),
    "ones": lambda **pin: torch.ones(3, **pin),
    "full": lambda **pin: torch.full((3,), 2, **pin),
    "rand": lambda **pin: torch.rand(3, **pin),
    "randn": lambda **pin: torch.randn(3, **pin),
    "randint": lambda **pin: torch.randint(5, (3,), **pin),
    "randperm": lambda **pin: torch.randperm(4, **pin),
    "arange": lambda **pin: torch.arange(3, **pin),
    "linspace": lambda **pin: torch.linspace(0, 1, 3, **pin),
    "eye": lambda **pin: torch.eye(3, **pin),
    "tensor": lambda **pin: torch.tensor([1.0, 2], **pin),
    "empty_strided": lambda **pin: torch.empty_strided((2, 3), (1, 2), **pin),
    "zeros_like": lambda **pin: torch.zeros_like(torch.ones(3), **pin),
    "new_empty": lambda **pin: torch.ones(1).new_empty(3, **pin),
    "new_zeros": lambda **pin: torch.ones(1).new_zeros(3, **pin),
}


@pytest.mark.parametrize("name", FACTORIES)
def test_factories(name):
    make = FACTORIES[name]
    torch.manual_seed(1)
    plain = make()
    torch.manual_seed(1)
    pinned = make(pin_memory=True)
    assert pinned.is_pinned() and not plain.is_pinned() and pinned.device.type == "cpu"
    assert (pinned.shape, pinned.stride(), pinned.dtype) == (plain.shape, plain.stride(), plain.dtype)
    if "empty" not in name:
        assert torch.equal(plain, pinned)
    assert torch.equal(pinned.to("accel", non_blocking=True).cpu().nan_to_num(), pinned.nan_to_num())


@pytest.mark.filterwarnings("ignore:Sparse CSR")
def test_sparse_and_packed():
    x = torch.eye(3)
    for sparse in (x.to_sparse(), x.to_sparse_csr()):
        pinned = sparse.pin_memory()
        assert pinned.is_pinned() and not sparse.is_pinned() and torch.equal(pinned.to_dense(), x)
        assert torch.equal(pinned.to("accel").to_dense().cpu(), x)
    packed = torch.nn.utils.rnn.pack_sequence([torch.ones(3), torch.ones(1)])
    assert packed.pin_memory().is_pinned() and not packed.is_pinned()


def test_what_cannot_be_pinned():
    x = torch.ones(3, device="accel")
    assert x.is_pinned() is False and x.untyped_storage().is_pinned() is False
    for use in (
        lambda: x.pin_memory(),
        lambda: torch.empty(2, device="accel", pin_memory=True),
        lambda: torch.ones(2, device="accel", pin_memory=True),
        lambda: torch.ones(2, device="meta").pin_memory(),
    ):
        with pytest.raises(RuntimeError, match="only dense CPU tensors can be pinned"):
            use()
    with pytest.raises(TypeError, match="only CPU memory can be pinned"):
        x.untyped_storage().pin_memory()
    with pytest.raises(RuntimeError, match="not resizable"):
        torch.ones(3).pin_memory().resize_(100)  # as with every pinned tensor
    empty = torch.empty(0).pin_memory()
    assert empty.shape == (0,) and not empty.is_pinned()


@pytest.mark.filterwarnings("ignore:The argument 'device'")
def test_the_device_argument_of_former_times():
    x = torch.ones(2).pin_memory("accel")
    assert x.is_pinned() and x.is_pinned("accel")
    torch.accelerator.empty_host_cache() if hasattr(torch.accelerator, "empty_host_cache") else None
    assert x.is_pinned() and x.sum() == 2


# ----------------------------------------------------------------------------------------------------------- data loaders
class Records(Dataset):
    """Samples that are dicts, with a tensor, a number and a name."""

    def __len__(self):
        return 10

    def __getitem__(self, index):
        return {"x": torch.full((2, 3), float(index)), "y": index, "name": f"record {index}"}


class Stream(IterableDataset):
    def __iter__(self):
        return iter(torch.arange(6.0).view(6, 1))


class Batch:
    """A batch of a user's own class: its pin_memory() is called."""

    def __init__(self, samples):
        self.x = torch.stack([sample["x"] for sample in samples])

    def pin_memory(self):
        self.x = self.x.pin_memory()
        return self


@pytest.mark.smoke
@pytest.mark.parametrize("workers", [0, 2])
def test_data_loader(workers):
    loader = DataLoader(Records(), batch_size=4, pin_memory=True, num_workers=workers)
    for _ in range(2):
        seen = []
        for batch in loader:
            assert batch["x"].is_pinned() and batch["y"].is_pinned()
            there = batch["x"].to("accel", non_blocking=True)
            assert there[:, 0, 0].long().tolist() == batch["y"].tolist()
            seen += batch["name"]
        assert seen == [f"record {index}" for index in range(10)]


def test_data_loader_without_pinning():
    for batch in DataLoader(TensorDataset(torch.ones(4)), batch_size=2):
        assert not batch[0].is_pinned()


def test_data_loader_of_other_kinds():
    batches = list(DataLoader(Stream(), batch_size=4, pin_memory=True))
    assert [batch.is_pinned() for batch in batches] == [True, True] and batches[1].tolist() == [[4.0], [5.0]]
    batches = list(DataLoader(Records(), batch_size=5, collate_fn=Batch, pin_memory=True, num_workers=1))
    assert [batch.x.is_pinned() for batch in batches] == [True, True] and batches[1].x[0, 0, 0] == 5
    # Samples that are on the device already are left alone, as with CUDA: they cannot be pinned.
    dataset = TensorDataset(torch.arange(4.0, device="accel"))
    assert [batch[0].device for batch in DataLoader(dataset, batch_size=2)] == [DEVICE, DEVICE]
    with pytest.raises(RuntimeError, match="only dense CPU tensors can be pinned"):
        list(DataLoader(dataset, batch_size=2, pin_memory=True))


def test_persistent_workers_and_abandoned_loaders():
    loader = DataLoader(Records(), batch_size=2, pin_memory=True, num_workers=1, persistent_workers=True)
    for _ in range(2):
        assert sum(batch["x"].is_pinned() for batch in loader) == 5
    for batch in loader:  # left in the middle: the thread that pins has to end
        assert batch["x"].is_pinned()
        break
    del loader


def test_pinning_is_the_first_use_of_the_device(run_ok):
    """Nothing is pinned before; then the device is started by it, also in a thread of a data loader."""
    printed = run_ok(
        """
        import torch
        from torch.utils.data import DataLoader
        x = torch.ones(3)
        assert not x.is_pinned() and not torch.accel._extension.is_resolved()
        print([batch.is_pinned() for batch in DataLoader(torch.arange(4.0), batch_size=2, num_workers=1, pin_memory=True)])
        print(x.pin_memory().is_pinned(), torch.accel.is_initialized())
        """
    )
    assert printed == "[True, True]\nTrue True\n"
