"""Proves that every function that makes a tensor makes it on accel: values, dtypes, strides, and every way to name the
device."""

import numpy as np
import pytest
import torch
from helpers import reference
from layouts import DEVICE, DTYPES, LAYOUTS, SMALL, agree, bits, both, both_raise, build, numbers

import torch_accel

# Torch's notes that a feature is young, the same on every device.
pytestmark = pytest.mark.filterwarnings("ignore:.*(ComplexHalf|Sparse|To copy construct)")

UNINITIALISED = {
    "empty": lambda d: torch.empty(2, 3, device=d),
    "empty list": lambda d: torch.empty([2, 3], device=d),
    "empty scalar": lambda d: torch.empty((), device=d),
    "empty none": lambda d: torch.empty(0, device=d),
    "empty channels_last": lambda d: torch.empty(2, 3, 4, 5, memory_format=torch.channels_last, device=d),
    "empty_strided": lambda d: torch.empty_strided((2, 3), (1, 2), device=d),
    "empty_strided gaps": lambda d: torch.empty_strided((2, 3), (7, 2), device=d),
    "empty_strided overlap": lambda d: torch.empty_strided((2, 3), (0, 1), device=d),
    "empty_permuted": lambda d: torch.empty_permuted((2, 3, 4), (1, 0, 2), device=d),
    "empty_like": lambda d: torch.empty_like(torch.ones(2, 3, device=d).t()),
    "empty_like expanded": lambda d: torch.empty_like(torch.ones(3, device=d).expand(2, 3)),
    "new_empty": lambda d: torch.ones(2, device=d).new_empty(4, 2),
    "new_empty_strided": lambda d: torch.ones(2, device=d).new_empty_strided((4, 2), (1, 4)),
    "new": lambda d: torch.ones(2, device=d).new(3, 2),
    "Parameter": lambda d: torch.nn.Parameter(torch.empty(2, 3, device=d)),
}

