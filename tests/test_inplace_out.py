"""Proves that operators which write into a tensor of the user's write there and nowhere else: in-place operators, out=,
item assignment of every kind; and that operands on several devices work or fail as they do for any other device."""

import functools
import warnings

import numpy as np
import pytest
import torch
from layouts import DEVICE, LAYOUTS, WRITABLE, agree, allocations, bits, both, both_raise, build, numbers, same

import torch_accel

# Torch's notes that a feature is young or will change, the same on every device.
pytestmark = pytest.mark.filterwarnings(
    "ignore:index_reduce",
    "ignore:Using a non-tuple sequence",
    "ignore:.*which does not match the (required|computed)",
    "ignore:indexing with dtype torch.uint8",
)


def ones(d, *size):
    return torch.ones(*size, device=d)


def index(d, *values):
    return torch.tensor(values, device=d)


# ------------------------------------------------------------------------------------------------------------- in place
INPLACE = {
    "add_": lambda x: x.add_(2),
    "add_ alpha": lambda x: x.add_(x.clone(), alpha=3),
    "iadd": lambda x: x.__iadd__(2),
    "imul": lambda x: x.__imul__(x),
    "itruediv": lambda x: x.__itruediv__(3),
    "ipow": lambda x: x.__ipow__(2),
    "ifloordiv": lambda x: x.__ifloordiv__(3),
    "imod": lambda x: x.__imod__(3),
    "mul_ broadcast": lambda x: x.mul_(numbers(torch.float32, 4, x.device)),
    "mul_ broadcast rows": lambda x: x.mul_(numbers(torch.float32, 3, x.device)[:, None]),
    "addcmul_": lambda x: x.addcmul_(x.clone(), x.clone(), value=2),
    "addcdiv_": lambda x: x.addcdiv_(x.clone(), ones(x.device, 3, 4), value=2),
    "addcmul_ transposed": lambda x: x.addcmul_(x.t().clone().t(), ones(x.device, 4, 3).t()),
    "lerp_": lambda x: x.lerp_(ones(x.device, 4), 0.25),
    "neg_": lambda x: x.neg_(),
    "abs_": lambda x: x.abs_(),
    "exp_": lambda x: x.exp_(),
    "sigmoid_": lambda x: x.sigmoid_(),
    "relu_": lambda x: x.relu_(),
    "clamp_": lambda x: x.clamp_(-5, 9),
    "clamp_ tensors": lambda x: x.clamp_(min=x.mean(1, keepdim=True)),
    "round_": lambda x: x.round_(),
    "zero_": lambda x: x.zero_(),
    "fill_": lambda x: x.fill_(4),
    "fill_ tensor": lambda x: x.fill_(torch.tensor(4.5, device=x.device)),
    "fill_ CPU tensor": lambda x: x.fill_(torch.tensor(4.5)),
    "copy_": lambda x: x.copy_(numbers(torch.int64, 12, x.device).view(3, 4)),
    "cumsum_": lambda x: x.cumsum_(1),
    "tril_": lambda x: x.tril_(),
    "fill_diagonal_": lambda x: x.fill_diagonal_(7),
    "masked_fill_": lambda x: x.masked_fill_(x > 3, -1),
    "masked_scatter_": lambda x: x.masked_scatter_(x > 3, numbers(torch.float32, 12, x.device)),
    "index_fill_": lambda x: x.index_fill_(1, index(x.device, 3, 0), 5),
    "index_add_": lambda x: x.index_add_(1, index(x.device, 3, 0, 3), ones(x.device, 3, 3)),
    "index_copy_": lambda x: x.index_copy_(0, index(x.device, 2), numbers(torch.float32, 4, x.device)[None]),
    "index_reduce_": lambda x: x.index_reduce_(0, index(x.device, 2), ones(x.device, 1, 4), "amin"),
    "index_put_": lambda x: x.index_put_((index(x.device, 2, 0), index(x.device, 1, 1)), ones(x.device, 2)),
    "index_put_ accumulate": lambda x: x.index_put_((index(x.device, 2, 2),), ones(x.device, 4), accumulate=True),
    "scatter_": lambda x: x.scatter_(1, index(x.device, [0], [3], [2]), 9.0),
    "scatter_ src": lambda x: x.scatter_(0, index(x.device, [2, 0, 1, 0]), ones(x.device, 1, 4)),
    "scatter_add_": lambda x: x.scatter_add_(0, index(x.device, [2, 0, 1, 0]), ones(x.device, 1, 4)),
    "scatter_reduce_": lambda x: x.scatter_reduce_(0, index(x.device, [2, 0, 1, 0]), ones(x.device, 1, 4), "prod"),
    "put_": lambda x: x.put_(index(x.device, 5, 11), ones(x.device, 2)),
    "addmm_": lambda x: x.addmm_(ones(x.device, 3, 2), ones(x.device, 2, 4)),
    "addr_": lambda x: x.addr_(ones(x.device, 3), ones(x.device, 4)),
    "baddbmm_": lambda x: x[None].baddbmm_(ones(x.device, 1, 3, 2), ones(x.device, 1, 2, 4))[0],
    "renorm_": lambda x: x.renorm_(2, 0, 5),
    "normal_": lambda x: x.normal_(2, 3),
    "uniform_": lambda x: x.uniform_(-1, 1),
    "bernoulli_": lambda x: x.bernoulli_(0.3),
    "exponential_": lambda x: x.exponential_(),
    "random_": lambda x: x.random_(0, 9),
    "dropout_": lambda x: torch.nn.functional.dropout(x, 0.5, inplace=True),
    "hardtanh_": lambda x: torch.nn.functional.hardtanh(x, -2, 2, inplace=True),
    "leaky_relu_": lambda x: torch.nn.functional.leaky_relu(x, 0.1, inplace=True),
    "set diagonal": lambda x: x.diagonal().mul_(-1),
    "out of itself": lambda x: torch.add(x, 1, out=x),
    "eq_": lambda x: x.eq_(3.25),
    "logical_not_": lambda x: x.logical_not_(),
    "nan_to_num_": lambda x: x.div_(0).nan_to_num_(),
    "copysign_": lambda x: x.copysign_(-1),
    "erfinv_": lambda x: x.clamp_(-0.5, 0.5).erfinv_(),
    "resize_ to the same": lambda x: x.resize_(x.shape) if x.is_contiguous() else x,
    "foreach": lambda x: torch._foreach_mul_([x], 3) or x,
    "foreach list": lambda x: torch._foreach_add_([x], [x.clone()], alpha=2) or x,
    "foreach lerp": lambda x: torch._foreach_lerp_([x], [ones(x.device, 3, 4)], 0.5) or x,
    "foreach zero": lambda x: torch._foreach_zero_([x]) or x,
}


