"""`holdfast topics URL` and `holdfast status URL`: what the root of a log on a store holds, without the log.

Manifests are read and proved; no segment is opened, `status` looks whether their files are there, and how large they
are. Without the keys of an encrypted log the same is shown, and the report says that nothing was proved by a key.
Damage of a manifest ends the report: what it says after it means nothing.
"""

from __future__ import annotations

import msgspec

from holdfast.cli.exit_codes import DAMAGED, FINE
from holdfast.cli.inspection.at_root import Root
from holdfast.cli.inspection.summary import RAW, TYPED
from holdfast.cli.options import NEEDS_KEY
from holdfast.cli.output import Problem, emit, emit_facts, emit_json, emit_problems, emit_table, flush, problem, say
from holdfast.clock import SystemClock
from holdfast.errors import Corrupt
from holdfast.model.record_json import iso
from holdfast.publish.publication import Publisher
from holdfast.quantity import counted, sized
from holdfast.reader.open_root import SettledRoot
from holdfast.reader.read_options import ReadOptions
from holdfast.reader.resolve import earliest_offset
from holdfast.reader.tail_rows import ends_on_store
from holdfast.root.numbered_objects import newest
from holdfast.root.objects import documents
from holdfast.root.objects.documents import EpochDocument, SinkTopicDocument, TopicDocument
from holdfast.root.root_contents import versions
from holdfast.root.root_store import RootStore
from holdfast.store import layout


class RootPartition(msgspec.Struct, frozen=True):
    """What a root has of one partition."""

    partition: int
    """Its number."""
    first: int
    """The first offset that is left."""
    shipped: int
    """Everything below is on the store."""
    settled: int
    """Everything below is there in segments."""
    records: int
    """Records that can be read."""
    tail_records: int
    """Records in commit batches."""
    segments: int
    """Segments that are there."""
    segment_bytes: int
    """Bytes of their files, by the manifest."""


class RootSchema(msgspec.Struct, frozen=True):
    """One version of a typed topic's schema."""

    version: int
    fingerprint: str
    """12 digits."""
    columns: dict[str, str]
    """Names and Arrow types."""


class RootTable(msgspec.Struct, frozen=True):
    """The table that a topic is published as."""

    format: str
    """`delta`."""
    location: str
    """Where other engines find it."""
    version: int
    """Its newest version."""
    files: int
    """Files that it shows."""
    rows: int
    """Rows that it shows."""
    lag_records: int
    """Records that are settled and that the table does not show yet."""
    problem: str | None
    """Why it cannot be brought up to date: another writer has written to it, or it is damaged."""


class RootTopic(msgspec.Struct, frozen=True):
    """What a root has of one topic."""

    topic: str
    """Its name."""
    kind: str
    """`raw`, `typed`, or of raw records with a codec its name."""
    records: int
    """Records that can be read, in all partitions."""
    tail_records: int
    """Records in commit batches."""
    segments: int
    """Segments that are there."""
    segment_bytes: int
    """Bytes of their files, by the manifest."""
    partitions: list[RootPartition]
    """One by one."""
    schemas: list[RootSchema]
    """Of a typed topic, the oldest first."""
    table: RootTable | None = None
    """The table that the topic is published as; else null."""
    written_by: str = "log"
    """`sink` for a topic that a sink writes."""


class Claim(msgspec.Struct, frozen=True):
    """Who last claimed the log, to ship to this root."""

    epoch: int
    """Its number."""
    purpose: str
    """`open` or `restore`."""
    host: str
    """The machine."""
    pid: int
    """The process there."""
    claimed: str | None
    """When."""


