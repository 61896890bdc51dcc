"""What was run, with what, by which commands; and what was not."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from page.files import Result, settings_of
from page.training import rates_of, swept, training
from page.words import bullets, listed, prose, table
from zofc.recipe import PAPER_BACKBONE
from zofc.studies.catalogue import STUDIES
from zofc.studies.settings import OURS, SETTINGS
from zofc.units import format_duration

STREAM = {"tasks": "", "test images": "", "steps of ZO-FC": "ZO-FC", "steps of first order": "Adapter + Cls., FO"}
NOTES = "NOTES.md"  # beside the results: what must be known of them and no file says


def setup(results: Sequence[Result], root: Path, folder: Path) -> str:
    trained = training(results, root)
    parts = ["## How it was run", bullets(_what_was_run(results, root / folder))]
    parts += ["### Steps and test images", table(("setting", *STREAM), _streams(results))]
    parts += ["### Training beside the paper's", trained[0], *map(prose, trained[1:])] if trained else []
    if rates := swept(rates_of(root)):
        parts += ["### What the learning rates do", rates[0], prose(rates[1])]
    return "\n\n".join([*parts, *_commands(results, folder), _not_run(results)])


def _what_was_run(results: Sequence[Result], folder: Path) -> list[str]:
    found = _scales(results)
    told = [name + (f" ({SETTINGS[name].says})" if SETTINGS[name].says else "") for name in settings_of(results)]
    found.append(f"Data, and classes in a task: {'; '.join(told)}.")
    names = dict.fromkeys(row["backbone"] for result in results for row in result.good if row.get("backbone"))
    known = f" ({', '.join(f'sha256 {name[:12]}…' for name in names)})" if names else ""
    found.append(f"The backbone{known} is not the paper's.")
    changes = dict.fromkeys(change for result in results for change in result.changes)
    found.append(f"Changed in the recipes: {', '.join(f'`{change}`' for change in changes) or 'nothing'}.")
    by_seeds = dict.fromkeys(result.seeds for result in results)
    for seeds in by_seeds:
        mine = [result.study.name for result in results if result.seeds == seeds]
        which = "" if len(by_seeds) == 1 else f" ({', '.join(mine)})"
        found.append(f"Seed{'s' * (len(seeds) > 1)} {listed(seeds)}{which}, of class order and of every draw.")
    for made in dict.fromkeys(tuple(row["environment"].items()) for result in results for row in result.good):
        with_ = dict(made)
        found.append(f"{with_['device_name']}, Python {with_['python']}, torch {with_['torch']}, timm {with_['timm']}.")
    runs = {row["run"]: row for result in results for row in result.good if "run" in row}
    files = dict.fromkeys(pair for row in runs.values() for pair in row["data"].items())
    sums = "; ".join(f"{name} {digest.removeprefix('sha256:')[:12]}…" for name, digest in files)
    found.append(f"The images, by sha256 of their files: {sums}.")
    if (notes := folder / NOTES).is_file():
        found += notes.read_text("utf-8").strip().split("\n\n")
    seconds = sum(row["seconds"]["train"] for row in runs.values())
    failed = sum("failed" in row for result in results for row in result.rows)
    found.append(
        f"{len(runs)} runs with {format_duration(seconds)} of training in all; {failed} cells of tables failed."
    )
    return found


def _streams(results: Sequence[Result]) -> list[tuple[str, ...]]:
    """Of each setting: tasks, test images, and the steps that the whole stream takes."""
    found = []
    for name in settings_of(results):
        rows = [row for result in results for row in result.good if row["setting"] == name and "over_time" in row]
        lines = {row["line"]: row for row in rows}
        cells = [str(lines[line].get("steps", "–")) if line in lines else "–" for line in STREAM.values() if line]
        tested = next((str(row["tested"]) for row in rows if row.get("tested")), "–")
        found.append((name, str(len(rows[0]["over_time"])) if rows else "–", tested, *cells))
    return found


def _scales(results: Sequence[Result]) -> list[str]:
    """Each scale once; one that is another without `--fast` says only that."""
    groups: dict[str, list[Result]] = {}
    for result in sorted(results, key=lambda result: not result.scale.fast):
        groups.setdefault(result.scale.says, []).append(result)
    found: list[str] = []
    for says, mine in groups.items():
        names = f" ({', '.join(result.study.name for result in mine)})" if len(groups) > 1 else ""
        same = any(other.startswith(says) for other in groups if other != says)
        told = "the same, without `--fast`" if same else says
        found.append(f"Scale {mine[0].scale.name}{names}: {told}.")
    return found


def _commands(results: Sequence[Result], folder: Path) -> list[str]:
    commands = []
    for changes in dict.fromkeys(result.changes for result in results):
        commands += [f'CHANGES="{" ".join(changes)}"']
        commands += [f"{result.command} $CHANGES" for result in results if result.changes == changes]
    first = "export ZOFC_DATA=FOLDER    # of the images and of the backbone's weights"
    return [
        "### Commands",
        "\n".join(["```sh", first, *commands, "python scripts/results_page.py", "```"]),
        prose(
            "Each study writes `studies/SCALE/STUDY/rows.json`, with `--fast` `studies/SCALE-fast/STUDY/rows.json`, "
            f"which is `{folder}/STUDY.json` here."
        ),
    ]


def _not_run(results: Sequence[Result]) -> str:
    missing = [name for name in SETTINGS if name not in OURS and name not in settings_of(results)]
    absent = [f"`{name}`" for name in STUDIES if name not in {result.study.name for result in results}]
    said = [
        f"Of {whose}: {listed(names)}."
        for whose, names in (("the paper's settings", missing), ("its studies", absent))
        if names
    ]
    said.append(
        f"The paper's own scale. It needs the weights {PAPER_BACKBONE}, CIFAR-100, ImageNet-R and DomainNet (the "
        "[README](../README.md) says where they are looked for), and a GPU for days; `zofc reproduce all --scale paper "
        "--dry-run` says how long."
    )
    return "\n\n".join(["### What was not run", bullets(said)])
