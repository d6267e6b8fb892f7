"""What rewrites have left behind, removed when nobody can need it any more: by a compaction, and by the owner.

    a file that was replaced           `delete_after` behind its rewrite, unless a reader's lease needs its segments
    files of a rewrite that never was  `delete_after` after another writer took its number
    an intent                          with its files; one that is open for long is closed first

A reader that planned on files from before a rewrite has `delete_after` to finish, and longer while it renews its lease;
leases delay for a bounded time. A file in effect is never removed: what is known is read again after the files were
listed, so a file that nobody knows then belongs to an intent that is still open, and stays, or to one that is closed,
and can never be named by a rewrite. An intent is closed by a rewrite with its number; if nobody writes one, it is
closed here, after `STALE_US`, by one without files. A process that wakes up later finds the number taken.

Times are compared with one that the caller trusts, as those of retention are.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from holdfast.errors import NotFound
from holdfast.root.objects import documents
from holdfast.root.objects.documents import IntentDocument, RewriteDocument, SegmentDocument
from holdfast.root.rewrites import in_effect, read_rewrites, replaced
from holdfast.root.store_manifest import read_manifest
from holdfast.store import layout
from holdfast.store.port import AlreadyExists, Body, ObjectInfo, Store

STALE_US = 24 * 3600 * 1_000_000
"""An intent that is open for so long was left by a process that died."""
NOBODY = "0" * 16
"""The nonce of a rewrite without files: nobody's, or a process that wakes up would take it for its own."""
_AT_ONCE = 500

logger = logging.getLogger("holdfast")


class Grace(NamedTuple):
    """How long files stay that are not in effect any more, in microseconds."""

    delete_after_us: int
    lease_delay_max_us: int


class Swept(NamedTuple):
    """What a sweep removed, and what it left for later."""

    files: int = 0
    bytes: int = 0
    rewrites: int = 0
    """Rewrites below this number have nothing left: give it to the next sweep, which then looks at later ones only."""
    kept: int = 0
    """Replaced files, and intents, that wait for their time."""


def sweep(
    store: Store,
    log: str,
    topic: str,
    partition: int,
    now_us: int,
    grace: Grace,
    leases: Mapping[tuple[str, int], int],
    *,
    done: int = 0,
) -> Swept:
    """Remove what may go of one partition; raises Corrupt, also if what is there cannot be understood.

    `leases` is what `leased_segments.needed` says; `done` is how many rewrites an earlier sweep has finished with.
    Costs two requests if there is nothing to do.
    """
    intents = _intents(store, log, topic, partition)
    rewrites = read_rewrites(store, log, topic, partition)
    if not intents and len(rewrites) <= done:
        return Swept(rewrites=done)
    rewrites += _closed_stale(store, (log, topic, partition), intents, len(rewrites), now_us)
    listed = list(store.list(layout.segments_folder(topic, partition) + "/"))
    # Hazard: what is known must be read after the listing, and intents before what is known. Then a file in the list
    # that is in no rewrite belongs to an intent that is still here, or is gone together with its files.
    intents = _intents(store, log, topic, partition)
    rewrites = read_rewrites(store, log, topic, partition, rewrites)
    segments = read_manifest(store, log, topic, partition).segments
    sweeping = _Sweeping(segments, rewrites, now_us, grace, leases.get((topic, partition)))
    garbage, ended = sweeping.leftovers(intents, listed)
    outdated = sweeping.outdated(listed)
    keys = [info.key for info in (*garbage, *outdated)]
    for start in range(0, len(keys), _AT_ONCE):
        store.delete(keys[start : start + _AT_ONCE])
    if ended:
        store.delete([layout.intent_key(topic, partition, one.number, one.nonce) for one in ended])
    left = len(intents) - len(ended) + sweeping.kept
    return Swept(len(keys), sum(info.size for info in (*garbage, *outdated)), done if left else len(rewrites), left)


