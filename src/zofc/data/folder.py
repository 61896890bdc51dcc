"""`folder:PATH`: your own images, a folder per class, or `train/` and `test/` folders of class folders."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath

import numpy as np

from zofc.data.class_names import check_class_name
from zofc.data.file_list import FileList, open_file_lists
from zofc.data.formats import REMEDIES, image_suffixes, missing_formats
from zofc.data.roots import find_path
from zofc.data.scanning import list_files, list_folder
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
        classes, listing = list_classes(name, train, options, test)
        return open_file_lists(name, classes, listing, file_list_of(test, classes), options)
    contents = scan(root, "train" if inside == ["train"] else "")
    classes, listing = list_classes(name, contents, options)
    kept, held = hold_out(listing.labels, classes, options.test_fraction, options.seed, name)
    return open_file_lists(name, classes, listing.take(kept), listing.take(held), options)


def check_beside(spec: str, options: SourceOptions, path: Path) -> None:
    """Refuse a folder to write to where it would become a class of the images."""
    kind, _, argument = spec.partition(":")
    if kind != "folder":
        return
    root, path = find_path("folder", argument, options).resolve(), path.resolve()
    split = root.is_dir() and "train" in (inside := subfolders(root)) and not {*inside}.isdisjoint(TEST_FOLDERS)
    if path.is_relative_to(root) and not split:
        raise DataError(
            f"the folder of runs, {path}, lies in {root} and would become one of its classes; nothing was written. "
            f"Name another: --runs {root.parent / 'runs'}"
        )


@dataclass(frozen=True)
class Scan:
    """What is in the class folders under `base`: the image files of each class, relative to `root`."""

    root: Path
    base: Path
    files: Mapping[str, Sequence[str]]
    ignored: Sequence[str]  # other files, hidden ones apart
    special: Sequence[str] = ()  # pipes, sockets and devices, which are never opened
    loops: Sequence[str] = ()  # links that lead back, which are not followed


def subfolders(root: Path) -> list[str]:
    """Names of the folders in a folder, sorted, hidden ones left out."""
    return [path.name for path in list_folder(root).folders if not path.name.startswith(".")]


def scan(root: Path, inside: str = "") -> Scan:
    """All files of known image types in class folders, at any depth; hidden files are passed over."""
    base = root / inside
    top, suffixes = list_folder(base), image_suffixes()

    def relative(paths: Sequence[Path]) -> list[str]:
        return sorted(path.relative_to(root).as_posix() for path in paths)

    files: dict[str, list[str]] = {}
    ignored, special, loops = relative(top.files), relative(top.special), []
    for folder in top.folders:
        if folder.name.startswith("."):
            continue
        entries = list_files(folder)
        inside_class = relative(entries.files)
        files[folder.name] = [file for file in inside_class if PurePath(file).suffix.lower() in suffixes]
        ignored += [file for file in inside_class if PurePath(file).suffix.lower() not in suffixes]
        special += relative(entries.special)
        loops += relative(entries.loops)
    _check_names(base, files)
    return Scan(root, base, files, ignored, special, loops)


def _check_names(base: Path, files: Mapping[str, Sequence[str]]) -> None:
    """Names of classes and files are written to files of a run, in UTF-8."""
    for name in (*files, *(file for some in files.values() for file in some)):
        if not _is_utf8(name):
            raise DataError(f"{base}: the name '{name}' is not UTF-8; rename it")
    for name in files:
        try:
            check_class_name(name)
        except DataError as error:
            raise DataError(f"{base}: {error}, and rename the folder") from None


def _is_utf8(name: str) -> bool:
    return name.isascii() or not any("\ud800" <= letter <= "\udfff" for letter in name)


def images_in(folder: Path) -> list[Path]:
    """The files of known image types in a folder, at any depth; there must be some. Those in formats that can be
    decoded elsewhere are among them, to be reported one by one, and so are pipes and devices by such names."""
    suffixes = {*image_suffixes(), *REMEDIES}
    entries = list_files(folder)
    images = sorted(file for file in (*entries.files, *entries.special) if file.suffix.lower() in suffixes)
    if not images:
        raise DataError(f"{folder}: no images in this folder")
    return images


def list_classes(
    name: str, contents: Scan, options: SourceOptions, test: Scan | None = None
) -> tuple[tuple[str, ...], FileList]:
    """The classes in alphabetical order and their files; no class may be empty. What else there is, in the folder of
    the `test` images too, is named in notices."""
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
    for text in (*_ignored_entries([contents] if test is None else [contents, test]), *_doubts(contents)):
        options.notice(f"{name}: {text}")
    classes = tuple(contents.files)
    return classes, file_list_of(contents, classes)


def _ignored_entries(scans: Sequence[Scan]) -> Iterator[str]:
    """What is ignored and why, images first."""
    files, special, loops = (
        [file for one in scans for file in getattr(one, kind)] for kind in ("ignored", "special", "loops")
    )
    missing, readable = missing_formats(files), image_suffixes()
    for (kind, remedy), images in missing.items():
        yield f"ignored {len(images)} {kind} image(s): {format_names(images)}. To read them: {remedy}"
    rest = sorted({*files} - {file for images in missing.values() for file in images})
    outside = [file for file in rest if PurePath(file).suffix.lower() in readable]
    others = [file for file in rest if PurePath(file).suffix.lower() not in readable]
    for entries, what in (
        (outside, "image(s) outside class folders"),
        (others, "file(s) that are not images"),
        (special, "pipe(s), socket(s) or device(s)"),
        (loops, "link(s) that lead back to a folder above or to one that was listed already"),
    ):
        if entries:
            yield f"ignored {len(entries)} {what}: {format_names(entries)}"


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