FACTORIES = {
    "zeros": lambda d: torch.zeros(2, 3, device=d),
    "zeros none": lambda d: torch.zeros(0, 3, device=d),
    "ones": lambda d: torch.ones((2, 3), device=d),
    "full": lambda d: torch.full((2, 3), 7.5, device=d),
    "full int": lambda d: torch.full((2, 3), 7, device=d),
    "full bool": lambda d: torch.full((2, 3), True, device=d),
    "full complex": lambda d: torch.full((2, 3), 1 + 2j, device=d),
    "arange": lambda d: torch.arange(5, device=d),
    "arange start": lambda d: torch.arange(2, 9, device=d),
    "arange step": lambda d: torch.arange(2.0, 0.0, -0.25, device=d),
    "arange none": lambda d: torch.arange(0, device=d),
    "linspace": lambda d: torch.linspace(-1, 1, 7, device=d),
    "linspace tensors": lambda d: torch.linspace(torch.tensor(-1.0, device=d), torch.tensor(2.0), 7, device=d),
    "linspace complex": lambda d: torch.linspace(0, 1 + 1j, 5, device=d),
    "logspace": lambda d: torch.logspace(0, 3, 4, base=2, device=d),
    "eye": lambda d: torch.eye(3, device=d),
    "eye wide": lambda d: torch.eye(3, 5, device=d),
    "tensor": lambda d: torch.tensor([[1.5, 2.5], [3.5, 4.5]], device=d),
    "tensor int": lambda d: torch.tensor([1, 2, 3], device=d),
    "tensor bool": lambda d: torch.tensor([True, False], device=d),
    "tensor complex": lambda d: torch.tensor([1 + 2j], device=d),
    "tensor 0-dim": lambda d: torch.tensor(3.5, device=d),
    "tensor none": lambda d: torch.tensor([], device=d),
    "tensor of numpy": lambda d: torch.tensor(np.arange(6, dtype=np.int16).reshape(2, 3).T, device=d),
    "tensor of tensors": lambda d: torch.tensor([torch.tensor(1.0), torch.tensor(2.0)], device=d),
    "as_tensor": lambda d: torch.as_tensor([1.0, 2.0], device=d),
    "as_tensor of numpy": lambda d: torch.as_tensor(np.arange(3.0), device=d),
    "asarray": lambda d: torch.asarray([[1, 2], [3, 4]], device=d),
    "asarray of numpy": lambda d: torch.asarray(np.arange(6.0).reshape(2, 3), device=d, copy=True),
    "asarray of CPU tensor": lambda d: torch.asarray(torch.arange(6.0).view(2, 3).t(), device=d, copy=True),
    "scalar_tensor": lambda d: torch.scalar_tensor(2.5, device=d),
    "complex": lambda d: torch.complex(torch.ones(3, device=d), torch.arange(3.0, device=d)),
    "polar": lambda d: torch.polar(torch.ones(3, device=d), torch.arange(3.0, device=d)),
    "tril_indices": lambda d: torch.tril_indices(3, 4, 1, device=d),
    "triu_indices": lambda d: torch.triu_indices(3, 4, -1, device=d),
    "bartlett_window": lambda d: torch.bartlett_window(7, device=d),
    "blackman_window": lambda d: torch.blackman_window(7, periodic=False, device=d),
    "hamming_window": lambda d: torch.hamming_window(7, True, 0.6, 0.4, device=d),
    "hann_window": lambda d: torch.hann_window(7, device=d),
    "kaiser_window": lambda d: torch.kaiser_window(7, True, 5.0, device=d),
    "signal.windows.gaussian": lambda d: torch.signal.windows.gaussian(7, std=2.0, device=d),
    "signal.windows.cosine": lambda d: torch.signal.windows.cosine(7, device=d),
    "signal.windows.nuttall": lambda d: torch.signal.windows.nuttall(7, device=d),
    "fftfreq": lambda d: torch.fft.fftfreq(7, 0.5, device=d),
    "rfftfreq": lambda d: torch.fft.rfftfreq(7, 0.5, device=d),
    "vander": lambda d: torch.vander(torch.arange(4.0, device=d)),
    "one_hot": lambda d: torch.nn.functional.one_hot(torch.arange(3, device=d), 4).clone(),
    "new_zeros": lambda d: torch.ones(2, device=d, dtype=torch.int32).new_zeros(2, 3),
    "new_ones": lambda d: torch.ones(2, device=d, dtype=torch.int32).new_ones((2, 3)),
    "new_full": lambda d: torch.ones(2, device=d, dtype=torch.int32).new_full((2, 3), 4),
    "new_tensor": lambda d: torch.ones(2, device=d, dtype=torch.int32).new_tensor([[1, 2], [3, 4]]),
    "rand": lambda d: torch.rand(2, 3, device=d),
    "randn": lambda d: torch.randn(5, 3, device=d),
    "randint": lambda d: torch.randint(3, 90, (2, 3), device=d),
    "randperm": lambda d: torch.randperm(20, device=d),
    "normal": lambda d: torch.normal(2.0, 3.0, (5, 3), device=d),
    "normal tensors": lambda d: torch.normal(torch.arange(4.0, device=d), torch.ones(4, device=d)),
    "rand generator": lambda d: torch.rand(4, generator=torch.Generator(d).manual_seed(3), device=d),
    "randn generator": lambda d: torch.randn(4, generator=torch.Generator(d).manual_seed(3), device=d),
    "randint generator": lambda d: torch.randint(9, (4,), generator=torch.Generator(d).manual_seed(3), device=d),
    "randperm generator": lambda d: torch.randperm(9, generator=torch.Generator(d).manual_seed(3), device=d),
    "bernoulli": lambda d: torch.bernoulli(torch.full((20,), 0.5, device=d)),
    "cartesian_prod": lambda d: torch.cartesian_prod(torch.arange(2, device=d), torch.arange(3, device=d)),
    "meshgrid": lambda d: torch.meshgrid(torch.arange(2, device=d), torch.arange(3, device=d), indexing="ij"),
}

LIKE = {
    "empty_like": lambda t, **k: torch.empty_like(t, **k),
    "zeros_like": lambda t, **k: torch.zeros_like(t, **k),
    "ones_like": lambda t, **k: torch.ones_like(t, **k),
    "full_like": lambda t, **k: torch.full_like(t, 3, **k),
    "rand_like": lambda t, **k: torch.rand_like(t, **k),
    "randn_like": lambda t, **k: torch.randn_like(t, **k),
    "randint_like": lambda t, **k: torch.randint_like(t, 9, **k),
    "randint_like low": lambda t, **k: torch.randint_like(t, 2, 9, **k),
}

