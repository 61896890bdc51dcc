"""The application that every command belongs to, and what commands share: consoles, arguments, checks and messages."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from zofc.errors import ZofcError
from zofc.units import printable

if TYPE_CHECKING:
    from zofc.recipe import Recipe

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Class-incremental learning on a frozen vision transformer, first-order or zeroth-order by choice.",
)


class SafeConsole(Console):
    """A console that shows text and never obeys it (no markup, no terminal escapes: names of classes and files come
    from strangers), and that falls silent when its reader has closed the pipe."""

    def __init__(self, stderr: bool = False) -> None:
        super().__init__(stderr=stderr, emoji=False, markup=False)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """All that is printed passes here; control segments are rich's own, such as those that redraw a picture."""
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else printable(text), style, control)

    def on_broken_pipe(self) -> None:
        """Print nothing more when the reader is gone."""
        self.quiet = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), self.file.fileno())  # for what is still to be flushed


out = SafeConsole()
err = SafeConsole(stderr=True)

RunPath = Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")]
RunPaths = Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run folders, or folders of run folders.")]
RecipeWords = Annotated[
    list[str], typer.Argument(metavar="RECIPE [KEY=VALUE]...", help="A recipe (name or file) and dotted overrides.")
]
TaskNumber = Annotated[int, typer.Option(min=1, help="At the start of which task; those before are not trained.")]
JsonOutput = Annotated[Path | None, typer.Option("--json", help="Also write the result as JSON.")]
DeviceName = Annotated[str | None, typer.Option(help="auto, cpu, cuda or mps; the recipe's by default.")]
PluginFiles = Annotated[
    list[Path] | None,
    typer.Option(
        "--plugin",
        metavar="FILE.py",
        callback=lambda files: _load_plugins(files or []),
        help="A Python file that adds methods, sources, PEFT modules or estimators; may be given several times.",
    ),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress, only the table.")]


def _load_plugins(files: list[Path]) -> list[Path]:
    from zofc.plugins import load_plugin

    for file in files:
        load_plugin(file)
    return files


def say(text: str) -> None:
    """Print verbatim and unwrapped: the text may hold a path to copy."""
    out.print(text, highlight=False, soft_wrap=True)


def note(text: str) -> None:
    """Print a note to standard error."""
    err.print(Text.assemble(("note", "yellow"), f": {text}"), soft_wrap=True)


def warn(text: str) -> None:
    """Print a warning to standard error."""
    err.print(f"Warning: {text}", style="yellow", highlight=False, soft_wrap=True)


def print_error(error: object) -> None:
    """Print an error to standard error; of several processes, all but the first say which they are."""
    rank = os.environ.get("RANK", "0") if os.environ.get("WORLD_SIZE", "1") != "1" else "0"
    name = "zofc:" if rank == "0" else f"zofc, rank {rank}:"
    err.quiet = False  # which it is on all ranks but the first
    err.print(Text.assemble((name, "bold red"), f" {error}"), soft_wrap=True)
    if path := os.environ.get("TORCHELASTIC_ERROR_FILE"):
        _explain_to_torchrun(Path(path), f"{name} {printable(str(error))}")


def _explain_to_torchrun(path: Path, text: str) -> None:
    """Let the report that torchrun ends with say why a process failed: the file is that of torch's `ErrorHandler`."""
    from zofc.runfolder.files import write_atomic

    extra = {"py_callstack": text, "timestamp": str(int(time.time()))}
    with suppress(ZofcError):
        write_atomic(path, json.dumps({"message": {"message": text, "extraInfo": extra}}))


@contextmanager
def progress(text: str) -> Iterator[Callable[[str], None]]:
    """Show what is being done while a command measures; yields the function that changes the text."""
    with err.status(text) as status:
        yield lambda words: status.update(Text(words))


def is_override(word: str) -> bool:
    """Whether a word is `key=value` rather than a recipe's name or file."""
    key, equals, _ = word.partition("=")
    return bool(equals) and "/" not in key and not key.endswith((".yaml", ".yml"))


def split_words(words: list[str]) -> tuple[list[str], list[str]]:
    """The recipes and the overrides among the words of a command line."""
    return [word for word in words if not is_override(word)], [word for word in words if is_override(word)]


def load_one_recipe(words: list[str]) -> Recipe:
    """The one recipe of a command line, with its overrides."""
    from zofc.recipe import load_recipe

    names, overrides = split_words(words)
    if len(names) != 1:
        raise typer.BadParameter("give one recipe, and overrides as key=value")
    return load_recipe(names[0], overrides)


def check_writable(path: Path | None) -> None:
    """Refuse an output that cannot be written before any work is done for it."""
    from zofc.runfolder import ready_to_write

    if path is not None:
        ready_to_write(path)


def write_result(path: Path | None, content: object) -> None:
    """Write a result where the user asked for it, if anywhere."""
    from zofc.runfolder.files import json_text, write_atomic

    if path is not None:
        write_atomic(path, json_text(content, indent=1, ascii_only=False) + "\n")
        say(f"written: {path}")


def finish_runs(paths: list[Path], page: Path) -> None:
    """The summary of the runs that a command trained, and their report page."""
    from zofc.report import summary_table, write_report
    from zofc.runfolder import read_runs
    from zofc.runfolder.files import remove_leftovers

    records = read_runs(paths)
    out.print(summary_table(records))
    write_report(records, page)
    for folder in {place for path in paths for place in (path, path.parent)}:  # where a killed command had its page
        remove_leftovers(folder, page.name)
    say(f"report: {page}")
