"""How an image becomes a model input: random crops for training, the center for testing (the paper, appendix F).

Each view is applied in either of two ways that agree to within rounding: one image at a time with Pillow
(`cut`), or a batch at a time on any device (`cut_batch`). The latter writes Pillow's resampling as two matrix
products per image, one over columns and one over rows, and rounds to 8 bits after each as Pillow does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torchvision.transforms import InterpolationMode
from torchvision.transforms import functional as F

Stat = tuple[float, ...] | None  # a value per channel; None: leave inputs in [0, 1]
Filter = Literal["bilinear", "bicubic"]


@dataclass(frozen=True)
class Crops:
    """Where each image of a batch is cut, and whether it is mirrored."""

    boxes: NDArray[np.int64]  # (n, 4): top, left, height, width
    flips: NDArray[np.bool_]  # (n,)


def draw_crops(
    sizes: NDArray[np.int64],
    scale: tuple[float, float],
    ratio: tuple[float, float],
    flip: float,
    rng: np.random.Generator,
    attempts: int = 10,
) -> Crops:
    """torchvision's RandomResizedCrop rule for many images at once; `sizes` is (n, 2), height and width.

    Area uniform in `scale`, aspect ratio log-uniform in `ratio`; the first of ten attempts that fits is used,
    else the largest centered box whose ratio is allowed.
    """
    n = len(sizes)
    height, width = sizes[:, 0], sizes[:, 1]
    area = height * width * rng.uniform(*scale, (attempts, n))
    aspect = np.exp(rng.uniform(np.log(ratio[0]), np.log(ratio[1]), (attempts, n)))
    w = np.rint(np.sqrt(area * aspect)).astype(np.int64)  # (attempts, n)
    h = np.rint(np.sqrt(area / aspect)).astype(np.int64)
    fits = (w > 0) & (w <= width) & (h > 0) & (h <= height)
    attempt, image = fits.argmax(0), np.arange(n)
    centered_h, centered_w = _centered(height, width, ratio)
    fitted = fits.any(0)
    h = np.where(fitted, h[attempt, image], centered_h)
    w = np.where(fitted, w[attempt, image], centered_w)
    top = np.where(fitted, rng.integers(0, height - h + 1), (height - h) // 2)
    left = np.where(fitted, rng.integers(0, width - w + 1), (width - w) // 2)
    return Crops(np.stack([top, left, h, w], 1), rng.random(n) < flip)


def _centered(
    height: NDArray[np.int64], width: NDArray[np.int64], ratio: tuple[float, float]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The whole image, less what makes it too tall or too wide."""
    low, high = ratio
    tall, wide = width / height < low, width / height > high
    h = np.where(tall, np.rint(width / low), height)
    w = np.where(wide, np.rint(height * high), width)
    return h.astype(np.int64), w.astype(np.int64)


def upload(array: NDArray[Any], device: torch.device) -> Tensor:
    """A small array on a device; on CUDA without waiting for the work that is under way there."""
    host = torch.from_numpy(array)
    return host.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else host.to(device)


def normalise(pixels: Tensor, mean: Stat | Tensor, std: Stat | Tensor, pinned: bool = False) -> Tensor:
    """Pixels 0…255 (n, 3, s, s) as model inputs: in [0, 1], then standardised if there are statistics."""
    device = pixels.device
    inputs = torch.empty(pixels.shape, dtype=torch.float32, device=device, pin_memory=pinned)  # contiguous
    torch.div(pixels, 255, out=inputs)
    if mean is not None and std is not None:
        shift, spread = (torch.as_tensor(stat, device=device).view(-1, 1, 1) for stat in (mean, std))
        inputs.sub_(shift).div_(spread)
    return inputs


