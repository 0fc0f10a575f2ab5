"""Proves that accel tensors can be pickled and saved, and that checkpoints load wherever map_location says, with shared
storage, views, strides and autograd flags kept; also in a process that has never heard of accel."""

import collections
import io
import json
import pickle

import pytest
import torch
from layouts import DEVICE, DTYPES, LAYOUTS, SMALL, agree, bits, build, numbers, same
from torch import nn

import torch_accel

pytestmark = pytest.mark.filterwarnings("ignore:TypedStorage is deprecated", "ignore:.*(ComplexHalf|Sparse|quantized)")

ANYWHERE = {
    "none": (None, "accel"),
    "cpu": ("cpu", "cpu"),
    "torch.device cpu": (torch.device("cpu"), "cpu"),
    "accel": ("accel", "accel"),
    "accel:0": ("accel:0", "accel"),
    "torch.device accel": (torch.device("accel"), "accel"),
    "torch.device accel:0": (torch.device("accel", 0), "accel"),
    "dict to cpu": ({"accel:0": "cpu"}, "cpu"),
    "dict to accel": ({"cpu": "accel:0", "accel:0": "accel:0"}, "accel"),
    "dict of others": ({"cuda:0": "cpu"}, "accel"),
    "callable to cpu": (lambda storage, location: storage, "cpu"),
    "callable to accel": (lambda storage, location: storage.accel(), "accel"),
    "callable none": (lambda storage, location: None, "accel"),
}
LOADERS = {
    "weights_only": {"weights_only": True},
    "pickle": {"weights_only": False},
}


def saved(value, **options):
    buffer = io.BytesIO()
    torch.save(value, buffer, **options)
    buffer.seek(0)
    return buffer


def example(d):
    base = numbers(torch.float32, 24, d)
    parameter = nn.Parameter(numbers(torch.float64, 6, d).view(2, 3))
    return collections.OrderedDict(
        base=base,
        view=base[4:].view(4, 5).t()[1:],
        again=base,
        half=numbers(torch.float16, 5, d)[1:],
        integers=numbers(torch.int64, 6, d).view(2, 3).t(),
        expanded=numbers(torch.float32, 3, d).expand(2, 3),
        scalar=torch.tensor(3.5, device=d),
        empty=torch.empty(0, 3, device=d),
        parameter=parameter,
        frozen=nn.Parameter(torch.ones(2, device=d), requires_grad=False),
        leaf=torch.ones(2, device=d, requires_grad=True),
        nested=[1, ("x", {"deep": base[:2]}), None, 2.5, torch.Size([2]), torch.float16],
        host=torch.ones(2),
    )


def check_example(loaded, d):
    wanted = example("cpu")
    assert type(loaded) is collections.OrderedDict and list(loaded) == list(wanted)
    for name, tensor in wanted.items():
        if isinstance(tensor, torch.Tensor):
            got = loaded[name]
            assert type(got) is type(tensor), name
            assert got.device.type == d, f"{name} is on {got.device}"
            assert got.requires_grad == tensor.requires_grad and got.is_leaf
            for fact in ("dtype", "shape"):
                assert getattr(got, fact) == getattr(tensor, fact), name
            assert got.stride() == tensor.stride() and got.storage_offset() == tensor.storage_offset(), name
            assert got.untyped_storage().nbytes() == tensor.untyped_storage().nbytes(), name
            assert torch.equal(bits(got), bits(tensor)), name
    base = loaded["base"]
    assert loaded["again"] is base
    for other in (loaded["view"], loaded["nested"][1][1]["deep"]):
        assert other.untyped_storage()._cdata == base.untyped_storage()._cdata
    with torch.no_grad():
        base.fill_(9)
    assert loaded["view"].unique().tolist() == [9] and loaded["nested"][1][1]["deep"].tolist() == [9, 9]
    assert loaded["nested"][0] == 1 and loaded["nested"][2:] == wanted["nested"][2:]
    (loaded["parameter"] * 2).sum().backward()
    assert loaded["parameter"].grad.device.type == d


# ----------------------------------------------------------------------------------------------------------- save and load
@pytest.mark.smoke
@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize("where", ANYWHERE)
def test_load_with_every_map_location(where, loader):
    location, d = ANYWHERE[where]
    value = example(DEVICE)
    if d == "accel" and where not in ("accel", "accel:0", "torch.device accel", "torch.device accel:0"):
        value["host"] = value["host"].accel()  # these leave the CPU's tensors on the CPU
    loaded = torch.load(saved(value), map_location=location, **LOADERS[loader])
    check_example(loaded, d)


@pytest.mark.parametrize("location", ["accel", "accel:0", torch.device("accel"), torch.device("accel", 0)], ids=repr)
@pytest.mark.parametrize("loader", LOADERS)
def test_checkpoints_of_the_cpu_load_on_accel(location, loader):
    check_example(torch.load(saved(example("cpu")), map_location=location, **LOADERS[loader]), "accel")


