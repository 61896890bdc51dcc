"""Facts about teaching over HTTP: what a lesson learns, what is undone, forgotten, renamed, kept and exported."""

from __future__ import annotations

import io
import json
import re
import zipfile
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import zofc
import zofc_device
from teach_client import QUICK, Page, glyphs
from zofc.analysis.replay import RunReplay
from zofc.errors import DataError, RunError
from zofc.model.backbone import Backbone
from zofc.model.image_ridge import ImageRidge
from zofc.recipe import Recipe
from zofc.runfolder.journal_records import SetStep
from zofc.teach.lessons import Teacher, model_digest
from zofc.teach.models import LessonStatus
from zofc.teach.progress import LessonProgress
from zofc.teach.server import api
from zofc.teach.start import FIRST_RUN, prepare_run
from zofc.teach.state import Picture, Taught
from zofc.teach.store import PictureStore
from zofc.training.events import StepStatus
from zofc.training.runs import start_run, train

GLYPHS = glyphs(4)
ROUTES = [
    ("get", "/status"), ("get", "/runs"), ("get", "/classes"), ("post", "/classes"), ("patch", "/classes/{number}"),
    ("delete", "/classes/{number}"), ("get", "/classes/{number}/images"), ("post", "/classes/{number}/images"),
    ("get", "/images/{number}"), ("delete", "/images/{number}"), ("post", "/lessons"), ("get", "/lessons"),
    ("delete", "/lessons/current"), ("post", "/lessons/undo"), ("get", "/lessons/current/events"),
    ("post", "/predict"), ("post", "/evaluate"), ("get", "/export/run"), ("get", "/export/bundle"),
]  # fmt: skip
NAMES = list(GLYPHS)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return prepare_run(tmp_path / "taught", QUICK, lambda _: None)


@pytest.fixture
def page(run: Path) -> Iterator[Page]:
    store = PictureStore(run)
    with store.opened():
        yield Page(Teacher.open(store))


def teach_two(page: Page) -> list[str]:
    numbers = [page.add(name, GLYPHS[name]) for name in NAMES[:2]]
    page.teach()
    return numbers


def test_a_run_that_was_taught_is_one_for_every_command(page: Page, run: Path) -> None:
    for name in NAMES[:3]:
        page.add(name, GLYPHS[name])
    lesson = page.teach()
    assert lesson["number"] == 1 and lesson["images"] == 3 * 10 and lesson["classes"] == NAMES[:3]
    assert {one["held_back"] for one in page.classes().values()} == {2}
    learner = zofc.load(run)
    assert learner.classes == tuple(NAMES[:3])
    trained = [one for name in NAMES[:3] for one in GLYPHS[name]]
    right = [name for name in NAMES[:3] for _ in GLYPHS[name]]
    answers = page.best(trained[:30]) + page.best(trained[30:])
    assert answers == [best[0].name for best in learner.predict(trained)]
    assert np.mean([answer == name for answer, name in zip(answers, right, strict=True)]) > 0.8


def test_pictures_of_known_classes_are_included_and_a_fifth_is_held_back(page: Page) -> None:
    first, _ = teach_two(page)
    page.add(NAMES[2], GLYPHS[NAMES[2]])
    more = glyphs(1, 24)[NAMES[0]]
    fresh = [image for image in more if image not in GLYPHS[NAMES[0]]]
    page.add(NAMES[0], fresh[:8])
    lesson = page.teach()
    assert lesson["images"] == 10 + 6  # of 20 pictures 4 are held back, 2 of them since the first lesson
    assert page.classes()[NAMES[0]]["held_back"] == 4 and page.classes()[NAMES[0]]["id"] == first
    assert set(lesson["accuracy_before"]) == set(lesson["accuracy_after"]) == {"c1", "c2", "c3"}  # type: ignore[call-overload]


