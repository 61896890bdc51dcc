"""`zofc run`: train recipes, or continue runs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from zofc.cli.application import PluginFiles, Quiet, app, err, finish_runs, note, out, say, split_words
from zofc.errors import Interrupted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zofc.ranks import Ranks
    from zofc.recipe import Recipe
    from zofc.runfolder import Run

DEMONSTRATION = ("demo/zofc", "demo/first-order", "demo/zo-ridge")


@app.command()
def run(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RECIPE|IMAGES]... [KEY=VALUE]...",
            help="Recipes (names or files), or images (folder:PATH) for a recipe that fits them, and dotted overrides.",
        ),
    ] = None,
    resume: Annotated[
        Path | None, typer.Option(help="Continue the run in this folder, and those in further folders that are given.")
    ] = None,
    again: Annotated[bool, typer.Option("--again", help="Run anew, even if the same run is there already.")] = False,
    show: Annotated[bool, typer.Option("--print", help="Print the resolved recipe and stop.")] = False,
    runs: Annotated[Path, typer.Option("--runs", help="Folder that holds the run folders.")] = Path("runs"),
    quiet: Quiet = False,
    plugin: PluginFiles = None,
) -> None:
    """Run recipes; without one, ZO-FC, its first-order twin and ZO-Ridge on generated glyphs.

    For images without a recipe (`zofc run folder:my_images`), backbone, learner and tasks are chosen and explained.
    The same recipe finds its run again: a finished one is shown, an unfinished one is continued.

    An override is applied to every recipe that has its key. Where only some have it (optimize.peft.epochs=6 with
    zofc/base and ridge/base, which trains nothing), a note names those that run without it. To give an override to one
    recipe alone, run that recipe by a command of its own.
    """
    from zofc.runfolder.run import open_run

    _speak_once(again)
    names, overrides = split_words(words or [])
    stopped, names = _split_run_folders(resume, names)
    if stopped and (again or len(names) > (len(stopped) == 1)):
        raise typer.BadParameter("--resume continues runs as they are: give one recipe for one run or none, no --again")
    choices = _choose(names or [str(open_run(path).recipe_file) for path in stopped] or DEMONSTRATION, overrides)
    recipes = [recipe for recipe, _ in choices]
    if show:
        for recipe in recipes:
            _print_recipe(recipe, bool(plugin))
        return

    from zofc.ranks import join_ranks
    from zofc.training.runs import resume_run, start_run

    with join_ranks(max(recipe.training.rank_wait for recipe in recipes)) as ranks:
        if not ranks.first:
            from zofc.runfolder import Run

            folders = [Run(path) for path in ranks.text_of_first("").split("\0")]
        elif stopped:
            folders = [resume_run(path, recipe) for path, recipe in zip(stopped, recipes, strict=True)]
        else:
            folders = [start_run(recipe, runs, again) for recipe in recipes]
        if ranks.first:
            ranks.text_of_first("\0".join(str(folder.path.resolve()) for folder in folders))
        _train_all(folders, [reasons for _, reasons in choices], quiet, ranks)
    if ranks.first:
        _finish(folders, runs, resume)


def _speak_once(again: bool) -> None:
    """Of the processes that torchrun starts, the first one alone prints."""
    if os.environ.get("WORLD_SIZE", "1") == "1":
        return
    out.quiet = err.quiet = os.environ.get("RANK", "0") != "0"
    if again and os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0") != "0":
        raise typer.BadParameter("--again begins a new run at every restart of torchrun; leave out --max-restarts")


def _finish(folders: Sequence[Run], runs: Path, resume: Path | None) -> None:
    from zofc.runfolder.run import page_in

    page = runs if resume is None else resume if len(folders) == 1 else resume.parent
    finish_runs([folder.path for folder in folders], page_in(page))
    for folder in folders:
        say(f"run: {folder}")


def _split_run_folders(resume: Path | None, names: list[str]) -> tuple[list[Path], list[str]]:
    """The folders of the runs to continue, and the names of recipes among the words."""
    from zofc.runfolder import Run

    if resume is None:
        return [], names
    more = [name for name in names if Run(name).exists]
    return [resume, *map(Path, more)], [name for name in names if name not in more]


def _choose(names: Sequence[str], overrides: list[str]) -> list[tuple[Recipe, Sequence[str]]]:
    """Recipes by their names or files, or for the images that are named instead, with the reasons of each choice."""
    sources = {name: source for name in names if (source := _source(name)) is not None}
    if not sources:
        return [(recipe, ()) for recipe in _load(names, overrides)]
    from zofc.advice.choice import choose_for

    return choose_for(names, sources, overrides, note)


def _source(name: str) -> str | None:
    """The images that a word names, if it names no recipe."""
    from zofc.recipe import recipe_names

    if name in recipe_names() or name.endswith((".yaml", ".yml")):  # quick: no need to import what opens images
        return None
    from zofc.advice.choice import source_of

    return source_of(name)


def _load(names: Sequence[str], overrides: list[str]) -> list[Recipe]:
    if len(names) > 1 and overrides:
        from zofc.training.overrides import load_recipes

        return load_recipes(names, overrides, note)
    from zofc.recipe import load_recipe

    return [load_recipe(name, overrides) for name in names]


def _print_recipe(recipe: Recipe, plugins: bool) -> None:
    from zofc.recipe import METHOD_SECTIONS, dump_recipe

    settings = {*recipe.sections, recipe.method.name, recipe.method.readout} & {*METHOD_SECTIONS}
    if plugins or settings:  # else the methods, which are slow to import, have nothing to add
        from zofc.methods import complete_recipe

        recipe = complete_recipe(recipe)
    out.print(dump_recipe(recipe), highlight=False, end="", soft_wrap=True)


def _train_all(runs: Sequence[Run], reasons: Sequence[Sequence[str]], quiet: bool, ranks: Ranks) -> None:
    """Train what is left of the runs, one after another. The message of an interruption continues all of them."""
    from zofc.report.progress import Display
    from zofc.training.runs import data_changed, train

    for number, one in enumerate(runs):
        finished = ranks.first and one.finished
        if finished and not quiet:
            say(f"{one} is finished already (run anew with --again)")
        for change in data_changed(one) if finished else ():
            note(f"{change}; --again trains anew")
        try:
            train(one, [Display(out, quiet)] if ranks.first else [], reasons[number], ranks)
        except Interrupted as stop:
            raise Interrupted(stop.what, *(rest for rest in runs[number:] if not rest.finished)) from None