NAMES = [
    "accel",
    "accel:0",
    0,
    torch.device("accel"),
    torch.device("accel:0"),
    torch.device("accel", 0),
    torch.device(0),
]


@pytest.mark.smoke
@pytest.mark.parametrize("name", FACTORIES)
def test_factory_gives_what_the_reference_gives(name):
    results = both(FACTORIES[name])
    for tensor in results if isinstance(results, tuple) else [results]:
        assert tensor.device == DEVICE


@pytest.mark.parametrize("name", UNINITIALISED)
def test_uninitialised_factory_gives_the_same_sizes_and_strides(name):
    result = both(UNINITIALISED[name], values=False)
    assert result.device == DEVICE
    assert result.data_ptr() != 0 or result.numel() == 0


@pytest.mark.parametrize("name", UNINITIALISED)
def test_uninitialised_memory_is_filled_in_deterministic_mode(name):
    torch.set_deterministic_debug_mode("error")
    try:
        result = UNINITIALISED[name](DEVICE)
    finally:
        torch.set_deterministic_debug_mode("default")
    assert result.isnan().all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype(dtype):
    def make(d):
        out = {
            "empty": torch.empty(2, 3, dtype=dtype, device=d).zero_(),
            "zeros": torch.zeros(2, 3, dtype=dtype, device=d),
            "ones": torch.ones(2, 3, dtype=dtype, device=d),
            "full": torch.full((2, 3), 1, dtype=dtype, device=d),
            "empty_strided": torch.empty_strided((2, 3), (1, 2), dtype=dtype, device=d).fill_(1),
            "scalar_tensor": torch.scalar_tensor(1, dtype=dtype, device=d),
            "tensor": torch.tensor([0, 1, 1], device="cpu").to(dtype).to(d),
        }
        out["zeros_like"] = torch.zeros_like(out["full"])
        out["ones_like"] = torch.ones_like(out["full"])
        out["new_zeros"] = out["full"].new_zeros(3)
        out["new_ones"] = torch.ones(2, device=d).new_ones(3, dtype=dtype)
        return out

    for tensor in both(make).values():
        assert tensor.dtype == dtype and tensor.device == DEVICE


@pytest.mark.parametrize("dtype", [torch.float4_e2m1fn_x2, torch.uint4, torch.int4, torch.bits8, torch.bits16], ids=str)
def test_storage_only_dtypes_can_be_made_moved_and_reinterpreted(dtype):
    empty = both(lambda d: torch.empty(4, dtype=dtype, device=d), values=False)
    assert empty.dtype == dtype and empty.device == DEVICE
    raw = torch.arange(8, dtype=torch.uint8)
    there = raw.to(DEVICE).view(dtype)
    assert there.dtype == dtype
    assert torch.equal(there.view(torch.uint8).cpu(), raw)


@pytest.mark.parametrize("dtype", [d for d in DTYPES if d not in (torch.bool, torch.float8_e8m0fnu)], ids=str)
def test_tensor_and_arange_in_every_dtype_or_the_same_error(dtype):
    for make in (
        lambda d: torch.tensor([0, 1, 3], dtype=dtype, device=d),
        lambda d: torch.tensor([[0.0, 1.0]], dtype=dtype, device=d),
        lambda d: torch.arange(5, dtype=dtype, device=d),
        lambda d: torch.linspace(0, 3, 4, dtype=dtype, device=d),
        lambda d: torch.eye(3, dtype=dtype, device=d),
        lambda d: torch.rand(4, dtype=dtype, device=d),
        lambda d: torch.randn(4, dtype=dtype, device=d),
        lambda d: torch.randint(0, 2, (4,), dtype=dtype, device=d),
        lambda d: torch.randperm(5, dtype=dtype, device=d),
    ):
        agree(make)


def test_default_dtype_applies():
    torch.set_default_dtype(torch.float64)
    try:
        assert torch.ones(2, device=DEVICE).dtype == torch.float64
        assert torch.empty(2, device=DEVICE).dtype == torch.float64
        assert torch.tensor([1.5], device=DEVICE).dtype == torch.float64
        assert torch.full((2,), 1j, device=DEVICE).dtype == torch.complex128
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("name", LIKE)
@pytest.mark.parametrize("layout", [*LAYOUTS, *SMALL])
def test_like_keeps_layout_and_device(name, layout):
    result = both(lambda d: LIKE[name](build(layout, torch.float32, d)[1]), values=name != "empty_like")
    assert result.device == DEVICE