def test_undo_brings_the_model_back_and_keeps_later_pictures(page: Page, run: Path) -> None:
    teach_two(page)
    before = zofc.load(run).predict_proba(GLYPHS[NAMES[0]])
    page.add(NAMES[2], GLYPHS[NAMES[2]])
    page.teach()
    page.add(NAMES[3], GLYPHS[NAMES[3]][:3])
    assert page.http.post("/api/v1/lessons/undo").json()["undone"]
    assert zofc.load(run).classes == tuple(NAMES[:2])
    assert np.array_equal(zofc.load(run).predict_proba(GLYPHS[NAMES[0]]), before)
    classes = page.classes()
    assert [classes[name]["pending"] for name in NAMES] == [0, 0, 12, 3] and not classes[NAMES[2]]["learned"]
    page.teach()  # again, with both
    assert zofc.load(run).classes == tuple(NAMES)


def test_forget_and_rename_are_undone_with_the_pictures(page: Page, run: Path) -> None:
    first, second = teach_two(page)
    page.http.patch(f"/api/v1/classes/{first}", json={"name": "renamed"})
    assert zofc.load(run).classes == ("renamed", NAMES[1])
    assert page.http.delete(f"/api/v1/classes/{second}").status_code == 204
    assert zofc.load(run).classes == ("renamed",) and list(page.classes()) == ["renamed"]
    page.http.post("/api/v1/lessons/undo")
    page.http.post("/api/v1/lessons/undo")
    assert zofc.load(run).classes == tuple(NAMES[:2])
    assert len(page.get(f"/classes/{second}/images")) == 12  # type: ignore[arg-type]


def test_forgetting_for_good_leaves_no_file_of_a_class(page: Page, run: Path) -> None:
    _, second = teach_two(page)
    assert page.http.delete(f"/api/v1/classes/{second}?for_good=true").status_code == 204
    assert len(list((run / "taught/pictures").iterdir())) == 12
    assert len(list((run / "taught/lessons").iterdir())) == 1
    assert page.http.post("/api/v1/lessons/undo").status_code == 422


def test_a_class_that_was_never_taught_takes_no_undo_with_it(page: Page, run: Path) -> None:
    teach_two(page)
    page.add(NAMES[2], GLYPHS[NAMES[2]])
    page.teach()
    number = page.add(NAMES[3], GLYPHS[NAMES[3]])
    assert page.http.delete(f"/api/v1/classes/{number}?for_good=true").status_code == 204
    assert len(list((run / "taught/pictures").iterdir())) == 36
    assert page.get("/status")["can_undo"]  # type: ignore[call-overload, index]
    assert page.http.post("/api/v1/lessons/undo").status_code == 200
    assert zofc.load(run).classes == tuple(NAMES[:2])


def test_every_change_raises_the_revision_and_that_of_pictures_the_gallery(page: Page, run: Path) -> None:
    def look() -> tuple[int, list[str]]:
        return page.get("/status")["revision"], [one["gallery"] for one in page.classes().values()]  # type: ignore

    first, second = teach_two(page)
    pictures: Any = page.get(f"/classes/{first}/images")
    changes: list[tuple[str, str, Any]] = [
        ("DELETE", f"/images/{pictures[0]['id']}", None),
        ("PATCH", f"/classes/{second}", {"name": "renamed"}),
        ("POST", "/lessons/undo", None),
        ("POST", "/classes", {"name": "more"}),
    ]
    seen = [look()]
    for method, path, body in changes:
        assert page.http.request(method, f"/api/v1{path}", json=body).status_code < 300
        seen.append(look())
    revisions = [revision for revision, _ in seen]
    assert revisions == sorted(set(revisions))
    galleries = [gallery for _, gallery in seen]
    assert galleries[0][0] != galleries[1][0] and galleries[0][1] == galleries[1][1] == galleries[2][1]
    assert look() == look()
    assert PictureStore(run).revision > revisions[-1]  # a restart is a change


def test_pictures_that_a_class_has_already_are_no_errors(page: Page) -> None:
    number = page.add(NAMES[0], GLYPHS[NAMES[0]][:3])
    files = [("files", (f"{i}.png", data)) for i, data in enumerate(GLYPHS[NAMES[0]][:5])]
    answer = page.http.post(f"/api/v1/classes/{number}/images", files=files).json()
    known: Any = page.get(f"/classes/{number}/images")
    assert not answer["refused"] and len(answer["added"]) == 2 and len(known) == 5
    assert {one["id"] for one in answer["present"]} == {one["id"] for one in known[:3]}


