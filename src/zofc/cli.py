"""The command line: parses, calls, prints. All work is done in the rooms below."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from zofc.errors import RecipeError, RunError, ZofcError, nearest

if TYPE_CHECKING:
    from zofc.analysis import Diagnosis

DEFAULT_PAIR = ("demo/zofc", "demo/first-order")
app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Class-incremental learning on a frozen vision transformer, first-order or zeroth-order by choice.",
)
out = Console()
err = Console(stderr=True)

Runs = Annotated[Path, typer.Option("--runs", help="Folder that holds the run folders.")]
Listing = tuple[tuple[str, ...], Sequence[tuple[str, ...]]]  # headers and rows
RunPath = Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")]


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
    from zofc.training.runs import resume_run, start_run, train

    if resume is not None:
        folders = [resume_run(resume, recipes[0])]
    else:
        folders = [start_run(recipe, runs, again) for recipe in recipes]
    for folder in folders:
        if folder.finished and not quiet:
            out.print(f"{folder} is finished already (run anew with --again)", highlight=False, soft_wrap=True)
        train(folder, [Display(out, quiet)])
    _finish([folder.path for folder in folders], (resume or runs) / "report.html")


def _is_override(word: str) -> bool:
    key, equals, _ = word.partition("=")
    return bool(equals) and "/" not in key and not key.endswith((".yaml", ".yml"))


def _finish(paths: list[Path], page: Path) -> None:
    from zofc.report import read_runs, summary, write_report

    records = read_runs(paths)
    out.print(summary(records))
    write_report(records, page)
    out.print(f"report: {page}", highlight=False, soft_wrap=True)


@app.command("list")
def list_(
    what: Annotated[str, typer.Argument(help="recipes, methods, datasets or backbones")] = "recipes",
    pattern: Annotated[str, typer.Argument(help="Show only names that contain this.")] = "",
) -> None:
    """List what there is to choose from."""
    makers = {"recipes": _recipes, "methods": _methods, "datasets": _datasets, "backbones": _backbones}
    if what not in makers:
        raise RecipeError(f"cannot list '{what}'{nearest(what, makers)}")
    headers, rows = makers[what]()
    table = Table(box=None, header_style="bold", pad_edge=False)
    for number, header in enumerate(headers):
        table.add_column(header, overflow="fold", no_wrap=number == 0)
    for row in rows:
        if pattern in row[0]:
            table.add_row(*row)
    out.print(table)


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


def _backbones() -> Listing:
    import timm

    rows: list[tuple[str, ...]] = [
        ("embedded", "part of this package: a small ViT pre-trained on generated characters")
    ]
    for name in timm.list_pretrained(["vit_*", "deit*"]):
        home = timm.model_entrypoint(name.partition(".")[0]).__module__
        if home.endswith(("vision_transformer", "deit")):
            rows.append((name, "timm, weights from the hub"))
    return ("backbone.name", "what it is"), rows


@app.command()
def show(path: RunPath) -> None:
    """One run: settings, accuracy after each task, metrics and cost."""
    from zofc.report import compare, read_runs, show

    (record,) = read_runs([path])[:1]
    out.print(show(record))
    out.print(compare([record]))


@app.command()
def compare(
    paths: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run folders, or folders of run folders.")],
    settings: Annotated[bool, typer.Option("--settings", help="Also list the settings in which they differ.")] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown.")] = False,
) -> None:
    """Runs side by side, with the paper's numbers where a recipe reproduces them."""
    from zofc.report import compare, differences, read_runs

    records = read_runs(paths)
    for grid in [compare(records), *([differences(records)] if settings else [])]:
        if markdown:
            typer.echo(grid.markdown())
        else:
            out.print(grid)


@app.command()
def report(
    paths: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run folders, or folders of run folders.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The page to write.")] = Path("report.html"),
) -> None:
    """Write one self-contained HTML page about runs."""
    from zofc.report import read_runs, write_report

    write_report(read_runs(paths), output)
    out.print(f"report: {output}", highlight=False, soft_wrap=True)


