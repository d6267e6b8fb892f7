"""Retention of topics that sinks write. They have no lasting owner, so it is called now and then.

A topic's policy stands in its document. What it says is retired by `expired` objects, as a log's is: whole segments,
the oldest of each partition first, never the newest one. `delete_after` later a call removes their files, later while
a reader's lease needs them. Offsets, marks of writers and batches stay forever, so a batch that is written again is
still known.

Files that tasks left behind go as well: those whose number is taken for good by another file, and that have been there
for longer than `delete_after`, so that no commit that is under way misses them. Needs no lock, may be done by several
at once, and may be ended at any time.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from holdfast.clock import Clock
from holdfast.errors import Invalid, NotFound, Unavailable
from holdfast.model.topic_name import is_name
from holdfast.model.trusted_time import JUMP_MAX_US
from holdfast.root.batch_application import apply
from holdfast.root.objects import documents
from holdfast.root.objects.documents import ExpiredDocument, RetentionLimits, SegmentDocument, SinkTopicDocument
from holdfast.root.retired_files import newest_expired, removable_below, retired_files
from holdfast.root.rewrite_sweep import Grace
from holdfast.root.rewrites import read_intents, read_rewrites
from holdfast.root.root_store import RootStore
from holdfast.root.root_time import RemovalTerms, RootTime
from holdfast.root.sink_batches import newest_batch
from holdfast.root.store_manifest import newest_topic, read_manifest
from holdfast.store import layout
from holdfast.store.port import AlreadyExists, Body

_TRIES = 100
_AT_ONCE = 500


class SinkRetained(msgspec.Struct, frozen=True):
    """What retention came to in one partition."""

    topic: str
    partition: int
    retired: int = 0
    """Segments that readers do not see any more."""
    records: int = 0
    """In those."""
    first: int = 0
    """Where the partition begins now."""
    removed_files: int = 0
    removed_bytes: int = 0


class SinkRetention:
    """Applies the policies of topics of one root."""

    def __init__(self, store: RootStore, clock: Clock, grace: Grace, jump_max_us: int = JUMP_MAX_US) -> None:
        """`jump_max_us`: how far the clock may be ahead of the newest segment, to be believed."""
        self._store, self._clock, self._grace = store, clock, grace
        self._log = store.log().log
        self._time = RootTime(store, self._log, clock, jump_max_us)

    def topics(self) -> list[SinkTopicDocument]:
        """The topics of this root that sinks write."""
        names = filter(is_name, self._store.folders(layout.TOPICS))
        found = [newest_topic(self._store, self._log, name) for name in names]
        return [topic for topic in found if isinstance(topic, SinkTopicDocument)]

    def set_policy(self, topic: str, limits: RetentionLimits | None) -> None:
        """Give a topic a policy, or none; raises NotFound, and Invalid where a log writes it."""
        for _ in range(_TRIES):
            document = newest_topic(self._store, self._log, topic)
            if document is None:
                raise NotFound(f"there is no topic {topic!r} at this root store={self._store.url}")
            if not isinstance(document, SinkTopicDocument):
                raise Invalid(
                    f"topic {topic!r} belongs to the log that ships here store={self._store.url}",
                    hint="its owner retires it: shipping.store_bytes_max, shipping.store_age_max_ms",
                )
            if document.retention == limits:
                return
            newer = msgspec.structs.replace(document, version=document.version + 1, retention=limits, check="")
            try:
                self._store.create(layout.topic_key(topic, newer.version), Body.of(documents.encode(newer)))
                return
            except AlreadyExists:
                continue  # it has grown, or this very call was answered twice: look again
        raise Unavailable(f"others change this topic all the time topic={topic}", hint="try again")

    def apply(self, topic: SinkTopicDocument, *, dry_run: bool = False) -> list[SinkRetained]:
        """Retire what the topic's policy says, and remove what was retired long enough ago."""
        batch = newest_batch(self._store, self._log, topic.topic)
        if not dry_run:
            apply(self._store, batch)
        partitions = sorted(map(int, batch.ends)) if batch is not None else []
        return [self._partition(topic, number, dry_run=dry_run) for number in partitions]

    def _partition(self, topic: SinkTopicDocument, number: int, *, dry_run: bool) -> SinkRetained:
        place, now_us = (topic.topic, number), self._clock.now_us()
        segments = read_manifest(self._store, self._log, *place).segments
        known = newest_expired(self._store, *place)
        before = 0 if known is None else min(known.upto, len(segments))
        trusted_us = self._time.now_us(segments)
        upto = max(before, _upto(segments[before:], topic.retention, trusted_us))
        if upto > before and not dry_run:
            self._retire(place, upto, segments[upto - 1].end, now_us)
        gone = segments[before:upto]
        terms = self._time.removal(segments, self._grace)
        keys: set[str] = set() if dry_run else self._removable(place, segments, terms)
        if trusted_us < now_us:
            would_go = set() if dry_run else self._removable(place, segments, terms._replace(now_us=now_us))
            if would_go > keys or _upto(segments[before:], topic.retention, now_us) > upto:
                self._time.warn(trusted_us)
        sizes = self._remove(place, keys)
        return SinkRetained(
            *place,
            len(gone),
            sum(one.rows for one in gone),
            segments[upto - 1].end if upto else 0,
            len(sizes),
            sum(sizes),
        )

    def _retire(self, place: tuple[str, int], upto: int, first: int, now_us: int) -> None:
        topic, partition = place
        document = ExpiredDocument(
            log=self._log, topic=topic, partition=partition, upto=upto, first=first, expired_us=now_us
        )
        try:
            self._store.create(layout.expired_key(topic, partition, upto), Body.of(documents.encode(document)))
        except AlreadyExists:
            pass  # another process has retired the same

    def _removable(self, place: tuple[str, int], segments: Sequence[SegmentDocument], terms: RemovalTerms) -> set[str]:
        upto = removable_below(self._store, *place, terms.now_us, terms.grace, terms.leases.get(place))
        upto = min(upto, len(segments))
        retired = retired_files(self._store, self._log, *place, upto, lambda number: segments[number].key)
        return {*(retired or ()), *self._leftovers(place, segments, terms)}

    def _leftovers(self, place: tuple[str, int], segments: Sequence[SegmentDocument], terms: RemovalTerms) -> list[str]:
        """Files of attempts that can never be part of the topic: another one has their number."""
        deadline = terms.now_us - terms.grace.delete_after_us
        listed = list(self._store.list(layout.segments_folder(*place) + "/"))
        # In this order: a file that was listed is announced by its intent, or its rewrite is there when we look.
        intents = read_intents(self._store, self._log, *place, 0)
        known = {one.key for one in segments}
        known |= {output.segment.key for one in read_rewrites(self._store, self._log, *place) for output in one.outputs}
        runs = [run for intent in intents for run in intent.runs]
        found = []
        for info in listed:
            name = layout.parse_segment_name(info.key.rpartition("/")[2])
            if name is None or name.number >= len(segments) or info.key in known or info.modified_us > deadline:
                continue
            if not any(start <= name.number < stop for start, stop in runs):
                found.append(info.key)
        return found

    def _remove(self, place: tuple[str, int], keys: set[str]) -> list[int]:
        """Remove files; returns how large they were."""
        there = {info.key: info.size for info in self._store.list(layout.segments_folder(*place) + "/")} if keys else {}
        chosen = sorted(key for key in keys if key in there)
        for start in range(0, len(chosen), _AT_ONCE):
            self._store.delete(chosen[start : start + _AT_ONCE])
        return [there[key] for key in chosen]


def _upto(segments: Sequence[SegmentDocument], limits: RetentionLimits | None, now_us: int) -> int:
    """Behind the last segment that goes by a policy; the newest one always stays. 0 for none."""
    if limits is None:
        return 0
    size, rows, upto = sum(one.size for one in segments), sum(one.rows for one in segments), 0
    for segment in segments[:-1]:
        size, rows = size - segment.size, rows - segment.rows
        too_much = (limits.bytes_max and size >= limits.bytes_max) or (
            limits.records_max and rows >= limits.records_max
        )
        too_old = limits.age_max_us and segment.sealed_us < now_us - limits.age_max_us
        if not too_much and not too_old:
            break
        upto = segment.number + 1
    return upto
