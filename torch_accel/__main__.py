"""Command line: `python -m torch_accel info [--json]` and `python -m torch_accel demo ...`."""

import argparse
import json
import sys
from collections.abc import Sequence

from torch_accel import demo, info


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return the exit status; `info` gives 1 if no device can be used."""
    parser = argparse.ArgumentParser(prog="python -m torch_accel", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    about = commands.add_parser("info", help="show devices, backends and why others are not available, versions")
    about.add_argument("--json", action="store_true", help="print JSON instead of text")
    demo.add_arguments(commands.add_parser("demo", help="train a small GPT on the CPU and on accel, and compare"))
    args = parser.parse_args(argv)

    if args.command == "demo":
        return demo.main(args)
    collected = info.collect()
    print(json.dumps(collected, indent=2) if args.json else info.render(collected))
    return 0 if collected["devices"] else 1


if __name__ == "__main__":
    sys.exit(main())
