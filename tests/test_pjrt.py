"""Programs run through the CPU plugins that are installed, failures are statuses, and plugins are found and checked."""

import contextlib
import os
import re
import shutil
import subprocess
import sys
import threading
from dataclasses import replace
from importlib import metadata
from pathlib import Path

import numpy
import pytest
import torch

from torch_accel import pjrt

core = pytest.importorskip("torch_accel._core_test", reason="torch_accel._core_test is built in place only")

PLUGINS = [plugin for plugin in pjrt.discover() if plugin.platform == "cpu"]
DTYPES = {name: (number, stablehlo, size) for name, number, stablehlo, size in core.DTYPES}
F4 = "tensor<4xf32>"


@pytest.fixture(scope="module", params=PLUGINS or [None], ids=lambda plugin: plugin.distribution if plugin else "none")
def plugin(request):
    if request.param is None:
        pytest.skip(f"no PJRT plugin for the CPU: {pjrt.INSTALL['cpu']}")
    return request.param


@pytest.fixture(scope="module")
def client(plugin):
    client = core.open(plugin.path)
    yield client
    client.close()


def module(arguments: str, results: str, body: str) -> str:
    return f"module @m {{ func.func public @main({arguments}) -> ({results}) {{\n{body}\n}} }}"


def elementwise(op: str, type: str = F4, donate: bool = False) -> str:
    first = " {tf.aliasing_output = 0 : i32}" if donate else ""
    body = f'%0 = "stablehlo.{op}"(%a, %b) : ({type}, {type}) -> {type}\n"func.return"(%0) : ({type}) -> ()'
    return module(f"%a: {type}{first}, %b: {type}", type, body)


def floats(*values) -> numpy.ndarray:
    return numpy.array(values, "float32")


def fails(code: str, function, *args, match: str | None = None, **kwargs) -> str:
    with pytest.raises(core.StatusError, match=match) as caught:
        function(*args, **kwargs)
    assert caught.value.code == code
    return str(caught.value)


# ----------------------------------------------------------------------------------------------------------- programs


@pytest.mark.smoke
def test_add(client):
    program = client.compile(elementwise("add"))
    assert program.outputs == [("float32", (4,))]
    (sum_,) = program.execute([floats(1, 2, 3, 4), floats(10, 20, 30, 40)])
    assert (sum_.dtype, sum_.dims, sum_.device) == ("float32", (4,), 0)
    assert sum_.numpy().tolist() == [11, 22, 33, 44]


def test_matmul_is_row_major(client):
    dimensions = "#stablehlo.dot<lhs_contracting_dimensions = [1], rhs_contracting_dimensions = [0]>"
    types = "(tensor<2x3xf32>, tensor<3x5xf32>) -> tensor<2x5xf32>"
    body = f'%0 = "stablehlo.dot_general"(%a, %b) {{dot_dimension_numbers = {dimensions}}} : {types}\n'
    body += '"func.return"(%0) : (tensor<2x5xf32>) -> ()'
    program = client.compile(module("%a: tensor<2x3xf32>, %b: tensor<3x5xf32>", "tensor<2x5xf32>", body))
    a, b = numpy.arange(6, dtype="f4").reshape(2, 3), numpy.arange(15, dtype="f4").reshape(3, 5)
    numpy.testing.assert_array_equal(program.execute([a, b])[0].numpy(), a @ b)


def test_transposed_result_comes_row_major(client):
    """The compiler may choose another layout on the device; the host sees none of it."""
    body = '%0 = "stablehlo.transpose"(%a) {permutation = array<i64: 2, 0, 1>} : (tensor<2x3x4xi32>) -> tensor<4x2x3xi32>\n'
    body += '"func.return"(%0) : (tensor<4x2x3xi32>) -> ()'
    a = numpy.arange(24, dtype="int32").reshape(2, 3, 4)
    result = client.compile(module("%a: tensor<2x3x4xi32>", "tensor<4x2x3xi32>", body)).execute([a])[0].numpy()
    numpy.testing.assert_array_equal(result, a.transpose(2, 0, 1))


