"""What a sink writes to, as values that travel with a job: no secret, and nothing that is open."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from holdfast.errors import Invalid
from holdfast.root.sink_batches import WRITER_CHARS_MAX
from holdfast.store.store_settings import StoreSettings

SEGMENT_BYTES = 128 * 2**20
_BATCH_MAX = 2**62


class SinkTarget(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A topic of a root, and how its segments are written."""

    place: str
    """The root, as people write it."""
    topic: str
    keyring: str = ""
    """A reference: env:NAME or file:PATH."""
    log_id: str = ""
    """The log that must be at the root; another one is refused."""
    segment_bytes: int = SEGMENT_BYTES
    """About how large a segment file gets before the next one is begun."""
    compression_level: int = 1
    store: StoreSettings = StoreSettings()


class BatchMark(NamedTuple):
    """Which batch of which writer: written again, it is known."""

    writer: str
    """The id of a streaming query, or what the user calls the writer."""
    batch: int


def check_mark(writer: str, batch: int) -> BatchMark:
    """A mark, or Invalid."""
    if not 1 <= len(writer) <= WRITER_CHARS_MAX or not writer.isprintable():
        raise Invalid(
            f"a writer's name has 1 to {WRITER_CHARS_MAX} printable characters chars={len(writer)}",
            hint="give another txnAppId",
        )
    if not 0 <= batch < _BATCH_MAX:
        raise Invalid(f"a writer's batches are numbered from 0 batch={batch}", hint="give another txnVersion")
    return BatchMark(writer, batch)
