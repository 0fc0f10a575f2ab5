"""Proves sparse tensors of all layouts: making them, their parts, arithmetic, products, gradients, copies, printing; bit for bit
against the native device."""

import copy
import io

import pytest
import torch
from helpers import check, check_grads, on_accel, same

pytestmark = pytest.mark.filterwarnings("ignore:Sparse (CSR|CSC|BSR|BSC|invariant).*:UserWarning")

LAYOUTS = {
    "coo": lambda t: t.to_sparse_coo(),
    "csr": lambda t: t.to_sparse_csr(),
    "csc": lambda t: t.to_sparse_csc(),
    "bsr": lambda t: t.to_sparse_bsr((2, 2)),
    "bsc": lambda t: t.to_sparse_bsc((2, 2)),
}
PARTS = {
    torch.sparse_coo: ("_indices", "_values"),
    torch.sparse_csr: ("crow_indices", "col_indices", "values"),
    torch.sparse_bsr: ("crow_indices", "col_indices", "values"),
    torch.sparse_csc: ("ccol_indices", "row_indices", "values"),
    torch.sparse_bsc: ("ccol_indices", "row_indices", "values"),
}


def matrix(rows=6, columns=4, dtype=torch.float32):
    dense = torch.randn(rows, columns).to(dtype)
    return torch.where(torch.rand(rows, columns) > 0.5, dense, torch.zeros_like(dense))


def parts(tensor):
    return [getattr(tensor, name)().clone() for name in PARTS[tensor.layout]]


def facts(tensor):
    """Everything there is to compare of a sparse tensor."""
    coalesced = tensor.is_coalesced() if tensor.layout == torch.sparse_coo else None
    return {
        "parts": parts(tensor),
        "shape": tuple(tensor.shape),
        "dtype": tensor.dtype,
        "nnz": tensor._nnz(),
        "c": coalesced,
    }


# ------------------------------------------------------------------------------------------------------------ making, parts
@pytest.mark.smoke
@pytest.mark.parametrize("layout", LAYOUTS)
def test_dense_to_sparse_and_back(layout):
    def run(dense):
        sparse = LAYOUTS[layout](dense)
        assert sparse.device == dense.device
        return facts(sparse), sparse.to_dense(), facts(LAYOUTS[layout](dense.t().contiguous()))

    for dtype in (torch.float32, torch.float64, torch.int64, torch.bool, torch.complex64, torch.bfloat16):
        check(run, matrix(dtype=dtype))


@pytest.mark.parametrize("target", LAYOUTS)
@pytest.mark.parametrize("source", LAYOUTS)
def test_conversions_between_layouts(source, target):
    options = {"blocksize": (2, 2)} if target.startswith("b") else {}

    def run(dense):
        sparse = LAYOUTS[source](dense)
        return facts(sparse.to_sparse(layout=getattr(torch, f"sparse_{target}"), **options))

    dense, outcomes = matrix(), []
    for device in ("cpu", "accel"):
        try:
            outcomes.append(run(dense.to(device)))
        except (RuntimeError, ValueError) as error:
            outcomes.append(type(error))
    same(outcomes[1], outcomes[0])


def test_coo_from_parts():
    indices, values = torch.tensor([[0, 1, 1, 0], [2, 0, 2, 2]]), torch.randn(4)
    check(lambda i, v: facts(torch.sparse_coo_tensor(i, v, (3, 4))), indices, values)
    check(lambda i, v: facts(torch.sparse_coo_tensor(i, v)), indices, values)
    check(
        lambda i, v: facts(torch.sparse_coo_tensor(i, v[:, None].expand(4, 2), (3, 4, 2)).coalesce()), indices, values
    )
    made = torch.sparse_coo_tensor(indices, values, (3, 4), device="accel")
    assert made.device.type == "accel" and made._values().device.type == made._indices().device.type == "accel"
    assert torch.sparse_coo_tensor([[0], [1]], [2.0], (2, 2), device="accel").to_dense().tolist() == [[0, 2], [0, 0]]
    assert torch.sparse_coo_tensor((2, 3), device="accel")._nnz() == 0
    assert torch.zeros(2, 3, layout=torch.sparse_coo, device="accel").to_dense().sum().item() == 0
    assert torch.empty(2, 3, layout=torch.sparse_coo, device="accel").device.type == "accel"
    assert torch.zeros_like(made)._nnz() == 0 and torch.empty_like(made).layout == torch.sparse_coo
    for device in ("cpu", "accel"):
        with pytest.raises(RuntimeError, match="out of bounds|inconsistent with"):
            torch.sparse_coo_tensor([[5], [0]], [1.0], (2, 2), device=device, check_invariants=True)


