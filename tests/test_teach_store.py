"""Facts about what `zofc teach` keeps on disk: which pictures a lesson rests on, what a loss of power, a full disk or
an older index leaves, and who can read it."""

from __future__ import annotations

import io
import random
import shutil
import stat
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import zofc
from teach_client import QUICK, Page, glyphs
from zofc.errors import DataError, RunError
from zofc.teach import start
from zofc.teach import store as store_module
from zofc.teach.lessons import Teacher
from zofc.teach.plan import LessonPlan
from zofc.teach.start import prepare_run
from zofc.teach.state import Picture, Taught
from zofc.teach.store import PictureStore, content_id
from zofc.teach.tokens import kept_token

GLYPHS = glyphs(3, 24)
NAMES = list(GLYPHS)


@pytest.fixture(scope="module")
def taught_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was taught two classes."""
    run = prepare_run(tmp_path_factory.mktemp("store") / "taught", QUICK, lambda _: None)
    with (store := PictureStore(run)).opened():
        page = Page(Teacher.open(store))
        for name in NAMES[:2]:
            page.add(name, GLYPHS[name][:12])
        page.teach()
    return run


@pytest.fixture
def run(taught_run: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(taught_run, tmp_path / "taught"))


@pytest.fixture
def page(run: Path) -> Iterator[Page]:
    with (store := PictureStore(run)).opened():
        yield Page(Teacher.open(store))


def add_pictures(taught: Taught, number: str, count: int, rng: random.Random) -> None:
    for _ in range(count):
        name = f"{rng.getrandbits(128):032x}"
        taught.pictures[name] = Picture(id=name, suffix=".png", owner=number)


def test_pictures_that_come_during_a_lesson_move_none_of_it() -> None:
    for seed in range(200):
        rng, taught = random.Random(seed), Taught()
        number = taught.add_class("one").id
        add_pictures(taught, number, 10, rng)
        taught.hold_back(number)
        before = taught.model_copy(deep=True)
        learned = [one for one in before.pictures.values() if not one.held_back]
        tests = [one for one in before.pictures.values() if one.held_back]
        plan = LessonPlan(1, ["one"], [], {"one": [Path(one.file) for one in learned]}, [*learned, *tests], tests, [])
        add_pictures(taught, number, 10, rng)
        taught.hold_back(number, plan.in_use)
        plan.enter(taught, 1)
        taught.hold_back(number)
        assert {one.id for one in taught.pictures.values() if one.in_model and one.held_back} == {
            one.id for one in tests
        }
        assert sum(one.held_back for one in taught.pictures.values()) == 4


def test_a_lesson_is_tested_with_the_pictures_that_it_began_with(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pictures that are added or removed while it is made wait for the next."""
    number = page.add(NAMES[2], GLYPHS[NAMES[2]][:12])
    teacher, learn = page.teacher, zofc.Learner.learn
    tested: list[set[str]] = []
    evaluate = zofc.Learner.evaluate
    held = {one.id for one in teacher.store.taught.of_class(number) if one.held_back}

    def learn_later(learner: zofc.Learner, lesson: object) -> None:
        page.add(NAMES[2], GLYPHS[NAMES[2]][12:])
        for one in held:
            assert page.http.delete(f"/api/v1/images/{one}").status_code == 204
        learn(learner, lesson)  # type: ignore[arg-type]

    def record(learner: zofc.Learner, tests: dict[str, list[Path]]) -> object:
        tested.append({path.stem for path in tests.get(NAMES[2], [])})
        return evaluate(learner, tests)

    monkeypatch.setattr(zofc.Learner, "learn", learn_later)
    monkeypatch.setattr(zofc.Learner, "evaluate", record)
    assert page.teach()["images"] == 10
    assert tested == [set(), held]
    assert not [one for one in teacher.store.taught.pictures if one in held]
    assert not [file for file in teacher.store.pictures.iterdir() if file.stem in held]


# -- what a loss of power, a kill or an older index leaves -------------------------------------------------------------