def test_several_results_and_none(client):
    body = '%0 = "stablehlo.compare"(%a, %b) {comparison_direction = #stablehlo<comparison_direction LT>} '
    body += f': ({F4}, {F4}) -> tensor<4xi1>\n"func.return"(%0, %a) : (tensor<4xi1>, {F4}) -> ()'
    program = client.compile(module(f"%a: {F4}, %b: {F4}", f"tensor<4xi1>, {F4}", body))
    assert program.outputs == [("bool", (4,)), ("float32", (4,))]
    less, same = program.execute([floats(1, 2, 3, 4), floats(2, 2, 4, 4)])
    assert less.numpy().tolist() == [True, False, True, False]
    assert same.numpy().tolist() == [1, 2, 3, 4]
    nothing = client.compile(module(f"%a: {F4}", "", '"func.return"() : () -> ()'))
    outputs, done = nothing.start([floats(0, 0, 0, 0)])
    done.wait()
    assert (nothing.outputs, outputs) == ([], [])


@pytest.mark.parametrize("dtype", DTYPES)
def test_round_trip(client, dtype):
    """Bit for bit, up and down and through a program. Of a 4-bit integer the low half of its byte counts."""
    _, stablehlo, size = DTYPES[dtype]
    raw = numpy.random.default_rng(0).integers(0, 256, (3, 5 * size), dtype="uint8")
    mask = {"bool": 1, "int4": 15, "uint4": 15}.get(dtype, 255)
    raw &= mask
    up = client.to_device(raw, dtype=dtype, dims=[3, 5])
    assert (up.dtype, up.dims) == (dtype, (3, 5))
    type = f"tensor<3x5x{stablehlo}>"
    (through,) = client.compile(module(f"%a: {type}", type, f'"func.return"(%a) : ({type}) -> ()')).execute([up])
    assert through.dtype == dtype
    for buffer in (up, through):
        back = numpy.frombuffer(buffer.to_host(), "uint8").reshape(raw.shape) & mask
        numpy.testing.assert_array_equal(back, raw)


def test_dtype_numbers_are_torchs():
    header = Path(torch.__file__).parent / "include/torch/headeronly/core/ScalarType.h"
    listed = header.read_text().split("define AT_FORALL_SCALAR_TYPES_WITH_COMPLEX_AND_QINTS(_)")[1].split("#define")[0]
    names = [name.lower() for name in re.findall(r"_\([^()]+, (\w+)\)", listed)]
    python = {"byte": "uint8", "char": "int8", "short": "int16", "int": "int32", "long": "int64", "half": "float16",
              "float": "float32", "double": "float64", "complexfloat": "complex64", "complexdouble": "complex128"}  # fmt: skip
    for name, (number, _, size) in DTYPES.items():
        assert python.get(names[number], names[number]) == name
        assert getattr(torch, name).itemsize == size


@pytest.mark.parametrize("op,type,dtype", [
    ("multiply", "tensor<3xcomplex<f32>>", "complex64"),
    ("multiply", "tensor<3xcomplex<f64>>", "complex128"),
    ("add", "tensor<3xi64>", "int64"),
    ("add", "tensor<3xf64>", "float64"),
    ("xor", "tensor<3xi1>", "bool"),
    ("divide", "tensor<3xui8>", "uint8"),
])  # fmt: skip
def test_arithmetic(client, op, type, dtype):
    a, b = numpy.array([1, 2, 3]).astype(dtype), numpy.array([1, 1, 2]).astype(dtype)
    if dtype == "int64":
        a = a + (1 << 62)
    if dtype.startswith("complex"):
        a = a * (1 + 2j)
    function = {"multiply": numpy.multiply, "add": numpy.add, "xor": numpy.logical_xor, "divide": numpy.floor_divide}[
        op
    ]
    result = client.compile(elementwise(op, type)).execute([a.astype(dtype), b])[0].numpy()
    numpy.testing.assert_array_equal(result, function(a, b))


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1, 1)])
def test_no_dimensions_and_no_elements(client, shape):
    data = numpy.ones(shape, "float32")
    type = f"tensor<{''.join(f'{size}x' for size in shape)}f32>"
    (result,) = client.compile(elementwise("add", type)).execute([data, data])
    assert result.dims == shape
    numpy.testing.assert_array_equal(result.numpy(), data + data)