class RootStatus(msgspec.Struct, frozen=True):
    """A root at one moment."""

    store: str
    """The store's address."""
    log_id: str
    """The log's identity, as hex."""
    created: str | None
    """When the log was created."""
    format: int
    """The format of the root."""
    encrypted: bool
    """Whether there are keys."""
    keys: list[str]
    """The names of the keys in use."""
    verified: bool
    """Whether all of it was proved by the log's keys: `false` without a keyring, and for a log without keys, and
    where there are `problems`.
    """
    claim: Claim | None
    """Who claimed the log last, to ship here; null where nobody ships."""
    records: int
    """Records that can be read."""
    tail_records: int
    """Records in commit batches."""
    segments: int
    """Segments that are there."""
    segment_bytes: int
    """Bytes of their files, by the manifest."""
    topics: list[RootTopic]
    """As `holdfast topics URL` has them."""
    problems: list[Problem]
    """The damage that was found."""


def tell_topics(root: Root, options: ReadOptions, *, as_json: bool) -> int:
    """Print the topics of a root."""
    opened = SettledRoot.open(root.url, options)
    found, _ = _topics(opened, options)
    if as_json:
        for topic in found:
            emit_json(topic)
    elif found:
        _table(found)
    else:
        say("no topics")
    _note(opened, options)
    flush()
    return FINE


def tell_status(root: Root, options: ReadOptions, *, as_json: bool) -> int:
    """Print what a root is and holds."""
    opened = SettledRoot.open(root.url, options)
    document = opened.store.log()
    found, keys = _topics(opened, options)
    problems = [lost for topic in found for part in topic.partitions for lost in _lost(opened, topic.topic, part)]
    status = RootStatus(
        store=opened.store.url,
        log_id=opened.log,
        created=iso(document.created_us),
        format=document.format,
        encrypted=bool(keys) or opened.store.trust.is_signed,
        keys=sorted(keys),
        verified=opened.store.trust.is_authentic and not problems,
        claim=_claim(opened),
        records=sum(topic.records for topic in found),
        tail_records=sum(topic.tail_records for topic in found),
        segments=sum(topic.segments for topic in found),
        segment_bytes=sum(topic.segment_bytes for topic in found),
        topics=found,
        problems=[problem(one) for one in problems],
    )
    if as_json:
        emit_json(status)
    else:
        _show(status)
        emit_problems(problems)
    _note(opened, options)
    flush()
    return DAMAGED if problems else FINE


def _lost(root: SettledRoot, topic: str, partition: RootPartition) -> list[Corrupt]:
    """The files of a partition that are missing, or not as large as the manifest says."""
    where = (topic, partition.partition)
    sizes = {info.key: info.size for info in root.store.list(layout.segments_folder(*where) + "/")}
    return [
        Corrupt(
            f"a segment's file: {'size mismatch' if one.key in sizes else 'missing'}",
            path=one.key,
            topic=topic,
            partition=where[1],
            offset=one.first,
        )
        for one in root.files(where)
        if not one.is_filler and one.end > partition.first and sizes.get(one.key) != one.size
    ]


def _topics(root: SettledRoot, options: ReadOptions) -> tuple[list[RootTopic], set[str]]:
    """All topics, and the names of the keys that their segments are encrypted with."""
    is_shipped_to, topics = root.is_shipped_to(), root.topics(options)
    ends = ends_on_store(root, options.store.read_bytes_max) if is_shipped_to else root.marks(topics)
    keys: set[str] = set()
    found = []
    for topic in topics:
        own = [_partition(root, topic, number, ends, keys) for number in range(topic.partitions)]
        found.append(
            RootTopic(
                topic.topic,
                TYPED if topic.schemas else topic.codec or RAW,
                sum(part.records for part in own),
                sum(part.tail_records for part in own),
                sum(part.segments for part in own),
                sum(part.segment_bytes for part in own),
                own,
                _schemas(topic),
                _published(root.store, topic.topic, own),
                "sink" if isinstance(topic, SinkTopicDocument) else "log",
            )
        )
    return found, keys


def _published(store: RootStore, topic: str, partitions: list[RootPartition]) -> RootTable | None:
    report = Publisher(store, SystemClock(), delete_after_ms=0).state(topic)
    if report is None:
        return None
    ends = {str(part.partition): part.settled for part in partitions}
    lag = sum(max(0, end - report.settled.get(number, part_first(partitions, number))) for number, end in ends.items())
    return RootTable(
        "delta",
        report.table,
        report.version,
        report.files,
        report.rows,
        lag if report.reason is None else 0,
        report.reason,
    )


