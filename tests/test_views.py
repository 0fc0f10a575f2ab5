"""Proves that views on accel are views: they share memory and version with their base in both directions, allocate and
copy nothing, and have the sizes, strides and autograd rules that they have on the reference device."""

import pytest
import torch
from layouts import DEVICE, LAYOUTS, agree, allocations, bits, both, both_raise, build, numbers, same

import torch_accel


def cube(d):
    return numbers(torch.float32, 24, d).view(2, 3, 4)


def matrix(d):
    return numbers(torch.float32, 12, d).view(3, 4)


def complex_matrix(d):
    return numbers(torch.complex64, 12, d).view(3, 4)


# name: (base, view). All views show memory of the base.
VIEWS = {
    "index": (cube, lambda x: x[1]),
    "index negative": (cube, lambda x: x[-1, -2]),
    "index 0-dim": (cube, lambda x: x[1, 2, 3]),
    "slice": (cube, lambda x: x[:, 1:]),
    "slice step": (cube, lambda x: x[:, ::2, 1::2]),
    "slice empty": (cube, lambda x: x[:, 3:]),
    "ellipsis": (cube, lambda x: x[..., 1]),
    "newaxis": (cube, lambda x: x[:, None, 1]),
    "alias": (cube, lambda x: torch.ops.aten.alias(x)),
    "as_strided": (cube, lambda x: x.as_strided((2, 3), (1, 5), 4)),
    "as_strided overlapping": (cube, lambda x: x.as_strided((4, 6), (2, 1), 1)),
    "as_strided whole storage": (lambda d: cube(d)[1], lambda x: x.as_strided((24,), (1,), 0)),
    "atleast_1d": (lambda d: cube(d)[0, 0, 0], torch.atleast_1d),
    "atleast_2d": (lambda d: cube(d)[0, 0], torch.atleast_2d),
    "atleast_3d": (matrix, torch.atleast_3d),
    "broadcast_to": (matrix, lambda x: x.broadcast_to(2, 3, 4)),
    "chunk": (cube, lambda x: x.chunk(2, dim=2)),
    "chunk uneven": (cube, lambda x: x.chunk(2, dim=1)),
    "contiguous of contiguous": (cube, lambda x: x.contiguous()[:]),
    "detach": (cube, lambda x: x.detach()),
    "diagonal": (matrix, lambda x: x.diagonal(1)),
    "diagonal of cube": (cube, lambda x: x.diagonal(-1, 0, 2)),
    "dsplit": (cube, lambda x: x.dsplit(2)),
    "expand": (lambda d: matrix(d)[:, None], lambda x: x.expand(3, 2, 4)),
    "expand -1": (matrix, lambda x: x.expand(2, -1, -1)),
    "expand_as": (lambda d: matrix(d)[:1], lambda x: x.expand_as(x.new_empty(5, 4))),
    "flatten": (cube, lambda x: x.flatten(1)),
    "hsplit": (cube, lambda x: x.hsplit([1])),
    "mH": (cube, lambda x: x.mH),
    "mT": (cube, lambda x: x.mT),
    "T": (matrix, lambda x: x.T),
    "H": (matrix, lambda x: x.H),
    "moveaxis": (cube, lambda x: x.moveaxis(0, 2)),
    "movedim": (cube, lambda x: x.movedim((0, 1), (1, 2))),
    "narrow": (cube, lambda x: x.narrow(2, 1, 2)),
    "narrow tensor": (cube, lambda x: x.narrow(2, torch.tensor(1), 2)),
    "permute": (cube, lambda x: x.permute(2, 0, 1)),
    "ravel": (cube, lambda x: x.ravel()),
    "real": (complex_matrix, lambda x: x.real),
    "imag": (complex_matrix, lambda x: x.imag),
    "real of real": (matrix, lambda x: x.real[:]),
    "reshape": (cube, lambda x: x.reshape(4, 6)),
    "reshape of transposed": (lambda d: cube(d).permute(1, 0, 2), lambda x: x.reshape(3, 2, 2, 2)),
    "reshape_as": (cube, lambda x: x.reshape_as(x.new_empty(6, 4))),
    "_reshape_alias": (cube, lambda x: torch.ops.aten._reshape_alias(x, [4, 6], [6, 1])),
    "select": (cube, lambda x: x.select(1, 2)),
    "slice op": (cube, lambda x: torch.ops.aten.slice(x, 2, 1, 9, 2)),
    "split": (cube, lambda x: x.split(2, dim=1)),
    "split sizes": (cube, lambda x: x.split([1, 0, 3], dim=2)),
    "split_with_sizes": (cube, lambda x: x.split_with_sizes([1, 2], dim=1)),
    "unsafe_split": (cube, lambda x: x.unsafe_split(2, dim=1)),
    "unsafe_chunk": (cube, lambda x: x.unsafe_chunk(2, dim=2)),
    "unsafe_split_with_sizes": (cube, lambda x: x.unsafe_split_with_sizes([1, 2], dim=1)),
    "squeeze": (lambda d: matrix(d)[:, None, :, None], lambda x: x.squeeze()),
    "squeeze dim": (lambda d: matrix(d)[:, None, :, None], lambda x: x.squeeze(1)),
    "squeeze dims": (lambda d: matrix(d)[:, None, :, None], lambda x: x.squeeze((1, 3))),
    "swapaxes": (cube, lambda x: x.swapaxes(0, 2)),
    "swapdims": (cube, lambda x: x.swapdims(0, 1)),
    "t": (matrix, lambda x: x.t()),
    "tensor_split": (cube, lambda x: x.tensor_split(3, dim=2)),
    "tensor_split indices": (cube, lambda x: x.tensor_split([1, 3], dim=2)),
    "tensor_split tensor": (cube, lambda x: x.tensor_split(torch.tensor([1, 3]), dim=2)),
    "transpose": (cube, lambda x: x.transpose(0, 2)),
    "unbind": (cube, lambda x: x.unbind(1)),
    "iteration": (matrix, lambda x: tuple(x)),
    "unflatten": (cube, lambda x: x.unflatten(2, (2, 2))),
    "unfold": (cube, lambda x: x.unfold(2, 3, 1)),
    "unfold step": (cube, lambda x: x.unfold(1, 1, 2)),
    "unsqueeze": (cube, lambda x: x.unsqueeze(1)),
    "view": (cube, lambda x: x.view(6, 4)),
    "view -1": (cube, lambda x: x.view(-1)),
    "view of gaps": (lambda d: cube(d)[:, 1:], lambda x: x.view(2, 1, 8)),
    "view_as": (cube, lambda x: x.view_as(x.new_empty(6, 4))),
    "view dtype": (cube, lambda x: x.view(torch.int32)),
    "view dtype smaller": (cube, lambda x: x.view(torch.int16)),
    "view dtype larger": (cube, lambda x: x.view(torch.float64)),
    "view dtype of slice": (cube, lambda x: x[1, 1:].view(torch.complex64)),
    "view_as_real": (complex_matrix, torch.view_as_real),
    "view_as_complex": (lambda d: cube(d).view(6, 2, 2), torch.view_as_complex),
    "vsplit": (cube, lambda x: x.vsplit(2)),
    "conj": (complex_matrix, lambda x: x.conj()),
    "adjoint": (complex_matrix, lambda x: x.adjoint()),
    "_neg_view": (matrix, torch._neg_view),
    "imag of conj": (complex_matrix, lambda x: x.conj().imag),
    "resolve_conj": (complex_matrix, lambda x: x.resolve_conj()[:]),
    "resolve_neg": (matrix, lambda x: x.resolve_neg()[:]),
    "chain": (cube, lambda x: x.transpose(0, 1)[1:].unsqueeze(0).permute(3, 0, 2, 1)[::2].squeeze(1)),
    "lift_fresh": (cube, lambda x: torch.ops.aten.lift_fresh(x)[:]),
    "set_ view of .data": (cube, lambda x: x.data),
}

