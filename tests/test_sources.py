"""Sources: what each layout gives, and what each kind of bad input is told."""

from __future__ import annotations

import hashlib
import io
import json
import os
import pickle
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.error import URLError

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from PIL import ExifTags, Image, features
from torchvision.datasets import CIFAR100

from zofc.data import EncodedImages, Source, SourceOptions, describe_sources, formats, open_source
from zofc.data.concat import join
from zofc.data.decoding import find_faults, image_sizes, settle
from zofc.data.folder import images_in
from zofc.data.formats import image_formats
from zofc.data.selection import select_per_class
from zofc.data.source import decode
from zofc.errors import BrokenImages, DataError

FORMATS = {"jpg": "JPEG", "png": "PNG", "webp": "WEBP", "gif": "GIF", "bmp": "BMP", "tif": "TIFF"}


@pytest.fixture(autouse=True)
def bare_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No data set is to be found unless a test puts it there."""
    monkeypatch.delenv("ZOFC_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def notices() -> list[str]:
    return []


def encoded(seed: int = 0, kind: str = "png", size: tuple[int, int] = (12, 10)) -> bytes:
    """An image of noise, `size` wide and high."""
    pixels = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, FORMATS[kind])
    return buffer.getvalue()


def written(image: Image.Image, kind: str, orientation: int = 1) -> bytes:
    """An encoded image with its orientation in the header."""
    exif, buffer = Image.Exif(), io.BytesIO()
    exif[ExifTags.Base.Orientation] = orientation
    image.save(buffer, kind, exif=exif, **({"lossless": True} if kind == "WEBP" else {}))
    return buffer.getvalue()


def put(path: Path, seed: int = 0, size: tuple[int, int] = (12, 10)) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(encoded(seed, path.suffix[1:], size))
    return path


def put_classes(root: Path, counts: dict[str, int], suffix: str = "png") -> None:
    for name, count in counts.items():
        for i in range(count):
            put(root / name / f"{i}.{suffix}", seed=hash_of(name, i))


def hash_of(*parts: object) -> int:
    return int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:4], "little")


def cut_off(path: Path, fraction: float = 0.6) -> Path:
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * fraction)])
    return path


def counts(source: Source, split: str) -> dict[str, int]:
    labels = (source.train if split == "train" else source.test).labels
    return {source.classes[label]: n for label, n in sorted(Counter(labels.tolist()).items())}


def file_names(source: Source, split: str) -> list[str]:
    images = (source.train if split == "train" else source.test).images
    return [images.name(i) for i in range(len(images))]


# --- the registry ---


def test_every_source_has_a_name_and_a_line_about_it() -> None:
    lines = describe_sources()
    assert set(lines) >= {"cifar100", "imagenet-r", "domainnet", "folder", "parquet", "glyphs"}
    assert all(10 < len(line) < 120 for line in lines.values())


def test_a_misspelt_source_is_answered_with_the_nearest() -> None:
    with pytest.raises(DataError, match="did you mean 'cifar100'"):
        open_source("cifar10", SourceOptions())


def test_a_path_without_a_kind_is_answered_with_the_kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_classes(tmp_path / "photos", {"fox": 1})
    (tmp_path / "shards").mkdir()
    write_shard(tmp_path / "shards" / "train-0.parquet", [0], names=["fox"])
    monkeypatch.chdir(tmp_path)
    meant = {"photos": "folder", "./photos": "folder", "shards": "parquet", "shards/train-0.parquet": "parquet"}
    for path, kind in meant.items():
        with pytest.raises(DataError, match=rf"unknown source '{path}'; did you mean {kind}:{path}\?"):
            open_source(path, SourceOptions())
    for other in ("photos/fox/0.png", "", "~no-such-user"):
        with pytest.raises(DataError, match=r"unknown source .*; known: "):
            open_source(other, SourceOptions())


@pytest.mark.parametrize("name", ["cifar100", "imagenet-r"])
def test_a_source_that_takes_no_argument_says_so(name: str) -> None:
    with pytest.raises(DataError, match=f"{name} takes nothing after the colon, got 'mine'"):
        open_source(f"{name}:mine", SourceOptions())


# --- which images ---


@given(st.lists(st.integers(0, 4), max_size=40), st.integers(1, 6), st.integers(0, 9))
def test_so_many_images_of_each_class_are_chosen_as_asked_or_all_there_are(
    labels: list[int], n: int, seed: int
) -> None:
    array = np.array(labels, np.int64)
    chosen = select_per_class(array, n, np.random.default_rng(seed))
    assert Counter(array[chosen].tolist()) == {k: min(n, c) for k, c in Counter(labels).items()}
    assert (np.diff(chosen) > 0).all()
    assert np.array_equal(chosen, select_per_class(array, n, np.random.default_rng(seed)))


@pytest.mark.parametrize("source", ["folder", "parquet"])
def test_per_class_counts_are_honoured_and_seeded(tmp_path: Path, source: str) -> None:
    if source == "folder":
        put_classes(tmp_path / "train", {"a": 6, "b": 5})
        put_classes(tmp_path / "test", {"a": 4, "b": 1})
    else:
        write_shard(tmp_path / "train-0.parquet", [0] * 6 + [1] * 5, names=["a", "b"])
        write_shard(tmp_path / "test-0.parquet", [0] * 4 + [1], names=["a", "b"])
    some = [
        open_source(f"{source}:{tmp_path}", SourceOptions(per_class=3, test_per_class=2, seed=seed))
        for seed in (1, 1, 2)
    ]
    assert counts(some[0], "train") == {"a": 3, "b": 3}
    assert counts(some[0], "test") == {"a": 2, "b": 1}
    assert file_names(some[0], "train") == file_names(some[1], "train") != file_names(some[2], "train")


# --- broken images ---


@given(st.sampled_from(["jpg", "png", "webp", "gif"]), st.floats(0.02, 0.95), st.integers(0, 3))
def test_a_truncated_image_is_found_wherever_it_was_cut(kind: str, fraction: float, seed: int) -> None:
    data = encoded(seed, kind, (40, 30))
    images = EncodedImages([encoded(seed, kind), data[: int(len(data) * fraction)]], ["whole", "cut"])
    kept, keep, broken = settle(images, limit=0)
    assert (len(kept), keep.tolist(), list(broken)) == (1, [0], ["cut"])
    assert broken["cut"] and "Replace" not in broken["cut"]
    with pytest.raises(DataError, match=r"cannot read image cut: .*Replace or remove it\."):
        images.load(1)


@pytest.mark.filterwarnings("ignore::UserWarning:PIL")
@given(st.sampled_from(sorted(FORMATS)), st.integers(0, 400), st.binary(min_size=1, max_size=30))
def test_damage_of_any_kind_is_a_data_error_or_harmless(kind: str, at: int, garbage: bytes) -> None:
    data = encoded(0, kind)
    try:
        assert decode(data[:at] + garbage + data[at + len(garbage) :], "x").mode == "RGB"
    except DataError as error:
        assert str(error).startswith("cannot read image x: ")


def test_every_broken_image_of_both_splits_is_named_at_once(tmp_path: Path, notices: list[str]) -> None:
    put_classes(tmp_path / "train", {"cat": 3, "dog": 30})
    put_classes(tmp_path / "test", {"cat": 2, "dog": 2})
    bad = [tmp_path / "train" / "cat" / "0.png", tmp_path / "test" / "dog" / "1.png"]
    for file in bad:
        file.write_bytes(b"nothing")
    with pytest.raises(BrokenImages) as stopped:
        open_source(f"folder:{tmp_path}", SourceOptions())
    assert str(stopped.value).splitlines() == [
        f"folder:{tmp_path}: 2 of 37 images cannot be read:",
        *(f"  {file}: not an image of a known format" for file in bad),
        "Replace or remove them.",
    ]
    bad += [cut_off(tmp_path / "train" / "dog" / f"{number}.png") for number in range(24)]
    with pytest.raises(BrokenImages, match=r"26 of 37 images") as stopped:
        open_source(f"folder:{tmp_path}", SourceOptions())
    lines = str(stopped.value).splitlines()
    assert len(lines) == 1 + 20 + 1 + 1 and lines[-2] == "  and 6 more"
    assert stopped.value.images.keys() == set(map(str, bad))  # from Python, all of them
    source = open_source(f"folder:{tmp_path}", SourceOptions(skip_broken=True, notice=notices.append))
    assert source.skipped == stopped.value.images and source.skipped[str(bad[0])] == "not an image of a known format"
    assert notices[0].endswith("and 21 more") and "left out 26 of 37 images" in notices[0]


def test_postscript_in_disguise_is_not_run(tmp_path: Path) -> None:
    script = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\nshowpage\n"
    with pytest.raises(DataError, match="not an image of a known format"):
        decode(script, "photo.jpg")


def test_a_truncated_file_is_found_when_the_folder_is_opened(tmp_path: Path, notices: list[str]) -> None:
    put_classes(tmp_path / "train", {"cat": 3, "dog": 3}, "jpg")
    put_classes(tmp_path / "test", {"cat": 1, "dog": 1}, "jpg")
    bad = cut_off(tmp_path / "train" / "cat" / "1.jpg")
    with pytest.raises(DataError, match=rf"1 of 8 images cannot be read:\n  {bad}: .*\nReplace or remove it\."):
        open_source(f"folder:{tmp_path}", SourceOptions())
    source = open_source(f"folder:{tmp_path}", SourceOptions(skip_broken=True, notice=notices.append))
    assert counts(source, "train") == {"cat": 2, "dog": 3}
    assert len(source.train.images) == 5
    assert notices == [f"folder:{tmp_path}: left out 1 of 8 images, which cannot be read: {bad}"]


def test_a_class_whose_images_are_all_broken_is_an_error_even_if_they_may_be_left_out(tmp_path: Path) -> None:
    put_classes(tmp_path / "train", {"cat": 1, "dog": 2})
    put_classes(tmp_path / "test", {"cat": 1, "dog": 1})
    cut_off(tmp_path / "train" / "cat" / "0.png")
    with pytest.raises(DataError, match="in the test set only: 'cat'"):
        open_source(f"folder:{tmp_path}", SourceOptions(skip_broken=True, notice=lambda text: None))


# --- decoded or not ---


def test_images_of_one_size_are_kept_decoded_and_know_their_files(tmp_path: Path) -> None:
    files = [put(tmp_path / f"{i}.png", seed=i) for i in range(5)]
    images, keep, _ = settle(EncodedImages(files, [f.name for f in files]))
    assert images.array is not None
    assert images.array.shape == (5, 10, 12, 3)
    assert keep.tolist() == [0, 1, 2, 3, 4]
    assert np.array_equal(images.array[3], np.asarray(Image.open(files[3])))
    assert images.take(np.array([4, 2])).name(1) == "2.png"


@pytest.mark.parametrize("why", ["odd size", "too large", "first broken"])
def test_other_images_stay_encoded(why: str) -> None:
    items = [encoded(0), encoded(1), encoded(2, size=(9, 9)) if why == "odd size" else encoded(2)]
    limit = 3 * 12 * 10 * 3 - 1 if why == "too large" else 2**30
    if why == "first broken":
        items[0] = b""
    images, keep, _ = settle(EncodedImages(items, list("abc")), limit)
    assert images.array is None
    assert len(images) == len(keep) == (2 if why == "first broken" else 3)


def test_sizes_come_from_headers(tmp_path: Path) -> None:
    cut = encoded(1, "jpg", (30, 20))[:-200]  # cannot be decoded, but its header is whole
    images = EncodedImages([encoded(0, "png", (7, 5)), cut], ["a", "b"])
    assert image_sizes(images).tolist() == [[5, 7], [20, 30]]


def test_a_picture_is_turned_upright_and_its_size_is_told_as_it_then_is() -> None:
    stored = Image.fromarray(np.random.default_rng(0).integers(0, 256, (8, 24, 3), np.uint8))
    for kind in ("JPEG", "PNG", "WEBP", "TIFF", "MPO"):
        plain = np.asarray(decode(written(stored, kind), "x"))
        upright = {2: plain[:, ::-1], 3: plain[::-1, ::-1], 4: plain[::-1], 5: plain.swapaxes(0, 1)}
        upright |= {6: np.rot90(plain, -1), 7: np.rot90(plain, 2).swapaxes(0, 1), 8: np.rot90(plain)}
        for orientation, expected in ({1: plain} | upright).items():
            data = written(stored, kind, orientation)
            assert np.array_equal(np.asarray(decode(data, "x")), expected), (kind, orientation)
            assert image_sizes(EncodedImages([data], ["x"])).tolist() == [list(expected.shape[:2])]


def test_damaged_metadata_leaves_a_picture_as_it_is() -> None:
    buffer = io.BytesIO()
    Image.new("RGB", (12, 10)).save(buffer, "JPEG", exif=b"Exif\0\0nonsense")
    assert decode(buffer.getvalue(), "x").size == (12, 10)
    assert EncodedImages([buffer.getvalue()], ["x"]).size(0) == (10, 12)


@pytest.mark.parametrize(
    ("values", "kind", "expected"),
    [
        (np.array([[0, 257, 385], [386, 32896, 65535]], np.uint16), "PNG", [[0, 1, 1], [2, 128, 255]]),
        (np.array([[0, 257, 385], [386, 32896, 65535]], np.uint16), "TIFF", [[0, 1, 1], [2, 128, 255]]),
        (np.array([[0, 200, 255]], np.uint16), "PNG", [[0, 1, 1]]),
        (np.array([[0, 200, 255]], np.int32), "TIFF", [[0, 200, 255]]),
        (np.array([[0, 257, 65535]], np.int32), "TIFF", [[0, 1, 255]]),
        (np.array([[0, 0.5, 1]], np.float32), "TIFF", [[0, 128, 255]]),
    ],
)
def test_deep_images_are_scaled_to_8_bits(values: np.ndarray, kind: str, expected: list[list[int]]) -> None:
    found = np.asarray(decode(written(Image.fromarray(values), kind), "x"))
    assert found.shape == (*values.shape, 3) and (found == np.array(expected)[:, :, None]).all()


@pytest.mark.parametrize("values", [np.array([[0.0, 1.5]], np.float32), np.array([[-1, 5]], np.int32)])
def test_values_of_no_known_scale_are_refused_when_the_data_is_opened(tmp_path: Path, values: np.ndarray) -> None:
    bad = tmp_path / "fox" / "0.tif"
    put(tmp_path / "fox" / "1.png")
    bad.write_bytes(written(Image.fromarray(values), "TIFF"))
    for size in ((12, 10), values.shape[::-1]):  # sizes that differ, and one for all
        put(tmp_path / "fox" / "1.png", size=size)
        with pytest.raises(DataError, match=rf"\n  {bad}: values of type .* have no known scale; give it 8 or 16"):
            open_source(f"folder:{tmp_path}", SourceOptions(test_fraction=0.0))


def test_sets_of_different_kinds_join(tmp_path: Path) -> None:
    write_shard(tmp_path / "a.parquet", [0, 0, 1, 1], names=["a", "b"])
    put_classes(tmp_path / "f", {"c": 2, "d": 2})
    put(tmp_path / "f" / "d" / "odd.png", size=(5, 9))
    whole = SourceOptions(test_fraction=0.0)
    one, two = (open_source(s, whole).train for s in (f"parquet:{tmp_path}/a.parquet", f"folder:{tmp_path}/f"))
    both = join([one, two]).take(np.array([3, 8, 0]))
    assert both.labels.tolist() == [1, 1, 0]
    assert [both.images.load(i).size for i in range(3)] == [(12, 10), (5, 9), (12, 10)]
    assert image_sizes(both.images).tolist() == [[10, 12], [9, 5], [10, 12]]
    assert both.images.name(1).endswith("odd.png")
    assert join([one, one]).images.array is not None
    assert len(join([])) == 0


# --- folder ---


@pytest.mark.parametrize("test_folder", ["test", "val"])
def test_folder_with_its_own_test_set(tmp_path: Path, test_folder: str) -> None:
    put_classes(tmp_path / "train", {"dog": 2, "cat": 3, "Bird": 1})
    put_classes(tmp_path / test_folder, {"dog": 2, "cat": 1})
    source = open_source(f"folder:{tmp_path}", SourceOptions())
    assert source.classes == ("Bird", "cat", "dog")
    assert counts(source, "train") == {"Bird": 1, "cat": 3, "dog": 2}
    assert counts(source, "test") == {"cat": 1, "dog": 2}
    assert file_names(source, "test")[0] == str(tmp_path / test_folder / "cat" / "0.png")


def test_folder_without_a_test_set_holds_some_of_each_class_out(tmp_path: Path) -> None:
    put_classes(tmp_path, {"cat": 10, "dog": 2})
    first, again, other = (open_source(f"folder:{tmp_path}", SourceOptions(seed=s)) for s in (1, 1, 2))
    assert counts(first, "train") == {"cat": 8, "dog": 1}
    assert counts(first, "test") == {"cat": 2, "dog": 1}
    assert not set(file_names(first, "train")) & set(file_names(first, "test"))
    assert file_names(first, "test") == file_names(again, "test") != file_names(other, "test")
    assert first.checksum == again.checksum != other.checksum
    put_classes(tmp_path, {"ant": 5})
    more = open_source(f"folder:{tmp_path}", SourceOptions(seed=1))
    assert set(file_names(first, "test")) <= set(file_names(more, "test"))


def test_nothing_is_held_out_if_nothing_is_asked_for(tmp_path: Path) -> None:
    put_classes(tmp_path, {"cat": 1})
    source = open_source(f"folder:{tmp_path}", SourceOptions(test_fraction=0.0))
    assert (len(source.train), len(source.test)) == (1, 0)


def test_a_lone_train_folder_is_not_taken_for_a_class(tmp_path: Path) -> None:
    put_classes(tmp_path / "train", {"cat": 2, "dog": 2})
    assert open_source(f"folder:{tmp_path}", SourceOptions()).classes == ("cat", "dog")


def test_other_files_are_ignored_and_named_and_subfolders_are_searched(tmp_path: Path, notices: list[str]) -> None:
    put_classes(tmp_path, {"cat": 2, "dog": 2})
    put(tmp_path / "dog" / "puppies" / "small" / "0.jpg")
    put(tmp_path / "loose.png")
    for name in ("README", "cat/notes.txt", "dog/puppies/film.mp4", "cat/.DS_Store", ".hidden"):
        (tmp_path / name).write_text("not an image")
    source = open_source(f"folder:{tmp_path}", SourceOptions(notice=notices.append, test_fraction=0.0))
    assert counts(source, "train") == {"cat": 2, "dog": 3}
    assert [text.removeprefix(f"folder:{tmp_path}: ") for text in notices] == [
        "ignored 1 image(s) outside class folders: loose.png",
        "ignored 3 file(s) that are not images: README, cat/notes.txt, dog/puppies/film.mp4",
    ]


def test_of_many_ignored_files_the_first_are_named(tmp_path: Path, notices: list[str]) -> None:
    for split in ("train", "test"):
        put_classes(tmp_path / split, {"cat": 1})
        for number in range(4):
            (tmp_path / split / f"{number}.pdf").write_text("")
    open_source(f"folder:{tmp_path}", SourceOptions(notice=notices.append))
    names = "test/0.pdf, test/1.pdf, test/2.pdf, test/3.pdf, train/0.pdf and 3 more"
    assert notices == [f"folder:{tmp_path}: ignored 8 file(s) that are not images: {names}"]


# --- formats that need more than Pillow ---


@pytest.fixture
def without_heic(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As if pillow-heif were not installed."""
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    image_formats.cache_clear()
    yield
    monkeypatch.undo()
    image_formats.cache_clear()


