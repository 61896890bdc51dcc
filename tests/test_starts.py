"""How each method starts, beside what its authors' code draws: rows and biases of the classifier, prompts, modules."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from timm.layers import trunc_normal_
from torch import Tensor, nn

from conftest import grow_method, method_recipe
from zofc.errors import RecipeError
from zofc.methods import Batches, complete_recipe, get_method
from zofc.methods.classifier import Classifier
from zofc.methods.inflora import InfLora
from zofc.methods.l2p import L2pSettings
from zofc.model.backbone import Backbone
from zofc.model.heads import HEADS
from zofc.recipe import Recipe, dump_recipe, load_recipe, recipe_names
from zofc.training.runs import resume_run, start_run, train

CLASSES = 2000
NEEDS: dict[str, dict[str, Any]] = {
    "coda": {"coda": {"per_task": 2, "blocks": "first 2"}},
    "inflora": {"data": {"classes": 2 * CLASSES, "increment": CLASSES}},
    "ease": {"peft": {"kind": "adaptformer", "blocks": "all", "rank": 8}},
    "aper": {"peft": {"kind": "adaptformer", "blocks": "all", "rank": 8}},
}
Draw = Callable[[int], tuple[Tensor, Tensor]]


def torch_linear(width: int) -> tuple[Tensor, Tensor]:
    """What `nn.Linear` draws by itself."""
    layer = nn.Linear(width, CLASSES)
    return layer.weight.detach(), layer.bias.detach()


def kaiming(width: int) -> tuple[Tensor, Tensor]:
    return nn.init.kaiming_uniform_(torch.empty(CLASSES, width), nonlinearity="linear"), torch.zeros(CLASSES)


def truncated(width: int) -> tuple[Tensor, Tensor]:
    return trunc_normal_(torch.empty(CLASSES, width), std=0.02), torch.zeros(CLASSES)


def narrow(width: int) -> tuple[Tensor, Tensor]:
    return torch.empty(CLASSES, width).normal_(0, 0.001), torch.zeros(CLASSES)


def zeros(width: int) -> tuple[Tensor, Tensor]:
    return torch.zeros(CLASSES, width), torch.zeros(CLASSES)


AUTHORS: dict[tuple[str, str], Draw] = {  # method, variant: how its authors, or the released code, start a linear head
    ("l2p", "official"): truncated,  # the PyTorch port's; the authors' JAX code starts at zero
    ("l2p", "zofc"): truncated,
    ("coda", "official"): torch_linear,
    ("coda", "zofc"): torch_linear,
    ("inflora", "official"): torch_linear,
    ("inflora", "zofc"): torch_linear,
    ("lae", "official"): narrow,
    ("lae", "zofc"): kaiming,
    ("classifier", "official"): kaiming,  # the paper's own rows (appendix E)
    ("adapter", "official"): kaiming,
}
COSINE = [("classifier", "official"), ("adapter", "official"), ("aper", "official"), ("ease", "official"),
          ("ease", "zofc")]  # fmt: skip


def assert_alike(ours: Tensor, theirs: Tensor) -> None:
    """Two samples of one distribution: quantiles agree within a few hundredths of its deviation."""
    shares = torch.linspace(0.01, 0.99, 33)
    a, b = (values.flatten()[:200_000].double().quantile(shares.double()) for values in (ours, theirs))
    wide = float(theirs.std())
    few = max(0.08, 6 / theirs.numel() ** 0.5)
    assert float((a - b).abs().max()) <= few * wide
    assert float(ours.abs().max()) <= 1.2 * float(theirs.abs().max()) + 1e-12


def started(backbone: Backbone, name: str, variant: str = "official", **sections: Any) -> Any:
    recipe = method_recipe(name, **{"method": {"variant": variant}, **NEEDS.get(name, {}), **sections})
    return grow_method(backbone, recipe, CLASSES)


@pytest.fixture(autouse=True)
def _same_references() -> None:
    torch.manual_seed(11)


@pytest.mark.parametrize(("name", "variant"), AUTHORS)
def test_linear_heads_start_as_the_authors_start_them(tiny: Backbone, name: str, variant: str) -> None:
    head = started(tiny, name, variant, head={"kind": "linear"}).head
    rows, bias = AUTHORS[name, variant](tiny.width)
    assert_alike(head.rows[0], rows)
    assert_alike(head.bias[0], bias)
    assert bool(head.bias[0].any()) is bool(bias.any())


@pytest.mark.parametrize(("name", "variant"), COSINE)
def test_cosine_heads_start_as_the_released_code_starts_them(tiny: Backbone, name: str, variant: str) -> None:
    head = started(tiny, name, variant).head
    assert_alike(head.rows[0], torch_linear(tiny.width)[0])  # within ±1/√d, as nn.Linear's weights
    assert float(head.sigma) == 1.0


@pytest.mark.parametrize(
    ("init", "draw"),
    [("uniform", kaiming), ("torch", torch_linear), ("trunc-normal", truncated), ("normal", narrow), ("zeros", zeros)],
)
def test_a_recipe_may_name_another_start(tiny: Backbone, init: str, draw: Draw) -> None:
    head = started(tiny, "coda", head={"kind": "linear", "init": init}).head
    rows, bias = draw(tiny.width)
    assert_alike(head.rows[0], rows)
    assert_alike(head.bias[0], bias)


def test_a_start_of_zeros_is_refused_for_cosine_rows() -> None:
    recipe = method_recipe("classifier", head={"kind": "cosine", "init": "zeros"})
    with pytest.raises(RecipeError, match=r"head\.init: the cosine of a row of zeros is undefined; use another"):
        get_method("classifier").check(recipe, [2, 2])


def test_every_row_of_every_task_starts_afresh() -> None:
    for kind in HEADS:
        head = HEADS[kind](6, "torch")
        for seed in (1, 2, 1):
            head.grow(3, torch.Generator().manual_seed(seed))
        assert torch.equal(head.rows[0], head.rows[2]) and not torch.equal(head.rows[0], head.rows[1])


# -- prompts and modules -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("init", "low", "high"), [("port", -1.0, 1.0), ("jax", 0.0, 0.01)])
def test_l2ps_prompts_and_keys_start_as_in_its_port_or_as_its_authors_have_them(
    tiny: Backbone, init: str, low: float, high: float
) -> None:
    pool = started(tiny, "l2p", l2p={"pool": 500, "init": init}).peft
    reference = torch.empty(100_000).uniform_(low, high)
    for values in (pool.prompts, pool.keys):
        assert_alike(values, reference)
        assert low <= float(values.min()) <= float(values.max()) <= high
    assert L2pSettings().init == "port"


def test_codas_components_start_as_an_orthonormal_family(tiny: Backbone) -> None:
    """Also beside those of earlier tasks, in every block; only those of tasks so far are there."""
    method = grow_method(tiny, method_recipe("coda", **NEEDS["coda"]), 2, 2)
    for block in method.peft.values():
        for kind in ("prompts", "keys", "attentions"):
            rows = torch.cat([part.flatten(1) for part in getattr(block, kind)])
            torch.testing.assert_close(rows @ rows.mT, torch.eye(4), atol=1e-5, rtol=0)


def test_infloras_branches_start_at_zero(tiny: Backbone) -> None:
    method = started(tiny, "inflora")
    assert not method.up_key[0].any() and not method.up_value[0].any()


@pytest.mark.parametrize("name", ["adapter", "lae", "aper", "ease"])
def test_adapters_start_as_the_identity_with_a_random_projection_down(tiny: Backbone, name: str) -> None:
    """W_down as `nn.Linear` draws it (Kaiming with a = √5), everything else zero, the scale one where it is learned."""
    more = {"scale": "learned"} if name == "lae" else {"kind": "adaptformer"} if name != "adapter" else {}
    method = started(tiny, name, peft={"blocks": "all", "rank": 24, **more})
    parts = {key: value for key, value in method.named_parameters() if key.startswith(("peft.", "adapters."))}
    down = torch.cat([value.flatten() for key, value in parts.items() if "down" in key and value.dim() > 1])
    assert_alike(down, torch_linear(tiny.width)[0])
    for key, value in parts.items():
        if "scale" in key:
            assert bool((value == 1).all())
        elif not ("down" in key and value.dim() > 1):
            assert not value.any(), key


def test_inflora_collects_its_inputs_in_views_of_training(
    tiny_recipe: Callable[..., Recipe], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before and after each task, all of its images, in random crops as its authors do; or in the test view."""
    seen: list[tuple[Tensor, Tensor]] = []
    collect = InfLora.second_moments

    def observe(method: InfLora, batches: Batches) -> Tensor:
        images, labels = (torch.cat(parts) for parts in zip(*batches(), strict=True))
        seen.append((images[labels.argsort(stable=True)], labels.sort().values))
        return collect(method, batches)

    monkeypatch.setattr(InfLora, "second_moments", observe)
    passes = {}
    for change in ("inflora.view=training", "inflora.view=test", "views.augment=none"):
        train(start_run(tiny_recipe("inflora-fo/base", "peft.rank=2", "data.classes=4", change), tmp_path))
        passes[change], seen = seen[:], []
    training, test, plain = passes.values()
    assert len(training) == len(test) == 4  # two tasks, before and after
    for (random, labels), (views, same), (unchanged, _) in zip(training, test, plain, strict=True):
        assert torch.equal(labels, same) and torch.equal(views, unchanged)
        assert random.shape == views.shape and not torch.equal(random, views)
    assert tiny_recipe("inflora-fo/base").sections["inflora"]["view"] == "training"


