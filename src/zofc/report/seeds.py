"""Runs that differ in the seed alone as one, whose numbers are means with their standard deviations."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from itertools import zip_longest
from operator import attrgetter
from pathlib import Path
from typing import Any

from zofc.metrics import METRICS, AccuracyMatrix, mean_and_spread
from zofc.runfolder import Run
from zofc.runfolder.events import Event
from zofc.runfolder.flatness import Flatness
from zofc.runfolder.run import TaskSeries


class SeedsMean(Run):
    """Finished runs that differ in the seed alone. Time is their mean, memory the most."""

    def __init__(self, members: Sequence[Run]) -> None:
        super().__init__(members[0].path)
        self.members = tuple(members)

    @cached_property
    def settings(self) -> Mapping[str, Any]:
        first, members = self.members[0], self.members
        titles, names = ({of(run) for run in members} for of in (attrgetter("title"), attrgetter("name")))
        title = first.title if len(titles) == 1 else first.name if len(names) == 1 else f"{first.title} and others"
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
            "train": _over([run.train_seconds for run in self.members])[0],
            "evaluate": _over([run.evaluate_seconds for run in self.members])[0],
        }
        memory = max((run.peak_memory for run in self.members if run.peak_memory is not None), default=None)
        return {**self.members[0].metrics, "seconds": seconds, "peak_memory": memory}

    @cached_property
    def matrix(self) -> AccuracyMatrix:
        return _matrix([run.matrix for run in self.members if run.matrix])

    @cached_property
    def flatness(self) -> tuple[Flatness, ...]:
        return _flatness(self.members)

    @property
    def paths(self) -> tuple[Path, ...]:
        return tuple(run.path for run in self.members)

    @cached_property
    def scores(self) -> dict[str, float | None]:
        return {name: found[0] for name, found in self._scores.items()}

    @property
    def spreads(self) -> dict[str, float | None]:
        return {name: found[1] for name, found in self._scores.items()}

    @cached_property
    def _scores(self) -> dict[str, tuple[float | None, float | None]]:
        return {name: _over([record.scores[name] for record in self.members]) for name in METRICS}

    @cached_property
    def accuracies(self) -> TaskSeries:
        return self._series(lambda record: record.accuracies)

    @cached_property
    def drops(self) -> TaskSeries:
        return self._series(lambda record: record.drops)

    def _series(self, of: Callable[[Run], TaskSeries]) -> TaskSeries:
        found = [_over(values) for values in zip_longest(*(of(record).values for record in self.members))]
        return TaskSeries(tuple(mean for mean, _ in found), tuple(spread for _, spread in found))


def over_seeds(records: Sequence[Run]) -> list[Run]:
    """Finished runs that are alike but for seed, name and title as one; any other as it is. A further run with a seed
    that was there is not another seed, and stands with others of its kind."""
    groups: dict[tuple[str, int], list[Run]] = defaultdict(list)
    for record in sorted(records, key=_seed):
        alike, seed, number = _alike(record), record.setting("seed"), 0
        while any(other.setting("seed") == seed for other in groups[alike, number]):
            number += 1
        groups[alike, number].append(record)
    found = [members[0] if len(members) == 1 else SeedsMean(members) for members in groups.values()]
    places = [record.path for record in records]
    return sorted(found, key=lambda record: min(map(places.index, record.paths)))


def _seed(record: Run) -> float:
    seed = record.setting("seed")
    return seed if isinstance(seed, int | float) else 0


def _alike(record: Run) -> str:
    """What runs of one kind share: the recipe, and which accuracies there are. A saved model has classes of its own."""
    if not record.finished or record.saved or record.matrix is None:
        return str(record.path)
    kept = {key: value for key, value in record.settings.items() if key not in ("seed", "name", "title")}
    measured = [[value is not None for value in row] for row in record.matrix.rows]
    return json.dumps([kept, measured, len(record.matrix.counts)], sort_keys=True, default=str)


def _over(values: Sequence[float | None]) -> tuple[float | None, float | None]:
    """Mean and standard deviation of those that there are."""
    return mean_and_spread([value for value in values if value is not None])


def _matrix(members: Sequence[AccuracyMatrix]) -> AccuracyMatrix:
    """Means of accuracies and all test images behind them; a task has other classes with every seed."""
    rows = zip(*(matrix.rows for matrix in members), strict=True)
    means = tuple(tuple(_over(cells)[0] for cells in zip(*row, strict=True)) for row in rows)
    return AccuracyMatrix(means, tuple(map(sum, zip(*(matrix.counts for matrix in members), strict=True))))


def _flatness(members: Sequence[Run]) -> tuple[Flatness, ...]:
    """Of each state and group of parameters, over the runs that were measured there with the radius of the first."""
    measured = [row for record in members for row in record.flatness]
    alike: dict[tuple[int, str], list[Flatness]] = defaultdict(list)
    for row in measured:
        if row.rho == measured[0].rho:
            alike[row.task, row.over].append(row)
    found = []
    for (task, over), rows in alike.items():
        names = {name for row in rows for name in row.values}
        values = {name: _over([row.values.get(name) for row in rows]) for name in names}
        means = {name: mean for name, (mean, _) in values.items() if mean is not None}
        found.append(Flatness(task, over, means, rows[0].rho, {name: spread for name, (_, spread) in values.items()}))
    return tuple(found)
