"""One self-contained HTML page about any number of runs: it needs no network and can be sent as a file."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml
from markupsafe import Markup

from zofc.errors import RunError
from zofc.metrics import METRICS
from zofc.report import figures, tables
from zofc.report.drawing import COLOURS, DARK_COLOURS, Chart, CurveStyle, HeatMap
from zofc.report.labels import backbone_label, data_split, label_runs
from zofc.runfolder import Run, ready_to_write, write_atomic
from zofc.runfolder.nested import flatten
from zofc.units import NONE, format_duration

STROKES = {"solid": "none", "dash": "6 4", "dot": "2 3", "dashdot": "7 3 2 3"}
SHAPES = {  # the markers of the figures as paths around (16, 7)
    "circle": "M12 7a4 4 0 1 0 8 0a4 4 0 1 0-8 0",
    "square": "M12.5 3.5h7v7h-7z",
    "diamond": "M16 2l5 5-5 5-5-5z",
    "x": "M13 2l3 3 3-3 2 2-3 3 3 3-2 2-3-3-3 3-2-2 3-3-3-3z",
    "cross": "M14.4 2.2h3.2v3.2h3.2v3.2h-3.2v3.2h-3.2v-3.2h-3.2v-3.2h3.2z",
}


def write_report(records: Sequence[Run], path: str | Path, title: str = "Class-incremental runs") -> Path:
    """Write the page to `path` atomically."""
    if not records:
        raise RunError("no runs to report on")
    path = Path(path)
    ready_to_write(path)
    write_atomic(path, render(records, title).encode("utf-8", "replace"))  # a path may hold any bytes
    return path


def render(records: Sequence[Run], title: str) -> str:
    """The page as text. All text from runs passes through autoescape, every figure through `tojson`."""
    from jinja2 import Environment, PackageLoader, StrictUndefined  # not at the top: slow to import

    from zofc.report.draw_plotly import HEAT_COLOURS, plotly_script

    source = PackageLoader("zofc", "report")
    pages = Environment(loader=source, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    summary, compare = tables.summary_table(records), tables.comparison_table(records)
    flatness = {f"flatness-{number}": chart for number, chart in enumerate(figures.flatness_over_tasks(records))}
    return pages.get_template("page.html.j2").render(
        title=title,
        sections=list(_sections(records)),
        runs=sum(len(record.paths) for record in records),
        summary=summary,
        compare=replace(compare, warnings=tuple(w for w in compare.warnings if w not in summary.warnings)),
        differences=tables.settings_table(records),
        metrics=list(METRICS.values()),
        flatness=flatness,
        radii=sorted({row.rho for record in records for row in record.flatness if row.rho is not None}),
        data={"runs": list(_runs(records)), "figures": _figures(records, flatness)},
        light=COLOURS,
        dark=DARK_COLOURS,
        scale=HEAT_COLOURS,
        css=Markup(_read_asset("page.css")),
        script=Markup(_read_asset("page.js")),
        plotly=Markup(plotly_script()),  # the library itself: trusted, and without a closing script tag
    )


def _read_asset(name: str) -> str:
    return files("zofc.report").joinpath(name).read_text("utf-8")


def _sections(records: Sequence[Run]) -> Iterator[dict[str, Any]]:
    """The values of the template for each run."""
    spent = [(record.train_seconds, record.evaluate_seconds) for record in records]
    longest = max((value for pair in spent for value in pair if value is not None), default=0.0) or 1.0
    for number, label, record in label_runs(records):
        yield {
            "run": record,
            "number": number,
            "label": label,
            "swatch": _swatch(number),
            "about": f"{tables.method_and_placement(record)}; {data_split(record)}; {backbone_label(record)}",
            "times": [(format_duration(value), value, (value or 0.0) / longest) for value in spent[number]],
            "matrix": replace(tables.matrix_table(record), warnings=()),  # these stand below the summary
            "recipe": yaml.safe_dump(dict(record.settings), sort_keys=False, allow_unicode=True),
            "environment": {key: str(value) for key, value in flatten(record.environment).items()},
        }


def _swatch(run: int) -> Markup:
    """A sample of the run's line with its marker, as in the figures."""
    style = CurveStyle.of(run)
    return Markup(
        '<svg class="swatch" viewBox="0 0 32 14" width="32" height="14" aria-hidden="true" style="color:{}">'
        '<path d="M0 7h32" fill="none" stroke="currentColor" stroke-width="2" stroke-dasharray="{}"/>'
        '<path d="{}" fill="currentColor"/></svg>'
    ).format(f"var(--run-{run % len(COLOURS)})", STROKES[style.dash], SHAPES[style.marker])


def _runs(records: Sequence[Run]) -> Iterator[dict[str, Any]]:
    """What a tooltip of a run shows and the search field finds: the main settings, then those in which runs differ."""
    differing = tables.settings_table(records).rows if len(records) > 1 else ()
    main = ("seed", "backbone.name", "data.source", "data.increment", "data.by", "method.name")
    for number, label, record in label_runs(records):
        recipe = [
            ("method", tables.method_and_placement(record)),
            ("data", f"{data_split(record)}, {record.tasks_total or '?'} tasks"),
            ("backbone", backbone_label(record)),
            ("seed", str(record.setting("seed"))),
        ]
        recipe += [(row[0], row[1 + number]) for row in differing if row[0] not in main and row[1 + number] != NONE]
        yield {"label": label, "recipe": recipe}


def _figures(records: Sequence[Run], flatness: Mapping[str, Chart]) -> dict[str, Any]:
    """Every figure that is not empty, by its id on the page, as plotly.js reads it."""
    from zofc.report.draw_plotly import page_figure

    charts = {
        "accuracy": figures.accuracy_over_tasks(records),
        "forgetting": figures.forgetting_by_task(records),
        "memory": figures.memory_and_accuracy(records),
        **flatness,
    }
    panels: dict[str, Chart | HeatMap] = {name: chart for name, chart in charts.items() if chart.curves}
    for number, record in enumerate(records):
        if record.matrix:
            panels[f"matrix-{number}"] = figures.accuracy_heat_map(record, number)
    return {name: json.loads(page_figure(panel).to_json()) for name, panel in panels.items()}