@pytest.mark.parametrize("name", LIKE)
def test_like_with_overrides(name):
    values = name != "empty_like"
    image = numbers(torch.float32, 48)[:48].view(2, 2, 3, 4)
    both(lambda d: LIKE[name](image.to(d), dtype=torch.float64), values=values)
    both(lambda d: LIKE[name](image.to(d), memory_format=torch.channels_last), values=values)
    both(lambda d: LIKE[name](image.to(d).permute(3, 1, 0, 2), memory_format=torch.contiguous_format), values=values)
    both(lambda d: LIKE[name](image.to(d), requires_grad=True), values=values)
    there, back = LIKE[name](image, device=DEVICE), LIKE[name](image.to(DEVICE), device="cpu")
    assert there.device == DEVICE and back.device.type == "cpu"
    assert there.shape == image.shape and there.stride() == image.stride()


@pytest.mark.smoke
@pytest.mark.parametrize("device", NAMES, ids=repr)
def test_every_way_to_name_the_device(device):
    for tensor in (
        torch.empty(2, device=device),
        torch.zeros(2, device=device),
        torch.tensor([1.0], device=device),
        torch.as_tensor([1.0], device=device),
        torch.arange(3, device=device),
        torch.randn(3, device=device),
        torch.ones(2).to(device),
        torch.ones(2).to(device=device),
        torch.ones(2).new_zeros(3, device=device),
        torch.zeros_like(torch.ones(2), device=device),
        torch.ones(2).accel(device) if not isinstance(device, str) else torch.ones(2).accel(torch.device(device)),
        torch.nn.Linear(2, 2, device=device).weight,
        torch.nn.Linear(2, 2).to(device).weight,
    ):
        assert tensor.device == DEVICE
        assert tensor.is_accel
        assert tensor.get_device() == 0
        assert not tensor.is_cpu and not tensor.is_cuda


def test_device_without_an_index_takes_the_current_device(run_ok):
    print_devices = """
        import torch
        torch.accel.set_device(1)
        x = torch.ones(2, device="accel")
        print(x.device, torch.empty_strided((2,), (1,), device="accel").device, torch.zeros_like(x).device,
              torch.tensor([1], device="accel").device, torch.arange(3, device="accel").device,
              torch.ones(2).to("accel").device, torch.randn(2, device="accel").device, x.new(2).device,
              x.new_tensor([3]).device, torch.ones(2).accel().device, torch.ones(2, device="accel:0").device)
        torch.accel.set_device(0)
        print(x.new_zeros(2).device, torch.empty_like(x).device, x.new([1.0]).device, (x + 1).device)
    """
    first, second = run_ok(print_devices, TORCH_ACCEL_BACKEND="cpu,cpu").splitlines()
    assert first.split() == ["accel:1"] * 10 + ["accel:0"]
    assert second.split() == ["accel:1"] * 4


@pytest.mark.parametrize("index", [1, 7, 63, 64, 100])
def test_index_beyond_the_table_is_an_error(index):
    if torch.accel.device_count() > 1:
        pytest.skip("needs a device table of one device")
    for make in (torch.empty, torch.zeros, torch.randn, torch.arange):
        with pytest.raises((RuntimeError, IndexError), match=f"accel:{index}|index below 1"):
            make(3, device=f"accel:{index}")
    assert torch.ones(2, device="accel").device == DEVICE


def test_bad_device_names_are_errors():
    with pytest.raises(RuntimeError, match="Invalid device string"):
        torch.ones(2, device="accel:x")
    with pytest.raises(RuntimeError):
        torch.ones(2, device="accelerator")


