"""What is retired of a partition, and which of its files may go by that: for retention on a store.

Files go `delete_after` behind their retirement, later while a reader's lease needs them, which delays for a bounded
time. A file of compaction begins with one segment and may reach behind what is retired: it goes when all of it is. So
does what an intent announces, which nobody knows yet.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence

from holdfast.errors import Corrupt
from holdfast.root.numbered_objects import numbered, segments_below
from holdfast.root.objects import documents
from holdfast.root.objects.documents import ExpiredDocument
from holdfast.root.rewrite_sweep import Grace
from holdfast.root.rewrites import read_intents, read_rewrites
from holdfast.store import layout
from holdfast.store.port import Store

logger = logging.getLogger("holdfast.shipping")


def all_expired(store: Store, topic: str, partition: int) -> Iterator[ExpiredDocument]:
    """All expiries of a partition, oldest first."""
    for key in numbered(store, layout.expired_folder(topic, partition)):
        if (document := _expiry(store, key)) is not None:
            yield document


def newest_expired(store: Store, topic: str, partition: int) -> ExpiredDocument | None:
    """The expiry that counts for a partition."""
    keys = numbered(store, layout.expired_folder(topic, partition))
    return next(filter(None, (_expiry(store, key) for key in reversed(keys))), None)


def _expiry(store: Store, key: str) -> ExpiredDocument | None:
    """An expiry; None where it is damaged or not this log's. It removes nothing, and reconciliation repairs it."""
    try:
        return documents.decode(store.get(key), key, ExpiredDocument)
    except Corrupt as damage:
        logger.error("an expiry is ignored: %s", damage.message, extra={"action": "forged", "path": key})
        return None


def removable_below(store: Store, topic: str, partition: int, now_us: int, grace: Grace, leased: int | None) -> int:
    """Segments below this number were retired long enough ago; `leased` is the lowest one that a reader needs."""
    retired, deadline = list(all_expired(store, topic, partition)), now_us - grace.delete_after_us
    upto = _retired_by(deadline, retired)
    # Whatever leases say: nobody can keep files forever.
    overdue = _retired_by(deadline - grace.lease_delay_max_us, retired)
    return max(overdue, upto if leased is None else min(upto, leased))


def _retired_by(deadline_us: int, retired: Sequence[ExpiredDocument]) -> int:
    return max((document.upto for document in retired if document.expired_us <= deadline_us), default=0)


def retired_files(
    store: Store, log: str, topic: str, partition: int, upto: int, own: Callable[[int], str]
) -> list[str] | None:
    """Files of which all is retired, below a number; None while nobody can say which ones those are.

    `own` gives the key of a segment's own file.
    """
    place = (topic, partition)
    # In this order: a file that was listed is announced by its intent, or its rewrite is there when we look.
    below = segments_below(store, *place, upto)
    intents = read_intents(store, log, *place, 0)
    try:
        rewrites = read_rewrites(store, log, *place)
    except Corrupt as damage:
        logger.error("nothing is removed: %s", damage.message, extra={"action": "rewrite_damaged"})
        return None
    outputs = {output.segment.key: output.upto for rewrite in rewrites for output in rewrite.outputs}
    runs = [run for intent in intents for run in intent.runs if run[1] > upto]

    def is_retired(number: int, key: str) -> bool:
        if key in outputs:
            return outputs[key] <= upto
        is_awaited = any(start <= number < stop for start, stop in runs)
        return not is_awaited or key == own(number)

    return [key for number, key in below if is_retired(number, key)]
