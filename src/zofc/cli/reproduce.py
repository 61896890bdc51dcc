"""`zofc reproduce`: the paper's tables and figures, ours beside the paper's."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from zofc.cli.application import app, out
from zofc.errors import Interrupted, RecipeError, nearest

if TYPE_CHECKING:
    from zofc.studies.cells import Cell
    from zofc.studies.reproduce import Plan

FIRST_SEED = 1993


@app.command()
def reproduce(
    study: Annotated[
        list[str],
        typer.Argument(
            help="tables or figures of the paper (zofc list studies), or all; and key=value for every recipe"
        ),
    ],
    scale: Annotated[str, typer.Option(help="paper, small or tiny")] = "paper",
    dataset: Annotated[
        list[str] | None,
        typer.Option(help="cifar100, imagenet-r, domainnet (the paper's, by default); caltech101, pacs"),
    ] = None,
    fast: Annotated[bool, typer.Option("--fast", help="forward gradients in bf16 in place of differences")] = False,
    seeds: Annotated[int, typer.Option(min=1, help="how many, from 1993 on")] = 1,
    workers: Annotated[
        int | None, typer.Option(min=1, help="runs at a time; by default 1, or as many as a cluster has room for")
    ] = None,
    on: Annotated[
        str,
        typer.Option(help="where: local; ray (the cluster of this machine, or one of its own); ray://HOST:PORT"),
    ] = "local",
    runs: Annotated[Path, typer.Option(help="where the runs are kept, and found again")] = Path("runs/studies"),
    output: Annotated[Path, typer.Option(help="tables and figures go below it, to SCALE/STUDY")] = Path("studies"),
    dry_run: Annotated[bool, typer.Option("--dry-run", help="show the plan and how long it will take")] = False,
) -> None:
    """Run tables or figures of the paper: their runs and measurements, then the tables, ours beside the paper's.

    Each run is made once, however many tables share it. Finished runs are not repeated, so the command can be stopped
    and started again at any time. Times are measured one run at a time, however many workers there are. Ends with
    status 1 if a run failed; the others go on.
    """
    from zofc.studies.places import get_place
    from zofc.studies.pool import STOPPED
    from zofc.studies.reproduce import output_folder, run_plan

    plan = _plan(study, scale, fast, tuple(dataset or ()), seeds, runs)
    place = get_place(on, workers, out.print)
    out.print(f"{plan.standing()}; scale {scale}: {plan.scale.says}")
    if dry_run:
        _print_plan(plan.open(), workers or 1)
        return
    try:
        grids = run_plan(plan, output, place, out.print)
    except KeyboardInterrupt:  # between two runs
        raise Interrupted(STOPPED) from None
    for grid in grids.values():
        out.print()
        out.print(grid)
    out.print(f"\ntables and figures are in {output_folder(output, plan.scale)}")
    if any(grid.warnings for grid in grids.values()):
        raise typer.Exit(1)


def _plan(words: list[str], scale: str, fast: bool, dataset: tuple[str, ...], seeds: int, runs: Path) -> Plan:
    """The studies that the words name, with the changes among them."""
    from zofc.studies.catalogue import STUDIES, get_study
    from zofc.studies.reproduce import Plan, studies_on
    from zofc.studies.scale import get_scale
    from zofc.studies.settings import DATASETS, PAPERS

    names, changes = [word for word in words if "=" not in word], tuple(word for word in words if "=" in word)
    if not names:
        raise RecipeError("which table or figure? Give its name (zofc list studies), or all")
    named = [tuple(STUDIES.values()) if name == "all" else (get_study(name),) for name in dict.fromkeys(names)]
    datasets = dataset or tuple(PAPERS)
    for name in datasets:
        if name not in DATASETS:
            raise RecipeError(f"--dataset: unknown data set '{name}'{nearest(name, DATASETS)}")
    at = get_scale(scale).faster() if fast else get_scale(scale)
    chosen = tuple(dict.fromkeys(one for some in named for one in studies_on(some, datasets)))
    return Plan(chosen, at, tuple(range(FIRST_SEED, FIRST_SEED + seeds)), datasets, changes, runs)


def _print_plan(cells: dict[str, Cell], workers: int) -> None:
    """List unfinished and refused cells and the time that the others take; status 1 if none of them can be run."""
    from zofc.studies.forecast import forecast
    from zofc.studies.tables import describe_reasons
    from zofc.units import format_duration

    rows = [[str(cell.labels[key]) for key in ("line", "setting", "seed")] for cell in cells.values()]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for name, row in zip(cells, rows, strict=True):
        line, setting, seed = (word.ljust(width) for word, width in zip(row, widths, strict=True))
        out.print(Text.assemble(f"  {line}  {setting}  seed {seed}  ", (name, "dim")), soft_wrap=True)
    estimate = forecast(list(cells.values()), workers)
    if estimate.seconds or not (estimate.unknown or estimate.refused):
        alone = "; what is timed has the machine for itself" * any(cell.job.alone for cell in cells.values())
        out.print(f"about {format_duration(estimate.seconds)} here with {workers} at a time{alone}")
    for heading, reasons in (("would be refused", estimate.refused), ("not estimated", estimate.unknown)):
        for text in describe_reasons(reasons):
            out.print(Text.assemble((f"{heading}:", "yellow"), f" {text}"), soft_wrap=True)
    if cells and len(cells) == sum(map(len, estimate.refused.values())):
        raise typer.Exit(1)
