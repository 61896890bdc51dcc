"""Facts about the decode cache: the same pixels, decoded once, whatever happens to its files."""

from __future__ import annotations

import io
import json
import multiprocessing
import os
import pickle
import signal
import stat
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from multiprocessing.queues import SimpleQueue
from multiprocessing.synchronize import Barrier
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import ExifTags, Image

from waiting import DEADLINE
from zofc.data import Loader, Source, SourceOptions, TestView, TrainView, decode_cache, decoding, open_source
from zofc.data.decode_cache import DecodeCache, cache_folder, cache_limit
from zofc.data.decoding import image_sizes
from zofc.data.source import ArrayImages, EncodedImages, ImageSet
from zofc.data.stored import PIXELS, StoredImages
from zofc.errors import BrokenImages, DataError
from zofc.recipe import load_recipe
from zofc.runfolder.identity import recipe_digest

ON, OFF = SourceOptions(cache="on"), SourceOptions(cache="off")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of its own for each test."""
    monkeypatch.setenv("ZOFC_CACHE", str(tmp_path / "cache"))
    return cache_folder()


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of all images that are decoded, as they are."""
    names: list[str] = []
    real = EncodedImages.load

    def load(self: EncodedImages, index: int) -> Image.Image:
        names.append(self.names[index])
        return real(self, index)

    monkeypatch.setattr(EncodedImages, "load", load)
    return names


def picture(seed: int, size: tuple[int, int] = (8, 8), kind: str = "PNG", mode: str = "RGB", turn: int = 1) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), np.uint8)
    exif, buffer = Image.Exif(), io.BytesIO()
    exif[ExifTags.Base.Orientation] = turn
    Image.fromarray(pixels).convert(mode).save(buffer, kind, exif=exif)
    return buffer.getvalue()


def write_shards(root: Path, per_class: int = 6, sizes: tuple[tuple[int, int], ...] = ((8, 8),)) -> str:
    """A stand-in for CIFAR-100: two training shards and a test shard of lossless images, four classes."""
    root.mkdir(parents=True, exist_ok=True)
    for number, file in enumerate(("train-0.parquet", "train-1.parquet", "test-0.parquet")):
        labels = np.random.default_rng(number).permutation(np.repeat(np.arange(4), per_class))
        items = [
            {"bytes": picture(100 * number + row, sizes[row % len(sizes)]), "path": ""} for row in range(len(labels))
        ]
        pq.write_table(pa.table({"image": items, "label": pa.array(labels)}), root / file, row_group_size=7)
    return f"parquet:{root}"


def write_folder(root: Path) -> str:
    """Class folders with pictures of every kind: palettes, transparency, 16 bits, turned, of several sizes."""
    kinds = [
        ("png", "P"),
        ("png", "RGBA"),
        ("png", "L"),
        ("jpg", "CMYK"),
        ("webp", "RGB"),
        ("gif", "P"),
        ("bmp", "RGB"),
    ]
    formats = {"jpg": "JPEG"}
    for name in ("ant", "bee"):
        (root / name).mkdir(parents=True)
        for number, (suffix, mode) in enumerate(kinds):
            data = picture(number + len(name), (9 + number, 11), formats.get(suffix, suffix.upper()), mode)
            (root / name / f"{number}.{suffix}").write_bytes(data)
        (root / name / "turned.jpg").write_bytes(picture(50, (12, 7), "JPEG", turn=6))
        deep = np.random.default_rng(1).integers(0, 2**16, (10, 6)).astype(np.uint16)
        Image.fromarray(deep).save(root / name / "deep.png")
    return f"folder:{root}"


def sets(source: Source) -> list[ImageSet]:
    return [source.train, source.test]


