"""The tables of answers, of their calibration and rejections, and of a server that is taught, from the results of
benchmarks."""

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

DELIVERED_COLUMNS = {
    "accuracy": "Accuracy (%)",
    "calibration_error": "Calibration error (%)",
    "calibration_error_of_right_probabilities": "of right probabilities (%)",
    "known_rejected": "Known rejected (%)",
    "unseen_rejected": "Unseen rejected (%)",
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


def delivered_table(measured: Sequence[Mapping[str, Any]]) -> Grid:
    """`delivered` of `results/calibration.json`: means over seeds, and the least and the largest share of images of
    unseen classes."""
    rows = []
    for row in measured:
        means = [f"{100 * fmean(run[key] for run in row['seeds']):.1f}" for key in DELIVERED_COLUMNS]
        shares = [100 * run["unseen_rejected"] for run in row["seeds"]]
        if len(shares) > 1:
            means[-1] += f" ({min(shares):.0f} to {max(shares):.0f})"
        backbone = row["backbone"].removesuffix(".safetensors")
        rows.append((row["photographs"], backbone, str(row["per_class"]), str(len(shares)), *means))
    heads = ("Photographs", "Backbone", "Images a class", "Seeds", *DELIVERED_COLUMNS.values())
    return Grid(heads, tuple(rows))


def answers_table(measured: Sequence[Mapping[str, Any]]) -> Grid:
    """`results/predict.json`: the time of an answer beside a forward pass."""
    rows = [
        (
            row["recipe"],
            row["backbone"].removesuffix(".safetensors"),
            f"{row['answer_ms']:.1f}",
            f"{row['forward_ms']:.1f}",
            f"{row['ratio']:.2f}",
            f"{row['answers_per_second']:.0f}",
        )
        for row in measured
    ]
    heads = ("Recipe", "Backbone", "Answer (ms)", "Forward pass (ms)", "Ratio", "Answers a second, eight threads")
    return Grid(heads, tuple(rows))


def teach_table(measured: Sequence[Mapping[str, Any]]) -> Grid:
    """`results/teach.json`: answers of `zofc teach` to clients, with and without lessons."""
    rows = [
        (
            row["backbone"].removesuffix(".safetensors"),
            str(load["clients"]),
            "yes" if load["lessons"] else "no",
            f"{load['answers_per_second']:.1f}",
            f"{load['median_ms']:.0f}",
            f"{load['p99_ms']:.0f}",
        )
        for row in measured
        for load in row["loads"]
    ]
    heads = ("Clients", "Lesson", "Answers a second", "Median (ms)", "p99 (ms)")
    return Grid(("Backbone", *heads), tuple(rows))


FIRST_MINUTE = {
    "answering": "The server answers (s)",
    "pictures": "20 pictures are added (s)",
    "taught": "The lesson is learned (s)",
    "answer": "A picture is answered (s)",
}


def first_minute_table(measured: Sequence[Mapping[str, Any]]) -> Grid:
    """`results/teach.json`: seconds from the command to each step of a first lesson, as far as they were measured."""
    rows = []
    for row in measured:
        reached = {"taught": row["first_lesson_s"], **row.get("first_minute", {})}
        cells = (f"{reached[step]:.0f}" if step in reached else "–" for step in FIRST_MINUTE)
        rows.append((row["backbone"].removesuffix(".safetensors"), *cells))
    return Grid(("Backbone", *FIRST_MINUTE.values()), tuple(rows))
