"""How a step is carried out: features are evaluated once for all that reads them, in chunks that shrink when the device
runs out of memory, and on CUDA the work is recorded once and replayed. What a step computes, the placement says."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from zofc.optim.division import Division
from zofc.optim.evaluation import PointFeatures, Query, estimate_gradient, evaluate_features
from zofc.optim.first_order import autograd_leaves, backbone_gradient, loss_gradient
from zofc.optim.graphs import Recorder
from zofc.optim.objective import Gradient, Objective
from zofc.optim.optimizers import GroupOptimizer
from zofc.optim.sets import FirstOrderSet, ParameterSet, ZerothOrderSet
from zofc.ranks import Share
from zofc.seeds import noise_key

T = TypeVar("T")
StreamName = tuple[int, str, int]  # seed, "task", task


class Execution:
    """The execution of the steps of one placement."""

    def __init__(
        self, method: Objective, first: FirstOrderSet, stream: StreamName, graphs: bool, division: Division
    ) -> None:
        self.method, self.first, self.stream, self.division = method, first, stream, division
        self.recorder = Recorder(graphs)
        self.notices: list[str] = []  # for the user, since they were last read
        self._ahead: dict[ZerothOrderSet, tuple[tuple[int, int], Tensor]] = {}  # by step and batch

    def directions(self, part: ZerothOrderSet, step: int, batch: int) -> Tensor:
        """The directions of a step."""
        known, drawn = self._ahead.pop(part, (None, None))
        return drawn if drawn is not None and known == (step, batch) else part.draw(step, batch, self.method.device)

    def draw_ahead(self, part: ZerothOrderSet, step: int, batch: int) -> None:
        """Draw the directions of the next step while the device is busy with this one."""
        if self.method.device.type == "cuda":
            self._ahead[part] = (step, batch), part.draw(step, batch, self.method.device)

    def retry_smaller(self, part: ParameterSet, batch: int, work: Callable[[], T]) -> T:
        """`work()`, which reads the chunking of `part`, again with a smaller one whenever memory runs out."""
        while True:
            try:
                return work()
            except torch.OutOfMemoryError:
                if part.chunking.smaller(batch) is None:
                    raise
            self.shrink(part, batch)  # outside of `except`: the traceback would keep the tensors of `work` alive

    def shrink(self, part: ParameterSet, batch: int) -> None:
        """Evaluate a set in smaller chunks from now on, after memory ran out."""
        smaller = part.chunking.smaller(batch)
        assert smaller is not None
        part.chunking = smaller
        self.recorder.forget()
        torch.cuda.empty_cache()
        couples = getattr(self.method, "couples_images", None)
        self.notices.append(
            f"out of memory: from here on {smaller.micro_batch or batch} images and {smaller.chunk} points at a time "
            f"({part.label})" + (f"; {couples}" if couples else "")
        )


class Evaluation(NamedTuple):
    """Features that have been evaluated, and at which points."""

    query: Query | None  # of this rank; None: at the center alone
    directions: Query | None  # of all ranks
    features: PointFeatures
    recorder: Recorder  # of work that reads these features


class BatchExecution:
    """The gradients and estimates of one step on its batch, of which `images` and `labels` are this rank's part."""

    def __init__(self, execution: Execution, images: Tensor, labels: Tensor, step: int, part: Share) -> None:
        self.execution, self.method, self.recorder = execution, execution.method, execution.recorder
        self.division, self.part = execution.division, part
        self.images, self.labels, self.step = images, labels.to(self.method.device), step
        on_host = images.device.type != self.method.device.type  # these come to the device a micro-batch at a time
        self.part_recorder = self.recorder if on_host else None
        self.evaluated: dict[ParameterSet, Evaluation] = {}  # before the turn of its set

    def gradient(self, first: Mapping[str, GroupOptimizer], sets: Sequence[ZerothOrderSet]) -> Gradient:
        """The gradient of first-order groups; `sets` are the zeroth-order ones that follow. Groups that the features do
        not depend on read the features at the center, which are evaluated together with the points of the first set.
        """
        if any(name in self.method.in_features for name in first):
            own = self._retry(self.execution.first, lambda: self._backward(first))
            return self.division.gradient_of_all(own, self.part)
        evaluation, gradient = self._evaluate(sets[0] if sets else self.execution.first, first)
        if sets:
            self.evaluated[sets[0]] = evaluation
        assert gradient is not None
        return self.division.gradient_of_all(gradient, self.part)

    def estimate(self, part: ZerothOrderSet, hits: bool) -> Gradient:
        """The estimated gradient of a zeroth-order set at the present values of all parameters, the mean loss over its
        points and, if asked for, the hits."""

        def work() -> tuple[Gradient, Query]:  # if repeated, evaluates the same features again: nothing of them moved
            evaluation = self.evaluated.pop(part, None) or self._evaluate(part, {})[0]
            assert evaluation.directions is not None
            return self._estimate(evaluation, hits), evaluation.directions

        return self.division.estimate_of_all(*self._retry(part, work), self.part)

    def _retry(self, part: ParameterSet, work: Callable[[], T]) -> T:
        return self.execution.retry_smaller(part, len(self.images), work)

    def _evaluate(self, part: ParameterSet, first: Mapping[str, GroupOptimizer]) -> tuple[Evaluation, Gradient | None]:
        """The features at a set's points, and the gradient of the first-order groups that read those at the center. One
        recording covers both."""
        query = directions = None
        if isinstance(part, ZerothOrderSet):
            directions = part.query(self.execution.directions(part, self.step, self.part.whole))
            query = self.division.own(directions, self.part)

        def work(images: Tensor, labels: Tensor, vectors: Tensor) -> tuple[PointFeatures, Gradient | None]:
            points = None if query is None else replace(query, vectors=vectors)
            features = evaluate_features(self.method, images, points, bool(first), part.chunking, self.part_recorder)
            leaves = autograd_leaves(first)
            return features, loss_gradient(self.method, leaves, features.center, labels) if first else None

        def run() -> tuple[tuple[PointFeatures, Gradient | None], Recorder]:
            vectors = self.images.new_empty(0) if query is None else query.vectors
            kind = ("evaluate", part.label, part.chunking, *first)
            result = self.recorder.run(kind, work, self.images, self.labels, vectors)
            if isinstance(part, ZerothOrderSet):
                self.execution.draw_ahead(part, self.step + 1, self.part.whole)
            return result

        (features, gradient), recorder = self._retry(part, run)
        return Evaluation(query, directions, features, recorder), gradient

    def _estimate(self, evaluation: Evaluation, hits: bool) -> Gradient:
        query, _, features, recorder = evaluation
        assert query is not None

        def work(labels: Tensor, vectors: Tensor) -> Gradient:
            return estimate_gradient(self.method, labels, replace(query, vectors=vectors), features, hits)

        gradient: Gradient = recorder(("estimate", hits), work, self.labels, query.vectors)
        return gradient

    def _backward(self, first: Mapping[str, GroupOptimizer]) -> Gradient:
        """The gradient of groups that the features depend on."""
        micro_batch = self.execution.first.chunking.micro_batch
        key = noise_key(*self.execution.stream, "noise", self.step).to(self.method.device)

        start = torch.full_like(key, self.part.where.start)  # an input: a recording may not know it

        def work(images: Tensor, labels: Tensor, key: Tensor, start: Tensor) -> Gradient:
            return backbone_gradient(self.method, first, images, labels, key, micro_batch, self.part_recorder, start)

        kind = ("backward", *first, micro_batch)
        gradient: Gradient = self.recorder(kind, work, self.images, self.labels, key, start)
        return gradient
