"""`zofc diagnose`, `cost` and `flatness`: measure a recipe or a run without training it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from zofc.cli.application import (
    JsonOutput,
    PluginFiles,
    RecipeWords,
    RunPath,
    TaskNumber,
    app,
    check_writable,
    load_one_recipe,
    out,
    progress,
    say,
    write_result,
)

if TYPE_CHECKING:
    from zofc.analysis.run_flatness import FlatnessSettings
    from zofc.recipe import Recipe
    from zofc.report.draw_matplotlib import Panel


@app.command()
def diagnose(
    words: RecipeWords,
    task: TaskNumber = 1,
    batches: Annotated[int, typer.Option(min=1, help="How many training batches to measure.")] = 3,
    queries: Annotated[str, typer.Option(help="Numbers of queries to compare.")] = "1,2,4,8,16,32,64",
    output: JsonOutput = None,
    plugin: PluginFiles = None,
) -> None:
    """Measure why training of a recipe does or does not converge, before anything is trained."""
    from zofc.analysis import diagnose
    from zofc.report.measurements import diagnosis_tables

    counts = queries.split(",")
    if not all(word.strip().isdecimal() and int(word) for word in counts):
        raise typer.BadParameter(f"--queries: expected positive numbers such as 1,4,16, got '{queries}'")
    recipe = load_one_recipe(words)
    check_writable(output)
    with progress("reading the recipe") as on_progress:
        result = diagnose(recipe, task, batches, [int(word) for word in counts], on_progress).as_json()
    for part in diagnosis_tables(result):
        out.print(part, highlight=False)
    write_result(output, result)


@app.command()
def cost(
    words: RecipeWords,
    task: TaskNumber = 1,
    steps: Annotated[int, typer.Option(min=1, help="How many steps to time, after a warm-up.")] = 5,
    output: JsonOutput = None,
    plugin: PluginFiles = None,
) -> None:
    """Measure memory, seconds and operations of a recipe's steps, beside the paper's formulas.

    On its model and one of its batches; operations are multiply–adds.
    """
    from zofc.analysis.cost import measure_cost
    from zofc.report.measurements import cost_tables

    recipe = load_one_recipe(words)
    check_writable(output)
    with progress("reading the recipe") as on_progress:
        result = asdict(measure_cost(recipe, steps, task, on_progress))
    for part in cost_tables(result):
        out.print(part, highlight=False)
    write_result(output, result)


@app.command()
def flatness(
    path: RunPath,
    over: Annotated[
        str | None, typer.Option(help="peft, head or peft+head; by default peft alone and with the head.")
    ] = None,
    rho: Annotated[float, typer.Option(help="Radius ρ of the score Φ.")] = 0.005,
    images: Annotated[int, typer.Option(min=1, help="Images per class, at most.")] = 20,
    split: Annotated[str, typer.Option(help="Which images: test, or train; both in the test view.")] = "test",
    rows: Annotated[
        str, typer.Option(help="Softmax over a task's own rows (own), or over all learned by then (all).")
    ] = "own",
    directions: Annotated[int, typer.Option(min=1, help="Random directions, of either norm.")] = 20,
    probes: Annotated[int, typer.Option(min=1, help="Directions for the Hessian's trace and the smoothed loss.")] = 8,
    products: Annotated[int, typer.Option(min=1, help="Hessian products for its largest eigenvalue, at most.")] = 30,
    batch: Annotated[int, typer.Option(min=1, help="Images at a time: memory, not the result.")] = 16,
    every: Annotated[int, typer.Option(min=1, help="Measure after every so many tasks, not after each.")] = 1,
    landscape: Annotated[Path | None, typer.Option(help="Also draw the loss between the states (PNG).")] = None,
    random: Annotated[
        bool, typer.Option("--random", help="Draw its plane along random directions, not through three states.")
    ] = False,
    resolution: Annotated[int, typer.Option(min=3, help="Points along each side of the plane.")] = 21,
    along: Annotated[
        int | None,
        typer.Option(metavar="STEPS", min=1, help="Measure inside of tasks: so many steps of each, by the journal."),
    ] = None,
    figure: Annotated[Path | None, typer.Option(help="With --along: draw the curves (PNG).")] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu or cuda; the recipe's by default.")] = None,
    plugin: PluginFiles = None,
) -> None:
    """How flat the loss of old tasks is after each task, its curvature, and what of forgetting that explains.

    For a run with training.keep_tasks=true or, with --along, with a journal, from which the adapter is replayed at
    steps inside of its tasks. The loss is the mean over the images of all old tasks, where the paper writes the sum
    over tasks. All in float64; the result is also written to the run folder.
    """
    from zofc.analysis.run_flatness import FlatnessSettings

    settings = FlatnessSettings(
        over=(over,) if over else (), rho=rho, images=images, split=cast(Any, split), rows=cast(Any, rows),
        directions=directions, probes=probes, products=products, batch=batch, every=every,
    )  # fmt: skip
    check_writable(landscape)
    check_writable(figure)
    if along is not None:
        _flatness_along(path, settings, along, device, figure, (landscape, resolution))
        return
    if figure is not None:
        raise typer.BadParameter("--figure draws curves inside of tasks: say how many steps, --along STEPS")
    _flatness_after(path, settings, device, (landscape, resolution), random)


def _flatness_after(
    path: Path, settings: FlatnessSettings, device: str | None, landscape: tuple[Path | None, int], random: bool
) -> None:
    """Measure the states after tasks."""
    from zofc.analysis.kept_run import KeptRun
    from zofc.analysis.landscape import of_run
    from zofc.analysis.run_flatness import all_sets, measure_flatness
    from zofc.report.figures import loss_landscape
    from zofc.report.measurements import flatness_tables

    with progress("opening the run") as on_progress:
        notices: list[str] = []
        run = KeptRun(path, device, notices.append)
        measured = measure_flatness(run, settings, notices, on_progress)
        written = run.folder.write_measurement("flatness", asdict(measured))
    verdicts = {name: measured.verdict(name) for name in measured.by_set}
    for part in flatness_tables(asdict(measured), verdicts):
        out.print(part, highlight=False)
    say(f"written: {written}")
    if landscape[0] is not None:
        chosen = settings.over[0] if settings.over else all_sets(run)[-1]
        with progress("drawing") as on_progress:
            line, plane = of_run(run, settings, chosen, not random, landscape[1], on_progress)
            _draw(
                landscape[0],
                loss_landscape(asdict(line), asdict(plane)),
                run.recipe,
                f"loss over {chosen}, {settings.rows} rows",
            )


def _flatness_along(
    path: Path, settings: FlatnessSettings, along: int, device: str | None, figure: Path | None,
    landscape: tuple[Path | None, int],
) -> None:  # fmt: skip
    """Measure inside of the tasks of a run, print, write and draw."""
    from zofc.analysis.task_path import ReplayedRun, landscape_inside, measure_path
    from zofc.report.figures import flatness_along, loss_surface
    from zofc.report.measurements import path_tables

    with progress("opening the run") as on_progress:
        notices: list[str] = []
        run = ReplayedRun(path, device, notices.append)
        measured = measure_path(run, settings, along, notices, on_progress)
        written = run.folder.write_measurement("flatness-along", asdict(measured))
    for part in path_tables(asdict(measured)):
        out.print(part, highlight=False)
    say(f"written: {written}")
    name, points = next(iter(asdict(measured)["by_set"].items()))
    if figure is not None:
        _draw(figure, flatness_along(points), run.recipe, f"along the steps, over {name}")
    plane_file, resolution = landscape
    if plane_file is not None:
        with progress("drawing") as on_progress:
            planes = landscape_inside(run, settings, along, resolution, on_progress)
        _draw(plane_file, [loss_surface(asdict(plane)) for plane in planes], run.recipe, f"loss over {name}")


def _draw(path: Path, panels: Sequence[Panel], recipe: Recipe, what: str) -> None:
    from zofc.report import draw_matplotlib
    from zofc.runfolder import write_atomic

    figure = draw_matplotlib.pictures(panels, f"{recipe.title or recipe.name}: {what}")
    write_atomic(path, draw_matplotlib.encode(figure, "png"))
    say(f"written: {path}")
