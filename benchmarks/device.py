"""Learning on ONNX Runtime beside torch on the same cores: sizes of bundles and installations, memory, time of a step.

    python benchmarks/device.py --out results/device.json

For each backbone a run learns one small task and is exported in every precision. A step of ZO-FC with the same
directions and images is then made by zofc-device and by torch, each in a process of its own, whose peak memory is the
system's figure. The engines take turns, so that what else the machine does slows all of them. The peak of `zofc-device
learn` with micro-batches of one image is measured likewise. The environments whose size is given are made by pip with
nothing else in them (`--install` makes them; it takes minutes); beside them, what torch and the packages that it
requires occupy in the environment of the benchmark (`--only occupied`). `predict.onnx` of a ridge regression on the
classes of CIFAR-100 answers 2,000 test images beside torch. `--only displacement` compares where both engines end after
twenty steps with the same images. Rows that the result file has are kept: delete those to be measured anew.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Callable, Iterator, Sequence
from contextlib import redirect_stderr, suppress
from dataclasses import replace
from functools import cache, partial
from importlib.metadata import PackageNotFoundError, distribution
from itertools import chain
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from PIL import Image

PRECISIONS = ("fp32", "fp16", "int8", "int4")
BACKBONES = {  # the backbone with its settings, and images of a step
    "embedded": (("backbone.name=embedded",), 16),
    "DINOv2-S, 224 px": (
        ("backbone.name=backbones/vit_small_patch14_dinov2.safetensors", "backbone.image_size=224"),
        4,
    ),
}
ESTIMATES = {  # a step, with what it changes in the plan of the adapter
    "forward gradient, 4 directions": {"estimator": "forward_gradient", "per": "batch", "queries": 4},
    "forward gradient, a direction per image": {"estimator": "forward_gradient", "per": "image", "queries": 1},
    "two-point, 4 directions": {"estimator": "spsa", "per": "batch", "queries": 4},
    "two-point, a direction per image": {"estimator": "spsa", "per": "image", "queries": 1},
    "one-sided, 4 directions": {"estimator": "one_sided", "per": "batch", "queries": 4},
}
COMPARED = 2000  # test images of CIFAR-100
EPOCHS = 10  # of two steps, in a lesson by which displacements are compared
CLASSES, ROUNDS, STEPS, WARM = 4, 3, 3, 1  # steps in each round, after those that are not counted
Row = dict[str, Any]


def main() -> None:
    """Measure what the options name, row by row; a file that has a row already is gone on with."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="the result file, such as results/device.json")
    parser.add_argument("--work", type=Path, default=Path("build/device"), help="where runs and bundles are made")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--install", action="store_true", help="also measure fresh environments")
    parser.add_argument("--only", default="", help="rows whose names begin so, such as bundle or step")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(_child(json.loads(options.child))))
        return
    from zofc.evidence.devices import agreement_table, device_table, install_table

    rows: list[Row] = json.loads(options.out.read_text("utf-8"))["rows"] if options.out.exists() else []
    sources = {
        "agreement": _agreements(options.work / "cifar100"),
        "displacement": _displacements(options.threads),
        "occupied": iter([("occupied, torch", {"package": "torch"}, partial(_occupied, "torch"))]),
    }
    kind = options.only.partition(",")[0]
    some = [sources[kind]] if kind in sources else [*sources.values()]
    if kind not in sources:
        some.append(_measurements(options.work, options.threads, options.install))
    for key, about, measure in chain(*some):
        if key.startswith(options.only) and not any(row["key"] == key for row in rows):
            rows.append({"key": key, **about, **measure()})
            print(json.dumps(rows[-1]), flush=True)
            _write(options.out, rows, options.threads)
    print(*(table(rows).markdown() for table in (device_table, agreement_table, install_table)), sep="\n")


def _write(path: Path, rows: Sequence[Row], threads: int) -> None:
    import torch

    from zofc.runfolder import write_atomic
    from zofc.training.device import environment

    about = {"threads": threads, "environment": environment(torch.device("cpu"))}
    write_atomic(path, json.dumps({**about, "rows": list(rows)}, indent=1) + "\n")


@cache
def _many_classes(settings: tuple[str, ...], work: Path) -> Path:
    """A run that has learned the classes of CIFAR-100 from ten images each."""
    from zofc.recipe import load_recipe
    from zofc.training.runs import start_run, train

    given = [
        "data.source=cifar100",
        "data.increment=100",
        "data.per_class=10",
        f"data.test_per_class={COMPARED // 100}",
    ]
    run = start_run(load_recipe("ridge/base", [*given, "training.device=cpu", *settings]), work)
    train(run)
    return run.path


