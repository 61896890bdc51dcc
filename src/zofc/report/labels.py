"""What tables and figures call runs: their data, how their groups are optimized, and names that differ."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from zofc.runfolder import Run
from zofc.units import NONE


def data_split(run: Run) -> str:
    """The data and how it is split into tasks, as recipes are named: `cifar100-inc5`, `domainnet by domain`."""
    if run.saved:
        return "given from Python"
    source, by, increment = (run.setting(f"data.{key}") for key in ("source", "by", "increment"))
    of_task = f" by {by}" if by in ("domain", "domain-class") else f"-inc{increment}" if increment else ""
    return " + ".join([f"{source}{of_task}", *(run.setting("data.then") or ())])  # with what was learned later


def backbone_label(run: Run) -> str:
    """The backbone and, where the recipe sets them, its image size and random weights: `vit_tiny at 112 px`."""
    name, size = str(run.setting("backbone.name") or NONE), run.setting("backbone.image_size")
    return name + (f" at {size} px" if size else "") + ", random" * (run.setting("backbone.pretrained") is False)


def differ(runs: Sequence[Run], about: Callable[[Run], str]) -> bool:
    """Whether the runs differ in something."""
    return len({about(run) for run in runs}) > 1


def _plans(run: Run) -> list[tuple[str, dict[str, Any]]]:
    return sorted((run.setting("optimize") or {}).items(), key=lambda item: item[0] == "head")


def orders(run: Run) -> dict[str, str]:
    """Which order optimizes which group, the head last: `peft ZO ×4`, `head FO`."""
    words = {}
    for group, plan in _plans(run):
        estimator = str(plan.get("estimator", "spsa")).replace("_", " ")
        zeroth = f"ZO ×{plan.get('queries', '?')}{'' if estimator == 'spsa' else f' {estimator}'}"
        words[str(group)] = f"{group} {zeroth if plan.get('order') == 'zeroth' else 'FO'}"
    return words


def placement(run: Run) -> str:
    """The order of each group of a run, in words."""
    return ", ".join(orders(run).values()) or "nothing trained"


def learning_rates(run: Run) -> str:
    """The learning rate of each group of a run, and whether they were searched on its backbone."""
    rates = ", ".join(f"{group} {plan['lr']:g}" for group, plan in _plans(run) if "lr" in plan)
    return rates + " (searched)" * (bool(rates) and run.setting("rates") == "searched") or NONE


def labels(runs: Sequence[Run]) -> list[str]:
    """A unique name for each run: its title and, where runs share it, the data, backbone, placement, seed or folder."""
    names = [run.title for run in runs]
    by_group = [orders(run) for run in runs]
    for additions in (
        [f", {data_split(run)}" for run in runs],
        [f", {backbone_label(run)}" for run in runs],
        *([f", {how[group]}" if group in how else "" for how in by_group] for group in dict.fromkeys(chain(*by_group))),
        [f", seed {run.setting('seed')}" for run in runs],
    ):
        names = _distinguish(names, additions)
    names = _distinguish(names, [f" ({path})" for path in _short_paths(names, runs)])
    return _distinguish(names, [f" #{number}" for number in range(1, len(runs) + 1)])


def label_runs(runs: Sequence[Run]) -> Iterator[tuple[int, str, Run]]:
    """Every run with its position, which fixes its look, and its name."""
    for number, (label, run) in enumerate(zip(labels(runs), runs, strict=True)):
        yield number, label, run


def _distinguish(names: Sequence[str], additions: Sequence[str]) -> list[str]:
    """The names, each with its addition where runs share the name and not the addition."""
    among: dict[str, set[str]] = defaultdict(set)
    for label, addition in zip(names, additions, strict=True):
        among[label].add(addition)
    return [label + more if len(among[label]) > 1 else label for label, more in zip(names, additions, strict=True)]


def _short_paths(names: Sequence[str], runs: Sequence[Run]) -> list[str]:
    """The folder of each run, from where the folders of the runs with its name part."""
    among: dict[str, list[Path]] = defaultdict(list)
    for label, run in zip(names, runs, strict=True):
        among[label].append(run.path.resolve())
    return [
        os.path.relpath(run.path.resolve(), os.path.commonpath(among[label]))
        for label, run in zip(names, runs, strict=True)
    ]
