"""Capability: torch.accel and torch.accelerator as device modules: devices, contexts, properties, streams, events; and
the ways of moving things to the device by name, by index and by method."""

import functools
import inspect
import re
import threading
import time
import types

import forked
import pytest
import torch
from helpers import reference

DEVICE = torch.device("accel", 0)
HOST = torch.accel.get_device_properties(0).native_device.startswith("cpu")

needs_host = pytest.mark.skipif(not HOST, reason="needs a backend that computes on the host: backend cpu")


# Runs in a process that has two devices, whatever this one has.
run_two = functools.partial(forked.run_ok, TORCH_ACCEL_BACKEND="cpu,cpu")


# ----------------------------------------------------------------------------------------------------------------- module
def test_every_public_name_is_there_and_documented():
    for name in torch.accel.__all__:
        value = getattr(torch.accel, name)
        if inspect.isroutine(value) or inspect.isclass(value):
            assert value.__doc__, name
    public = {
        name
        for name, value in vars(torch.accel).items()
        if not name.startswith("_") and getattr(value, "__module__", None) == "torch_accel.accel"
    }
    assert public <= set(torch.accel.__all__) and sorted(torch.accel.__all__) == torch.accel.__all__


# What torch's own code asks a device module for, in data loading, checkpointing, autocast, parallel wrappers, profilers.
ASKED_BY_CORE = """current_device device_count set_device is_available is_initialized synchronize device device_of
    get_rng_state set_rng_state get_rng_state_all set_rng_state_all manual_seed manual_seed_all seed seed_all initial_seed
    default_generators Stream Event stream current_stream default_stream set_stream StreamContext
    get_amp_supported_dtype is_bf16_supported empty_cache memory_allocated max_memory_allocated memory_reserved
    max_memory_reserved memory_stats memory_summary mem_get_info reset_peak_memory_stats reset_accumulated_memory_stats
    get_device_name get_device_capability get_device_properties _is_in_bad_fork _lazy_init _initialized init"""


def test_what_torch_asks_of_a_device_module():
    missing = [name for name in ASKED_BY_CORE.split() if not hasattr(torch.accel, name)]
    assert missing == []
    # And with the same way of calling as in torch.cuda, as far as core calls it by keyword or position.
    for name in ("get_rng_state", "manual_seed", "synchronize", "memory_stats", "current_stream", "get_device_name"):
        ours, cuda = (list(inspect.signature(getattr(m, name)).parameters)[:1] for m in (torch.accel, torch.cuda))
        assert ours == cuda, name
    with pytest.raises(AttributeError, match="module 'torch.accel' has no attribute 'nothing'"):
        _ = torch.accel.nothing


@pytest.mark.smoke
def test_the_module_is_registered():
    for argument in ("accel", "accel:0", DEVICE, torch.device("accel")):
        assert torch.get_device_module(argument) is torch.accel
    assert isinstance(torch.accel, types.ModuleType)
    assert torch._C._get_privateuse1_backend_name() == "accel"
    assert torch._C._get_accelerator() == torch.device("accel")
    if not torch.cuda.is_available():
        assert torch.get_device_module() is torch.accel


@pytest.mark.smoke
def test_availability_and_counts():
    assert torch.accel.is_built() is True
    assert torch.accel.is_available() is True and torch.accelerator.is_available() is True
    assert torch.accel.device_count() == torch.accelerator.device_count() == len(torch.accel.default_generators) >= 1
    torch.accel.init()
    assert torch.accel.is_initialized() is True and torch.accel._initialized is True
    assert torch.accel._is_in_bad_fork() is False
    torch.accel.init()  # again: nothing