@app.command()
def predict(
    path: RunPath,
    images: Annotated[list[Path], typer.Argument(metavar="IMAGE...", help="Image files.")],
    top: Annotated[int, typer.Option(min=1, help="How many classes to name.")] = 3,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object an image.")] = False,
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda or mps; the recipe's by default.")] = None,
) -> None:
    """Name the most likely classes of image files."""
    from zofc.learner import load

    answers = load(path, device).predict(images, top)
    for image, best in zip(images, answers, strict=True):
        if as_json:
            classes = [{"name": one.name, "probability": one.probability} for one in best]
            typer.echo(json.dumps({"image": str(image), "classes": classes}, ensure_ascii=False))
        else:
            named = ", ".join(f"{one.name} {100 * one.probability:.1f} %" for one in best)
            out.print(f"{image}: {named}", highlight=False, markup=False, soft_wrap=True)


@app.command()
def learn(
    path: RunPath,
    data: Annotated[str, typer.Argument(help="A source of new classes, e.g. folder:PATH.")],
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Folder of the extended run.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q")] = False,
) -> None:
    """Teach a finished run new classes; the result is a new run folder, the old one stays as it is."""
    from zofc.training.progress import Display
    from zofc.training.runs import extend_run, train

    folder = extend_run(path, data, output)
    train(folder, [Display(out, quiet)])
    _finish([folder.path], folder.path / "report.html")
    out.print(f"extended run: {folder}", highlight=False, soft_wrap=True)


@app.command()
def evaluate(
    path: RunPath,
    data: Annotated[str, typer.Argument(help="A source whose classes were learned, e.g. folder:PATH.")],
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Also write the result as JSON.")] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda or mps; the recipe's by default.")] = None,
) -> None:
    """Accuracy per class and the confusion matrix of a run on other images."""
    from zofc.learner import load
    from zofc.training.folder import write_whole

    result = load(path, device).evaluate(data)
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
    if output is not None:
        found: dict[str, Any] = {
            "accuracy": result.accuracy,
            "per_class": result.per_class,
            "classes": list(result.classes),
            "confusion": result.confusion.tolist(),
        }
        write_whole(output, json.dumps(found, ensure_ascii=False, indent=1) + "\n")
        out.print(f"written: {output}", highlight=False, soft_wrap=True)


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
    from zofc.recipe import load_recipe
    from zofc.training.folder import write_whole

    names = [word for word in words if not _is_override(word)]
    if len(names) != 1:
        raise typer.BadParameter("give one recipe, and overrides as key=value")
    counts = queries.split(",")
    if not all(word.strip().isdecimal() and int(word) for word in counts):
        raise typer.BadParameter(f"--queries: expected positive numbers such as 1,4,16, got '{queries}'")
    recipe = load_recipe(names[0], [word for word in words if _is_override(word)])
    with err.status("reading the recipe") as status:
        found = diagnose(
            recipe, task, batches, [int(word) for word in counts], lambda text: status.update(escape(text))
        )
    _print_diagnosis(found)
    if output is not None:
        write_whole(output, json.dumps(found.as_json(), ensure_ascii=False, indent=1, allow_nan=False) + "\n")
        out.print(f"written: {output}", highlight=False, soft_wrap=True)


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


@app.callback(invoke_without_command=True)
def _version(
    version: Annotated[bool, typer.Option("--version", help="Print the version and stop.")] = False,
) -> None:
    if version:
        import zofc

        typer.echo(zofc.__version__)
        raise typer.Exit


def main() -> None:
    """Errors that the user can mend are told in words; anything else is a defect and shows its trace."""
    try:
        app()
    except ZofcError as error:
        err.print(f"[bold red]zofc:[/] {escape(str(error))}", highlight=False, soft_wrap=True)
        raise SystemExit(error.exit_code) from None
