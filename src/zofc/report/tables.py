"""Tables of runs: their summary, one run's accuracy matrix, runs side by side and beside the paper."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from zofc.errors import ZofcError
from zofc.metrics import METRICS
from zofc.recipe import PAPER_BACKBONE, is_weights_path
from zofc.report.grid import Grid
from zofc.report.labels import backbone_label, data_split, differ, labels, learning_rates, placement
from zofc.runfolder import Run
from zofc.runfolder.nested import flatten
from zofc.units import NONE, format_bytes, format_count, format_duration, format_percent, format_signed

SUMMARY_METRICS = ("all_classes", "forgetting", "last_task")

MARKS = {"avg": "¹", "last": "²", "fgt": "³"}  # footnotes of the paper's words
SLICES = {  # settings of the data that leave less, more or other than the paper's, and how to say so
    "per_class": "only {} training images per class",
    "test_per_class": "only {} test images per class",
    "classes": "only {} classes",
    "first": "{} classes in the first task",
    "joint": "all classes in one task",
    "then": "further data: {}",
}


def method_label(record: Run) -> str:
    """The method, with what sets the run apart from a usual one: `adapter (joint)`."""
    apart = {
        "joint": record.setting("data.joint") is True,
        "old classes in the loss": record.setting("method.mask") is False,
        "prototypes": record.setting("method.prototypes") is True,
        "ridge readout": record.setting("method.readout") == "ridge",
    }
    words = ", ".join(word for word, holds in apart.items() if holds)
    return str(record.setting("method.name") or "?") + (f" ({words})" if words else "")


def method_and_placement(record: Run) -> str:
    """The method and the order of each group of parameters."""
    return f"{method_label(record)}: {placement(record)}"


def _trained(record: Run) -> int | None:
    """The number of trained parameters, all groups together."""
    return None if record.trainable is None else sum(record.trainable.values())


COSTS: dict[str, tuple[Callable[[Any], str], Callable[[Run], float | None]]] = {
    "peak memory": (format_bytes, lambda record: record.peak_memory),
    "train time": (format_duration, lambda record: record.train_seconds),
    "trained parameters": (format_count, _trained),
}


# -- tables ----------------------------------------------------------------------------------------------------


def summary_table(records: Sequence[Run]) -> Grid:
    """One row a run: its data and backbone where they differ, placement, accuracies, cost."""
    about: dict[str, Callable[[Run], str]] = {"data": data_split, "backbone": backbone_label}
    about = {name: of for name, of in about.items() if differ(records, of)}
    about["method and placement"] = method_and_placement
    headers = ("run", *about, *map(_heading, SUMMARY_METRICS), *COSTS)
    rows, keys = [], []
    for label, record in zip(labels(records), records, strict=True):
        costs = [(form, value(record)) for form, value in COSTS.values()]
        scores = [_score(record, name) for name in SUMMARY_METRICS]
        rows.append((label, *(of(record) for of in about.values()), *scores, *(form(value) for form, value in costs)))
        keys.append((*(record.scores[name] for name in SUMMARY_METRICS), *(value for _, value in costs)))
    notes, warnings = _means(records), _run_warnings(records)
    return Grid(headers, tuple(rows), notes=notes, warnings=warnings, names=1 + len(about), keys=tuple(keys))


def matrix_table(record: Run) -> Grid:
    """The accuracy matrix of a run: a row after each task, a column for each task's classes; else saved classes."""
    if record.saved:
        return _saved_model_table(record)
    title = f"{record.title}: accuracy (%) on the classes of each task"
    if record.matrix is None:
        return Grid(("after task",), (), title, warnings=_run_warnings([record]))
    matrix = record.matrix
    width = len(matrix.last_row)
    rows = []
    for number, (row, overall) in enumerate(zip(matrix.rows, record.accuracies.values, strict=True), 1):
        cells = [format_percent(accuracy, 1) for accuracy in row] + [""] * (width - len(row))
        rows.append(("joint" if matrix.joint else str(number), format_percent(overall, 1), *cells))
    headers = ("after task", "all classes", *(f"task {number}" for number in range(1, width + 1)))
    return Grid(headers, tuple(rows), title, warnings=_run_warnings([record]))


def _saved_model_table(record: Run) -> Grid:
    rows = ((str(number), ", ".join(names)) for number, names in enumerate(record.learned, 1))
    made = f"{method_and_placement(record)}; backbone {backbone_label(record)}"
    title = f"{record.title}: a saved model ({made}) of {sum(map(len, record.learned))} classes"
    notes = ("Measure it on images: zofc evaluate; name their classes: zofc predict.",)
    return Grid(("task", "classes"), tuple(rows), title, notes, names=2)


def comparison_table(records: Sequence[Run]) -> Grid:
    """Runs side by side, and ours minus the paper's where a recipe names the numbers it reproduces."""
    means = _means(records)
    about = [
        ("method", *map(method_label, records)),
        ("placement", *(placement(record) for record in records)),
        ("data", *(data_split(record) for record in records)),
        ("backbone", *map(backbone_label, records)),
        ("seeds" if means else "seed", *(str(record.setting("seed")) for record in records)),
    ]
    if any(record.setting("rates") == "searched" for record in records):
        about.append(("learning rates", *map(learning_rates, records)))
    shared = [row for row in about if len(records) > 1 and len(set(row[1:])) == 1]
    rows = [row for row in about if row not in shared]
    rows.append(("tasks", *(f"{record.tasks_done} of {record.tasks_total or '?'}" for record in records)))
    rows += [(_heading(name), *(_score(record, name) for record in records)) for name in METRICS]
    for cost in ("peak memory", "train time"):
        form, value = COSTS[cost]
        rows.append((cost, *(form(value(record)) for record in records)))
    rows.append(("trained parameters", *(_by_group(record.trainable) for record in records)))
    notes = ["The same in all: " + "; ".join(f"{name} {value}" for name, value, *_ in shared) + "."] if shared else []
    grid = Grid(("", *labels(records)), tuple(rows), notes=(*notes, *means), warnings=_run_warnings(records))
    return _add_paper_rows(grid, records) if any(record.setting("paper") for record in records) else grid