def test_properties():
    index = torch.accel.device_count() - 1
    properties = torch.accel.get_device_properties(index)
    assert properties == torch.accel.get_device_properties(f"accel:{index}")
    assert properties == torch.accel.get_device_properties(torch.device("accel", index))
    assert properties.index == index and properties.route == "native" and properties.backend in ("cpu", "cuda")
    assert torch.device(properties.native_device).type == reference().type
    assert properties.name == torch.accel.get_device_name(index) and properties.name
    assert (properties.major, properties.minor) == torch.accel.get_device_capability(index)
    assert properties.total_memory == torch.accel.mem_get_info(index)[1] > 2**20
    assert f"name='{properties.name}'" in repr(properties)
    with pytest.raises(AttributeError):
        properties.name = "another"
    if HOST:
        assert properties.name == f"CPU ({torch.backends.cpu.get_cpu_capability()})"
        assert torch.accel.get_device_capability() == (0, 0)
    assert torch.accel.is_bf16_supported() in (True, False)
    assert torch.accel.get_amp_supported_dtype() == [torch.float16, torch.bfloat16]


# ----------------------------------------------------------------------------------------------------- device arguments
TAKE_A_DEVICE = """current_stream default_stream get_device_capability get_device_name get_device_properties
    get_rng_state max_memory_allocated max_memory_reserved mem_get_info memory_allocated memory_reserved memory_stats
    memory_summary reset_accumulated_memory_stats reset_peak_memory_stats synchronize Stream"""


@pytest.mark.parametrize("name", TAKE_A_DEVICE.split())
def test_device_arguments(name):
    function = getattr(torch.accel, name)
    for argument in ("accel", "accel:0", torch.device("accel"), DEVICE, 0):
        function(argument)
    if name != "get_rng_state":  # like torch.cuda's, its default is a device
        function()
        function(None)
    torch.accel.init()
    for wrong in ("accel:60", torch.device("accel", 60), 60, -1):
        with pytest.raises(IndexError, match="torch_accel: device: expected an index below"):
            function(wrong)
    for wrong in ("cpu", torch.device("cpu"), "cuda:0", "meta"):
        with pytest.raises(ValueError, match="torch_accel: device argument: expected an accel device, got"):
            function(wrong)
    with pytest.raises(RuntimeError):
        function("no such device")
    for wrong in (0.0, torch.ones(1), [0], b"accel"):
        with pytest.raises(TypeError, match="torch_accel: device argument: expected a device"):
            function(wrong)


def test_arguments_of_set_device_and_contexts():
    for argument in (0, "accel:0", DEVICE, -1):
        torch.accel.set_device(argument)
        assert torch.accel.current_device() == 0
    for argument in (0, "accel:0", "accel", DEVICE, None, -1):
        with torch.accel.device(argument) as value:
            assert value is None and torch.accel.current_device() == 0
    for wrong in ("accel", torch.device("accel"), None):
        with pytest.raises(ValueError, match="expected a device with an index"):
            torch.accel.set_device(wrong)
    for wrong in (60, "accel:60"):
        with pytest.raises(IndexError):
            torch.accel.set_device(wrong)
        with pytest.raises(IndexError), torch.accel.device(wrong):
            pass
    for wrong in ("cpu", torch.device("cpu")):
        with pytest.raises(ValueError):
            torch.accel.set_device(wrong)
        with pytest.raises(ValueError):
            torch.accel.device(wrong)
    for wrong in (0.5, torch.ones(1), [0]):
        with pytest.raises(TypeError):
            torch.accel.set_device(wrong)
    assert torch.accel.current_device() == 0


