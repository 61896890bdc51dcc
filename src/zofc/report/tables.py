"""Tables of runs, for the terminal (rich), for Markdown and for the page.

A table is a `Grid` of words; `console.print(grid)` lays it out in the width there is, splitting it into
several parts rather than cutting a number short.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, JustifyMethod, RenderResult
from rich.table import Table
from rich.text import Text

from zofc.errors import ZofcError
from zofc.metrics import METRICS
from zofc.recipe import PAPER_BACKBONE
from zofc.report.runs import RunRecord, flat, labels

NONE = "—"
SHOWN = ("all_classes", "forgetting", "last_task")

MARKS = {"avg": "¹", "last": "²", "fgt": "³"}  # footnotes of the paper's words
SLICES = {  # settings of the data that leave less, more or other than the paper's, and how to say so
    "per_class": "only {} training images per class",
    "test_per_class": "only {} test images per class",
    "classes": "only {} classes",
    "first": "{} classes in the first task",
    "joint": "all classes in one task",
    "then": "further data: {}",
}


# -- words ---------------------------------------------------------------------------------------------------


def percent(value: float | None, digits: int = 2) -> str:
    return NONE if value is None else f"{value:.{digits}f}".replace("-", "−")


def signed(value: float | None) -> str:
    return NONE if value is None else f"{value:+.2f}".replace("-", "−")


def memory(size: float | None) -> str:
    """Bytes in the largest unit that leaves a number above one."""
    if size is None:
        return NONE
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.3g} {unit}" if size < 100 else f"{size:.0f} {unit}"
        size /= 1024
    return f"{size:.2f} GiB"


def duration(seconds: float | None) -> str:
    if seconds is None:
        return NONE
    if seconds < 60:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min" if seconds < 3600 else f"{seconds / 3600:.1f} h"


def parameters(groups: Mapping[str, int] | None) -> str:
    """The number of trainable parameters, all groups together."""
    if groups is None:
        return NONE
    total = sum(groups.values())
    if total < 10_000:
        return f"{total:,}"
    return f"{total / 1e3:.1f} k" if total < 1e6 else f"{total / 1e6:.2f} M"


def method(record: RunRecord) -> str:
    """The method, with what sets the run apart from a usual one: `adapter (joint)`."""
    apart = {
        "joint": record.setting("data.joint") is True,
        "old classes in the loss": record.setting("method.mask") is False,
        "prototypes": record.setting("method.prototypes") is True,
    }
    words = ", ".join(word for word, holds in apart.items() if holds)
    return str(record.setting("method.name") or "?") + (f" ({words})" if words else "")


# -- the grid ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Grid:
    """A table of words, whose first columns name the row. Warnings and notes stand below it."""

    headers: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    title: str = ""
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    names: int = 1  # how many columns are names, set to the left
    keys: tuple[tuple[float | None, ...], ...] = ()  # what rows are sorted by, a number for each further column

    def turned(self, corner: str) -> Grid:
        """The same with its rows as columns; `corner` is what the first then holds."""
        (_, *headers), *rows = zip(self.headers, *self.rows, strict=True)
        return replace(self, headers=(corner, *headers), rows=tuple(rows))

    def markdown(self) -> str:
        lines = [
            self.headers,
            tuple("---" if number < self.names else "---:" for number in range(len(self.headers))),
            *self.rows,
        ]
        table = "\n".join("| " + " | ".join(_markdown(cell) for cell in line) + " |" for line in lines)
        below = [f"**Warning:** {_markdown(text)}" for text in self.warnings] + [_markdown(text) for text in self.notes]
        return "\n\n".join([f"### {_markdown(self.title)}"] * bool(self.title) + [table, *below]) + "\n"

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if self.title:
            yield Text(_printable(self.title), style="bold")
        for number, (part, widths) in enumerate(self._parts(options.max_width)):
            if number:
                yield ""
            yield part._table(widths)
        for text in self.warnings:
            yield Text(f"Warning: {_printable(text)}", style="yellow")
        for text in self.notes:
            yield Text(_printable(text), style="dim")

    def _table(self, widths: Sequence[int]) -> Table:
        table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
        for number, (header, width) in enumerate(zip(self.headers, widths, strict=True)):
            side: JustifyMethod = "left" if number < self.names else "right"
            table.add_column(Text(_printable(header)), width=width, overflow="fold", justify=side)
        for row in self.rows:
            table.add_row(*[Text(_printable(cell)) for cell in row])
        return table

    def _parts(self, width: int, gap: int = 2) -> Iterator[tuple[Grid, list[int]]]:
        """Pieces with as many columns as fit, the first column repeated; rows that are empty in a piece
        are left out."""
        columns = list(zip(self.headers, *self.rows, strict=True))
        narrow = [_narrowest(column, 18 if number else width // 3) for number, column in enumerate(columns)]
        taken: list[list[int]] = [[]]
        for number in range(1, len(columns)):
            if taken[-1] and sum(narrow[n] + gap for n in (*taken[-1], number)) + narrow[0] > width:
                taken.append([])
            taken[-1].append(number)
        for numbers in taken if len(columns) > 1 else ():
            keep = [0, *numbers]
            rows = [tuple(row[n] for n in keep) for row in self.rows]
            rows = [row for row in rows if any(row[1:])] if len(taken) > 1 else rows
            names = sum(number < self.names for number in keep)
            part = Grid(tuple(self.headers[n] for n in keep), tuple(rows), names=names)
            room = width - gap * (len(keep) - 1)
            yield part, _widths([narrow[n] for n in keep], [_widest(columns[n]) for n in keep], room, names)


def _printable(text: str) -> str:
    return "".join(letter if letter.isprintable() or letter == "\n" else " " for letter in text)


def _markdown(text: str) -> str:
    for sign in "\\|<*`[":
        text = text.replace(sign, f"\\{sign}")
    return _printable(text).replace("\n", "<br>")


def _widest(column: Sequence[str]) -> int:
    return max(cell_len(line) for cell in column for line in (cell or " ").split("\n"))


def _narrowest(column: Sequence[str], limit: int) -> int:
    """The least width at which no word and no short cell is broken and no cell is piled up, but never more than
    `limit`."""
    lines = [line for cell in column[1:] for line in cell.split("\n")]
    whole = [cell_len(line) if cell_len(line) <= 12 else cell_len(line) // 3 for line in lines]
    words = [cell_len(word) for cell in column for word in cell.split()]
    return min(limit, max((*whole, *words), default=1))


def _widths(narrow: Sequence[int], wide: Sequence[int], room: int, names: int) -> list[int]:
    """Widths between the two: the room left over goes to the names first, then to the narrowest that lacks some."""
    widths = list(narrow)
    while sum(widths) > room and max(widths) > 1:  # only where a single column is wider than the terminal
        widths[widths.index(max(widths))] -= 1
    for some in (range(names), range(len(widths))):
        for _ in range(room - sum(widths)):
            lacking = [number for number in some if widths[number] < wide[number]]
            if lacking:
                widths[min(lacking, key=widths.__getitem__)] += 1
    return widths


# -- what is shown -------------------------------------------------------------------------------------------


def summary(records: Sequence[RunRecord]) -> Grid:
    """One row a run: its data where they differ, placement, accuracies, cost."""
    data = len({record.split for record in records}) > 1
    headers = ("run", *["data"] * data, "method and placement", *(_heading(name) for name in SHOWN))
    rows = tuple(
        (
            label,
            *[record.split] * data,
            f"{method(record)}: {record.placement}",
            *(_score(record, name) for name in SHOWN),
            memory(record.peak_memory),
            duration(record.train_seconds),
            parameters(record.trainable),
        )
        for label, record in zip(labels(records), records, strict=True)
    )
    keys = tuple(
        (
            *(record.scores[name] for name in SHOWN),
            record.peak_memory,
            record.train_seconds,
            None if record.trainable is None else sum(record.trainable.values()),
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


def show(record: RunRecord) -> Grid:
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
        cells = [percent(accuracy, 1) for accuracy in row] + [""] * (width - len(row))
        rows.append(("joint" if matrix.joint else str(number), percent(overall, 1), *cells))
    headers = ("after task", "all classes", *(f"task {number}" for number in range(1, width + 1)))
    return Grid(headers, tuple(rows), title, warnings=_cautions([record]))


def _learned(record: RunRecord) -> Grid:
    rows = ((str(number), ", ".join(names)) for number, names in enumerate(record.learned, 1))
    made = f"{method(record)}: {record.placement}; backbone {record.setting('backbone.name')}"
    title = f"{record.title}: a saved model ({made}) of {sum(map(len, record.learned))} classes"
    notes = ("Measure it on images: zofc evaluate; name their classes: zofc predict.",)
    return Grid(("task", "classes"), tuple(rows), title, notes, names=2)


def compare(records: Sequence[RunRecord]) -> Grid:
    """Runs side by side, and ours minus the paper's where a recipe names the numbers it reproduces."""
    means = _means(records)
    about = [
        ("method", *map(method, records)),
        ("placement", *(record.placement for record in records)),
        ("data", *(record.split for record in records)),
        ("backbone", *(str(record.setting("backbone.name") or NONE) for record in records)),
        ("seeds" if means else "seed", *(str(record.setting("seed")) for record in records)),
    ]
    shared = [row for row in about if len(records) > 1 and len(set(row[1:])) == 1]
    rows = [row for row in about if row not in shared]
    rows.append(("tasks", *(f"{record.tasks_done} of {record.tasks_total or '?'}" for record in records)))
    rows += [(_heading(name), *(_score(record, name) for record in records)) for name in METRICS]
    rows += [
        ("peak memory", *(memory(record.peak_memory) for record in records)),
        ("train time", *(duration(record.train_seconds) for record in records)),
        ("trained parameters", *(_by_group(record.trainable) for record in records)),
    ]
    notes = ["The same in all: " + "; ".join(f"{name} {value}" for name, value, *_ in shared) + "."] if shared else []
    grid = Grid(("", *labels(records)), tuple(rows), notes=(*notes, *means), warnings=_cautions(records))
    return _beside_paper(grid, records) if any(record.setting("paper") for record in records) else grid


