"""The result files: what each holds, and the number of test images that its accuracies are shares of."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from claims.comparisons import Evidence, Row
from zofc.studies import figures, reproduce
from zofc.studies.catalogue import STUDIES, Study, get_study
from zofc.studies.scale import Scale, get_scale
from zofc.studies.settings import SETTINGS

MOST_IMAGES = 100_000  # of a test set


@dataclass(frozen=True)
class Result:
    """A result file."""

    study: Study
    scale: Scale
    changes: tuple[str, ...]
    rows: tuple[Row, ...]

    @cached_property
    def settings(self) -> list[str]:
        return [name for name in self.study.settings if any(row["setting"] == name for row in self.rows)]

    @cached_property
    def seeds(self) -> tuple[int, ...]:
        return tuple(sorted({row["seed"] for row in self.rows}))

    @cached_property
    def good(self) -> list[Row]:
        return [row for row in self.rows if "failed" not in row]

    @property
    def command(self) -> str:
        """What makes this file again, but for the changes."""
        datasets = dict.fromkeys(SETTINGS[name].dataset for name in self.settings)
        words = ["zofc reproduce", self.study.name, "--scale", self.scale.name]
        words += [f"--dataset {name}" for name in datasets]
        words += ["--fast"] * self.scale.fast + [f"--seeds {len(self.seeds)}"] * (len(self.seeds) > 1)
        return " ".join(words)


def load(folder: Path) -> list[Result]:
    """The result files of a folder, in the order of the catalogue."""
    found = {}
    for path in sorted(folder.glob("*.json")):
        told = json.loads(path.read_text("utf-8"))
        scale = replace(get_scale(told["scale"]), says=told["says"], fast=told["fast"])
        study, changes, rows = get_study(told["study"]), tuple(told["changes"]), tuple(told["rows"])
        found[told["study"]] = Result(study, scale, changes, rows)
    return [found[name] for name in STUDIES if name in found]


def evidence_of(results: Sequence[Result], benchmark: Path | None = None) -> Evidence:
    """The rows of all studies, and those of the step benchmark as if it were one."""
    found: dict[str, Sequence[Row]] = {result.study.name: result.rows for result in results}
    if benchmark is not None and benchmark.is_file():
        rows = json.loads(benchmark.read_text("utf-8"))["rows"]
        found["step"] = [{**row, "line": row["name"], "setting": "ViT-B/16", "seed": 0} for row in rows]
    return found


def settings_of(results: Sequence[Result]) -> list[str]:
    return [name for name in SETTINGS if any(name in result.settings for result in results)]


def drawn(result: Result) -> Iterator[tuple[str, figures.Drawing]]:
    """A study's figures with the names of their files."""
    rows = [dict(row) for row in result.rows]
    for name, drawing in reproduce.drawings(result.study, result.scale, rows, result.settings):
        yield f"{result.study.name}-{name}.png", drawing
