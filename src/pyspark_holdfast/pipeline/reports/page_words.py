"""Numbers, times and text as the page shows them. Pure; everything that came from outside leaves here escaped.

A page must hold nothing that a browser would act on: names, descriptions and errors are untrusted text.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from html import escape

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u2028-\u202e\u2060-\u2069\ud800-\udfff\ufffe\uffff]")
_UNITS = ((10**12, "T"), (10**9, "G"), (10**6, "M"), (10**3, "k"))
_TEXT_MAX = 4_000
_THOUSAND = 10_000
_SECONDS_MAX = 1e11
"""Three thousand years: a report that says more is not to be believed."""


def text(given: object, most: int = _TEXT_MAX) -> str:
    """Words for HTML and SVG, in elements and in attributes: cut where they are too long, and escaped."""
    words = str(given)
    cut = words if len(words) <= most else words[: most - 1] + "…"
    return escape(_CONTROL.sub("\N{REPLACEMENT CHARACTER}", cut), quote=True)


def anchor(key: str) -> str:
    """An id in the page for any name."""
    return "t-" + re.sub(r"[^A-Za-z0-9_-]", lambda found: f".{ord(found[0]):x}", key)


def whole(number: int) -> str:
    """A number with its thousands apart."""
    return f"{number:,}".replace(",", "\N{THIN SPACE}")


def brief(number: float) -> str:
    """A number in three digits: 999, 1.2 k, 35 M."""
    for size, unit in _UNITS:
        if number >= (size if size > 10**3 else _THOUSAND):
            return f"{_three(number / size)}\N{NARROW NO-BREAK SPACE}{unit}"
    return whole(round(number)) if number == int(number) else _three(number)


def size(count: int) -> str:
    """Bytes: 512 B, 3.4 MiB."""
    amount = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024:
            return f"{_three(amount)}\N{NARROW NO-BREAK SPACE}{unit}"
        amount /= 1024
    return f"{_three(amount)}\N{NARROW NO-BREAK SPACE}TiB"


def duration(seconds: float) -> str:
    """Seconds: 40 ms, 4.2 s, 3 min 10 s, 2 h 5 min."""
    if not -_SECONDS_MAX < seconds < _SECONDS_MAX:
        return "?"
    if seconds < 1:
        return f"{round(seconds * 1000)}\N{NARROW NO-BREAK SPACE}ms"
    if seconds < 60:
        return f"{_three(seconds)}\N{NARROW NO-BREAK SPACE}s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{whole(minutes // 60)} h {minutes % 60} min"


def moment(ms: int) -> str:
    """A time in UTC, to the second."""
    found = _moment(ms)
    return "?" if found is None else f"{found:%Y-%m-%d %H:%M:%S}"


def machine_time(ms: int) -> str:
    """A time for machines."""
    found = _moment(ms)
    return "" if found is None else f"{found:%Y-%m-%dT%H:%M:%SZ}"


def day_or_hour(ms: int, span_ms: int) -> str:
    """A time for the end of an axis: the hour, and the day where the axis is longer than one."""
    found = _moment(ms)
    if found is None:
        return "?"
    return f"{found:%H:%M:%S}" if span_ms < 3_600_000 else f"{found:%d %b %H:%M}"


def counted(number: int, one: str, many: str = "") -> str:
    """`1 table`, `2 tables`."""
    return f"{whole(number)} {one if number == 1 else many or one + 's'}"


def _moment(ms: int) -> datetime | None:
    try:
        return _EPOCH + timedelta(milliseconds=ms)
    except OverflowError:
        return None


def _three(number: float) -> str:
    if number >= 100 or number == int(number):
        return f"{number:.0f}"
    return f"{number:.1f}" if number >= 10 else f"{number:.2g}" if number < 1 else f"{number:.1f}"