INPLACE_VIEWS = {
    "t_": (matrix, lambda x: x.t_()),
    "transpose_": (cube, lambda x: x.transpose_(0, 2)),
    "swapaxes_": (cube, lambda x: x.swapaxes_(0, 1)),
    "swapdims_": (cube, lambda x: x.swapdims_(0, 1)),
    "squeeze_": (lambda d: matrix(d)[:, None], lambda x: x.squeeze_()),
    "squeeze_ dim": (lambda d: matrix(d)[:, None], lambda x: x.squeeze_(1)),
    "unsqueeze_": (cube, lambda x: x.unsqueeze_(1)),
    "as_strided_": (cube, lambda x: x.as_strided_((2, 3), (1, 5), 4)),
    "detach_": (lambda d: numbers(torch.float32, 24, d), lambda x: x.detach_()),
    "squeeze_ dims": (lambda d: matrix(d)[:, None], lambda x: x.squeeze_((0, 1))),
}


def pieces(views):
    return list(views) if isinstance(views, (tuple, list)) else [views]


def is_base_of(base, view):
    """The storage is the same object, not just the same memory."""
    return view.untyped_storage()._cdata == base.untyped_storage()._cdata


@pytest.mark.smoke
@pytest.mark.parametrize("name", VIEWS)
def test_view_has_the_same_geometry_and_values(name):
    make, view = VIEWS[name]
    both(lambda d: view(make(d)))


