"""Pictures as a browser shows them."""

from __future__ import annotations

import io
from pathlib import Path

from fastapi.responses import FileResponse, Response
from PIL import Image

from zofc.data.rgb import as_rgb
from zofc.data.source import open_encoded

QUALITY = 80  # of a JPEG
SHOWN = {".jpg": "image/jpeg", ".png": "image/png", ".gif": "image/gif", ".webp": "image/webp"}


def original(path: Path) -> Response:
    """A picture as it was given; of formats that browsers do not show, a file to download."""
    return FileResponse(path, media_type=SHOWN.get(path.suffix, "application/octet-stream"))


def thumbnail(path: Path, size: int) -> Response:
    """A picture as a JPEG within a square of so many pixels."""
    with open_encoded(path, path.name) as image:
        image.draft("RGB", (2 * size, 2 * size))
        small = as_rgb(image, path.name)
        small.thumbnail((size, size), Image.Resampling.BILINEAR)
        file = io.BytesIO()
        small.save(file, "jpeg", quality=QUALITY)
    return Response(file.getvalue(), media_type="image/jpeg")