HEIC = b"\0\0\0\x18ftypheic\0\0\0\0mif1heic"  # how such a file begins
INSTALL = 'pip install "zofc[heic]"'


@pytest.mark.usefixtures("without_heic")
def test_heic_images_are_counted_with_the_remedy(tmp_path: Path, notices: list[str]) -> None:
    put_classes(tmp_path, {"cat": 2, "dog": 2})
    for name in ("cat/a.heic", "dog/b.HEIC", "dog/c.heif"):
        (tmp_path / name).write_bytes(HEIC)
    source = open_source(f"folder:{tmp_path}", SourceOptions(notice=notices.append, test_fraction=0.0))
    assert len(source.train) == 4
    said = f"ignored 3 HEIC image(s): cat/a.heic, dog/b.HEIC, dog/c.heif. To read them: {INSTALL}"
    assert notices == [f"folder:{tmp_path}: {said}"]


@pytest.mark.usefixtures("without_heic")
def test_a_class_of_heic_images_alone_names_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "fox").mkdir()
    (tmp_path / "fox" / "a.heic").write_bytes(HEIC)
    remedy = re.escape(f"To read 1 HEIC image(s) there: {INSTALL}")
    with pytest.raises(DataError, match=rf"no images in class folders .* {remedy}"):
        open_source(f"folder:{tmp_path}", SourceOptions())
    put_classes(tmp_path, {"cat": 2})
    with pytest.raises(DataError, match=rf"class folder .*fox has no images.* {remedy}"):
        open_source(f"folder:{tmp_path}", SourceOptions())