@pytest.mark.parametrize("use", ["during_call", "until_released", "zero_copy"])
def test_host_data_is_released(client, use):
    data = numpy.arange(1 << 16, dtype="float32")
    expected = data.copy()
    references = sys.getrefcount(data)
    buffer = client.to_device(data, use=getattr(core.HostData, use))
    buffer.ready_event().wait()
    if use == "during_call":
        data[:] = 0
    numpy.testing.assert_array_equal(buffer.numpy(), expected)
    del buffer
    _until(lambda: sys.getrefcount(data) == references)


def _until(condition) -> None:
    for _ in range(200):
        if condition():
            return
        threading.Event().wait(0.02)
    raise AssertionError("still not so after four seconds")


# ----------------------------------------------------------------------------------------------- donation and chains


@pytest.mark.smoke
def test_donation(client):
    program = client.compile(elementwise("add", donate=True))
    assert program.memory()["aliased"] == 16
    a, b = client.to_device(floats(1, 2, 3, 4)), client.to_device(floats(1, 1, 1, 1))
    where = a.address()
    (result,) = program.execute([a, b])
    assert (a.deleted(), b.deleted()) == (True, False)
    assert result.numpy().tolist() == [2, 3, 4, 5]
    assert result.address() == where
    fails("INVALID_ARGUMENT", program.execute, [a, b], match="deleted or donated")
    fails("INVALID_ARGUMENT", a.numpy, match="deleted or donated")


def test_donation_declined(client):
    program = client.compile(elementwise("add", donate=True))
    a = client.to_device(floats(1, 2, 3, 4))
    for second in (client.to_device(floats(1, 1, 1, 1)), a):
        (result,) = program.execute([a, second], keep=[0])
        assert not a.deleted()
        numpy.testing.assert_array_equal(result.numpy(), a.numpy() + second.numpy())
    fails("INVALID_ARGUMENT", program.execute, [a, a], match="donate")


def test_chain_keeps_its_arguments(client):
    """Nobody waits in between, and the arguments are dropped while they may be in use."""
    size = 1 << 16
    type = f"tensor<{size}xf32>"
    add, add_in_place = client.compile(elementwise("add", type)), client.compile(elementwise("add", type, donate=True))
    one = client.to_device(numpy.ones(size, "float32"))
    value = client.to_device(numpy.zeros(size, "float32"))
    for i in range(100):
        (value,) = (add_in_place if i % 2 else add).execute([value, one])
    del one
    assert (value.numpy() == 100).all()


def test_events(client):
    program = client.compile(elementwise("add"))
    outputs, done = program.start([floats(1, 2, 3, 4), floats(1, 1, 1, 1)])
    called = threading.Event()
    seen = []

    def callback(code, message):
        seen.append((code, message))
        called.set()

    done.on_ready(callback)
    assert called.wait(10)
    assert seen == [("OK", "")]
    assert done.ready()
    done.wait()
    room = bytearray(16)
    copy = outputs[0].start_to_host(room)
    copy.wait()
    assert numpy.frombuffer(room, "float32").tolist() == [2, 3, 4, 5]
    fails("INVALID_ARGUMENT", outputs[0].start_to_host, bytearray(15), match="expected 16 bytes of room, got 15")