def test_a_picture_is_confirmed_once_its_names_are_on_the_disk(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[tuple[Path, bytes]] = []
    store, sync = page.teacher.store, store_module.sync_folder

    def record(folder: Path) -> None:
        synced.append((folder, store.index.read_bytes()))
        sync(folder)

    monkeypatch.setattr(store_module, "sync_folder", record)
    page.add(NAMES[0], GLYPHS[NAMES[0]][12:13])
    folders = [folder for folder, _ in synced]
    assert folders == [store.pictures, store.folder]  # the file, then the index that has it
    assert content_id(GLYPHS[NAMES[0]][12]).encode() in synced[-1][1]


def test_pictures_without_their_index_are_not_touched(run: Path) -> None:
    (run / "taught/taught.json").unlink()
    files = sorted((run / "taught/pictures").iterdir())
    with (
        pytest.raises(RunError, match=r"taught\.json is missing, but .* holds 24 pictures; restore"),
        PictureStore(run).opened(),
    ):
        pass
    assert sorted((run / "taught/pictures").iterdir()) == files


def test_pictures_that_the_index_does_not_name_are_set_aside(run: Path) -> None:
    older = (run / "taught/taught.json").read_bytes()
    with (store := PictureStore(run)).opened():
        Page(Teacher.open(store)).add(NAMES[2], GLYPHS[NAMES[2]][:3])
    (run / "taught/taught.json").write_bytes(older)
    with (store := PictureStore(run)).opened():
        assert store.set_aside == 3 and len(list((run / "taught/unconfirmed").iterdir())) == 3
        assert len(list(store.pictures.iterdir())) == 24
        export = Page(Teacher.open(store)).http.get("/api/v1/export/run").content
        assert b"unconfirmed" not in export


def test_a_deletion_that_was_cut_short_is_finished(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (store := PictureStore(run)).opened():
        page = Page(Teacher.open(store))
        number = page.add(NAMES[2], GLYPHS[NAMES[2]][:3])
        monkeypatch.setattr(store, "_delete_pictures", lambda: None)  # killed between index and deletion
        assert page.http.delete(f"/api/v1/classes/{number}").status_code == 204
    assert len(list((run / "taught/pictures").iterdir())) == 27
    with PictureStore(run).opened():
        assert len(list((run / "taught/pictures").iterdir())) == 24 and not (run / "taught/unconfirmed").exists()


def test_what_was_taught_is_for_the_user_alone(page: Page, run: Path) -> None:
    page.add(NAMES[2], GLYPHS[NAMES[2]][:2])
    new = [run / "taught/pictures" / f"{content_id(data)}.png" for data in GLYPHS[NAMES[2]][:2]]
    assert {stat.S_IMODE(path.stat().st_mode) for path in new} == {0o600}
    assert {stat.S_IMODE((run / path).stat().st_mode) for path in ("taught", "taught/pictures")} == {0o700}
    link = page.teacher.store.write_link("http://127.0.0.1/?token=a&b")
    assert stat.S_IMODE(link.stat().st_mode) == 0o600 and "token=a&amp;b" in link.read_text()
    assert link.name.encode() not in page.http.get("/api/v1/export/run").content
    page.teacher.store.remove_link()
    assert not link.exists()


def test_the_token_of_a_run_is_kept_where_only_the_user_reads_it(page: Page, run: Path) -> None:
    folder = run / "taught"
    token, file = kept_token(folder), folder / ".token"
    assert kept_token(folder) == token and stat.S_IMODE(file.stat().st_mode) == 0o600
    archive = zipfile.ZipFile(io.BytesIO(page.http.get("/api/v1/export/run").content))
    assert not [name for name in archive.namelist() if "token" in name]
    assert not [name for name in archive.namelist() if token.encode() in archive.read(name)]
    renewed = kept_token(folder, renew=True)
    assert renewed != token and kept_token(folder) == renewed
    file.chmod(0o644)  # others may have read it
    third = kept_token(folder)
    assert third != renewed and stat.S_IMODE(file.stat().st_mode) == 0o600
    file.write_text("short\n")
    assert len(kept_token(folder)) == 32
    assert [one.name for one in folder.iterdir() if "token" in one.name] == [".token"]


def test_a_token_that_travels_unencrypted_is_not_kept(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ZOFC_TEACH_TOKEN", raising=False)
    store = page.teacher.store
    open_to_all = [start._token(store, start.Options(host="0.0.0.0")) for _ in range(2)]
    assert len(set(open_to_all)) == 2 and not (store.folder / ".token").exists()
    assert start._token(store, start.Options()) == start._token(store, start.Options(host="localhost"))
    monkeypatch.setenv("ZOFC_TEACH_TOKEN", "given")
    assert start._token(store, start.Options()) == "given"
    with pytest.raises(RunError, match="unset it, or leave out --new-token"):
        start._token(store, start.Options(new_token=True))


# -- a lesson that cannot be copied to the run -------------------------------------------------------------------------


def fill_disk(monkeypatch: pytest.MonkeyPatch, run: Path) -> None:
    """Let no model be written to the run itself."""
    save = zofc.Learner.save

    def full(learner: zofc.Learner, path: Path) -> None:
        if Path(path) == run:
            raise RunError("no space left")
        save(learner, path)

    monkeypatch.setattr(zofc.Learner, "save", full)


def test_a_lesson_that_is_on_disk_stands_though_the_run_is_full(
    page: Page, run: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    page.add(NAMES[2], GLYPHS[NAMES[2]][:12])
    fill_disk(monkeypatch, run)
    assert page.teach()["number"] == 2
    assert page.get("/status")["warnings"][-1].endswith("no space left")  # type: ignore[index, call-overload]
    assert zofc.load(run).classes == tuple(NAMES[:2]) and page.classes()[NAMES[2]]["learned"]
    assert "no space left" in page.http.get("/api/v1/export/run").json()["detail"]
    copy = Path(shutil.copytree(run, tmp_path / "copy", ignore=shutil.ignore_patterns("lessons")))
    monkeypatch.undo()
    assert page.http.get("/api/v1/export/run").status_code == 200  # there is room again
    assert not page.get("/status")["warnings"] and zofc.load(run).classes == tuple(NAMES)  # type: ignore[index, call-overload]
    with (store := PictureStore(copy)).opened():  # taken by hand, without the models of lessons
        there = Page(Teacher.open(store))
        assert [one["pending"] for one in there.classes().values()] == [0, 0, 12]
        there.teach()
    assert zofc.load(copy).classes == tuple(NAMES)


def test_a_lesson_that_is_not_on_disk_leaves_nothing(page: Page, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page.add(NAMES[2], GLYPHS[NAMES[2]][:12])
    before = sorted(path for path in run.rglob("*") if path.is_file())

    def full(_learner: zofc.Learner, path: Path) -> None:
        path.mkdir()
        (path / "part").write_bytes(b"")
        raise RunError("no space left")

    monkeypatch.setattr(zofc.Learner, "save", full)
    page.http.post("/api/v1/lessons")
    assert "event: failed" in page.http.get("/api/v1/lessons/current/events").text
    assert sorted(path for path in run.rglob("*") if path.is_file()) == before


def test_a_name_that_is_taken_while_a_class_is_renamed_is_refused(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    rename = zofc.Learner.rename

    def rename_later(learner: zofc.Learner, old: str, new: str) -> None:
        assert page.http.post("/api/v1/classes", json={"name": new}).status_code == 201
        rename(learner, old, new)

    monkeypatch.setattr(zofc.Learner, "rename", rename_later)
    number = page.classes()[NAMES[0]]["id"]
    refused = page.http.patch(f"/api/v1/classes/{number}", json={"name": "taken"})
    assert refused.status_code == 422 and "there is a class 'taken' already" in refused.json()["detail"]
    assert list(page.classes()) == [*NAMES[:2], "taken"] and page.teacher.learner.classes == tuple(NAMES[:2])
    with pytest.raises(DataError, match="already"), page.teacher.store.change() as taught:
        taught.add_class("taken")
