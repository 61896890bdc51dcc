"""Pre-train the backbone that is part of the package: a small ViT that tells characters apart.

It sees them in the style `clean` (or, with --strength, part of the way to the benchmark's style), never a
character of the benchmark. At the end it is measured, frozen, on the benchmark: nearest class mean by cosine.

    python scripts/pretrain_embedded.py --out src/zofc/model/weights/embedded.safetensors
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from multiprocessing.pool import Pool
from pathlib import Path
from typing import Any

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # deterministic matrix products on CUDA

import numpy as np
import safetensors.torch
import timm
import torch
import torch.nn.functional as F
from timm.models.vision_transformer import VisionTransformer
from timm.optim import param_groups_weight_decay
from torch import Tensor

from zofc.data.glyph_alphabet import Character, benchmark_characters, pretraining_characters
from zofc.data.glyph_drawing import SIDE
from zofc.data.glyph_styles import DEFAULT, STYLES, Style, style
from zofc.data.glyphs import draw_numbered
from zofc.model.geometry import GEOMETRY

WEIGHTS = Path(__file__).resolve().parents[1] / "src" / "zofc" / "model" / "weights" / "embedded.safetensors"
HYPERPARAMETERS = {
    "seed": 1993, "epochs": 60, "batch-size": 512, "lr": 1e-3, "weight-decay": 0.05, "patch": 16, "width": 192,
    "depth": 6, "heads": 3, "drop-path": 0.05,
}  # fmt: skip
BENCHMARK_SEED = 1993  # of the images and of the class order, as in the recipes
BENCHMARK_STYLE = DEFAULT.partition("@")[0]
BENCHMARK_STRENGTHS = (0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)


def draw_images(
    pool: Pool, characters: Sequence[Character], look: Style, split: str, seed: int, n: int, among: Sequence[Character]
) -> tuple[Tensor, Tensor]:
    """`n` images of each character (all, SIDE, SIDE, 3) as uint8, and labels; fragments in them are of `among`."""
    others = tuple(character.text for character in among)
    jobs = [(character, look, number, split, seed, others) for character in characters for number in range(n)]
    drawn = np.stack(pool.starmap(draw_numbered, jobs, chunksize=4 * n))
    return torch.from_numpy(drawn), torch.arange(len(characters)).repeat_interleave(n)


def normalised(images: Tensor) -> Tensor:
    """uint8 (n, SIDE, SIDE, 3) to float (n, 3, SIDE, SIDE) with mean and deviation 0.5."""
    return images.permute(0, 3, 1, 2).float().div_(127.5).sub_(1)


def augmented(images: Tensor) -> Tensor:
    """Normalised images, each a little moved, scaled and turned, with other brightness, contrast and tint."""
    n, device = len(images), images.device

    def about(limit: float, *shape: int) -> Tensor:
        return (torch.rand(n, *shape, device=device) * 2 - 1) * limit

    scale, angle = torch.exp(about(0.15)), about(math.radians(5))
    cos, sin = torch.cos(angle) / scale, torch.sin(angle) / scale
    turn = torch.stack([torch.stack([cos, -sin], 1), torch.stack([sin, cos], 1)], 1)  # (n, 2, 2)
    grid = F.affine_grid(torch.cat([turn, about(0.12, 2, 1)], 2), [n, 3, SIDE, SIDE], align_corners=False)
    moved = F.grid_sample(normalised(images), grid, padding_mode="reflection", align_corners=False)
    return (moved * torch.exp(about(0.2, 1, 1, 1)) + about(0.15, 1, 1, 1) + about(0.1, 3, 1, 1)).clamp(-1, 1)


def batches(images: Tensor, labels: Tensor, size: int, order: torch.Generator) -> Iterator[tuple[Tensor, Tensor]]:
    """One epoch; a last batch that is not full is left out, unless it is the only one."""
    shuffled = torch.randperm(len(labels), generator=order).to(images.device)
    for start in range(0, max(len(labels) - size + 1, 1), size):
        chosen = shuffled[start : start + size]
        yield images[chosen], labels[chosen]


def schedule(step: int, steps: int) -> float:
    """Warm-up over the first twentieth, then a cosine to zero."""
    warm = max(1, steps // 20)
    if step < warm:
        return (step + 1) / warm
    return 0.5 * (1 + math.cos(math.pi * (step - warm) / max(1, steps - warm)))


def train_with_labels(vit: VisionTransformer, images: Tensor, labels: Tensor, options: argparse.Namespace) -> None:
    """Train the backbone with labels."""
    exempt = vit.no_weight_decay()  # beside biases and norms: the class token and positions
    groups = param_groups_weight_decay(vit, options.weight_decay, no_weight_decay_list=exempt)
    opt = torch.optim.AdamW(groups, options.lr)
    steps = options.epochs * max(1, len(labels) // options.batch_size)
    plan = torch.optim.lr_scheduler.LambdaLR(opt, lambda step: schedule(step, steps))
    order = torch.Generator().manual_seed(options.seed)
    began, told = time.monotonic(), -math.inf
    for epoch in range(options.epochs):
        for batch, targets in batches(images, labels, options.batch_size, order):
            with torch.autocast(images.device.type, torch.bfloat16, enabled=images.is_cuda):
                loss = F.cross_entropy(vit(augmented(batch)), targets, label_smoothing=0.1)
            opt.zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(vit.parameters(), 1.0)
            opt.step()
            plan.step()
        seconds = time.monotonic() - began
        if seconds - told > 10 or epoch == options.epochs - 1:
            told = seconds
            print(f"epoch {epoch + 1}/{options.epochs}  loss {loss.item():.3f}  {seconds:.0f} s", flush=True)


@torch.inference_mode()
def features(vit: VisionTransformer, images: Tensor, device: torch.device) -> Tensor:
    """What a frozen backbone gives a classifier: (n, width), in single precision."""
    parts = [normalised(part.to(device)) for part in torch.split(images, 1024)]
    return torch.cat([vit.forward_head(vit.forward_features(part), pre_logits=True) for part in parts])


def class_mean_accuracy(train: Tensor, test: Tensor, classes: int, device: torch.device) -> float:
    """Of the first `classes`, by the nearest mean in cosine; features are (all classes, images, width)."""
    means = F.normalize(train[:classes].mean(1), dim=-1)  # (classes, width)
    guesses = (F.normalize(test[:classes], dim=-1) @ means.T).argmax(-1)  # (classes, images)
    return (guesses == torch.arange(classes, device=device)[:, None]).float().mean().item()


def measure_frozen(
    vit: VisionTransformer, pool: Pool, options: argparse.Namespace, device: torch.device
) -> dict[str, dict[str, float]]:
    """Frozen accuracy on the benchmark, by style and number of classes."""
    everyone = benchmark_characters()
    shuffled = np.random.RandomState(BENCHMARK_SEED).permutation(len(everyone))
    characters = [everyone[index] for index in shuffled[: max(options.classes)]]
    specs = ["clean", *(f"{BENCHMARK_STYLE}@{strength}" for strength in BENCHMARK_STRENGTHS)]
    specs += [name for name in STYLES if name not in ("clean", BENCHMARK_STYLE)]
    table: dict[str, dict[str, float]] = {}
    for spec in specs:
        split = []
        for name, images in (("train", options.shots), ("test", options.test_per_class)):
            drawn, _ = draw_images(pool, characters, style(spec), name, BENCHMARK_SEED, images, everyone)
            split.append(features(vit, drawn, device).reshape(len(characters), images, -1))
        train, test = split
        table[spec] = {str(classes): class_mean_accuracy(train, test, classes, device) for classes in options.classes}
    return table


def save_weights(vit: VisionTransformer, path: Path, metadata: dict[str, str]) -> dict[str, Tensor]:
    """Write half-precision weights without the classifier, and what is needed to build and feed the ViT again."""
    state = {
        name: tensor.detach().half().cpu().contiguous()
        for name, tensor in vit.state_dict().items()
        if not name.startswith("head.")
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    safetensors.torch.save_file(state, path, metadata)
    path.chmod(0o644)  # it becomes part of a package that others read
    return state


def arguments() -> argparse.Namespace:
    """The options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=WEIGHTS)
    for name, default in HYPERPARAMETERS.items():
        parser.add_argument(f"--{name}", type=type(default), default=default, help="default: %(default)s")
    parser.add_argument("--per-class", type=int, default=200, help="training images of each character")
    parser.add_argument("--characters", type=int, default=None, help="only the first so many, for a trial")
    parser.add_argument("--strength", type=float, default=0.0, help=f"of {BENCHMARK_STYLE} in pre-training")
    parser.add_argument("--classes", type=int, nargs="+", default=[20, 100], help="of the benchmark, to measure on")
    parser.add_argument("--shots", type=int, default=60, help="images behind a class mean")
    parser.add_argument("--test-per-class", type=int, default=20)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    return parser.parse_args()


