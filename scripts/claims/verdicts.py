"""From comparisons to a verdict on a claim: how many bear it out, in a word, in short, and in full."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import cache

from claims.comparisons import ERRORS, STUDENT, Comparison, Evidence, Question, number
from claims.measures import PRECISION
from zofc.studies.catalogue import STUDIES
from zofc.studies.settings import SETTINGS

MOST, MANY, ENOUGH, FEW = 0.75, 0.5, 0.25, 3  # shares of comparisons; how many of them are written out one by one
HOW = " (for/against/too close)"
HOLDS, MOSTLY, PARTLY, MIXED, PARTLY_NOT, MOSTLY_NOT, NOT = (
    "holds", "mostly holds", "holds in part", "mixed", "does not hold in part", "mostly does not hold", "does not hold",
)  # fmt: skip
TOO_CLOSE, IDLE, UNMEASURED, UNTESTABLE = (
    "undecided", "cannot be told", "not measured", "cannot be tested here",
)  # fmt: skip
MARGIN, NO_NUMBERS = "set the margin", ""  # what the paper's own numbers are where they cannot be judged
WORDS = (HOLDS, MOSTLY, PARTLY, MIXED, PARTLY_NOT, MOSTLY_NOT, NOT, TOO_CLOSE, IDLE, UNMEASURED, UNTESTABLE)
LEGEND = (
    "A comparison is of two lines in one setting. It speaks for a claim, against it, or is too close to tell from "
    "chance.",
    f"*{HOLDS}*, *{NOT}*: all speak for it, or against it. *{MOSTLY}*, *{MOSTLY_NOT}*: three quarters or more of those "
    f"that tell, and half or more of all. *{PARTLY}*, *{PARTLY_NOT}*: three quarters of those that tell, but fewer "
    f"than half of all. *{MIXED}*: neither side has three quarters. *{TOO_CLOSE}*: fewer than a quarter tell. "
    f"*{IDLE}*: what it takes for granted is not so here.",
)
RULE = (
    "**Comparisons.** Two lines are compared in one setting with the same seeds: the line that a claim is about less "
    "the other, or with × the one in units of the other. Lines that are missing or failed are in none. Streams whose "
    "tasks bring no new classes are shown apart, and in no count.",
    "**Three seeds or more.** A difference counts if zero lies outside the 95 % interval of its mean by Student's t: "
    f"more than {STUDENT[3]:g} standard errors over three seeds, and more than what one test image makes of it.",
    f"**One or two seeds.** A difference of accuracies or of forgetting counts if it is more than {ERRORS:g} binomial "
    "standard errors of one seed, from the accuracies and the number of test images, as if the two lines had been "
    "tested on different images. Of Φ the sign alone decides, of a Hessian the errors "
    "of its eigenvalue and its trace. What does not count is *too close*. How far seeds differ is no part of this, so "
    "it is the milder test.",
    "**Flatness.** Φ is taken at the paper's radius ρ for all lines, however far their parameters have moved, and a "
    "task's loss over the classes of its own. Points of one run are no independent ones, so of a run there is the mean "
    "over tasks and the end.",
    "**Shares.** What was learned is the best of several accuracies, each with its chance, so it is too high, and the "
    "share that was lost too: by several points where little was learned.",
    "**Many comparisons.** Each is made by itself: of a hundred in which nothing differs, about five will tell.",
    f"**Cost.** A measured time or memory is taken to be right to {100 * PRECISION:g} %, so ratios count beyond "
    f"{100 * ERRORS * PRECISION * 2**0.5:.0f} %. Operations are counted, and exact.",
    "**Close.** Where a claim says that something is close, it names a margin: a mean that is within it by what counts "
    "as a difference speaks for the claim, one that is outside by as much against it.",
    "**What is taken for granted.** A claim about what an adapter's steps change, or leave as it is, says nothing "
    "where they change nothing, and one about forgetting nothing of a line that has learned nothing. So "
    "comparisons are not counted, as the claim's row then says, in settings where a first-order adapter is not shown "
    "to learn tasks better than the classifier alone, or where ZO-FC's is not shown to add accuracy to it; and, of "
    f"forgetting, with a line that ends below twice chance. If none is left, the claim *{IDLE}*.",
    "**The paper's own numbers** are counted in the same way, but for what is taken for granted; they are of one "
    "seed, and there the sign decides.",
)


@dataclass(frozen=True)
class Verdict:
    """What came of a claim: in a word, in short, in the paper's own numbers, and all that it rests on."""

    word: str
    here: str = ""
    paper: str = ""
    details: str = ""
    seeds: str = ""  # "one seed", "in part one seed" or nothing


Judge = Callable[[Evidence], Verdict]
Failing = tuple[str, tuple[str, ...]]  # a setting, and a line there, two side by side, or none: all


