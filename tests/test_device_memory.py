"""What zofc-device promises of memory and of smaller weights: budgets hold, lessons end near those of fp32."""

from __future__ import annotations

import json
import mmap
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from timm.models.vision_transformer import VisionTransformer

import zofc
import zofc_device
from device_bundles import EMBEDDED, FIRST, QUIET, SECOND, Pair, edit_manifest, make_lesson, write_bundle, write_folder
from zofc.export.writer import export_run
from zofc_device.features import Extractor
from zofc_device.runtime import unread_bytes

GEOMETRY = {"img_size": 16, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 2}
ROOT = Path(__file__).resolve().parents[1]
REGRESSION = """
import sys
from pathlib import Path
import numpy as np
from zofc_device.runtime import resident_bytes
from zofc_device.image_ridge import ImageRidge
from zofc_device.ridge import Ridge, RidgeSettings
width, wide, before, more, strength_from = *map(int, sys.argv[1:5]), sys.argv[5]
rng = np.random.default_rng(0)
settings = RidgeSettings(width, wide, 8 * 1000**2, strength_from, 10**9, lambda size: rng.normal(size=(width, size)))
kind = ImageRidge if strength_from == "images" else Ridge
empty = {"features": np.zeros((0, width), np.float32), "labels": np.zeros(0, np.int64), "gram": np.zeros((0, 0)),
         "sums": np.zeros((0, 0)), "weights": np.zeros((wide, 0)), "strength": np.array(1.0),
         "keys": np.zeros(0, np.int64), "images": np.array(0)}
ridge = kind(settings, empty, "")
ridge.grow(10)
def learn(count):
    images = rng.normal(size=(count, width)).astype(np.float32), rng.integers(0, 10, count)
    return lambda: ridge.learn(*images, np.random.default_rng(0))
if before:
    learn(before)()
lesson, estimate, start = learn(more), sum(ridge.needed_bytes(more)), resident_bytes()
Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
lesson()
peak = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
print(int(peak.split()[1]) * 1024 - start, estimate)
"""


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="memory is measured on Linux")
@pytest.mark.parametrize("strength_from", ["images", "all", "task"])
@pytest.mark.parametrize(("before", "more"), [(0, 900), (900, 600)], ids=["kept images", "sums"])
def test_a_regression_takes_no_more_memory_than_it_says(strength_from: str, before: int, more: int) -> None:
    words = [sys.executable, "-c", REGRESSION, "96", "4000", str(before), str(more), strength_from]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "device" / "src"), "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(words, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    taken, estimate = map(int, done.stdout.split())
    assert estimate / 4 < taken < 1.1 * estimate + 5e6, f"{taken / 1e6:.0f} of {estimate / 1e6:.0f} MB"


