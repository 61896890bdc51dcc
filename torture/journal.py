"""The journal of finished tries, from which a second start goes on, and the summary that is made of it."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from torture.kinds import KINDS, Kind
from torture.verdicts import BAD, GOOD, Verdict

ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Record:
    """One try that is over."""

    kind: str
    seed: int
    number: int
    verdict: str
    detail: str = ""
    seconds: float = 0.0
    peak: int = 0
    counts: Mapping[str, int] = field(default_factory=dict)
    command: str = ""
    version: str = ""  # of the code that was tried

    @property
    def key(self) -> tuple[str, int, int]:
        """What determines the try."""
        return self.kind, self.seed, self.number


class Journal:
    """Records in a file, one line each; of a try that was repeated the last one counts."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.records: dict[tuple[str, int, int], Record] = {}
        if path.is_file():
            for line in path.read_text("utf-8").splitlines():
                try:
                    record = Record(**json.loads(line))
                except (ValueError, TypeError):  # cut off by a kill
                    continue
                self.records[record.key] = record

    def add(self, record: Record) -> None:
        """Append a record."""
        self.records[record.key] = record
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(record)) + "\n")

    def done(self, key: tuple[str, int, int], retry: bool) -> bool:
        """Whether a try need not be made; with `retry`, those that found something are made again."""
        record = self.records.get(key)
        return record is not None and not (retry and record.verdict in BAD)

    def of(self, name: str, seed: int) -> list[Record]:
        """The records of a kind, by number."""
        return sorted((r for r in self.records.values() if r.kind == name and r.seed == seed), key=lambda r: r.number)


def code_version() -> str:
    """The commit of the repository, with a plus sign if files differ from it."""

    def git(*words: str) -> str:
        return subprocess.run(
            ["git", "-C", str(ROOT), *words], capture_output=True, text=True, check=False
        ).stdout.strip()

    commit = git("rev-parse", "--short=10", "HEAD")
    return f"{commit}{'+' * bool(git('status', '--porcelain', '--', 'src'))}" if commit else "unknown"


def summarize(kind: Kind, records: Iterable[Record]) -> dict[str, Any]:
    """The row of a kind in the summary."""
    records = list(records)
    counts: Counter[str] = Counter()
    for record in records:
        counts.update(record.counts)
    words = Counter(record.verdict for record in records)
    return {
        "kind": kind.name,
        "family": kind.family,
        "about": kind.about,
        "tries": len(records),
        kind.inputs: counts.pop(kind.inputs, 0) or len(records),
        **dict(sorted(counts.items())),
        **{word: words[word] for word in (*GOOD, *BAD)},
        "findings": sum(words[word] for word in BAD),
        "slowest_seconds": round(max((record.seconds for record in records), default=0.0), 1),
        "largest_bytes": max((record.peak for record in records), default=0),
        "mean_seconds": round(sum(record.seconds for record in records) / max(1, len(records)), 3),
    }


def summary(journal: Journal, seed: int) -> dict[str, Any]:
    """What `results/torture.json` holds."""
    rows = [summarize(kind, records) for kind in KINDS.values() if (records := journal.of(kind.name, seed))]
    tried = {record.version for record in journal.records.values() if record.seed == seed}
    return {
        "title": "Kills and hostile inputs",
        "seed": seed,
        "limits": {"seconds": 30, "bytes": 4 * 2**30},
        "versions": sorted(tried),
        "rows": rows,
    }


def line(row: Mapping[str, Any]) -> str:
    """The summary of a kind for a terminal."""
    found = ", ".join(f"{row[word]} {word}" for word in BAD if row[word]) or "nothing found"
    extra = ", ".join(f"{row[key]} {key}" for key in ("kills", "finished", "inputs") if row.get(key))
    return (
        f"{row['kind']:<12} {row['tries']:>6} tries ({extra}): {row['ok']} accepted, {row['refused']} refused, {found}"
        f"; {row['mean_seconds']:.2f} s a try"
    )


def record_of(
    key: tuple[str, int, int], verdict: Verdict, seconds: float, peak: int, command: str, version: str
) -> Record:
    """The record of a try."""
    text = command if verdict.bad else ""
    return Record(*key, verdict.word, verdict.detail, round(seconds, 3), peak, dict(verdict.counts), text, version)