def test_many_threads(client):
    program = client.compile(elementwise("add"))
    failures = []

    def run(number):
        value = client.to_device(floats(*[number] * 4))
        for _ in range(50):
            (value,) = program.execute([value, floats(1, 1, 1, 1)])
        if value.numpy().tolist() != [number + 50.0] * 4:
            failures.append(number)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_release(client):
    buffer = client.to_device(floats(1, 2, 3, 4))
    buffer.release()
    assert buffer.deleted()
    fails("INVALID_ARGUMENT", buffer.numpy)


# ------------------------------------------------------------------------------------------------------------ failures


def still_usable(client) -> bool:
    (result,) = client.compile(elementwise("add")).execute([floats(1, 2, 3, 4), floats(1, 1, 1, 1)])
    return result.numpy().tolist() == [2, 3, 4, 5]


@pytest.mark.parametrize(
    "text", ["", "module {", elementwise("nonsense"), elementwise("add").replace(f"%b: {F4}", "%b: tensor<5xf32>")]
)
def test_compile_errors(client, text):
    with pytest.raises(core.StatusError) as caught:
        client.compile(text)
    assert caught.value.code in ("UNKNOWN", "INVALID_ARGUMENT", "INTERNAL")
    assert "PJRT_Client_Compile: " in str(caught.value)
    assert still_usable(client)


def test_compile_options(client):
    option = core.compile_option("xla_cpu_enable_fast_math", False) + core.compile_option(
        "xla_backend_optimization_level", 1
    )
    assert client.compile(elementwise("add"), options=option).outputs == [("float32", (4,))]
    unknown = core.compile_option("xla_no_such_option", "1")
    fails("INVALID_ARGUMENT", client.compile, elementwise("add"), options=unknown, match="xla_no_such_option")
    fails("INVALID_ARGUMENT", core.compile_option, "xla_a", 0.5, match="expected a string, a bool or an integer")


def test_run_time_errors(client):
    program = client.compile(elementwise("add"))
    a = floats(1, 2, 3, 4)
    fails("INVALID_ARGUMENT", program.execute, [a], match="1 (buffers|arguments) but compiled program expected 2")
    fails("INVALID_ARGUMENT", program.execute, [a, a[:3]], match="parameter 1 of size 16 .*12")
    fails("INVALID_ARGUMENT", program.execute, [a, None], match="got none as argument 1")
    assert still_usable(client)


def test_error_inside_a_program_poisons_the_results(client):
    """A failure after the call returned is the status of the event and of what is computed from the result."""
    type = "tensor<2xf32>"
    call = '%0 = "stablehlo.custom_call"(%a) {call_target_name = "torch_accel.no_such_target", api_version = 4 : i32} '
    body = f'{call} : ({type}) -> {type}\n"func.return"(%0) : ({type}) -> ()'
    with pytest.raises(core.StatusError) as caught:  # some plugins refuse while they compile, some when they run
        outputs, _ = client.compile(module(f"%a: {type}", type, body)).start([floats(1, 2)])
        outputs[0].numpy()
    assert "no_such_target" in str(caught.value)
    assert still_usable(client)


def test_buffers_of_another_client(client, plugin):
    other = core.open(plugin.path)
    theirs = other.to_device(floats(1, 2, 3, 4))
    program = client.compile(elementwise("add"))
    fails("INVALID_ARGUMENT", program.execute, [theirs, theirs], match="got one of another client as argument 0")
    fails("INVALID_ARGUMENT", client.copy_to, theirs, 0, match="expected a buffer of the same client")
    other.close()
    assert theirs.numpy().tolist() == [1, 2, 3, 4]  # what is still held outlives the client


# ----------------------------------------------------------------------------------------- devices, memory, persistence


@pytest.mark.smoke
def test_several_devices(plugin):
    client = core.open(plugin.path, {"cpu_device_count": 3})
    assert client.platform == "cpu" and len(client.devices) == 3
    a, b = floats(1, 2, 3, 4), floats(1, 1, 1, 1)
    for device in range(3):
        (result,) = client.compile(elementwise("add"), device).execute([a, b])
        assert result.device == device
        assert result.numpy().tolist() == [2, 3, 4, 5]
    elsewhere = client.copy_to(client.to_device(a), 1)
    assert (elsewhere.device, elsewhere.numpy().tolist()) == (1, [1, 2, 3, 4])
    fails("INVALID_ARGUMENT", client.compile(elementwise("add"), 2).execute, [elsewhere, elsewhere], match="device")
    client.close()
    with pytest.raises(ValueError, match="closed"):
        client.compile(elementwise("add"))


