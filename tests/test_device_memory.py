"""What zofc-device promises of memory and of smaller weights: budgets hold, lessons end near those of fp32."""

from __future__ import annotations

import json
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
from safetensors.torch import save_file
from timm.models.vision_transformer import VisionTransformer

import zofc
import zofc_device
from device_bundles import FIRST, QUIET, SECOND, Pair, make_lesson
from zofc.export.writer import export_run

GEOMETRY = {"img_size": 16, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 2}
ROOT = Path(__file__).resolve().parents[1]
REGRESSION = """
import sys
from pathlib import Path
import numpy as np
from zofc_device.features import resident_bytes
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
        manifest = json.loads((path / "manifest.json").read_text("utf-8"))
        manifest["optimize"]["peft"]["estimator"] = estimator
        (path / "manifest.json").write_text(json.dumps(manifest), "utf-8")
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
