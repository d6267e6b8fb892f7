"""The layout of roots of format 1, whose folders of documents had names without `_`: keys there and back.

Such a root keeps its layout, also when it is written to; only this module knows its names. `holdfast migrate-root`
turns one into the present layout. Segments, commit batches, claims and leases have the same keys in both.
"""

from __future__ import annotations

import re

_NAMES = "topic|manifest|checkpoints|expired"
_NEW = re.compile(rf"\A(topics/[^/]+/(?:[0-9]+/)?)_({_NAMES})(?=/)")
_OLD = re.compile(rf"\A(topics/[^/]+/(?:[0-9]+/)?)({_NAMES})(?=/)")


def old_key(key: str) -> str:
    """Where an object of the present layout stands in an old root.

    >>> old_key("topics/orders/0/_manifest/00000000000000000007.json")
    'topics/orders/0/manifest/00000000000000000007.json'
    """
    return _NEW.sub(r"\1\2", key)


def new_key(key: str) -> str:
    """What the present layout calls an object of an old root."""
    return _OLD.sub(r"\1_\2", key)