@pytest.mark.parametrize("device", ["accel", "accel:0", torch.device("accel"), 0], ids=repr)
def test_set_default_device(device):
    torch.set_default_device(device)
    try:
        assert torch.get_default_device().type == "accel"
        made = [
            torch.empty(2),
            torch.ones(2),
            torch.tensor([1.0]),
            torch.as_tensor([1.0]),
            torch.arange(3),
            torch.randn(2),
            torch.randperm(4),
            torch.eye(2),
            torch.hann_window(4),
            torch.tril_indices(3, 3),
            torch.nn.Linear(2, 2).weight,
            torch.nn.BatchNorm1d(3).running_mean,
            torch.fft.fftfreq(4),
            torch.scalar_tensor(1.0),
        ]
        assert [t.device for t in made] == [DEVICE] * len(made)
        assert torch.ones(2, device="cpu").device.type == "cpu"
        assert torch.from_numpy(np.ones(2)).device.type == "cpu"
        assert torch.zeros_like(torch.ones(2, device="cpu")).device.type == "cpu"
    finally:
        torch.set_default_device(None)
    assert torch.ones(2).device.type == "cpu"


@pytest.mark.smoke
def test_device_as_a_context():
    with torch.device("accel"):
        assert torch.ones(2).device == DEVICE
        assert torch.tensor([1]).device == DEVICE
        assert torch.nn.Linear(2, 2).bias.device == DEVICE
        with torch.device("cpu"):
            assert torch.ones(2).device.type == "cpu"
        assert torch.ones(2, device="cpu").device.type == "cpu"
        assert torch.ones(2).device == DEVICE
    assert torch.ones(2).device.type == "cpu"
    with pytest.raises(KeyError), torch.device("accel:0"):
        raise KeyError
    assert torch.ones(2).device.type == "cpu"


def test_default_device_seeds_give_the_same_numbers():
    with torch.device("accel"):
        torch.manual_seed(3)
        implicit = torch.randn(4)
    torch.manual_seed(3)
    assert torch.equal(implicit, torch.randn(4, device="accel"))


def test_requires_grad():
    for tensor in (
        torch.empty(2, device=DEVICE, requires_grad=True),
        torch.zeros(2, device=DEVICE, requires_grad=True),
        torch.tensor([1.0], device=DEVICE, requires_grad=True),
        torch.randn(2, device=DEVICE, requires_grad=True),
        torch.ones(2, device=DEVICE).new_zeros(2, requires_grad=True),
        torch.zeros_like(torch.ones(2, device=DEVICE), requires_grad=True),
        torch.linspace(0, 1, 3, device=DEVICE, requires_grad=True),
    ):
        assert tensor.requires_grad and tensor.is_leaf
    both_raise(lambda d: torch.ones(2, dtype=torch.int64, device=d, requires_grad=True))


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.empty(2, device=DEVICE, pin_memory=True),
        lambda: torch.zeros(2, device=DEVICE, pin_memory=True),
        lambda: torch.empty_strided((2,), (1,), device=DEVICE, pin_memory=True),
        lambda: torch.randn(2, device=DEVICE, pin_memory=True),
    ],
)
def test_device_memory_cannot_be_pinned(make):
    with pytest.raises(RuntimeError, match="only dense CPU tensors can be pinned|Only dense CPU tensors can be pinned"):
        make()


@pytest.mark.parametrize(
    "make",
    [
        lambda d: torch.empty(-1, device=d),
        lambda d: torch.empty(2, -3, device=d),
        lambda d: torch.zeros(2, -3, device=d),
        lambda d: torch.empty_strided((2, 3), (1,), device=d),
        lambda d: torch.empty_strided((2,), (-1,), device=d),
        lambda d: torch.empty(1 << 62, 4, device=d),
        lambda d: torch.arange(0, 5, -1, device=d),
        lambda d: torch.tensor([[1, 2], [3]], device=d),
        lambda d: torch.full((2,), "x", device=d),
        lambda d: torch.eye(-1, device=d),
        lambda d: torch.randint(5, 5, (2,), device=d),
        lambda d: torch.ones(2, device=d).new_empty(-2),
        lambda d: torch.empty(2, 3, memory_format=torch.channels_last, device=d),
    ],
)
def test_bad_arguments_raise_the_same_errors(make):
    both_raise(make)