@pytest.mark.parametrize("layout", ["csr", "csc", "bsr", "bsc"])
def test_compressed_from_parts(layout):
    make = getattr(torch, f"sparse_{layout}_tensor")
    block = layout.startswith("b")
    outer, inner = torch.tensor([0, 2, 3]), torch.tensor([0, 1, 1])
    values = torch.randn(3, 2, 2) if block else torch.randn(3)
    shape = (4, 4) if block else (2, 2)
    for index in (torch.int64, torch.int32):
        check(lambda o, i, v: facts(make(o, i, v, shape)), outer.to(index), inner.to(index), values)
    made = make(outer, inner, values, shape, device="accel")
    assert made.device.type == "accel" and made.values().device.type == "accel"
    same(made.to_dense(), make(outer, inner, values, shape).to_dense())
    for device in ("cpu", "accel"):
        with pytest.raises(RuntimeError, match="."):
            make(outer, inner + 7, values, shape, device=device, check_invariants=True)


def test_coalesce_and_parts():
    def run(i, v):
        sparse = torch.sparse_coo_tensor(i, v, (3, 4))
        done = sparse.coalesce()
        assert not sparse.is_coalesced() and done.is_coalesced()
        return facts(done), done.indices(), done.values(), sparse.sparse_dim(), sparse.dense_dim(), done.to_dense()

    check(run, torch.tensor([[0, 1, 1, 0], [2, 0, 2, 2]]), torch.randn(4))
    with pytest.raises(RuntimeError, match="uncoalesced"):
        torch.sparse_coo_tensor([[0, 0]], [1.0, 2.0], (2,), device="accel").indices()


def test_parts_share_memory_with_the_tensor():
    made = matrix().to("accel").to_sparse_csr()
    made.values().mul_(2)
    same(made.to_dense(), made.cpu().to_dense())
    coo = made.to_sparse_coo().coalesce()
    before = coo.to_dense()
    coo.values().zero_()
    assert coo.to_dense().abs().sum().item() == 0 and before.abs().sum().item() > 0


# ---------------------------------------------------------------------------------------------------------------- arithmetic
ARITHMETIC = {
    "add": lambda a, b: a + b,
    "sub with alpha": lambda a, b: torch.sub(a, b, alpha=2),
    "mul": lambda a, b: a * b,
    "mul scalar": lambda a, b: a * 3,
    "mul CPU scalar": lambda a, b: a * torch.tensor(3.0),
    "div scalar": lambda a, b: a / 3,
    "neg": lambda a, b: -a,
    "abs": lambda a, b: a.abs(),
    "sqrt of square": lambda a, b: (a * a).sqrt(),
    "sin": lambda a, b: a.sin(),
    "relu": lambda a, b: a.relu(),
    "isnan": lambda a, b: a.isnan(),
    "t": lambda a, b: a.t(),
    "clone": lambda a, b: a.clone(),
    "to double": lambda a, b: a.double(),
    "sum": lambda a, b: a.sum(),
}


def outcome(function, device, *args):
    try:
        result = function(*[arg.to(device) for arg in args])
    except (RuntimeError, NotImplementedError) as error:
        return type(error)
    assert result.device.type == device
    return result if result.layout == torch.strided else facts(result)


@pytest.mark.smoke
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", ARITHMETIC)
def test_arithmetic(name, layout):
    a, b = LAYOUTS[layout](matrix()), LAYOUTS[layout](matrix())
    expected = outcome(ARITHMETIC[name], "cpu", a, b)
    same(outcome(ARITHMETIC[name], "accel", a, b), expected)
    if layout == "coo":
        assert not isinstance(expected, type)


def test_coo_operators():
    a, dense = matrix().to_sparse_coo(), matrix()
    for function in (
        lambda a, d: torch.add(d, a),
        lambda a, d: (d * a).to_dense(),
        lambda a, d: torch.sparse.sum(a, 0).to_dense(),
        lambda a, d: torch.sparse.softmax(a, 1).to_dense(),
        lambda a, d: torch.sparse.log_softmax(a, 0).to_dense(),
        lambda a, d: d.sparse_mask(a).to_dense(),
        lambda a, d: a.index_select(0, torch.tensor([2, 0, 2], device=d.device)).to_dense(),
        lambda a, d: a[2].to_dense(),
        lambda a, d: a.narrow_copy(0, 1, 3).to_dense(),
        lambda a, d: torch.cat([a, a]).to_dense(),
        lambda a, d: torch.stack([a, a]).to_dense(),
        lambda a, d: a.transpose(0, 1).to_dense(),
        lambda a, d: a.permute(1, 0).to_dense(),
        lambda a, d: a.unsqueeze(0).to_dense(),
        lambda a, d: torch.any(a),
        lambda a, d: a.norm(),
        lambda a, d: a.pow(2).to_dense(),
        lambda a, d: torch.hspmm(a, d.t()).to_dense(),
        lambda a, d: a.to_dense().to_sparse(1).to_dense(),
        lambda a, d: torch.nonzero(a.to_dense()),
        lambda a, d: torch.empty_like(a).copy_(a).to_dense(),
    ):
        check(lambda d, f=function: f(a.to(d.device), d), dense)


