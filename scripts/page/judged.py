"""The claims, by group: a table with the verdicts, and below it, folded, the numbers that each rests on."""

from __future__ import annotations

from collections.abc import Sequence

from claims import CLAIMS, Claim
from claims.lines import TABLES
from claims.verdicts import LEGEND, RULE, Verdict
from page.files import Result
from page.findings import Verdicts
from page.words import bullets, folded, listed, prose, table

WITH_COST = ("peak-memory", "runtime", "flops", *TABLES)  # which claims about cost rest on
HEADS = ("claim", "verdict", "here", "the paper's own numbers", "where it says so")


def claims(results: Sequence[Result], verdicts: Verdicts) -> str:
    once = all(len(result.seeds) == 1 for result in results)
    note = "All numbers are of one seed." if once else "Where a verdict rests on one seed, it says so."
    parts = [
        "## Which of the paper's claims hold here",
        prose(note),
        bullets(LEGEND),
        folded("When a difference counts", bullets(RULE)),
    ]
    for heading, some in CLAIMS.items():
        rows = [_row(claim, verdicts[claim.text], once) for claim in some]
        parts += [f"### {heading}", table(HEADS, rows, len(HEADS))]
        details = [f"**{claim.text}** {told}" for claim in some if (told := verdicts[claim.text].details)]
        parts += [folded("The numbers behind these verdicts", bullets(details))] * bool(details)
    return "\n\n".join([*parts, *_fast(results)])


def _row(claim: Claim, verdict: Verdict, once: bool) -> tuple[str, ...]:
    text = f"{claim.text} (Ours.)" if claim.ours else claim.text
    here = "; ".join(filter(None, [verdict.here, "" if once else verdict.seeds]))
    return text, verdict.word, here, verdict.paper or "–", claim.where


def _fast(results: Sequence[Result]) -> list[str]:
    fast = [result.study.name for result in results if result.scale.fast and result.study.name in WITH_COST]
    if not fast:
        return []
    return [
        prose(
            f"Of what is said of cost, {listed(fast)} {'were' if len(fast) > 1 else 'was'} run with `--fast`: "
            "derivatives along up to four directions in one pass, in bf16, where the paper takes differences, one "
            "after the other in fp32. The memory of the trade-off is of such runs, and the most of any task; that of "
            "peak-memory is of the paper's steps in the first task. Times and operations are of our steps on the "
            "backbone of these studies, which leave out what the published steps compute twice."
        )
    ]
