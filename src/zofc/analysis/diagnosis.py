"""What a diagnosis found about each zeroth-order set and first-order group, and what that means, in sentences made of
the numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

HARDLY = 0.05  # of the loss
SOUND, USABLE, NOISE = 0.99, 0.7, 0.3  # correlations with the derivative from which on we speak so


@dataclass(frozen=True)
class Agreement:
    """Coefficients in working precision against the derivatives along the same directions in float64."""

    pearson: float
    cosine: float
    error: float  # rms error over the rms of the derivatives
    pairs: int  # queries · batches (· images, with directions for each image)


@dataclass(frozen=True)
class Rung:
    """Finite differences of one length; None where a loss was not finite."""

    epsilon: float
    pearson: float | None


@dataclass(frozen=True)
class Differences:
    """Loss differences at the recipe's ε (rms, as float64 has them), and how far the working precision is off."""

    epsilon: float
    signal: float
    noise: float
    vanished: float  # share of the differences that are exactly zero
    ladder: tuple[Rung, ...]

    @property
    def best(self) -> Rung | None:
        """The length ε whose differences agree best with the derivatives."""
        found = [rung for rung in self.ladder if rung.pearson is not None]
        return max(found, key=lambda rung: rung.pearson or 0.0, default=None)

    @property
    def sound(self) -> list[float]:
        """The lengths at which differences are as good as the derivative."""
        return [rung.epsilon for rung in self.ladder if rung.pearson is not None and rung.pearson >= SOUND]


@dataclass(frozen=True)
class Finding:
    """One line of the result: what, measured, meaning."""

    what: str
    measured: str
    verdict: str


@dataclass(frozen=True)
class StepDiagnosis:
    """What the optimizer makes of the estimates at the recipe's Q."""

    optimizer: str
    lr: float
    clip: float | None
    norm: float  # median ‖ĝ‖
    clipped: float  # share of the estimates that are longer than the clip
    length: float  # median length of a step, without momentum
    parameters: float  # ‖φ‖
    descent: float  # what a step takes off the loss, to first order, momentum included
    steps: float  # of the task, in units of the first one's learning rate

    def clip_line(self, gradient: float) -> Finding:
        """What the clip does to steps; `gradient` is the gradient's norm."""
        share = f"median norm of ĝ {self.norm:.3g}"
        if self.optimizer != "sgd":
            verdict = f"{self.optimizer} divides the norm out: a step is as long as the learning rate says, clip or not"
        elif self.clip is None:
            longer = self.norm / gradient
            verdict = "no clip: a step is as long as ĝ says"
            verdict += f", which is {longer:.3g} times as long as the gradient" if longer > 1.01 else ""
        elif self.clipped >= 0.99:
            verdict = "the clip is always active: the step length is the learning rate × clip, whatever the loss"
        elif self.clipped > 0:
            verdict = f"the clip is active in {100 * self.clipped:.0f} % of the steps"
        else:
            verdict = "the clip is never active: it changes nothing here"
        shown = "none" if self.clip is None else f"{self.clip:g}, active in {100 * self.clipped:.0f} %"
        return Finding("clip", f"{shown}; {share}", verdict)

    def length_line(self, loss: float, members: Sequence[str], beside: Sequence[str]) -> Finding:
        """What the steps of the task do to the loss; `beside` are groups that move too."""
        total = self.descent * self.steps
        share = f" ({100 * self.length / self.parameters:.2g} % of it)" if self.parameters else ""
        measured = f"{self.length:.3g} at lr {self.lr:g}, against ‖φ‖ = {self.parameters:.3g}{share}"
        if self.parameters and self.length > self.parameters:
            verdict = "a step is longer than the parameters themselves: use a smaller learning rate or clip"
        elif total <= 0:
            verdict = "to first order these steps do not lower the loss"
        else:
            verdict = f"to first order a step lowers the loss by {self.descent:.2g}; all steps of the task, by "
            verdict += f"{total:.2g} of {loss:.3g}" if total < loss else "as much as there is"
            if total < HARDLY * loss:
                fresh = " and ".join(beside)
                verdict += f": hardly anything, {f'with {fresh} as it starts' if fresh else 'from this start'}"
                rate = float(f"{self.lr * loss / 2 / total:.1g}")
                changes = " ".join(f"optimize.{group}.lr={rate:g}" for group in members)
                verdict += f"; half of it would take {changes}"
        return Finding("length of a step", measured, verdict)


@dataclass(frozen=True)
class Alignment:
    """Mean cosine of ĝ to the gradient with so many queries, and √(Q/(Q + d − 1)), without noise."""

    queries: int
    cosine: float
    theory: float


