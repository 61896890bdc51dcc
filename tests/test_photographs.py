"""Facts about the benchmark on folders of photographs."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from zofc.errors import DataError, RecipeError
from zofc.evidence.photographs import (
    ALBUMS,
    DEFAULT,
    LINES,
    NO_ADAPTER,
    PLAIN_RIDGE,
    comparable_rows,
    gain_interval,
    gains_over,
    photograph_cells,
    photographs_table,
    write_album,
)
from zofc.evidence.rows import result_rows
from zofc.recipe import Recipe

PACS, CALTECH = ALBUMS["PACS photographs"], ALBUMS["Caltech-101"]


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Both data sets with four classes of six images, half of PACS's being sketches."""
    rng = np.random.default_rng(0)
    for name, domains in (("pacs", ["photo", "sketch"]), ("caltech101", None)):
        features = {"image": {"_type": "Image"}, "label": {"_type": "ClassLabel", "names": ["a", "b", "c", "d"]}}
        rows = []
        for number in range(24):
            encoded = io.BytesIO()
            Image.fromarray(rng.integers(0, 256, (8, 8, 3), np.uint8)).save(encoded, "PNG")
            row = {"image": {"bytes": encoded.getvalue()}, "label": number % 4}
            rows.append({**row, "domain": number // 4 % 2} if domains else row)
        if domains:
            features["domain"] = {"_type": "ClassLabel", "names": domains}
        table = pa.Table.from_pylist(rows)
        metadata = {"huggingface": json.dumps({"info": {"features": features}})}
        for split in ("train", "test"):
            (tmp_path / "data" / name).mkdir(parents=True, exist_ok=True)
            file = tmp_path / "data" / name / f"{split}-00000-of-00001.parquet"
            pq.write_table(table.replace_schema_metadata(metadata), file)
    monkeypatch.setenv("ZOFC_DATA", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "data"


def test_an_album_has_so_many_training_images_a_class_and_all_test_images(data: Path, tmp_path: Path) -> None:
    folder = write_album(PACS, 2, 7, tmp_path / "albums")
    counts = {
        split: [len(list(one.iterdir())) for one in sorted((folder / split).iterdir())] for split in ("train", "test")
    }
    assert counts == {"train": [2] * 4, "test": [3] * 4}  # sketches are left out
    assert all(path.suffix == ".png" for path in (folder / "test").rglob("*.*"))
    (folder / "train" / "a").rename(folder / "train" / "z")
    assert write_album(PACS, 2, 7, tmp_path / "albums") == folder and (folder / "train" / "z").exists()  # made once


def test_each_seed_draws_training_images_of_its_own(data: Path, tmp_path: Path, tiny_weights: Path) -> None:
    def contents(seed: int, split: str) -> list[bytes]:
        folder = write_album(CALTECH, 2, seed, tmp_path / "albums") / split
        return sorted(path.read_bytes() for path in folder.rglob("*.png"))

    assert len({tuple(contents(seed, "train")) for seed in (7, 8, 9)}) == 3
    assert contents(7, "test") == contents(8, "test")
    given = [str(tiny_weights)], [2], [7, 8], ["training.device=cpu"], Path("albums"), [DEFAULT], ["caltech101"]
    cells = list(photograph_cells(*given))
    assert [(cell.labels["seed"], cell.labels["draw"]) for cell in cells] == [(7, 7), (8, 8)]
    assert [cell.recipe.data.source for cell in cells] == [
        "folder:albums/caltech101-2-7",
        "folder:albums/caltech101-2-8",
    ]
    with pytest.raises(RecipeError, match="--albums: caltech is none of pacs, caltech101"):
        list(photograph_cells(*given[:-1], ["caltech"]))


def test_without_the_data_the_message_names_the_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ZOFC_DATA", str(tmp_path))
    with pytest.raises(DataError, match="no folder caltech101"):
        write_album(CALTECH, 2, 7, tmp_path)


def test_every_line_learns_the_same_tasks_on_the_same_backbone(data: Path, tmp_path: Path, tiny_weights: Path) -> None:
    cells = list(photograph_cells([str(tiny_weights)], [2], [7], ["training.device=cpu"], Path("albums")))
    assert [cell.labels["line"] for cell in cells] == [*LINES, *LINES]
    for cells_of_one, album in ((cells[:6], PACS), (cells[6:], CALTECH)):
        recipes = [cell.recipe for cell in cells_of_one]
        assert {recipe.data.increment for recipe in recipes} == {album.increment}
        assert len({recipe.backbone for recipe in recipes}) == len({recipe.data.source for recipe in recipes}) == 1
        assert {recipe.seed for recipe in recipes} == {7}
    methods = [cell.recipe.method.name for cell in cells[:6]]
    assert methods == ["adapter", "simplecil", "ridge", "ridge", "classifier", "adapter"]


def test_lines_can_be_named_and_a_projection_is_the_default_without_an_adapter(
    data: Path, tmp_path: Path, tiny_weights: Path
) -> None:
    def recipes(*lines: str) -> list[Recipe]:
        given = [str(tiny_weights)], [2], [7], ["training.device=cpu"], Path("albums")
        return [cell.recipe for cell in photograph_cells(*given, lines)]

    default, projected = recipes(DEFAULT, NO_ADAPTER)[:2]
    assert default.sections["ridge"] == {**projected.sections["ridge"], "fallback": True}
    with pytest.raises(RecipeError, match="ridge/bas is none of default, simplecil/base"):
        recipes("ridge/bas")


def row(line: str, seed: int, value: float, draw: int = 1993, tested: int = 10_000) -> dict[str, object]:
    shared = {"setting": "s, 10, b", "tested": tested}
    return {**shared, "line": line, "seed": seed, "draw": draw, "all_classes": value}


def test_the_table_has_the_gain_on_ridge_with_its_interval() -> None:
    rows = [row(DEFAULT, seed, 80.0 + seed) for seed in (1, 2, 3)] + [
        row(PLAIN_RIDGE, seed, 79.0) for seed in (1, 2, 3)
    ]
    (line,) = photographs_table(rows).rows
    assert line[:7] == ("s", "10", "b", "1", "82.0 ± 1.0", "—", "79.0 ± 0.0") and line[-1] == "+3.0 ± 2.5"
    one_of_400 = [row(DEFAULT, seed, 99.5, tested=400) for seed in (1, 2)]
    one_of_400 += [row(PLAIN_RIDGE, seed, 99.75, tested=400) for seed in (1, 2)]
    assert photographs_table(one_of_400).rows[0][-1] == "-0.2 ± 0.5"  # seeds agree, but it is one image
    assert photographs_table([row(DEFAULT, 1, 80.0)]).rows[0][-1] == "—"


def test_rows_of_several_draws_replace_those_of_one_and_lines_of_fewer_are_marked() -> None:
    old = [row(line, seed, 50.0) for line in (DEFAULT, PLAIN_RIDGE, NO_ADAPTER) for seed in (1993, 1994)]
    new = [row(line, seed, seed - 1900.0, draw=seed) for line in (DEFAULT, PLAIN_RIDGE) for seed in (1993, 1994)]
    assert photographs_table(old).rows[0][3:] == (
        "1",
        "50.0 ± 0.0",
        "—",
        "50.0 ± 0.0",
        "50.0 ± 0.0",
        "—",
        "—",
        "+0.0 ± 0.0",
    )
    for rows in ([*new, *old], [*old[::-1], *new]):
        own = photographs_table(rows).rows[0]
        assert own[3] == "2" and own[7] == "50.0 ± 0.0 †" and "†" not in own[4] + own[6]
    assert photographs_table([*new, *old]).rows[0][4] == "93.5 ± 0.7"
    table = comparable_rows([*new, *old])
    assert gains_over(PLAIN_RIDGE, "s, 10, b", table) == [0.0, 0.0]
    assert gains_over(NO_ADAPTER, "s, 10, b", table) == [43.0]  # the images of 1994 are others


# -- what was measured -----------------------------------------------------------------------------------------------

MEASURED = result_rows(Path(__file__).parents[1] / "results" / "photographs.json")
TABLE = comparable_rows(MEASURED)
SETTINGS = sorted({setting for _, setting, _ in TABLE})
GUIDE = (Path(__file__).parents[1] / "docs" / "guides" / "own-images.md").read_text("utf-8").replace("\n", " ")


def gain_on(line: str, setting: str) -> tuple[float, float]:
    """How far the default is above a line: mean over seeds, and half its 95 % interval."""
    gains = gains_over(line, setting, TABLE)
    assert len(gains) >= 3
    return gain_interval(gains, TABLE[DEFAULT, setting, 1993]["tested"])


@pytest.mark.parametrize("setting", SETTINGS)
def test_the_default_is_nowhere_below_ridge_by_more_than_the_interval(setting: str) -> None:
    mean, half = gain_on(PLAIN_RIDGE, setting)
    assert mean + half >= 0


@pytest.mark.parametrize("line", ["classifier-fo/base", "adapter-fo/base"])
@pytest.mark.parametrize("setting", SETTINGS)
def test_the_default_is_below_no_first_order_recipe_by_more_than_the_interval(setting: str, line: str) -> None:
    mean, half = gain_on(line, setting)
    assert mean + half >= 0


def test_the_guide_says_whether_the_default_is_below_a_recipe_that_trains_a_classifier() -> None:
    below = {
        (setting, line)
        for setting in SETTINGS
        for line in ("classifier-fo/base", "adapter-fo/base")
        if round(gain_on(line, setting)[0], 1) < 0
    }
    assert ("in no row is its mean below that of a recipe that trains a classifier" in GUIDE) == (not below)


def test_a_projection_is_nowhere_worse_than_class_means_or_ridge_by_more_than_the_interval() -> None:
    """Why the default takes it without a comparison on held-back images."""
    compared = {setting for line, setting, _ in TABLE if line == NO_ADAPTER}
    assert len(compared) >= 5
    for setting in compared:
        for line in (PLAIN_RIDGE, "simplecil/base"):
            own = {seed: row for (name, where, seed), row in TABLE.items() if (name, where) == (NO_ADAPTER, setting)}
            gains = [one["all_classes"] - other["all_classes"] for seed, one in own.items()
                     if (other := TABLE[line, setting, seed])["draw"] == one["draw"]]  # fmt: skip
            mean, half = gain_interval(gains, own[1993]["tested"])
            assert mean + half >= 0


def test_the_guide_says_whether_an_adapter_helps_anywhere() -> None:
    compared = {setting for line, setting, _ in TABLE if line == NO_ADAPTER}
    helped = [setting for setting in compared if (gain := gain_on(NO_ADAPTER, setting))[0] > gain[1]]
    assert ("In no row where both were measured does the adapter help" in GUIDE) == (not helped)
