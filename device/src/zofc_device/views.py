"""How an image becomes a model input: random crops for training, the center for testing, as torchvision cuts them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

ATTEMPTS = 10  # of drawing a crop that fits
FILTERS = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}


@dataclass(frozen=True)
class Views:
    """The test view and the training view of a bundle."""

    size: int
    resize_to: int
    interpolation: str
    augment: str  # crop-flip, or the test view is also that of training
    scale: tuple[float, float]
    ratio: tuple[float, float]
    flip: float
    mean: tuple[float, ...] | None
    std: tuple[float, ...] | None

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> Views:
        """The views that a manifest describes."""
        return cls(**{field.name: settings[field.name] for field in fields(cls)})

    @property
    def varies(self) -> bool:
        """Whether each training view of an image is another one."""
        return self.augment == "crop-flip"

    def test(self, image: Image.Image) -> NDArray[np.uint8]:
        """The short side resized, then the center, (size, size, 3)."""
        short = min(image.size)
        extent = int(self.resize_to * image.width / short), int(self.resize_to * image.height / short)
        resized = image if extent == image.size else image.resize(extent, FILTERS[self.interpolation])
        left, top = (self._center(side) for side in extent)
        return np.asarray(resized.crop((left, top, left + self.size, top + self.size)))

    def _center(self, side: int) -> int:
        """Where the center begins; outside of a smaller image, which is padded."""
        return round((side - self.size) / 2) if side >= self.size else -((self.size - side) // 2)

    def training(self, image: Image.Image, box: NDArray[np.int64], flip: bool) -> NDArray[np.uint8]:
        """A crop resized, (size, size, 3)."""
        top, left, height, width = map(int, box)
        part = image.crop((left, top, left + width, top + height))
        part = part.resize((self.size, self.size), Image.Resampling.BILINEAR) if part.size != (self.size,) * 2 else part
        return np.asarray(part.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if flip else part)

    def normalise(self, pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Pixels 0…255 (n, size, size, 3) as inputs (n, 3, size, size): in [0, 1], then standardised."""
        inputs = np.ascontiguousarray(pixels.transpose(0, 3, 1, 2)).astype(np.float32) / np.float32(255)
        if self.mean is not None and self.std is not None:
            inputs -= np.array(self.mean, np.float32)[:, None, None]
            inputs /= np.array(self.std, np.float32)[:, None, None]
        return inputs

    def draw(self, sizes: NDArray[np.int64], rng: np.random.Generator) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """torchvision's RandomResizedCrop for images of these sizes (n, 2), height and width: boxes (n, 4), top, left,
        height, width, the first of ten attempts that fits, else the largest centered one whose ratio is allowed; and
        which images are mirrored (n,)."""
        n = len(sizes)
        height, width = sizes[:, 0], sizes[:, 1]
        low, high = self.ratio
        area = height * width * rng.uniform(*self.scale, (ATTEMPTS, n))
        aspect = np.exp(rng.uniform(np.log(low), np.log(high), (ATTEMPTS, n)))
        w = np.rint(np.sqrt(area * aspect)).astype(np.int64)  # (attempts, n)
        h = np.rint(np.sqrt(area / aspect)).astype(np.int64)
        fits = (w > 0) & (w <= width) & (h > 0) & (h <= height)
        first, image, fitted = fits.argmax(0), np.arange(n), fits.any(0)
        whole_h = np.where(width / height < low, np.rint(width / low), height).astype(np.int64)
        whole_w = np.where(width / height > high, np.rint(height * high), width).astype(np.int64)
        h = np.where(fitted, h[first, image], whole_h)
        w = np.where(fitted, w[first, image], whole_w)
        top = np.where(fitted, rng.integers(0, height - h + 1), (height - h) // 2)
        left = np.where(fitted, rng.integers(0, width - w + 1), (width - w) // 2)
        return np.stack([top, left, h, w], 1), rng.random(n) < self.flip
