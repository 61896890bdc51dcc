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
    gain_interval,
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
    folder = write_album(PACS, 2, tmp_path / "albums")
    counts = {
        split: [len(list(one.iterdir())) for one in sorted((folder / split).iterdir())] for split in ("train", "test")
    }
    assert counts == {"train": [2] * 4, "test": [3] * 4}  # sketches are left out
    assert all(path.suffix == ".png" for path in (folder / "test").rglob("*.*"))
    (folder / "train" / "a").rename(folder / "train" / "z")
    assert write_album(PACS, 2, tmp_path / "albums") == folder and (folder / "train" / "z").exists()  # made once


def test_without_the_data_the_message_names_the_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ZOFC_DATA", str(tmp_path))
    with pytest.raises(DataError, match="no folder caltech101"):
        write_album(CALTECH, 2, tmp_path)


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


def test_the_table_has_the_gain_on_ridge_with_its_interval() -> None:
    def row(line: str, seed: int, value: float) -> dict[str, object]:
        return {"line": line, "setting": "s, 10, b", "seed": seed, "all_classes": value, "tested": 10_000}

    rows = [row(DEFAULT, seed, 80.0 + seed) for seed in (1, 2, 3)] + [
        row("ridge/base", seed, 79.0) for seed in (1, 2, 3)
    ]
    (line,) = photographs_table(rows).rows
    assert line[:6] == ("s", "10", "b", "82.0 ± 1.0", "—", "79.0 ± 0.0") and line[-1] == "+3.0 ± 2.5"
    one_of_400 = [
        row(DEFAULT, 1, 99.5),
        row(DEFAULT, 2, 99.5),
        row("ridge/base", 1, 99.75),
        row("ridge/base", 2, 99.75),
    ]
    few = [{**each, "tested": 400} for each in one_of_400]
    assert photographs_table(few).rows[0][-1] == "-0.2 ± 0.5"  # seeds agree, but it is one image
    assert photographs_table([row(DEFAULT, 1, 80.0)]).rows[0][-1] == "—"


# -- what was measured -----------------------------------------------------------------------------------------------

MEASURED = [
    row for row in result_rows(Path(__file__).parents[1] / "results" / "photographs.json") if "failed" not in row
]
SETTINGS = sorted({row["setting"] for row in MEASURED})


def gains_over(line: str, setting: str) -> tuple[float, float]:
    """How far the default is above a line: mean over seeds, and half its 95 % interval."""
    of = {(row["line"], row["seed"]): row for row in MEASURED if row["setting"] == setting}
    seeds = sorted(seed for one, seed in of if one == DEFAULT)
    gains = [of[DEFAULT, seed]["all_classes"] - of[line, seed]["all_classes"] for seed in seeds]
    assert len(gains) == 3
    return gain_interval(gains, of[DEFAULT, seeds[0]]["tested"])


@pytest.mark.parametrize("setting", SETTINGS)
def test_the_default_is_nowhere_below_ridge_by_more_than_the_interval(setting: str) -> None:
    mean, half = gains_over(PLAIN_RIDGE, setting)
    assert mean + half >= 0


def test_the_default_is_below_first_order_recipes_in_one_cell_which_the_guide_names() -> None:
    below = {
        setting
        for setting in SETTINGS
        for line in ("classifier-fo/base", "adapter-fo/base")
        if gains_over(line, setting)[0] < 0
    }
    assert below == {"PACS photographs, 10 images a class, vit_micro_p8_64"}
    mean, half = gains_over("classifier-fo/base", *below)
    assert round(mean, 1) == -0.5 and mean + half > 0


def test_a_projection_is_nowhere_worse_than_class_means_or_ridge_by_more_than_seeds_differ() -> None:
    """Why the default takes it without a comparison on held-back images."""
    of: dict[tuple[str, str], list[float]] = {}
    for row in MEASURED:
        of.setdefault((row["line"], row["setting"]), []).append(row["all_classes"])
    compared = [setting for line, setting in of if line == NO_ADAPTER]
    assert len(compared) >= 5
    for setting in compared:
        mine = np.array(of[NO_ADAPTER, setting])
        for line in (PLAIN_RIDGE, "simplecil/base"):
            assert mine.mean() + mine.std(ddof=1) >= np.mean(of[line, setting])
        assert abs(mine.mean() - np.mean(of[DEFAULT, setting])) <= max(
            mine.std(ddof=1), np.std(of[DEFAULT, setting], ddof=1)
        )