@pytest.mark.usefixtures("without_heic")
@pytest.mark.parametrize("name", ["photo.heic", "photo.jpg"])
def test_a_heic_image_is_known_by_its_content(name: str) -> None:
    with pytest.raises(
        DataError, match=re.escape(f"cannot read image {name}: HEIC is not supported here; to read it:")
    ):
        decode(HEIC, name)


@pytest.mark.usefixtures("without_heic")
def test_heic_images_of_a_folder_to_predict_are_not_passed_over(tmp_path: Path) -> None:
    (tmp_path / "a.heic").write_bytes(HEIC)
    (file,) = images_in(tmp_path)
    (fault,) = find_faults(EncodedImages([file], ["a.heic"]))
    assert fault is not None and INSTALL in str(fault)


def test_heic_images_are_read_with_the_extra(tmp_path: Path, notices: list[str]) -> None:
    heif = pytest.importorskip("pillow_heif")
    put_classes(tmp_path, {"cat": 2})
    turned, exif = Image.new("RGB", (64, 32), "red"), Image.Exif()
    exif[ExifTags.Base.Orientation] = 6
    heif.from_pillow(turned).save(tmp_path / "cat" / "plain.heic")
    heif.from_pillow(turned).save(tmp_path / "cat" / "turned.heic", exif=exif.tobytes())
    source = open_source(f"folder:{tmp_path}", SourceOptions(notice=notices.append, test_fraction=0.0))
    assert notices == [] and len(source.train) == 4
    images = {Path(file).name: source.train.images.load(i) for i, file in enumerate(file_names(source, "train"))}
    assert (images["plain.heic"].size, images["turned.heic"].size) == ((64, 32), (32, 64))
    assert images["turned.heic"].getpixel((5, 5))[0] > 200
    sizes = image_sizes(source.train.images)
    assert [tuple(size) for size in sizes[-2:]] == [(32, 64), (64, 32)]