@pytest.mark.parametrize("layout", WRITABLE)
@pytest.mark.parametrize("name", INPLACE)
def test_in_place_on_every_layout_leaves_the_neighbours(name, layout):
    def run(d):
        base, x = build(layout, torch.float32, d)
        pointer, storage = x.data_ptr(), x.untyped_storage()._cdata
        result = INPLACE[name](x)
        assert (x.data_ptr(), x.untyped_storage()._cdata) == (pointer, storage)
        return base, x, result

    agree(run)


@pytest.mark.smoke
@pytest.mark.parametrize("name", [n for n in INPLACE if n.endswith("_")])
def test_in_place_returns_the_object_itself(name):
    x = numbers(torch.float32, 12, DEVICE).view(3, 4).clone()
    alias = x.view(3, 4)
    version = x._version
    result = INPLACE[name](x)
    if name not in ("baddbmm_", "dropout_", "hardtanh_", "leaky_relu_"):
        assert result is x
    assert x._version > version and alias._version == x._version
    assert torch.equal(bits(alias), bits(x))


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.float16, torch.complex64, torch.uint8], ids=str)
@pytest.mark.parametrize("layout", ["transposed", "stepped"])
def test_in_place_in_other_dtypes(dtype, layout):
    for write in (
        lambda x: x.add_(2),
        lambda x: x.mul_(2.5),
        lambda x: x.bitwise_xor_(1),
        lambda x: x[:, 0].bitwise_xor_(True),
        lambda x: x[:, 0].fill_(7),
        lambda x: x.sub_(x),
        lambda x: x.div_(2),
        lambda x: x.logical_not_(),
        lambda x: x.copy_(x.clone().t().reshape(3, 4)),
        lambda x: x.pow_(2),
        lambda x: x.masked_fill_(x == x, 1),
    ):

        def run(d, write=write):
            base, x = build(layout, dtype, d)
            write(x)
            return base

        agree(run)


def test_in_place_cannot_change_dtype_or_shape():
    both_raise(lambda d: ones(d, 3).int().add_(1.5))
    both_raise(lambda d: ones(d, 3).add_(ones(d, 2, 3)))
    both_raise(lambda d: ones(d, 3).mul_(1j))
    both_raise(lambda d: ones(d, 3).bool().sub_(True))
    both_raise(lambda d: ones(d, 3).bitwise_and_(1))
    both_raise(lambda d: ones(d, 3).masked_fill_(ones(d, 3), 1))
    both_raise(lambda d: ones(d, 3).index_fill_(0, index(d, 3), 1))
    both_raise(lambda d: ones(d, 3).requires_grad_().add_(1))


def test_versions_of_lists_of_tensors():
    """Kernels that take lists raise the versions of what they were given themselves."""
    for write in (
        lambda a, b: torch._foreach_add_(a, 1),
        lambda a, b: torch._foreach_add_(a, b),
        lambda a, b: torch._foreach_mul_(a, 2.0),
        lambda a, b: torch._foreach_addcmul_(a, b, b),
        lambda a, b: torch._foreach_copy_(a, b),
        lambda a, b: torch._foreach_zero_(a),
        lambda a, b: torch._foreach_sqrt_(a),
        lambda a, b: torch._foreach_lerp_(a, b, 0.5),
    ):

        def run(d, write=write):
            a, b = [ones(d, 3), ones(d, 2, 2).t()], [ones(d, 3), ones(d, 2, 2)]
            write(a, b)
            return a, b

        both(run)


