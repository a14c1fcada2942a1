"""``python -m tests.fuzz --seed 0 --count 300``: random models, nnvm against eager.

``--show SEED`` prints a model as a script, ``--minutes N`` ends after a time, ``--scripts DIR`` writes a script that
reproduces for each fault. With ``--changing`` every model is called with three sizes or more, and with Python numbers
that change.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tests.fuzz.generate import generate, generate_changing
from tests.fuzz.sweep import Sweep


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--count", type=int, default=300, help="how many models")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="end after so long")
    parser.add_argument("--shrink", type=float, default=60.0, help="seconds to make a failing model smaller; 0: none")
    parser.add_argument("--scripts", type=Path, help="a folder for scripts that reproduce the faults")
    parser.add_argument("--show", type=int, metavar="SEED", help="print the model of a seed, and do nothing else")
    parser.add_argument("--changing", action="store_true",
                        help="models whose sizes and Python numbers differ from call to call")  # fmt: skip
    args = parser.parse_args()
    make = generate_changing if args.changing else generate
    if args.show is not None:
        print(make(args.show).script())
        return 0
    sweep = Sweep(shrink_seconds=args.shrink, make=make)
    sweep.run(range(args.seed, args.seed + args.count), args.minutes * 60)
    for seed, _, program in sweep.faults if args.scripts else ():
        args.scripts.mkdir(parents=True, exist_ok=True)
        (args.scripts / f"fuzz_{seed}.py").write_text(program.script())
    print(sweep.summary())
    return 1 if sweep.faults else 0


if __name__ == "__main__":
    sys.exit(main())
