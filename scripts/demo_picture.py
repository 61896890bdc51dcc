"""Draw the README's picture from the runs of `zofc run`: what the images look like, how the two runs fare, what a
training step of each needs.

    python scripts/demo_picture.py runs --out docs/demo.png
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from zofc.cli import DEFAULT_PAIR
from zofc.data import SourceOptions, open_source
from zofc.report import RunRecord, labels, read_runs
from zofc.report.figures import LEARNED, SEEN, accuracy_lines, colour

PRETRAINING = "glyphs:clean"  # what the embedded backbone has seen, of other characters
FONT = {"font.size": 8, "axes.titlesize": 8.5, "axes.titleweight": "bold", "axes.spines.top": False,
        "axes.spines.right": False}  # fmt: skip
GAP = 5  # pixels between glyphs
MIB = 2**20


def pair(paths: Sequence[Path], seed: int) -> list[RunRecord]:
    """The default pair among the runs below `paths`."""
    found = {record.name: record for record in read_runs(paths) if record.setting("seed") == seed and record.finished}
    missing = [name for name in DEFAULT_PAIR if name not in found]
    if missing:
        raise SystemExit(f"no finished run of {', '.join(missing)} with seed {seed}; make them with `zofc run`")
    return [found[name] for name in DEFAULT_PAIR]


def examples(source: str, seed: int, names: Sequence[str], count: int) -> NDArray[np.uint8]:
    """Training images of the named classes, (count, names, side, side, 3)."""
    opened = open_source(source, SourceOptions(seed=seed, per_class=count, test_per_class=1))
    rows = np.stack([np.flatnonzero(opened.train.labels == opened.classes.index(name)) for name in names], 1)
    return np.stack([[np.asarray(opened.train.images.load(int(row))) for row in line] for line in rows])


def draw_glyphs(axes: Axes, record: RunRecord, seen: int = 1, shown: int = 3) -> None:
    """One class of every task: above in the style of pre-training, below as the runs met it."""
    assert record.matrix is not None
    names = [group[0] for group in record.matrix.groups]
    seed = int(record.setting("seed"))
    tiles = np.concatenate(
        [examples(PRETRAINING, seed, names, seen), examples(str(record.setting("data.source")), seed, names, shown)]
    )
    pitch, side = tiles.shape[2] + GAP, tiles.shape[2]
    extra = 2 * GAP  # between the two styles
    sheet = np.full((len(tiles) * pitch - GAP + extra, len(names) * pitch - GAP, 3), 255, np.uint8)
    for i, line in enumerate(tiles):
        for j, tile in enumerate(line):
            top = i * pitch + (extra if i >= seen else 0)
            sheet[top : top + side, j * pitch : j * pitch + side] = tile
    axes.imshow(sheet, interpolation="lanczos")
    axes.set_xticks([j * pitch + side / 2 for j in range(len(names))], [f"task {j + 1}" for j in range(len(names))])
    middle = seen * pitch + extra + (shown * pitch - GAP) / 2
    axes.set_yticks([(seen * pitch - GAP) / 2, middle], ["pre-training\nstyle", "benchmark\nstyle"])
    axes.tick_params(length=0, top=False, labeltop=False, pad=3)
    axes.spines[:].set_visible(False)
    axes.set_title("One class of each task")


def draw_accuracy(axes: Axes, records: Sequence[RunRecord]) -> None:
    for line in accuracy_lines(records):
        axes.plot(
            line.x, np.array(line.y, float), color=line.colour, marker=line.marker[0], markersize=4.5, label=line.label
        )
    axes.set(xlabel=LEARNED, ylabel=SEEN)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
    axes.grid(alpha=0.3)
    axes.legend(frameon=False, handlelength=1.6)
    axes.set_title("Accuracy")


def draw_memory(axes: Axes, records: Sequence[RunRecord]) -> None:
    """Peak bytes of a training step; the darker part is the frozen backbone's weights, the same in both."""
    places = range(len(records))
    needs = [(record.peak_memory or 0) / MIB for record in records]
    weights = 4 * int(records[0].environment["backbone"]["parameters"]) / MIB  # held in single precision
    axes.bar(places, needs, width=0.75, color=[colour(i) for i in places])
    axes.bar(places, weights, width=0.75, color=[0.6 * np.array(to_rgb(colour(i))) for i in places])
    for place, need in zip(places, needs, strict=True):
        axes.annotate(f"{need:.1f}", (place, need), (0, 2), textcoords="offset points", ha="center")
        axes.text(place, weights / 2, "frozen\nbackbone", ha="center", va="center", color="white", fontsize=7)
    axes.set_xticks(places, labels(records))
    axes.tick_params(axis="x", length=0)
    axes.set(ylabel="peak of a training step (MiB)", ylim=(0, 1.1 * max(needs)))
    axes.set_title("Memory")


def draw(records: Sequence[RunRecord], out: Path) -> None:
    with rc_context(FONT):
        figure = Figure(figsize=(9, 3.0), layout="constrained")
        glyphs, accuracy, memory = figure.subplots(1, 3, width_ratios=[3.6, 3.3, 2.1])
        draw_glyphs(glyphs, records[0])
        draw_accuracy(accuracy, records)
        draw_memory(memory, records)
        figure.savefig(out, dpi=200)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+", help="run folders, or folders of run folders")
    parser.add_argument("--out", type=Path, default=Path("docs/demo.png"))
    parser.add_argument("--seed", type=int, default=1993)
    options = parser.parse_args()
    draw(pair(options.runs, options.seed), options.out)
    print(f"wrote {options.out}")


if __name__ == "__main__":
    main()
