"""Runs that differ only in the seed as one run, whose numbers are means with their standard deviations."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from itertools import zip_longest
from pathlib import Path
from typing import Any

from zofc.metrics import METRICS, AccuracyMatrix, mean_and_spread
from zofc.runfolder import Run
from zofc.runfolder.events import Event
from zofc.runfolder.flatness import Flatness
from zofc.runfolder.run import TaskSeries


class SeedsMean(Run):
    """Finished runs that differ only in the seed. Times are means, memory is the maximum."""

    def __init__(self, members: Sequence[Run]) -> None:
        super().__init__(members[0].path)
        self.members = tuple(members)

    @cached_property
    def settings(self) -> Mapping[str, Any]:
        first, members = self.members[0], self.members
        title = first.title if len({run.title for run in members}) == 1 else f"{first.title} and others"
        if title != first.title and len({run.name for run in members}) == 1:
            title = first.name
        seeds = ", ".join(str(run.setting("seed")) for run in members)
        return {**first.settings, "seed": f"{len(members)}: {seeds}", "title": title}

    @property
    def environment(self) -> Mapping[str, Any]:
        return {}

    @property
    def events(self) -> tuple[Event, ...]:
        return ()

    @cached_property
    def metrics(self) -> Mapping[str, Any]:
        seconds = {
            "train": _mean_spread([run.train_seconds for run in self.members])[0],
            "evaluate": _mean_spread([run.evaluate_seconds for run in self.members])[0],
        }
        memory = max((run.peak_memory for run in self.members if run.peak_memory is not None), default=None)
        return {**self.members[0].metrics, "seconds": seconds, "peak_memory": memory}

    @cached_property
    def matrix(self) -> AccuracyMatrix:
        """Mean accuracies and the test images of all seeds; no class names, which differ between seeds."""
        matrices = [run.matrix for run in self.members if run.matrix]
        rows = zip(*(matrix.rows for matrix in matrices), strict=True)
        means = tuple(tuple(_mean_spread(cells)[0] for cells in zip(*row, strict=True)) for row in rows)
        return AccuracyMatrix(means, tuple(map(sum, zip(*(matrix.counts for matrix in matrices), strict=True))))

    @cached_property
    def flatness(self) -> tuple[Flatness, ...]:
        """Means over the runs that were measured after the same task with the radius of the first."""
        measured = [row for run in self.members for row in run.flatness]
        groups: dict[tuple[int, str], list[Flatness]] = defaultdict(list)
        for row in measured:
            if row.rho == measured[0].rho:
                groups[row.task, row.over].append(row)
        means = []
        for (task, over), rows in groups.items():
            names = {name for row in rows for name in row.values}
            values = {name: _mean_spread([row.values.get(name) for row in rows]) for name in names}
            known = {name: mean for name, (mean, _) in values.items() if mean is not None}
            spreads = {name: spread for name, (_, spread) in values.items()}
            means.append(Flatness(task, over, known, rows[0].rho, spreads))
        return tuple(means)

    @property
    def paths(self) -> tuple[Path, ...]:
        return tuple(run.path for run in self.members)

    @cached_property
    def scores(self) -> dict[str, float | None]:
        return {name: mean for name, (mean, _) in self._scores.items()}

    @property
    def spreads(self) -> dict[str, float | None]:
        return {name: spread for name, (_, spread) in self._scores.items()}

    @cached_property
    def _scores(self) -> dict[str, tuple[float | None, float | None]]:
        return {name: _mean_spread([run.scores[name] for run in self.members]) for name in METRICS}

    @cached_property
    def accuracies(self) -> TaskSeries:
        return self._series(lambda run: run.accuracies)

    @cached_property
    def drops(self) -> TaskSeries:
        return self._series(lambda run: run.drops)

    def _series(self, of: Callable[[Run], TaskSeries]) -> TaskSeries:
        pairs = [_mean_spread(values) for values in zip_longest(*(of(run).values for run in self.members))]
        return TaskSeries(tuple(mean for mean, _ in pairs), tuple(spread for _, spread in pairs))


def over_seeds(runs: Sequence[Run]) -> list[Run]:
    """Finished runs that differ only in seed, name and title as one, without repeating a seed; others unchanged."""
    groups: dict[tuple[str, int], list[Run]] = defaultdict(list)
    seeds = {run: run.setting("seed") for run in runs}
    for run in sorted(runs, key=lambda run: seeds[run] if isinstance(seeds[run], int | float) else 0):
        kind, number = _kind(run), 0
        while any(seeds[other] == seeds[run] for other in groups[kind, number]):
            number += 1
        groups[kind, number].append(run)
    merged = [members[0] if len(members) == 1 else SeedsMean(members) for members in groups.values()]
    places = [run.path for run in runs]
    return sorted(merged, key=lambda run: min(map(places.index, run.paths)))


def _kind(run: Run) -> str:
    """What runs of one mean share: the recipe, and which accuracies were measured. A saved model stands alone."""
    if not run.finished or run.saved or run.matrix is None:
        return str(run.path)
    settings = {key: value for key, value in run.settings.items() if key not in ("seed", "name", "title")}
    measured = [[value is not None for value in row] for row in run.matrix.rows]
    return json.dumps([settings, measured, len(run.matrix.counts)], sort_keys=True, default=str)


def _mean_spread(values: Sequence[float | None]) -> tuple[float | None, float | None]:
    """Mean and standard deviation of the values that are known."""
    return mean_and_spread([value for value in values if value is not None])
