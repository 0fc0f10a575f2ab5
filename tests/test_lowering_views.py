"""Strided reads and writes lower to what torch's views do: random layouts, chains of views, partial writes, dtype views."""

import os

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tracing import check

EXAMPLES = int(os.environ.get("TORCH_ACCEL_VIEW_EXAMPLES", "300"))


@pytest.fixture(autouse=True)
def no_fallbacks():
    """Lowering needs no device, so nothing of it is set up here."""
    torch.manual_seed(0)


def base(dtype: torch.dtype, sizes, order=None) -> torch.Tensor:
    """Distinct small numbers, dense in the given order of dimensions."""
    order = list(range(len(sizes))) if order is None else order
    count = torch.Size(sizes).numel()
    flat = torch.arange(1, count + 1)
    flat = flat % 2 if dtype == torch.bool else flat.to(dtype)
    inverse = sorted(range(len(order)), key=lambda i: order[i])
    return flat.to(dtype).reshape([sizes[i] for i in order]).permute(inverse)


@pytest.mark.smoke
@pytest.mark.parametrize(
    "view",
    [
        lambda x: x.t(),
        lambda x: x[1:3, ::2],
        lambda x: x[2],
        lambda x: x[:, 3],
        lambda x: x.reshape(3, 2, 4).transpose(0, 2),
        lambda x: x.as_strided((12,), (1,), 5),
        lambda x: x.as_strided((5,), (3,), 1),
        lambda x: x.diagonal(1),
        lambda x: x[:, None].expand(6, 5, 4),
        lambda x: x.unfold(1, 2, 1),
        lambda x: x.as_strided((3, 3), (2, 3), 1),
        lambda x: x.as_strided((2, 4, 3), (7, 2, 1), 3),
        lambda x: x[:0],
    ],
)
def test_reads_and_writes(view):
    check(lambda x: view(x).clone(), base(torch.float32, (6, 4)), exact=True)
    check(lambda x: view(x) * 2, base(torch.int64, (6, 4), [1, 0]), exact=True)
    if view(torch.zeros(6, 4)).numel() == len(set(view(torch.arange(24).view(6, 4)).reshape(-1).tolist())):
        check(lambda x: view(x).mul_(3), base(torch.float32, (6, 4)), exact=True)
        check(lambda x: view(x).fill_(-1), base(torch.int32, (6, 4), [1, 0]), exact=True)


@pytest.mark.parametrize(
    "source, target",
    [
        (torch.float32, torch.int32),
        (torch.int64, torch.int16),
        (torch.uint8, torch.float32),
        (torch.complex64, torch.float32),
        (torch.float32, torch.complex64),
        (torch.complex64, torch.int64),
        (torch.complex128, torch.complex64),
        (torch.bfloat16, torch.int16),
        (torch.bfloat16, torch.float32),
        (torch.bool, torch.uint8),
        (torch.uint8, torch.bool),
        (torch.float64, torch.uint8),
    ],
)
def test_dtype_views(source, target):
    x = base(source, (4, 8)) if target != torch.bool else base(torch.uint8, (4, 8)) % 2
    check(lambda x: x.view(target)[1:].clone(), x, exact=True)

    def partial(x):
        part = x.view(target)[1:3]
        part.copy_(part.flip(0))

    check(partial, x.clone(), exact=True)


def test_write_into_a_storage_with_gaps():
    storage = torch.arange(40.0)
    check(lambda s, x: x.copy_(x * 2), storage, storage.as_strided((3, 4), (11, 2), 2), exact=True)
    check(lambda x: x[1:].add_(x[0]), torch.arange(40.0).as_strided((3, 4), (1, 9), 1), exact=True)


def test_empty_and_scalar_layouts():
    check(lambda x: x[2].clone(), torch.arange(5.0), exact=True)
    check(lambda x: x.expand(3, 4) + 1, torch.tensor(2.0), exact=True)
    check(lambda x: x[:, :0].reshape(0) + 1, torch.ones(2, 3), exact=True)
    check(lambda x: x.squeeze().unsqueeze(1).clone(), torch.ones(1, 3, 1), exact=True)