TO_NO_SUCH_DEVICE = {
    "factory": lambda: torch.ones(2, device="accel:60"),
    "empty": lambda: torch.empty(0, device="accel:60"),
    "random": lambda: torch.randn(2, device="accel:60"),
    "to": lambda: torch.ones(2).to("accel:60"),
    "to index": lambda: torch.ones(2).to(60),
    "between": lambda: torch.ones(2, device="accel").to("accel:60"),
    "method": lambda: torch.ones(2).accel(60),
    "module": lambda: torch.nn.Linear(1, 1).to("accel:60"),
    "module method": lambda: torch.nn.Linear(1, 1).accel(60),
    "tensor": lambda: torch.tensor([1], device="accel:60"),
    "like": lambda: torch.ones_like(torch.ones(2), device="accel:60"),
    "generator": lambda: torch.Generator("accel:60"),
    "stream": lambda: torch.Stream("accel:60"),
    "set_device_index": lambda: torch.accelerator.set_device_index(60),
    "synchronize": lambda: torch.accelerator.synchronize(60),
    "current_stream": lambda: torch.accelerator.current_stream(60),
    "capability": lambda: torch.accelerator.get_device_capability(60),
    "memory_stats": lambda: torch.accelerator.memory_stats(60),
    "get_memory_info": lambda: torch.accelerator.get_memory_info(60),
    "reset_peak": lambda: torch.accelerator.reset_peak_memory_stats(60),
    "generators": lambda: torch.accel.default_generators[60],
}


@pytest.mark.parametrize("name", TO_NO_SUCH_DEVICE)
def test_a_device_that_does_not_exist(name):
    with pytest.raises(IndexError, match="torch_accel: .*expected an index below"):
        TO_NO_SUCH_DEVICE[name]()
    assert torch.ones(2, device="accel").add(1).tolist() == [2, 2]


def test_device_objects():
    assert torch.device("accel:3") == torch.device("accel", 3) == torch.device(type="accel", index=3)
    assert torch.device("accel") != DEVICE and torch.device("accel").index is None
    assert str(torch.device("accel:1")) == "accel:1" and repr(DEVICE) == "device(type='accel', index=0)"
    with torch.device("accel"):
        assert torch.ones(1).device == DEVICE and torch.get_default_device() == DEVICE
    assert torch.ones(1).device.type == "cpu"
    with pytest.raises(RuntimeError):
        torch.device("accel:-1")
    if not torch.cuda.is_available():
        assert torch.device(0) == DEVICE  # an index means the accelerator


# ----------------------------------------------------------------------------------------------------------------- moving
WAYS = {
    "to name": lambda x: x.to("accel"),
    "to name and index": lambda x: x.to("accel:0"),
    "to device": lambda x: x.to(DEVICE),
    "to keyword": lambda x: x.to(device="accel"),
    "method": lambda x: x.accel(),
    "method, index": lambda x: x.accel(0),
    "method, device": lambda x: x.accel(DEVICE),
    "method, name": lambda x: x.accel("accel"),
}
if not torch.cuda.is_available():
    WAYS["to index"] = lambda x: x.to(0)


@pytest.mark.smoke
@pytest.mark.parametrize("way", WAYS)
def test_moving(way):
    move = WAYS[way]
    x = torch.arange(6.0).view(2, 3)
    y = move(x)
    assert y.device == DEVICE and y.is_accel and not x.is_accel and not y.is_cpu and y.get_device() == 0
    assert torch.equal(y.cpu(), x) and y.dtype == x.dtype
    assert move(y) is y
    if way != "method, name":
        module = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3))
        weight = module[0].weight.detach().clone()
        assert move(module) is module
        assert {t.device for t in [*module.parameters(), *module.buffers()]} == {DEVICE}
        assert torch.equal(module[0].weight.cpu(), weight) and module[0].weight.requires_grad
    if not way.startswith("to keyword"):
        sequence = torch.nn.utils.rnn.pack_sequence([torch.ones(3), torch.ones(2)])
        moved = move(sequence)
        assert moved.data.device == DEVICE and moved.is_accel and not sequence.is_accel
        assert moved.batch_sizes.device.type == "cpu"


def test_moving_with_a_cast_and_without_waiting():
    x = torch.arange(3)
    assert x.to("accel", torch.float64).dtype == torch.float64
    y = x.accel(non_blocking=True)
    torch.accel.synchronize()
    assert y.tolist() == [0, 1, 2]
    with pytest.raises(RuntimeError, match="must be accel device"):
        x.accel("cpu")


