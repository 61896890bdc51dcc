"""The graphs of a bundle in ONNX Runtime, one method for each kind, loaded when they are needed."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from zofc_device.bundle import REMEDY, Bundle, BundleError
from zofc_device.directions import Array

Activations = Mapping[str, Array]  # at the entrance, by name


class Runtime:
    """Evaluates graphs on the CPU, without a memory arena, so that memory is returned after each pass."""

    def __init__(self, bundle: Bundle, threads: int | None = None) -> None:
        self.bundle, self.threads = bundle, threads
        self.graphs: dict[str, str] = {name: entry["file"] for name, entry in bundle.manifest["graphs"].items()}
        self._sessions: dict[str, Any] = {}

    def enter(self, images: Array) -> Activations:
        """The state at the entrance of the adapted part, of images (batch, 3, s, s)."""
        session = self._session("enter")
        names = [output.name for output in session.get_outputs()]
        return dict(zip(names, session.run(names, {"images": images}), strict=True))

    def frozen(self, images: Array) -> Array:
        """Features (batch, width) of the plain backbone."""
        return self._run("frozen", {"images": images})[0]

    def features(self, state: Activations, adapter: Array) -> Array:
        """Features (batch, width) at an adapter (size,), or at one for each image (batch, size)."""
        return self._run("features" if adapter.ndim == 1 else "features_image", {**state, "adapter": adapter})[0]

    def tangents(self, state: Activations, adapter: Array, directions: Array) -> tuple[Array, Array]:
        """Features (batch, width) and tangents (queries, batch, width) along directions (queries, [batch,] size)."""
        graph = "tangents" if directions.ndim == 2 else "tangents_image"
        features, tangents = self._run(graph, {**state, "adapter": adapter, "directions": directions})
        return features, tangents

    def predict(self, pixels: Array) -> tuple[Array, Array]:
        """Probabilities and features of pixels (batch, s, s, 3) by the model as it was exported."""
        probabilities, _, features = self._run("predict", {"images": pixels})
        return probabilities, features

    def predicted_classes(self) -> tuple[str, ...]:
        """The names of the classes that `predict` answers with."""
        return tuple(json.loads(self._session("predict").get_modelmeta().custom_metadata_map["classes"]))

    def load(self, *graphs: str) -> None:
        """Load these graphs and free all others."""
        self._sessions = {name: session for name, session in self._sessions.items() if name in graphs}
        for name in graphs:
            self._session(name)

    def refuse_integer_activations(self, *graphs: str) -> None:
        """Finite differences of rounded activations are noise."""
        for name in graphs:
            if name in self.graphs and has_integer_activations((self.bundle.path / self.graphs[name]).read_bytes()):
                raise BundleError(
                    f"{self.graphs[name]}: finite differences of integer activations (accuracy_level 4) are noise; "
                    "export with accuracy_level 1, or train with estimator=forward_gradient"
                )

    def _run(self, name: str, feeds: Mapping[str, Array]) -> list[Array]:
        outputs: list[Array] = self._session(name).run(None, dict(feeds))
        return outputs

    def _session(self, name: str) -> Any:
        if name not in self._sessions:
            if name not in self.graphs:
                raise BundleError(
                    f"{self.bundle.path}: it has no graph '{name}'; export the run again, not only to predict"
                )
            self._sessions[name] = self._open(self.graphs[name])
        return self._sessions[name]

    def _open(self, file: str) -> Any:
        import onnxruntime as ort  # here: it takes most of the time of an import

        options = ort.SessionOptions()
        options.enable_cpu_mem_arena = options.enable_mem_pattern = False
        options.log_severity_level, options.inter_op_num_threads = 3, 1
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        if self.threads:
            options.intra_op_num_threads = self.threads
        try:
            return ort.InferenceSession(self.bundle.path / file, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # of many kinds
            reason = str(error).splitlines()[0]
            raise BundleError(f"{self.bundle.path / file}: ONNX Runtime cannot load it: {reason}; {REMEDY}") from error


def has_integer_activations(model: bytes) -> bool:
    """Whether an ONNX file has a MatMulNBits node of accuracy_level 4; read from the protocol buffer itself."""
    for graph in _fields(memoryview(model), 7):
        for node in _fields(graph, 1):
            if any(bytes(kind) == b"MatMulNBits" for kind in _fields(node, 4)):
                for attribute in _fields(node, 5):
                    named = any(bytes(name) == b"accuracy_level" for name in _fields(attribute, 1))
                    if named and 4 in _fields(attribute, 3):
                        return True
    return False


def _fields(message: memoryview, number: int) -> Iterator[Any]:
    """The values of a field: numbers, or parts of the message."""
    place = 0
    while place < len(message):
        tag, place = _number(message, place)
        kind = tag & 7
        size, after = _number(message, place) if kind in (0, 2) else ({1: 8, 5: 4}[kind], place)
        place = after if kind == 0 else after + size
        if tag >> 3 == number:
            yield size if kind == 0 else message[after:place]


def _number(message: memoryview, place: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[place]
        value, shift, place = value | (byte & 127) << shift, shift + 7, place + 1
        if byte < 128:
            return value, place
