"""How often a run is saved: often enough that a kill loses little, seldom enough that saving costs little."""

from __future__ import annotations

import time

from zofc.units import format_duration

AT_MOST_SECONDS = 30.0  # between two checkpoints, so that a kill loses no more work
AT_MOST_SHARE = 0.01  # of the time that checkpoints may take


class CheckpointPacing:
    """When a checkpoint is due: after the minutes that a recipe states, or else after half a minute, or later where it
    would take more than 1 % of the time."""

    def __init__(self, minutes: float | None) -> None:
        self.asked = None if minutes is None else 60 * minutes
        self.cost = 0.0  # seconds, of the last checkpoint
        self.saved_at = time.monotonic()
        self.said = False

    @property
    def interval(self) -> float:
        """Seconds between two checkpoints."""
        return max(AT_MOST_SECONDS, self.cost / AT_MOST_SHARE) if self.asked is None else self.asked

    @property
    def due(self) -> bool:
        """Whether it is time to save."""
        return time.monotonic() - self.saved_at > self.interval

    @property
    def affordable(self) -> bool:
        """Whether saving now, where it is convenient, keeps within the same share of the time."""
        least = self.cost / AT_MOST_SHARE if self.asked is None else self.asked
        return time.monotonic() - self.saved_at > max(least, 1.0)

    def note_save(self, cost: float) -> str | None:
        """Take up that the run was saved in so many seconds; once, a sentence if checkpoints are rarer for it."""
        self.cost, self.saved_at = cost, time.monotonic()
        if self.said or self.interval <= AT_MOST_SECONDS or self.asked is not None:
            return None
        self.said = True
        took, apart = format_duration(cost), format_duration(self.interval)
        return (
            f"a checkpoint takes {took}, so there is one every {apart}; training.checkpoint_minutes sets another time"
        )
