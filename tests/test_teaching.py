"""Facts about teaching over time: more images, other names, forgotten classes, in any order and division."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

import zofc as zofc_package
from zofc.data.decode_cache import DecodeCache, cache_folder
from zofc.errors import DataError, Interrupted, RecipeError, RunError
from zofc.learner.changes import changed_copy
from zofc.model.class_means import ClassMeans
from zofc.model.image_ridge import ImageRidge, content_keys
from zofc.model.ridge import RidgeHead, draw_projection
from zofc.recipe import Recipe
from zofc.training.runs import start_run, train

Make = Callable[..., Recipe]
Call = Callable[..., tuple[int, str]]
Pictures = list[np.ndarray]
Lesson = Mapping[str, Pictures]
FIRST = ("fox", "hare")
RECIPES = {
    "ridge": ("ridge/base",),
    "projected ridge": ("ridge/base", "ridge.projection=64", "ridge.orthogonal=true"),
    "many images": ("ridge/base", "ridge.projection=64", "ridge.budget=6000"),  # sums of a projection of 27
    "class means": ("simplecil/base",),
    "fallback": ("zo-ridge/base", "ridge.projection=48"),
    "adapter": ("zo-ridge/base", "ridge.projection=48", "ridge.fallback=false"),
    "prototypes": (
        "zofc/base",
        "method.prototypes=true",
        "optimize.peft.tasks=1",
        "optimize.head.tasks=1",
        "training.fixed_batches=true",
    ),
}
READOUT = ("head.features", "head.gram", "head.sums", "ridge.features", "ridge.gram", "ridge.sums", "means.sums",
           "sums.sums", "fallback.heads.frozen.features", "fallback.heads.adapted.gram")  # fmt: skip


def pictures(kind: int, count: int, seed: int = 0) -> Pictures:
    """Stripes of a colour and a width that belong to a kind, in noise."""
    rng = np.random.default_rng([seed, kind])
    colour = np.random.default_rng(kind).integers(60, 220, 3)
    stripes = (np.arange(16) // (1 + kind % 4)) % 2
    noise = rng.normal(0, 30, (count, 16, 16, 3))
    return list((noise + 40 + stripes[None, :, None, None] * colour).clip(0, 255).astype(np.uint8))


def learner_of(make: Make, name: str, *more: str) -> zofc_package.Learner:
    recipe, *overrides = RECIPES[name]
    return zofc_package.Learner(make(recipe, "training.workers=0", "views.augment=none", *overrides, *more))


def lessons() -> Iterator[tuple[str, Lesson | tuple[str, ...]]]:
    """Thirty calls: new classes, more images of known ones, both at once, another name, a removal."""
    yield "learn", {"fox": pictures(0, 7), "hare": pictures(1, 6)}
    yield "learn", {"owl": pictures(2, 5)}
    yield "learn", {"fox": pictures(0, 3, seed=1)}
    yield "rename", ("fox", "red fox")
    yield "learn", {"wolf": pictures(3, 4), "red fox": pictures(0, 2, seed=2)}
    for number in range(20):
        yield "learn", {("red fox", "hare", "owl", "wolf")[number % 4]: pictures(number % 4, 1, seed=10 + number)}
    yield "learn", {"toad": pictures(4, 6), "newt": pictures(5, 3)}
    yield "forget", ("wolf",)
    yield "learn", {"newt": pictures(5, 2, seed=3), "toad": pictures(4, 1, seed=3)}
    yield "learn", {"wolf": pictures(6, 4)}  # another animal under the name
    yield "learn", {"hare": pictures(1, 2, seed=4)}


def at_once() -> list[Lesson]:
    """What is left of the thirty calls: the first, on which an adapter is trained, and all the rest in one."""
    rest: dict[str, Pictures] = {}
    for number, (verb, what) in enumerate(lessons()):
        if verb == "learn" and number and isinstance(what, Mapping):
            for name, items in what.items():
                rest[name] = [*rest.get(name, []), *items]
        elif verb == "forget":
            rest.pop("wolf")
    fox = [*rest.pop("fox"), *rest.pop("red fox")]
    first = {"fox": pictures(0, 7), "hare": pictures(1, 6)}
    return [first, {**rest, "fox": fox}]


def teach(learner: zofc_package.Learner) -> None:
    for verb, what in lessons():
        if isinstance(what, Mapping):
            learner.learn(what)
        else:
            getattr(learner, verb)(*what)


@pytest.mark.parametrize("name", RECIPES)
def test_thirty_calls_end_where_one_call_does(name: str, tiny_recipe: Make) -> None:
    assert len(list(lessons())) == 30
    taught, reference = learner_of(tiny_recipe, name), learner_of(tiny_recipe, name)
    teach(taught)
    for lesson in at_once():
        reference.learn(lesson)
    reference.rename("fox", "red fox")
    assert set(taught.classes) == set(reference.classes)
    own, other = taught.model.method.state_dict(), reference.model.method.state_dict()
    order = [reference.classes.index(name) for name in taught.classes]
    compared = 0
    for key in READOUT:
        if key not in own or not own[key].numel():
            continue
        expected = other[key]
        if key.endswith(".sums"):
            expected = expected[order] if key in ("means.sums", "sums.sums") else expected[:, order]
        assert torch.allclose(own[key].double(), expected.double(), rtol=1e-9, atol=1e-9 * float(expected.abs().max()))
        compared += 1
    assert compared
    asked = [picture for kind in range(7) for picture in pictures(kind, 6, seed=99)]
    answers, expected_answers = taught.predict(asked), reference.predict(asked)
    assert [best[0].name for best in answers] == [best[0].name for best in expected_answers]
    if "ridge" in name or name == "many images":
        assert np.allclose(taught.predict_proba(asked), reference.predict_proba(asked)[:, order], atol=1e-9)


@pytest.mark.parametrize("name", RECIPES)
def test_what_was_taught_is_saved_and_goes_on(name: str, tiny_recipe: Make, tmp_path: Path) -> None:
    learner = learner_of(tiny_recipe, name)
    learner.learn({"fox": pictures(0, 6), "hare": pictures(1, 6)})
    learner.learn({"owl": pictures(2, 5), "wolf": pictures(3, 5)})
    learner.forget("owl", "wolf")
    learner.learn({"toad": pictures(4, 4), "hare": pictures(1, 2, seed=5)})
    learner.save(tmp_path / "model")
    loaded = zofc_package.load(tmp_path / "model")
    assert loaded.classes == learner.classes == ("fox", "hare", "toad")
    for one in (learner, loaded):
        one.learn({"fox": pictures(0, 2, seed=8), "newt": pictures(5, 3)})
        one.forget("toad")
    asked = [*pictures(0, 3, seed=50), *pictures(5, 3, seed=50)]
    assert np.array_equal(learner.predict_proba(asked), loaded.predict_proba(asked))


def test_recipes_that_train_rows_say_who_can_learn_more_images(tiny_recipe: Make) -> None:
    learner = zofc_package.Learner(tiny_recipe("adapter-fo/base", "training.workers=0"))
    learner.learn({"fox": pictures(0, 4), "hare": pictures(1, 4)})
    before = learner.predict_proba(pictures(0, 2))
    with pytest.raises(DataError, match=r"already learned: fox; .*ridge/base.*new name"):
        learner.learn({"fox": pictures(0, 2), "owl": pictures(2, 3)})
    assert learner.classes == FIRST and np.array_equal(learner.predict_proba(pictures(0, 2)), before)


@pytest.mark.parametrize("recipe", ["adapter-fo/base", "ease-fo/base", "l2p-fo/base", "aper-fo/base", "lae-fo/base"])
def test_any_method_can_drop_a_class_from_its_answers(recipe: str, tiny_recipe: Make, tmp_path: Path) -> None:
    few = {"l2p-fo/base": ["l2p.pool=4", "l2p.length=1", "l2p.top=2"], "lae-fo/base": ["optimize.peft.start=0"]}
    learner = zofc_package.Learner(tiny_recipe(recipe, "training.workers=0", *few.get(recipe, ())))
    learner.learn({"fox": pictures(0, 4), "hare": pictures(1, 4)})
    learner.learn({"owl": pictures(2, 4), "wolf": pictures(3, 4)})
    learner.forget("hare", "owl", "wolf")
    assert learner.classes == ("fox",)
    learner.learn({"toad": pictures(4, 4), "newt": pictures(5, 4)})
    learner.save(tmp_path / "model")
    assert zofc_package.load(tmp_path / "model").predict_proba(pictures(0, 2)).shape == (2, 3)


def test_nothing_of_a_forgotten_class_is_left_in_the_folder(tiny_recipe: Make, tmp_path: Path) -> None:
    learner = learner_of(tiny_recipe, "projected ridge")
    learner.learn({"fox": pictures(0, 5), "hare": pictures(1, 5), "owl": pictures(2, 5)})
    learner.save(tmp_path / "model")
    head = learner.model.method.head
    rows = {int(label): row.numpy().tobytes() for label, row in zip(head.labels, head.features, strict=True)}

    def holds(row: bytes) -> bool:
        return any(row in path.read_bytes() for path in (tmp_path / "model").rglob("*") if path.is_file())

    assert all(holds(row) for row in rows.values())
    learner.forget("hare")
    learner.save(tmp_path / "model")
    assert holds(rows[0]) and holds(rows[2]) and not holds(rows[1])
    files = b"".join(path.read_bytes() for path in (tmp_path / "model").rglob("*") if path.is_file())
    assert b"hare" not in files


def test_forgetting_removes_decoded_images_from_the_cache(tiny_recipe: Make, tmp_path: Path) -> None:
    for name, colour in (("fox", 10), ("hare", 200)):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for image in range(6):
            Image.new("L", (16, 16), colour + image).save(tmp_path / "photos" / name / f"{image}.png")
    learner = learner_of(tiny_recipe, "ridge", "training.cache=on")
    learner.learn(f"folder:{tmp_path / 'photos'}")
    decoded = DecodeCache(cache_folder(), 10**9)
    assert any(entry.images == 12 for entry in decoded.entries())
    learner.forget("fox")
    assert not decoded.entries()


def test_a_loaded_model_takes_settings_of_what_is_still_to_learn(tiny_recipe: Make, tmp_path: Path) -> None:
    learner = learner_of(tiny_recipe, "ridge")
    learner.learn({"fox": pictures(0, 4), "hare": pictures(1, 4)})
    learner.save(tmp_path / "model")
    loaded = zofc_package.load(tmp_path / "model", overrides="training.batch_size=3")
    assert loaded.recipe.training.batch_size == 3
    with pytest.raises(RecipeError, match="what was learned depends on it"):
        zofc_package.load(tmp_path / "model", overrides="ridge.projection=8")


def test_a_termination_signal_while_a_run_learns_more_is_answered_in_a_line(
    tiny_recipe: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner = learner_of(tiny_recipe, "ridge")
    learner.learn({"fox": pictures(0, 4), "hare": pictures(1, 4)})
    learner.save(tmp_path / "model")
    before = signal.getsignal(signal.SIGTERM)
    said = r"stopped at once: .*model is as it was, and .*more was not written"
    with pytest.raises(Interrupted, match=said), changed_copy(tmp_path / "model", tmp_path / "more"):
        signal.raise_signal(signal.SIGTERM)
    assert not (tmp_path / "more").exists() and signal.getsignal(signal.SIGTERM) == before


def test_mistakes_in_teaching_are_errors(tiny_recipe: Make) -> None:
    learner = learner_of(tiny_recipe, "ridge")
    learner.learn({"fox": pictures(0, 4), "hare": pictures(1, 4)})
    with pytest.raises(DataError, match="never learned: owl; learned: fox, hare"):
        learner.forget("owl")
    with pytest.raises(DataError, match="at least one class must stay"):
        learner.forget("fox", "hare")
    with pytest.raises(DataError, match="'hare' is the name of another class"):
        learner.rename("fox", "hare")
    with pytest.raises(DataError, match="never learned: owl"):
        learner.rename("owl", "eule")
    assert learner.classes == FIRST


def test_sums_without_features_let_no_class_go(tiny_recipe: Make) -> None:
    learner = learner_of(tiny_recipe, "ridge", "ridge.strength_from=all")
    learner.learn({"fox": pictures(0, 4), "hare": pictures(1, 4)})
    before = learner.predict_proba(pictures(0, 2))
    with pytest.raises(RunError, match=r"sums over all images.*strength_from=images.*train anew"):
        learner.forget("fox")
    assert np.array_equal(learner.predict_proba(pictures(0, 2)), before)
    learner.learn({"fox": pictures(0, 3, seed=1)})  # which sums take


class Ears:
    """Hears what users are told."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def event(self, event: Mapping[str, object]) -> None:
        self.texts.append(str(event.get("text")))

    def step(self, status: object) -> None:
        pass

    def close(self) -> None:
        pass


