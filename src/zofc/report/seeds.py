"""Runs that differ in the seed alone as one, whose numbers are means with their standard deviations."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import zip_longest
from operator import attrgetter
from pathlib import Path

from zofc.metrics import METRICS, AccuracyMatrix, mean_and_spread
from zofc.report.runs import Flatness, RunRecord, Series

Values = Sequence[float | None]


@dataclass(frozen=True)
class SeedsRecord(RunRecord):
    """Finished runs that differ in the seed alone. Time is their mean, memory the most."""

    members: tuple[RunRecord, ...] = ()

    @classmethod
    def of(cls, members: Sequence[RunRecord]) -> SeedsRecord:
        first = members[0]
        seeds = ", ".join(str(record.setting("seed")) for record in members)
        seconds = {
            "train": _over([record.train_seconds for record in members])[0],
            "evaluate": _over([record.evaluate_seconds for record in members])[0],
        }
        memory = max((record.peak_memory for record in members if record.peak_memory is not None), default=None)
        titles, names = ({of(record) for record in members} for of in (attrgetter("title"), attrgetter("name")))
        title = first.title if len(titles) == 1 else first.name if len(names) == 1 else f"{first.title} and others"
        return cls(
            first.folder,
            {**first.recipe, "seed": f"{len(members)}: {seeds}", "title": title},
            matrix=_matrix([record.matrix for record in members if record.matrix]),
            metrics={**first.metrics, "seconds": seconds, "peak_memory": memory},
            flatness=_flatness(members),
            members=tuple(members),
        )

    @property
    def folders(self) -> tuple[Path, ...]:
        return tuple(record.folder for record in self.members)

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
    def accuracies(self) -> Series:
        return self._series(lambda record: record.accuracies)

    @cached_property
    def drops(self) -> Series:
        return self._series(lambda record: record.drops)

    def _series(self, of: Callable[[RunRecord], Series]) -> Series:
        found = [_over(values) for values in zip_longest(*(of(record).values for record in self.members))]
        return Series(tuple(mean for mean, _ in found), tuple(spread for _, spread in found))


def over_seeds(records: Sequence[RunRecord]) -> list[RunRecord]:
    """Finished runs that are alike but for seed, name and title as one; any other as it is. A further run with a seed
    that was there is not another seed, and stands with others of its kind."""
    groups: dict[tuple[str, int], list[RunRecord]] = defaultdict(list)
    for record in sorted(records, key=_seed):
        alike, seed, number = _alike(record), record.setting("seed"), 0
        while any(other.setting("seed") == seed for other in groups[alike, number]):
            number += 1
        groups[alike, number].append(record)
    found = [members[0] if len(members) == 1 else SeedsRecord.of(members) for members in groups.values()]
    places = [record.folder for record in records]
    return sorted(found, key=lambda record: min(map(places.index, record.folders)))


def _seed(record: RunRecord) -> float:
    seed = record.setting("seed")
    return seed if isinstance(seed, int | float) else 0


def _alike(record: RunRecord) -> str:
    """What runs of one kind share: the recipe, and which accuracies there are. A saved model has classes of its own."""
    if not record.finished or record.saved or record.matrix is None:
        return str(record.folder)
    kept = {key: value for key, value in record.recipe.items() if key not in ("seed", "name", "title")}
    measured = [[value is not None for value in row] for row in record.matrix.rows]
    return json.dumps([kept, measured, len(record.matrix.counts)], sort_keys=True, default=str)


def _over(values: Values) -> tuple[float | None, float | None]:
    """Mean and standard deviation of those that there are."""
    return mean_and_spread([value for value in values if value is not None])


def _matrix(members: Sequence[AccuracyMatrix]) -> AccuracyMatrix:
    """Means of accuracies and all test images behind them; a task has other classes with every seed."""
    rows = zip(*(matrix.rows for matrix in members), strict=True)
    means = tuple(tuple(_over(cells)[0] for cells in zip(*row, strict=True)) for row in rows)
    return AccuracyMatrix(means, tuple(map(sum, zip(*(matrix.counts for matrix in members), strict=True))))


def _flatness(members: Sequence[RunRecord]) -> tuple[Flatness, ...]:
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