def _agreement(settings: tuple[str, ...], work: Path, precision: str) -> Row:
    """How many test images `predict.onnx` answers as torch does."""
    from zofc.export.writer import export_run

    with tempfile.TemporaryDirectory() as folder:
        run, bundle = _many_classes(settings, work), Path(folder) / "bundle"
        agreement = export_run(run, bundle, precision, predict_only=True, compared=COMPARED).agreement
    if isinstance(agreement, str):
        raise RuntimeError(agreement)
    return agreement._asdict()


def _agreements(work: Path) -> Iterator[Measurement]:
    for title, (settings, _) in BACKBONES.items():
        for precision in PRECISIONS:
            about = {"backbone": title, "precision": precision}
            yield f"agreement, {title}, {precision}", about, partial(_agreement, settings, work, precision)


def _displacements(threads: int) -> Iterator[Measurement]:
    for title, (settings, _) in BACKBONES.items():
        about = {"backbone": title, "estimator": "forward_gradient", "steps": 2 * EPOCHS}
        yield f"displacement, {title}", about, partial(_displacement, settings, threads)


def _displacement(settings: tuple[str, ...], threads: int) -> Row:
    """How far adapter and rows of the two engines end from each other after a lesson of two batches of four images in
    each epoch, over how far torch's went. Of the graphs, the lesson needs three."""
    import torch

    import zofc_device
    from zofc import Learner
    from zofc.export.graphs import learning_sources
    from zofc.export.writer import export_run
    from zofc_device.model import Model

    rng = np.random.default_rng(0)
    images = [rng.integers(0, 255, (96, 96, 3)).astype(np.uint8) for _ in range(12)]
    given = ["optimize.peft.estimator=forward_gradient", "training.device=cpu", "training.batch_size=4",
             f"training.threads={threads}", "training.check_adapter=false"]  # fmt: skip
    given += [f"optimize.{group}.epochs={EPOCHS}" for group in ("peft", "head")]
    learner = Learner("zofc/base", [*settings, *given])
    learner.learn({"a": images[:2], "b": images[2:4]})
    lesson = {"x": images[4:8], "y": images[8:]}

    def some_sources(*of: Any) -> Iterator[Any]:
        return (source for source in learning_sources(*of) if source.name in ("enter", "features", "tangents"))

    with tempfile.TemporaryDirectory() as folder, mock.patch("zofc.export.writer.learning_sources", some_sources):
        learner.save(Path(folder) / "run")
        export_run(Path(folder) / "run", Path(folder) / "bundle")
        device = zofc_device.load(Path(folder) / "bundle", threads=threads)
        begin = Model(device.bundle, device.extractor, device.bundle.read())
        begin.extend(list(lesson))
        device.learn(lesson)
    learner.learn(lesson)
    assert device.model is not None
    ends, found = learner.model.state_dict(), {}
    for part, names in (("adapter", begin.adapter), ("rows", ["head.rows.1"])):
        starts, own = ([torch.from_numpy(of.tensors[name]) for name in names] for of in (begin, device.model))
        moved = sum(float((ends[name] - start).square().sum()) for name, start in zip(names, starts, strict=True))
        apart = sum(float((ends[name] - one).square().sum()) for name, one in zip(names, own, strict=True))
        found[part] = (apart / moved) ** 0.5
    return found


def _occupied(package: str) -> Row:
    """The bytes of the files of a package and of those that it requires, in this environment."""
    names, sizes = [package], dict[str, int]()
    while names:
        found = None
        with suppress(PackageNotFoundError):
            found = distribution(names.pop())
        if found is not None and found.name not in sizes:
            places = [Path(str(found.locate_file(file))) for file in found.files or ()]
            sizes[found.name] = sum(place.stat().st_size for place in places if place.is_file())
            needed = [line for line in found.requires or () if "extra ==" not in line]
            names += [re.split(r"[^\w.-]", line.strip(), maxsplit=1)[0] for line in needed]
    return {"installed_bytes": sum(sizes.values()), "version": distribution(package).version}


Measurement = tuple[str, Row, Callable[[], Row]]  # key of the row, what it is about, the numbers


