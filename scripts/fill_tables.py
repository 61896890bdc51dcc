"""Write the tables of the documents from the result files, and that of the settings from the recipe: what stands
between `<!-- NAME -->` and `<!-- /NAME -->`.

python scripts/fill_tables.py            # write
python scripts/fill_tables.py --check    # only say which document would change
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from itertools import groupby
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path += [str(ROOT / "scripts"), str(ROOT / "benchmarks")]

import step  # noqa: E402

import demo_results  # noqa: E402
import estimator_results  # noqa: E402
import method_results  # noqa: E402
from zofc.methods import SECTIONS  # noqa: E402
from zofc.recipe.settings import describe_section, list_settings  # noqa: E402

DOCUMENTS = (
    "README.md",
    "benchmarks/README.md",
    "docs/reference/settings.md",
    "docs/results/methods.md",
    "docs/results/speed.md",
)
SHORT = ("published", "published-first", "forward", "first", "late-3", "spsa", "first-fp32", "spsa-bf16")
PLANS = {  # a plan, with the rows of zeroth and of first order
    "as published, fp32": ("published", "published-first"),
    "whole batch, bf16": ("forward", "first"),
    "small, bf16": ("small-bf16", "first-small-bf16"),
    "least, fp32": ("least-fp32", "first-least"),
    "least, bf16": ("least-bf16", "first-least-bf16"),
}


def result(name: str) -> Any:
    return json.loads((ROOT / "results" / f"{name}.json").read_text())


def steps(name: str, chosen: tuple[str, ...] | None = None) -> str:
    rows = {row["name"]: step.Row(**row) for row in result(name)["rows"]}
    return step.table([rows[key] for key in chosen or rows])


def memory() -> str:
    rows = {row["name"]: row for name in ("step", "step_memory") for row in result(name)["rows"]}
    lines = [
        "| plan of a step | zeroth order: GiB | ms | first order: GiB | ms |",
        "| --- | --- | --- | --- | --- |",
    ]
    for plan, pair in PLANS.items():
        cells = []
        for name in pair:
            row = rows.get(name)
            cells += ["–", "–"] if row is None else [f"{row['peak_bytes'] / 2**30:.3f}", f"{row['milliseconds']:.0f}"]
        lines.append(f"| {plan} | {' | '.join(cells)} |")
    return "\n".join(lines)


def all_settings() -> str:
    """A heading and a table for each part of a recipe."""
    parts = []
    for name, group in groupby(list_settings(SECTIONS), key=lambda one: one.key.partition(".")[0] * ("." in one.key)):
        rows = list(group)
        lines = [f"## {name or 'The run'}", "", describe_section(rows[0].key, SECTIONS), ""]
        lines += ["| setting | values | default | meaning |", "| --- | --- | --- | --- |"]
        lines += [f"| `{row.key}` | {row.values} | {row.default} | {plain(row.description)} |" for row in rows]
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def plain(text: str) -> str:
    """As it stands, where Markdown would take it for a tag or a column."""
    return re.sub(r"([<|*])", r"\\\1", text)


TABLES: dict[str, Callable[[], str]] = {
    "demo table": lambda: demo_results.table(result("demo")),
    "methods table": lambda: method_results.table(result("methods")["rows"]),
    "estimators table": lambda: estimator_results.table(result("estimators")["rows"]),
    "step table": lambda: steps("step", SHORT),
    "whole step table": lambda: steps("step"),
    "little memory": lambda: steps("step_memory"),
    "step on two cores": lambda: steps("step_cpu"),
    "memory table": memory,
    "all settings": all_settings,
}


def filled(text: str) -> str:
    """The document with every table as its result file gives it now."""

    def write(found: re.Match[str]) -> str:
        return f"<!-- {found[1]} -->\n{TABLES[found[1]]()}\n<!-- /{found[1]} -->"

    return re.sub(r"<!-- ([\w ]+) -->\n.*?<!-- /\1 -->", write, text, flags=re.DOTALL)


def main() -> None:
    differ = False
    for name in DOCUMENTS:
        path = ROOT / name
        text = path.read_text("utf-8")
        new = filled(text)
        if new != text:
            differ = True
            print(f"{name} {'is not what it would be written as' if '--check' in sys.argv else 'written'}")
            if "--check" not in sys.argv:
                path.write_text(new, "utf-8")
    sys.exit(int(differ and "--check" in sys.argv))


if __name__ == "__main__":
    main()
