"""Proves that accel tensors go through DLPack without a copy where memory can be shared, and that what cannot be shared is
refused with the errors that users of other devices know."""

import copy
import io

import numpy as np
import pytest
import torch
from layouts import DEVICE, LAYOUTS, agree, allocations, bits, both_raise, build, held, numbers, same
from torch.utils.dlpack import DLDeviceType, from_dlpack, to_dlpack

import torch_accel

# Dtypes that DLPack has. Bool and the float8 family came with its first version.
DTYPES = [
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.uint16,
    torch.uint32,
    torch.uint64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.complex64,
    torch.complex128,
]

EXPORTS = {
    "to_dlpack": to_dlpack,
    "__dlpack__": lambda x: x.__dlpack__(),
    "__dlpack__ versioned": lambda x: x.__dlpack__(max_version=(1, 0)),
    "object": lambda x: x,
}


@pytest.mark.smoke
@pytest.mark.parametrize("name", EXPORTS)
def test_round_trip_shares_memory(name):
    x = torch.arange(6.0, device=DEVICE)
    torch_accel.reset_counters()
    y = from_dlpack(EXPORTS[name](x))
    assert y.device == DEVICE and y.data_ptr() == x.data_ptr()
    y[0] = 9
    x[1] = 8
    assert x[0].item() == 9 and y[1].item() == 8
    y.view(2, 3).t()[1:].mul_(2)
    assert x.tolist() == [9, 16, 4, 3, 8, 10]
    assert torch_accel.counters()["copies"]["device_to_device"]["count"] == 0


