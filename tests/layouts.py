"""Tensors in every layout, with guard elements around them, and comparisons to the bit between two devices."""

import contextlib
import gc
import re

import torch
from helpers import reference

DEVICE = torch.device("accel", 0)

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
    torch.float8_e4m3fn,
    torch.float8_e4m3fnuz,
    torch.float8_e5m2,
    torch.float8_e5m2fnuz,
    torch.float8_e8m0fnu,
    torch.complex32,
    torch.complex64,
    torch.complex128,
]

# Size, stride and offset in a buffer of SPAN elements. What the view does not show are the guards.
SPAN = 64
LAYOUTS = {
    "contiguous": ((3, 4), (4, 1), 0),
    "offset": ((3, 4), (4, 1), 5),
    "transposed": ((3, 4), (1, 3), 5),
    "stepped": ((3, 4), (16, 2), 3),
    "rows of wider": ((3, 4), (9, 1), 2),
    "columns of taller": ((3, 4), (1, 7), 2),
    "expanded": ((3, 4), (0, 1), 7),
    "expanded columns": ((3, 4), (1, 0), 7),
    "overlapping": ((3, 4), (2, 1), 1),
}
WRITABLE = [name for name in LAYOUTS if not name.startswith(("expanded", "overlapping"))]
SMALL = {
    "empty": ((0, 4), (4, 1), 2),
    "empty columns": ((3, 0), (1, 7), 2),
    "empty at the end": ((0,), (1,), SPAN),
    "0-dim": ((), (), 9),
    "one element": ((1, 1), (5, 3), 9),
}


def numbers(dtype, count=SPAN, device="cpu", start=0):
    """Tensor of shape (count,) of easily told values, made on the CPU and then moved."""
    steps = torch.arange(start, start + count)
    if dtype == torch.bool:
        values = steps % 3 == 0
    elif dtype.is_complex:
        values = torch.complex(steps * 0.5 - 3, 7 - steps * 0.25)
    elif dtype.is_floating_point:
        values = steps * 0.75 - 11
    elif dtype.is_signed:
        values = steps - 20
    else:
        values = steps + 3
    return values.to(dtype).to(device)


def build(layout, dtype, device, start=0):
    """A buffer of SPAN elements and the view of it in `layout`, one of LAYOUTS or SMALL."""
    base = numbers(dtype, device=device, start=start)
    return base, base.as_strided(*(LAYOUTS | SMALL)[layout])


def bits(tensor):
    """The elements' bytes in order, on the CPU: shape (bytes,), uint8."""
    # as_strided: one element may have any stride, which view(dtype) refuses.
    host = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    return host.as_strided((host.numel(),), (1,)).view(torch.uint8)


FACTS = {
    "dtype": lambda t: t.dtype,
    "layout": lambda t: t.layout,
    "size": lambda t: t.size(),
    "stride": lambda t: t.stride(),
    "offset": lambda t: t.storage_offset(),
    "storage bytes": lambda t: t.untyped_storage().nbytes(),
    "conj": lambda t: t.is_conj(),
    "neg": lambda t: t.is_neg(),
    "requires_grad": lambda t: t.requires_grad,
    "leaf": lambda t: t.is_leaf,
    "view": lambda t: t._is_view(),
    "version": lambda t: t._version,
    "type": lambda t: type(t),
}


def same(actual, expected, where="result", values=True):
    """Assert that two results agree in everything that a user can see, but for the device."""
    if isinstance(expected, torch.Tensor):
        for name, fact in FACTS.items():
            assert fact(actual) == fact(expected), f"{where}: {name} is {fact(actual)}, expected {fact(expected)}"
        if values:
            assert torch.equal(bits(actual), bits(expected)), f"{where}:\n{actual}\nexpected\n{expected}"
    elif isinstance(expected, (list, tuple)):
        assert type(actual) is type(expected) and len(actual) == len(expected), f"{where}: {actual}, not {expected}"
        for i, pair in enumerate(zip(actual, expected, strict=True)):
            same(*pair, f"{where}[{i}]", values)
    elif isinstance(expected, dict):
        assert list(actual) == list(expected), f"{where}: keys {list(actual)}, expected {list(expected)}"
        for key in expected:
            same(actual[key], expected[key], f"{where}[{key!r}]", values)
    else:
        assert actual == expected, f"{where}: {actual!r}, expected {expected!r}"


def outcome(function, device):
    """The result of `function(device)` from a fixed seed, and the exception that it raised, if any."""
    torch.manual_seed(0)
    try:
        return function(device), None
    except Exception as error:
        return None, error


def both(function, values=True):
    """Assert that `function(device)` gives on accel what it gives on the reference device. Returns accel's result."""
    torch.manual_seed(0)
    expected = function(reference())
    torch.manual_seed(0)
    actual = function(DEVICE)
    same(actual, expected, values=values)
    return actual


def neutral(text):
    """The text of an error without the names of devices and of tensor types on them."""
    text = re.sub(r"\b(torch\.(cuda\.)?|accel|cuda|CUDA|CPU)(\w*?)(Tensor|Type)\b", r"<type \3>", text)
    return re.sub(r"accel(:0)?|cpu|cuda(:0)?|PrivateUse1|CPU|CUDA", "<device>", text)


def same_error(actual, expected, text=True):
    """Assert that accel raised an error of the same type as the reference device, of the same text too unless told
    otherwise."""
    assert type(actual) is type(expected), f"{actual!r}, expected {expected!r}"
    if text:
        assert neutral(str(actual)) == neutral(str(expected))


def both_raise(function, text=True):
    """Assert that `function(device)` raises the same on both devices."""
    _, expected = outcome(function, reference())
    assert expected is not None, "the reference device did not raise"
    same_error(outcome(function, DEVICE)[1], expected, text)


def agree(function):
    """`both`, or `both_raise` where the reference device raises."""
    expected, error = outcome(function, reference())
    if error is not None:
        same_error(outcome(function, DEVICE)[1], error)
    else:
        torch.manual_seed(0)
        same(function(DEVICE), expected)


@contextlib.contextmanager
def allocations():
    """Inside, no garbage is collected that others left. Yields a function that gives the bytes allocated on accel since
    the start and the highest value that figure had."""
    gc.disable()
    try:
        torch.accelerator.reset_peak_memory_stats()
        before = torch.accelerator.memory_allocated()
        yield lambda: (torch.accelerator.memory_allocated() - before, torch.accelerator.max_memory_allocated() - before)
    finally:
        gc.enable()


def held(size):
    """Bytes that the reference device's allocator counts for a request of `size`."""
    return size if reference().type == "cpu" else -(-size // 512) * 512
