"""`zofc-device info|predict|learn|evaluate BUNDLE …`."""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from zofc_device.bundle import DeviceError
from zofc_device.images import ImageError, image_files, undecodable
from zofc_device.learner import Learner


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; errors are one line, with exit status 1."""
    options = _parser().parse_args(arguments)
    try:
        options.command(options)
        sys.stdout.flush()
    except DeviceError as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return 1
    except MemoryError:
        print("error: there is not enough memory; give a smaller --memory, or smaller images", file=sys.stderr)
        return 1
    except BrokenPipeError:  # whoever read the output has stopped; what is left of it goes nowhere
        _silence()
        return 1
    except OSError as error:  # such as an output on a full disk
        _silence()
        name = f"{error.filename}: " if error.filename else ""
        print(f"error: {name}{error.strerror or error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("stopped; the same command goes on from what was saved last", file=sys.stderr)
        return 130
    return 0


def _silence() -> None:
    """Nothing more is printed, at the exit neither."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="zofc-device", description="Predict and learn with a bundle of zofc export.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def add(name: str, command: Any, help: str) -> argparse.ArgumentParser:
        one = commands.add_parser(name, help=help)
        one.add_argument("bundle", type=Path, metavar="BUNDLE", help="folder that zofc export made")
        one.add_argument("--threads", type=int, help="CPU threads, all cores by default")
        one.add_argument("--memory", type=_bytes, help="budget for the memory of the process, such as 200MB")
        one.add_argument("--json", action="store_true", help="print JSON")
        one.set_defaults(command=command)
        return one

    add("info", _info, "what the bundle holds")
    predict = add("predict", _predict, "name the most likely classes of images")
    predict.add_argument("images", type=Path, nargs="+", metavar="IMAGE", help="image files, or folders of them")
    predict.add_argument("--top", type=int, default=3, help="how many classes to name (3)")
    learn = add("learn", _learn, "learn the classes of a folder")
    learn.add_argument("--restart", action="store_true", help="drop an interrupted lesson")
    evaluate = add("evaluate", _evaluate, "accuracy on a folder of labelled images")
    evaluate.add_argument("--learned-only", action="store_true", help="leave out classes that were never learned")
    for one in (learn, evaluate):
        one.add_argument("folder", metavar="FOLDER", help="one sub-folder of images for each class")
    return parser


def _bytes(text: str) -> int:
    size = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmg])(i?)b", text.strip().lower())
    if size is None:
        raise argparse.ArgumentTypeError(f"expected a size such as 200MB or 1.5GiB, got '{text}'")
    return int(float(size[1]) * (1024 if size[3] else 1000) ** (1 + "kmg".index(size[2])))


def _open(options: argparse.Namespace) -> Learner:
    return Learner(
        options.bundle, options.memory, options.threads, lambda text: print(text, file=sys.stderr, flush=True)
    )


def _show(facts: dict[str, Any], as_json: bool) -> None:
    for name, value in {} if as_json else facts.items():
        text = f"{value:.2f}" if isinstance(value, float) else ", ".join(value) if isinstance(value, list) else value
        print(f"{name:10} {text}")
    if as_json:
        print(json.dumps(facts))


def _info(options: argparse.Namespace) -> None:
    learner = _open(options)
    manifest, model = learner.bundle.manifest, learner.model
    facts = {key: manifest[key]["name"] for key in ("method", "backbone")} | {"precision": manifest["precision"]}
    facts |= {"classes": list(learner.classes), "learns": model is not None}
    facts |= {} if model is None else {"tasks": len(model.tasks), "lessons": len(model.values.get("lessons", ()))}
    facts["bytes"] = sum(file.stat().st_size for file in options.bundle.iterdir() if file.is_file())
    _show(facts, options.json)


def _predict(options: argparse.Namespace) -> None:
    learner = _open(options)
    for file in [
        str(file) for path in options.images for file in (_inside(path, learner) if path.is_dir() else [path])
    ]:
        [best] = learner.predict(file, options.top)
        if options.json:
            classes = [{"name": one.name, "probability": one.probability} for one in best]
            print(json.dumps({"image": file, "classes": classes}), flush=True)
        else:
            print(f"{file}: " + ", ".join(f"{one.name} {100 * one.probability:.1f} %" for one in best), flush=True)


def _inside(folder: Path, learner: Learner) -> list[Path]:
    files, ignored = image_files(folder), undecodable(folder)
    if not files:
        raise ImageError("; ".join([f"{folder}: no images", *([ignored] if ignored else [])]))
    if ignored:
        learner.say(f"{folder}: {ignored}")
    return files


def _learn(options: argparse.Namespace) -> None:
    learner = _open(options)
    learner.learn(f"folder:{options.folder}", options.restart)
    _show({"classes": list(learner.classes)}, options.json)


def _evaluate(options: argparse.Namespace) -> None:
    result = _open(options).evaluate(f"folder:{options.folder}", options.learned_only)
    facts = {"accuracy": result.accuracy, "per_class": result.per_class, "left_out": list(result.left_out)}
    _show(facts if options.json else result.per_class | {"all": result.accuracy}, options.json)
