"""`zofc recommend`: compare the backbones at hand on a user's images before anything is trained."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from zofc.cli.application import (
    JsonOutput,
    PluginFiles,
    app,
    check_writable,
    out,
    progress,
    say,
    split_words,
    warn,
    write_result,
)


@app.command()
def recommend(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="IMAGES [BACKBONE]... [KEY=VALUE]...",
            help="A source such as folder:PATH, backbones to compare (those at hand by default), and overrides.",
        ),
    ],
    seconds: Annotated[float, typer.Option(min=1, help="About how long the features may take, in all.")] = 60,
    json_file: JsonOutput = None,
    plugin: PluginFiles = None,
) -> None:
    """Say which backbone and learner to use for images, with the accuracy to expect and a command to copy.

    A sample of the training images passes through each backbone; learners are compared by cross-validation.
    """
    from zofc.advice.choice import source_of
    from zofc.advice.recommend import recommend as compare
    from zofc.report.measurements import recommendation_tables

    names, overrides = split_words(words)
    source = source_of(names[0]) if names else None
    if source is None:
        raise typer.BadParameter("name the images first: folder:PATH, or another source of zofc list datasets")
    check_writable(json_file)
    with progress("looking for backbones") as status:
        found = compare(source, names[1:], overrides, seconds, status)
    content = asdict(found)
    for table in recommendation_tables(content):
        out.print(table)
    for text in found.notices:
        warn(text)
    for text in found.left_out:
        warn(f"left out: {text}")
    say(f"to train: {found.best.command}")
    write_result(json_file, content)
