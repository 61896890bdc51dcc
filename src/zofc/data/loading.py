"""Batches for training and testing, of images kept on the device or decoded one by one by workers: processes, or
threads, which a program that has threads of its own needs (a process forked from it may wait forever for a lock).

Batch k of an epoch is a pure function of the epoch's name and k: order and crops are drawn here, whichever
way the pixels come, so a resumed run skips the batches it has seen at no cost. On CUDA a batch is made while
the step before it runs: its few kernels are queued on a stream of their own before that step's batch is handed over.
"""

from __future__ import annotations

import os
import signal
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import islice
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from zofc import seeds
from zofc.data.decoding import IN_MEMORY, image_sizes
from zofc.data.source import ArrayImages, Images, ImageSet
from zofc.data.views import Crops, TestView, TrainView, normalise, resample, upload
from zofc.errors import DataError

Route = Literal["auto", "workers", "device"]
Batch = tuple[Tensor, Tensor]  # inputs (n, 3, s, s) float32, labels (n,) int64
Cut = tuple[Tensor, Tensor]  # which images (n,), their pixels 0…255 (n, 3, s, s)
PIECE = 8  # images that a thread decodes at a time
AHEAD = 2  # batches that threads make at a time


@dataclass(frozen=True)
class Request:
    """A batch to be made: which images and, for the training view, where each is cut."""

    indices: NDArray[np.int64]
    crops: Crops | None  # None: the test view

    def part(self, where: slice) -> Request:
        """Some images of the batch, each cut as in the whole of it."""
        crops = None if self.crops is None else Crops(self.crops.boxes[where], self.crops.flips[where])
        return Request(self.indices[where], crops)

    def pieces(self, size: int) -> Iterator[Request]:
        """The same batch in requests of at most `size` images."""
        return (self.part(slice(start, start + size)) for start in range(0, len(self.indices), size))


@dataclass(frozen=True)
class BatchSequence:
    """Batches in order, each made when it is asked for; some of them without the others."""

    make: Callable[[slice], Iterator[Batch]]  # those of a slice of their numbers

    def __iter__(self) -> Iterator[Batch]:
        return self.make(slice(None))

    def every(self, start: int, step: int) -> Iterator[Batch]:
        """Each `step`-th batch from number `start` on."""
        return self.make(slice(start, None, step))


