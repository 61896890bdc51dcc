"""The time from an image to an answer, beside a bare forward pass of the backbone on a ready input.

    python benchmarks/predict.py --out results/predict.json
    python benchmarks/predict.py --threads 8        # eight threads that predict at once

Backbones beside the embedded one are read from $ZOFC_DATA/backbones and left out where they are not there. One image is
a JPEG of 500 × 375 pixels in memory: decoding and resizing it is part of the answer. The two are timed in turn, so that
whatever else the machine does slows both. Of ZO-Ridge, the default, the adapter is trained for one epoch and always
answers, which is the dearer of what it may choose.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from PIL import Image
from rich.console import Console
from rich.table import Table

from zofc import Learner
from zofc.training.device import environment

BACKBONES = {  # name: settings beside its name
    "embedded": [],
    "vit_micro_p8_64.safetensors": [],
    "vit_small_patch14_dinov2.safetensors": ["backbone.image_size=224"],
}
RECIPES = {  # name: settings
    "ridge/base": [],
    "zo-ridge/base": ["ridge.fallback=false", "optimize.peft.epochs=1", "optimize.head.epochs=1"],
}
CLASSES, PER_CLASS = 10, 4


def encoded_photo(seed: int) -> bytes:
    """A JPEG of smooth random colours."""
    coarse = np.random.default_rng(seed).integers(0, 256, (12, 16, 3)).astype(np.uint8)
    file = io.BytesIO()
    Image.fromarray(coarse).resize((500, 375), Image.Resampling.BICUBIC).save(file, "jpeg", quality=90)
    return file.getvalue()


def seconds_of(call: Callable[[], object]) -> float:
    """Wall time of a call."""
    clock = time.perf_counter()
    call()
    return time.perf_counter() - clock


def time_answers(learner: Learner, repeats: int, threads: int) -> dict[str, Any]:
    """Milliseconds of an answer and of a bare forward pass, in turn; and answers a second from several threads."""
    learner.learn({f"class {c}": [encoded_photo(c * PER_CLASS + i) for i in range(PER_CLASS)] for c in range(CLASSES)})
    photo, backbone = encoded_photo(-1 % 2**32), learner.model.backbone
    ready = torch.rand(1, 3, backbone.image_size, backbone.image_size, device=backbone.device)

    @torch.no_grad()
    def forward() -> float:
        return float(backbone.features(ready).sum())

    for call in (lambda: learner.predict(photo), forward) * 3:
        call()
    pairs = [(seconds_of(lambda: learner.predict(photo)), seconds_of(forward)) for _ in range(repeats)]
    answer, bare = (1000 * median(side) for side in zip(*pairs, strict=True))
    with ThreadPoolExecutor(threads) as pool:
        many = seconds_of(lambda: list(pool.map(learner.predict, [photo] * repeats)))
    return {
        "answer_ms": answer,
        "forward_ms": bare,
        "ratio": answer / bare,
        "threads": threads,
        "answers_per_second": repeats / many,
        "image_size": backbone.image_size,
        "parameters": backbone.parameters,
    }


def learners(recipe: str, settings: list[str]) -> dict[str, Learner]:
    """An untaught learner on each backbone that is at hand."""
    folder = Path(os.environ.get("ZOFC_DATA", ".")) / "backbones"
    places = {name: name if name == "embedded" else str(folder / name) for name in BACKBONES}
    return {
        name: Learner(recipe, [*RECIPES.get(recipe, []), f"backbone.name={place}", *BACKBONES[name], *settings])
        for name, place in places.items()
        if name == "embedded" or Path(place).exists()
    }


def main() -> None:
    """Measure every backbone and write the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("settings", nargs="*", help="settings such as training.device=cuda")
    parser.add_argument("--recipes", nargs="+", default=[*RECIPES])
    parser.add_argument("--repeats", type=int, default=100)
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    shown = Table(
        "recipe", "backbone", "answer (ms)", "forward (ms)", "ratio", f"answers/s from {options.threads} threads"
    )
    rows: list[dict[str, Any]] = []
    device = torch.device("cpu")
    pairs = [(recipe, *pair) for recipe in options.recipes for pair in learners(recipe, options.settings).items()]
    for recipe, name, learner in pairs:
        device = learner.model.device
        row = {"recipe": recipe, "backbone": name, **time_answers(learner, options.repeats, options.threads)}
        rows.append(row)
        cells = (row["answer_ms"], row["forward_ms"], row["ratio"], row["answers_per_second"])
        shown.add_row(recipe, name, *(f"{cell:.2f}" for cell in cells))
    Console().print(shown)
    if options.out:
        content = {"rows": rows, "environment": environment(device)}
        options.out.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
