"""`zofc predict`, `learn` and `evaluate`: use the model of a finished run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from zofc.cli.application import (
    DeviceName,
    PluginFiles,
    Quiet,
    RunPath,
    app,
    check_writable,
    finish_runs,
    out,
    print_error,
    say,
    write_result,
)
from zofc.errors import ZofcError


@app.command()
def predict(
    path: RunPath,
    images: Annotated[list[Path], typer.Argument(metavar="IMAGE...", help="Image files, or folders of them.")],
    top: Annotated[int, typer.Option(min=1, help="How many classes to name.")] = 3,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object an image.")] = False,
    device: DeviceName = None,
    plugin: PluginFiles = None,
) -> None:
    """Name the most likely classes of image files; unreadable files are reported, and the status is then 2."""
    from zofc.learner import load

    learner = load(path, device)
    files, errors = _readable(images)
    for error in errors:
        print_error(error)
    for image, best in zip(files, learner.predict(files, top), strict=True):
        if as_json:
            classes = [{"name": one.name, "probability": one.probability} for one in best]
            typer.echo(json.dumps({"image": str(image), "classes": classes}, ensure_ascii=False))
        else:
            say(f"{image}: " + ", ".join(f"{one.name} {100 * one.probability:.1f} %" for one in best))
    if errors:
        raise typer.Exit(errors[0].exit_code)


def _readable(paths: list[Path]) -> tuple[list[Path], list[ZofcError]]:
    """The readable image files among the paths, those in folders too, and the errors of the others."""
    from zofc.data import EncodedImages
    from zofc.data.decoding import find_faults
    from zofc.data.folder import images_in

    files: list[Path] = []
    errors: list[ZofcError] = []
    for path in paths:
        try:
            files += images_in(path) if path.is_dir() else [path]
        except ZofcError as error:
            errors.append(error)
    faults = find_faults(EncodedImages(files, [str(file) for file in files]))
    readable = [file for file, fault in zip(files, faults, strict=True) if fault is None]
    return readable, [*errors, *(fault for fault in faults if fault is not None)]


@app.command()
def learn(
    path: RunPath,
    data: Annotated[str, typer.Argument(help="A source of new classes, e.g. folder:PATH.")],
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Folder of the extended run.")] = None,
    quiet: Quiet = False,
    plugin: PluginFiles = None,
) -> None:
    """Teach a finished run new classes; the result is a new run folder, the old one is unchanged."""
    from zofc.report.progress import Display
    from zofc.runfolder.run import page_in
    from zofc.training.runs import extend_run, train

    folder = extend_run(path, data, output)
    train(folder, [Display(out, quiet)])
    finish_runs([folder.path], page_in(folder.path))
    say(f"extended run: {folder}")


@app.command()
def evaluate(
    path: RunPath,
    data: Annotated[str, typer.Argument(help="A source whose classes were learned, e.g. folder:PATH.")],
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Also write the result as JSON.")] = None,
    device: DeviceName = None,
    learned_only: Annotated[
        bool, typer.Option("--learned-only", help="Leave out classes that were never learned.")
    ] = False,
    plugin: PluginFiles = None,
) -> None:
    """Accuracy per class of a run on other images, and the classes that it confuses most.

    --output has the whole confusion matrix.
    """
    from zofc.learner import load
    from zofc.report.measurements import evaluation_tables

    check_writable(output)
    result = load(path, device).evaluate(data, learned_only)
    content = {
        "accuracy": result.accuracy,
        "per_class": result.per_class,
        "classes": list(result.classes),
        "confusion": result.confusion.tolist(),
        "left_out": list(result.left_out),
    }
    for table in evaluation_tables(content, result.confused()):
        out.print(table)
    write_result(output, content)
