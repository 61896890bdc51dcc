"""Write docs/RESULTS.md and its figures from the rows of studies at small scale, `results/small/STUDY.json`.

python scripts/results_page.py            # write
python scripts/results_page.py --check    # only say whether the page would change

A result file is the rows.json that `zofc reproduce STUDY --scale small` writes. Every number of the page comes from
these files, the verdicts on the paper's claims (claims.py, by the rule of verdicts.py) included.
"""

from __future__ import annotations

import json
import sys
import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "scripts"))

from claims import CLAIMS, TABLES  # noqa: E402
from verdicts import RULE, Evidence, Row, Verdict  # noqa: E402

from zofc.recipe import PAPER_BACKBONE  # noqa: E402
from zofc.report.tables import Grid, duration  # noqa: E402
from zofc.studies import figures, reproduce, tables  # noqa: E402
from zofc.studies.catalogue import STUDIES, Study, get_study  # noqa: E402
from zofc.studies.scale import Scale, get_scale  # noqa: E402
from zofc.studies.settings import OURS, SETTINGS  # noqa: E402

RESULTS, PAGE, FIGURES = Path("results/small"), Path("docs/RESULTS.md"), Path("docs/figures")
NOTES = "NOTES.md"  # beside the results: what must be known of them and no file says
KINDS = (
    "hold", "hold in part", "do not hold", "are within the spread", "show no difference", "were not measured",
    "cannot be tested here",
)  # fmt: skip
WITH_COST = ("peak-memory", "runtime", "flops", *TABLES)  # which claims about cost rest on
SAID_ABOVE = (
    "Scale ",
    "In brackets",
    "Changed in every recipe",
    *(f"{name}: " for name in OURS),
)  # notes that are said once


@dataclass(frozen=True)
class Result:
    """A result file."""

    study: Study
    scale: Scale
    changes: tuple[str, ...]
    rows: tuple[Row, ...]

    @cached_property
    def settings(self) -> list[str]:
        return [name for name in self.study.settings if any(row["setting"] == name for row in self.rows)]

    @cached_property
    def seeds(self) -> tuple[int, ...]:
        return tuple(sorted({row["seed"] for row in self.rows}))

    @cached_property
    def good(self) -> list[Row]:
        return [row for row in self.rows if "failed" not in row]

    @property
    def command(self) -> str:
        """What makes this file again, but for the changes."""
        datasets = dict.fromkeys(SETTINGS[name].dataset for name in self.settings)
        words = ["zofc reproduce", self.study.name, "--scale", self.scale.name]
        words += [f"--dataset {name}" for name in datasets]
        words += ["--fast"] * self.scale.fast + [f"--seeds {len(self.seeds)}"] * (len(self.seeds) > 1)
        return " ".join(words)


def load(folder: Path) -> list[Result]:
    """The result files of a folder, in the order of the catalogue."""
    found = {}
    for path in sorted(folder.glob("*.json")):
        told = json.loads(path.read_text("utf-8"))
        scale = get_scale(told["scale"])
        scale = replace(scale, says=told["says"], fast=told["says"] == scale.faster().says)
        found[told["study"]] = Result(get_study(told["study"]), scale, tuple(told["changes"]), tuple(told["rows"]))
    return [found[name] for name in STUDIES if name in found]


def evidence_of(results: Sequence[Result]) -> Evidence:
    return {result.study.name: result.rows for result in results}


def drawn(result: Result) -> Iterator[tuple[str, figures.Drawing]]:
    """A study's figures with the names of their files."""
    rows = [dict(row) for row in result.rows]
    for name, drawing in reproduce.drawings(result.study, result.scale, rows, result.settings):
        yield f"{result.study.name}-{name}.png", drawing


# -- the page --------------------------------------------------------------------------------------------------------


def page(results: Sequence[Result]) -> str:
    verdicts = judged(evidence_of(results))
    parts = [opening(results), claims(results, verdicts), "## The studies"]
    parts += [study(result, results) for result in results]
    return "\n\n".join([*parts, rest(results, verdicts)]) + "\n"


def judged(evidence: Evidence) -> dict[str, Verdict]:
    """The verdict on every claim, by its text."""
    return {claim.text: claim.verdict(evidence) for some in CLAIMS.values() for claim in some}


