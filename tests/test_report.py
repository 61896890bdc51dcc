"""Facts about reports, on run folders written by hand."""

from __future__ import annotations

import io
import json
import re
import sys
import types
from collections.abc import Mapping
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.console import Console

from zofc.errors import RunError, ZofcError
from zofc.recipe import Recipe
from zofc.report import figures, page, tables
from zofc.report.runs import RunRecord, find_runs, labels, read_runs

ZO = {"order": "zeroth", "queries": 4}
FO = {"order": "first"}
SHARED = {"data": {"source": "cifar100"}, "backbone": {"name": "vit_base_patch16_224.augreg_in21k"}}


def triangle(tasks: int, start: float = 90.0, drop: float = 1.5) -> list[list[float | None]]:
    """Accuracies that fall by `drop` with every later task."""
    return [[max(0.0, start - 2 * j - drop * (i - j)) for j in range(i + 1)] for i in range(tasks)]


def write_run(
    folder: Path,
    rows: list[list[float | None]] | None,
    *,
    finished: bool = True,
    tasks: int | None = None,
    counts: list[int] | None = None,
    groups: list[list[str]] | None = None,
    **recipe: Any,
) -> Path:
    """A run folder as a run leaves it; without rows, one killed in its first task."""
    folder.mkdir(parents=True)
    settings = {"optimize": {"peft": ZO, "head": FO}, **SHARED, **recipe}
    resolved = Recipe.model_validate(settings).model_dump(mode="json")
    (folder / "recipe.yaml").write_text(yaml.safe_dump(resolved, sort_keys=False, allow_unicode=True), "utf-8")
    (folder / "environment.json").write_text(json.dumps({"zofc": "0.1.0", "device": "cpu", "git": "abc"}))
    total = tasks or len(rows or [])
    events: list[dict[str, Any]] = [{"time": 1.0, "event": "run_started", "name": resolved["name"], "tasks": total}]
    if rows:
        width = len(rows[-1])
        matrix = {
            "accuracy": rows,
            "counts": counts or [100] * width,
            "groups": groups or [[f"class {2 * j}", f"class {2 * j + 1}"] for j in range(width)],
        }
        metrics = {
            "finished": finished,
            "tasks": len(rows),
            "tasks_total": total,
            "trainable_parameters": {"peft": 42265, "head": 3840},
            "seconds": {"train": 125.0, "evaluate": 3.0},
            "steps": 10,
            "peak_memory": 512 * 2**20,
        }
        (folder / "matrix.json").write_text(json.dumps(matrix))
        (folder / "metrics.json").write_text(json.dumps(metrics))
        events += [{"time": 2.0, "event": "evaluated", "task": i, "row": row} for i, row in enumerate(rows)]
    (folder / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    return folder