def test_stale_values_are_noticed_after_a_foreach_update():
    def run(d):
        x = ones(d, 3).requires_grad_()
        y = x.exp()
        with torch.no_grad():
            torch._foreach_add_([y], 1)
        y.sum().backward()

    both_raise(run)


# ------------------------------------------------------------------------------------------------------------------ out=
# Results of shape (3, 4), of float32.
OUT = {
    "add": lambda d, out: torch.add(ones(d, 3, 4), 2, out=out),
    "add transposed": lambda d, out: torch.add(ones(d, 4, 3).t(), numbers(torch.float32, 4, d), out=out),
    "mul": lambda d, out: torch.mul(numbers(torch.float32, 3, d)[:, None], numbers(torch.float32, 4, d), out=out),
    "exp": lambda d, out: torch.exp(numbers(torch.float32, 12, d).view(3, 4) / 9, out=out),
    "mm": lambda d, out: torch.mm(numbers(torch.float32, 6, d).view(3, 2), ones(d, 2, 4), out=out),
    "matmul": lambda d, out: torch.matmul(numbers(torch.float32, 6, d).view(3, 2), ones(d, 2, 4), out=out),
    "addmm": lambda d, out: torch.addmm(ones(d, 4), numbers(torch.float32, 6, d).view(3, 2), ones(d, 2, 4), out=out),
    "sum": lambda d, out: torch.sum(numbers(torch.float32, 24, d).view(2, 3, 4), 0, out=out),
    "mean": lambda d, out: torch.mean(numbers(torch.float32, 24, d).view(3, 2, 4), 1, out=out),
    "amax": lambda d, out: torch.amax(numbers(torch.float32, 24, d).view(3, 2, 4), 1, out=out),
    "cumsum": lambda d, out: torch.cumsum(numbers(torch.float32, 12, d).view(3, 4), 0, out=out),
    "cat": lambda d, out: torch.cat([ones(d, 1, 4), numbers(torch.float32, 8, d).view(2, 4)], out=out),
    "stack": lambda d, out: torch.stack([ones(d, 4), numbers(torch.float32, 4, d), ones(d, 4)], out=out),
    "index_select": lambda d, out: torch.index_select(
        numbers(torch.float32, 24, d).view(6, 4), 0, index(d, 5, 0, 2), out=out
    ),
    "gather": lambda d, out: torch.gather(
        numbers(torch.float32, 12, d).view(3, 4), 1, index(d, [0, 1, 1, 0]).expand(3, 4), out=out
    ),
    "take": lambda d, out: torch.take(numbers(torch.float32, 24, d), torch.arange(12, device=d).view(3, 4), out=out),
    "where": lambda d, out: torch.where(ones(d, 3, 4) > 0, numbers(torch.float32, 4, d), ones(d, 1), out=out),
    "clamp": lambda d, out: torch.clamp(numbers(torch.float32, 12, d).view(3, 4), -1, 2, out=out),
    "tril": lambda d, out: torch.tril(numbers(torch.float32, 12, d).view(3, 4), out=out),
    "softmax": lambda d, out: torch.softmax(numbers(torch.float32, 12, d).view(3, 4), 1, out=out),
    "normal": lambda d, out: torch.normal(0.0, 1.0, (3, 4), out=out),
    "zeros": lambda d, out: torch.zeros(3, 4, out=out),
    "full": lambda d, out: torch.full((3, 4), 5.0, out=out),
    "lerp": lambda d, out: torch.lerp(ones(d, 3, 4), numbers(torch.float32, 4, d), 0.5, out=out),
    "pow": lambda d, out: torch.pow(numbers(torch.float32, 12, d).view(3, 4), 2, out=out),
    "einsum into": lambda d, out: out.copy_(torch.einsum("ij,kj->ik", ones(d, 3, 2), ones(d, 4, 2))),
}


@pytest.mark.smoke
@pytest.mark.parametrize("layout", WRITABLE)
@pytest.mark.parametrize("name", OUT)
def test_out_of_every_layout_is_written_in_place_with_its_neighbours_unchanged(name, layout):
    def run(d):
        base, out = build(layout, torch.float32, d)
        pointer, storage, stride = out.data_ptr(), out.untyped_storage()._cdata, out.stride()
        result = OUT[name](d, out)
        assert result is out
        assert (out.data_ptr(), out.untyped_storage()._cdata, out.stride()) == (pointer, storage, stride)
        return base, out

    both(run)


@pytest.mark.parametrize("name", [n for n in OUT if n != "einsum into"])
def test_out_is_resized(name):
    """An empty one in silence, one of another size with a warning; the memory grows when it must."""

    def run(d, size):
        out = torch.full(size, -1.0, device=d)
        alias = out.detach()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            result = OUT[name](d, out)
        assert result is out
        assert out.untyped_storage()._cdata == alias.untyped_storage()._cdata
        assert alias.shape == torch.Size(size)
        out.view(-1)[0] = 99
        if alias.numel():
            assert alias.view(-1)[0].item() == 99
        return out, sorted({str(w.message).partition("(")[0] for w in caught})

    for size in ((0,), (0, 4), (2, 3), (5, 5), (12,), ()):
        torch.manual_seed(0)
        agree(lambda d, size=size: run(d, size))


