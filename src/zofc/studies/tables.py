"""A study's rows as a table: mean ± standard deviation over seeds, ours beside the paper's."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from zofc.metrics import METRICS, mean_and_spread
from zofc.report.grid import Grid
from zofc.studies.catalogue import Study, StudyLine
from zofc.studies.displays import (
    CURVATURE_COLUMNS,
    DISPLAYS,
    EXECUTED,
    FLATNESS_COLUMNS,
    OPERATION_COLUMNS,
    LineValues,
    StudyRows,
)
from zofc.studies.scale import Scale
from zofc.studies.settings import SETTINGS
from zofc.units import NONE

NUMBER_FORMATS = {"gigabytes": ".3f", "seconds": ".3f"} | dict.fromkeys(OPERATION_COLUMNS, ".4g")
SIGNIFICANT = {*FLATNESS_COLUMNS, *CURVATURE_COLUMNS}  # of any magnitude: all with three significant digits


@dataclass(frozen=True)
class Number:
    """What a row of a table has in a setting, a value for each seed that has one, and what the paper prints there."""

    line: str
    setting: str
    metric: str
    values: tuple[float, ...]
    seeds: int
    failed: int  # of them
    printed: float | None

    @property
    def mean(self) -> float | None:
        """Mean over seeds."""
        return mean_and_spread(self.values)[0]

    @property
    def spread(self) -> float | None:
        """The standard deviation over seeds; none where operations were counted, the same each time."""
        exact = self.metric in OPERATION_COLUMNS and len(set(self.values)) == 1
        return None if exact else mean_and_spread(self.values)[1]

    def __str__(self) -> str:
        """`41.00 ± 1.41 (2 of 3 seeds) [83.34]`: ours, over how many seeds if not over all, and the paper's."""
        mean, spread = self.mean, self.spread
        shown = NONE
        if mean is not None:
            form = _significant(mean) if self.metric in SIGNIFICANT else NUMBER_FORMATS.get(self.metric, ".2f")
            shown = format(mean, form) + ("" if spread is None else f" ± {spread:{form}}")
            shown += f" ({len(self.values)} of {self.seeds} seeds)" * (len(self.values) < self.seeds)
        if self.printed is None:
            return shown
        return f"{shown} [{self.printed:{'.2f' if self.metric in METRICS else 'g'}}]"


def numbers(study: Study, rows: StudyRows, settings: Sequence[str]) -> Iterator[Number]:
    """Those of a study's table, row by row, setting by setting."""
    display = DISPLAYS[study.shows]
    for line in study.lines:
        for ending, read in display.values.items():
            for setting in settings:
                here = [row for row in rows if row["setting"] == setting]
                values = _by_seed(line, here, read)
                if "times_fo" in display.columns:
                    _add_ratio(values, _by_seed(study.lines[0], here, read))
                seeds = sum(row["line"] == line.title for row in here)
                printed = {} if ending == EXECUTED else study.printed(line, setting)
                for metric in display.columns:
                    known = tuple(value[metric] for value in values.values() if metric in value)
                    counts = seeds, seeds - len(values)
                    yield Number(line.title + ending, setting, metric, known, *counts, printed.get(metric))


def _by_seed(line: StudyLine, rows: StudyRows, read: LineValues) -> dict[int, dict[str, float]]:
    """The values of a line's runs that did not fail."""
    return {row["seed"]: {**read(line, row)} for row in rows if row["line"] == line.title and "failed" not in row}


def _add_ratio(values: Mapping[int, dict[str, float]], first_order: Mapping[int, Mapping[str, float]]) -> None:
    """Total operations in units of first order's with the same seed."""
    for seed, own in values.items():
        base = first_order.get(seed, {}).get("total_flops")
        if base and own:
            own["times_fo"] = own["total_flops"] / base


def table(study: Study, scale: Scale, rows: StudyRows, settings: Sequence[str], changes: Sequence[str] = ()) -> Grid:
    """Ours and, where it prints a number, the paper's, for each line of a study."""
    display = DISPLAYS[study.shows]
    heads = [f"{setting}: {words}" for setting in settings for words in display.columns.values()]
    body = []
    for title, group in groupby(numbers(study, rows, settings), key=lambda number: number.line):
        cells = tuple(map(str, group))
        if any(cell != NONE for cell in cells):
            body.append((title, *cells))
    seeds = len({row["seed"] for row in rows})
    over = f"{seeds} seeds; mean ± standard deviation" if seeds > 1 else "1 seed"
    notes = [f"Scale {scale.name}: {scale.says}. {over}."]
    if any("[" in cell for _, *cells in body for cell in cells):
        notes.append("In brackets, what the paper prints at its own scale.")
    notes += display.notes(study, scale, [row for row in rows if "failed" not in row])
    notes += [f"{name}: {SETTINGS[name].says}." for name in settings if SETTINGS[name].says]
    for name in settings:
        notes += [f"Not on {name}: {'; '.join(lines)} ({why})." for why, lines in study.left_out(name).items()]
    if changes:
        notes.append(f"Changed in every recipe: {' '.join(changes)}.")
    failures: dict[str, list[str]] = {}
    for row in rows:
        if "failed" in row:
            cell = f"{row['line']}, {row['setting']}, seed {row['seed']}"
            failures.setdefault(row["failed"], []).append(cell)
    warnings = tuple(describe_reasons(failures, " failed"))
    return Grid(("", *heads), tuple(body), study.title, tuple(notes), warnings)


def describe_reasons(reasons: Mapping[str, Sequence[str]], verb: str = "", most: int = 5) -> Iterator[str]:
    """Each reason with the cells that it is about: all if they are few, else the first and the number of others."""
    for why, cells in reasons.items():
        few = len(cells) <= most + 1
        names = "; ".join(cells) if few else f"{'; '.join(cells[:most])} and {len(cells) - most} others"
        yield f"{names}{verb}: {why}"


def _significant(value: float, digits: int = 3) -> str:
    """A form with so many significant digits; very small and very large ones with an exponent."""
    size = math.floor(math.log10(abs(value))) if value else 0
    return f".{max(0, digits - 1 - size)}f" if -4 <= size < 6 else f".{digits - 1}e"