def opening(results: Sequence[Result]) -> str:
    """What was run, with what, and what it is not."""
    missing = [name for name in SETTINGS if name not in OURS and name not in _settings(results)]
    names = dict.fromkeys(row["backbone"] for result in results for row in result.good if row.get("backbone"))
    intro = (
        "The studies of the paper at a small scale: what they give, and which of the paper's claims hold there. "
        f"Written by `python scripts/results_page.py` from the files in [{RESULTS}](../{RESULTS}); no number is typed "
        "by hand."
    )
    known = f" ({', '.join(f'sha256 {name[:12]}…' for name in names)})" if names else ""
    other = (
        f"**What this is not.** The paper's backbone is {PAPER_BACKBONE}; this one{known} is smaller, and was "
        "pre-trained on other images. The paper trains on all images for all epochs. So the numbers in brackets in the "
        "tables, which are the paper's, are for orientation: what can be compared is how lines stand to each other."
    )
    if missing:
        other += f" Of the paper's settings, {_listed(missing)} {'were' if len(missing) > 1 else 'was'} not run."
    commands = []
    for changes in dict.fromkeys(result.changes for result in results):
        commands += [f'CHANGES="{" ".join(changes)}"']
        commands += [f"{result.command} $CHANGES" for result in results if result.changes == changes]
    return "\n\n".join(
        [
            "# Results at small scale",
            _prose(intro),
            _bullets(_what_was_run(results)),
            "\n".join(
                ["```sh", "export ZOFC_DATA=FOLDER    # of the images and of the backbone's weights", *commands, "```"]
            ),
            f"Each writes `studies/STUDY/rows.json`, which is `{RESULTS}/STUDY.json` here.",
            _prose(other),
        ]
    )


def _what_was_run(results: Sequence[Result]) -> list[str]:
    found = []
    for says in dict.fromkeys(result.scale.says for result in results):
        mine = [result.study.name for result in results if result.scale.says == says]
        of_some = f" ({', '.join(mine)})" if len(mine) < len(results) else ""
        found.append(f"Scale {results[0].scale.name}{of_some}: {says}.")
    told = [f"{name} ({SETTINGS[name].says})" if SETTINGS[name].says else name for name in _settings(results)]
    found.append(f"Data, and classes in a task: {'; '.join(told)}.")
    changes = dict.fromkeys(change for result in results for change in result.changes)
    found.append(f"Changed in the recipes: {', '.join(f'`{change}`' for change in changes) or 'nothing'}.")
    by_seeds = dict.fromkeys(result.seeds for result in results)
    for seeds in by_seeds:
        mine = [result.study.name for result in results if result.seeds == seeds]
        which = "" if len(by_seeds) == 1 else f" ({', '.join(mine)})"
        found.append(f"Seed{'s' * (len(seeds) > 1)} {_listed(seeds)}{which}, of class order and of every draw.")
    for made in dict.fromkeys(tuple(row["environment"].items()) for result in results for row in result.good):
        with_ = dict(made)
        found.append(f"{with_['device_name']}, Python {with_['python']}, torch {with_['torch']}, timm {with_['timm']}.")
    runs = {row["run"]: row for result in results for row in result.good if "run" in row}
    files = dict.fromkeys(pair for row in runs.values() for pair in row["data"].items())
    sums = "; ".join(f"{name} {digest.removeprefix('sha256:')[:12]}…" for name, digest in files)
    found.append(f"The images, by sha256 of their files: {sums}.")
    if (notes := ROOT / RESULTS / NOTES).is_file():
        found += notes.read_text("utf-8").strip().split("\n\n")
    seconds = sum(row["seconds"]["train"] for row in runs.values())
    failed = sum("failed" in row for result in results for row in result.rows)
    found.append(f"{len(runs)} runs with {duration(seconds)} of training in all; {failed} cells of tables failed.")
    return found


def claims(results: Sequence[Result], verdicts: dict[str, Verdict]) -> str:
    """A table for each group of claims."""
    counts = Counter(_kind(verdict) for verdict in verdicts.values())
    tally = ", ".join(f"{counts[word]} {word}" for word in KINDS if counts[word])
    parts = ["## What holds here", _prose(f"Of {len(verdicts)} claims, {tally}."), _prose(RULE)]
    for heading, some in CLAIMS.items():
        rows = [(claim.text, claim.where, (found := verdicts[claim.text]).word, found.because) for claim in some]
        grid = Grid(("claim", "in the paper", "verdict", "because"), tuple(rows), names=4)
        parts += [f"### {heading}", grid.markdown().strip()]
    fast = [result.study.name for result in results if result.scale.fast and result.study.name in WITH_COST]
    if fast:
        were = "were" if len(fast) > 1 else "was"
        parts.append(
            _prose(
                f"Of what is said of cost, {_listed(fast)} {were} run with `--fast`: derivatives along up to four "
                "directions in one pass, in bf16. That is quicker than the paper's differences, one after the other in "
                "fp32, and its ratios of memory and time are others."
            )
        )
    return "\n\n".join(parts)


def _kind(verdict: Verdict) -> str:
    """One of KINDS: the word without its numbers, said of several."""
    word = verdict.word.partition(" (")[0]
    plural = {"holds": "hold", "does not hold": "do not hold", "within the spread of seeds": "are within the spread"}
    plural |= {"no difference": "show no difference", "not measured": "were not measured"}
    return plural.get(word, word if word in KINDS else "hold in part")


