"""Pictures as a browser shows them. Few are decoded at a time, and thumbnails are kept in memory, to a limit."""

from __future__ import annotations

import io
from collections import OrderedDict
from collections.abc import Iterable
from hashlib import blake2b
from pathlib import Path
from threading import Lock

from fastapi.responses import FileResponse, Response
from PIL import Image

from zofc.data.rgb import as_rgb
from zofc.data.source import open_encoded
from zofc.limits import THUMBNAIL_BYTES
from zofc.teach.state import Picture
from zofc.teach.store import PictureStore

QUALITY = 80  # of a JPEG
SHOWN = {".jpg": "image/jpeg", ".png": "image/png", ".gif": "image/gif", ".webp": "image/webp"}


def original(path: Path) -> Response:
    """A picture as it was given; of formats that browsers do not show, a file to download."""
    return FileResponse(path, media_type=SHOWN.get(path.suffix, "application/octet-stream"))


def gallery_digest(pictures: Iterable[Picture]) -> str:
    """Changes with the pictures of a class and with what is told of each."""
    told = [f"{one.id}{one.held_back:d}{one.in_model:d}" for one in pictures]
    return blake2b("".join(told).encode(), digest_size=8).hexdigest()


class Thumbnails:
    """Small pictures of a store, the last ones that were asked for kept in memory."""

    def __init__(self, store: PictureStore, most: int = THUMBNAIL_BYTES) -> None:
        self.store, self.most, self.size = store, most, 0
        self._kept: OrderedDict[tuple[str, int], bytes] = OrderedDict()
        self._lock = Lock()

    def get(self, picture: Picture, size: int) -> Response:
        """A picture as a JPEG within a square of so many pixels."""
        if (data := self._find((picture.id, size))) is None:
            data = self.store.decoding.submit(self._make, picture, size).result()
        return Response(data, media_type="image/jpeg")

    def _make(self, picture: Picture, size: int) -> bytes:
        if (data := self._find((picture.id, size))) is None:  # another request may have made it meanwhile
            data = _shrink(self.store.path(picture), size)
            self._keep((picture.id, size), data)
        return data

    def _find(self, key: tuple[str, int]) -> bytes | None:
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
            return self._kept.get(key)

    def _keep(self, key: tuple[str, int], data: bytes) -> None:
        with self._lock:
            self.size += len(data) - len(self._kept.pop(key, b""))
            self._kept[key] = data
            while self.size > self.most:
                self.size -= len(self._kept.popitem(last=False)[1])


def _shrink(path: Path, size: int) -> bytes:
    with open_encoded(path, path.name) as image:
        image.draft("RGB", (2 * size, 2 * size))
        small = as_rgb(image, path.name)
        small.thumbnail((size, size), Image.Resampling.BILINEAR)
        file = io.BytesIO()
        small.save(file, "jpeg", quality=QUALITY)
    return file.getvalue()
