"""`holdfast status`: who owns a log, how far each partition has got, and whether it is damaged.

The numbers are one consistent look at the control rows; the store is not contacted. The checks are those of opening the
log: stamps, heads, tails, the ends of its files of groups, and that segments' files are there. Entries further back are
proved when they are read (`holdfast inspect --entries all` proves them all). Without the key of an encrypted log the
same numbers are shown, and the report says that nothing was verified.
"""

from __future__ import annotations

from pathlib import Path

import click
import msgspec

import holdfast
from holdfast import Keyring, Settings
from holdfast.cli.exit_codes import DAMAGED, FINE
from holdfast.cli.inspection import summary
from holdfast.cli.inspection.at_root import Root, log_id_option, place_argument, refuse_log_id
from holdfast.cli.inspection.own_tables import own_tables
from holdfast.cli.inspection.summary import PartitionStatus, TopicStatus
from holdfast.cli.options import NEEDS_KEY, json_option, keyring_option, load_keyring
from holdfast.cli.output import Problem, emit, emit_facts, emit_json, emit_problems, emit_table, flush, problem, say
from holdfast.cli.prices import Cost, cost_of
from holdfast.errors import Corrupt, HoldfastError
from holdfast.journal.proving.inspected_database import ControlRows, InspectedDatabase, PartitionBytes
from holdfast.log.consumers.stored_positions import TOPIC as POSITIONS
from holdfast.log_directory import Directory
from holdfast.model.record_json import iso
from holdfast.publish.publication_report import PublicationReport
from holdfast.quantity import counted, sized
from holdfast.shipping.price_note import read_note

EPILOG = """\b
Marks, in offsets: everything below them is
  appended  durable, or waiting in the owner's queue (control from another process: durable)
  durable   on this machine's disk        sealed   in an immutable segment
  shipped   on the store                  settled  there in segments that are listed
Without a store nothing is shipped, and what is sealed is settled. Readable from 'first' on.
Unshipped records are on this machine only; of a log that was taken over they are stranded.
The store itself is not asked."""

_VERIFIED = "stamps, heads, tails, and that the files of segments are there"
_DAMAGE = ("missing", "size_mismatch")
_UNITS_MAX = 100
"""Of `reconcile.unit_segments` segments each: 100 000 files."""


class KeyName(msgspec.Struct, frozen=True):
    """A key that something in the log is encrypted with, by name."""

    scheme: str
    key_id: str
    """Its name."""


class ShippingStatus(msgspec.Struct, frozen=True):
    """How far the log is on its store, by the marks stored last, and what shipping may cost."""

    store: str
    """The store's address."""
    copy: bool
    """Whether this is a copy (`holdfast restore --copy`), which never ships."""
    shipped_seq: int
    """Journal entries up to this number are on the store."""
    lag_records: int
    """Records that are durable and not on the store."""
    lag_bytes: int
    """Their stored bytes in the journal; 0 where only segments hold them."""
    unsettled_segments: int
    """Sealed segments that the store does not list yet."""
    cost: Cost | None
    """What commit batches cost, with the settings of the log's owner (or last owner) that had a store, not with those
    of the reader; null where no owner recorded them.
    """
    fenced: bool = False
    """Whether another process has taken the log over: this directory takes no records any more, and nothing of it is
    on its way.
    """
    stranded_records: int = 0
    """Of such a log: records that are durable here and nowhere else."""
    alarm: str | None = None
    """What holds shipping up, as the owner wrote it down; else null."""
    ended: str | None = None
    """Why it ended for good; else null."""
    last_error: str | None = None
    """What the store said last; else null."""


class Status(msgspec.Struct, frozen=True):
    """The log at one moment."""

    path: str
    """The log's directory."""
    log_id: str
    """The log's identity, as hex."""
    owner_pid: int | None
    """The process that owns the log now, or `null`."""
    created: str | None
    """When the log was created."""
    epoch: int | None
    """How often it was opened by an owner."""
    encrypted: bool | None
    """Whether there are keys."""
    keys: list[KeyName]
    """The keys in use."""
    verified: bool
    """Whether the control rows were checked; false without the key, where rows could not even be read, and where a
    segment's file is missing or has another size.
    """
    database_bytes: int
    """The size of `durable.db`."""
    wal_bytes: int
    """The size of its write-ahead log."""
    records: int
    """Records that can be read, in all partitions."""
    tail_records: int
    """What is durable and not sealed yet."""
    tail_bytes: int
    """Its stored bytes."""
    segments: int
    """Segments that are there."""
    segment_bytes: int
    """Bytes of their files, by the manifest."""
    shipping: ShippingStatus | None
    """Where the log is shipped to, or null."""
    topics: list[TopicStatus]
    """One by one."""
    problems: list[Problem]
    """The damage that was found."""
    consumers: dict[str, int] | None = None
    """By `consumer/topic`, how many records it lags behind; None where that cannot be read: without the key, say."""
    tables: list[PublicationReport] = []
    """Tables in this directory that topics are published as; those of a store: `holdfast status URL`."""


