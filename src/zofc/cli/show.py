"""`zofc show`, `compare`, `report` and `watch`: look at runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from zofc.cli.application import RunPath, RunPaths, app, err, out, say, warn
from zofc.errors import RunError
from zofc.runfolder.names import PAGE_FILE

if TYPE_CHECKING:
    from zofc.runfolder import Run

MOST_COLUMNS = 6  # runs that `compare` shows side by side; more of them stand one below another
OverSeed = Annotated[
    str | None, typer.Option(metavar="seed", help="Runs that differ in the seed alone as one: mean ± deviation.")
]


@app.command()
def show(path: RunPath) -> None:
    """One run: settings, accuracy after each task, metrics and cost. Of a saved model, its tasks and classes."""
    from zofc.report import comparison_table, matrix_table
    from zofc.runfolder import read_runs

    (record,) = read_runs([path])[:1]
    matrix = matrix_table(record)
    out.print(matrix)
    if not record.saved:
        side = comparison_table([record])
        out.print(replace(side, warnings=tuple(text for text in side.warnings if text not in matrix.warnings)))


@app.command()
def compare(
    paths: RunPaths,
    settings: Annotated[bool, typer.Option("--settings", help="Also list the settings in which they differ.")] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown.")] = False,
    over: OverSeed = None,
) -> None:
    """Runs side by side, or one below another if there are many, beside the paper's numbers.

    A run below a folder that cannot be read is left out with a warning.
    """
    from zofc.report import comparison_table, settings_table
    from zofc.runfolder import read_runs

    records = _merge(over, read_runs(paths, warn))
    for grid in [comparison_table(records), *([settings_table(records)] if settings else [])]:
        if len(records) > MOST_COLUMNS:
            grid = grid.transposed("run")
        if markdown:
            typer.echo(grid.markdown())
        else:
            out.print(grid)


def _merge(over: str | None, records: list[Run]) -> list[Run]:
    """The runs as they are, or those that differ in the seed alone as one."""
    from zofc.report import over_seeds

    if over is None:
        return records
    if over != "seed":
        raise typer.BadParameter(f"--over: runs can be averaged over their seed only, got '{over}'")
    merged = over_seeds(records)
    if len(merged) == len(records):
        raise RunError("--over seed: no two of these runs are finished and differ in the seed alone")
    return merged


@app.command()
def report(
    paths: RunPaths,
    output: Annotated[Path, typer.Option("--output", "-o", help="The page to write.")] = Path(PAGE_FILE),
    over: OverSeed = None,
) -> None:
    """Write one self-contained HTML page about runs."""
    from zofc.report import over_seeds, write_report
    from zofc.runfolder import read_runs

    runs = read_runs(paths, warn)
    write_report(_merge(over, runs), output)
    if over is None and len(over_seeds(runs)) < len(runs):
        err.print("Some of these runs differ in the seed alone: --over seed shows them as one.", style="dim")
    say(f"report: {output}")


@app.command()
def watch(
    path: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder, or a folder of them: the newest.")],
    once: Annotated[bool, typer.Option("--once", help="Print its present state and stop.")] = False,
) -> None:
    """Follow a run that another process trains, from before it begins until it is over; nothing is written.

    Ends with status 0 if the run is finished, 1 if it was interrupted or killed; with --once, 0 if there is a run.
    """
    from zofc.report.watch import watch_run

    if not watch_run(path, out, once):
        raise typer.Exit(1)
