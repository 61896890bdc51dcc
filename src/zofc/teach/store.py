"""The folder of what was taught, inside the run folder: pictures under the digests of their bytes, the models of the
last lessons, and one index that is replaced whole. No picture is removed unless the index says so: one that it does not
name, because its upload was cut short or the index is an older one, is set aside.

A lesson is finished once the index names it. Its model is written before that, and copied to the run itself after it:
a server that is killed in between copies it when it starts again.
"""

from __future__ import annotations

import hashlib
import html
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import RLock

from PIL import Image
from pydantic import ValidationError

from zofc.data.decoding import find_faults
from zofc.data.source import EncodedImages, open_encoded
from zofc.errors import DataError, RunError, UnreadableImage
from zofc.limits import UNDO_LESSONS, UPLOAD_PIXELS
from zofc.runfolder.files import damaged, explain_os_errors, read_if_present, remove_leftovers, write_atomic
from zofc.runfolder.lock import hold_lock
from zofc.runfolder.names import LESSON_MODEL, LESSONS_FOLDER, PICTURES_FOLDER, TAUGHT_FILE, TAUGHT_FOLDER
from zofc.teach.state import Picture, Taught

SUFFIXES = {"jpeg": ".jpg", "mpo": ".jpg", "tiff": ".tif"}

GivenFile = tuple[str, Callable[[], bytes]]  # what a user calls it, and what reads it
DECODED_AT_ONCE = 2  # pictures, whatever for
PRIVATE_FOLDER, PRIVATE_FILE = 0o700, 0o600  # modes: for the user alone
UNCONFIRMED_FOLDER = "unconfirmed"
EXPORTS_FOLDER = "exports"  # files that are being written to be sent
LINK_FILE = ".open.html"  # hidden, so that no export has it


@dataclass
class Intake:
    """What became of files: ids of pictures that are safely kept, ids of those that the class had before, and the names
    of others with reasons."""

    added: list[str] = field(default_factory=list)
    present: list[str] = field(default_factory=list)
    refused: list[tuple[str, str]] = field(default_factory=list)


