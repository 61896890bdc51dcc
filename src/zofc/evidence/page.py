"""docs/RESULTS.md: accuracies, the verdict on every claim, and what could not be tested, from one results folder."""

from __future__ import annotations

import json
import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from zofc.evidence.claims import Claim, all_claims, claim_groups
from zofc.evidence.rows import RowTable, accuracy_cells, adds_classes, read_evidence
from zofc.evidence.verdicts import UNTESTED, VERDICTS, Verdict, effect_words, judge_claims
from zofc.report.grid import Grid
from zofc.studies.settings import SETTINGS
from zofc.units import NONE

RESULTS_PAGE = Path("docs/RESULTS.md")
BENCHMARK = Path("results/step.json")
VERDICTS_FILE = "verdicts.json"  # beside the results that they are made of
NOTES = "NOTES.md"  # what must be known of the results and no file says
LARGEST_PAGE = 15_000  # bytes
TABLE_LINES = (
    "SimpleCIL", "Ridge regression (not in the paper)", "Learnable Cls., FO", "Adapter + Cls., FO", "LAE Adapter, FO",
    "L2P, FO", "CODA-Prompt, FO", "APER Adapter, FO", "EASE, FO", "InfLoRA, FO", "Learnable Cls., ZO",
    "Adapter + Cls., ZO", "APER Adapter, ZO", "EASE, ZO", "ZO-FC",
)  # fmt: skip
TABLE_NOTE = "Mean ± standard deviation over seeds, in points. FO, ZO: first and zeroth order."
INTRO = (
    "Accuracies and verdicts on the paper's claims, made by `python -m zofc.evidence page` from [{folder}](../{folder})"
    " and [{benchmark}](../{benchmark}). Every comparison behind a verdict is in [{verdicts}](../{folder}/{verdicts}), "
    "where the paper makes each claim in [claims.yaml](../src/zofc/evidence/claims.yaml)."
)
RULE = (
    "The effect is the mean difference over all comparisons of a claim (lines × settings) with its 95 % interval over "
    "seeds, in points, or with × a ratio; then how many comparisons are for the claim, against it, or open by their "
    "own intervals. *Supported*: the whole interval is on the claimed side of the margin, and at most one comparison "
    "in twenty is against. *Contradicted*: it is on the other side, or two or more comparisons, and more than one in "
    "twenty, are against. *Inconclusive*: neither; with the present spread so many seeds would decide. The rule in "
    "full: [verdicts](explanation/verdicts.md)."
)


def results_page(folder: Path, root: Path) -> tuple[str, dict[str, Verdict]]:
    """The page and its verdicts, from the result files of `folder` (relative to `root`)."""
    table = read_evidence(root / folder, root / BENCHMARK)
    claims = all_claims()
    verdicts = judge_claims(claims, table)
    intro = _prose(INTRO.format(folder=folder, benchmark=BENCHMARK, verdicts=VERDICTS_FILE))
    parts = ["# Results", intro, "## Accuracy", accuracy_grid(table).markdown().strip()]
    parts += [TABLE_NOTE, "## Verdicts", _prose(RULE)]
    counts = Counter(verdict.word for verdict in verdicts.values())
    parts += [f"Of {len(verdicts)} claims: {', '.join(f'{counts[word]} {word}' for word in VERDICTS)}."]
    for group in claim_groups():
        parts += [f"### {group.title}", claims_grid(group.claims, verdicts).markdown().strip()]
    parts += ["## Not tested", _untested(claims, verdicts), "## How it was run", _bullets(_how(root / folder))]
    return "\n\n".join(part for part in parts if part) + "\n", verdicts


def accuracy_grid(table: RowTable) -> Grid:
    """All classes and forgetting of each line in each setting."""
    found = dict.fromkeys(setting for _, setting, _ in table)
    settings = [name for name in SETTINGS if name in found and adds_classes(name)]
    settings += [name for name in found if name.partition(",")[0] in SETTINGS and name not in SETTINGS]
    body = []
    for line in TABLE_LINES:
        cells = [" / ".join(accuracy_cells(table, line, setting)) for setting in settings]
        body.append((line, *(NONE if cell.startswith(NONE) else cell for cell in cells)))
    return Grid(("All classes (%) / forgetting", *settings), tuple(body))


def claims_grid(claims: Sequence[Claim], verdicts: Mapping[str, Verdict]) -> Grid:
    """One line for each claim that was tested."""
    tested = [verdicts[claim.id] for claim in claims if verdicts[claim.id].word != UNTESTED]
    rows = tuple((one.claim.says, one.word, effect_words(one)) for one in tested)
    return Grid(("claim", "verdict", "effect"), rows, names=3)


def _prose(text: str, bullet: str = "") -> str:
    return textwrap.fill(bullet + text, 118, subsequent_indent=" " * len(bullet), break_long_words=False,
                         break_on_hyphens=False)  # fmt: skip


def _untested(claims: Sequence[Claim], verdicts: Mapping[str, Verdict]) -> str:
    """Claims by why they are untested."""
    reasons: dict[str, list[str]] = {}
    for claim in claims:
        if verdicts[claim.id].word == UNTESTED:
            reasons.setdefault(verdicts[claim.id].why, []).append(claim.says)
    return _bullets([f"{why[:1].upper()}{why[1:].rstrip('.')}: {' '.join(says)}" for why, says in reasons.items()])


def _how(folder: Path) -> list[str]:
    """The commands behind the result files, and what must be known of them."""
    by_command: dict[tuple[str, str], list[str]] = {}
    for path in sorted(folder.glob("*.json")):
        about = json.loads(path.read_text("utf-8"))
        if "study" in about:
            seeds = len({row["seed"] for row in about["rows"]})
            words = [f"--scale {about['scale']}", *["--fast"] * about["fast"], *[f"--seeds {seeds}"] * (seeds > 1)]
            key = " ".join([*words, *about["changes"]]), about["says"]
            by_command.setdefault(key, []).append(about["study"])
    bullets = [f"`zofc reproduce STUDY {command}` for {', '.join(studies)}." for (command, _), studies in
               by_command.items()]  # fmt: skip
    if by_command:
        bullets.append(f"Scale: {max((says for _, says in by_command), key=len)}.")
    notes = folder / NOTES
    return bullets + (notes.read_text("utf-8").strip().split("\n\n") if notes.is_file() else [])


def _bullets(texts: Sequence[str]) -> str:
    return "\n".join(_prose(" ".join(text.split()), "- ") for text in texts)
