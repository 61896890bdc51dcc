"""docs/RESULTS.md: accuracies, the verdict on every claim, and what could not be tested, from one results folder."""

from __future__ import annotations

import json
import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from zofc.evidence.claims import Claim, all_claims, claim_groups
from zofc.evidence.lines import PARTS
from zofc.evidence.rows import RowTable, accuracy_cells, add_rows, adds_classes, read_evidence, result_rows
from zofc.evidence.verdicts import UNTESTED, VERDICTS, Verdict, effect_words, judge_claims
from zofc.report.grid import Grid
from zofc.studies.settings import SETTINGS
from zofc.units import NONE

RESULTS_PAGE = Path("docs/RESULTS.md")
BENCHMARK = Path("results/step.json")
VERDICTS_FILE = "verdicts.json"  # beside the results that they are made of
RATES_FILE = "rates.json"
NOTES = "NOTES.md"  # what must be known of the results and no file says
LARGEST_PAGE = 15_000  # bytes
COSTS = Path("results/costs")  # of steps: time, memory and operations, which do not depend on what is learned
TABLE_LINES = (
    "SimpleCIL", "Ridge regression (not in the paper)", "Ridge on a random projection of 8192 (not in the paper)",
    "Ridge on an orthogonal projection of 8192 (not in the paper)",
    "Ridge on an orthogonal projection within 64 MB (not in the paper)", "Learnable Cls., FO", "Adapter + Cls., FO",
    "Adapter + Cls., FO, steps as long as ZO-FC's", "ZO-FC", "ZO-FC, one direction per image", "APER Adapter, FO",
    "APER Adapter, ZO", "EASE, FO", "EASE, ZO", "LAE Adapter, FO", "L2P, FO", "CODA-Prompt, FO", "InfLoRA, FO",
    "ZO-FC + ridge on 8192", "ZO-FC, one direction per image + ridge on 8192", "APER Adapter, ZO + ridge on 8192",
    "RanPAC's recipe: APER Adapter, FO + ridge on 8192", "ZO-Ridge, 8192 wide (not in the paper)",
    "ZO-Ridge (not in the paper)",
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
    add_rows(table, [row for path in sorted((root / COSTS).glob("*.json")) for row in result_rows(path)])
    claims = all_claims()
    verdicts = judge_claims(claims, table)
    intro = _prose(INTRO.format(folder=folder, benchmark=BENCHMARK, verdicts=VERDICTS_FILE))
    parts = ["# Results", intro, "## Accuracy", accuracy_grid(table).markdown().strip()]
    parts += [TABLE_NOTE, "## Verdicts", _prose(RULE)]
    counts = Counter(verdict.word for verdict in verdicts.values())
    parts += [f"Of {len(verdicts)} claims: {', '.join(f'{counts[word]} {word}' for word in VERDICTS)}."]
    for group in claim_groups():
        if (grid := claims_grid(group.claims, verdicts)).rows:
            parts += [f"### {group.title}", grid.markdown().strip()]
    parts += ["## Not tested", _untested(claims, verdicts), "## How it was run", _bullets(_how(folder, root))]
    return "\n\n".join(part for part in parts if part) + "\n", verdicts


def accuracy_grid(table: RowTable) -> Grid:
    """All classes and forgetting of each line in each setting."""
    found = dict.fromkeys(key[1] for key, row in table.items() if "all_classes" in row)
    settings = [name for name in SETTINGS if name in found and adds_classes(name)]
    settings += [name for name in found if name.partition(",")[0] in SETTINGS and name not in SETTINGS]
    body = []
    for line in TABLE_LINES:
        cells = [" / ".join(accuracy_cells(table, line, setting)) for setting in settings]
        if any(not cell.startswith(NONE) for cell in cells):
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


def _how(folder: Path, root: Path) -> list[str]:
    """The commands behind the result files, and what must be known of them."""
    parts = {part.title: (name, part) for name, part in PARTS.items()}
    bullets = []
    for path in sorted((root / folder).glob("*.json")):
        about = json.loads(path.read_text("utf-8"))
        if about.get("title") in parts:
            name, part = parts[about["title"]]
            changes = [change for change in about["changes"] if change not in part.changes]
            words = ["--part", name, "--rates", str(folder / RATES_FILE), "--out", str(folder / path.name), *changes]
            bullets.append(f"{part.title}: `python -m zofc.evidence grid {' '.join(words)}`")
    rates = root / folder / RATES_FILE
    if rates.is_file():
        changes = json.loads(rates.read_text("utf-8"))["changes"]
        bullets.append(f"Learning rates, tested on training images that were held out: `python -m zofc.evidence "
                       f"rates --out {folder / RATES_FILE} {' '.join(changes)}`")  # fmt: skip
    notes = root / folder / NOTES
    return bullets + (notes.read_text("utf-8").strip().split("\n\n") if notes.is_file() else [])


def _bullets(texts: Sequence[str]) -> str:
    return "\n".join(_prose(" ".join(text.split()), "- ") for text in texts)