class PictureStore:
    """What was taught to the run in a folder. `taught` is read by any thread and changed within `change`."""

    def __init__(self, run: Path) -> None:
        self.run = run
        self.folder = run / TAUGHT_FOLDER
        self.pictures = self.folder / PICTURES_FOLDER
        self.unconfirmed = self.folder / UNCONFIRMED_FOLDER
        self.exports = self.folder / EXPORTS_FOLDER
        self.index = self.folder / TAUGHT_FILE
        self.set_aside = 0  # pictures that the index did not name
        self.revision = time.time_ns() // 1_000_000  # grows with every change, also over restarts
        self.in_use: set[str] = set()  # pictures that a lesson is being made from
        # threads of their own, not a semaphore: every thread that has decoded keeps the memory of a large picture
        self.decoding = ThreadPoolExecutor(DECODED_AT_ONCE, "decoding")
        self._lock = RLock()
        self.taught = self._read()

    def _read(self) -> Taught:
        content = read_if_present(self.index)
        if content is None:
            return Taught()
        try:
            return Taught.model_validate_json(content)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"]))
            raise damaged(self.index, f"is damaged at {where or 'its start'}: {first['msg']}") from error

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Hold the sole right to teach this run; what a killed server left unfinished is removed."""
        with explain_os_errors(self.folder):
            self.pictures.mkdir(parents=True, exist_ok=True)
            for folder in (self.folder, self.pictures):  # of older servers, too
                folder.chmod(PRIVATE_FOLDER)
            for folder in (self.run, self.folder):
                sync_folder(folder)
        with hold_lock(self.folder):
            self.taught = self._read()
            self._require_index()
            self._clear_pictures()
            self.clear()
            shutil.rmtree(self.exports, ignore_errors=True)
            yield

    @contextmanager
    def change(self) -> Iterator[Taught]:
        """Change what was taught: inside the block on a copy, which is then written and becomes the present one. Files
        of pictures that it does not have any more are deleted."""
        with self._lock:
            copy = self.taught.model_copy(deep=True)
            yield copy
            copy.deleted = sorted((self.taught.files() | set(self.taught.deleted)) - copy.files())
            write_atomic(self.index, copy.model_dump_json(indent=1) + "\n")
            sync_folder(self.folder)  # or after a loss of power the older index might be back, without these pictures
            self.taught = copy
            self.revision += 1
            self._delete_pictures()

    @contextmanager
    def unchanged(self) -> Iterator[None]:
        """Let nothing be entered inside the block."""
        with self._lock:
            yield

    # -- pictures ----------------------------------------------------------------------------------------------------

    def path(self, picture: Picture) -> Path:
        """The file of a picture."""
        return self.pictures / picture.file

    def add(self, owner: str, files: Iterable[GivenFile]) -> Intake:
        """Take in files. A file is named by its content, never by what a user called it."""
        checked: list[tuple[str, Picture]] = []
        taken = Intake()
        for name, read in files:
            try:
                checked.append((name, self.decoding.submit(self._take, owner, name, read).result()))
            except DataError as error:
                taken.refused.append((name, refusal_reason(error)))
        sync_folder(self.pictures)
        with self.change() as taught:
            for name, picture in checked:
                try:
                    (taken.added if self._enter(taught, picture) else taken.present).append(picture.id)
                except DataError as error:
                    taken.refused.append((name, str(error)))
            taught.hold_back(owner, self.in_use)
        return taken

    def _take(self, owner: str, name: str, read: Callable[[], bytes]) -> Picture:
        """Check a file and write it."""
        data = read()
        picture = Picture(id=content_id(data), suffix=check_picture(data, name), owner=owner)
        write_atomic(self.path(picture), data)
        self.path(picture).chmod(PRIVATE_FILE)
        return picture

    def _enter(self, taught: Taught, picture: Picture) -> bool:
        """Enter a picture whose file is here; False if its class has it already."""
        known = taught.pictures.get(picture.id)
        owner = None if known is None else taught.find(known.owner)
        if taught.find(picture.owner) is None or not self.path(picture).exists():
            raise DataError("its class was removed meanwhile; add it again")
        if known is not None and known.owner == picture.owner and not known.removed:
            return False
        taught.check_room(picture.owner)
        if known is None or owner is None:  # or that of a forgotten class, which may come back without it
            taught.pictures[picture.id] = picture
        elif known.removed and known.owner == picture.owner:
            known.removed = False
        else:
            raise DataError(f"the same picture is in class '{owner.name}' already")
        return True

    def remove(self, number: str) -> None:
        """Remove a picture; one that the model has learned leaves it with the next lesson."""
        with self.change() as taught:
            picture = taught.pictures[number]
            if (picture.in_model and not picture.held_back) or number in self.in_use:
                picture.removed = True
            else:
                del taught.pictures[number]
            taught.hold_back(picture.owner, self.in_use)

    def drop_class(self, number: str) -> None:
        """Remove a class that was never learned, and its pictures."""
        with self.change() as taught:
            taught.classes = [one for one in taught.classes if one.id != number]
            taught.pictures = {key: one for key, one in taught.pictures.items() if one.owner != number}

    # -- the models of lessons ---------------------------------------------------------------------------------------

    def model(self, lesson: int) -> Path:
        """The run folder with the model after a lesson."""
        return self.folder / LESSONS_FOLDER / LESSON_MODEL.format(lesson)

    def clear(self) -> None:
        """Remove the models that no lesson can be undone to, and pictures that no class can have any more."""
        with self._lock:
            kept = self.kept_models()
            for folder in (self.folder / LESSONS_FOLDER).glob("*"):
                if folder.name not in {LESSON_MODEL.format(number) for number in kept}:
                    shutil.rmtree(folder, ignore_errors=True)
            reachable = self.taught.reachable(kept[:-1]) | self.in_use
            if not reachable.issuperset(self.taught.pictures):
                with self.change() as taught:
                    taught.pictures = {key: one for key, one in taught.pictures.items() if key in reachable}

    def _delete_pictures(self) -> None:
        for name in self.taught.deleted:
            (self.pictures / name).unlink(missing_ok=True)
        self.taught.deleted = []

    def _require_index(self) -> None:
        """Refuse pictures without their index, which is written before the first of them is taken."""
        lost = 0 if self.index.exists() else sum(1 for _ in self.pictures.glob("[0-9a-f]*"))
        if lost:
            raise RunError(
                f"{self.index} is missing, but {self.pictures} holds {lost} pictures; restore the file, or move the "
                "folder elsewhere and add the pictures anew"
            )

    def _clear_pictures(self) -> None:
        """Finish deletions that were cut short, and set aside files that the index does not name."""
        remove_leftovers(self.pictures)
        self._delete_pictures()
        unknown = [file for file in self.pictures.glob("[0-9a-f]*") if file.name not in self.taught.files()]
        for file in unknown:
            self.unconfirmed.mkdir(mode=PRIVATE_FOLDER, exist_ok=True)
            file.replace(self.unconfirmed / file.name)
        self.set_aside = len(unknown)

    # -- the link to the page ----------------------------------------------------------------------------------------

    def write_link(self, url: str) -> Path:
        """A file that leads a browser to an address and that nobody else can read."""
        text = html.escape(url)
        page = f'<!doctype html><meta http-equiv="refresh" content="0; url={text}"><a href="{text}">zofc teach</a>\n'
        file = self.folder / LINK_FILE
        file.unlink(missing_ok=True)
        with explain_os_errors(file), os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT, PRIVATE_FILE), "w") as opened:
            opened.write(page)
        return file

    def remove_link(self) -> None:
        """Remove that file."""
        (self.folder / LINK_FILE).unlink(missing_ok=True)

    def kept_models(self) -> list[int]:
        """The present lesson and those before it that can be gone back to."""
        before = {one.number: one.before for one in self.taught.lessons}
        numbers: list[int] = []
        number = self.taught.current
        while number is not None and len(numbers) <= UNDO_LESSONS:
            numbers.append(number)
            number = before.get(number)
        return numbers


def content_id(data: bytes) -> str:
    """The id of a picture."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def check_picture(data: bytes, name: str) -> str:
    """The suffix for the file of a picture; an `UnreadableImage` if it cannot be decoded or has too many pixels."""
    kind = check_pixels(data, name)
    fault = find_faults(EncodedImages([data], [name]))[0]
    if fault is not None:
        raise fault
    return SUFFIXES.get(kind, f".{kind[:5]}")


def check_pixels(data: bytes, name: str) -> str:
    """The format of a picture, by its header; an `UnreadableImage` if it has too many pixels to be decoded."""
    try:
        with open_encoded(data, name) as image:
            if image.width * image.height <= UPLOAD_PIXELS:
                return (image.format or "image").lower()
            size = f"{image.width} × {image.height} pixels"
    except UnreadableImage as error:
        if not isinstance(error.__cause__, Image.DecompressionBombError):
            raise
        size = "more pixels than any picture here may have"  # too many to be opened at all
    raise UnreadableImage(name, f"it has {size}; the limit is {UPLOAD_PIXELS:,} pixels", "Scale it down.")


def refusal_reason(error: DataError) -> str:
    """Why a file was refused and what to do about it, without its name."""
    if not isinstance(error, UnreadableImage):
        return str(error)
    remedy = str(error.args[2])
    return f"{error.reason}. {remedy}".rstrip(". ")


def sync_folder(folder: Path) -> None:
    """Make sure that the names in a folder outlast a loss of power."""
    with suppress(OSError):  # not on every platform
        number = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(number)
        finally:
            os.close(number)
