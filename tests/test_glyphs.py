"""The generated source: what its classes are, and that its images follow from a seed alone."""

from __future__ import annotations

import itertools
import unicodedata
from dataclasses import fields

import numpy as np
import pytest

from zofc.data import glyph_alphabet
from zofc.data.glyph_alphabet import (
    CLEAR,
    FACES,
    FILE,
    KIN,
    alphabet,
    benchmark_characters,
    composed,
    distances,
    distinct,
    pretraining_characters,
    readable,
)
from zofc.data.glyph_drawing import SIDE, stencil
from zofc.data.glyph_styles import CLEAN, DEFAULT, STYLES, style
from zofc.data.glyphs import GlyphImages, draw_numbered
from zofc.data.source import Source, SourceOptions, open_source
from zofc.errors import DataError

FREETYPE = 0.02  # how much a distance may change from one version of FreeType to the next


def small(argument: str = "", **options: int) -> Source:
    """Few images, of which only those that are looked at are drawn."""
    wanted = SourceOptions(**{"per_class": 4, "test_per_class": 2, **options})  # type: ignore[arg-type]
    return open_source(f"glyphs:{argument}" if argument else "glyphs", wanted)


def pictures(source: Source, split: str, classes: int = 5) -> np.ndarray:
    images = source.train if split == "train" else source.test
    array = images.take(np.flatnonzero(images.labels < classes)).images.array
    assert array is not None
    return array


def drawn(source: Source) -> int:
    assert isinstance(source.train.images, GlyphImages)
    return source.train.images.sheet.drawn


# -- the alphabet


def test_there_are_a_hundred_classes_with_unique_readable_names() -> None:
    classes = small().classes
    assert len(classes) >= 100
    assert len({name.partition(" ")[2] for name in classes}) == len(classes)  # even where a font lacks the character
    assert "Ω greek capital omega" in classes


def test_the_benchmark_and_pretraining_share_no_character() -> None:
    benchmark, pretraining = set(benchmark_characters()), set(pretraining_characters())
    assert len(pretraining) > 700
    assert benchmark.isdisjoint(pretraining)
    assert {c.code for c in benchmark}.isdisjoint(c.code for c in pretraining)


def test_no_pretraining_character_is_an_accented_one_of_the_benchmark() -> None:
    shown = {character.text for character in benchmark_characters()}
    for character in pretraining_characters():
        assert shown.isdisjoint(unicodedata.normalize("NFKD", character.text)), character


def test_no_two_classes_look_alike() -> None:
    apart = distances(character.text for character in benchmark_characters())
    np.fill_diagonal(apart, 1)
    assert apart.min() > CLEAR - FREETYPE


def test_no_pretraining_character_looks_like_one_of_the_benchmark() -> None:
    benchmark, pretraining = benchmark_characters(), pretraining_characters()
    apart = distances(character.text for character in benchmark + pretraining)[: len(benchmark), len(benchmark) :]
    assert apart.min() > KIN - FREETYPE


def test_look_alikes_of_other_scripts_and_cases_are_dropped() -> None:
    latin_greek_cyrillic = ["A", "O", "S", "W", "o", "s", "Α", "Ο", "Ω", "А", "О", "Ж"]
    kept = distinct(latin_greek_cyrillic, distances(latin_greek_cyrillic))
    assert [latin_greek_cyrillic[index] for index in kept] == ["A", "O", "S", "W", "Ω", "Ж"]


def test_the_committed_alphabet_is_the_one_its_rules_give() -> None:
    # Only those before it decide about a plain character: the first, Latin, can be chosen without the rest.
    latin = [text for text in glyph_alphabet.drawable() if ord(text) < 0x250 and not composed(text)]
    anew = {latin[index] for index in distinct(latin, distances(latin))}
    committed = {c.text for c in benchmark_characters() + pretraining_characters() if c.text in latin}
    assert len(committed - anew) <= 0.02 * len(committed)


def test_alphabet_writes_what_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    latin = [chr(code) for code in range(0x21, 0x7F)]
    monkeypatch.setattr(glyph_alphabet, "drawable", lambda: latin)
    monkeypatch.setattr(glyph_alphabet, "BENCHMARK_SIZE", 10)
    header, *lines = alphabet()
    assert header == FILE.read_text(encoding="utf-8").splitlines()[0]
    rows = [line.split("\t") for line in lines]
    assert [part for _, part, _ in rows].count("benchmark") == 10
    assert all(name == readable(chr(int(code[2:], 16))) for code, _, name in rows)


@pytest.mark.parametrize("face", FACES)
def test_every_face_draws_every_character(face: str) -> None:
    for character in benchmark_characters() + pretraining_characters()[::20]:
        assert stencil(character.text, face).getbbox(), character


# -- images from a seed


@pytest.mark.parametrize("split", ["train", "test"])
def test_the_same_seed_gives_the_same_bytes(split: str) -> None:
    first, again, other = small(), small(), small(seed=7)
    assert pictures(first, split).tobytes() == pictures(again, split).tobytes()
    assert pictures(first, split).tobytes() != pictures(other, split).tobytes()


def test_images_are_square_colour_and_all_different() -> None:
    source = small()
    train, test = pictures(source, "train"), pictures(source, "test")
    assert train.shape == (5 * 4, SIDE, SIDE, 3) and train.dtype == np.uint8
    assert len({image.tobytes() for image in (*train, *test)}) == len(train) + len(test)


