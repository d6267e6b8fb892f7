"""Rows that a store has only in commit batches: what lies above the settled marks, each offset once, without a gap.

Where the tail ends is decided once, in planning, by the same walk as in a restore: whole commits, up to the first hole.
A task names the spans of offsets between the marks and that end. They may be settled, and their batches removed, before
the task is read. So a reader lists the tail first and reads the manifests then. It takes each span from segments as far
as they reach and the rest from batches, and looks again if a batch is gone meanwhile. Rows that were returned are not
returned again; offsets that are found nowhere, however often it looks, are Corrupt.

Entries are proved as in a journal: their digests, their links to those before them, their encryption. The rows of one
partition come in the order of offsets; several partitions take turns. Unlike a settled read, a repeated one may return
more. Runs in Spark's executors; opens no database.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Generator, Iterator, Mapping
from typing import NamedTuple, TypeVar

import msgspec
import pyarrow as pa

from holdfast.crypto.cipher import NotAuthentic
from holdfast.crypto.keyring import Keyring
from holdfast.crypto.vault import KeyEpoch, Vault
from holdfast.errors import Corrupt, Invalid, NotFound, Unavailable
from holdfast.model.entry import CODECS, KINDS, TYPED, Entry, Place, header_of, is_whole
from holdfast.model.record_columns import BadRecords
from holdfast.reader.offsets import LATEST, Where
from holdfast.reader.open_root import OR_READ_THE_REST, SettledRoot
from holdfast.reader.piece_rows import TaskReader
from holdfast.reader.read_columns import RowShaper
from holdfast.reader.read_options import ReadOptions
from holdfast.reader.read_plan import Task, TimeBounds
from holdfast.reader.resolve import OffsetSpan, ResolvedRead, pieces
from holdfast.root import tail_walk
from holdfast.root.acknowledged import known_shipped
from holdfast.root.objects import commit_batch
from holdfast.root.objects.commit_batch import CommitBatch
from holdfast.root.objects.documents import SinkTopicDocument
from holdfast.root.root_contents import RootReader, check_schemas, versions
from holdfast.root.store_manifest import in_parallel
from holdfast.root.tail_listing import TailListing
from holdfast.segments.file.segment_columns import typed_schema
from holdfast.segments.file.selection import select
from holdfast.segments.typed.tail_batches import BATCH_BYTES, RawGathering, typed_batch
from holdfast.store import layout
from holdfast.store.port import Store

_AT_ONCE = 8
_LOOKS = 5
"""How often to look again when nothing new was found."""
_BEYOND = 2**63
_TAG = b"\xc1"
"""Begins a task of the tail, and no other: MessagePack never uses it."""
_EVERY_TOPIC = ReadOptions(topic_pattern=".*")

Result = TypeVar("Result")


class _Gone(NotFound):
    """A listed commit batch is gone: what it held is settled."""


# -- planning ---------------------------------------------------------------------------------------------


class TailPlan(NamedTuple):
    """What a read takes beyond the settled marks."""

    spans: tuple[OffsetSpan, ...]
    """Only those that are not empty."""
    schemas: frozenset[tuple[str, bytes]]
    """Topic and fingerprint of each schema that rows of the tail may have."""


class TailTask(msgspec.Struct, frozen=True, array_like=True):
    """What one reader reads of the tail."""

    log: bytes
    is_raw: bool
    spans: tuple[OffsetSpan, ...]

    def encode(self) -> bytes:
        """A task as bytes, to be sent along with tasks of segments."""
        return _TAG + msgspec.msgpack.encode(self)

    @classmethod
    def decode(cls, data: bytes) -> TailTask | None:
        """A task from its bytes; None for one of segments."""
        return _tasks.decode(memoryview(data)[1:]) if data[:1] == _TAG else None


_tasks = msgspec.msgpack.Decoder(TailTask)


def plan_tail(root: SettledRoot, resolved: ResolvedRead, options: ReadOptions) -> TailPlan:
    """What there is above the spans of a read, whose ends are settled marks; raises Invalid where there is no tail."""
    if not root.is_shipped_to():
        if all(isinstance(topic, SinkTopicDocument) for topic in resolved.topics):
            return TailPlan((), frozenset())  # what a sink has committed is settled
        raise Invalid(
            f"there is no tail at this root store={root.store.url}",
            hint="only a store that a log ships to has one; leave includeTail out, or give the store's URL",
        )
    ends, schemas = _patiently(lambda: _on_store(root, options.store.read_bytes_max), root.store)
    spans = []
    for span in resolved.spans:
        where = (span.topic, span.partition)
        end = _asked_end(where, options, ends.get(where, span.end))
        start = max(span.start, span.end)
        if start < end:
            spans.append(OffsetSpan(*where, start, end))
    topics = {span.topic for span in spans}
    return TailPlan(tuple(spans), frozenset(named for named in schemas if named[0] in topics))


def ends_on_store(root: SettledRoot, bytes_max: int) -> dict[Where, int]:
    """Up to where the store has each partition of the log, in segments or in commit batches."""
    return _patiently(lambda: _on_store(root, bytes_max), root.store)[0]


def _asked_end(where: Where, options: ReadOptions, end: int) -> int:
    """Where a partition's tail ends for this read, if the store has it up to `end`."""
    asked = LATEST if isinstance(options.ending_offsets, str) else options.ending_offsets.end(where, LATEST)
    if asked > end:
        raise Invalid(
            f"this is not on the store yet topic={where[0]} partition={where[1]} offset={asked} end={end}",
            hint="wait until it is, or read up to the end",
        )
    return end if asked == LATEST else asked


