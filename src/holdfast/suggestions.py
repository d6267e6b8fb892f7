"""What was probably meant by a name that does not exist: one phrase, the same wherever names are looked up. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

_LISTED_MAX = 20


def meant(name: str, known: Iterable[str], before: str = "") -> str:
    """`, did you mean 'orders'?` where a known name is close, else nothing; capitals do not matter.

    `before` is a prefix of all of them; it is not compared.

    >>> meant("ordres", ["orders", "trades"])
    ", did you mean 'orders'?"
    """
    by_lower = {one.lower(): one for one in known}
    close = get_close_matches(name.lower(), by_lower, n=1)
    return f", did you mean {before + by_lower[close[0]]!r}?" if close else ""


def listed(known: Iterable[str]) -> str:
    """Names in one line, not too many of them.

    >>> listed(["trades", "orders"])
    'there are: orders, trades'
    """
    names = sorted(known)
    more = f" … and {len(names) - _LISTED_MAX} more" if len(names) > _LISTED_MAX else ""
    return f"there are: {', '.join(names[:_LISTED_MAX])}{more}" if names else "there are none yet"
