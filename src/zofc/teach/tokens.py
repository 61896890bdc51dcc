"""The token of a taught run. It is kept in the run folder, in a file that only the user can read, so that an open page
goes on when the server is stopped and started."""

from __future__ import annotations

import os
import re
import secrets
import stat
from pathlib import Path

from zofc.runfolder.files import explain_os_errors, read_if_present

TOKEN_FILE = ".token"  # hidden, so that no export has it
WRITTEN = re.compile(rb"[A-Za-z0-9_-]{32}\n")


def new_token() -> str:
    """A token that cannot be guessed."""
    return secrets.token_urlsafe(24)


def kept_token(folder: Path, renew: bool = False) -> str:
    """The token that a folder keeps; a new one if it keeps none, if others could have read it, or to `renew` it."""
    file = folder / TOKEN_FILE
    with explain_os_errors(file):
        content = b"" if renew or not _is_private(file) else read_if_present(file) or b""
        if WRITTEN.fullmatch(content):
            return content.decode().strip()
        token, temporary = new_token(), folder / f"{TOKEN_FILE}.new"
        temporary.unlink(missing_ok=True)
        number = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)  # private before it holds anything
        with os.fdopen(number, "w") as opened:
            opened.write(f"{token}\n")
            opened.flush()
            os.fsync(number)
        temporary.replace(file)
    return token


def _is_private(file: Path) -> bool:
    """Whether a file is the user's own and of nobody else's reading."""
    try:
        found = file.lstat()
    except FileNotFoundError:
        return False
    if os.name == "nt":  # folders of users are private there, and modes say nothing
        return stat.S_ISREG(found.st_mode)
    return stat.S_ISREG(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077