@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")
def test_storages_have_the_methods():
    storage = torch.arange(4.0).untyped_storage()
    there = storage.accel()
    assert there.is_accel and not storage.is_accel and there.device == DEVICE and there.tolist() == storage.tolist()
    typed = torch.arange(4.0).storage()
    assert typed.accel().is_accel and not typed.is_accel


def test_is_accel_of_everything():
    x = torch.ones(2, device="accel", requires_grad=True)
    for tensor in (x, x.view(1, 2), x.detach(), x.data, x + 1, torch.nn.Parameter(x), x.to_sparse()):
        assert tensor.is_accel is True
    for tensor in (x.cpu(), x.to("meta"), torch.ones(1)):
        assert tensor.is_accel is False


# ------------------------------------------------------------------------------------------------------ torch.accelerator
def test_torch_accelerator():
    """All of its functions; those of memory are in test_memory.py."""
    a = torch.accelerator
    tested_here = {
        "current_accelerator", "current_device_idx", "current_device_index", "current_stream", "device_count",
        "device_index", "get_device_capability", "is_available", "set_device_idx", "set_device_index", "set_stream",
        "synchronize", "Graph",
    }  # fmt: skip
    about_memory = {name for name in a.__all__ if "memory" in name or name in ("empty_cache", "empty_host_cache")}
    assert set(a.__all__) - about_memory <= tested_here

    assert a.current_accelerator() == a.current_accelerator(check_available=True) == torch.device("accel")
    a.set_device_index(0)
    a.set_device_index("accel:0")
    a.set_device_index(-1)
    assert a.current_device_index() == 0
    with pytest.warns(FutureWarning):
        assert a.current_device_idx() == 0
    with pytest.warns(FutureWarning):
        a.set_device_idx(0)
    for index in (0, None):
        with a.device_index(index):
            assert a.current_device_index() == 0
    for argument in (None, 0, "accel", "accel:0", DEVICE):
        assert a.current_stream(argument) == torch.accel.current_stream()
        a.synchronize(argument)
    other = torch.Stream("accel")
    default = a.current_stream()
    a.set_stream(other)
    assert a.current_stream() == other == torch.accel.current_stream() != default
    a.set_stream(default)
    for wrong in ("cpu", torch.device("cpu")):
        with pytest.raises(ValueError, match="doesn't match the current accelerator"):
            a.synchronize(wrong)
    with pytest.raises(RuntimeError, match="doesn't match the current accelerator"):
        a.set_stream(torch.Stream("cpu"))

    if hasattr(a, "get_device_capability"):
        dtypes = a.get_device_capability()["supported_dtypes"]
        assert {torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.bool, torch.complex64} <= dtypes
        for dtype in (torch.float64, torch.float16, torch.int8, torch.uint8, torch.complex128):
            assert dtype in dtypes and torch.ones(1, dtype=dtype, device="accel").add(1).real.item() == 2
    if hasattr(a, "Graph") and HOST:
        with pytest.raises(RuntimeError, match="not supported on device type: accel"):
            a.Graph()


