"""The database of a log that is being restored: made before the claim, finished after it.

Nearly all of it is known before an owner is fenced: it is written and synced beside the fetching of segments, so that a
disk that cannot hold it ends the restore in time, and nobody waits for it afterwards. If the store is the same after
the claim, only the claim and the start objects are added; else the database is recreated.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from holdfast.clock import Clock
from holdfast.crypto.cipher import PayloadCipher
from holdfast.crypto.keyring import Keyring
from holdfast.crypto.vault import KeyEpoch, Vault
from holdfast.errors import Corrupt
from holdfast.journal.create import (
    KnownKey,
    KnownPartition,
    KnownStore,
    KnownTail,
    KnownTopic,
    NewDatabase,
    create_database,
    partition_ids,
)
from holdfast.log_directory import Directory
from holdfast.model.control_rows import SegmentRow
from holdfast.recovery.fetching import Progress, state_of
from holdfast.recovery.key_walk import KeyWalk
from holdfast.recovery.rebuild_plan import with_tree
from holdfast.recovery.spooling import Spool
from holdfast.root import tail_walk
from holdfast.root.objects.commit_batch import CommitBatch
from holdfast.root.objects.documents import FrontierDocument, LogDocument, SegmentDocument, TopicDocument
from holdfast.root.objects.frontiers import Behind, absent, behind, missing
from holdfast.root.root_contents import Where
from holdfast.root.store_manifest import StoreManifest
from holdfast.root.tail_listing import TailListing
from holdfast.root.tail_walk import TailContents
from holdfast.store import layout
from holdfast.store.port import Store

Counting = tuple[str, int]
"""A commit batch's key, and up to which sequence number it counts."""


class RestoreOptions(NamedTuple):
    """How it is to be done."""

    copy: bool
    accept_loss: bool
    keys_max: int
    """The window of idempotency keys."""
    progress: Progress


_LOST_HINT = (
    "nothing was taken over. If the old machine still has the log, open it there: it writes manifest objects again."
    " Else look for older versions of these objects in the bucket; or bring back what is there with --accept-loss"
    " (accept_loss=True)"
)


class RootContents(NamedTuple):
    """What a store's root held when it was looked at; all of it is proved, and the commit batches are here."""

    topics: tuple[TopicDocument, ...]
    manifests: dict[Where, StoreManifest]
    inherited: TailListing
    batches: list[Counting]
    walked: TailContents
    beyond_records: int
    acknowledged: int
    """The last acknowledged commit."""
    named: tuple[SegmentDocument, ...] = ()
    """Segments that commit batches name: they count, whether their manifest objects are there or not."""
    frontier: FrontierDocument | None = None
    """How far the log itself says that it was settled."""
    files_beyond: Mapping[Where, int] = {}  # nobody changes it
    """Segment files that no manifest object names, where no commit batch brings more than the segments either."""

    @property
    def lost(self) -> int:
        """Commits that were acknowledged and are not there."""
        return max(0, self.acknowledged - self.walked.reach)

    @property
    def behind(self) -> tuple[Behind, ...]:
        """Partitions that lack records which were settled, and which no commit batch brings back."""
        return behind(self.frontier, {**self.settled, **self.walked.ends})

    @property
    def lost_keys(self) -> tuple[int, int] | None:
        """The commits whose idempotency keys were in objects, where some of those are gone."""
        span = None if self.frontier is None else self.frontier.key_span
        if span is None or any(first <= span[0] and span[1] <= last for first, last in self.inherited.key_runs):
            return None
        return span

    def require_whole(self, store: Store) -> None:
        """Raise Corrupt where something is missing that was settled, or acknowledged as shipped."""
        if self.behind:  # where the newest manifest objects are lost, only the frontier knows
            raise missing(self.behind[0], store, _LOST_HINT)
        if self.frontier is None and self.topics:  # it was there before the first topic
            raise absent(_LOST_HINT)
        if self.lost_keys is not None:
            first, last = self.lost_keys
            raise Corrupt(
                f"objects of idempotency keys are missing: repeats would not be recognised first={first} last={last}",
                path=layout.TAIL,
                hint=_LOST_HINT.replace("manifest objects", "what is missing"),
            )
        if self.lost:
            raise Corrupt(
                f"commits that were acknowledged as shipped are missing from={self.walked.reach + 1}"
                f" acknowledged={self.acknowledged} batches_behind={len(self.inherited.beyond)}"
                f" records_behind={self.walked.cut_records + self.beyond_records}",
                path=layout.TAIL,
                hint="nothing was taken over. If the old machine still has the log, open it there: it sends again what"
                " is missing. Else look for older versions of these objects in the bucket; or bring back what comes"
                " before the hole with --accept-loss (accept_loss=True)",
            )

    @property
    def settled(self) -> dict[Where, int]:
        """Everything below lies in segments, by partition."""
        return settled_in(self.topics, self.manifests)


class DatabaseFacts(NamedTuple):
    """What the database has."""

    rows: list[SegmentRow]
    keys: int


