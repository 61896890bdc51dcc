"""One self-contained HTML page about any number of runs: it needs no network and can be sent as a file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from zofc.errors import RunError
from zofc.metrics import METRICS
from zofc.report import figures, tables
from zofc.report.runs import RunRecord, flat, labels


@dataclass(frozen=True)
class Section:
    """What the page says about one run."""

    label: str
    colour: str
    folder: str
    status: str
    finished: bool
    about: str
    bars: tuple[Bar, ...]
    matrix: tables.Grid
    figure: str | None  # the id of its heat map
    recipe: str
    environment: dict[str, str]


@dataclass(frozen=True)
class Bar:
    """A value and its share of the largest, in percent."""

    text: str
    share: float | None


def write_report(records: Sequence[RunRecord], path: str | Path, title: str = "Class-incremental runs") -> Path:
    """Write the page to `path`, whole or not at all."""
    if not records:
        raise RunError("no runs to report on")
    path = Path(path)
    if path.is_dir():
        raise RunError(f"{path}: a folder, expected the name of the page to write")
    content = render(records, title)
    part = path.with_name(f".{path.name}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            part.write_text(content, encoding="utf-8", errors="replace")  # a path may hold any bytes
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)
    except OSError as error:
        raise RunError(f"{path}: the report cannot be written: {error.strerror}") from error
    return path


def render(records: Sequence[RunRecord], title: str) -> str:
    """The page as text. Every word from a run passes through autoescape, every figure through `tojson`."""
    environment = Environment(
        loader=PackageLoader("zofc", "report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    summary, compare = tables.summary(records), tables.compare(records)
    return environment.get_template("page.html.j2").render(
        title=title,
        sections=_sections(records),
        summary=summary,
        compare=replace(compare, warnings=tuple(w for w in compare.warnings if w not in summary.warnings)),
        differences=tables.differences(records),
        metrics=list(METRICS.values()),
        figures=_figures(records),
        plotly=Markup(get_plotlyjs()),  # the library itself: trusted, and without a closing script tag
    )


def _sections(records: Sequence[RunRecord]) -> list[Section]:
    memory = max((record.peak_memory or 0 for record in records), default=0)
    found = []
    for number, (label, record) in enumerate(zip(labels(records), records, strict=True)):
        overall, size = record.scores["all_classes"], record.peak_memory
        found.append(
            Section(
                label=label,
                colour=figures.colour(number),
                folder=str(record.folder),
                status=record.status,
                finished=record.finished,
                about=f"{tables.method(record)}: {tables.placement(record)}",
                bars=(
                    Bar(tables.memory(size), 100 * size / memory if size and memory else None),
                    Bar("—" if overall is None else f"{overall:.2f} %", overall),
                ),
                matrix=replace(tables.show(record), warnings=()),  # these stand below the summary
                figure=f"matrix-{number}" if record.matrix else None,
                recipe=yaml.safe_dump(dict(record.recipe), sort_keys=False, allow_unicode=True),
                environment={key: str(value) for key, value in flat(record.environment).items()},
            )
        )
    return found


def _figures(records: Sequence[RunRecord]) -> dict[str, Any]:
    """Every figure by the id of its place on the page, as plotly.js reads it."""
    drawn = {}
    if figures.accuracy_lines(records):
        drawn["accuracy"] = figures.plotly_accuracy_over_tasks(records)
    if figures.forgetting_lines(records):
        drawn["forgetting"] = figures.plotly_forgetting_by_task(records)
    for number, record in enumerate(records):
        if record.matrix:
            drawn[f"matrix-{number}"] = figures.plotly_accuracy_heatmap(record)
    return {name: json.loads(figure.to_json()) for name, figure in drawn.items()}
