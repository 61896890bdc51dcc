"""`zofc learn`, `rename` and `forget`: teach a finished run over time. The result is a new folder each time."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from zofc.cli.application import PluginFiles, Quiet, RunPath, app, finish_runs, is_override, out, say

OutputFolder = Annotated[
    Path | None, typer.Option("--output", "-o", help="Folder of the result; beside the run by default.")
]


@app.command()
def learn(
    path: RunPath,
    data: Annotated[str, typer.Argument(help="A source of images, e.g. folder:PATH.")],
    settings: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help="Overrides: training.*, optimize.* and data.skip_broken."),
    ] = None,
    output: OutputFolder = None,
    quiet: Quiet = False,
    plugin: PluginFiles = None,
) -> None:
    """Teach a finished run new classes, or more images of classes that it knows; the run itself is unchanged.

    New classes are one more task, with images held out to test them. If some classes are known, all training images of
    the source are learned; recipes whose readout is in closed form (ridge/base, zo-ridge/base, simplecil/base) can.
    """
    from zofc.learner.changes import changed_copy, folder_beside, known_classes
    from zofc.report.progress import Display
    from zofc.runfolder.run import page_in
    from zofc.training.runs import extend_run, train

    overrides = settings or []
    if wrong := [word for word in overrides if not is_override(word)]:
        raise typer.BadParameter(f"expected KEY=VALUE, got '{wrong[0]}'")
    if known := known_classes(path, data, overrides):
        folder = output or folder_beside(path)
        with changed_copy(path, folder, overrides, [Display(out, quiet)]) as learner:
            learner.learn(data)
        say(f"included more images of {len(known)} known classes: {', '.join(known[:5])}{', …' * (len(known) > 5)}")
        say(f"taught run: {folder}, which knows {len(learner.classes)} classes (zofc evaluate measures it)")
        return
    run = extend_run(path, data, output, overrides)
    train(run, [Display(out, quiet)])
    finish_runs([run.path], page_in(run.path))
    say(f"extended run: {run}")


@app.command()
def rename(
    path: RunPath,
    old: Annotated[str, typer.Argument(help="The name of a class.")],
    new: Annotated[str, typer.Argument(help="Its new name.")],
    output: OutputFolder = None,
    plugin: PluginFiles = None,
) -> None:
    """Give a class of a finished run another name; the run itself is unchanged."""
    from zofc.learner.changes import changed_copy, folder_beside

    folder = output or folder_beside(path)
    with changed_copy(path, folder) as learner:
        learner.rename(old, new)
    say(f"renamed run: {folder}")


@app.command()
def forget(
    path: RunPath,
    classes: Annotated[list[str], typer.Argument(metavar="CLASS...", help="Names of classes.")],
    output: OutputFolder = None,
    plugin: PluginFiles = None,
) -> None:
    """Forget classes of a finished run; the run itself, which still knows them, is unchanged.

    Where the readout is in closed form (ridge/base, zo-ridge/base, simplecil/base), the result is as if they had never
    been learned, but for what an adapter learned from their images.
    """
    from zofc.learner.changes import changed_copy, folder_beside
    from zofc.report.progress import Display

    folder = output or folder_beside(path)
    with changed_copy(path, folder, listeners=[Display(out)]) as learner:
        learner.forget(*classes)
    say(f"run without {', '.join(classes)}: {folder}, which knows {len(learner.classes)} classes")
    say(f"{path} still knows {', '.join(classes)}. To forget for good, delete it: rm -r {shlex.quote(str(path))}")
    say("Your images are yours to delete; decoded copies of them are removed by: zofc cache clear")
