"""The command line: parses, calls, prints. All work is done in the rooms below."""

from __future__ import annotations

import inspect
import io
import json
import os
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from zofc.errors import Interrupted, RecipeError, RunError, ZofcError, nearest

if TYPE_CHECKING:
    from zofc.analysis import Diagnosis
    from zofc.analysis.cost import Cost
    from zofc.analysis.curvature import Spectrum
    from zofc.analysis.run_flatness import RunFlatness, TaskFlatness
    from zofc.recipe import Recipe
    from zofc.report.runs import RunRecord
    from zofc.report.tables import Grid
    from zofc.studies.grid import Cell

DEFAULT_PAIR = ("demo/zofc", "demo/first-order")
BESIDE = 6  # runs that `compare` shows side by side; more of them stand one below another
app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Class-incremental learning on a frozen vision transformer, first-order or zeroth-order by choice.",
)


class SafeConsole(Console):
    """A console that shows words as they are, and is silent once nobody reads any more."""

    def on_broken_pipe(self) -> None:
        self.quiet = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), self.file.fileno())  # for what is still to be flushed


out = SafeConsole(emoji=False)
err = SafeConsole(stderr=True, emoji=False)

Runs = Annotated[Path, typer.Option("--runs", help="Folder that holds the run folders.")]
Listing = tuple[tuple[str, ...], Sequence[tuple[str, ...]]]  # headers and rows
RunPath = Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")]
OverSeed = Annotated[
    str | None, typer.Option(metavar="seed", help="Runs that differ in the seed alone as one: mean ± deviation.")
]


@app.command()
def run(
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="[RECIPE]... [KEY=VALUE]...", help="Recipes (names or files) and dotted overrides."),
    ] = None,
    resume: Annotated[Path | None, typer.Option(help="Continue the run in this folder.")] = None,
    again: Annotated[bool, typer.Option("--again", help="Run anew, even if the same run is there already.")] = False,
    show: Annotated[bool, typer.Option("--print", help="Print the resolved recipe and stop.")] = False,
    runs: Runs = Path("runs"),
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress, only the table.")] = False,
) -> None:
    """Run recipes; without one, ZO-FC beside its first-order twin on generated glyphs.

    The same recipe finds its run again: a finished one is shown, an unfinished one is continued.
    """
    from zofc.recipe import dump_recipe, load_recipe

    names = [word for word in words or [] if not _is_override(word)]
    overrides = [word for word in words or [] if _is_override(word)]
    if resume is not None and (len(names) > 1 or again):
        raise typer.BadParameter("--resume continues one run as it is: give one recipe or none, and no --again")
    if resume is not None:
        chosen = names or [str(resume / "recipe.yaml")]
        if not (resume / "recipe.yaml").is_file():
            raise RunError(f"{resume} is not a run folder (it has no recipe.yaml)")
    else:
        chosen = names or list(DEFAULT_PAIR)
    recipes = [load_recipe(name, overrides) for name in chosen]
    if show:
        for recipe in recipes:
            out.print(dump_recipe(recipe), markup=False, highlight=False, end="", soft_wrap=True)
        return

    from zofc.training.progress import Display
    from zofc.training.runs import data_changed, resume_run, start_run, train

    if resume is not None:
        folders = [resume_run(resume, recipes[0])]
    else:
        folders = [start_run(recipe, runs, again) for recipe in recipes]
    for folder in folders:
        if folder.finished and not quiet:
            _say(f"{folder} is finished already (run anew with --again)")
        for change in data_changed(folder) if folder.finished else ():
            err.print(f"[yellow]note[/]: {escape(change)}; --again trains anew", highlight=False, soft_wrap=True)
        train(folder, [Display(out, quiet)])
    _finish([folder.path for folder in folders], (resume or runs) / "report.html")
    for folder in folders:
        _say(f"run: {folder}")


def _is_override(word: str) -> bool:
    key, equals, _ = word.partition("=")
    return bool(equals) and "/" not in key and not key.endswith((".yaml", ".yml"))


def _say(text: str) -> None:
    """As it is, on one line: there may be a path in it to be copied."""
    out.print(text, highlight=False, markup=False, soft_wrap=True)


