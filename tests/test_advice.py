"""Facts about what is chosen for someone who names nothing but images, and about `zofc recommend`."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

import zofc as zofc_package
from zofc.advice import choice, needs, recommend
from zofc.advice.choice import choose_recipe, source_of
from zofc.advice.features import clear_cached_features
from zofc.data.decode_cache import cache_folder
from zofc.errors import RecipeError, WeightsError
from zofc.model.catalog import HUB_DEFAULT, CatalogEntry
from zofc.runfolder import open_run, read_runs
from zofc.runfolder.events import Event
from zofc.training.events import StepStatus

Command = Callable[..., tuple[int, str]]


@pytest.fixture
def photographs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Five classes of eight images, told apart by their brightness; the working directory is theirs."""
    rng = np.random.default_rng(0)
    for number, name in enumerate(("ant", "bee", "cat", "dog", "eel")):
        for image in range(8):
            path = tmp_path / "photos" / name / f"{image}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            noise = rng.integers(0, 30, (20, 24, 3)) + 50 * number
            Image.fromarray(noise.clip(0, 255).astype(np.uint8)).save(path)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "photos"


class Notices:
    """A listener that keeps notices."""

    def __init__(self, texts: list[str]) -> None:
        self.texts = texts

    def event(self, event: Event) -> None:
        """Keep the text of a notice."""
        if event["event"] == "notice":
            self.texts.append(str(event["text"]))

    def step(self, status: StepStatus) -> None: ...
    def close(self) -> None: ...