@pytest.mark.parametrize("name", VIEWS)
def test_view_shares_storage_and_allocates_and_copies_nothing(name):
    make, view = VIEWS[name]
    base = make(DEVICE)
    torch_accel.reset_counters()
    before = torch.accelerator.memory_stats()
    views = pieces(view(base))
    after = torch.accelerator.memory_stats()
    copies = torch_accel.counters()["copies"]
    if not name.endswith("_as"):  # these make an operand, which the view shares nothing with
        assert after["allocated_bytes.all.allocated"] == before["allocated_bytes.all.allocated"]
    assert {kind: copies[kind]["count"] for kind in copies} == dict.fromkeys(copies, 0)
    for piece in views:
        assert piece.device == DEVICE
        assert is_base_of(base, piece)
        if piece.numel():
            start = base.untyped_storage().data_ptr()
            assert piece.data_ptr() == start + piece.storage_offset() * piece.element_size()


@pytest.mark.parametrize("name", VIEWS)
def test_base_writes_show_in_the_view(name):
    make, view = VIEWS[name]

    def run(d):
        base = make(d)
        views = pieces(view(base))
        if base.dim():
            base.untyped_storage().copy_(
                numbers(torch.uint8, base.untyped_storage().nbytes(), start=5).untyped_storage()
            )
        else:
            base.fill_(77)
        base.mul_(2)
        return [piece.detach() for piece in views]

    both(run)


@pytest.mark.parametrize("name", VIEWS)
def test_view_writes_show_in_the_base(name):
    """Or raise what they raise on the reference device: expanded and overlapping views refuse in-place writes."""
    make, view = VIEWS[name]

    def run(d):
        base = make(d)
        views = pieces(view(base))
        for i, piece in enumerate(views):
            piece.fill_(i + 7)
        if views[0].numel():
            views[0].view(-1)[:1].add_(1) if views[0].is_contiguous() else views[0].mul_(3)
        return base, [piece._version for piece in views]

    agree(run)


@pytest.mark.parametrize("name", VIEWS)
def test_version_counter_is_shared_as_on_the_reference(name):
    make, view = VIEWS[name]

    def run(d):
        base = make(d)
        views = pieces(view(base))
        history = [base._version]
        base.add_(1)
        history += [base._version, [v._version for v in views]]
        base.zero_()
        history += [base._version, [v._version for v in views]]
        if not any(word in name for word in ("expand", "overlapping", "broadcast", "unfold")):
            views[0].zero_()
            history += [base._version, [v._version for v in views]]
        return history

    both(run)


@pytest.mark.parametrize("name", VIEWS)
def test_views_and_bases_are_known_to_autograd(name):
    make, view = VIEWS[name]

    def run(d):
        base = make(d).clone().requires_grad_()
        views = pieces(view(base))
        return [(v._is_view(), v._base is base, v.requires_grad, type(v.grad_fn).__name__, v.is_leaf) for v in views]

    agree(run)


@pytest.mark.parametrize("name", VIEWS)
def test_gradients_flow_through_views(name):
    make, view = VIEWS[name]

    def run(d):
        leaf = make(d).clone().requires_grad_()
        views = [v for v in pieces(view(leaf * 1)) if v.requires_grad and v.numel()]
        loss = sum((torch.view_as_real(v.resolve_conj()) if v.is_complex() else v).square().sum() for v in views)
        if not views:
            return []
        loss.backward()
        return leaf.grad

    agree(run)