def test_a_regression_beyond_the_budget_is_refused_before_anything_is_evaluated(
    device_pair: Callable[..., Pair], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, device = device_pair("ridge/base", "ridge.projection=300")
    small = zofc_device.load(device.bundle.path, memory=1_000_000)
    monkeypatch.setattr(type(small.runtime), "run", None)
    with pytest.raises(zofc_device.DeviceError, match="the regression on 40 more images needs about") as error:
        small.learn(SECOND)
    monkeypatch.undo()
    needed = re.search(r"about (\d+) MB", str(error.value))
    assert needed is not None
    enough = zofc_device.load(device.bundle.path, memory=(int(needed[1]) + 100) * 10**6)  # and for a few images at once
    enough.learn(make_lesson("cat", "dog"))
    assert enough.classes == ("ant", "bee", "cat", "dog")


# -- lessons ---------------------------------------------------------------------------------------------------------

PEAK = """
import sys
from pathlib import Path
import zofc_device.cli as c
code = c.main(sys.argv[1:])
print(next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")).split()[1])
sys.exit(code)
"""


def learn(*words: object) -> tuple[int, int, str]:
    """Status, peak memory and errors of `zofc-device learn` in a process of its own."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "device" / "src"), "OPENBLAS_NUM_THREADS": "1"}
    call = [sys.executable, "-c", PEAK, "learn", *map(str, words), "--threads", "1"]
    done = subprocess.run(call, env=environment, capture_output=True, text=True)
    return done.returncode, 1024 * int(done.stdout.split()[-1]), done.stderr


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is measured on Linux")
@pytest.mark.parametrize("estimator", ["forward_gradient", "spsa"])
def test_zeroth_order_lessons_on_the_embedded_backbone_keep_to_their_budget(
    embedded_graphs: Path, tiny_recipe: Callable[..., Any], tmp_path: Path, estimator: str
) -> None:
    words = *QUIET, "optimize.peft.epochs=1", f"optimize.peft.estimator={estimator}", "training.batch_size=16"
    learner = zofc.Learner(tiny_recipe(*EMBEDDED, *words))
    learner.learn(FIRST)
    images = write_folder(SECOND, tmp_path / "new")
    for number, (words, most) in enumerate([((), 200), (("--memory", "130MB"), 130)]):
        bundle = write_bundle(learner, embedded_graphs, tmp_path / f"bundle{number}")
        code, peak, error = learn(bundle, images, *words)
        assert code == 0, error
        assert peak < most * 1e6


# -- photographs -----------------------------------------------------------------------------------------------------


def write_photos(folder: Path, size: tuple[int, int], count: int, **options: Any) -> Path:
    """Photographs of two classes, as JPEG."""
    for name, pixels in (("cat", (200, 80, 40)), ("dog", (30, 90, 190))):
        (folder / name).mkdir(parents=True)
        photo = Image.effect_noise((size[0] // 8, size[1] // 8), 60).convert("RGB").resize(size)
        for number in range(count):
            Image.blend(photo, Image.new("RGB", size, pixels), 0.5).save(folder / name / f"{number}.jpg", **options)
    return folder


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is measured on Linux")
@pytest.mark.parametrize("turned", [False, True], ids=["upright", "turned"])
def test_a_lesson_on_photographs_keeps_to_its_budget(
    device_pair: Callable[..., Pair], tmp_path: Path, turned: bool
) -> None:
    _, device = device_pair("zofc/base", "optimize.peft.epochs=1", "optimize.peft.estimator=forward_gradient")
    exif = Image.Exif()
    exif[0x0112] = 6 if turned else 1
    photos = write_photos(tmp_path / "photos", (4000, 3000), 2, exif=exif)
    code, peak, error = learn(device.bundle.path, photos, "--memory", "200MB")
    assert code == 0, error
    assert peak < 200e6
    assert zofc_device.load(device.bundle.path).classes == ("ant", "bee", "cat", "dog")


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is measured on Linux")
@pytest.mark.parametrize("options", [{}, {"progressive": True}], ids=["baseline", "progressive"])
def test_a_photograph_beyond_the_budget_is_refused_before_it_is_decoded(
    device_pair: Callable[..., Pair], tmp_path: Path, options: dict[str, Any]
) -> None:
    _, device = device_pair("simplecil/base")
    photos = write_photos(tmp_path / "photos", (8000, 6000), 1, **options)
    code, peak, error = learn(device.bundle.path, photos, "--memory", "200MB")
    assert code == 1 and error.count("\n") == 1 and peak < 150e6
    said = re.search(r"image (.*) of 8000 × 6000 pixels needs about (\d+) MB, not 200 MB", error)
    assert said is not None and said[1] == str(photos / "cat" / "0.jpg"), error
    code, peak, error = learn(device.bundle.path, photos, "--memory", f"{int(said[2]) + 5}MB")
    assert code == 0 and peak < (int(said[2]) + 5) * 1e6, error


def test_directions_for_each_image_are_within_the_budget(
    device_pair: Callable[..., Pair], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, device = device_pair(
        "zofc/base", "optimize.peft.per=image", "optimize.peft.queries=4", "optimize.peft.directions=gaussian"
    )
    asked: list[tuple[int, str]] = []
    monkeypatch.setattr(Extractor, "reserve", lambda _, size, what: asked.append((size, what)))
    device.learn(SECOND)
    assert device.model is not None
    drawn = sum(device.model.tensors[name].size for name in device.model.adapter) * 8  # in a batch
    assert asked and all(size > 4 * 4 * drawn and "a direction for each of 8 images" in what for size, what in asked)
    extractor = device.extractor
    monkeypatch.setattr("zofc_device.runtime.resident_bytes", lambda: 10**8)  # memory of other tests, freed meanwhile
    monkeypatch.setattr(extractor, "memory", 3 * 10**8)
    extractor._sizes.clear()
    assert extractor._micro_batch(4, own=10**7) < extractor._micro_batch(4, own=0)


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="memory is measured on Linux")
def test_weights_that_are_mapped_are_counted_before_a_pass_reads_them(tmp_path: Path) -> None:
    folder = tmp_path / "a (b)"
    folder.mkdir()
    (folder / "weights.bin").write_bytes(bytes(8 << 20))
    with (folder / "weights.bin").open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    assert unread_bytes(folder) == 8 << 20 and unread_bytes(tmp_path / "other") == 0
    assert not any(mapped[: 4 << 20]) and unread_bytes(folder) <= 4 << 20
    assert not any(mapped[:]) and unread_bytes(folder) == 0


# -- smaller weights -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def bundles(tiny_recipe: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One run, exported in three precisions."""
    folder = tmp_path_factory.mktemp("precisions")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        vit = VisionTransformer(**GEOMETRY, num_classes=0)  # of weights that 16 bits do not hold
        weights = {name: value + 0.3 * torch.randn_like(value) for name, value in vit.state_dict().items()}
    save_file(weights, folder / "vit.safetensors", {key: str(value) for key, value in GEOMETRY.items()})
    words = *QUIET, f"backbone.name={folder / 'vit.safetensors'}", "optimize.peft.epochs=4", "peft.blocks=all"
    learner = zofc.Learner(tiny_recipe("zofc/base", *words))
    learner.learn(FIRST)
    learner.save(folder / "run")
    for precision in ("fp32", "fp16", "int8"):
        export_run(folder / "run", folder / precision, precision)
    return folder


@pytest.mark.parametrize("estimator", ["forward_gradient", "spsa"])
def test_lessons_on_smaller_weights_go_where_those_on_fp32_go(bundles: Path, estimator: str) -> None:
    moved = {}
    for precision in ("fp32", "fp16", "int8"):
        path = bundles / f"{precision}-{estimator}"
        zofc_device.load(bundles / precision).save(path)
        optimize = json.loads((path / "manifest.json").read_text("utf-8"))["optimize"]
        optimize["peft"]["estimator"] = estimator
        edit_manifest(path, optimize=optimize)
        device = zofc_device.load(path)
        assert device.model is not None
        start = [device.model.tensors[name] for name in device.model.adapter]
        device.learn(SECOND)
        end = [device.model.tensors[name] for name in device.model.adapter]
        moved[precision] = np.concatenate([(b - a).ravel() for a, b in zip(start, end, strict=True)])
    for precision, least in (("fp16", 0.999), ("int8", 0.95)):
        one, other = moved["fp32"], moved[precision]
        cosine = one @ other / (np.linalg.norm(one) * np.linalg.norm(other))
        assert cosine > least, f"{precision}: {cosine}"
        assert np.any(one != other), precision