class _Sweeping:
    """What is known of one partition, and what may go by it. Pure."""

    def __init__(
        self,
        segments: Sequence[SegmentDocument],
        rewrites: Sequence[RewriteDocument],
        now_us: int,
        grace: Grace,
        leased: int | None,
    ) -> None:
        self._rewrites, self._settled = rewrites, len(segments)
        self._grace, self._now_us, self._leased = grace, now_us, leased
        self._replaced = replaced(segments, rewrites)
        self._in_effect = {file.segment.key for file in in_effect(segments, rewrites)}
        outputs = [output for rewrite in rewrites for output in rewrite.outputs]
        self._upto = {segment.key: segment.number + 1 for segment in segments}
        self._upto |= {output.segment.key: output.upto for output in outputs}
        self.kept = 0
        """Replaced files that are still needed."""

    def outdated(self, listed: Sequence[ObjectInfo]) -> list[ObjectInfo]:
        """Replaced files that nobody needs any more."""
        found = []
        for info in listed:
            number = self._replaced.get(info.key)
            if number is None or info.key in self._in_effect:
                continue
            if self._is_over(self._rewrites[number].rewritten_us, self._upto[info.key]):
                found.append(info)
            else:
                self.kept += 1
        return found

    def leftovers(
        self, intents: Sequence[IntentDocument], listed: Sequence[ObjectInfo]
    ) -> tuple[list[ObjectInfo], list[IntentDocument]]:
        """Files of rewrites that will never be, and the intents that have ended with them."""
        closed = [intent for intent in intents if intent.number < len(self._rewrites)]
        ended = [one for one in closed if self._is_past(self._rewrites[one.number].rewritten_us)]
        busy = {first for intent in intents if intent not in ended for first, _ in intent.runs}
        # What is not settled yet is the owner's alone: whatever an intent says, nobody rewrites it.
        numbers = {first for intent in ended for first, _ in intent.runs if first < self._settled} - busy
        garbage = [info for info in listed if _number(info) in numbers and info.key not in self._upto]
        return garbage, [one for one in ended if not any(first in busy for first, _ in one.runs)]

    def _is_over(self, since_us: int, upto: int) -> bool:
        """Whether a file that was replaced then, with segments below `upto`, may go."""
        is_leased = self._leased is not None and self._leased < upto
        return self._is_past(since_us, self._grace.lease_delay_max_us if is_leased else 0)

    def _is_past(self, since_us: int, more_us: int = 0) -> bool:
        return since_us + self._grace.delete_after_us + more_us <= self._now_us


def _number(info: ObjectInfo) -> int | None:
    name = layout.parse_segment_name(info.key.rpartition("/")[2])
    return None if name is None else name.number


def _intents(store: Store, log: str, topic: str, partition: int) -> list[IntentDocument]:
    """All intents, open or not; one that is damaged is Corrupt, because files of its rewrite may be on their way."""
    found = []
    for info in store.list(layout.intents_folder(topic, partition)):
        name = layout.parse_intent_key(info.key)
        try:
            intent = documents.decode(store.get(info.key), info.key, IntentDocument)
        except NotFound:  # it has ended
            continue
        if (intent.log, intent.topic, intent.partition, (intent.number, intent.nonce)) == (log, topic, partition, name):
            found.append(intent)
    return found


def _closed_stale(
    store: Store, place: tuple[str, str, int], intents: Sequence[IntentDocument], number: int, now_us: int
) -> list[RewriteDocument]:
    """Take the next number, if a process that must be dead announced it and did not write it."""
    stale = [one for one in intents if one.number == number and one.begun_us + STALE_US <= now_us]
    if not stale:
        return []
    log, topic, partition = place
    closing = RewriteDocument(
        log=log, topic=topic, partition=partition, number=number, nonce=NOBODY, outputs=(), rewritten_us=now_us
    )
    try:
        store.create(layout.rewrite_key(topic, partition, number), Body.of(documents.encode(closing)))
    except AlreadyExists:  # it was written after all, or another process has closed it
        return []
    logger.info("closed an intent of %s that was left behind", stale[0].host, extra={"action": "intent_closed"})
    return [closing]