@pytest.mark.parametrize("name", VIEWS)
def test_in_place_on_a_view_under_autograd(name):
    make, view = VIEWS[name]

    def run(d):
        leaf = make(d).clone().requires_grad_()
        base = leaf * 1
        views = pieces(view(base))
        views[0].mul_(2)
        total = torch.view_as_real(base.resolve_conj()) if base.is_complex() else base
        total.square().sum().backward()
        return base.detach(), leaf.grad

    agree(run)


@pytest.mark.parametrize("name", INPLACE_VIEWS)
def test_in_place_views_keep_the_object_and_the_memory(name):
    make, change = INPLACE_VIEWS[name]

    def run(d):
        tensor = make(d)
        storage, other = tensor.untyped_storage()._cdata, tensor.view(tensor.shape)
        result = change(tensor)
        assert result is tensor
        assert tensor.untyped_storage()._cdata == storage
        tensor.add_(1)
        return tensor, other

    both(run)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_views_of_every_layout(layout):
    def run(d):
        base, x = build(layout, torch.float32, d)
        return [
            x.t(),
            x[1:],
            x[:, 1::2],
            x[1],
            x.unsqueeze(1),
            x.expand(2, 3, 4),
            x.diagonal(),
            x.unfold(1, 2, 1),
            x.select(1, 2),
            x.permute(1, 0)[::2],
            x.movedim(0, 1),
            x.flatten(),
            x.reshape(2, 6),
            x.unflatten(1, (2, 2)),
            x.view(torch.int32),
            x.as_strided((2, 2), (3, 2)),
            x.as_strided((2, 2), (3, 2), 11),
            *x.unbind(0),
            *x.split(3, 1),
        ]

    both(run)


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x.view(5, 5),
        lambda x: x.transpose(1, 2).view(-1),
        lambda x: x.t(),
        lambda x: x.select(0, 5),
        lambda x: x[5],
        lambda x: x[..., 9],
        lambda x: x[1, 1, 1, 1],
        lambda x: x[::-1],
        lambda x: x.narrow(0, 1, 5),
        lambda x: x.expand(3, 3, 4),
        lambda x: x.expand(3),
        lambda x: x.permute(0, 1),
        lambda x: x.permute(0, 1, 1),
        lambda x: x.transpose(0, 3),
        lambda x: x.squeeze(4),
        lambda x: x.unsqueeze(5),
        lambda x: x.split([1, 1], dim=2),
        lambda x: x.chunk(0),
        lambda x: x.unfold(0, 3, 1),
        lambda x: x.unfold(0, 1, 0),
        lambda x: x.as_strided((2, 2), (-1, 1)),
        lambda x: x.as_strided((5, 5), (5, 1)),
        lambda x: x.as_strided((2,), (1,), -1),
        lambda x: x.as_strided((2,), (1,), 23),
        lambda x: x.as_strided((2,), (1, 1)),
        lambda x: x.diagonal(0, 1, 1),
        lambda x: x.unflatten(2, (3, 2)),
        lambda x: torch.view_as_complex(x[..., :3]),
        lambda x: torch.view_as_complex(x.int()),
        lambda x: torch.view_as_real(x),
        lambda x: x.imag,
        lambda x: x[..., :3].view(torch.float64),
        lambda x: x[..., ::2].view(torch.float64),
        lambda x: x.transpose(0, 2).view(torch.int16),
        lambda x: x[0, 0, 1:3].view(torch.float64),
        lambda x: x.reshape(7),
        lambda x: x.view(-1, -1),
        lambda x: x.movedim(0, 5),
        lambda x: x[0, 0, 0].view(torch.int16),
    ],
)
def test_bad_views_raise_the_same_errors(view):
    both_raise(lambda d: view(cube(d)))