@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr, torch.sparse_csc], ids=str)
def test_sparse_layouts(layout):
    dense = torch.tensor([[0.0, 2.0, 0.0], [3.0, 0.0, 4.0]])

    def check(make):
        there, here = make(DEVICE), make(reference())
        assert there.device == DEVICE and there.layout == layout and there.shape == here.shape
        assert torch.equal(there.to_dense().cpu(), here.to_dense().cpu())

    check(lambda d: torch.zeros(2, 3, layout=layout, device=d))
    check(lambda d: torch.zeros_like(dense.to(d).to_sparse(layout=layout)))
    if layout == torch.sparse_coo:
        check(lambda d: torch.sparse_coo_tensor([[0, 1, 1], [1, 0, 2]], [2.0, 3.0, 4.0], (2, 3), device=d))
    else:
        outer = [0, 1, 3] if layout == torch.sparse_csr else [0, 1, 2, 3]
        inner = [1, 0, 2] if layout == torch.sparse_csr else [1, 0, 1]
        check(lambda d: torch.sparse_compressed_tensor(outer, inner, [2.0, 3.0, 4.0], (2, 3), layout=layout, device=d))


@pytest.mark.parametrize(
    "make",
    [
        lambda d, out: torch.zeros(2, 3, out=out),
        lambda d, out: torch.ones(2, 3, out=out),
        lambda d, out: torch.full((2, 3), 5.0, out=out),
        lambda d, out: torch.arange(6.0, out=out),
        lambda d, out: torch.linspace(0, 1, 6, out=out),
        lambda d, out: torch.logspace(0, 1, 6, out=out),
        lambda d, out: torch.eye(2, 3, out=out),
        lambda d, out: torch.rand(2, 3, out=out),
        lambda d, out: torch.randn(2, 3, out=out),
        lambda d, out: torch.complex(torch.ones(3, device=d), torch.ones(3, device=d), out=out.to(torch.complex64)),
    ],
)
def test_out_is_resized_and_returned(make):
    def run(d):
        out = torch.empty(0, device=d)
        result = make(d, out)
        return result, out

    both(run)


def test_randint_and_randperm_out():
    both(lambda d: torch.randint(9, (2, 3), out=torch.empty(0, dtype=torch.int64, device=d)))
    both(lambda d: torch.randperm(9, out=torch.empty(0, dtype=torch.int64, device=d)))


# ------------------------------------------------------------------------------------------------------- tensor.new(...)
@pytest.mark.smoke
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bool, torch.bfloat16, torch.complex64], ids=str)
def test_legacy_new(dtype):
    like = numbers(dtype, 6, DEVICE)
    assert like.new().shape == (0,)
    assert like.new(2, 3).shape == (2, 3)
    assert like.new(torch.Size([2, 3])).shape == (2, 3)
    assert like.new((2, 3)).tolist() == torch.tensor([2, 3]).to(dtype).tolist()
    assert like.new([1, 0]).tolist() == torch.tensor([1, 0]).to(dtype).tolist()
    assert like.new(4, device=DEVICE).shape == (4,)
    assert like.new(4, device="accel").shape == (4,)
    for made in (like.new(), like.new(2, 3), like.new([1, 0]), like.new(size=(3,))):
        assert made.dtype == dtype and made.device == DEVICE and not made.requires_grad


def test_legacy_new_shares_tensors_and_storages():
    like = torch.arange(6.0, device=DEVICE)
    alias = like.new(like)
    alias[0] = 9
    assert like[0] == 9 and alias.untyped_storage()._cdata == like.untyped_storage()._cdata
    over = like.new(like.untyped_storage())
    over[1] = 8
    assert like[1] == 8 and over.shape == (6,)
    typed = like.new(like._typed_storage())
    assert typed.data_ptr() == like.data_ptr()