def test_an_adapter_keeps_what_it_learned_and_says_so(tiny_recipe: Make) -> None:
    learner, ears = learner_of(tiny_recipe, "fallback"), Ears()
    learner.events.listeners.append(ears)
    learner.learn({"fox": pictures(0, 6), "hare": pictures(1, 6)})
    learner.learn({"owl": pictures(2, 6), "wolf": pictures(3, 6)})
    learner.forget("owl")
    assert not any("keep what they learned" in text for text in ears.texts)
    learner.forget("fox")
    assert "features were trained on images of fox among others" in ears.texts[-1]


def test_a_first_lesson_of_one_class_leaves_the_adapter_untrained_and_says_so_once(
    tiny_recipe: Make, tmp_path: Path
) -> None:
    learner, ears = learner_of(tiny_recipe, "fallback"), Ears()
    learner.events.listeners.append(ears)
    learner.learn({"fox": pictures(0, 6)})
    assert sum("the adapter stays untrained" in text for text in ears.texts) == 1
    learner.save(tmp_path / "one")
    learner = zofc_package.load(tmp_path / "one")
    learner.events.listeners.append(ears)
    learner.learn({"hare": pictures(1, 6), "owl": pictures(2, 6)})
    learner.learn({"fox": pictures(0, 3, seed=1)})
    learner.forget("fox")
    assert sum("the adapter stays untrained" in text for text in ears.texts) == 1
    assert not any("with it" in text or "keep what they learned" in text for text in ears.texts)
    assert learner.model.method.fallback.choice == "frozen"