# ------------------------------------------------------------------------------------------------------------ aliasing
@pytest.mark.smoke
def test_writes_go_both_ways_and_touch_nothing_else():
    base = torch.zeros(4, 5, device=DEVICE)
    column, row, corner = base[:, 2], base[1], base.t()[3:, 2:]
    column.fill_(1)
    row.add_(10)
    corner.mul_(0).sub_(3)
    base[3, 0] = 8
    expected = [[0, 0, 1, 0, 0], [10, 10, 11, 10, 10], [0, 0, 1, -3, -3], [8, 0, 1, -3, -3]]
    assert base.tolist() == expected
    assert column.tolist() == [1, 11, 1, 1] and row.tolist() == expected[1]
    assert corner.tolist() == [[-3, -3], [-3, -3]]


def test_zero_of_one_row_leaves_the_others():
    base = torch.arange(12.0, device=DEVICE).view(3, 4)
    base[1].zero_()
    assert base.tolist() == [[0, 1, 2, 3], [0, 0, 0, 0], [8, 9, 10, 11]]


def test_two_views_of_one_memory_see_each_other():
    base = torch.zeros(6, device=DEVICE)
    one, other = base.as_strided((4,), (1,), 0), base.as_strided((4,), (1,), 2)
    one.fill_(1)
    other.add_(1)
    assert base.tolist() == [1, 1, 2, 2, 1, 1]
    assert one.is_set_to(base.as_strided((4,), (1,), 0)) and not one.is_set_to(other)
    del base
    one[3] = 9
    assert other.tolist() == [2, 9, 1, 1]


def test_pieces_see_later_writes_to_the_source():
    source = torch.arange(8.0, device=DEVICE)
    parts = [*source.split(3), *source.chunk(2), *source.unbind(), *source.tensor_split(3)]
    source.mul_(-1)
    expected = torch.arange(8.0).mul_(-1)
    wanted = [*expected.split(3), *expected.chunk(2), *expected.unbind(), *expected.tensor_split(3)]
    same([p.clone() for p in parts], [w.clone() for w in wanted])


def test_memory_lives_as_long_as_the_last_view():
    with allocations() as allocated:
        base = torch.zeros(1024, device=DEVICE)
        view = base[512:].view(2, 256).t()
        del base
        assert allocated() == (4096, 4096)
        view.fill_(3)
        del view
        assert allocated() == (0, 4096)


@pytest.mark.parametrize("source", ["cpu", "accel"])
def test_as_strided_reads_and_writes_overlapping_windows(source):
    x = torch.arange(10.0, device=DEVICE)
    windows = x.as_strided((4, 4), (2, 1))
    assert windows.tolist() == [[i, i + 1, i + 2, i + 3] for i in range(0, 8, 2)]
    assert windows.sum(1).tolist() == [sum(row) for row in windows.tolist()]
    windows[1].copy_(torch.ones(4, device=source))
    assert x.tolist() == [0, 1, 1, 1, 1, 1, 6, 7, 8, 9]
    windows.copy_(torch.full((4, 4), 5.0, device=source))
    assert x.tolist() == [5] * 10
    with pytest.raises(RuntimeError, match="more than one element of the written-to tensor"):
        x[:1].expand(4).copy_(torch.ones(4, device=source))


WRITES = {
    "add_": lambda x: x.add_(1),
    "mul_": lambda x: x.mul_(x),
    "fill_": lambda x: x.fill_(1),
    "zero_": lambda x: x.zero_(),
    "copy_": lambda x: x.copy_(torch.ones_like(x)),
    "copy_ from CPU": lambda x: x.copy_(torch.ones(x.shape)),
    "neg_": lambda x: x.neg_(),
    "sqrt_": lambda x: x.sqrt_(),
    "normal_": lambda x: x.normal_(),
    "uniform_": lambda x: x.uniform_(),
    "bernoulli_": lambda x: x.bernoulli_(0.5),
    "clamp_": lambda x: x.clamp_(0, 1),
    "masked_fill_": lambda x: x.masked_fill_(x > 0, 1),
    "masked_scatter_": lambda x: x.masked_scatter_(x > 0, torch.ones(12, device=x.device)),
    "index_fill_": lambda x: x.index_fill_(0, torch.tensor([0], device=x.device), 1),
    "index_add_": lambda x: x.index_add_(0, torch.tensor([0], device=x.device), torch.ones(1, 4, device=x.device)),
    "index_copy_": lambda x: x.index_copy_(0, torch.tensor([0], device=x.device), torch.ones(1, 4, device=x.device)),
    "scatter_": lambda x: x.scatter_(0, torch.zeros(1, 4, dtype=torch.int64, device=x.device), 1.0),
    "index_put_": lambda x: x.index_put_((torch.tensor([0], device=x.device),), torch.ones((), device=x.device)),
    "addcmul_": lambda x: x.addcmul_(x, x),
    "lerp_": lambda x: x.lerp_(x + 1, 0.5),
    "cumsum_": lambda x: x.cumsum_(0),
    "out=": lambda x: torch.add(torch.ones_like(x), 1, out=x),
    "mm out=": lambda x: torch.mm(torch.ones(3, 2, device=x.device), torch.ones(2, 4, device=x.device), out=x),
    "tril_": lambda x: x.tril_(),
    "setitem": lambda x: x.__setitem__(0, 1),
    "setitem mask": lambda x: x.__setitem__(x > 0, 1),
    "_foreach_add_": lambda x: torch._foreach_add_([x], 1),
}


