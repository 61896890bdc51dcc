"""From torch modules to ONNX files that share their weights: graphs are traced, frozen weights are stored in the chosen
precision, and every tensor of more than a few numbers is written once, whichever graphs use it, to one file.
"""

from __future__ import annotations

import hashlib
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from numpy.typing import NDArray
from torch import nn

from zofc.export.bundle import WEIGHTS_FILE
from zofc.export.graphs import GraphSource
from zofc.export.quantization import BLOCK_SIZE, quantize_blocks

OPSET = 20  # the first one with Gelu
LEAST_SHARED = 256  # bytes from which a tensor is in the file of weights
PAGE, ALIGNMENT = 4096, 64  # tensors of a page or more start on one, so that runtimes can map them
BITS = {"int8": 8, "int4": 4}
MICROSOFT = "com.microsoft"  # operators that ONNX Runtime adds to ONNX


class SharedWeights:
    """The file of weights while it is written."""

    def __init__(self, path: Path, backbone: nn.Module) -> None:
        self.path = path
        matrices = [value.detach().numpy() for value in backbone.parameters() if value.dim() > 1]
        self.frozen = {_digest(matrix.tobytes()) for matrix in matrices}  # graphs name them as they please
        self.frozen |= {_digest(matrix.T.tobytes()) for matrix in matrices if matrix.ndim == 2}
        self.places: dict[bytes, int] = {}
        self.blocks: dict[tuple[bytes, int], tuple[NDArray[Any], ...]] = {}  # weights quantized so far
        path.write_bytes(b"")

    def add(self, value: ir.Value) -> None:
        """Move the tensor of a value to the file, if it is not small; lengths and axes stay, which runtimes read to
        infer shapes while they load a graph."""
        tensor = value.const_value
        assert tensor is not None and value.name is not None
        if tensor.nbytes < LEAST_SHARED or tensor.dtype == ir.DataType.INT64:
            return
        content = tensor.tobytes()
        key = _digest(content)
        if key not in self.places:
            with self.path.open("ab") as file:
                step = PAGE if len(content) >= PAGE else ALIGNMENT
                file.write(bytes(-file.tell() % step))
                self.places[key] = file.tell()
                file.write(content)
        value.const_value = ir.ExternalTensor(
            WEIGHTS_FILE, self.places[key], len(content), tensor.dtype, shape=ir.Shape(tensor.shape.numpy()),
            name=value.name, base_dir=self.path.parent,
        )  # fmt: skip

    def is_frozen(self, array: NDArray[Any]) -> bool:
        """Whether an array is a matrix of the backbone, transposed or not."""
        return array.dtype == np.float32 and array.ndim > 1 and _digest(array.tobytes()) in self.frozen

    def quantize(self, matrix: NDArray[np.float32], bits: int) -> tuple[NDArray[Any], ...]:
        """`quantize_blocks`, once for each matrix."""
        key = _digest(matrix.tobytes()), bits
        if key not in self.blocks:
            self.blocks[key] = quantize_blocks(matrix, bits)
        return self.blocks[key]


def _digest(content: bytes) -> bytes:
    return hashlib.sha256(content).digest()


def write_graph(
    source: GraphSource, weights: SharedWeights, precision: str, path: Path, metadata: dict[str, str] | None = None
) -> int:
    """Write a graph, its weights beside those of other graphs; how many nodes it has."""
    model = trace_graph(source)
    graph = model.graph
    transpose_weights(graph)
    if precision in BITS:
        _quantize_weights(model, BITS[precision], weights)
    elif precision == "fp16":
        _halve_weights(graph, weights)
    for value in graph.initializers.values():
        weights.add(value)
    _strip(model)
    model.metadata_props.update(metadata or {})
    ir.save(model, path)
    return len(graph)


def trace_graph(source: GraphSource) -> ir.Model:
    """The graph of a module, any axis that its source names being variable."""
    dims = {name: torch.export.Dim(name, min=1) for axes in source.axes for name in axes.values()}
    shapes = tuple({axis: dims[name] for axis, name in axes.items()} for axes in source.axes)
    with torch.no_grad(), _silence():
        exported = torch.export.export(
            source.module.eval(), tuple(source.inputs.values()), dynamic_shapes=_as_arguments(source, shapes)
        )
        program = torch.onnx.export(
            exported, dynamo=True, input_names=list(source.inputs), output_names=list(source.outputs),
            opset_version=OPSET, verbose=False,
        )  # fmt: skip
    assert program is not None
    model: ir.Model = program.model
    return model