def test_memory_figures(client):
    assert client.compile(elementwise("add")).memory() | {"code": 0} == {
        "code": 0, "arguments": 32, "outputs": 16, "aliased": 0, "temporary": 0,
    }  # fmt: skip
    try:
        stats = client.memory_stats()
    except core.StatusError as error:
        assert error.code == "UNIMPLEMENTED"
        assert "PJRT_Device_MemoryStats" in str(error)
    else:
        assert stats["bytes_in_use"] >= 0


def test_fingerprint(client, plugin):
    again, other = core.open(plugin.path), core.open(plugin.path, {"cpu_device_count": 2})
    assert client.fingerprint == again.fingerprint != other.fingerprint
    assert client.version in client.fingerprint
    assert len({core.open(plugin.path).fingerprint for plugin in PLUGINS}) == len(PLUGINS)


def test_serialised_programs_run_in_another_client(client, plugin):
    data = client.compile(elementwise("add", donate=True)).serialize()
    second = core.open(plugin.path, {"cpu_device_count": 2})
    for device in (0, 1):
        program = second.load(data, device)
        assert program.outputs == [("float32", (4,))]
        a = second.to_device(floats(1, 2, 3, 4), device)
        (result,) = program.execute([a, floats(1, 1, 1, 1)])
        assert result.device == device
        assert a.deleted()
        assert result.numpy().tolist() == [2, 3, 4, 5]


RELOAD = """
import sys, numpy
from torch_accel import _core_test as core
client = core.open(sys.argv[1])
assert client.fingerprint == sys.argv[3]
(result,) = client.load(open(sys.argv[2], "rb").read()).execute([numpy.ones(4, "float32")] * 2)
print(result.numpy().tolist())
client.close()
"""


def test_serialised_programs_run_in_another_process(client, plugin, tmp_path):
    file = tmp_path / "program"
    file.write_bytes(client.compile(elementwise("add")).serialize())
    result = subprocess.run(
        [sys.executable, "-c", RELOAD, plugin.path, str(file), client.fingerprint],
        capture_output=True, text=True, timeout=120, cwd=Path(pjrt.__file__).parents[1],
    )  # fmt: skip
    assert (result.returncode, result.stdout) == (0, "[2.0, 2.0, 2.0, 2.0]\n"), result.stderr


def test_load_of_nonsense(client):
    with pytest.raises(core.StatusError, match="PJRT_Executable_DeserializeAndLoad"):
        client.load(b"nonsense")
    assert still_usable(client)


EXIT = """
import sys, numpy
from torch_accel import _core_test as core
sys.path.insert(0, sys.argv[2])
from test_pjrt import elementwise
client = core.open(sys.argv[1])
type = "tensor<1000000xf32>"
program = client.compile(elementwise("add", type))
value = client.to_device(numpy.ones(1000000, "float32"))
for _ in range(30):
    (value,) = program.execute([value, value])
client.close()
"""


def test_clean_exit_with_work_under_way(plugin):
    result = subprocess.run(
        [sys.executable, "-c", EXIT, plugin.path, str(Path(__file__).parent)],
        capture_output=True, text=True, timeout=120, cwd=Path(pjrt.__file__).parents[1],
    )  # fmt: skip
    assert result.returncode == 0, result.stderr


# ----------------------------------------------------------------------------------------------------- broken plugins