@dataclass(frozen=True)
class SetDiagnosis:
    """One zeroth-order set: one direction, one difference, one clip."""

    name: str
    members: tuple[str, ...]  # its groups
    beside: tuple[str, ...]  # the groups that move by gradients
    precision: str
    estimator: str
    directions: str
    size: int  # d
    queries: int  # Q of the recipe
    loss: float
    gradient: float  # mean over batches of its norm, by backward pass in float64
    agreement: Agreement
    differences: Differences | None  # None: forward gradients have no ε
    step: StepDiagnosis
    alignments: tuple[Alignment, ...]

    @property
    def lines(self) -> list[Finding]:
        """All that is to say about the set; without a gradient there is nothing to compare with."""
        first = Finding(
            "gradient",
            f"norm {self.gradient:.3g}, d = {self.size:,}, loss {self.loss:.4g}",
            f"exact, by a backward pass in float64; the {self.queries} queries of a step see {self.queries} of "
            f"{self.size:,} dimensions",
        )
        if not self.gradient:
            return [Finding(first.what, first.measured, "the gradient is zero here: there is nothing to estimate")]
        middle = [] if self.differences is None else self._difference_lines(self.differences)
        return [first, self._agreement_line(), *middle, *self._step_lines(), self._alignment_line()]

    def _change(self, key: str, value: str) -> str:
        """How to say it on the command line, for every group of the set."""
        return " ".join(f"optimize.{group}.{key}={value}" for group in self.members)

    def _remedy(self) -> str:
        exact = self._change("estimator", "forward_gradient")
        if self.differences is None:
            return "training.precision=fp32" if self.precision != "fp32" else "a look at the images and the loss"
        if self.precision != "fp32":
            return f"{exact} or training.precision=fp32"
        best = self.differences.best
        longer = best is not None and (best.pearson or 0) > max(2 * self.agreement.pearson, NOISE)
        return f"{exact}, or {self._change('epsilon', f'{best.epsilon:g}')}" if best and longer else exact

    def _agreement_line(self) -> Finding:
        found = self.agreement
        what = "the derivatives" if self.differences is None else "the differences"
        if found.pearson >= SOUND:
            verdict = f"{what} are as good as exact in {self.precision}"
        elif found.pearson >= USABLE:
            verdict = f"{what} are right on the whole, with an error of {100 * found.error:.0f} %: training slows down"
        elif found.pearson >= NOISE:
            verdict = f"more noise than signal in {what}: use {self._remedy()}"
        else:
            verdict = f"{what} are noise: correlation {found.pearson:.2f}; use {self._remedy()}"
        measured = f"Pearson {found.pearson:.4f}, cosine {found.cosine:.4f}, error {100 * found.error:.3g} %"
        return Finding(f"{self.estimator} against float64", f"{measured} ({found.pairs} pairs)", verdict)

    def _difference_lines(self, found: Differences) -> list[Finding]:
        ratio = found.signal / found.noise if found.noise else math.inf
        measured = f"{found.signal:.2e} against {found.noise:.2e}: ratio {ratio:.3g}"
        blurs = "blurs the differences" if ratio >= 1 else "is larger than the differences"
        verdict = f"rounding in {self.precision} {'does not matter' if ratio >= 10 else blurs} at ε = {found.epsilon:g}"
        if found.vanished >= 0.05:
            verdict += f"; {100 * found.vanished:.0f} % of them vanish: both losses are the same number"
        best = found.best
        if best is None or (best.pearson or 0.0) < NOISE:
            epsilon = f"no ε helps in {self.precision}: use {self._remedy()}"
        elif not found.sound:
            epsilon = f"ε = {best.epsilon:g} is best, and correlates {best.pearson:.2f}"
        else:
            sound = ", ".join(f"{length:g}" for length in found.sound)
            own = "is among them" if found.epsilon in found.sound else "is not"
            epsilon = f"ε = {best.epsilon:g} is best; sound are {sound}, and the recipe's {found.epsilon:g} {own}"
        values = ["not finite" if rung.pearson is None else f"{rung.pearson:.2f}" for rung in found.ladder]
        shown = ", ".join(f"{rung.epsilon:g}: {value}" for rung, value in zip(found.ladder, values, strict=True))
        return [Finding("difference against noise", measured, verdict), Finding("Pearson by ε", shown, epsilon)]

    def _step_lines(self) -> list[Finding]:
        return [self.step.clip_line(self.gradient), self.step.length_line(self.loss, self.members, self.beside)]

    def _alignment_line(self) -> Finding:
        now = next(found for found in self.alignments if found.queries == self.queries)
        most = self.alignments[-1]
        verdict = f"at Q = {now.queries} the estimate has cosine {now.cosine:.2g} to the gradient"
        if most.queries > now.queries:
            verdict += f"; Q = {most.queries} would have {most.cosine:.2g}"
        if most.cosine < most.theory / 2:
            verdict += f", far below the {most.theory:.2g} that d = {self.size:,} allows: noise takes the rest"
        else:
            verdict += f": as d = {self.size:,} dimensions allow"
            verdict += "; four times the queries double it" if 4 * now.queries < self.size / 4 else ""
        measured = f"{now.cosine:.3g} at Q = {now.queries}, in theory {now.theory:.3g}"
        return Finding("cosine to the gradient", measured, verdict)


@dataclass(frozen=True)
class GroupDiagnosis:
    """One first-order group."""

    name: str
    beside: tuple[str, ...]  # the other groups that move
    size: int
    loss: float
    gradient: float  # mean over batches of its norm, by backward pass in float64
    step: StepDiagnosis

    @property
    def lines(self) -> list[Finding]:
        """All that is to say about the group."""
        measured = f"norm {self.gradient:.3g}, d = {self.size:,}, loss {self.loss:.4g}"
        if not self.gradient:
            return [Finding("gradient", measured, "the gradient is zero here: nothing moves at first")]
        first = Finding("gradient", measured, "exact, by a backward pass in float64")
        return [
            first,
            self.step.clip_line(self.gradient),
            self.step.length_line(self.loss, (self.name,), self.beside),
        ]


@dataclass(frozen=True)
class Diagnosis:
    """A recipe's zeroth-order sets and first-order groups at the beginning of a task, before anything is trained."""

    recipe: str
    task: int
    tasks: int
    device: str
    precision: str
    batches: int
    batch_size: int
    refusal: str | None  # why a run of this recipe would be refused
    notices: tuple[str, ...]
    sets: tuple[SetDiagnosis, ...]
    groups: tuple[GroupDiagnosis, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Everything, with the sentences beside the numbers."""
        sets, groups = (
            [{**asdict(found), "lines": [asdict(line) for line in found.lines]} for found in part]
            for part in (self.sets, self.groups)
        )
        return {**asdict(self), "notices": list(self.notices), "sets": sets, "groups": groups}