@pytest.mark.skipif(not features.check("avif"), reason="this Pillow has no AVIF")
def test_avif_images_are_read_by_pillow(tmp_path: Path, notices: list[str]) -> None:
    put_classes(tmp_path, {"cat": 1})
    Image.new("RGB", (64, 32), "red").save(tmp_path / "cat" / "a.avif")
    source = open_source(f"folder:{tmp_path}", SourceOptions(notice=notices.append, test_fraction=0.0))
    assert notices == [] and len(source.train) == 2


def test_avif_that_pillow_lacks_names_its_own_remedy(
    tmp_path: Path, notices: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(formats.features, "check", lambda feature: False)
    image_formats.cache_clear()
    put_classes(tmp_path, {"cat": 1})
    (tmp_path / "cat" / "a.avif").write_bytes(b"")
    open_source(f"folder:{tmp_path}", SourceOptions(notice=notices.append, test_fraction=0.0))
    monkeypatch.undo()
    image_formats.cache_clear()
    assert "ignored 1 AVIF image(s): cat/a.avif. To read them: pip install --upgrade pillow" in notices[0]


@pytest.mark.parametrize(
    ("folders", "said"),
    [
        (["fox", "hare"], []),
        (["train/fox", "val/fox"], []),
        (["train/fox", "train/hare"], []),
        (["train/fox", "dev/fox"], ["'train' is taken for a class", "images of class 'dev' lie in sub-folders"]),
        (["Train/fox", "Test/fox"], ["'Test' is taken for a class"]),
        (["test/fox"], ["'test' is taken for a class"]),
        (["mine/fox", "mine/hare"], ["images of class 'mine' lie in sub-folders"]),
        (["a/fox", "b/fox", "c"], ["name the folder that holds them (such classes: 2)"]),
        (["train/mine/fox", "test/mine/fox"], ["images of class 'mine' lie in sub-folders"]),
    ],
)
def test_class_folders_that_seem_to_lie_deeper_are_noticed(
    tmp_path: Path, notices: list[str], folders: list[str], said: list[str]
) -> None:
    put_classes(tmp_path, dict.fromkeys(folders, 1))
    open_source(f"folder:{tmp_path}", SourceOptions(notice=notices.append, test_fraction=0.0))
    assert len(notices) == len(said) and all(part in text for part, text in zip(said, notices, strict=True))


def test_a_relative_path_is_also_looked_for_under_zofc_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_classes(tmp_path / "animals", {"cat": 2})
    monkeypatch.setenv("ZOFC_DATA", str(tmp_path))
    assert open_source("folder:animals", SourceOptions()).classes == ("cat",)
    assert open_source("folder", SourceOptions(root=tmp_path / "animals")).classes == ("cat",)


def _empty_class(root: Path) -> None:
    put_classes(root, {"cat": 2})
    (root / "dog").mkdir()


def _only_in_test(root: Path) -> None:
    put_classes(root / "train", {"cat": 1})
    put_classes(root / "test", {"cat": 1, "dog": 1})


def _file(root: Path) -> None:
    root.rmdir()
    root.write_text("x")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (_empty_class, r"class folder .*dog has no images"),
        (_only_in_test, r"class 'dog' is in .*test but not in .*train"),
        (lambda root: None, r"no images in class folders .* expected .*/CLASS/image\.jpg"),
        (lambda root: put(root / "loose.png"), r"no images in class folders"),
        (_file, r"is not a directory"),
        (lambda root: root.rmdir(), r"does not exist: looked for"),
        (lambda root: put_classes(root, {"cat": 3, "dog": 1}), r"class 'dog' has 1 image.* at least 2"),
    ],
)
def test_a_folder_that_cannot_be_used_is_told_why(tmp_path: Path, make: Callable[[Path], Any], message: str) -> None:
    root = tmp_path / "data"
    root.mkdir()
    make(root)
    with pytest.raises(DataError, match=message):
        open_source(f"folder:{root}", SourceOptions())


