"""Where a lesson stands: what training and testing report, with the time that is left; and the way to cancel it."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any, Literal

from zofc.runfolder.events import Event
from zofc.teach.scores import Scores
from zofc.training.events import StepStatus

Stage = Literal["before", "features", "adapter", "readout", "testing"]
End = Literal["finished", "failed", "cancelled"]


class Cancelled(Exception):
    """The user has cancelled the lesson."""


@dataclass
class LessonProgress:
    """A lesson while it is made; a listener of the learner's events. Other threads read it and may cancel it."""

    number: int
    images: int  # that it learns from
    tests: int = 0  # held-back images
    trains: bool = False  # an adapter or rows, step by step
    passes: int = 1  # through the images, before anything is trained
    phase: Stage = "features"
    done: int = 0  # images, or steps of the adapter
    total: int | None = None
    loss: float | None = None
    accuracy: float | None = None  # percent of training images
    scores: Scores | None = None  # of held-back images: of the model before, then of that of the lesson
    notices: list[str] = field(default_factory=list)
    changes: int = 0  # grows with every report
    ended: tuple[End, dict[str, Any]] | None = None
    cancelled: bool = False
    _began: float = field(default_factory=time.monotonic)
    _looked: float = field(default_factory=time.monotonic)  # since when the next images are being evaluated
    _seconds: float = 0.0  # that images took, in all phases
    _evaluated: int = 0

    def enter(self, phase: Stage, total: int | None) -> None:
        """Begin a phase of so many images or steps."""
        self.phase, self.done, self.total = phase, 0, total
        self._began = self._looked = time.monotonic()
        if phase == "testing":
            self.scores = None  # of the model before
        self._report()

    def tested(self, scores: Scores) -> None:
        """The model before the lesson is measured, or the one after it."""
        self.scores = scores if scores.tested else None
        self._report()

    def _report(self) -> None:
        self.changes += 1
        if self.cancelled:
            raise Cancelled

    def on_images(self, count: int) -> None:
        """So many images have passed through the backbone; none before the first of a pass."""
        if self.phase == "adapter":
            self.enter("readout", self.images)
        now = time.monotonic()
        if count:
            self._seconds, self._evaluated = self._seconds + now - self._looked, self._evaluated + count
        self._looked = now
        self.done += count
        while self.total and self.done > self.total:  # some methods pass through all images more than once
            self.total += max(1, self.images)
        self._report()

    # -- as a listener -----------------------------------------------------------------------------------------------

    def event(self, event: Event) -> None:
        """Keep what the learner has to say, once."""
        if event.get("event") == "notice" and (text := str(event.get("text", ""))) not in self.notices:
            self.notices.append(text)

    def step(self, status: StepStatus) -> None:
        """Follow the steps of the adapter."""
        if self.phase != "adapter":
            self.enter("adapter", status.steps)
        self.done, self.loss, self.accuracy = status.step, status.loss, status.accuracy
        self._report()

    def close(self) -> None:
        """Nothing is held."""

    @property
    def seconds_left(self) -> float | None:
        """Of the whole lesson, by the time that images and steps have taken so far; None while that is not known."""
        before, left = self.phase in ("before", "features"), max(0, (self.total or 0) - self.done)
        coming = {"before": self.images * self.passes + self.tests, "testing": 0}
        images, steps = coming.get(self.phase, self.tests), 0.0
        if self.phase == "adapter":
            if not self.done:
                return None
            steps, left = (time.monotonic() - self._began) * left / self.done, self.images
        if (before and self.trains) or not self._evaluated:
            return None if images + left else steps
        return steps + (left + images) * self._seconds / self._evaluated

    @property
    def held_back(self) -> tuple[int, int] | None:
        """How many held-back images were right, of how many."""
        return None if self.scores is None else (sum(self.scores.right.values()), sum(self.scores.tested.values()))

    def describe(self) -> dict[str, Any]:
        """The progress event."""
        left = None if (seconds := self.seconds_left) is None else round(seconds, 1)
        right, tested = self.held_back or (None, None)
        return {
            "number": self.number, "phase": self.phase, "step": self.done, "steps": self.total, "loss": self.loss,
            "accuracy": self.accuracy, "held_back": 100 * right / tested if tested and right is not None else None,
            "right": right, "tested": tested, "seconds_left": left,
        }  # fmt: skip
