"""Proves tracing on the device: torch.compile with the aot_eager backend, export, make_fx, fake tensors; results as in eager."""

import pytest
import torch
from helpers import moved, on_accel, same
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

nn, F = torch.nn, torch.nn.functional
# Messages of torch's own tracing code about its future.
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore:Attempted to insert a get_attr Node:UserWarning"),
]


@pytest.fixture(autouse=True)
def fresh_compiler(no_fallbacks):
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def compiled(function, backend="aot_eager", **kwargs):
    return torch.compile(function, backend=backend, **kwargs)


def model():
    return nn.Sequential(nn.Linear(6, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 3)).to("accel")


# -------------------------------------------------------------------------------------------------------------- torch.compile
@pytest.mark.smoke
def test_forward_and_backward():
    """fullgraph: nothing breaks the graph."""
    module = model()
    x = torch.randn(4, 6, device="accel", requires_grad=True)
    results = []
    for call in (module, compiled(module, fullgraph=True)):
        module.zero_grad()
        x.grad = None
        out = call(x)
        out.square().sum().backward()
        results.append((out.detach(), x.grad, {name: p.grad for name, p in module.named_parameters()}))
    same(results[1], results[0], rtol=1e-5, atol=1e-6)  # layer_norm is decomposed
    on_accel(results[1][0])


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "aot_eager_decomp_partition"])
def test_functions(backend):
    def function(x, y):
        a = x @ y.t()
        a[0] = a[1] * 2  # in-place on a view
        b = torch.cat([a, x[:, :3]], 1).softmax(-1)
        return b.sum(0), a.t()[1:], torch.where(b > 0.1, b, torch.zeros_like(b)), x.new_ones(2), b.to(torch.bfloat16)

    x, y = torch.randn(3, 4, device="accel"), torch.randn(5, 4, device="accel")
    expected = function(x, y)
    actual = compiled(function, backend, fullgraph=True)(x, y)
    on_accel(actual)
    same(actual, expected, rtol=1e-6, atol=1e-6)


def test_mutated_inputs_and_aliased_outputs():
    def function(x, buffer):
        buffer.add_(x)
        x[1:].mul_(2)
        return buffer, x.t(), buffer[0]

    x, buffer = torch.randn(3, 3, device="accel"), torch.zeros(3, 3, device="accel")
    twin_x, twin = x.clone(), buffer.clone()
    expected = function(twin_x, twin)
    actual = compiled(function, fullgraph=True)(x, buffer)
    same(actual, expected)
    same((x, buffer), (twin_x, twin))
    assert actual[0] is buffer and actual[2].untyped_storage()._cdata == buffer.untyped_storage()._cdata


def test_training_with_an_optimizer():
    torch.manual_seed(0)
    first = model()
    second = moved(first, "accel")
    x, y = torch.randn(8, 6, device="accel"), torch.randint(0, 3, (8,), device="accel")
    for module, wrap in ((first, lambda f: f), (second, compiled)):
        optimizer = torch.optim.AdamW(module.parameters(), lr=0.01)

        @wrap
        def step(module=module):
            return F.cross_entropy(module(x), y)

        for _ in range(3):
            optimizer.zero_grad()
            step().backward()
            optimizer.step()
    same(dict(second.named_parameters()), dict(first.named_parameters()), rtol=1e-4, atol=1e-5)


def test_compiled_optimizer_step():
    def run(wrap):
        p = nn.Parameter(torch.linspace(-1, 1, 6, device="accel"))
        optimizer = torch.optim.SGD([p], lr=0.1, momentum=0.9)
        step = wrap(optimizer.step)
        for _ in range(3):
            p.grad = p.detach() * 2
            step()
        return p.detach()

    same(run(compiled), run(lambda f: f), rtol=1e-6)