def part_first(partitions: list[RootPartition], number: str) -> int:
    """Where a partition begins, of which a table shows nothing yet."""
    return next((part.first for part in partitions if str(part.partition) == number), 0)


def _partition(
    root: SettledRoot, topic: TopicDocument, number: int, ends: dict[tuple[str, int], int], keys: set[str]
) -> RootPartition:
    where = (topic.topic, number)
    first, settled = earliest_offset(root, topic, where), root.settled(topic, number)
    shipped = max(settled, ends.get(where, settled))
    there = [one for one in root.files(where) if not one.is_filler and one.end > first]
    keys.update(one.key_id for one in there if one.key_id)
    return RootPartition(
        number,
        min(first, shipped),
        shipped,
        settled,
        max(0, shipped - first),
        shipped - settled,
        len(there),
        sum(one.size for one in there),
    )


def _schemas(topic: TopicDocument) -> list[RootSchema]:
    return [
        RootSchema(at, schema.fingerprint.hex()[:12], {field.name: str(field.type) for field in schema.declared})
        for at, schema in enumerate(versions(topic), 1)
    ]


def _claim(root: SettledRoot) -> Claim | None:
    key = newest(root.store, layout.EPOCHS)
    if key is None:
        return None
    found = documents.decode(root.store.get(key), key, EpochDocument)
    return Claim(found.epoch, found.purpose, found.host, found.pid, iso(found.claimed_us))


def _note(root: SettledRoot, options: ReadOptions) -> None:
    if root.store.trust.is_signed and not options.keyring:
        say(f"note: the log is encrypted and there is no key: nothing was proved by one; {NEEDS_KEY}")


def _show(status: RootStatus) -> None:
    claim = status.claim
    emit_facts(
        [
            ("log", status.log_id),
            ("store", status.store),
            ("format", status.format),
            ("created", status.created),
            ("encrypted", f"yes, keys: {', '.join(status.keys) or 'none used yet'}" if status.encrypted else "no"),
            ("verified", _verified(status)),
            ("claimed", _words(claim)),
            ("records", f"{status.records}, of them {status.tail_records} in commit batches"),
            ("segments", f"{counted(status.segments, 'segment')}, {sized(status.segment_bytes)}"),
        ]
    )
    if status.topics:
        emit("")
        _table(status.topics)
    tables = [(topic.topic, topic.table) for topic in status.topics if topic.table is not None]
    if tables:
        emit("")
        show_tables(tables)


def _verified(status: RootStatus) -> str:
    if status.verified:
        return "yes"
    return "no: files are not as the manifests say" if status.problems else "no: nothing was proved by a key"


def show_tables(tables: list[tuple[str, RootTable]]) -> None:
    """Print the tables that topics are published as."""
    emit_table(
        ("published", "as", "version", "files", "rows", "behind", "table"),
        [(topic, one.format, one.version, one.files, one.rows, one.lag_records, one.location) for topic, one in tables],
    )
    for topic, one in tables:
        if one.problem is not None:
            say(f"{topic}: {one.problem}")


def _words(claim: Claim | None) -> str:
    if claim is None:
        return "by no log: a log's own directory, a root that only sinks write to, or nothing was shipped"
    return f"epoch {claim.epoch} by process {claim.pid} on {claim.host} at {claim.claimed} ({claim.purpose})"


def _table(topics: list[RootTopic]) -> None:
    emit_table(
        ("topic", "kind", "by", "partition", "records", "first", "shipped", "settled", "tail", "segments", "bytes"),
        [
            (
                topic.topic,
                topic.kind,
                topic.written_by,
                part.partition,
                part.records,
                part.first,
                part.shipped,
                part.settled,
                part.tail_records,
                part.segments,
                part.segment_bytes,
            )
            for topic in topics
            for part in topic.partitions
        ],
    )
