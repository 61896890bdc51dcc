"""Where a lesson stands: what training and testing report, with the time that is left; and the way to cancel it."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any, Literal

from zofc.runfolder.events import Event
from zofc.training.events import StepStatus

Stage = Literal["features", "adapter", "readout", "testing"]
End = Literal["finished", "failed", "cancelled"]


class Cancelled(Exception):
    """The user has cancelled the lesson."""


@dataclass
class LessonProgress:
    """A lesson while it is made; a listener of the learner's events. Other threads read it and may cancel it."""

    number: int
    images: int  # that it learns from
    phase: Stage = "features"
    done: int = 0  # images, or steps of the adapter
    total: int | None = None
    loss: float | None = None
    accuracy: float | None = None  # percent of training images
    held_back: float | None = None  # percent of held-back images: of the model before, then of that of the lesson
    notices: list[str] = field(default_factory=list)
    changes: int = 0  # grows with every report
    ended: tuple[End, dict[str, Any]] | None = None
    cancelled: bool = False
    _began: float = field(default_factory=time.monotonic)

    def enter(self, phase: Stage, total: int | None) -> None:
        """Begin a phase of so many images or steps."""
        self.phase, self.done, self.total, self._began = phase, 0, total, time.monotonic()
        if phase == "testing":
            self.held_back = None  # of the model before
        self._report()

    def tested(self, accuracy: float | None) -> None:
        """The lesson is made and measured."""
        self.held_back = accuracy
        self._report()

    def _report(self) -> None:
        self.changes += 1
        if self.cancelled:
            raise Cancelled

    def on_images(self, count: int) -> None:
        """So many images pass through the backbone next."""
        if self.phase == "adapter":
            self.enter("readout", self.images)
        self.done += count
        if self.total is not None:  # some methods pass through all images more than once
            self.done = min(self.done, self.total)
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
        """Of this phase, by the time that it has taken so far."""
        if not self.done or self.total is None:
            return None
        return (time.monotonic() - self._began) * (self.total - self.done) / self.done

    def describe(self) -> dict[str, Any]:
        """The progress event."""
        left = None if self.seconds_left is None else round(self.seconds_left, 1)
        return {
            "number": self.number, "phase": self.phase, "step": self.done, "steps": self.total, "loss": self.loss,
            "accuracy": self.accuracy, "held_back": self.held_back, "seconds_left": left,
        }  # fmt: skip
