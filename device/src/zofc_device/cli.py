"""`zofc-device info|predict|learn|evaluate BUNDLE …`."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from zofc_device.errors import DeviceError
from zofc_device.images import image_files
from zofc_device.learner import Learner


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; errors are one line, with exit status 1."""
    options = _parser().parse_args(arguments)
    try:
        options.command(options)
    except DeviceError as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return 1
    except BrokenPipeError:
        return 1
    except MemoryError:
        print("error: there is not enough memory; give a smaller --memory, or smaller images", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("stopped; the same command goes on from what was saved last", file=sys.stderr)
        return 130
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="zofc-device", description="Predict and learn with a bundle of zofc export.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("bundle", type=Path, metavar="BUNDLE", help="folder that zofc export made")
    common.add_argument("--threads", type=int, help="CPU threads, all cores by default")
    common.add_argument(
        "--memory", type=_bytes, help="most memory of the process, such as 200MB; sets the micro-batches"
    )
    common.add_argument("--json", action="store_true", help="print JSON")

    info = commands.add_parser("info", parents=[common], help="what the bundle holds")
    info.set_defaults(command=_info)
    predict = commands.add_parser("predict", parents=[common], help="name the most likely classes of images")
    predict.add_argument("images", type=Path, nargs="+", metavar="IMAGE", help="image files, or folders of them")
    predict.add_argument("--top", type=int, default=3, help="how many classes to name (3)")
    predict.set_defaults(command=_predict)
    learn = commands.add_parser("learn", parents=[common], help="learn the classes of a folder")
    learn.add_argument("folder", metavar="FOLDER", help="one sub-folder of images for each class")
    learn.add_argument("--restart", action="store_true", help="drop an interrupted lesson")
    learn.set_defaults(command=_learn)
    evaluate = commands.add_parser("evaluate", parents=[common], help="accuracy on a folder of labelled images")
    evaluate.add_argument("folder", metavar="FOLDER", help="one sub-folder of images for each class")
    evaluate.add_argument("--learned-only", action="store_true", help="leave out classes that were never learned")
    evaluate.set_defaults(command=_evaluate)
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


def _info(options: argparse.Namespace) -> None:
    learner = _open(options)
    manifest, size = learner.bundle.manifest, sum(f.stat().st_size for f in options.bundle.iterdir() if f.is_file())
    facts = {
        "method": manifest["method"]["name"],
        "backbone": manifest["backbone"]["name"],
        "precision": manifest["precision"],
        "classes": list(learner.classes),
        "tasks": 0 if learner.model is None else len(learner.model.tasks),
        "lessons": 0 if learner.model is None else len(learner.model.values.get("lessons", ())),
        "learns": learner.model is not None,
        "bytes": size,
    }
    if options.json:
        print(json.dumps(facts))
        return
    for name, value in facts.items():
        print(f"{name:10} {', '.join(value) if isinstance(value, list) else value}")


def _predict(options: argparse.Namespace) -> None:
    learner = _open(options)
    for path in options.images:
        for file in image_files(path) if path.is_dir() else [path]:
            [best] = learner.predict(file, options.top)
            if options.json:
                classes = [{"name": one.name, "probability": one.probability} for one in best]
                print(json.dumps({"image": str(file), "classes": classes}), flush=True)
            else:
                print(f"{file}: " + ", ".join(f"{one.name} {100 * one.probability:.1f} %" for one in best), flush=True)


def _learn(options: argparse.Namespace) -> None:
    learner = _open(options)
    learner.learn(f"folder:{options.folder}", options.restart)
    print(json.dumps({"classes": learner.classes}) if options.json else f"{len(learner.classes)} classes are known now")


def _evaluate(options: argparse.Namespace) -> None:
    result = _open(options).evaluate(f"folder:{options.folder}", options.learned_only)
    if options.json:
        print(json.dumps({"accuracy": result.accuracy, "per_class": result.per_class, "left_out": result.left_out}))
        return
    for name, accuracy in result.per_class.items():
        print(f"{name:30} {accuracy:6.2f} %")
    print(f"{'all':30} {result.accuracy:6.2f} %")
