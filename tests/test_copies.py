"""Proves that values arrive unchanged: copies to, from and within accel for every pair of layouts and dtypes, with what
lies around the destination left alone, and each copy between devices counted once."""

import warnings

import pytest
import torch
from layouts import (
    DEVICE,
    DTYPES,
    LAYOUTS,
    SMALL,
    WRITABLE,
    agree,
    bits,
    both,
    both_raise,
    build,
    numbers,
    same,
)

import torch_accel

# Source device, destination device.
DIRECTIONS = {
    "to accel": ("cpu", DEVICE),
    "from accel": (DEVICE, "cpu"),
    "within accel": (DEVICE, DEVICE),
}
CASTS = [
    (torch.float32, torch.float32),
    (torch.float32, torch.float64),
    (torch.float64, torch.float16),
    (torch.int64, torch.float32),
    (torch.float32, torch.bfloat16),
    (torch.float32, torch.int32),
    (torch.bool, torch.int32),
    (torch.uint8, torch.bool),
    (torch.complex64, torch.complex128),
    (torch.float32, torch.complex64),
    (torch.uint8, torch.uint8),
    (torch.complex128, torch.complex128),
]
START = 20  # no negative values: casts of those to unsigned types are undefined

# Torch's notes on casts that lose something, the same on every device.
pytestmark = pytest.mark.filterwarnings("ignore:.*(ComplexHalf|Casting complex values|Sparse|quantized)")


def copies():
    """(count, bytes) of the copies since the last reset."""
    counted = torch_accel.counters()["copies"]
    return {kind: (counted[kind]["count"], counted[kind]["bytes"]) for kind in counted}


def expected_copies(direction, count, size):
    zero = {"host_to_device": (0, 0), "device_to_host": (0, 0), "device_to_device": (0, 0)}
    kind = {"to accel": "host_to_device", "from accel": "device_to_host"}.get(direction)
    return zero | ({kind: (count, size)} if kind else {})