def test_tensors_of_several_devices_go_back_to_their_own():
    loaded = torch.load(saved([torch.ones(2), torch.ones(2, device=DEVICE)]))
    assert [t.device for t in loaded] == [torch.device("cpu"), DEVICE]
    loaded = torch.load(saved([torch.ones(2), torch.ones(2, device=DEVICE)]), map_location={"accel:0": "cpu"})
    assert [t.device.type for t in loaded] == ["cpu", "cpu"]


def test_callables_see_the_tags():
    seen = []
    torch.load(
        saved([torch.ones(2), torch.ones(2, device=DEVICE)]),
        map_location=lambda storage, tag: seen.append((storage.device.type, tag)) or storage,
    )
    assert seen == [("cpu", "cpu"), ("cpu", "accel:0")]


@pytest.mark.parametrize("location", [None, "cpu", "accel"])
@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])
@pytest.mark.parametrize("loader", LOADERS)
def test_files_of_both_formats(tmp_path, location, zipped, loader):
    path = tmp_path / "x.pt"
    torch.save(example(DEVICE), path, _use_new_zipfile_serialization=zipped)
    value = torch.load(path, map_location=location, **LOADERS[loader])
    if location is None:
        assert value["host"].device.type == "cpu"
        value["host"] = value["host"].accel()
    check_example(value, location or "accel")


@pytest.mark.parametrize("location", [None, "cpu", "accel"])
def test_mapped_files(tmp_path, location):
    path = tmp_path / "x.pt"
    torch.save(example(DEVICE), path)
    value = torch.load(path, map_location=location, mmap=True, weights_only=True)
    if location is None:
        value["host"] = value["host"].accel()
    check_example(value, location or "accel")
    again = torch.load(path, map_location="cpu", mmap=True)
    assert torch.equal(again["base"], numbers(torch.float32, 24))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype(dtype):
    x = numbers(dtype, 12, DEVICE).view(3, 4).t()[1:]
    for location, d in ((None, "accel"), ("cpu", "cpu"), ("accel:0", "accel")):
        loaded = torch.load(saved(x), map_location=location)
        assert loaded.device.type == d
        assert loaded.dtype == dtype and loaded.stride() == x.stride() and loaded.storage_offset() == x.storage_offset()
        assert torch.equal(bits(loaded), bits(x))
    # Torch's own pickle refuses the dtypes that came after the typed storages.
    agree(lambda d: pickle.loads(pickle.dumps(numbers(dtype, 12, d).view(3, 4).t()[1:])))


@pytest.mark.parametrize("layout", [*LAYOUTS, *SMALL])
def test_every_layout_keeps_strides_and_storage(layout):
    _, x = build(layout, torch.float32, DEVICE)
    _, host = build(layout, torch.float32, "cpu")
    for loaded in (
        torch.load(saved(x)),
        torch.load(saved(x), map_location="cpu"),
        torch.load(saved(host), map_location="accel"),
        pickle.loads(pickle.dumps(x)),
    ):
        wanted = torch.load(saved(host))
        same(loaded, wanted)


# -------------------------------------------------------------------------------------------------------------- pickle
@pytest.mark.smoke
@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_pickle(protocol):
    value = example(DEVICE)
    value["host"] = value["host"].accel()
    loaded = pickle.loads(pickle.dumps(value, protocol))
    wanted = example("cpu")
    for name, tensor in wanted.items():
        if isinstance(tensor, torch.Tensor):
            assert loaded[name].device == DEVICE and loaded[name].requires_grad == tensor.requires_grad, name
            assert type(loaded[name]) is type(tensor) and loaded[name].stride() == tensor.stride(), name
            assert torch.equal(bits(loaded[name]), bits(tensor)), name
    assert loaded["again"] is loaded["base"]


def test_pickle_of_storages_devices_and_attributes():
    x = torch.arange(4, dtype=torch.uint8, device=DEVICE)
    storage = torch.load(saved(x.untyped_storage()), weights_only=False)
    assert storage.device == DEVICE and storage.tolist() == [0, 1, 2, 3]
    typed = pickle.loads(pickle.dumps(torch.arange(3.0, device=DEVICE).storage()))
    assert typed.device == DEVICE and typed.tolist() == [0, 1, 2]
    assert pickle.loads(pickle.dumps(DEVICE)) == DEVICE
    assert pickle.loads(pickle.dumps(torch.device("accel"))) == torch.device("accel")
    x.note = {"a": 1}
    assert pickle.loads(pickle.dumps(x)).note == {"a": 1}
    assert torch.load(saved(x), weights_only=False).note == {"a": 1}
    assert torch.load(saved({"where": DEVICE, "kind": torch.float16})) == {"where": DEVICE, "kind": torch.float16}
    conjugate = torch.ones(2, dtype=torch.complex64, device=DEVICE).mul(1j).conj()
    loaded = pickle.loads(pickle.dumps(conjugate))
    assert loaded.is_conj() == pickle.loads(pickle.dumps(conjugate.cpu().resolve_conj().conj())).is_conj()
    assert loaded.tolist() == conjugate.tolist()


