"""Answers to pictures that are not kept. Few are decoded at a time, whatever is asked."""

from __future__ import annotations

import os
from collections import deque
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
from zofc.teach.store import check_pixels, refusal_reason
from zofc.teach.uploads import content, file_name

MOST_AT_ONCE = 4  # requests that are computed
GROUP_PIXELS = 16_000_000  # decoded at a time for a request, unless a single picture has more

Answered = PredictionInfo | PredictionError


class Answering:
    """Predictions of the model that answers now, whatever lesson is being made."""

    def __init__(self, teacher: Teacher) -> None:
        self.teacher = teacher
        self._turns = BoundedSemaphore(min(MOST_AT_ONCE, max(2, os.cpu_count() or 1)))

    def predict(self, parts: Sequence[UploadFile], top: int, reject: float) -> list[Answered]:
        """An answer for every file, in their order."""
        learner = self.teacher.learner
        if not learner.classes:
            raise Refusal("nothing has been learned yet", "Teach two classes first.")
        answers: list[Answered] = []
        waiting = deque(parts)
        while waiting:
            with self._turns:
                answers += self._answer_some(learner, waiting, top, reject)
        return answers

    def _answer_some(self, learner: Learner, waiting: deque[UploadFile], top: int, reject: float) -> list[Answered]:
        """Answers to the first of the files that wait, as many as may be decoded together."""
        images: list[Image.Image] = []
        answers: list[Answered | str] = []
        while waiting and sum(image.width * image.height for image in images) < GROUP_PIXELS:
            part = waiting.popleft()
            name = file_name(part)
            try:
                data = content(part)
                check_pixels(data, name)
                images.append(self.teacher.store.decoding.submit(decode, data, name).result())
                answers.append(name)
            except UnreadableImage as error:
                answers.append(PredictionError(name=name, error=refusal_reason(error)))
        return _answer(learner, images, answers, top, reject)


def _answer(
    learner: Learner, images: list[Image.Image], answers: list[Answered | str], top: int, reject: float
) -> list[Answered]:
    """Answers to images in place of their names."""
    can_reject = learner.model.calibration is not None and learner.model.calibration[1] is not None
    found = iter(learner.answer(images, top, reject if can_reject else None) if images else ())
    return [_describe(one, next(found)) if isinstance(one, str) else one for one in answers]


def _describe(name: str, answer: Answer) -> PredictionInfo:
    best = [AnswerInfo(name=one.name, probability=one.probability) for one in answer.best]
    return PredictionInfo(name=name, answers=best, none_of_these=not answer.known)