# ------------------------------------------------------------------------------------------------------------------ products
@pytest.mark.smoke
@pytest.mark.parametrize("layout", LAYOUTS)
def test_products(layout):
    a, b, vector = LAYOUTS[layout](matrix()), torch.randn(4, 6), torch.randn(4)
    for function in (
        lambda a, b, v: a @ b,
        lambda a, b, v: torch.mm(a, b),
        lambda a, b, v: torch.addmm(torch.ones(6, 6, device=b.device), a, b, beta=0.5),
        lambda a, b, v: a @ v,
        lambda a, b, v: torch.mv(a, v),
        lambda a, b, v: b.t() @ a.t() if a.layout != torch.sparse_coo else torch.sparse.mm(a, b),
        lambda a, b, v: (a @ a.t()).to_dense(),
        lambda a, b, v: torch.sparse.addmm(torch.ones(6, 6, device=b.device), a, b),
        lambda a, b, v: torch.nn.functional.linear(b.t(), a),
        lambda a, b, v: torch.sparse.sampled_addmm(a, b.t()[:, :3], b[:3, :4]),
    ):
        same(outcome(function, "accel", a, b, vector), outcome(function, "cpu", a, b, vector))


def test_batched_product():
    check(lambda a, b: torch.bmm(a.to_sparse(), b), torch.stack([matrix(), matrix()]), torch.randn(2, 4, 3))


def test_triangular_solve_and_out():
    lower = torch.tril(torch.rand(4, 4)) + torch.eye(4)
    right = torch.randn(4, 2)

    def solve(device):
        return torch.triangular_solve(right.to(device), lower.to(device).to_sparse_csr(), upper=False)[0]

    try:
        expected = solve("cpu")
    except RuntimeError as error:  # a CPU build of torch without MKL
        with pytest.raises(type(error)):
            solve("accel")
    else:
        same(solve("accel"), expected)
    out = torch.empty(6, 6, device="accel")
    assert torch.mm(matrix().to("accel").to_sparse_csr(), torch.randn(4, 6, device="accel"), out=out) is out


# ----------------------------------------------------------------------------------------------------------------- gradients
@pytest.mark.smoke
@pytest.mark.parametrize("layout", ["coo", "csr"])
def test_gradient_to_a_dense_operand(layout):
    a = matrix()
    check_grads(lambda b: LAYOUTS[layout](a.to(b.device)) @ b, torch.randn(4, 3, requires_grad=True))


def test_gradient_to_a_sparse_operand():
    def run(dense, b):
        sparse = dense.detach().to_sparse().requires_grad_()
        torch.sparse.mm(sparse, b).sum().backward()
        return facts(sparse.grad.coalesce()), b.grad

    check(run, matrix(), torch.randn(4, 3, requires_grad=True))


def test_gradients_through_conversions():
    check_grads(lambda d: d.to_sparse().to_dense() * 2, matrix().requires_grad_())
    check_grads(lambda d: (d.to_sparse() * d.to_sparse()).to_dense(), matrix().requires_grad_())
    check_grads(lambda d: torch.sparse.sum(d.to_sparse(), 1).to_dense(), matrix().requires_grad_())
    check_grads(lambda d: torch.sparse.softmax(d.to_sparse(), 1).to_dense(), matrix().requires_grad_())
    check_grads(lambda d: d.to_sparse_csr().to_dense() * 2, matrix().requires_grad_())

    def from_values(i, v):
        return torch.sparse_coo_tensor(i, v, (3, 4)).to_dense() * 2

    check_grads(from_values, torch.tensor([[0, 1, 1], [2, 0, 2]]), torch.randn(3, requires_grad=True))


def test_sparse_gradients_accumulate_and_step():
    def train(module, ids):
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            module(ids).square().sum().backward()
            module(ids[:1]).sum().backward()
            assert module.weight.grad.is_sparse
            optimizer.step()
        return module.weight.detach()

    ids = torch.tensor([[1, 2, 2], [0, 5, 1]])
    check(train, torch.nn.Embedding(6, 4, sparse=True), ids)


