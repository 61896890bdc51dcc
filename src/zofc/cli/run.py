"""`zofc run`: train recipes, or continue a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from zofc.cli.application import PluginFiles, Quiet, app, err, finish_runs, out, say, split_words

DEMONSTRATION = ("demo/zofc", "demo/first-order", "demo/zo-ridge")


@app.command()
def run(
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="[RECIPE]... [KEY=VALUE]...", help="Recipes (names or files) and dotted overrides."),
    ] = None,
    resume: Annotated[Path | None, typer.Option(help="Continue the run in this folder.")] = None,
    again: Annotated[bool, typer.Option("--again", help="Run anew, even if the same run is there already.")] = False,
    show: Annotated[bool, typer.Option("--print", help="Print the resolved recipe and stop.")] = False,
    runs: Annotated[Path, typer.Option("--runs", help="Folder that holds the run folders.")] = Path("runs"),
    quiet: Quiet = False,
    plugin: PluginFiles = None,
) -> None:
    """Run recipes; without one, ZO-FC, its first-order twin and ZO-Ridge on generated glyphs.

    The same recipe finds its run again: a finished one is shown, an unfinished one is continued.
    """
    from zofc.recipe import METHOD_SECTIONS, dump_recipe, load_recipe
    from zofc.runfolder.run import open_run, page_in

    names, overrides = split_words(words or [])
    if resume is not None and (len(names) > 1 or again):
        raise typer.BadParameter("--resume continues one run as it is: give one recipe or none, and no --again")
    usual = DEMONSTRATION if resume is None else [str(open_run(resume).recipe_file)]
    recipes = [load_recipe(name, overrides) for name in names or usual]
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
    for folder in folders:
        if folder.finished and not quiet:
            say(f"{folder} is finished already (run anew with --again)")
        for change in data_changed(folder) if folder.finished else ():
            err.print(f"[yellow]note[/]: {escape(change)}; --again trains anew", highlight=False, soft_wrap=True)
        train(folder, [Display(out, quiet)])
    finish_runs([folder.path for folder in folders], page_in(resume or runs))
    for folder in folders:
        say(f"run: {folder}")