def _measurements(work: Path, threads: int, install: bool) -> Iterator[Measurement]:
    for title, (settings, batch) in BACKBONES.items():
        run, images = _small_run(title, settings, work)
        bundles = {precision: _export(run, work / f"{run.name}-{precision}", precision) for precision in PRECISIONS}
        for precision, bundle in bundles.items():
            about = {"backbone": title, "precision": precision}
            yield f"bundle, {title}, {precision}", about, partial(_sizes, bundle)
        engines = {f"ONNX Runtime, {precision}": {"bundle": str(bundle)} for precision, bundle in bundles.items()}
        yield from _steps(title, {**engines, "torch": {"run": str(run)}}, {"batch": batch, "threads": threads})
        for precision, bundle in bundles.items():
            about = {"backbone": title, "engine": f"zofc-device learn, {precision}"}
            yield f"learn, {title}, {precision}", about, partial(_learn_memory, bundle, images, threads)
    if install:
        root = Path(__file__).resolve().parent.parent
        for package, place in (("zofc-device", root / "device"), ("zofc", root)):
            yield f"install, {package}", {"package": package}, partial(_installed, place)


def _steps(backbone: str, engines: dict[str, Row], task: Row) -> Iterator[Measurement]:
    for step, plan in ESTIMATES.items():
        in_turns = cache(partial(_in_turns, engines, {**task, "plan": plan}))
        for engine in engines:
            about = {"backbone": backbone, "engine": engine, "step": step, "batch": task["batch"]}
            yield f"step, {backbone}, {engine}, {step}", about, partial(_of_engine, in_turns, engine)


# -- what is measured ------------------------------------------------------------------------------------------------


def _small_run(title: str, settings: Sequence[str], work: Path) -> tuple[Path, Path]:
    """A run that has learned one task of a few noisy pictures, and a folder of two further classes."""
    from zofc.recipe import load_recipe
    from zofc.training.runs import start_run, train

    photos, more = work / "pictures", work / "more"
    for folder, names in ((photos, "abcd"), (more, "xy")):
        for number, name in enumerate(names):
            (folder / name).mkdir(parents=True, exist_ok=True)
            for i in range(4):
                pixels = np.random.default_rng([number, i, len(names)]).integers(0, 255, (96, 96, 3)).astype(np.uint8)
                Image.fromarray(pixels).save(folder / name / f"{i}.png")
    given = [f"data.source=folder:{photos}", f"data.increment={CLASSES}", "optimize.peft.epochs=1",
             "optimize.head.epochs=1", "optimize.peft.estimator=forward_gradient", "training.device=cpu"]  # fmt: skip
    run = start_run(load_recipe("zofc/base", [*given, *settings]), work / title.partition(",")[0].lower())
    train(run)
    return run.path, more


def _export(run: Path, bundle: Path, precision: str) -> Path:
    """A bundle, which is made if it is not there."""
    from zofc.export.writer import export_run

    if not bundle.exists():
        export_run(run, bundle, precision)
    return bundle


def _sizes(bundle: Path) -> Row:
    sizes = {file.name: file.stat().st_size for file in sorted(bundle.iterdir()) if not file.name.startswith(".")}
    return {"bundle_bytes": sum(sizes.values()), "files": sizes}


def _in_child(task: Row) -> Row:
    words = [sys.executable, __file__, "--out", "-", "--child", json.dumps(task)]
    out = subprocess.run(words, check=True, capture_output=True, text=True).stdout
    return dict(json.loads(out.splitlines()[-1]))


def _in_turns(engines: dict[str, Row], task: Row) -> dict[str, Row]:
    """The median time of a step and the peak memory of each engine."""
    rounds = [{engine: _in_child({**task, **own}) for engine, own in engines.items()} for _ in range(ROUNDS)]
    return {
        engine: {
            "milliseconds": statistics.median(one[engine]["milliseconds"] for one in rounds),
            "peak_rss": max(one[engine]["peak_rss"] for one in rounds),
        }
        for engine in engines
    }


def _of_engine(in_turns: Callable[[], dict[str, Row]], engine: str) -> Row:
    return in_turns()[engine]


def _learn_memory(bundle: Path, images: Path, threads: int) -> Row:
    """Peak memory of `zofc-device learn` with as little memory as it takes, on copies of the bundle."""
    memory = 1
    while True:
        with tempfile.TemporaryDirectory() as folder:
            copy = shutil.copytree(bundle, Path(folder) / "bundle")
            words = ["learn", str(copy), str(images), "--threads", str(threads), "--memory", f"{memory}MB"]
            found = _in_child({"words": words})
        if not found["status"]:
            return {"peak_rss": found["peak_rss"], "memory": f"{memory}MB"}
        if "needs about " not in found["error"] or memory > 10_000:
            raise RuntimeError(found["error"])
        memory = int(found["error"].partition("needs about ")[2].split(" MB")[0]) + 3  # for one image at a time


