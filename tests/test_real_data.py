"""Real images on a real backbone (skipped where ZOFC_DATA does not have them)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from zofc.methods import get_method
from zofc.model.backbone import Backbone, load_backbone
from zofc.optim.placement import Placement
from zofc.recipe import BackboneSettings, Group, Recipe, load_recipe
from zofc.training.incremental_model import IncrementalModel
from zofc.training.resolve import open_stream
from zofc.training.runs import start_run, train


def test_a_paper_row_runs_on_a_slice_of_cifar100_and_makes_sense(assets: Path, tmp_path: Path) -> None:
    """Five images a class, two tasks: far above chance, and the class order of the literature."""
    recipe = load_recipe(
        "zofc/cifar100-inc10",
        [
            "data.source=parquet:cifar100", "backbone.name=backbones/vit_small_patch14_dinov2.safetensors",
            "backbone.image_size=56", "data.per_class=5", "data.test_per_class=3", "data.classes=20",
            "optimize.peft.epochs=1", "optimize.head.epochs=4", "optimize.head.lr=0.5", "optimize.peft.queries=1",
            "training.device=cpu", "training.batch_size=10",
        ],
    )  # fmt: skip
    folder = start_run(recipe, tmp_path)
    metrics = train(folder)
    matrix = json.loads((folder.path / "matrix.json").read_text())
    assert matrix["groups"][0][:5] == ["road", "palm_tree", "snake", "bicycle", "cloud"]  # 68 56 78 8 23
    assert matrix["counts"] == [30, 30]
    assert metrics["all_classes"] > 15  # chance is 5 %


def test_frozen_class_means_on_cifar100_are_as_good_as_the_backbones_card_says(assets: Path) -> None:
    """The card: 34.5 % with 30 images a class over all 100 classes; a slice of the test set, so within a few points."""
    recipe = load_recipe(
        "simplecil/cifar100-inc10",
        [
            "data.source=parquet:cifar100", f"backbone.name={assets / 'backbones' / 'vit_micro_p8_64.safetensors'}",
            "data.per_class=30", "data.test_per_class=5", "data.joint=true", "training.device=cpu", "views.resize=1.0",
        ],
    )  # fmt: skip
    torch.set_num_threads(2)
    stream = open_stream(recipe, print)
    model = IncrementalModel(recipe, torch.device("cpu"))
    model.extend(stream.classes)
    model.method.end_task(lambda: model.plain_batches(model.loader(stream.train_set(stream.tasks[0]))))
    right = total = 0
    for group in stream.groups:
        guessed, true = model.guesses(model.loader(stream.test_set(group)))
        right, total = right + int((guessed == true).sum()), total + len(true)
    assert total == 500
    assert 100 * right / total == pytest.approx(34.5, abs=6.4)  # three standard errors of 500 images


@pytest.mark.parametrize("chunk", [1, 8])
def test_fp32_updates_on_the_embedded_backbone_point_where_float64_points(chunk: int) -> None:
    """At the paper's ε, head and loss in float64: a finite difference through a real, trained ViT in fp32 is good."""
    updates = {}
    x = torch.randn(16, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(16) % 4
    for dtype in (torch.float64, torch.float32):
        backbone: Backbone = load_backbone(BackboneSettings())
        backbone.vit.to(dtype)
        method = get_method("adapter")(backbone, Recipe(seed=3))
        method.extend(range(4))
        method.to(dtype)
        g = torch.Generator().manual_seed(5)
        for value in method.peft.parameters():
            value.add_((0.02 * torch.randn(value.shape, generator=g)).to(dtype))
        groups = {"peft": method.groups()["peft"]}
        before = torch.cat([value.flatten().double() for value in groups["peft"].values()])
        plan = Group(order="zeroth", queries=4, epsilon=1e-3, clip=1.0, lr=1.0, momentum=0.0, chunk=chunk)
        Placement(method, groups, {"peft": plan}, seed=3, task=0).step(x.to(dtype), labels, 0, 0)
        updates[dtype] = torch.cat([value.flatten().double() for value in groups["peft"].values()]) - before
    cosine = torch.nn.functional.cosine_similarity(updates[torch.float64], updates[torch.float32], dim=0)
    assert float(cosine) >= 0.999