@pytest.fixture
def at_hand(tiny_weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The tiny backbone, and nothing else, is at hand; its name."""
    data = tmp_path / "data"
    (data / "backbones").mkdir(parents=True)
    (data / "backbones" / "tiny.safetensors").symlink_to(tiny_weights)
    monkeypatch.setenv("ZOFC_DATA", str(data))
    monkeypatch.setattr(choice, "is_downloaded", lambda _name: False)
    return "backbones/tiny.safetensors"


# -- single choices --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("classes", "increment"), [(1, 1), (2, 2), (3, 3), (4, 2), (6, 2), (10, 2), (16, 4), (101, 21), (1000, 200)]
)
def test_tasks_are_few_and_have_at_least_two_classes(classes: int, increment: int) -> None:
    assert choice._pick_increment(classes) == increment


def test_a_source_is_named_as_in_recipes_or_is_a_folder(photographs: Path) -> None:
    assert source_of("folder:photos") == "folder:photos"
    assert source_of("photos") == "folder:photos"
    assert source_of("zofc/base") is None and source_of("absent") is None
    (photographs / "recipe.yaml").touch()
    assert source_of("photos") is None  # a run folder


def entry(name: str, millions: int, weights: str = "file") -> CatalogEntry:
    class Sized:
        parameters = millions * 1_000_000

    return CatalogEntry(name, Sized(), weights)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("sizes", "expected"), [((2, 22, 86), "c"), ((22, 300), "a"), ((300, 1100), "a")], ids=["all fit", "some", "none"]
)
def test_the_largest_backbone_that_fits_is_taken(
    sizes: tuple[int, ...], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [entry(name, size) for name, size in zip("abc", sizes, strict=False)]
    listed = [entry("embedded", 1, "package"), *files, entry("z", 50, "hub")]
    monkeypatch.setattr(choice, "backbones", lambda *_: iter(listed))
    monkeypatch.setattr(choice, "is_downloaded", lambda _name: False)
    name, reason = choice._pick_backbone("folder:photos")
    assert name == expected and f"the largest of {len(files)} at hand" in reason


def test_without_weights_the_hubs_default_is_named_and_characters_have_the_embedded_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("ZOFC_DATA", raising=False)
    monkeypatch.setattr(choice, "is_downloaded", lambda _name: False)
    name, reason = choice._pick_backbone("folder:photos")
    assert name == HUB_DEFAULT and "hub" in reason
    assert choice._pick_backbone("glyphs:clean")[0] == "embedded"
    assert choice.backbones_at_hand() == ["embedded"]


# -- the choice ------------------------------------------------------------------------------------------------------


def test_a_small_backbone_gets_an_adapter_with_a_fallback_and_every_choice_a_reason(
    photographs: Path, at_hand: str
) -> None:
    made = choose_recipe("folder:photos")
    recipe = made.recipe
    assert recipe.backbone.name == at_hand and recipe.data.source == "folder:photos" and recipe.data.increment == 2
    assert recipe.method.name == "adapter" and recipe.method.readout == "ridge" and recipe.sections["ridge"]["fallback"]
    assert len(made.reasons) == 3
    assert "tiny.safetensors" in made.reasons[0] and "5 classes in tasks of 2" in made.reasons[1]


def test_a_backbone_that_a_cpu_is_slow_with_trains_nothing_unless_asked(
    photographs: Path, at_hand: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choice, "FAST_ENOUGH", 1.0)
    made = choose_recipe("folder:photos", ["training.device=cpu"])
    assert made.recipe.method.name == "ridge" and made.recipe.sections["ridge"]["projection"] == 8192
    assert "on a CPU" in made.reasons[-1] and choice.TRAINED in made.reasons[-1]
    asked = choose_recipe("folder:photos", ["training.device=cpu", "optimize.peft.epochs=3"]).recipe
    assert asked.method.name == "adapter" and asked.optimize["peft"].epochs == 3


def test_what_the_user_says_wins_and_has_no_reason(photographs: Path, at_hand: str, tiny_weights: Path) -> None:
    made = choose_recipe("folder:photos", [f"backbone.name={tiny_weights}", "data.increment=3"])
    assert made.recipe.backbone.name == str(tiny_weights) and made.recipe.data.increment == 3
    assert len(made.reasons) == 1 and "ZO-Ridge" in made.reasons[0]
    with pytest.raises(RecipeError, match="unknown key"):
        choose_recipe("folder:photos", ["data.incremnt=3"])


def test_images_are_smaller_than_the_backbone_was_trained_at_where_that_is_large(
    photographs: Path, at_hand: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choice, "USUAL_SIZE", 9)  # the tiny backbone has 16 px in patches of 8
    made = choose_recipe("folder:photos")
    assert made.recipe.backbone.image_size == 8 and "images of 8 px" in made.reasons[1]
    assert choose_recipe("folder:photos", ["backbone.image_size=16"]).recipe.backbone.image_size == 16
    own = choose_recipe("folder:photos", ["backbone.image_size=null"])  # that of the backbone
    assert own.recipe.backbone.image_size is None and not any("px" in reason for reason in own.reasons)


# -- from outside ----------------------------------------------------------------------------------------------------


def test_one_command_trains_and_keeps_the_reasons(photographs: Path, at_hand: str, zofc: Command) -> None:
    code, said = zofc("run", "photos", "optimize.peft.epochs=1", "peft.blocks=first 2", "training.workers=0")
    assert code == 0 and "5 classes in tasks of 2" in said
    (record,) = read_runs([Path("runs")])
    run = open_run(record.path)
    reasons = [event["text"] for event in run.events if event.get("about") == "choice"]
    assert len(reasons) == 3 and run.finished
    assert [event["task"] for event in run.events if event.get("about") == "readout"] == [0, 1, 2]
    _, said = zofc("run", "folder:photos", "optimize.peft.epochs=1", "peft.blocks=first 2", "training.workers=0")
    assert "is finished already" in said


def test_a_learner_without_a_recipe_learns(photographs: Path, at_hand: str) -> None:
    notices: list[str] = []

    learner = zofc_package.Learner(
        overrides=["optimize.peft.epochs=1", "peft.blocks=first 2", "training.workers=0"], listeners=[Notices(notices)]
    )
    learner.learn("folder:photos")
    assert learner.classes == ("ant", "bee", "cat", "dog", "eel")
    assert learner.recipe.backbone.name == at_hand
    assert any("the backbone is" in text for text in notices) and any("features answer" in text for text in notices)
    assert len(learner.predict(photographs / "ant" / "0.png")) == 1


def test_recipes_beside_images_learn_the_same_with_the_same_backbone(
    photographs: Path, at_hand: str, zofc: Command
) -> None:
    words = ("photos", "ridge/base", "optimize.peft.epochs=1", "training.workers=0")
    code, said = zofc("run", *words)
    assert not code and "ridge/base has no such setting and runs without optimize.peft.epochs=1" in said
    assert "ridge/base learns folder:photos too" in said
    one, other = (open_run(record.path).recipe for record in read_runs([Path("runs")]))
    assert one.data == other.data and one.backbone == other.backbone
    (photographs.parent / "more").symlink_to(photographs)
    code, said = zofc("run", "photos", "more", "ridge/base")
    assert code and "say which images it learns" in said


def test_runs_are_not_written_among_the_classes(
    photographs: Path, at_hand: str, zofc: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(photographs)
    for runs in ([], ["--runs", "eel/runs"]):
        code, said = zofc("run", ".", *runs)
        assert code and f"--runs {photographs.parent / 'runs'}" in said
    assert sorted(path.name for path in photographs.iterdir()) == ["ant", "bee", "cat", "dog", "eel"]
    for split in ("train", "test"):
        for name in ("ant", "bee"):
            (photographs.parent / "split" / split / name).mkdir(parents=True)
            (photographs / name / f"{'01'[split == 'test']}.png").rename(
                photographs.parent / "split" / split / name / "0.png"
            )
    monkeypatch.chdir(photographs.parent / "split")
    code, said = zofc("run", ".", "peft.blocks=all", "optimize.peft.epochs=1", "training.workers=0")
    assert not code and Path("runs").is_dir()  # beside train and test it is no class


def test_backbones_are_listed_with_advice_and_what_is_at_hand_first(at_hand: str, zofc: Command) -> None:
    _, said = zofc("list", "backbones")
    assert said.index(at_hand) < said.index(HUB_DEFAULT) < said.index("embedded")
    assert "the default for photographs" in said and "zofc list backbones vit" in said
    assert "vit_giant" not in said and "vit_giant" in zofc("list", "backbones", "giant")[1]


def test_a_mistyped_folder_is_told_from_a_recipe(photographs: Path, at_hand: str, zofc: Command) -> None:
    assert "did you mean 'photos'?" in zofc("run", "phots")[1]


# -- recommend -------------------------------------------------------------------------------------------------------


def test_folds_hold_every_image_out_once_evenly_in_every_class() -> None:
    labels = np.repeat(np.arange(4), [10, 7, 2, 1])
    held = list(recommend.folds(labels))
    together = np.concatenate(held)
    assert sorted(together) == [i for i in range(20) if labels[i] != 3]  # a class of one image is never held out
    for fold in held:
        assert (np.bincount(labels[fold], minlength=4)[:2] >= 1).all()


def test_learners_answer_well_where_classes_are_apart_and_at_chance_where_they_are_not() -> None:
    g = torch.Generator().manual_seed(0)
    labels = torch.arange(120) % 3
    noise = torch.randn(120, 16, generator=g)
    apart = noise + 8 * torch.nn.functional.one_hot(labels, 16)
    for learner in recommend.LEARNERS.values():
        assert np.mean(recommend.cross_validate(apart, labels, learner)) > 0.97
        assert np.mean(recommend.cross_validate(noise, labels, learner)) < 0.6


def test_recommend_compares_what_is_at_hand_and_remembers_features(
    photographs: Path, at_hand: str, tiny_weights: Path, zofc: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    _, said = zofc("recommend", "photos", "training.workers=0", "--json", "found.json")
    found = json.loads(Path("found.json").read_text("utf-8"))
    assert {row["learner"] for row in found["rows"]} == set(recommend.LEARNERS)
    assert found["classes"] == 5 and found["sampled"] == {at_hand: found["images"]}
    assert all(0 <= row["accuracy"] <= 100 and row["seconds"] > 0 and row["saved"] > 0 for row in found["rows"])
    assert "to train: zofc run" in said and at_hand in said

    def refuse(*_: object) -> None:
        raise AssertionError("an image passed twice")

    monkeypatch.setattr("zofc.advice.recommend.affordable", lambda *_: 7)  # what it was, of 32 images
    again = recommend.recommend("folder:photos", overrides=["training.workers=0"])
    monkeypatch.setattr("zofc.model.backbone.Backbone.features", refuse)
    assert recommend.recommend("folder:photos", overrides=["training.workers=0"]).rows == again.rows


def test_a_backbone_that_cannot_be_read_is_left_out_and_named(photographs: Path, at_hand: str, tmp_path: Path) -> None:
    (tmp_path / "broken.safetensors").write_bytes(b"not weights")
    found = recommend.recommend("folder:photos", ["broken.safetensors", at_hand], ["training.workers=0"])
    assert {row.backbone for row in found.rows} == {at_hand}
    assert len(found.left_out) == 1 and "broken.safetensors" in found.left_out[0]
    with pytest.raises(WeightsError, match="broken"):
        recommend.recommend("folder:photos", ["broken.safetensors"])


def test_the_default_is_recommended_unless_another_learner_is_clearly_better() -> None:
    def row(learner: str, accuracy: float) -> recommend.Expectation:
        return recommend.Expectation("b", learner, accuracy, 1.0, 1.0, 1, 1, learner)

    def best(ridge: float) -> str:
        rows = sorted([row("ridge", ridge), row(recommend.DEFAULT_LEARNER, 90.0)], key=lambda one: -one.accuracy)
        return recommend.Recommendation(10, 2, {"b": 10}, tuple(rows), ()).best.learner

    assert best(90.5) == recommend.DEFAULT_LEARNER and best(92.0) == "ridge"


def test_images_that_are_too_few_to_compare_learners_are_refused_with_the_least_number(
    photographs: Path, at_hand: str, zofc: Command
) -> None:
    for path in photographs.rglob("[2-9].png"):
        path.unlink()
    code, said = zofc("recommend", "photos", "training.workers=0")
    assert code and "a class needs at least 2 training images" in said and "With 3 images in a class" in said
    Image.new("RGB", (20, 24)).save(photographs / "ant" / "2.png")
    assert "to train: zofc run" in zofc("recommend", "photos", "training.workers=0")[1]


def test_the_time_to_run_has_the_steps_of_the_adapter_in_it(
    photographs: Path, at_hand: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = count(0.0)  # a clock whose step takes as long on every machine
    monkeypatch.setattr(needs, "time", SimpleNamespace(perf_counter=lambda: next(seconds)))
    clear_cached_features()  # of other tests
    found = recommend.recommend("folder:photos", overrides=["training.workers=0"])
    by = {row.learner: row for row in found.rows}
    default, ridge = by[recommend.DEFAULT_LEARNER], by["ridge"]
    assert default.seconds > 2 * ridge.seconds and default.memory > ridge.memory
    kept = [path for path in cache_folder().parent.joinpath("features").iterdir() if path.suffix == ".json"]
    assert len(kept) == 1
    once = ["training.workers=0", "optimize.peft.epochs=1", "optimize.head.epochs=1"]
    fewer = recommend.recommend("folder:photos", overrides=once)
    assert max(row.seconds for row in fewer.rows) < default.seconds
    clear_cached_features()
    assert not [path for path in kept if path.exists()]


def test_photographs_are_not_learned_with_a_backbone_for_characters_without_a_word(
    photographs: Path, zofc: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ZOFC_DATA", raising=False)
    monkeypatch.setattr(choice, "is_downloaded", lambda _name: False)
    instead = f"backbone.name={HUB_DEFAULT}"
    quick = ["training.workers=0", "backbone.name=embedded"]
    _, said = zofc("recommend", "photos", "training.workers=0")
    assert "trained on characters" in said
    assert f"to train: zofc run folder:photos {instead}" in said.replace("\n", " ")
    for words in (["photos"], ["ridge/base", "data.source=folder:photos", "data.increment=2"]):
        _, said = zofc("run", *words, "optimize.peft.epochs=1" if words == ["photos"] else "seed=2", *quick)
        assert instead in said.replace("\n", "")
    notices: list[str] = []
    learner = zofc_package.Learner("ridge/base", quick, [Notices(notices)])
    learner.learn("folder:photos")
    assert sum(instead in text for text in notices) == 1
    notices.clear()
    glyphs = zofc_package.Learner("ridge/base", quick, [Notices(notices)])
    glyphs.learn("glyphs:clean")
    assert not notices
