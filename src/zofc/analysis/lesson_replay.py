"""The journal that zofc-device writes: what a device has learned, rebuilt where the run or bundle is from which it
started. Its first set says by a digest which adapter that was, instead of its values."""

from __future__ import annotations

import time
from pathlib import Path

from torch import Tensor

from zofc.analysis.replay import Comparison, JournalCheck, JournalReplay, distance
from zofc.errors import RunError
from zofc.export import bundle
from zofc.recipe import Recipe, load_recipe
from zofc.runfolder import open_run
from zofc.runfolder.checkpoint import load_checkpoint
from zofc.runfolder.journal import JournalPosition
from zofc.runfolder.journal_records import SetStart, value_digest
from zofc.runfolder.names import JOURNAL_FILE
from zofc.training.run_journal import tensor_bytes


class LessonReplay(JournalReplay):
    """The lessons in a journal file, or in a bundle that has learned, from what the device started with: the exported
    run, or the bundle as it was exported."""

    def __init__(self, base: Path, journal: Path, device: str | None = None) -> None:
        recipe, tensors = _read_base(base)
        self.learned = bundle.read_state(journal) if journal.is_dir() else None
        position = None if self.learned is None else _position(journal, self.learned.values.get("journal"))
        file = journal / JOURNAL_FILE if journal.is_dir() else journal
        if not file.is_file():
            raise RunError(f"{file}: no journal; give the file that zofc-device wrote, or the bundle that it is in")
        super().__init__(file, position, device, recipe)
        self.known = self._check_start(base, tensors)

    def _check_start(self, base: Path, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """The tensors of the base that the journal starts from; none where it has values of its own."""
        start = next((entry for entry, _ in self.journal.entries if isinstance(entry, SetStart)), None)
        names = [] if start is None else [one.name for one in start.tensors if one.value is None]
        if start is None or not names:
            return {}
        known = {name: tensors[name] for name in names if name in tensors}
        if value_digest(*map(tensor_bytes, known.values()), size=16).hex() != start.digest:
            raise RunError(
                f"{self.file}: it starts from another adapter than that of {base}; give the run that was exported, or "
                "the bundle as it was before its first lesson"
            )
        return known

    def check(self) -> JournalCheck:
        """Compare the adapter that the device stored with the one that the journal leads to."""
        if self.learned is None:
            raise RunError(
                f"{self.file}: a journal alone holds no adapter to compare with; --check needs the bundle that "
                "learned: --journal BUNDLE"
            )
        clock, (replay, _) = time.perf_counter(), self.replay()
        stored = self.learned.tensors
        compared = tuple(
            Comparison(name, bundle.STATE_TENSORS, distance(value, stored[name].to(value.device)))
            for name, value in replay.tensors.items()
            if name in stored
        )
        seconds, device = time.perf_counter() - clock, self.journal.header.device
        return JournalCheck(compared, tuple(replay.differing), replay.steps, seconds, device, replay.linear)


def _read_base(path: Path) -> tuple[Recipe, dict[str, Tensor]]:
    """The recipe and the tensors of a run or of a bundle."""
    if bundle.is_bundle(path):
        bundle.read_manifest(path)
        return load_recipe(str(path / bundle.BUNDLE_RECIPE)), bundle.read_state(path).tensors
    run = open_run(path)
    checkpoint = load_checkpoint(run)
    if checkpoint is None:
        raise RunError(f"{run} has no checkpoint, so no device has started from it")
    return run.recipe, checkpoint.method


def _position(path: Path, value: object) -> JournalPosition:
    """Until where the journal of a bundle holds finished lessons."""
    found = [value.get(key) for key in JournalPosition._fields] if isinstance(value, dict) else []
    if not found or not all(isinstance(number, int) and number >= 0 for number in found):
        raise RunError(f"{path} has no journal: no lesson of it moved the adapter, or an early zofc-device taught it")
    return JournalPosition(*found)  # type: ignore[arg-type]
