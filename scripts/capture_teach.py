"""Makes the picture of `zofc teach` in the README, in a real browser: photographs of three classes are dropped as a
folder, taught and asked for, with one of none of them; a fourth that resembles one of them is added, and the page shows
what was forgotten.

    ZOFC_DATA=DATA python scripts/capture_teach.py

needs Chromium, and below $ZOFC_DATA the data set caltech101 and the weights of DINOv2 ViT-S/14. Pictures of the whole
page (desktop and phone, light and dark) are left in build/.
"""

from __future__ import annotations

import io
import tempfile
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from PIL import Image

from chromium import Chromium
from teach_page import TeachServer, ask, open_page, teach, wait_for_lesson, wait_for_uploads
from zofc.data.source import SourceOptions, open_source

FIRST, LATER, STRANGE = ("butterfly", "elephant", "lobster"), "crayfish", "airplanes"
TRAINED, TRIED = 20, 1  # pictures of each class
WIDTH, HEIGHT = 1280, 860
SHOWN = 960  # pixels, width of the picture
WEIGHTS = "backbones/vit_small_patch14_dinov2.safetensors"
Frames = list[tuple[Image.Image, int]]  # with milliseconds


def photographs(source: str, folder: Path) -> dict[str, list[Path]]:
    """Folders of photographs to teach, and some of each class to ask for."""
    data = open_source(source, SourceOptions(per_class=TRAINED, test_per_class=TRIED))
    names = [name.lower() for name in data.classes]
    tried: dict[str, list[Path]] = {}
    for name in (*FIRST, LATER, STRANGE):
        for kind, part in (("taught", data.train), ("tried", data.test)):
            place = folder / (kind if name in FIRST else f"{kind}-{'later' if name == LATER else 'strange'}") / name
            place.mkdir(parents=True)
            for number, index in enumerate(np.flatnonzero(part.labels == names.index(name))):
                part.images.load(int(index)).save(place / f"{name}-{number + 1}.jpg", quality=92)
        tried[name] = sorted(place.iterdir())
    return tried


def frame(frames: Frames, chromium: Chromium, milliseconds: int) -> None:
    """Keep what the window shows."""
    image = Image.open(io.BytesIO(chromium.view())).convert("RGB")
    frames.append(
        (image.resize((SHOWN, round(image.height * SHOWN / image.width)), Image.Resampling.LANCZOS), milliseconds)
    )


def story(chromium: Chromium, folder: Path, tried: dict[str, list[Path]]) -> Frames:
    """Teach two lessons; what the window showed on the way."""
    frames: Frames = []
    chromium.resize(WIDTH, HEIGHT)
    frame(frames, chromium, 1500)
    chromium.drop("#new-class", [folder / "taught"])
    for name in FIRST:
        wait_for_uploads(chromium, name, TRAINED)
    chromium.run("scrollTo(0, 0)")
    frame(frames, chromium, 2000)
    chromium.click("#teach-button")
    chromium.until("document.getElementById('lesson-bar').position > 0.3")
    frame(frames, chromium, 1200)
    wait_for_lesson(chromium, 1)
    frame(frames, chromium, 1500)
    ask(chromium, [file for name in (*FIRST, STRANGE) for file in tried[name]])
    assert "None of these" in chromium.run("document.querySelector('#answers > li').textContent")
    frame(frames, chromium, 3000)
    chromium.drop("#new-class", [folder / "taught-later"])
    wait_for_uploads(chromium, LATER, TRAINED)
    chromium.run("scrollTo(0, 0)")
    frame(frames, chromium, 1500)
    teach(chromium, 2)
    ask(chromium, [file for name in (*FIRST, LATER) for file in tried[name]])
    chromium.run("scrollTo(0, 0)")
    frame(frames, chromium, 2500)
    assert chromium.run("Boolean(document.querySelector('#before-after .down'))")  # else it is another story
    chromium.run("document.getElementById('messages').replaceChildren()")
    chromium.run("document.getElementById('memory').scrollIntoView({block: 'end'})")
    frame(frames, chromium, 4000)
    return frames


def whole_pages(chromium: Chromium) -> None:
    """Leave pictures of the whole page in build/."""
    for width, height, kind in ((1280, 900, "desktop"), (390, 844, "phone")):
        chromium.resize(width, height)
        for dark in (False, True):
            chromium.prefer(dark)
            chromium.picture(f"photographs-{kind}-{'dark' if dark else 'light'}.png")


def main(
    out: Annotated[Path, typer.Option(help="the picture")] = Path("docs/teach.webp"),
    source: Annotated[str, typer.Option(help="photographs")] = "parquet:caltech101",
    weights: Annotated[str, typer.Option(help="of the backbone")] = WEIGHTS,
    quality: Annotated[int, typer.Option(help="of the picture, 1 to 100")] = 60,
) -> None:
    """Make the picture of the page."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        tried = photographs(source, folder)
        server = TeachServer(folder / "photographs", f"backbone.name={weights}")
        server.start()
        chromium = open_page(server, folder / "profile")
        try:
            frames = story(chromium, folder, tried)
            whole_pages(chromium)
            assert not chromium.complaints, chromium.complaints
        finally:
            chromium.close()
            server.stop()
    images, durations = zip(*frames, strict=True)
    images[0].save(out, save_all=True, append_images=images[1:], duration=durations, loop=0, quality=quality, method=6)
    typer.echo(f"{out}: {len(images)} frames, {out.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    typer.run(main)
