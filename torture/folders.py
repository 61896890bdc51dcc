"""Folders of images: generated trees with odd names, links, pipes and broken files, against an independent reader."""

from __future__ import annotations

import contextlib
import json
import os
import random
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torture.images import encode, hostile_image, pixels
from torture.kinds import Case, kind
from torture.mutate import ESCAPES
from torture.readers import Counts, count_folder
from torture.sandbox import Job
from torture.verdicts import ACCEPTED, Verdict, judge

ODD_NAMES = ("a b", " a", "a ", "-a", "[x]", "ä", "ä", "名前", "a'b", 'a"b', "%s", "x" * 200, "CON", "a\nb", "a\tb",
             "A", "a",
             "🙂", "0", "test", "train", "val", "a.png", *ESCAPES)  # fmt: skip
COUNTED = "counted: "  # what opens the line with the counts


def read_source(spec: str, **options: Any) -> Job:
    """A job that opens a source of images as `zofc run` does and prints the images of each class as JSON."""

    def job() -> object:
        from zofc.cli.application import note, print_error
        from zofc.data.source import SourceOptions, open_source
        from zofc.errors import ZofcError

        try:
            source = open_source(spec, SourceOptions(notice=note, **options))
            labels = [*source.train.labels.tolist(), *source.test.labels.tolist()]
            for images in (source.train.images, source.test.images):
                for index in range(len(images)):
                    images.load(index)
        except ZofcError as error:
            print_error(error)
            return error.exit_code
        counts = {name: labels.count(number) for number, name in enumerate(source.classes)}
        print(COUNTED + json.dumps([*counts.items()]))
        return 0

    return job


def counted(text: str) -> Counts | None:
    """The counts that a job printed."""
    lines = [line.removeprefix(COUNTED) for line in text.splitlines() if line.startswith(COUNTED)]
    return Counts(dict(json.loads(lines[-1]))) if lines else None


def compare(found: Counts, expected: Counts, skipped: int = 0, totals: bool = False) -> str:
    """What differs between the counts of zofc and those of the reader; empty if nothing does. So many images may have
    been left out; `totals`: only the sum over classes is known."""
    if set(found.classes) != set(expected.classes):
        return f"classes {sorted(found.classes)[:6]!r}, the reader has {sorted(expected.classes)[:6]!r}"
    pairs = {name: (count, expected.classes[name]) for name, count in found.classes.items()}
    if totals:
        pairs = {"all classes": (found.images, expected.images)}
    off = {name: pair for name, pair in pairs.items() if not pair[1] - skipped <= pair[0] <= pair[1]}
    return "".join(f"{name!r}: {ours} images, the reader has {theirs}" for name, (ours, theirs) in [*off.items()][:1])


@kind("folders", "folders of images: names, links that lead back, pipes, permissions, nesting, broken files")
def attempt_folder(case: Case) -> Verdict:
    """A generated tree, opened as a source or learned by a run; counts must agree with the reader's."""
    draw = case.random
    root = case.folder / "images"
    broken = build_tree(draw, root)
    spec = f"folder:{root if draw.random() < 0.5 else root.name}"
    skip = draw.random() < 0.3
    learn = draw.random() < 0.15
    if learn:
        words = ["simplecil/base", *case.stage.settings("data.classes=null", f"data.skip_broken={str(skip).lower()}")]
        words = [
            word for word in words if not word.startswith(("data.per", "data.test", "data.classes", "data.source"))
        ]
        outcome = case.run("run", *words, f"data.source={spec}", "-q")
        found = learned_counts(case.folder)
    else:
        outcome = case.call(read_source(spec, skip_broken=skip), f"open_source({spec!r}, skip_broken={skip})")
        found = counted(outcome.text)
    verdict = judge(outcome)
    if verdict.word != ACCEPTED:
        return verdict
    if found is None:
        return Verdict("wrong", "accepted without counts")
    try:
        expected = count_folder(root)
    except OSError as error:
        return Verdict("wrong", f"accepted, but the reader has {error}")
    wrong = compare(found, expected, broken * len(expected.classes) if skip else 0, learn)
    return Verdict("wrong", wrong) if wrong else verdict


def learned_counts(folder: Path) -> Counts | None:
    """What a run learned, from its events and its matrix: its classes, and under '' the images of all of them."""
    runs = [path.parent for path in folder.glob("runs/*/matrix.json")]
    if not runs:
        return None
    matrix = json.loads((runs[0] / "matrix.json").read_text("utf-8"))
    events = [json.loads(line) for line in (runs[0] / "events.jsonl").read_text("utf-8").splitlines()]
    trained = sum(event["images"] for event in events if event["event"] == "task_started")
    names = [name for group in matrix["groups"] for name in group]
    return Counts({**dict.fromkeys(names, 0), names[0]: trained + sum(matrix["counts"])})


# -- trees -----------------------------------------------------------------------------------------------------------


