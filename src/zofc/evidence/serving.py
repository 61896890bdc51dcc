"""The tables of answers, and of their calibration and rejections, from the results of benchmarks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from zofc.report.grid import Grid

CALIBRATION_COLUMNS = {
    "accuracy": "Accuracy (%)",
    "calibration_error": "Calibration error (%)",
    "calibration_error_plain_softmax": "of the plain softmax (%)",
    "known_rejected": "Known rejected (%)",
    "unseen_rejected": "Unseen rejected (%)",
    "unseen_rejected_at_exact_rate": "at exactly 5 % of the known (%)",
}


def calibration_table(measured: Sequence[Mapping[str, Any]]) -> Grid:
    """`results/calibration.json`: means over seeds by the number of images of a class."""
    rows = [
        (
            str(row["per_class"]),
            *(f"{100 * fmean(run[key] for run in row['seeds']):.1f}" for key in CALIBRATION_COLUMNS),
        )
        for row in measured
    ]
    return Grid(("Images a class", *CALIBRATION_COLUMNS.values()), tuple(rows))


def answers_table(measured: Sequence[Mapping[str, Any]]) -> Grid:
    """`results/predict.json`: the time of an answer beside a forward pass."""
    rows = [
        (
            row["backbone"].removesuffix(".safetensors"),
            f"{row['answer_ms']:.1f}",
            f"{row['forward_ms']:.1f}",
            f"{row['ratio']:.2f}",
            f"{row['answers_per_second']:.0f}",
        )
        for row in measured
    ]
    return Grid(
        ("Backbone", "Answer (ms)", "Forward pass (ms)", "Ratio", "Answers a second, eight threads"), tuple(rows)
    )
