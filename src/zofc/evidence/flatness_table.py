"""Flatness, curvature and how far the adapter moves, of the lines that were watched along one stream."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from zofc.evidence.lines import LINES, PARTS
from zofc.evidence.rows import ROW_NUMBERS, RowTable, spread
from zofc.report.grid import Grid
from zofc.studies.jobs import MeasureCurvature

WATCHED = {  # a number of a row, with its digits
    "Forgetting": ("forgetting", 1),
    "Φ, adapter": ("phi", 2),
    "Φ, adapter and classifier": ("phi_head", 2),
    "Largest eigenvalue": ("largest_eigenvalue", 1),
    "Trace": ("trace", 0),
    "‖Δθ‖ of a task": ("distance", 2),
}


def watched_grid(table: RowTable) -> Grid:
    """Mean ± standard deviation over seeds, in the setting of the part."""
    part, body = PARTS["f"], []
    setting = part.label(part.settings[0])
    for line in (LINES[name].title for name in part.lines):
        rows = [row for key, row in table.items() if key[:2] == (line, setting) and {"flatness", "curvature"} & {*row}]
        if rows:
            cells = [spread([ROW_NUMBERS[key](row) for row in rows], digits) for key, digits in WATCHED.values()]
            body.append((line, *cells))
    return Grid((setting, *WATCHED), tuple(body))


def curvature_note(table: RowTable) -> str:
    """After which tasks curvature was measured, how closely, and what the bound on forgetting is worth."""
    states = [state for row in table.values() if "curvature" in row for state in row["curvature"]["peft"]]
    job = PARTS["f-curvature"].work
    if not states or not isinstance(job, MeasureCurvature):
        return ""
    tasks = sorted({state["task"] for state in states})
    where = f"after tasks {tasks[0]} to {tasks[-1]}" if tasks[1:] else f"in one state a run, after task {tasks[0]},"
    error = statistics.median(100 * state["trace_error"] / abs(state["trace"]) for state in states)
    steps = [state["forgetting"] for state in states if state["forgetting"]]
    return (
        f"Curvature was measured {where} on {job.settings.images} test images a class; the trace has "
        f"{job.settings.probes} probes, a standard error of {error:.0f} % (median). The bound ½λ‖Δθ‖² is "
        f"{_range([step['bound'] for step in steps], 1)} nats where the loss changed by at most "
        f"{max(abs(step['change']) for step in steps):.3f}."
    )


def _range(values: Sequence[float], digits: int) -> str:
    return f"{min(values):.{digits}f} to {max(values):.{digits}f}"
