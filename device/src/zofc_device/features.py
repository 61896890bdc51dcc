"""Features of images at the adapter and around it, in micro-batches that keep to a memory budget.

Features are small, so those of a whole batch are gathered, in float64: micro-batches change rounding only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from zofc_device.bundle import DeviceError
from zofc_device.directions import Array
from zofc_device.optimizers import ESTIMATORS, Plan
from zofc_device.runtime import Runtime
from zofc_device.views import Views

MOST_IMAGES = 8  # of a pass; more are no faster on a CPU
OWN_NUMBERS, POINT_NUMBERS = 40, 56  # float32 alive in a pass, for each token and unit of width; in each tangent again
OWN_COPIES = 3  # of an image's own directions, in a pass


class Points(NamedTuple):
    """Features (batch, width) at the center, and around it (points, batch, width), or the tangents there."""

    center: Array | None
    around: Array | None


class Extractor:
    """Evaluates features of pixels (batch, s, s, 3)."""

    def __init__(self, runtime: Runtime, views: Views, backbone: dict[str, Any], memory: int | None = None) -> None:
        self.runtime, self.views, self.memory = runtime, views, memory
        self.tokens, self.width = int(backbone["tokens"]), int(backbone["width"])
        self._sizes: dict[tuple[int, int], int] = {}  # of micro-batches, by what `_micro_batch` is asked for

    def features(self, pixels: Array, adapter: Array | None = None, most: int = MOST_IMAGES) -> Array:
        """Features at an adapter, or those of the plain backbone."""
        run = self.runtime.run

        def evaluate(images: Array, _: slice) -> Array:
            if adapter is None:
                return run("frozen", images=images)["features"]
            return run("features", **run("enter", images=images), adapter=adapter)["features"]

        self.runtime.load(*(["frozen"] if adapter is None else ["enter", "features"]))
        return np.concatenate(self._map(evaluate, pixels, most=most)).astype(np.float64)

    def predict(self, pixels: Array) -> tuple[Array, Array]:
        """Probabilities and features of the model as it was exported."""
        self.runtime.load("predict")
        size = min(self._micro_batch(), MOST_IMAGES)
        parts = [self.runtime.run("predict", images=pixels[i : i + size]) for i in range(0, len(pixels), size)]
        chances, features = (np.concatenate([part[key] for part in parts]) for key in ("probabilities", "features"))
        return chances, features

    def around(self, pixels: Array, adapter: Array, vectors: Array, plan: Plan, center: bool) -> Points:
        """Features at the points of a plan's estimator along directions (queries, [batch,] size), or the tangents along
        them; at the center if asked for, or if the estimator reads it."""
        lengths, _, base = ESTIMATORS[plan.estimator]
        apart, run, center = vectors.ndim == 3, self.runtime.run, center or bool(base) or not lengths
        graph = ("features" if lengths else "tangents") + ("_image" if apart else "")
        self.runtime.load("enter", graph, *(["features"] if lengths and center else []))

        def evaluate(images: Array, some: slice) -> tuple[Array | None, Array]:
            state, along = run("enter", images=images), np.ascontiguousarray(vectors[:, some]) if apart else vectors
            if not lengths:
                found = run(graph, **state, adapter=adapter, directions=along)
                return found["features"], found["tangents"]
            points = (adapter + np.float32(length * plan.epsilon) * vector for vector in along for length in lengths)
            middle = run("features", **state, adapter=adapter)["features"] if center else None
            return middle, np.stack([run(graph, **state, adapter=point)["features"] for point in points])

        own = vectors[:, :1].nbytes if apart else 0
        parts = self._map(evaluate, pixels, 0 if lengths else len(vectors), own)
        around = np.concatenate([part[1] for part in parts], 1).astype(np.float64)
        return Points(np.concatenate([part[0] for part in parts]).astype(np.float64) if center else None, around)

    def _map(
        self, work: Callable[[Array, slice], Any], pixels: Array, tangents: int = 0, own: int = 0,
        most: int = MOST_IMAGES,
    ) -> list[Any]:  # fmt: skip
        """`work` on the inputs of each micro-batch and its place in the batch."""
        size = min(self._micro_batch(tangents, own), most)
        places = [slice(start, start + size) for start in range(0, len(pixels), size)]
        return [work(self.views.normalise(pixels[some]), some) for some in places]

    def _micro_batch(self, tangents: int = 0, own: int = 0) -> int:
        """How many images, a power of two, the budget leaves room for beside what is resident with these graphs; each
        has so many tangents, and `own` bytes of directions."""
        if self.memory is None:
            return MOST_IMAGES
        if (tangents, own) not in self._sizes:
            numbers = self.tokens * self.width * max(self.tokens, 256) // 256  # beyond, attention needs most of it
            image = 4 * numbers * (OWN_NUMBERS + POINT_NUMBERS * (1 + tangents)) + OWN_COPIES * own
            room = self._room(image, "one image at a time") // image
            self._sizes[tangents, own] = min(1 << (room.bit_length() - 1), MOST_IMAGES)
        return self._sizes[tangents, own]

    def reserve(self, size: int, what: str) -> None:
        """Refuse what needs so many more bytes than the budget has, without graphs: those are loaded again."""
        if self.memory is not None and self.runtime.loaded_bytes() + size > self.memory:
            self.runtime.load()
            self._room(size, what)

    def _room(self, size: int, what: str) -> int:
        """The bytes that the budget has left, which are to be so many at least."""
        assert self.memory is not None
        resident = self.runtime.loaded_bytes()
        if (least := resident + size) > self.memory:
            raise DeviceError(f"memory: {what} needs about {-(-least // 10**6)} MB, not {self.memory // 10**6} MB")
        return self.memory - resident
