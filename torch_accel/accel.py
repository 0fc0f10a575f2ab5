"""torch.accel: the device module of the device `accel`, in the shape of torch.cuda.

Nothing here touches a device before one is needed. `_lazy_init`, which torch calls at the first `device="accel"`
argument, is where a problem met at import is raised; every function below that needs the device goes through it.
A `device` argument is a torch.device, a string ("accel", "accel:1"), an index, or None for the current device; a
device of another type raises ValueError, an index that no device has IndexError, anything else TypeError.
"""

import operator
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

__all__ = [
    "DeviceProperties",
    "Event",
    "Stream",
    "StreamContext",
    "current_device",
    "current_stream",
    "default_generators",
    "default_stream",
    "device",
    "device_count",
    "device_of",
    "empty_cache",
    "get_amp_supported_dtype",
    "get_device_capability",
    "get_device_name",
    "get_device_properties",
    "get_rng_state",
    "get_rng_state_all",
    "init",
    "initial_seed",
    "is_available",
    "is_bf16_supported",
    "is_built",
    "is_initialized",
    "manual_seed",
    "manual_seed_all",
    "max_memory_allocated",
    "max_memory_reserved",
    "mem_get_info",
    "memory_allocated",
    "memory_reserved",
    "memory_stats",
    "memory_summary",
    "reset_accumulated_memory_stats",
    "reset_peak_memory_stats",
    "seed",
    "seed_all",
    "set_device",
    "set_rng_state",
    "set_rng_state_all",
    "set_stream",
    "stream",
    "synchronize",
]

Device = torch.device | str | int | None

# Both are set once, by _autoload: why the device cannot be used, and the loaded extension torch_accel._C.
_problem: str | None = None
_extension: Any = None


# Start of use


def _require_extension() -> Any:
    """The extension. Raises RuntimeError with the problem met at import, if there was one."""
    if _problem is not None:
        raise RuntimeError(_problem)
    return _extension


def _lazy_init() -> Any:
    """Mark the device as in use, apply seeds that came before, and return the extension.

    Raises RuntimeError with the problem met at import, or in a forked child of a process that has used the device;
    ValueError or RuntimeError if the backends asked for do not exist or have no device here.
    """
    extension = _require_extension()
    extension.initialize()  # refuses a forked child
    for which in ("all", "current"):
        pending = _pending_seeds.pop(which, None)
        if pending is not None:
            pending()
    return extension


def init() -> None:
    """Start using the device now instead of at the first need. Raises what the first use would raise."""
    _lazy_init()


def is_initialized() -> bool:
    """True once this process has used the device."""
    return _extension is not None and _extension.is_initialized() and not _extension.is_bad_fork()


def __getattr__(name: str) -> Any:
    # Checkpointing reads this attribute of a device module to learn whether it has a random state to keep.
    if name == "_initialized":
        return is_initialized()
    raise AttributeError(f"module 'torch.accel' has no attribute {name!r}")


def _is_in_bad_fork() -> bool:
    return _extension is not None and bool(_extension.is_bad_fork())


def is_built() -> bool:
    """True if the package is built and its extension fits this torch."""
    return _extension is not None


def is_available() -> bool:
    """True if there is at least one device. Never raises; starts no device."""
    return device_count() > 0


# Devices


def device_count() -> int:
    """Number of devices; 0 if a problem keeps them from being used. Never raises; starts no device."""
    try:
        return int(_require_extension().device_count())
    except Exception:
        # Core asks this in programs that never use the device, such as fork_rng in a CPU program.
        return 0


def _index(device: Device, optional: bool = True) -> int:
    if isinstance(device, str):
        device = torch.device(device)
    if isinstance(device, torch.device):
        if device.type != "accel":
            raise ValueError(f"torch_accel: device argument: expected an accel device, got {str(device)!r}")
        device = device.index
    if device is None:
        if not optional:
            raise ValueError("torch_accel: device argument: expected a device with an index, got none")
        return current_device()
    try:
        return operator.index(device)
    except TypeError:
        raise TypeError(
            f"torch_accel: device argument: expected a device, a string or an index, got {device!r}"
        ) from None