def _warn(text: str) -> None:
    err.print(f"Warning: {text}", style="yellow", highlight=False, markup=False, soft_wrap=True)


def _finish(paths: list[Path], page: Path) -> None:
    from zofc.report import read_runs, summary, write_report

    records = read_runs(paths)
    out.print(summary(records))
    write_report(records, page)
    _say(f"report: {page}")


@app.command("list")
def list_(
    what: Annotated[
        str, typer.Argument(help="recipes, methods, datasets, backbones, studies, or the settings of a recipe")
    ] = "recipes",
    pattern: Annotated[
        str, typer.Argument(help="Show only names (of settings: also descriptions) that contain this.")
    ] = "",
) -> None:
    """List what there is to choose from."""
    makers = {
        "recipes": _recipes,
        "methods": _methods,
        "datasets": _datasets,
        "backbones": _backbones,
        "studies": _studies,
    }
    if what == "settings":
        _print_settings(pattern)
        return
    if what not in makers:
        raise RecipeError(f"cannot list '{what}'{nearest(what, [*makers, 'settings'])}")
    headers, rows = _backbones(pattern) if what == "backbones" else makers[what]()
    rows = [row for row in rows if pattern.casefold() in row[0].casefold()]
    if not rows:
        raise RecipeError(f"none of the {what} has '{pattern}' in its name; without it, all are listed")
    table = Table(box=None, header_style="bold", pad_edge=False)
    for number, header in enumerate(headers):
        table.add_column(header, overflow="fold", no_wrap=(number == 0) != (what == "backbones"))
    for row in rows:
        table.add_row(*row)
    out.print(table)


def _print_settings(pattern: str) -> None:
    """A setting a paragraph: name, values and default on its first line, what it means below."""
    from zofc.recipe.settings import list_settings

    chosen = [setting for setting in list_settings() if setting.matches(pattern)]
    if not chosen:
        raise RecipeError(f"no setting has '{pattern}' in its name or description; without it, all are listed")
    for setting in chosen:
        values = f"{setting.values}; default {setting.default}"
        out.print(f"[bold]{setting.key}[/]  {escape(values)}", highlight=False)
        below = textwrap.fill(setting.description, out.width, initial_indent=" " * 4, subsequent_indent=" " * 4)
        out.print(below, highlight=False, markup=False, soft_wrap=True)


def _recipes() -> Listing:
    from zofc.recipe import Group, load_recipe, recipe_names

    def plan(group: Group | None) -> str:
        if group is None:
            return ""
        optimizer = "" if group.optimizer == "sgd" else f"{group.optimizer} "
        return f"{'ZO' if group.order == 'zeroth' else 'FO'} {optimizer}{group.lr:.4g} ×{group.epochs}"

    rows = []
    for name in recipe_names():
        recipe = load_recipe(name)
        table = recipe.paper.table if recipe.paper else ""
        rows.append((name, plan(recipe.optimize.get("peft")), plan(recipe.optimize.get("head")), table))
    return ("recipe", "adapter, prompts: lr ×epochs", "classifier", "paper's table"), rows


def _methods() -> Listing:
    from zofc.methods import METHODS

    rows = [
        (name, ", ".join(cls.group_names) or "none", (cls.__doc__ or "").splitlines()[0])
        for name, cls in sorted(METHODS.items())
    ]
    return ("method", "groups", "what it is"), rows


def _datasets() -> Listing:
    from zofc.data import describe_sources

    return ("data.source", "what it is"), sorted(describe_sources().items())


def _backbones(text: str = "") -> Listing:
    from zofc.model.catalog import backbones

    rows = []
    for entry in backbones(text):
        vit = entry.backbone
        numbers = (vit.image_size, vit.tokens, vit.width, f"{vit.parameters / 1e6:.1f} M") if vit else ("–",) * 4
        rows.append((entry.name, *map(str, numbers), entry.weights))
    return ("backbone.name", "px", "tokens", "width", "parameters", "weights"), rows


def _studies() -> Listing:
    from zofc.studies.catalogue import STUDIES

    rows = [(study.name, study.title, ", ".join(study.settings)) for study in STUDIES.values()]
    return ("study", "what it shows", "data"), rows


