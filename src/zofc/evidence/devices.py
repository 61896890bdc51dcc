"""The tables of learning on ONNX Runtime, from `benchmarks/device.py` and `benchmarks/device_streams.py`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from zofc.evidence.rows import spread
from zofc.report.grid import Grid
from zofc.units import NONE

MeasuredRows = Sequence[Mapping[str, Any]]


def device_table(rows: MeasuredRows) -> Grid:
    """`results/device.json`: a line for each backbone and engine; time and memory of each kind of step."""
    steps = list(dict.fromkeys(row["step"] for row in rows if "step" in row))
    engines = dict.fromkeys((row["backbone"], row["engine"]) for row in rows if "step" in row)
    sizes = {(row["backbone"], f"ONNX Runtime, {row['precision']}"): row["bundle_bytes"] for row in rows
             if "bundle_bytes" in row}  # fmt: skip
    learning = {(row["backbone"], row["engine"].replace("zofc-device learn", "ONNX Runtime")): row["peak_rss"]
                for row in rows if "step" not in row and "peak_rss" in row}  # fmt: skip
    body = []
    for backbone, engine in engines:
        own = {row["step"]: row for row in rows if (row.get("backbone"), row.get("engine")) == (backbone, engine)
               and "step" in row}  # fmt: skip
        times = [f"{own[step]['milliseconds']:.0f}" if step in own else NONE for step in steps]
        peak = max(row["peak_rss"] for row in own.values())
        place = backbone, engine
        body.append((*place, _megabytes(sizes.get(place)), *times, _megabytes(peak), _megabytes(learning.get(place))))
    heads = ("Backbone", "Engine", "Bundle (MB)", *(f"{step} (ms)" for step in steps))
    return Grid((*heads, "Peak memory (MB)", "learn (MB)"), tuple(body))


def agreement_table(rows: MeasuredRows) -> Grid:
    """`results/device.json`: how many test images `predict.onnx` answers as torch does, and how many rightly."""
    body = []
    for row in rows:
        if "same" in row:
            shares = (f"{100 * row[key] / row['images']:.2f}" for key in ("same", "right", "right_in_torch"))
            body.append((row["backbone"], row["precision"], f"{row['images']:,}", *shares))
    heads = "Backbone", "Precision", "Test images", "Answers as torch's (%)", "Right (%)", "Right in torch (%)"
    return Grid(heads, tuple(body))


def install_table(rows: MeasuredRows) -> Grid:
    """`results/device.json`: environments with nothing else in them, and what torch occupies in another one."""
    body = []
    for row in rows:
        if "installed_bytes" in row:
            seconds = f"{row['import_seconds']:.2f}" if "import_seconds" in row else NONE
            body.append(
                (
                    " ".join(filter(None, (row["package"], row.get("version")))),
                    _megabytes(row["installed_bytes"]),
                    seconds,
                )
            )
    return Grid(("Package", "Installed (MB)", "Import (s)"), tuple(body))


def streams_table(rows: MeasuredRows) -> Grid:
    """`results/device_streams.json`: accuracy over seeds by engine, and the share of test images answered alike."""
    body = []
    for title, engine in dict.fromkeys((row["experiment"], row["engine"]) for row in rows):
        some = [row for row in rows if (row["experiment"], row["engine"]) == (title, engine)]
        same = [100 * row["agrees_with_torch"] for row in some if row.get("agrees_with_torch") is not None]
        alike = f"{fmean(same):.2f}" if same else NONE
        body.append((title, engine, spread([row["accuracy"] for row in some]), alike))
    return Grid(("Stream", "Engine", "Accuracy (%)", "Answers as torch's (%)"), tuple(body))


def _megabytes(count: float | None) -> str:
    return NONE if count is None else f"{count / 1e6:.0f}"