def test_folder_without_a_path_asks_for_one() -> None:
    with pytest.raises(DataError, match="folder needs a path, as in folder:my_images"):
        open_source("folder", SourceOptions())


# --- cifar100 ---


def put_cifar(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A small stand-in in torchvision's layout, with torchvision told its checksums."""
    folder = root / "cifar-100-python"
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)

    def write(name: str, content: dict[str, Any]) -> str:
        data = pickle.dumps(content)
        (folder / name).write_bytes(data)
        return hashlib.md5(data).hexdigest()

    def rows(n: int) -> dict[str, Any]:
        return {"data": rng.integers(0, 256, (n, 3072), np.uint8), "fine_labels": [i % 4 for i in range(n)]}

    monkeypatch.setattr(CIFAR100, "train_list", [["train", write("train", rows(40))]])
    monkeypatch.setattr(CIFAR100, "test_list", [["test", write("test", rows(8))]])
    names = ["apple", "bear", "can", "dolphin"]
    meta = {"filename": "meta", "key": "fine_label_names", "md5": write("meta", {"fine_label_names": names})}
    monkeypatch.setattr(CIFAR100, "meta", meta)


@pytest.mark.parametrize("where", ["root", "ZOFC_DATA", "cache"])
def test_cifar100_in_torchvision_layout_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    data = {"root": "mine", "ZOFC_DATA": "shared/cifar100", "cache": "cache/zofc/cifar100"}[where]
    put_cifar(tmp_path / data, monkeypatch)
    monkeypatch.setenv("ZOFC_DATA", str(tmp_path / "shared"))
    root = tmp_path / data if where == "root" else None
    source = open_source("cifar100", SourceOptions(root=root, per_class=6))
    assert source.classes == ("apple", "bear", "can", "dolphin")
    assert (len(source.train), len(source.test)) == (24, 8)
    assert source.train.images.array is not None
    assert source.train.images.array.shape == (24, 32, 32, 3)
    assert source.checksum.startswith("md5:")


def test_a_pickle_with_the_wrong_checksum_is_never_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Trap:
        def __reduce__(self) -> tuple[Any, tuple[str]]:
            return os.mkdir, (str(tmp_path / "sprung"),)

    put_cifar(tmp_path / "data", monkeypatch)
    for name in ("train", "test", "meta"):
        file = tmp_path / "data" / "cifar-100-python" / name
        genuine = file.read_bytes()
        file.write_bytes(pickle.dumps(Trap()))
        with pytest.raises(DataError, match="is not CIFAR-100 as published"):
            open_source("cifar100", SourceOptions(root=tmp_path / "data"))
        file.write_bytes(genuine)
    assert not (tmp_path / "sprung").exists()


def test_cifar100_absent_and_offline_says_where_to_put_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def offline(self: CIFAR100) -> None:
        raise URLError("no network")

    monkeypatch.setattr(CIFAR100, "download", offline)
    monkeypatch.setenv("ZOFC_DATA", str(tmp_path))
    place = tmp_path / "cifar100"
    with pytest.raises(DataError, match=rf"cifar100 is not in {place} .*cifar-100-python\.tar\.gz.*data\.root"):
        open_source("cifar100", SourceOptions())


def test_cifar100_shards_are_read_as_parquet(tmp_path: Path) -> None:
    write_shard(tmp_path / "train-0.parquet", [0, 1, 1], names=["apple", "bear"])
    write_shard(tmp_path / "test-0.parquet", [0, 1], names=["apple", "bear"])
    source = open_source("cifar100", SourceOptions(root=tmp_path))
    assert (source.name, source.classes, len(source.train)) == ("cifar100", ("apple", "bear"), 3)