def test_after_a_first_lesson_of_one_class_the_answers_are_those_without_an_adapter(tiny_recipe: Make) -> None:
    learner = learner_of(tiny_recipe, "fallback")
    alone = learner_of(tiny_recipe, "projected ridge", "ridge.projection=48")
    for one in (learner, alone):
        one.learn({"fox": pictures(0, 6)})
        one.learn({"hare": pictures(1, 6), "owl": pictures(2, 6)})
    shown = [picture for kind in range(3) for picture in pictures(kind, 4, seed=9)]
    np.testing.assert_array_equal(learner.predict_proba(shown), alone.predict_proba(shown))
    heads = learner.model.method.fallback.heads
    torch.testing.assert_close(heads["adapted"].features, heads["frozen"].features, rtol=0, atol=0)


def test_an_adapter_that_was_trained_is_compared_after_its_classes_are_gone(tiny_recipe: Make) -> None:
    """How many classes are left of the first lesson does not tell whether it trained the adapter."""
    learner, ears = learner_of(tiny_recipe, "fallback"), Ears()
    learner.learn({"fox": pictures(0, 6), "hare": pictures(1, 6)})
    learner.learn({"owl": pictures(2, 6), "wolf": pictures(3, 6)})
    learner.forget("fox")
    learner.events.listeners.append(ears)
    learner.learn({"toad": pictures(4, 6)})
    assert "with it" in ears.texts[-1] and not any("stays untrained" in text for text in ears.texts)


