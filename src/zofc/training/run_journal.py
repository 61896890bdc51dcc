"""The journal of a run or of a learner while it trains: the zeroth-order sets of each task, their steps, and how they
end."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from zofc.optim.placement import Placement, SetMove
from zofc.optim.sets import ZerothOrderSet
from zofc.recipe import Recipe
from zofc.runfolder import Run
from zofc.runfolder.identity import settings_digest
from zofc.runfolder.journal import JournalPosition, JournalWriter, KeptJournal
from zofc.runfolder.journal_records import JournalHeader, SetEnd, SetStart, SetStep, TensorStart, value_digest
from zofc.runfolder.names import JOURNAL_FILE

PLAN = ("optimizer", "momentum", "weight_decay", "directions", "queries", "per", "estimator", "epsilon")  # recorded


class StepJournal:
    """Follows placements, task by task. A journal begins with the first zeroth-order set."""

    def __init__(self, path: Path | None, header: JournalHeader) -> None:
        self.path, self.header = path, header
        self.writer: JournalWriter | None = None
        self.sets: tuple[ZerothOrderSet, ...] = ()  # of the present task
        self.numbers: dict[str, int] = {}  # by label
        self.final: list[list[bytes]] = []  # digests of their tensors after the last step

    def follow(self, placement: Placement, task: int, resumed: bool = False) -> None:
        """Record the steps of a task from here on. A task that began without a journal stays without one."""
        if resumed and self.writer is None:
            return
        self.sets = placement.zeroth
        self.numbers = {part.label: number for number, part in enumerate(self.sets)}
        if not self.sets:
            return
        self.writer = self.writer or JournalWriter(self.path, self.header)
        if not resumed:
            for part in self.sets:
                self.writer.append(_set_start(part, task, self.writer.codec.known))
        placement.on_move = self._record

    def _record(self, move: SetMove) -> None:
        assert self.writer is not None
        number, optimizer, update = self.numbers[move.part.label], move.part.optimizer, move.update
        if update is None:
            step = SetStep(number, move.epoch, move.step, False, optimizer.learning_rate(move.epoch), 1.0, b"")
        else:
            step = SetStep(number, move.epoch, move.step, True, *update, share_bytes(move.shares))
        self.writer.append(step)

    def end_steps(self) -> None:
        """After the last step of a task."""
        self.final = [[value_digest(value) for value in _values(part).values()] for part in self.sets]

    def end_task(self) -> None:
        """After the method has finished the task, which may have changed what the steps moved."""
        if self.writer is not None:
            for number, (part, digests) in enumerate(zip(self.sets, self.final, strict=True)):
                now = [value_digest(value) for value in _values(part).values()]
                changed = tuple(one != other for one, other in zip(now, digests, strict=True))
                self.writer.append(SetEnd(number, tuple(digests), changed))
        self.sets = ()


class RunJournal(StepJournal):
    """The journal of a run, in its folder."""

    def __init__(self, run: Run, seed: int, device: torch.device) -> None:
        super().__init__(run.path / JOURNAL_FILE, JournalHeader(run.digest, seed, device.type))
        self.run = run

    def resume(self, position: JournalPosition) -> None:
        """Go on where a checkpoint was taken."""
        assert self.path is not None
        self.writer = JournalWriter.resume(self.path, position)

    def commit(self) -> JournalPosition | None:
        """Bring all records to the disk; returns what a checkpoint says of the journal."""
        if self.writer is None:
            return None
        self.run.check_lock()
        return self.writer.commit()

    def close(self) -> None:
        """Write what no checkpoint rests on, such as the steps before an error."""
        if self.writer is not None and self.run.exists:
            self.writer.close()


class LessonJournal(StepJournal):
    """The journal of a learner, in memory until it is saved; what was kept of earlier lessons comes first."""

    def __init__(self, recipe: Recipe, device: torch.device, kept: KeptJournal | None) -> None:
        digest = settings_digest(recipe.model_dump(mode="json"))
        super().__init__(None, JournalHeader(digest, recipe.seed, device.type))
        self.writer = None if kept is None else JournalWriter.continue_kept(kept)

    def keep(self) -> KeptJournal | None:
        """All lessons so far; None if none of them had a zeroth-order step."""
        return None if self.writer is None else self.writer.keep()


def _set_start(part: ZerothOrderSet, task: int, known: Mapping[str, bytes]) -> SetStart:
    """A set as it is now, with the values of tensors that no earlier task of the journal left so."""
    values, parameters = _values(part), part.optimizer.parameters
    tensors = [
        TensorStart(
            name,
            tuple(parameters[name].shape),
            str(parameters[name].dtype).removeprefix("torch."),
            None if known.get(name) == value_digest(value) else value,
        )
        for name, value in values.items()
    ]
    directions = part.directions
    return SetStart(
        task, part.label, part.members, part.plan.model_dump(mode="json", include=set(PLAN)), directions.seed,
        directions.name, value_digest(*values.values(), size=16).hex(), tuple(tensors),
    )  # fmt: skip


def _values(part: ZerothOrderSet) -> dict[str, bytes]:
    return {name: tensor_bytes(value) for name, value in part.optimizer.parameters.items()}


def tensor_bytes(value: Tensor) -> bytes:
    """The bytes of a tensor's numbers."""
    data: bytes = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return data


def share_bytes(shares: Tensor) -> bytes:
    """The bytes of shares, in their own precision or, of half precision, in single."""
    return tensor_bytes(shares if shares.dtype == torch.float64 else shares.float())
