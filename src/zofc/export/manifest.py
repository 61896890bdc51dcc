"""What a manifest says of a model: all settings that learning without zofc needs, and nothing that learning changes."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import Any

import zofc
from zofc.errors import RecipeError
from zofc.export.bundle import BUNDLE_FORMAT, FORMAT_VERSION
from zofc.export.conversion import OPSET
from zofc.export.graphs import GraphSource, adapter_space
from zofc.methods.ridge import RidgeSettings
from zofc.recipe import Recipe
from zofc.runfolder.progress import Progress
from zofc.training.incremental_model import IncrementalModel

READOUTS = {"ridge": "ridge", "simplecil": "means"}  # of methods that have one way to answer
EXPORTED = ("adapter", "classifier", "ridge", "simplecil")  # methods
TRAINING_KEYS = ("batch_size", "fixed_batches", "calibrate")
LEARNABLE = {  # settings of groups that still move
    "peft": {
        "order": ("zeroth",), "optimizer": ("sgd", "sign"), "estimator": ("spsa", "one_sided", "forward_gradient"),
    },
    "head": {"order": ("first",), "optimizer": ("sgd", "sign"), "length": ("own",)},
}  # fmt: skip
TORCH_STARTS = ("normal", "trunc-normal")  # of rows, from streams that nothing but torch draws
WHY_NOT = {
    "aper": "its features are those of two networks side by side",
    "coda": "its prompts are mixed for each image by a second pass",
    "ease": "it adds an adapter for every task",
    "inflora": "its updates need the gradients of a backward pass and a basis of the features",
    "l2p": "its prompts are chosen for each image by a second pass",
    "lae": "it answers with two adapters, one the moving average of the other",
}


def check_exportable(recipe: Recipe, predict_only: bool, tasks: int) -> None:
    """Refuse what no bundle can hold, with the reason."""
    name = recipe.method.name
    if name not in EXPORTED:
        why = WHY_NOT.get(name, "its rule of inference is not known to zofc export")
        raise RecipeError(f"method.name: {name} cannot be exported: {why}. Methods that can: {', '.join(EXPORTED)}")
    if recipe.data.by == "domain":
        raise RecipeError("data.by: a run that learns its classes in several domains cannot be exported")
    if name == "adapter" and recipe.peft.kind != "adapter":
        raise RecipeError(
            f"peft.kind: {recipe.peft.kind} cannot be exported, only adapter: its blocks are one short product"
        )
    if not predict_only:
        _check_learnable(recipe, tasks)


def _check_learnable(recipe: Recipe, tasks: int) -> None:
    """Refuse what a bundle cannot learn after the first `tasks`."""
    moving = groups_that_move(recipe, tasks)
    for name in moving:
        for key, allowed in LEARNABLE[name].items():
            if (value := getattr(recipe.optimize[name], key)) not in allowed:
                why = "; steps of first order need a backward pass" if (name, key) == ("peft", "order") else ""
                raise RecipeError(
                    f"optimize.{name}.{key}: a bundle learns with {' or '.join(allowed)}, not {value}{why}. "
                    "Train so, or export predictions alone: --predict-only"
                )
    answers = recipe.method.name in ("adapter", "classifier") and recipe.method.readout == "rows"
    drawn = "head" in moving or (answers and not recipe.method.prototypes)
    if drawn and recipe.head.init in TORCH_STARTS:
        raise RecipeError(
            f"head.init: a bundle cannot draw new rows as torch draws {recipe.head.init}. Train with uniform, torch, "
            "zeros or means, or export predictions alone: --predict-only"
        )


def groups_that_move(recipe: Recipe, tasks: int) -> list[str]:
    """The groups that a task after the first `tasks` moves."""
    return [name for name, plan in recipe.optimize.items() if plan.lr > 0 and tasks < (plan.tasks or math.inf)]


def describe_model(model: IncrementalModel, recipe: Recipe, history: Progress, precision: str) -> dict[str, Any]:
    """The manifest, less graphs and files."""
    space = adapter_space(model.method)
    adapter = [] if space is None else [(name, list(value.shape)) for name, value in space.tensors.items()]
    ridge = recipe.section("ridge", RidgeSettings).model_dump(mode="json")
    method, train, test = recipe.method, model.train_view, model.test_view
    readout = READOUTS.get(method.name, method.readout)
    return {
        "format": BUNDLE_FORMAT, "version": FORMAT_VERSION, "zofc": zofc.__version__,
        "created": datetime.now(UTC).isoformat(timespec="seconds"), "precision": precision, "opset": OPSET,
        "backbone": {**model.backbone.describe(), "name": recipe.backbone.name, **_entrance(model)},
        "views": {
            "mean": test.mean, "std": test.std, "size": test.size, "resize_to": test.resize_to,
            "interpolation": test.interpolation, "augment": recipe.views.augment, "scale": train.scale,
            "ratio": train.ratio, "flip": train.flip,
        },
        "method": {
            "name": method.name, "readout": readout, "mask": method.mask, "prototypes": method.prototypes,
        },
        "head": recipe.head.model_dump(mode="json"),
        "peft": recipe.peft.model_dump(mode="json") if space else None,
        "adapter": [{"name": name, "shape": shape} for name, shape in adapter],
        "ridge": ridge if readout == "ridge" else None,
        "optimize": {name: group.model_dump(mode="json") for name, group in recipe.optimize.items()},
        "training": {key: getattr(recipe.training, key) for key in TRAINING_KEYS},
        "seed": recipe.seed, "classes": list(model.classes),
        "run": {"rows": history.rows, "counts": history.counts, "trained": history.trained},
    }  # fmt: skip


def _entrance(model: IncrementalModel) -> dict[str, Any]:
    peft = getattr(model.method, "peft", None)
    return {} if peft is None else {"entrance": list(peft.entrance)}


def describe_graph(source: GraphSource) -> dict[str, Any]:
    """What the manifest holds of a graph; a name stands for a variable axis."""
    inputs = [
        {
            "name": name,
            "type": str(example.dtype).removeprefix("torch."),
            "shape": [axes.get(axis, length) for axis, length in enumerate(example.shape)],
        }
        for (name, example), axes in zip(source.inputs.items(), source.axes, strict=True)
    ]
    return {"file": f"{source.name}.onnx", "inputs": inputs, "outputs": list(source.outputs)}