# --------------------------------------------------------------------------------------------------------------- copy_
@pytest.mark.smoke
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("source", LAYOUTS)
@pytest.mark.parametrize("destination", WRITABLE)
def test_copy_between_layouts(destination, source, direction):
    from_device, to_device = DIRECTIONS[direction]
    for from_dtype, to_dtype in CASTS:
        wanted, there = build(destination, to_dtype, "cpu", start=1)
        there.copy_(build(source, from_dtype, "cpu", start=START)[1])

        base, target = build(destination, to_dtype, to_device, start=1)
        origin, values = build(source, from_dtype, from_device, start=START)
        torch_accel.reset_counters()
        assert target.copy_(values) is target
        assert copies() == expected_copies(direction, 1, 12 * from_dtype.itemsize)
        same(base, wanted, f"{from_dtype} to {to_dtype}, destination with its guards")
        same(origin, numbers(from_dtype, start=START), f"{from_dtype} to {to_dtype}, source")
        assert target.device == torch.device(to_device)


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("layout", SMALL)
def test_copy_of_nothing_and_of_one(layout, direction):
    from_device, to_device = DIRECTIONS[direction]
    for from_dtype, to_dtype in CASTS:
        wanted, there = build(layout, to_dtype, "cpu", start=1)
        there.copy_(build(layout, from_dtype, "cpu", start=START)[1])
        base, target = build(layout, to_dtype, to_device, start=1)
        target.copy_(build(layout, from_dtype, from_device, start=START)[1])
        same(base, wanted, f"{from_dtype} to {to_dtype}")


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("destination", WRITABLE)
@pytest.mark.parametrize("size", [(), (1,), (4,), (1, 4), (3, 1), (1, 1)], ids=str)
def test_copy_of_a_smaller_source_is_broadcast(destination, size, direction):
    from_device, to_device = DIRECTIONS[direction]
    for from_dtype, to_dtype in CASTS[:6]:
        source = numbers(from_dtype, start=START)[: torch.Size(size).numel()].view(size)
        wanted, there = build(destination, to_dtype, "cpu")
        there.copy_(source)
        base, target = build(destination, to_dtype, to_device)
        target.copy_(source.to(from_device))
        same(base, wanted, f"{from_dtype} to {to_dtype}")


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("from_dtype", DTYPES, ids=str)
def test_copy_between_all_dtypes(from_dtype, direction):
    from_device, to_device = DIRECTIONS[direction]
    source = numbers(from_dtype, 12, start=START).view(3, 4)
    for to_dtype in DTYPES:
        for layout in ("contiguous", "columns of taller"):
            wanted, there = build(layout, to_dtype, "cpu")
            there.copy_(source)
            base, target = build(layout, to_dtype, to_device)
            target.copy_(source.to(from_device))
            same(base, wanted, f"{from_dtype} to {to_dtype}, {layout}")


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("layout", WRITABLE)
def test_every_bit_pattern_survives(layout, direction):
    """Signalling NaNs, infinities, denormals, negative zero."""
    from_device, to_device = DIRECTIONS[direction]
    for dtype, integer in ((torch.float32, torch.int32), (torch.float64, torch.int64), (torch.bfloat16, torch.int16)):
        high = torch.iinfo(integer)
        patterns = torch.tensor([0, 1, -1, high.min, high.max, high.min + 1, high.max // 2, -7, 12, 99, 3, 5])
        patterns = patterns.to(integer).view(3, 4)
        source = torch.empty_strided((3, 4), (1, 3), dtype=integer).copy_(patterns).to(from_device).view(dtype)
        base, target = build(layout, dtype, to_device)
        target.copy_(source)
        wanted, there = build(layout, dtype, "cpu")
        there.view(integer).copy_(patterns)
        same(base, wanted, str(dtype))
    assert str(torch.tensor([-0.0]).to(from_device).to(to_device).tolist()) == "[-0.0]"


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_large_copies(direction):
    """Long enough for blocked and vectorised inner loops, with sizes that no block divides."""
    from_device, to_device = DIRECTIONS[direction]
    host = torch.arange(517 * 388 + 1, dtype=torch.float32)
    source = host.to(from_device)
    for view in (
        lambda t: t[1:].view(517, 388),
        lambda t: t[:-1].view(517, 388).t(),
        lambda t: t[1:].view(388, 517)[3:, 5::3],
        lambda t: t[1:].view(4, 97, 517).permute(2, 0, 1),
        lambda t: t[:1000].expand(50, 1000),
    ):
        for dtype in (torch.float32, torch.float64, torch.bfloat16):
            shape = view(host).shape
            reverse = tuple(range(len(shape)))[::-1]
            for target_like in (
                lambda t: t,
                lambda t, reverse=reverse: t.permute(reverse).contiguous().permute(reverse),
            ):
                target = target_like(torch.full(shape, -1, dtype=dtype, device=to_device))
                wanted = target_like(torch.full(shape, -1, dtype=dtype))
                assert torch.equal(bits(target.copy_(view(source))), bits(wanted.copy_(view(host))))


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_conjugate_and_negative_views_are_resolved(direction):
    from_device, to_device = DIRECTIONS[direction]
    for dtype in (torch.complex64, torch.complex128):
        for change_source in (lambda t: t, torch.conj, torch._neg_view, lambda t: t.conj().t().conj().t()):
            for change_target in (lambda t: t, torch.conj, torch._neg_view):
                wanted, there = build("rows of wider", dtype, "cpu")
                change_target(there).copy_(change_source(build("transposed", dtype, "cpu", 5)[1]))
                base, target = build("rows of wider", dtype, to_device)
                change_target(target).copy_(change_source(build("transposed", dtype, from_device, 5)[1]))
                same(base, wanted)
    imaginary = numbers(torch.complex64, 6).conj().imag
    assert imaginary.is_neg()
    there = torch.zeros(6, device=to_device).copy_(numbers(torch.complex64, 6, from_device).conj().imag)
    assert there.tolist() == imaginary.tolist()


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("function", [torch.conj, torch._neg_view, lambda t: t.conj().imag, lambda t: t.conj()[1:]])
def test_moving_conjugate_and_negative_views(function, direction):
    from_device, to_device = DIRECTIONS[direction]
    source = numbers(torch.complex64, 6)
    moved = function(source.to(from_device)).to(to_device, copy=True)
    wanted = function(source)
    assert moved.tolist() == wanted.tolist()
    assert (moved.is_conj(), moved.is_neg()) == (wanted.to("cpu", copy=True).is_conj(), wanted.clone().is_neg())


@pytest.mark.parametrize(
    "write",
    [
        lambda x: x[1:].copy_(x[:-1]),
        lambda x: x[:-1].copy_(x[1:]),
        lambda x: x.copy_(x),
        lambda x: x[:8].copy_(x[8:16]),
        lambda x: x[:16].view(4, 4).copy_(x[:16].view(4, 4).t()),
        lambda x: x[::2].copy_(x[1::2]),
        lambda x: x[:4].expand(3, 4).copy_(x[:4]),
        lambda x: x[:9].view(3, 3).t().copy_(x[9:18].view(3, 3)),
        lambda x: x.view(torch.int32)[:4].copy_(x[4:8]),
    ],
)
def test_copies_within_one_memory(write):
    def run(d):
        x = numbers(torch.float32, 20, d)
        write(x)
        return x

    agree(run)


@pytest.mark.parametrize(
    "copy",
    [
        lambda a, b: a(3, 4).copy_(b(4, 3)),
        lambda a, b: a(3, 4).copy_(b(2, 3, 4)),
        lambda a, b: a(3).copy_(b(4)),
        lambda a, b: a(0).copy_(b(2)),
        lambda a, b: a(3, 4).copy_("x"),
        lambda a, b: a(1).expand(3).copy_(b(3)),
        lambda a, b: a(3, 4).requires_grad_().copy_(b(3, 4)),
    ],
)
def test_bad_copies_raise_the_same_errors(copy):
    for other in (DEVICE, "cpu"):
        both_raise(
            lambda d, other=other: copy(
                lambda *size: torch.ones(*size, device=d),
                lambda *size: torch.ones(*size, device=other if d == DEVICE else d),
            )
        )


def test_failed_copies_change_nothing():
    x = torch.arange(12.0, device=DEVICE)
    for source in (torch.ones(5), torch.ones(5, device=DEVICE)):
        with pytest.raises(RuntimeError):
            x.copy_(source)
    assert x.tolist() == list(range(12)) and x._version == 0 and x.shape == (12,)


def test_imaginary_parts_are_dropped_with_a_warning():
    for to_device in (DEVICE, "cpu"):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            torch._C._set_warnAlways(True)
            try:
                out = torch.zeros(3, device=to_device).copy_(numbers(torch.complex64, 3, DEVICE))
            finally:
                torch._C._set_warnAlways(False)
        assert any("discards the imaginary part" in str(w.message) for w in caught)
        assert out.tolist() == numbers(torch.complex64, 3).real.tolist()


# ------------------------------------------------------------------------------------------------------------- .to, .cpu
@pytest.mark.smoke
@pytest.mark.parametrize("layout", [*LAYOUTS, *SMALL])
def test_moving_keeps_values_and_gives_the_strides_of_a_copy(layout):
    for dtype in (torch.float32, torch.int16, torch.complex64, torch.float8_e5m2):
        source = build(layout, dtype, "cpu")[1]
        wanted = source.to("cpu", copy=True)
        for moved in (source.to(DEVICE), source.accel(), source.to(device="accel"), source.to("accel", copy=True)):
            assert moved.device == DEVICE
            same(moved, wanted)
        there = build(layout, dtype, DEVICE)[1]
        for moved in (there.cpu(), there.to("cpu"), there.to(torch.device("cpu"), non_blocking=True)):
            assert moved.device.type == "cpu"
            same(moved, wanted)
        same(there.clone(), source.clone())
        same(there.contiguous(), source.contiguous() if not source.is_contiguous() else source)
        same(there.to("accel", copy=True), wanted)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_moving_and_casting_at_once(layout):
    for from_dtype, to_dtype in CASTS:
        source = build(layout, from_dtype, "cpu", START)[1]
        there = build(layout, from_dtype, DEVICE, START)[1]
        wanted = source.to(to_dtype, copy=True)
        torch_accel.reset_counters()
        for moved in (source.to(DEVICE, to_dtype), source.to(torch.empty(1, dtype=to_dtype, device=DEVICE))):
            assert moved.device == DEVICE
            same(moved, wanted)
        for moved in (there.to("cpu", to_dtype), there.to(torch.empty(1, dtype=to_dtype))):
            assert moved.device.type == "cpu"
            same(moved, wanted)
        same(there.to(to_dtype, copy=True), wanted)


def test_moving_where_it_already_is_gives_the_same_object():
    x = torch.ones(2, 3, device=DEVICE).t()
    assert x.to("accel") is x
    assert x.to("accel:0") is x
    assert x.to(0) is x
    assert x.to(x) is x
    assert x.accel() is x and x.accel(0) is x and x.accel(torch.device("accel")) is x
    assert x.to(torch.float32) is x
    assert x.to(device=DEVICE, dtype=torch.float32, non_blocking=True) is x
    assert x.to(memory_format=torch.preserve_format) is x
    assert x.float() is x and x.type(torch.float32) is x
    assert x.to("accel", copy=True) is not x
    assert x.to(torch.float32, copy=True) is not x
    host = torch.ones(2)
    assert host.cpu() is host and host.to("cpu") is host
    assert torch_accel.counters()["copies"]["host_to_device"]["count"] == 0


@pytest.mark.parametrize(
    "memory_format", [torch.contiguous_format, torch.channels_last, torch.preserve_format], ids=str
)
def test_memory_formats(memory_format):
    shape = (2, 3, 4, 5)
    for source in (
        torch.arange(120.0).view(shape),
        torch.arange(120.0).view(shape).to(memory_format=torch.channels_last),
        torch.arange(120.0).view(5, 4, 3, 2).permute(3, 2, 1, 0),
        torch.arange(240.0).view(2, 3, 4, 10)[..., ::2],
    ):
        there = source.to(DEVICE)
        wanted = source.to(memory_format=memory_format, copy=True)
        same(source.to(DEVICE, memory_format=memory_format), wanted)
        same(there.to("cpu", memory_format=memory_format), source.to("cpu").to(memory_format=memory_format, copy=True))
        same(
            there.to(torch.float64, memory_format=memory_format), source.to(torch.float64, memory_format=memory_format)
        )
        same(there.clone(memory_format=memory_format), there.cpu().clone(memory_format=memory_format))
        same(source.accel(memory_format=memory_format), wanted)
        target = torch.empty(shape, device=DEVICE).to(memory_format=torch.channels_last)
        target.copy_(source)
        assert torch.equal(bits(target), bits(source)) and target.is_contiguous(memory_format=torch.channels_last)
        same(there.float().contiguous().cpu(), source.float().contiguous().clone())
    volume = torch.arange(240.0).view(2, 3, 4, 5, 2).to(memory_format=torch.channels_last_3d)
    same(volume.to(DEVICE), volume.clone())
    same(volume.to(DEVICE).cpu(), volume.clone())


def test_channels_last_is_known():
    x = torch.ones(2, 3, 4, 5, device=DEVICE)
    y = x.contiguous(memory_format=torch.channels_last)
    assert y.stride() == (60, 1, 15, 3)
    assert y.is_contiguous(memory_format=torch.channels_last) and not y.is_contiguous()
    assert x.contiguous() is x and y.contiguous(memory_format=torch.channels_last) is y
    assert (y + 1).stride() == y.stride()


def test_dtype_methods():
    for name in ("double", "float", "half", "bfloat16", "int", "long", "short", "char", "byte", "bool", "cfloat"):
        both(lambda d, name=name: getattr(numbers(torch.float32, 6, d, start=START).view(2, 3).t(), name)())


# ----------------------------------------------------------------------------------------------------- reading on the host
def test_reading_values_on_the_host():
    for dtype in DTYPES:
        host = numbers(dtype, 6, start=START).view(2, 3).t()[1:]
        there = numbers(dtype, 6, DEVICE, start=START).view(2, 3).t()[1:]
        assert there.tolist() == host.tolist()
        assert there[1, 1].item() == host[1, 1].item()
        assert type(there[1, 1].item()) is type(host[1, 1].item())
        assert there.cpu().tolist() == host.tolist()
        if dtype not in (torch.complex32, torch.float8_e8m0fnu) and not dtype.is_complex:
            assert bool(there[0, 0]) == bool(host[0, 0])
            assert float(there[0, 0]) == float(host[0, 0])
            assert int(there[0, 0]) == int(host[0, 0])
    assert torch.arange(3, device=DEVICE)[2].__index__() == 2
    assert [10, 20, 30][torch.tensor(1, device=DEVICE)] == 20
    assert list(torch.arange(3, device=DEVICE)) == [0, 1, 2]
    assert 2 in torch.arange(3, device=DEVICE) and 5 not in torch.arange(3, device=DEVICE)
    assert torch.tensor(True, device=DEVICE) and not torch.tensor(0.0, device=DEVICE)
    both_raise(lambda d: bool(torch.ones(2, device=d)))
    both_raise(lambda d: torch.ones(2, device=d).item())
    both_raise(lambda d: torch.ones(0, device=d).item())
    both_raise(lambda d: int(torch.ones(2, device=d)))


def test_numpy_goes_in_and_comes_out_by_way_of_the_cpu():
    import numpy as np

    array = np.arange(12, dtype=np.float64).reshape(3, 4)
    there = torch.from_numpy(array).to(DEVICE)
    array[0, 0] = 99
    assert there[0, 0].item() == 0
    back = there.t().cpu().numpy()
    assert back.shape == (4, 3) and back[1, 2] == 9
    there[1, 2] = -1
    assert back[2, 1] == 6
    assert torch.as_tensor(np.flip(array, 0).copy(), device=DEVICE)[2, 0].item() == 99


# ----------------------------------------------------------------------------------------------------------- non_blocking
@pytest.mark.parametrize("pinned", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_non_blocking_copies_arrive(layout, pinned):
    host = build(layout, torch.float32, "cpu")[1]
    wanted = host.clone()
    if pinned:
        host = (host.contiguous() if layout.startswith("expanded") else host).pin_memory()
        assert host.is_pinned()
    there = host.to(DEVICE, non_blocking=True)
    torch.accelerator.synchronize()
    assert torch.equal(bits(there), bits(wanted))
    target = torch.empty(3, 4, pin_memory=pinned)
    target.copy_(there, non_blocking=True)
    torch.accelerator.synchronize()
    assert torch.equal(bits(target), bits(wanted))
    back = there.t().to("cpu", torch.float64, non_blocking=True)
    torch.accelerator.synchronize()
    assert torch.equal(bits(back), bits(wanted.t().double()))
    base, target = build("columns of taller", torch.float32, DEVICE)
    target.copy_(host, non_blocking=True)
    torch.accelerator.synchronize()
    expected, expected_target = build("columns of taller", torch.float32, "cpu")
    expected_target.copy_(wanted)
    same(base, expected)


def test_source_may_change_after_a_blocking_copy():
    host = torch.zeros(1000)
    there = host.to(DEVICE)
    host.fill_(1)
    assert there.sum().item() == 0
    back = there.cpu()
    there.fill_(2)
    assert back.sum().item() == 0 and host.sum().item() == 1000


# --------------------------------------------------------------------------------------------------------------- counters
@pytest.mark.smoke
def test_counters_count_what_crosses():
    torch_accel.reset_counters()
    x = torch.ones(10, 3).to(DEVICE)
    assert copies() == expected_copies("to accel", 1, 120)
    y = x.t()[1:].cpu()
    assert copies()["device_to_host"] == (1, 80)
    x.to("accel", torch.float64)
    x.copy_(torch.ones(10, 3, device=DEVICE)).clone().contiguous()
    x.double().t().contiguous().to(torch.float16)
    assert copies()["device_to_device"] == (0, 0)
    assert copies()["host_to_device"] == (1, 120) and copies()["device_to_host"] == (1, 80)
    x.copy_(torch.ones(10, 3, dtype=torch.float64))
    assert copies()["host_to_device"] == (2, 120 + 240)
    y.copy_(x.t()[1:])
    assert copies()["device_to_host"] == (2, 160)
    x.tolist()
    assert copies()["device_to_host"] == (3, 280)
    torch.ones(5).to(DEVICE, torch.float64)
    assert copies()["host_to_device"][0] == 3
    torch.ones(0).to(DEVICE)
    torch_accel.reset_counters()
    assert copies() == expected_copies("within accel", 0, 0)


def test_operations_copy_nothing_to_the_host():
    x = torch.arange(24.0, device=DEVICE).view(4, 6)
    torch_accel.reset_counters()
    y = (x.t()[1:] @ x).softmax(-1).sum(0)
    y[y > 0.5] = 1
    y[torch.tensor([0, 1])] = 2
    y += 1.5
    torch.cat([y, y]).sort().values.unique()
    x.view(-1)[::2].add_(torch.tensor(2.0))
    assert copies() == expected_copies("within accel", 0, 0)


# ------------------------------------------------------------------------------------------------------- two accel devices
def test_between_two_accel_devices(run_ok):
    run_ok(
        """
        import itertools, sys
        import torch, torch_accel
        sys.path.insert(0, TESTS)
        from layouts import LAYOUTS, WRITABLE, build, same
        first, second = torch.device("accel:0"), torch.device("accel:1")

        for source, target in itertools.product(LAYOUTS, WRITABLE):
            for from_dtype, to_dtype in ((torch.float32, torch.float32), (torch.int64, torch.float16)):
                wanted, there = build(target, to_dtype, "cpu", 1)
                there.copy_(build(source, from_dtype, "cpu", 20)[1])
                for a, b in ((first, second), (second, first)):
                    base, view = build(target, to_dtype, b, 1)
                    values = build(source, from_dtype, a, 20)[1]
                    torch_accel.reset_counters()
                    view.copy_(values, non_blocking=True)
                    counted = torch_accel.counters()["copies"]
                    assert counted["device_to_device"] == {"count": 1, "bytes": 12 * from_dtype.itemsize}, counted
                    assert counted["host_to_device"]["count"] == counted["device_to_host"]["count"] == 0, counted
                    same(base, wanted)
                    moved = values.to(b)
                    assert moved.device == b and values.device == a
                    same(moved, build(source, from_dtype, "cpu", 20)[1].to("cpu", copy=True))
                    assert torch.accel.current_device() == 0

        x = torch.ones(1000, device=first)
        before = [torch.accelerator.memory_allocated(i) for i in (0, 1)]
        y = x.to(second)
        after = [torch.accelerator.memory_allocated(i) for i in (0, 1)]
        assert [b - a for a, b in zip(before, after)] == [0, 4000], (before, after)
        assert x.to(0) is x and y.to(1) is y and y.to(0).device == first and x.accel(1).device == second
        assert x.to("accel") is x
        with torch.accel.device(1):
            assert torch.ones(2).to("accel").device == second and x.cpu().to("accel").device == second
            assert x.to("accel:0") is x
        y.fill_(7)
        assert x.sum().item() == 1000 and y.sum().item() == 7000
        for wrong in (lambda: x + y, lambda: x.add_(y), lambda: torch.cat([x, y]), lambda: torch.add(x, x, out=y),
                      lambda: x.set_(y), lambda: x[torch.tensor([1], device=second)]):
            try:
                wrong()
            except (RuntimeError, ValueError) as error:
                assert "device" in str(error), error
            else:
                raise AssertionError("expected an error for operands on two devices")
        """.replace("TESTS", repr(__file__.rpartition("/")[0])),
        TORCH_ACCEL_BACKEND="cpu,cpu",
    )


# ---------------------------------------------------------------------------------------------------- autograd and the rest
def test_gradients_cross_devices():
    def run(through):
        leaf = torch.arange(6.0).view(2, 3).requires_grad_()
        moved = leaf.t().to(through, torch.float64)
        back = (moved * moved).to("cpu", torch.float32)[1:]
        back.sum().backward()
        return leaf.grad

    same(run(DEVICE), run("cpu"))
    leaf = torch.ones(3, device=DEVICE, requires_grad=True)
    (leaf.cpu() * torch.arange(3.0)).sum().backward()
    assert leaf.grad.device == DEVICE and leaf.grad.tolist() == [0, 1, 2]
    target = torch.zeros(3)
    target.copy_(leaf * 2)
    target.sum().backward()
    assert leaf.grad.tolist() == [2, 3, 4]
    assert leaf.cpu().grad_fn is not None and leaf.detach().cpu().grad_fn is None


@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr, torch.sparse_csc], ids=str)
def test_sparse_tensors_move(layout):
    dense = torch.tensor([[0.0, 2.0, 0.0], [3.0, 0.0, 4.0]])
    there = dense.to_sparse(layout=layout).to(DEVICE)
    assert there.device == DEVICE and there.layout == layout and there.values().device == DEVICE
    assert torch.equal(there.cpu().to_dense(), dense)
    assert torch.equal(there.to_dense().cpu(), dense)
    assert there.to("accel") is there
    assert torch.equal(there.to("cpu", torch.float64).to_dense(), dense.double())


def test_quantized_tensors_move():
    quantized = torch.quantize_per_tensor(torch.arange(6.0).view(2, 3), 0.5, 3, torch.qint8)
    there = quantized.to(DEVICE)
    assert there.device == DEVICE and there.is_quantized and there.q_scale() == 0.5 and there.q_zero_point() == 3
    assert torch.equal(there.cpu().int_repr(), quantized.int_repr())
    assert torch.equal(there.dequantize().cpu(), quantized.dequantize())


def test_foreach_copy():
    for sources in (
        [torch.ones(3), torch.arange(4.0)],
        [torch.ones(3, device=DEVICE), torch.arange(4.0, device=DEVICE)],
    ):
        targets = [torch.zeros(3, device=DEVICE), torch.zeros(8, device=DEVICE)[::2]]
        torch._foreach_copy_(targets, sources)
        assert [t.tolist() for t in targets] == [[1, 1, 1], [0, 1, 2, 3]]


def test_reference_agrees_about_copy_results():
    """clone, contiguous, to: sizes, strides, flags of the results for every layout."""
    for layout in [*LAYOUTS, *SMALL]:
        both(lambda d, layout=layout: build(layout, torch.float32, d)[1].clone())
        both(lambda d, layout=layout: build(layout, torch.float32, d)[1].contiguous())
        both(lambda d, layout=layout: build(layout, torch.float32, d)[1].to(torch.float64))
        both(lambda d, layout=layout: build(layout, torch.float32, d)[1].clone(memory_format=torch.contiguous_format))
