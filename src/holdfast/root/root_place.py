"""Where a root is, as people write it: a store's URL, a plain directory, or the directory of a log.

A log's own `segments/` is a root of its own, where the log has no other store. Looks at names only; nothing is opened.
"""

from __future__ import annotations

import re
from pathlib import Path

from holdfast.store import layout
from holdfast.store.address import parse_url


def root_url(place: str) -> str:
    """The root as a URL; of a log's directory, the folder with the manifests."""
    if place.startswith("s3a://"):  # what Hadoop calls it
        place = "s3://" + place.removeprefix("s3a://")
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]*://", place) and not place.startswith("file://"):
        return place
    if place.startswith("file://"):  # percent-encoded, as writers take it
        place = parse_url(place).place
    path = Path(place.removeprefix("file:")).absolute()
    own = path / "segments"
    return (own if not (path / layout.LOG).exists() and (own / layout.LOG).exists() else path).as_uri()
