"""`python -m zofc.evidence COMMAND`: every result file and generated page of the repository, one command each."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, TypeVar

import typer
from rich import print as show

from zofc.errors import RecipeError, ZofcError
from zofc.runfolder import write_atomic

commands = typer.Typer(help=__doc__, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)

PHOTOGRAPHED = "backbones/vit_micro_p8_64.safetensors,backbones/vit_small_patch14_dinov2.safetensors"
_Number = TypeVar("_Number", int, float)
Changes = Annotated[list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="changes to every recipe")]
Seeds = Annotated[str, typer.Option(help="seeds, separated by commas")]
Out = Annotated[Path, typer.Option(help="the result file, continued if it is there")]
Runs = Annotated[Path, typer.Option(help="where run folders are kept")]
Workers = Annotated[int | None, typer.Option(min=1, help="runs at a time")]
On = Annotated[str, typer.Option(help="where cells run: local, ray, or ray://HOST:PORT")]
Results = Annotated[Path, typer.Option(help="a folder of result files, relative to the root")]
Root = Annotated[Path, typer.Option(help="the repository")]
Check = Annotated[bool, typer.Option("--check", help="write nothing; say what would change, with status 1")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="train nothing; list the cells that are left, and their time")]
# What the parts b, c and d had on average: ViT-S/14 at 224 px, several processes on an H200.
Speed = Annotated[float, typer.Option(min=1, help="of --dry-run: passes of one image a second, in one process")]
Lines = Annotated[str, typer.Option(help="lines by name, separated by commas; all by default")]


@commands.command("rates")
def run_rates(
    out: Out,
    changes: Changes = None,
    lines: Lines = "",
    rates: Annotated[str, typer.Option(help="rates for every line, in place of its own")] = "",
    seeds: Seeds = "1",
    runs: Runs = Path("runs/rates"),
    workers: Workers = None,
    on: On = "local",
    dry_run: DryRun = False,
    speed: Speed = 2500.0,
) -> None:
    """Search learning rates on a backbone, one line and one rate at a time."""
    from zofc.evidence.lines import LINES, get_line
    from zofc.evidence.plan import plan_table, searched_cells
    from zofc.evidence.rates import search_rates
    from zofc.studies.places import get_place

    names = _words(lines) or [name for name, line in LINES.items() if line.scan]
    for name in names:
        if not get_line(name).scan:
            raise RecipeError(f"--lines: {name} has no learning rate of its own to search")
    chosen, of = _numbers(rates, "--rates", float), _numbers(seeds, "--seeds", int)
    if dry_run:
        show(plan_table(searched_cells(names, chosen, of, changes or [], out), runs, out, speed, workers or 1))
        return
    show(search_rates(names, chosen, of, changes or [], out, runs, get_place(on, workers)))


@commands.command("recipe-rates")
def write_recipe_rates(root: Root = Path(), check: Check = False) -> None:
    """Write the searched rates that recipes take with rates=searched."""
    from zofc.evidence.recipe_rates import RATES_PATH, rates_text

    _write({root / RATES_PATH: rates_text(root)}, check)


@commands.command("grid")
def run_grid_part(
    out: Out,
    part: Annotated[str, typer.Option(help="which part of the evidence: b, c, d, e, e-released, f, f-curvature or g")],
    changes: Changes = None,
    rates: Annotated[Path | None, typer.Option(help="a file of searched rates; without it, the recipes' rates")] = None,
    lines: Lines = "",
    seeds: Seeds = "1993,1994,1995",
    runs: Runs = Path("runs/grid"),
    workers: Workers = None,
    on: On = "local",
    dry_run: DryRun = False,
    speed: Speed = 2500.0,
) -> None:
    """Train a part of the evidence with searched learning rates."""
    from zofc.evidence.lines import get_line, get_part
    from zofc.evidence.parts import run_part
    from zofc.evidence.plan import plan_table, planned_cells
    from zofc.studies.places import get_place

    names = _words(lines)
    for name in names:
        get_line(name)
    chosen, whole = _numbers(seeds, "--seeds", int), get_part(part)
    if dry_run:
        show(plan_table(planned_cells(whole, names, chosen, changes or [], rates), runs, out, speed, workers or 1))
        return
    show(run_part(whole, names, chosen, changes or [], rates, out, runs, get_place(on, workers)))


@commands.command("verdicts")
def judge_results(results: Results = Path("results/dinov2s"), root: Root = Path()) -> None:
    """Judge the paper's claims and write every comparison to RESULTS/verdicts.json."""
    from zofc.evidence.claims import claim_groups
    from zofc.evidence.page import VERDICTS_FILE, claims_grid, results_page
    from zofc.evidence.verdicts import verdicts_text

    _, judged = results_page(results, root)
    write_atomic(root / results / VERDICTS_FILE, verdicts_text(judged))
    for group in claim_groups():
        show(replace(claims_grid(group.claims, judged), title=group.title))


@commands.command("page")
def write_page(results: Results = Path("results/dinov2s"), root: Root = Path(), check: Check = False) -> None:
    """Write docs/RESULTS.md and docs/results/untested.md."""
    from zofc.evidence.page import RESULTS_PAGE, results_page
    from zofc.evidence.untested import UNTESTED_PAGE, untested_page

    text, verdicts = results_page(results, root)
    _write({root / RESULTS_PAGE: text, root / UNTESTED_PAGE: untested_page(results, root, verdicts)}, check)


@commands.command("tables")
def write_tables(root: Root = Path(), check: Check = False) -> None:
    """Write the tables of the documents: README.md, docs, benchmarks/README.md."""
    from zofc.evidence.tables import fill_tables, marked_documents

    _write({path: fill_tables(path.read_text("utf-8"), root) for path in marked_documents(root)}, check)


