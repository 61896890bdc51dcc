"""Made-up rows of studies, for tests of what is read out of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from zofc.studies.catalogue import STUDIES

DATA = {"cifar100": "sha256:" + "d" * 64}
ENVIRONMENT = {"python": "3.12.3", "torch": "2.11.0", "timm": "1.0.29", "device_name": "NVIDIA H200"}
MANY = 10**8  # test images, with which no difference is chance
Rows = dict[str, list[dict[str, Any]]]


def trained(line: str, setting: str = "cifar100-inc5", seed: int = 1993, **numbers: Any) -> dict[str, Any]:
    """A row of a trained run."""
    usual = {
        "all_classes": 50.0, "average_incremental": 60.0, "final_average": 50.0, "last_task": 55.0, "forgetting": 10.0,
        "over_time": [80.0, 60.0, 50.0], "peak_memory": 2**30, "steps": 9, "seconds": {"train": 1.0}, "tested": MANY,
        "environment": ENVIRONMENT, "backbone": "b" * 64, "data": DATA, "run": f"{line}-{setting}-{seed}",
        "flatness": {"peft": [[2, 0.3], [3, 0.2]], "peft+head": [[2, 0.5], [3, 0.4]]},
        "curvature": {"peft": [curved(2), {**curved(3), "forgetting": None}]},
    }  # fmt: skip
    return {"line": line, "setting": setting, "seed": seed, **usual, **numbers}


def curved(task: int, **numbers: float) -> dict[str, Any]:
    """A state in which curvature was measured."""
    step = {
        "distance": 1.0,
        "bound_error": 0.01,
        "change": 0.1,
        "first": 0.02,
        "second": 0.06,
        "bound": 0.5,
        "first_share": 0.25,
        "within_bound": True,
    }
    usual = {"task": task, "largest": 4.0, "largest_error": 0.1, "converged": True, "trace": 9.0, "trace_error": 0.5}
    own = {key: numbers.pop(key) for key in list(numbers) if key in usual}
    return {**usual, **own, "forgetting": {**step, **numbers}}


def measured(line: str, groups: Sequence[str], seconds: float) -> dict[str, Any]:
    """A row of what a step costs."""
    phase = {
        "groups": list(groups), "peak": 2**30, "epoch_seconds": seconds, "executed": {"total": 30, "update": 10},
        "formula": {"forwards": 3.0, "total": 60, "backward": 20},
        "differences": [{"why": "norms are left out", "multiply_adds": 30 * 10**9}],
    }  # fmt: skip
    cost = {
        "device": "cuda", "precision": "fp32", "batch_size": 48, "steps_per_epoch": 10, "steps": 5,
        "forward": {"backbone": 1}, "phases": [phase], "conventions": [],
    }  # fmt: skip
    row = {"line": line, "setting": "cifar100-inc5", "seed": 1993, "environment": ENVIRONMENT}
    return {**row, "cost": cost, "result": f"{line}.cost.json"}


def two(ones: Sequence[float], others: Sequence[float], measure: str = "forgetting", **numbers: Any) -> Rows:
    """Two lines of which a number is given for each seed."""
    return {
        "main-table": [
            trained(line, seed=seed, **{measure: value}, **numbers)
            for line, values in (("one", ones), ("other", others))
            for seed, value in enumerate(values)
        ]
    }


def everything(settings: Sequence[str]) -> Rows:
    """Rows for every line of every study in these settings."""
    found: Rows = {}
    for study in STUDIES.values():
        if study.shows in ("memory", "runtime", "operations"):
            found[study.name] = [measured(line.title, line.moving, 1.0) for line in study.lines]
        else:
            found[study.name] = [trained(line.title, name) for name in settings if name in study.settings
                                 for line in study.lines]  # fmt: skip
    return found
