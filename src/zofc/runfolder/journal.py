"""The journal of a run: each zeroth-order step as its coefficients, in an append-only file with chained checksums.

A step is φ ← φ − η clip(ḡ) with ḡ = Σ_q s_q Δ_q, and the directions Δ_q follow from the seed: the shares s_q, the
learning rate and the factor of the clip describe it. Nothing here needs torch, so that whatever trains can write the
same file.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from zofc.errors import RunError
from zofc.runfolder.files import explain_os_errors, read_if_present
from zofc.runfolder.journal_records import ByteReader, JournalCodec, JournalEntry, JournalHeader

MAGIC = b"ZOFC-J1\n"
SPILL = 2**20  # bytes after which records go to the file before the next checkpoint
_REMEDY = "restore the file, or go on without a journal: training.journal=false"
_ALONE = "have it sent again"


class JournalPosition(NamedTuple):
    """How long a journal is, and the checksum of all its records."""

    length: int
    checksum: int


class Journal(NamedTuple):
    """A journal as it was read: entries with the number of bytes until the end of each."""

    header: JournalHeader
    entries: tuple[tuple[JournalEntry, int], ...]
    position: JournalPosition
    lost: int = 0  # bytes after the last checkpoint that are not a whole record


class KeptJournal(NamedTuple):
    """A journal in memory."""

    content: bytes
    position: JournalPosition


class JournalWriter:
    """Appends entries to a journal. They are in the file for certain after `commit`; without a file they stay in
    memory."""

    def __init__(self, path: Path | None, header: JournalHeader) -> None:
        self.path, self.codec = path, JournalCodec()
        self.length, self.checksum, self.in_file = 0, 0, 0
        self.waiting = bytearray()
        self._add(MAGIC)
        self.append(header)

    @classmethod
    def resume(cls, path: Path, position: JournalPosition) -> JournalWriter:
        """Go on at the position of a checkpoint; what was written after it is dropped."""
        journal = read_journal(path, position)
        writer = cls(path, journal.header)
        for entry, end in journal.entries:
            if end <= position.length:
                writer.codec.note(entry)
        writer.length, writer.checksum = position
        writer.in_file, writer.waiting = writer.length, bytearray()
        with explain_os_errors(path), path.open("r+b") as file:
            file.truncate(position.length)
        return writer

    @classmethod
    def continue_kept(cls, kept: KeptJournal) -> JournalWriter:
        """Go on in memory with a journal that was kept there."""
        entries = [entry for entry, *_ in _records(kept.content, JournalCodec())]
        assert isinstance(entries[0], JournalHeader)
        writer = cls(None, entries[0])
        for entry in entries:
            writer.codec.note(entry)
        writer.length, writer.checksum = kept.position
        writer.waiting = bytearray(kept.content)
        return writer

    def keep(self) -> KeptJournal:
        """All that was appended in memory."""
        return KeptJournal(bytes(self.waiting), JournalPosition(self.length, self.checksum))

    def append(self, entry: JournalEntry) -> None:
        """Add an entry."""
        record = self.codec.encode(entry)
        self._add(record)
        self._add(struct.pack("<I", self.checksum), checked=False)
        if len(self.waiting) > SPILL:
            self._write(sync=False)

    def commit(self) -> JournalPosition:
        """Bring everything to the disk; returns the position that a checkpoint records."""
        self._write(sync=True)
        return JournalPosition(self.length, self.checksum)

    def close(self) -> None:
        """Write what is left. No checkpoint rests on it, so that it may fail."""
        try:
            self._write(sync=False)
        except RunError:
            return

    def _add(self, data: bytes, checked: bool = True) -> None:
        self.waiting += data
        self.length += len(data)
        if checked:
            self.checksum = zlib.crc32(data, self.checksum)

    def _write(self, sync: bool) -> None:
        if not self.waiting or self.path is None:
            return
        with explain_os_errors(self.path):
            if not self.in_file:
                self.path.unlink(missing_ok=True)  # that of an earlier try; never written through a link
            with self.path.open("r+b" if self.in_file else "xb") as file:
                file.seek(self.in_file)
                file.write(self.waiting)
                file.flush()
                if sync:
                    os.fsync(file.fileno())
        self.in_file, self.waiting = self.length, bytearray()


def load_kept_journal(path: Path, committed: JournalPosition) -> KeptJournal:
    """The journal in a file up to the position that a checkpoint recorded."""
    read_journal(path, committed)
    return KeptJournal((read_if_present(path) or b"")[: committed.length], committed)


def read_journal(path: Path, committed: JournalPosition | None) -> Journal:
    """The journal in a file. Up to the position that a checkpoint recorded it must be whole; after it, records count
    as far as they are. One that came without a checkpoint (None) must be whole."""
    data = read_if_present(path)
    if data is None:
        raise RunError(f"{path.parent}: {path.name} is missing, which its checkpoint says it has; {_REMEDY}")
    remedy, whole = (_ALONE, len(data)) if committed is None else (_REMEDY, committed.length)
    if committed is not None and len(data) < committed.length:
        what = f"has {len(data):,} bytes of the {committed.length:,} that its checkpoint says it has"
        raise RunError(f"{path.parent}: {path.name} {what}; {_REMEDY}")
    entries: list[tuple[JournalEntry, int]] = []
    codec, position, reason = JournalCodec(), JournalPosition(0, 0), ""
    try:
        for entry, *place in _records(data, codec):
            if committed is not None and position.length < whole <= place[0] and tuple(place) != committed:
                raise ValueError("it is not the journal of the checkpoint")
            position = JournalPosition(*place)
            entries.append((entry, position.length))
    except ValueError as error:
        reason = str(error)
    header = entries[0][0] if entries else None
    if position.length < whole or not isinstance(header, JournalHeader):
        where = f"record {len(entries) + 1}, {codec.place}"
        raise RunError(f"{path.parent}: {path.name} is damaged at {where}: {reason or 'it ends there'}; {remedy}")
    return Journal(header, tuple(entries), position, len(data) - position.length)


def _records(data: bytes, codec: JournalCodec) -> Iterator[tuple[JournalEntry, int, int]]:
    """Each entry with the number of bytes until its end and the checksum there; ValueError where they are damaged."""
    if not data.startswith(MAGIC):
        raise ValueError("it does not begin as a journal does")
    at, checksum = len(MAGIC), zlib.crc32(MAGIC)
    while at < len(data):
        head = ByteReader(data[at : at + 10])
        kind, length = head.take(1), head.varint()
        start, end = at + head.at, at + head.at + length
        if end + 4 > len(data):
            raise ValueError("it ends inside of the record")
        checksum = zlib.crc32(data[at:end], checksum)
        if struct.pack("<I", checksum) != data[end : end + 4]:
            raise ValueError("its checksum differs")
        entry = codec.decode(kind, data[start:end])
        at = end + 4
        yield entry, at, checksum
