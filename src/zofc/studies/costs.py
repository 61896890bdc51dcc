"""What a step costs, for the paper's tables of time and of operations (its appendix H): numbers and notes from the rows
that `MeasureCost` gives."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from zofc.studies.catalogue import Study, StudyLine

CostRows = Sequence[Mapping[str, Any]]
LineValues = Callable[[StudyLine, Mapping[str, Any]], Mapping[str, float]]  # of a line, from one of its rows, by metric
GIB = 2**30
OPERATION_HEADINGS = {
    "forwards": "forwards of the batch",
    "forward_flops": "operations forward",
    "backward_flops": "backward and update",
    "total_flops": "in all",
    "times_fo": "in units of FO",
}


def phase_of(line: StudyLine, row: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The epochs that a line is about: those in which its groups move and no other; None if there are none."""
    for phase in row["cost"]["phases"]:
        if {name for groups in phase["groups"] for name in groups.split("+")} == set(line.moving):
            found: Mapping[str, Any] = phase
            return found
    return None


def time_and_memory(line: StudyLine, row: Mapping[str, Any]) -> dict[str, float]:
    """Peak memory of a step, and the time of an epoch."""
    phase = phase_of(line, row)
    return {} if phase is None else {"gigabytes": phase["peak"] / GIB, "seconds": phase["epoch_seconds"]}


def most_memory(_line: StudyLine, row: Mapping[str, Any]) -> dict[str, float]:
    """Of all its epochs."""
    return {"gigabytes": max(phase["peak"] for phase in row["cost"]["phases"]) / GIB}


# -- operations ------------------------------------------------------------------------------------------------------


def executed(line: StudyLine, row: Mapping[str, Any]) -> dict[str, float]:
    """As counted while a step was made; a forward is one of the plain backbone."""
    phase, cost = phase_of(line, row), row["cost"]
    if phase is None:
        return {}
    parts = phase["executed"]
    forward = parts["total"] - parts["update"]
    return {
        "forwards": forward / (cost["batch_size"] * cost["forward"]["backbone"]),
        "forward_flops": forward,
        "backward_flops": parts["update"],
        "total_flops": parts["total"],
    }


def by_formula(line: StudyLine, row: Mapping[str, Any]) -> dict[str, float]:
    """By appendix H, for the same model and batch."""
    phase = phase_of(line, row)
    if phase is None or phase["formula"] is None:
        return {}
    formula = phase["formula"]
    return {
        "forwards": formula["forwards"],
        "forward_flops": formula["total"] - formula["backward"],
        "backward_flops": formula["backward"],
        "total_flops": formula["total"],
    }


def beside_first_order(count: LineValues, study: Study, rows: CostRows) -> LineValues:
    """The same numbers, and the total in units of the first line's with the same seed."""
    first = study.lines[0]
    bases = {
        (row["setting"], row["seed"]): count(first, row).get("total_flops")
        for row in rows
        if row["line"] == first.title and "failed" not in row
    }

    def values(line: StudyLine, row: Mapping[str, Any]) -> Mapping[str, float]:
        found, base = count(line, row), bases.get((row["setting"], row["seed"]))
        return {**found, "times_fo": found["total_flops"] / base} if found and base else found

    return values


# -- notes -----------------------------------------------------------------------------------------------------------


WHAT_MEMORY = (
    "Memory: all that the device's allocator holds; on a CPU, weights and the tensors of a step. The paper prints GB."
)


def memory_notes(rows: CostRows) -> list[str]:
    """How it was measured."""
    return [*_measured(rows), f"The first task, and of its epochs those that need most. {WHAT_MEMORY}"]


def runtime_notes(rows: CostRows) -> list[str]:
    """How it was measured."""
    return [
        *_measured(rows),
        "The first task; of ZO-FC, the epochs in which the classifier moves too. Making batches and evaluating are no "
        f"part of it. {WHAT_MEMORY}",
        "The paper does not name the data of these numbers; its runs were on an A6000 (appendix A).",
    ]


def _measured(rows: CostRows) -> list[str]:
    found = {
        f"On {cost['device']} ({row['environment']['device_name']}) in {cost['precision']}: batches of "
        f"{cost['batch_size']}, {cost['steps_per_epoch']} steps an epoch, a step being the median of {cost['steps']} "
        "after a warm-up."
        for row in rows
        if "failed" not in row
        for cost in [row["cost"]]
    }
    return sorted(found)


def operation_notes(study: Study, rows: CostRows) -> list[str]:
    """What was counted, and what the formulas have more than it, each reason once, with its size in every line."""
    good = [row for row in rows if "failed" not in row]
    found = [
        "An operation, the paper's FLOP, is one multiply–add. Executed: counted while a step was made. Formula: "
        "appendix H with the counted F_backbone of this model and batch, beside what the paper prints."
    ]
    found += dict.fromkeys(f"A batch has {row['cost']['batch_size']} images; the paper's has 48." for row in good)
    found += dict.fromkeys(_sentence(said) for row in good for said in row["cost"]["conventions"])
    return found + difference_notes(study, rows)


def formula_differences(study: Study, rows: CostRows) -> dict[str, dict[str, int]]:
    """The formula less what was executed, in multiply–adds: by reason, then by line; those of a line add up."""
    found: dict[str, dict[str, int]] = {}
    for line in study.lines:
        row = next((row for row in rows if row["line"] == line.title and "failed" not in row), None)
        phase = None if row is None else phase_of(line, row)
        for part in [] if phase is None else phase["differences"]:
            found.setdefault(_sentence(part["why"]), {})[line.title] = part["multiply_adds"]
    return found


def difference_notes(study: Study, rows: CostRows) -> list[str]:
    """The same in words."""
    reasons = formula_differences(study, rows)
    found = ["The formula less what was executed, by reason; for each line the terms add up to the difference:"]
    for why, sizes in reasons.items():
        terms = "; ".join(f"{title}: {_signed(size)}" for title, size in sizes.items())
        found.append(f"{why.removesuffix('.')} ({terms}).")
    return found if reasons else []


def _signed(size: int) -> str:
    return f"{'−' if size < 0 else '+'}{abs(size):.4g}"


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."