@app.command()
def show(path: RunPath) -> None:
    """One run: settings, accuracy after each task, metrics and cost. Of a saved model, its tasks and classes."""
    from zofc.report import compare, read_runs, show

    (record,) = read_runs([path])[:1]
    matrix = show(record)
    out.print(matrix)
    if not record.saved:
        side = compare([record])
        out.print(replace(side, warnings=tuple(text for text in side.warnings if text not in matrix.warnings)))


@app.command()
def compare(
    paths: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run folders, or folders of run folders.")],
    settings: Annotated[bool, typer.Option("--settings", help="Also list the settings in which they differ.")] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown.")] = False,
    over: OverSeed = None,
) -> None:
    """Runs side by side, or one below another if there are many, beside the paper's numbers.

    A run below a folder that cannot be read is left out with a warning.
    """
    from zofc.report import compare, differences, read_runs

    records = _together(over, read_runs(paths, _warn))
    for grid in [compare(records), *([differences(records)] if settings else [])]:
        if len(records) > BESIDE:
            grid = grid.turned("run")
        if markdown:
            typer.echo(grid.markdown())
        else:
            out.print(grid)


def _together(over: str | None, records: list[RunRecord]) -> list[RunRecord]:
    """The runs as they are, or those that differ in the seed alone as one."""
    from zofc.report import over_seeds

    if over is None:
        return records
    if over != "seed":
        raise typer.BadParameter(f"--over: runs are put together over their seed, got '{over}'")
    together = over_seeds(records)
    if len(together) == len(records):
        raise RunError("--over seed: no two of these runs are finished and differ in the seed alone")
    return together


@app.command()
def report(
    paths: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run folders, or folders of run folders.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The page to write.")] = Path("report.html"),
    over: OverSeed = None,
) -> None:
    """Write one self-contained HTML page about runs."""
    from zofc.report import over_seeds, read_runs, write_report

    runs = read_runs(paths, _warn)
    records = _together(over, runs)
    write_report(records, output)
    if over is None and len(over_seeds(runs)) < len(runs):
        err.print("Some of these runs differ in the seed alone: --over seed shows them as one.", style="dim")
    out.print(f"report: {output}", highlight=False, soft_wrap=True)


@app.command()
def predict(
    path: RunPath,
    images: Annotated[list[Path], typer.Argument(metavar="IMAGE...", help="Image files, or folders of them.")],
    top: Annotated[int, typer.Option(min=1, help="How many classes to name.")] = 3,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object an image.")] = False,
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda or mps; the recipe's by default.")] = None,
) -> None:
    """Name the most likely classes of image files; those that cannot be read are named, and the status is then 2."""
    from zofc.learner import load

    learner = load(path, device)
    sound, faults = _readable(images)
    for fault in faults:
        _tell(fault)
    for image, best in zip(sound, learner.predict(sound, top), strict=True):
        if as_json:
            classes = [{"name": one.name, "probability": one.probability} for one in best]
            typer.echo(json.dumps({"image": str(image), "classes": classes}, ensure_ascii=False))
        else:
            named = ", ".join(f"{one.name} {100 * one.probability:.1f} %" for one in best)
            out.print(f"{image}: {named}", highlight=False, markup=False, soft_wrap=True)
    if faults:
        raise typer.Exit(faults[0].exit_code)


def _readable(given: list[Path]) -> tuple[list[Path], list[ZofcError]]:
    """The image files among what was given, those in folders too, and what is wrong with the others."""
    from zofc.data import EncodedImages
    from zofc.data.decoding import find_faults
    from zofc.data.folder import images_in

    files: list[Path] = []
    wrong: list[ZofcError] = []
    for path in given:
        try:
            files += images_in(path) if path.is_dir() else [path]
        except ZofcError as error:
            wrong.append(error)
    faults = find_faults(EncodedImages(files, [str(file) for file in files]))
    sound = [file for file, fault in zip(files, faults, strict=True) if fault is None]
    return sound, [*wrong, *(fault for fault in faults if fault is not None)]


