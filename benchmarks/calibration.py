"""How far probabilities are from the share of right answers, and how many images of unseen classes are recognised.

    python benchmarks/calibration.py --features cifar100-dinov2s --out results/calibration.json

Half of the classes, drawn by seed, are learned in tasks of ten by the readout of `zo-ridge/base` without its adapter,
which is `ridge/base` with `ridge.projection=8192 ridge.orthogonal=true` (by itself it has no projection): ridge
regression on an orthogonal projection of frozen features within 64 MB. The test images of the other half are of
unseen classes. Seeds 0 to 2 served to choose the rule of rejection; the results are of other divisions
of the same classes and images (`unseen.py` measures data that served nothing). `--features` is a folder
of features: `train*.npz` and `test*.npz`, with `x` (images, width) and `y`; where there are none they are made, from
`--source` with `--backbone`, at the pace of the backbone. "Score alone" rejects by the largest score, without the
distance from the class means.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from torch import Tensor

from zofc import Learner
from zofc.data import ImageSet
from zofc.model.image_ridge import ImageRidge
from zofc.model.ridge import draw_projection
from zofc.training.calibration import Calibration, best_scale, calibrate, calibration_error
from zofc.training.device import environment
from zofc.training.resolve import open_data
from zofc.training.typicality import Typicality

TASK = 10  # classes
BUDGET, KEPT = 64_000_000, 256_000_000  # bytes: ridge.budget and ridge.keep_features
Split = tuple[Tensor, Tensor]  # features (images, width), labels


def read_features(folder: Path, source: str, settings: Sequence[str]) -> dict[str, Split]:
    """The features of the training and test images, made first if there are none."""
    if not list(folder.glob("train*.npz")):
        folder.mkdir(parents=True, exist_ok=True)
        learner = Learner("ridge/base", [f"data.source={source}", *settings])
        data = open_data(learner.recipe, source, print)
        for name, part in (("train", data.train), ("test", data.test)):
            np.savez(folder / f"{name}0.npz", x=_embed_all(learner, part).astype(np.float16), y=part.labels)
    return {name: _read(sorted(folder.glob(f"{name}*.npz"))) for name in ("train", "test")}


def _embed_all(learner: Learner, images: ImageSet) -> NDArray[np.float32]:
    batches = learner.model.plain_batches(learner.model.loader(images))
    return np.concatenate([learner.model.embed(batch).float().cpu().numpy() for batch, _ in batches])


def _read(files: Sequence[Path]) -> Split:
    parts = [np.load(file) for file in files]
    x, y = (np.concatenate([part[key] for part in parts]) for key in ("x", "y"))
    return torch.from_numpy(x.astype(np.float32)), torch.from_numpy(y.astype(np.int64))


def learn_half(train: Split, known: int, per_class: int, projection: int, seed: int) -> tuple[ImageRidge, Any]:
    """The regression and its calibration after the known classes, in tasks."""
    (x, y), rng = train, np.random.default_rng(seed)
    width = x.shape[1]
    generator = torch.Generator().manual_seed(seed)
    head = ImageRidge(
        width,
        projection,
        BUDGET,
        lambda size: draw_projection(width, size, True, generator.manual_seed(seed)),
        torch.device("cpu"),
        KEPT,
    )
    state: tuple[Calibration, Typicality | None] | None = None
    for start in range(0, known, TASK):
        task = range(start, min(start + TASK, known))
        rows = [rng.permutation(np.flatnonzero((y == c).numpy()))[:per_class] for c in task]
        chosen = torch.from_numpy(np.concatenate(rows))
        head.grow(len(task))
        head.learn(x[chosen], y[chosen], rng)
        assert head.left_out is not None
        state = calibrate(head.left_out, task, y[chosen].bincount(minlength=task.stop), state)
    return head, state


def measure_half(features: dict[str, Split], per_class: int, projection: int, rate: float, seed: int) -> dict[str, Any]:
    """Calibration error on learned classes, and rejections of learned and unseen ones."""
    classes = int(features["test"][1].max()) + 1
    known = classes // 2
    rank = torch.from_numpy(np.random.default_rng(seed).permutation(classes))
    splits = {name: (x, rank[y]) for name, (x, y) in features.items()}
    head, (calibration, typicality) = learn_half(splits["train"], known, per_class, projection, seed)
    x, y = splits["test"]
    scores, of_known = head.scores(x), y < known
    assert head.left_out is not None
    confidence = typicality.confidence(scores, x)
    rejected = confidence < typicality.threshold(rate)
    top = scores.double().amax(-1)
    alone = top < typicality.known[:, 0].quantile(rate)
    probabilities = calibration.probabilities(scores[of_known])
    best = best_scale(scores[of_known], y[of_known])
    return {
        "accuracy": float((scores[of_known].argmax(-1) == y[of_known]).double().mean()),
        "calibration_error": calibration_error(probabilities, y[of_known]),
        "calibration_error_plain_softmax": calibration_error(scores[of_known].double().softmax(-1), y[of_known]),
        "calibration_error_scale_of_the_test_images": calibration_error(
            (best * scores[of_known].double()).softmax(-1), y[of_known]
        ),
        "mean_probability": float(probabilities.amax(-1).mean()),
        "known_rejected": float(rejected[of_known].double().mean()),
        "unseen_rejected": float(rejected[~of_known].double().mean()),
        "unseen_rejected_at_exact_rate": float(
            (confidence[~of_known] < confidence[of_known].quantile(rate)).double().mean()
        ),
        "known_rejected_score_alone": float(alone[of_known].double().mean()),
        "unseen_rejected_score_alone": float(alone[~of_known].double().mean()),
        "images": {"known": int(of_known.sum()), "unseen": int((~of_known).sum())},
    }


def main() -> None:
    """Measure several numbers of images per class and seeds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--features", type=Path, required=True)
    parser.add_argument("--source", default="cifar100")
    parser.add_argument(
        "--backbone", nargs="*", default=["backbone.name=vit_small_patch14_dinov2.lvd142m", "backbone.image_size=224"]
    )
    parser.add_argument("--per-class", type=int, nargs="+", default=[20, 100, 500])
    parser.add_argument("--projection", type=int, default=8192)
    parser.add_argument("--rate", type=float, default=0.05)
    parser.add_argument("--seeds", type=int, nargs="+", default=[3, 4, 5])
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    features = read_features(options.features, options.source, options.backbone)
    shown = Table("images a class", "accuracy", "ECE", "known rejected", "unseen rejected", "by the score alone")
    rows = []
    for per_class in options.per_class:
        runs = [measure_half(features, per_class, options.projection, options.rate, seed) for seed in options.seeds]
        rows.append({"per_class": per_class, "seeds": runs})
        keys = ("accuracy", "calibration_error", "known_rejected", "unseen_rejected", "unseen_rejected_score_alone")
        shown.add_row(str(per_class), *(f"{100 * fmean(run[key] for run in runs):.1f} %" for key in keys))
    Console().print(shown)
    if options.out:
        content = {"source": options.source, "rate": options.rate, "projection": options.projection,
                   "seeds": options.seeds, "backbone": options.backbone, "rows": rows}  # fmt: skip
        content["environment"] = environment(torch.device("cpu"))
        before = json.loads(options.out.read_text("utf-8")) if options.out.is_file() else {}
        content |= {key: before[key] for key in ("delivered",) if key in before}  # of unseen.py
        options.out.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