def settings_table(records: Sequence[Run]) -> Grid:
    """The settings in which the runs differ."""
    recipes = [flatten({key: value for key, value in record.settings.items() if key != "paper"}) for record in records]
    keys = dict.fromkeys(key for recipe in recipes for key in recipe if key not in ("name", "title"))
    lines = ((key, *(_setting(recipe.get(key)) for recipe in recipes)) for key in keys)
    return Grid(("setting", *labels(records)), tuple(line for line in lines if len(set(line[1:])) > 1))


def _heading(name: str) -> str:
    return f"{METRICS[name].label} ({METRICS[name].unit})"


def _score(record: Run, name: str) -> str:
    spread = record.spreads.get(name)
    return format_percent(record.scores[name]) + ("" if spread is None else f" ± {format_percent(spread)}")


def _means(records: Sequence[Run]) -> tuple[str, ...]:
    """The note for means over seeds, if there are any."""
    note = "Over seeds: mean ± standard deviation, mean time and maximum memory."
    return (note,) if any(record.spreads for record in records) else ()


def _by_group(groups: Mapping[str, int] | None) -> str:
    return NONE if groups is None else ", ".join(f"{group} {n:,}" for group, n in groups.items()) or "0"


def _setting(value: Any) -> str:
    return NONE if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _run_warnings(records: Sequence[Run]) -> tuple[str, ...]:
    """Warnings about unfinished runs, adapters that did harm and missing accuracies."""
    texts = []
    for label, record in zip(labels(records), records, strict=True):
        if not record.finished:
            texts.append(f"{label} is {record.status}." + " Its numbers cover those." * bool(record.tasks_done))
        if harm := record.adapter_warnings:
            later = f" The same in {len(harm) - 1} later task{'s' * (len(harm) > 2)}." if len(harm) > 1 else ""
            texts.append(f"{label}, {harm[min(harm)]}.{later}")
        if record.matrix and record.matrix.unmeasured:
            tasks = ", ".join(str(group + 1) for group in record.matrix.unmeasured)
            several = "s" * (len(record.matrix.unmeasured) > 1)
            texts.append(f"{label} has no final accuracy of task{several} {tasks}, which the means leave out.")
    return tuple(texts)


# -- the paper's numbers -------------------------------------------------------------------------------------


def paper_differences(record: Run) -> list[str]:
    """How a run's backbone and data differ from the paper's, which makes its numbers not comparable."""
    differences = []
    backbone = str(record.setting("backbone.name"))
    if is_weights_path(backbone):
        differences.append(f"backbone weights from {backbone}, not checked to be {PAPER_BACKBONE}")
    elif backbone != PAPER_BACKBONE:
        differences.append(f"backbone {backbone} instead of {PAPER_BACKBONE}")
    if record.setting("rates") == "searched":
        differences.append("searched learning rates")
    if record.setting("backbone.pretrained") is False:
        differences.append("random backbone weights")
    split = f"{record.setting('data.source')}-inc{record.setting('data.increment')}"
    column = str(record.setting("paper.column"))
    if "-inc" in column and split != column:
        differences.append(f"data split {split} instead of {column}")
    values = {key: record.setting(f"data.{key}") for key in SLICES}
    return differences + [SLICES[key].format(value) for key, value in values.items() if value]


def _add_paper_rows(grid: Grid, records: Sequence[Run]) -> Grid:
    """The comparison, with the paper's printed numbers and ours minus them below it."""
    from zofc.paper import metric_names, printed

    warnings, papers = list(grid.warnings), [record.setting("paper") or {} for record in records]
    known: list[dict[str, float]] = []
    for label, record, paper in zip(labels(records), records, papers, strict=True):
        try:
            known.append(printed(*(str(paper[key]) for key in ("table", "row", "column"))) if paper else {})
        except ZofcError as error:
            known.append({})
            warnings.append(f"{label}: {error}.")
        if paper and (differences := paper_differences(record)):
            warnings.append(f"{label} is not in the paper's setting: {'; '.join(differences)}.")
    rows = [("reproduces", *(", ".join(map(str, paper.values())) for paper in papers))]
    notes, formal = list(grid.notes), metric_names("formal")
    for word, name in metric_names("printed").items():
        ours = [record.scores[name] if record.finished else None for record in records]
        theirs = [numbers.get(word) for numbers in known]
        gaps = [None if a is None or b is None else a - b for a, b in zip(ours, theirs, strict=True)]
        for heading, words in (("paper's", map(format_percent, theirs)), ("ours − paper's", map(format_signed, gaps))):
            cells = (cell if paper else "" for cell, paper in zip(words, papers, strict=True))
            rows.append((f"{heading} {word}{MARKS[word]}", *cells))
        other = "" if formal[word] == name else f"; its appendix A defines it as our {METRICS[formal[word]].label}"
        notes.append(f"{MARKS[word]} {word} as the paper's tables print it is our {METRICS[name].label}{other}.")
    return replace(grid, rows=(*grid.rows, *rows), notes=tuple(notes), warnings=tuple(warnings))
