"""Calibration and "none of these" as delivered, on photographs on which nothing of either was chosen.

    python benchmarks/unseen.py vit_micro_p8_64.safetensors --out results/calibration.json
    python benchmarks/unseen.py vit_small_patch14_dinov2.safetensors --per-class 20 --test-images 15 --out ...

`calibration.py` measures the readout by itself, on CIFAR-100, where the rule of rejection was chosen. Here
`zofc.Learner()` chooses its recipe, learns half of the classes of an album (PACS photographs, Caltech-101) task by task
from image files, and answers the other images with `reject`: of its classes, and of those it never saw. Seeds choose
classes and images. The calibration error is that of `evaluate`; beside it is the one to expect of probabilities that
are right, which is not zero with few test images. Albums are read from $ZOFC_DATA, backbones from its `backbones`. Rows
are added to the file under `delivered`.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from zofc import Learner
from zofc.evidence.photographs import ALBUMS, write_album
from zofc.learner import Answer
from zofc.runfolder import write_atomic
from zofc.training.calibration import calibration_error

EVERY, DRAW = 1_000_000, 1993  # all images of an album, so that the draw does not matter
LEAST_TESTED = 10  # images of a class
SIMULATIONS = 200
Files = dict[str, list[Path]]  # by class


def divide_images(album: Path, per_class: int, tested: int, rng: np.random.Generator) -> tuple[Files, Files]:
    """Images to learn, of the training set, and to test with, of the test set and of what is left."""
    learned, rest = Files(), Files()
    for folder in sorted((album / "train").iterdir()):
        train = [Path(path) for path in rng.permutation(sorted(map(str, folder.iterdir())))]
        test = [Path(path) for path in rng.permutation(sorted(map(str, (album / "test" / folder.name).iterdir())))]
        learned[folder.name] = train[:per_class]
        rest[folder.name] = [*test, *train[per_class:]][:tested]
        if len(learned[folder.name]) < per_class or len(rest[folder.name]) < LEAST_TESTED:
            raise SystemExit(f"{folder}: too few images for {per_class} to learn and {LEAST_TESTED} to test with")
    return learned, rest


def error_of(answers: list[Answer], right: NDArray[np.bool_]) -> float:
    """The calibration error of answers that are right or not."""
    top = torch.tensor([answer.best[0].probability for answer in answers], dtype=torch.float64)
    return calibration_error(torch.stack([top, torch.zeros_like(top)], dim=-1), torch.from_numpy(~right).long())


def measure(
    album: Path, increment: int, settings: list[str], per_class: int, tested: int, rate: float, seed: int
) -> dict[str, Any]:
    """Learn half of the classes and answer images of all."""
    rng = np.random.default_rng([per_class, seed])
    learned, rest = divide_images(album, per_class, tested, rng)
    names = rng.permutation(sorted(learned)).tolist()
    known, unseen = names[: (len(names) + 1) // 2], names[(len(names) + 1) // 2 :]
    learner = Learner(None, [*settings, f"seed={seed}"])
    for start in range(0, len(known), increment):
        learner.learn({name: list(learned[name]) for name in known[start : start + increment]})
    of_known = [(name, path) for name in known for path in rest[name]]
    answers = learner.answer([path for _, path in of_known], reject=rate)
    right = np.array([one.best[0].name == name for one, (name, _) in zip(answers, of_known, strict=True)])
    others = learner.answer([path for name in unseen for path in rest[name]], reject=rate)
    chances = np.array([one.best[0].probability for one in answers])
    simulated = [error_of(answers, rng.random(len(chances)) < chances) for _ in range(SIMULATIONS)]
    return {
        "seed": seed,
        "recipe": learner.recipe.name,
        "accuracy": float(right.mean()),
        "calibration_error": error_of(answers, right),
        "calibration_error_of_right_probabilities": fmean(simulated),
        "mean_probability": float(chances.mean()),
        "known_rejected": fmean(not one.known for one in answers),
        "unseen_rejected": fmean(not one.known for one in others),
        "images": {"known": len(answers), "unseen": len(others)},
    }


def add_row(file: Path, row: dict[str, Any]) -> None:
    """Put a row among those `delivered`, in place of one of the same setting."""
    content = json.loads(file.read_text("utf-8")) if file.is_file() else {}
    same = ("photographs", "backbone", "per_class")
    kept = [one for one in content.get("delivered", []) if any(one[key] != row[key] for key in same)]
    write_atomic(file, json.dumps({**content, "delivered": [*kept, row]}, indent=1) + "\n")


def main() -> None:
    """Measure a backbone on the albums."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("backbone", help="a file below $ZOFC_DATA/backbones")
    parser.add_argument("settings", nargs="*", help="settings such as training.threads=1")
    parser.add_argument("--albums", nargs="+", default=[*ALBUMS], choices=[*ALBUMS])
    parser.add_argument("--per-class", type=int, nargs="+", default=[5, 10, 20])
    parser.add_argument("--test-images", type=int, default=300, help="at most, of a class")
    parser.add_argument("--rate", type=float, default=0.05)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--folder", type=Path, default=Path("build/photographs"))
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    settings = [f"backbone.name={Path(os.environ['ZOFC_DATA']) / 'backbones' / options.backbone}", *options.settings]
    shown = Table("photographs", "images a class", "accuracy", "ECE", "if right", "known rejected", "unseen rejected")
    for title in options.albums:
        album = write_album(ALBUMS[title], EVERY, DRAW, options.folder)
        for per_class in options.per_class:
            increment = ALBUMS[title].increment
            chosen = per_class, options.test_images, options.rate
            runs = [measure(album, increment, settings, *chosen, seed) for seed in options.seeds]
            row = {"photographs": title, "backbone": options.backbone, "per_class": per_class,
                   "rate": options.rate, "seeds": runs}  # fmt: skip
            keys = ("accuracy", "calibration_error", "calibration_error_of_right_probabilities", "known_rejected",
                    "unseen_rejected")  # fmt: skip
            shown.add_row(title, str(per_class), *(f"{100 * fmean(run[key] for run in runs):.1f}" for key in keys))
            if options.out:
                add_row(options.out, row)
    Console().print(shown)


if __name__ == "__main__":
    main()