class Loader:
    """Serves one image set in batches, on the device; with `stream`, training batches are left on the host.

    A step then takes to the device what it works on. They are cut on the CPU: on the device there is never more of
    the images than that.
    """

    def __init__(
        self,
        image_set: ImageSet,
        *,
        train_view: TrainView,
        test_view: TestView,
        device: torch.device | str,
        path: Route = "auto",
        workers: int = 2,
        threads: bool = False,  # whether workers are threads of this process
        stream: bool = False,
        ahead: bool | None = None,  # whether a batch is begun before it is asked for; by default on CUDA
        keep: int = 0,  # bytes for images that were decoded and cut for the test view, for the next time
    ) -> None:
        self.image_set = image_set
        self.train_view, self.test_view = train_view, test_view
        self.device = torch.device(device)
        self.workers, self.threads = workers, threads
        self.stream = stream
        self.trained: NDArray[np.int64] | None = None  # the images that epochs are made of; None: all
        self.kept: dict[tuple[int, str], list[Cut]] = {}  # the test view's, by the size of a batch and which of them
        self.made_on = torch.device("cpu") if stream else self.device
        self.ahead = self.made_on.type == "cuda" if ahead is None else ahead
        if path == "auto" and stream and self.device.type == "cuda":
            path = "workers"  # only other processes can cut images on the CPU while this one is at a step
        # asked for once, and only if wanted: some sources draw their images when asked
        self.array = None if path == "workers" else image_set.images.array
        fits = self.array is not None and self.array.nbytes <= IN_MEMORY
        self.path = path if path != "auto" else "device" if fits else "workers"
        size = len(image_set) * 3 * test_view.size**2
        self.kept_bytes = size if self.path == "workers" and size <= keep else 0
        if self.path == "device" and self.array is None:
            raise DataError("training.loading: 'device' needs images of one size in memory; use auto or workers")

    @property
    def epoch_size(self) -> int:
        """Images in an epoch."""
        return len(self.image_set) if self.trained is None else len(self.trained)

    def steps(self, batch_size: int) -> int:
        """Batches in an epoch; the last may be smaller."""
        return -(-self.epoch_size // batch_size)

    def epoch_order(self, rng_name: Sequence[str | int]) -> NDArray[np.int64]:
        """The images of an epoch in its order."""
        seed, *name = rng_name
        among = len(self.image_set) if self.trained is None else self.trained
        return seeds.stream(int(seed), *name, "order").permutation(among)

    def train_batches(
        self,
        batch_size: int,
        rng_name: Sequence[str | int],
        which: slice = slice(None),
        augment: bool = True,
        part: Callable[[int], slice] = slice,
    ) -> Iterator[Batch]:
        """The batches `which` of an epoch, in the test view if not `augment`; `rng_name` is (seed, name…). `part` says
        which images of a batch of so many are made, all by default."""
        seed, *name = rng_name
        order = self.epoch_order(rng_name)

        def requests() -> Iterator[Request]:
            for step in range(self.steps(batch_size))[which]:
                indices = order[step * batch_size : (step + 1) * batch_size]
                rng = seeds.stream(int(seed), *name, "crops", step)
                crops = self.train_view.draw(self.sizes[indices], rng) if augment else None
                yield Request(indices, crops).part(part(len(indices)))

        return self._serve(requests(), self.train_view if augment else self.test_view)

    def test_batches(
        self, batch_size: int, indices: NDArray[np.int64] | None = None, which: slice = slice(None)
    ) -> Iterator[Batch]:
        """All images in order, or those of `indices`, with the test view; the batches `which` alone."""
        order = np.arange(len(self.image_set)) if indices is None else indices
        requests = (Request(order[k : k + batch_size], None) for k in range(0, len(order), batch_size)[which])
        kept = (batch_size, str(which)) if self.kept_bytes and indices is None else None
        batches = self._serve(requests, self.test_view, kept)
        return ((images.to(self.device, non_blocking=True), labels.to(self.device)) for images, labels in batches)

    @cached_property
    def sizes(self) -> NDArray[np.int64]:
        """Height and width of every image (n, 2), read once."""
        return image_sizes(self.image_set.images if self.array is None else ArrayImages(self.array))

    @cached_property
    def labels(self) -> Tensor:
        """Labels of all images, on the device where batches are made."""
        return torch.from_numpy(self.image_set.labels.copy()).to(self.made_on)

    @cached_property
    def pixels(self) -> Tensor:
        """All images (n, height, width, 3), on the device once."""
        assert self.array is not None
        return torch.from_numpy(np.require(self.array, requirements="W")).to(self.made_on)

    @cached_property
    def test_resamplings(self) -> tuple[Tensor, Tensor]:
        """The test view of images of one size: the same two matrices for all of them."""
        _, height, width, _ = self.pixels.shape
        return self.test_view.resamplings(height, width, self.made_on)

    def _serve(
        self, requests: Iterator[Request], view: TrainView | TestView, kept: tuple[int, str] | None = None
    ) -> Iterator[Batch]:
        batches = self._make(requests, view, kept)
        return make_ahead(batches, self.made_on, self.path == "device") if self.ahead else batches

    def _make(
        self, requests: Iterator[Request], view: TrainView | TestView, kept: tuple[int, str] | None
    ) -> Generator[Batch]:
        mean, std = (
            None if stat is None else torch.tensor(stat, device=self.made_on) for stat in (view.mean, view.std)
        )
        pinned = self.stream and self.device.type == "cuda"
        for indices, pixels in self._cuts(requests, kept):
            places = indices.to(self.made_on, non_blocking=True)
            yield normalise(pixels.to(self.made_on, non_blocking=True), mean, std, pinned), self.labels[places]

    def _cuts(self, requests: Iterator[Request], kept: tuple[int, str] | None) -> Iterator[Cut]:
        """Cut images, as they are made or as they were kept when all batches of this size were made before."""
        by_workers = self._by_threads if self.threads else self._by_processes
        if self.path == "device":
            yield from self._at_once(requests)
        elif kept is None:
            yield from by_workers(requests)
        elif kept in self.kept:
            yield from self.kept[kept]
        else:
            cuts = []
            for cut in by_workers(requests):
                cuts.append((cut[0].clone(), cut[1].clone()))  # out of what is shared with the worker
                yield cut
            self.kept = {kept: cuts}

    def _at_once(self, requests: Iterator[Request]) -> Iterator[Cut]:
        for request in requests:
            indices = upload(request.indices, self.made_on)
            images = self.pixels[indices]
            if request.crops is None:
                yield indices, resample(images, *self.test_resamplings)
            else:
                yield indices, self.train_view.cut_batch(images, request.crops)

    @property
    def _cutter(self) -> Cutter:
        return Cutter(self.image_set.images, self.train_view, self.test_view)

    def _by_threads(self, requests: Iterator[Request]) -> Iterator[Cut]:
        """Few images are decoded by the thread that asks for them, which nothing is faster than."""
        cutter = self._cutter
        if not self.workers or len(self.image_set) <= PIECE:
            yield from map(cutter.cut, requests)
            return
        pool = ThreadPoolExecutor(self.workers, "decoding")
        try:
            begun = ([pool.submit(cutter.cut, piece) for piece in request.pieces(PIECE)] for request in requests)
            upcoming = deque(islice(begun, AHEAD))
            while upcoming:
                indices, pixels = zip(*(piece.result() for piece in upcoming.popleft()), strict=True)
                upcoming.extend(islice(begun, 1))
                yield torch.cat(indices), torch.cat(pixels)
        finally:
            pool.shutdown(cancel_futures=True)

    def _by_processes(self, requests: Iterator[Request]) -> Iterator[Cut]:
        batches = DataLoader(
            self._cutter,
            batch_size=None,  # a request is a whole batch
            sampler=requests,  # read in this process
            num_workers=self.workers,
            pin_memory=self.made_on.type == "cuda",
            generator=torch.Generator(),  # torch's global one stays untouched
            worker_init_fn=_leave_stopping_to_the_trainer,
        )
        for cut in batches:
            if isinstance(cut, DataError):
                raise cut
            yield cut


def make_ahead(batches: Generator[Batch], device: torch.device, threaded: bool = True) -> Iterator[Batch]:
    """The same batches, each begun before the one before it is handed over; on CUDA they are made on a stream beside
    the step's. In a thread of its own the next batch is drawn while a step waits for the device; what worker processes
    make needs none, and would not outlive it well. An error waits until its batch is asked for."""
    side = _side_stream(device) if device.type == "cuda" else None
    if side is not None:
        side.wait_stream(torch.cuda.current_stream(device))
    with ThreadPoolExecutor(1, "batches") as thread:
        submit = thread.submit if threaded else _here
        upcoming = submit(_begin, batches, side)
        try:
            while (batch := upcoming.result()) is not None:
                if side is not None:
                    user = torch.cuda.current_stream(device)
                    user.wait_stream(side)
                    for tensor in batch:
                        tensor.record_stream(user)  # its memory is not made into another batch while in use there
                upcoming = submit(_begin, batches, side)
                yield batch
        finally:
            wait([upcoming])  # a generator cannot be closed while it makes a batch
            batches.close()


def _here(work: Callable[..., Batch | None], *given: Any) -> Future[Batch | None]:
    """What a thread would do, done here."""
    future: Future[Batch | None] = Future()
    try:
        future.set_result(work(*given))
    except Exception as error:
        future.set_exception(error)
    return future


def _begin(batches: Iterator[Batch], side: torch.cuda.Stream | None) -> Batch | None:
    with nullcontext() if side is None else torch.cuda.stream(side):
        return next(batches, None)


@cache
def _side_stream(device: torch.device) -> torch.cuda.Stream:
    """One for all loaders: the memory that a stream has worked in is kept for it."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def _leave_stopping_to_the_trainer(_worker: int) -> None:
    """Ctrl-C, `timeout` and a closed terminal signal the whole process group; the trainer finishes its step and saves,
    so its workers must go on: they form a group of their own."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(os, "setpgid"):  # not on every platform
        os.setpgid(0, 0)


@dataclass(frozen=True)
class Cutter(Dataset[Cut | DataError]):
    """Makes batches in a worker: 8-bit pixels, a quarter of what floats would cost to hand over."""

    images: Images
    train_view: TrainView
    test_view: TestView

    def __getitem__(self, request: Request) -> Cut | DataError:
        try:
            return self.cut(request)
        except DataError as error:  # as a value: a DataLoader would bury its message in a traceback
            return error

    def cut(self, request: Request) -> Cut:
        """The images of a request, decoded and cut."""
        images = (self.images.load(int(index)) for index in request.indices)
        if (crops := request.crops) is None:
            pixels = [self.test_view.cut(image) for image in images]
        else:
            cuts = zip(images, crops.boxes, crops.flips, strict=True)
            pixels = [self.train_view.cut(image, box, bool(flip)) for image, box, flip in cuts]
        return torch.from_numpy(request.indices), torch.stack(pixels)
