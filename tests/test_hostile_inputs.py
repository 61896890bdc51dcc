"""Inputs made to hurt: links that never end, pipes, small files with large appetites, text that a terminal would obey.

Each is refused by an error that names it, or read as an independent reader would. A test that hangs is a failure."""

from __future__ import annotations

import io
import json
import os
import pickle
import shutil
import signal
import socket
import struct
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image
from rich.console import Console
from rich.text import Text
from safetensors.torch import load_file, save_file

from zofc import limits
from zofc.cli.application import SafeConsole
from zofc.data import SourceOptions, open_source
from zofc.data.decoding import collect_warnings, settle
from zofc.data.folder import images_in
from zofc.data.source import EncodedImages, decode
from zofc.errors import DataError, RecipeError, UnreadableImage, WeightsError, ZofcError
from zofc.learner import Learner
from zofc.methods import METHODS
from zofc.model.backbone import load_backbone
from zofc.recipe import BackboneSettings, Recipe, load_recipe
from zofc.report.predictions import predictions_csv, predictions_json
from zofc.training.resolve import check_recipe
from zofc.units import printable

SECONDS = 20  # no test here takes one on an idle machine
Make = Callable[..., Recipe]


@pytest.fixture(autouse=True)
def _no_hang() -> Iterator[None]:
    def stop(*_: object) -> None:
        raise AssertionError(f"not done within {SECONDS} seconds")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(SECONDS)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def png(width: int = 12, height: int = 10, seed: int = 0) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)).save(buffer, "PNG")
    return buffer.getvalue()


