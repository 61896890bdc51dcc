"""Run folders: one file of a finished or stopped run mutated, then a command that reads it."""

from __future__ import annotations

import json
import os
import random
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from torture.kinds import Case, kind
from torture.mutate import hostile_value, mutate_bytes, mutate_tree
from torture.readers import finite, strict_json
from torture.recipes import as_yaml
from torture.verdicts import ACCEPTED, Verdict, judge
from torture.weights import join_file, split_file

READERS = (
    "show",
    "predict",
    "evaluate",
    "learn",
    "report",
    "watch",
    "resume",
    "flatness",
    "compare",
    "diagnose",
    "forget",
    "replay",
)
DEEP = b"[" * 100_000
SAME = 1e-5  # probabilities that differ by less are the same answer


@kind("run-folders", "files of run folders mutated, removed or swapped, then read by every command", share=1200)
def attempt_run_folder(case: Case) -> Verdict:
    """A command on a copy of a run with one file mutated."""
    draw = case.random
    origin = draw.choice(case.stage.runs)
    run = case.folder / "run"
    shutil.copytree(origin, run)
    damage(draw, run)
    reader = READERS[case.number % len(READERS)]
    words = read_words(case, reader, origin)
    outcome = case.run(*words)
    verdict = judge(outcome)
    if verdict.word == ACCEPTED and reader == "predict" and origin != case.stage.stopped:
        return _same_answers(case, origin, run, outcome.text) or verdict
    return verdict


def read_words(case: Case, reader: str, origin: Path) -> list[str]:
    """The command that reads the folder `run`."""
    photos = str(case.stage.photos)
    return {
        "show": ["show", "run"],
        "predict": ["predict", "run", photos, "--json"],
        "evaluate": ["evaluate", "run", f"folder:{photos}", "--learned-only"],
        "learn": ["learn", "run", f"folder:{case.stage.new_photos}", "-o", "more", "-q"],
        "report": ["report", "run"],
        "watch": ["watch", "run", "--once"],
        "resume": ["run", "--resume", "run", "-q"],
        "flatness": ["flatness", "run", "--images", "1", "--directions", "1", "--probes", "1", "--products", "1"],
        "compare": ["compare", "run", str(origin)],
        "diagnose": ["diagnose", "run/recipe.yaml", "--batches", "1", "--queries", "1"],
        "forget": ["forget", "run", "ant", "-o", "less"],
        "replay": ["replay", "run", "--check", "-o", "replayed.safetensors"],
    }[reader]


def damage(draw: random.Random, run: Path) -> None:
    """Mutate one file of a run, or several."""
    files = sorted(path for path in run.rglob("*") if path.is_file() and path.name != ".lock")
    for _ in range(draw.choice([1, 1, 1, 1, 2, 4])):
        path = draw.choice([file for file in files if file.is_file()] or [run])
        if path.is_file():
            try:
                draw.choice(_ways(path))(draw, path)
            except (ValueError, yaml.YAMLError, struct.error):  # damaged already: no longer what its name says
                _bytes(draw, path)


def _ways(path: Path) -> tuple[Callable[[random.Random, Path], None], ...]:
    """How a file may be damaged, by what it holds."""
    own = {".json": _json, ".jsonl": _lines, ".yaml": _yaml, ".safetensors": _tensors}.get(path.suffix, _bytes)
    return own, own, own, _bytes, _bytes, _whole


def _bytes(draw: random.Random, path: Path) -> None:
    path.write_bytes(mutate_bytes(draw, path.read_bytes()))


def _whole(draw: random.Random, path: Path) -> None:
    match draw.randrange(6):
        case 0:
            path.unlink()
        case 1:
            path.unlink()
            path.mkdir()
        case 2:
            path.write_bytes(draw.choice([b"", b"{}", b"[]", b"null", b"\x00" * 100, b"\xff\xfe", b"{" * 5, DEEP]))
        case 3:
            path.chmod(0)
        case 4:
            path.unlink()
            path.symlink_to(draw.choice(["nowhere", path.name, "/dev/null", "/etc/passwd", ".."]))
        case _:
            others = [other for other in path.parent.iterdir() if other.is_file() and other != path]
            if others:
                shutil.copy(draw.choice(others), path)