def study(result: Result, results: Sequence[Result]) -> str:
    """A study's tables, one for each setting, and figures."""
    parts = [f"### {result.study.title} (`{result.study.name}`)"]
    elsewhere = _shown_elsewhere(result, results)
    if elsewhere:
        parts.append(f"The numbers are those of {_listed(elsewhere)}.")
    else:
        parts += _tables(result)
    parts += [f"![{drawing.title}](figures/{name})" for name, drawing in drawn(result)]
    return "\n\n".join(parts)


def _shown_elsewhere(result: Result, results: Sequence[Result]) -> list[str]:
    """Of a study that is a figure: the tables that have all its runs, or nothing."""
    if result.study.shows not in ("curves", "trade-off"):
        return []
    mine = {row["run"] for row in result.good}
    runs = {
        other.study.name: {row["run"] for row in other.good} & mine for other in results if other.study.name in TABLES
    }
    return [name for name, shared in runs.items() if shared] if mine == set().union(*runs.values()) else []


def _tables(result: Result) -> Iterator[str]:
    whole = tables.table(result.study, result.scale, result.rows, result.settings, result.changes)
    notes = [note for note in whole.notes if not note.startswith(SAID_ABOVE)] + _failures(result)
    if len(result.seeds) > 1:
        notes.insert(0, f"{len(result.seeds)} seeds; mean ± standard deviation.")
    for setting in result.settings:
        rows = [row for row in result.rows if row["setting"] == setting]
        grid = tables.table(result.study, result.scale, rows, [setting])
        if grid.rows:
            heads = (setting, *(head.removeprefix(f"{setting}: ") for head in grid.headers[1:]))
            yield Grid(heads, grid.rows).markdown().strip()
    if notes:
        below = Grid(("",), (), notes=tuple(notes)).markdown().strip().split("\n\n")[1:]
        yield "\n\n".join(map(_prose, below))


def _failures(result: Result) -> list[str]:
    """Cells without a number: by setting and reason, which lines."""
    found: dict[tuple[str, str], list[str]] = {}
    for row in result.rows:
        if "failed" in row:
            lines = found.setdefault((row["setting"], row["failed"]), [])
            lines += [row["line"]] * (row["line"] not in lines)
    return [f"No numbers on {setting} for {'; '.join(lines)}. {why}" for (setting, why), lines in found.items()]


def rest(results: Sequence[Result], verdicts: dict[str, Verdict]) -> str:
    """What is open, and what would be needed."""
    parts = ["## What could not be tested here"]
    for word, about in (
        ("cannot be tested here", "Claims that these data and this backbone cannot test"),
        ("not measured", "Claims that could be tested here, and were not"),
    ):
        open_ = [claim for some in CLAIMS.values() for claim in some if verdicts[claim.text].word == word]
        if open_:
            parts.append(f"{about}:\n\n{_bullets([f'{claim.text} ({claim.where})' for claim in open_])}")
    absent = [name for name in STUDIES if name not in evidence_of(results)]
    if absent:
        parts.append(_prose(f"Studies without a result file: {', '.join(f'`{name}`' for name in absent)}."))
    parts.append(
        _prose(
            f"The paper's own scale needs the weights {PAPER_BACKBONE}, CIFAR-100, ImageNet-R and DomainNet (the "
            "[README](../README.md) says where they are looked for), and a GPU for days:"
        )
    )
    parts.append("```sh\nzofc reproduce all --scale paper --dry-run    # the plan, and how long it takes\n```")
    return "\n\n".join(parts)


def _settings(results: Sequence[Result]) -> list[str]:
    return [name for name in SETTINGS if any(name in result.settings for result in results)]


def _bullets(lines: Sequence[str]) -> str:
    return "\n".join(f"- {_prose(line, '  ')}" for line in lines)


def _prose(text: str, indent: str = "") -> str:
    return textwrap.fill(text, 118, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def _listed(words: Sequence[object]) -> str:
    *most, last = map(str, words)
    return f"{', '.join(most)} and {last}" if most else last


def main() -> None:
    results = load(ROOT / RESULTS)
    if not results:
        print(f"no results in {RESULTS}: nothing written")
        return
    text, path = page(results), ROOT / PAGE
    differs = not path.is_file() or path.read_text("utf-8") != text
    if "--check" in sys.argv:
        print(f"{PAGE} differs from the results" if differs else f"{PAGE} is as the results are")
        return
    path.write_text(text, "utf-8")
    pictures = {name: drawing for result in results for name, drawing in drawn(result)}
    draw(pictures, ROOT / FIGURES)
    print(f"{PAGE} written, with {len(pictures)} figures")


def draw(pictures: dict[str, figures.Drawing], folder: Path) -> None:
    """The figures of the page, and no others, in a folder of their own."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.png"):
        if old.name not in pictures:
            old.unlink()
    for name, drawing in pictures.items():
        figures.picture(drawing).savefig(folder / name, dpi=110, metadata={"Software": None})


if __name__ == "__main__":
    main()