def _checked_index(device: Device) -> int:
    index = _index(device)
    _lazy_init().device_info(index)  # raises IndexError
    return index


def current_device() -> int:
    """Index of the calling thread's current device."""
    _require_extension()
    # Not the extension's own function: torch.compile knows this one, and takes its result as a constant with a guard.
    return torch.accelerator.current_device_index()


def set_device(device: Device) -> None:
    """Make `device` current in the calling thread. A negative index changes nothing."""
    index = _index(device, optional=False)
    if index >= 0:
        _lazy_init().set_device(index)


class device:
    """Context manager: `device` is current inside and the previous one afterwards. None changes nothing."""

    def __init__(self, device: Device) -> None:
        self.idx = -1 if device is None else _index(device)
        self.prev_idx = -1

    def __enter__(self) -> None:
        if self.idx >= 0:
            self.prev_idx = _lazy_init().exchange_device(self.idx)

    def __exit__(self, *exc: object) -> None:
        if self.idx >= 0:
            _extension.exchange_device(self.prev_idx)


class device_of(device):
    """Context manager: the device of `obj`, a tensor or a storage, is current inside. Nothing for other devices."""

    def __init__(self, obj: Any) -> None:
        super().__init__(obj.get_device() if obj.device.type == "accel" else None)


def synchronize(device: Device = None) -> None:
    """Wait for all work of all streams of `device`. Nothing to do, and nothing done, before the device is used."""
    extension = _require_extension()
    if is_initialized():
        extension.synchronize(_index(device))


@dataclass(frozen=True)
class DeviceProperties:
    """What is known of one device.

    name           of the hardware
    backend        that drives it, as in TORCH_ACCEL_BACKEND
    route          how operators reach it: "native" re-dispatches to kernels that torch has for `native_device`
    index          in accel:0, accel:1, ...
    native_device  torch's own name of the same device, such as "cuda:0"
    total_memory   bytes
    major, minor   compute capability; 0, 0 where the hardware has no such thing
    """

    name: str
    backend: str
    route: str
    index: int
    native_device: str
    total_memory: int
    major: int
    minor: int


def _native(index: int) -> tuple[dict[str, Any], torch.device, Any]:
    """Row of the device table, and the native device with its torch module."""
    row = _lazy_init().device_info(index)
    native = torch.device(row["key"].lower(), row["index"])
    return row, native, torch.get_device_module(native)


def get_device_name(device: Device = None) -> str:
    """Name of the hardware."""
    _, native, module = _native(_checked_index(device))
    if native.type == "cpu":
        return f"CPU ({torch.backends.cpu.get_cpu_capability()})"
    return str(module.get_device_name(native.index))


def get_device_capability(device: Device = None) -> tuple[int, int]:
    """Compute capability (major, minor); (0, 0) where the hardware has no such thing."""
    _, native, module = _native(_checked_index(device))
    capability = getattr(module, "get_device_capability", lambda index: None)(native.index)
    return (capability[0], capability[1]) if isinstance(capability, tuple) else (0, 0)


def get_device_properties(device: Device = None) -> DeviceProperties:
    """Properties of `device`."""
    index = _checked_index(device)
    row, native, _ = _native(index)
    major, minor = get_device_capability(index)
    return DeviceProperties(
        name=get_device_name(index),
        backend=row["backend"],
        route=row["route"],
        index=index,
        native_device=str(native),
        total_memory=mem_get_info(index)[1],
        major=major,
        minor=minor,
    )


# Streams and events


class _OnAccel(type):
    """Makes isinstance mean "of the base class, and on this device".

    Objects are plain torch.Stream and torch.Event: core checks some arguments for the exact class.
    """

    def __instancecheck__(cls, instance: Any) -> bool:
        of_base = isinstance(instance, cls.__bases__)
        return of_base and instance.device.type == "accel"


class Stream(torch.Stream, metaclass=_OnAccel):
    """A queue of work on `device`: in order within a stream, unordered between streams.

    priority  lower is more urgent; what a backend does not have is mapped to the nearest that it has
    """

    def __new__(cls, device: Device = None, priority: int = 0, **kwargs: Any) -> Any:
        if kwargs:  # stream_id, device_index, device_type: another handle of a stream that exists
            return torch.Stream(priority=priority, **kwargs)
        return torch.Stream(torch.device("accel", _checked_index(device)), priority=priority)