@click.command("status", epilog=EPILOG)
@place_argument
@log_id_option
@keyring_option
@json_option
def status_command(place: Path | Root, log_id: str, reference: str | None, as_json: bool) -> int:
    """Show owner, size, topics and marks of the log in DIR, and damage (exit code 3); or what the store at URL has."""
    settings = Settings.load()
    if isinstance(place, Root):
        from holdfast.cli.inspection.root_report import tell_status

        return tell_status(place, place.options(reference, log_id, settings), as_json=as_json)
    refuse_log_id(place, log_id)
    return _status_of(Directory(place.absolute()), load_keyring(reference, settings), as_json=as_json)


def _status_of(place: Directory, keyring: Keyring | None, *, as_json: bool) -> int:
    log_id = place.require_log()
    control, sizes, keyless = ControlRows(place.database), dict[int, PartitionBytes](), False
    problems, files = list[Corrupt](), list[Corrupt]()
    try:
        with InspectedDatabase.open(place.database) as database:
            inspection = database.examine(log_id, keyring, problems)
            files = inspection.lost_bodies()
            control, keyless = inspection.control, inspection.keyless
            sizes = database.bytes_of(control)
    except Corrupt as error:
        problems.append(error)
    consumers = _opened(place, keyring, control, files)
    verified = control.log is not None and not keyless and not control.damage and not files
    problems += [] if problems else files
    topics = list(summary.topics(control, sizes).values())
    shipping = _shipping(control, sizes, [partition for topic in topics for partition in topic.partitions], place)
    status = _status(place, log_id, control, topics, shipping, problems, verified, consumers)
    if as_json:
        emit_json(status)
    else:
        _show(status, problems)
    if keyless:
        say(f"note: the log is encrypted and there is no key: nothing was verified; {NEEDS_KEY}")
    flush()
    return DAMAGED if problems else FINE


def _shipping(
    control: ControlRows, sizes: dict[int, PartitionBytes], partitions: list[PartitionStatus], place: Directory
) -> ShippingStatus | None:
    row = control.shipping
    if row is None:
        return None
    owners = read_note(place.path)
    return ShippingStatus(
        store=row.root,
        copy=bool(row.copy),
        shipped_seq=row.shipped_seq,
        lag_records=sum(partition.unshipped or 0 for partition in partitions),
        lag_bytes=0 if row.fenced else sum(size.unshipped for size in sizes.values()),
        unsettled_segments=0 if row.fenced else sum(partition.unsettled_segments or 0 for partition in partitions),
        cost=None if owners is None else cost_of(owners),
        fenced=row.fenced > 0,
        stranded_records=sum(partition.stranded or 0 for partition in partitions),
        alarm=row.alarm or None,
        ended=row.ended or None,
        last_error=row.last_error or None,
    )


def _status(
    place: Directory,
    log_id: bytes,
    control: ControlRows,
    topics: list[TopicStatus],
    shipping: ShippingStatus | None,
    problems: list[Corrupt],
    verified: bool,
    consumers: dict[str, int] | None,
) -> Status:
    row = control.log
    partitions = [partition for topic in topics for partition in topic.partitions]
    return Status(
        path=str(place.path),
        log_id=log_id.hex(),
        owner_pid=place.holder(),
        created=None if row is None else iso(row.created_us),
        epoch=None if row is None else row.epoch,
        encrypted=None if row is None else bool(row.keyed),
        keys=list(dict.fromkeys(KeyName(epoch.scheme, epoch.key_id) for epoch in control.key_epochs)),
        verified=verified,
        database_bytes=_size(place.database),
        wal_bytes=_size(place.database.with_name(place.database.name + "-wal")),
        records=sum(partition.records for partition in partitions),
        tail_records=sum(partition.tail_records for partition in partitions),
        tail_bytes=sum(partition.tail_bytes for partition in partitions),
        segments=sum(partition.segments for partition in partitions),
        segment_bytes=sum(partition.segment_bytes for partition in partitions),
        shipping=shipping,
        topics=topics,
        problems=[problem(found) for found in problems],
        consumers=consumers,
        tables=list(own_tables(place)),
    )


def _opened(
    place: Directory, keyring: Keyring | None, control: ControlRows, problems: list[Corrupt]
) -> dict[str, int] | None:
    """How far consumers lag behind, and what is wrong with the files: the log is opened for it, to read it.

    Positions are proved and decrypted. Of each file its size is looked at, up to so many; where rows are damaged, they
    say nothing about files.
    """
    try:
        with holdfast.open(place.path, settings=Settings(), keyring=keyring, read_only=True) as log:
            report = log.reconcile(limit=_UNITS_MAX)  # looks, and changes nothing
            for one in report.findings:
                if one.kind in _DAMAGE:
                    path = str(place.segments / (one.name or ""))
                    what = f"a segment's file: {one.kind.replace('_', ' ')}"
                    at = None if one.partition < 0 else one.partition
                    problems.append(Corrupt(what, path=path, topic=one.topic, partition=at, offset=one.first))
            if not report.complete:
                say("note: there are too many segments to check each; 'holdfast reconcile' checks them all")
            if POSITIONS not in control.topic_names.values():
                return {}
            return {f"{one.consumer}/{one.topic}": one.lag for one in log.consumers()}
    except HoldfastError:  # what is wrong is among the problems
        return None if POSITIONS in control.topic_names.values() else {}