def _on_store(root: SettledRoot, bytes_max: int) -> tuple[dict[Where, int], frozenset[tuple[str, bytes]]]:
    """Up to where the store has each partition of the log, in segments or batches; and the schemas in those batches."""
    # The frontier and the tail first: what is settled, or removed, in between is in the manifests then.
    frontier = root.frontier()
    inherited = _listed(RootReader(root.store, root.log))
    topics = root.topics(_EVERY_TOPIC)
    settled = root.marks(topics)
    batches = (batch for _, batch in _batches(root.store, inherited, bytes_max))
    walked = tail_walk.walk(bytes.fromhex(root.log), batches, settled, inherited.floor, inherited.frontier)
    check_schemas(topics, walked.schemas)
    if (shipped := known_shipped(root.store, inherited, walked.acks, frontier)) > walked.reach:
        root.lost(
            Corrupt(
                "commits that were acknowledged as shipped are missing"
                f" from={walked.reach + 1} acknowledged={shipped} store={root.store.url}",
                path=layout.TAIL,
                hint=f"open the log that ships here: it sends again what is missing. {OR_READ_THE_REST}",
            )
        )
    return {where: walked.ends.get(where, mark) for where, mark in settled.items()}, walked.schemas


def _listed(tail: RootReader) -> TailListing:
    """What the names in the tail say; listed again while something seems to lie behind a hole, until two lists agree.

    A listing takes time. Batches that are removed meanwhile may be missing in it, and so may the floor that stands for
    them: then everything behind them seems to be cut off. Or a batch in between is just on its way.
    """
    best = found = tail.tail()
    for _ in range(_LOOKS - 1):
        if not found.beyond:
            break
        before, found = found, tail.tail()
        best = found if found.frontier >= best.frontier else best
        if (found.frontier, found.beyond) == (before.frontier, before.beyond):
            break
    return best


def _patiently(look: Callable[[], Result], store: Store) -> Result:
    """Look again if something is missing or does not fit: an owner may be at work. What is found twice is true."""
    last_seen = ""
    for _ in range(_LOOKS):
        try:
            return look()
        except (NotFound, Corrupt) as error:
            if error.message == last_seen:
                raise
            last_seen = error.message
    raise Unavailable(f"the store changes faster than it can be read store={store.url}", hint="read it again")