@pytest.mark.parametrize("name", EXPORTS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype(dtype, name):
    x = numbers(dtype, 12, DEVICE).view(3, 4).t()[1:]
    y = torch.from_dlpack(EXPORTS[name](x))
    assert y.dtype == dtype and y.shape == x.shape and y.stride() == x.stride() and y.data_ptr() == x.data_ptr()
    assert torch.equal(bits(y), bits(x))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout(layout):
    base, x = build(layout, torch.float32, DEVICE)
    y = torch.from_dlpack(to_dlpack(x))
    assert y.shape == x.shape and y.stride() == x.stride() and y.data_ptr() == x.data_ptr()
    base.mul_(3)
    assert torch.equal(bits(y), bits(x))
    assert (y + 1).device == DEVICE and torch.equal(bits(y + 1), bits(x + 1))


def test_empty_and_single_elements():
    for size in ((0,), (0, 3), (), (1, 1)):
        x = torch.ones(size, device=DEVICE)
        y = torch.from_dlpack(to_dlpack(x))
        assert y.shape == x.shape and y.device == DEVICE and y.tolist() == x.tolist()


@pytest.mark.smoke
def test_device_of_the_protocol():
    """kDLExtDev: a device outside the standard's list. Index as in the device table."""
    assert torch.ones(2, device=DEVICE).__dlpack_device__() == (DLDeviceType.kDLExtDev, 0)
    assert torch._C._torchDeviceToDLDevice(DEVICE) == (DLDeviceType.kDLExtDev, 0)


def test_memory_lives_as_long_as_either_side():
    with allocations() as allocated:
        x = torch.ones(1000, device=DEVICE)
        y = torch.from_dlpack(to_dlpack(x))
        assert allocated() == (held(4000), held(4000))
        del x
        assert allocated()[0] == held(4000)
        assert y.sum().item() == 1000
        del y
        assert allocated()[0] == 0
        capsule = to_dlpack(torch.ones(1000, device=DEVICE))
        assert allocated()[0] == held(4000)
        del capsule
        assert allocated()[0] == 0


def test_the_same_capsule_twice_is_an_error():
    capsule = to_dlpack(torch.ones(2, device=DEVICE))
    torch.from_dlpack(capsule)
    with pytest.raises(RuntimeError, match="only once|consumed"):
        torch.from_dlpack(capsule)


def test_imported_tensors_are_full_tensors():
    """Their memory is someone else's: operators, views, in-place, out=, autograd and copies must work on it all the same."""
    owner = torch.arange(12.0, device=DEVICE)

    def imported():
        return torch.from_dlpack(to_dlpack(owner))

    x = imported().view(3, 4)
    wanted = torch.arange(12.0).view(3, 4)
    for operation in (
        lambda t: t @ t.t(),
        lambda t: t.t()[1:].sum(0),
        lambda t: torch.cat([t, t]),
        lambda t: t[t > 4],
        lambda t: t.softmax(1),
        lambda t: t.double(),
        lambda t: t.clone(),
    ):
        assert torch.equal(bits(operation(x)), bits(operation(wanted)))
    x.t().add_(1)
    torch.mul(x, 2, out=x)
    x[0, 1:3] = -1
    assert owner.tolist()[:4] == [2, -1, -1, 8] and owner[11].item() == 24
    leaf = imported().requires_grad_()
    (leaf * leaf).sum().backward()
    assert torch.equal(leaf.grad, owner * 2)
    y = imported()
    assert y.untyped_storage()._cdata == y[2:].untyped_storage()._cdata
    assert torch.equal(y.cpu(), owner.cpu()) and torch.equal(y.to("accel", copy=True), owner)
    assert torch.empty(0, device=DEVICE).set_(y.untyped_storage()).data_ptr() == owner.data_ptr()
    twin = copy.deepcopy(y)
    twin.zero_()
    buffer = io.BytesIO()
    torch.save(y, buffer)
    buffer.seek(0)
    assert torch.equal(torch.load(buffer), owner) and owner[0].item() == 2
    y.data = torch.zeros(2, device=DEVICE)
    assert y.tolist() == [0, 0] and owner[0].item() == 2


def test_overlapping_views_of_imported_memory_are_known():
    """Kernels find out by the identity of storages whether operands overlap."""

    def imported(d):
        return torch.from_dlpack(to_dlpack(torch.arange(6.0, device=d)))

    for write in (
        lambda x: x[1:].add_(x[:-1]),
        lambda x: torch.add(x[1:], 1, out=x[:-1]),
        lambda x: x[1:].copy_(x[:-1]),
        lambda x: torch.cat([x[:3], x[:3]], out=x),
        lambda x: x.add_(x),
    ):

        def run(d, write=write):
            x = imported(d)
            write(x)
            return x

        agree(run)
    x = imported(DEVICE)
    assert x.is_set_to(x.view(6)) and not x.is_set_to(x[1:]) and not x.is_set_to(imported(DEVICE))


@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
def test_imported_memory_is_never_resized_in_place():
    """Growing gives the tensor other memory, or an error; the owner keeps its own."""
    owner = torch.arange(4.0, device=DEVICE)
    y = torch.from_dlpack(to_dlpack(owner))
    y.resize_(2)
    assert y.tolist() == [0, 1] and y.data_ptr() == owner.data_ptr()

    def grow(d):
        torch.from_dlpack(to_dlpack(torch.arange(4.0, device=d))).resize_(1000)

    def grow_storage(d):
        torch.from_dlpack(to_dlpack(torch.arange(4.0, device=d))).untyped_storage().resize_(1000)

    both_raise(grow)
    both_raise(grow_storage)
    with pytest.raises(RuntimeError):
        torch.add(torch.ones(1000, device=DEVICE), 1, out=torch.from_dlpack(to_dlpack(owner)))
    assert owner.tolist() == [0, 1, 2, 3]


# ------------------------------------------------------------------------------------------------ to and from other devices
def test_from_the_cpu_to_accel_copies():
    for source in (torch.arange(4.0), np.arange(4.0, dtype=np.float32)):
        torch_accel.reset_counters()
        there = torch.from_dlpack(source, device="accel")
        assert there.device == DEVICE and there.tolist() == [0, 1, 2, 3]
        assert torch_accel.counters()["copies"]["host_to_device"] == {"count": 1, "bytes": 16}
        there.zero_()
        assert source[3] == 3
        with pytest.raises(ValueError, match="without copying"):
            torch.from_dlpack(source, device="accel", copy=False)


@pytest.mark.smoke
def test_from_accel_to_the_cpu_copies():
    x = torch.arange(4.0, device=DEVICE)
    here = torch.from_dlpack(x, device="cpu")
    assert here.device.type == "cpu" and here.tolist() == [0, 1, 2, 3]
    here.zero_()
    assert x[3].item() == 3
    with pytest.raises(ValueError, match="without copying"):
        torch.from_dlpack(x, device="cpu", copy=False)


@pytest.mark.parametrize("device", [None, "accel", "accel:0", torch.device("accel", 0)], ids=repr)
def test_copy_on_demand(device):
    x = torch.arange(4.0, device=DEVICE)
    assert torch.from_dlpack(x, device=device).data_ptr() == x.data_ptr()
    if device != "accel":  # torch takes a device without an index for another one
        assert torch.from_dlpack(x, device=device, copy=False).data_ptr() == x.data_ptr()
    twin = torch.from_dlpack(x, device=device, copy=True)
    assert twin.device == DEVICE and twin.data_ptr() != x.data_ptr() and torch.equal(twin, x)


def test_copy_on_demand_by_the_capsule():
    x = torch.arange(4.0, device=DEVICE)
    for options in ({"copy": True}, {"copy": True, "max_version": (1, 0)}):
        twin = torch.from_dlpack(x.__dlpack__(**options))
        assert twin.device == DEVICE and twin.data_ptr() != x.data_ptr() and torch.equal(twin, x)
    same(torch.from_dlpack(x.__dlpack__(dl_device=(DLDeviceType.kDLCPU, 0))), torch.arange(4.0), values=True)


@pytest.mark.filterwarnings("ignore:__array__ implementation")
def test_numpy_cannot_read_device_memory():
    x = torch.arange(4.0, device=DEVICE)
    for read in (x.numpy, x.__array__, lambda: np.asarray(x), lambda: np.array(x), lambda: np.add(x, 1)):
        with pytest.raises(TypeError, match=r"can't convert accel:0 device type tensor to numpy\. Use Tensor\.cpu\(\)"):
            read()
    with pytest.raises((RuntimeError, BufferError, ValueError)):
        np.from_dlpack(x)
    assert x.numpy(force=True).tolist() == [0, 1, 2, 3]
    assert x.t().cpu().numpy().tolist() == [0, 1, 2, 3]
    assert not hasattr(x, "__cuda_array_interface__")
    with pytest.raises((TypeError, BufferError)):
        memoryview(x)


def test_what_dlpack_cannot_express_is_refused():
    both_raise(lambda d: torch.ones(2, device=d, requires_grad=True).__dlpack__())
    both_raise(lambda d: torch.ones(2, dtype=torch.complex64, device=d).conj().__dlpack__())
    both_raise(lambda d: torch.ones(2, 2, device=d).to_sparse().__dlpack__())
    with pytest.raises(TypeError, match="stream"):
        torch.ones(2, device=DEVICE).__dlpack__(stream="x")
    assert torch.from_dlpack(torch.ones(2, device=DEVICE).__dlpack__(stream=None)).tolist() == [1, 1]


def test_second_device(run_ok):
    run_ok(
        """
        import torch
        from torch.utils.dlpack import to_dlpack
        x = torch.arange(3.0, device="accel:1")
        y = torch.from_dlpack(to_dlpack(x))
        assert y.device == torch.device("accel:1") and y.data_ptr() == x.data_ptr()
        y.add_(1)
        assert x.tolist() == [1, 2, 3] and (y * 2).device == y.device and y.view(1, 3).device == y.device
        assert torch.accel.current_device() == 0
        assert x.__dlpack_device__() == (12, 1)
        assert torch.from_dlpack(x).device == x.device
        assert torch.from_dlpack(x, device="accel:0").device == torch.device("accel:0")
        """,
        TORCH_ACCEL_BACKEND="cpu,cpu",
    )
