"""Finds the PJRT plugins that are installed, and says what to install where there is none.

Nothing is imported and, with one plugin per platform, nothing is loaded: a plugin is found by its distribution's record of
files. Only where two serve the same platform are both libraries opened (no client is), to take the one with the higher
API version.
"""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

# (distribution, file, platform), the preferred ones of a platform first.
KNOWN = (
    ("lammps-jax-pjrt-cpu", "lammps_jax_pjrt_cpu/pjrt_c_api_cpu_plugin.so", "cpu"),
    ("xla-cpu-pjrt", "xla_plugins/xla_cpu_pjrt/xla_cpu_pjrt.so", "cpu"),
    ("libtpu", "libtpu/libtpu.so", "tpu"),
    ("jax-cuda13-pjrt", "jax_plugins/xla_cuda13/xla_cuda_plugin.so", "cuda"),
    ("jax-cuda12-pjrt", "jax_plugins/xla_cuda12/xla_cuda_plugin.so", "cuda"),
    ("xla-cuda13-pjrt", "xla_plugins/xla_cuda13_pjrt/xla_cuda13_pjrt.so", "cuda"),
    ("xla-cuda12-pjrt", "xla_plugins/xla_cuda12_pjrt/xla_cuda12_pjrt.so", "cuda"),
    ("jax-rocm7-pjrt", "jax_plugins/xla_rocm7/xla_rocm_plugin.so", "rocm"),
    ("jax-oneapi-pjrt", "jax_plugins/xla_oneapi/pjrt_plugin_xla_oneapi.so", "xpu"),
)
# Other packages announce themselves here. The value of an entry point is the module whose folder has the library.
GROUPS = ("jax_plugins", "xla_plugins")
INSTALL = {
    "cpu": "pip install --no-deps lammps-jax-pjrt-cpu, or: pip install xla-cpu-pjrt",
    "tpu": "pip install libtpu",
    "cuda": "pip install --no-deps jax-cuda13-pjrt",
    "rocm": "pip install --no-deps jax-rocm7-pjrt",
}


@dataclass(frozen=True)
class Plugin:
    """A plugin's library. `distribution` and `version` are "" for one that the user named by its path."""

    name: str  # of the backend: the platform for a known plugin, else the name that the plugin or the user gives
    path: str  # of the library, absolute
    distribution: str
    version: str
    platform: str  # "cpu", "tpu", "cuda", ...: a guess from the name, until a client says


def discover() -> list[Plugin]:
    """All installed plugins, the preferred ones of a platform first. Opens nothing and raises nothing."""
    found: dict[str, Plugin] = {}
    for distribution, file, platform in KNOWN:
        try:
            installed = metadata.distribution(distribution)
        except metadata.PackageNotFoundError:
            continue
        path = str(installed.locate_file(file))
        if os.path.isfile(path):
            found.setdefault(os.path.realpath(path), Plugin(platform, path, distribution, installed.version, platform))
    for group in GROUPS:
        for entry in metadata.entry_points(group=group):
            for path in _libraries(entry):
                version = entry.dist.version if entry.dist else ""
                name = entry.name.removeprefix("xla_").removesuffix("_pjrt")
                plugin = Plugin(name, path, entry.dist.name if entry.dist else "", version, _guess(name))
                found.setdefault(os.path.realpath(path), plugin)
    return list(found.values())


def select(platform: str, plugins: list[Plugin] | None = None) -> Plugin:
    """The plugin to use for `platform` ("cpu", ..., or a plugin's own name), among `plugins` or all that are installed.

    Raises RuntimeError, saying what to install, where there is none. Of several the one with the highest API version is
    taken; one whose version cannot be read comes last.
    """
    installed = discover() if plugins is None else plugins
    candidates = [plugin for plugin in installed if platform in (plugin.name, plugin.platform)]
    if not candidates:
        names = ", ".join(sorted({plugin.name for plugin in installed})) or "none"
        hint = INSTALL.get(platform, "or name one: TORCH_ACCEL_PJRT_PLUGIN=name:/path/to/plugin.so")
        raise RuntimeError(
            f"torch_accel: backend xla:{platform}: expected an installed PJRT plugin for {platform}, got {names} ({hint})"
        )
    if len(candidates) == 1:
        return candidates[0]
    return max(candidates, key=lambda plugin: api_version(plugin.path) or (-1, -1))


def plugin_path(platform: str = "cpu") -> str | None:
    """Path of the plugin that select() takes, or None where there is none."""
    try:
        return select(platform).path
    except RuntimeError:
        return None


def api_version(path: str) -> tuple[int, int] | None:
    """(major, minor) of the plugin's PJRT API, or None for a file that is no PJRT plugin. Loads the library, for ever."""
    # The head of PJRT_Api: size, extensions, then PJRT_Api_Version: size, extensions, major, minor.
    head = ctypes.c_size_t * 4
    try:
        get_api = ctypes.CDLL(path, os.RTLD_NOW | os.RTLD_LOCAL).GetPjrtApi
    except (OSError, AttributeError):
        return None
    get_api.restype = ctypes.c_void_p
    address = get_api()
    size = ctypes.sizeof(head) + 2 * ctypes.sizeof(ctypes.c_int)
    if not address or head.from_address(address)[0] < size:
        return None
    major, minor = (ctypes.c_int * 2).from_address(address + ctypes.sizeof(head))
    return major, minor


def parse_plugin(text: str) -> Plugin:
    """The plugin that a value of TORCH_ACCEL_PJRT_PLUGIN names: "name:/path/to/plugin.so".

    Raises ValueError for another form, and for a path that is relative or has no file.
    """
    name, colon, path = text.strip().partition(":")
    problem = None
    if not colon or not re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]*", name):
        problem = f"name:/path/to/plugin.so, got {text!r} (a name of letters, digits, _ and -, a colon, a path)"
    elif not os.path.isabs(path):
        problem = f"an absolute path after {name}:, got {path!r} (write the whole path)"
    elif not os.path.isfile(path):
        problem = f"the library of a PJRT plugin, got {path!r}, which is no file (check the path)"
    if problem:
        raise ValueError(f"torch_accel: TORCH_ACCEL_PJRT_PLUGIN: expected {problem}")
    return Plugin(name, path, "", "", _guess(name))


def _guess(name: str) -> str:
    for _, _, platform in KNOWN:
        if re.search(platform, name, re.IGNORECASE):
            return platform
    return name


def _libraries(entry: metadata.EntryPoint) -> Iterator[str]:
    """The library in the folder of an entry point's module: the only one, or the one with a telling name."""
    folder = entry.value.partition(":")[0].replace(".", "/")
    files = [file for file in (entry.dist.files if entry.dist else None) or () if file.suffix == ".so"]
    files = [file for file in files if file.parent.as_posix() == folder]
    telling = [file for file in files if re.search("pjrt|plugin", file.name)]
    for file in telling if len(files) > 1 else files:
        path = Path(str(file.locate()))
        if path.is_file():
            yield str(path)