FAKE = """
#include <stddef.h>
struct Version { size_t size; void* extensions; int major, minor; };
struct Api { size_t size; void* extensions; Version version; void* functions[200]; };
static void destroy(void*) {}
struct Message { size_t size; void* extensions; const void* error; const char* text; size_t length; };
static void message(void* args) {
  auto m = static_cast<Message*>(args);
  m->text = "out of coffee";
  m->length = 13;
}
struct GetCode { size_t size; void* extensions; const void* error; int code; };
static void* code(void* args) { static_cast<GetCode*>(args)->code = 14; return 0; }
static void* fail(void*) { static int error; return &error; }
static Api api = {SIZE, 0, {sizeof(Version), 0, MAJOR, MINOR}, {(void*)destroy, (void*)message, (void*)code, INITIALIZE}};
extern "C" __attribute__((visibility("default"))) void* NAME() { return RESULT; }
"""
SIZE_OF_HEAD = 16 + 24  # up to the first function


@pytest.fixture(scope="module")
def fake(tmp_path_factory):
    """Makes a plugin with a table of some size and version."""
    if not shutil.which("g++"):
        pytest.skip("no g++ to build a fake plugin with")
    folder = tmp_path_factory.mktemp("fake")

    def build(size="sizeof(Api)", major=0, minor=81, name="GetPjrtApi", result="&api", initialize="0") -> str:
        number = len(list(folder.iterdir()))
        source, path = folder / f"fake{number}.cpp", folder / f"fake{number}.so"
        source.write_text(FAKE)
        values = {
            "SIZE": size,
            "MAJOR": major,
            "MINOR": minor,
            "NAME": name,
            "RESULT": result,
            "INITIALIZE": initialize,
        }
        command = ["g++", "-shared", "-fPIC", *(f"-D{key}={value}" for key, value in values.items())]
        subprocess.run([*command, str(source), "-o", str(path)], check=True, timeout=120)
        return str(path)

    return build


def test_no_plugin(tmp_path):
    message = fails("NOT_FOUND", core.open, str(tmp_path / "none.so"), match="no such file")
    assert message.startswith(f"torch_accel: open PJRT plugin {tmp_path}/none.so: expected ")
    assert "pip install" in message
    fails("NOT_FOUND", core.api_minor, str(tmp_path / "none.so"))


def test_not_a_library(tmp_path):
    path = tmp_path / "text.so"
    path.write_text("not ELF" * 100)
    fails(
        "INVALID_ARGUMENT", core.open, str(path), match="expected a shared library that loads, got .*invalid ELF header"
    )
    assert pjrt.api_version(str(path)) is None


def test_library_without_the_function(fake):
    path = fake(name="something_else")
    fails("INVALID_ARGUMENT", core.open, path, match="got a library without the function GetPjrtApi")
    assert pjrt.api_version(path) is None


def test_tables_that_do_not_serve(fake):
    fails("FAILED_PRECONDITION", core.open, fake(size=8), match=r"expected a table .* at least \d+ bytes, got 8 bytes")
    fails("FAILED_PRECONDITION", core.open, fake(result="0"), match="got none")
    fails(
        "FAILED_PRECONDITION",
        core.open,
        fake(minor=57),
        match="expected PJRT 0.58 or newer, got 0.57 .use a newer plugin",
    )
    fails("FAILED_PRECONDITION", core.open, fake(major=1), match="got 1.81 .use a newer torch_accel")
    assert pjrt.api_version(fake(size=8)) is None


def test_functions_that_are_missing(fake):
    """A table that ends before the function, and one whose entry is null."""
    short = fake(size=SIZE_OF_HEAD + 3 * 8)
    assert core.api_minor(short) == 81
    assert pjrt.api_version(short) == (0, 81)
    for path in (short, fake()):
        message = fails("UNIMPLEMENTED", core.open, path, match="PJRT_Plugin_Initialize: expected a plugin that has")
        assert path in message and "0.81" in message


def test_plugin_that_does_not_start(fake):
    """Its own words and code come through, each time."""
    path = fake(initialize="(void*)fail")
    for _ in range(2):
        fails("UNAVAILABLE", core.open, path, match="^PJRT_Plugin_Initialize: out of coffee$")