# ------------------------------------------------------------------------------------------------ properties
@st.composite
def bases(draw):
    sizes = draw(st.lists(st.integers(1, 5), min_size=1, max_size=4))
    order = draw(st.permutations(range(len(sizes))))
    dtype = draw(st.sampled_from([torch.float32, torch.int64, torch.uint8, torch.bool, torch.complex64, torch.float64]))
    return base(dtype, sizes, order)


@st.composite
def overlapping(draw):
    """as_strided parameters: (sizes, strides, offset) as fractions of the storage; any overlap."""
    sizes = draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    strides = draw(st.lists(st.integers(0, 7), min_size=len(sizes), max_size=len(sizes)))
    return sizes, strides, draw(st.integers(0, 6))


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("transpose"), st.integers(0, 5), st.integers(0, 5)),
        st.tuples(st.just("slice"), st.integers(0, 5), st.integers(0, 3), st.integers(1, 3)),
        st.tuples(st.just("select"), st.integers(0, 5), st.integers(0, 5)),
        st.tuples(st.just("unsqueeze"), st.integers(0, 5)),
        st.tuples(st.just("expand"), st.integers(0, 5), st.integers(2, 3)),
        st.tuples(st.just("unfold"), st.integers(0, 5), st.integers(1, 3), st.integers(1, 2)),
        st.tuples(st.just("diagonal"), st.integers(-2, 2)),
        st.tuples(st.just("flatten")),
        st.tuples(st.just("split"), st.integers(0, 5), st.integers(2, 3)),
        st.tuples(
            st.just("dtype"), st.sampled_from([torch.uint8, torch.int32, torch.float32, torch.int64, torch.int16])
        ),
        st.tuples(st.just("strided"), overlapping()),
    ),
    max_size=5,
)


def apply(x: torch.Tensor, step) -> torch.Tensor:
    """One view; x itself where the step does not fit."""
    name, *arguments = step if isinstance(step, tuple) else (step,)
    if name == "strided":
        sizes, strides, offset = arguments[0]
        reach = offset + sum((n - 1) * s for n, s in zip(sizes, strides, strict=True))
        return x.as_strided(sizes, strides, offset) if reach < x.untyped_storage().nbytes() // x.dtype.itemsize else x
    if name == "dtype":
        if torch.bool in (x.dtype, arguments[0]):
            return x
        try:
            return x.view(arguments[0])
        except RuntimeError:
            return x
    if name == "flatten":
        try:
            return x.view(-1)
        except RuntimeError:
            return x
    if name == "diagonal":
        return x.diagonal(arguments[0]) if x.dim() >= 2 else x
    if name == "unsqueeze":
        return x.unsqueeze(arguments[0] % (x.dim() + 1)) if x.dim() < 5 else x
    if x.dim() == 0:
        return x
    dim = arguments[0] % x.dim()
    if name == "transpose":
        return x.transpose(dim, arguments[1] % x.dim())
    if name == "slice":
        return x[(slice(None),) * dim + (slice(arguments[1], None, arguments[2]),)]
    if name == "select":
        return x.select(dim, arguments[1] % x.shape[dim]) if x.shape[dim] else x
    if name == "expand":
        return x.expand([arguments[1] if i == dim else -1 for i in range(x.dim())]) if x.shape[dim] == 1 else x
    if name == "unfold":
        return x.unfold(dim, arguments[1], arguments[2]) if arguments[1] <= x.shape[dim] and x.dim() < 5 else x
    if name == "split":
        return (
            x.unflatten(dim, (arguments[1], -1))
            if x.shape[dim] and x.shape[dim] % arguments[1] == 0 and x.dim() < 5
            else x
        )
    raise AssertionError(name)


def overlaps(x: torch.Tensor) -> bool:
    positions = torch.arange(x.untyped_storage().nbytes() // x.dtype.itemsize).as_strided(
        x.shape, x.stride(), x.storage_offset()
    )
    return positions.unique().numel() < x.numel()


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(bases(), STEPS, STEPS, st.booleans())
def test_random_chains_of_views(x, steps, later, write):
    def fn(x):
        view = x
        for step in steps:
            view = apply(view, step)
        if write and not overlaps(view):
            view.copy_(view.flip(0) if view.dim() else view.logical_not())
        result = view.clone()
        for step in later:
            view = apply(view, step)
        if write and not overlaps(view):
            view.zero_()
        return result, view.clone()

    check(fn, x.clone(), exact=True)