def assert_same(one: Source, two: Source) -> None:
    """Pixels, sizes, names, labels and checksum, and the way images are served."""
    assert (one.checksum, one.classes, one.domain_names) == (two.checksum, two.classes, two.domain_names)
    for a, b in zip(sets(one), sets(two), strict=True):
        assert np.array_equal(a.labels, b.labels) and len(a.images) == len(b.images)
        assert np.array_equal(image_sizes(a.images), image_sizes(b.images))
        assert (a.images.array is None) == (b.images.array is None)
        if a.images.array is not None and b.images.array is not None:
            assert np.array_equal(a.images.array, b.images.array)
        for index in range(len(a)):
            assert a.images.name(index) == b.images.name(index)
            assert a.images.load(index).mode == b.images.load(index).mode == "RGB"
            assert np.array_equal(np.asarray(a.images.load(index)), np.asarray(b.images.load(index)))


# --- the same pixels ---


@pytest.mark.parametrize("kind", ["shards", "shards of several sizes", "folder"])
def test_what_comes_from_the_cache_is_what_decoding_gives_to_the_bit(
    tmp_path: Path, kind: str, decoded: list[str]
) -> None:
    data = tmp_path / "data"
    sizes = ((8, 8), (9, 7)) if kind.endswith("sizes") else ((8, 8),)
    spec = write_folder(data) if kind == "folder" else write_shards(data, sizes=sizes)
    plain = open_source(spec, OFF)
    first = open_source(spec, ON)
    decoded.clear()
    second = open_source(spec, ON)
    assert all(isinstance(images.images, StoredImages) for images in sets(second))
    assert not decoded  # nothing is decoded a second time
    assert_same(plain, first)
    assert_same(plain, second)
    few = np.array([3, 1, 1])
    assert np.array_equal(image_sizes(second.train.images.take(few)), image_sizes(plain.train.images.take(few)))
    for a, b in zip(sets(plain), sets(second), strict=True):
        one, two = a.take(few), b.take(few)
        assert (one.images.array is None) == (two.images.array is None) == (kind != "shards")
        assert one.images.name(0) == two.images.name(0)


@pytest.mark.parametrize("spec", ["shards", "folder"])
def test_runs_with_other_counts_and_seeds_share_one_entry(tmp_path: Path, spec: str, decoded: list[str]) -> None:
    """All images of a source are decoded, whichever of them a run uses."""
    data = write_shards(tmp_path / "data") if spec == "shards" else write_folder(tmp_path / "data")
    open_source(data, ON)
    decoded.clear()
    for changes in ({"per_class": 2}, {"per_class": 3, "test_per_class": 1}, {"seed": 7, "per_class": 2}):
        assert_same(open_source(data, replace(OFF, **changes)), open_source(data, replace(ON, **changes)))  # type: ignore[arg-type]
    decoded.clear()
    open_source(data, replace(ON, seed=3, per_class=2))
    assert not decoded
    assert len(DecodeCache(cache_folder(), cache_limit()).entries()) == (3 if spec == "shards" else 1)


@pytest.mark.parametrize("sizes", [((8, 8),), ((8, 8), (9, 7))])
def test_batches_are_the_same_with_and_without_the_cache(tmp_path: Path, sizes: tuple[tuple[int, int], ...]) -> None:
    spec = write_shards(tmp_path / "data", sizes=sizes)
    views = {"train_view": TrainView(16), "test_view": TestView(16, 18)}
    batches = []
    for options in (OFF, ON):
        loader = Loader(open_source(spec, options).train, **views, device="cpu", workers=0)  # type: ignore[arg-type]
        assert loader.path == ("device" if len(sizes) == 1 else "workers")
        batches.append([*loader.train_batches(5, (1, "epoch")), *loader.test_batches(7)])
    for (a, labels), (b, others) in zip(*batches, strict=True):
        assert torch.equal(a, b) and torch.equal(labels, others)


def test_images_of_the_cache_go_to_loading_processes_as_a_path(tmp_path: Path) -> None:
    spec = write_shards(tmp_path / "data", per_class=50)
    images = open_source(spec, ON).train.images
    data = pickle.dumps(images)
    assert len(data) < images.array.nbytes / 4  # type: ignore[union-attr]
    assert np.array_equal(pickle.loads(data).array, images.array)  # type: ignore[arg-type]


