"""The parts of a method that become ONNX graphs: what is frozen up to the first adapted block (`enter`), the rest as a
function of the adapter (`features`), the same with tangents along directions (`tangents`), and the whole model as it
stands (`predict`). Adapter and directions are inputs, flat vectors as in `optim.directions.Space`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from zofc.data.views import TestView
from zofc.methods import Method
from zofc.methods.adapter import AdapterClassifier
from zofc.methods.classifier import Classifier
from zofc.methods.ridge import Ridge
from zofc.model.ridge import RidgeHead
from zofc.model.vit import State
from zofc.optim.directions import Space
from zofc.optim.dual import duals

STATE_NAMES = ("x", "h", "y")  # what the walk carries, as `model.vit.State` names it
EXAMPLE_BATCH, EXAMPLE_QUERIES = (
    3,
    2,
)  # with which graphs are traced; others can be given to the graphs


@dataclass(frozen=True)
class GraphSource:
    """A module that becomes a graph, with examples of its inputs and the names of their variable axes."""

    name: str
    module: nn.Module
    inputs: dict[str, Tensor]
    axes: Sequence[dict[int, str]]
    outputs: tuple[str, ...]


class _OnBackbone(nn.Module):
    """A module that knows the weights of the backbone by name, and a method without owning its tensors."""

    def __init__(self, method: Method) -> None:
        super().__init__()
        self.vit = method.backbone.vit
        self._method = (method,)  # in a tuple, it is not a module of this one

    @property
    def method(self) -> Any:
        """The method."""
        return self._method[0]


class FrozenFeatures(_OnBackbone):
    """Images (batch, 3, s, s) to the plain backbone's features (batch, width)."""

    def forward(self, images: Tensor) -> Tensor:
        """The graph `frozen`."""
        features: Tensor = self.method.backbone.features(images)
        return features


class EntranceState(_OnBackbone):
    """Images (batch, 3, s, s) to the state at the first adapted block."""

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        """The graph `enter`."""
        return tuple(part for part in self.method.prepare(images)[1:] if part is not None)


class _AtPoint(_OnBackbone):
    """The adapted part of a method, at an adapter that is given as a flat vector."""

    def __init__(self, method: AdapterClassifier, space: Space) -> None:
        super().__init__(method)
        self.space = space

    def state(self, parts: Sequence[Tensor], apart: bool) -> State:
        """The state of a walk at the entrance; with `apart`, every image is a point of its own."""
        return State(self.method.peft.entrance, *(part.unsqueeze(1) if apart else part for part in parts))


class AdaptedFeatures(_AtPoint):
    """State and adapter (size,) or, for each image, (batch, size) to features (batch, width)."""

    def forward(self, *inputs: Tensor) -> Tensor:
        """The graphs `features` and `features_image`."""
        *state, adapter = inputs
        per_image = adapter.dim() == 2
        features: Tensor = self.method.features(self.space.split(adapter), self.state(state, per_image))
        return features.squeeze(1) if per_image else features


class AdaptedTangents(_AtPoint):
    """State, adapter (size,) and directions (queries, [batch,] size) to features (batch, width) and their tangents
    (queries, batch, width)."""

    def forward(self, *inputs: Tensor) -> tuple[Tensor, Tensor]:
        """The graphs `tangents` and `tangents_image`."""
        *state, adapter, directions = inputs
        per_image = directions.dim() == 3
        center = adapter.expand(directions.shape[1:]) if per_image else adapter
        moving = duals(self.space.split(center), self.space.split(directions))
        dual = self.method.features(moving, self.state(state, per_image))
        if per_image:
            return dual.primal.squeeze(1), dual.tangents.squeeze(2)
        return dual.primal, dual.tangents


