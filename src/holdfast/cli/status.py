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
from holdfast.cli.examination import Examination
from holdfast.cli.exits import DAMAGED, FINE
from holdfast.cli.glance import Glance, database, glance
from holdfast.cli.options import NEEDS_KEY, directory_argument, json_option, keyring_option, load_keyring
from holdfast.cli.output import Problem, emit, emit_facts, emit_json, emit_problems, emit_table, flush, problem, say
from holdfast.cli.text import iso
from holdfast.directory import Directory
from holdfast.errors import Corrupt
from holdfast.record import Marks

EPILOG = """\b
Marks, in offsets: everything below them is
  appended  durable, or waiting in the owner's queue (seen from another process: durable)
  durable   on this machine's disk        sealed   in an immutable segment
  shipped   on the object store           settled  acknowledged there, in order"""


class PartitionStatus(msgspec.Struct, frozen=True):
    """How far a partition got."""

    partition: int
    appended: int
    durable: int
    sealed: int
    shipped: int
    settled: int


class TopicStatus(msgspec.Struct, frozen=True):
    """A topic and its partitions."""

    topic: str
    partitions: list[PartitionStatus]


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
    seen, problems, keyless = Glance(place.database), list[Corrupt](), False
    try:
        with database(place.database) as backend:
            seen = glance(backend)
            examination = Examination(backend, seen, log_id, keyring, problems)
            keyless = examination.keyless
            examination.check_rows()
    except Corrupt as error:
        problems.append(error)
    verified = seen.log is not None and not keyless and not seen.problems
    status = _status(place, log_id, seen, problems, verified)
    if as_json:
        emit_json(status)
    else:
        _show(status, problems)
    if keyless:
        say(f"note: the log is encrypted and there is no key: nothing was verified; {NEEDS_KEY}")
    flush()
    return DAMAGED if problems else FINE


def _status(place: Directory, log_id: bytes, seen: Glance, problems: list[Corrupt], verified: bool) -> Status:
    row = seen.log
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
        records=sum(head.next_offset for head in seen.heads),
        topics=_topics(seen),
        problems=[problem(found) for found in problems],
    )


def _topics(seen: Glance) -> list[TopicStatus]:
    partitions: dict[int, list[PartitionStatus]] = {}
    for head in seen.heads:
        marks = Marks(appended=head.next_offset, durable=head.next_offset)
        own = PartitionStatus(head.number, **msgspec.structs.asdict(marks))
        partitions.setdefault(head.topic_id, []).append(own)
    return sorted(
        (TopicStatus(topic.name, partitions.get(topic.id, [])) for topic in seen.topics), key=lambda topic: topic.topic
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
        ]
    )
    rows = [
        (topic.topic, *msgspec.structs.astuple(partition)) for topic in status.topics for partition in topic.partitions
    ]
    if rows:
        emit("")
        emit_table(("topic", "partition", "appended", "durable", "sealed", "shipped", "settled"), rows)
    emit_problems(problems)
