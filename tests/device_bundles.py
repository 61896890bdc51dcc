"""Bundles of small models for tests of zofc-device. Tracing graphs is slow: those of one model, which has all of them,
serve every method."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch
from filelock import FileLock
from PIL import Image

import zofc
import zofc_device
from zofc.export.bundle import describe_file, pack_state, write_manifest
from zofc.export.conversion import SharedWeights, write_graph
from zofc.export.graphs import learning_sources
from zofc.export.manifest import describe_graph, describe_model
from zofc.export.writer import export_run
from zofc.recipe import Recipe, dump_recipe
from zofc.training.incremental_model import IncrementalModel

EMBEDDED = ("zofc/base", "backbone.name=embedded", "peft.blocks=all")
ALL_GRAPHS = ("zo-ridge/base", "optimize.peft.tasks=null", "optimize.head.tasks=null", "ridge.projection=300")
QUIET = ("training.check_adapter=false", "training.workers=0")
Lesson = dict[str, list[Image.Image]]


def make_lesson(*names: str, images: int = 20) -> Lesson:
    """Images of these classes, which have a pattern each and differ in size."""
    lesson = {}
    for name in names:
        rng = np.random.default_rng(sum(name.encode()))
        pattern = rng.integers(0, 256, (5, 5, 3))
        noisy = np.clip(pattern + rng.integers(-70, 71, (images, 5, 5, 3)), 0, 255).astype(np.uint8)
        lesson[name] = [
            Image.fromarray(pixels).resize((20 + i % 5, 19 + i % 3), Image.Resampling.BICUBIC)
            for i, pixels in enumerate(noisy)
        ]
    return lesson


FIRST, SECOND = make_lesson("ant", "bee", images=6), make_lesson("cat", "dog")
Pair = tuple[zofc.Learner, zofc_device.Learner]


def write_folder(lesson: Lesson, folder: Path) -> Path:
    """The images of a lesson as files, one folder for each class."""
    for name, images in lesson.items():
        (folder / name).mkdir(parents=True)
        for number, image in enumerate(images):
            image.save(folder / name / f"{number:03}.png")
    return folder


def export_graphs(recipe: Recipe, shared: Path) -> Path:
    """A bundle with all graphs, made once for all processes of a test run."""
    target = shared / "all-graphs"
    with FileLock(f"{target}.lock"):
        if not target.exists():
            learner = zofc.Learner(recipe)
            learner.learn(make_lesson("ant", "bee", images=6))
            learner.save(shared / "all-graphs-run")
            export_run(shared / "all-graphs-run", target)
    return target


def export_some_graphs(
    recipe: Recipe, shared: Path, names: tuple[str, ...] = ("enter", "features", "tangents")
) -> Path:
    """A folder with some of the graphs of a bundle, made once for all processes of a test run."""
    target = shared / "some-graphs"
    with FileLock(f"{target}.lock"):
        if not target.exists():
            model = IncrementalModel(recipe, torch.device("cpu"))
            model.extend(["ant", "bee"])
            new = shared / "some-graphs-new"
            new.mkdir()
            weights = SharedWeights(new / "weights.bin", model.backbone.vit)
            sources = [source for source in learning_sources(model.method, True) if source.name in names]
            for source in sources:
                write_graph(source, weights, "fp32", new / f"{source.name}.onnx")
            files = {file.name: describe_file(file) for file in sorted(new.iterdir())}
            write_manifest(new, {"graphs": {one.name: describe_graph(one) for one in sources}, "files": files})
            new.rename(target)
    return target


def write_bundle(learner: zofc.Learner, graphs: Path, path: Path) -> Path:
    """A learner as a bundle, with graphs of another one on the same backbone with the same adapter."""
    shutil.copytree(graphs, path)
    model = learner.model
    manifest = describe_model(model, learner.recipe, learner.history, "fp32")
    kept = json.loads((path / "manifest.json").read_text("utf-8"))
    manifest |= {"graphs": kept["graphs"], "files": kept["files"]}
    values: dict[str, Any] = {
        "classes": model.classes, "tasks": [[task.start, task.stop] for task in model.tasks],
        "calibration": model.calibration_state, "lessons": [], "exported_tasks": len(model.tasks),
    }  # fmt: skip
    write_manifest(path, manifest)
    (path / "state.safetensors").write_bytes(pack_state(model.state_dict(), values))
    replace_file(path, "recipe.yaml", dump_recipe(learner.recipe).encode())
    return path


def replace_file(bundle: Path, name: str, content: bytes) -> None:
    """Change a file of a bundle and its checksum in the manifest."""
    (bundle / name).write_bytes(content)
    manifest = json.loads((bundle / "manifest.json").read_text("utf-8"))
    manifest["files"][name] = describe_file(bundle / name)
    write_manifest(bundle, manifest)


def edit_manifest(bundle: Path, **changes: object) -> None:
    """Change a manifest as an export with other settings would have written it."""
    write_manifest(bundle, json.loads((bundle / "manifest.json").read_text("utf-8")) | changes)