@pytest.mark.filterwarnings("ignore:Use of .* on expanded tensors is deprecated")
@pytest.mark.parametrize("layout", ["expanded", "expanded columns", "overlapping"])
@pytest.mark.parametrize("name", WRITES)
def test_writing_to_memory_shown_twice_raises_as_on_the_reference(name, layout):
    def run(d):
        base, x = build(layout, torch.float32, d)
        WRITES[name](x)
        return base

    agree(run)


@pytest.mark.parametrize(
    "write",
    [
        lambda a, b: a.add_(b),
        lambda a, b: a.copy_(b),
        lambda a, b: a.mul_(b),
        lambda a, b: a.addcmul_(b, b),
        lambda a, b: a.lerp_(b, 0.5),
        lambda a, b: torch.add(b, 1, out=a),
        lambda a, b: torch.cumsum(b, 0, out=a),
        lambda a, b: torch.cat([b[:4], b[:15]], out=a),
    ],
)
def test_operands_that_overlap_partly_raise_as_on_the_reference(write):
    """The written view and another operand share memory, shifted by one element."""

    def run(d):
        base = numbers(torch.float32, 20, d)
        write(base[1:], base[:-1])
        return base

    agree(run)


# -------------------------------------------------------------------------------------------------- identity of storages
def test_storage_identity():
    x = torch.arange(12.0, device=DEVICE)
    assert x.untyped_storage()._cdata == x.untyped_storage()._cdata
    assert x.untyped_storage().data_ptr() == x.data_ptr()
    assert x[3:].data_ptr() == x.data_ptr() + 12
    assert x[3:].storage_offset() == 3
    assert x.view(3, 4).is_set_to(x.view(3, 4)) and not x.is_set_to(x.view(3, 4))
    assert x.is_set_to(x.detach()) and not x.is_set_to(x.clone())
    assert x.untyped_storage().is_accel and x.untyped_storage().device == DEVICE
    assert x.clone().untyped_storage()._cdata != x.untyped_storage()._cdata
    assert x.contiguous() is x and x.to("accel") is x and x.accel() is x and x.to(torch.float32) is x


def test_in_place_operations_do_not_rebind_the_storage():
    x = torch.arange(12.0, device=DEVICE)
    storage, pointer, object_id = x.untyped_storage()._cdata, x.data_ptr(), id(x)
    x += 1
    x.mul_(2).sub_(1).zero_().normal_().copy_(torch.ones(12)).clamp_(0, 1)
    x[2:5] = 3
    x.view(3, 4).t().add_(1)
    torch.add(x, 1, out=x)
    assert (x.untyped_storage()._cdata, x.data_ptr(), id(x)) == (storage, pointer, object_id)


