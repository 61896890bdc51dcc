"""The files of a bundle: the manifest with checksums, the state that learning changes, the lock against two writers;
and the errors that name them."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from zofc_device.directions import Array

FORMAT, VERSIONS = "zofc-bundle", (3, 2)  # manifests of version 2 have no checksum
STATE_FORMAT, STATE_VERSION = "zofc-bundle-state", "2"
MANIFEST, PROJECTION = "manifest.json", "projection.safetensors"
STATE, PROGRESS = "state.safetensors", "progress.safetensors"  # the latter while a lesson is under way
DTYPES = {"float64": "F64", "float32": "F32", "int64": "I64", "int32": "I32", "uint8": "U8", "bool": "BOOL"}
REMEDY = "export the run again, or restore the file from a copy"


class DeviceError(Exception):
    """Anything the user can fix: the message names the file or setting and the remedy."""


class BundleError(DeviceError):
    """A bundle that is damaged, of another version, locked, or cannot be written."""


class State(NamedTuple):
    """Tensors by name, and the rest as JSON has it."""

    tensors: dict[str, Array]
    values: dict[str, Any]


class Bundle:
    """A folder that `zofc export` made, its immutable files verified."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        file = self.path / MANIFEST
        try:
            content = json.loads(file.read_bytes())
        except FileNotFoundError as error:
            raise BundleError(f"{self.path}: not a bundle, it has no {MANIFEST}; make one with zofc export") from error
        except (OSError, ValueError) as error:
            raise BundleError(f"{file}: cannot be read ({error}); {REMEDY}") from error
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            raise BundleError(f"{file}: not the manifest of a bundle: its format is not {FORMAT}")
        if content.get("version") not in VERSIONS:
            raise BundleError(
                f"{file}: version {content.get('version')!r}; this zofc-device reads version {VERSIONS[0]}: export the "
                "run again, with the zofc that this zofc-device came with"
            )
        if (content["version"] > 2 or "checksum" in content) and content.get("checksum") != manifest_checksum(content):
            raise BundleError(f"{file}: damaged, it was changed since its export (its checksum differs); {REMEDY}")
        self.manifest: dict[str, Any] = content
        for name, entry in content["files"].items():
            self._verify(self.path / name, entry["sha256"])
        self._projections: dict[int, Array] = {}

    def _verify(self, file: Path, expected: str) -> None:
        try:
            with file.open("rb") as content:
                actual = hashlib.file_digest(content, "sha256").hexdigest()
        except OSError as error:
            raise BundleError(f"{file}: {error.strerror}; {REMEDY}") from error
        if actual != expected:
            raise BundleError(f"{file}: damaged, its checksum differs from the manifest's; {REMEDY}")

    def read(self, name: str = STATE) -> State:
        """The state, or that of a lesson under way."""
        file = self.path / name
        drop = "drop the interrupted lesson with --restart (restart=True)"
        restore = drop if name == PROGRESS else "restore it from a copy, or export the run again"
        if not file.exists():
            raise BundleError(f"{file}: missing; {restore}")
        try:
            with safe_open(file, framework="numpy") as content:
                metadata = content.metadata() or {}
                tensors = {key: content.get_tensor(key) for key in content.keys()}  # noqa: SIM118 not a dict
            known = metadata.get("format") == STATE_FORMAT and metadata.get("version") == STATE_VERSION
            values = json.loads(metadata["state"])
            whole = known and metadata["checksum"] == checksum(tensors, metadata["state"]) and isinstance(values, dict)
        except (OSError, SafetensorError, ValueError, KeyError, TypeError) as error:
            raise BundleError(f"{file}: damaged, it cannot be read; {restore}") from error
        if not whole:
            raise BundleError(f"{file}: damaged, its checksum or version differs; {restore}")
        if strange := _not_finite(tensors):
            raise BundleError(f"{file}: damaged, '{strange}' holds values that are not finite; {restore}")
        return State(tensors, values)

    def write(self, state: State, name: str = STATE) -> None:
        """Replace a state: a reader sees the old file or the new one, never a part of it."""
        file, temporary, text = self.path / name, self.path / f".{name}.tmp", json.dumps(state.values)
        if strange := _not_finite(state.tensors):
            raise DeviceError(f"'{strange}' became infinite or undefined, so nothing was saved; check the images")
        tensors = {key: np.ascontiguousarray(value).reshape(value.shape) for key, value in state.tensors.items()}
        metadata = {"format": STATE_FORMAT, "version": STATE_VERSION, "checksum": checksum(tensors, text)}
        outcome, remedy = "what was saved before is intact", "free some space, or make the folder writable"
        try:
            with temporary.open("wb") as content:
                content.write(save(tensors, {**metadata, "state": text}))
                content.flush()
                os.fsync(content.fileno())
            temporary.replace(file)
            outcome, remedy = "the new state was saved, but a power cut now could undo it", "check the disk"
            folder = os.open(self.path, os.O_RDONLY)
            try:
                os.fsync(folder)  # of the new name
            finally:
                os.close(folder)
        except OSError as error:
            temporary.unlink(missing_ok=True)
            raise BundleError(f"{file}: {error.strerror}; {outcome}: {remedy}") from error

    def projection(self, size: int) -> Array:
        """The random projection of a width, (features, size); orthogonal ones begin with the same columns, and only the
        largest of them is stored."""
        if size not in self._projections:
            file, own = self.path / PROJECTION, f"projection.{size}"
            try:
                with safe_open(file, framework="numpy") as content:
                    names = list(content.keys())
                    stored = content.get_tensor(own if own in names else names[0])
            except (OSError, SafetensorError) as error:
                raise BundleError(f"{file}: missing, or cannot be read; {REMEDY}") from error
            if stored.shape[1] < size:
                raise BundleError(f"{file}: no projection of width {size}; {REMEDY}")
            self._projections = {size: np.ascontiguousarray(stored[:, :size])}
        return self._projections[size]

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Inside, no other process writes to the bundle."""
        try:
            file = (self.path / ".lock").open("a")
        except OSError as error:
            raise BundleError(f"{self.path}: cannot be written: {error.strerror}; copy the bundle elsewhere") from error
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise BundleError(f"{self.path}: another process is learning; wait until it has finished") from error
            yield


def _not_finite(tensors: Mapping[str, Array]) -> str | None:
    """The first tensor with a value that is not finite."""
    return next((name for name, value in tensors.items() if not np.isfinite(value).all()), None)


def manifest_checksum(manifest: Mapping[str, Any]) -> str:
    """sha256 of all but the checksum, as JSON with sorted keys and without spaces."""
    rest = {key: value for key, value in manifest.items() if key != "checksum"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def checksum(tensors: Mapping[str, Array], values: str) -> str:
    """sha256 of the JSON text, then of names, types, shapes and values of the tensors, in the order of the names."""
    code = hashlib.sha256(values.encode())
    for name in sorted(tensors):
        value = tensors[name]
        code.update(json.dumps([name, DTYPES[str(value.dtype)], list(value.shape)]).encode())
        code.update(value.tobytes())
    return code.hexdigest()
