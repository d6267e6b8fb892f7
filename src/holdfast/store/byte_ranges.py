"""Parts of objects: which can be requested, and what must come back.

Objects never change, and a reader of a part knows from a manifest how long the object is. So an answer that is too
short is no surprise of timing but damage.
"""

from __future__ import annotations

from holdfast.errors import Corrupt, Invalid


def check_range(start: int, length: int) -> slice:
    """A part that can be asked for."""
    if start < 0 or length < 0:
        raise Invalid(f"not a range start={start} length={length}")
    return slice(start, start + length)


def require_length(part: bytes, key: str, length: int) -> bytes:
    """A part, which must be as long as it was asked for: objects never change, so a short one is damaged."""
    if len(part) != length:
        raise Corrupt(f"the object is shorter than it should be wanted={length} found={len(part)}", path=key)
    return part