# -- the statistics by themselves ------------------------------------------------------------------------------------

WIDTH, CLASSES = 6, 3


def head_of(projection: int, keep: int = 100_000, budget: int = 3000) -> ImageRidge:
    def draw(size: int) -> torch.Tensor:
        return draw_projection(WIDTH, size, False, torch.Generator().manual_seed(0))

    head = ImageRidge(WIDTH, projection, budget, draw, torch.device("cpu"), keep)
    head.grow(CLASSES)
    return head


@settings(max_examples=30)
@given(st.integers(0, 2**31), st.sampled_from([0, 12, 40]), st.integers(4, 60), st.integers(1, 5))
def test_any_order_and_division_gives_the_same_regression(seed: int, projection: int, images: int, calls: int) -> None:
    rng = np.random.default_rng(seed)
    features = torch.from_numpy(rng.normal(size=(images, WIDTH))).float()
    labels = torch.from_numpy(rng.integers(0, CLASSES, images))
    once, often = head_of(projection), head_of(projection)
    once.learn(features, labels)
    order = rng.permutation(images)
    for part in np.array_split(order, calls):
        if len(part):
            often.learn(features[part], labels[part])
    assert torch.equal(once.weights, often.weights) and once.strength == often.strength
    extra = torch.from_numpy(rng.normal(size=(20, WIDTH))).float()
    often.grow(1)
    often.learn(extra, torch.full((20,), CLASSES))
    often.remove([CLASSES])
    assert torch.equal(once.weights, often.weights) and torch.equal(once.gram, often.gram)


