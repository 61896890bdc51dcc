"""Write docs/RESULTS.md and its figures from the rows of studies at small scale, `results/small/STUDY.json`.

python scripts/results_page.py            # write
python scripts/results_page.py --check    # only say what would change, with status 1 if something would

A result file is the rows.json that `zofc reproduce STUDY --scale small` writes. Every number of the page comes from
these files and that of the step benchmark, the verdicts on the paper's claims (claims/, by the rule of
claims/verdicts.py) included.
"""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from PIL import Image

from claims import CLAIMS
from page.files import Result, drawn, evidence_of, load
from page.findings import findings
from page.judged import claims
from page.setup import setup
from page.studies import studies
from page.words import prose
from zofc.studies import figures

ROOT = Path(__file__).resolve().parents[1]
RESULTS, PAGE, FIGURES = Path("results/small"), Path("docs/RESULTS.md"), Path("docs/figures")
HEADS = ("Findings", "Which of the paper's claims hold here", *CLAIMS, "The studies", "How it was run")
STEP = Path("results/step.json")
MADE_OF = "Description"  # the entry of a picture that says what was drawn
Pictures = Mapping[str, figures.Drawing]  # by the names of their files


def page(results: Sequence[Result]) -> str:
    evidence = evidence_of(results, ROOT / STEP)
    verdicts = {claim.text: claim.verdict(evidence) for some in CLAIMS.values() for claim in some}
    intro = (
        "The studies of the paper at a small scale: which of its claims hold there, and the numbers. Written by "
        f"`python scripts/results_page.py` from the files in [{RESULTS}](../{RESULTS}); its tables and verdicts are "
        "not typed by hand."
    )
    contents = " · ".join(f"[{head}](#{anchor(head)})" for head in HEADS)
    parts = ["# Results at small scale", prose(intro), prose(contents), findings(results, evidence, verdicts)]
    parts += [claims(results, verdicts), studies(results), setup(results, ROOT, RESULTS)]
    return "\n\n".join(parts) + "\n"


def anchor(head: str) -> str:
    """Of a heading in a page that GitHub shows."""
    return re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-")


def pictures(results: Sequence[Result]) -> Pictures:
    return {name: drawing for result in results for name, drawing in drawn(result)}


def made_of(drawing: figures.Drawing) -> str:
    """The same for the same lines and points, whichever library draws them."""
    return hashlib.sha256(repr(drawing).encode()).hexdigest()


def draw(wanted: Pictures, folder: Path) -> None:
    """The figures of the page, and no others, in a folder of their own."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.png"):
        if old.name not in wanted:
            old.unlink()
    for name, drawing in wanted.items():
        metadata = {"Software": None, MADE_OF: made_of(drawing)}
        figures.picture(drawing).savefig(folder / name, dpi=110, metadata=metadata)


def differing(text: str, wanted: Pictures) -> list[Path]:
    """The page and figures that are not as the results give them."""
    path, folder = ROOT / PAGE, ROOT / FIGURES
    found = [] if path.is_file() and path.read_text("utf-8") == text else [PAGE]
    there = {path.name for path in folder.glob("*.png")}
    right = {name for name in there & set(wanted) if _drawn_as(folder / name) == made_of(wanted[name])}
    return [*found, *(FIGURES / name for name in sorted((there | set(wanted)) - right))]


def _drawn_as(path: Path) -> str | None:
    with Image.open(path) as picture:
        return picture.info.get(MADE_OF)


def main() -> None:
    results = load(ROOT / RESULTS)
    if not results:
        print(f"no results in {RESULTS}: nothing written")
        return
    text, wanted = page(results), pictures(results)
    if "--check" in sys.argv:
        differ = differing(text, wanted)
        print("\n".join(f"{path} differs from the results" for path in differ) or f"{PAGE} is as the results are")
        sys.exit(int(bool(differ)))
    (ROOT / PAGE).write_text(text, "utf-8")
    draw(wanted, ROOT / FIGURES)
    print(f"{PAGE} written, with {len(wanted)} figures")


if __name__ == "__main__":
    main()