def differences(records: Sequence[RunRecord]) -> Grid:
    """The settings in which the runs differ."""
    recipes = [flat({key: value for key, value in record.recipe.items() if key != "paper"}) for record in records]
    keys = dict.fromkeys(key for recipe in recipes for key in recipe if key not in ("name", "title"))
    lines = ((key, *(_setting(recipe.get(key)) for recipe in recipes)) for key in keys)
    return Grid(("setting", *labels(records)), tuple(line for line in lines if len(set(line[1:])) > 1))


def _heading(name: str) -> str:
    return f"{METRICS[name].label} ({METRICS[name].unit})"


def _score(record: RunRecord, name: str) -> str:
    spread = record.spreads.get(name)
    return percent(record.scores[name]) + ("" if spread is None else f" ± {percent(spread)}")


def _means(records: Sequence[RunRecord]) -> tuple[str, ...]:
    """What is said where a run is several."""
    words = "Over seeds: mean ± standard deviation, the mean time and the most memory."
    return (words,) if any(record.spreads for record in records) else ()


def _by_group(groups: Mapping[str, int] | None) -> str:
    return NONE if groups is None else ", ".join(f"{group} {n:,}" for group, n in groups.items()) or "0"


def _setting(value: Any) -> str:
    return NONE if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _cautions(records: Sequence[RunRecord]) -> tuple[str, ...]:
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


