"""What is saved of a lesson under way, every few seconds, so that the same lesson goes on after a power cut."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping
from typing import Any

from zofc_device.bundle import PROGRESS, Bundle, BundleError, State, checksum
from zofc_device.directions import Array

SAVE_SECONDS, SAVE_SHARE = 2.0, 20  # between two saved states, and how many times longer than writing one
MOST_SECONDS = 10.0  # between them, however long it takes
ASIDE = ("optimizer/", "features/")  # the names of tensors that are of the lesson, not of the model, begin so


class Progress:
    """The file of a lesson, known by the state that it began with and its content, in the folder of a bundle."""

    def __init__(self, bundle: Bundle, before: State, restart: bool = False) -> None:
        self.bundle, self.before, self.file = bundle, before, bundle.path / PROGRESS
        self.lesson, self.clock, self.pause, self.finished = "", time.monotonic(), SAVE_SECONDS, False
        if restart:
            self.drop()
        self.saved = bundle.read(PROGRESS) if self.file.exists() else None
        self.images: dict[str, Any] = self.saved.values.get("images", {}) if self.saved else {}  # as `inspect` saw them

    def save_images(self) -> None:
        """Save what was seen of the images of a lesson that has not begun, if it is time."""
        if self.due() and not (self.saved and self.saved.values["lesson"]):
            self._write(State({}, {"lesson": "", "images": self.images}))

    def begin(self, content: Any) -> None:
        """Go on with the lesson of this content, if it was interrupted; another one that was is not overwritten."""
        texts = checksum(self.before.tensors, json.dumps(self.before.values)), json.dumps(content)
        state, images = (hashlib.sha256(text.encode()).hexdigest() for text in texts)
        self.lesson, name = f"{state}/{images}", self.saved.values["lesson"] if self.saved else ""
        finished = name in [entry.get("digest") for entry in self.before.values.get("lessons", ())]
        self.finished = finished and name.endswith(images)  # by a process that was killed before it could drop the file
        if finished:
            self.drop()
        elif name not in ("", self.lesson):
            raise BundleError(
                f"{self.file}: a lesson on other images was interrupted; learn those again to finish it, or start this "
                "one with --restart (restart=True), which drops that one"
            )
        self.saved = None if finished or not name else self.saved

    @property
    def state(self) -> State:
        """The state from which the lesson goes on."""
        if self.saved is None:
            return self.before
        kept = {name: value for name, value in self.saved.tensors.items() if not name.startswith(ASIDE)}
        return State({**self.before.tensors, **kept}, self.saved.values["model"])

    def aside(self, prefix: str) -> dict[str, Array]:
        """Tensors of the lesson that was saved."""
        saved = self.saved.tensors if self.saved else {}
        return {name.removeprefix(prefix): value for name, value in saved.items() if name.startswith(prefix)}

    def position(self, part: int) -> Mapping[str, int] | None:
        """Where this part of the lesson was saved, if it was."""
        found: Mapping[str, int] | None = self.saved.values["position"] if self.saved else None
        return found if found is not None and found["part"] == part else None

    def due(self) -> bool:
        """Whether it is time to save."""
        return time.monotonic() - self.clock > self.pause

    def save(self, state: State, aside: Mapping[str, Array], position: Mapping[str, int]) -> None:
        """Write what differs from the state before: tensors are replaced, never changed in place."""
        old = self.before.tensors
        changed = {name: value for name, value in state.tensors.items() if value is not old.get(name)}
        values = {"lesson": self.lesson, "model": state.values, "position": dict(position), "images": self.images}
        self._write(State({**changed, **aside}, values))

    def _write(self, state: State) -> None:
        start = time.monotonic()
        self.bundle.write(state, PROGRESS)
        self.clock = time.monotonic()
        self.pause = min(max(SAVE_SECONDS, SAVE_SHARE * (self.clock - start)), MOST_SECONDS)

    def drop(self) -> None:
        """Remove the file."""
        self.file.unlink(missing_ok=True)
