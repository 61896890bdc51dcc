"""The demonstrations over several seeds, their table, and the picture of the default ones that the README shows."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from zofc.data import SourceOptions, open_source
from zofc.errors import RunError
from zofc.evidence.rows import spread
from zofc.recipe import load_recipe
from zofc.report import labels
from zofc.report.draw_matplotlib import draw_panel, encode
from zofc.report.drawing import COLOURS
from zofc.report.figures import accuracy_over_tasks
from zofc.report.grid import Grid
from zofc.runfolder import Run, read_runs, write_atomic
from zofc.studies.cells import Cell
from zofc.units import MIB, NONE

DEMOS = ("simplecil", "ridge", "zo-ridge", "classifier", "zofc", "first-order", "finetune", "joint")
PICTURED = ("demo/zofc", "demo/first-order", "demo/zo-ridge")
PRETRAINING = "glyphs:clean"  # what the embedded backbone has seen, of other characters
FONT = {"font.size": 8, "axes.titlesize": 8.5, "axes.titleweight": "bold", "axes.spines.top": False,
        "axes.spines.right": False}  # fmt: skip
GLYPH_GAP = 5  # pixels between glyphs


def demo_cells(seeds: Sequence[int]) -> Iterator[Cell]:
    """Every demonstration with every seed (of images, class order and directions), on the CPU."""
    for seed in seeds:
        for name in DEMOS:
            recipe = load_recipe(f"demo/{name}", [f"seed={seed}", "training.device=cpu"])
            yield Cell({"demo": name, "title": recipe.title or name, "seed": seed}, recipe)


def demo_table(rows: Sequence[Mapping[str, Any]]) -> Grid:
    """Mean ± standard deviation over seeds; time in units of first order's."""
    body = []
    unit = _train_seconds(rows, "first-order")
    for name in DEMOS:
        mine = [row for row in rows if row["demo"] == name]
        if mine:
            cells = [spread([row[key] for row in mine]) for key in ("all_classes", "last_task", "forgetting")]
            trained = bool(mine[0]["trainable_parameters"])
            memory = f"{mine[0]['peak_memory'] / MIB:.0f} MiB" if trained else NONE
            time = f"{_train_seconds(rows, name) / unit:.1f} ×" if trained else NONE
            body.append((mine[0]["title"], *cells, memory, time))
    headers = ("Recipe", "All classes (%)", "Last task (%)", "Forgetting", "Memory", "Time")
    return Grid(headers, tuple(body), names=len(headers))


def _train_seconds(rows: Sequence[Mapping[str, Any]], name: str) -> float:
    return statistics.fmean(row["seconds"]["train"] for row in rows if row["demo"] == name)


# -- the picture -----------------------------------------------------------------------------------------------------


def draw_demo(paths: Sequence[Path], seed: int, out: Path) -> None:
    """What the images look like, how the runs of `zofc run` fare, what a training step of each needs."""
    records = _pictured_runs(paths, seed)
    with rc_context(FONT):
        figure = Figure(figsize=(9, 3.0), layout="constrained")
        glyphs, accuracy, memory = figure.subplots(1, 3, width_ratios=[3.4, 3.1, 2.5])
        _draw_glyphs(glyphs, records[0])
        draw_panel(accuracy, accuracy_over_tasks(records))
        accuracy.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
        accuracy.legend(frameon=False, handlelength=1.6)
        accuracy.set_title("Accuracy")
        _draw_memory(memory, records)
        write_atomic(out, encode(figure, "png", dpi=200))


def _pictured_runs(paths: Sequence[Path], seed: int) -> list[Run]:
    finished = {run.name: run for run in read_runs(paths) if run.setting("seed") == seed and run.finished}
    missing = [name for name in PICTURED if name not in finished]
    if missing:
        raise RunError(f"no finished run of {', '.join(missing)} with seed {seed}; make them with `zofc run`")
    return [finished[name] for name in PICTURED]


def _examples(source: str, seed: int, names: Sequence[str], count: int) -> NDArray[np.uint8]:
    """Training images of the named classes, (count, names, side, side, 3)."""
    opened = open_source(source, SourceOptions(seed=seed, per_class=count, test_per_class=1))
    rows = np.stack([np.flatnonzero(opened.train.labels == opened.classes.index(name)) for name in names], 1)
    return np.stack([[np.asarray(opened.train.images.load(int(row))) for row in line] for line in rows])


def _draw_glyphs(axes: Axes, record: Run, seen: int = 1, shown: int = 3) -> None:
    """One class of every task: above in the style of pre-training, below as the runs met it."""
    assert record.matrix is not None
    names = [group[0] for group in record.matrix.groups]
    seed, source = int(record.setting("seed")), str(record.setting("data.source"))
    tiles = np.concatenate([_examples(PRETRAINING, seed, names, seen), _examples(source, seed, names, shown)])
    pitch, side, extra = tiles.shape[2] + GLYPH_GAP, tiles.shape[2], 2 * GLYPH_GAP  # extra: between the two styles
    sheet = np.full((len(tiles) * pitch - GLYPH_GAP + extra, len(names) * pitch - GLYPH_GAP, 3), 255, np.uint8)
    for i, line in enumerate(tiles):
        for j, tile in enumerate(line):
            top = i * pitch + (extra if i >= seen else 0)
            sheet[top : top + side, j * pitch : j * pitch + side] = tile
    axes.imshow(sheet, interpolation="lanczos")
    axes.set_xticks([j * pitch + side / 2 for j in range(len(names))], [f"task {j + 1}" for j in range(len(names))])
    middle = seen * pitch + extra + (shown * pitch - GLYPH_GAP) / 2
    axes.set_yticks([(seen * pitch - GLYPH_GAP) / 2, middle], ["pre-training\nstyle", "benchmark\nstyle"])
    axes.tick_params(length=0, top=False, labeltop=False, pad=3)
    axes.spines[:].set_visible(False)
    axes.set_title("One class of each task")


def _draw_memory(axes: Axes, records: Sequence[Run]) -> None:
    """Peak bytes of a training step; the darker part is the frozen backbone's weights, the same in both."""
    places = range(len(records))
    needs = [(record.peak_memory or 0) / MIB for record in records]
    weights = 4 * int(records[0].environment["backbone"]["parameters"]) / MIB  # held in single precision
    axes.bar(places, needs, width=0.75, color=[COLOURS[i] for i in places])
    axes.bar(places, weights, width=0.75, color=[0.6 * np.array(to_rgb(COLOURS[i])) for i in places])
    for place, need in zip(places, needs, strict=True):
        axes.annotate(f"{need:.1f}", (place, need), (0, 2), textcoords="offset points", ha="center")
        axes.text(place, weights / 2, "frozen\nbackbone", ha="center", va="center", color="white", fontsize=6)
    axes.set_xticks(places, labels(records))
    axes.tick_params(axis="x", length=0)
    axes.set(ylabel="peak of a training step (MiB)", ylim=(0, 1.1 * max(needs)))
    axes.set_title("Memory")
