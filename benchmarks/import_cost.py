"""What autoloading adds to `import torch`: median of fresh processes with it and without, run alternately.

    python benchmarks/import_cost.py [--rounds N] [--json FILE]

Exit status 1 if the difference is above 50 ms. The machine should be quiet: both figures are wall-clock times.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

LIMIT = 50.0  # ms
TIMED = "import time; start = time.perf_counter(); import torch; print((time.perf_counter() - start) * 1e3)"


def import_time(autoload: bool) -> float:
    """Milliseconds that `import torch` takes in a fresh process."""
    env = os.environ | {"TORCH_DEVICE_BACKEND_AUTOLOAD": str(int(autoload))}
    done = subprocess.run([sys.executable, "-c", TIMED], env=env, check=True, stdout=subprocess.PIPE, text=True)
    return float(done.stdout)


def autoload_finds_the_package() -> bool:
    """False in a source tree that is not installed, where there would be nothing to measure."""
    code = "import sys, torch; sys.exit('torch_accel._C' not in sys.modules)"
    return subprocess.run([sys.executable, "-c", code]).returncode == 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9, metavar="N", help="pairs of processes (default: %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures")
    args = parser.parse_args()
    if not autoload_finds_the_package():
        print(
            "import_cost: expected an installed package, got none that torch loads (pip install -e .)", file=sys.stderr
        )
        return 2

    import_time(True), import_time(False)  # files into the cache, bytecode written
    pairs = [(import_time(True), import_time(False)) for _ in range(args.rounds)]
    on, off = (statistics.median(times) for times in zip(*pairs, strict=True))
    # Neighbours in time share the machine's state, so the median of the differences is steadier than that of medians.
    difference = statistics.median(a - b for a, b in pairs)
    print(f"import torch with autoload     {on:8.1f} ms  (median of {args.rounds})")
    print(f"import torch without autoload  {off:8.1f} ms")
    print(f"difference                     {difference:8.1f} ms  (limit {LIMIT:.0f})")
    if args.json:
        args.json.write_text(
            json.dumps({"on_ms": on, "off_ms": off, "difference_ms": difference, "pairs": pairs}) + "\n"
        )
    return 0 if difference <= LIMIT else 1


if __name__ == "__main__":
    sys.exit(main())