def test_more_images_than_there_is_room_for_leave_a_sample_by_content() -> None:
    rng = np.random.default_rng(0)
    features, labels = torch.from_numpy(rng.normal(size=(90, WIDTH))).float(), torch.arange(90) % CLASSES
    once, often = head_of(0, keep=4 * WIDTH * 40), head_of(0, keep=4 * WIDTH * 40)
    once.learn(features, labels)
    for part in np.array_split(rng.permutation(90), 7):
        often.learn(features[part], labels[part])
    assert torch.equal(once.keys, often.keys) and len(once.keys) == 40 and int(once.images) == 90
    assert torch.equal(once.keys, content_keys(features).sort().values[:40])
    assert torch.allclose(once.gram, often.gram, rtol=1e-12) and once.strength == often.strength
    assert torch.allclose(once.weights, often.weights, rtol=1e-9)
    with pytest.raises(RunError, match=r"features of 40 images of 90 are kept \(ridge.keep_features\)"):
        once.remove([1])


def test_many_images_are_divided_as_freely() -> None:
    """Where λ is chosen on a fifth of the images: by images, and by sums."""
    rng = np.random.default_rng(0)
    features, labels = torch.from_numpy(rng.normal(size=(600, WIDTH))).float(), torch.arange(600) % CLASSES
    features += labels[:, None]
    for projection, budget in ((700, 64_000_000), (0, 64_000_000), (64, 4_000)):
        once, often = head_of(projection, budget=budget), head_of(projection, budget=budget)
        once.learn(features, labels)
        for part in np.array_split(rng.permutation(600), 3):
            often.learn(features[part], labels[part])
        assert once.by_images is (projection == 700) and once.strength == often.strength != 1
        assert torch.equal(once.weights, often.weights) and once.left_out is not None