def test_resized_out_may_be_used_in_every_way():
    out = torch.empty(0, device=DEVICE)
    torch.add(ones(DEVICE, 3, 4), 1, out=out)
    out.add_(1)
    assert out.t()[1:].sum().item() == 27
    assert out.untyped_storage().nbytes() == 48
    assert out.cpu().tolist() == [[3] * 4] * 3
    out.resize_(0)
    torch.arange(5.0, out=out)
    assert out.tolist() == [0, 1, 2, 3, 4]


def test_resized_out_is_counted():
    with allocations() as allocated:
        out = torch.empty(0, device=DEVICE)
        assert allocated()[0] == 0
        torch.arange(1000.0, out=out)
        assert allocated()[0] == 4000
        torch.arange(10.0, out=out)
        assert out.untyped_storage().nbytes() == 4000 and allocated()[0] == 4000
        del out
        assert allocated()[0] == 0


def test_several_outs():
    x = numbers(torch.float32, 12).sin().view(3, 4)

    def run(d):
        values, indices = torch.empty(0, device=d), torch.empty(0, dtype=torch.int64, device=d)
        base, strided = build("columns of taller", torch.float32, d)
        results = [torch.sort(x.to(d), 1, out=(values, indices))]
        assert results[0][0] is values and results[0][1] is indices
        results.append(torch.max(x.to(d), 0, out=(values.resize_(0), indices.resize_(0))))
        assert results[1].values is values
        results.append(torch.topk(x.to(d), 2, out=(torch.empty(3, 2, device=d), torch.empty(3, 2, device=d).long())))
        results.append(torch.sort(x.to(d), 1, out=(strided, torch.empty(3, 4, dtype=torch.int64, device=d))))
        results.append(torch.linalg.qr(x.to(d), out=(torch.empty(0, device=d), torch.empty(0, device=d))))
        results.append(torch.aminmax(x.to(d), dim=0, out=(torch.empty(0, device=d), torch.empty(0, device=d))))
        return [tuple(r) for r in results], base

    both(run)


def test_out_of_another_dtype():
    for dtype in (torch.float64, torch.float16, torch.complex64):
        both(lambda d, dtype=dtype: torch.add(ones(d, 3), 1, out=torch.empty(3, dtype=dtype, device=d)))
    for dtype in (torch.int64, torch.bool, torch.uint8):
        both_raise(lambda d, dtype=dtype: torch.add(ones(d, 3), 1, out=torch.empty(3, dtype=dtype, device=d)))
        both_raise(
            lambda d, dtype=dtype: torch.mm(ones(d, 3, 3), ones(d, 3, 3), out=torch.empty(3, 3, device=d).to(dtype))
        )
    both_raise(lambda d: torch.sort(ones(d, 3), out=(torch.empty(3, device=d), torch.empty(3, device=d))))
    both_raise(lambda d: torch.mm(ones(d, 3, 3), ones(d, 3, 3), out=torch.empty(3, 3, dtype=torch.float64, device=d)))
    both_raise(lambda d: torch.cat([ones(d, 3)], out=torch.empty(3, dtype=torch.int32, device=d)))
    both_raise(lambda d: torch.eq(ones(d, 3), 1, out="x"))
    both(lambda d: torch.eq(ones(d, 3), 1, out=torch.empty(3, device=d)))


def test_out_of_another_device_is_an_error():
    there, here = ones(DEVICE, 3, 3), torch.ones(3, 3)
    for operation in (
        lambda x, out: torch.add(x, x, out=out),
        lambda x, out: torch.mm(x, x, out=out),
        lambda x, out: torch.cat([x], out=out),
        lambda x, out: torch.exp(x, out=out),
        lambda x, out: torch.sum(x, 0, out=out),
        lambda x, out: torch.cumsum(x, 0, out=out),
        lambda x, out: torch.sort(x, out=(out, torch.empty_like(out, dtype=torch.int64))),
        lambda x, out: torch.index_select(x, 0, torch.tensor([0], device=x.device), out=out),
    ):
        for x, out in ((there, torch.empty(3, 3)), (here, torch.empty(3, 3, device=DEVICE))):
            before = out.clone()
            with pytest.raises(RuntimeError, match="device"):
                operation(x, out)
            assert torch.equal(bits(out), bits(before))


def test_out_under_autograd_is_an_error():
    both_raise(lambda d: torch.add(ones(d, 3).requires_grad_(), 1, out=torch.empty(3, device=d)))
    both_raise(lambda d: torch.add(ones(d, 3), 1, out=torch.empty(3, device=d, requires_grad=True)))