@dataclass(frozen=True)
class Premise:
    """What a claim takes for granted: `but` says of what it is not so, and `failing` finds it."""

    but: str
    failing: Callable[[Evidence], set[Failing]]

    def fails(self, one: Comparison, failing: set[Failing]) -> bool:
        return any((one.setting, lines) in failing for lines in ((), one.lines, *((line,) for line in one.lines)))


def shown(question: Question, but: str, of: tuple[str, ...] = ()) -> Premise:
    """That a question is answered with yes; if it matters to comparisons with one line alone, `of` this line."""
    return Premise(but, lambda evidence: {(one.setting, of) for one in question(evidence) if one.side < 1})


def judged(
    *questions: Question, on: str = "*", otherwise: str = "", own: str | None = None, rests: Premise | None = None
) -> Judge:
    """A claim that every comparison should bear out: `on` the settings of this pattern; `otherwise` says why it cannot
    be tested where there are none. The paper's `own` numbers are judged too, unless this says what they are instead.
    Comparisons of which is not so what it `rests` on are not counted."""

    def judge(evidence: Evidence) -> Verdict:
        found = asked(questions, evidence, on)
        incremental = [one for one in found if class_incremental(one.setting)]
        failing = rests.failing(evidence) if rests else set()
        void = [one for one in incremental if rests and rests.fails(one, failing)]
        counted = [one for one in incremental if one not in void]
        word = band(counted) if counted else IDLE if void else UNTESTABLE if otherwise else UNMEASURED
        paper = share(asked(questions, printed(), on)) if own is None else own
        here = [*_short(counted), *_not_counted(rests, void, counted)] or [otherwise] * bool(otherwise)
        return Verdict(word, "; ".join(here), paper, _in_full(found, void, rests), _seeds(counted))

    return judge


def cannot(why: str) -> Judge:
    return lambda evidence: Verdict(UNTESTABLE, why)


def band(found: Sequence[Comparison]) -> str:
    """A word for comparisons, of which there must be one."""
    sides = [one.side for one in found]
    told = [side for side in sides if side]
    if len(told) < ENOUGH * len(sides) or not told:
        return TOO_CLOSE
    if 0 not in sides and len(set(sides)) == 1:
        return HOLDS if sides[0] > 0 else NOT
    if 1 - MOST < told.count(1) / len(told) < MOST:
        return MIXED
    most = 1 if told.count(1) > told.count(-1) else -1
    many = told.count(most) >= MANY * len(sides)
    return {(1, True): MOSTLY, (1, False): PARTLY, (-1, True): MOSTLY_NOT, (-1, False): PARTLY_NOT}[most, many]


def class_incremental(setting: str) -> bool:
    """Whether tasks bring new classes, as all of the paper's do."""
    return setting not in SETTINGS or "data.by=domain" not in SETTINGS[setting].changes


@cache
def printed() -> Evidence:
    """The paper's tables as rows."""
    return {
        study.name: [
            {"line": line.title, "setting": setting, "seed": 0, "printed": values}
            for line in study.lines
            for setting in study.settings
            if (values := study.printed(line, setting))
        ]
        for study in STUDIES.values()
    }


def in_the_paper(question: Question, on: str = "*") -> list[float]:
    """What a question gives for the paper's own numbers."""
    return [one.value for one in asked([question], printed(), on)]


def asked(questions: Sequence[Question], evidence: Evidence, on: str) -> list[Comparison]:
    return [one for question in questions for one in question(evidence) if fnmatch(one.setting, on)]


# -- in short --------------------------------------------------------------------------------------------------------


def share(found: Sequence[Comparison]) -> str:
    return f"{sum(one.side > 0 for one in found)} of {len(found)}" if found else ""


def tally(found: Sequence[Comparison]) -> str:
    """How many comparisons bear a claim out; where some are too close, how many speak against it too."""
    bear, against, close = (sum(one.side == side for one in found) for side in (1, -1, 0))
    return f"{bear} for, {against} against, {close} too close" if close else share(found)


def _short(found: Sequence[Comparison]) -> list[str]:
    """How many comparisons bear a claim out, and the middle of their values; of few, the values."""
    if not found:
        return []
    words = [tally(found)] if len(found) > 1 else []
    units = {(one.measure, one.unit) for one in found}
    if len(units) > 1 or not found[0].unit:
        return words or [found[0].told]
    first, unit = found[0], "" if found[0].unit == "×" else f" {found[0].unit}"
    if len(found) <= FEW:
        return [*words, ", ".join(number(one.value, first.measure, first.unit) for one in found) + unit]
    middle = statistics.median(one.value for one in found)
    return [*words, f"median {number(middle, first.measure, first.unit)}{unit}", *_against(found)]


