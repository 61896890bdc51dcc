"""The wheel of zofc-device is complete and small, has its license, and installs a command that needs no torch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

import zofc_device

DEVICE = Path(__file__).resolve().parents[1] / "device"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("device-wheel")
    words = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, DEVICE]
    done = subprocess.run(list(map(str, words)), cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = folder.glob("*.whl")
    return path


def test_the_wheel_holds_the_package_and_its_license(wheel: Path) -> None:
    version = zofc_device.__version__
    assert wheel.name == f"zofc_device-{version}-py3-none-any.whl" and wheel.stat().st_size < 100_000
    names = set(ZipFile(wheel).namelist())
    package = DEVICE / "src"
    files = {path.relative_to(package).as_posix() for path in (package / "zofc_device").iterdir() if path.is_file()}
    about = f"zofc_device-{version}.dist-info"
    assert {name.split("/")[0] for name in names} == {"zofc_device", about}
    assert files <= names and f"{about}/licenses/LICENSE" in names and "zofc_device/py.typed" in files
    metadata = ZipFile(wheel).read(f"{about}/METADATA").decode()
    assert "Requires-Dist: torch" not in metadata and f"Version: {version}\n" in metadata


def test_the_installed_command_runs(wheel: Path, tmp_path: Path) -> None:
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--no-index", "--no-deps", "--target"]
    subprocess.run([*pip, str(tmp_path / "site"), str(wheel)], check=True, capture_output=True)
    code = "import sys; sys.path.insert(0, sys.argv.pop()); import zofc_device.cli as c; print(c.__file__); c.main()"
    words = [sys.executable, "-c", code, "info", str(tmp_path), str(tmp_path / "site")]
    done = subprocess.run(words, cwd=tmp_path, env={"PATH": ""}, capture_output=True, text=True)
    assert str(tmp_path / "site") in done.stdout and "not a bundle, it has no manifest.json" in done.stderr