@pytest.mark.parametrize(
    "write",
    [
        lambda x: torch.add(x, 1, out=x),
        lambda x: torch.mul(x, x, out=x),
        lambda x: torch.add(x, 1, out=x.t()) if x.shape[0] == x.shape[1] else None,
        lambda x: torch.cat([x[:1], x[1:]], out=x),
        lambda x: torch.add(x[1:], 1, out=x[:-1]),
        lambda x: torch.exp(x.t(), out=x.reshape(4, 3)),
        lambda x: torch.cumsum(x, 0, out=x),
        lambda x: torch.sum(x, 0, out=x[0]),
        lambda x: torch.softmax(x, 1, out=x),
        lambda x: torch.tril(x, out=x),
        lambda x: torch.clamp(x, 0, 1, out=x),
        lambda x: torch.index_select(x, 0, index(x.device, 2, 1, 0), out=x),
        lambda x: torch.gather(x, 0, index(x.device, [2, 1, 0, 0]), out=x),
        lambda x: torch.take(x, index(x.device, [2, 1, 0, 0]), out=x),
        lambda x: torch.where(x > 0, x, x, out=x),
        lambda x: torch.sort(x, 0, out=(x, torch.empty(3, 4, dtype=torch.int64, device=x.device))),
        lambda x: torch.add(x, 1, out=x[0].expand(3, 4)),
        lambda x: torch.arange(12.0, out=x[1:]),
    ],
)
def test_out_that_is_an_input_too(write):
    """Including what is left of the tensor when the operator refuses half-way."""
    error = {}

    def run(d):
        x = numbers(torch.float32, 12, d).view(3, 4).clone()
        try:
            write(x)
        except Exception as caught:
            error[d.type] = type(caught)
        return x, error.get(d.type)

    both(run)


# -------------------------------------------------------------------------------------------------- indexing, assignment
@functools.cache
def kinds(d):
    """Name: index into a tensor of shape (3, 4)."""
    mask = numbers(torch.int64, 12, d).view(3, 4) % 3 == 0
    return {
        "int": 1,
        "ints": (2, -1),
        "slice": slice(1, None),
        "slices": (slice(None), slice(1, 3)),
        "step": (slice(None, None, 2), slice(None, None, 3)),
        "column": (slice(None), 0),
        "ellipsis": (..., 2),
        "all": ...,
        "none": None,
        "none inside": (1, None, slice(2)),
        "empty slice": slice(2, 2),
        "list": [2, 0],
        "lists": ([2, 0], [1, 1]),
        "list and slice": ([2, 0], slice(1, 3)),
        "slice and list": (slice(1, 3), [3, 0, 3]),
        "tensor": index(d, 2, 0),
        "tensor 0-dim": torch.tensor(1, device=d),
        "tensor 2-dim": index(d, [2, 0], [1, 1]),
        "tensor int32": index(d, 2, 0).int(),
        "tensor uint8 mask": (mask.byte()),
        "tensor empty": torch.tensor([], dtype=torch.int64, device=d),
        "tensors": (index(d, 2, 0), index(d, 1, 3)),
        "tensors broadcast": (index(d, [2], [0]), index(d, 1, 3)),
        "tensor after slice": (slice(None), index(d, 2, 0)),
        "tensor and int": (index(d, 2, 0), 1),
        "tensor and none": (index(d, 2, 0), None),
        "negative": index(d, -1, -3),
        "CPU tensor": torch.tensor([2, 0]),
        "CPU tensors": (torch.tensor([2, 0]), torch.tensor([1, 3])),
        "CPU and device tensors": (torch.tensor([2, 0]), index(d, 1, 3)),
        "CPU after slice": (slice(None), torch.tensor([2, 0])),
        "numpy": np.array([2, 0]),
        "numpy bool": np.array([True, False, True]),
        "numpy int": np.int64(1),
        "mask": mask,
        "mask rows": mask[:, 0],
        "mask columns": (slice(None), mask[1]),
        "mask none": torch.zeros(3, 4, dtype=torch.bool, device=d),
        "mask all": torch.ones(3, 4, dtype=torch.bool, device=d),
        "mask transposed": mask.t().contiguous().t(),
        "mask strided": torch.zeros(3, 8, dtype=torch.bool, device=d)[:, ::2].copy_(mask),
        "CPU mask": mask.cpu(),
        "CPU mask rows": mask[:, 0].cpu(),
        "bool": True,
        "False": False,
        "list of bools": [True, False, True],
        "mask 0-dim": torch.tensor(True, device=d),
        "mask and tensor": (mask[:, 0], index(d, 2)),
        "mask and CPU tensor": (mask[:, 0], torch.tensor([2])),
        "range": range(2),
    }