def test_a_broken_image_is_met_as_without_a_cache(tmp_path: Path) -> None:
    spec = write_folder(tmp_path / "data")
    broken = tmp_path / "data" / "ant" / "4.webp"
    broken.write_bytes(broken.read_bytes()[:40])
    for _ in range(2):
        with pytest.raises(BrokenImages, match=r"4\.webp"):
            open_source(spec, ON)
    notices: list[str] = []
    options = replace(ON, skip_broken=True, notice=notices.append)
    assert_same(open_source(spec, replace(options, cache="off")), open_source(spec, options))
    assert "left out 1 of " in notices[-1]


# --- what is kept ---


def test_by_itself_only_a_source_of_many_images_and_few_bytes_is_kept(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def is_kept(spec: str, **changes: object) -> bool:
        open_source(spec, replace(SourceOptions(), notice=lambda text: None, **changes))  # type: ignore[arg-type]
        kept = bool(DecodeCache(cache, 10**9).entries())
        DecodeCache(cache, 10**9).clear()
        return kept

    for spec in (write_shards(tmp_path / "data"), write_folder(tmp_path / "photos")):
        assert not is_kept(spec)  # too few
        monkeypatch.setattr(decode_cache, "AUTO_IMAGES", 10)
        assert is_kept(spec)
        assert not is_kept(spec, cache="off")
        monkeypatch.setattr(decode_cache, "AUTO_BYTES", 1000)
        assert not is_kept(spec)  # too many bytes
        assert is_kept(spec, cache="on")
        monkeypatch.undo()
        monkeypatch.setenv("ZOFC_CACHE", str(cache.parent))
    monkeypatch.setattr(decode_cache, "AUTO_IMAGES", 10)
    spec = write_shards(tmp_path / "many", per_class=40)
    assert not is_kept(spec, per_class=1, test_per_class=1)  # a trial decodes what it uses
    assert is_kept(spec, per_class=8, test_per_class=8)


def test_a_file_that_changes_is_decoded_again(tmp_path: Path) -> None:
    """Also where its name, its size and its time of modification stay."""
    spec = write_folder(tmp_path / "data")
    open_source(spec, ON)
    file = tmp_path / "data" / "ant" / "6.bmp"
    before, times = file.stat(), (file.stat().st_atime_ns, file.stat().st_mtime_ns)
    data = bytearray(file.read_bytes())
    data[-30:] = bytes(30)
    time.sleep(0.02)
    file.write_bytes(data)
    os.utime(file, ns=times)
    assert (file.stat().st_size, file.stat().st_mtime_ns) == (before.st_size, before.st_mtime_ns)
    assert_same(open_source(spec, OFF), open_source(spec, ON))


def test_shards_are_known_by_their_contents(tmp_path: Path, decoded: list[str]) -> None:
    spec = write_shards(tmp_path / "data")
    open_source(spec, ON)
    decoded.clear()
    write_shards(tmp_path / "copy")
    assert open_source(f"parquet:{tmp_path / 'copy'}", ON).train.images.name(0).startswith(str(tmp_path / "copy"))
    assert not decoded


# --- when things go wrong ---


@pytest.mark.parametrize("damage", ["a bit", "cut off", "index", "entry", "no pixels", "empty index"])
def test_a_damaged_entry_is_noticed_and_decoded_again(tmp_path: Path, cache: Path, damage: str) -> None:
    spec = write_shards(tmp_path / "data")
    open_source(spec, ON)
    victim = next(path for path in cache.iterdir() if path.is_dir())
    pixels = bytearray((victim / PIXELS).read_bytes())
    match damage:
        case "a bit":
            pixels[17] ^= 1
            (victim / PIXELS).write_bytes(pixels)
        case "cut off":
            (victim / PIXELS).write_bytes(pixels[:-1])
        case "no pixels":
            (victim / PIXELS).unlink()
        case "empty index":
            (victim / "index.npz").write_bytes(b"")
        case _:
            file = victim / {"index": "index.npz", "entry": "entry.json"}[damage]
            file.write_bytes(file.read_bytes()[:-9])
    notices: list[str] = []
    source = open_source(spec, replace(ON, notice=notices.append))
    assert isinstance(source.train.images, StoredImages)
    assert_same(open_source(spec, OFF), source)
    assert any("was damaged" in text for text in notices) and (victim / PIXELS).exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_written_costs_a_notice(tmp_path: Path, cache: Path) -> None:
    cache.parent.mkdir()
    _check_notice(tmp_path, lambda: cache.parent.chmod(stat.S_IRUSR | stat.S_IXUSR))
    cache.parent.chmod(stat.S_IRWXU)


def test_a_file_in_the_folders_place_costs_a_notice(tmp_path: Path, cache: Path) -> None:
    _check_notice(tmp_path, lambda: cache.parent.write_text("not a folder"))


def test_a_full_disk_costs_a_notice_and_leaves_nothing(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*given: object, **more: object) -> None:
        raise OSError(28, "No space left on device")

    _check_notice(tmp_path, lambda: monkeypatch.setattr(np, "savez", full))
    assert not [path for path in cache.iterdir() if path.is_dir()]


def _check_notice(tmp_path: Path, spoil: Callable[[], object]) -> None:
    spec = write_shards(tmp_path / "data")
    spoil()
    notices: list[str] = []
    assert_same(open_source(spec, OFF), open_source(spec, replace(ON, notice=notices.append)))
    assert any("cannot be used" in text and "ZOFC_CACHE" in text for text in notices)


# --- several processes ---


def open_at_once(spec: str, start: Barrier, answers: SimpleQueue[tuple[str, int]]) -> None:
    start.wait(DEADLINE)
    images = open_source(spec, ON).train.images
    assert images.array is not None
    answers.put((type(images).__name__, int(images.array.astype(np.int64).sum())))


def test_of_several_processes_that_start_at_once_one_decodes(tmp_path: Path, cache: Path) -> None:
    spec = write_shards(tmp_path / "data", per_class=100)
    array = open_source(spec, OFF).train.images.array
    assert array is not None
    context = multiprocessing.get_context("fork")
    start, answers = context.Barrier(4), context.SimpleQueue()
    processes = [context.Process(target=open_at_once, args=(spec, start, answers)) for _ in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
    assert [process.exitcode for process in processes] == [0] * 4
    assert {answers.get() for _ in processes} == {("StoredImages", int(array.astype(np.int64).sum()))}
    folders = [path for path in cache.iterdir() if path.is_dir()]
    assert len(folders) == 3 and not any(".part-" in path.name for path in folders)
    assert isinstance(open_source(spec, ON).train.images, StoredImages)


KILLED = """
import sys, os, signal
from zofc.data import SourceOptions, decode_cache, open_source
real = decode_cache.np.savez
decode_cache.np.savez = lambda *given, **more: os.kill(os.getpid(), signal.SIGKILL)
open_source(sys.argv[1], SourceOptions(cache="on"))
"""


def test_a_process_that_is_killed_while_decoding_leaves_no_entry_and_no_lock(tmp_path: Path, cache: Path) -> None:
    spec = write_shards(tmp_path / "data")
    killed = subprocess.run([sys.executable, "-c", KILLED, spec], check=False, capture_output=True)
    assert killed.returncode == -signal.SIGKILL
    assert [path for path in cache.iterdir() if ".part-" in path.name]  # half of an entry, under another name
    assert not DecodeCache(cache, 10**9).entries()
    assert_same(open_source(spec, OFF), open_source(spec, ON))
    assert not [path for path in cache.iterdir() if ".part-" in path.name]


# --- the limit ---


def test_entries_used_longest_ago_make_room_but_none_that_is_in_use(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    specs = [write_shards(tmp_path / str(number), per_class=30 + number) for number in range(4)]
    whole = DecodeCache(cache, 10**9)
    for spec in specs[:3]:
        open_source(spec, ON)
    held = open_source(specs[0], ON)  # the oldest, and in use
    for entry in whole.entries():
        age = next(number for number, spec in enumerate(specs) if entry.label.startswith(spec))
        os.utime(cache / entry.key / "entry.json", (1000.0 + age,) * 2)
    limit = sum(entry.bytes for entry in whole.entries()) + 10_000
    monkeypatch.setenv("ZOFC_CACHE_LIMIT", f"{limit / 1000}KB")
    last = open_source(specs[3], ON)
    assert isinstance(last.train.images, StoredImages)
    kept = Counter(entry.label.partition(" ")[0] for entry in whole.entries())
    assert (kept[specs[0]], kept[specs[2]], kept[specs[3]]) == (3, 3, 3) and kept[specs[1]] == 0
    assert sum(entry.bytes for entry in whole.entries()) <= limit
    also_held = open_source(specs[2], ON)
    notices: list[str] = []
    again = open_source(specs[1], replace(ON, notice=notices.append))  # all is in use
    assert isinstance(again.train.images, ArrayImages) and "has no room" in notices[0]
    for spec, source in zip((specs[0], specs[2], specs[3]), (held, also_held, last), strict=True):
        assert_same(open_source(spec, OFF), source)


def test_a_limit_that_is_no_size_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ZOFC_CACHE_LIMIT", "plenty")
    with pytest.raises(DataError, match=r"ZOFC_CACHE_LIMIT: expected a size such as 500MB or 10GB, got 'plenty'"):
        open_source(write_shards(tmp_path / "data"), ON)


def test_the_cache_is_where_the_environment_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert cache_folder() == tmp_path / "cache" / "decoded"
    monkeypatch.delenv("ZOFC_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/elsewhere")
    assert cache_folder() == Path("/elsewhere/zofc/decoded")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == Path.home() / ".cache" / "zofc" / "decoded"


# --- the command and the setting ---


def test_the_command_shows_and_clears_what_is_kept(
    zofc: Callable[..., tuple[int, str]], tmp_path: Path, cache: Path
) -> None:
    code, said = zofc("cache")
    assert code == 0 and str(cache) in said and "0 B of 9.31 GiB" in said
    spec = write_shards(tmp_path / "data")
    source = open_source(spec, ON)
    code, said = zofc("cache")
    assert code == 0 and "train-0.parquet" in said and " 24 " in said and "now" in said
    code, said = zofc("cache", "clear")
    assert code == 0 and "Removed 0 entries; 3 in use by a run were left." in said
    del source
    code, said = zofc("cache")
    assert "now" not in said
    code, said = zofc("cache", "clear")
    assert code == 0 and "Removed 3 entries." in said and not [path for path in cache.iterdir() if path.is_dir()]
    code, said = zofc("cache", "everything")
    assert code == 2 and "expected 'clear' or nothing" in said


def test_the_setting_is_no_part_of_what_a_run_is() -> None:
    digests = {recipe_digest(load_recipe("zofc/base", [f"training.cache={mode}"])) for mode in ("auto", "on", "off")}
    assert digests == {recipe_digest(load_recipe("zofc/base"))}


def test_sets_that_do_not_fit_in_memory_are_served_one_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = write_shards(tmp_path / "data")
    monkeypatch.setattr("zofc.data.shards.IN_MEMORY", 100)
    images = open_source(spec, ON).train.images
    assert isinstance(images, StoredImages) and images.array is None
    assert np.array_equal(np.asarray(images.load(3)), np.asarray(open_source(spec, OFF).train.images.load(3)))
    assert decoding.IN_MEMORY > 10**9


def test_entries_describe_themselves(tmp_path: Path, cache: Path) -> None:
    spec = write_shards(tmp_path / "data")
    open_source(spec, ON)
    found = [json.loads(file.read_text()) for file in cache.glob("*/entry.json")]
    assert {entry["images"] for entry in found} == {24} and all(entry["label"].startswith(spec) for entry in found)