def _as_arguments(source: GraphSource, shapes: tuple[Any, ...]) -> Any:
    """Shapes as `torch.export` wants them: those of `*inputs` are one argument."""
    return {"inputs": shapes} if "images" not in source.inputs else shapes


@contextmanager
def _silence() -> Iterator[None]:
    """Inside, the exporter neither prints nor warns."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "torch.export", "onnxscript", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        with warnings.catch_warnings(), redirect_stdout(StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _strip(model: ir.Model) -> None:
    """Drop what the exporter notes about itself, such as the lines of code that nodes come from."""
    graph = model.graph
    model.metadata_props.clear()
    graph.metadata_props.clear()
    values = [*graph.inputs, *graph.outputs, *graph.initializers.values()]
    for node in graph:
        node.metadata_props.clear()
        node.doc_string = None
        values += node.outputs
    for value in values:
        value.metadata_props.clear()


# -- weights ---------------------------------------------------------------------------------------------------------


def transpose_weights(graph: ir.Graph) -> None:
    """Store matrices as products read them: those that are transposed before use are stored so."""
    made: dict[str, ir.Value] = {}
    for node in list(graph):
        if node.op_type != "Transpose" or (value := node.inputs[0]) is None or not value.is_initializer():
            continue
        array, name = _array(value), f"{value.name}.transposed"
        if name not in made:
            order = node.attributes["perm"].as_ints() if "perm" in node.attributes else None
            made[name] = _add_initializer(graph, name, np.ascontiguousarray(array.transpose(order)))
        _replace(graph, node, made[name])
    _drop_unused(graph)


def _quantize_weights(model: ir.Model, bits: int, weights: SharedWeights) -> None:
    """Products with frozen matrices as MatMulNBits, whose activations stay float32 (accuracy_level 1)."""
    graph = model.graph
    model.opset_imports[MICROSOFT] = 1

    def quantized(node: ir.Node, matrix: ir.Value) -> ir.Value:
        rows, columns = _array(matrix).shape
        parts = zip(("values", "scales", "zeros"), weights.quantize(_array(matrix), bits), strict=True)
        inputs = [
            graph.initializers.get(f"{matrix.name}.{part}") or _add_initializer(graph, f"{matrix.name}.{part}", array)
            for part, array in parts
        ]
        settings = {"K": rows, "N": columns, "bits": bits, "block_size": BLOCK_SIZE, "accuracy_level": 1}
        product = ir.node("MatMulNBits", [node.inputs[0], *inputs], settings, domain=MICROSOFT)
        graph.insert_before(node, product)
        return product.outputs[0]

    for node in list(graph):
        second = node.inputs[1] if node.op_type == "MatMul" else None
        if second is not None and second.is_initializer() and weights.is_frozen(_array(second)):
            _replace(graph, node, quantized(node, second))
    _drop_unused(graph)


def _halve_weights(graph: ir.Graph, weights: SharedWeights) -> None:
    """Frozen matrices in half precision, cast where the graph begins."""
    first = next(iter(graph))
    for name, value in list(graph.initializers.items()):
        array = _array(value)
        if not weights.is_frozen(array):
            continue
        half = _add_initializer(graph, f"{name}.half", array.astype(np.float16))
        cast = ir.node("Cast", [half], {"to": ir.DataType.FLOAT.value})
        graph.insert_before(first, cast)
        cast.outputs[0].name = f"{name}.single"
        value.replace_all_uses_with(cast.outputs[0])
    _drop_unused(graph)


def _array(value: ir.Value) -> NDArray[Any]:
    assert value.const_value is not None
    return value.const_value.numpy()


def _add_initializer(graph: ir.Graph, name: str, array: NDArray[Any]) -> ir.Value:
    tensor = ir.tensor(array, name=name)
    value = ir.Value(name=name, shape=ir.Shape(array.shape), type=ir.TensorType(tensor.dtype), const_value=tensor)
    graph.register_initializer(value)
    return value


def _replace(graph: ir.Graph, node: ir.Node, value: ir.Value) -> None:
    """Put a value in the place of what a node computes."""
    out = node.outputs[0]
    if value.producer() is not None:
        value.name, value.shape, value.type = out.name, out.shape, out.type
    out.replace_all_uses_with(value, replace_graph_outputs=True)
    graph.remove(node, safe=True)


def _drop_unused(graph: ir.Graph) -> None:
    for name, value in list(graph.initializers.items()):
        if not value.uses() and not value.is_graph_output():
            del graph.initializers[name]
