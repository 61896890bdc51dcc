"""`python -m zofc.evidence COMMAND`: every result file and generated page of the repository, one command each."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from zofc.errors import RecipeError, ZofcError

app = typer.Typer(help=__doc__, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)

Changes = Annotated[list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="changes to every recipe")]
Seeds = Annotated[str, typer.Option(help="seeds, separated by commas")]
Out = Annotated[Path, typer.Option(help="the result file, continued if it is there")]
Runs = Annotated[Path, typer.Option(help="where run folders are kept")]
Workers = Annotated[int, typer.Option(min=1, help="runs at a time")]
Lines = Annotated[str, typer.Option(help="lines by name, separated by commas; all by default")]


@app.command()
def rates(
    out: Out,
    changes: Changes = None,
    lines: Lines = "",
    rates: Annotated[str, typer.Option(help="rates for every line, in place of its own")] = "",
    seeds: Seeds = "1",
    runs: Runs = Path("runs/rates"),
    workers: Workers = 1,
) -> None:
    """Search learning rates on a backbone, one line and one rate at a time."""
    from zofc.evidence.lines import LINES, get_line
    from zofc.evidence.rates import search_rates

    names = _words(lines) or [name for name, line in LINES.items() if line.scan]
    for name in names:
        if not get_line(name).scan:
            raise RecipeError(f"--lines: {name} has no learning rate of its own to search")
    _show(search_rates(names, _numbers(rates), _seeds(seeds), changes or [], out, runs, workers))


@app.command()
def grid(
    out: Out,
    part: Annotated[str, typer.Option(help="which part of the evidence: b, c, d or e")],
    changes: Changes = None,
    rates: Annotated[Path | None, typer.Option(help="a file of searched rates; without it, the recipes' rates")] = None,
    lines: Lines = "",
    seeds: Seeds = "1993,1994,1995",
    runs: Runs = Path("runs/grid"),
    workers: Workers = 1,
) -> None:
    """Train a part of the evidence with searched learning rates."""
    from zofc.evidence.lines import get_line, get_part
    from zofc.evidence.parts import run_part

    names = _words(lines)
    for name in names:
        get_line(name)
    _show(run_part(get_part(part), names, _seeds(seeds), changes or [], rates, out, runs, workers))


def _words(text: str) -> list[str]:
    return [word for word in text.replace(" ", ",").split(",") if word]


def _numbers(text: str) -> list[float]:
    try:
        return [float(word) for word in _words(text)]
    except ValueError:
        raise RecipeError(f"--rates: expected numbers separated by commas, got '{text}'") from None


def _seeds(text: str) -> list[int]:
    try:
        return [int(word) for word in _words(text)]
    except ValueError:
        raise RecipeError(f"--seeds: expected whole numbers separated by commas, got '{text}'") from None


def _show(table: object) -> None:
    Console().print(table)


def main() -> None:
    """Run a command; an error that the user can fix is one message."""
    try:
        app()
    except ZofcError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
