"""Whole streams learned by zofc-device alone after the first task, beside torch on the same images and seeds.

    python benchmarks/device_streams.py --out results/device_streams.json

Glyphs on the bundled backbone by ZO-FC, and Caltech-101 (20 classes, 25 training images each, at most 20 test images)
on DINOv2-S: at 224 px by ZO-Ridge, whose adapter is fixed after the first task, and at 112 px by ZO-FC, whose adapter
moves in every task. Both engines start from the same first task, learned by torch; each then learns the
other tasks from the same images. Bundles of 8 and 4 bits start from the same run.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from zofc import Learner, load
from zofc.data import SourceOptions, open_source
from zofc.data.stream import class_order
from zofc.evidence.devices import streams_table
from zofc.evidence.photographs import Album, write_album
from zofc.export.writer import export_run
from zofc.runfolder import write_atomic

INCREMENT, TESTED, SEEDS, PRECISIONS = 4, 20, (1993, 1994, 1995), ("fp32", "int8", "int4")
DINO = ("backbone.name=backbones/vit_small_patch14_dinov2.safetensors", "backbone.image_size=224")
Row = dict[str, Any]
Classes = Mapping[str, list[Path]]


@dataclass(frozen=True)
class Experiment:
    """A recipe with settings, and the number of classes of its stream."""

    recipe: str
    settings: tuple[str, ...]
    classes: int = 20


EXPERIMENTS = {
    "glyphs, ZO-FC": Experiment(
        "demo/zofc",
        ("optimize.peft.epochs=10", "optimize.peft.estimator=forward_gradient", "optimize.peft.per=image",
         "optimize.peft.queries=1"),
    ),
    "Caltech-101, ZO-Ridge": Experiment("zo-ridge/base", (*DINO, "optimize.peft.epochs=4", "optimize.head.epochs=4")),
    "Caltech-101 at 112 px, ZO-FC": Experiment(
        "zofc/base",
        (DINO[0], "backbone.image_size=112", "optimize.peft.estimator=forward_gradient", "optimize.peft.per=image",
         "optimize.peft.queries=1", "optimize.peft.epochs=8", "optimize.head.epochs=8"),
    ),
}  # fmt: skip


def main() -> None:
    """Learn what the result file does not have yet."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="the result file, such as results/device_streams.json")
    parser.add_argument("--only", default="", help="experiments whose names contain this")
    parser.add_argument("--seeds", default=",".join(map(str, SEEDS)))
    parser.add_argument("--precisions", default=",".join(PRECISIONS), help="of the bundles")
    parser.add_argument("--work", type=Path, default=Path("build/device-streams"))
    options = parser.parse_args()
    rows: list[Row] = json.loads(options.out.read_text("utf-8"))["rows"] if options.out.exists() else []
    for title, experiment in EXPERIMENTS.items():
        for seed in map(int, options.seeds.split(",")):
            have = {row["engine"] for row in rows if (row["experiment"], row["seed"]) == (title, seed)}
            wanted = [name for name in options.precisions.split(",") if f"device, {name}" not in have]
            if options.only in title and (wanted or "torch" not in have):
                work = options.work / f"{title}-{seed}"
                for row in learn_stream(title, experiment, seed, work, "torch" not in have, wanted):
                    rows.append(row)
                    print(json.dumps(row), flush=True)
                    write_atomic(options.out, json.dumps({"rows": rows}, indent=1) + "\n")
    print(streams_table(rows).markdown())


def learn_stream(
    title: str, experiment: Experiment, seed: int, work: Path, by_torch: bool, precisions: Sequence[str]
) -> Iterator[Row]:
    """A row for torch, if wanted, and for a bundle of each precision."""
    import zofc_device

    train, test = _images(title, work.parent)
    names = [list(train)[i] for i in class_order(len(train), seed)][: experiment.classes]
    tasks = [names[i : i + INCREMENT] for i in range(0, len(names), INCREMENT)]
    if not (work / "first").exists():
        learner = Learner(experiment.recipe, [*experiment.settings, f"seed={seed}", "training.device=cpu"])
        learner.learn(_of(train, tasks[0]))
        learner.save(work / "first")
    about = {"experiment": title, "seed": seed}
    if by_torch:
        learner = load(work / "first")
        for task in tasks[1:]:
            learner.learn(_of(train, task))
        yield {**about, "engine": "torch", "accuracy": learner.evaluate(_of(test, names)).accuracy}
        learner.save(work / "torch")
    for precision in precisions:
        export_run(work / "first", work / precision, precision)
        device = zofc_device.load(work / precision)
        for task in tasks[1:]:
            device.learn(_of(train, task))
        found = {"accuracy": device.evaluate(_of(test, names)).accuracy}
        same = _agreement(work / precision, work / "torch", _of(test, names))
        yield {**about, "engine": f"device, {precision}", **found, "agrees_with_torch": same}


def _agreement(bundle: Path, run: Path, images: Classes) -> float | None:
    """The share of test images on which the learned bundle answers as the learned torch model."""
    import zofc_device

    if not run.exists():
        return None
    given = [path for paths in images.values() for path in paths]
    answers = [[one[0].name for one in learner.predict(given)] for learner in (zofc_device.load(bundle), load(run))]
    return float(np.mean([one == other for one, other in zip(*answers, strict=True)]))


def _of(images: Classes, names: Sequence[str]) -> dict[str, list[Path]]:
    return {name: images[name] for name in names}


def _images(title: str, work: Path) -> tuple[Classes, Classes]:
    """Training and test images by class, as files."""
    if title.startswith("glyphs"):
        folder = _write_glyphs(work / "glyphs")
    else:
        folder = write_album(Album("caltech101", INCREMENT), 25, 1993, work / "albums")
    return tuple(  # type: ignore[return-value]
        {path.name: sorted(path.iterdir()) for path in sorted((folder / split).iterdir())}
        for split in ("train", "test")
    )


def _write_glyphs(folder: Path) -> Path:
    if not (folder / "complete").exists():
        source = open_source("glyphs", SourceOptions(seed=1993, per_class=40, test_per_class=40))
        for split, images in (("train", source.train), ("test", source.test)):
            for number, label in enumerate(images.labels):
                path = folder / split / source.classes[label] / f"{number}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                images.images.load(number).save(path)
        write_atomic(folder / "complete", "")
    return folder


if __name__ == "__main__":
    main()