@dataclass(frozen=True)
class TrainView:
    """A random crop resized to `size` (bilinear), mirrored with probability `flip`."""

    size: int
    scale: tuple[float, float] = (0.05, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    flip: float = 0.5
    mean: Stat = None
    std: Stat = None

    def draw(self, sizes: NDArray[np.int64], rng: np.random.Generator) -> Crops:
        """Random crops and flips for images of these sizes."""
        return draw_crops(sizes, self.scale, self.ratio, self.flip, rng)

    def cut(self, image: Image.Image, box: Sequence[int], flip: bool) -> Tensor:
        """One image as uint8 (3, size, size)."""
        top, left, height, width = map(int, box)
        resized = F.resized_crop(image, top, left, height, width, [self.size, self.size], InterpolationMode.BILINEAR)
        pixels: Tensor = F.pil_to_tensor(F.hflip(resized) if flip else resized)
        return pixels

    def cut_batch(self, images: Tensor, crops: Crops) -> Tensor:
        """Images uint8 (n, height, width, 3) as whole numbers in float32 (n, 3, size, size)."""
        boxes = upload(crops.boxes, images.device).float()
        flips = upload(crops.flips, images.device)
        window = range(self.size)
        rows = resampling(boxes[:, 0], boxes[:, 2], images.shape[1], self.size, window, "bilinear")
        columns = resampling(boxes[:, 1], boxes[:, 3], images.shape[2], self.size, window, "bilinear")
        columns = torch.where(flips[:, None, None], columns.flip(1), columns)
        return resample(images, rows, columns)


@dataclass(frozen=True)
class TestView:
    """The short side resized to `resize_to`, then the center `size` by `size`."""

    __test__: ClassVar[bool] = False  # not a test case, whatever pytest makes of the name

    size: int
    resize_to: int
    interpolation: Filter = "bicubic"
    mean: Stat = None
    std: Stat = None

    def cut(self, image: Image.Image) -> Tensor:
        """One image as uint8 (3, size, size)."""
        resized = F.resize(image, [self.resize_to], InterpolationMode(self.interpolation))
        pixels: Tensor = F.pil_to_tensor(F.center_crop(resized, [self.size, self.size]))
        return pixels

    def cut_batch(self, images: Tensor) -> Tensor:
        """Images uint8 (n, height, width, 3) as whole numbers in float32 (n, 3, size, size)."""
        return resample(images, *self.resamplings(images.shape[1], images.shape[2], images.device))

    def resamplings(self, height: int, width: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """What `resample` takes for images of one size: rows (1, size, height), columns (1, size, width)."""
        short = min(height, width)
        rows = self._resampling(height, int(self.resize_to * height / short), device)
        return rows, self._resampling(width, int(self.resize_to * width / short), device)

    def _resampling(self, extent: int, resized: int, device: torch.device) -> Tensor:
        start = round((resized - self.size) / 2)  # as torchvision's CenterCrop rounds
        whole = torch.zeros(1, device=device), torch.full((1,), float(extent), device=device)
        return resampling(*whole, extent, resized, range(start, start + self.size), self.interpolation)


def _cubic(x: Tensor) -> Tensor:
    """Keys' kernel with a = −1/2."""
    near = (1.5 * x - 2.5) * x * x + 1
    far = ((2.5 - 0.5 * x) * x - 4) * x + 2
    return torch.where(x < 1, near, torch.where(x < 2, far, torch.zeros_like(x)))


KERNELS: dict[str, Callable[[Tensor], Tensor]] = {"bilinear": lambda x: (1 - x).clamp(min=0), "bicubic": _cubic}


def resampling(start: Tensor, length: Tensor, extent: int, out: int, window: range, kernel: Filter) -> Tensor:
    """Pillow's weights for resizing `length` pixels from `start` on, both (n,), to `out` along one side.

    Only the outputs in `window` are wanted. When shrinking, the kernel is as much wider (antialiasing);
    pixels outside the box have no weight. The result is (n, window, extent).
    """
    device = start.device
    position = torch.arange(window.start, window.stop, device=device, dtype=torch.float32)
    pixel = torch.arange(extent, device=device, dtype=torch.float32) - start[:, None]  # (n, extent), in the box
    center = (2 * position + 1) * length[:, None] / (2 * out)  # (n, window)
    stretch = (length / out).clamp(min=1)[:, None, None]
    weights = KERNELS[kernel]((pixel[:, None, :] + 0.5 - center[:, :, None]).abs() / stretch)
    weights = weights * ((pixel >= 0) & (pixel < length[:, None]))[:, None, :]
    return weights / weights.sum(2, keepdim=True)


def resample(images: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Columns first, then rows, 8 bits after each: (n, height, width, 3) to (n, 3, rows, columns).

    In float32 these are Pillow's pixels but for near-ties; where TF32 is allowed, more of them differ by one.
    So do a fifth of them where Pillow, from version 13 on, takes rows first: if the height shrinks by more
    than twice as many pixels as the width.
    """
    n, height, width, channels = images.shape
    with torch.autocast(images.device.type, enabled=False):
        pixels = images.permute(0, 1, 3, 2).reshape(n, height * channels, width).float()
        pixels = _to_8_bits(torch.matmul(pixels, columns.mT))  # (n, height · channels, columns)
        pixels = pixels.view(n, height, channels * columns.shape[1])
        pixels = _to_8_bits(torch.matmul(rows, pixels))  # (n, rows, channels · columns)
    return pixels.view(n, rows.shape[1], channels, columns.shape[1]).permute(0, 2, 1, 3)


def _to_8_bits(pixels: Tensor) -> Tensor:
    return pixels.add_(0.5).floor_().clamp_(0, 255)
