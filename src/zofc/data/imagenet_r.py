"""ImageNet-R (Hendrycks et al., 2021): renditions of 200 ImageNet classes, 30,000 images.

The published archive has no split, and the splits in use differ from code to code. We take the root's
`train/` and `test/` folders, or its `train.txt` and `test.txt` (a relative path a line), else hold out 20 %
of each class, a pure function of its sorted file names and the seed 1993.
"""

from __future__ import annotations

from pathlib import Path, PurePosixPath

import numpy as np

from zofc.data.file_list import FileList, expect_classes, open_file_lists, read_lines
from zofc.data.folder import list_classes, read_folder, scan, subfolders
from zofc.data.roots import find_root
from zofc.data.selection import hold_out
from zofc.data.source import Source, SourceOptions, refuse_argument, source
from zofc.errors import DataError

IMAGENET_R = "ImageNet-R, Hendrycks et al., imagenet-r.tar (https://github.com/hendrycks/imagenet-r)"
SPLIT_SEED, TEST_FRACTION, PUBLISHED_CLASSES = 1993, 0.2, 200


@source("imagenet-r")
def imagenet_r(argument: str, options: SourceOptions) -> Source:
    """What imagenet-r.tar holds, with a split of its own or ours."""
    refuse_argument("imagenet-r", argument)
    root = find_root("imagenet-r", options, IMAGENET_R)
    lists = [root / "train.txt", root / "test.txt"]
    if {"train", "test"} <= set(subfolders(root)):
        data = read_folder("imagenet-r", root, options)
    elif any(file.exists() for file in lists):
        data = open_file_lists("imagenet-r", *_read_lists(root), options)
    else:
        options.notice(
            "imagenet-r: no train.txt and test.txt in the root, so the split is ours (20 % of each class, "
            "seed 1993); numbers are comparable only within one split"
        )
        classes, listing = list_classes("imagenet-r", scan(root), options)
        train, test = hold_out(listing.labels, classes, TEST_FRACTION, SPLIT_SEED, "imagenet-r")
        data = open_file_lists("imagenet-r", classes, listing.take(train), listing.take(test), options)
    expect_classes("imagenet-r", len(data.classes), PUBLISHED_CLASSES, options.notice)
    return data


def _read_lists(root: Path) -> tuple[tuple[str, ...], FileList, FileList]:
    train, test = _read_list(root / "train.txt"), _read_list(root / "test.txt")
    classes = tuple(sorted({path.parts[0] for path in (*train, *test)}))
    index = {name: label for label, name in enumerate(classes)}

    def listing(paths: list[PurePosixPath]) -> FileList:
        return FileList(root, [str(p) for p in paths], np.array([index[p.parts[0]] for p in paths], np.int64))

    return classes, listing(train), listing(test)


def _read_list(file: Path) -> list[PurePosixPath]:
    paths = []
    for number, line in read_lines(file):
        path = PurePosixPath(line)
        if path.is_absolute() or ".." in path.parts or len(path.parts) < 2:
            raise DataError(f"{file} line {number}: expected CLASS/image.jpg, got '{line}'")
        paths.append(path)
    if not paths:
        raise DataError(f"imagenet-r: {file} is empty")
    return paths