class Event(torch.Event, metaclass=_OnAccel):
    """A mark in a stream: to wait for, to query, and with `enable_timing` to measure the milliseconds between two."""

    def __new__(cls, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False) -> Any:
        _lazy_init()
        return torch.Event("accel", enable_timing=enable_timing, blocking=blocking, interprocess=interprocess)


def current_stream(device: Device = None) -> torch.Stream:
    """The calling thread's current stream on `device`."""
    return torch._C._accelerator_getStream(_checked_index(device))


def default_stream(device: Device = None) -> torch.Stream:
    """The stream that work on `device` goes to when no other is set."""
    index = _checked_index(device)
    stream_id, device_index, device_type = _extension.default_stream(index)
    return torch.Stream(stream_id=stream_id, device_index=device_index, device_type=device_type)


def set_stream(stream: torch.Stream | None) -> None:
    """Make `stream` the calling thread's current stream, and its device the current device. None changes nothing."""
    if stream is not None:
        _lazy_init()
        torch._C._accelerator_setStream(stream)


class StreamContext:
    """Context manager: `stream` and its device are current inside; afterwards everything is as before."""

    def __init__(self, stream: torch.Stream | None) -> None:
        self.stream = stream
        # One entry per nesting level, so that one object can be entered again inside itself.
        self._previous: list[tuple[int, torch.Stream]] = []

    def __enter__(self) -> None:
        if self.stream is not None:
            self._previous.append((current_device(), current_stream(self.stream.device)))
            set_stream(self.stream)

    def __exit__(self, *exc: object) -> None:
        if self.stream is not None:
            index, stream = self._previous.pop()
            set_stream(stream)
            _extension.set_device(index)


def stream(stream: torch.Stream | None) -> StreamContext:
    """Context manager that makes `stream` current; None changes nothing."""
    return StreamContext(stream)


# Memory. The figures are those of the backend that holds the memory, in bytes.


def empty_cache() -> None:
    """Give memory that is cached but not in use back to the system."""
    _require_extension()
    torch.accelerator.empty_cache()


def memory_stats(device: Device = None) -> "OrderedDict[str, Any]":
    """Allocator statistics under the names of torch.accelerator.memory_stats; empty before the device is used."""
    _require_extension()
    return torch.accelerator.memory_stats(_index(device)) if is_initialized() else OrderedDict()


def memory_allocated(device: Device = None) -> int:
    """Bytes in use by tensors."""
    return memory_stats(device).get("allocated_bytes.all.current", 0)


def max_memory_allocated(device: Device = None) -> int:
    """Highest `memory_allocated` since the start or the last `reset_peak_memory_stats`."""
    return memory_stats(device).get("allocated_bytes.all.peak", 0)


def memory_reserved(device: Device = None) -> int:
    """Bytes held by the allocator, whether in use or cached."""
    return memory_stats(device).get("reserved_bytes.all.current", 0)


def max_memory_reserved(device: Device = None) -> int:
    """Highest `memory_reserved` since the start or the last `reset_peak_memory_stats`."""
    return memory_stats(device).get("reserved_bytes.all.peak", 0)


def reset_peak_memory_stats(device: Device = None) -> None:
    """Set the peaks to the current values."""
    torch.accelerator.reset_peak_memory_stats(_checked_index(device))


def reset_accumulated_memory_stats(device: Device = None) -> None:
    """Set the totals of allocated and freed bytes and counts to zero."""
    torch.accelerator.reset_accumulated_memory_stats(_checked_index(device))


def mem_get_info(device: Device = None) -> tuple[int, int]:
    """Bytes of the device's memory that are free, and in total, for all programs together."""
    return torch.accelerator.get_memory_info(_checked_index(device))


