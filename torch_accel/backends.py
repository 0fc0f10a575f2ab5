"""Backends: what is known, what is available and why the rest is not, and which of them form the device table.

A backend is declared by a spec, which is plain data: to hold one opens nothing. Packages add theirs through an entry
point of the group `torch_accel.backends`; its name is the backend's name, its object a spec or a function without
parameters that returns one. Entry points are read at the first need of a device, never at import, and one that fails
is recorded here instead of raised: a broken package must not take away the devices that work.
"""

import warnings
from dataclasses import dataclass
from importlib import metadata
from typing import Any

import torch

from torch_accel import config

ENTRY_POINT_GROUP = "torch_accel.backends"


@dataclass(frozen=True)
class NativeSpec:
    """A device type that torch itself has kernels for.

    name      the backend's name, as in TORCH_ACCEL_BACKEND
    key       dispatch key of those kernels: "CPU", "CUDA", ...; its lower-case form is the torch device type
    priority  where the backend stands when none was asked for: the highest available one is taken
    """

    name: str
    key: str
    priority: int = 200
    route = "native"

    def device_count(self) -> int:
        """Number of devices. May raise what torch raises when it looks for them."""
        if self.key == "CPU":
            return 1
        # Not is_available(): on CUDA that one may create driver state that a forked child cannot use.
        return int(torch.get_device_module(self.key.lower()).device_count())

    def unavailable(self) -> str | None:
        """Why the backend has no device here, or None if it has one. Never raises."""
        if self.key == "CUDA" and not torch.backends.cuda.is_built():
            return "this torch build has no CUDA"
        try:
            count = self.device_count()
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return None if count > 0 else f"no {self.key} device is visible"

    def devices(self) -> list[dict[str, Any]]:
        """One row of the device table per device."""
        return [
            {"backend": self.name, "route": self.route, "key": self.key, "index": index}
            for index in range(self.device_count())
        ]


# The kinds of spec that exist; another route adds its own class.
BackendSpec = NativeSpec

BUILT_IN: dict[str, BackendSpec] = {
    spec.name: spec for spec in (NativeSpec("cuda", "CUDA", priority=400), NativeSpec("cpu", "CPU", priority=0))
}

_entry_points: dict[str, metadata.EntryPoint] | None = None
_loaded: dict[str, BackendSpec | str] = {}


def _found() -> dict[str, metadata.EntryPoint]:
    """Entry points by backend name. A built-in name stays ours: nobody may redefine what `cpu` means."""
    global _entry_points
    if _entry_points is None:
        points = metadata.entry_points(group=ENTRY_POINT_GROUP)
        _entry_points = {point.name: point for point in points if point.name not in BUILT_IN}
    return _entry_points


def _load(name: str) -> BackendSpec | str:
    """The spec called `name`, or the reason why its entry point gives none."""
    if name in BUILT_IN:
        return BUILT_IN[name]
    if name not in _loaded:
        point = _found()[name]
        try:
            spec = point.load()
            spec = spec() if callable(spec) else spec
            if not isinstance(spec, BackendSpec):
                raise TypeError(f"expected a NativeSpec or a function that returns one, got {spec!r}")
            if spec.name != name:
                raise ValueError(f"expected a spec named {name!r} like its entry point, got {spec.name!r}")
            _loaded[name] = spec
        except Exception as error:
            _loaded[name] = f"entry point {point.value} failed: {type(error).__name__}: {error}"
    return _loaded[name]


def names() -> list[str]:
    """Names of all known backends, available or not: built-in ones first."""
    return [*BUILT_IN, *sorted(_found())]


def _unavailable(name: str) -> str | None:
    spec = _load(name)
    return spec if isinstance(spec, str) else spec.unavailable()


def selection() -> list[str]:
    """Backends whose devices form the table: the ones asked for, else the best one available.

    Raises ValueError for a name that no backend has, RuntimeError for a backend that is not available here.
    """
    asked = config.get("backend")
    known = names()
    variable = config.KNOBS["backend"].env
    for name in asked:
        if name not in known:
            raise ValueError(
                f"torch_accel: {variable}: expected a comma list of {', '.join(known)}, got {name!r} "
                "(choose from these, or unset it to take the best one available)"
            )
        reason = _unavailable(name)
        if reason is not None:
            raise RuntimeError(
                f"torch_accel: {variable}: expected an available backend, got {name!r}: {reason} "
                "(see `python -m torch_accel info`, or unset it to take the best one available)"
            )
    if asked:
        return asked

    best: BackendSpec | None = None
    for name in known:
        spec = _load(name)
        if isinstance(spec, str):
            warnings.warn(f"torch_accel: backend {name!r} is left out: {spec}", RuntimeWarning, stacklevel=2)
        elif (best is None or spec.priority > best.priority) and spec.unavailable() is None:
            best = spec
    assert best is not None  # the CPU is always there
    return [best.name]


def device_table() -> list[dict[str, Any]]:
    """Rows {backend, route, key, index} for accel:0, accel:1, ...; `index` is that of the native device.

    Raises what `selection` raises.
    """
    rows: list[dict[str, Any]] = []
    for name in selection():
        spec = _load(name)
        assert not isinstance(spec, str)  # selection() let no broken one through
        rows += spec.devices()
    return rows


def report() -> list[dict[str, Any]]:
    """One row {name, route, source, available, reason} per known backend. Never raises."""
    rows = []
    for name in names():
        spec, reason = _load(name), _unavailable(name)
        distribution = None if name in BUILT_IN else _found()[name].dist
        rows.append(
            {
                "name": name,
                "route": None if isinstance(spec, str) else spec.route,
                "source": "built in" if distribution is None else f"{distribution.name} {distribution.version}",
                "available": reason is None,
                "reason": reason,
            }
        )
    return rows