# -- recipes -----------------------------------------------------------------------------------------------------------

NEWER = ("init", "view", "frozen", "image_size", "cache")  # keys that version 0.1 did not have
STARTS = {"lae": "normal", "l2p": "trunc-normal", "coda": "torch", "inflora": "torch"}


@pytest.mark.parametrize("name", [name for name in recipe_names() if name.endswith(("/base", "/cifar100-inc10"))])
def test_shipped_recipes_start_as_the_authors_do(name: str) -> None:
    recipe = complete_recipe(load_recipe(name))
    rows = recipe.optimize and recipe.method.readout == "rows"
    few = name.endswith("/base") and rows  # own images may be few
    assert recipe.head.init == ("means" if few else STARTS.get(recipe.method.name, "uniform"))


LINEAR = (
    "head.kind=linear",
    "head.init=auto",
    "head.scale=1",
)  # as the authors have it, and version 0.1 for own images


@pytest.mark.parametrize(
    ("name", "changes", "old_values"),
    [
        ("coda-fo/base", LINEAR, {"head.init": "uniform"}),
        ("l2p-zo/base", LINEAR, {"head.init": "uniform", "l2p.init": "port"}),
        ("inflora-fo/base", LINEAR, {"head.init": "uniform", "inflora.view": "test"}),
        ("lae-fo/base", LINEAR, {"head.init": "normal", "lae.frozen": None}),
        ("lae-fo/base", (*LINEAR, "method.variant=zofc"), {"head.init": "uniform", "lae.frozen": False}),
        ("zofc/cifar100-inc10", (), {"head.init": "uniform"}),
    ],
)
def test_a_complete_recipe_of_version_0_1_keeps_its_start(
    tmp_path: Path, name: str, changes: tuple[str, ...], old_values: dict[str, object]
) -> None:
    """It has every key of 0.1 and no other; a file that a user wrote has the authors' start."""
    text = dump_recipe(complete_recipe(load_recipe(name, changes)))
    old = [line for line in text.splitlines() if line.split(":")[0].strip() not in NEWER]
    (tmp_path / "recipe.yaml").write_text("\n".join(old))
    values = complete_recipe(load_recipe(str(tmp_path / "recipe.yaml"))).model_dump()
    assert {key: values[key.split(".")[0]][key.split(".")[1]] for key in old_values} == old_values
    (tmp_path / "own.yaml").write_text("\n".join(line for line in old if not line.startswith("resolved")))
    own = complete_recipe(load_recipe(str(tmp_path / "own.yaml")))
    assert own.head.init == complete_recipe(load_recipe(name, changes)).head.init