def _size(path: Path) -> int:
    """A file's size by name. It is not opened: closing it would drop SQLite's locks in this process."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _show(status: Status, problems: list[Corrupt]) -> None:
    keys = ", ".join(f"{key.key_id or '(injected)'} ({key.scheme})" for key in status.keys)
    emit_facts(
        [
            ("log", status.log_id),
            ("path", status.path),
            ("owner", "none" if status.owner_pid is None else f"process {status.owner_pid}"),
            ("created", status.created),
            ("epoch", status.epoch),
            ("encrypted", {None: "unknown", False: "no", True: f"yes, keys: {keys}"}[status.encrypted]),
            ("verified", _VERIFIED if status.verified else "no: nothing was verified"),
            ("database", f"{sized(status.database_bytes)}, write-ahead log {sized(status.wal_bytes)}"),
            ("records", status.records),
            ("tail", f"{counted(status.tail_records, 'record')}, {sized(status.tail_bytes)}"),
            ("segments", f"{counted(status.segments, 'segment')}, {sized(status.segment_bytes)}"),
            *_shipping_facts(status.shipping),
        ]
    )
    rows = [(topic.topic, *_cells(partition)) for topic in status.topics for partition in topic.partitions]
    if rows:
        wide = len(_COLUMNS) if status.shipping is not None else len(_COLUMNS) - _STORE_COLUMNS
        emit("")
        names = _COLUMNS if status.shipping is None or not status.shipping.fenced else _FENCED_COLUMNS
        emit_table(names[:wide], [row[:wide] for row in rows])
    if status.consumers:
        emit("")
        rows = [(*name.split("/"), lag) for name, lag in status.consumers.items()]
        emit_table(("consumer", "topic", "lag"), rows)
    if status.tables:
        emit("")
        _show_tables(status)
    emit_problems(problems)


def _show_tables(status: Status) -> None:
    ends = {topic.topic: sum(part.settled or 0 for part in topic.partitions) for topic in status.topics}
    emit_table(
        ("published", "version", "files", "rows", "behind", "table"),
        [
            (
                one.topic,
                one.version,
                one.files,
                one.rows,
                max(0, ends.get(one.topic, 0) - sum(one.settled.values())) if one.reason is None else None,
                one.table,
            )
            for one in status.tables
        ],
    )
    for one in status.tables:
        if one.reason is not None:
            say(f"{one.topic}: {one.reason}")


def _shipping_facts(shipping: ShippingStatus | None) -> list[tuple[str, object]]:
    if shipping is None:
        return [("store", "none: this directory is the only copy")]
    if shipping.copy:
        return [("store", f"{shipping.store}, of which this is a copy; it never ships")]
    alarms = [("alarm", shipping.alarm), ("last error", shipping.last_error), ("shipping ended", shipping.ended)]
    problems: list[tuple[str, object]] = [(name, text) for name, text in alarms if text is not None]
    if shipping.fenced:
        stranded = f"{counted(shipping.stranded_records, 'record')}, which are durable here and nowhere else"
        return [
            ("store", f"{shipping.store}: another process has taken this log over"),
            ("stranded", stranded),
            *problems,
        ]
    waiting = f"{counted(shipping.lag_records, 'record')}, {sized(shipping.lag_bytes)} in commits; "
    return [
        ("store", shipping.store),
        ("not there yet", waiting + counted(shipping.unsettled_segments, "segment")),
        *problems,
        ("cost", "unknown: no owner has left a note" if shipping.cost is None else shipping.cost.words(shipping.store)),
    ]


_COLUMNS = (
    "topic", "partition", "first", "appended", "durable", "sealed", "shipped", "settled", "tail", "segments",
    "unshipped", "unsettled",
)  # fmt: skip
_FENCED_COLUMNS = tuple("stranded" if name == "unshipped" else name for name in _COLUMNS)
_STORE_COLUMNS = 2
"""The last columns, which say something only where there is a store."""


def _cells(partition: PartitionStatus) -> tuple[object, ...]:
    return (
        partition.partition,
        partition.first,
        partition.appended,
        partition.durable,
        partition.sealed,
        partition.shown_shipped,
        partition.settled,
        partition.tail_records,
        partition.segments,
        partition.stranded or partition.unshipped,
        partition.unsettled_segments,
    )
