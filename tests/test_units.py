"""Facts about how quantities are written and read."""

from __future__ import annotations

import pytest

from zofc.units import (
    NONE,
    format_bytes,
    format_count,
    format_duration,
    format_percent,
    format_signed,
    parse_bytes,
)


def test_bytes_are_written_in_binary_units() -> None:
    sizes = (None, 0, 900, 2048, 1.5 * 2**20, 512 * 2**20, 3 * 2**30, 200 * 2**30)
    words = [NONE, "0 B", "900 B", "2 KiB", "1.5 MiB", "512 MiB", "3 GiB", "200 GiB"]
    assert [format_bytes(size) for size in sizes] == words


def test_written_bytes_are_read_back() -> None:
    assert parse_bytes("400MB") == 400_000_000 and parse_bytes(" 1.5 GiB") == 3 * 2**29
    for size in (2 * 2**10, 3 * 2**20, 40 * 2**30):
        assert parse_bytes(format_bytes(size)) == size
    for text in ("400", "MB", "-1GB", "0MB", "4 apples"):
        with pytest.raises(ValueError, match="400MB"):
            parse_bytes(text)


def test_durations_are_written_in_the_unit_that_suits_them() -> None:
    seconds = (None, 0, 0.0123, 2.34, 59.0, 125, 7200)
    words = [NONE, "0 ms", "12.3 ms", "2.34 s", "59 s", "2.1 min", "2.0 h"]
    assert [format_duration(value) for value in seconds] == words


def test_counts_and_percentages_are_short() -> None:
    assert [format_count(n) for n in (None, 0, 3840, 42265, 3_840_000)] == [NONE, "0", "3,840", "42.3 k", "3.84 M"]
    assert (format_signed(-1.234), format_signed(0.5), format_signed(None)) == ("−1.23", "+0.50", NONE)
    assert (format_percent(-2.0), format_percent(12.34, 1), format_percent(None)) == ("−2.00", "12.3", NONE)