def _batches(store: Store, inherited: TailListing, bytes_max: int) -> Iterator[tuple[str, CommitBatch]]:
    """The commit batches that count, in order, with their keys; a few are fetched at once."""
    counting = [(key, name.last_seq) for key, name in inherited.batches if name.last_seq > inherited.floor]
    for at in range(0, len(counting), _AT_ONCE):
        some = counting[at : at + _AT_ONCE]
        # No thread outlives this step: a reading that is abandoned half-way would leave it behind.
        fetched = in_parallel(lambda item: _fetched(store, item[0], bytes_max), some, _AT_ONCE)
        for (key, last_seq), data in zip(some, fetched, strict=True):
            yield key, tail_walk.cut(commit_batch.decode(data, key), last_seq)


def _fetched(store: Store, key: str, bytes_max: int) -> bytes:
    try:
        return store.get(key, bytes_max)
    except NotFound as gone:
        raise _Gone(gone.message) from None


# -- reading ----------------------------------------------------------------------------------------------


class _Taking:
    """How far one partition's span is taken."""

    def __init__(self, log: bytes, span: OffsetSpan) -> None:
        self.topic, self.partition = span.topic, span.partition
        self.place = Place(log, span.topic, span.partition)
        self.given = self.at = span.start
        """Everything below `given` was returned; everything below `at` is taken, or gathered to be returned."""
        self.end = span.end
        self.link: bytes | None = None
        """Digest of the entry before, where that was taken from a batch."""
        self.gathering: RawGathering | None = None

    @property
    def is_done(self) -> bool:
        return self.at >= self.end

    def moved(self, at: int, link: bytes | None) -> None:
        """Everything up to there is returned, or not wanted."""
        self.given = self.at = at
        self.link = link


