"""Lengths of time as people say them. Pure."""

from __future__ import annotations

_UNITS = (
    (86_400_000_000, "d", 3_600_000_000, "h"),
    (3_600_000_000, "h", 60_000_000, "min"),
    (60_000_000, "min", 1_000_000, "s"),
)


def spoken(micros: int) -> str:
    """A length of time in at most eight or nine characters.

    >>> [spoken(n) for n in (0, 750, 41_200, 2_340_000, 75_000_000, 9_000_000_000, 200_000_000_000)]
    ['0 ms', '0.75 ms', '41 ms', '2.34 s', '1 min 15 s', '2 h 30 min', '2 d 7 h']
    """
    micros = max(0, micros)
    for unit, name, part, part_name in _UNITS:
        if micros >= unit:
            return f"{micros // unit} {name} {micros % unit // part} {part_name}"
    if micros >= 1_000_000:
        return f"{micros / 1_000_000:.2f} s"
    if micros >= 10_000:
        return f"{micros // 1000} ms"
    return f"{micros / 1000:.2f}".rstrip("0").rstrip(".") + " ms"