KINDS = list(kinds(torch.device("cpu")))
VALUES = {
    "number": lambda d, like: 7,
    "float": lambda d, like: 2.5,
    "bool": lambda d, like: True,
    "0-dim": lambda d, like: torch.tensor(7.0, device=d),
    "0-dim of CPU": lambda d, like: torch.tensor(7.0),
    "one": lambda d, like: torch.tensor([7.0], device=d),
    "full": lambda d, like: numbers(torch.float32, max(like.numel(), 1), d)[: like.numel()].view(like.shape),
    "full of int": lambda d, like: numbers(torch.int64, max(like.numel(), 1), d)[: like.numel()].view(like.shape),
    "row": lambda d, like: numbers(torch.float32, like.shape[-1], d) if like.dim() else 3,
    "strided": lambda d, like: numbers(torch.float32, max(like.numel(), 1) * 2, d)[: like.numel() * 2 : 2].view(
        like.shape
    ),
}


@pytest.mark.smoke
@pytest.mark.parametrize("layout", ["contiguous", "transposed", "stepped", "expanded", "overlapping"])
def test_reading_by_index(layout):
    for kind in KINDS:
        agree(lambda d, kind=kind: build(layout, torch.float32, d)[1][kinds(d)[kind]])


@pytest.mark.parametrize("layout", ["transposed", "stepped"])
@pytest.mark.parametrize("value", VALUES)
def test_assigning_by_index(value, layout):
    for kind in KINDS:

        def run(d, kind=kind):
            base, x = build(layout, torch.float32, d)
            like = torch.empty(3, 4)[kinds(torch.device("cpu"))[kind]]
            x[kinds(d)[kind]] = VALUES[value](d, like)
            return base, x

        agree(run)


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.bfloat16, torch.complex64, torch.uint8], ids=str)
def test_assigning_in_other_dtypes(dtype):
    for kind in KINDS:

        def run(d, kind=kind):
            base, x = build("transposed", dtype, d)
            x[kinds(d)[kind]] = 1
            x[kinds(d)[kind]] ^= 1 if dtype not in (torch.bfloat16, torch.complex64) else x[kinds(d)[kind]] * 2
            return base, x

        agree(run)


def test_augmented_assignment_by_index():
    for kind in KINDS:
        if kind == "tensor uint8 mask":
            continue

        def run(d, kind=kind):
            base, x = build("columns of taller", torch.float32, d)
            x[kinds(d)[kind]] += 5
            return base

        agree(run)


def test_assigning_a_cpu_tensor():
    """Slices take one, as copy_ does; positions do not, as on any device."""
    x = torch.zeros(3, 4, device=DEVICE)
    x[1] = torch.arange(4.0)
    x[:, 1:3] = torch.full((3, 2), 7.0, dtype=torch.float64)
    x[...] += torch.tensor(1.0)
    assert x.tolist() == [[1, 8, 8, 1], [1, 8, 8, 4], [1, 8, 8, 1]]
    x[torch.tensor([0])] = torch.tensor(5.0)
    x[x == 8] = torch.tensor(6)
    assert x.tolist() == [[5, 5, 5, 5], [1, 6, 6, 4], [1, 6, 6, 1]]
    before = x.clone()
    for key in (torch.tensor([0, 1]), torch.tensor([0, 1], device=DEVICE), x > 4):
        with pytest.raises(RuntimeError, match="device"):
            x[key] = torch.ones(x[key].shape)
    assert torch.equal(x, before)


def test_bad_indices_raise_the_same_errors():
    for key in (3, -4, (0, 4), (0, 0, 0), "x", 1.5, [3], [[0], [9]], slice(None, None, -1), slice(None, None, 0)):
        both_raise(lambda d, key=key: numbers(torch.float32, 12, d).view(3, 4)[key])
        both_raise(lambda d, key=key: numbers(torch.float32, 12, d).view(3, 4).__setitem__(key, 1))
    for key in (
        lambda d: index(d, 3),
        lambda d: index(d, -4),
        lambda d: (index(d, 0, 1), index(d, 0, 1, 2)),
        lambda d: torch.ones(3, 3, dtype=torch.bool, device=d),
        lambda d: torch.ones(4, dtype=torch.bool, device=d),
        lambda d: index(d, 1.0),
    ):
        both_raise(lambda d, key=key: numbers(torch.float32, 12, d).view(3, 4)[key(d)])
        both_raise(lambda d, key=key: numbers(torch.float32, 12, d).view(3, 4).__setitem__(key(d), 1))
    both_raise(lambda d: ones(d, 3, 4).__setitem__(0, ones(d, 5)))
    both_raise(lambda d: ones(d, 3, 4).__setitem__(index(d, 0), ones(d, 5)))
    both_raise(lambda d: ones(d, 3, 4).__setitem__(ones(d, 3, 4) > 0, ones(d, 5)))
    both_raise(lambda d: torch.tensor(1.0, device=d)[0])
    both_raise(lambda d: ones(d, 3, 4).__delitem__(0))