# --- imagenet-r ---

WNIDS = ("n01443537", "n01484850", "n02007558")


@pytest.fixture
def imagenet_r(tmp_path: Path) -> Path:
    """The published layout: folders named by WordNet id, straight in the root, and a README."""
    root = tmp_path / "imagenet-r"
    put_classes(root, dict.fromkeys(WNIDS, 10), "jpg")
    (root / "README.txt").write_text("ImageNet-R")
    return root


def test_imagenet_r_split_follows_from_file_names_alone(imagenet_r: Path, notices: list[str]) -> None:
    before = sorted(imagenet_r.rglob("*"))
    one, two = (
        open_source("imagenet-r", SourceOptions(root=imagenet_r, seed=s, notice=notices.append)) for s in (1, 2)
    )
    assert one.classes == WNIDS
    assert counts(one, "train") == dict.fromkeys(WNIDS, 8)
    assert counts(one, "test") == dict.fromkeys(WNIDS, 2)
    assert file_names(one, "test") == file_names(two, "test")
    assert one.checksum == two.checksum
    assert any("the split is ours" in text for text in notices)
    assert any("found 3 classes, the published data set has 200" in text for text in notices)
    assert sorted(imagenet_r.rglob("*")) == before, "nothing may be written in the user's root"


def test_imagenet_r_prepared_as_train_and_test_folders(tmp_path: Path) -> None:
    put_classes(tmp_path / "train", {"n1": 2, "n2": 2})
    put_classes(tmp_path / "test", {"n1": 1, "n2": 1})
    source = open_source("imagenet-r", SourceOptions(root=tmp_path, notice=lambda text: None))
    assert (source.classes, len(source.train), len(source.test)) == (("n1", "n2"), 4, 2)


@pytest.mark.parametrize(
    ("train", "test", "message"),
    [
        (
            "n01443537/0.jpg\nloose.jpg\n",
            "n01443537/1.jpg\n",
            r"train\.txt line 2: expected CLASS/image\.jpg",
        ),
        ("n01443537/../../secret.jpg\n", "n01443537/1.jpg\n", r"train\.txt line 1"),
        ("/n01443537/0.jpg\n", "n01443537/1.jpg\n", r"train\.txt line 1"),
        ("n01443537/0.jpg\n", None, r"cannot read the list .*test\.txt"),
        ("\n", "n01443537/1.jpg\n", r"train\.txt is empty"),
        ("n01443537/0.jpg\n", "n01484850/1.jpg\n", r"in the test set only: 'n01484850'"),
        ("n01443537/0.jpg\n", "n01443537/99.jpg\n", r"99\.jpg: there is no such file"),
    ],
)
def test_imagenet_r_lists_that_cannot_be_used(imagenet_r: Path, train: str, test: str | None, message: str) -> None:
    (imagenet_r / "train.txt").write_text(train)
    if test is not None:
        (imagenet_r / "test.txt").write_text(test)
    with pytest.raises(DataError, match=message):
        open_source("imagenet-r", SourceOptions(root=imagenet_r, notice=lambda text: None))


@pytest.mark.parametrize(("name", "get"), [("imagenet-r", "Hendrycks"), ("domainnet", "Peng")])
def test_a_missing_root_says_what_to_get_and_where_to_put_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, get: str
) -> None:
    monkeypatch.setenv("ZOFC_DATA", str(tmp_path))
    message = rf"{name} is not in {tmp_path / name} or .*Get .*{get} et al.* \$ZOFC_DATA/{name}.*data\.root"
    with pytest.raises(DataError, match=message):
        open_source(name, SourceOptions())


# --- domainnet ---

DOMAINS = ("clipart", "infograph", "painting", "quickdraw", "real", "sketch")
CLASSES = ("aircraft_carrier", "airplane", "The_Eiffel_Tower")  # the published order is by label, not by name


@pytest.fixture
def domainnet(tmp_path: Path) -> Path:
    """The published layout with three of its classes."""
    root = tmp_path / "domainnet"
    for domain in DOMAINS:
        for split, number in (("train", 2), ("test", 1)):
            lines = []
            for label, name in enumerate(CLASSES):
                for i in range(number):
                    file = f"{domain}/{name}/{domain}_{split}_{i}.jpg"
                    put(root / file, seed=hash_of(file))
                    lines.append(f"{file} {label}\n")
            (root / f"{domain}_{split}.txt").write_text("".join(lines))
    return root


def quiet(root: Path) -> SourceOptions:
    return SourceOptions(root=root, notice=lambda text: None)


def test_domainnet_pools_its_six_domains(domainnet: Path) -> None:
    source = open_source("domainnet", quiet(domainnet))
    assert source.classes == CLASSES
    assert source.domain_names == DOMAINS
    assert counts(source, "train") == dict.fromkeys(CLASSES, 12)
    assert counts(source, "test") == dict.fromkeys(CLASSES, 6)
    assert source.test.domains is not None
    for i, domain in enumerate(source.test.domains):
        assert f"/{DOMAINS[domain]}/{CLASSES[source.test.labels[i]]}/" in source.test.images.name(i)


def test_counts_may_be_for_each_class_in_each_domain(domainnet: Path) -> None:
    pooled, each = (
        open_source("domainnet", replace(quiet(domainnet), per_class=1, per_domain=per_domain))
        for per_domain in (False, True)
    )
    assert counts(pooled, "train") == dict.fromkeys(CLASSES, 1)
    assert counts(each, "train") == dict.fromkeys(CLASSES, 6)
    assert counts(each.paired(), "train") == {f"{domain}/{name}": 1 for domain in DOMAINS for name in CLASSES}


def test_domainnet_as_coda_prompt_lists_it(domainnet: Path) -> None:
    published = open_source("domainnet", quiet(domainnet))
    for split in ("train", "test"):
        lines = [line.split() for d in DOMAINS for line in (domainnet / f"{d}_{split}.txt").open()]
        listed = {"data": [f"data/DomainNet/{f}" for f, _ in lines], "targets": [int(t) for _, t in lines]}
        (domainnet / f"domainnet_{split}.yaml").write_text(yaml.safe_dump(listed))
    for file in domainnet.glob("*.txt"):
        file.unlink()
    source = open_source("domainnet", quiet(domainnet))
    assert source.checksum == published.checksum
    assert source.classes == CLASSES
    assert len(open_source("domainnet:real", quiet(domainnet)).test) == 3


