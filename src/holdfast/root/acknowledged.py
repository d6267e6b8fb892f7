"""Up to where commits were acknowledged as shipped: what a restore must bring back, or report as lost.

Every commit batch says how far commits had been acknowledged when it was cut. So one batch behind a hole is enough to
tell damage from a batch that was still on its way when the machine was lost: the latter was never acknowledged. What a
takeover adopted and what a floor covers was acknowledged as well. What a log adopts when it is merely reopened was not:
it may wait for segments that are on their way.

A takeover draws a line. What older epochs said beyond the commits that it adopted is over: either there was nothing
beyond, or the loss was accepted. The batches behind such a loss are *evidence* that more had been acknowledged than was
adopted. They no longer count, and they are never removed. Neither is a batch that cannot be read: it may have said the
same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from holdfast.errors import Corrupt, NotFound
from holdfast.root.objects import commit_batch, documents
from holdfast.root.objects.documents import EpochDocument, FrontierDocument, StartDocument
from holdfast.root.store_manifest import StoreManifest
from holdfast.root.tail_listing import TailListing
from holdfast.store import layout
from holdfast.store.port import Store


def takeovers(manifests: Iterable[StoreManifest]) -> dict[int, int]:
    """Epochs that took over, each with the last commit that it adopted; one that adopted nothing yet does not count."""
    starts = (document for manifest in manifests for document in manifest.documents)
    return {start.epoch: start.adopted_seq for start in starts if isinstance(start, StartDocument)}


def acknowledged(inherited: TailListing, acks: Mapping[int, int], taken_over: Mapping[int, int]) -> int:
    """The last commit that was acknowledged; `acks` is what batches say, by epoch."""
    said = [*acks.items(), *(adopted for adopted in inherited.adopted if adopted[0] in taken_over)]
    lines = (min([seq, *(line for epoch, line in taken_over.items() if epoch > own)]) for own, seq in said)
    return max([inherited.floor, *lines])


def known_shipped(
    store: Store, inherited: TailListing, acks: Mapping[int, int], frontier: FrontierDocument | None
) -> int:
    """The last commit that a reader of the tail can know of as acknowledged, also from batches behind a hole.

    Cheaper than `acknowledged`, and says less: any later owner draws a line, and one batch of each epoch is asked.
    """
    newest = {name.epoch: key for key in inherited.beyond if (name := layout.parse_batch_key(key)) is not None}
    said = [*acks.items(), *((epoch, _acked(store, key, unknown=0)) for epoch, key in newest.items())]
    if frontier is not None:
        said.append((frontier.epoch, frontier.seq))
    lines = inherited.adopted
    return max((min([seq, *(line for epoch, line in lines if epoch > own)]) for own, seq in said), default=0)


def evidence(store: Store, inherited: TailListing) -> frozenset[str]:
    """Batches behind a loss that a takeover accepted; raises Unavailable when the store does not answer."""
    found: set[str] = set()
    for epoch, line in inherited.adopted:
        behind = [key for key in inherited.beyond if _is_behind(key, epoch, line)]
        if behind and _is_takeover(store, epoch) and any(_acked(store, key) > line for key in behind):
            found.update(behind)
    return frozenset(found)


def _is_behind(key: str, epoch: int, line: int) -> bool:
    name = layout.parse_batch_key(key)
    return name is not None and name.epoch < epoch and name.last_seq > line


def _is_takeover(store: Store, epoch: int) -> bool:
    key = layout.epoch_key(epoch)
    try:
        return documents.decode(store.get(key), key, EpochDocument).purpose == "restore"
    except (NotFound, Corrupt):
        return True  # claims are never removed: nothing is removed on the word of one that is not there


_MUCH = 2**63


def _acked(store: Store, key: str, unknown: int = _MUCH) -> int:
    """What a batch says was acknowledged; one that cannot be read may have said anything (`unknown`)."""
    try:
        batch = commit_batch.decode(store.get(key), key)
        return batch.acked
    except NotFound:
        return 0
    except Corrupt:
        return unknown