class TailReader:
    """Reads tasks of the tail of one read."""

    def __init__(self, root: SettledRoot, options: ReadOptions, shaping: RowShaper, bounds: TimeBounds) -> None:
        self._root, self._options = root, options
        self._shaping, self._bounds = shaping, bounds
        self._segments = TaskReader(root.store, options, shaping, bounds)
        self._tail = RootReader(root.store, root.log)
        self._keys: dict[int, KeyEpoch] = {}
        self._vault = Vault(
            bytes.fromhex(root.log), Keyring.from_reference(options.keyring) if options.keyring else None
        )
        self._vault.attach(self._keys.get)
        self._schemas: dict[tuple[str, bytes], tuple[pa.Schema, pa.Schema]] = {}
        self._key = ""
        """The commit batch that is being read."""

    def read(self, task: TailTask) -> Iterator[pa.RecordBatch]:
        """The rows of a task."""
        if task.log.hex() != self._root.log:
            raise Corrupt("another log is at this root than when the read was planned", path=layout.LOG)
        if self._is_known():
            for span in task.spans:
                yield from self._shaping.made(*span)
            return
        takings = {(span.topic, span.partition): _Taking(task.log, span) for span in task.spans}
        looks = 0
        while pending := {where: taking for where, taking in takings.items() if not taking.is_done}:
            before = sum(taking.at for taking in pending.values())
            gone = yield from self._look(task, pending)
            looks = 0 if sum(taking.at for taking in pending.values()) > before else looks + 1
            if looks == _LOOKS:
                raise _nowhere(next(taking for taking in pending.values() if not taking.is_done)) from gone

    def _is_known(self) -> bool:
        """Whether the spans alone determine these rows."""
        bounds = self._bounds
        has_times = bounds.since is not None or bounds.until is not None
        return not self._shaping.needs_file and not has_times and self._options.verify != "full"

    def _look(
        self, task: TailTask, pending: Mapping[Where, _Taking]
    ) -> Generator[pa.RecordBatch, None, NotFound | None]:
        """Take what is there now; returns what disappeared meanwhile, if anything did."""
        try:
            inherited = self._tail.tail()  # before the manifests, as in planning
        except NotFound as gone:  # a floor that was replaced by a newer one
            return gone
        for taking in pending.values():
            yield from self._from_segments(taking)
        if all(taking.is_done for taking in pending.values()):
            return None
        missing = None
        try:
            yield from self._from_batches(task, inherited, pending)
        except _Gone as gone:
            missing = gone
        for taking in pending.values():
            yield from self._flush(taking)
        return missing

    def _from_segments(self, taking: _Taking) -> Iterator[pa.RecordBatch]:
        """What was settled since this was planned. Segments stay: what is wrong with one is no reason to look again."""
        segments = self._root.segments((taking.topic, taking.partition))
        end = min(taking.end, segments[-1].end if segments else 0)
        if end <= taking.at:
            return
        span = OffsetSpan(taking.topic, taking.partition, taking.at, end)
        yield from self._segments.read(Task(tuple(pieces(self._root, [span], self._options, self._bounds))))
        taking.moved(end, None)

    def _from_batches(
        self, task: TailTask, inherited: TailListing, pending: Mapping[Where, _Taking]
    ) -> Iterator[pa.RecordBatch]:
        ids = {where: number for number, where in enumerate(pending)}
        takings = list(pending.values())
        wanted: Mapping[Where, int] = defaultdict(lambda: _BEYOND, dict.fromkeys(pending, 0))
        for entry in tail_walk.entries(self._noted(inherited), wanted, inherited.frontier, ids):
            yield from self._take(takings[entry.partition_id], entry, is_raw=task.is_raw)
            if all(taking.is_done for taking in takings):
                return

    def _noted(self, inherited: TailListing) -> Iterator[CommitBatch]:
        """Commit batches, each with its key and its key epochs noted while it is the one that is read."""
        for key, batch in _batches(self._root.store, inherited, self._options.store.read_bytes_max):
            self._key = key
            for found in batch.keys:
                epoch = KeyEpoch(*found)
                if self._keys.setdefault(epoch.number, epoch) != epoch:
                    raise Corrupt(f"two commit batches disagree about a key epoch key_epoch={epoch.number}", path=key)
            yield batch

    def _take(self, taking: _Taking, entry: Entry, *, is_raw: bool) -> Iterator[pa.RecordBatch]:
        """The next entry of a partition; one that was taken already, or lies behind a hole, is skipped."""
        end = entry.first + entry.count
        if taking.is_done or end <= taking.at or entry.first > taking.at:
            return
        self._prove(taking, entry, is_raw=is_raw)
        if self._bounds.misses(entry.time_min, entry.time_max):
            yield from self._flush(taking)
            taking.moved(end, entry.digest)
        elif is_raw:
            self._gather(taking, entry)
            if taking.gathering is not None and taking.gathering.bytes >= BATCH_BYTES:
                yield from self._flush(taking)
        else:
            rows = self._typed(taking, entry)
            yield from self._chosen(taking, rows)
            taking.moved(end, entry.digest)

    def _gather(self, taking: _Taking, entry: Entry) -> None:
        body = self._opened(taking, entry)
        taking.gathering = taking.gathering or RawGathering(entry.first)
        try:
            count = taking.gathering.add(body)
        except BadRecords as error:
            raise self._corrupt(f"an entry's body is malformed: {error}", taking, entry.first) from None
        self._require_count(taking, entry, count)
        taking.at, taking.link = entry.first + entry.count, entry.digest

    def _flush(self, taking: _Taking) -> Iterator[pa.RecordBatch]:
        """Return what is gathered."""
        gathering, taking.gathering = taking.gathering, None
        if gathering is None:
            return
        try:
            rows = gathering.take()
        except (BadRecords, pa.ArrowException):
            raise self._corrupt("an entry's body is malformed", taking, taking.given) from None
        yield from self._chosen(taking, rows)
        taking.given = taking.at

    def _typed(self, taking: _Taking, entry: Entry) -> pa.RecordBatch:
        stored, target = self._schema(taking, entry)
        try:
            rows = typed_batch(self._opened(taking, entry), entry.first, stored, target)
        except BadRecords as error:
            raise self._corrupt(f"an entry's body is malformed: {error}", taking, entry.first) from None
        self._require_count(taking, entry, rows.num_rows)
        return rows

    def _schema(self, taking: _Taking, entry: Entry) -> tuple[pa.Schema, pa.Schema]:
        """How an entry's rows are stored, and how a segment would have them."""
        named = (taking.topic, entry.schema)
        if named not in self._schemas:
            for version in versions(self._root.topic(taking.topic)):
                self._schemas[taking.topic, version.fingerprint] = (version.stored, typed_schema(version.stored))
        if named not in self._schemas:
            raise self._corrupt("an entry has a schema that its topic never had", taking, entry.first)
        return self._schemas[named]

    def _chosen(self, taking: _Taking, rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        chosen = select(rows, taking.given, taking.end, self._bounds.since, self._bounds.until)
        if chosen.num_rows:
            yield self._shaping.shape(chosen, taking.topic, taking.partition)

    # -- proof --------------------------------------------------------------------------------------------

    def _prove(self, taking: _Taking, entry: Entry, *, is_raw: bool) -> None:
        if not is_whole(taking.place, entry):
            raise self._corrupt("an entry's digest does not match", taking, entry.first)
        if taking.link is not None and entry.link != taking.link:
            raise self._corrupt("an entry does not follow the one before it", taking, entry.first)
        is_typed = entry.kind == TYPED
        if entry.kind not in KINDS or entry.codec not in CODECS or is_typed != bool(entry.schema) or is_typed == is_raw:
            message = f"an entry is of an unexpected kind={entry.kind} codec={entry.codec}"
            raise self._corrupt(message, taking, entry.first)

    def _opened(self, taking: _Taking, entry: Entry) -> bytes:
        is_encrypted = entry.key_epoch != 0
        if is_encrypted and not self._vault.keyed:
            key_id = self._keys[entry.key_epoch].key_id  # a batch has all that its entries name
            raise Invalid(
                f"topic {taking.topic!r} is encrypted, and there is no key key_id={key_id}",
                hint="name a keyring that executors find: option keyring = env:NAME or file:PATH",
            )
        if self._vault.keyed and not is_encrypted:
            raise Invalid(
                f"records of topic {taking.topic!r} are not encrypted, but a keyring was passed key={self._key}",
                hint="if the log has no keys, leave keyring out; if it has, another party put these records there",
            )
        try:
            return self._vault.decrypt(entry.key_epoch, entry.body, header_of(taking.place, entry))
        except NotAuthentic:
            raise self._corrupt("an entry is not authentic", taking, entry.first) from None

    def _require_count(self, taking: _Taking, entry: Entry, count: int) -> None:
        if count != entry.count:
            raise self._corrupt("an entry does not hold as many records as it says", taking, entry.first)

    def _corrupt(self, message: str, taking: _Taking, offset: int) -> Corrupt:
        return Corrupt(
            message,
            path=self._key,
            topic=taking.topic,
            partition=taking.partition,
            offset=offset,
            hint="the log that shipped it still has these entries, as entries or in segments",
        )


def _nowhere(taking: _Taking) -> Corrupt:
    return Corrupt(
        f"records are neither in segments nor in commit batches any more offsets={taking.at}..{taking.end - 1}",
        path=layout.TAIL,
        topic=taking.topic,
        partition=taking.partition,
        offset=taking.at,
        hint="read again; if it stays so, `holdfast reconcile DIR --remote --deep` where it ships from gives details",
    )