class RestoredDatabase:
    """The database of one restore."""

    def __init__(
        self,
        directory: Directory,
        log: LogDocument,
        root: str,
        keyring: Keyring | None,
        cipher: PayloadCipher | None,
        clock: Clock,
        options: RestoreOptions,
        spool: Spool,
    ) -> None:
        self._directory = directory
        self._log = log
        self._log_id = bytes.fromhex(log.log)
        self._root = root
        self._keyring, self._cipher = keyring, cipher
        self._clock = clock
        self._options = options
        self._spool = spool
        self._prepared: tuple[object, NewDatabase, Mapping[Where, int]] | None = None

    def prepare(self, seen: RootContents, owner: str) -> None:
        """Make it of what was seen, durably; `owner` is who this directory is to the store."""
        self._prepared = None
        self._prepared = (_basis(seen), *self._create(seen, owner, 0))

    def finished(self, seen: RootContents, owner: str, epoch: int) -> DatabaseFacts:
        """Finish it under a claim, of what was seen since; 0 for a copy."""
        if self._prepared is None or self._prepared[0] != _basis(seen):
            created, _ = self._create(seen, owner, epoch)
        else:
            _, created, ids = self._prepared
            slots = {ids[where]: len(manifest.documents) for where, manifest in seen.manifests.items()}
            if epoch:
                created.claimed(epoch, slots)
        return DatabaseFacts([row for manifest in seen.manifests.values() for row in rows_of(manifest)], created.keys)

    def _create(self, seen: RootContents, owner: str, epoch: int) -> tuple[NewDatabase, Mapping[Where, int]]:
        rows = {where: list(rows_of(manifest)) for where, manifest in seen.manifests.items()}
        topics = [_known_topic(topic, rows, seen) for topic in seen.topics]
        ids, walked = partition_ids(topics), seen.walked
        tail = KnownTail(
            tail_walk.entries(counting(self._spool, seen.batches), seen.settled, walked.last_seq, ids),
            tuple(KeyEpoch(*key) for key in walked.keys),
            walked.last_seq,
            walked.last_group,
            self._known_keys(seen, ids),
            self._options.keys_max,
        )
        vault = Vault(self._log_id, self._keyring, self._cipher, self._clock.random_bytes)
        created = create_database(
            self._directory.rebuilt,
            vault,
            topics,
            self._clock,
            created_us=self._log.created_us,
            tail=tail,
            store=KnownStore(self._root, bytes.fromhex(owner), epoch, self._options.copy),
        )
        return created, ids

    def _known_keys(self, seen: RootContents, ids: Mapping[Where, int]) -> Iterator[KnownKey]:
        """The idempotency keys of what is brought back."""
        ends = {**seen.settled, **seen.walked.ends}
        walk = KeyWalk(self._log_id, self._keyring, self._cipher, seen.manifests, ends, seen.walked.last_seq)
        objects = [info.key for info, _ in seen.inherited.keys]
        for key in walk.keys(lambda: map(self._spool.keys, objects), counting(self._spool, seen.batches)):
            yield KnownKey(ids[key.where], key.record, key.seq, key.hash, key.digest)


def counting(spool: Spool, batches: Iterable[Counting]) -> Iterator[CommitBatch]:
    """Commit batches, each as far as it counts."""
    for key, last_seq in batches:
        yield tail_walk.cut(spool.batch(key), last_seq)


def _basis(seen: RootContents) -> object:
    """All that a database is made of, but for the claim and the start objects."""
    segments = {where: (manifest.segments, manifest.expired) for where, manifest in seen.manifests.items()}
    keys = [info.key for info, _ in seen.inherited.keys]
    return seen.topics, segments, seen.batches, seen.walked, keys


def settled_in(topics: Sequence[TopicDocument], manifests: Mapping[Where, StoreManifest]) -> dict[Where, int]:
    """Everything below lies in segments, by partition."""
    firsts = {topic.topic: topic.first_offset for topic in topics}
    settled = {}
    for where, manifest in manifests.items():
        end = manifest.settled
        settled[where] = firsts[where[0]] if end is None else end
    return settled


def rows_of(manifest: StoreManifest) -> Iterator[SegmentRow]:
    """The rows of the manifest that the documents tell."""
    drafts = [
        SegmentRow.of(
            document.segment,
            partition_id=0,
            sealed_us=document.sealed_us,
            state=state_of(manifest, document),
            chain=bytes.fromhex(document.chain),
        )
        for document in manifest.segments
    ]
    return with_tree(drafts)


def _known_topic(topic: TopicDocument, rows: Mapping[Where, list[SegmentRow]], seen: RootContents) -> KnownTopic:
    partitions = []
    for number in range(topic.partitions):
        where = (topic.topic, number)
        link = seen.walked.links.get(where, KnownPartition().link)
        end, slots = seen.walked.ends.get(where), len(seen.manifests[where].documents)
        partitions.append(KnownPartition(rows[where], topic.first_offset, end, link, slots))
    schemas = tuple((bytes.fromhex(s.fingerprint), b64decode(s.definition)) for s in topic.schemas)
    limits = topic.retention
    policy = None if limits is None else (limits.bytes_max, limits.age_max_us, limits.records_max)
    return KnownTopic(topic.topic, tuple(partitions), schemas, policy, topic.codec)
