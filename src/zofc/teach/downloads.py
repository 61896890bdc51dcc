"""What a user takes away: the run folder or an ONNX bundle as a ZIP file; and the runs that lie beside this one."""

from __future__ import annotations

import shutil
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path

from fastapi.responses import FileResponse
from starlette.background import BackgroundTask

from zofc.errors import ZofcError
from zofc.runfolder import Run
from zofc.runfolder.files import explain_os_errors
from zofc.runfolder.names import LESSONS_FOLDER, LOCK_FILE, TAUGHT_FOLDER
from zofc.teach.models import RunInfo
from zofc.teach.problems import Refusal
from zofc.teach.store import EXPORTS_FOLDER, PRIVATE_FOLDER, UNCONFIRMED_FOLDER, PictureStore


def runs_beside(run: Path) -> list[RunInfo]:
    """The run folders in the folder of a run."""
    found = []
    for folder in sorted(run.resolve().parent.iterdir()):
        one = Run(folder)
        if one.exists:
            with suppress(ZofcError):
                known = sum(map(len, one.learned)) if one.saved else None
                here = folder.resolve() == run.resolve()
                found.append(RunInfo(name=folder.name, title=one.title, classes=known, current=here))
    return found


def run_zip(store: PictureStore, pictures: bool) -> FileResponse:
    """The run folder, without the models of earlier lessons; without pictures, what others may have of it."""
    with _workplace(store) as place:
        with zipfile.ZipFile(place / "run.zip", "w", zipfile.ZIP_STORED) as archive, store.unchanged():
            for path in sorted(store.run.rglob("*")):
                inside = path.relative_to(store.run)
                if path.is_file() and _is_exported(inside, pictures):
                    archive.write(path, Path(store.run.resolve().name) / inside)
        return _download(place / "run.zip", f"{store.run.resolve().name}.zip")


def _is_exported(inside: Path, pictures: bool) -> bool:
    if inside.name.startswith(".") or inside.name == LOCK_FILE:
        return False
    here = {LESSONS_FOLDER, UNCONFIRMED_FOLDER, EXPORTS_FOLDER}.isdisjoint(inside.parts)
    return inside.parts[0] != TAUGHT_FOLDER or (pictures and here)


def bundle_zip(store: PictureStore, precision: str) -> FileResponse:
    """The model as a bundle of ONNX graphs."""
    if missing := [name for name in ("onnx", "onnxscript", "onnxruntime") if find_spec(name) is None]:
        raise Refusal(f"a bundle needs {', '.join(missing)}", "Install the extra: pip install 'zofc[export]'")
    from zofc.export.writer import export_run

    name = f"{store.run.resolve().name}-{precision}"
    with _workplace(store) as place:
        with store.unchanged():
            shutil.copytree(store.run, place / "run", ignore=shutil.ignore_patterns(TAUGHT_FOLDER, LOCK_FILE))
        export_run(place / "run", place / "bundle", precision)
        shutil.make_archive(str(place / "bundle"), "zip", place / "bundle")
        return _download(place / "bundle.zip", f"{name}.zip")


@contextmanager
def _workplace(store: PictureStore) -> Iterator[Path]:
    """A folder for a file that is sent, removed once it is sent, or at once if it cannot be made; what a killed server
    leaves there is removed when it starts again."""
    with explain_os_errors(store.exports):
        store.exports.mkdir(mode=PRIVATE_FOLDER, exist_ok=True)
        place = Path(tempfile.mkdtemp(dir=store.exports))
    try:
        yield place
    except BaseException:
        shutil.rmtree(place, ignore_errors=True)
        raise


def _download(path: Path, name: str) -> FileResponse:
    clean = BackgroundTask(shutil.rmtree, path.parent, ignore_errors=True)
    return FileResponse(path, media_type="application/zip", filename=name, background=clean)
