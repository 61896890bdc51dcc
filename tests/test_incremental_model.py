"""Facts about how images reach the model."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from zofc.recipe import PAPER_BACKBONE, Recipe, load_recipe
from zofc.training.incremental_model import make_views

Make = Callable[..., Recipe]
MEAN, STD = (0.4, 0.5, 0.6), (0.2, 0.2, 0.2)


@pytest.mark.parametrize(
    ("overrides", "normalised"),
    [
        ([], False),
        (["backbone.name=vit_small_patch16_224"], True),
        (["backbone.name=other.safetensors"], True),
        (["backbone.name=weights.npz", f"backbone.architecture={PAPER_BACKBONE}"], False),
        (["views.normalize=backbone"], True),
        (["backbone.name=vit_small_patch16_224", "views.normalize=none"], False),
    ],
)
def test_paper_rows_feed_the_papers_backbone_unnormalised_and_any_other_as_it_was_trained(
    overrides: list[str], normalised: bool
) -> None:
    for view in make_views(load_recipe("zofc/cifar100-inc5", overrides), 224, MEAN, STD):
        assert (view.mean, view.std) == ((MEAN, STD) if normalised else (None, None))


@pytest.mark.parametrize(("size", "resized"), [(224, 256), (64, 73), (16, 18)])
def test_sizes_scale_with_the_backbones_input(size: int, resized: int) -> None:
    train, test = make_views(load_recipe("zofc/cifar100-inc5"), size, MEAN, STD)
    assert (train.size, test.size, test.resize_to) == (size, size, resized)
    assert (train.scale, train.flip, test.interpolation) == ((0.05, 1.0), 0.5, "bicubic")