@pytest.mark.parametrize("kind", ["export/run", "export/bundle?precision=none"])
def test_exports_are_written_inside_the_run_and_leave_nothing(page: Page, run: Path, kind: str) -> None:
    teach_two(page)
    answer = page.http.get(f"/api/v1/{kind}")
    assert answer.status_code == (200 if kind == "export/run" else 422)
    assert list((run / "taught/exports").iterdir()) == []
    if kind == "export/run":
        assert not [name for name in zipfile.ZipFile(io.BytesIO(answer.content)).namelist() if "exports" in name]
    (run / "taught/exports/left").mkdir()
    with pytest.raises(RunError), PictureStore(run).opened():  # another process has it
        pass
    assert (run / "taught/exports/left").exists()


def test_exports_that_a_kill_left_are_removed_at_the_start(run: Path) -> None:
    (run / "taught/exports/left").mkdir(parents=True)
    with PictureStore(run).opened():
        assert not (run / "taught/exports").exists()


def test_without_a_name_the_first_run_is_begun_and_then_one_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    said: list[str] = []
    assert prepare_run(None, QUICK, said.append) == FIRST_RUN == Path("runs/taught")
    assert zofc.load(FIRST_RUN).classes == () and any("ZO-Ridge" in text for text in said)
    second = prepare_run(None, QUICK, said.append)
    assert second.name != "taught" and second.parent == tmp_path / "runs" and zofc.load(second).classes == ()
    assert prepare_run(FIRST_RUN, (), said.append) == FIRST_RUN  # it is gone on with by its name


def test_a_removed_picture_leaves_the_model_as_if_it_had_never_been_there(
    page: Page, run: Path, tmp_path: Path
) -> None:
    first, _ = teach_two(page)
    learned = [one["id"] for one in page.get(f"/classes/{first}/images") if not one["held_back"]]  # type: ignore[attr-defined]
    assert page.http.delete(f"/api/v1/images/{learned[0]}").status_code == 204
    assert page.classes()[NAMES[0]]["removed_pending"] == 1
    lesson = page.teach()
    assert "learned anew" in str(lesson["notices"]) and page.classes()[NAMES[0]]["removed_pending"] == 0
    assert not (run / "taught/pictures" / f"{learned[0]}.png").exists() or page.teacher.undoable is not None
    heads = [one for one in zofc.load(run).model.method.modules() if isinstance(one, ImageRidge)]
    assert heads and {len(one.keys) for one in heads} == {10 + 9}


def test_a_lesson_tells_how_far_it_is_in_the_order_of_its_stages(page: Page) -> None:
    for name in NAMES[:2]:
        page.add(name, GLYPHS[name])
    page.http.post("/api/v1/lessons")
    blocks = page.http.get("/api/v1/lessons/current/events").text.strip().split("\n\n")
    kinds, data = zip(*(block.split("\n") for block in blocks), strict=True)
    assert set(kinds[:-1]) == {"event: progress"} and kinds[-1] == "event: finished"
    reports = [json.loads(one.removeprefix("data: ")) for one in data[:-1]]
    assert all(set(one) == set(LessonStatus.model_fields) and one["number"] == 1 for one in reports)
    order = ["before", "features", "adapter", "readout", "testing"]
    stages = [order.index(one["phase"]) for one in reports]
    assert stages == sorted(stages)
    for one, other in pairwise(reports):
        assert one["phase"] != other["phase"] or one["step"] <= other["step"]
    assert all(one["steps"] is None or one["step"] <= one["steps"] for one in reports)