def test_results_that_share_memory_on_the_reference_share_it_here():
    def run(d):
        x = numbers(torch.float32, 12, d).view(3, 4)
        grid = torch.meshgrid(x[0], x[:, 0], indexing="ij")
        wide = torch.broadcast_tensors(x, x[:1])
        return [
            t.untyped_storage()._cdata == x.untyped_storage()._cdata
            for t in (
                *grid,
                *wide,
                x.reshape(12),
                x.t().reshape(12),
                x.contiguous(),
                x.t().contiguous(),
                x.float(),
                x.flatten(),
                x.t().flatten(),
                x.type_as(x),
                x.expand_as(x),
                x.squeeze(),
                x.positive(),
                x.real,
                x.conj(),
                torch.atleast_3d(x),
                x.unsafe_chunk(2)[0],
                x.narrow_copy(0, 0, 2),
                x.repeat(1, 1),
                x.tile(1),
                x.rot90(),
                x.flip(0),
                x.roll(1),
                x.movedim(0, 1),
                x.cpu() if d.type == "cpu" else x,
            )
        ]

    both(run)


def test_repeat_tile_and_friends_copy():
    """repeat is built on unfold: a missing view there would corrupt data in silence."""
    both(lambda d: [matrix(d).repeat(2, 3), matrix(d).t().repeat(2, 1, 2), matrix(d).tile(2), matrix(d).repeat(0, 1)])
    both(lambda d: [matrix(d).repeat_interleave(2, 0), torch.cat([matrix(d).t(), matrix(d).t()])])


@pytest.mark.parametrize("name", [n for n in VIEWS if hasattr(torch, f"{n}_copy") and n != "index"])
def test_copy_variants_do_not_alias(name):
    make, _ = VIEWS[name]
    arguments = {
        "as_strided": ((2, 3), (1, 5), 4),
        "diagonal": (1,),
        "expand": ((3, 2, 4),),
        "narrow": (2, 1, 2),
        "permute": ((2, 0, 1),),
        "select": (1, 2),
        "split": (2,),
        "split_with_sizes": ([1, 1],),
        "transpose": (0, 2),
        "unfold": (2, 3, 1),
        "_reshape_alias": ([4, 6], [6, 1]),
        "unsqueeze": (1,),
        "view": ((6, 4),),
        "slice": (1, 1, 3),
    }.get(name, ())
    copy = getattr(torch, f"{name}_copy")

    def run(d):
        base = make(d)
        results = pieces(copy(base, *arguments))
        assert not any(is_base_of(base, result) for result in results)
        base.zero_()
        return results

    both(run)


def test_forward_views_and_inplace_rules():
    def leaf_view(d):
        leaf = torch.ones(4, device=d, requires_grad=True)
        leaf[1:].add_(1)

    def multi_output(d):
        x = torch.ones(4, device=d, requires_grad=True) * 2
        x.unbind()[0].add_(1)

    def no_grad_view(d):
        x = torch.ones(4, device=d, requires_grad=True) * 2
        with torch.no_grad():
            v = x[1:]
        v.mul_(torch.ones(3, device=d, requires_grad=True))

    def saved(d):
        x = torch.ones(4, device=d, requires_grad=True)
        y = x.exp()
        y[:2].add_(1)
        y.sum().backward()

    for function in (leaf_view, multi_output, saved):
        both_raise(function)
    agree(no_grad_view)


def test_inference_mode_views():
    with torch.inference_mode():
        x = torch.zeros(2, 3, device=DEVICE)
        v = x.t()[1]
        v.fill_(4)
        assert v.is_inference() and x.is_inference()
        assert x.tolist() == [[0, 4, 0], [0, 4, 0]]
        assert (x + 1).is_inference()
    normal = torch.zeros(3, device=DEVICE)
    with torch.inference_mode():
        normal[1:].add_(2)
        assert not normal[1:].is_inference()
    assert normal.tolist() == [0, 2, 2]

    def inference_tensor(d):
        with torch.inference_mode():
            return torch.zeros(3, device=d)

    both_raise(lambda d: inference_tensor(d).add_(1))
    both_raise(lambda d: inference_tensor(d).requires_grad_())
    both_raise(lambda d: inference_tensor(d).mul(torch.ones(3, device=d, requires_grad=True)))


def test_functional_views_keep_the_same_bits():
    x = torch.arange(6, device=DEVICE, dtype=torch.int32)
    assert torch.equal(bits(x.view(torch.float32).view(torch.int32)), bits(x))
    assert x.view(torch.uint8).shape == (24,) and x.view(torch.int64).shape == (3,)
    x.view(torch.uint8)[3] = 1
    assert x[0].item() == 1 << 24