def test_the_first_images_do_not_depend_on_how_many_are_asked_for() -> None:
    few, many = small(per_class=2, test_per_class=1), small(per_class=6, test_per_class=3)
    for split, share in (("train", (2, 6)), ("test", (1, 3))):
        some = pictures(few, split).reshape(5, share[0], -1)
        more = pictures(many, split).reshape(5, share[1], -1)
        assert np.array_equal(some, more[:, : share[0]])


def test_sixty_images_to_learn_and_twenty_to_test_unless_asked_otherwise() -> None:
    source = open_source("glyphs", SourceOptions())
    assert (len(source.train), len(source.test)) == (60 * len(source.classes), 20 * len(source.classes))


def test_only_images_that_are_looked_at_are_drawn() -> None:
    source = small()
    assert drawn(source) == 0
    task = source.train.take(np.flatnonzero(source.train.labels < 3))
    assert drawn(source) == 0
    one = np.asarray(task.images.load(2))
    assert drawn(source) == 1
    array = task.images.array
    assert array is not None and np.array_equal(array[2], one)
    assert drawn(source) == len(task) == 12


def test_an_image_is_named_by_style_split_character_and_number() -> None:
    source = small("ink")
    assert source.test.images.name(1) == f"glyphs:ink/test/{source.classes[0]}[1]"


def test_the_checksum_tells_seeds_styles_and_sizes_apart() -> None:
    checksums = [small(a, **o).checksum for a, o in (("", {}), ("", {"seed": 7}), ("ink", {}), ("", {"per_class": 5}))]
    assert small().checksum == checksums[0]
    assert len(set(checksums)) == len(checksums)


# -- styles and domains


@pytest.mark.parametrize("name", [*STYLES, "DejaVuSerif"])
def test_every_style_shows_the_character_differently_from_its_background(name: str) -> None:
    for number, character in itertools.product(range(3), benchmark_characters()[::40]):
        image = draw_numbered(character, style(name), number, "train", 1993)
        assert image.std(axis=(0, 1)).max() > 8


@pytest.mark.parametrize("name", STYLES)
def test_a_style_begins_at_clean_and_ends_at_itself(name: str) -> None:
    target = STYLES[name]
    for field in fields(CLEAN)[1:]:
        near, far = getattr(target.at(0), field.name), getattr(target.at(1), field.name)
        if field.name in ("faces", "backgrounds"):
            assert near == getattr(CLEAN, field.name) and dict(far) == dict(getattr(target, field.name))
        else:
            assert near == getattr(CLEAN, field.name) and far == pytest.approx(getattr(target, field.name))


def test_frequencies_sum_to_one_at_every_strength() -> None:
    for target, strength in itertools.product(STYLES.values(), (0, 0.3, 1)):
        mixed = target.at(strength)
        assert sum(share for _, share in mixed.faces) == pytest.approx(1)
        assert sum(share for _, share in mixed.backgrounds) == pytest.approx(1)


def test_the_benchmark_is_drawn_in_other_faces_than_pretraining() -> None:
    benchmark = STYLES[DEFAULT.partition("@")[0]]
    assert {face for face, _ in benchmark.faces}.isdisjoint(face for face, _ in CLEAN.faces)


def test_glyphs_alone_opens_the_default_style() -> None:
    assert np.array_equal(pictures(small(), "train", 1), pictures(small(DEFAULT), "train", 1))
    assert not np.array_equal(pictures(small(), "train", 1), pictures(small("street@0.1"), "train", 1))


def test_a_face_is_the_default_style_in_one_face() -> None:
    assert style("DejaVuSerif").faces == (("DejaVuSerif", 1.0),)
    assert style("DejaVuSerif").size == style(DEFAULT).size
    assert np.array_equal(pictures(small("face=DejaVuSerif"), "train", 1), pictures(small("DejaVuSerif"), "train", 1))


def test_each_domain_has_the_images_of_its_style() -> None:
    source = small("domains=ink+neon+DejaVuSerif", per_class=6)
    assert source.domain_names == ("ink", "neon", "DejaVuSerif")
    assert source.train.domains is not None and source.test.domains is not None
    assert np.array_equal(source.train.domains[:6], [0, 1, 2, 0, 1, 2])
    neon = source.train.take(np.flatnonzero((source.train.labels == 0) & (source.train.domains == 1)))
    alone = small("neon", per_class=2)
    assert np.array_equal(np.asarray(neon.images.array), pictures(alone, "train", 1))
    assert small().train.domains is None and small().domain_names == ()


@pytest.mark.parametrize(
    ("argument", "said"),
    [
        ("stret", "did you mean 'street'"),
        ("domains=ink+neoon", "did you mean 'neon'"),
        ("domains=ink+ink", "twice"),
        ("face=DejaVuSerf", "did you mean 'DejaVuSerif'"),
        ("face=ink", "unknown face"),
        ("fase=DejaVuSerif", "did you mean 'face'"),
        ("street@strong", "from 0 .* to 1, not 'strong'"),
        ("street@1.5", "from 0 .* to 1, not '1.5'"),
    ],
)
def test_what_is_not_known_is_an_error_that_says_what_would_be_right(argument: str, said: str) -> None:
    with pytest.raises(DataError, match=said):
        small(argument)
