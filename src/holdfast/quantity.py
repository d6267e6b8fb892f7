"""Sizes and durations as people write them: "64MiB", "5ms", "1.5h".

Settings accept these texts wherever they accept a number, under the unit that the setting's name ends
with: `…_bytes…` counts bytes, `…_ms…` milliseconds, `…_s` seconds. A bare number is already in that unit.
"""

from __future__ import annotations

import re

from holdfast.errors import Invalid

_NUMBER = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?|\.[0-9]+)\s*([A-Za-zµ]*)\s*\Z")

_BYTES = {
    "": 1, "b": 1,
    "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
    "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40,
    "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40,
}  # fmt: skip
_UNITS = ("B", "kB", "MB", "GB", "TB", "PB", "EB")
_SECONDS = {"us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


def parse_bytes(text: str) -> int:
    """Read a size.

    >>> parse_bytes("64MiB"), parse_bytes("1.5 kB"), parse_bytes("512")
    (67108864, 1500, 512)
    """
    number, unit = _split(text, "a size such as '64MiB', '1GB' or '4096'")
    if unit.lower() not in _BYTES:
        raise Invalid(f"unknown unit of size {unit!r}", hint="use B, KiB, MiB, GiB, TiB, kB, MB, GB or TB")
    return round(number * _BYTES[unit.lower()])


def parse_seconds(text: str) -> float:
    """Read a duration; the unit is required, so that nothing is guessed.

    >>> parse_seconds("5ms"), parse_seconds("1.5h"), parse_seconds("2 min")
    (0.005, 5400.0, 120.0)
    """
    number, unit = _split(text, "a duration such as '5ms', '30s' or '1.5h'")
    if unit not in _SECONDS:
        raise Invalid(f"unknown unit of time {unit!r}", hint="use us, ms, s, min, h or d")
    return number * _SECONDS[unit]


def counted(count: int, noun: str) -> str:
    """How many of them, as people say it.

    >>> counted(1, "record"), counted(12, "commit batch")
    ('1 record', '12 commit batches')
    """
    return f"{count} {noun}" if count == 1 else f"{count} {noun}{'es' if noun.endswith('ch') else 's'}"


def sized(size: int) -> str:
    """A size as people say it, to three digits.

    >>> sized(1), sized(999), sized(118_784), sized(301_400_000)
    ('1 byte', '999 bytes', '119 kB', '301 MB')
    """
    unit, number = 0, float(size)
    while number >= 999.5:
        unit, number = unit + 1, number / 1000
    return f"{number:.3g} {_UNITS[unit]}" if unit else counted(size, "byte")


def _split(text: str, wanted: str) -> tuple[float, str]:
    match = _NUMBER.match(text)
    if match is None:
        raise Invalid(f"cannot read {text!r}", hint=f"give {wanted}")
    return float(match[1]), match[2]