def test_domainnet_can_be_asked_for_some_domains(domainnet: Path) -> None:
    (domainnet / "quickdraw_train.txt").unlink()
    source = open_source("domainnet:sketch,real", quiet(domainnet))
    assert source.domain_names == ("sketch", "real")
    assert len(source.train) == 12
    with pytest.raises(DataError, match=r"quickdraw_train\.txt is missing"):
        open_source("domainnet", quiet(domainnet))
    with pytest.raises(DataError, match="no domain 'skech'; did you mean 'sketch'"):
        open_source("domainnet:skech", quiet(domainnet))


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("real_train.txt", "real/airplane/a.jpg\n", r"real_train\.txt line 1: expected DOMAIN/CLASS/image"),
        ("real_train.txt", "real/airplane/a.jpg x\n", r"line 1"),
        ("real_train.txt", "airplane/a.jpg 1\n", r"line 1"),
        ("real_train.txt", "real/../a.jpg 1\n", r"line 1"),
        ("real_train.txt", "sketch/airplane/a.jpg 1\n", r"expected an image of real"),
        (
            "real_train.txt",
            "real/tiger/a.jpg 1\n",
            r"label 1 is 'airplane' and, at real/tiger/a\.jpg, 'tiger'",
        ),
        ("real_train.txt", "real/airplane/a.jpg 7\n", r"two labels carry the same class name"),
        ("domainnet_train.yaml", "data: [a, b]\ntargets: [1]\n", r"expected the keys data and targets"),
        ("domainnet_train.yaml", "just text", r"expected the keys data and targets"),
        ("domainnet_train.yaml", "data: !!python/object/apply:os.getcwd []", r"expected the keys"),
    ],
)
def test_domainnet_lists_that_cannot_be_used(domainnet: Path, file: str, content: str, message: str) -> None:
    (domainnet / file).write_text(content)
    with pytest.raises(DataError, match=message):
        open_source("domainnet", quiet(domainnet))


# --- parquet ---


def write_shard(
    file: Path,
    labels: list[int | None],
    names: list[str] | None = None,
    image: str = "image",
    label: str = "label",
    domains: list[int] | None = None,
    broken: dict[int, bytes | None] | None = None,
    row_group: int | None = None,
    extra: dict[str, list[int]] | None = None,
) -> None:
    """A shard as Hugging Face writes it; with `names`, with its metadata."""
    items = [{"bytes": encoded(hash_of(file.name, i)), "path": f"{i}.png"} for i in range(len(labels))]
    for row, data in (broken or {}).items():
        items[row]["bytes"] = data  # type: ignore[assignment]
    columns: dict[str, Any] = {image: items, label: pa.array(labels, pa.int64())}
    features: dict[str, Any] = {image: {"_type": "Image"}, label: {"_type": "ClassLabel", "names": names}}
    for name, values in (extra or {}).items():
        columns[name] = pa.array(values, pa.int64())
        features[name] = {"_type": "ClassLabel", "names": ["coarse 0", "coarse 1"]}
    if domains is not None:
        columns["domain"] = pa.array(domains, pa.int64())
        features["domain"] = {"_type": "ClassLabel", "names": ["photo", "sketch"]}
    table = pa.table(columns)
    if names is not None:
        table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    pq.write_table(table, file, row_group_size=row_group)


def test_parquet_shards_with_names_and_domains(tmp_path: Path) -> None:
    names = ["cat", "dog"]
    write_shard(tmp_path / "train-00000-of-00002.parquet", [1, 0, 1], names, domains=[0, 1, 1], row_group=2)
    write_shard(tmp_path / "train-00001-of-00002.parquet", [0, 0], names, domains=[1, 0])
    write_shard(tmp_path / "test-00000-of-00001.parquet", [1, 0], names, domains=[1, 0])
    source = open_source(f"parquet:{tmp_path}", SourceOptions())
    assert source.classes == ("cat", "dog")
    assert source.domain_names == ("photo", "sketch")
    assert source.train.labels.tolist() == [1, 0, 1, 0, 0]
    assert source.train.domains is not None
    assert source.train.domains.tolist() == [0, 1, 1, 1, 0]
    assert source.train.images.array is not None
    expected = decode(encoded(hash_of("train-00001-of-00002.parquet", 1)), "")
    assert np.array_equal(source.train.images.array[4], np.asarray(expected))
    assert source.train.images.name(4).endswith("train-00001-of-00002.parquet row 1")


def test_pairs_of_domain_and_class_train_and_test_on_the_images_that_the_classes_do(tmp_path: Path) -> None:
    write_shard(tmp_path / "all.parquet", [0, 1] * 20, ["cat", "dog"], domains=[0] * 20 + [1] * 20)
    pooled = open_source(f"parquet:{tmp_path}", SourceOptions(test_fraction=0.5))
    paired = open_source(f"parquet:{tmp_path}", SourceOptions(test_fraction=0.5, per_domain=True)).paired()
    assert paired.classes == ("photo/cat", "photo/dog", "sketch/cat", "sketch/dog")
    for before, after in ((pooled.train, paired.train), (pooled.test, paired.test)):
        assert np.array_equal(np.asarray(before.images.array), np.asarray(after.images.array))
        assert before.domains is not None and np.array_equal(after.labels, 2 * before.domains + before.labels)


@pytest.mark.parametrize(
    ("file", "options", "classes"),
    [
        ("named", dict(names=["cat", "dog"], image="img", label="kind"), ("cat", "dog")),
        ("unnamed", {}, ("class 0", "class 1")),
        (
            "cifar",
            dict(names=["cat", "dog"], label="fine_label", extra={"coarse_label": [0] * 8}),
            ("cat", "dog"),
        ),
    ],
)
def test_parquet_columns_are_found_by_type(
    tmp_path: Path, file: str, options: dict[str, Any], classes: tuple[str, ...]
) -> None:
    write_shard(tmp_path / f"{file}.parquet", [0, 1] * 4, **options)
    source = open_source(f"parquet:{tmp_path}/{file}.parquet", SourceOptions())
    assert source.classes == classes
    assert counts(source, "test") == dict.fromkeys(classes, 1), "no test shards, so some of each class is held out"


