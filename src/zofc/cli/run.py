"""`zofc run`: train recipes, or continue a run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from zofc.cli.application import PluginFiles, Quiet, app, err, finish_runs, out, say, split_words

if TYPE_CHECKING:
    from zofc.recipe import Recipe

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
    resume: Annotated[Path | None, typer.Option(help="Continue the run in this folder.")] = None,
    again: Annotated[bool, typer.Option("--again", help="Run anew, even if the same run is there already.")] = False,
    show: Annotated[bool, typer.Option("--print", help="Print the resolved recipe and stop.")] = False,
    runs: Annotated[Path, typer.Option("--runs", help="Folder that holds the run folders.")] = Path("runs"),
    quiet: Quiet = False,
    plugin: PluginFiles = None,
) -> None:
    """Run recipes; without one, ZO-FC, its first-order twin and ZO-Ridge on generated glyphs.

    For images without a recipe (`zofc run folder:my_images`), backbone, learner and tasks are chosen and explained.
    The same recipe finds its run again: a finished one is shown, an unfinished one is continued.
    """
    from zofc.recipe import METHOD_SECTIONS, dump_recipe
    from zofc.runfolder.run import open_run, page_in

    names, overrides = split_words(words or [])
    if resume is not None and (len(names) > 1 or again):
        raise typer.BadParameter("--resume continues one run as it is: give one recipe or none, and no --again")
    usual = DEMONSTRATION if resume is None else [str(open_run(resume).recipe_file)]
    choices = [_choose(name, overrides) for name in names or usual]
    recipes = [recipe for recipe, _ in choices]
    if show:
        for recipe in recipes:
            settings = {*recipe.sections, recipe.method.name, recipe.method.readout} & {*METHOD_SECTIONS}
            if plugin or settings:  # else the methods, which are slow to import, have nothing to add
                from zofc.methods import complete_recipe

                recipe = complete_recipe(recipe)
            out.print(dump_recipe(recipe), markup=False, highlight=False, end="", soft_wrap=True)
        return

    from zofc.report.progress import Display
    from zofc.training.runs import data_changed, resume_run, start_run, train

    if resume is not None:
        folders = [resume_run(resume, recipes[0])]
    else:
        folders = [start_run(recipe, runs, again) for recipe in recipes]
    for folder, (_, reasons) in zip(folders, choices, strict=True):
        if folder.finished and not quiet:
            say(f"{folder} is finished already (run anew with --again)")
        for change in data_changed(folder) if folder.finished else ():
            err.print(f"[yellow]note[/]: {escape(change)}; --again trains anew", highlight=False, soft_wrap=True)
        train(folder, [Display(out, quiet)], reasons)
    finish_runs([folder.path for folder in folders], page_in(resume or runs))
    for folder in folders:
        say(f"run: {folder}")


def _choose(name: str, overrides: list[str]) -> tuple[Recipe, tuple[str, ...]]:
    """A recipe by its name or file, or one for the images that are named instead, with the reasons."""
    from zofc.recipe import load_recipe, recipe_names

    if name in recipe_names() or name.endswith((".yaml", ".yml")):  # quick: no need to import what opens images
        return load_recipe(name, overrides), ()
    from zofc.advice.choice import choose_recipe, source_of

    source = source_of(name)
    if source is None:
        return load_recipe(name, overrides), ()
    choice = choose_recipe(source, overrides)
    return choice.recipe, choice.reasons
