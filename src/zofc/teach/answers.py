"""Answers to pictures that are not kept: a few at a time are decoded, and as many requests computed as there are cores."""

from __future__ import annotations

import os
from collections.abc import Sequence
from threading import BoundedSemaphore

from PIL import Image
from starlette.datastructures import UploadFile

from zofc.data.source import decode
from zofc.errors import UnreadableImage
from zofc.learner import Answer, Learner
from zofc.teach.lessons import Teacher
from zofc.teach.models import AnswerInfo, PredictionError, PredictionInfo
from zofc.teach.problems import Refusal
from zofc.teach.store import check_pixels
from zofc.teach.uploads import content, file_name

AT_ONCE = 4  # decoded pictures of a request

Answered = PredictionInfo | PredictionError


class Answering:
    """Predictions of the model that answers now, whatever lesson is being made."""

    def __init__(self, teacher: Teacher) -> None:
        self.teacher = teacher
        self._turns = BoundedSemaphore(max(2, os.cpu_count() or 1))

    def predict(self, parts: Sequence[UploadFile], top: int, reject: float) -> list[Answered]:
        """An answer for every file, in their order."""
        learner = self.teacher.learner
        if not learner.classes:
            raise Refusal("nothing has been learned yet", "Teach two classes first.")
        answers: list[Answered] = []
        for start in range(0, len(parts), AT_ONCE):
            with self._turns:
                answers += _answer(learner, parts[start : start + AT_ONCE], top, reject)
        return answers


def _answer(learner: Learner, parts: Sequence[UploadFile], top: int, reject: float) -> list[Answered]:
    images: list[Image.Image] = []
    answers: list[Answered | str] = []
    for part in parts:
        name = file_name(part)
        try:
            images.append(_decode(part, name))
            answers.append(name)
        except UnreadableImage as error:
            answers.append(PredictionError(name=name, error=error.reason))
    can_reject = learner.model.calibration is not None and learner.model.calibration[1] is not None
    found = iter(learner.answer(images, top, reject if can_reject else None) if images else ())
    return [one if not isinstance(one, str) else _describe(one, next(found)) for one in answers]


def _decode(part: UploadFile, name: str) -> Image.Image:
    data = content(part)
    check_pixels(data, name)
    return decode(data, name)


def _describe(name: str, answer: Answer) -> PredictionInfo:
    best = [AnswerInfo(name=one.name, probability=one.probability) for one in answer.best]
    return PredictionInfo(name=name, answers=best, none_of_these=not answer.known)