@commands.command("demo")
def run_demos(
    out: Out = Path("results/demo.json"),
    seeds: Seeds = "1993,1994,1995",
    runs: Runs = Path("runs/demo"),
    workers: Workers = None,
    on: On = "local",
) -> None:
    """Run the demonstrations over several seeds."""
    from zofc.evidence.demo import demo_cells, demo_table
    from zofc.studies.grid import collect
    from zofc.studies.places import get_place

    show(demo_table(collect(list(demo_cells(_numbers(seeds, "--seeds", int))), runs, out, {}, get_place(on, workers))))


@commands.command("picture")
def draw_picture(
    runs: Annotated[list[Path], typer.Argument(help="run folders, or folders of run folders")],
    out: Annotated[Path, typer.Option(help="the picture")] = Path("docs/demo.png"),
    seed: int = 1993,
) -> None:
    """Draw the README's picture from the runs of `zofc run`."""
    from zofc.evidence.demo import draw_demo

    draw_demo(runs, seed, out)
    print(f"wrote {out}")


@commands.command("photographs")
def run_photographs(
    out: Out = Path("results/photographs.json"),
    backbones: Annotated[str, typer.Option(help="backbones by name or file, separated by commas")] = PHOTOGRAPHED,
    changes: Changes = None,
    lines: Lines = "",
    albums: Annotated[str, typer.Option(help="pacs or caltech101; both by default")] = "",
    images: Annotated[str, typer.Option(help="training images a class, separated by commas")] = "10,25,100",
    seeds: Annotated[str, typer.Option(help="seeds, each also of a draw of images")] = "1993,1994,1995",
    folder: Annotated[Path, typer.Option(help="where the folders of photographs are made")] = Path("build/photographs"),
    runs: Runs = Path("runs/photographs"),
    workers: Workers = None,
) -> None:
    """Learn folders of photographs by default and with other recipes."""
    from zofc.evidence.photographs import photograph_cells, photographs_table
    from zofc.studies.grid import collect
    from zofc.studies.places import LocalPool

    counts, chosen = _numbers(images, "--images", int), _numbers(seeds, "--seeds", int)
    names = _words(lines), _words(albums)
    cells = list(photograph_cells(_words(backbones), counts, chosen, changes or [], folder, *names))
    show(photographs_table(collect(cells, runs, out, {"changes": changes or []}, LocalPool(workers or 1))))


@commands.command("estimators")
def run_estimators(
    out: Out,
    changes: Changes = None,
    factor: Annotated[float, typer.Option(help="on all learning rates")] = 10.0,
    seeds: Seeds = "1993,1994,1995",
    epochs: Annotated[int, typer.Option(help="of every group")] = 5,
    runs: Runs = Path("runs/estimators"),
    workers: Workers = None,
    on: On = "local",
) -> None:
    """Train ZO-FC with each estimator on one slice, beside its anchors."""
    from zofc.evidence.estimators import estimator_cells, estimators_table
    from zofc.studies.grid import collect
    from zofc.studies.places import get_place

    cells = list(estimator_cells(_numbers(seeds, "--seeds", int), factor, epochs, changes or []))
    about = {"epochs": epochs, "factor": factor, "settings": changes or []}
    show(estimators_table(collect(cells, runs, out, about, get_place(on, workers))))


@commands.command("smoothing")
def run_smoothing(
    out: Out = Path("results/smoothing.json"),
    seeds: Seeds = "1993,1994,1995",
    runs: Runs = Path("runs/smoothing"),
    workers: Workers = None,
    on: On = "local",
) -> None:
    """Measure what the length of the finite difference smooths, on glyphs."""
    from zofc.evidence.glyph_studies import smoothing_cells, smoothing_table
    from zofc.studies.grid import collect
    from zofc.studies.places import get_place

    cells = smoothing_cells(_numbers(seeds, "--seeds", int))
    show(smoothing_table(collect(cells, runs, out, {}, get_place(on, workers))))


@commands.command("optimizers")
def compare_optimizers(
    out: Out = Path("results/optimizers.json"),
    seeds: Seeds = "1993,1994,1995",
    runs: Runs = Path("runs/optimizers"),
    workers: Workers = None,
    on: On = "local",
) -> None:
    """Compare optimizers of ZO-FC's adapter on glyphs, each at its own searched rate."""
    from zofc.evidence.glyph_studies import run_optimizers
    from zofc.studies.places import get_place

    show(run_optimizers(_numbers(seeds, "--seeds", int), runs, out, get_place(on, workers)))


def _write(texts: dict[Path, str], check: bool) -> None:
    """Write the documents that differ; with `check` only name them, and end with status 1 if there are any."""
    differing = [path for path, text in texts.items() if not path.is_file() or path.read_text("utf-8") != text]
    for path in differing:
        if not check:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(path, texts[path])
        print(f"{path} {'differs from the results' if check else 'written'}")
    if check and differing:
        raise typer.Exit(1)


def _words(text: str) -> list[str]:
    return [word for word in text.replace(" ", ",").split(",") if word]


def _numbers(text: str, option: str, kind: type[_Number]) -> list[_Number]:
    try:
        return [kind(word) for word in _words(text)]
    except ValueError:
        whole = "whole " * (kind is int)
        raise RecipeError(f"{option}: expected {whole}numbers separated by commas, got '{text}'") from None


def run_evidence() -> None:
    """Run a command; an error that the user can fix is one message."""
    try:
        commands()
    except ZofcError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    run_evidence()
