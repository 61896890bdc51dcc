"""Loading: batch k is the same whatever was skipped, with any number of workers, whichever way it came."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from zofc.data import ArrayImages, EncodedImages, ImageSet, Loader, TestView, TrainView
from zofc.data.loading import Route
from zofc.errors import DataError

HALF = (0.5, 0.5, 0.5)
EPOCH = (1993, "task", 2, "epoch", 5)


def in_memory(n: int = 23, height: int = 12, width: int = 16) -> ImageSet:
    array = np.random.default_rng(0).integers(0, 256, (n, height, width, 3), np.uint8)
    return ImageSet(ArrayImages(array), np.arange(n) % 5)


def as_files(images: ImageSet) -> ImageSet:
    """The same images, encoded without loss."""
    items = []
    for i in range(len(images)):
        buffer = io.BytesIO()
        images.images.load(i).save(buffer, "PNG")
        items.append(buffer.getvalue())
    return ImageSet(EncodedImages(items, [f"image {i}" for i in range(len(items))]), images.labels)


def loader(images: ImageSet, path: Route = "auto", workers: int = 0, size: int = 8) -> Loader:
    return Loader(
        images,
        train_view=TrainView(size, mean=HALF, std=HALF),
        test_view=TestView(size, size + 1, mean=HALF, std=HALF),
        device="cpu",
        path=path,
        workers=workers,
    )


Batches = list[tuple[torch.Tensor, torch.Tensor]]


def same(ours: Batches, theirs: Batches, tolerance: float = 0.0) -> None:
    assert len(ours) == len(theirs)
    for (images, labels), (others, other_labels) in zip(ours, theirs, strict=True):
        assert torch.equal(labels, other_labels)
        assert (images - others).abs().max() <= tolerance


def test_an_epoch_shows_every_image_once_and_keeps_the_small_last_batch() -> None:
    serve = loader(in_memory())
    batches = list(serve.train_batches(10, EPOCH))
    assert [len(labels) for _, labels in batches] == [10, 10, 3]
    assert len(batches) == serve.steps(10)
    assert torch.bincount(torch.cat([labels for _, labels in batches])).tolist() == [5, 5, 5, 4, 4]
    images, labels = batches[0]
    assert images.shape == (10, 3, 8, 8)
    assert images.is_contiguous()
    assert (images.dtype, labels.dtype) == (torch.float32, torch.int64)
    assert -1 <= images.min() < -0.5 < 0.5 < images.max() <= 1


@settings(max_examples=20)
@given(st.integers(0, 8), st.integers(1, 25), st.sampled_from(["device", "workers"]), st.booleans())
def test_any_start_gives_the_tail(start: int, batch_size: int, path: Route, augment: bool) -> None:
    serve = loader(in_memory(), path)
    whole = list(serve.train_batches(batch_size, EPOCH, augment=augment))
    same(list(serve.train_batches(batch_size, EPOCH, start=start, augment=augment)), whole[start:])


def test_epochs_differ_in_order_and_in_crops() -> None:
    serve = loader(in_memory())
    one, again, other = (list(serve.train_batches(23, (1, "epoch", e))) for e in (0, 0, 1))
    same(one, again)
    assert not torch.equal(one[0][1], other[0][1])
    by_label = [batch[0][batch[1] == 0].sum() for batch in (one[0], other[0])]
    assert by_label[0] != by_label[1]


@pytest.mark.parametrize("workers", [1, 2])
def test_any_number_of_workers_gives_the_same_bits(workers: int) -> None:
    images = as_files(in_memory())
    alone, helped = loader(images), loader(images, workers=workers)
    same(list(helped.train_batches(4, EPOCH)), list(alone.train_batches(4, EPOCH)))
    same(list(helped.test_batches(5)), list(alone.test_batches(5)))


def test_both_ways_give_the_same_batches_to_within_rounding() -> None:
    images = in_memory(40, 20, 24)
    device, workers = loader(images, "device"), loader(as_files(images), "workers")
    step = 2 / 255 / 0.5 + 1e-6  # at most two of 255 steps, on inputs divided by 0.5
    same(list(device.train_batches(8, EPOCH)), list(workers.train_batches(8, EPOCH)), step)
    same(list(device.test_batches(16)), list(workers.test_batches(16)), step)


def test_without_augmentation_training_uses_the_test_view() -> None:
    serve = loader(in_memory())
    (images, labels), *_ = serve.train_batches(23, EPOCH, augment=False)
    (tested, tested_labels), *_ = serve.test_batches(23)
    order = torch.cdist(images.flatten(1), tested.flatten(1)).argmin(1)
    assert torch.equal(images, tested[order])
    assert torch.equal(labels, tested_labels[order])
    assert sorted(order.tolist()) == list(range(23)) != order.tolist()


def test_test_batches_come_in_order() -> None:
    for path in ("device", "workers"):
        batches = list(loader(in_memory(), path).test_batches(9))
        assert torch.cat([labels for _, labels in batches]).tolist() == [i % 5 for i in range(23)]


def test_the_way_is_chosen_by_what_the_images_are() -> None:
    assert loader(in_memory()).path == "device"
    assert loader(as_files(in_memory())).path == "workers"
    assert loader(in_memory(), "workers").path == "workers"
    with pytest.raises(DataError, match=r"training\.loading: 'device' needs images of one size in memory"):
        loader(as_files(in_memory()), "device")


def test_images_too_large_for_the_device_go_to_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zofc.data.loading.IN_MEMORY", 1000)
    assert loader(in_memory()).path == "workers"


def test_images_of_all_sizes_are_served(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    files = []
    for i, (width, height) in enumerate([(9, 30), (40, 8), (16, 16), (8, 8), (100, 70)]):
        Image.fromarray(rng.integers(0, 256, (height, width, 3), np.uint8)).save(tmp_path / f"{i}.png")
        files.append(tmp_path / f"{i}.png")
    images = ImageSet(EncodedImages(files, [str(f) for f in files]), np.arange(5))
    serve = loader(images)
    assert serve.sizes.tolist() == [[30, 9], [8, 40], [16, 16], [8, 8], [70, 100]]
    for batches in (serve.train_batches(2, EPOCH), serve.test_batches(2)):
        assert [tuple(images.shape) for images, _ in batches] == [(2, 3, 8, 8), (2, 3, 8, 8), (1, 3, 8, 8)]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_file_that_breaks_during_the_run_is_named(tmp_path: Path, workers: int) -> None:
    files = []
    for i in range(6):
        files.append(tmp_path / f"{i}.png")
        Image.new("RGB", (9, 9), (i, 0, 0)).save(files[-1])
    serve = loader(ImageSet(EncodedImages(files, [str(f) for f in files]), np.arange(6)), workers=workers)
    assert len(list(serve.train_batches(2, EPOCH))) == 3
    files[4].unlink()
    with pytest.raises(DataError) as caught:
        list(serve.train_batches(2, EPOCH))
    assert str(caught.value).startswith(f"cannot read image {files[4]}: ")
    assert "Traceback" not in str(caught.value)


@pytest.mark.parametrize("path", ["device", "workers"])
def test_loading_leaves_torch_s_generator_alone_and_an_empty_set_has_no_batches(path: Route) -> None:
    torch.manual_seed(0)
    before = torch.get_rng_state()
    list(loader(in_memory(), path).train_batches(8, EPOCH))
    assert torch.equal(torch.get_rng_state(), before)
    empty = loader(in_memory().take(np.arange(0)), path)
    assert empty.steps(8) == 0
    assert list(empty.train_batches(8, EPOCH)) == list(empty.test_batches(8)) == []


def test_pixels_that_may_not_be_written_are_served_too() -> None:
    images = in_memory()
    assert images.images.array is not None
    images.images.array.flags.writeable = False
    assert len(list(loader(images).test_batches(23))) == 1
