"""`zofc predict` and `evaluate`: use the model of a finished run."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from zofc.cli.application import (
    DeviceName,
    PluginFiles,
    RunPath,
    app,
    check_writable,
    note,
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
    reject: Annotated[
        str | None,
        typer.Option(
            metavar="SHARE",
            help='Answer "none of these" where that is likely; a SHARE of the images of learned classes, such as 5%, '
            "gets that answer too.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object an image.")] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print a table of comma-separated values.")] = False,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write the answers to a file: CSV, or JSON lines with --json.")
    ] = None,
    device: DeviceName = None,
    plugin: PluginFiles = None,
) -> None:
    """Name the most likely classes of image files; unreadable files are reported, and the status is then 2."""
    from zofc.learner import load
    from zofc.report import predictions as show
    from zofc.runfolder import write_atomic

    if as_json and as_csv:
        raise typer.BadParameter("choose one of --json and --csv")
    share = None if reject is None else parse_share(reject)
    check_writable(output)
    learner = load(path, device)
    files, errors = _readable(images)
    for error in errors.values():
        print_error(error)
    rows: list[show.Answer] = [{"image": file, "error": str(error)} for file, error in errors.items()]
    answers = learner.predict(files, top) if share is None else learner.predict(files, top, reject=share)
    for file, best in zip(files, answers, strict=True):
        classes = [{"name": one.name, "probability": one.probability} for one in best or ()]
        rows.append(
            {"image": _file_name(file), "classes": classes} | ({} if share is None else {"none_of_these": not best})
        )
    if output is not None:
        write_atomic(output, show.predictions_json(rows) if as_json else show.predictions_csv(rows))
        say(f"written: {output}")
    elif as_json or as_csv:
        typer.echo(show.predictions_json(rows) if as_json else show.predictions_csv(rows), nl=False)
    elif out.is_terminal:
        out.print(show.predictions_grid(rows))
    else:
        for row in rows:
            if "error" not in row:  # which has been printed
                say(show.prediction_line(row))
    if errors:
        raise typer.Exit(next(iter(errors.values())).exit_code)


def parse_share(text: str) -> float:
    """`5%` or `0.05` as 0.05."""
    try:
        share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        share = 0.0
    if not 0 < share < 1:
        raise typer.BadParameter(f"--reject: expected a share such as 5% or 0.05, got '{text}'")
    return share


def _file_name(path: Path) -> str:
    """A path as outputs show it: a name that is not UTF-8 with escapes for its bytes."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def _readable(paths: list[Path]) -> tuple[list[Path], dict[str, ZofcError]]:
    """The readable image files among the paths, those in folders too, and the errors of the others by path."""
    from zofc.data import EncodedImages
    from zofc.data.decoding import collect_warnings, find_faults
    from zofc.data.folder import images_in

    files: list[Path] = []
    errors: dict[str, ZofcError] = {}
    for path in paths:
        try:
            files += images_in(path) if path.is_dir() else [path]
        except ZofcError as error:
            errors[_file_name(path)] = error
    with collect_warnings(note, "predict"):
        faults = find_faults(EncodedImages(files, [str(file) for file in files]))
    readable = [file for file, fault in zip(files, faults, strict=True) if fault is None]
    broken = {_file_name(file): fault for file, fault in zip(files, faults, strict=True) if fault is not None}
    return readable, errors | broken


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
        "calibration_error": result.calibration_error,
    }
    for table in evaluation_tables(content, result.confused()):
        out.print(table)
    write_result(output, content)
