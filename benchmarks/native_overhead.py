"""Host cost of the native route: accel over torch's CPU kernels beside the CPU itself, in one run.

    python benchmarks/native_overhead.py [--json FILE]

Both devices run the same kernels, so the difference is what the route costs. Short rounds alternate between the two, and
every figure is a median over rounds. Reach, stated in each row: an operator costs at most 1.2 us more, a view at most 1.3
times as much, a GPT training step at most 1.05 times as much. A case of several operators has the limit once for each.
"""

import argparse
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

os.environ["TORCH_ACCEL_BACKEND"] = "cpu"

import torch

import torch_accel
from torch_accel import demo

sys.path.insert(0, str(Path(__file__).parent))
from cases import OPERATORS, VIEWS, cases

OPERATOR_LIMIT_US = 1.2
VIEW_LIMIT = 1.3
STEP_LIMIT = 1.05


def seconds(call: Callable[[], object], count: int) -> float:
    start = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - start) / count


def alternate(calls: list[Callable[[], object]], count: int, rounds: int) -> list[list[float]]:
    """Seconds per call, one list per round, the devices in alternating order."""
    result = []
    for index in range(rounds):
        order = [0, 1] if index % 2 == 0 else [1, 0]
        row = [0.0, 0.0]
        for which in order:
            row[which] = seconds(calls[which], count)
        result.append(row)
    return result


def measure_operators(rounds: int, count: int) -> list[dict]:
    torch.set_num_threads(1)
    rows = []
    with torch.no_grad():
        on_cpu, on_accel = cases("cpu"), cases("accel")
        for name in on_cpu:
            calls = [on_cpu[name], on_accel[name]]
            alternate(calls, count // 4, 2)  # warm-up
            timed = alternate(calls, count, rounds)
            cpu, accel = (statistics.median(row[i] for row in timed) * 1e6 for i in (0, 1))
            more = statistics.median(row[1] - row[0] for row in timed) * 1e6
            ratio = statistics.median(row[1] / row[0] for row in timed)
            if name in VIEWS:
                limit, reached = f"{VIEW_LIMIT}x", ratio <= VIEW_LIMIT
            else:
                allowed = OPERATOR_LIMIT_US * OPERATORS.get(name, 1)
                limit, reached = f"+{allowed:.1f} us", more <= allowed
            rows.append({"case": name, "cpu_us": cpu, "accel_us": accel, "more_us": more, "ratio": ratio})
            rows[-1] |= {"limit": limit, "reached": reached}
    return rows


def measure_step(rounds: int) -> dict:
    """One training step of the demo's GPT, about a million parameters."""
    torch.set_num_threads(os.cpu_count() or 1)
    torch.manual_seed(0)
    text = demo.load_text()
    model = demo.GPT(demo.GPTConfig())
    batch = demo.draw_batch(text, torch.Generator().manual_seed(0), demo.BATCH, model.sizes.context)
    trainers = [demo.Trainer(model, "cpu"), demo.Trainer(model, "accel")]
    calls = [lambda trainer=trainer: trainer.step(batch, 1e-3) for trainer in trainers]
    alternate(calls, 2, 2)  # warm-up
    timed = alternate(calls, 3, rounds)
    cpu, accel = (statistics.median(row[i] for row in timed) * 1e6 for i in (0, 1))
    ratio = statistics.median(row[1] / row[0] for row in timed)
    return {
        "case": "GPT training step",
        "cpu_us": cpu,
        "accel_us": accel,
        "more_us": accel - cpu,
        "ratio": ratio,
        "limit": f"{STEP_LIMIT}x",
        "reached": ratio <= STEP_LIMIT,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="write the figures to this file, too")
    parser.add_argument("--rounds", type=int, default=21, help="alternations per case (default %(default)s)")
    parser.add_argument("--calls", type=int, default=2000, help="calls per round and device (default %(default)s)")
    args = parser.parse_args()

    rows = measure_operators(args.rounds, args.calls)
    rows.append(measure_step(args.rounds))
    print(f"{'case':20}{'cpu us':>12}{'accel us':>12}{'more us':>10}{'ratio':>8}{'limit':>10}  reached")
    for row in rows:
        print(
            f"{row['case']:20}{row['cpu_us']:12.2f}{row['accel_us']:12.2f}{row['more_us']:10.2f}{row['ratio']:8.3f}"
            f"{row['limit']:>10}  {'yes' if row['reached'] else 'no'}"
        )
    fallbacks = torch_accel.counters()["fallbacks"]
    print(f"fallbacks: {len(fallbacks)}")
    print(f"{sum(row['reached'] for row in rows)} of {len(rows)} within their limit")
    if args.json:
        versions = {"torch": torch.__version__, "python": platform.python_version(), "machine": platform.machine()}
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(json.dumps({"versions": versions, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
