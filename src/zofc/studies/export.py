"""A study's table as files for other programs: CSV, a line for each number, and LaTeX."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence

from zofc.report.grid import Grid
from zofc.studies.displays import FLATNESS_COLUMNS
from zofc.studies.scale import Scale
from zofc.studies.tables import Number

COLUMNS = ("study", "scale", "fast", "line", "setting", "metric", "mean", "std", "seeds", "failed", "paper")


def as_csv(study: str, scale: Scale, numbers: Iterable[Number]) -> str:
    """`seeds` is how many the mean is over, `failed` how many others failed; what there is not is left empty."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    about = study, scale.name, str(scale.fast).lower()
    for one in numbers:
        if one.values or one.failed or one.printed is not None:
            found = _plain(one.mean), _plain(one.spread), len(one.values), one.failed, _plain(one.printed)
            writer.writerow([*about, one.line, one.setting, one.metric, *found])
    return text.getvalue()


def _plain(value: float | None) -> str:
    return "" if value is None else f"{value:.10g}"


# -- LaTeX -----------------------------------------------------------------------------------------------------------

SHORT = {  # heads of columns, which a note below the table spells out
    "average_incremental": "avg", "all_classes": "last", "forgetting": "fgt", "gigabytes": "GiB", "seconds": "s",
    **{metric: f"Φ {number}" for number, metric in enumerate(FLATNESS_COLUMNS, 1)},
}  # fmt: skip
LATEX = {
    "\\": r"\textbackslash{}", "^": r"\textasciicircum{}", "~": r"\textasciitilde{}", "{": r"\{", "}": r"\}",
    "$": r"\$", "%": r"\%", "&": r"\&", "_": r"\_", "#": r"\#", "<": "$<$", ">": "$>$", "|": "$|$",
    "±": r"$\pm$", "—": "---", "–": "--", "−": "$-$", "·": r"$\cdot$", "×": r"$\times$", "…": r"\dots{}",
    "≤": r"$\leq$", "≥": r"$\geq$", "Φ": r"$\Phi$", "θ": r"$\theta$", "ρ": r"$\rho$", "ε": r"$\epsilon$",
    "⁺": "$^+$", "‖": r"$\|$", "λ": r"$\lambda$", "Δ": r"$\Delta$", "ᵀ": "$^T$", "²": "$^2$", "½": r"$\frac12$",
    "\n": " ",
}  # fmt: skip
TABLE = r"""%% needs \usepackage{booktabs}
\begin{table}
\centering
\caption{%s}
\begin{tabular}{l%s}
\toprule
%s
\bottomrule
\end{tabular}

\medskip
\begin{minipage}{\linewidth}
\footnotesize
%s
\end{minipage}
\end{table}
"""


def as_latex(grid: Grid, settings: Sequence[str], measures: Mapping[str, str]) -> str:
    """A booktabs table under its title: each setting over its measures; warnings and notes below."""
    width = len(measures)
    starts = range(2, 2 + width * len(settings), width)
    lines = [
        " & ".join(["", *(rf"\multicolumn{{{width}}}{{c}}{{{_latex(name)}}}" for name in settings)]) + r" \\",
        "".join(rf"\cmidrule(lr){{{start}-{start + width - 1}}}" for start in starts),
        _row(["", *[SHORT.get(metric, words) for metric, words in measures.items()] * len(settings)]),
        r"\midrule",
        *map(_row, grid.rows),
    ]
    spelled = "; ".join(f"{SHORT[metric]}: {words}" for metric, words in measures.items() if metric in SHORT)
    below = [*(f"Warning: {text}" for text in grid.warnings), *[f"{spelled}."] * bool(spelled), *grid.notes]
    notes = "\n\n".join(map(_latex, below))
    return TABLE % (_latex(grid.title), "r" * width * len(settings), "\n".join(lines), notes)


def _row(cells: Sequence[str]) -> str:
    return " & ".join(map(_latex, cells)) + r" \\"


def _latex(text: str) -> str:
    return "".join(LATEX.get(letter, letter) for letter in text)
