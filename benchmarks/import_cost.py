"""What autoloading adds to `import torch`: medians over fresh processes with it and without, run alternately.

    python benchmarks/import_cost.py [--rounds N] [--json FILE]

The limit is on the difference of the two imports: exit status 1 if its median is above 50 ms. Importing torch takes seconds
and a single difference varies by more than the limit, so take many rounds, on a quiet machine, and look at the spread. The
step that autoloading adds, timed by itself in the processes without it, is shown to explain the difference, not to judge it.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

LIMIT = 50.0  # ms
TIMED = """
import sys, time
start = time.perf_counter()
import torch
print((time.perf_counter() - start) * 1e3)
if "torch_accel" not in sys.modules:
    start = time.perf_counter()
    torch._import_device_backends()
    print((time.perf_counter() - start) * 1e3)
assert "torch_accel._C" in sys.modules, "expected an installed package, got none that torch loads (pip install -e .)"
"""


def measure(autoload: bool) -> list[float]:
    """Milliseconds of `import torch` in a fresh process and, without autoload, of the step that it would have added."""
    env = os.environ | {"TORCH_DEVICE_BACKEND_AUTOLOAD": str(int(autoload))}
    env.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed package has its bytecode, an editable one writes it once
    done = subprocess.run([sys.executable, "-c", TIMED], env=env, check=True, stdout=subprocess.PIPE, text=True)
    return [float(line) for line in done.stdout.split()]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9, metavar="N", help="pairs of processes (default: %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures")
    args = parser.parse_args()

    measure(True), measure(False)  # files into the cache, bytecode written
    rounds = []
    for number in range(args.rounds):
        order = (True, False) if number % 2 else (False, True)
        found = {autoload: measure(autoload) for autoload in order}
        rounds.append({"on": found[True][0], "off": found[False][0], "step": found[False][1]})
    on, off, step = (statistics.median(row[name] for row in rounds) for name in ("on", "off", "step"))
    difference = statistics.median(row["on"] - row["off"] for row in rounds)
    spread = statistics.quantiles((row["on"] - row["off"] for row in rounds), n=4) if args.rounds > 1 else [difference]
    print(f"import torch with autoload     {on:8.1f} ms  (median of {args.rounds})")
    print(f"import torch without autoload  {off:8.1f} ms")
    print(
        f"difference                     {difference:8.1f} ms  (limit {LIMIT:.0f}; half {spread[0]:.0f} to {spread[-1]:.0f})"
    )
    print(f"the step itself                {step:8.1f} ms")
    if args.json:
        figures = {"on_ms": on, "off_ms": off, "difference_ms": difference, "step_ms": step, "rounds": rounds}
        args.json.write_text(json.dumps(figures, indent=1) + "\n")
    return 0 if difference <= LIMIT else 1


if __name__ == "__main__":
    sys.exit(main())