def _installed(package: Path) -> Row:
    """Size of an environment with nothing but a package and what it needs, and the seconds of its first import."""
    with tempfile.TemporaryDirectory() as folder:
        venv.create(folder, with_pip=True)
        python = str(Path(folder, "bin", "python"))
        files = Path(folder, "lib").rglob
        before = sum(file.lstat().st_size for file in files("*") if file.is_file())
        subprocess.run([python, "-m", "pip", "install", "-q", "--no-compile", str(package)], check=True)
        size = sum(file.lstat().st_size for file in files("*") if file.is_file()) - before
        name = "zofc_device" if package.name == "device" else "zofc"
        code = f"import time; t = time.perf_counter(); import {name}; print(time.perf_counter() - t)"
        seconds = [
            float(subprocess.run([python, "-c", code], check=True, capture_output=True, text=True).stdout)
            for _ in range(3)
        ]
        return {"installed_bytes": size, "import_seconds": round(seconds[-1], 3)}


# -- a step, in a process of its own ---------------------------------------------------------------------------------


def _child(task: Row) -> Row:
    if "words" in task:
        from zofc_device.cli import main as zofc_device

        with redirect_stderr(io.StringIO()) as error:
            status = zofc_device(task["words"])
        return {"status": status, "error": error.getvalue(), "peak_rss": _peak_memory()}
    rng = np.random.default_rng(0)
    targets = rng.integers(0, CLASSES, size=(int(task["batch"]),))
    step = (_torch_step if "run" in task else _device_step)(task, rng, targets)
    seconds = []
    for number in range(WARM + STEPS):
        clock = time.perf_counter()
        step(number)
        seconds.append(time.perf_counter() - clock)
    return {"milliseconds": round(1e3 * statistics.median(seconds[WARM:]), 2), "peak_rss": _peak_memory()}


def _peak_memory() -> int:
    """Of this process since it began; getrusage has that of the process that it was forked from."""
    line = next(line for line in Path("/proc/self/status").read_text("utf-8").splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


def _device_step(task: Row, rng: np.random.Generator, targets: np.ndarray[Any, Any]) -> Callable[[int], object]:
    from zofc_device.heads import Head
    from zofc_device.learner import Learner
    from zofc_device.steps import Placement

    learner = Learner(task["bundle"], threads=task["threads"])
    model = learner.model
    assert model is not None
    model.extend([f"new {number}" for number in range(CLASSES)])
    plans = {**model.plans, "peft": replace(model.plans["peft"], **task["plan"])}
    placement = Placement(plans, Head(model.kind, model.in_loss), model.seed, 1)
    size = int(learner.bundle.manifest["views"]["size"])
    pixels = rng.integers(0, 255, (task["batch"], size, size, 3)).astype(np.uint8)
    return lambda number: placement.step(model.tensors, model.adapter, model.extractor, pixels, targets, 0, number)


def _torch_step(task: Row, rng: np.random.Generator, targets: np.ndarray[Any, Any]) -> Callable[[int], object]:
    import torch

    from zofc.data.views import normalise
    from zofc.optim.placement import Placement
    from zofc.recipe import change_recipe
    from zofc.runfolder import open_run
    from zofc.training.device import set_up
    from zofc.training.incremental_model import IncrementalModel

    recipe = change_recipe(open_run(task["run"]).recipe, [f"training.threads={task['threads']}"])
    set_up(torch.device("cpu"), recipe.training)
    model = IncrementalModel(recipe, torch.device("cpu"))
    for start in (0, CLASSES):
        model.extend([f"class {start + number}" for number in range(CLASSES)])
    changed = recipe.optimize["peft"].model_copy(update={**task["plan"], "chunk": task["plan"]["queries"]})
    plans = {**recipe.optimize, "peft": changed}
    placement = Placement(model.method, model.method.groups(), plans, recipe.seed, 1)
    size = model.backbone.image_size
    pixels = torch.from_numpy(rng.integers(0, 255, (task["batch"], 3, size, size)).astype(np.uint8))
    images = normalise(pixels, model.test_view.mean, model.test_view.std)
    labels = torch.from_numpy(targets + CLASSES)
    return lambda number: placement.step(images, labels, 0, number)


if __name__ == "__main__":
    main()