@app.command()
def learn(
    path: RunPath,
    data: Annotated[str, typer.Argument(help="A source of new classes, e.g. folder:PATH.")],
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Folder of the extended run.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress, only the table.")] = False,
) -> None:
    """Teach a finished run new classes; the result is a new run folder, the old one stays as it is."""
    from zofc.training.progress import Display
    from zofc.training.runs import extend_run, train

    folder = extend_run(path, data, output)
    train(folder, [Display(out, quiet)])
    _finish([folder.path], folder.path / "report.html")
    _say(f"extended run: {folder}")


@app.command()
def evaluate(
    path: RunPath,
    data: Annotated[str, typer.Argument(help="A source whose classes were learned, e.g. folder:PATH.")],
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Also write the result as JSON.")] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda or mps; the recipe's by default.")] = None,
    learned_only: Annotated[
        bool, typer.Option("--learned-only", help="Leave out classes that were never learned.")
    ] = False,
) -> None:
    """Accuracy per class of a run on other images, and the classes that it confuses most.

    --output has the whole confusion matrix.
    """
    from zofc.learner import load

    _ready(output)
    result = load(path, device).evaluate(data, learned_only)
    table = Table(
        "class", "images", "accuracy %", "most often taken for", box=None, header_style="bold", pad_edge=False
    )
    for name, accuracy in result.per_class.items():
        index = result.classes.index(name)
        row = result.confusion[index].copy()
        row[index] = 0
        other = f"{result.classes[int(row.argmax())]} ({int(row.max())})" if row.any() else "–"
        table.add_row(escape(name), str(int(result.confusion[index].sum())), f"{accuracy:.1f}", escape(other))
    out.print(table)
    out.print(f"all images: {result.accuracy:.2f} %", highlight=False)
    if result.left_out:
        text = f"left out, never learned: {', '.join(result.left_out)}"
        out.print(text, highlight=False, markup=False, soft_wrap=True)
    if pairs := result.confused():
        table = Table("most confused", "taken for", "images", box=None, header_style="bold", pad_edge=False)
        for true, guess, count in pairs:
            table.add_row(escape(true), f"→ {escape(guess)}", str(count))
        out.print()
        out.print(table)
    if output is not None:
        found: dict[str, Any] = {
            "accuracy": result.accuracy,
            "per_class": result.per_class,
            "classes": list(result.classes),
            "confusion": result.confusion.tolist(),
            "left_out": list(result.left_out),
        }
        _write_json(output, found)


@app.command()
def diagnose(
    words: Annotated[
        list[str], typer.Argument(metavar="RECIPE [KEY=VALUE]...", help="A recipe (name or file) and dotted overrides.")
    ],
    task: Annotated[int, typer.Option(min=1, help="At the start of which task; those before are not trained.")] = 1,
    batches: Annotated[int, typer.Option(min=1, help="How many training batches to measure.")] = 3,
    queries: Annotated[str, typer.Option(help="Numbers of queries to compare.")] = "1,2,4,8,16,32,64",
    output: Annotated[Path | None, typer.Option("--json", help="Also write the result as JSON.")] = None,
) -> None:
    """Measure why zeroth-order training of a recipe does or does not converge, before anything is trained."""
    from zofc.analysis import diagnose

    counts = queries.split(",")
    if not all(word.strip().isdecimal() and int(word) for word in counts):
        raise typer.BadParameter(f"--queries: expected positive numbers such as 1,4,16, got '{queries}'")
    recipe = _one_recipe(words)
    _ready(output)
    with err.status("reading the recipe") as status:
        found = diagnose(recipe, task, batches, [int(word) for word in counts], lambda text: status.update(Text(text)))
    _print_diagnosis(found)
    if output is not None:
        _write_json(output, found.as_json())


def _one_recipe(words: list[str]) -> Recipe:
    from zofc.recipe import load_recipe

    names = [word for word in words if not _is_override(word)]
    if len(names) != 1:
        raise typer.BadParameter("give one recipe, and overrides as key=value")
    return load_recipe(names[0], [word for word in words if _is_override(word)])


