"""Facts about streams by domain: the same classes task by task in another look, or each look with its own classes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from conftest import method_recipe
from zofc.data import ArrayImages, DomainStream, ImageSet, Source, SourceOptions, Stream, class_order, open_source
from zofc.errors import DataError, RecipeError
from zofc.learner import load
from zofc.methods import METHODS, get_method
from zofc.methods.coda import CodaSettings
from zofc.model.backbone import Backbone
from zofc.recipe import Group, Recipe, load_recipe
from zofc.training.resolve import build_stream
from zofc.training.runs import extend_run, start_run, train

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
    plain = open_source("glyphs", SourceOptions())
    with pytest.raises(DataError, match=r"data\.by: 'domain' needs a source with domains, and glyphs has none"):
        DomainStream.build(plain, order_seed=1)
    with pytest.raises(DataError, match=r"data\.by: 'domain-class' needs a source with domains, and glyphs has none"):
        Stream.of_pairs(plain, order_seed=1)


def domain_recipe(name: str) -> Recipe:
    coda = CodaSettings(per_task=2, length=4, blocks="first 2")
    optimize = {group: Group() for group in METHODS[name].group_names}
    return method_recipe(name, data={"by": "domain"}, coda=coda, optimize=optimize)


@pytest.mark.parametrize("name", SHIPPED)
def test_a_method_shares_its_labels_between_domains_or_says_why_not(
    tiny: Backbone, images: torch.Tensor, name: str
) -> None:
    cls = get_method(name)
    if name in REFUSING:
        with pytest.raises(RecipeError, match=rf"data\.by: {name} cannot learn a class in several domains: "):
            cls.check(domain_recipe(name), [3, 3])
        return
    cls.check(domain_recipe(name), [3, 3])
    method = cls(tiny, domain_recipe(name))
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


def test_recipes_for_domains_need_no_increment() -> None:
    for by in ("domain", "domain-class"):
        assert load_recipe("zofc/base", [f"data.by={by}", "data.classes=6"]).data.planned_tasks is None
    assert load_recipe("zofc/base", ["data.by=domain-class", "data.joint=true"]).data.planned_tasks == 1


# -- a class for each pair of domain and class -----------------------------------------------------------------------

PAIRS = ("data.source=glyphs:domains=ink+neon", "data.by=domain-class")


def toy(pairs: list[tuple[int, int]], test: list[tuple[int, int]] | None = None) -> Source:
    """Two images of each of these pairs of domain and class, of three domains with classes a, b and c."""

    def images(shown: list[tuple[int, int]]) -> ImageSet:
        domains, labels = np.repeat(np.array(shown, np.int64).reshape(-1, 2), 2, axis=0).T
        array = np.zeros((len(labels), 2, 2, 3), np.uint8)
        array[:, 0, 0, 0], array[:, 0, 0, 1] = domains, labels
        return ImageSet(ArrayImages(array), labels, domains)

    return Source("toy", tuple("abc"), images(pairs), images(pairs if test is None else test), "", ("x", "y", "z"))


ALL = [(domain, label) for domain in range(3) for label in range(3)]


def test_each_pair_of_domain_and_class_is_a_class_and_each_task_those_of_one_domain() -> None:
    found = Stream.of_pairs(toy(ALL), order_seed=5)
    expected = [[f"{'xyz'[i]}/{'abc'[j]}" for j in class_order(3, 5)] for i in class_order(3, 5)]
    assert [list(task.names) for task in found.tasks] == expected
    for task in found.tasks:
        for images in (found.train_set(task), found.test_set(task.classes)):
            assert len(images) == 6
            for i, label in enumerate(images.labels):
                domain, name, _ = images.images.load(i).getpixel((0, 0))
                assert found.classes[label] == f"{'xyz'[domain]}/{'abc'[name]}"


def test_a_domain_may_lack_a_class_and_its_task_is_smaller() -> None:
    found = Stream.of_pairs(toy([pair for pair in ALL if pair not in [(1, 0), (1, 2)]]), order_seed=5)
    assert len(found.classes) == 7 and not {"y/a", "y/c"} & set(found.classes)
    assert {task.names[0][0]: len(task.names) for task in found.tasks} == {"x": 3, "y": 1, "z": 3}
    with pytest.raises(DataError, match="toy: no images in the domain 'y'"):
        Stream.of_pairs(toy([pair for pair in ALL if pair[0] != 1]), order_seed=5)
    with pytest.raises(DataError, match="toy: in the test set only: 'z/b'"):
        Stream.of_pairs(toy(ALL[:-2], ALL[:-1]), order_seed=5)
    with pytest.raises(DataError, match="toy: no test images for any of the classes z/"):
        Stream.of_pairs(toy(ALL, ALL[:6]), order_seed=5)


@pytest.mark.parametrize("build", [DomainStream.build, Stream.of_pairs])
def test_only_the_first_classes_of_the_order_may_be_taken_in_each_domain(build: Callable[..., Stream]) -> None:
    found = build(toy(ALL), order_seed=5, classes=2)
    kept = {"abc"[i] for i in class_order(3, 5)[:2]}
    assert [{name[-1] for name in task.names} for task in found.tasks] == [kept] * 3
    with pytest.raises(DataError, match=r"data\.classes: expected 1 to 3, the classes of toy, got 4"):
        build(toy(ALL), order_seed=5, classes=4)


def test_counts_are_for_each_pair(tiny_recipe: Make) -> None:
    found = build_stream(tiny_recipe("zofc/base", *PAIRS), print)
    assert len(found.tasks) == 2 and len(found.classes) == 12
    for task in found.tasks:
        assert np.bincount(found.train_set(task).labels)[task.classes.start :].tolist() == [6] * 6
    assert [len(test) for _, test in found.evaluation(found.tasks[-1])] == [24, 24]


def test_a_run_over_pairs_learns_resumes_answers_and_goes_on(tiny_recipe: Make, tmp_path: Path) -> None:
    folder = start_run(tiny_recipe("zofc/base", *PAIRS, "data.classes=3"), tmp_path)
    metrics = train(folder)
    matrix = json.loads((folder.path / "matrix.json").read_text())
    assert [len(row) for row in matrix["accuracy"]] == [1, 2] and matrix["counts"] == [12, 12]
    assert [{name.partition("/")[0] for name in group} for group in matrix["groups"]] in (
        [{"ink"}, {"neon"}],
        [{"neon"}, {"ink"}],
    )
    assert metrics["trainable_parameters"]["head"] == 3 * 24 + 1  # the rows of the last task alone
    (folder.path / "metrics.json").unlink()
    assert train(folder) == metrics

    model = load(folder.path)
    assert model.predict([np.zeros((16, 16, 3), np.uint8)])[0][0].name in model.classes
    with pytest.raises(DataError, match=r"never learned: ink/"):  # it has all characters, each under its domain
        model.evaluate("glyphs:domains=ink")

    rng = np.random.default_rng(0)
    for name in ("red", "blue"):
        (tmp_path / "more" / name).mkdir(parents=True)
        for i in range(4):
            pixels = rng.integers(0, 255, (16, 16, 3), np.uint8)
            ArrayImages(pixels[None]).load(0).save(tmp_path / "more" / name / f"{i}.png")
    extended = extend_run(folder.path, f"folder:{tmp_path / 'more'}")
    assert train(extended)["tasks"] == 3
    groups = json.loads((extended.path / "matrix.json").read_text())["groups"]
    assert groups[:2] == matrix["groups"] and sorted(groups[2]) == ["blue", "red"]
    assert load(extended.path).evaluate(f"folder:{tmp_path / 'more'}").confusion.sum() == 8


def test_a_further_source_with_domains_brings_its_pairs(tiny_recipe: Make) -> None:
    made = tiny_recipe("zofc/base", *PAIRS, "data.then=[glyphs:domains=chalk]")
    found = build_stream(made, print)
    assert len(found.tasks) == 3 and {name.partition("/")[0] for name in found.tasks[2].names} == {"chalk"}
    with pytest.raises(DataError, match=r"class 'ink/.*' of glyphs:domains=ink is already in glyphs:domains=ink\+neon"):
        build_stream(tiny_recipe("zofc/base", *PAIRS, "data.then=[glyphs:domains=ink]"), print)


def test_joint_training_on_pairs_is_one_task_evaluated_per_domain(tiny_recipe: Make) -> None:
    found = build_stream(tiny_recipe("zofc/base", *PAIRS, "data.joint=true"), print)
    assert [len(task.classes) for task in found.tasks] == [12]
    assert [len(names) for names, _ in found.evaluation(found.tasks[0])] == [6, 6]


@pytest.mark.parametrize("by", ["domain", "domain-class"])
def test_a_first_task_of_another_size_is_refused_where_a_task_is_a_domain(tiny_recipe: Make, by: str) -> None:
    with pytest.raises(RecipeError, match=rf"data\.first: with data\.by={by} each task is a domain"):
        build_stream(tiny_recipe("zofc/base", PAIRS[0], f"data.by={by}", "data.first=3"), print)


# -- PACS ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def pacs(assets: Path) -> list[str]:
    if not (assets / "pacs").is_dir():
        pytest.skip("no PACS below ZOFC_DATA")
    return ["data.source=parquet:pacs", "data.increment=2", "data.per_class=8", "data.test_per_class=4"]


STYLES = {"art_painting", "cartoon", "photo", "sketch"}


def test_pacs_pooled_is_seven_classes_in_all_styles(pacs: list[str]) -> None:
    found = build_stream(load_recipe("zofc/base", pacs), print)
    assert [len(task.classes) for task in found.tasks] == [2, 2, 2, 1]
    shown = [found.train_set(task) for task in found.tasks]
    assert [len(images) for images in shown] == [16, 16, 16, 8]
    assert all(images.domains is not None and np.unique(images.domains).size > 1 for images in shown)


def test_pacs_by_domain_is_seven_classes_again_in_each_of_four_styles(pacs: list[str]) -> None:
    found = build_stream(load_recipe("zofc/base", [*pacs, "data.by=domain"]), print)
    assert isinstance(found, DomainStream)
    assert len(found.tasks) == 4 and len(found.classes) == 7
    assert {found.domain(i) for i in range(4)} == STYLES
    shown = [np.unique(found.train_set(task).labels).size for task in found.tasks]
    assert sum(shown) > 7  # classes come again in further styles


def test_pacs_by_domain_and_class_is_28_classes_in_four_tasks(pacs: list[str]) -> None:
    found = build_stream(load_recipe("zofc/base", [*pacs, "data.by=domain-class"]), print)
    assert len(found.classes) == 28 and "cartoon/dog" in found.classes
    assert [len(task.classes) for task in found.tasks] == [7] * 4
    assert {name.partition("/")[0] for task in found.tasks for name in task.names[:1]} == STYLES
    for task in found.tasks:
        assert len({name.partition("/")[0] for name in task.names}) == 1
        assert np.bincount(found.train_set(task).labels)[task.classes.start :].tolist() == [8] * 7
    assert [len(test) for _, test in found.evaluation(found.tasks[-1])] == [28] * 4
