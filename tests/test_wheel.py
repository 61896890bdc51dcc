"""The wheel is complete: installed into an environment of its own, it runs from any folder."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path
from zipfile import ZipFile

import pytest

import zofc

ROOT = Path(__file__).resolve().parents[1]
TINY = [
    "data.classes=2", "data.increment=2", "data.per_class=2", "data.test_per_class=2", "training.batch_size=4",
    "training.workers=0", "training.device=cpu", "optimize.peft.epochs=1", "optimize.head.epochs=1",
]  # fmt: skip


def call(*words: str | Path, folder: Path) -> str:
    """What a command prints, run without this repository on its path."""
    environment = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(list(map(str, words)), cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    call(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, ROOT, folder=folder)
    (path,) = folder.glob("*.whl")
    return path


def test_the_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    assert wheel.name == f"zofc-{zofc.__version__}-py3-none-any.whl"
    names = set(ZipFile(wheel).namelist())
    assert {name.split("/")[0] for name in names} == {"zofc", f"zofc-{zofc.__version__}.dist-info"}
    package = ROOT / "src"
    files = {path.relative_to(package).as_posix() for path in (package / "zofc").rglob("*") if path.is_file()}
    assert {name for name in files if "__pycache__" not in name} <= names


def test_the_installed_wheel_runs_a_recipe_from_another_folder(wheel: Path, tmp_path: Path) -> None:
    home, elsewhere = tmp_path / "environment", tmp_path / "elsewhere"
    elsewhere.mkdir()
    call(sys.executable, "-m", "venv", "--without-pip", home, folder=tmp_path)
    scripts = home / ("Scripts" if os.name == "nt" else "bin")
    python = scripts / Path(sys.executable).name
    # Dependencies come from the present environment: paths in a .pth file are searched, their own .pth files are not
    # read, so the editable installation of this repository stays invisible
    site = Path(call(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", folder=elsewhere).strip())
    present = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    (site / "dependencies.pth").write_text("\n".join(sorted(present)))
    pip = [sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check"]
    call(*pip, "install", "--no-index", "--no-deps", "--ignore-installed", wheel, folder=elsewhere)

    origin = call(python, "-c", "import zofc; print(zofc.__file__)", folder=elsewhere)
    assert Path(origin.strip()).is_relative_to(home)
    call(scripts / "zofc", "run", "demo/zofc", *TINY, "--quiet", folder=elsewhere)
    (matrix,) = elsewhere.glob("runs/*/matrix.json")
    assert (elsewhere / "runs" / "report.html").is_file()
    image = next((ROOT / "docs").glob("*.png"))
    assert "%" in call(scripts / "zofc", "predict", matrix.parent, image, folder=elsewhere)
