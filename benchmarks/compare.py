"""The steps of two checkouts, timed alternately: is one slower than the other?

    git worktree add ../before REVISION
    python benchmarks/compare.py ../before . --rounds 5 --backbone vit_tiny_patch16_224 --batch 4

Each round runs `benchmarks/step.py` of either checkout, with its own `src`, in a process of its own; options that are
not listed below are those of `step.py`. For every row, the smallest median of all rounds counts: other load on the
machine can only add to it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path


def time_rows(checkout: Path, options: list[str]) -> dict[str, float]:
    """Milliseconds of a step, by row."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "step.json"
        script = str(checkout / "benchmarks" / "step.py")
        command = [sys.executable, script, "--no-reference", "--no-flops", "--out", str(out)]
        environment = os.environ | {"PYTHONPATH": str(checkout / "src")}
        subprocess.run([*command, *options], env=environment, check=True, stdout=subprocess.DEVNULL)
        return {row["name"]: row["milliseconds"] for row in json.loads(out.read_text())["rows"]}


def main() -> None:
    """Time the rows of both checkouts in turn and print the ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, help="also write the milliseconds of every round as JSON")
    arguments, options = parser.parse_known_args()
    checkouts = [arguments.before.resolve(), arguments.after.resolve()]
    times: list[dict[str, list[float]]] = [{}, {}]  # of every round, by row
    for number in range(arguments.rounds):
        for which in (0, 1) if number % 2 == 0 else (1, 0):
            for name, milliseconds in time_rows(checkouts[which], options).items():
                times[which].setdefault(name, []).append(milliseconds)
        print(f"round {number + 1} of {arguments.rounds}", flush=True)
    print(f"{'row':18s} {'before':>10s} {'after':>10s}  after ÷ before")
    for name in times[0]:
        before, after = (min(found[name]) for found in times)
        print(f"{name:18s} {before:7.2f} ms {after:7.2f} ms  {after / before:.3f}")
    if arguments.out:
        rows = [{"name": name, "before": times[0][name], "after": times[1][name]} for name in times[0]]
        arguments.out.write_text(json.dumps({"options": options, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