def _ready(output: Path | None) -> None:
    """Where a result cannot be written, that is said before any work."""
    from zofc.training.folder import ready_to_write

    if output is not None:
        ready_to_write(output)


def _write_json(path: Path, found: object) -> None:
    from zofc.training.folder import write_atomic

    write_atomic(path, json.dumps(found, ensure_ascii=False, indent=1, allow_nan=False) + "\n")
    _say(f"written: {path}")


def _print_diagnosis(found: Diagnosis) -> None:
    where = f"start of task {found.task} of {found.tasks}, nothing trained; {found.precision} on {found.device}"
    seen = f"{found.batches} batches of {found.batch_size}"
    out.print(f"[bold]{escape(found.recipe)}[/]: {where}; {seen}", highlight=False, soft_wrap=True)
    for notice in found.notices:
        out.print(f"note: {notice}", highlight=False, markup=False, soft_wrap=True)
    if found.refusal is not None:
        out.print("[yellow]A run of this recipe would be refused:[/]", escape(found.refusal), highlight=False)
    for one in found.sets:
        title = f"{one.name}: {one.estimator}, {one.queries} queries, {one.directions} directions"
        table = Table(title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD, pad_edge=False)
        for header, ratio in (("", None), ("measured", 2), ("what it means", 3)):
            table.add_column(header, ratio=ratio, overflow="fold", no_wrap=ratio is None)
        for line in one.lines:
            table.add_row(escape(line.what), escape(line.measured), escape(line.verdict))
        out.print(table, highlight=False)
        curve = Table("Q", "cosine to the gradient", "in theory, √(Q/(Q+d−1))", box=SIMPLE_HEAD, pad_edge=False)
        for point in one.alignments:
            mark = " (the recipe's)" if point.queries == one.queries else ""
            curve.add_row(f"{point.queries}{mark}", f"{point.cosine:.4f}", f"{point.theory:.4f}")
        out.print(curve)


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
    device: Annotated[str | None, typer.Option(help="auto, cpu or cuda; the recipe's by default.")] = None,
) -> None:
    """How flat the loss of old tasks is after each task, its curvature, and what of forgetting that explains.

    For a run with training.keep_tasks=true. The loss is the mean over the images of all old tasks, where the paper
    writes the sum over tasks. All in float64; the result is also written to RUN/flatness.json.
    """
    from zofc.analysis.kept_run import KeptRun
    from zofc.analysis.landscape import draw, of_run
    from zofc.analysis.run_flatness import Settings, all_sets, measure

    settings = Settings(
        over=(over,) if over else (), rho=rho, images=images, split=cast(Any, split), rows=cast(Any, rows),
        directions=directions, probes=probes, products=products, batch=batch, every=every,
    )  # fmt: skip
    _ready(landscape)
    with err.status("opening the run") as status:
        notices: list[str] = []
        run = KeptRun(path, device, notices.append)
        found = measure(run, settings, notices, lambda text: status.update(Text(text)))
        with run.folder.locked():
            run.folder.write_json("flatness.json", found.as_json())
    _print_flatness(found)
    _say(f"written: {path / 'flatness.json'}")
    if landscape is not None:
        with err.status("drawing") as status:
            chosen = over or all_sets(run)[-1]
            slices = of_run(run, settings, chosen, not random, resolution, lambda text: status.update(Text(text)))
            draw(*slices, landscape, f"{run.recipe.title or run.recipe.name}: loss over {chosen}, {rows} rows")
        _say(f"written: {landscape}")


def _eigenvalue(found: Spectrum) -> str:
    return f"{'' if found.converged else '≥ '}{found.largest:.3g}"


def _print_flatness(found: RunFlatness) -> None:
    settings = found.settings
    for notice in found.notices:
        _say(f"note: {notice}")
    counted = f"{sum(found.images.values())} {settings.split} images, softmax over {settings.rows} rows, float64"
    for name, entries in found.by_set.items():
        out.print(f"\n[bold]over {name}[/]: old tasks (the one just learned apart), {counted}", highlight=False)
        out.print(_states(entries, settings.rho))
        if any(entry.forgetting for entry in entries):
            out.print()
            out.print(_steps(entries, name))
        if verdict := found.verdict(name):
            _say(verdict)
        if entries and entries[-1].smoothed:
            out.print()
            out.print(_smoothing(entries[-1]))


