"""Proves that accel tensors print as CPU tensors do, plus their device."""

import re
import warnings

import pytest
import torch
from layouts import DEVICE, DTYPES, LAYOUTS, SMALL, build, numbers
from torch import nn

import torch_accel

pytestmark = pytest.mark.filterwarnings("ignore:.*(ComplexHalf|Sparse|quantized)")

TENSORS = {
    "one": lambda: torch.tensor([1.0]),
    "0-dim": lambda: torch.tensor(3.14159),
    "0-dim int": lambda: torch.tensor(7),
    "0-dim bool": lambda: torch.tensor(True),
    "empty": lambda: torch.empty(0),
    "empty 2-dim": lambda: torch.empty(0, 3),
    "empty int": lambda: torch.empty(2, 0, dtype=torch.int64),
    "matrix": lambda: torch.arange(6.0).view(2, 3),
    "transposed": lambda: torch.arange(6.0).view(2, 3).t(),
    "stepped": lambda: torch.arange(20.0)[3::4],
    "expanded": lambda: torch.arange(3.0).expand(2, 3),
    "cube": lambda: torch.arange(24).view(2, 3, 4),
    "bool": lambda: torch.tensor([[True, False], [False, True]]),
    "complex": lambda: torch.tensor([1 + 2j, 3.5 - 1j]),
    "conjugate": lambda: torch.tensor([1 + 2j, 3.5 - 1j]).conj(),
    "negative": lambda: torch._neg_view(torch.arange(3.0)),
    "mixed sizes": lambda: torch.tensor([1e-10, 1.0, 1e10]),
    "nan and inf": lambda: torch.tensor([float("nan"), float("inf"), -float("inf"), -0.0]),
    "large integers": lambda: torch.tensor([1, 10**15, -(10**12)]),
    "whole floats": lambda: torch.tensor([1.0, 2.0, 300.0]),
    "requires_grad": lambda: torch.ones(2).requires_grad_(),
    "parameter": lambda: nn.Parameter(torch.arange(4.0).view(2, 2)),
    "frozen parameter": lambda: nn.Parameter(torch.ones(2), requires_grad=False),
    "buffer": lambda: nn.Buffer(torch.ones(2)),
    "long lines": lambda: torch.linspace(0, 1, 60),
    "large": lambda: torch.arange(10_000.0).view(100, 100),
    "large cube": lambda: torch.arange(8000).view(20, 20, 20),
    "large row": lambda: torch.arange(2000),
    "large bool": lambda: torch.arange(5000) % 3 == 0,
    "large strided": lambda: torch.arange(20_000.0).view(100, 200)[:, ::2].t(),
    "large complex": lambda: torch.complex(torch.arange(5000.0), torch.ones(5000)),
}


def without_device(text):
    assert "device='accel:0'" in text, text
    return re.sub(r",\s*device='accel:0'", "", text)


def squeeze(text):
    """Line breaks before what follows the values depend on the length of all of it."""
    return re.sub(r"\s+", " ", text)


@pytest.mark.smoke
@pytest.mark.parametrize("name", TENSORS)
def test_prints_as_on_the_cpu_plus_the_device(name):
    host = TENSORS[name]()
    there = host.detach().to(DEVICE)
    if name == "large strided":
        there = torch.arange(20_000.0, device=DEVICE).view(100, 200)[:, ::2].t()
    if isinstance(host, nn.Parameter):
        there = nn.Parameter(there, requires_grad=host.requires_grad)
    elif isinstance(host, nn.Buffer):
        there = nn.Buffer(there)
    else:
        there.requires_grad_(host.requires_grad)
    assert squeeze(without_device(repr(there))) == squeeze(repr(host))
    assert str(there) == repr(there) == f"{there!r}"


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype(dtype):
    for shape in ((6,), (2, 3), ()):
        host = numbers(dtype, 6, start=20)[: max(torch.Size(shape).numel(), 1)].view(shape)
        assert squeeze(without_device(repr(host.to(DEVICE)))) == squeeze(repr(host))


@pytest.mark.parametrize("layout", [*LAYOUTS, *SMALL])
def test_every_layout(layout):
    assert without_device(repr(build(layout, torch.float32, DEVICE)[1])) == repr(build(layout, torch.float32, "cpu")[1])


@pytest.mark.smoke
def test_literal_forms():
    assert repr(torch.tensor([1.0, 2.5], device=DEVICE)) == "tensor([1.0000, 2.5000], device='accel:0')"
    assert repr(torch.tensor(3, device=DEVICE)) == "tensor(3, device='accel:0')"
    assert repr(torch.empty(0, 2, device=DEVICE)) == "tensor([], device='accel:0', size=(0, 2))"
    assert repr(torch.tensor([True], device=DEVICE)) == "tensor([True], device='accel:0')"
    assert repr(torch.tensor([1j], device=DEVICE)) == "tensor([0.+1.j], device='accel:0')"
    assert repr(torch.ones(2, dtype=torch.float64, device=DEVICE)) == (
        "tensor([1., 1.], device='accel:0', dtype=torch.float64)"
    )
    assert repr(torch.ones(1, device=DEVICE, requires_grad=True)) == (
        "tensor([1.], device='accel:0', requires_grad=True)"
    )
    assert repr(torch.ones(1, device=DEVICE, requires_grad=True) * 2) == (
        "tensor([2.], device='accel:0', grad_fn=<MulBackward0>)"
    )
    assert repr(nn.Parameter(torch.ones(1, device=DEVICE))) == (
        "Parameter containing:\ntensor([1.], device='accel:0', requires_grad=True)"
    )
    assert repr([torch.ones(1, device=DEVICE)]) == "[tensor([1.], device='accel:0')]"
    assert repr(DEVICE) == "device(type='accel', index=0)" and str(DEVICE) == "accel:0"
    assert str(torch.device("accel")) == "accel"