def test_parquet_validation_shards_serve_where_there_are_no_test_shards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "set" / "data").mkdir(parents=True)
    write_shard(tmp_path / "set" / "data" / "train-0.parquet", [0, 1])
    write_shard(tmp_path / "set" / "data" / "validation-0.parquet", [1, 0, 1])
    monkeypatch.setenv("ZOFC_DATA", str(tmp_path))
    assert len(open_source("parquet:set", SourceOptions()).test) == 3


def test_parquet_decodes_only_the_images_that_were_chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_shard(tmp_path / "train-0.parquet", [0, 1] * 50, row_group=10)
    write_shard(tmp_path / "test-0.parquet", [0, 1] * 50)
    decoded: list[str] = []

    def counting(data: bytes | Path, name: str) -> Image.Image:
        decoded.append(name)
        return decode(data, name)

    monkeypatch.setattr("zofc.data.source.decode", counting)
    open_source(f"parquet:{tmp_path}", SourceOptions(per_class=2, test_per_class=1))
    assert len(decoded) == 2 * 2 + 2 * 1


def test_parquet_classes_without_images_are_left_out_with_a_notice(tmp_path: Path, notices: list[str]) -> None:
    write_shard(tmp_path / "part.parquet", [0, 2, 0, 2], names=["ant", "bee", "cat"])
    source = open_source(f"parquet:{tmp_path}/part.parquet", SourceOptions(notice=notices.append))
    assert source.classes == ("ant", "cat")
    assert sorted(source.train.labels.tolist()) == [0, 1]
    assert "1 of 3 named classes have no images" in notices[0]


@pytest.mark.parametrize("damage", [b"", None, encoded(0)[:60]])
def test_a_broken_row_is_named_or_left_out(tmp_path: Path, notices: list[str], damage: bytes | None) -> None:
    write_shard(tmp_path / "train-0.parquet", [0, 1, 0, 1], broken={2: damage})
    write_shard(tmp_path / "test-0.parquet", [0, 1])
    with pytest.raises(DataError, match=r"1 of 6 images cannot be read:\n.*train-0\.parquet row 2: "):
        open_source(f"parquet:{tmp_path}", SourceOptions())
    options = SourceOptions(skip_broken=True, notice=notices.append)
    source = open_source(f"parquet:{tmp_path}", options)
    assert source.train.labels.tolist() == [0, 1, 1]
    assert "train-0.parquet row 2" in notices[0] and list(source.skipped) == [f"{tmp_path / 'train-0.parquet'} row 2"]


def _parquet_text(root: Path) -> None:
    (root / "train-0.parquet").write_text("not parquet")


def _parquet_columns(root: Path) -> None:
    pq.write_table(pa.table({"text": ["a"], "label": [1]}), root / "train-0.parquet")


def _parquet_names_differ(root: Path) -> None:
    write_shard(root / "train-0.parquet", [0], ["cat"])
    write_shard(root / "test-0.parquet", [0], ["dog"])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda root: None, r"no \*\.parquet files in"),
        (_parquet_text, r"cannot read .*train-0\.parquet"),
        (_parquet_columns, r"expected an image column .* got the columns text, label"),
        (_parquet_names_differ, r"test-0\.parquet: its columns or class names differ"),
        (lambda root: write_shard(root / "train-0.parquet", [], ["a"]), r"no rows"),
        (lambda root: write_shard(root / "test-0.parquet", [0]), r"test shards but no train"),
        (
            lambda root: write_shard(root / "train-0.parquet", [0, None]),
            r"column label has 1 rows without a value",
        ),
        (lambda root: write_shard(root / "train-0.parquet", [0, -1]), r"row 1: label -1 is not the number"),
        (lambda root: write_shard(root / "train-0.parquet", [0, 3], ["a", "b"]), r"row 1: label 3 is not"),
        (lambda root: write_shard(root / "train-0.parquet", [0, 0, 1]), r"class 'class 1' has 1 image"),
    ],
)
def test_parquet_that_cannot_be_used_is_told_why(tmp_path: Path, make: Callable[[Path], Any], message: str) -> None:
    make(tmp_path)
    with pytest.raises(DataError, match=message):
        open_source(f"parquet:{tmp_path}", SourceOptions())


def test_a_parquet_class_only_in_the_test_split_is_named(tmp_path: Path) -> None:
    write_shard(tmp_path / "train-0.parquet", [0, 0], ["cat", "dog"])
    write_shard(tmp_path / "test-0.parquet", [0, 1], ["cat", "dog"])
    with pytest.raises(DataError, match="in the test set only: 'dog'"):
        open_source(f"parquet:{tmp_path}", SourceOptions())


# --- real images, where there are any ---

ASSETS = os.environ.get("ZOFC_DATA", "")


def real(name: str) -> Any:
    present = bool(ASSETS) and any(Path(ASSETS, name).glob("*.parquet"))
    return [pytest.mark.assets, pytest.mark.skipif(not present, reason=f"no $ZOFC_DATA/{name}/*.parquet")]


@pytest.mark.parametrize(
    ("spec", "classes", "in_memory"),
    [
        pytest.param("cifar100", 100, True, marks=real("cifar100")),
        pytest.param("parquet:caltech101", 101, False, marks=real("caltech101")),
        pytest.param("parquet:pacs", 7, True, marks=real("pacs")),
    ],
)
def test_real_shards_open(monkeypatch: pytest.MonkeyPatch, spec: str, classes: int, in_memory: bool) -> None:
    monkeypatch.setenv("ZOFC_DATA", ASSETS)
    source = open_source(spec, SourceOptions(per_class=4, test_per_class=2))
    assert len(source.classes) == classes
    assert set(Counter(source.train.labels.tolist()).values()) == {4}
    assert len(source.test) == 2 * classes
    assert (source.train.images.array is not None) == in_memory
    if spec == "cifar100":
        assert source.classes[:3] == ("apple", "aquarium_fish", "baby")
    if spec == "parquet:pacs":
        assert source.domain_names == ("art_painting", "cartoon", "photo", "sketch")
