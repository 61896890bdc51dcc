"""`export_run`: a finished run as a bundle. It is made beside its place and renamed there when it is whole."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor

from zofc.errors import BundleError
from zofc.export import bundle
from zofc.export.comparison import MOST_COMPARED, PredictionAgreement, compare_predictions
from zofc.export.conversion import SharedWeights, write_graph
from zofc.export.graphs import learning_sources, predict_source
from zofc.export.manifest import check_exportable, describe_graph, describe_model, groups_that_move
from zofc.methods import Method
from zofc.methods.ridge import RidgeSettings
from zofc.model.ridge import RidgeHead
from zofc.paths import explain_os_error
from zofc.recipe import change_recipe, dump_recipe
from zofc.runfolder import open_run
from zofc.runfolder.files import new_folder
from zofc.training.incremental_model import IncrementalModel
from zofc.training.resolve import check_recipe, require_plugins
from zofc.training.saved_models import finished_checkpoint


@dataclass(frozen=True)
class ExportResult:
    """What was written: bytes of each file, nodes of each graph, and how predictions compare with torch's."""

    path: Path
    sizes: dict[str, int]
    nodes: dict[str, int]
    agreement: PredictionAgreement | str  # or why there is none


def export_run(
    path: str | Path,
    output: str | Path,
    precision: str = "fp32",
    predict_only: bool = False,
    on_progress: Callable[[str], None] = lambda _: None,
    compared: int = MOST_COMPARED,
) -> ExportResult:
    """Write the model of a finished run as a bundle. `precision` is that of the frozen weights: fp32, fp16, int8 or
    int4. With `predict_only` it predicts and does not learn. A bundle that has learned nothing since is replaced. At
    most `compared` test images are answered by torch too."""
    if precision not in bundle.BUNDLE_PRECISIONS:
        raise BundleError(f"precision: expected one of {', '.join(bundle.BUNDLE_PRECISIONS)}, got '{precision}'")
    target, run = Path(output), open_run(path)
    _check_target(target)
    require_plugins(run)
    checkpoint = finished_checkpoint(run)
    progress = checkpoint.progress
    check_exportable(run.recipe, predict_only, progress.done)
    recipe = check_recipe(change_recipe(run.recipe, ["training.device=cpu", "training.precision=fp32"]))
    model = IncrementalModel(recipe, torch.device("cpu"))
    run.check_weights(model.backbone.checksum)
    model.restore(progress.classes, progress.tasks, checkpoint.method, progress.calibration)
    manifest = describe_model(model, recipe, progress, precision)
    with _bundle_folder(target) as folder:
        nodes = _write_graphs(folder, model, manifest, predict_only, on_progress)
        (folder / bundle.BUNDLE_RECIPE).write_text(dump_recipe(run.recipe), "utf-8")
        if not predict_only:
            _write_projection(folder, model.method)
            (folder / bundle.STATE_TENSORS).write_bytes(bundle.pack_state(model.state_dict(), _state_values(model)))
        immutable = sorted(file.name for file in folder.iterdir() if file.name != bundle.STATE_TENSORS)
        manifest["files"] = {name: bundle.describe_file(folder / name) for name in immutable}
        bundle.write_manifest(folder, manifest)
        agreement = compare_predictions(model, recipe, progress, folder / "predict.onnx", on_progress, compared)
        sizes = {file.name: file.stat().st_size for file in sorted(folder.iterdir())}
    return ExportResult(target, sizes, nodes, agreement)


def _write_graphs(
    folder: Path,
    model: IncrementalModel,
    manifest: dict[str, Any],
    predict_only: bool,
    report: Callable[[str], None],
) -> dict[str, int]:
    """Write all graphs and enter them in the manifest; how many nodes each has."""
    scale = 1.0 if model.calibration is None else model.calibration[0].scale
    sources = [predict_source(model.method, model.test_view, scale)]
    if not predict_only:
        sources += learning_sources(model.method, "peft" in groups_that_move(model.recipe, len(model.tasks)))
    weights, nodes = SharedWeights(folder / bundle.WEIGHTS_FILE, model.backbone.vit), {}
    manifest["graphs"] = {source.name: describe_graph(source) for source in sources}
    notes = {"classes": json.dumps(model.classes, ensure_ascii=False), "zofc": manifest["zofc"]}
    for number, source in enumerate(sources, start=1):
        report(f"graph {number} of {len(sources)}: {source.name}")
        metadata = notes if source.name == "predict" else {}
        nodes[source.name] = write_graph(
            source, weights, manifest["precision"], folder / f"{source.name}.onnx", metadata
        )
    return nodes


def _state_values(model: IncrementalModel) -> dict[str, Any]:
    tasks = [[task.start, task.stop] for task in model.tasks]
    return {
        "classes": list(model.classes), "tasks": tasks, "calibration": model.calibration_state, "lessons": [],
        "exported_tasks": len(tasks),
    }  # fmt: skip


def _write_projection(folder: Path, method: Method) -> None:
    """The random projections that a regression may use, which torch's generator draws."""
    head = next((module for module in method.modules() if isinstance(module, RidgeHead)), None)
    if head is None or head.draw is None:
        return
    settings = method.recipe.section("ridge", RidgeSettings)
    sizes = {head.size, settings.projection} if head.most_images else {head.size}  # solved from images, or from sums
    if settings.orthogonal:
        sizes = {max(sizes)}  # a smaller one is the first columns of it
    tensors: dict[str, Tensor] = {f"projection.{size}": head.draw(size) for size in sorted(sizes)}
    (folder / bundle.PROJECTION_FILE).write_bytes(save(tensors))


# -- the folder ------------------------------------------------------------------------------------------------------


def _check_target(target: Path) -> None:
    """Refuse to write over anything but an empty folder or a bundle that has learned nothing since its export."""
    if not target.exists() or (target.is_dir() and not any(target.iterdir())):
        return
    if not bundle.is_bundle(target):
        raise BundleError(f"{target}: exists and is not a bundle; choose another folder with --output")
    if bundle.has_learned(target):
        raise BundleError(
            f"{target}: this bundle has learned since its export, which would be lost; keep it "
            f"with: zofc import {target} -o RUN, then remove it or choose another folder with --output"
        )


@contextmanager
def _bundle_folder(target: Path) -> Iterator[Path]:
    """A folder for the files of a bundle, which takes the place of `target` when the block ends well."""
    try:
        with new_folder(target) as folder:
            yield folder
    except OSError as error:
        reason = explain_os_error(error)
        raise BundleError(f"{target}: cannot be written ({reason}); choose another folder with --output") from error