def test_a_run_that_version_0_1_began_goes_on_from_its_own_start(
    tiny_recipe: Callable[..., Recipe], tmp_path: Path
) -> None:
    """Its folder has no word about the start; a new run of the same recipe has another folder and other results."""
    few = ("coda.per_task=2", "coda.blocks=first 2", "data.classes=4", *LINEAR)
    metrics = {}
    for init in ("uniform", "auto"):
        run = start_run(tiny_recipe("coda-fo/base", *few, f"head.init={init}"), tmp_path / init)
        metrics[init] = run.path.name, train(run), run.events
    old = start_run(tiny_recipe("coda-fo/base", *few, "head.init=uniform"), tmp_path / "old")
    lines = [line for line in old.recipe_file.read_text().splitlines() if line.split(":")[0].strip() not in NEWER]
    old.recipe_file.write_text("\n".join(lines))
    train(resume_run(old.path))
    losses = {
        name: [event["loss"] for event in events if event["event"] == "epoch"]
        for name, events in (("old", old.events), *((init, found[2]) for init, found in metrics.items()))
    }
    assert losses["old"] == losses["uniform"] != losses["auto"]
    assert metrics["uniform"][0] == old.path.name != metrics["auto"][0]


LABELS = torch.tensor([0, 1, 0, 1, 0, 1])


def start_at_means(backbone: Backbone, images: Tensor, kind: str) -> tuple[Classifier, Tensor, Tensor]:
    """A classifier before its first step, features of the images and the class means."""
    recipe = method_recipe("classifier", head={"kind": kind, "init": "means", "scale": 10.0})
    method = grow_method(backbone, recipe, 2)
    assert isinstance(method, Classifier)
    method.begin_task(lambda: [(images, LABELS)])
    features = backbone.features(images)
    return method, features, torch.stack([features[c::2].mean(0) for c in (0, 1)])


def test_a_linear_classifier_starts_at_class_means_as_a_cosine_one(tiny: Backbone, images: Tensor) -> None:
    method, features, means = start_at_means(tiny, images, "linear")
    length = features.norm(dim=-1, keepdim=True) / means.norm(dim=-1).mean()
    cosines = torch.nn.functional.cosine_similarity(features[:, None], means, dim=-1)
    torch.testing.assert_close(method.scores(images), 10 * cosines * length)


def test_rows_can_start_at_the_class_means_with_a_scale_of_ones_choice(tiny: Backbone, images: Tensor) -> None:
    """Before any step the classifier is then SimpleCIL; rows of a known class in a new domain stay as they are."""
    method, features, means = start_at_means(tiny, images, "cosine")
    torch.testing.assert_close(method.head.rows[0], torch.nn.functional.normalize(means, dim=-1))
    expected = 10 * torch.nn.functional.cosine_similarity(features[:, None], means, dim=-1)
    torch.testing.assert_close(method.scores(images), expected)
    method.extend(range(2))
    method.begin_task(lambda: [(images + 1, LABELS)])
    torch.testing.assert_close(method.scores(images), expected)
