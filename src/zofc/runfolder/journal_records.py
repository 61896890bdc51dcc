"""The records of a journal: what is said of a zeroth-order set at the start of a task, of each of its steps, and at
the end of the task. docs/reference/journal.md describes their bytes."""

from __future__ import annotations

import json
import struct
import zlib
from hashlib import blake2b
from math import prod
from typing import Any, NamedTuple

from zofc.runfolder.nested import is_count

HEADER, SET, STEP, END = b"H", b"S", b"T", b"E"  # kinds of records
SKIPPED, RATE, SCALE = 1, 2, 4  # flags of a step: nothing moved; a learning rate follows; a factor of the clip follows
WIDTHS = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}  # bytes of a number
DIGEST_BYTES = 8  # of a tensor at the end of a task
MOST_INFLATION = 1100  # zlib compresses zeros to a thousandth
DESCRIPTION_BYTES = 2**24  # of a set, without its values


class JournalHeader(NamedTuple):
    """What a journal is of."""

    recipe: str  # digest of the recipe
    seed: int
    device: str  # kind: cpu, cuda, mps


class TensorStart(NamedTuple):
    """A tensor of a set at the start of a task; without a value it is what an earlier task of the journal made it."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    value: bytes | None

    @property
    def nbytes(self) -> int:
        """The size of its value."""
        return prod(self.shape) * WIDTHS[self.dtype]


class SetStart(NamedTuple):
    """A zeroth-order set at the start of a task."""

    task: int  # counted from 0
    label: str
    members: tuple[str, ...]
    plan: dict[str, Any]  # optimizer, momentum, weight_decay, directions, queries, per, estimator, epsilon
    seed: int  # of its directions
    stream: tuple[str | int, ...]
    digest: str  # of all values
    tensors: tuple[TensorStart, ...]

    @property
    def share_width(self) -> int:
        """Bytes of a share: shares have the precision of the parameters, at least single."""
        return 8 if self.tensors[0].dtype == "float64" else 4


class SetStep(NamedTuple):
    """A step of a set: φ ← φ − rate · scale · Σ_q shares_q Δ_q by its optimizer, or nothing where it was skipped."""

    number: int  # of the set in its task
    epoch: int
    step: int  # within the task, from 0: names the directions
    moved: bool
    rate: float
    scale: float
    shares: bytes  # little-endian; with a direction for each image query by query, image by image


class SetEnd(NamedTuple):
    """A set at the end of a task: the digest of each tensor after the last step, and whether the method changed it
    afterwards."""

    number: int
    digests: tuple[bytes, ...]
    changed: tuple[bool, ...]


JournalEntry = JournalHeader | SetStart | SetStep | SetEnd


def value_digest(*values: bytes, size: int = DIGEST_BYTES) -> bytes:
    """A digest of the bytes of tensors."""
    code = blake2b(digest_size=size)
    for value in values:
        code.update(value)
    return code.digest()


class JournalCodec:
    """Entries to records and back. A record says what has changed since those before it, so that one codec must see
    all entries in order."""

    def __init__(self) -> None:
        self.sets: list[SetStart] = []  # of the present task
        self.rates: dict[int, float] = {}  # the last one of each of them
        self.known: dict[str, bytes] = {}  # digests of tensors at the end of the tasks so far
        self.last: SetStep | None = None

    def encode(self, entry: JournalEntry) -> bytes:
        """Kind, length and payload of an entry."""
        kind, payload = self._payload(entry)
        self.note(entry)
        return kind + _varint(len(payload)) + payload

    def _payload(self, entry: JournalEntry) -> tuple[bytes, bytes]:
        if isinstance(entry, JournalHeader):
            return HEADER, json.dumps(entry._asdict()).encode()
        if isinstance(entry, SetStart):
            tensors = [[one.name, one.shape, one.dtype, one.value is not None] for one in entry.tensors]
            text = zlib.compress(json.dumps({**entry._asdict(), "tensors": tensors}).encode(), 9)
            values = b"".join(one.value for one in entry.tensors if one.value is not None)
            return SET, _varint(len(text)) + text + zlib.compress(values, 9)
        if isinstance(entry, SetEnd):
            changed = bytes(entry.changed)
            return END, _varint(entry.number) + b"".join(entry.digests) + changed
        rate = b"" if entry.rate == self.rates.get(entry.number) else struct.pack("<d", entry.rate)
        scale = b"" if entry.scale == 1.0 else struct.pack("<d", entry.scale)
        flags = SKIPPED * (not entry.moved) + RATE * bool(rate) + SCALE * bool(scale)
        counters = _varint(entry.number) + _varint(entry.epoch) + _varint(entry.step)
        return STEP, counters + bytes([flags]) + rate + scale + entry.shares

    def decode(self, kind: bytes, payload: bytes) -> JournalEntry:
        """The entry of a record; ValueError if it is none."""
        if kind == STEP:
            entry: JournalEntry = self._decode_step(ByteReader(payload))
        elif kind == SET:
            entry = _decode_set(ByteReader(payload))
        elif kind == END:
            entry = self._decode_end(ByteReader(payload))
        elif kind == HEADER:
            entry = _decode_header(payload)
        else:
            raise ValueError(f"a record of an unknown kind, {kind!r}: was it written by a later version?")
        self.note(entry)
        return entry

    def _decode_step(self, data: ByteReader) -> SetStep:
        number, epoch, step, flags = data.varint(), data.varint(), data.varint(), data.take(1)[0]
        start = self._set(number)
        rate = data.float() if flags & RATE else self.rates.get(number)
        scale = data.float() if flags & SCALE else 1.0
        if rate is None:
            raise ValueError("no learning rate")
        shares = data.rest()
        moved = not flags & SKIPPED
        if len(shares) % (start.share_width * start.plan["queries"]) or moved != bool(shares):
            raise ValueError(f"{len(shares)} bytes of shares")
        return SetStep(number, epoch, step, moved, rate, scale, shares)

    def _decode_end(self, data: ByteReader) -> SetEnd:
        number = data.varint()
        count = len(self._set(number).tensors)
        digests = tuple(data.take(DIGEST_BYTES) for _ in range(count))
        return SetEnd(number, digests, tuple(byte != 0 for byte in data.take(count)))

    def _set(self, number: int) -> SetStart:
        if number >= len(self.sets):
            raise ValueError(f"a step of set {number + 1} of {len(self.sets)}")
        return self.sets[number]

    def note(self, entry: JournalEntry) -> None:
        """Take up what later records rest on."""
        if isinstance(entry, SetStep):
            self.rates[entry.number], self.last = entry.rate, entry
        elif isinstance(entry, SetStart):
            if not self.sets or self.sets[0].task != entry.task:
                self.sets, self.rates, self.last = [], {}, None
            self.sets.append(entry)
        elif isinstance(entry, SetEnd):
            names = [one.name for one in self.sets[entry.number].tensors]
            self.known |= dict(zip(names, entry.digests, strict=True))

    @property
    def place(self) -> str:
        """Where the last entry stands."""
        if not self.sets:
            return "at its beginning"
        task = f"task {self.sets[0].task + 1}"
        return f"after {task}, step {self.last.step + 1}" if self.last else f"at the start of {task}"


class ByteReader:
    """A payload, read from its beginning; ValueError where it is too short."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def take(self, count: int) -> bytes:
        """So many bytes."""
        part = self.data[self.at : self.at + count]
        if len(part) < count:
            raise ValueError("a record that is too short")
        self.at += count
        return part

    def rest(self) -> bytes:
        """All that is left."""
        return self.take(len(self.data) - self.at)

    def varint(self) -> int:
        """A whole number, in as many bytes as it needs."""
        value = 0
        for place in range(9):
            byte = self.take(1)[0]
            value |= (byte & 127) << 7 * place
            if byte < 128:
                return value
        raise ValueError("a number that is too long")

    def float(self) -> float:
        """A number in double precision."""
        value: float = struct.unpack("<d", self.take(8))[0]
        return value


