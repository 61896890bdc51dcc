"""Tables of runs: their summary, one run's accuracy matrix, runs side by side and beside the paper."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from zofc.errors import ZofcError
from zofc.metrics import METRICS
from zofc.recipe import PAPER_BACKBONE
from zofc.report.grid import Grid
from zofc.report.labels import data_split, labels, placement
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
    }
    words = ", ".join(word for word, holds in apart.items() if holds)
    return str(record.setting("method.name") or "?") + (f" ({words})" if words else "")


# -- what is shown -------------------------------------------------------------------------------------------


def summary_table(records: Sequence[Run]) -> Grid:
    """One row a run: its data where they differ, placement, accuracies, cost."""
    data = len({data_split(record) for record in records}) > 1
    headers = ("run", *["data"] * data, "method and placement", *(_heading(name) for name in SUMMARY_METRICS))
    rows = tuple(
        (
            label,
            *[data_split(record)] * data,
            f"{method_label(record)}: {placement(record)}",
            *(_score(record, name) for name in SUMMARY_METRICS),
            format_bytes(record.peak_memory),
            format_duration(record.train_seconds),
            format_count(_trained(record)),
        )
        for label, record in zip(labels(records), records, strict=True)
    )
    keys = tuple(
        (
            *(record.scores[name] for name in SUMMARY_METRICS),
            record.peak_memory,
            record.train_seconds,
            _trained(record),
        )
        for record in records
    )
    return Grid(
        (*headers, "peak memory", "train time", "trained parameters"),
        rows,
        notes=_means(records),
        warnings=_cautions(records),
        names=2 + data,
        keys=keys,
    )


def matrix_table(record: Run) -> Grid:
    """The accuracy matrix of one run: a row after each task, a column for each task's classes. Of a saved model, these
    classes."""
    if record.saved:
        return _learned(record)
    title = f"{record.title}: accuracy (%) on the classes of each task"
    if record.matrix is None:
        return Grid(("after task",), (), title, warnings=_cautions([record]))
    matrix = record.matrix
    width = len(matrix.last_row)
    rows = []
    for number, (row, overall) in enumerate(zip(matrix.rows, record.accuracies.values, strict=True), 1):
        cells = [format_percent(accuracy, 1) for accuracy in row] + [""] * (width - len(row))
        rows.append(("joint" if matrix.joint else str(number), format_percent(overall, 1), *cells))
    headers = ("after task", "all classes", *(f"task {number}" for number in range(1, width + 1)))
    return Grid(headers, tuple(rows), title, warnings=_cautions([record]))


def _learned(record: Run) -> Grid:
    rows = ((str(number), ", ".join(names)) for number, names in enumerate(record.learned, 1))
    made = f"{method_label(record)}: {placement(record)}; backbone {record.setting('backbone.name')}"
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
        ("backbone", *(str(record.setting("backbone.name") or NONE) for record in records)),
        ("seeds" if means else "seed", *(str(record.setting("seed")) for record in records)),
    ]
    shared = [row for row in about if len(records) > 1 and len(set(row[1:])) == 1]
    rows = [row for row in about if row not in shared]
    rows.append(("tasks", *(f"{record.tasks_done} of {record.tasks_total or '?'}" for record in records)))
    rows += [(_heading(name), *(_score(record, name) for record in records)) for name in METRICS]
    rows += [
        ("peak memory", *(format_bytes(record.peak_memory) for record in records)),
        ("train time", *(format_duration(record.train_seconds) for record in records)),
        ("trained parameters", *(_by_group(record.trainable) for record in records)),
    ]
    notes = ["The same in all: " + "; ".join(f"{name} {value}" for name, value, *_ in shared) + "."] if shared else []
    grid = Grid(("", *labels(records)), tuple(rows), notes=(*notes, *means), warnings=_cautions(records))
    return _beside_paper(grid, records) if any(record.setting("paper") for record in records) else grid


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
    """What is said where a run is several."""
    words = "Over seeds: mean ± standard deviation, the mean time and the most memory."
    return (words,) if any(record.spreads for record in records) else ()


def _trained(record: Run) -> int | None:
    """The number of trained parameters, all groups together."""
    return None if record.trainable is None else sum(record.trainable.values())


def _by_group(groups: Mapping[str, int] | None) -> str:
    return NONE if groups is None else ", ".join(f"{group} {n:,}" for group, n in groups.items()) or "0"


def _setting(value: Any) -> str:
    return NONE if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _cautions(records: Sequence[Run]) -> tuple[str, ...]:
    """What must be known before two numbers of a table are compared."""
    found = []
    for label, record in zip(labels(records), records, strict=True):
        if not record.finished:
            found.append(f"{label} is {record.status}." + " Its numbers cover those." * bool(record.tasks_done))
        if record.matrix and record.matrix.unmeasured:
            tasks = ", ".join(str(group + 1) for group in record.matrix.unmeasured)
            several = "s" * (len(record.matrix.unmeasured) > 1)
            found.append(
                f"{label} has no final accuracy for the classes of task{several} {tasks}; the means leave them out."
            )
    return tuple(found)


# -- the paper's numbers -------------------------------------------------------------------------------------


def _printed(record: Run) -> dict[str, float]:
    """The numbers the paper prints for what this recipe reproduces, under the paper's words; ZofcError if
    unknown."""
    from zofc.paper import printed

    paper = record.setting("paper")
    return printed(str(paper["table"]), str(paper["row"]), str(paper["column"])) if paper else {}


def unlike_paper(record: Run) -> list[str]:
    """How a run's backbone and data differ from the paper's, which makes its numbers not comparable."""
    found = []
    backbone = str(record.setting("backbone.name"))
    if backbone.endswith((".safetensors", ".npz")):
        found.append(f"backbone weights from {backbone}, not checked to be {PAPER_BACKBONE}")
    elif backbone != PAPER_BACKBONE:
        found.append(f"backbone {backbone} instead of {PAPER_BACKBONE}")
    if record.setting("backbone.pretrained") is False:
        found.append("random backbone weights")
    split = f"{record.setting('data.source')}-inc{record.setting('data.increment')}"
    column = str(record.setting("paper.column"))
    if "-inc" in column and split != column:
        found.append(f"data split {split} instead of {column}")
    for key, words in SLICES.items():
        value = record.setting(f"data.{key}")
        if value:
            found.append(words.format(value))
    return found


def _beside_paper(grid: Grid, records: Sequence[Run]) -> Grid:
    """The comparison, with the paper's printed numbers and ours minus them below it."""
    from zofc.paper import metric_names

    warnings = list(grid.warnings)
    known: list[dict[str, float]] = []
    for label, record in zip(labels(records), records, strict=True):
        try:
            known.append(_printed(record))
        except ZofcError as error:
            known.append({})
            warnings.append(f"{label}: {error}.")
        if record.setting("paper") and (apart := unlike_paper(record)):
            warnings.append(f"{label} is not in the paper's setting: {'; '.join(apart)}.")
    papers = [record.setting("paper") or {} for record in records]
    rows = [("reproduces", *(", ".join(map(str, paper.values())) for paper in papers))]
    for word, name in metric_names("printed").items():
        ours = [record.scores[name] if record.finished else None for record in records]
        theirs = [numbers.get(word) for numbers in known]
        gaps = [None if a is None or b is None else a - b for a, b in zip(ours, theirs, strict=True)]
        for heading, words in (("paper's", map(format_percent, theirs)), ("ours − paper's", map(format_signed, gaps))):
            cells = (cell if paper else "" for cell, paper in zip(words, papers, strict=True))
            rows.append((f"{heading} {word}{MARKS[word]}", *cells))
    notes = (*grid.notes, *_footnotes(metric_names("printed"), metric_names("formal")))
    return replace(grid, rows=(*grid.rows, *rows), notes=notes, warnings=tuple(warnings))


def _footnotes(printed: Mapping[str, str], formal: Mapping[str, str]) -> Iterator[str]:
    """Which of our metrics each of the paper's words stands for, in its tables and in its formulas."""
    for word, name in printed.items():
        other = "" if formal[word] == name else f"; its appendix A defines it as our {METRICS[formal[word]].label}"
        yield f"{MARKS[word]} {word} as the paper's tables print it is our {METRICS[name].label}{other}."