def test_a_regression_by_images_forgets_under_every_rule() -> None:
    rng = np.random.default_rng(0)
    features, labels = torch.from_numpy(rng.normal(size=(30, WIDTH))).float(), torch.arange(30) % CLASSES

    def make() -> RidgeHead:
        def draw(size: int) -> torch.Tensor:
            return draw_projection(WIDTH, size, False, torch.Generator().manual_seed(0))

        head = RidgeHead(WIDTH, 64, 64_000_000, draw, torch.device("cpu"))
        head.grow(CLASSES)
        return head

    whole, less = make(), make()
    whole.learn(features, labels, rng)
    whole.remove([1])
    stay = labels != 1
    less.weights, less.sums = less.weights[:, :2], less.sums[:, :2]
    less.learn(features[stay], labels[stay] // 2, rng)
    assert torch.equal(whole.weights, less.weights)


def test_class_means_take_images_in_any_order() -> None:
    rng = np.random.default_rng(0)
    features, labels = torch.from_numpy(rng.normal(size=(40, WIDTH))).float(), torch.arange(40) % CLASSES
    once, often = ClassMeans(WIDTH), ClassMeans(WIDTH)
    for means, parts in ((once, [np.arange(40)]), (often, np.array_split(rng.permutation(40), 6))):
        means.grow(CLASSES)
        for part in parts:
            means.add(features[part], labels[part])
    assert torch.allclose(once.sums, often.sums, rtol=1e-12) and torch.equal(once.counts, often.counts)
    often.remove([0])
    assert torch.equal(often.rows(), once.rows()[1:])


def write_folder(folder: Path, lesson: Lesson) -> str:
    for name, items in lesson.items():
        (folder / name).mkdir(parents=True)
        for number, pixels in enumerate(items):
            Image.fromarray(pixels).save(folder / name / f"{number}.png")
    return f"folder:{folder}"


# -- the command line ------------------------------------------------------------------------------------------------


@pytest.fixture
def model(tiny_recipe: Make, tmp_path: Path) -> Path:
    learner = learner_of(tiny_recipe, "ridge")
    learner.learn({"fox": pictures(0, 6), "hare": pictures(1, 6)})
    learner.save(tmp_path / "model")
    return tmp_path / "model"


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_commands_teach_a_run_and_leave_it_as_it_is(zofc: Call, model: Path, tmp_path: Path) -> None:
    before = contents(model)
    source = write_folder(tmp_path / "more", {"fox": pictures(0, 3, seed=1), "owl": pictures(2, 4)})
    code, said = zofc("learn", str(model), source, "training.threads=1", "-o", "taught")
    assert code == 0 and "more images of 1 known classes: fox" in said and "which knows 3 classes" in said
    code, said = zofc("rename", "taught", "fox", "red fox")
    assert code == 0 and "taught-2" in said
    code, said = zofc("forget", "taught-2", "hare", "-o", "rest")
    assert code == 0 and "taught-2 still knows hare" in said and "rm -r taught-2" in said
    assert "decoded images were removed" in said
    taught = zofc_package.load("rest")
    assert taught.classes == ("red fox", "owl") and int(taught.model.method.head.images) == 13
    assert contents(model) == before
    for words, message in (
        (("forget", "rest", "hare", "-o", "none"), "never learned: hare; learned: red fox, owl"),
        (("rename", "rest", "owl", "red fox", "-o", "none"), "is the name of another class"),
        (("forget", "rest", "owl", "-o", "taught"), "taught is not empty"),
        (("learn", "rest", source, "backbone.name=embedded"), "backbone.name: what was learned depends on it"),
        (("learn", "rest", source, "more"), "expected KEY=VALUE, got 'more'"),
    ):
        code, said = zofc(*words)
        assert code == 2 and message in said, said
    assert not (tmp_path / "none").exists()


def test_a_run_extended_without_its_data_has_no_accuracy_of_all_classes(
    zofc: Call, model: Path, tmp_path: Path
) -> None:
    source = write_folder(tmp_path / "new", {"owl": pictures(2, 5), "wolf": pictures(3, 5)})
    (tmp_path / "new" / "owl" / "broken.png").write_bytes(b"not an image")
    code, said = zofc("learn", str(model), source, "-o", "more")
    assert code == 2 and "broken.png" in said and "With data.skip_broken=true they are left out" in said
    code, said = zofc("learn", str(model), source, "data.skip_broken=true", "-o", "more")
    assert code == 0, said
    metrics = json.loads((tmp_path / "more" / "metrics.json").read_text())
    assert metrics["all_classes"] is None and metrics["last_task"] is not None
    code, said = zofc("show", "more")
    assert code == 0 and "—" in said[said.index("all classes (%)") :].splitlines()[0]


def test_features_that_were_cached_are_removed_with_a_class(tiny_recipe: Make, tmp_path: Path) -> None:
    folder = cache_folder().parent / "features"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "sample.npz").write_bytes(b"features")
    learner = learner_of(tiny_recipe, "ridge")
    learner.learn({"fox": pictures(0, 4), "hare": pictures(1, 4)})
    assert (folder / "sample.npz").exists()
    learner.forget("fox")
    assert not (folder / "sample.npz").exists()


def test_what_a_run_had_measured_stays_after_forgetting(tiny_recipe: Make, tmp_path: Path) -> None:
    run = start_run(tiny_recipe("ridge/base", "training.workers=0"), tmp_path)
    train(run)
    learner = zofc_package.load(run.path)
    rows, (first, *others) = learner.history.rows, learner.classes
    learner.forget(first)
    learner.rename(others[0], "new")
    learner.learn({"new": pictures(0, 3)})
    learner.save(tmp_path / "model")
    loaded = zofc_package.load(tmp_path / "model")
    assert loaded.history.rows == rows and loaded.history.groups[0] == ["new"]
    assert [len(group) for group in loaded.history.groups] == [1, 2, 2] == [len(task) for task in loaded.model.tasks]
