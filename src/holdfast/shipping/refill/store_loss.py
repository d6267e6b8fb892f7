"""A store that does not have what it acknowledged: emptied, recreated, put back from an old copy, or another log's now.

That may pass by itself (a directory was not mounted), so shipping goes on as soon as the store is what it was. Until
then nothing is acknowledged there and nothing is written to it, and appends go on here. To bring the store back from
what is here, there are `Log.rebuild_store`, `holdfast ship DIR --rebuild-store` and the setting
`shipping.rebuild_store`.
"""

from __future__ import annotations

import msgspec

from holdfast.errors import Unavailable

REBUILD = "holdfast ship DIR --rebuild-store"
_HINT = (
    "appending continues here, nothing is acknowledged there; put the right store back, or rebuild it from "
    f"here: {REBUILD}"
)


class StoreForgot(Unavailable):
    """The store lost what it had acknowledged."""

    def __init__(self, message: str, *, hint: str = _HINT) -> None:
        super().__init__(message, hint=hint)


class LostSpan(msgspec.Struct, frozen=True):
    """Records that only the store had, and has lost."""

    topic: str
    partition: int
    first: int
    """The first offset."""
    records: int
    """How many."""
    segments: int
    """In how many segments."""


class StoreRebuildReport(msgspec.Struct, frozen=True):
    """What is sent to a store again, and what is lost."""

    store: str
    """The store's address."""
    epoch: int
    """The claim under which it is written."""
    is_new: bool
    """Whether the log's own document had to be written anew."""
    manifests: int
    """Manifest objects that were missing."""
    segments: int
    """Segment files that were missing and are here."""
    records: int
    """Records that the store had acknowledged and lost, and that are sent again."""
    lost: tuple[LostSpan, ...] = ()
    """What retention had removed here, so that only the store had it. It may have been retired there, too."""