# ---------------------------------------------------------------------------------------------------------------- streams
@pytest.mark.smoke
def test_streams():
    default = torch.accel.default_stream()
    assert torch.accel.current_stream() == default == torch.accel.current_stream(0)
    stream = torch.accel.Stream()
    assert type(stream) is torch.Stream and stream.device == DEVICE
    assert stream != torch.accel.Stream() and stream != default and hash(stream) != hash(default)
    assert isinstance(stream, torch.accel.Stream) and isinstance(torch.Stream("accel"), torch.accel.Stream)
    assert not isinstance(torch.Stream("cpu"), torch.accel.Stream) and not isinstance(1, torch.accel.Stream)
    again = torch.accel.Stream(
        stream_id=stream.stream_id, device_index=stream.device_index, device_type=stream.device_type
    )
    assert again == stream and hash(again) == hash(stream)
    assert torch.accel.Stream("accel:0", priority=-1).device == DEVICE
    assert torch.accel.Stream(DEVICE, 1).device == DEVICE

    with torch.accel.stream(stream) as value:
        assert value is None and torch.accel.current_stream() == stream
        x = torch.ones(1000, device="accel") * 3
        with torch.accel.stream(None):
            assert torch.accel.current_stream() == stream
        with torch.accel.StreamContext(default):
            assert torch.accel.current_stream() == default
        assert torch.accel.current_stream() == stream
    assert torch.accel.current_stream() == default
    default.wait_stream(stream)
    assert x.sum().item() == 3000
    x.record_stream(default)
    with stream:  # torch.Stream is a context manager itself
        assert torch.accel.current_stream() == stream
    assert torch.accel.current_stream() == default
    stream.synchronize()
    assert stream.query() is True
    torch.accel.set_stream(None)
    assert torch.accel.current_stream() == default
    with pytest.raises(RuntimeError):
        torch.accel.set_stream(torch.Stream("cpu"))
    with pytest.raises(ValueError), torch.accel.stream(torch.Stream("cpu")):
        pass
    assert torch.accel.current_stream() == default


def test_stream_contexts_nest_and_survive_errors():
    default, one, two = torch.accel.current_stream(), torch.accel.Stream(), torch.accel.Stream()
    context = torch.accel.stream(one)
    with context, torch.accel.stream(two), context:
        assert torch.accel.current_stream() == one
    assert torch.accel.current_stream() == default
    with pytest.raises(KeyError), torch.accel.stream(one):
        raise KeyError
    assert torch.accel.current_stream() == default


def test_operators_and_their_gradients_run_on_the_current_stream():
    stream = torch.accel.Stream()
    seen = []
    x = torch.ones(4, device="accel", requires_grad=True)
    stream.wait_stream(torch.accel.current_stream())
    with torch.accel.stream(stream):
        y = (x * 2).sum()
        x.register_hook(lambda grad: seen.append(torch.accel.current_stream()))
        assert torch.accel.current_stream() == stream  # an operator leaves it
    y.backward()  # from outside: the engine takes the stream of the forward
    torch.accel.synchronize()
    assert x.grad.tolist() == [2] * 4
    assert len(seen) == 1 and seen[0].device == DEVICE
    if not HOST:
        assert seen[0] == stream


def test_the_current_stream_belongs_to_the_thread():
    stream, seen = torch.accel.Stream(), []
    with torch.accel.stream(stream):
        thread = threading.Thread(target=lambda: seen.append(torch.accel.current_stream()))
        thread.start()
        thread.join()
    assert seen == [torch.accel.default_stream()]


# ----------------------------------------------------------------------------------------------------------------- events
@pytest.mark.smoke
def test_events():
    start, end = (torch.accel.Event(enable_timing=True) for _ in range(2))
    assert type(start) is torch.Event and isinstance(start, torch.accel.Event)
    assert isinstance(torch.Event("accel"), torch.accel.Event) and not isinstance(torch.Event("cpu"), torch.accel.Event)
    assert start.query() is True and start.event_id == 0  # not recorded: nothing to wait for
    start.synchronize()
    start.wait()
    start.record()
    x = torch.ones(100, device="accel") + 1
    time.sleep(0.02)
    end.record(torch.accel.current_stream())
    end.synchronize()
    assert end.query() is True and end.event_id != 0 and end.device == DEVICE
    if HOST:
        assert 20 <= start.elapsed_time(end) < 10_000
        assert start.elapsed_time(end) == pytest.approx(-end.elapsed_time(start))
    assert isinstance(start.elapsed_time(end), float) and start.elapsed_time(start) == 0
    assert x.sum().item() == 200