def main() -> None:
    """Draw, train, measure and write the weights."""
    began = time.monotonic()
    pool = multiprocessing.get_context("fork").Pool(len(os.sched_getaffinity(0)))  # forks: before CUDA is touched
    options = arguments()
    device = torch.device(options.device)
    torch.manual_seed(options.seed)
    torch.use_deterministic_algorithms(True, warn_only=True)

    everyone = pretraining_characters()
    characters = everyone[: options.characters]
    look = replace(style(f"{BENCHMARK_STYLE}@{options.strength}"), name="clean")
    images, labels = draw_images(pool, characters, look, "train", options.seed, options.per_class, everyone)
    seconds = time.monotonic() - began
    print(f"drew {len(labels)} images of {len(characters)} characters in {seconds:.0f} s", flush=True)

    geometry = dict(zip(GEOMETRY, (SIDE, options.patch, options.width, options.depth, options.heads), strict=True))
    vit = VisionTransformer(**geometry, num_classes=len(characters), drop_path_rate=options.drop_path).to(device)
    train_with_labels(vit, images.to(device), labels.to(device), options)
    vit.eval()

    pretraining = (
        f"supervised on {len(characters)} characters x {options.per_class} images of glyphs:"
        f"{BENCHMARK_STYLE}@{options.strength} (0 is clean), none of them in the benchmark; "
        f"{options.epochs} epochs"
    )
    metadata = {key: str(value) for key, value in geometry.items()} | dict.fromkeys(("mean", "std"), "0.5,0.5,0.5")
    state = save_weights(vit, options.out, metadata | {"pretraining": pretraining, "seed": str(options.seed)})
    vit.load_state_dict({name: tensor.float() for name, tensor in state.items()}, strict=False)  # what others will load

    held_out, answers = draw_images(pool, characters, look, "test", options.seed, options.test_per_class, everyone)
    with torch.inference_mode():
        guesses = vit.head(features(vit, held_out, device)).argmax(1)
    results: dict[str, Any] = {
        "pretraining": pretraining,
        "options": {key: str(value) for key, value in vars(options).items() if key not in ("out", "device")},
        "parameters": sum(p.numel() for name, p in vit.named_parameters() if not name.startswith("head.")),
        "bytes": options.out.stat().st_size,
        "held_out_accuracy": (guesses == answers.to(device)).float().mean().item(),
        "class_mean_accuracy": measure_frozen(vit, pool, options, device),
        "seconds": time.monotonic() - began,
        "versions": {"torch": torch.__version__, "timm": timm.__version__},
    }
    text = json.dumps(results, indent=1)
    options.out.with_suffix(".json").write_text(text + "\n")
    print(f"wrote {options.out}\n{text}")


if __name__ == "__main__":
    main()
