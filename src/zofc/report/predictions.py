"""The answers of `zofc predict`, a row for each image: as a table, as CSV or as lines of JSON. A row is the object that
JSON shows: `image`, and `classes` (`name`, `probability`, best first) or, where there is no answer, `error`."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import Any

from zofc.report.grid import Grid
from zofc.runfolder.files import json_text
from zofc.units import printable

Answer = dict[str, Any]
NONE_OF_THESE = "none of these"


def predictions_grid(rows: Sequence[Answer]) -> Grid:
    """A table with as many pairs of class and probability as a row has at most."""
    top = max((len(row.get("classes", ())) for row in rows), default=0)
    headers = ["class", "%", *(text for number in range(2, top + 1) for text in (f"{number}.", "%"))]
    lines = []
    for row in rows:
        if "error" in row:
            cells = [f"error: {row['error']}"]
        elif not row["classes"]:
            cells = [NONE_OF_THESE]
        else:
            cells = [cell for one in row["classes"] for cell in (one["name"], f"{100 * one['probability']:.1f}")]
        lines.append((row["image"], *cells, *[""] * (len(headers) - len(cells))))
    return Grid(("image", *headers), tuple(lines), names=2)


def predictions_csv(rows: Sequence[Answer]) -> str:
    """Columns image, class, probability, class_2, probability_2, …, none_of_these (if asked for) and error."""
    top = max((len(row.get("classes", ())) for row in rows), default=0)
    numbers = ["", *(f"_{number}" for number in range(2, top + 1))]
    rejecting = ["none_of_these"] * any("none_of_these" in row for row in rows)
    columns = [f"{word}{number}" for number in numbers for word in ("class", "probability")]
    file = io.StringIO()
    writer = csv.DictWriter(file, ["image", *columns, *rejecting, "error"], restval="", lineterminator="\n")
    writer.writeheader()
    for row in rows:
        cells = {key: value for key, value in row.items() if key != "classes"}
        for number, one in zip(numbers, row.get("classes", ()), strict=False):
            cells |= {f"class{number}": one["name"], f"probability{number}": one["probability"]}
        writer.writerow(cells)
    return file.getvalue()


def predictions_json(rows: Sequence[Answer]) -> str:
    """One object a line."""
    lines = [json_text(row, ascii_only=False) for row in rows]
    exact = [line if line == printable(line) else json_text(row) for line, row in zip(lines, rows, strict=True)]
    return "".join(f"{line}\n" for line in exact)


def prediction_line(row: Answer) -> str:
    """An answer in a line of text."""
    classes = [f"{one['name']} {100 * one['probability']:.1f} %" for one in row["classes"]]
    return f"{row['image']}: {', '.join(classes) or NONE_OF_THESE}"