@needs_host
def test_time_of_an_event_is_that_of_its_last_record():
    start, end = (torch.Event("accel", enable_timing=True) for _ in range(2))
    start.record()
    end.record()
    short = start.elapsed_time(end)
    time.sleep(0.01)
    end.record()
    assert start.elapsed_time(end) >= short + 10
    start.record()
    assert start.elapsed_time(end) <= 0


def test_events_between_streams():
    one, two = torch.accel.Stream(), torch.accel.Stream()
    with torch.accel.stream(one):
        x = torch.full((1000,), 2.0, device="accel")
    event = one.record_event()
    assert isinstance(event, torch.accel.Event) and event.device == DEVICE
    two.wait_event(event)
    with torch.accel.stream(two):
        y = x + 1
        mine = torch.accel.Event()
        mine.record()
    assert two.record_event(mine) is mine
    mine.wait(torch.accel.current_stream())
    two.wait_event(torch.accel.Event())  # not recorded: nothing to wait for
    two.synchronize()
    assert y.sum().item() == 3000


def test_event_errors():
    timed, other, plain = torch.accel.Event(True), torch.accel.Event(enable_timing=True), torch.accel.Event()
    with pytest.raises(ValueError, match="must be recorded"):
        timed.elapsed_time(other)
    timed.record()
    with pytest.raises(ValueError, match="must be recorded"):
        timed.elapsed_time(other)
    plain.record()
    with pytest.raises(ValueError, match="enable_timing"):
        timed.elapsed_time(plain)
    with pytest.raises(RuntimeError, match="does not match"):
        timed.record(torch.Stream("cpu"))
    with pytest.raises(RuntimeError):
        torch.Stream("cpu").wait_event(timed)
    with pytest.raises(NotImplementedError):
        timed.ipc_handle()
    assert timed.query()


# ------------------------------------------------------------------------------------------------------------ two devices
@pytest.mark.smoke
def test_current_device_among_two():
    run_two(
        """
        import threading
        import torch
        assert torch.accel.device_count() == torch.accelerator.device_count() == 2
        current = torch.accel.current_device
        properties = [torch.accel.get_device_properties(i) for i in range(2)]
        assert [p.index for p in properties] == [0, 1] and {p.native_device for p in properties} == {"cpu:0"}

        # Contexts
        with torch.accel.device(1):
            assert current() == 1 == torch.accelerator.current_device_index()
            with torch.accel.device(None):
                assert current() == 1
            with torch.accel.device("accel:0"):
                assert current() == 0
            assert current() == 1
        assert current() == 0
        context = torch.accel.device(torch.device("accel:1"))
        with context:
            pass
        with context, torch.accel.device(0):
            assert current() == 0
        assert current() == 0
        try:
            with torch.accel.device(1):
                raise KeyError
        except KeyError:
            assert current() == 0
        with torch.accelerator.device_index(1):
            assert current() == 1
        for value in (torch.ones(1, device="accel:1"), torch.ones(1, device="accel:1").untyped_storage()):
            with torch.accel.device_of(value):
                assert current() == 1
            assert current() == 0
        with torch.accel.device_of(torch.ones(1)):
            assert current() == 0

        # What "accel" without an index means
        def meant():
            x = torch.ones(2)
            made = [torch.ones(2, device="accel"), x.to("accel"), x.accel(), torch.rand(2, device="accel"),
                    torch.nn.Linear(1, 1).accel().weight, torch.nn.Linear(1, 1, device="accel").bias,
                    torch.tensor([1.0], device="accel"), torch.empty(0, device="accel"), torch.Generator("accel"),
                    torch.Stream("accel"), torch.Stream(), torch.accel.Stream(), torch.accel.current_stream(),
                    torch.accel.default_stream(), torch.ones(1, device="accel:0").to("accel"),
                    torch.ones(1, device="accel:1").to("accel")]
            return [thing.device.index for thing in made]
        before = meant()
        assert set(before[:-2]) == {0}, before
        torch.accel.set_device(1)
        after = meant()
        assert set(after[:-2]) == {1}, after
        # An operator on another device does not move it, nor does an error.
        (torch.ones(2, device="accel:0") + 1).sum().item()
        try:
            torch.ones(2, device="accel:0") @ torch.ones(3, device="accel:0")
        except RuntimeError:
            pass
        torch.accel.set_device(-1)
        assert current() == 1

        # Each thread has its own.
        seen = []
        def work():
            seen.append(current())
            torch.accel.set_device(0)
            seen.append(torch.ones(1, device="accel").device.index)
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        assert seen == [0, 0] and current() == 1
        """
    )


