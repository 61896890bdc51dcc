"""Learn classes from folders of images, one task after the other, then predict, evaluate, save and load.

python examples/own_images.py my_images backbone.name=vit_small_patch16_224.augreg_in21k    # my_images/CLASS/IMAGE.jpg
python examples/own_images.py      # shapes that it draws, on the bundled backbone: seconds on a CPU
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

import zofc


def draw_images(root: Path, per_class: int = 8) -> None:
    """A folder of small pictures per class: two shapes in two colours, at random places."""
    rng = np.random.default_rng(0)
    for shape in ("disc", "square"):
        for colour in ("red", "blue"):
            folder = root / f"{colour} {shape}"
            folder.mkdir(parents=True)
            for number in range(per_class):
                image = Image.new("RGB", (64, 64), "white")
                left, top = (int(value) for value in rng.integers(4, 28, 2))
                pen = ImageDraw.Draw(image)
                draw = pen.ellipse if shape == "disc" else pen.rectangle
                draw((left, top, left + 32, top + 32), fill=colour)
                image.save(folder / f"{number}.png")


def main(root: Path, settings: list[str]) -> None:
    """Learn the classes in two tasks and test on a quarter of the pictures."""
    train: dict[str, list[Path]] = {}
    test: dict[str, list[Path]] = {}
    for folder in sorted(path for path in root.iterdir() if path.is_dir()):
        files = sorted(folder.iterdir())
        train[folder.name], test[folder.name] = files[len(files) // 4 :], files[: len(files) // 4]

    # With few images the classifier needs a higher rate than the paper's, which is for hundreds of images per class.
    learner = zofc.Learner("zofc/base", ["optimize.head.lr=1", "training.workers=0", *settings])
    names = list(train)
    for task in (names[: len(names) // 2], names[len(names) // 2 :]):
        learner.learn({name: train[name] for name in task})
        print(f"learned {', '.join(task)}; all classes: {', '.join(learner.classes)}")

    picture = test[names[0]][0]
    best = learner.predict(picture)[0][0]
    print(f"a picture of {names[0]}: {best.name} ({best.probability:.0%})")
    print(f"accuracy on held-out pictures: {learner.evaluate(test).accuracy:.1f} %")

    with tempfile.TemporaryDirectory() as saved:
        learner.save(saved)
        assert zofc.load(saved).predict(picture)[0][0].name == best.name


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]), sys.argv[2:])
    else:
        with tempfile.TemporaryDirectory() as drawn:
            draw_images(Path(drawn))
            main(Path(drawn), ["backbone.name=embedded", "optimize.peft.epochs=4", "optimize.head.epochs=4"])
