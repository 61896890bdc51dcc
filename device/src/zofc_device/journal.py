"""The journal of a bundle: the zeroth-order steps of its lessons, each as the shares s_q of its directions, in the
format of zofc (docs/reference/journal.md). With the bundle as it was exported, the adapter follows from this file."""

from __future__ import annotations

import hashlib
import json
import os
import struct
import zlib
from collections.abc import Sequence

import numpy as np

from zofc_device.bundle import BundleError
from zofc_device.directions import Array
from zofc_device.model import Model
from zofc_device.optimizers import Optimizer
from zofc_device.steps import Placement

JOURNAL, MAGIC = "journal.bin", b"ZOFC-J1\n"
PLAN = ("optimizer", "momentum", "weight_decay", "directions", "queries", "per", "estimator", "epsilon")
SKIPPED, RATE, SCALE = 1, 2, 4  # flags of a step


class LessonJournal:
    """Appends the steps of a lesson. A saved state holds the position of its journal: what is after it never counted,
    and is cut off when a lesson begins or goes on."""

    def __init__(self, model: Model, resumed: bool) -> None:
        self.model, self.file = model, model.bundle.path / JOURNAL
        position = model.values.get("journal") or {}
        self.length, self.checksum = position.get("length", 0), position.get("checksum", 0)
        self.adapter, self.rate = position.get("adapter"), position.get("rate")  # digest at its end; of the last step
        if self.length > (self.file.stat().st_size if self.file.exists() else 0):  # lost: begin another one
            self.length, self.adapter = 0, None
        elif not self.length and not model.values.get("lessons"):
            self.adapter = self._digest()  # as it was exported
        self.resumed, self.open = resumed, resumed and bool(position.get("open"))  # whether its end is still to come
        self.active = not resumed or self.length > 0  # a lesson that began without a journal stays without
        self.in_file, self.waiting = self.length, bytearray()

    def follow(self, placement: Placement) -> None:
        """Record the steps of a lesson; its start too, unless it was interrupted."""
        if "peft" not in placement.optimizers or not self.active:
            return
        if not self.resumed:
            self._begin(placement)
        placement.on_move = self._record

    def _begin(self, placement: Placement) -> None:
        """A header, where there is none, and the adapter before the first step: its values only where a reader who has
        the exported bundle and this file could not know them."""
        model, (seed, stream) = self.model, placement.stream
        if not self.length:
            self.checksum = 0
            self._add(MAGIC)
            recipe = model.settings["files"].get("recipe.yaml", {}).get("sha256", "")
            self._append(b"H", json.dumps({"recipe": recipe, "seed": model.seed, "device": "zofc-device"}).encode())
        known, plan = self.adapter == self._digest(), placement.optimizers["peft"].plan
        values = {name: np.ascontiguousarray(model.tensors[name], np.float32) for name in model.adapter}
        text = {
            "task": len(model.tasks) - 1, "label": "peft", "members": ["peft"],
            "plan": {key: getattr(plan, key) for key in PLAN}, "seed": seed, "stream": stream,
            "digest": self._digest(),
            "tensors": [[name, value.shape, "float32", not known] for name, value in values.items()],
        }  # fmt: skip
        start = zlib.compress(json.dumps(text).encode(), 9)
        content = b"" if known else b"".join(value.tobytes() for value in values.values())
        self._append(b"S", varint(len(start)) + start + zlib.compress(content, 9))
        self.rate, self.open = None, True

    def _record(self, optimizer: Optimizer, moved: bool, epoch: int, step: int, shares: Array) -> None:
        new_rate, scale = optimizer.plan.rate(epoch), optimizer.scale if moved else 1.0
        rate = b"" if new_rate == self.rate else struct.pack("<d", new_rate)
        clip = b"" if scale == 1.0 else struct.pack("<d", scale)
        flags = SKIPPED * (not moved) + RATE * bool(rate) + SCALE * bool(clip)
        numbers = shares.astype("<f4").tobytes() if moved else b""
        self._append(b"T", varint(0) + varint(epoch) + varint(step) + bytes([flags]) + rate + clip + numbers)
        self.rate = new_rate

    def end(self, placement: Placement) -> None:
        """After the last step of a lesson."""
        if placement.on_move is None or not self.open:
            return
        parts = [self.model.tensors[name] for name in self.model.adapter]
        digests = b"".join(digest([part], 8) for part in parts)
        self._append(b"E", varint(0) + digests + bytes(len(parts)))
        self.adapter, self.open = self._digest(), False

    def commit(self) -> None:
        """Bring all records to the disk; the model's state then holds the position."""
        try:
            if not self.length:
                self.file.unlink(missing_ok=True)  # of a lesson that was dropped
            else:
                with self.file.open("r+b" if self.in_file else "wb") as file:
                    file.truncate(self.in_file)
                    file.seek(self.in_file)
                    file.write(self.waiting)
                    file.flush()
                    os.fsync(file.fileno())
        except OSError as error:
            remedy = "free some space, or make the folder writable, and give the same command again"
            raise BundleError(f"{self.file}: {error.strerror}; what was saved before is intact: {remedy}") from error
        self.in_file, self.waiting = self.length, bytearray()
        position = {"length": self.length, "checksum": self.checksum, "adapter": self.adapter, "rate": self.rate}
        position |= {"open": self.open}
        self.model.values |= {"journal": position} if self.length else {}

    def _append(self, kind: bytes, payload: bytes) -> None:
        self._add(kind + varint(len(payload)) + payload)
        self.waiting += struct.pack("<I", self.checksum)
        self.length += 4

    def _add(self, data: bytes) -> None:
        self.waiting += data
        self.length += len(data)
        self.checksum = zlib.crc32(data, self.checksum)

    def _digest(self) -> str:
        return digest([self.model.tensors[name] for name in self.model.adapter], 16).hex()


def digest(values: Sequence[Array], size: int) -> bytes:
    """A digest of the bytes of tensors, one after the other."""
    code = hashlib.blake2b(digest_size=size)
    for value in values:
        code.update(np.ascontiguousarray(value, np.float32).tobytes())
    return code.digest()


def varint(value: int) -> bytes:
    """Seven bits in each byte, the lowest first; the highest bit says that another byte follows."""
    parts = []
    while value > 127:
        parts.append(value & 127 | 128)
        value >>= 7
    return bytes([*parts, value])