def test_streams_and_events_of_two_devices():
    run_two(
        """
        import torch
        current = torch.accel.current_device
        one = torch.accel.Stream(1)
        assert one.device == torch.device("accel:1") == torch.Stream("accel:1").device
        with torch.accel.stream(one):  # makes its device current, too
            assert current() == 1 and torch.accel.current_stream() == one != torch.accel.current_stream(0)
            zero = torch.accel.Stream(0)
            with torch.accel.stream(zero):
                assert current() == 0 and torch.accel.current_stream() == zero
                assert torch.accel.current_stream(1) == one
            assert current() == 1 and torch.accel.current_stream(0) != zero
        assert current() == 0 and torch.accel.current_stream(1) == torch.accel.default_stream(1)
        with one:
            assert current() == 1
        assert current() == 0
        torch.accel.set_stream(one)
        assert current() == 1
        torch.accelerator.set_stream(zero)
        assert current() == 0
        torch.accel.set_stream(torch.accel.default_stream(0))

        event = torch.accel.Event(enable_timing=True)
        event.record(one)
        assert event.device.index == 1
        torch.accel.current_stream(0).wait_event(event)  # across devices is fine
        event.synchronize()
        for use in (lambda: event.record(torch.accel.default_stream(0)),
                    lambda: torch.accel.default_stream(0).record_event(event)):
            try:
                use()
            except RuntimeError as error:
                assert "expected a stream of accel:1, got one of accel:0" in str(error)
            else:
                raise AssertionError("expected an error")
        torch.accel.synchronize(0), torch.accel.synchronize("accel:1"), torch.accelerator.synchronize(1)
        """
    )


