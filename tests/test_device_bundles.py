"""Bundles under zofc-device: no torch, one-line errors, and a state that survives kills, damage and full disks."""

from __future__ import annotations

import errno
import json
import math
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from PIL import Image

import zofc_device
from device_bundles import FIRST, SECOND, Pair, edit_manifest, make_lesson, replace_file, write_folder
from waiting import wait_until
from zofc.errors import BundleError
from zofc.export.bundle import pack_state, read_manifest, read_state
from zofc.export.quantization import BLOCK_SIZE, quantize_blocks
from zofc.export.reader import import_bundle
from zofc_device import images as images_module
from zofc_device import progress as progress_module
from zofc_device.bundle import PROGRESS, STATE, Bundle, State
from zofc_device.cli import main
from zofc_device.images import image_formats
from zofc_device.runtime import Runtime
from zofc_device.steps import Placement

ROOT = Path(__file__).resolve().parents[1]
Command = Callable[..., tuple[int, str, str]]
SLOW = ("optimize.peft.epochs=50", "optimize.peft.estimator=forward_gradient")
COMMAND = "import sys, zofc_device.cli as c; sys.exit(c.main(sys.argv[1:]))"
SAVE_ALWAYS = "import zofc_device.progress as p; p.SAVE_SECONDS = 0; p.SAVE_SHARE = 0; "


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    def call(*words: object) -> tuple[int, str, str]:
        code = main([str(word) for word in words])
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return call