def _printed(record: RunRecord) -> dict[str, float]:
    """The numbers the paper prints for what this recipe reproduces, under the paper's words; ZofcError if
    unknown."""
    from zofc.paper import printed

    paper = record.setting("paper")
    return printed(str(paper["table"]), str(paper["row"]), str(paper["column"])) if paper else {}


def unlike_paper(record: RunRecord) -> list[str]:
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


def _beside_paper(grid: Grid, records: Sequence[RunRecord]) -> Grid:
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
        for heading, words in (("paper's", map(percent, theirs)), ("ours − paper's", map(signed, gaps))):
            cells = (cell if paper else "" for cell, paper in zip(words, papers, strict=True))
            rows.append((f"{heading} {word}{MARKS[word]}", *cells))
    notes = (*grid.notes, *_footnotes(metric_names("printed"), metric_names("formal")))
    return replace(grid, rows=(*grid.rows, *rows), notes=notes, warnings=tuple(warnings))


def _footnotes(printed: Mapping[str, str], formal: Mapping[str, str]) -> Iterator[str]:
    """Which of our metrics each of the paper's words stands for, in its tables and in its formulas."""
    for word, name in printed.items():
        other = "" if formal[word] == name else f"; its appendix A defines it as our {METRICS[formal[word]].label}"
        yield f"{MARKS[word]} {word} as the paper's tables print it is our {METRICS[name].label}{other}."
