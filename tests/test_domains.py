"""Facts about domain-incremental streams: the same classes, task by task in another look."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from zofc.data import DomainStream, SourceOptions, open_source
from zofc.errors import DataError, RecipeError
from zofc.methods import METHODS, get_method
from zofc.model.backbone import Backbone
from zofc.recipe import Coda, Data, Group, Head, Peft, Recipe, load_recipe
from zofc.recipe import Method as MethodRecipe
from zofc.training.runs import start_run, train

Make = Callable[..., Recipe]
SOURCE = "glyphs:domains=ink+neon+chalk"
REFUSING = {"simplecil", "aper", "ease"}
SHIPPED = sorted(name for name in METHODS if METHODS[name].__module__.startswith("zofc."))


def stream(classes: int = 4) -> DomainStream:
    source = open_source(SOURCE, SourceOptions(per_class=6, test_per_class=3))
    return DomainStream.build(source, order_seed=1993, classes=classes)


def test_every_task_has_all_classes_in_one_domain_and_is_evaluated_per_domain() -> None:
    found = stream()
    assert len(found.tasks) == 3 and all(task.classes == range(4) for task in found.tasks)
    seen = [found.part.source.domain_names[found.order[i]] for i in range(3)]
    assert sorted(seen) == ["chalk", "ink", "neon"]
    for task in found.tasks:
        train_set = found.train_set(task)
        assert set(train_set.labels.tolist()) == set(range(4))
        assert train_set.domains is not None and set(train_set.domains.tolist()) == {int(found.order[task.index])}
        names = [name for group, _ in found.evaluation(task) for name in group]
        assert names == seen[: task.index + 1]
        assert all(len(images) for _, images in found.evaluation(task))


def test_a_source_without_domains_is_refused() -> None:
    with pytest.raises(DataError, match=r"data\.by: 'domain' needs a source with domains"):
        DomainStream.build(open_source("glyphs", SourceOptions()), order_seed=1)


def recipe(name: str) -> Recipe:
    kind = "linear" if name in ("lae", "l2p", "coda", "inflora") else "cosine"
    return Recipe(
        seed=3,
        method=MethodRecipe(name=name),
        data=Data(by="domain"),
        head=Head(kind=kind),  # type: ignore[arg-type]
        peft=Peft(blocks="first 2", rank=2),
        coda=Coda(per_task=2, length=4, blocks="first 2"),
        optimize={name: Group() for name in METHODS[name].group_names},
    )


@pytest.mark.parametrize("name", SHIPPED)
def test_a_method_shares_its_labels_between_domains_or_says_why_not(
    tiny: Backbone, images: torch.Tensor, name: str
) -> None:
    cls = get_method(name)
    if name in REFUSING:
        with pytest.raises(RecipeError, match=rf"data\.by: {name} cannot learn a class in several domains: "):
            cls.check(recipe(name), [3, 3])
        return
    cls.check(recipe(name), [3, 3])
    method = cls(tiny, recipe(name))
    labels = torch.arange(6) % 3
    for _ in range(2):
        method.extend(range(3))
        method.begin_task(lambda: [(images, labels)])
        rows = {n for n in method.groups().get("head", {}) if n.startswith("head.rows")}
        assert rows <= {"head.rows.0"}  # one block of rows, trained in every task
        method.end_task(lambda: [(images, labels)])
        assert method.scores(images).shape == (6, 3)


def test_a_run_over_domains_learns_evaluates_and_resumes(tiny_recipe: Make, tmp_path: Path) -> None:
    made = tiny_recipe(
        "zofc/base", f"data.source={SOURCE}", "data.by=domain", "data.classes=3", "data.test_per_class=6"
    )
    folder = start_run(made, tmp_path)
    metrics = train(folder)
    matrix = json.loads((folder.path / "matrix.json").read_text())
    assert [len(row) for row in matrix["accuracy"]] == [1, 2, 3]
    assert sorted(name for group in matrix["groups"] for name in group) == ["chalk", "ink", "neon"]
    assert metrics["trainable_parameters"]["head"] == 3 * 24 + 1
    (folder.path / "metrics.json").unlink()
    assert train(folder) == metrics  # comes back from its checkpoint, rows shared again


def test_what_a_stream_of_domains_cannot_be_is_refused(tiny_recipe: Make, tmp_path: Path) -> None:
    made = tiny_recipe("zofc/base", f"data.source={SOURCE}", "data.by=domain", "data.joint=true")
    with pytest.raises(RecipeError, match=r"data\.by: .*neither joint"):
        train(start_run(made, tmp_path))
    made = tiny_recipe("zofc/base", f"data.source={SOURCE}", "data.by=domain", "method.prototypes=true")
    with pytest.raises(RecipeError, match=r"method\.prototypes"):
        train(start_run(made, tmp_path))


def test_pacs_comes_as_four_styles_of_seven_classes(assets: Path) -> None:
    if not (assets / "pacs").is_dir():
        pytest.skip("no PACS below ZOFC_DATA")
    source = open_source("parquet:pacs", SourceOptions(per_class=8, test_per_class=8))
    found = DomainStream.build(source, order_seed=1993)
    assert len(found.tasks) == 4 and len(found.classes) == 7
    assert {found.domain(i) for i in range(4)} == {"art_painting", "cartoon", "photo", "sketch"}
    shown = [np.unique(found.train_set(task).labels).size for task in found.tasks]
    assert sum(shown) > 7  # classes come again in further styles


def test_recipes_for_domains_need_no_increment() -> None:
    assert load_recipe("zofc/base", ["data.by=domain"]).data.planned_tasks is None
