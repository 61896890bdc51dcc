"""Facts about the Python API."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import zofc
from zofc.errors import DataError, RunError
from zofc.learner import Evaluation, GivenImages
from zofc.recipe import Recipe
from zofc.runfolder.progress import state_checksum
from zofc.training.runs import extend_run, start_run, train

Make = Callable[..., Recipe]


def pictures(colour: int, count: int = 8, seed: int = 0) -> list[np.ndarray]:
    """Noise with one strong colour channel: easy to tell apart."""
    rng = np.random.default_rng(seed + 10 * colour)
    found = []
    for _ in range(count):
        pixels = rng.integers(0, 90, (16, 16, 3)).astype(np.uint8)
        pixels[:, :, colour] = rng.integers(180, 255)
        found.append(pixels)
    return found


@pytest.fixture
def learner(tiny_recipe: Make) -> zofc.Learner:
    return zofc.Learner(
        tiny_recipe(
            "adapter-fo/base",
            "training.workers=0",
            "optimize.head.epochs=20",
            "optimize.peft.epochs=20",
            "optimize.head.lr=0.1",
            "views.augment=none",
        )
    )


def test_classes_are_learned_task_by_task_and_predicted_among_all(learner: zofc.Learner) -> None:
    learner.learn({"red": pictures(0), "green": [Image.fromarray(p) for p in pictures(1)]})
    assert learner.classes == ("red", "green")
    learner.learn({"blue": pictures(2)})
    assert learner.classes == ("red", "green", "blue")
    answers = learner.predict([*pictures(0, 2, seed=99), *pictures(2, 2, seed=99)], top=2)
    assert [[one.name for one in best][:1] for best in answers] == [["red"], ["red"], ["blue"], ["blue"]]
    assert all(len(best) == 2 and best[0].probability >= best[1].probability for best in answers)
    assert sum(one.probability for one in learner.predict(pictures(0, 1), top=9)[0]) == pytest.approx(1)


def test_a_saved_model_answers_the_same_to_the_bit_and_learns_on(learner: zofc.Learner, tmp_path: Path) -> None:
    learner.learn({"red": pictures(0), "green": pictures(1)})
    learner.save(tmp_path / "model")
    loaded = zofc.load(tmp_path / "model")
    x = torch.rand(4, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    assert torch.equal(loaded.model.scores(x), learner.model.scores(x))
    for one in (learner, loaded):
        one.learn({"blue": pictures(2), "cyan": pictures(1, seed=5)})
    assert torch.equal(loaded.model.scores(x), learner.model.scores(x))


def test_a_saved_model_can_be_extended_as_a_run(learner: zofc.Learner, tmp_path: Path) -> None:
    learner.learn({"red": pictures(0), "green": pictures(1)})
    learner.save(tmp_path / "model")
    for name, colour in (("blue", 2), ("rot", 0)):
        (tmp_path / "more" / name).mkdir(parents=True)
        for i, pixels in enumerate(pictures(colour, 5, seed=7)):
            Image.fromarray(pixels).save(tmp_path / "more" / name / f"{i}.png")
    run = extend_run(tmp_path / "model", f"folder:{tmp_path / 'more'}", tmp_path / "extended")
    metrics = train(run)
    assert metrics["finished"] and metrics["tasks"] == 2 and metrics["last_task"] is not None
    assert set(zofc.load(run.path).classes) == {"red", "green", "blue", "rot"}


def test_evaluation_counts_every_image_in_the_confusion_matrix(learner: zofc.Learner, tmp_path: Path) -> None:
    learner.learn({"red": pictures(0), "green": pictures(1), "blue": pictures(2)})
    for name, colour in (("red", 0), ("blue", 2)):
        (tmp_path / name).mkdir()
        for i, pixels in enumerate(pictures(colour, 4, seed=50)):
            Image.fromarray(pixels).save(tmp_path / name / f"{i}.png")
    found = learner.evaluate(f"folder:{tmp_path}")
    assert found.confusion.sum() == 8 and found.confusion.sum(1).tolist() == [4, 0, 4]
    assert set(found.per_class) == {"red", "blue"}
    assert found.accuracy == pytest.approx(100 * np.trace(found.confusion) / 8)
    (tmp_path / "zebra").mkdir()
    Image.fromarray(pictures(0, 1)[0]).save(tmp_path / "zebra" / "0.png")
    with pytest.raises(DataError, match=r"never learned: zebra.*learned_only"):
        learner.evaluate(f"folder:{tmp_path}")
    rest = learner.evaluate(f"folder:{tmp_path}", learned_only=True)
    assert np.array_equal(rest.confusion, found.confusion) and rest.left_out == ("zebra",)
    for name in ("red", "blue"):
        shutil.rmtree(tmp_path / name)
    with pytest.raises(DataError, match=r"never learned: zebra; learned: red, green, blue$"):
        learner.evaluate(f"folder:{tmp_path}", learned_only=True)


def test_the_most_confused_pairs_come_first_and_right_answers_are_none() -> None:
    confusion = np.array([[9, 1, 0], [3, 0, 0], [0, 2, 7]])
    found = Evaluation(("a", "b", "c"), 72.7, {}, confusion)
    assert found.confused() == [("b", "a", 3), ("c", "b", 2), ("a", "b", 1)]
    assert found.confused(1) == [("b", "a", 3)]


def test_a_task_that_fails_leaves_the_model_as_it_was(learner: zofc.Learner, tmp_path: Path) -> None:
    learner.learn({"red": pictures(0), "green": pictures(1)})
    x = torch.rand(4, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    before = learner.model.scores(x)
    (tmp_path / "broken.png").write_bytes(b"not an image")
    with pytest.raises(DataError, match=r"broken\.png"):
        learner.learn({"blue": [*pictures(2), tmp_path / "broken.png"], "cyan": pictures(1)})
    assert learner.classes == ("red", "green") and torch.equal(learner.model.scores(x), before)
    learner.learn({"blue": pictures(2), "cyan": pictures(1, seed=5)})
    assert len(learner.classes) == 4


def test_saving_replaces_a_saved_model_and_nothing_else(
    learner: zofc.Learner, tiny_recipe: Make, tmp_path: Path
) -> None:
    learner.learn({"red": pictures(0), "green": pictures(1)})
    learner.save(tmp_path / "model")
    learner.save(tmp_path / "model")
    run = start_run(tiny_recipe("simplecil/base"), tmp_path / "runs")
    train(run)
    (tmp_path / "papers").mkdir()
    (tmp_path / "papers" / "thesis.txt").write_text("mine")
    for place in (run.path, tmp_path / "papers"):
        with pytest.raises(RunError, match="holds no saved model"):
            learner.save(place)
    assert zofc.load(run.path).recipe == run.recipe


def test_what_a_run_had_measured_survives_loading_and_saving(tiny_recipe: Make, tmp_path: Path) -> None:
    run = start_run(tiny_recipe("simplecil/base", "training.workers=0"), tmp_path)
    train(run)
    loaded = zofc.load(run.path)
    loaded.learn({"red": pictures(0), "green": pictures(1)})
    loaded.save(tmp_path / "model")
    measured = json.loads((run.path / "matrix.json").read_text())["accuracy"]
    assert zofc.load(tmp_path / "model").history.rows[:3] == measured


def test_a_run_stopped_inside_a_task_is_not_loaded(tiny_recipe: Make, tmp_path: Path) -> None:
    run = start_run(tiny_recipe("simplecil/base"), tmp_path)
    train(run)
    state = run.path / "checkpoint" / "state.json"
    content = json.loads(state.read_text())
    content |= {"done": 2, "rows": content["rows"][:2]}
    state.write_text(json.dumps({**content, "checksum": state_checksum(content)}))
    with pytest.raises(RunError, match="stopped inside task 3"):
        zofc.load(run.path)


def test_arrays_are_taken_by_what_their_values_mean() -> None:
    grey = np.array([[0, 51, 255]], np.uint8)
    colour = np.stack([grey, grey // 2, grey // 3], -1)
    for same in (colour, colour.astype(np.uint16) * 257, colour / 255, (colour / 255).astype(np.float16)):
        assert np.array_equal(np.asarray(GivenImages([same]).load(0)), colour)
    assert np.array_equal(np.asarray(GivenImages([grey / 255]).load(0)), np.stack([grey] * 3, -1))
    for values in (colour.astype(np.int64), colour.astype(np.float32), colour > 9, -1 - colour / 255, grey * np.nan):
        with pytest.raises(DataError, match=r"image 0: values of type .* have no known scale"):
            GivenImages([values]).load(0)


def test_a_lone_image_is_a_list_of_one(learner: zofc.Learner, tmp_path: Path) -> None:
    pixels = pictures(0, 1)[0]
    path = tmp_path / "one.png"
    Image.fromarray(pixels).save(path)
    learner.learn({"red": str(path), "green": pictures(1, 1)[0]})
    assert learner.classes == ("red", "green")
    (expected,) = learner.predict([pixels])
    for alone in (path, str(path), Image.fromarray(pixels), pixels):
        assert learner.predict(alone) == [expected]
    assert len(learner.predict(pixels[:, :, 0])) == 1 and len(learner.predict(np.stack([pixels] * 3))) == 3
    assert learner.predict(torch.from_numpy(pixels).movedim(-1, 0)) == [expected]


def test_images_by_class_name_are_evaluated_as_a_source_of_them_is(learner: zofc.Learner, tmp_path: Path) -> None:
    learner.learn({"red": pictures(0), "green": pictures(1), "blue": pictures(2)})
    given = {"blue": pictures(2, 4, seed=50), "red": pictures(0, 3, seed=50)}
    for name, items in given.items():
        (tmp_path / name).mkdir()
        for i, pixels in enumerate(items):
            Image.fromarray(pixels).save(tmp_path / name / f"{i}.png")
    found, same = learner.evaluate(given), learner.evaluate(f"folder:{tmp_path}")
    assert np.array_equal(found.confusion, same.confusion) and found.confusion.sum(1).tolist() == [3, 0, 4]
    with pytest.raises(DataError, match=r"^never learned: zebra; learned: red, green, blue"):
        learner.evaluate({"zebra": pictures(0, 1)})


def test_a_lone_override_is_one_override() -> None:
    assert zofc.Learner("demo/simplecil", "training.device=cpu").recipe.training.device == "cpu"


def test_overrides_change_a_recipe_that_is_given_as_one(tiny_recipe: Make) -> None:
    assert zofc.Learner(tiny_recipe("zofc/base"), "seed=5").recipe.seed == 5


def test_mistakes_are_told(learner: zofc.Learner, tmp_path: Path) -> None:
    with pytest.raises(RunError, match="nothing has been learned"):
        learner.predict(pictures(0, 1))
    with pytest.raises(DataError, match="no images for any class"):
        learner.learn({})
    with pytest.raises(DataError, match=r"^folder:none does not exist: looked for /.*none"):
        learner.learn("folder:none")
    with pytest.raises(DataError, match="no images for empty"):
        learner.learn({"red": pictures(0), "empty": []})
    learner.learn({"red": pictures(0), "green": pictures(1)})
    with pytest.raises(DataError, match="already learned: red"):
        learner.learn({"red": pictures(0), "blue": pictures(2)})
    (tmp_path / "broken.png").write_bytes(b"not an image")
    with pytest.raises(DataError, match=r"broken\.png"):
        learner.predict([tmp_path / "broken.png"])
    with pytest.raises(DataError, match="neither a PIL image"):
        learner.predict([np.zeros((3, 3, 3, 3), np.uint8)])
    with pytest.raises(DataError, match="top: expected at least 1, got 0"):
        learner.predict(pictures(0, 1), top=0)
    with pytest.raises(RunError, match="not a run folder"):
        zofc.load(tmp_path)


@pytest.mark.parametrize("name", ["", "  ", "\u200b", "fox\n", "fo\tx", "a\u2028b", "\ud800", 3])
def test_a_class_needs_a_name_that_can_be_shown(learner: zofc.Learner, tmp_path: Path, name: str) -> None:
    with pytest.raises(DataError, match="is no class name"):
        learner.learn({name: pictures(0), "green": pictures(1)})
    assert learner.classes == ()
    learner.learn({"red fox": pictures(0), "gr\u00fcn 🦊": pictures(1)})
    with pytest.raises(DataError, match="is no class name"):
        learner.rename("red fox", name)


def test_folders_of_classes_need_names_that_can_be_shown(learner: zofc.Learner, tmp_path: Path) -> None:
    for name in ("fox", " "):
        (tmp_path / "images" / name).mkdir(parents=True)
        Image.fromarray(pictures(0, 1)[0]).save(tmp_path / "images" / name / "0.png")
    with pytest.raises(DataError, match=r"images: ' ' is no class name: .* rename the folder"):
        learner.learn(f"folder:{tmp_path / 'images'}")


def test_a_run_without_a_checkpoint_or_with_other_weights_is_not_loaded(tiny_recipe: Make, tmp_path: Path) -> None:
    folder = start_run(tiny_recipe("simplecil/base"), tmp_path)
    with pytest.raises(RunError, match="no checkpoint yet"):
        zofc.load(folder.path)
    train(folder)
    assert len(zofc.load(folder.path, device="cpu").classes) == 6
    environment = folder.environment
    environment["backbone"]["checksum"] = "other"
    folder.write_environment(environment)
    with pytest.raises(RunError, match="weights changed"):
        zofc.load(folder.path)


def test_images_that_are_only_opened_are_learned_by_several_processes(tiny_recipe: Make, tmp_path: Path) -> None:
    """Pillow reads an image when it is first used, from a file whose place in it forked processes would share."""
    for number, pixels in enumerate(pictures(0, 6) + pictures(1, 6)):
        Image.fromarray(np.tile(pixels, (8, 8, 1))).save(tmp_path / f"{number:02d}.png")
    opened = [Image.open(path) for path in sorted(tmp_path.glob("*.png"))]
    learner = zofc.Learner(tiny_recipe("simplecil/base", "training.workers=2", "training.eval_batch_size=1"))
    learner.learn({"red": opened[:6], "green": opened[6:]})
    assert learner.classes == ("red", "green")
    whole = (tmp_path / "00.png").read_bytes()
    (tmp_path / "half.png").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(zofc.ZofcError, match="image 0 cannot be read"):
        learner.predict([Image.open(tmp_path / "half.png")])


def test_the_package_offers_its_public_names() -> None:
    assert all(getattr(zofc, name) is not None for name in zofc.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        zofc.nothing  # noqa: B018
