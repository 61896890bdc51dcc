"""A study's table as CSV, with one line for each number, and as LaTeX."""

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
    """CSV text: `seeds` is the number of seeds behind a mean, `failed` that of failures; unknown values are empty."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    about = study, scale.name, str(scale.fast).lower()
    for one in numbers:
        if one.values or one.failed or one.printed is not None:
            mean, spread, paper = (
                "" if value is None else f"{value:.10g}" for value in (one.mean, one.spread, one.printed)
            )
            row = one.line, one.setting, one.metric, mean, spread, len(one.values), one.failed, paper
            writer.writerow([*about, *row])
    return text.getvalue()


# -- LaTeX -----------------------------------------------------------------------------------------------------------

SHORT = {  # headings of columns, explained in a note below the table
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


def as_latex(grid: Grid, settings: Sequence[str], columns: Mapping[str, str]) -> str:
    """A booktabs table under its title: each setting over its columns; warnings and notes below."""
    width = len(columns)
    starts = range(2, 2 + width * len(settings), width)
    lines = [
        " & ".join(["", *(rf"\multicolumn{{{width}}}{{c}}{{{_latex(name)}}}" for name in settings)]) + r" \\",
        "".join(rf"\cmidrule(lr){{{start}-{start + width - 1}}}" for start in starts),
        _latex_row(["", *[SHORT.get(metric, words) for metric, words in columns.items()] * len(settings)]),
        r"\midrule",
        *map(_latex_row, grid.rows),
    ]
    legend = "; ".join(f"{SHORT[metric]}: {words}" for metric, words in columns.items() if metric in SHORT)
    below = [*(f"Warning: {text}" for text in grid.warnings), *[f"{legend}."] * bool(legend), *grid.notes]
    notes = "\n\n".join(map(_latex, below))
    return TABLE % (_latex(grid.title), "r" * width * len(settings), "\n".join(lines), notes)


def _latex_row(cells: Sequence[str]) -> str:
    return " & ".join(map(_latex, cells)) + r" \\"


def _latex(text: str) -> str:
    return "".join(LATEX.get(letter, letter) for letter in text)