def test_sparse_adam_and_adagrad():
    for make in (torch.optim.SparseAdam, torch.optim.Adagrad):

        def train(module, ids, make=make):
            optimizer = make(module.parameters(), lr=0.1)
            for _ in range(3):
                optimizer.zero_grad()
                module(ids).square().sum().backward()
                optimizer.step()
            return module.weight.detach()

        check(train, torch.nn.Embedding(6, 4, sparse=True), torch.tensor([[1, 2, 2], [0, 5, 1]]))


# ----------------------------------------------------------------------------------------------------------------- in-place
def test_in_place():
    def run(dense):
        a, b = dense.to_sparse(), (dense * 2).to_sparse()
        identity = a
        a.add_(b)
        a.mul_(3)
        a.neg_()
        c = dense.to_sparse()
        c.zero_()
        d = dense.to_sparse().coalesce()
        d.abs_().sqrt_()
        e = dense.clone()
        e.add_(b)
        assert identity is a
        return facts(a.coalesce()), facts(c), facts(d), e

    check(run, matrix())


def test_resizing_and_copying_in_place():
    def run(dense):
        a = dense.to_sparse()
        target = torch.sparse_coo_tensor((6, 4), device=dense.device)
        target.copy_(a)
        resized = dense.to_sparse().sparse_resize_((8, 4), 2, 0)
        cleared = dense.to_sparse().sparse_resize_and_clear_((2, 3), 2, 0)
        csr = dense.to_sparse_csr()
        other = (dense * 2).to_sparse_csr()
        csr.copy_(other)
        csr.values().mul_(2)
        return facts(target), facts(resized), facts(cleared), facts(csr)

    check(run, matrix())


# ------------------------------------------------------------------------------------------------------- copies, text, files
@pytest.mark.parametrize("layout", LAYOUTS)
def test_copies_between_devices(layout):
    host = LAYOUTS[layout](matrix())
    device = host.to("accel")
    assert device.device.type == "accel" and device.layout == host.layout
    on_accel(parts(device))
    same(facts(device), facts(host))
    same(facts(device.cpu()), facts(host))
    same(facts(host.accel()), facts(host))
    same(facts(device.to("cpu", torch.float64)), facts(host.double()))
    twin = device.clone()
    twin.values().zero_() if layout != "coo" else twin._values().zero_()
    same(facts(device), facts(host), "a clone has its own memory")
    deep = copy.deepcopy(device)
    same(facts(deep), facts(host))
    assert deep.device.type == "accel"
    buffer = io.BytesIO()
    torch.save(device, buffer)
    for where in ("accel", "cpu"):
        buffer.seek(0)
        loaded = torch.load(buffer, map_location=where)
        assert loaded.device.type == where and loaded.layout == host.layout
        same(facts(loaded), facts(host))


@pytest.mark.smoke
@pytest.mark.parametrize("layout", LAYOUTS)
def test_printing(layout):
    host = LAYOUTS[layout](torch.tensor([[1.0, 0.0], [0.0, 2.5]]))
    text, expected = repr(host.to("accel")), repr(host)
    assert "device='accel:0'" in text
    assert "".join(text.replace("device='accel:0',", "").split()) == "".join(expected.split())


def test_properties():
    a = matrix().to("accel").to_sparse()
    assert a.is_sparse and not a.is_sparse_csr and a.is_accel and a.device == torch.device("accel", 0)
    assert a.to_sparse_csr().is_sparse_csr and a.to_sparse_csr().is_accel
    assert a.dim() == 2 and a.numel() == 24 and len(a) == 6
    with pytest.raises((RuntimeError, NotImplementedError)):
        a.data_ptr()
    assert a.is_floating_point() and not a.is_complex()
    with pytest.raises(RuntimeError, match="accel:0"):
        a @ torch.randn(4, 3)
    with pytest.raises(RuntimeError, match="accel:0"):
        a + matrix().to_sparse()


def test_memory_is_counted_and_freed():
    before = torch.accel.memory_allocated()
    a = torch.sparse_coo_tensor(
        torch.zeros(1, 10, dtype=torch.long, device="accel"), torch.ones(10, device="accel"), (5,)
    )
    assert torch.accel.memory_allocated() - before == 80 + 40
    b = a.coalesce()
    assert torch.accel.memory_allocated() > before + 120
    del a, b
    assert torch.accel.memory_allocated() == before
