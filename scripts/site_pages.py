"""Collect the pages of the documentation site: docs/, the documents of other folders with their links adapted, an API
page for each package of src/zofc, and the options of every command.

python scripts/site_pages.py build/docs    # then `zensical build`; `make docs` does both
"""

from __future__ import annotations

import argparse
import posixpath
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "zofc"
DOCUMENTS = {  # files outside docs/ that are pages of the site
    "README.md": "index.md",
    "benchmarks/README.md": "benchmarks.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
}
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")


def main(target: Path) -> None:
    """Write all pages into a folder of their own."""
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(ROOT / "docs", target)
    pages = {page.relative_to(ROOT / "docs").as_posix(): page for page in (ROOT / "docs").rglob("*.md")}
    pages |= {name: ROOT / source for source, name in DOCUMENTS.items()}
    for name, source in pages.items():
        text = source.read_text("utf-8").replace("<!-- all options -->", "\n".join(command_options()))
        (target / name).write_text(relink(text, source.relative_to(ROOT).as_posix(), name), "utf-8")
    folder = target / "reference" / "api"
    folder.mkdir()
    for room in rooms():
        (folder / f"{room}.md").write_text(api_page(room), "utf-8")


# -- links -----------------------------------------------------------------------------------------------------------


def relink(text: str, source: str, page: str) -> str:
    """A document of the repository as a page of the site; links to files that are not on the site become plain text."""

    def lead(link: re.Match[str]) -> str:
        image, label, target = link.groups()
        if re.match(r"[a-z]+:|#", target):
            return link[0]
        path, mark, anchor = target.partition("#")
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
        goal = DOCUMENTS.get(path) or (path.removeprefix("docs/") if path.startswith("docs/") else None)
        if goal is None:
            return label
        return f"{image}[{label}]({posixpath.relpath(goal, posixpath.dirname(page) or '.')}{mark}{anchor})"

    parts = re.split(r"(^```.*?^```$)", text, flags=re.MULTILINE | re.DOTALL)
    return "".join(part if number % 2 else LINK.sub(lead, part) for number, part in enumerate(parts))


# -- API pages -------------------------------------------------------------------------------------------------------


def rooms() -> list[str]:
    """The public packages and modules directly below `zofc`, but the command line, which has a page of its own."""
    names = {path.stem for path in PACKAGE.glob("*.py")} | {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    return sorted(name for name in names if not name.startswith("_") and name != "cli")


def modules(room: str) -> Iterator[str]:
    """Dotted names of the public modules of a room."""
    if not (PACKAGE / room).is_dir():
        yield f"zofc.{room}"
        return
    for file in sorted((PACKAGE / room).rglob("*.py")):
        if not file.stem.startswith("_"):
            yield "zofc." + ".".join(file.relative_to(PACKAGE).with_suffix("").parts)


def api_page(room: str) -> str:
    """A heading, the room's sentence from the architecture, and its modules."""
    table = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    duty = re.search(rf"^\| [^|]*`{room}/?`[^|]*\| ([^|]*) \|", table, re.MULTILINE)
    lines = [f"# zofc.{room}", "", f"{duty[1][0].upper()}{duty[1][1:]}." if duty else "", ""]
    for module in modules(room):
        lines += [f"## {module.removeprefix('zofc.')}", "", f"::: {module}", ""]
    return "\n".join(lines)


# -- command line ----------------------------------------------------------------------------------------------------


def command_options() -> Iterator[str]:
    """A section for each command: its help text and its arguments and options."""
    from zofc.cli import app

    group: Any = typer.main.get_command(app)
    for name, command in group.commands.items():
        yield from (f"## zofc {name}", "", command.help or "", "", "| argument or option | default | meaning |")
        yield "| --- | --- | --- |"
        for option in command.params:
            argument = option.param_type_name == "argument"
            words = [option.metavar or option.name] if argument else option.opts
            default = "" if option.default in (None, False, (), []) or option.required else f"`{option.default}`"
            meaning = (option.help or "").replace("|", "\\|")
            yield f"| {', '.join(f'`{word}`' for word in words)} | {default} | {meaning} |"
        yield ""


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Collect the pages of the documentation site.")
    parser.add_argument("target", type=Path, help="a folder for them, which is replaced")
    main(parser.parse_args().target)
