"""The command line: each module registers its commands, which parse, call and print. All work is done in the rooms
below, which commands import only when they run, so that `zofc --help` is quick."""

from __future__ import annotations

import inspect
import io
import os
import sys
from typing import Annotated

import typer

# isort: off
from zofc.cli import run, recommend, catalog, show, model, teach, export, analyse, replay, reproduce, cache  # noqa: F401  (as `zofc --help` lists them)
# isort: on

from zofc.cli.application import app, err, is_override, out, print_error
from zofc.cli.run import DEMONSTRATION
from zofc.errors import RanksError, ZofcError
from zofc.paths import explain_os_error

__all__ = ["DEMONSTRATION", "app", "err", "is_override", "main", "out"]


@app.callback(invoke_without_command=True)
def _version(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and stop.")] = False,
) -> None:
    if version:
        import zofc

        typer.echo(zofc.__version__)
        raise typer.Exit
    if "RANK" in os.environ and (command := context.invoked_subcommand) not in (None, "run"):
        from zofc.ranks import several_processes

        if several_processes():
            raise RanksError(f"zofc {command} is one process; start it without torchrun, which is for zofc run")


def _reflow_help() -> None:
    """Let the paragraphs of each command's help be as wide as the terminal, not as the source."""
    for command in app.registered_commands:
        paragraphs = inspect.cleandoc((command.callback and command.callback.__doc__) or "").split("\n\n")
        command.help = "\n\n".join(" ".join(text.split()) for text in paragraphs)


_reflow_help()


def main() -> None:
    """Run the command line. User errors are printed as messages, and so are those of the operating system, such as a
    folder that may not be read; anything else is a defect and shows its trace."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # where it is not UTF-8
    try:
        app()
    except ZofcError as error:
        print_error(error)
        if isinstance(error, RanksError):  # an orderly exit would wait for messages of processes that are gone
            os._exit(error.exit_code)
        raise SystemExit(error.exit_code) from None
    except OSError as error:
        print_error(f"{explain_os_error(error)}: {error.filename}" if error.filename else explain_os_error(error))
        raise SystemExit(ZofcError.exit_code) from None
    except MemoryError:
        print_error("out of memory; give training.memory=auto, or smaller batches or images")
        raise SystemExit(ZofcError.exit_code) from None
