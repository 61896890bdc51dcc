"""Files of a multipart request, read one at a time within the limits of their number and bytes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import Request
from starlette.datastructures import UploadFile

from zofc.errors import UnreadableImage
from zofc.limits import UPLOAD_FILE_BYTES
from zofc.teach.problems import Refusal
from zofc.units import format_bytes, printable

NAME_LETTERS = 200  # of a file, as answers repeat it
BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["files"],
                    "properties": {"files": {"type": "array", "items": {"type": "string", "format": "binary"}}},
                }
            }
        },
    }
}


@asynccontextmanager
async def uploaded(request: Request, most: int) -> AsyncIterator[list[UploadFile]]:
    """The files of a request, in temporary files where they are large."""
    if not request.headers.get("content-type", "").startswith("multipart/form-data"):
        raise Refusal("no files were sent", "Send them as multipart/form-data, each in a part named 'files'.")
    async with request.form(max_files=most, max_fields=10, max_part_size=1000) as form:
        files = [part for part in form.getlist("files") if isinstance(part, UploadFile)]
        if not files:
            raise Refusal("no files were sent", "Send each file in a part named 'files'.")
        yield files


def file_name(file: UploadFile) -> str:
    """What a user calls a file, to be repeated in answers only."""
    return printable(file.filename or "picture")[-NAME_LETTERS:]


def content(file: UploadFile) -> bytes:
    """All bytes of a file, which are refused if they are too many."""
    if (file.size or 0) > UPLOAD_FILE_BYTES:
        size, most = format_bytes(file.size or 0), format_bytes(UPLOAD_FILE_BYTES)
        raise UnreadableImage(file_name(file), f"it has {size}, more than the limit of {most}", "Scale it down.")
    file.file.seek(0)
    return file.file.read()