def test_unknown_create_option(plugin):
    """Plugins may refuse or ignore one; a refusal names it, and the next client is fine."""
    with contextlib.suppress(core.StatusError):
        core.open(plugin.path, {"no_such_option": 1}).close()
    client = core.open(plugin.path)
    assert still_usable(client)


# ----------------------------------------------------------------------------------------------------------- discovery


def test_discovery(plugin):
    assert os.path.isfile(plugin.path)
    assert metadata.version(plugin.distribution) == plugin.version
    assert pjrt.api_version(plugin.path) == (0, core.api_minor(plugin.path))
    assert core.api_minor(plugin.path) <= core.api_minor(pjrt.select("cpu").path)
    assert pjrt.plugin_path() == pjrt.select("cpu").path


DISCOVER = """
import os, sys
from torch_accel import pjrt
plugins = pjrt.discover()
maps = open("/proc/self/maps").read()
print(len(plugins), [name for name in sys.modules if name.startswith(("jax", "xla", "lammps", "libtpu"))])
print([plugin.path for plugin in plugins if plugin.path in maps])
"""


def test_discovery_imports_and_loads_nothing(run_ok):
    lines = run_ok(DISCOVER).splitlines()
    assert lines == [f"{len(pjrt.discover())} []", "[]"]


def test_discovery_of_packages_that_are_not_known(tmp_path, monkeypatch):
    """An entry point of jax_plugins is enough; its module is never imported."""
    package = tmp_path / "jax_plugins" / "frob"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise AssertionError('imported')")
    (package / "frob_pjrt_plugin.so").write_text("")
    (package / "helper.so").write_text("")
    info = tmp_path / "frob_pjrt-1.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: frob-pjrt\nVersion: 1.2\n")
    (info / "entry_points.txt").write_text("[jax_plugins]\nfrob = jax_plugins.frob\n")
    files = ["__init__.py", "frob_pjrt_plugin.so", "helper.so"]
    (info / "RECORD").write_text("".join(f"jax_plugins/frob/{file},,\n" for file in files))
    monkeypatch.syspath_prepend(tmp_path)
    found = [plugin for plugin in pjrt.discover() if plugin.name == "frob"]
    assert found == [pjrt.Plugin("frob", str(package / "frob_pjrt_plugin.so"), "frob-pjrt", "1.2", "frob")]
    assert pjrt.select("frob") == found[0]


def test_no_plugin_for_a_platform():
    with pytest.raises(RuntimeError, match="expected an installed PJRT plugin for cpu, got none .pip install"):
        pjrt.select("cpu", [])
    with pytest.raises(RuntimeError, match="got cpu .or name one: TORCH_ACCEL_PJRT_PLUGIN"):
        pjrt.select("frob", [pjrt.Plugin("cpu", "/a.so", "", "", "cpu")])


def test_a_broken_plugin_comes_last(plugin, tmp_path):
    broken = tmp_path / "broken.so"
    broken.write_text("")
    assert pjrt.select("cpu", [replace(plugin, path=str(broken)), plugin]) == plugin


def test_plugin_by_path(tmp_path):
    library = tmp_path / "a:b.so"
    library.write_text("")
    assert pjrt.parse_plugin(f" my-tpu:{library} ") == pjrt.Plugin("my-tpu", str(library), "", "", "tpu")
    assert pjrt.parse_plugin(f"frob:{library}").platform == "frob"
    for text in ("", "name", str(library), f"1a:{library}", f":{library}"):
        with pytest.raises(ValueError, match="TORCH_ACCEL_PJRT_PLUGIN: expected name:/path/to/plugin.so, got"):
            pjrt.parse_plugin(text)
    with pytest.raises(ValueError, match="expected an absolute path after a:, got 'b.so'"):
        pjrt.parse_plugin("a:b.so")
    with pytest.raises(ValueError, match="which is no file"):
        pjrt.parse_plugin(f"a:{tmp_path}")
