"""`zofc teach`: a server and a page to teach a run in; `zofc learn`, `rename` and `forget` change a finished run, each
time in a new folder."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from zofc.cli.application import (
    DeviceName,
    PluginFiles,
    Quiet,
    RunPath,
    app,
    finish_runs,
    is_override,
    out,
    say,
    split_words,
)

OutputFolder = Annotated[
    Path | None, typer.Option("--output", "-o", help="Folder of the result; beside the run by default.")
]


@app.command()
def teach(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RUN] [KEY=VALUE]...",
            help="A run folder, which may be new; settings of a new run, such as backbone.name=FILE.",
        ),
    ] = None,
    host: Annotated[
        str, typer.Option(help="Address to serve; any other opens the server to the network.")
    ] = "127.0.0.1",
    port: Annotated[int | None, typer.Option(min=0, max=65535, help="The first free one from 8321 by default.")] = None,
    browser: Annotated[bool, typer.Option(help="Open the page in a browser.")] = True,
    api_only: Annotated[bool, typer.Option("--api-only", help="Serve the API without the page.")] = False,
    new_token: Annotated[
        bool, typer.Option("--new-token", help="Make a new token: addresses that were opened before end.")
    ] = False,
    device: DeviceName = None,
    plugin: PluginFiles = None,
) -> None:
    """Teach a model in the browser, with pictures of your own: a page on this machine, and an HTTP API.

    Goes on with RUN, or begins runs/taught with the recommended learner. Everything that is taught is kept in the run
    folder. For services, ZOFC_TEACH_TOKEN sets the token of the API.
    """
    from importlib.util import find_spec

    from zofc.errors import RunError

    if missing := [name for name in ("fastapi", "uvicorn", "python_multipart") if find_spec(name) is None]:
        raise RunError(f"zofc teach needs {', '.join(missing)}; install the extra: pip install 'zofc[teach]'")
    from zofc.teach.start import Options, prepare_run, serve

    runs, overrides = split_words(words or [])
    if len(runs) > 1:
        raise typer.BadParameter("give one run folder, and settings as key=value")
    run = prepare_run(Path(runs[0]) if runs else None, overrides, say)
    serve(run, Options(host, port, browser, api_only, device, new_token), say)


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
    say("Cached features and decoded images were removed. Your image files are yours to delete")
