"""Which keys there may be: the same ones on every store, whatever a file system or a service would take.

A key is made of parts with `/` between them. No part is empty or begins with a dot, so no key leads out of the root,
and names that begin with a dot are free for a store's own files. A wrong key is a defect of the caller, never data.
"""

from __future__ import annotations

import re

from holdfast.errors import Invalid

KEY_BYTES_MAX = 1_024
_PART_BYTES_MAX = 255
_CONTROL = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")
_ORDINARY = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*(?:/[A-Za-z0-9_-][A-Za-z0-9._-]*)*")
"""What our own keys look like: a listing has many of them, and one look is enough where they are short."""


def check_key(key: str) -> str:
    """The key, if it is one; raises Invalid."""
    if len(key) <= _PART_BYTES_MAX and _ORDINARY.fullmatch(key):
        return key
    if not key or len(key.encode("utf-8", "replace")) > KEY_BYTES_MAX or _CONTROL.search(key):
        raise Invalid(f"not a key: {key[:100]!r}", hint=f"a key is printable and has at most {KEY_BYTES_MAX} bytes")
    for part in key.split("/"):
        if not part or part.startswith(".") or len(part.encode()) > _PART_BYTES_MAX:
            raise Invalid(
                f"not a key: {key[:100]!r}", hint="its parts are not empty, have at most 255 bytes and no dot in front"
            )
    return key


def check_prefix(prefix: str) -> str:
    """A folder that ends in `/`, or "" for everything; raises Invalid."""
    if prefix:
        check_key(prefix.removesuffix("/"))
        if not prefix.endswith("/"):
            raise Invalid(f"not a prefix: {prefix!r}", hint="a prefix ends in / or is empty")
    return prefix
