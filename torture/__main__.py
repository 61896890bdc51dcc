"""`python -m torture`: make tries of every kind, going on where an earlier start ended.

python -m torture --kinds recipes,images --count 100    # a hundred tries of two kinds
python -m torture --only recipes:17                     # one try again, its files kept for looking at
"""

from __future__ import annotations

import os

os.environ.update({"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"})

import argparse
import sys
import traceback
from pathlib import Path


def parse(words: list[str] | None = None) -> argparse.Namespace:
    """The options of the command line."""
    parser = argparse.ArgumentParser("python -m torture", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--kinds", default="", help="kinds by name, separated by commas; all by default")
    parser.add_argument("--count", type=int, help="tries of each kind; each kind's own number by default")
    parser.add_argument("--seed", type=int, default=1993)
    parser.add_argument("--minutes", type=float, help="stop after so many minutes")
    parser.add_argument("--jobs", type=int, default=1, help="tries at a time")
    parser.add_argument("--out", type=Path, help="the summary, such as results/torture.json")
    parser.add_argument(
        "--work", type=Path, default=Path("build/torture"), help="where the journal and the tries are kept"
    )
    parser.add_argument("--retry", action="store_true", help="make tries that found something again")
    parser.add_argument("--only", metavar="KIND:NUMBER", help="make one try, keep its files and print its output")
    parser.add_argument("--list", action="store_true", help="list the kinds and what was found so far")
    return parser.parse_args(words)


def main(words: list[str] | None = None) -> int:
    """Run the harness; status 1 if anything was found."""
    options = parse(words)
    from torture import campaign

    if options.only:
        return campaign.repeat(options.only, options.seed, options.work)
    if options.list:
        return campaign.show(options.work, options.seed)
    names = [name for name in options.kinds.split(",") if name]
    plan = campaign.Plan(names, options.count, options.seed, options.minutes, options.jobs, options.retry)
    return campaign.run(plan, options.work, options.out)


if __name__ == "__main__":
    status = 3
    try:
        status = main()
    except Exception:
        traceback.print_exc()
    sys.stdout.flush()
    os._exit(status)  # what was imported need not be taken apart
