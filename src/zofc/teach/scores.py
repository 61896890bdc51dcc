"""What held-back pictures say of each class: how many were tested, and how many of them were right. One picture of a
few is many points of a percentage, so that counts are kept beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from zofc.learner import Evaluation
from zofc.teach.state import TaughtClass


@dataclass(frozen=True)
class Scores:
    """An evaluation by class id; accuracies in percent, None where a class has no held-back pictures."""

    accuracy: dict[str, float | None]
    right: dict[str, int]
    tested: dict[str, int]

    @classmethod
    def of(cls, evaluation: Evaluation | None, classes: Sequence[TaughtClass]) -> Scores:
        """The evaluation of a model that knows some of the classes; none at all if there was nothing to test with."""
        if evaluation is None:
            return cls({one.id: None for one in classes}, {}, {})
        rows = {name: row for row, name in enumerate(evaluation.classes) if name in evaluation.per_class}
        known = [one for one in classes if one.name in rows]
        return cls(
            {one.id: evaluation.per_class.get(one.name) for one in classes},
            {one.id: int(evaluation.confusion[rows[one.name], rows[one.name]]) for one in known},
            {one.id: int(evaluation.confusion[rows[one.name]].sum()) for one in known},
        )