def _against(found: Sequence[Comparison]) -> list[str]:
    """The one or two lines that speak against a claim, if others do not."""
    names = dict.fromkeys(_name(one.lines, found) for one in found if one.side < 0)
    others = {_name(one.lines, found) for one in found} - set(names)
    short = 0 < len(names) <= 2 and " beside " not in "".join(names)
    return [f"against it {' and '.join(names)}"] if others and short else []


def _not_counted(rests: Premise | None, void: Sequence[Comparison], counted: Sequence[Comparison]) -> list[str]:
    if rests is None or not void:
        return []
    said = f" ({_score(void)} for/against/too close)" if any(one.side for one in void) else ""
    return [f"{len(void)} not counted{said}, {rests.but}"] if counted else [f"{rests.but}{said}"]


def _seeds(found: Sequence[Comparison]) -> str:
    alone = [one.seeds == 1 for one in found if not one.measure.exact]
    return ("one seed" if all(alone) else "in part one seed") if any(alone) else ""


# -- in full ---------------------------------------------------------------------------------------------------------


def _in_full(found: Sequence[Comparison], void: Sequence[Comparison], rests: Premise | None) -> str:
    counted = [one for one in found if class_incremental(one.setting) and one not in void]
    apart = [one for one in found if not class_incremental(one.setting)]
    words = _numbers(counted)
    if rests is not None and void:
        parts = "; ".join(_by_setting(void, len({one.lines for one in void}) == 1))
        words.append(f"Not counted, {rests.but}{HOW * (len(void) > parts.count('; ') + 1)}: {parts}.")
    for setting in dict.fromkeys(one.setting for one in apart):
        mine = [one for one in apart if one.setting == setting]
        words.append(f"Not counted, since tasks bring no new classes: {setting} {_score(mine)}{_span(mine)}.")
    return " ".join(words)


def _numbers(found: Sequence[Comparison]) -> list[str]:
    """By measure: each number where they are few, else their ranges; and which speak against the claim."""
    words = []
    for measure in dict.fromkeys(one.measure for one in found):
        mine = [one for one in found if one.measure == measure]
        alike, few = len({one.lines for one in mine}) == 1, len(found) <= FEW
        parts = [f"{one.setting} {one.shown}" for one in mine] if few else _by_setting(mine, alike)
        how = HOW * (len(mine) > len(parts))
        if alike and not few and len(mine[0].lines) > 1:
            how = f" ({' beside '.join(mine[0].lines)})"
        words.append(f"{measure.words[0].upper()}{measure.words[1:]}{how}: {'; '.join(parts)}.")
        for side, begins in ((-1, "Against the claim"), (0, "Too close")):
            some = [one for one in mine if one.side == side]
            if some and len(some) < len(mine):
                named = ", ".join(dict.fromkeys(one.setting for one in some)) if alike else _named(some, mine)
                words.append(f"{begins}: {named}.")
    return words


def _by_setting(found: Sequence[Comparison], alike: bool) -> list[str]:
    parts = []
    for setting in dict.fromkeys(one.setting for one in found):
        mine = [one for one in found if one.setting == setting]
        only = mine[0].told if alike else mine[0].shown
        parts.append(f"{setting} {_score(mine)}{_span(mine)}" if len(mine) > 1 else f"{setting} {only}")
    return parts


def _score(found: Sequence[Comparison]) -> str:
    return "/".join(str(sum(one.side == side for one in found)) for side in (1, -1, 0))


def _span(found: Sequence[Comparison]) -> str:
    """Their values, from the lowest to the highest."""
    ordered = sorted(found, key=lambda one: one.value)
    ends = dict.fromkeys(number(one.value, one.measure, one.unit) for one in (ordered[0], ordered[-1]))
    return f" ({' to '.join(ends)})" if ordered[0].unit else ""


def _named(some: Sequence[Comparison], among: Sequence[Comparison]) -> str:
    """Comparisons by their lines, each with in how many of its settings."""
    parts = []
    for lines in dict.fromkeys(one.lines for one in some):
        mine, all_ = ([one for one in group if one.lines == lines] for group in (some, among))
        parts.append(f"{_name(lines, among)} in {len(mine)} of {len(all_)}{_span(mine)}")
    return "; ".join(parts)


def _name(lines: tuple[str, ...], among: Sequence[Comparison]) -> str:
    """Of two lines, what sets them apart from the others: one of them, or their method."""
    pairs = {one.lines for one in among}
    if len(lines) != 2:
        return ", ".join(lines)
    for place in (0, 1):
        if len({pair[place] for pair in pairs}) == 1:
            return lines[1 - place]
    methods = {line.removesuffix(", FO").removesuffix(", ZO") for line in lines}
    return methods.pop() if len(methods) == 1 else " beside ".join(lines)