def test_results_of_operations_and_gradients():
    leaf = torch.ones(3, device=DEVICE, requires_grad=True)
    result = leaf * 2
    loaded = torch.load(saved(result.detach()))
    assert loaded.device == DEVICE and not loaded.requires_grad
    attached = torch.load(saved(result), map_location="cpu")
    assert attached.requires_grad and attached.is_leaf and attached.tolist() == [2, 2, 2]
    result.sum().backward()
    assert torch.load(saved(leaf)).grad is None


# --------------------------------------------------------------------------------------------------- modules, optimizers
def model_and_optimizer(d):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 3, bias=False), nn.BatchNorm1d(3), nn.Linear(3, 3, bias=False)).to(d)
    model[2].weight = model[0].weight
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    for _ in range(2):
        train(model, optimizer, d)
    return model, optimizer


def train(model, optimizer, d):
    optimizer.zero_grad()
    loss = model(numbers(torch.float32, 12, d).view(4, 3)).square().sum()
    loss.backward()
    optimizer.step()
    return loss.item()


@pytest.mark.smoke
@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize(("source", "target"), [("accel", "accel"), ("accel", "cpu"), ("cpu", "accel")])
def test_checkpoints_go_on_where_they_were(source, target, loader):
    model, optimizer = model_and_optimizer(source)
    file = saved({"model": model.state_dict(), "optimizer": optimizer.state_dict()})
    wanted = [train(model, optimizer, source) for _ in range(2)]
    state = torch.load(file, map_location=target, **LOADERS[loader])
    weights = state["model"]
    assert {t.device.type for t in weights.values()} == {target}
    assert weights["0.weight"].data_ptr() == weights["2.weight"].data_ptr()
    torch.manual_seed(5)
    other = nn.Sequential(nn.Linear(3, 3, bias=False), nn.BatchNorm1d(3), nn.Linear(3, 3, bias=False)).to(target)
    other[2].weight = other[0].weight
    fresh = torch.optim.Adam(other.parameters(), lr=0.5)
    other.load_state_dict(weights)
    fresh.load_state_dict(state["optimizer"])
    for entry in fresh.state.values():
        assert entry["exp_avg"].device.type == target and entry["exp_avg_sq"].device.type == target
    assert [train(other, fresh, target) for _ in range(2)] == wanted


def test_whole_modules():
    model, _ = model_and_optimizer("accel")
    loaded = torch.load(saved(model), weights_only=False)
    assert loaded[0].weight is loaded[2].weight and loaded[0].weight.device == DEVICE
    assert torch.equal(loaded[0].weight, model[0].weight)
    with pytest.raises(pickle.UnpicklingError, match="[Ww]eights"):
        torch.load(saved(model), weights_only=True)
    host = torch.load(saved(model), weights_only=False, map_location="cpu")
    assert {p.device.type for p in host.parameters()} == {"cpu"} and host[0].weight is host[2].weight


def test_generators_and_random_states():
    torch.manual_seed(3)
    state = torch.accel.get_rng_state()
    wanted = torch.randn(3, device=DEVICE)
    torch.accel.set_rng_state(torch.load(saved(state)))
    assert torch.equal(torch.randn(3, device=DEVICE), wanted)


@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr], ids=str)
def test_sparse_tensors(layout):
    dense = torch.tensor([[0.0, 2.0], [3.0, 0.0]])
    x = dense.to_sparse(layout=layout).to(DEVICE)
    for location, d in ((None, "accel"), ("cpu", "cpu"), ("accel", "accel")):
        loaded = torch.load(saved(x), map_location=location)
        assert loaded.layout == layout and loaded.device.type == d and loaded.values().device.type == d
        assert torch.equal(loaded.to_dense().cpu(), dense)


def test_quantized_tensors():
    x = torch.quantize_per_tensor(torch.arange(6.0), 0.5, 3, torch.qint8).to(DEVICE)
    loaded = torch.load(saved(x))
    assert loaded.device == DEVICE and loaded.q_scale() == 0.5
    assert torch.equal(loaded.dequantize().cpu(), torch.arange(6.0))


class Subclass(torch.Tensor):
    pass