def python(code: str, *words: object) -> subprocess.Popen[str]:
    """A Python that has zofc-device but not zofc."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "device" / "src")}
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, words)], env=environment, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def test_the_commands(device_pair: Callable[..., Pair], command: Command, tmp_path: Path) -> None:
    learner, device = device_pair("simplecil/base")
    bundle, new = device.bundle.path, write_folder(SECOND, tmp_path / "new")
    known = write_folder(FIRST, tmp_path / "known")
    code, out, _ = command("info", bundle, "--json")
    assert code == 0
    assert json.loads(out)["classes"] == ["ant", "bee"]
    assert command("learn", bundle, new, "--memory", "2GB", "--threads", 1)[:2] == (
        0,
        "classes    ant, bee, cat, dog\n",
    )
    learner.learn(SECOND)
    code, out, _ = command("predict", bundle, new / "cat", known / "ant" / "000.png", "--top", 2, "--json")
    answers = [json.loads(line) for line in out.splitlines()]
    assert code == 0 and len(answers) == 21
    expected = learner.predict(SECOND["cat"] + FIRST["ant"][:1], top=2)
    for answer, best in zip(answers, expected, strict=True):
        assert [one["name"] for one in answer["classes"]] == [one.name for one in best]
        assert answer["classes"][0]["probability"] == pytest.approx(best[0].probability, abs=1e-4)
    code, out, _ = command("evaluate", bundle, known, "--json")
    assert json.loads(out)["accuracy"] == learner.evaluate(FIRST).accuracy
    code, out, _ = command("info", bundle)
    assert "cat, dog" in out
    assert [one["images"] for one in Bundle(bundle).read().values["lessons"]] == [40]


def test_torch_and_zofc_are_never_imported(device_pair: Callable[..., Pair], tmp_path: Path) -> None:
    _, device = device_pair("zofc/base", *SLOW, "optimize.peft.epochs=1")
    folder = write_folder(SECOND, tmp_path / "new")
    code = (
        "import sys, zofc_device; learner = zofc_device.load(sys.argv[1]); learner.learn('folder:' + sys.argv[2]); "
        "learner.evaluate('folder:' + sys.argv[2]); print([name for name in ('torch', 'zofc') if name in sys.modules])"
    )
    with python(code, device.bundle.path, folder) as process:
        assert process.communicate()[0] == "[]\n"


# -- kills and interruptions -----------------------------------------------------------------------------------------


def test_a_killed_lesson_goes_on_to_the_same_result(device_pair: Callable[..., Pair], tmp_path: Path) -> None:
    _, device = device_pair("zofc/base", *SLOW)
    bundle, folder = device.bundle.path, write_folder(SECOND, tmp_path / "new")
    device.save(tmp_path / "whole")
    state = (bundle / STATE).read_bytes()
    words = "learn", bundle, folder
    kills = 0
    while kills < 4:
        process = python(SAVE_ALWAYS + COMMAND, *words)
        seen = None, saved_position(bundle)
        wait_until(lambda seen=seen: saved_position(bundle) not in seen, process, pause=0.002)
        process.kill()  # -9
        process.communicate()
        assert process.returncode == -signal.SIGKILL, "it was to be killed in between"
        kills += 1
        assert (bundle / STATE).read_bytes() == state
        assert Bundle(bundle).read(PROGRESS).values["model"]["classes"] == ["ant", "bee", "cat", "dog"]
    with python(COMMAND, *words) as process:
        err = process.communicate()[1]
        assert process.returncode == 0 and "goes on in epoch" in err, err
    assert not (bundle / PROGRESS).exists()
    with python(
        "import sys, zofc_device.cli as c; sys.exit(c.main(sys.argv[1:]))", "learn", tmp_path / "whole", folder
    ) as p:
        assert p.wait() == 0
    ours, whole = Bundle(bundle).read(), Bundle(tmp_path / "whole").read()
    assert ours.values["classes"] == whole.values["classes"]
    for name, value in whole.tensors.items():
        assert (ours.tensors[name] == value).all(), name


def saved_position(bundle: Path) -> dict[str, int] | None:
    """Where an interrupted lesson stands; nothing while it looks at its images."""
    found: dict[str, int] | None = None
    if (bundle / PROGRESS).exists():
        found = Bundle(bundle).read(PROGRESS).values.get("position")
    return found


SLOW_FEATURES = (
    "import time, zofc_device.model as m; embed = m.Model.embed\n"
    "def slow(*words):\n    time.sleep(1.2)\n    return embed(*words)\n"
    "m.Model.embed = slow\n"
)


@pytest.mark.parametrize("known", [False, True], ids=["new classes", "known and new ones"])
def test_features_that_a_killed_lesson_has_evaluated_are_kept(
    device_pair: Callable[..., Pair], tmp_path: Path, known: bool
) -> None:
    _, device = device_pair("ridge/base")
    bundle, lesson = device.bundle.path, make_lesson("cat", "dog", images=40)
    folder = write_folder(lesson | (make_lesson("ant", images=60) if known else {}), tmp_path / "new")
    device.save(tmp_path / "whole")
    process = python(SLOW_FEATURES + COMMAND, "learn", bundle, folder)  # saved at the usual intervals
    while process.poll() is None and not (saved := known_features(bundle, part=int(known))):
        time.sleep(0.02)
    process.kill()
    process.communicate()
    assert process.returncode == -signal.SIGKILL and 0 < saved < 80
    with python(COMMAND, "learn", bundle, folder) as process:
        assert "the interrupted lesson goes on" in process.communicate()[1] and process.returncode == 0
    zofc_device.load(tmp_path / "whole").learn(f"folder:{folder}")
    ours, whole = Bundle(bundle).read(), Bundle(tmp_path / "whole").read()
    assert ours.values["classes"] == whole.values["classes"] and not (bundle / PROGRESS).exists()
    for name, value in whole.tensors.items():
        np.testing.assert_allclose(ours.tensors[name], value, rtol=1e-4, atol=1e-6)


def known_features(bundle: Path, part: int) -> int:
    """How many images' features a part of an interrupted lesson has kept."""
    if not (bundle / PROGRESS).exists():
        return 0
    saved, position = Bundle(bundle).read(PROGRESS), saved_position(bundle)
    return len(saved.tensors.get("features/frozen", ())) if position is not None and position["part"] == part else 0