def test_legacy_new_refuses_other_devices():
    on_accel, on_cpu = torch.ones(2, device=DEVICE), torch.ones(2)
    with pytest.raises(TypeError):
        on_accel.new(on_cpu)
    with pytest.raises((TypeError, RuntimeError)):
        on_accel.new(2, device="cpu")
    with pytest.raises((TypeError, RuntimeError)):
        on_cpu.new(2, device=DEVICE)
    with pytest.raises((TypeError, RuntimeError)):
        torch.Tensor(2, device=DEVICE)
    with pytest.raises((TypeError, RuntimeError)):
        torch.FloatTensor(2, device=DEVICE)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("FloatTensor", torch.float32),
        ("DoubleTensor", torch.float64),
        ("HalfTensor", torch.float16),
        ("BFloat16Tensor", torch.bfloat16),
        ("LongTensor", torch.int64),
        ("IntTensor", torch.int32),
        ("ShortTensor", torch.int16),
        ("CharTensor", torch.int8),
        ("ByteTensor", torch.uint8),
        ("BoolTensor", torch.bool),
    ],
)
def test_legacy_type_names(name, dtype):
    there = torch.ones(2, dtype=dtype, device=DEVICE)
    assert there.type() == f"torch.accel.{name}"
    moved = torch.ones(2).type(f"torch.accel.{name}")
    assert moved.device == DEVICE and moved.dtype == dtype
    assert there.type(f"torch.{name}").device.type == "cpu"
    assert there.type(dtype) is there
    assert there.type_as(torch.ones(1, dtype=torch.float64, device=DEVICE)).dtype == torch.float64
    assert torch.ones(2).type_as(there).device == DEVICE


@pytest.mark.parametrize(
    "function",
    [
        lambda z: z.clone(),
        lambda z: z + 1,
        lambda z: z * torch.ones(3, device=z.device),
        lambda z: z.to(torch.float64),
        lambda z: z.sum(),
        lambda z: torch.ones(3, device=z.device).copy_(z),
        lambda z: z.contiguous().clone(),
        lambda z: z.view(3, 1).clone(),
    ],
)
def test_zero_tensors_without_memory(function):
    """What forward differentiation makes for a tangent that is zero."""
    both(lambda d: function(torch._efficientzerotensor(3, device=d)))


# ------------------------------------------------------------------------------------------------ taking what is there
def test_as_tensor_and_asarray_copy_only_when_they_must():
    x = torch.arange(4.0, device=DEVICE)
    assert torch.as_tensor(x) is x
    assert torch.as_tensor(x, device="accel") is x
    assert torch.as_tensor(x, dtype=torch.float64).data_ptr() != x.data_ptr()
    assert torch.asarray(x).data_ptr() == x.data_ptr()
    assert torch.asarray(x, device=DEVICE, copy=False).data_ptr() == x.data_ptr()
    assert torch.asarray(x, copy=True).data_ptr() != x.data_ptr()
    with pytest.raises(ValueError, match="can't alias"):
        torch.asarray(torch.ones(2), device=DEVICE, copy=False)


def test_tensor_of_an_accel_tensor_copies_and_stays():
    x = torch.arange(4.0, device=DEVICE)
    with pytest.warns(UserWarning, match="copy construct"):
        copy = torch.tensor(x)
    assert copy.device == DEVICE and copy.data_ptr() != x.data_ptr() and torch.equal(copy, x)
    with pytest.warns(UserWarning, match="copy construct"):
        assert torch.tensor(x, device="cpu").device.type == "cpu"
    assert x.new_tensor(torch.arange(3)).tolist() == [0, 1, 2]
    assert torch.tensor([x[0], x[1]], device=DEVICE).tolist() == [0, 1]
    assert torch.tensor([x[2], 5]).tolist() == [2, 5]


def test_factories_copy_only_python_values():
    torch_accel.reset_counters()
    x = torch.ones(4, device=DEVICE)
    torch.zeros_like(x), torch.arange(5, device=DEVICE), torch.randn(3, device=DEVICE), torch.eye(3, device=DEVICE)
    x.new_full((3,), 2.0), torch.empty(5, device=DEVICE), torch.linspace(0, 1, 5, device=DEVICE)
    copies = torch_accel.counters()["copies"]
    assert {kind: copies[kind]["count"] for kind in copies} == dict.fromkeys(copies, 0)
    torch.tensor([1.0, 2.0, 3.0], device=DEVICE)
    assert torch_accel.counters()["copies"]["host_to_device"] == {"count": 1, "bytes": 12}


def test_fresh_memory_each_time():
    tensors = [torch.zeros(8, device=DEVICE) for _ in range(4)]
    for i, tensor in enumerate(tensors):
        tensor.fill_(i)
    assert [t.tolist() for t in tensors] == [[i] * 8 for i in range(4)]
    assert len({t.data_ptr() for t in tensors}) == 4
    assert torch.equal(bits(torch.zeros(3, device=DEVICE)), torch.zeros(12, dtype=torch.uint8))