class WholeModel(nn.Module):
    """Pixels 0…255 (batch, s, s, 3) to calibrated probabilities, scores and features: the model as it stands. A
    regression is computed in float32."""

    mean: Tensor
    std: Tensor

    def __init__(self, method: Method, view: TestView, scale: float) -> None:
        super().__init__()
        self.vit = method.backbone.vit
        self.own, self.embed = method, _final_embedding(method)
        self.scale = scale
        mean, std = (torch.tensor(stat or (given,) * 3) for stat, given in ((view.mean, 0.0), (view.std, 1.0)))
        self.register_buffer("mean", mean[:, None, None])
        self.register_buffer("std", std[:, None, None])
        head = answering_ridge(method)
        self.regression = None if head is None else nn.ParameterList(
            nn.Parameter(part.float(), requires_grad=False)
            for part in (head.projection, head.weights)
            if part is not None
        )  # fmt: skip

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The graph `predict`."""
        pixels = images.permute(0, 3, 1, 2).float() / 255
        features = self.embed((pixels - self.mean) / self.std)
        scores = self.own.read_out(features) if self.regression is None else self._regress(features)
        return (self.scale * scores.double()).softmax(-1).float(), scores, features

    def _regress(self, features: Tensor) -> Tensor:
        assert self.regression is not None
        if len(self.regression) == 2:
            features = (features @ self.regression[0]).relu()
        scores: Tensor = features @ self.regression[-1]
        return scores


def _final_embedding(method: Method) -> Callable[[Tensor], Tensor]:
    """`method.embed` with the choice of features made, which is data to a graph."""
    if not isinstance(method, AdapterClassifier) or method.fallback is None:
        return method.embed
    return method.extract if method.fallback.choice == "adapted" else method.backbone.features


def answering_ridge(method: Method) -> RidgeHead | None:
    """The regression that answers, if one does."""
    if isinstance(method, AdapterClassifier) and method.fallback is not None:
        return method.fallback.chosen
    if isinstance(method, Ridge):
        return method.head
    return method.ridge if isinstance(method, Classifier) else None


def adapter_space(method: Method) -> Space | None:
    """The adapter as a flat vector, if the method has one."""
    if not isinstance(method, AdapterClassifier):
        return None
    return Space(method.named(dict(method.peft.named_parameters()), "peft."))


def predict_source(method: Method, view: TestView, scale: float) -> GraphSource:
    """The graph of the whole model."""
    size = method.backbone.image_size
    pixels = torch.zeros(EXAMPLE_BATCH, size, size, 3, dtype=torch.uint8)
    outputs = ("probabilities", "scores", "features")
    return GraphSource("predict", WholeModel(method, view, scale), {"images": pixels}, [{0: "batch"}], outputs)


def learning_sources(method: Method, moves: bool) -> Iterator[GraphSource]:
    """The graphs that learning needs; those of perturbed adapters only if the adapter still `moves`."""
    size = method.backbone.image_size
    images, batch = torch.zeros(EXAMPLE_BATCH, 3, size, size), {0: "batch"}
    space = adapter_space(method)
    if space is None or (isinstance(method, AdapterClassifier) and method.fallback is not None):
        yield GraphSource("frozen", FrozenFeatures(method), {"images": images}, [batch], ("features",))
    if space is None:
        return
    assert isinstance(method, AdapterClassifier)
    entrance = EntranceState(method)
    with torch.no_grad():
        parts = dict(zip(STATE_NAMES, entrance(images), strict=False))
    yield GraphSource("enter", entrance, {"images": images}, [batch], tuple(parts))
    axes, each = [batch] * len(parts), torch.zeros(EXAMPLE_BATCH, space.size)
    adapted, tangents = AdaptedFeatures(method, space), AdaptedTangents(method, space)
    yield GraphSource("features", adapted, {**parts, "adapter": space.center}, [*axes, {}], ("features",))
    if not moves:
        return
    yield GraphSource("features_image", adapted, {**parts, "adapter": each}, [*axes, batch], ("features",))
    outputs = ("features", "tangents")
    along = {**parts, "adapter": space.center, "directions": torch.ones(EXAMPLE_QUERIES, space.size)}
    yield GraphSource("tangents", tangents, along, [*axes, {}, {0: "queries"}], outputs)
    along = {**along, "directions": torch.ones(EXAMPLE_QUERIES, EXAMPLE_BATCH, space.size)}
    yield GraphSource("tangents_image", tangents, along, [*axes, {}, {0: "queries", 1: "batch"}], outputs)
