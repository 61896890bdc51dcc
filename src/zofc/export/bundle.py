"""The files of a bundle: their names, the manifest that describes the model and lists them, and the state that learning
changes. What does not fit its checksum is refused (docs/reference/bundle.md)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from zofc.errors import BundleError
from zofc.paths import explain_os_error
from zofc.runfolder.files import json_text, write_atomic
from zofc.runfolder.names import RECIPE_FILE
from zofc.runfolder.nested import is_count, is_number

BUNDLE_FORMAT, FORMAT_VERSION = "zofc-bundle", 3
OLD_VERSIONS = (2,)  # which can be read: their manifests have no checksum
STATE_FORMAT, STATE_VERSION = "zofc-bundle-state", "2"
BUNDLE_PRECISIONS = ("fp32", "fp16", "int8", "int4")
MANIFEST_FILE = "manifest.json"
WEIGHTS_FILE = "weights.bin"
STATE_TENSORS = "state.safetensors"
UNFINISHED_LESSON = "progress.safetensors"
PROJECTION_FILE = "projection.safetensors"
BUNDLE_RECIPE = RECIPE_FILE
CODES = {  # of data types, as safetensors names them
    "torch.float64": "F64", "torch.float32": "F32", "torch.float16": "F16", "torch.bfloat16": "BF16",
    "torch.int64": "I64", "torch.int32": "I32", "torch.int8": "I8", "torch.uint8": "U8", "torch.bool": "BOOL",
}  # fmt: skip
ANEW = "export the run again, or restore the file from a copy"


class BundleState(NamedTuple):
    """What a bundle has learned: tensors by name, and the rest as JSON has it."""

    tensors: dict[str, Tensor]
    values: dict[str, Any]


def is_bundle(path: Path) -> bool:
    """Whether a folder is a bundle, of any version."""
    try:
        content = json.loads((path / MANIFEST_FILE).read_bytes())
    except (OSError, ValueError):
        return False
    return isinstance(content, dict) and content.get("format") == BUNDLE_FORMAT


def describe_file(path: Path) -> dict[str, Any]:
    """What the manifest holds of a file."""
    code = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(2**20):
            code.update(block)
    return {"bytes": path.stat().st_size, "sha256": code.hexdigest()}


def manifest_checksum(manifest: Mapping[str, Any]) -> str:
    """sha256 of all but the checksum, as JSON with sorted keys and without spaces."""
    rest = {key: value for key, value in manifest.items() if key != "checksum"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def write_manifest(path: Path, manifest: Mapping[str, Any]) -> None:
    """Write the manifest of a bundle with its checksum."""
    content = json.loads(json_text(manifest))  # as it will be read
    content["checksum"] = manifest_checksum(content)
    write_atomic(path / MANIFEST_FILE, json.dumps(content, indent=1, ensure_ascii=False) + "\n")


def read_manifest(path: Path) -> dict[str, Any]:
    """The manifest of a bundle, all files that it lists being there and unchanged."""
    file = path / MANIFEST_FILE
    try:
        manifest = json.loads(file.read_bytes())
    except FileNotFoundError as error:
        raise BundleError(f"{path}: not a bundle, it has no {MANIFEST_FILE}; make one with zofc export") from error
    except OSError as error:
        raise BundleError(f"{file}: {explain_os_error(error)}") from error
    except ValueError as error:
        raise BundleError(f"{file}: damaged, it is not JSON; {ANEW}") from error
    if not isinstance(manifest, dict) or manifest.get("format") != BUNDLE_FORMAT:
        raise BundleError(f"{file}: not the manifest of a bundle: its format is not {BUNDLE_FORMAT}")
    if (version := manifest.get("version")) not in (FORMAT_VERSION, *OLD_VERSIONS):
        raise BundleError(
            f"{file}: version {version!r} of the format; this zofc reads version {FORMAT_VERSION}: export the run again"
        )
    sealed = version == FORMAT_VERSION or "checksum" in manifest
    if sealed and manifest.get("checksum") != manifest_checksum(manifest):
        raise BundleError(f"{file}: damaged, it was changed since its export (its checksum differs); {ANEW}")
    files: Any = manifest.get("files")
    listed = isinstance(files, dict) and all(isinstance(entry, dict) for entry in files.values())
    graphs: Any = manifest.get("graphs")
    needed = {WEIGHTS_FILE, BUNDLE_RECIPE, *(f"{name}.onnx" for name in graphs or ())}
    if not listed or not isinstance(graphs, dict) or not needed <= files.keys():
        raise BundleError(f"{file}: damaged, it does not list the files of the bundle; {ANEW}")
    for name, entry in files.items():
        _check_file(path, name, entry)
    return manifest


def _check_file(path: Path, name: str, entry: Mapping[str, Any]) -> None:
    if Path(name).name != name:
        raise BundleError(f"{path / MANIFEST_FILE}: damaged, '{name}' is not the name of a file in the bundle")
    try:
        actual = describe_file(path / name)
    except OSError as error:
        raise BundleError(f"{path / name}: {explain_os_error(error)}; {ANEW}") from error
    if actual != entry:
        raise BundleError(f"{path / name}: damaged, its checksum differs from the manifest's; {ANEW}")


# -- the state -------------------------------------------------------------------------------------------------------


def bundle_state_checksum(tensors: Mapping[str, Tensor], values: str) -> str:
    """sha256 of the JSON text, then of names, types, shapes and values of the tensors, in the order of the names."""
    code = hashlib.sha256(values.encode())
    for name in sorted(tensors):
        value = tensors[name].contiguous()
        code.update(json.dumps([name, CODES[str(value.dtype)], list(value.shape)]).encode())
        code.update(value.numpy().tobytes())
    return code.hexdigest()


def pack_state(tensors: Mapping[str, Tensor], values: Mapping[str, Any]) -> bytes:
    """The content of the file of a state."""
    on_host = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    text = json.dumps(values)
    metadata = {
        "format": STATE_FORMAT,
        "version": STATE_VERSION,
        "checksum": bundle_state_checksum(on_host, text),
    }
    return save(on_host, {**metadata, "state": text})


def read_state(path: Path) -> BundleState:
    """The state of a bundle."""
    file = path / STATE_TENSORS
    if not file.exists():
        raise BundleError(f"{file}: missing; a bundle that was exported with --predict-only has no state to import")
    try:
        with safe_open(file, framework="pt") as content:
            metadata = content.metadata() or {}
            tensors = {name: content.get_tensor(name) for name in content.keys()}  # noqa: SIM118 (not a dict)
        if metadata.get("format") != STATE_FORMAT or metadata.get("version") != STATE_VERSION:
            raise BundleError(f"{file}: not the state of a bundle, of version {STATE_VERSION}")
        values = json.loads(metadata["state"])
    except (OSError, SafetensorError, ValueError, KeyError, TypeError, RuntimeError) as error:
        raise BundleError(f"{file}: damaged, it cannot be read; restore it from a copy") from error
    if metadata.get("checksum") != bundle_state_checksum(tensors, metadata["state"]):
        raise BundleError(f"{file}: damaged, its checksum differs; restore it from a copy")
    for name, value in tensors.items():
        if value.is_floating_point() and not bool(value.isfinite().all()):
            raise BundleError(f"{file}: damaged, '{name}' holds values that are not finite; restore it from a copy")
    _check_values(file, values)
    return BundleState(tensors, values)


def _check_values(file: Path, values: Any) -> None:
    """What the state says of classes and tasks must be of one piece."""
    values = values if isinstance(values, dict) else {}
    classes: Any = values.get("classes")
    tasks: Any = values.get("tasks")
    if not _is_list(classes, str) or len(set(classes)) < len(classes):
        raise BundleError(f"{file}: damaged, its names of classes are none; restore it from a copy")
    pairs = isinstance(tasks, list) and all(_is_list(task, int) and len(task) == 2 for task in tasks)
    if not pairs or not tasks or not all(0 <= start <= stop <= len(classes) for start, stop in tasks):
        raise BundleError(f"{file}: damaged, its tasks are not ranges of its classes; restore it from a copy")
    fitted = values.get("calibration")
    if fitted is not None and not _is_calibration(fitted):
        raise BundleError(f"{file}: damaged, its calibration has no scale; restore it from a copy")


def _is_calibration(value: Any) -> bool:
    if not isinstance(value, dict) or value.keys() != {"scale", "images"}:
        return False
    return is_number(value["scale"]) and value["scale"] > 0 and is_count(value["images"])


def _is_list(value: Any, kind: type) -> bool:
    return isinstance(value, list) and all(isinstance(each, kind) for each in value)


def has_learned(path: Path) -> bool:
    """Whether a bundle has learned something since it was exported, or is about to."""
    if not (path / STATE_TENSORS).exists():
        return False
    state = read_state(path)
    return bool(state.values.get("lessons")) or has_unfinished_lesson(path, state)


def has_unfinished_lesson(path: Path, state: BundleState) -> bool:
    """Whether a lesson is under way whose end the state does not hold yet."""
    if not (path / UNFINISHED_LESSON).exists():
        return False
    finished = [entry.get("digest") for entry in state.values.get("lessons", ())]
    try:
        with safe_open(path / UNFINISHED_LESSON, framework="pt") as content:
            lesson = json.loads(content.metadata()["state"])["lesson"]  # none while images are looked at
            return bool(lesson) and lesson not in finished
    except (OSError, SafetensorError, ValueError, KeyError, TypeError):
        return True
