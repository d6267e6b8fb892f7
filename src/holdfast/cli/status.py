"""`holdfast status`: who owns a log, how far each partition got, and whether it is damaged.

The numbers are one consistent look at the control rows. What is checked is what opening the log would check:
stamps, heads, tails; entries further back are proved when they are read (`holdfast inspect --entries all`
proves them all). Without the key of an encrypted log the same numbers are shown, and the report says that
nothing was verified.
"""

from __future__ import annotations

from pathlib import Path

import click
import msgspec

from holdfast import Settings
from holdfast.cli import summary
from holdfast.cli.examination import Examination
from holdfast.cli.exits import DAMAGED, FINE
from holdfast.cli.glance import Glance, Kept, database, glance, kept
from holdfast.cli.options import NEEDS_KEY, directory_argument, json_option, keyring_option, load_keyring
from holdfast.cli.output import Problem, emit, emit_facts, emit_json, emit_problems, emit_table, flush, problem, say
from holdfast.cli.summary import TopicStatus
from holdfast.cli.text import iso
from holdfast.directory import Directory
from holdfast.errors import Corrupt

EPILOG = """\b
Marks, in offsets: everything below them is
  appended  durable, or waiting in the owner's queue (seen from another process: durable)
  durable   on this machine's disk        sealed   in an immutable segment
  shipped   on the object store           settled  acknowledged there, in order
Without a store what is sealed is shipped and settled. Readable from 'first' on."""


class KeyName(msgspec.Struct, frozen=True):
    """A key that something in the log is sealed with, by name."""

    scheme: str
    key_id: str


class Status(msgspec.Struct, frozen=True):
    """The log at one moment."""

    path: str
    log_id: str
    owner_pid: int | None
    created: str | None
    epoch: int | None
    encrypted: bool | None
    keys: list[KeyName]
    verified: bool
    database_bytes: int
    wal_bytes: int
    records: int
    tail_records: int
    tail_bytes: int
    segments: int
    segment_bytes: int
    topics: list[TopicStatus]
    problems: list[Problem]


@click.command("status", epilog=EPILOG)
@directory_argument
@keyring_option
@json_option
def status_command(directory: Path, reference: str | None, as_json: bool) -> int:
    """Show owner, size, topics and marks of the log in DIR, and damage if there is any (exit code 3)."""
    keyring = load_keyring(reference, Settings.load())
    place = Directory(directory.absolute())
    log_id = place.require_log()
    seen, sizes, problems, keyless = Glance(place.database), dict[int, Kept](), list[Corrupt](), False
    try:
        with database(place.database) as backend:
            seen = glance(backend)
            sizes = kept(backend, seen)
            examination = Examination(backend, seen, log_id, keyring, problems)
            keyless = examination.keyless
            examination.check_rows()
    except Corrupt as error:
        problems.append(error)
    verified = seen.log is not None and not keyless and not seen.problems
    status = _status(place, log_id, seen, list(summary.topics(seen, sizes).values()), problems, verified)
    if as_json:
        emit_json(status)
    else:
        _show(status, problems)
    if keyless:
        say(f"note: the log is encrypted and there is no key: nothing was verified; {NEEDS_KEY}")
    flush()
    return DAMAGED if problems else FINE


def _status(
    place: Directory, log_id: bytes, seen: Glance, topics: list[TopicStatus], problems: list[Corrupt], verified: bool
) -> Status:
    row = seen.log
    partitions = [partition for topic in topics for partition in topic.partitions]
    return Status(
        path=str(place.path),
        log_id=log_id.hex(),
        owner_pid=place.holder(),
        created=None if row is None else iso(row.created_us),
        epoch=None if row is None else row.epoch,
        encrypted=None if row is None else bool(row.keyed),
        keys=list(dict.fromkeys(KeyName(epoch.scheme, epoch.key_id) for epoch in seen.key_epochs)),
        verified=verified,
        database_bytes=_size(place.database),
        wal_bytes=_size(place.database.with_name(place.database.name + "-wal")),
        records=sum(partition.records for partition in partitions),
        tail_records=sum(partition.tail_records for partition in partitions),
        tail_bytes=sum(partition.tail_bytes for partition in partitions),
        segments=sum(partition.segments for partition in partitions),
        segment_bytes=sum(partition.segment_bytes for partition in partitions),
        topics=topics,
        problems=[problem(found) for found in problems],
    )


def _size(path: Path) -> int:
    """A file's size by name; it is not opened, for closing it would drop SQLite's locks in this process."""
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
            ("verified", "yes" if status.verified else "no: nothing was verified"),
            ("database", f"{status.database_bytes} bytes, write-ahead log {status.wal_bytes} bytes"),
            ("records", status.records),
            ("tail", f"{status.tail_records} records, {status.tail_bytes} bytes"),
            ("segments", f"{status.segments} segments, {status.segment_bytes} bytes"),
        ]
    )
    rows = [
        (topic.topic, partition.partition, partition.first, partition.appended, partition.durable, partition.sealed,
         partition.shipped, partition.settled, partition.tail_records, partition.segments)
        for topic in status.topics for partition in topic.partitions
    ]  # fmt: skip
    if rows:
        emit("")
        emit_table(_COLUMNS, rows)
    emit_problems(problems)


_COLUMNS = (
    "topic", "partition", "first", "appended", "durable", "sealed", "shipped", "settled", "tail", "segments",
)  # fmt: skip
