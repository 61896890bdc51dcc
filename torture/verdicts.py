"""What became of a try, in one word: accepted, refused with a reason, or one of the ways to fail."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from torture.sandbox import REACHED, Outcome

ACCEPTED, REFUSED = "ok", "refused"
GOOD = (ACCEPTED, REFUSED)
BAD = {
    "traceback": "a Python traceback",
    "hang": "not over after 30 s",
    "memory": "more than 4 GiB resident",
    "crash": "ended by a signal, or with a status that is not ours",
    "unclear": "refused without a reason",
    "escape": "control characters of an input reached the output",
    "network": "tried to reach another machine",
    "wrong": "accepted, with a result other than an independent reader's",
    "lost": "a run or a file lost or changed",
    "harness": "a mistake of the harness itself",
}
STATUSES = (0, 1, 2, 130)
TRACEBACK = re.compile(r"^\s*(Traceback \(most recent call last\)|Fatal Python error)", re.MULTILINE)
EXCEPTION = re.compile(r"^[\w.]+(?:Error|Exception|Interrupt|Exit|Invalid|Warning)\b.*", re.MULTILINE)
CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\x80-\x9f]")  # but tab, line feed and carriage return
DETAIL = 300  # characters of the last line that are kept


@dataclass(frozen=True)
class Verdict:
    """The word, the last thing that was printed, and what a kind counts."""

    word: str
    detail: str = ""
    counts: Mapping[str, int] = field(default_factory=dict)

    @property
    def bad(self) -> bool:
        """Whether it is a finding."""
        return self.word in BAD

    def counting(self, **counts: int) -> Verdict:
        """The same with counts added."""
        return replace(self, counts={**self.counts, **counts})


def judge(outcome: Outcome, controls: bool = True) -> Verdict:
    """The verdict on a command by how it ended and what it printed; `controls`: its output must hold none."""
    detail = last_line(outcome.text)
    if outcome.excess:
        return Verdict("hang" if outcome.excess == "time" else "memory", detail or f"{outcome.seconds:.1f} s")
    if REACHED in outcome.text:
        return Verdict("network", next(line for line in outcome.text.splitlines() if REACHED in line))
    if TRACEBACK.search(outcome.text):
        raised = EXCEPTION.findall(outcome.text)
        return Verdict("traceback", ascii(raised[-1])[1:-1][:DETAIL] if raised else detail)
    if outcome.status not in STATUSES:
        return Verdict("crash", f"status {outcome.status}: {detail}")
    if controls and (sign := CONTROL.search(outcome.text)):
        around = outcome.text[max(0, sign.start() - 40) : sign.end() + 40]
        return Verdict("escape", repr(around))
    if outcome.status and len(outcome.text.split()) < 3:  # such as "Aborted."
        return Verdict("unclear", f"status {outcome.status}: {detail}")
    return Verdict(REFUSED if outcome.status else ACCEPTED, detail)


def last_line(text: str) -> str:
    """The last line that says something, shortened."""
    lines = [line.strip() for line in text.splitlines() if line.strip(" │╰╯─")]
    return ascii(lines[-1])[1:-1][-DETAIL:] if lines else ""