def _states(entries: Sequence[TaskFlatness], rho: float) -> Grid:
    """A column after each task: scores and curvature."""
    from zofc.report.tables import Grid

    headers = ("after", "L old", f"Φ, ρ={rho:g}", "random ℓ2 mean", "random ℓ2 max", "random ℓ∞ mean", "random ℓ∞ max",
               "λ max", "trace H", "L just learned", "its Φ")  # fmt: skip
    rows = []
    for entry in entries:
        cells = ["–"] * 8
        if entry.old is not None and entry.spectrum is not None and entry.trace is not None:
            cells = [f"{entry.old.loss:.4g}", f"{entry.old.score:.3g}"]
            cells += [f"{value:.2g}" for one in entry.random for value in (one.mean, one.max)]
            cells += [_eigenvalue(entry.spectrum), f"{entry.trace.mean:.3g} ± {entry.trace.error:.1g}"]
        rows.append((f"task {entry.task}", *cells, f"{entry.last.loss:.4g}", f"{entry.last.score:.3g}"))
    return Grid(headers, tuple(rows)).turned("after")


def _steps(entries: Sequence[TaskFlatness], name: str) -> Grid:
    """A column for each step to a next task: what was forgotten, and its expansion."""
    from zofc.report.tables import Grid

    headers = ("", "F in all", f"F by {name}", "gᵀΔθ", "½ΔθᵀHΔθ", "rest", "½λ‖Δθ‖²", "‖Δθ‖", "λ max")
    rows = []
    for entry in entries:
        if (step := entry.forgetting) is not None:
            one = step.over
            values = (step.whole, one.change, one.first, one.second, one.rest, one.bound, one.distance)
            cells = (*(f"{value:.3g}" for value in values), _eigenvalue(step.spectrum))
            rows.append((f"task {entry.task} → {entry.task + 1}", *cells))
    return Grid(headers, tuple(rows)).turned("forgetting")


def _smoothing(entry: TaskFlatness) -> Grid:
    """A row for each length of the smoothing."""
    from zofc.report.tables import Grid

    rows = tuple(
        (f"task {entry.task}, ε={line.epsilon:g}", f"{line.increase:.3g} ± {line.increase_error:.1g}",
         f"{line.expansion:.3g}", f"{line.rest:.2g} ± {line.rest_error:.1g}")
        for line in entry.smoothed
    )  # fmt: skip
    return Grid(("smoothed", "L_ε − L", "ε²/2 trace H", "rest"), rows)


@app.command()
def cost(
    words: Annotated[
        list[str], typer.Argument(metavar="RECIPE [KEY=VALUE]...", help="A recipe (name or file) and dotted overrides.")
    ],
    task: Annotated[int, typer.Option(min=1, help="At the start of which task; those before are not trained.")] = 1,
    steps: Annotated[int, typer.Option(min=1, help="How many steps to time, after a warm-up.")] = 5,
    output: Annotated[Path | None, typer.Option("--json", help="Also write the result as JSON.")] = None,
) -> None:
    """Measure memory, seconds and operations of a recipe's steps, beside the paper's formulas.

    On its model and one of its batches; operations are multiply–adds.
    """
    from zofc.analysis.cost import cost

    recipe = _one_recipe(words)
    _ready(output)
    with err.status("reading the recipe") as status:
        found = cost(recipe, steps, task, lambda text: status.update(Text(text)))
    _print_cost(found)
    if output is not None:
        _write_json(output, found.as_json())