def build_tree(draw: random.Random, root: Path) -> int:
    """Make a tree of class folders with some hostility; the number of files that may be broken."""
    root.mkdir()
    layout = draw.choice(["plain", "plain", "plain", "split", "train", "deep", "loose"])
    bases = {"split": ["train", draw.choice(["test", "val", "validation"])], "train": ["train"]}.get(layout, [""])
    names = [f"class{number}" for number in range(draw.choice([1, 2, 3]))]
    if draw.random() < 0.4:
        names[0] = draw.choice(ODD_NAMES)
    for base in bases:
        for name in dict.fromkeys(names):
            folder = root / base / name / ("inner" if layout == "deep" else "")
            folder.mkdir(parents=True, exist_ok=True)
            for number in range(draw.choice([2, 3, 5])):
                (folder / f"{number}.png").write_bytes(encode(pixels(draw, 8, 8), "PNG"))
    if layout == "loose":
        (root / "loose.png").write_bytes(encode(pixels(draw, 8, 8), "PNG"))
    folders = [path for path in root.rglob("*") if path.is_dir()]
    broken = 0
    for _ in range(draw.choice([0, 1, 1, 2, 3])):
        with contextlib.suppress(FileExistsError):  # drawn before
            broken += draw.choice(HOSTILITIES)(draw, draw.choice(folders), root) or 0
    return broken


def _link_back(draw: random.Random, folder: Path, root: Path) -> None:
    target = draw.choice(["..", ".", str(root.resolve()), "../..", str(folder.resolve()), "nowhere", "loop"])
    (folder / draw.choice(["up", "loop", "link"])).symlink_to(target)


def _two_links(draw: random.Random, folder: Path, root: Path) -> None:
    for number in range(draw.choice([2, 3, 8])):
        (folder / f"up{number}").symlink_to(draw.choice(["..", ".", str(root.resolve())]))


def _link_file(draw: random.Random, folder: Path, _root: Path) -> int:
    (folder / "link.png").symlink_to(
        draw.choice(["0.png", "nowhere.png", "link.png", "/dev/zero", "/etc/passwd", "/dev/null"])
    )
    return 1


def _hard_link(_draw: random.Random, folder: Path, _root: Path) -> None:
    if (folder / "0.png").is_file():
        os.link(folder / "0.png", folder / "hard.png")


def _pipe(draw: random.Random, folder: Path, _root: Path) -> None:
    os.mkfifo(folder / draw.choice(["pipe.png", "pipe", ".pipe.png"]))


def _socket(_draw: random.Random, folder: Path, _root: Path) -> None:
    path = folder / "s.png"
    if path.exists():
        return
    here = Path.cwd()
    os.chdir(folder)  # a path of at most 108 bytes
    try:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(path.name)
    finally:
        os.chdir(here)


def _forbidden(draw: random.Random, folder: Path, _root: Path) -> int:
    path = folder / "closed"
    if draw.random() < 0.5:
        path.mkdir()
        (path / "x.png").write_bytes(b"x")
    else:
        path = folder / "closed.png"
        path.write_bytes(b"x")
    path.chmod(0)
    return 1


def _empty_class(draw: random.Random, _folder: Path, root: Path) -> None:
    (root / draw.choice(["empty", ".hidden", "zz", "test", "train"])).mkdir(exist_ok=True)


def _other_files(draw: random.Random, folder: Path, _root: Path) -> None:
    for name in draw.sample(
        [".DS_Store", "Thumbs.db", "notes.txt", "a.PNG", "b.JPeG", "noending", ".hidden.png", "c.heic", "d.mp4"], 4
    ):
        (folder / name).write_bytes(encode(pixels(draw, 5, 5), "PNG"))


def _odd_file_names(draw: random.Random, folder: Path, _root: Path) -> None:
    name = draw.choice([b"\xff\xfe.png", b"caf\xe9.png", b"a\nb.png", b"\x1b[2J.png", b"\x1b]0;x\x07.png",
                       b"x" * 250 + b".png",
                        b"-rf.png", b"a b.png", "ü.png".encode(), "\u202egnp.png".encode(), b"'.png",
                        b"[red].png"])  # fmt: skip
    with open(os.path.join(os.fsencode(folder), name), "wb") as file:  # noqa: PTH118, PTH123 (bytes)
        file.write(encode(pixels(draw, 5, 5), "PNG"))


def _odd_folder_name(draw: random.Random, folder: Path, root: Path) -> None:
    name = draw.choice([b"\xff\xfe", b"caf\xe9", b"a\nb", b"\x1b[2J", b"x" * 255, b" ", b"-", b"..."])
    path = os.path.join(os.fsencode(draw.choice([folder, root])), name)  # noqa: PTH118
    os.makedirs(path, exist_ok=True)  # noqa: PTH103
    for number in range(3):
        with open(os.path.join(path, b"%d.png" % number), "wb") as file:  # noqa: PTH118, PTH123
            file.write(encode(pixels(draw, 5, 5), "PNG"))


def _broken(draw: random.Random, folder: Path, _root: Path) -> int:
    data, suffix = hostile_image(draw)
    (folder / f"broken.{suffix}").write_bytes(data)
    return 1


def _deep_chain(draw: random.Random, folder: Path, _root: Path) -> None:
    here = folder
    for _ in range(draw.choice([5, 30, 60])):
        here = here / "d"
    here.mkdir(parents=True, exist_ok=True)
    (here / "x.png").write_bytes(encode(pixels(draw, 5, 5), "PNG"))


def _root_is_odd(draw: random.Random, _folder: Path, root: Path) -> None:
    (root / draw.choice(["0.png", "train", "labels.csv"])).touch() if draw.random() < 0.5 else (root / "x").symlink_to(
        root
    )


HOSTILITIES: tuple[Callable[[random.Random, Path, Path], int | None], ...] = (
    _link_back, _two_links, _link_file, _hard_link, _pipe, _socket, _forbidden, _empty_class, _other_files,
    _odd_file_names,
    _odd_folder_name, _broken, _deep_chain, _root_is_odd,
)  # fmt: skip
