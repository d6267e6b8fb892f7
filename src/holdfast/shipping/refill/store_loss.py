"""A store that does not have what it acknowledged: emptied, made anew, put back from an old copy, or another log's now.

It may pass by itself (a directory that was not mounted), so shipping goes on as soon as the store is what it was. Until
then nothing is acknowledged there and nothing is written to it, and appends go on here. What brings the store back from
what is here is `Log.rebuild_store`, `holdfast ship DIR --rebuild-store`, or the setting `shipping.rebuild_store`.
"""

from __future__ import annotations

import msgspec

from holdfast.errors import Unavailable

REBUILD = "holdfast ship DIR --rebuild-store"
_HINT = (
    "appending goes on here, nothing is acknowledged there; put the right store back, or bring it back from what is "
    f"here: {REBUILD}"
)


class StoreForgot(Unavailable):
    """The store lost what it had acknowledged."""

    def __init__(self, message: str, *, hint: str = _HINT) -> None:
        super().__init__(message, hint=hint)


class LostSpan(msgspec.Struct, frozen=True):
    """Records that were on the store alone, and are there no more."""

    topic: str
    partition: int
    first: int
    records: int
    segments: int


class RebuildReport(msgspec.Struct, frozen=True):
    """What a store is brought back with, and what cannot be brought back."""

    store: str
    epoch: int
    """The claim under which it is written."""
    is_new: bool
    """Whether the log's own document had to be written anew."""
    manifests: int
    """Manifest objects that were missing."""
    segments: int
    """Segment files that were missing and are here."""
    records: int
    """Records that the store had acknowledged and did not have any more, and that are sent again."""
    lost: tuple[LostSpan, ...] = ()
    """What retention had removed here, and only the store had. Where it had been retired there, too, nobody knows."""