def test_subclasses():
    x = torch.arange(3.0, device=DEVICE).as_subclass(Subclass)
    x.extra = 5
    loaded = pickle.loads(pickle.dumps(x))
    assert type(loaded) is Subclass and loaded.device == DEVICE and loaded.extra == 5 and loaded.tolist() == [0, 1, 2]


# --------------------------------------------------------------------------------------------------------- what it costs
def test_each_storage_is_copied_once_each_way():
    base = torch.zeros(1000, device=DEVICE)
    value = [base, base[10:], base.view(10, 100), base]
    torch_accel.reset_counters()
    file = saved(value)
    assert torch_accel.counters()["copies"]["device_to_host"] == {"count": 1, "bytes": 4000}
    assert len(file.getvalue()) < 7000
    torch_accel.reset_counters()
    torch.load(file)
    assert torch_accel.counters()["copies"]["host_to_device"] == {"count": 1, "bytes": 4000}


def test_skip_data_and_meta_and_fake():
    x = torch.arange(3.0, device=DEVICE)
    assert torch.load(saved(x), map_location="meta").device.type == "meta"
    with torch.serialization.skip_data():
        file = saved(x)
    assert torch.load(file).shape == (3,)


# --------------------------------------------------------------------------------------------------------- other processes
@pytest.mark.smoke
def test_a_checkpoint_loads_where_accel_is_unknown(tmp_path, run_ok):
    path = tmp_path / "x.pt"
    model, optimizer = model_and_optimizer("accel")
    torch.save({"example": example(DEVICE), "model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)
    code = f"""
        import sys, torch
        assert "torch_accel" not in sys.modules and not hasattr(torch, "accel")
        for options in ({{}}, {{"mmap": True}}, {{"weights_only": False}}):
            for location in ("cpu", torch.device("cpu"), {{"accel:0": "cpu"}}, lambda storage, tag: storage):
                state = torch.load({str(path)!r}, map_location=location, **options)
                value = state["example"]
                assert value["base"].tolist() == [i * 0.75 - 11 for i in range(24)]
                assert value["view"].untyped_storage()._cdata == value["base"].untyped_storage()._cdata
                assert value["view"].stride() == (1, 5) and value["parameter"].requires_grad
                assert {{t.device.type for t in state["model"].values()}} == {{"cpu"}}
        model = torch.nn.Sequential(torch.nn.Linear(3, 3, bias=False), torch.nn.BatchNorm1d(3),
                                    torch.nn.Linear(3, 3, bias=False))
        model.load_state_dict(state["model"])
        print(model[0].weight.flatten().tolist())
        try:
            torch.load({str(path)!r})
        except RuntimeError as error:
            assert "accel:0" in str(error), error
        else:
            raise AssertionError("expected an error without map_location")
    """
    printed = run_ok(code, TORCH_DEVICE_BACKEND_AUTOLOAD=0)
    assert json.loads(printed) == model[0].weight.flatten().tolist()


def test_checkpoints_in_a_process_with_two_devices(tmp_path, run_ok):
    """Made here, loaded there; and made there on the second device, which is remapped or refused here."""
    ours, pickled, path = (str(tmp_path / name) for name in ("ours.pt", "ours.pickle", "theirs.pt"))
    torch.save(example(DEVICE), ours)
    with open(pickled, "wb") as file:
        pickle.dump(torch.arange(3.0, device=DEVICE), file)
    run_ok(
        f"""
        import pickle, torch
        value = torch.load({ours!r})
        assert value["base"].device == torch.device("accel:0") and value["host"].device.type == "cpu"
        assert value["view"].sum().item() == {example("cpu")["view"].sum().item()}
        with open({pickled!r}, "rb") as file:
            assert repr(pickle.load(file)) == "tensor([0., 1., 2.], device='accel:0')"
        x, y = torch.ones(2, device="accel:1"), torch.zeros(2, device="accel:0")
        torch.save([x, y], {path!r})
        where = lambda **options: [str(t.device) for t in torch.load({path!r}, **options)]
        assert where() == ["accel:1", "accel:0"]
        assert where(map_location={{"accel:1": "accel:0"}}) == ["accel:0", "accel:0"]
        assert where(map_location="accel:1") == ["accel:1", "accel:1"]
        assert where(map_location="cpu") == ["cpu", "cpu"]
        with torch.accel.device(1):
            assert where(map_location="accel") == ["accel:1", "accel:1"], where(map_location="accel")
        assert torch.accel.current_device() == 0
        """,
        TORCH_ACCEL_BACKEND="cpu,cpu",
    )
    if torch.accel.device_count() == 1:
        with pytest.raises(RuntimeError, match="map_location"):
            torch.load(path)
    loaded = torch.load(path, map_location={"accel:1": "accel:0"})
    assert [t.tolist() for t in loaded] == [[1, 1], [0, 0]]
    with pytest.raises(RuntimeError):
        torch.load(path, map_location="accel:9")
