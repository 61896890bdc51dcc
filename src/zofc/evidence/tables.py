"""Tables of documents, between `<!-- NAME -->` and `<!-- /NAME -->`, made from result files and the recipe."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from zofc.errors import RunError, nearest
from zofc.evidence.demo import demo_table
from zofc.evidence.devices import agreement_table, device_table, install_table, streams_table
from zofc.evidence.estimators import estimators_table
from zofc.evidence.flatness_table import curvature_note, watched_grid
from zofc.evidence.glyph_studies import optimizers_table, smoothing_table
from zofc.evidence.photographs import photographs_table
from zofc.evidence.robustness import torture_table
from zofc.evidence.rows import RowTable, accuracy_cells, read_evidence, result_rows
from zofc.evidence.scaling import (
    DATA_CENTRE,
    INTERNET,
    StepKind,
    agreement_text,
    fleet_table,
    journal_table,
    kills_text,
    measured_kinds,
    progress_table,
    ranks_table,
    speed_up_table,
    travel_table,
)
from zofc.evidence.serving import answers_table, calibration_table, delivered_table, first_minute_table, teach_table
from zofc.evidence.untested import prose
from zofc.methods import SECTIONS
from zofc.recipe.settings import describe_section, list_settings
from zofc.report.grid import Grid
from zofc.units import NONE

DOCUMENTS = ("README.md", "benchmarks/README.md", "docs/**/*.md")
MARKED = re.compile(r"<!-- ([\w -]+) -->\n.*?<!-- /\1 -->", re.DOTALL)
RESULTS = Path("results/dinov2s")  # the grids that the documents show
SHOWN_SETTINGS = {
    "cifar100-inc10, 100 images a class": "CIFAR-100, 10 tasks",
    "cifar100-inc5, 100 images a class": "CIFAR-100, 20 tasks",
    "caltech101-inc10": "Caltech-101",
}
SHOWN_LINES = {
    "SimpleCIL": "SimpleCIL: class means",
    "Ridge on an orthogonal projection within 64 MB (not in the paper)": "Ridge on a projection, 64 MB",
    "Ridge on an orthogonal projection of 8192 (not in the paper)": "Ridge, 8,192 wide (512 MiB)",
    "Adapter + Cls., FO": "Adapter + classifier, first order",
    "ZO-FC": "ZO-FC: zeroth-order adapter, first-order classifier",
    "APER Adapter, FO": "APER, first order",
    "RanPAC's recipe: APER Adapter, FO + ridge on 8192": "RanPAC's recipe, first order, 8,192 wide",
    "ZO-Ridge (not in the paper)": "ZO-Ridge, 64 MB (default)",
    "ZO-Ridge, 8192 wide (not in the paper)": "ZO-Ridge, 8,192 wide",
}
SHORT_STEPS = ("published", "published-first", "forward", "image", "image-24", "first", "late-3", "spsa", "first-fp32",
               "spsa-bf16")  # fmt: skip
SPEED_STEPS = ("published", "published-first", "forward", "image", "image-24", "late-3", "first")
BASELINES = ("published", "published-first", "autocast-first")  # steps that are not ours
PLANS = {  # a plan of a step, with the rows of zeroth and of first order
    "as published, fp32": ("published", "published-first"),
    "whole batch, bf16": ("forward", "first"),
    "small, bf16": ("small-bf16", "first-small-bf16"),
    "least, fp32": ("least-fp32", "first-least"),
    "least, bf16": ("least-bf16", "first-least-bf16"),
}
STEP_HEADS = ("Step", "Time (ms)", "Memory (GiB)", "Speed-up")
StepRows = dict[str, Mapping[str, Any]]


# -- accuracy --------------------------------------------------------------------------------------------------------


def results_table(table: RowTable) -> Grid:
    """A few lines: all classes and forgetting, mean ± standard deviation over seeds."""
    settings = {name: title for name, title in SHOWN_SETTINGS.items() if any(key[1] == name for key in table)}
    body = []
    for line, title in SHOWN_LINES.items():
        cells = [cell for setting in settings for cell in accuracy_cells(table, line, setting)]
        if any(cell != NONE for cell in cells):
            body.append((title, *cells))
    heads = [head for title in settings.values() for head in (f"{title} (%)", "Forgetting")]
    return Grid(("Method", *heads), tuple(body))


# -- steps -----------------------------------------------------------------------------------------------------------


def step_rows(root: Path, *names: str) -> StepRows:
    """Rows of step benchmarks by name; those of the first file that has them."""
    found: StepRows = {}
    for name in names:
        for row in result_rows(root / "results" / f"{name}.json"):
            found.setdefault(row["name"], row)
    return found


def steps_table(rows: StepRows, shown: Sequence[str] = ()) -> Grid:
    """Time, memory, speed beside the published step and first order, correlation with float64, and operations."""
    body = []
    for row in (rows[name] for name in shown or rows if name in rows):
        ours = "first" if "bf16" in row["what"] else "first-fp32"
        first = rows.get("published-first" if row["name"] in BASELINES else ours)
        ratio = f"{row['milliseconds'] / first['milliseconds']:.2f}" if first else NONE
        correlation, forwards = (
            NONE if row.get(key) is None else f"{row[key]:.{digits}f}"
            for key, digits in (("correlation", 4), ("forwards", 2))
        )
        body.append((*_step_cells(row, rows), ratio, correlation, forwards))
    return Grid((*STEP_HEADS, "Time ÷ first order", "Correlation", "Forwards"), tuple(body))


def speed_table(rows: StepRows) -> Grid:
    """Time and memory of the steps that a reader chooses between."""
    body = tuple(_step_cells(rows[name], rows) for name in SPEED_STEPS if name in rows)
    return Grid(STEP_HEADS, body)


def _step_cells(row: Mapping[str, Any], rows: StepRows) -> tuple[str, str, str, str]:
    base = rows.get("published")
    faster = f"{base['milliseconds'] / row['milliseconds']:.1f}" if base else NONE
    memory = f"{row['peak_bytes'] / 2**30:.3f}" if row["peak_bytes"] else NONE
    return row["what"], f"{row['milliseconds']:.1f}", memory, faster


def memory_table(rows: StepRows) -> Grid:
    """Plans of a step from the fastest to the one with the least memory, under either order."""
    body = []
    for plan, names in PLANS.items():
        cells: list[str] = []
        for name in names:
            row = rows.get(name)
            cells += (NONE, NONE) if row is None else (f"{row['peak_bytes'] / 2**30:.3f}", f"{row['milliseconds']:.0f}")
        body.append((plan, *cells))
    return Grid(("Plan", "Zeroth order (GiB)", "Step (ms)", "First order (GiB)", "Step (ms)"), tuple(body))


# -- settings --------------------------------------------------------------------------------------------------------


def settings_tables() -> str:
    """A heading and a table for each part of a recipe."""
    parts = []
    for name, group in groupby(
        list_settings(SECTIONS), key=lambda setting: setting.key.partition(".")[0] * ("." in setting.key)
    ):
        rows = list(group)
        lines = [f"## {name or 'The run'}", "", describe_section(rows[0].key, SECTIONS), ""]
        lines += ["| setting | values | default | meaning |", "| --- | --- | --- | --- |"]
        for row in rows:
            meaning = re.sub(r"([<|*])", r"\\\1", row.description)  # else Markdown takes them for tags or columns
            lines.append(f"| `{row.key}` | {row.values} | {row.default} | {meaning} |")
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


# -- documents -------------------------------------------------------------------------------------------------------


def _optimizers(path: Path) -> Grid | str:
    table = optimizers_table(result_rows(path)) if path.is_file() else None
    return table if table and table.rows else "It has not been run."


def _kinds(root: Path) -> dict[str, StepKind]:
    return measured_kinds([*step_rows(root, "step", "step_memory").values()])


DOCUMENT_TABLES: dict[str, Callable[[Path], Grid | str]] = {
    "results table": lambda root: results_table(read_evidence(root / RESULTS)),
    "speed table": lambda root: speed_table(step_rows(root, "step", "step_memory")),
    "demo table": lambda root: demo_table(result_rows(root / "results" / "demo.json")),
    "estimators table": lambda root: estimators_table(result_rows(root / "results" / "estimators.json")),
    "smoothing table": lambda root: smoothing_table(result_rows(root / "results" / "smoothing.json")),
    "optimizers table": lambda root: _optimizers(root / "results" / "optimizers.json"),
    "watched lines": lambda root: watched_grid(read_evidence(root / RESULTS)),
    "how curvature was measured": lambda root: prose(curvature_note(read_evidence(root / RESULTS))),
    "step table": lambda root: steps_table(step_rows(root, "step"), SHORT_STEPS),
    "whole step table": lambda root: steps_table(step_rows(root, "step")),
    "little memory": lambda root: steps_table(step_rows(root, "step_memory")),
    "step on two cores": lambda root: steps_table(step_rows(root, "step_cpu")),
    "memory table": lambda root: memory_table(step_rows(root, "step", "step_memory")),
    "answers table": lambda root: answers_table(result_rows(root / "results" / "predict.json")),
    "calibration table": lambda root: calibration_table(result_rows(root / "results" / "calibration.json")),
    "delivered table": lambda root: delivered_table(result_rows(root / "results" / "calibration.json", "delivered")),
    "first minute table": lambda root: first_minute_table(result_rows(root / "results" / "teach.json")),
    "teach table": lambda root: teach_table(result_rows(root / "results" / "teach.json")),
    "photographs table": lambda root: photographs_table(result_rows(root / "results" / "photographs.json")),
    "device table": lambda root: device_table(result_rows(root / "results" / "device.json")),
    "installed sizes": lambda root: install_table(result_rows(root / "results" / "device.json")),
    "device agreement": lambda root: agreement_table(result_rows(root / "results" / "device.json")),
    "device streams": lambda root: streams_table(result_rows(root / "results" / "device_streams.json")),
    "bytes a step": lambda root: travel_table(_kinds(root)),
    "speed-up in a data centre": lambda root: speed_up_table(_kinds(root), DATA_CENTRE),
    "speed-up over the internet": lambda root: speed_up_table(_kinds(root), INTERNET),
    "worth of a step": lambda root: progress_table(_kinds(root)),
    "cost of a journal": lambda root: journal_table(result_rows(root / "results" / "journal.json")),
    "fleet of devices": lambda root: fleet_table(result_rows(root / "results" / "journal.json")),
    "processes of one machine": lambda root: ranks_table(_content(root / "results" / "ranks.json")),
    "agreement with the model": lambda root: agreement_text(_content(root / "results" / "ranks.json")),
    "kills of a rank": lambda root: kills_text(_content(root / "results" / "rank_kills.json")),
    "torture table": lambda root: torture_table(result_rows(root / "results" / "torture.json")),
    "all settings": lambda _root: settings_tables(),
}


def _content(path: Path) -> dict[str, Any]:
    """A result file with more than rows."""
    content: dict[str, Any] = json.loads(path.read_text("utf-8"))
    return content


def fill_tables(text: str, root: Path) -> str:
    """A document with every table as its result file gives it now."""

    def write(match: re.Match[str]) -> str:
        name = match[1]
        if name not in DOCUMENT_TABLES:
            raise RunError(f"<!-- {name} -->: no such table{nearest(name, DOCUMENT_TABLES)}")
        made = DOCUMENT_TABLES[name](root)
        body = made.markdown().strip() if isinstance(made, Grid) else made
        return f"<!-- {name} -->\n{body}\n<!-- /{name} -->"

    return MARKED.sub(write, text)


def marked_documents(root: Path) -> list[Path]:
    """The documents that have a table to fill."""
    paths = [path for pattern in DOCUMENTS for path in sorted(root.glob(pattern))]
    return [path for path in paths if MARKED.search(path.read_text("utf-8"))]
