"""`zofc replay`: what zeroth-order steps led to, rebuilt from the journal of a run without data or forward passes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from zofc.cli.application import DeviceName, RunPath, app, check_writable, note, progress, say


@app.command()
def replay(
    path: RunPath,
    journal: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="A journal of zofc-device, or the bundle that it is in; RUN is the run or bundle it started from.",
        ),
    ] = None,
    to: Annotated[
        str | None, typer.Option(metavar="TASK[.STEP]", help="Until when, counted from 1; to the end by default.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write the tensors there, named as in a checkpoint.")
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Compare with what the run stored: exit with status 2 if it differs.")
    ] = False,
    device: DeviceName = None,
) -> None:
    """Rebuild what zeroth-order steps trained, at any step, from the journal of the run alone.

    No data, images, backbone or forward passes: a step is its Q coefficients. On the kind of device that the run was
    trained on the result is the same to the bit. Without options, says what the journal holds.
    """
    from zofc.analysis.lesson_replay import LessonReplay
    from zofc.analysis.replay import Moment, RunReplay, summarize_journal
    from zofc.errors import RunError

    check_writable(output)
    moment = None if to is None else Moment.parse(to)
    if moment is not None and output is None:
        raise typer.BadParameter("--to needs a file to write: -o FILE.safetensors")
    run = RunReplay(path, device) if journal is None else LessonReplay(path, journal, device)
    say(str(summarize_journal(run.journal)))
    if run.journal.lost:
        note(f"{run.journal.lost:,} bytes after the last checkpoint are no whole record: the process was killed")
    if output is not None:
        with progress("replaying"):
            steps, seconds = run.write(output, moment)
        _say_speed(steps, seconds, run.device.type)
        say(f"written: {output}")
    if check:
        with progress("replaying"):
            result = run.check()
        _say_speed(result.steps, result.seconds, run.device.type)
        if result.problem:
            raise RunError(f"{journal or path}: {result.problem}")
        say(result.conclusion)


def _say_speed(steps: int, seconds: float, device: str) -> None:
    say(f"replayed {steps:,} steps in {seconds:.1f} s on {device}: {steps / max(seconds, 1e-9):,.0f} steps a second")
