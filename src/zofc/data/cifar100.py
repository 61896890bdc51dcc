"""CIFAR-100 (Krizhevsky, 2009): 100 classes of 32 px images, 500 to train on and 100 to test on each.

Read from parquet shards if the root has them, else through torchvision, which verifies checksums before it
unpickles anything; downloaded when absent.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from torchvision.datasets import CIFAR100

from zofc.data.roots import data_roots
from zofc.data.selection import select_split
from zofc.data.source import ArrayImages, ImageSet, Source, SourceOptions, refuse_argument, source
from zofc.errors import DataError


@source("cifar100")
def cifar100(argument: str, options: SourceOptions) -> Source:
    """In the root, or else downloaded into it."""
    refuse_argument("cifar100", argument)
    roots = data_roots("cifar100", options)
    known = CIFAR100.base_folder, CIFAR100.filename, "*.parquet"
    root = next((root for root in roots if any(any(root.glob(pattern)) for pattern in known)), roots[0])
    if list(root.glob("*.parquet")):
        from zofc.data.shards import read_parquet  # here, so that only those who read shards wait for pyarrow

        return read_parquet("cifar100", root, options)
    (classes, train), (_, test) = (_read(root, split, options) for split in ("train", "test"))
    checksum = "+".join(md5 for _, md5 in (*CIFAR100.train_list, *CIFAR100.test_list))
    return Source("cifar100", classes, train, test, f"md5:{checksum}")


def _read(root: Path, split: str, options: SourceOptions) -> tuple[tuple[str, ...], ImageSet]:
    present = (root / CIFAR100.base_folder).exists()
    try:
        data = CIFAR100(root, train=split == "train", download=not present)
    except (OSError, RuntimeError) as error:
        if present:
            raise DataError(
                f"{root / CIFAR100.base_folder} is not CIFAR-100 as published (checksums differ or files are "
                "missing), so it was not opened. Delete it to download it again."
            ) from error
        raise DataError(
            f"data.source: cifar100 is not in {root} and could not be downloaded ({error}). Put parquet "
            f"shards or {CIFAR100.filename} (https://www.cs.toronto.edu/~kriz/cifar.html) there, or say "
            "where they are with data.root."
        ) from error
    labels = np.array(data.targets, np.int64)
    chosen = select_split(labels, split, options)
    return tuple(data.classes), ImageSet(ArrayImages(data.data[chosen], f"cifar100 {split}"), labels[chosen])