def empty_png(width: int, height: int) -> bytes:
    """A black picture of any size in few bytes."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    rows = zlib.compress(bytes(min(width + 1, 300_000)) * min(height, 10), 9)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


def put_images(root: Path, counts: dict[str, int]) -> Path:
    for number, (name, count) in enumerate(counts.items()):
        (root / name).mkdir(parents=True)
        for i in range(count):
            (root / name / f"{i}.png").write_bytes(png(seed=100 * number + i))
    return root


def opened(root: Path, notices: list[str] | None = None) -> dict[str, int]:
    """Images by class, as a source counts them."""
    notice = (lambda _: None) if notices is None else notices.append
    source = open_source(f"folder:{root}", SourceOptions(test_fraction=0.0, cache="off", notice=notice))
    return {name: int((source.train.labels == label).sum()) for label, name in enumerate(source.classes)}


# --- folders ---


@pytest.mark.parametrize("links", [{"ant/up": ".."}, {"ant/up": "..", "bee/up": ".."}, {"ant/me": "."},
                                   {"ant/in/out": "../../..", "ant/in/again": ".."}])  # fmt: skip
def test_links_that_lead_back_are_not_followed(tmp_path: Path, links: dict[str, str]) -> None:
    root = put_images(tmp_path / "imgs", {"ant": 5, "bee": 6})
    for name, target in links.items():
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).symlink_to(target)
    notices: list[str] = []
    assert opened(root, notices) == {"ant": 5, "bee": 6}
    assert any("lead back" in text and next(iter(links)).partition("/")[2] in text for text in notices)
    assert len(images_in(root)) == 11


def test_a_class_folder_that_leads_back_is_refused(tmp_path: Path) -> None:
    root = put_images(tmp_path / "imgs", {"ant": 2, "bee": 2})
    (root / "all").symlink_to(".")
    with pytest.raises(DataError, match=r"class folder .*all has no images"):
        opened(root)


def test_hidden_files_are_passed_over_and_hidden_folders_of_a_class_are_not(tmp_path: Path) -> None:
    root = put_images(tmp_path / "imgs", {"ant": 2, "bee": 2, "ant/.more": 1, ".trash": 4})
    (root / "bee" / ".0.png").write_bytes(b"not an image")
    assert opened(root) == {"ant": 3, "bee": 2}


def test_a_link_to_images_elsewhere_is_followed(tmp_path: Path) -> None:
    root = put_images(tmp_path / "imgs", {"ant": 2, "bee": 2})
    put_images(tmp_path / "more", {"ants": 3})
    (root / "ant" / "more").symlink_to(tmp_path / "more" / "ants")
    assert opened(root) == {"ant": 5, "bee": 2}


def test_a_folder_that_cannot_be_listed_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = put_images(tmp_path / "imgs", {"ant": 2, "bee": 2})
    (root / "ant" / "closed").mkdir()
    real = os.scandir

    def scandir(path: Any) -> Any:
        if str(path).endswith("closed"):
            raise PermissionError(13, "Permission denied", str(path))
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)  # root may list any folder
    for call in (lambda: opened(root), lambda: images_in(root)):
        with pytest.raises(DataError, match=r"cannot list the folder .*closed: Permission denied"):
            call()


def test_pipes_and_sockets_in_class_folders_are_ignored_with_a_notice(tmp_path: Path) -> None:
    root = put_images(tmp_path / "imgs", {"ant": 2, "bee": 2})
    os.mkfifo(root / "ant" / "pipe.png")
    notices: list[str] = []
    assert opened(root, notices) == {"ant": 2, "bee": 2}
    assert any("ignored 1 pipe(s), socket(s) or device(s): ant/pipe.png" in text for text in notices)


def test_names_that_are_not_utf8_are_refused_by_a_source(tmp_path: Path) -> None:
    root = put_images(tmp_path / "imgs", {"ant": 2, "bee": 2})
    (root / "ant" / os.fsdecode(b"\xff.png")).write_bytes(png())
    with pytest.raises(DataError, match="is not UTF-8; rename it"):
        opened(root)
    assert len(images_in(root)) == 5


# --- pipes and devices in place of files ---


@pytest.fixture
def pipe(tmp_path: Path) -> Callable[[str], Path]:
    def make(name: str) -> Path:
        os.mkfifo(tmp_path / name)
        return tmp_path / name

    return make


def test_a_pipe_is_no_image(pipe: Callable[[str], Path]) -> None:
    with pytest.raises(UnreadableImage, match=r"pipe\.png: it is a pipe, a socket or a device"):
        decode(pipe("pipe.png"), "pipe.png")
    with pytest.raises(UnreadableImage, match="a device"):
        decode(Path("/dev/zero"), "/dev/zero")


def test_a_pipe_is_no_recipe(pipe: Callable[[str], Path], tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="it is a pipe"):
        load_recipe(str(pipe("recipe.yaml")))
    (tmp_path / "own.yaml").write_text("extends: recipe.yaml\n")
    with pytest.raises(RecipeError, match="it is a pipe"):
        load_recipe(str(tmp_path / "own.yaml"))


@pytest.mark.parametrize("name", ["w.safetensors", "w.pth", "w.npz"])
def test_a_pipe_is_no_weight_file(pipe: Callable[[str], Path], name: str) -> None:
    settings = BackboneSettings(name=str(pipe(name)), architecture="vit_tiny_patch16_224")
    with pytest.raises(WeightsError, match="it is a pipe"):
        load_backbone(settings)


def test_a_pipe_is_no_parquet_file_and_no_list(pipe: Callable[[str], Path], tmp_path: Path) -> None:
    pipe("train-0.parquet")
    with pytest.raises(DataError, match="it is a pipe"):
        open_source(f"parquet:{tmp_path}", SourceOptions())
    pipe("train.txt")
    with pytest.raises(DataError, match="it is a pipe"):
        open_source("imagenet-r", SourceOptions(root=tmp_path))


# --- recipes ---


def alias_bomb() -> str:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 9)]
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (alias_bomb(), r"more than 10,000 values, the limit"),
        ("x: " + "[" * 200 + "]" * 200, r"nested more than 20 deep, the limit|nested too deeply"),
        ("x: " + "[" * 100_000, r"nested too deeply|the limit"),
        ("x: " + "{a: " * 50 + "1" + "}" * 50, r"nested more than 20 deep, the limit"),
        ("title: " + "x" * 10_000_000, r"it has 9\.54 MiB, more than the limit"),
        ("\n".join(f"key{i}: 1" for i in range(3000)), r"unknown key.*\n(.*\n)*and \d+ more"),
    ],
    ids=["aliases", "deep", "deeper", "mappings", "large", "many keys"],
)
def test_a_recipe_with_an_appetite_is_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "r.yaml").write_text(text)
    with pytest.raises(RecipeError, match=message):
        load_recipe(str(tmp_path / "r.yaml"))


def test_files_that_extend_each_other_many_times_are_refused(tmp_path: Path) -> None:
    for number in range(12):
        (tmp_path / f"{number}.yaml").write_text(f"extends: [{', '.join([f'{number + 1}.yaml'] * 10)}]\n")
    (tmp_path / "12.yaml").write_text("seed: 1\n")
    with pytest.raises(RecipeError, match="extends more than 100 files, the limit"):
        load_recipe(str(tmp_path / "0.yaml"))


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("data.order_seed=-1", "data.order_seed: expected 0 or more"),
        ("data.per_class=1000000000", "data.per_class: expected 1000000 or less"),
        ("peft.rank=1000000000", "peft.rank: expected 4096 or less"),
        ("peft.length=1000000000", "peft.length: expected 4096 or less"),
        ("training.threads=1000000", "training.threads: expected 1024 or less"),
        ("training.workers=100000", "training.workers: expected 128 or less"),
        (f"optimize.peft.epochs={10**21}", "optimize.peft.epochs: expected 100000 or less"),
        (f"optimize.peft.start={10**21}", "optimize.peft.start: expected 100000 or less"),
        ("optimize.peft.queries=1000000000", "optimize.peft.queries: expected 10000 or less"),
        ("optimize.peft.lr=1e308", "optimize.peft.lr: expected 1e\\+38 or less"),
        ("optimize.peft.epsilon=1e300", "optimize.peft.epsilon: expected 1000000.0 or less"),
        ("views.resize=1e308", "views.resize: expected 16.0 or less"),
        ("views.ratio=[1e-300, 1e300]", "views.ratio: expected ratios from 0.01 to 100"),
        ("head.scale=1e308", "head.scale: expected"),
        ("peft.scale=1e308", "peft.scale: expected"),
        ("training.batch_size=1000000000", "training.batch_size: expected 16384 or less"),
        ("backbone.image_size=1000000", "backbone.image_size: expected 4096 or less"),
        (f"name={'n' * 300}", "name: expected at most 200 bytes"),
        (f"title={'n' * 600}", "title: expected at most 500 letters"),
        ('name="a\\0b"', "name: expected at most 200 bytes without control characters"),
        ('data.source="folder:a\\0b"', "data.source: expected text without the character NUL"),
        ('backbone.name="a\\0b/x.pth"', "backbone.name: expected text without the character NUL"),
        (f"{'a.' * 5000}b=1", "nested more than 20 deep"),
        (f"data.then={'[' * 100}{']' * 100}", "nested more than 20 deep"),
    ],
)
def test_a_setting_out_of_bounds_names_its_limit(override: str, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        load_recipe("zofc/base", override)


@pytest.mark.parametrize(
    ("name", "overrides", "message"),
    [
        ("l2p-fo/base", ["l2p.pool=1000000000"], "l2p.pool: expected 10000 or less"),
        ("l2p-fo/base", ["l2p.pool=10000", "l2p.length=4096"], "l2p: pool times length may be at most 100,000 tokens"),
        ("coda-fo/base", ["coda.length=1000000000"], "coda.length: expected 4096 or less"),
        ("coda-fo/base", ["coda.per_task=10000", "coda.length=4096"], "at most 100,000 tokens"),
        ("ridge/base", ["ridge.projection=1000000000"], "ridge.projection: expected 100000 or less"),
    ],
)
def test_a_setting_of_a_method_out_of_bounds_names_its_limit(
    tiny_recipe: Make, name: str, overrides: list[str], message: str
) -> None:
    assert METHODS
    with pytest.raises(RecipeError, match=message):
        Learner(check_recipe(tiny_recipe(name, *overrides)))


def test_images_that_are_drawn_have_a_limit() -> None:
    with pytest.raises(DataError, match=r"data\.per_class: glyphs draws at most 10,000 images of a class"):
        open_source("glyphs", SourceOptions(per_class=1_000_000))


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("folder:~nosuchuser/images", "does not exist"),
        (f"folder:{'n' * 300}", "File name too long"),
        ("folder:a\0b", "null"),
        (f"parquet:{'n' * 300}", "File name too long"),
    ],
)
def test_paths_that_no_file_can_have_are_errors(spec: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        open_source(spec, SourceOptions())


@pytest.mark.parametrize(
    "name", ["~nosuchuser/x.safetensors", f"{'n' * 300}.safetensors", f"{'n/' * 1000}x.pth", "/dev/null/x.pth"]
)
def test_weights_at_paths_that_no_file_can_have_are_errors(name: str) -> None:
    with pytest.raises(WeightsError, match=r"backbone\.name: "):
        load_backbone(BackboneSettings(name=name))


# --- images ---


@pytest.mark.parametrize(
    ("size", "message"),
    [
        ((250_000, 1), "250,000 × 1 pixels: one side is more than 100 times as long as the other, which is the limit"),
        ((1, 250_000), "1 × 250,000 pixels: one side"),
        ((13_000, 13_000), "13,000 × 13,000 pixels, more than the limit of 150,000,000"),
        ((100_000, 100_000), "more pixels than the limit of 150,000,000"),
    ],
)
def test_an_image_with_an_appetite_is_refused(tmp_path: Path, size: tuple[int, int], message: str) -> None:
    data = empty_png(*size)
    assert len(data) < 10_000
    with pytest.raises(UnreadableImage, match=message):
        decode(data, "x.png")
    root = put_images(tmp_path / "imgs", {"ant": 2, "bee": 2})
    (root / "ant" / "large.png").write_bytes(data)
    with pytest.raises(DataError, match=r"1 of 5 images cannot be read"):
        opened(root)


def test_arrays_and_pictures_from_python_have_the_same_limits(tiny_recipe: Make) -> None:
    learner = Learner(tiny_recipe("ridge/base"))
    for image in (np.zeros((1, 250_000, 3), np.uint8), Image.new("L", (1, 250_000))):
        with pytest.raises(DataError, match="the limit"):
            learner.embed([image])


def test_what_pillow_warns_of_is_said_once_in_our_words() -> None:
    exif = Image.Exif()
    exif[0x0132] = "2020"
    buffer = io.BytesIO()
    Image.new("RGB", (9, 9)).save(buffer, "JPEG", exif=exif.tobytes()[:-9])
    notices: list[str] = []
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # what is not caught fails here
        with collect_warnings(notices.append, "folder:x"):
            settle(EncodedImages([buffer.getvalue()] * 3, ["a", "b", "c"]))
            warnings.warn("overflow encountered in cast", RuntimeWarning, stacklevel=1)
    assert len(notices) == 1 and notices[0].startswith("folder:x: unusual images") and "overflow" in notices[0]


# --- parquet ---


def write_table(file: Path, columns: list[tuple[str, Any]], names: Any = None) -> Path:
    table = pa.Table.from_arrays([values for _, values in columns], names=[name for name, _ in columns])
    if names is not None:
        features = {"image": {"_type": "Image"}, "label": {"_type": "ClassLabel", "names": names}}
        table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    pq.write_table(table, file)
    return file


def pictures(count: int = 2) -> Any:
    return pa.array([{"bytes": png(seed=i), "path": None} for i in range(count)])


@pytest.mark.parametrize(
    ("columns", "names", "message"),
    [
        ([("image", pictures()), ("label", pa.array([0, 500_000_000]))], None, r"0 to 99,999 \(the limit\)"),
        ([("image", pictures()), ("label", pa.array([0, 1])), ("label", pa.array([0, 1]))], None, "2 columns 'label'"),
        ([("image", pictures()), ("label", pa.array([[0], [1]]))], ["a", "b"], "expected an image column"),
        ([("image", pictures()), ("label", pa.array([0, 1]))], 5, "the class names of column label are no list"),
        ([("image", pictures()), ("label", pa.array([0, 1]))], [["a"], {}], "the class names of column label"),
        ([("image", pa.nulls(2)), ("label", pa.array([0, 0]))], ["a"], "column image holds no images"),
        ([("image", pa.array(["a.png", "b.png"])), ("label", pa.array([0, 1]))], ["a", "b"], "expected an image col"),
    ],
    ids=[
        "large label",
        "label twice",
        "list labels",
        "names: 5",
        "names of other types",
        "no images",
        "text for images",
    ],
)
def test_a_table_that_cannot_be_meant_is_refused(
    tmp_path: Path, columns: list[tuple[str, Any]], names: Any, message: str
) -> None:
    file = write_table(tmp_path / "t.parquet", columns, names)
    with pytest.raises(DataError, match=message):
        open_source(f"parquet:{file}", SourceOptions(cache="off"))


def test_class_names_are_read_where_other_metadata_are_damaged(tmp_path: Path) -> None:
    table = pa.table({"image": pictures(4), "label": pa.array([0, 0, 1, 1])})
    features = {"image": 5, "label": {"_type": "ClassLabel", "names": ["ant", "bee"]}}
    table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    pq.write_table(table, tmp_path / "t.parquet")
    assert open_source(f"parquet:{tmp_path}/t.parquet", SourceOptions(cache="off")).classes == ("ant", "bee")


@pytest.mark.parametrize("declared", [True, False])
def test_a_table_cannot_name_local_files(tmp_path: Path, declared: bool) -> None:
    (tmp_path / "secret.png").write_bytes(png())
    images = pa.array([{"bytes": str(tmp_path / "secret.png")}] * 4)
    columns = [("image", images), ("label", pa.array([0, 0, 1, 1]))]
    file = write_table(tmp_path / "t.parquet", columns, ["a", "b"] if declared else None)
    with pytest.raises(DataError, match="a struct with binary `bytes`"):
        open_source(f"parquet:{file}", SourceOptions(cache="off"))


@pytest.mark.parametrize("at", [0.05, 0.3, 0.5, 0.7, 0.9])
def test_a_damaged_page_is_an_error_that_names_the_file(tmp_path: Path, at: float) -> None:
    file = write_table(tmp_path / "t.parquet", [("image", pictures(8)), ("label", pa.array([0, 1] * 4))])
    data = bytearray(file.read_bytes())
    start = int(at * len(data))
    data[start : start + 40] = bytes(40)
    file.write_bytes(data)
    try:
        open_source(f"parquet:{file}", SourceOptions(cache="off"))
    except DataError as error:
        assert "t.parquet" in str(error)


# --- weights ---


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_heads": "7"}, "num_heads=7 does not divide embed_dim=24"),
        ({"patch_size": "0"}, "patch_size=0, expected 1 to"),
        ({"embed_dim": "-5"}, "embed_dim=-5, expected 1 to"),
        ({"embed_dim": "100000000"}, "embed_dim=100000000, expected 1 to 16384, the limit"),
        ({"depth": "100000"}, "depth=100000, expected 1 to 200, the limit"),
        ({"depth": "150"}, "it has 3 blocks, not depth=150"),
        ({"img_size": "1000000"}, "img_size=1000000, expected 1 to 4096, the limit"),
        ({"mean": "1,2"}, "mean is .*, expected three numbers"),
        ({"std": "0,0,0"}, "std is .*, expected three numbers"),
        ({"mean": "nan,nan,nan"}, "mean is .*, expected three numbers"),
        ({"depth": "9" * 5000}, "cannot be used"),
    ],
)
def test_metadata_that_no_vit_can_have_are_refused(
    tiny_weights: Path, tmp_path: Path, changes: dict[str, str], message: str
) -> None:
    from safetensors import safe_open

    with safe_open(tiny_weights, framework="pt") as file:
        metadata = dict(file.metadata())
    save_file(load_file(tiny_weights), tmp_path / "w.safetensors", {**metadata, **changes})
    with pytest.raises(WeightsError, match=message):
        load_backbone(BackboneSettings(name=str(tmp_path / "w.safetensors")))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_are_refused(tiny_weights: Path, tmp_path: Path, value: float) -> None:
    from safetensors import safe_open

    with safe_open(tiny_weights, framework="pt") as file:
        metadata = dict(file.metadata())
    tensors = load_file(tiny_weights)
    tensors["blocks.1.mlp.fc1.weight"][0, 0] = value
    save_file(tensors, tmp_path / "w.safetensors", metadata)
    with pytest.raises(WeightsError, match=r"blocks\.1\.mlp\.fc1\.weight holds NaN or infinite numbers"):
        load_backbone(BackboneSettings(name=str(tmp_path / "w.safetensors")))


@pytest.mark.parametrize(
    "offsets", [[], [0], "", "ab", None, {}, [0, 10**30], [-1, 5], [0, float("inf")]], ids=lambda value: str(value)[:12]
)
def test_a_damaged_header_of_safetensors_is_an_error(tmp_path: Path, offsets: Any) -> None:
    header = json.dumps({"a": {"dtype": "F32", "shape": [1], "data_offsets": offsets}}).encode()
    (tmp_path / "w.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(4))
    with pytest.raises(WeightsError, match=r"w\.safetensors (is not a readable safetensors file|is truncated)"):
        load_backbone(BackboneSettings(name=str(tmp_path / "w.safetensors")))


def test_weights_that_torch_cannot_open_again_are_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "w.safetensors"
    save_file({"a": torch.zeros(1)}, path)
    reason = f"unable to open file <{path}> in read-only mode: Too many open files (24)"
    monkeypatch.setattr("zofc.model.checkpoints.safe_open", Mock(side_effect=RuntimeError(reason)))
    with pytest.raises(WeightsError, match=r"w\.safetensors cannot be read: .*Too many open files"):
        load_backbone(BackboneSettings(name=str(path)))


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 damaged", b"\x93NUMPY", "zip", "bomb"])
def test_damaged_npz_files_are_errors(tmp_path: Path, content: bytes | str) -> None:
    path = tmp_path / "w.npz"
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("embedding/kernel.npy", bytes(400_000_000) if content == "bomb" else b"not an array")
    with pytest.raises(WeightsError, match=r"w\.npz .*(does not fit|more than the limit)"):
        load_backbone(BackboneSettings(name=str(path), architecture="vit_tiny_patch16_224"))


class Boom:
    def __reduce__(self) -> Any:
        return (os.mkdir, ("exploded",))


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"architecture": "vit_tiny_patch16_224", "model_args": {"checkpoint_path": "evil.bin"}}, "checkpoint_path"),
        ({"architecture": "vit_tiny_patch16_224", "model_args": {"depth": 100000}}, "depth=100000; the limit is 200"),
        ({"model_type": "vit", "num_hidden_layers": 100000}, "num_hidden_layers is 100000, not a positive integer up"),
        ({"model_type": "vit", "hidden_size": 10**12}, "hidden_size is"),
        ({"model_type": "vit", "image_size": 10**9}, "tokens; the limit is"),
        ({"model_type": "dinov2", "mlp_ratio": 1e308}, "is wrong"),
        ({"model_type": "vit", "num_attention_heads": 7}, "7 heads do not divide"),
    ],
)
def test_a_model_folder_can_neither_run_code_nor_ask_for_everything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny_weights: Path, config: dict[str, Any], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "evil.bin").write_bytes(pickle.dumps(Boom()))
    (tmp_path / "config.json").write_text(json.dumps(config))
    shutil.copy(tiny_weights, tmp_path / "model.safetensors")
    with pytest.raises(WeightsError, match=message):
        load_backbone(BackboneSettings(name=str(tmp_path)))
    assert not (tmp_path / "exploded").exists()


@pytest.mark.parametrize("name", ["../../etc/passwd", "/etc/passwd"])
def test_an_index_of_shards_names_files_of_its_folder_alone(tmp_path: Path, name: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "vit"}))
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": name}}))
    with pytest.raises(WeightsError, match="is not a file of its folder"):
        load_backbone(BackboneSettings(name=str(tmp_path)))


def test_json_nested_too_deeply_is_an_error(tmp_path: Path, tiny_weights: Path) -> None:
    (tmp_path / "config.json").write_text('{"a":' * 100_000)
    shutil.copy(tiny_weights, tmp_path / "model.safetensors")
    with pytest.raises(WeightsError, match="nested too deeply"):
        load_backbone(BackboneSettings(name=str(tmp_path)))


# --- text ---

HOSTILE = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202eant[red]x[/red]\r"


def printed(*renderables: Any, console: type[Console] = SafeConsole) -> str:
    safe = console()
    safe.file = io.StringIO()
    safe._force_terminal = True  # as on a terminal, with colours
    for renderable in renderables:
        safe.print(renderable)
    return safe.file.getvalue()


def test_nothing_printed_is_obeyed_by_a_terminal() -> None:
    from zofc.report.grid import Grid

    shown = printed(HOSTILE, Text(HOSTILE, style="bold"), Grid(("class", "n"), ((HOSTILE, "1"),), HOSTILE, (HOSTILE,)))
    assert "\x1b]0" not in shown and "\x1b[2J" not in shown and not {"\x07", "\x9b", "\u202e", "\r"} & {*shown}
    assert shown.count("owned") == 5 and "[red]x[/red]" in shown


def test_printable_text_stays_as_it_is() -> None:
    text = "tab\tline\nÄäß, עברית, 日本語, 👩‍🚀 [red] \\x1b"
    assert printable(text) == text and printed(text).rstrip("\n").replace(" " * 5, "\t") != ""


@pytest.mark.parametrize("stream", ["error", "note", "warning"])
def test_errors_and_notes_are_not_obeyed(capsys: pytest.CaptureFixture[str], stream: str) -> None:
    from zofc.cli import application

    {"error": application.print_error, "note": application.note, "warning": application.warn}[stream](HOSTILE)
    shown = capsys.readouterr().err
    assert "\x1b]" not in shown and "\x07" not in shown and "\\x1b]0;owned" in shown and "[red]x" in shown


def test_outputs_for_programs_stay_exact() -> None:
    rows = [{"image": HOSTILE, "classes": [{"name": HOSTILE, "probability": 0.5}]}]
    line = predictions_json(rows)
    assert json.loads(line) == rows[0] and line.rstrip("\n") == printable(line.rstrip("\n"))
    assert HOSTILE.rstrip("\r") in predictions_csv(rows)


# --- commands ---


def test_predict_names_pipes_and_goes_on(
    zofc: Callable[..., tuple[int, str]], tiny_recipe: Make, tmp_path: Path
) -> None:
    learner = Learner(tiny_recipe("ridge/base"))
    learner.learn({"ant": [np.zeros((9, 9, 3), np.uint8)] * 2, "bee": [np.full((9, 9, 3), 255, np.uint8)] * 2})
    learner.model.classes[0] = HOSTILE  # as a run of an earlier version may have it
    learner.save(tmp_path / "run")
    os.mkfifo(tmp_path / "pipe.png")
    odd = tmp_path / os.fsdecode(b"\xff.png")
    odd.write_bytes(png())
    with socket.socket(socket.AF_UNIX) as server:
        os.chdir(tmp_path)
        server.bind("socket.png")
        code, text = zofc("predict", "run", "pipe.png", "socket.png", str(odd), "-o", "out.csv")
    assert (
        code == 2
        and text.count("it is a pipe, a socket or a device") == 2
        and "\\xff.png" in (tmp_path / "out.csv").read_text("utf-8")
    )
    code, text = zofc("predict", "run", str(odd))
    assert code == 0 and "\x1b]" not in text and "owned" in text


@pytest.mark.parametrize(
    "words",
    [
        ["run", "x" * 300],
        ["run", "zofc/base", "backbone.name=~nosuchuser/x.safetensors"],
        ["run", "zofc/base", "data.order_seed=-1"],
        ["run", f"folder:{'x' * 300}"],
        ["run", "--resume", "x" * 300],
        ["show", "x" * 300],
        ["predict", "x" * 300, "y.png"],
        ["compare", "x" * 5000],
    ],
)
def test_ordinary_mistakes_end_in_a_message(zofc: Callable[..., tuple[int, str]], words: list[str]) -> None:
    code, text = zofc(*words)
    assert code == 2 and "Traceback" not in text and text.strip()


def test_every_limit_is_a_positive_number() -> None:
    values = {name: value for name, value in vars(limits).items() if name.isupper()}
    assert values and all(value > 0 for value in values.values())
    assert issubclass(DataError, ZofcError)
