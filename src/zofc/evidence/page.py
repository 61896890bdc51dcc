"""docs/RESULTS.md: accuracies and the verdict on every claim that was tested, from one results folder."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from zofc.evidence.claims import Claim, all_claims, claim_groups
from zofc.evidence.flatness_table import curvature_note
from zofc.evidence.rows import (
    EARLIER,
    RowTable,
    accuracy_cells,
    add_rows,
    adds_classes,
    read_evidence,
    result_rows,
)
from zofc.evidence.untested import prose
from zofc.evidence.verdicts import UNTESTED, VERDICTS, Verdict, effect_words, judge_claims
from zofc.report.grid import Grid
from zofc.studies.settings import SETTINGS
from zofc.units import NONE

RESULTS_PAGE = Path("docs/RESULTS.md")
BENCHMARK = Path("results/step.json")
VERDICTS_FILE = "verdicts.json"  # beside the results that they are made of
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
OURS = " (not in the paper)"  # is said once, below the table
TABLE_NOTE = (
    "Mean ± standard deviation over seeds, in points. FO, ZO: first and zeroth order. DINOv2 ViT-S/14 at 224 px, "
    "frozen; all training images but where their number is named; each line at its own searched rates. Ridge "
    "regression and ZO-Ridge are not in the paper."
)
FLATNESS = "Flatness"  # the group of claims with a page of its own
FLATNESS_LINK = "Numbers of each line: [flatness](results/flatness.md)."
COST = "Cost"  # the group with a note of its own
COST_NOTE = "Steps of a ViT of width 384 at 64 px, as executed; published steps of ViT-B/16; trade-off: the runs above."
INTRO = (
    "Made by `python -m zofc.evidence page` from [{folder}](../{folder}) and [{benchmark}](../{benchmark}). Every "
    "comparison: [verdicts.json](../{folder}/{verdicts}); where the paper makes each claim: [claims.yaml]"
    "(../src/zofc/evidence/claims.yaml); claims that were not tested, and all commands: [how it was run]"
    "(results/untested.md)."
)
RULE = (
    "The effect is the mean difference over all comparisons of a claim (lines × settings) with its 95 % interval over "
    "seeds, in points, or with × a ratio; then how many comparisons are for the claim, against it, or open. "
    "*Supported*: the interval is on the claimed side, and at most one comparison in twenty is against. "
    "*Contradicted*: it is on the other side, or more than that, and at least two, are against. *Inconclusive*: "
    "neither, or fewer than half of the methods that the claim names were measured. [In full](explanation/verdicts.md)."
)


def results_page(folder: Path, root: Path) -> tuple[str, dict[str, Verdict]]:
    """The page and its verdicts, from the result files of `folder` (relative to `root`)."""
    table = read_evidence(root / folder, root / BENCHMARK)
    add_rows(table, [row for path in sorted((root / COSTS).glob("*.json")) for row in result_rows(path)])
    claims = all_claims()
    verdicts = judge_claims(claims, table)
    intro = prose(INTRO.format(folder=folder, benchmark=BENCHMARK, verdicts=VERDICTS_FILE))
    parts = ["# Results", intro, "## Accuracy", accuracy_grid(table).markdown().strip()]
    parts += [prose(f"{TABLE_NOTE}{_earlier(table)}"), "## Verdicts", prose(RULE)]
    counts = Counter(verdict.word for verdict in verdicts.values())
    parts += [f"Of {len(verdicts)} claims: {', '.join(f'{counts[word]} {word}' for word in VERDICTS)}."]
    for group in claim_groups():
        if (grid := claims_grid(group.claims, verdicts)).rows:
            parts += [f"### {group.title}", grid.markdown().strip()]
        if group.title == FLATNESS and (note := curvature_note(table)):
            parts += [prose(f"{note} {FLATNESS_LINK}")]
        if group.title == COST and grid.rows:
            parts += [COST_NOTE]
    return "\n\n".join(part for part in parts if part) + "\n", verdicts


def _earlier(table: RowTable) -> str:
    """What the mark of rows means that the present recipe did not make."""
    whys = dict.fromkeys(row[EARLIER] for row in table.values() if EARLIER in row)
    return "".join(f" † In no verdict, made by an earlier recipe: {why}." for why in whys)


def accuracy_grid(table: RowTable) -> Grid:
    """All classes and forgetting of each line in each setting."""
    found = dict.fromkeys(key[1] for key, row in table.items() if "all_classes" in row)
    settings = [name for name in SETTINGS if name in found and adds_classes(name)]
    settings += [name for name in found if name.partition(",")[0] in SETTINGS and name not in SETTINGS]
    body = []
    for line in TABLE_LINES:
        cells = [" / ".join(accuracy_cells(table, line, setting)) for setting in settings]
        if any(not cell.startswith(NONE) for cell in cells):
            title = line.removesuffix(OURS)
            body.append((title, *(NONE if cell.startswith(NONE) else cell for cell in cells)))
    return Grid(("All classes (%) / forgetting", *settings), tuple(body))


def claims_grid(claims: Sequence[Claim], verdicts: Mapping[str, Verdict]) -> Grid:
    """One line for each claim that was tested."""
    tested = [verdicts[claim.id] for claim in claims if verdicts[claim.id].word != UNTESTED]
    rows = tuple((one.claim.says, one.word, effect_words(one)) for one in tested)
    return Grid(("claim", "verdict", "effect"), rows, names=3)