def _varint(value: int) -> bytes:
    """Seven bits in each byte, the lowest first; the highest bit says that another byte follows."""
    parts = []
    while value > 127:
        parts.append(value & 127 | 128)
        value >>= 7
    return bytes([*parts, value])


def _decode_header(payload: bytes) -> JournalHeader:
    value = _parse(payload)
    recipe, seed, device = (value.get(key) for key in JournalHeader._fields)
    if not isinstance(recipe, str) or not isinstance(seed, int) or not isinstance(device, str):
        raise ValueError("a header that makes no sense")
    return JournalHeader(recipe, seed, device)


def _decode_set(data: ByteReader) -> SetStart:
    value = _parse(_inflate(data.take(data.varint()), DESCRIPTION_BYTES))
    try:
        described = [TensorStart(name, tuple(shape), dtype, b"" if kept else None)
                     for name, shape, dtype, kept in value.pop("tensors")]  # fmt: skip
        start = SetStart(**{**value, "tensors": (), "members": tuple(value["members"]),
                            "stream": tuple(value["stream"])})  # fmt: skip
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"a set that makes no sense ({error})") from error
    names = [one.name for one in described]
    sound = (
        is_count(start.task) and isinstance(start.seed, int) and isinstance(start.plan, dict)
        and all(isinstance(word, str) for word in (start.label, start.digest, *start.members, *names))
        and all(isinstance(word, str | int) for word in start.stream) and len(set(names)) == len(names) > 0
        and all(one.dtype in WIDTHS and all(map(is_count, one.shape)) for one in described)
        and is_count(start.plan.get("queries")) and start.plan["queries"] > 0
    )  # fmt: skip
    if not sound:
        raise ValueError("a set that makes no sense")
    kept = [one for one in described if one.value is not None]
    values = ByteReader(_inflate(data.rest(), sum(one.nbytes for one in kept), exact=True))
    return start._replace(
        tensors=tuple(one if one.value is None else one._replace(value=values.take(one.nbytes)) for one in described)
    )


def _parse(text: bytes) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError("a description that is not JSON") from error
    if not isinstance(value, dict):
        raise ValueError("a description that holds no names")
    return value


def _inflate(data: bytes, size: int, exact: bool = False) -> bytes:
    """What was compressed, of at most `size` bytes or of exactly as many; no more is ever made of it."""
    if exact and size > MOST_INFLATION * len(data):
        raise ValueError(f"{size:,} bytes of values in {len(data):,}")
    engine = zlib.decompressobj()
    try:
        content = engine.decompress(data, size + 1)
    except zlib.error as error:
        raise ValueError("values that cannot be decompressed") from error
    if len(content) > size or (exact and len(content) < size) or not engine.eof:
        raise ValueError(f"not the {size:,} bytes that were announced")
    return content