def _print_cost(found: Cost) -> None:
    where = f"task {found.task} of {found.tasks}, a batch of {found.batch_size}; {found.precision} on {found.device}"
    out.print(f"[bold]{escape(found.recipe)}[/]: {where}", highlight=False, soft_wrap=True)
    for notice in found.notices:
        out.print(f"note: {notice}", highlight=False, markup=False, soft_wrap=True)
    memory, moving = found.memory, found.parameters.moving
    groups = ", ".join(f"{name} {size:,}" for name, size in moving.items()) or "none"
    table = Table(box=None, show_header=False, pad_edge=False)
    for row in (
        ("parameters", f"{found.parameters.frozen:,} frozen; moving: {groups}"),
        ("resident", f"{_size(memory.resident)}, of which {_size(memory.weights)} the backbone"),
        ("evaluation", f"{_size(memory.evaluation)} at most; {_seconds(found.evaluation_seconds)} an image, "
                       f"{found.eval_batch_size} at a time"),
        ("process", f"{_size(memory.rss)} before the first step, {_size(memory.rss_peak)} at most in steps (rss)"),
        ("making a batch", _seconds(found.loading_seconds)),
    ):  # fmt: skip
        table.add_row(*row)
    out.print(table, highlight=False)

    rows = [["seconds"], ["seconds of an epoch"], ["most memory"], ["multiply–adds"], ["in plain forwards"],
            ["the paper's formula"], ["over ours"]]  # fmt: skip
    forward, table = found.forward, Table("", "an image answered", box=SIMPLE_HEAD, pad_edge=False)
    columns = [[_seconds(found.evaluation_seconds), "", _size(memory.evaluation), f"{forward.evaluation:.4g}",
                f"{forward.evaluation / forward.backbone:.3g}", f"{forward.formula:.4g}",
                f"{forward.formula / forward.evaluation:.2f}"]]  # fmt: skip
    for one in found.phases:
        table.add_column(f"a step: {', '.join(one.groups)} ({one.epochs} epochs)", overflow="fold")
        formula = None if one.formula is None else one.formula.total
        columns.append([_seconds(one.step_seconds), _seconds(one.epoch_seconds), _size(one.peak),
                        f"{one.executed.total:.4g}", f"{one.forwards:.3g}", f"{formula:.4g}" if formula else "–",
                        f"{formula / one.executed.total:.2f}" if formula else "–"])  # fmt: skip
    for row, *values in zip(rows, *columns, strict=True):
        table.add_row(*row, *values)
    out.print(table, highlight=False)

    for one in found.phases:
        title = f"{', '.join(one.groups)}: "
        if one.formula is None:
            out.print(f"{title}the paper has no formula for a step of this kind", highlight=False, markup=False)
            continue
        table = Table(title=f"{title}{one.formula.text}, less what was executed", title_justify="left",
                      title_style="bold", box=None, show_header=False, pad_edge=False)  # fmt: skip
        table.add_column(justify="right", no_wrap=True)
        table.add_column(overflow="fold")
        for part in one.differences:
            table.add_row(f"{part.multiply_adds:+.4g}", escape(part.why))
        out.print(table, highlight=False)
    for sentence in found.conventions:
        out.print(f"note: {sentence}", highlight=False, markup=False, soft_wrap=True)


def _size(count: float) -> str:
    unit = next((power for power in (9, 6, 3) if count >= 10**power), 3)
    return f"{count / 10**unit:.3g} {'kMG'[unit // 3 - 1]}B" if count < 999.5 * 10**unit else f"{count / 1e9:.4g} GB"


