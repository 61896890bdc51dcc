"""The documentation site: every page is in its navigation, it builds without a warning, and it needs no network."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[1]
CONFIG = yaml.safe_load((ROOT / "mkdocs.yml").read_text("utf-8"))


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pages as `make docs` collects them, in a folder with the configuration."""
    root = tmp_path_factory.mktemp("site")
    shutil.copy(ROOT / "mkdocs.yml", root)
    (root / "src").symlink_to(ROOT / "src")
    subprocess.run([sys.executable, ROOT / "scripts" / "site_pages.py", root / CONFIG["docs_dir"]], check=True)
    return root


def targets(nav: Any) -> list[str]:
    """The pages of a navigation, in order."""
    if isinstance(nav, str):
        return [nav]
    return [page for entry in (nav.values() if isinstance(nav, dict) else nav) for page in targets(entry)]


def test_the_navigation_names_every_page_once(pages: Path) -> None:
    folder = pages / CONFIG["docs_dir"]
    written = {page.relative_to(folder).as_posix() for page in folder.rglob("*.md")}
    shown = targets(CONFIG["nav"])
    assert len(shown) == len(set(shown)) and set(shown) == written


@pytest.mark.skipif(find_spec("zensical") is None, reason="the extra `docs` is not installed")
def test_the_site_builds_without_a_warning_and_loads_nothing_from_elsewhere(pages: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "zensical", "build", "--strict"], cwd=pages, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    site = pages / CONFIG["site_dir"]
    for page in site.rglob("*.html"):
        html = page.read_text("utf-8")
        loaded = re.findall(r"<(?:script|img|iframe)[^>]*\ssrc=\"?([^\"\s>]+)", html)
        loaded += re.findall(r"<link[^>]*rel=\"?(?:stylesheet|preload|icon)[^>]*href=\"?([^\"\s>]+)", html)
        assert not [url for url in loaded if re.match(r"(https?:)?//", url)], page.name
    assert "zofc.learner.learner.Learner" in (site / "reference" / "api" / "learner.html").read_text("utf-8")
    assert "--top" in (site / "reference" / "cli.html").read_text("utf-8")