def _json(draw: random.Random, path: Path) -> None:
    tree = json.loads(path.read_text("utf-8"))
    path.write_text(dump_json(mutate_tree(draw, tree, draw.choice([1, 1, 2]))), "utf-8", "backslashreplace")


def dump_json(tree: Any) -> str:
    """A tree as JSON, with keys and values that JSON does not have as text."""
    return json.dumps(tree, default=str, skipkeys=True)


def _lines(draw: random.Random, path: Path) -> None:
    lines = path.read_text("utf-8").splitlines()
    place = draw.randrange(len(lines))
    match draw.randrange(5):
        case 0:
            lines[place] = dump_json(hostile_value(draw))
        case 1:
            lines[place:place] = [
                draw.choice(["", "{}", "[]", "null", "{", '{"event": 5}', '{"event": "nosuch"}', "\x00"])
            ]
        case 2:
            lines = lines[:place] + lines[place + 1 :]
        case _:
            tree = json.loads(lines[place])
            lines[place] = dump_json(mutate_tree(draw, tree, draw.choice([1, 2])))
    path.write_text("\n".join(lines) + "\n", "utf-8", "backslashreplace")


def _yaml(draw: random.Random, path: Path) -> None:
    tree = yaml.safe_load(path.read_text("utf-8"))
    path.write_bytes(as_yaml(mutate_tree(draw, tree, draw.choice([1, 1, 2]))))


def _tensors(draw: random.Random, path: Path) -> None:
    data = path.read_bytes()
    header, body = split_file(data)
    names = [name for name in header if name != "__metadata__"]
    match draw.randrange(6):
        case 0 if names:
            header[draw.choice(["x", "optimizer|a|b|c|d", "method|", "optimizer|", ""])] = header.pop(
                draw.choice(names)
            )
        case 1 if names:
            header[draw.choice(names)]["shape"] = draw.choice([[0], [], [2**40], [1, 1]])
        case 2 | 3 | 4 if body:  # numbers that are not finite, or others
            place = 4 * draw.randrange(max(1, len(body) // 4))
            some = draw.choice([b"\x00\x00\xc0\x7f", b"\x00\x00\x80\x7f", b"\xff\xff\xff\xff", draw.randbytes(4)])
            body = body[:place] + some + body[place + 4 :]
        case _:
            header = mutate_tree(draw, header, 1)
    path.write_bytes(join_file(header, body[: len(split_file(data)[1])]))


def _same_answers(case: Case, origin: Path, run: Path, text: str) -> Verdict | None:
    """A verdict if answers are not finite, or not those of the undamaged run although its recipe and state are."""
    try:
        answers = parse_answers(text)
    except ValueError as error:
        return Verdict("wrong", str(error))
    if not finite(list(answers.values())):
        return Verdict("wrong", "a probability is not finite")
    kept = ("recipe.yaml", "checkpoint/state.json", "environment.json")
    if not all((run / name).is_file() and (run / name).read_bytes() == (origin / name).read_bytes() for name in kept):
        return None
    expected = sound_answers(case, origin)
    for image, classes in answers.items():
        before = expected.get(image, {})
        if any(abs(value - before.get(name, value)) > SAME for name, value in classes.items()):
            return Verdict("wrong", f"{Path(image).name}: {classes} where the undamaged run has {before}")
    return None


def parse_answers(text: str) -> dict[str, dict[str, float]]:
    """The probabilities of each image that `predict --json` printed."""
    rows = [strict_json(line) for line in text.splitlines() if line.startswith("{")]
    return {row["image"]: {one["name"]: one["probability"] for one in row.get("classes", ())} for row in rows}


def sound_answers(case: Case, origin: Path) -> dict[str, dict[str, float]]:
    """The answers of an undamaged run, asked for once and kept beside it."""
    file = case.stage.path / f"{origin.name}.answers.jsonl"
    if not file.is_file():
        text = case.run("predict", str(origin), str(case.stage.photos), "--json").text
        part = file.with_name(f".{file.name}.{os.getpid()}")
        part.write_text(text, "utf-8")
        part.replace(file)
    return parse_answers(file.read_text("utf-8"))
