"""Facts about the page of `zofc teach` as a person meets it: the real server, a real Chromium without a window."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import tarfile
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
from PIL import Image

from chromium import PICTURES, PROGRAM, Chromium
from teach_client import Client
from teach_page import (
    LESSON_PATIENCE,
    TeachServer,
    add_class,
    ask,
    card,
    class_names,
    facts,
    open_page,
    table,
    teach,
    wait_for_lesson,
    wait_for_uploads,
)
from zofc.data.source import SourceOptions, open_source

pytest.importorskip("fastapi", reason="needs the extra: pip install zofc[teach]")
pytestmark = pytest.mark.skipif(PROGRAM is None, reason="no Chromium: on Debian, apt-get install chromium")
TRAINED, TRIED = 12, 3  # pictures of each class
QUICK = ("backbone.name=embedded", "optimize.peft.epochs=2", "optimize.head.epochs=2")
HOSTILE = "<img src=x onerror=alert(1)>"
THREE = ("fox", "hare", "owl")


@pytest.fixture(scope="module")
def glyphs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Path]]:
    """Pictures of four characters, named plainly, the last as an attacker would."""
    folder = tmp_path_factory.mktemp("glyphs")
    source = open_source("glyphs", SourceOptions(per_class=TRAINED + TRIED, test_per_class=1))
    found: dict[str, list[Path]] = {}
    for label, name in enumerate(("fox", "hare", "owl", HOSTILE)):
        found[name] = []
        for number, index in enumerate(np.flatnonzero(source.train.labels == label)):
            found[name].append(folder / f"{label}-{number}.png")
            source.train.images.load(int(index)).save(found[name][-1])
    return found


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TeachServer]:
    served = TeachServer(tmp_path_factory.mktemp("teach") / "run", *QUICK)
    served.start()
    yield served
    served.stop()


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory, server: TeachServer) -> Iterator[Chromium]:
    browser = open_page(server, tmp_path_factory.mktemp("chromium"))
    yield browser
    browser.close()


def text(chromium: Chromium, selector: str) -> str:
    return str(chromium.run(f"document.querySelector({json.dumps(selector)})?.textContent ?? ''"))


def faults(chromium: Chromium) -> list[tuple[str, str, str]]:
    """What axe-core finds on the page as it is, on a desktop and a phone, in light and dark mode."""
    chromium.run(axe() + ";1")
    found: list[tuple[str, str, str]] = []
    for width, height in ((390, 844), (1280, 900)):
        chromium.resize(width, height)
        for dark in (True, False):
            chromium.prefer(dark)
            chromium.until("document.getAnimations().length === 0")  # colours have changed
            violations: list[dict[str, Any]] = chromium.run("axe.run().then(r => r.violations)")
            found += [(v["id"], v["impact"], v["nodes"][0]["html"]) for v in violations]
    return found


def show_running_lesson(chromium: Chromium) -> None:
    """What the page shows during a lesson, without one: it would end before the page is examined."""
    chromium.run("document.getElementById('lesson').hidden = false")
    chromium.run("document.querySelectorAll('#lesson .numbers > div').forEach(e => { e.hidden = false; })")
    chromium.run("document.getElementById('lesson-phase').textContent = 'Adapting to the pictures'")


# -- one story, in order: later facts rest on the classes that earlier ones taught ---------------------------------


def test_the_token_leaves_the_address_and_the_button_says_why_it_waits(chromium: Chromium, server: TeachServer) -> None:
    assert chromium.run("location.href") == server.url
    assert chromium.run("document.getElementById('teach-button').disabled")
    assert chromium.run("document.getElementById('teach-why').textContent").startswith("Add two classes first")
    assert chromium.complaints == []


def test_axe_finds_no_fault_in_an_empty_page(chromium: Chromium) -> None:
    assert faults(chromium) == []


def test_three_classes_are_taught_and_answered_right(
    chromium: Chromium, glyphs: dict[str, list[Path]], tmp_path: Path
) -> None:
    """One is typed and its pictures chosen; a folder of folders that is dropped becomes two."""
    add_class(chromium, "fox", glyphs["fox"][:TRAINED])
    for name in ("hare", "owl"):
        (tmp_path / "animals" / name).mkdir(parents=True)
        for file in glyphs[name][:TRAINED]:
            shutil.copy(file, tmp_path / "animals" / name)
    (tmp_path / "animals" / "owl" / "notes.txt").write_text("no picture")
    chromium.drop("#new-class", [tmp_path / "animals"])
    for name in ("hare", "owl"):
        wait_for_uploads(chromium, name, TRAINED)
    chromium.until("Boolean(document.querySelector('.message.error'))")
    assert "notes.txt: not a picture" in text(chromium, ".message.error details")
    chromium.click(".message.error > button")
    chromium.until("!document.getElementById('teach-button').disabled")
    assert chromium.run("document.getElementById('teach-button').textContent").startswith("Teach 3 new classes, ")
    teach(chromium, 1)
    tried = [file for name in THREE for file in glyphs[name][TRAINED:]]
    answers = ask(chromium, tried)
    right = [name for name in THREE for _ in range(TRIED)]
    assert sum(a == b for a, b in zip(answers, right, strict=True)) >= 8, answers
    assert chromium.complaints == []


def test_a_fourth_class_shows_what_was_forgotten_and_its_name_stays_words(
    chromium: Chromium, glyphs: dict[str, list[Path]]
) -> None:
    add_class(chromium, HOSTILE, glyphs[HOSTILE][:TRAINED])
    teach(chromium, 2)
    rows = table(chromium, "#before-after")
    assert [row[0] for row in rows] == ["fox", "hare", "owl", HOSTILE]
    assert all(row[1].endswith(" of 2") for row in rows[:3]) and rows[3][1] == "–" and rows[3][3] == "new"
    heat = table(chromium, "#heat-map")
    assert len(heat) == 4 and all(len(row) == 3 for row in heat) and heat[3][1] == "–"
    assert chromium.run("document.querySelectorAll('img[src=x]').length") == 0
    assert chromium.complaints == []


def test_what_a_lesson_did_to_a_class_is_said_in_pictures_or_for_older_lessons_in_points(chromium: Chromium) -> None:
    cases = "[[90.4, 71], [50, 100], [80, 80.2], [null, 60], [70, null], [50, 100, 1], [75, 25, -2], [75, 75, 0]]"
    words = f"import('/page/memory.js').then(({{ change }}) => {cases}.map(pair => change(...pair).text))"
    assert chromium.run(words) == [
        "▼ 19 points", "▲ 50 points", "as before", "new", "–", "▲ 1 picture", "▼ 2 pictures", "as before",
    ]  # fmt: skip


def test_nothing_is_wider_than_the_screen_and_pictures_of_the_page_are_kept(chromium: Chromium) -> None:
    for width, height, kind in ((1280, 900, "desktop"), (390, 844, "phone"), (360, 740, "")):
        chromium.resize(width, height)
        for dark in (False, True):
            chromium.prefer(dark)
            assert chromium.run("document.documentElement.scrollWidth") == width
            if kind:
                chromium.picture(f"teach-{kind}-{'dark' if dark else 'light'}.png")
    chromium.prefer(dark=False)
    chromium.resize(1280, 900)


def without_axe(reason: str) -> NoReturn:
    """Skip, but not where the page must be checked."""
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)


def axe() -> str:
    """The script of axe-core, fetched once into build/."""
    script = PICTURES / "axe.min.js"
    if not script.is_file():
        if not (npm := shutil.which("npm")):
            without_axe("axe-core comes from npm, which is not installed")
        PICTURES.mkdir(exist_ok=True)
        packed = subprocess.run([npm, "pack", "axe-core@4"], cwd=PICTURES, capture_output=True, text=True, timeout=300)
        if packed.returncode:
            without_axe("axe-core cannot be fetched from npm")
        archive = PICTURES / packed.stdout.split()[-1]
        with tarfile.open(archive) as files:
            member = files.extractfile("package/axe.min.js")
            assert member is not None
            script.write_bytes(member.read())
        archive.unlink()
    return script.read_text("utf-8")


def test_axe_finds_no_fault_after_lessons_nor_in_the_gallery_and_dialogs(chromium: Chromium) -> None:
    assert faults(chromium) == []
    show_running_lesson(chromium)
    chromium.resize(390, 844)
    chromium.picture("teach-lesson.png")
    assert chromium.run("document.documentElement.scrollWidth") == 390
    assert faults(chromium) == []
    chromium.run("document.getElementById('lesson').hidden = true")
    chromium.click(f"{card(chromium, 'owl')} .row > button:last-child")
    chromium.until("Boolean(document.querySelector('dialog[open]'))")
    chromium.picture("teach-gallery.png")
    assert faults(chromium) == []
    chromium.click(".gallery button.danger")
    chromium.until("Boolean(document.getElementById('confirm-title'))")
    assert faults(chromium) == []
    chromium.click("dialog.small button[value=no]")
    chromium.until("!document.querySelector('dialog.small')")
    chromium.press("Escape")
    chromium.until("!document.querySelector('dialog')")


def test_a_lesson_is_cancelled_by_its_button(chromium: Chromium, glyphs: dict[str, list[Path]]) -> None:
    name = "cancelled"
    many = [file for files in glyphs.values() for file in files]
    copies = [shutil.copy(file, file.with_name(f"again-{file.name}")) for file in many[TRAINED : TRAINED + TRIED]]
    for file in copies:
        with Path(file).open("ab") as content:
            content.write(b" ")  # another picture, by its bytes
    add_class(chromium, name, [Path(file) for file in copies])
    before = len(table(chromium, "#heat-map"))
    chromium.run(
        "const button = document.getElementById('teach-button'); button.click();"
        "new Promise(done => { const look = () => button.textContent !== 'Teaching…' ? setTimeout(look, 1)"
        " : done(document.getElementById('lesson-cancel').click()); look(); })"
    )
    chromium.until("document.getElementById('messages').textContent.includes('Cancelled')")
    chromium.until("document.getElementById('lesson').hidden")
    assert len(table(chromium, "#heat-map")) == before
    chromium.click(f"{card(chromium, name)} .row > button:last-child")
    chromium.click(".gallery button.danger")
    chromium.until("Boolean(document.getElementById('confirm-title'))")
    chromium.click("dialog.small button.danger")
    chromium.until("!document.querySelector('dialog') && document.querySelectorAll('.card h3').length === 4")


def test_exports_are_saved_by_their_buttons(chromium: Chromium, tmp_path: Path) -> None:
    for kind in ("pictures=true", "pictures=false"):
        folder = tmp_path / kind
        chromium.ask("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(folder))
        chromium.click("#export summary")
        chromium.click(f"[data-export$='{kind}']")
        end = time.monotonic() + LESSON_PATIENCE
        while not list(folder.glob("*.zip")):
            assert time.monotonic() < end
            time.sleep(0.1)
        names = zipfile.ZipFile(next(folder.glob("*.zip"))).namelist()
        assert any("/pictures/" in name for name in names) == (kind == "pictures=true")


def test_a_picture_is_pasted_where_one_is(chromium: Chromium, glyphs: dict[str, list[Path]]) -> None:
    chromium.run("document.getElementById('answers').replaceChildren()")
    data = base64.b64encode(glyphs["fox"][0].read_bytes()).decode()
    chromium.run(
        "(async () => { const bytes = Uint8Array.from(atob(" + json.dumps(data) + "), c => c.charCodeAt(0));"
        "const held = new DataTransfer(); held.items.add(new File([bytes], 'pasted.png', {type: 'image/png'}));"
        "document.getElementById('try-files').focus();"
        "dispatchEvent(new ClipboardEvent('paste', {clipboardData: held})); })()"
    )
    chromium.until("document.querySelectorAll('#answers > li').length === 1")
    assert "fox" in text(chromium, "#answers .bars .name")


def test_the_camera_takes_pictures_and_is_answered_live(chromium: Chromium) -> None:
    chromium.until("document.querySelectorAll('.message').length === 0")  # notes go by themselves
    chromium.click("#try-camera")
    chromium.until("Boolean(document.querySelector('#try-now .bars'))")
    fox = card(chromium, "fox")
    chromium.click(f"{fox} button[aria-pressed]")
    chromium.until(f'document.querySelector("{fox} video")?.videoWidth > 0')
    assert chromium.run("document.querySelectorAll('video').length") == 1  # one part of the page has the camera
    chromium.click(f"{fox} .camera .accent")
    chromium.until(f'document.querySelector("{fox} .head .soft").textContent.includes(" new")')
    chromium.click(f"{fox} button[aria-pressed]")
    chromium.until("!document.querySelector('video')")
    assert chromium.complaints == []


def test_undo_takes_the_last_lesson_back_and_a_reload_changes_nothing(chromium: Chromium, server: TeachServer) -> None:
    chromium.click("#undo")
    chromium.until("document.querySelectorAll('#heat-map thead th').length === 2")
    chromium.open(server.url)
    chromium.until("document.documentElement.dataset.ready")
    assert class_names(chromium) == ["fox", "hare", "owl", HOSTILE]  # its pictures stay
    assert len(table(chromium, "#heat-map")) == 3
    assert chromium.run("document.querySelector('.history').textContent").count("undone") == 1
    assert chromium.complaints == []


def test_the_page_goes_on_when_the_server_is_stopped_and_started(
    chromium: Chromium, server: TeachServer, glyphs: dict[str, list[Path]]
) -> None:
    before = table(chromium, "#heat-map")
    server.stop()
    chromium.until("!document.getElementById('offline').hidden")
    assert "zofc teach" in chromium.run("document.getElementById('offline').textContent")
    server.start()
    chromium.until("document.getElementById('offline').hidden")
    assert class_names(chromium) == ["fox", "hare", "owl", HOSTILE] and table(chromium, "#heat-map") == before
    assert ask(chromium, glyphs["owl"][TRAINED : TRAINED + 1]) == ["owl"]


def test_a_wrong_answer_becomes_a_picture_of_the_right_class(chromium: Chromium, glyphs: dict[str, list[Path]]) -> None:
    before = facts(chromium, "owl")
    ask(chromium, glyphs["owl"][TRAINED + 1 : TRAINED + 2])
    value = card(chromium, "owl").split("'")[1]
    chromium.run(
        f"(e => {{ e.value = {json.dumps(value)}; e.dispatchEvent(new Event('change')); }})"
        "(document.querySelector('#answers select'))"
    )
    wait_for_uploads(chromium, "owl", TRAINED + 1)
    assert before.startswith(f"{TRAINED} pictures")
    assert chromium.run("document.querySelector('#answers select').disabled")
    chromium.until("document.getElementById('teach-button').textContent.includes('again')")


def test_a_picture_is_removed_and_a_class_renamed_and_forgotten_and_taken_back(chromium: Chromium) -> None:
    chromium.click(f"{card(chromium, 'hare')} .row > button:last-child")
    chromium.click(".gallery .grid li button")
    wait_for_uploads(chromium, "hare", TRAINED - 1)
    chromium.run("document.querySelector('#gallery-name').select()")
    chromium.ask("Input.insertText", text="rabbit")
    chromium.run("document.querySelector('#gallery-name').focus()")
    chromium.press("Enter")
    chromium.until("document.getElementById('gallery-title').textContent === 'rabbit'")
    chromium.click(".gallery button.danger")
    chromium.until("Boolean(document.getElementById('confirm-title'))")
    assert "rabbit" in text(chromium, "#confirm-title")
    chromium.click("dialog.small button.danger")
    chromium.until("!document.querySelector('dialog') && document.querySelectorAll('.card h3').length === 3")
    assert class_names(chromium) == ["fox", "owl", HOSTILE]
    chromium.click("#undo")
    chromium.until("document.querySelectorAll('.card h3').length === 4")
    assert class_names(chromium) == ["fox", "rabbit", "owl", HOSTILE]
    script = "[...document.querySelectorAll('.history details')].map(e => [...e.children].map(p => p.textContent))"
    notes = chromium.run(script)
    assert all(len(lesson) == len(set(lesson)) for lesson in notes)
    assert faults(chromium) == []
    assert chromium.run("document.querySelectorAll('img[src=x]').length") == 0


# -- another story, of a run that keeps its own token; in order, too ---------------------------------------------------


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[TeachServer, Chromium]]:
    server = TeachServer(tmp_path_factory.mktemp("own") / "run", *QUICK, token=None)
    server.start()
    browser = open_page(server, tmp_path_factory.mktemp("own-chromium"))
    yield server, browser
    browser.close()
    server.stop()


def tab_to(chromium: Chromium, found: str, most: int = 60) -> None:
    """Press Tab until the focus is on an element that fulfils a condition on `e`."""
    for _ in range(most):
        chromium.press("Tab")
        if chromium.run(f"(e => Boolean({found}))(document.activeElement)"):
            assert chromium.run("document.activeElement.matches(':focus-visible')")  # it is seen where the focus is
            return
    raise AssertionError(f"Tab does not come to {found}")


def test_two_classes_are_named_and_taught_and_tried_by_keyboard_alone(
    own: tuple[TeachServer, Chromium], glyphs: dict[str, list[Path]]
) -> None:
    chromium = own[1]
    chromium.run(  # what is announced, which goes by itself
        "(messages => { globalThis.told = ''; new MutationObserver(() => { told += messages.textContent; })"
        ".observe(messages, {childList: true}); })(document.querySelector('#messages[role=status][aria-live]'))"
    )
    for name in ("fox", "hare"):
        tab_to(chromium, "e.id === 'new-name'")
        chromium.ask("Input.insertText", text=name)
        chromium.press("Enter")
        number = card(chromium, name).split("'")[1]
        tab_to(chromium, f"e.id === 'files-{number}'")
        chromium.upload(":focus", glyphs[name][:TRAINED])  # as the dialog of files, which is the system's
        wait_for_uploads(chromium, name, TRAINED)
    tab_to(chromium, "e.id === 'teach-button' && !e.disabled")
    chromium.press("Enter")
    wait_for_lesson(chromium, 1)
    assert "Lesson 1 is learned." in chromium.run("told")
    chromium.until("document.activeElement.id === 'teach'")  # where the button was, which has nothing more to do
    tab_to(chromium, "e.id === 'try-files'", 5)
    chromium.upload(":focus", glyphs["fox"][TRAINED : TRAINED + 1])
    spoken = "/^((fox|hare), [0-9]+ %|None of these)$/.test(document.getElementById('try-said').textContent)"
    chromium.until(spoken)
    tab_to(chromium, "e.getAttribute('aria-label') === 'The last lesson'")
    assert [row[0] for row in table(chromium, ":focus table")] == ["fox", "hare"]
    assert chromium.complaints == []


def test_a_strange_picture_is_none_of_these(
    own: tuple[TeachServer, Chromium], glyphs: dict[str, list[Path]], tmp_path: Path
) -> None:
    ramp = 2 * np.indices((64, 64)).sum(0)
    Image.fromarray(ramp.astype(np.uint8)).convert("RGB").save(tmp_path / "ramp.png")
    ask(own[1], [glyphs["hare"][TRAINED], tmp_path / "ramp.png"])
    verdicts = (
        "[...document.querySelectorAll('#answers > li')].map(e => e.querySelector('.verdict')?.textContent ?? '')"
    )
    strange, known = own[1].run(verdicts)  # the last first
    assert strange.startswith("None of these") and known == ""


def test_a_class_that_loses_held_back_pictures_is_shown_with_their_number(
    own: tuple[TeachServer, Chromium], tmp_path: Path
) -> None:
    """More pictures of the character that hare is, under another name: they are answered in its place."""
    chromium, source = own[1], open_source("glyphs", SourceOptions(per_class=60, test_per_class=1))
    for index in np.flatnonzero(source.train.labels == 1)[TRAINED + TRIED :]:
        source.train.images.load(int(index)).save(tmp_path / f"{index}.png")
    add_class(chromium, "double", sorted(tmp_path.glob("*.png")))
    teach(chromium, 2)
    rows = {row[0]: row[1:] for row in table(chromium, "#before-after")}
    assert rows["fox"] == ["2 of 2", "2 of 2", "as before"]
    assert rows["hare"] in (["2 of 2", "0 of 2", "▼ 2 pictures"], ["2 of 2", "1 of 2", "▼ 1 picture"])
    assert chromium.run("document.querySelector('#before-after .down').textContent") == rows["hare"][2]
    assert "Fewer held-back pictures of hare are right than before." in text(chromium, "#forgotten")
    assert f"{rows['hare'][1]} right" in facts(chromium, "hare")
    assert table(chromium, "#heat-map")[1] == ["hare", "2 of 2", rows["hare"][1]]


@pytest.mark.loopback
def test_what_other_programs_change_is_seen_without_a_reload(own: tuple[TeachServer, Chromium]) -> None:
    server, chromium = own
    client = Client(server.port, server.token)
    number = card(chromium, "fox").split("'")[1]
    picture = client.call("GET", f"/classes/{number}/images")[0]["id"]
    client.call("DELETE", f"/images/{picture}")
    wait_for_uploads(chromium, "fox", TRAINED - 1)
    client.call("PATCH", f"/classes/{number}", {"name": "vixen"})
    card(chromium, "vixen")


def test_pictures_that_are_dropped_again_are_no_errors(
    own: tuple[TeachServer, Chromium], glyphs: dict[str, list[Path]]
) -> None:
    chromium = own[1]
    chromium.run("document.getElementById('messages').replaceChildren()")
    chromium.upload(f"{card(chromium, 'hare')} input[type=file]", glyphs["hare"][:TRAINED])
    chromium.until("document.getElementById('messages').textContent.includes('already here')")
    assert f"0 pictures added, {TRAINED} already here." in text(chromium, ".message")
    assert chromium.run("document.querySelectorAll('.message.error').length") == 0


def test_only_a_class_that_was_taught_is_forgotten_for_good(own: tuple[TeachServer, Chromium]) -> None:
    chromium = own[1]
    chromium.type("#new-name", "empty")
    chromium.press("Enter")
    for name, boxes in (("empty", 0), ("hare", 1)):
        chromium.click(f"{card(chromium, name)} .row > button:last-child")
        chromium.click(".gallery button.danger")
        chromium.until("Boolean(document.getElementById('confirm-title'))")
        assert chromium.run("document.querySelectorAll('dialog.small input').length") == boxes
        if boxes:
            assert "no earlier lesson can be undone" in text(chromium, "dialog.small label")
        chromium.click("dialog.small button[value=no]")
        chromium.until("!document.querySelector('dialog.small')")
        chromium.press("Escape")
        chromium.until("!document.querySelector('dialog')")


def test_a_bundle_says_that_it_is_written_until_it_is_there(own: tuple[TeachServer, Chromium], tmp_path: Path) -> None:
    chromium = own[1]
    chromium.ask("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path))
    chromium.run("document.getElementById('messages').replaceChildren()")
    chromium.click("#export summary")
    chromium.click("[data-export^='export/bundle']")
    assert chromium.run("document.querySelector('[data-export^=\"export/bundle\"]').disabled")
    waits = "document.getElementById('messages').textContent.includes('is being written')"
    end = time.monotonic() + LESSON_PATIENCE
    while not list(tmp_path.glob("*.zip")):
        assert time.monotonic() < end
        there = chromium.run("document.getElementById('messages').textContent.includes('in your downloads')")
        assert there or chromium.run(waits)
        time.sleep(0.2)
    chromium.until(f"!{waits}")
    assert not chromium.run("document.querySelector('[data-export^=\"export/bundle\"]').disabled")
    names = zipfile.ZipFile(next(tmp_path.glob("*.zip"))).namelist()
    assert any(name.endswith(".onnx") for name in names)
    assert chromium.complaints == []


def test_an_open_page_goes_on_after_a_restart_and_is_disabled_by_a_new_token(own: tuple[TeachServer, Chromium]) -> None:
    """As a user restarts it: the same command, and no token of his own."""
    server, chromium = own
    first = server.token
    server.stop()
    chromium.until("!document.getElementById('offline').hidden")
    server.start()
    assert server.token == first
    chromium.until("document.getElementById('offline').hidden")
    chromium.type("#new-name", "owl")
    chromium.press("Enter")
    card(chromium, "owl")
    chromium.open(f"{server.url}?token={first}")  # a bookmark
    card(chromium, "owl")
    chromium.click(f"{card(chromium, 'owl')} .row > button:last-child")
    chromium.until("Boolean(document.querySelector('dialog[open]'))")
    server.stop()
    server.start("--new-token")
    assert server.token != first
    chromium.until("document.querySelector('main').inert && !document.querySelector('dialog')")
    assert text(chromium, "#offline").endswith("open the address that zofc teach printed when it was started.")
    assert not chromium.run("document.getElementById('offline').hidden")
    assert chromium.run("document.querySelectorAll('.message.error').length") == 0