def test_recompiles_only_for_new_shapes_and_devices():
    compilations = []

    def backend(graph, inputs):
        compilations.append([i.device for i in inputs if isinstance(i, torch.Tensor)])
        return graph.forward

    function = compiled(lambda x: x * 2 + 1, backend)
    for _ in range(3):
        function(torch.ones(3, device="accel"))
    assert compilations == [[torch.device("accel", 0)]]
    function(torch.ones(3))
    assert compilations[1:] == [[torch.device("cpu")]]
    function(torch.ones(5, device="accel"))
    count = len(compilations)
    for size in (6, 7, 8):
        same(function(torch.ones(size, device="accel")), torch.full((size,), 3.0))
    assert len(compilations) == count  # sizes are symbols now


def test_dynamic_shapes_and_graph_breaks():
    def function(x):
        y = x * x.shape[0]
        print("", end="")  # breaks the graph
        return y.sum() if y.sum() > 0 else y

    dynamic = compiled(function, dynamic=True)
    for n in (3, 4, 5):
        same(dynamic(torch.ones(n, device="accel")), function(torch.ones(n, device="accel")))
        same(dynamic(-torch.ones(n, device="accel")), function(-torch.ones(n, device="accel")))


def test_autocast_and_grad_modes_in_the_graph():
    module = nn.Linear(4, 4).to("accel")

    def function(x):
        with torch.autocast("accel", torch.bfloat16):
            a = module(x)
        with torch.no_grad():
            b = module(x)
        return a, b

    x = torch.randn(2, 4, device="accel")
    a, b = compiled(function, fullgraph=True)(x)
    expected = function(x)
    assert a.dtype == torch.bfloat16 and a.requires_grad and not b.requires_grad
    same((a, b), expected)


def test_random_numbers_and_dropout():
    def function(x):
        return F.dropout(x, 0.5) + torch.rand_like(x) + torch.randn(3, device="accel")

    x = torch.ones(4, 3, device="accel")
    torch.manual_seed(1)
    expected = function(x)
    torch.manual_seed(1)
    same(compiled(function)(x), expected)


def test_device_questions_in_the_graph():
    def function(x):
        if x.device.type == "accel" and x.is_accel and torch.accelerator.is_available():
            return x + torch.accel.current_device() + 1
        return x

    x = torch.zeros(2, device="accel")
    same(compiled(function, fullgraph=True)(x), torch.ones(2))


def test_attention_and_convolution():
    module = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.0).to("accel")
    x = torch.randn(2, 5, 8, device="accel")
    same(compiled(module, fullgraph=True)(x), module(x), rtol=1e-5, atol=1e-5)
    cnn = nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.MaxPool2d(2)).to("accel")
    image = torch.randn(2, 1, 8, 8, device="accel")
    twin = moved(cnn, "accel")
    same(compiled(cnn, fullgraph=True)(image), twin(image), rtol=1e-5, atol=1e-6)
    same(cnn[1].running_mean, twin[1].running_mean, rtol=1e-5, atol=1e-6)


# -------------------------------------------------------------------------------------------------------------------- export
@pytest.mark.smoke
def test_export():
    module = model().eval()
    x = torch.randn(4, 6, device="accel")
    program = torch.export.export(module, (x,))
    same(program.module()(x), module(x))
    devices = {
        node.meta["val"].device for node in program.graph.nodes if isinstance(node.meta.get("val"), torch.Tensor)
    }
    assert devices == {torch.device("accel", 0)}
    targets = [str(node.target) for node in program.graph.nodes if node.op == "call_function"]
    assert targets == ["aten.linear.default", "aten.layer_norm.default", "aten.gelu.default", "aten.linear.default"]
    lowered = program.run_decompositions()
    assert "aten.addmm.default" in [str(node.target) for node in lowered.graph.nodes]
    same(lowered.module()(x), module(x), rtol=1e-5, atol=1e-6)