MASKED = {
    "masked_fill": lambda x, m: x.masked_fill(m, 3),
    "masked_fill tensor": lambda x, m: x.masked_fill(m, torch.tensor(3.0, device=x.device)),
    "masked_fill CPU scalar": lambda x, m: x.masked_fill(m, torch.tensor(3.0)),
    "masked_select": lambda x, m: x.masked_select(m),
    "masked_scatter": lambda x, m: x.masked_scatter(m, numbers(torch.float32, 12, x.device)),
    "where": lambda x, m: torch.where(m, x, -x),
    "where scalar": lambda x, m: torch.where(m, x, 0),
    "where CPU scalar": lambda x, m: torch.where(m, torch.tensor(1.5), x),
    "where alone": lambda x, m: torch.where(m),
    "nonzero": lambda x, m: m.nonzero(),
    "nonzero tuple": lambda x, m: m.nonzero(as_tuple=True),
    "argwhere": lambda x, m: torch.argwhere(m),
    "count_nonzero": lambda x, m: m.count_nonzero(),
    "index_put": lambda x, m: x.index_put((m,), torch.tensor(3.0, device=x.device)),
    "index_put accumulate": lambda x, m: x.index_put((m,), torch.tensor(3.0, device=x.device), accumulate=True),
    "any": lambda x, m: (m.any(), m.all(0)),
    "logical": lambda x, m: m & ~m | (m ^ True),
    "bool sum": lambda x, m: m.sum(),
    "take": lambda x, m: x.take(torch.tensor([3, -1], device=x.device)),
    "select_scatter": lambda x, m: x.select_scatter(torch.zeros(4, device=x.device), 0, 1),
    "slice_scatter": lambda x, m: x.slice_scatter(torch.zeros(3, 2, device=x.device), 1, 1, 3),
    "diagonal_scatter": lambda x, m: x.diagonal_scatter(torch.zeros(3, device=x.device)),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", MASKED)
def test_masks(name, layout):
    def run(d):
        x = build(layout, torch.float32, d)[1]
        mask = build(layout, torch.bool, d)[1]
        return MASKED[name](x, mask)

    both(run)


def test_results_of_nonzero_can_be_printed_and_indexed_with():
    x = torch.tensor([[0.0, 1.0], [2.0, 0.0]], device=DEVICE)
    where = x.nonzero()
    assert where.stride() == torch.tensor([[0.0, 1.0], [2.0, 0.0]]).nonzero().stride()
    assert repr(where) == "tensor([[0, 1],\n        [1, 0]], device='accel:0')"
    assert x[where[:, 0], where[:, 1]].tolist() == [1, 2]


# -------------------------------------------------------------------------------------- operands on more than one device
SCALARS = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "div": torch.div,
    "pow": torch.pow,
    "maximum": torch.maximum,
    "eq": torch.eq,
    "gt": torch.gt,
    "atan2": torch.atan2,
    "where": lambda a, b: torch.where(a > 2, a, b),
    "floor_divide": torch.floor_divide,
    "clamp": lambda a, b: torch.clamp(a, max=b),
    "xlogy": torch.xlogy,
}


@pytest.mark.parametrize("name", SCALARS)
def test_cpu_scalar_tensors_are_operands(name):
    """The result is on accel, its dtype that of a 0-dim operand, whichever side the scalar is on."""
    for dtype in (torch.float32, torch.int64, torch.bfloat16):
        for scalar_dtype in (torch.float32, torch.float64, torch.int64):
            x = numbers(dtype, 6, start=30).view(2, 3).t()
            scalar = torch.tensor(3, dtype=scalar_dtype)
            there = x.to(DEVICE)
            torch_accel.reset_counters()
            left = SCALARS[name](there, scalar)
            assert left.device == DEVICE
            same(left, SCALARS[name](x, scalar))
            if name != "clamp":
                right = SCALARS[name](scalar, there)
                assert right.device == DEVICE
                same(right, SCALARS[name](scalar, x))
            assert torch_accel.counters()["copies"]["host_to_device"]["count"] == 0
            assert scalar.device.type == "cpu" and scalar.item() == 3


def test_cpu_scalar_tensors_in_place():
    x = torch.arange(3.0, device=DEVICE)
    x.add_(torch.tensor(2.0)).mul_(torch.tensor(3, dtype=torch.int64))
    x += torch.tensor(1.0, dtype=torch.float64)
    x.addcmul_(x.clone(), torch.tensor(2.0))
    assert x.tolist() == [21, 30, 39]
    x.fill_(torch.tensor(4.0))
    x.clamp_(max=torch.tensor(3.5))
    assert x.tolist() == [3.5] * 3
    torch._foreach_mul_([x], torch.tensor(2.0))
    assert x.tolist() == [7] * 3


def test_cpu_results_do_not_come_from_accel_scalars():
    host, there = torch.ones(3), torch.tensor(2.0, device=DEVICE)
    with pytest.raises(RuntimeError, match="device"):
        host.add_(there)
    with pytest.raises(RuntimeError, match="device"):
        torch.add(host, there)
    with pytest.raises(RuntimeError, match="device"):
        torch.tensor(1.0).add_(there)
    assert host.tolist() == [1, 1, 1]
    scalar = torch.tensor(1.0) + there
    assert scalar.device == DEVICE and scalar.item() == 3


