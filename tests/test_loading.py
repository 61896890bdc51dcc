"""Loading: batch k is the same whatever was skipped, with any number of workers, whichever way it came, and whether
it was made ahead, on the device or left on the host."""

from __future__ import annotations

import io
import multiprocessing
import os
from collections.abc import Callable, Generator
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import ExifTags, Image

from waiting import wait_until
from zofc.data import ArrayImages, EncodedImages, ImageSet, Loader, TestView, TrainView
from zofc.data.loading import Batch, Route, make_ahead
from zofc.errors import DataError
from zofc.recipe import Recipe
from zofc.training.incremental_model import IncrementalModel

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
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


def loader(
    images: ImageSet,
    path: Route = "auto",
    workers: int = 0,
    size: int = 8,
    device: str = "cpu",
    stream: bool = False,
    ahead: bool | None = None,
    keep: int = 0,
) -> Loader:
    return Loader(
        images,
        train_view=TrainView(size, mean=HALF, std=HALF),
        test_view=TestView(size, size + 1, mean=HALF, std=HALF),
        device=device,
        path=path,
        workers=workers,
        stream=stream,
        ahead=ahead,
        keep=keep,
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
    same(list(serve.train_batches(batch_size, EPOCH, which=slice(start, None), augment=augment)), whole[start:])


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


@pytest.mark.parametrize("workers", [0, 2])
def test_kept_test_images_are_the_same_and_are_not_decoded_again(workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    images, bytes_of_all = as_files(in_memory()), 23 * 3 * 8 * 8
    serve = loader(images, workers=workers, keep=bytes_of_all)
    assert serve.kept_bytes == bytes_of_all
    next(serve.test_batches(9))  # not to the end: nothing is kept
    first, train = list(serve.test_batches(9)), list(serve.train_batches(9, EPOCH))
    same(first, list(loader(images).test_batches(9)))
    other_size = list(serve.test_batches(5))
    assert [len(labels) for _, labels in other_size] == [5, 5, 5, 5, 3]
    monkeypatch.setattr(EncodedImages, "load", broken)
    for _ in range(2):
        same(list(serve.test_batches(5)), other_size)
    with pytest.raises(AssertionError, match="decoded again"):
        list(loader(images, keep=bytes_of_all - 1).test_batches(5))
    with pytest.raises(AssertionError, match="decoded again"):
        list(loader(images, keep=bytes_of_all).train_batches(9, EPOCH))
    assert train and loader(in_memory(), "device", keep=bytes_of_all).kept_bytes == 0


def broken(self: EncodedImages, index: int) -> None:
    raise AssertionError("decoded again")


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


def test_a_picture_stored_lying_is_cut_as_if_it_were_stored_upright(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = 6
    served = []
    for lying in (False, True):
        files = [tmp_path / f"{lying}{i}.png" for i in range(4)]
        for seed, file in enumerate(files):
            pixels = np.random.default_rng(seed).integers(0, 256, (40, 9, 3), np.uint8)
            image = Image.fromarray(np.rot90(pixels) if lying else pixels)
            image.save(file, exif=exif if lying else None)
        serve = loader(ImageSet(EncodedImages(files, [str(f) for f in files]), np.arange(4)), workers=0)
        batches = [*serve.train_batches(2, EPOCH), *serve.test_batches(2)]
        served.append([images for images, _ in batches])
    assert all(torch.equal(upright, lying) for upright, lying in zip(*served, strict=True))


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


# --- made ahead ---


@settings(max_examples=20)
@given(st.integers(0, 8), st.integers(1, 25), st.sampled_from(["device", "workers"]), st.booleans())
def test_batches_made_ahead_are_the_same_bits_from_any_start(
    start: int, batch_size: int, path: Route, augment: bool
) -> None:
    plain, ahead = (loader(in_memory(), path, ahead=ahead) for ahead in (False, True))
    whole = list(plain.train_batches(batch_size, EPOCH, augment=augment))
    same(list(ahead.train_batches(batch_size, EPOCH, augment=augment)), whole)
    same(list(ahead.train_batches(batch_size, EPOCH, which=slice(start, None), augment=augment)), whole[start:])
    same(list(ahead.test_batches(batch_size)), list(plain.test_batches(batch_size)))


def test_on_the_cpu_nothing_is_made_ahead_unless_asked_for() -> None:
    assert not loader(in_memory()).ahead


def numbered(count: int, log: list[str], fault: Exception | None = None) -> Generator[Batch]:
    """Batches 0, 1, … that say when they are made; after them an error, if one is given."""
    try:
        for number in range(count):
            log.append(f"make {number}")
            yield torch.tensor([number]), torch.tensor([number])
        if fault is not None:
            log.append("fail")
            raise fault
    finally:
        log.append("close")


def await_entry(log: list[str], entry: str) -> None:
    """Batches are made in a thread of their own."""
    wait_until(lambda: entry in log, pause=0.001)


def test_one_batch_is_made_before_the_one_before_it_is_used_and_no_more_than_one() -> None:
    log: list[str] = []
    for images, _ in make_ahead(numbered(3, log), torch.device("cpu")):
        number = int(images)
        await_entry(log, f"make {number + 1}" if number < 2 else "close")
        log.append(f"use {number}")
    assert log == ["make 0", "make 1", "use 0", "make 2", "use 1", "close", "use 2"]


def test_an_error_ahead_is_raised_when_its_batch_is_asked_for() -> None:
    log: list[str] = []
    batches = make_ahead(numbered(2, log, DataError("broken")), torch.device("cpu"))
    assert [int(next(batches)[0]), int(next(batches)[0])] == [0, 1]
    await_entry(log, "close")
    assert log == ["make 0", "make 1", "fail", "close"]
    with pytest.raises(DataError, match="broken"):
        next(batches)
    assert list(batches) == []


@pytest.mark.parametrize("workers", [0, 2])
def test_what_comes_before_a_broken_file_is_served_though_it_was_met_ahead(tmp_path: Path, workers: int) -> None:
    files = [tmp_path / f"{i}.png" for i in range(6)]
    for i, file in enumerate(files):
        Image.new("RGB", (9, 9), (i, 0, 0)).save(file)
    images = ImageSet(EncodedImages(files, [str(f) for f in files]), np.arange(6))
    serve = loader(images, workers=workers, ahead=True)
    *_, (_, last) = serve.train_batches(2, EPOCH)
    files[int(last[0])].unlink()
    batches = serve.train_batches(2, EPOCH)
    assert len(next(batches)[1]) == len(next(batches)[1]) == 2
    with pytest.raises(DataError, match="cannot read image"):
        next(batches)


def test_an_epoch_that_is_left_early_leaves_nothing_behind() -> None:
    log: list[str] = []
    batches = make_ahead(numbered(9, log), torch.device("cpu"))
    next(batches)
    del batches
    assert log == ["make 0", "make 1", "close"]
    before = set(multiprocessing.active_children())
    at_work = loader(as_files(in_memory()), workers=2, ahead=True).train_batches(2, EPOCH)
    next(at_work)
    workers = set(multiprocessing.active_children()) - before
    assert len(workers) == 2
    for worker in workers:  # what stops the trainer's process group, such as Ctrl-C or `timeout`, does not reach them
        assert os.getpgid(worker.pid or 0) == worker.pid
    del at_work
    assert set(multiprocessing.active_children()) == before


def test_the_matrices_of_the_test_view_are_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made, make = [], TestView.resamplings

    def count(self: TestView, height: int, width: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        made.append((height, width))
        return make(self, height, width, device)

    monkeypatch.setattr(TestView, "resamplings", count)
    serve = loader(in_memory(23, 12, 16))
    same(list(serve.test_batches(5)), list(serve.test_batches(5)))
    assert made == [(12, 16)]


# --- left on the host ---


@pytest.mark.parametrize("path", ["auto", "device", "workers"])
def test_on_the_cpu_a_stream_is_the_same_batches(path: Route) -> None:
    plain, streamed = (loader(in_memory(), path, stream=stream) for stream in (False, True))
    assert streamed.path == plain.path
    same(
        list(streamed.train_batches(4, EPOCH, which=slice(2, None))),
        list(plain.train_batches(4, EPOCH, which=slice(2, None))),
    )
    same(list(streamed.test_batches(5)), list(plain.test_batches(5)))


def test_a_limit_on_memory_leaves_the_images_on_the_host(tiny_recipe: Callable[..., Recipe]) -> None:
    for override, stream in (("training.memory=1GB", True), ("seed=1", False)):
        recipe = tiny_recipe("zofc/base", override)
        assert IncrementalModel(recipe, torch.device("cpu")).loader(in_memory()).stream is stream


# --- on CUDA ---


@needs_cuda
@pytest.mark.parametrize("path", ["device", "workers"])
@pytest.mark.parametrize("augment", [False, True])
def test_a_busy_device_gets_the_same_bits_ahead(path: Route, augment: bool) -> None:
    """The user of a batch is far behind the maker of the next ones, which must not take its memory."""
    images = in_memory(400, 32, 32)
    plain, ahead = (loader(images, path, 0, 64, "cuda", ahead=ahead) for ahead in (False, None))
    assert ahead.ahead
    expected = [(i.cpu(), y.cpu()) for i, y in plain.train_batches(16, EPOCH, augment=augment)]
    for start in (0, 3):
        got = []
        for inputs, labels in ahead.train_batches(16, EPOCH, which=slice(start, None), augment=augment):
            torch.cuda._sleep(5_000_000)  # a few milliseconds of a step
            got.append((inputs + 0, labels + 0))
            del inputs, labels
        same([(i.cpu(), y.cpu()) for i, y in got], expected[start:])
    tested = [(i.cpu(), y.cpu()) for i, y in ahead.test_batches(16)]
    same(tested, [(i.cpu(), y.cpu()) for i, y in plain.test_batches(16)])


@needs_cuda
def test_batches_cut_on_the_device_are_made_without_waiting_for_it() -> None:
    serve = loader(in_memory(100, 32, 32), "device", device="cuda")
    for batches in (serve.train_batches(16, EPOCH), serve.test_batches(16)):
        next(batches)  # images go to the device once
        torch.cuda.set_sync_debug_mode("error")
        try:
            assert len(list(batches)) == 6
        finally:
            torch.cuda.set_sync_debug_mode("default")


@needs_cuda
@pytest.mark.parametrize("path", ["auto", "device", "workers"])
def test_streamed_training_batches_wait_in_pinned_memory_and_take_none_of_the_device(path: Route) -> None:
    serve = loader(in_memory(64, 32, 32), path, 0, 64, "cuda", stream=True)
    before = torch.cuda.memory_allocated()
    for images, labels in serve.train_batches(16, EPOCH):
        assert (images.device.type, labels.device.type) == ("cpu", "cpu")
        assert images.is_pinned()
        assert images.dtype == torch.float32
    assert torch.cuda.memory_allocated() <= before
    assert serve.path == ("device" if path == "device" else "workers")
    for images, labels in serve.test_batches(16):  # whoever takes these does not move them
        assert (images.device.type, labels.device.type) == ("cuda", "cuda")
