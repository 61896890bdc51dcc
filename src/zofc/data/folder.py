"""`folder:PATH`: your own images, a folder per class, or `train/` and `test/` folders of class folders."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath

import numpy as np

from zofc.data.file_list import FileList, open_file_lists
from zofc.data.formats import REMEDIES, image_suffixes, missing_formats
from zofc.data.roots import find_path
from zofc.data.selection import hold_out
from zofc.data.source import Source, SourceOptions, source
from zofc.errors import DataError
from zofc.units import format_names

TEST_FOLDERS = ("test", "val", "validation")


@source("folder")
def folder(argument: str, options: SourceOptions) -> Source:
    """PATH/class/image.jpg, or PATH/train/class/image.jpg and PATH/test/class/image.jpg."""
    root = find_path("folder", argument, options)
    return read_folder(f"folder:{argument or root}", root, options)


def read_folder(name: str, root: Path, options: SourceOptions) -> Source:
    """The class folders under a root, with its own test set or one held out of each class."""
    if not root.is_dir():
        raise DataError(f"{name}: {root} is not a directory")
    inside = subfolders(root)
    test_folder = next((f for f in TEST_FOLDERS if f in inside), None)
    if "train" in inside and test_folder is not None:
        train, test = scan(root, "train"), scan(root, test_folder)
        if only_test := sorted(set(test.files) - set(train.files)):
            raise DataError(
                f"{name}: class '{only_test[0]}' is in {test.base} but not in {train.base}; a class needs images "
                f"to train on (such classes: {len(only_test)})"
            )
        classes, listing = list_classes(name, train, options, ignored=test.ignored)
        return open_file_lists(name, classes, listing, file_list_of(test, classes), options)
    contents = scan(root, "train" if inside == ["train"] else "")
    classes, listing = list_classes(name, contents, options)
    kept, held = hold_out(listing.labels, classes, options.test_fraction, options.seed, name)
    return open_file_lists(name, classes, listing.take(kept), listing.take(held), options)


@dataclass(frozen=True)
class Scan:
    """What is in the class folders under `base`: the image files of each class, relative to `root`."""

    root: Path
    base: Path
    files: Mapping[str, Sequence[str]]
    ignored: Sequence[str]  # other files, hidden ones apart


def subfolders(root: Path) -> list[str]:
    """Names of the folders in a folder, sorted, hidden ones left out."""
    return sorted(p.name for p in root.iterdir() if p.is_dir() and not p.name.startswith("."))


def scan(root: Path, inside: str = "") -> Scan:
    """All files of known image types in class folders, at any depth; hidden files are passed over."""
    base = root / inside
    loose = [p.relative_to(root) for p in base.iterdir() if p.is_file() and not p.name.startswith(".")]
    suffixes = image_suffixes()
    files: dict[str, list[str]] = {}
    ignored = sorted(p.as_posix() for p in loose)
    for name in subfolders(base):
        inside_class = sorted(file.relative_to(root).as_posix() for file in files_in(base / name))
        files[name] = [file for file in inside_class if PurePath(file).suffix.lower() in suffixes]
        ignored += [file for file in inside_class if PurePath(file).suffix.lower() not in suffixes]
    return Scan(root, base, files, ignored)


def files_in(folder: Path) -> Iterator[Path]:
    """All files at any depth but hidden ones."""
    for inside, _, names in os.walk(folder, followlinks=True):
        yield from (Path(inside, name) for name in names if not name.startswith("."))


def images_in(folder: Path) -> list[Path]:
    """The files of known image types in a folder, at any depth; there must be some. Those in formats that can be
    decoded elsewhere are among them, to be reported one by one."""
    suffixes = {*image_suffixes(), *REMEDIES}
    images = sorted(file for file in files_in(folder) if file.suffix.lower() in suffixes)
    if not images:
        raise DataError(f"{folder}: no images in this folder")
    return images


def list_classes(
    name: str, contents: Scan, options: SourceOptions, ignored: Sequence[str] = ()
) -> tuple[tuple[str, ...], FileList]:
    """The classes in alphabetical order and their files; no class may be empty. Other files, `ignored` among them, are
    named in notices."""
    if not any(contents.files.values()):
        raise DataError(
            f"{name}: no images in class folders under {contents.base}; expected {contents.base}/CLASS/image.jpg"
            + _how_to_read(contents.ignored)
        )
    empty = [label for label, files in contents.files.items() if not files]
    if empty:
        folder = (contents.base / empty[0]).relative_to(contents.root).as_posix()
        raise DataError(
            f"{name}: class folder {contents.base / empty[0]} has no images; add some or remove the folder "
            f"(empty folders: {len(empty)})"
            + _how_to_read([file for file in contents.ignored if file.startswith(f"{folder}/")])
        )
    for text in (*_ignored_files([*contents.ignored, *ignored]), *_doubts(contents)):
        options.notice(f"{name}: {text}")
    classes = tuple(contents.files)
    return classes, file_list_of(contents, classes)


def _ignored_files(files: Sequence[str]) -> Iterator[str]:
    """Which files are ignored and why, images first."""
    missing, readable = missing_formats(files), image_suffixes()
    for (kind, remedy), images in missing.items():
        yield f"ignored {len(images)} {kind} image(s): {format_names(images)}. To read them: {remedy}"
    rest = sorted({*files} - {file for images in missing.values() for file in images})
    outside = [file for file in rest if PurePath(file).suffix.lower() in readable]
    others = [file for file in rest if PurePath(file).suffix.lower() not in readable]
    for images, what in ((outside, "image(s) outside class folders"), (others, "file(s) that are not images")):
        if images:
            yield f"ignored {len(images)} {what}: {format_names(images)}"


def _how_to_read(files: Sequence[str]) -> str:
    """What to add to an error about missing images where some of these files are images of a format not decoded."""
    missing = missing_formats(files).items()
    return "".join(f". To read {len(images)} {kind} image(s) there: {remedy}" for (kind, remedy), images in missing)


def _doubts(contents: Scan) -> Iterator[str]:
    """Signs that the class folders lie deeper than they are looked for."""
    splits = [label for label in contents.files if label.lower() in ("train", *TEST_FOLDERS)]
    if splits:
        yield (
            f"'{splits[0]}' is taken for a class; a split is read from {contents.base}/train/CLASS/image.jpg and "
            f"{contents.base}/test/CLASS/image.jpg (or {' or '.join(TEST_FOLDERS[1:])} for test)"
        )
    nested = [label for label in contents.files if label not in splits and not _has_its_own(contents, label)]
    if nested:
        yield (
            f"all images of class '{nested[0]}' lie in sub-folders of {contents.base / nested[0]}; if those are the "
            f"classes, name the folder that holds them (such classes: {len(nested)})"
        )


def _has_its_own(contents: Scan, label: str) -> bool:
    folder = (contents.base / label).relative_to(contents.root).as_posix()
    return any(file.rpartition("/")[0] == folder for file in contents.files[label])


def file_list_of(contents: Scan, classes: Sequence[str]) -> FileList:
    """The files of these classes, with their labels."""
    files = [file for label in classes for file in contents.files.get(label, ())]
    counts = [len(contents.files.get(label, ())) for label in classes]
    return FileList(contents.root, files, np.repeat(np.arange(len(classes)), counts))