MIXED = {
    "add": lambda a, b: a + b,
    "add reversed": lambda a, b: b + a,
    "add_": lambda a, b: a.add_(b),
    "add_ of CPU": lambda a, b: b.add_(a),
    "mm": lambda a, b: a @ b,
    "cat": lambda a, b: torch.cat([a, b]),
    "stack": lambda a, b: torch.stack([a, b]),
    "linear": lambda a, b: torch.nn.functional.linear(a, b),
    "linear module": lambda a, b: torch.nn.Linear(3, 2)(a),
    "embedding": lambda a, b: torch.nn.functional.embedding(b.long(), a),
    "embedding module": lambda a, b: torch.nn.Embedding(3, 2, device=DEVICE)(b.long()),
    "conv1d": lambda a, b: torch.nn.functional.conv1d(a[None], b[None]),
    "where": lambda a, b: torch.where(a > 0, a, b),
    "gather": lambda a, b: a.gather(0, b.long()),
    "index_select": lambda a, b: a.index_select(0, b[0].long()),
    "scatter_": lambda a, b: a.scatter_(0, b.long(), 1.0),
    "masked_fill_": lambda a, b: a.masked_fill_(b > 0, 1),
    "masked_select": lambda a, b: a.masked_select(b > 0),
    "index_add_": lambda a, b: a.index_add_(0, torch.arange(3), a),
    "lerp": lambda a, b: a.lerp(b, 0.5),
    "addcmul": lambda a, b: a.addcmul(b, b),
    "foreach": lambda a, b: torch._foreach_add([a], [b]),
    "foreach_": lambda a, b: torch._foreach_add_([a], [b]),
    "cross_entropy": lambda a, b: torch.nn.functional.cross_entropy(a, b[0].long()),
    "cdist": lambda a, b: torch.cdist(a, b),
    "einsum": lambda a, b: torch.einsum("ij,jk", a, b),
    "equal": torch.equal,
    "set_": lambda a, b: a.set_(b),
    "CPU indexed by accel": lambda a, b: b[a[0].long()],
    "CPU masked by accel": lambda a, b: b[a > 0],
    "backward": lambda a, b: (a.requires_grad_() * 1).backward(b),
    "searchsorted": lambda a, b: torch.searchsorted(a, b),
    "lstm": lambda a, b: torch.nn.LSTM(3, 3, device=DEVICE)(a, (b[:1], b[:1])),
    "batch_norm": lambda a, b: torch.nn.functional.batch_norm(a, b[0], b[1], training=True),
}


@pytest.mark.smoke
@pytest.mark.parametrize("name", MIXED)
def test_operands_on_two_devices_are_an_error_that_harms_nothing(name):
    there, here = torch.eye(3, device=DEVICE), torch.eye(3)
    with pytest.raises((RuntimeError, ValueError), match="device|accel") as caught:
        MIXED[name](there, here)
    assert "INTERNAL ASSERT" not in str(caught.value)
    assert there.device == DEVICE and here.device.type == "cpu"
    assert there.tolist() == here.tolist() == torch.eye(3).tolist()
    assert (there @ there).tolist() == there.tolist()


@pytest.mark.parametrize("name", ["add", "mm", "cat", "where", "lerp", "add_", "foreach"])
def test_the_error_names_both_devices(name):
    with pytest.raises(RuntimeError) as caught:
        MIXED[name](torch.eye(3, device=DEVICE), torch.eye(3))
    assert "Expected all tensors to be on the same device" in str(caught.value)
    assert "accel:0" in str(caught.value) and "cpu" in str(caught.value)


def test_cpu_index_tensors_stay_on_the_cpu():
    x = numbers(torch.float32, 12, DEVICE).view(3, 4)
    where = torch.tensor([2, 0])
    torch_accel.reset_counters()
    assert x[where].tolist() == numbers(torch.float32, 12).view(3, 4)[where].tolist()
    x[where, 1] = 5
    x.index_put_((where, torch.tensor([0, 0])), torch.tensor(1.0, device=DEVICE))
    assert where.device.type == "cpu" and where.tolist() == [2, 0]
    assert x[:, :2].tolist() == [[1, 5], [x[1, 0].item(), x[1, 1].item()], [1, 5]]
    assert torch_accel.counters()["fallbacks"] == {}


def test_errors_inside_kernels_leave_operands_as_they_were():
    x, where = torch.arange(6.0, device=DEVICE), torch.tensor([9], device=DEVICE)
    pointer = x.data_ptr()
    for wrong in (
        lambda: x[where],
        lambda: x.index_put_((where,), torch.ones(1, device=DEVICE)),
        lambda: torch.mm(x.view(2, 3), x.view(2, 3)),
        lambda: torch.linalg.cholesky(-torch.eye(2, device=DEVICE)),
        lambda: torch.cat([x, x.view(2, 3)], out=torch.empty(0, device=DEVICE)),
        lambda: x.view(2, 3).index_select(0, where),
    ):
        with pytest.raises((RuntimeError, IndexError)):
            wrong()
    assert x.device == where.device == DEVICE and x.data_ptr() == pointer
    assert x.tolist() == list(range(6)) and where.tolist() == [9]
