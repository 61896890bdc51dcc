"""The graphs of a bundle in ONNX Runtime, loaded when they are needed."""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from zofc_device.bundle import REMEDY, Bundle, BundleError, DeviceError
from zofc_device.directions import Array

LEAST_RUNTIME = "1.23.2"  # products with 8-bit weights run from 1.23 on; 1.23.0 and .1 do not load graphs of adapters
INTEGER_OPERATORS = (
    "DynamicQuantizeLinear", "QuantizeLinear", "MatMulInteger", "ConvInteger", "QLinearMatMul", "QLinearConv",
    "MatMulIntegerToFloat", "DynamicQuantizeMatMul",
)  # fmt: skip


class Runtime:
    """Evaluates graphs on the CPU, without a memory arena, so that memory is returned after each pass."""

    def __init__(self, bundle: Bundle, threads: int | None = None) -> None:
        if threads is not None and threads < 1:
            raise DeviceError(f"threads: expected at least 1, got {threads}")
        self.bundle, self.threads = bundle, threads
        self.graphs: dict[str, str] = {name: entry["file"] for name, entry in bundle.manifest["graphs"].items()}
        self._sessions: dict[str, Any] = {}

    def run(self, graph: str, **inputs: Array) -> dict[str, Array]:
        """The outputs of a graph by name."""
        session = self._session(graph)
        names = [output.name for output in session.get_outputs()]
        with self._named(graph, "run"):
            return dict(zip(names, session.run(names, inputs), strict=True))

    def load(self, *graphs: str) -> None:
        """Load these graphs and free all others."""
        self._sessions = {name: session for name, session in self._sessions.items() if name in graphs}
        for name in graphs:
            self._session(name)

    def loaded_bytes(self) -> int:
        """Memory that this process will occupy once the loaded graphs have read all of their weights, on Linux."""
        return resident_bytes() + unread_bytes(self.bundle.path)

    def refuse_integer_activations(self, *graphs: str) -> None:
        """Finite differences of rounded activations are noise."""
        for name in graphs:
            if name in self.graphs and has_integer_activations((self.bundle.path / self.graphs[name]).read_bytes()):
                raise BundleError(
                    f"{self.graphs[name]}: finite differences of integer activations (accuracy_level 4, or operators "
                    "such as MatMulInteger) are noise; export the run again with zofc export, whose are float32, or "
                    "train with estimator=forward_gradient"
                )

    def _file(self, graph: str) -> Path:
        return self.bundle.path / self.graphs[graph]

    def _session(self, name: str) -> Any:
        if name not in self._sessions:
            if name not in self.graphs:
                raise BundleError(
                    f"{self.bundle.path}: it has no graph '{name}'; export the run again, not only to predict"
                )
            self._sessions[name] = self._open(name)
        return self._sessions[name]

    def _open(self, name: str) -> Any:
        import onnxruntime as ort  # here: it takes most of the time of an import

        options = ort.SessionOptions()
        options.enable_cpu_mem_arena = options.enable_mem_pattern = False
        options.log_severity_level, options.inter_op_num_threads = 4, 1  # what fails is raised, not logged
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        if self.threads:
            options.intra_op_num_threads = self.threads
        with self._named(name, "load"):
            return ort.InferenceSession(self._file(name), options, providers=["CPUExecutionProvider"])

    @contextmanager
    def _named(self, graph: str, verb: str) -> Iterator[None]:
        """Inside, what ONNX Runtime raises becomes one line with the graph, the version and the remedy."""
        try:
            yield
        except Exception as error:  # of many kinds
            import onnxruntime as ort

            reason, file = str(error).splitlines()[0], self._file(graph)
            remedy = f"install onnxruntime {LEAST_RUNTIME} or later (this is {ort.__version__}), or {REMEDY}"
            raise BundleError(f"{file}: ONNX Runtime cannot {verb} it: {reason}; {remedy}") from error


def resident_bytes() -> int:
    """Memory that this process occupies now, on Linux."""
    with suppress(AttributeError):  # of other C libraries than glibc
        ctypes.CDLL(None).malloc_trim(0)
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def unread_bytes(folder: Path) -> int:
    """Bytes of the files in a folder that are mapped into this process and not yet read, on Linux."""
    mapping = (
        rf"^\S+ \S+ \S+ \S+ \d+ +{re.escape(str(folder.resolve()))}/.*\nSize: +(\d+) kB\n(?:\w+:.*\n)*?Rss: +(\d+) kB"
    )
    found = re.finditer(mapping, Path("/proc/self/smaps").read_text(), re.MULTILINE)
    return 1024 * sum(int(one[1]) - int(one[2]) for one in found)


def has_integer_activations(model: bytes) -> bool:
    """Whether an ONNX file has a product (MatMulNBits) of accuracy_level 4, or an operator on integer activations. In a
    protocol buffer, an attribute's name (field 1, of 14 bytes) is followed by its integer (field 3); the operator is
    field 4 of a node."""
    operators = (b"\x22" + bytes([len(name)]) + name.encode() for name in INTEGER_OPERATORS)
    return b"\x0a\x0eaccuracy_level\x18\x04" in model or any(operator in model for operator in operators)
