"""accel beside the native device that it runs on, in one run: host cost per operator, attention, training steps.

    python benchmarks/gpu_table.py [--devices cuda,accel] [--rounds N] [--seconds N] [--json FILE]

Both devices run the same kernels, so the difference is what accel costs. Rounds alternate between the two, and every
figure is a median over rounds.

    host    time until a call returns, without waiting for the device: what the CPU pays per call. A round makes so few
            calls that the queue of a GPU, about a thousand kernels, never fills up and makes the CPU wait.
    total   time until the device has finished, per call.

Exit status: 0; 1 if a case raised an error or an operator fell back to the CPU; 2 if there is no such pair of devices.
"""

import argparse
import gc
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import NamedTuple

import torch
from torch.nn import functional as F

import torch_accel

sys.path.insert(0, str(Path(__file__).parent))
from cases import cases
from models import training_step

HOST_CALLS = 200
HOST_ROUNDS = 4  # per round that was asked for: these rounds last a millisecond
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class Case(NamedTuple):
    """What is measured: `make(device)` gives the call, on that device."""

    name: str
    kind: str  # "host" or "total"
    make: Callable[[str], Callable[[], object]]
    calls: int  # per round and device
    grad: bool


def attention(dtype: torch.dtype, backward: bool, device: str) -> Callable[[], object]:
    """Causal attention over (4, 8, 512, 64), forward only or forward and backward."""
    generator = torch.Generator().manual_seed(0)
    query, key, value, grad = (torch.randn(4, 8, 512, 64, generator=generator).to(device, dtype) for _ in range(4))
    if not backward:
        return lambda: F.scaled_dot_product_attention(query, key, value, is_causal=True)
    inputs = [tensor.requires_grad_() for tensor in (query, key, value)]

    def both() -> object:
        return torch.autograd.grad(F.scaled_dot_product_attention(*inputs, is_causal=True), inputs, grad)

    return both


def all_cases() -> list[Case]:
    """Operators first, then steps; within the steps the ones that matter most first."""
    result = [
        Case(name, "host", lambda device, name=name: cases(device)[name], HOST_CALLS, False) for name in cases("cpu")
    ]
    for model in ("GPT", "CNN", "MLP"):
        for label, autocast in (("float32", None), ("bfloat16 autocast", torch.bfloat16)):
            make = lambda device, model=model, autocast=autocast: training_step(model, device, autocast)  # noqa: E731
            result.append(Case(f"{model} step, {label}", "total", make, 3, True))
    for label, dtype in DTYPES.items():
        for words, backward in (("forward", False), ("forward+backward", True)):
            make = lambda device, dtype=dtype, backward=backward: attention(dtype, backward, device)  # noqa: E731
            result.append(Case(f"SDPA {words}, {label}", "total", make, 5, backward))
    return result


def synchronize(device: str) -> None:
    """Wait for all work on `device`."""
    torch.get_device_module(torch.device(device).type).synchronize()


def round_of(call: Callable[[], object], case: Case, device: str) -> float:
    """Seconds per call over one round, which starts and ends with an idle device."""
    synchronize(device)
    start = time.perf_counter()
    for _ in range(case.calls):
        call()
    returned = time.perf_counter()
    synchronize(device)
    end = returned if case.kind == "host" else time.perf_counter()
    return (end - start) / case.calls


def measure(case: Case, devices: list[str], rounds: int) -> dict:
    """Medians in microseconds: of the two devices, of their difference and of their ratio within a round."""
    calls = [case.make(device) for device in devices]
    timed = []
    with nullcontext() if case.grad else torch.no_grad():
        for index in range(-2, rounds * (HOST_ROUNDS if case.kind == "host" else 1)):
            row = [0.0, 0.0]
            for which in (0, 1) if index % 2 == 0 else (1, 0):
                row[which] = round_of(calls[which], case, devices[which])
            if index >= 0:  # the rounds before warm up
                timed.append(row)
    native, accel = (statistics.median(row[which] for row in timed) * 1e6 for which in (0, 1))
    more = statistics.median(row[1] - row[0] for row in timed) * 1e6
    ratio = statistics.median(row[1] / row[0] for row in timed)
    return {"native_us": native, "accel_us": accel, "more_us": more, "ratio": ratio}


def problem_of(devices: list[str]) -> str | None:
    """Why this pair cannot be compared, or None."""
    try:
        for device in devices:
            torch.empty(0, device=device)
    except (RuntimeError, ValueError, AssertionError) as error:  # torch raises AssertionError where a build lacks CUDA
        return str(error)
    native = torch.accel.get_device_properties(devices[1]).native_device
    if torch.device(native).type != torch.device(devices[0]).type:
        return f"torch_accel: expected accel to run on {devices[0]}, got {native} (set TORCH_ACCEL_BACKEND)"
    return None


def pair(text: str) -> list[str]:
    devices = text.split(",")
    if len(devices) != 2 or torch.device(devices[1]).type != "accel":
        raise argparse.ArgumentTypeError(f"expected two devices, NATIVE,accel, got {text!r}")
    return devices


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--devices", type=pair, default=["cuda", "accel"], metavar="NATIVE,accel")
    parser.add_argument("--rounds", type=int, default=11, help="alternations per case (default %(default)s)")
    parser.add_argument("--seconds", type=float, default=300, help="start no case after this (default %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to this file, too")
    args = parser.parse_args()

    problem = problem_of(args.devices)
    if problem is not None:
        print(f"gpu_table: {problem}", file=sys.stderr)
        return 2
    names = [torch.get_device_module(torch.device(args.devices[1]).type).get_device_name(), torch.__version__]
    print(f"{args.devices[1]} beside {args.devices[0]}: {names[0]}, torch {names[1]}, {args.rounds} rounds\n")
    print(f"{'case':29}{'':7}{'native us':>11}{'accel us':>11}{'more us':>10}{'ratio':>8}")
    torch_accel.reset_counters()
    started = time.perf_counter()
    rows = []
    failed = left_out = 0
    gc.disable()
    for case in all_cases():
        row = {"case": case.name, "kind": case.kind}
        if time.perf_counter() - started > args.seconds:
            left_out += 1
            row["error"] = "left out: no time"
        else:
            try:
                row |= measure(case, args.devices, args.rounds)
            except Exception as error:  # one case that fails must not take the other figures away
                failed += 1
                row["error"] = f"{type(error).__name__}: {error}"
            except KeyboardInterrupt:  # a time limit from outside: what was measured is still written
                failed += 1
                row["error"] = "interrupted"
                args.seconds = 0
        rows.append(row)
        figures = row.get("error", "").splitlines()[:1] or [
            f"{row['native_us']:11.2f}{row['accel_us']:11.2f}{row['more_us']:10.2f}{row['ratio']:8.3f}"
        ]
        print(f"{case.name:29}{case.kind:7}{figures[0]}", flush=True)
        gc.collect()

    fallbacks = torch_accel.counters()["fallbacks"]
    print(f"\ncases: {len(rows)}, failed: {failed}, left out: {left_out}, operators that fell back: {len(fallbacks)}")
    for name, entry in fallbacks.items():
        print(f"  {name}: {entry['count']} calls")
    if args.json:
        report = {
            "devices": args.devices,
            "name": names[0],
            "versions": {"torch": names[1], "cuda": torch.version.cuda, "python": platform.python_version()},
            "rounds": args.rounds,
            "rows": rows,
            "fallbacks": fallbacks,
        }
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(json.dumps(report, indent=1) + "\n")
    return 1 if failed or fallbacks else 0


if __name__ == "__main__":
    sys.exit(main())