def memory_summary(device: Device = None) -> str:
    """The main figures of `memory_stats` as a small table."""
    index = _checked_index(device)
    stats = memory_stats(index)
    columns = ("current", "peak", "allocated", "freed")
    lines = [
        f"accel:{index} ({get_device_name(index)}), bytes; allocated and freed are totals",
        f"{'':10}" + "".join(f"{column:>18}" for column in columns),
    ]
    for label, kind in (("tensors", "allocated_bytes"), ("reserved", "reserved_bytes")):
        lines.append(f"{label:10}" + "".join(f"{stats.get(f'{kind}.all.{c}', 0):>18,}" for c in columns))
    return "\n".join(lines)


# Random numbers. torch.manual_seed comes here in every program, so a seed must not start the device: before the first
# use it is kept, the last one for all devices and after it the last one for the current device.

_pending_seeds: dict[str, Callable[[], Any]] = {}


def _seed_or_keep(which: str, apply: Callable[[], Any]) -> None:
    if is_initialized():
        apply()
        return
    if which == "all":
        _pending_seeds.clear()
    _pending_seeds[which] = apply


class _DefaultGenerators(Sequence[torch.Generator]):
    """The default generator of each device. Its length and items are those of the device table, which may not exist
    yet when this object is made."""

    def __len__(self) -> int:
        return device_count()

    def __getitem__(self, index: Any) -> Any:
        extension = _lazy_init()
        if isinstance(index, slice):
            return tuple(self[i] for i in range(*index.indices(len(self))))
        count = extension.device_count()
        if not -count <= index < count:
            raise IndexError(f"torch_accel: default_generators: expected an index below {count}, got {index}")
        return extension.default_generator(index % count)

    def __iter__(self) -> Iterator[torch.Generator]:
        return (self[index] for index in range(len(self)))


default_generators = _DefaultGenerators()


def _generator(device: Device) -> torch.Generator:
    return _lazy_init().default_generator(_checked_index(device))


def manual_seed(seed: int) -> None:
    """Seed the current device's default generator. Ignored if the device cannot be used."""
    seed = int(seed)
    _seed_or_keep("current", lambda: _extension.default_generator(current_device()).manual_seed(seed))


def manual_seed_all(seed: int) -> None:
    """Seed the default generators of all devices. Ignored if the device cannot be used."""
    seed = int(seed)

    def apply() -> None:
        for index in range(device_count()):
            _extension.default_generator(index).manual_seed(seed)

    _seed_or_keep("all", apply)


def seed() -> None:
    """Seed the current device's default generator from the system's randomness."""
    _seed_or_keep("current", lambda: _extension.default_generator(current_device()).seed())


def seed_all() -> None:
    """Seed the default generators of all devices with one number from the system's randomness."""

    def apply() -> None:
        number = _extension.default_generator(0).seed()
        for index in range(1, device_count()):
            _extension.default_generator(index).manual_seed(number)

    _seed_or_keep("all", apply)


def initial_seed() -> int:
    """Seed of the current device's default generator."""
    return _generator(None).initial_seed()


def get_rng_state(device: Device = "accel") -> torch.Tensor:
    """State of a default generator: uint8 tensor of shape (n,) on the CPU."""
    return _generator(device).get_state()


def set_rng_state(new_state: torch.Tensor, device: Device = "accel") -> None:
    """Set a default generator to a state from `get_rng_state`."""
    _generator(device).set_state(new_state)


def get_rng_state_all() -> list[torch.Tensor]:
    """`get_rng_state` of every device."""
    return [generator.get_state() for generator in default_generators]


def set_rng_state_all(new_states: Iterable[torch.Tensor]) -> None:
    """`set_rng_state` of every device, in order."""
    for index, state in enumerate(new_states):
        set_rng_state(state, index)


# Automatic mixed precision


def get_amp_supported_dtype() -> list[torch.dtype]:
    """Dtypes that torch.autocast("accel") accepts."""
    return [torch.float16, torch.bfloat16]


def is_bf16_supported(including_emulation: bool = True) -> bool:
    """True if the current device computes in bfloat16, by emulation too unless that is excluded."""
    _, _, module = _native(_checked_index(None))
    supported = getattr(module, "is_bf16_supported", None)
    return True if supported is None else bool(supported(including_emulation))