def test_format():
    x = torch.tensor(3.14159, device=DEVICE)
    assert f"{x:.2f}" == "3.14" and f"{x}" == "3.141590118408203" == f"{torch.tensor(3.14159)}"
    assert f"{torch.tensor(7, device=DEVICE):04d}" == "0007"
    vector = torch.ones(2, device=DEVICE)
    assert f"{vector}" == "tensor([1., 1.], device='accel:0')"
    with pytest.raises(TypeError):
        f"{vector:.2f}"


@pytest.mark.parametrize(
    "options",
    [
        {"precision": 2},
        {"sci_mode": True},
        {"threshold": 5, "edgeitems": 1},
        {"linewidth": 40},
        {"profile": "full"},
        {"profile": "short"},
    ],
    ids=str,
)
def test_print_options(options):
    torch.set_printoptions(**options)
    try:
        for name in ("matrix", "cube", "mixed sizes", "long lines", "complex"):
            host = TENSORS[name]()
            assert squeeze(without_device(repr(host.to(DEVICE)))) == squeeze(repr(host))
    finally:
        torch.set_printoptions(profile="default")


def test_long_suffixes_go_to_their_own_line():
    text = repr(torch.linspace(0, 1, 8, dtype=torch.float64, device=DEVICE).requires_grad_())
    assert max(map(len, text.splitlines())) <= 80
    assert squeeze(without_device(text)) == squeeze(repr(torch.linspace(0, 1, 8, dtype=torch.float64).requires_grad_()))


def test_a_large_tensor_is_not_copied_whole():
    x = torch.zeros(1000, 1000, device=DEVICE)
    torch_accel.reset_counters()
    assert repr(x).count("...") == 7
    assert torch_accel.counters()["copies"]["device_to_host"]["bytes"] < 10_000


def test_printing_changes_nothing():
    x = torch.ones(3, device=DEVICE, requires_grad=True)
    y = x * 2
    version = y._version
    repr(x), repr(y), str(y.t())
    assert y._version == version and y.grad_fn is not None
    y.sum().backward()
    assert x.grad.tolist() == [2, 2, 2]


@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr], ids=str)
def test_sparse(layout):
    blocks = {"blocksize": (2, 2)} if layout == torch.sparse_bsr else {}
    host = torch.tensor([[0.0, 2.0], [3.0, 0.0]]).to_sparse(layout=layout, **blocks)
    text = repr(host.to(DEVICE))
    assert squeeze(without_device(text)) == squeeze(repr(host))


def test_quantized():
    host = torch.quantize_per_tensor(torch.arange(4.0), 0.5, 3, torch.qint8)
    assert squeeze(without_device(repr(host.to(DEVICE)))) == squeeze(repr(host))


def test_inside_transforms_and_modes():
    seen = []

    def look(x):
        seen.append(repr(x))
        return (x * x).sum()

    torch.func.grad(look)(torch.ones(2, device=DEVICE))
    torch.func.vmap(look)(torch.ones(2, 3, device=DEVICE))
    assert "GradTrackingTensor" in seen[0] and "device='accel:0'" in seen[0]
    assert "BatchedTensor" in seen[1] and "device='accel:0'" in seen[1]
    with torch.inference_mode():
        assert repr(torch.ones(1, device=DEVICE)) == "tensor([1.], device='accel:0')"
    with torch.device("accel"):
        assert repr(torch.ones(1)) == "tensor([1.], device='accel:0')"
        assert repr(torch.ones(1, device="cpu")) == "tensor([1.])"
    with torch.autocast("accel"):
        assert repr(torch.ones(1, device=DEVICE)) == "tensor([1.], device='accel:0')"


def test_modules_and_containers():
    model = nn.Sequential(nn.Linear(2, 3), nn.ReLU())
    assert repr(model.accel()) == repr(nn.Sequential(nn.Linear(2, 3), nn.ReLU()))
    assert "accel:0" in repr(nn.ParameterList([torch.ones(2, device=DEVICE)]))
    named = torch.max(torch.arange(6.0, device=DEVICE).view(2, 3), 0)
    assert squeeze(repr(named)) == (
        "torch.return_types.max( values=tensor([3., 4., 5.], device='accel:0'), "
        "indices=tensor([1, 1, 1], device='accel:0'))"
    )


def test_printing_warns_of_nothing():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for name in ("matrix", "large", "bool", "complex", "requires_grad", "nan and inf"):
            repr(TENSORS[name]().to(DEVICE))