def test_export_with_dynamic_shapes(tmp_path):
    module, batch = model().eval(), torch.export.Dim("batch", min=2, max=64)
    program = torch.export.export(module, (torch.randn(4, 6, device="accel"),), dynamic_shapes=({0: batch},))
    for n in (2, 9):
        x = torch.randn(n, 6, device="accel")
        same(program.module()(x), module(x))
    path = tmp_path / "program.pt2"
    torch.export.save(program, path)
    loaded = torch.export.load(path)
    x = torch.randn(3, 6, device="accel")
    same(loaded.module()(x), module(x))


def test_export_of_a_module_with_constants_and_buffers():
    class Table(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("table", torch.arange(6.0).view(2, 3))
            self.constant = torch.tensor([10.0], device="accel")

        def forward(self, i):
            return self.table[i] + self.constant + torch.ones(3, device=self.table.device)

    module = Table().to("accel")
    index = torch.tensor([1, 0, 1], device="accel")
    same(torch.export.export(module, (index,)).module()(index), module(index))


# ------------------------------------------------------------------------------------------------------- make_fx, fake tensors
@pytest.mark.parametrize("mode", ["real", "fake", "symbolic"])
def test_make_fx(mode):
    def function(x):
        y = x @ x.t()
        y.add_(1)
        return torch.autograd.grad(y.tanh().sum(), x)[0]

    x = torch.randn(3, 4, device="accel", requires_grad=True)
    graph = make_fx(function, tracing_mode=mode)(x)
    targets = [str(node.target) for node in graph.graph.nodes if node.op == "call_function"]
    assert "aten.mm.default" in targets and "aten.tanh_backward.default" in targets
    same(graph(x), function(x), rtol=1e-6, atol=1e-6)


@pytest.mark.smoke
def test_fake_tensors():
    real = torch.randn(3, 4, device="accel")
    before = torch.accel.memory_allocated()
    with FakeTensorMode() as mode:
        fake = mode.from_tensor(real)
        made = torch.empty(1 << 20, 1 << 10, device="accel")  # 4 GiB that nobody allocates
        results = [fake @ fake.t(), fake.t()[1:], made[0] + 1, fake.sum().expand(3), torch.zeros_like(fake), fake.cpu()]
        module = nn.Linear(4, 2, device="accel")
        results.append(module(fake))
    assert all(isinstance(t, FakeTensor) for t in results)
    assert [t.device.type for t in results] == ["accel"] * 5 + ["cpu", "accel"]
    assert [tuple(t.shape) for t in results] == [(3, 3), (3, 3), (1024,), (3,), (3, 4), (3, 4), (3, 2)]
    assert results[1].stride() == (1, 4)
    assert torch.accel.memory_allocated() == before
    with pytest.raises(RuntimeError, match="accel"), FakeTensorMode() as mode:
        mode.from_tensor(real) + torch.ones(3, 4)


def test_meta_and_device_contexts():
    with torch.device("accel"):
        assert torch.ones(2).device.type == "accel" and nn.Linear(2, 2).weight.device.type == "accel"
        with torch.device("meta"):
            assert torch.ones(2).device.type == "meta"
        assert torch.ones(2, device="cpu").device.type == "cpu"
    assert torch.ones(2).device.type == "cpu"
    meta = torch.empty(3, 4, device="meta")
    assert torch.empty_like(meta, device="accel").shape == (3, 4)
    torch.set_default_device("accel")
    try:
        assert torch.arange(3).device.type == "accel" and torch.tensor([1.0]).device.type == "accel"
        assert torch.get_default_device().type == "accel"
    finally:
        torch.set_default_device(None)
    assert torch.arange(3).device.type == "cpu"


def test_fx_tracing_and_torchscript():
    module = model().eval()
    x = torch.randn(2, 6, device="accel")
    same(torch.fx.symbolic_trace(module)(x), module(x))
    same(torch.jit.trace(module, (x,))(x), module(x))
    scripted = torch.jit.script(module)
    for _ in range(3):  # the second run is specialised
        same(scripted(x), module(x))
    assert next(scripted.parameters()).device.type == "accel"