def _seconds(value: float) -> str:
    return f"{value:.3g} s" if value >= 1 else f"{1000 * value:.3g} ms"


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
    workers: Annotated[int, typer.Option(min=1, help="runs at a time")] = 1,
    runs: Annotated[Path, typer.Option(help="where the runs are kept, and found again")] = Path("runs/studies"),
    output: Annotated[Path, typer.Option(help="tables and figures go below it, to SCALE/STUDY")] = Path("studies"),
    dry_run: Annotated[bool, typer.Option("--dry-run", help="show the plan and how long it will take")] = False,
) -> None:
    """Run tables or figures of the paper: their runs and measurements, then the tables, ours beside the paper's.

    Each run is made once, however many tables share it. What is finished is not done again, so it can be stopped and
    started at any moment. Times are measured with nothing beside them, however many workers there are. Ends with status
    1 if a run failed, which stops no other.
    """
    from zofc.studies import reproduce as studies
    from zofc.studies.catalogue import STUDIES, get_study
    from zofc.studies.pool import STOPPED
    from zofc.studies.scale import get_scale
    from zofc.studies.settings import DATASETS, PAPERS

    names, changes = [word for word in study if "=" not in word], tuple(word for word in study if "=" in word)
    if not names:
        raise RecipeError("which table or figure? Give its name (zofc list studies), or all")
    named = [tuple(STUDIES.values()) if name == "all" else (get_study(name),) for name in dict.fromkeys(names)]
    wanted = tuple(dataset or PAPERS)
    for name in wanted:
        if name not in DATASETS:
            raise RecipeError(f"--dataset: unknown data set '{name}'{nearest(name, DATASETS)}")
    numbers = tuple(range(1993, 1993 + seeds))
    at = get_scale(scale).faster() if fast else get_scale(scale)
    chosen = tuple(dict.fromkeys(one for some in named for one in studies.on(some, wanted)))
    plan = studies.Plan(chosen, at, numbers, wanted, changes, runs)
    out.print(f"{plan.standing()}; scale {scale}: {plan.scale.says}")
    if dry_run:
        _show_plan(plan.open(), workers)
        return
    try:
        grids = studies.run(plan, output, workers, lambda text: out.print(escape(text)))
    except KeyboardInterrupt:  # between two runs
        raise Interrupted(STOPPED) from None
    for grid in grids.values():
        out.print()
        out.print(grid)
    out.print(f"\ntables and figures are in {studies.place(output, at)}")
    if any(grid.warnings for grid in grids.values()):
        raise typer.Exit(1)


def _show_plan(left: dict[str, Cell], workers: int) -> None:
    """The cells that are left, those that would be refused, and how long the others take; status 1 if none of them can
    be run."""
    from zofc.report.tables import duration
    from zofc.studies.forecast import describe, forecast

    rows = [[str(cell.labels[key]) for key in ("line", "setting", "seed")] for cell in left.values()]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for name, row in zip(left, rows, strict=True):
        line, setting, seed = (word.ljust(width) for word, width in zip(row, widths, strict=True))
        out.print(f"  {escape(f'{line}  {setting}  seed {seed}')}  [dim]{name}[/]", highlight=False, soft_wrap=True)
    found = forecast(list(left.values()), workers)
    if found.seconds or not (found.unknown or found.refused):
        alone = "; what is timed has the machine for itself" * any(cell.work.alone for cell in left.values())
        out.print(f"about {duration(found.seconds)} here with {workers} at a time{alone}")
    for said, reasons in (("would be refused", found.refused), ("not estimated", found.unknown)):
        for text in describe(reasons):
            out.print(f"[yellow]{said}:[/] {escape(text)}", soft_wrap=True)
    if left and len(left) == sum(map(len, found.refused.values())):
        raise typer.Exit(1)


@app.command()
def watch(
    path: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder, or a folder of them: the newest.")],
    once: Annotated[bool, typer.Option("--once", help="Print where it stands now and stop.")] = False,
) -> None:
    """Follow a run that another process trains, from before it begins until it is over; nothing is written.

    Ends with status 0 if the run is finished, 1 if it was interrupted or killed; with --once, 0 if there is a run.
    """
    from zofc.report.watch import watch

    if not watch(path, out, once):
        raise typer.Exit(1)


@app.callback(invoke_without_command=True)
def _version(
    version: Annotated[bool, typer.Option("--version", help="Print the version and stop.")] = False,
) -> None:
    if version:
        import zofc

        typer.echo(zofc.__version__)
        raise typer.Exit


for _command in app.registered_commands:  # paragraphs as long as the terminal is wide, not as the source is
    _paragraphs = inspect.cleandoc((_command.callback and _command.callback.__doc__) or "").split("\n\n")
    _command.help = "\n\n".join(" ".join(text.split()) for text in _paragraphs)


def main() -> None:
    """Errors that the user can mend are told in words; anything else is a defect and shows its trace."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # where it is not UTF-8
    try:
        app()
    except ZofcError as error:
        _tell(error)
        raise SystemExit(error.exit_code) from None


def _tell(error: ZofcError) -> None:
    err.print(f"[bold red]zofc:[/] {escape(str(error))}", highlight=False, soft_wrap=True)