def test_pictures_are_done_once_they_are_evaluated_and_a_lesson_is_cancelled_after_few(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a CPU with a large backbone: ridge regression on frozen features."""
    zofc.Learner("ridge/base", [QUICK[0], "training.fixed_batches=true"]).save(tmp_path / "ridge")
    extract, seen = Backbone.features, list[tuple[str, int, int]]()
    with (store := PictureStore(tmp_path / "ridge")).opened():
        page = Page(teacher := Teacher.open(store))
        teach_two(page)
        page.add(NAMES[2], glyphs(3, 60)[NAMES[2]])

        def watched(backbone: Backbone, images: torch.Tensor) -> torch.Tensor:
            progress = teacher.progress
            assert progress is not None
            seen.append((progress.phase, progress.done, len(images)))
            progress.cancelled = len(seen) == 3
            return extract(backbone, images)

        monkeypatch.setattr(Backbone, "features", watched)
        page.http.post("/api/v1/lessons")
        assert "event: cancelled" in page.http.get("/api/v1/lessons/current/events").text
    assert seen == [("before", 0, 4), ("features", 0, 16), ("features", 16, 16)]  # of 48, on one thread


def test_few_images_at_a_time_change_no_result() -> None:
    many, digests = glyphs(3, 18), set()
    for few in (False, True):
        learner = zofc.Learner("ridge/base", [QUICK[0], "training.fixed_batches=true"])
        learner.model.most_at_once = max(8, learner.model.method.fixed_batch_size) if few else None
        learner.learn({name: many[name] for name in NAMES[:2]})
        learner.learn({name: many[name][:15] for name in NAMES[1:3]})
        digests.add(model_digest(learner))
    assert len(digests) == 1


def test_the_time_that_is_left_is_that_of_the_whole_lesson(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr("zofc.teach.progress.time.monotonic", lambda: clock[0])

    def images(progress: LessonProgress, *counts: int) -> float | None:
        """Images that take a tenth of a second each; the time that is left after them."""
        for count in counts:
            clock[0] += count / 10
            progress.on_images(count)
        return None if progress.seconds_left is None else round(progress.seconds_left, 6)

    plain = LessonProgress(1, images=40, tests=10)
    plain.enter("before", 10)
    assert plain.seconds_left is None and images(plain, 0, 5) == 5.5 and images(plain, 5) == 5
    plain.enter("features", 40)
    assert images(plain, 0, 30) == 2
    plain.enter("testing", 10)
    assert images(plain, 0, 8) == 0.2
    trained = LessonProgress(1, images=40, tests=10, trains=True)
    trained.enter("features", 40)
    assert images(trained, 0, 40) is None  # a step has not been seen yet
    for step in (1, 2):
        trained.step(StepStatus(0, 1, 0, 1, step, 6, 0.5, 50.0))
        clock[0] += 3
    assert trained.seconds_left == pytest.approx(12 + 5)  # four steps, then the readout and the tests
    assert images(trained, 0) == 5 and trained.phase == "readout"


def test_held_back_pictures_are_evaluated_and_runs_are_listed(page: Page, run: Path) -> None:
    empty = {"accuracy": None, "classes": {}, "right": {}, "tested": {}, "images": 0, "calibration_error": None}
    assert page.http.post("/api/v1/evaluate").json() == empty
    first, second = teach_two(page)
    measured = page.http.post("/api/v1/evaluate").json()
    lesson: Any = page.get("/lessons")
    assert measured["classes"] == lesson[-1]["accuracy_after"] and set(measured["classes"]) == {first, second}
    assert measured["tested"] == lesson[-1]["tested"] == {first: 2, second: 2}
    assert measured["right"] == lesson[-1]["right_after"] and not lesson[-1]["right_before"]
    assert {key: 50.0 * right for key, right in measured["right"].items()} == measured["classes"]
    assert [(one["right"], one["tested"]) for one in page.classes().values()] == [
        (measured["right"][number], 2) for number in (first, second)
    ]
    assert measured["images"] == 4 and 0 <= measured["accuracy"] <= 100 and measured["calibration_error"] is not None
    prepare_run(run.parent / "other", QUICK, lambda _: None)
    (run.parent / "no-run").mkdir()
    runs: Any = page.get("/runs")
    assert [(one["name"], one["classes"], one["current"]) for one in runs] == [("other", 0, False), ("taught", 2, True)]


def test_pictures_of_other_classes_are_none_of_these_sooner_than_those_of_taught_ones(page: Page) -> None:
    many = glyphs(12, 24)
    for name in NAMES:
        page.add(name, many[name][:20])
    page.teach()
    others = [many[name][0] for name in many if name not in NAMES]
    asked = [*others, *(image for name in NAMES for image in many[name][20:])]
    shares = []
    for reject in (0.05, 0.2):
        files = [("files", ("x.png", one)) for one in asked]
        answers = page.http.post(f"/api/v1/predict?reject={reject}", files=files).json()
        none = [one["none_of_these"] for one in answers]
        shares.append((np.mean(none[: len(others)]), np.mean(none[len(others) :])))
    assert shares[0][0] <= shares[1][0] and shares[0][1] <= shares[1][1]  # a larger share is taken for none
    assert shares[1][0] > 0.5 > shares[1][1]


def test_what_cannot_be_taught_is_refused_with_a_remedy(page: Page) -> None:
    empty = page.http.post("/api/v1/lessons")
    assert empty.status_code == 422 and "nothing to learn" in empty.json()["detail"] and empty.json()["remedy"]
    assert page.http.post("/api/v1/predict", files=[("files", ("x", GLYPHS[NAMES[0]][0]))]).status_code == 422
    page.add(NAMES[0], GLYPHS[NAMES[0]])
    single = page.http.post("/api/v1/lessons")
    assert single.status_code == 422 and "two classes" in single.json()["detail"]
    assert single.headers["content-type"] == "application/problem+json"


def test_a_cancelled_lesson_changes_nothing(page: Page, run: Path) -> None:
    teach_two(page)
    page.add(NAMES[2], GLYPHS[NAMES[2]])
    before = (run / "taught/taught.json").read_bytes()
    page.http.post("/api/v1/lessons")
    page.http.delete("/api/v1/lessons/current")
    events = page.http.get("/api/v1/lessons/current/events").text
    assert "event: cancelled" in events
    assert (run / "taught/taught.json").read_bytes() == before and zofc.load(run).classes == tuple(NAMES[:2])


def test_a_lesson_that_fails_leaves_the_model(page: Page, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    teach_two(page)
    page.add(NAMES[2], GLYPHS[NAMES[2]])

    def fail(*_: object) -> None:
        raise MemoryError("out of memory")

    monkeypatch.setattr(zofc.Learner, "learn", fail)
    page.http.post("/api/v1/lessons")
    assert "event: failed" in page.http.get("/api/v1/lessons/current/events").text
    assert page.http.post("/api/v1/predict", files=[("files", ("x", GLYPHS[NAMES[0]][0]))]).status_code == 200
    monkeypatch.undo()
    page.teach()
    assert zofc.load(run).classes == tuple(NAMES[:3])


def test_a_stopped_server_goes_on_where_it_was(run: Path) -> None:
    store = PictureStore(run)
    with store.opened():
        teach_two(Page(Teacher.open(store)))
        with pytest.raises(RunError, match="another process"), PictureStore(run).opened():
            pass
    with (again := PictureStore(run)).opened():
        page = Page(Teacher.open(again))
        assert [one["learned"] for one in page.classes().values()] == [True, True]
        page.add(NAMES[2], GLYPHS[NAMES[2]])
        page.teach()
    assert zofc.load(run).classes == tuple(NAMES[:3])


def test_a_model_that_was_changed_elsewhere_is_taken_up(run: Path) -> None:
    store = PictureStore(run)
    with store.opened():
        teach_two(Page(Teacher.open(store)))
    learner = zofc.load(run)
    learner.learn({NAMES[2]: GLYPHS[NAMES[2]]})
    learner.save(run)
    with (again := PictureStore(run)).opened():
        page = Page(Teacher.open(again))
        assert page.classes()[NAMES[2]]["learned"] and page.classes()[NAMES[2]]["images"] == 0
    assert zofc.load(run).classes == tuple(NAMES[:3])


@pytest.mark.parametrize("name", ["ridge/base", "adapter-fo/base"])
def test_a_trained_run_is_taught_in_a_copy(tiny_recipe: Callable[..., Recipe], tmp_path: Path, name: str) -> None:
    trained = start_run(tiny_recipe(name), tmp_path)
    train(trained)
    before = {path: path.read_bytes() for path in trained.path.rglob("*") if path.is_file()}
    copy = prepare_run(trained.path, (), lambda _: None)
    with (store := PictureStore(copy)).opened():
        page = Page(Teacher.open(store))
        known = page.classes()
        assert len(known) == 6 and all(one["learned"] and not one["images"] for one in known.values())
        new = next(one for one in NAMES if one not in known)
        page.add(new, GLYPHS[new])
        page.teach()
    assert new in zofc.load(copy).classes and len(zofc.load(copy).classes) == 7
    assert {path: path.read_bytes() for path in before} == before


def test_zeroth_order_lessons_are_in_the_journal_of_the_run_until_they_are_undone(
    tiny_recipe: Callable[..., Recipe], tmp_path: Path
) -> None:
    trained = start_run(tiny_recipe("zofc/base"), tmp_path)
    train(trained)
    with (store := PictureStore(prepare_run(trained.path, (), lambda _: None))).opened():
        page = Page(Teacher.open(store))
        before = RunReplay(store.run).journal
        for name in ("new", "newer"):  # of a lone class nothing is trained
            page.add(name, GLYPHS[NAMES[len(name) - 3]])
        page.teach()
        replay = RunReplay(store.run)
        assert replay.check().problem is None and replay.check().compared
        steps = [entry for entry, _ in replay.journal.entries[len(before.entries) :] if isinstance(entry, SetStep)]
        assert steps and replay.journal.entries[: len(before.entries)] == before.entries
        page.http.post("/api/v1/lessons/undo")
        assert RunReplay(store.run).journal == before and RunReplay(store.run).check().problem is None


def test_rows_that_are_trained_are_never_learned_anew_without_their_images(
    tiny_recipe: Callable[..., Recipe], tmp_path: Path
) -> None:
    trained = start_run(tiny_recipe("adapter-fo/base"), tmp_path)
    train(trained)
    with (store := PictureStore(prepare_run(trained.path, (), lambda _: None))).opened():
        page = Page(Teacher.open(store))
        page.add(next(iter(page.classes())), GLYPHS[NAMES[0]])
        refused = page.http.post("/api/v1/lessons")
    assert refused.status_code == 422 and "not here" in refused.json()["detail"]


def test_exports_are_runs_and_bundles(page: Page, tmp_path: Path) -> None:
    teach_two(page)
    archive = zipfile.ZipFile(io.BytesIO(page.http.get("/api/v1/export/run").content))
    archive.extractall(tmp_path / "elsewhere")
    assert zofc.load(tmp_path / "elsewhere/taught").classes == tuple(NAMES[:2])
    with (moved := PictureStore(tmp_path / "elsewhere/taught")).opened():
        there = Page(Teacher.open(moved))
        assert there.classes()[NAMES[0]]["images"] == 12
        there.add(NAMES[2], GLYPHS[NAMES[2]])
        there.teach()
    lean = zipfile.ZipFile(io.BytesIO(page.http.get("/api/v1/export/run?pictures=false").content))
    assert not [name for name in lean.namelist() if "pictures" in name]
    bundle = zipfile.ZipFile(io.BytesIO(page.http.get("/api/v1/export/bundle").content))
    bundle.extractall(tmp_path / "bundle")
    device = zofc_device.load(tmp_path / "bundle")
    assert tuple(device.classes) == tuple(NAMES[:2])
    asked = [GLYPHS[name][0] for name in NAMES[:2]]
    assert [one[0].name for one in device.predict(asked)] == page.best(asked)


def test_a_picture_belongs_to_one_class_and_thumbnails_are_small(page: Page) -> None:
    first = page.add(NAMES[0], GLYPHS[NAMES[0]][:2])
    other = page.http.post("/api/v1/classes", json={"name": "other"}).json()["id"]
    same = page.http.post(f"/api/v1/classes/{other}/images", files=[("files", ("a", GLYPHS[NAMES[0]][0]))]).json()
    assert not same["added"] and NAMES[0] in same["refused"][0]["reason"]
    number = page.get(f"/classes/{first}/images")[0]["id"]  # type: ignore[index]
    small = page.http.get(f"/api/v1/images/{number}?size=16&token=secret")
    assert small.headers["content-type"] == "image/jpeg"
    assert page.http.get(f"/api/v1/images/{number}").content in GLYPHS[NAMES[0]][:2]


def test_the_description_of_the_api_has_every_route(page: Page) -> None:
    described: Any = page.get("/openapi.json")
    routes = {(f"/api/v1{path}", method) for method, path in ROUTES}
    assert {(path, method) for path, methods in described["paths"].items() for method in methods} == routes
    assert routes == {(one.path, method.lower()) for one in api.routes for method in one.methods}  # type: ignore[attr-defined]
    assert described["components"]["securitySchemes"]["bearer"]["scheme"] == "bearer"
    assert described["security"] == [{"bearer": []}]
    names = set(described["components"]["schemas"])
    assert set(re.findall(r'#/components/schemas/(\w+)"', json.dumps(described))) <= names
    for path, method in routes:
        route = described["paths"][path][method]
        errors = {status: one["content"] for status, one in route["responses"].items() if status >= "400"}
        assert set(errors) == {"400", "401", "403", "404", "409", "413", "421", "422"} and route["description"]
        assert all(list(content) == ["application/problem+json"] for content in errors.values())
    events = described["paths"]["/api/v1/lessons/current/events"]["get"]["responses"]["200"]["content"]
    kinds = events["text/event-stream"]["schema"]["x-events"]
    assert {"progress", "finished", "failed", "cancelled"} == set(kinds)


def test_an_index_of_lessons_without_counts_is_opened(page: Page, run: Path) -> None:
    """As version 0.2 wrote it before it counted."""
    teach_two(page)
    index = run / "taught/taught.json"
    content = json.loads(index.read_bytes())
    for lesson in content["lessons"]:
        for key in ("right_before", "right_after", "tested"):
            del lesson[key]
    taught = Taught.model_validate(content)
    assert taught.lessons[-1].accuracy_after and not taught.lessons[-1].tested


def test_undoing_twice_never_counts_a_picture_twice() -> None:
    picture = Picture(id="0" * 32, suffix=".png", owner="c1")
    picture.enter(1)
    picture.leave(2)
    picture.enter(3)
    assert picture.in_model
    picture.undo(3)
    assert not picture.in_model
    picture.undo(2)
    assert picture.in_model and picture.spans == [(1, None)]


@pytest.mark.parametrize(
    "name",
    [
        "\u200b", "dog\u200b", "\u202eevil", "\u2066dog", "\ufeffdog", "\u200d", "dog\u200d", "\u3164", "do\u115fg",
        "\u2800", "\ufe0f", "\u0301", "a\u00adb",
    ],
)  # fmt: skip
def test_names_with_what_nobody_sees_are_refused(name: str) -> None:
    with pytest.raises(DataError, match=r"invisible character, U\+|needs a name of visible letters"):
        Taught().add_class(name)


@pytest.mark.parametrize(
    "name", ["👨\u200d👩\u200d👧", "🏳\ufe0f\u200d🌈", "❤\ufe0f", "می\u200cخواهم", "क्\u200dष", "7", "?", "犬"]
)
def test_names_of_any_script_and_emoji_are_kept_as_they_are(name: str) -> None:
    assert Taught().add_class(name).name == name


def test_names_that_look_alike_are_one_name() -> None:
    taught = Taught()
    for name in ("dog", "caf\u00e9", "می\u200cخواهم", "❤\ufe0f"):
        taught.add_class(name)
    for name in ("dog\ufe0f", "do\u200dg", "cafe\u0301", "  dog ", "میخواهم", "❤"):
        with pytest.raises(DataError, match="already"):
            taught.add_class(name)
    taught.add_class("Dog")
    assert taught.take_class("do\u200bg").name == "do\u200bg"  # a model that was made elsewhere is taken as it is


def test_held_back_pictures_stay_held_back() -> None:
    taught = Taught()
    number = taught.add_class("one").id
    for value in range(30):
        name = f"{value * 7919 % 97:032x}"
        taught.pictures[name] = Picture(id=name, suffix=".png", owner=number)
        held = {key for key, one in taught.pictures.items() if one.held_back and one.in_model}
        taught.hold_back(number)
        assert held <= {key for key, one in taught.pictures.items() if one.held_back}
        if value % 4 == 3:
            for one in taught.pictures.values():
                one.enter(value)
    assert sum(one.held_back for one in taught.pictures.values()) == 6