def test_a_lesson_whose_end_was_saved_is_not_learned_twice(
    device_pair: Callable[..., Pair], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    _, device = device_pair("ridge/base")
    bundle = device.bundle.path
    monkeypatch.setattr(progress_module, "SAVE_SECONDS", -1.0)
    with monkeypatch.context() as patch:
        patch.setattr(progress_module.Progress, "drop", lambda _: None)  # as if it were killed before
        device.learn(SECOND)
    assert (bundle / PROGRESS).exists()
    state = (bundle / STATE).read_bytes()
    import_bundle(bundle, tmp_path / "run")  # nothing is under way
    zofc_device.load(bundle).learn(SECOND)  # the same command again
    assert (bundle / STATE).read_bytes() == state and not (bundle / PROGRESS).exists()
    with monkeypatch.context() as patch:
        patch.setattr(progress_module.Progress, "drop", lambda _: None)
        device.learn(make_lesson("fox", images=4))
    device.learn(make_lesson("gnu", images=4))  # another one is not held up
    assert device.classes == ("ant", "bee", "cat", "dog", "fox", "gnu")


def test_the_time_between_two_saved_states_is_bounded(
    device_pair: Callable[..., Pair], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, device = device_pair("simplecil/base")
    progress = progress_module.Progress(device.bundle, device.bundle.read())
    clock = iter(range(0, 600, 60))
    monkeypatch.setattr("time.monotonic", lambda: next(clock))  # a minute to write
    progress.save(device.bundle.read(), {}, {"part": 0})
    assert progress.pause == progress_module.MOST_SECONDS <= 10


def test_a_reader_that_stops_ends_the_command_quietly(device_pair: Callable[..., Pair]) -> None:
    bundle = device_pair("simplecil/base")[1].bundle.path
    with python(COMMAND, "info", bundle) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        assert process.wait() == 1 and not process.stderr.read()


def test_another_lesson_waits_until_an_interrupted_one_is_finished_or_dropped(
    device_pair: Callable[..., Pair], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, device = device_pair("zofc/base", *SLOW)
    monkeypatch.setattr(progress_module, "SAVE_SECONDS", 0.0)
    monkeypatch.setattr(progress_module, "SAVE_SHARE", 0.0)
    heard: list[str] = []

    def stop(text: str) -> None:
        heard.append(text)
        if text.startswith("epoch 3 "):
            raise KeyboardInterrupt

    device.say = stop
    with pytest.raises(KeyboardInterrupt):
        device.learn(SECOND)
    assert device.classes == ("ant", "bee")
    with pytest.raises(zofc_device.BundleError, match="a lesson on other images was interrupted"):
        device.learn(make_lesson("emu", "fox"))
    device.say = heard.append
    device.learn(make_lesson("emu", "fox"), restart=True)
    assert device.classes == ("ant", "bee", "emu", "fox")
    assert not (device.bundle.path / PROGRESS).exists()


@pytest.mark.parametrize("content", [b"", b"junk", b"\x08\0\0\0\0\0\0\0{}      "], ids=["empty", "junk", "no names"])
def test_damaged_progress_is_dropped_with_restart(
    device_pair: Callable[..., Pair], command: Command, tmp_path: Path, content: bytes
) -> None:
    _, device = device_pair("simplecil/base")
    folder = write_folder(SECOND, tmp_path / "new")
    (device.bundle.path / PROGRESS).write_bytes(content)
    code, _, error = command("learn", device.bundle.path, folder)
    assert code == 1 and error.count("\n") == 1, error
    assert "progress.safetensors: damaged" in error and "--restart" in error and "copy" not in error
    assert command("learn", device.bundle.path, folder, "--restart")[0] == 0


def test_images_that_were_seen_before_an_interruption_are_not_decoded_for_their_digests_again(
    device_pair: Callable[..., Pair], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    _, device = device_pair("zofc/base", *SLOW, "optimize.peft.epochs=2")
    path, folder = device.bundle.path, write_folder(SECOND, tmp_path / "new")
    monkeypatch.setattr(progress_module, "SAVE_SECONDS", -1.0)
    monkeypatch.setattr(progress_module, "SAVE_SHARE", 0)
    inspect, seen, step = images_module._inspect, list[Any](), Placement.step

    def inspect_some(image: Image.Image) -> list[Any]:
        if len(seen) == 5:
            raise KeyboardInterrupt
        return inspect_all(image)

    def inspect_all(image: Image.Image) -> list[Any]:
        seen.append(inspect(image))
        return list(seen[-1])

    monkeypatch.setattr(images_module, "_inspect", inspect_some)
    with pytest.raises(KeyboardInterrupt):
        device.learn(f"folder:{folder}")
    import_bundle(path, tmp_path / "run")  # no lesson has begun
    monkeypatch.setattr(images_module, "_inspect", inspect_all)
    monkeypatch.setattr(Placement, "step", lambda self, *given: 1 / 0 if given[-1] == 3 else step(self, *given))
    with pytest.raises(ZeroDivisionError):
        device.learn(f"folder:{folder}")
    assert len(seen) == 40
    monkeypatch.setattr(Placement, "step", step)
    os.utime(folder / "cat" / "000.png", (1, 1))  # its time has changed, so it is looked at again
    heard: list[str] = []
    device.say = heard.append
    device.learn(f"folder:{folder}")
    assert len(seen) == 41 and seen[-1] == seen[0]
    assert "the interrupted lesson goes on in epoch 1, at step 4" in heard and not (path / PROGRESS).exists()


def test_looking_at_other_images_keeps_an_interrupted_lesson(
    device_pair: Callable[..., Pair], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    _, device = device_pair("ridge/base")
    device.bundle.write(State({}, {"lesson": "of others"}), PROGRESS)
    before = (device.bundle.path / PROGRESS).read_bytes()
    monkeypatch.setattr(progress_module, "SAVE_SECONDS", -1.0)
    with pytest.raises(zofc_device.BundleError, match="was interrupted"):
        device.learn(f"folder:{write_folder(SECOND, tmp_path / 'new')}")
    assert (device.bundle.path / PROGRESS).read_bytes() == before


def test_lessons_of_another_process_are_never_undone(device_pair: Callable[..., Pair], tmp_path: Path) -> None:
    _, device = device_pair("ridge/base")
    other = zofc_device.load(device.bundle.path)
    other.learn(SECOND)
    device.save()
    assert zofc_device.load(device.bundle.path).classes == ("ant", "bee", "cat", "dog")
    device.save(tmp_path / "copy")  # what this learner knows
    assert zofc_device.load(tmp_path / "copy").classes == device.classes == ("ant", "bee")
    device.learn(make_lesson("emu", "fox", images=6))  # goes on from what the other one has learned
    again = zofc_device.load(device.bundle.path)
    assert again.classes == device.classes == ("ant", "bee", "cat", "dog", "emu", "fox")
    assert again.evaluate(SECOND).accuracy == other.evaluate(SECOND).accuracy > 90


def test_an_interrupted_lesson_is_not_dropped_by_more_images_of_known_classes(
    device_pair: Callable[..., Pair],
) -> None:
    _, device = device_pair("ridge/base")
    state = device.bundle.read()
    device.bundle.write(State(state.tensors, {"lesson": "of others"}), PROGRESS)
    with pytest.raises(zofc_device.BundleError, match="was interrupted"):
        device.learn(FIRST)
    assert (device.bundle.path / PROGRESS).exists()
    device.learn(FIRST, restart=True)


def test_two_processes_do_not_learn_at_once(device_pair: Callable[..., Pair]) -> None:
    _, device = device_pair("simplecil/base")
    with device.bundle.lock(), pytest.raises(zofc_device.BundleError, match="another process is learning"):
        zofc_device.load(device.bundle.path).learn(SECOND)
    device.learn(SECOND)


def test_a_full_disk_leaves_the_state_intact(device_pair: Callable[..., Pair], monkeypatch: pytest.MonkeyPatch) -> None:
    _, device = device_pair("simplecil/base")
    before = (device.bundle.path / STATE).read_bytes()

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(zofc_device.BundleError, match=r"No space left.*intact: free some space"):
            device.learn(SECOND)
    assert (device.bundle.path / STATE).read_bytes() == before
    assert sorted(file.name for file in device.bundle.path.glob(".*")) == [".lock"]
    assert device.classes == ("ant", "bee")
    device.learn(SECOND)


def test_a_disk_that_fails_after_the_state_was_replaced_is_not_called_intact(
    device_pair: Callable[..., Pair], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, device = device_pair("simplecil/base")
    kinds = []

    def fail_on_folders(number: int) -> None:
        kinds.append(stat.S_ISDIR(os.fstat(number).st_mode))
        if kinds[-1]:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", fail_on_folders)
    with pytest.raises(zofc_device.BundleError, match="the new state was saved, but a power cut now could undo it"):
        device.learn(SECOND)
    assert kinds == [False, True] and device.bundle.read().values["classes"] == ["ant", "bee", "cat", "dog"]


# -- damage ----------------------------------------------------------------------------------------------------------


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 255
    path.write_bytes(data)


def edit_state(bundle: Path, old: bytes, new: bytes) -> None:
    content = (bundle / STATE).read_bytes()
    assert old in content
    (bundle / STATE).write_bytes(content.replace(old, new, 1))


def fill_state(bundle: Path) -> None:
    state = read_state(bundle)
    undefined = {**state.tensors, "head.sigma": torch.tensor(float("nan"))}
    (bundle / STATE).write_bytes(pack_state(undefined, state.values))


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "no bundle": (lambda b: (b / "manifest.json").unlink(), "not a bundle"),
    "cut manifest": (lambda b: (b / "manifest.json").write_text('{"format":'), "cannot be read"),
    "manifest of nothing": (lambda b: (b / "manifest.json").write_text("[]"), "not the manifest"),
    "another version": (lambda b: edit_manifest(b, version=1), "version 1; this zofc-device reads version 3"),
    "another method": (lambda b: edit_manifest(b, method={"name": "lae", "readout": "rows"}), "method.name"),
    "manifest without sizes": (lambda b: edit_manifest(b, backbone={"width": 24}), "the manifest is damaged"),
    "manifest of other groups": (lambda b: edit_manifest(b, optimize=3), "the manifest is damaged"),
    "manifest of another readout": (
        lambda b: edit_manifest(
            b,
            method={"name": "ridge", "readout": "ridge"},
            ridge={"projection": 0, "budget": None, "strength_from": "all", "keep_features": 0},
        ),
        "does not fit the state",
    ),
    "class name": (lambda b: edit_state(b, b"ant", b"ANT"), "state.safetensors: damaged, its checksum"),
    "tensors that are not finite": (lambda b: fill_state(b), "holds values that are not finite"),
    "weights": (lambda b: flip(b / "weights.bin"), "weights.bin: damaged, its checksum differs"),
    "missing weights": (lambda b: (b / "weights.bin").unlink(), "weights.bin: No such file"),
    "graph": (lambda b: flip(b / "enter.onnx"), "enter.onnx: damaged, its checksum differs"),
    "no graph": (lambda b: replace_file(b, "frozen.onnx", b"nothing"), "ONNX Runtime cannot load it"),
    "state": (lambda b: flip(b / STATE), "state.safetensors: damaged"),
    "cut state": (lambda b: (b / STATE).write_bytes((b / STATE).read_bytes()[:100]), "state.safetensors: damaged"),
    "missing state": (lambda b: (b / STATE).unlink(), "state.safetensors: missing"),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_damage_is_one_line(kind: str, device_pair: Callable[..., Pair], command: Command, tmp_path: Path) -> None:
    _, device = device_pair("simplecil/base")
    write_folder(FIRST, tmp_path / "known")
    damage, message = DAMAGE[kind]
    damage(device.bundle.path)
    code, _, error = command("predict", device.bundle.path, tmp_path / "known" / "ant")
    assert code == 1
    assert error.startswith("error: ") and error.count("\n") == 1 and message in error, error


def leaves(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    if not value or not isinstance(value, dict | list):
        yield place, value
    for key, each in inner:
        yield from leaves(each, (*place, key))


def changed(value: Any) -> Any:
    """Another value of the same kind, as near as it gets."""
    if isinstance(value, float):
        return math.nextafter(value, math.inf)
    if isinstance(value, bool) or value is None:
        return not value
    return value + 1 if isinstance(value, int) else f"{value}x" if isinstance(value, str) else [value]


def test_every_change_of_a_manifest_is_found(device_pair: Callable[..., Pair]) -> None:
    _, device = device_pair("zofc/base")
    path = device.bundle.path
    manifest = json.loads((path / "manifest.json").read_text("utf-8"))
    places = [(place, value) for place, value in leaves(manifest) if place not in (("format",), ("version",))]
    assert len(places) > 100 and {place[0] for place, _ in places} >= {"seed", "optimize", "views", "backbone"}
    for place, value in places:
        copy = deepcopy(manifest)
        inner = copy
        for key in place[:-1]:
            inner = inner[key]
        inner[place[-1]] = changed(value)
        (path / "manifest.json").write_text(json.dumps(copy), "utf-8")
        for error, read in ((zofc_device.BundleError, Bundle), (BundleError, read_manifest)):
            with pytest.raises(error, match=r"manifest\.json: damaged, it was changed since its export") as caught:
                read(path)
            assert "\n" not in str(caught.value) and "export the run again" in str(caught.value)


def test_bundles_of_the_version_before_are_read(
    device_pair: Callable[..., Pair], device_graphs: Path, tmp_path: Path
) -> None:
    _, device = device_pair("simplecil/base")
    path = device.bundle.path
    manifest = json.loads((path / "manifest.json").read_text("utf-8"))
    del manifest["checksum"]
    (path / "manifest.json").write_text(json.dumps(manifest), "utf-8")
    with pytest.raises(zofc_device.BundleError, match="was changed since its export"):
        zofc_device.load(path)
    (path / "manifest.json").write_text(json.dumps({**manifest, "version": 2}), "utf-8")
    zofc_device.load(path).learn(SECOND)
    import_bundle(path, tmp_path / "run")


def test_a_missing_projection_is_named(device_pair: Callable[..., Pair], command: Command, tmp_path: Path) -> None:
    _, device = device_pair("ridge/base", "ridge.projection=300")
    path, photo = device.bundle.path, write_folder(FIRST, tmp_path / "known") / "ant" / "000.png"
    (path / "projection.safetensors").unlink()
    files = json.loads((path / "manifest.json").read_text("utf-8"))["files"]
    assert "projection.safetensors: No such file" in command("predict", path, photo)[2]
    edit_manifest(path, files={name: entry for name, entry in files.items() if name != "projection.safetensors"})
    code, _, error = command("predict", path, photo)
    assert code == 1 and error.count("\n") == 1, error
    assert "projection.safetensors: missing, or cannot be read; export the run again" in error


def test_a_graph_that_fails_is_one_line(device_pair: Callable[..., Pair], command: Command, tmp_path: Path) -> None:
    _, device = device_pair("simplecil/base")
    photo = write_folder(FIRST, tmp_path / "known") / "ant" / "000.png"
    views = device.bundle.manifest["views"]
    edit_manifest(device.bundle.path, views={**views, "size": views["size"] + 3})
    code, _, error = command("predict", device.bundle.path, photo)
    assert code == 1 and error.count("\n") == 1, error
    assert "frozen.onnx: ONNX Runtime cannot run it" in error and "install onnxruntime 1.23.2 or later" in error


def test_a_manifest_without_a_setting_of_a_group_is_refused(device_pair: Callable[..., Pair], command: Command) -> None:
    _, device = device_pair("zofc/base")
    optimize = json.loads((device.bundle.path / "manifest.json").read_text("utf-8"))["optimize"]
    del optimize["peft"]["momentum"]
    edit_manifest(device.bundle.path, optimize=optimize)
    code, _, error = command("info", device.bundle.path)
    assert code == 1 and "the manifest is damaged" in error and "momentum" in error, error


def test_answers_that_are_not_finite_are_an_error(
    device_pair: Callable[..., Pair], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, device = device_pair("simplecil/base")
    monkeypatch.setattr(type(device.extractor), "features", lambda *_: np.full((1, 24), np.nan))
    with pytest.raises(zofc_device.BundleError, match="its answers are not finite"):
        device.predict(FIRST["ant"][0])


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("predict", "BUNDLE", "EMPTY"), "no images"),
        (("info", "BUNDLE", "--threads", "-3"), "threads: expected at least 1"),
    ],
)
def test_words_that_make_no_sense_are_one_line(
    words: tuple[str, ...], text: str, device_pair: Callable[..., Pair], command: Command, tmp_path: Path
) -> None:
    bundle = device_pair("simplecil/base")[1].bundle.path
    (tmp_path / "empty").mkdir()
    code, out, error = command(*({"BUNDLE": bundle, "EMPTY": tmp_path / "empty"}.get(word, word) for word in words))
    assert code == 1 and not out and text in error and error.count("\n") == 1


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
@pytest.mark.parametrize("words", [["info"], ["predict"]])
def test_an_output_on_a_full_disk_is_one_line(
    device_pair: Callable[..., Pair], words: list[str], tmp_path: Path
) -> None:
    bundle = device_pair("simplecil/base")[1].bundle.path
    FIRST["ant"][0].save(tmp_path / "x.png")
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "device" / "src")}
    call = [
        sys.executable,
        "-c",
        COMMAND,
        *words,
        str(bundle),
        *([str(tmp_path / "x.png")] if words == ["predict"] else []),
    ]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(call, env=environment, stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 1 and done.stderr == "error: No space left on device\n"


@pytest.mark.parametrize("content", [b"", b"no image", b"\x89PNG\r\n\x1a\n" + bytes(40)], ids=["empty", "text", "cut"])
def test_unreadable_images_are_one_line(
    content: bytes, device_pair: Callable[..., Pair], command: Command, tmp_path: Path
) -> None:
    _, device = device_pair("ridge/base")
    folder = write_folder(SECOND, tmp_path / "new")
    (folder / "cat" / "bad.png").write_bytes(content)
    before = (device.bundle.path / STATE).read_bytes()
    code, _, error = command("learn", device.bundle.path, folder)
    assert code == 1
    assert error.count("\n") == 1 and "cannot read image" in error and "bad.png" in error, error
    assert (device.bundle.path / STATE).read_bytes() == before
    assert command("predict", device.bundle.path, tmp_path / "absent.png")[0] == 1


@pytest.fixture
def without_heic(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As where pillow-heif is not installed."""
    image_formats.cache_clear()
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    Image.init()
    monkeypatch.delitem(Image.OPEN, "HEIF", raising=False)
    yield
    image_formats.cache_clear()


def test_images_in_formats_that_are_not_decoded_here_are_named(
    device_pair: Callable[..., Pair], command: Command, tmp_path: Path, without_heic: None
) -> None:
    _, device = device_pair("simplecil/base")
    path, folder = device.bundle.path, write_folder(SECOND, tmp_path / "new")
    for name in ("cat/x.heic", "cat/y.HEIC", "dog/z.heic"):
        (folder / name).write_bytes(b"\0\0\0\x18ftypheic")
    text = f"{folder}: ignored 3 .heic image(s); to read them: pip install pillow-heif\n"
    for words in (("learn", path, folder), ("predict", path, folder), ("evaluate", path, folder)):
        code, _, error = command(*words)
        assert code == 0 and error.startswith(text) and error.count("ignored") == 1, error
    (folder / "emu").mkdir()
    (folder / "emu" / "1.heic").write_bytes(b"")
    code, _, error = command("learn", path, folder)
    assert code == 1 and error.count("\n") == 1
    assert f"{folder / 'emu'}: no images" in error and "ignored 4 .heic image(s); to read them: pip install" in error
    code, _, error = command("predict", path, folder / "cat" / "x.heic")
    assert code == 1 and "x.heic: not an image of a known format. To read it: pip install pillow-heif" in error


@pytest.mark.parametrize("folder", ["absent", "empty", "flat"])
def test_folders_without_classes_are_one_line(
    folder: str, device_pair: Callable[..., Pair], command: Command, tmp_path: Path
) -> None:
    _, device = device_pair("ridge/base")
    (tmp_path / "empty" / "cat").mkdir(parents=True)
    (tmp_path / "flat").mkdir()
    Image.new("RGB", (5, 5)).save(tmp_path / "flat" / "x.png")
    code, _, error = command("learn", device.bundle.path, tmp_path / folder)
    assert code == 1
    assert error.count("\n") == 1 and str(tmp_path / folder) in error, error


@pytest.mark.parametrize("product", ["MatMulInteger", "accuracy_level 4"])
def test_differences_of_integer_activations_are_refused(device_pair: Callable[..., Pair], product: str) -> None:
    _, device = device_pair("zofc/base")
    path = device.bundle.path
    round_activations(path, "features", product)
    rounded = zofc_device.load(path)
    with pytest.raises(zofc_device.BundleError, match=r"features\.onnx: finite differences of integer activations"):
        rounded.learn(SECOND)
    assert rounded.classes == ("ant", "bee") and rounded.predict(FIRST["ant"])  # the graph itself runs
    optimize = device.bundle.manifest["optimize"]
    edit_manifest(path, optimize={**optimize, "peft": {**optimize["peft"], "estimator": "forward_gradient"}})
    zofc_device.load(path).learn(SECOND)


def round_activations(bundle: Path, name: str, product: str) -> None:
    """Let the first product of a graph with a weight compute on integers, dynamically quantized."""
    model = onnx.load(bundle / f"{name}.onnx")
    graph, make = model.graph, onnx.helper.make_node
    weights = {one.name: onnx.numpy_helper.to_array(one) for one in graph.initializer}
    place, node = next((i, n) for i, n in enumerate(graph.node) if n.op_type == "MatMul" and n.input[1] in weights)
    given, matrix = node.input[0], weights[node.input[1]]
    if product == "MatMulInteger":
        step = np.float32(np.abs(matrix).max() / 127)
        constants = {"w8": np.rint(matrix / step).astype(np.int8), "step": step}
        made = [
            make("DynamicQuantizeLinear", [given], ["a8", "a_step", "a_zero"]),
            make("MatMulInteger", ["a8", "w8", "a_zero"], ["sum"]),
            make("Cast", ["sum"], ["wide"], to=onnx.TensorProto.FLOAT),
            make("Mul", ["wide", "a_step"], ["scaled"]),
            make("Mul", ["scaled", "step"], list(node.output)),
        ]
    else:
        values, scales, zeros = quantize_blocks(matrix, 8)
        constants = {"w8": values, "scales": scales, "zeros": zeros}
        sizes = {"K": matrix.shape[0], "N": matrix.shape[1], "bits": 8, "block_size": BLOCK_SIZE, "accuracy_level": 4}
        made = [make("MatMulNBits", [given, *constants], list(node.output), domain="com.microsoft", **sizes)]
        model.opset_import.append(onnx.helper.make_opsetid("com.microsoft", 1))
    graph.node.remove(node)
    for number, one in enumerate(made):
        graph.node.insert(place + number, one)
    graph.initializer.extend(onnx.numpy_helper.from_array(np.asarray(one), key) for key, one in constants.items())
    replace_file(bundle, f"{name}.onnx", model.SerializeToString())


def test_a_bundle_to_predict_alone_predicts(
    device_pair: Callable[..., Pair], device_graphs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, device = device_pair("simplecil/base")
    bundle = device.bundle.path
    manifest = json.loads((bundle / "manifest.json").read_text("utf-8"))
    edit_manifest(bundle, graphs={"predict": manifest["graphs"]["predict"]})
    predict, sizes = Runtime.run, list[int]()

    def run(runtime: Runtime, graph: str, **inputs: np.ndarray[Any, Any]) -> dict[str, np.ndarray[Any, Any]]:
        sizes.append(len(inputs["images"]))
        return predict(runtime, graph, **inputs)

    monkeypatch.setattr(Runtime, "run", run)
    (bundle / STATE).unlink()
    alone, whole = zofc_device.load(bundle), zofc_device.load(device_graphs)
    assert alone.classes == ("ant", "bee")
    np.testing.assert_allclose(alone.predict_proba(FIRST["ant"]), whole.predict_proba(FIRST["ant"]), atol=1e-4)
    sizes.clear()
    monkeypatch.setattr(type(alone.extractor), "_micro_batch", lambda *_: 2)  # as a budget may ask for
    assert len(alone.predict(SECOND["cat"])) == 20 and max(sizes) == 2
    with pytest.raises(zofc_device.BundleError, match="cannot learn"):
        alone.learn(SECOND)