@pytest.mark.smoke
def test_tensors_of_two_devices():
    run_two(
        """
        import torch
        a, b = torch.arange(6.0).view(2, 3).to("accel:0"), torch.arange(6.0).view(2, 3).to("accel:1")
        assert (a.get_device(), b.get_device()) == (0, 1)

        # Results stay where the arguments are, whatever device is current.
        for index in range(2):
            torch.accel.set_device(index)
            linear = torch.nn.Linear(3, 2).to("accel:1")
            results = [b + 1, b.t(), b[1:], b.sum(), b * torch.tensor(2.0), b @ b.t(), linear(b), b.clone(), b > 1,
                       b.new_ones(2), b.new_tensor([1]), b.new_empty(0), torch.ones_like(b), torch.rand_like(b),
                       b.nonzero(), b.unique(), torch.cat([b, b]), b.double(), b.sort().values, b[b > 2],
                       b.to("accel:1"), torch.empty_like(b), b.resize_as_(b), b.to_sparse().values(),
                       torch.fft.fft(b), torch.linalg.norm(b), torch.dropout(b, 0.5, True), b.expand(2, 2, 3)]
            wrong = [i for i, result in enumerate(results) if result.device != torch.device("accel:1")]
            assert not wrong, wrong
            assert torch.accel.current_device() == index
        torch.accel.set_device(0)

        # Copies
        assert b.to("accel:0").device.index == 0 and torch.equal(b.to("accel:0"), a)
        assert b.to("accel:1") is b and b.accel(1) is b and b.accel(0).device.index == 0
        assert torch.equal(torch.zeros(3, 2, device="accel:1").t().copy_(a, non_blocking=True), b)
        assert torch.equal(a[:, ::2].to("accel:1", torch.int64).cpu(), a[:, ::2].long().cpu())
        module = torch.nn.Linear(3, 2).to("accel:0")
        assert module.to("accel:1")(b).device.index == 1 == module.weight.device.index
        assert torch.ones(2).to(1).device == torch.device("accel:1")

        # Autograd across
        x = a.clone().requires_grad_()
        y = (x.to("accel:1") * b).sum()
        (y.cpu() + y.to("accel:0").cpu()).backward()
        assert x.grad.device.index == 0 and torch.equal(x.grad, 2 * a) and torch.accel.current_device() == 0

        # Mixed devices are errors that name both.
        index = torch.tensor([0], device="accel:0")
        mixed = {
            "add": lambda: a + b, "add_": lambda: a.add_(b), "mm": lambda: a @ b.t(), "cat": lambda: torch.cat([a, b]),
            "out": lambda: torch.add(a, 1, out=torch.empty_like(b)), "index": lambda: b[index],
            "index_put": lambda: b.index_put((index,), a[0]), "linear": lambda: torch.nn.functional.linear(a, b),
            "where": lambda: torch.where(a > 0, b, b), "foreach": lambda: torch._foreach_add([a], [b]),
            "module": lambda: module(a), "scalar": lambda: a + b.sum(), "equal": lambda: torch.equal(a, b),
            "stack": lambda: torch.stack([a, b]), "embedding": lambda: torch.nn.functional.embedding(index, b),
            "host": lambda: a + torch.ones(2, 3), "gather": lambda: b.gather(0, index.view(1, 1)),
        }
        for name, use in mixed.items():
            try:
                use()
            except RuntimeError as error:
                assert "accel:0" in str(error) and ("accel:1" in str(error) or "cpu" in str(error)), (name, error)
            else:
                raise AssertionError(name)
        assert torch.equal(a.cpu(), torch.arange(6.0).view(2, 3)) and torch.equal(b.cpu(), a.cpu())
        """
    )


def test_random_numbers_of_two_devices():
    run_two(
        """
        import warnings
        import torch
        def draw():
            return torch.rand(4, device="accel:0").cpu(), torch.rand(4, device="accel:1").cpu()

        torch.accel.set_device(1)
        torch.manual_seed(3)  # all devices
        torch.accel.set_device(0)
        a, b = draw()
        assert torch.equal(a, b)
        torch.accel.manual_seed_all(3)
        assert torch.equal(draw()[1], a)
        with torch.accel.device(1):
            torch.accel.manual_seed(4)  # the current one
            assert torch.accel.initial_seed() == 4
        assert torch.accel.initial_seed() == 3
        assert not torch.equal(*draw())
        torch.accel.seed_all()
        generators = list(torch.accel.default_generators)
        assert [g.device.index for g in generators] == [0, 1] and generators[0].initial_seed() == generators[1].initial_seed()
        assert torch.accel.default_generators[-1].device.index == 1 and len(torch.accel.default_generators[:]) == 2
        states = torch.accel.get_rng_state_all()
        first = draw()
        torch.accel.set_rng_state_all(states)
        assert all(map(torch.equal, draw(), first))
        state = torch.accel.get_rng_state(1)
        b = draw()[1]
        torch.accel.set_rng_state(state, "accel:1")
        assert torch.equal(draw()[1], b)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about the number of devices
            with torch.random.fork_rng():
                inside = draw()
            assert all(map(torch.equal, draw(), inside))
        with torch.random.fork_rng(devices=[1]):
            inside = draw()
        outside = draw()
        assert torch.equal(inside[1], outside[1]) and not torch.equal(inside[0], outside[0])
        """
    )


def test_too_many_devices():
    done = forked.run_python("import torch; torch.ones(1, device='accel')", TORCH_ACCEL_BACKEND=",".join(["cpu"] * 65))
    assert done.returncode == 1
    assert re.search(r"torch_accel: device table: expected at most 64 devices, got 65", done.stderr)
