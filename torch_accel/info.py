"""What `python -m torch_accel info` shows: devices, backends, versions, knobs, counters.

This is where one looks when something is wrong, so each part is gathered by itself and a failure is part of the answer.
"""

import importlib
import platform
import warnings
from dataclasses import asdict
from typing import Any

import torch

from torch_accel import accel, backends, config


def collect() -> dict[str, Any]:
    """Everything as plain JSON types:

    "versions"  {"torch_accel", "torch", "torch_built_for", "python"}: str, or None if not built
    "problem"   why the device cannot be used, or None
    "devices"   one dict per device, the fields of torch.accel.DeviceProperties
    "backends"  rows of `backends.report`
    "knobs"     [{"env", "value", "is_set", "stage", "doc"}]
    "counters"  `torch_accel.counters()`, or {} without the extension

    Never raises for a device, backend or build that does not work.
    """
    problem = accel._problem
    devices: list[dict[str, Any]] = []
    if problem is None:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # about backends left out: the rows of "backends" say the same
                accel._lazy_init()
            devices = [asdict(accel.get_device_properties(i)) for i in range(accel.device_count())]
        except Exception as error:
            problem = str(error)
    return {
        "versions": _versions(),
        "problem": problem,
        "devices": devices,
        "backends": backends.report(),
        "knobs": [
            {"env": knob.env, "value": knob.text, "is_set": knob.is_set, "stage": knob.stage, "doc": knob.doc}
            for knob in config.KNOBS.values()
        ],
        "counters": accel._extension.counters() if accel._extension is not None else {},
    }


def _versions() -> dict[str, str | None]:
    try:
        build = importlib.import_module("torch_accel._build_info")
    except Exception:  # not built, or a file that was not written to its end: the problem says so
        build = None
    return {
        "torch_accel": getattr(build, "VERSION", None),
        "torch": str(torch.__version__),
        "torch_built_for": getattr(build, "TORCH_VERSION", None),
        "python": platform.python_version(),
    }


def render(info: dict[str, Any]) -> str:
    """The result of `collect` as text for people."""
    versions = info["versions"]
    lines = [
        f"torch_accel {versions['torch_accel'] or '(not built)'}, built for torch {versions['torch_built_for'] or '-'}",
        f"running torch {versions['torch']}, python {versions['python']}",
    ]
    if info["problem"]:
        lines += ["", "problem", f"  {info['problem']}"]

    lines += ["", "devices"]
    for row in info["devices"]:
        memory = f"{row['total_memory'] / 2**30:.1f} GiB"
        lines.append(
            f"  accel:{row['index']:<3} {row['backend']:10} {row['route']:8} {row['native_device']:8} {memory:>10}  "
            f"{row['name']}"
        )
    if not info["devices"]:
        lines.append("  none")

    lines += ["", "backends"]
    for row in info["backends"]:
        state = "available" if row["available"] else f"not available: {row['reason']}"
        lines.append(f"  {row['name']:10} {row['route'] or '-':8} {row['source']:12} {state}")

    lines += ["", "knobs"]
    for knob in info["knobs"]:
        lines.append(f"  {knob['env']:22} {knob['value'] or '(empty)':12} {'set' if knob['is_set'] else 'default'}")

    lines += ["", "counters"]
    for kind, row in info["counters"].get("copies", {}).items():
        lines.append(f"  {kind:22} {row['count']} copies, {row['bytes']} bytes")
    fallbacks = info["counters"].get("fallbacks", {})
    lines.append(f"  {'fallbacks':22} {sum(row['count'] for row in fallbacks.values())}")
    for op, row in fallbacks.items():
        lines.append(f"    {op:30} {row['count']} calls, {row['bytes']} bytes")
    return "\n".join(lines)
