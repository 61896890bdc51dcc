"""docs/results/untested.md: claims that were not tested, what is still to run, and how the rest was run."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from zofc.evidence.claims import all_claims
from zofc.evidence.lines import LINES, PARTS
from zofc.evidence.plan import missing_commands
from zofc.evidence.rates import RateRow, best_rates
from zofc.evidence.rows import result_rows
from zofc.evidence.verdicts import UNTESTED, Verdict

UNTESTED_PAGE = Path("docs/results/untested.md")
SEARCH_FILE = "rates.json"
NOTES = "NOTES.md"  # what must be known of the results and no file says
TRAINING_ALONE = "train-only"  # a folder as $ZOFC_DATA, with the training images of CIFAR-100 alone
UNTESTED_INTRO = (
    "The claims without a verdict in [results](../RESULTS.md), what is still to run, and the commands behind [{folder}]"
    "(../../{folder}). Made by `python -m zofc.evidence page`."
)
TO_RUN = (
    "What is worth most comes first; variable and folder are those above. `--dry-run` lists the cells that a command "
    "would train, with an estimate of their time; `--workers` trains several at a time. A command that is stopped goes "
    "on where it was."
)
SEARCHES = (
    "Learning rates are searched on training images alone: `$ZOFC_DATA` is then a folder without CIFAR-100's test "
    "file, so that a fifth of each class is held out. A search that goes on with other images is refused."
)
GRIDS = "Grids, tested on the test images, with the rates found:"


def untested_page(folder: Path, root: Path, verdicts: Mapping[str, Verdict]) -> str:
    """The page, from the result files of `folder` (relative to `root`)."""
    parts = ["# Not tested, and how the rest was run", prose(UNTESTED_INTRO.format(folder=folder))]
    parts += ["## Not tested", bullets(_untested(verdicts)), "## How it was run"]
    rates, shell = root / folder / SEARCH_FILE, _Shell(folder)
    rows = result_rows(rates) if rates.is_file() else []
    if rows:
        shell = _Shell(folder, json.loads(rates.read_text("utf-8"))["changes"])
        parts += [prose(SEARCHES), _block([*shell.setup, *map(shell.command, search_commands(rows))]), prose(GRIDS)]
    parts.append(_block([shell.command(words, changes) for words, changes in grid_commands(root / folder)]))
    if rows and (missing := [*missing_commands(root / folder, best_rates(rows))]):
        parts += ["## Still to run", prose(TO_RUN), _block([*map(shell.command, missing)])]
    notes = root / folder / NOTES
    if notes.is_file():
        parts += ["## Notes", bullets(notes.read_text("utf-8").strip().split("\n\n"))]
    return "\n\n".join(part for part in parts if part) + "\n"


def _untested(verdicts: Mapping[str, Verdict]) -> list[str]:
    """Claims by why they are untested."""
    reasons: dict[str, list[str]] = {}
    for claim in all_claims():
        if verdicts[claim.id].word == UNTESTED:
            reasons.setdefault(verdicts[claim.id].why, []).append(claim.says)
    return [f"{why[:1].upper()}{why[1:].rstrip('.')}: {' '.join(says)}" for why, says in reasons.items()]


def search_commands(rows: Sequence[RateRow]) -> Iterator[list[str]]:
    """The words of commands that make the rows of a search; lines with the same seeds and rates share one."""
    groups: dict[tuple[str, str], list[str]] = {}
    for name, line in LINES.items():
        mine = [row for row in rows if row["line"] == line.title]
        tried, seeds = ({row[key] for row in mine} for key in ("rate", "seed"))
        own, further = (line.rates, tried - {*line.rates}) if tried >= {*line.rates} else ((), tried)
        for chosen in ([""] if own else []) + ([",".join(f"{rate:g}" for rate in sorted(further))] if further else []):
            groups.setdefault((",".join(map(str, sorted(seeds))), chosen), []).append(name)
    for (seeds_words, chosen), names in groups.items():
        given = ["--rates", chosen] if chosen else []
        yield ["rates", "--lines", ",".join(names), *given, "--seeds", seeds_words]


def grid_commands(folder: Path) -> Iterator[tuple[list[str], list[str]]]:
    """The words of the commands behind the files of the parts, and their changes."""
    parts = {part.title: (name, part) for name, part in PARTS.items()}
    for path in sorted(folder.glob("*.json")):
        about = json.loads(path.read_text("utf-8"))
        if about.get("title") in parts:
            name, part = parts[about["title"]]
            yield ["grid", "--part", name], [change for change in about["changes"] if change not in part.changes]


class _Shell:
    """Commands of a shell, with what they share in a variable and in a folder of training images."""

    def __init__(self, folder: Path, searched: Sequence[str] = ()) -> None:
        self.folder = folder
        self.backbone = [change for change in searched if change.startswith("backbone.")]
        self.images = [change for change in searched if change not in self.backbone]
        self.setup = [
            f'BACKBONE="{" ".join(self.backbone)}"',
            f"mkdir -p {TRAINING_ALONE}/cifar100",
            f'ln -s "$ZOFC_DATA"/cifar100/train-* {TRAINING_ALONE}/cifar100/',
            f'ln -s "$ZOFC_DATA"/backbones {TRAINING_ALONE}/',
        ]

    def command(self, words: Sequence[str], changes: Sequence[str] | None = None) -> str:
        """One command, on several lines if it is long; without changes, on the backbone of the search."""
        start, rates = "python -m zofc.evidence", str(self.folder / SEARCH_FILE)
        given = ["$BACKBONE"] if changes is None or list(changes) == self.backbone else list(changes)
        if words[0] == "rates":
            start = f'ZOFC_DATA="$PWD/{TRAINING_ALONE}" {start}'
            end = ["--out", rates, *self.images, *given]
        else:
            part = words[words.index("--part") + 1]
            end = ["--rates", rates, "--out", str(self.folder / f"{part}.json"), *given]
        lines = textwrap.wrap(
            " ".join([start, *words, *end]), 116, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
        )
        return " \\\n".join(lines)


def _block(lines: Sequence[str]) -> str:
    return "\n".join(["```sh", *lines, "```"])


# -- prose -----------------------------------------------------------------------------------------------------------


def prose(text: str, bullet: str = "") -> str:
    """A paragraph, in lines."""
    return textwrap.fill(bullet + text, 118, subsequent_indent=" " * len(bullet), break_long_words=False,
                         break_on_hyphens=False)  # fmt: skip


def bullets(texts: Sequence[str] | Iterator[str]) -> str:
    """A list."""
    return "\n".join(prose(" ".join(text.split()), "- ") for text in texts)
