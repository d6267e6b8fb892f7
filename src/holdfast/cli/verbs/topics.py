"""`holdfast topics`: the topics of a log, what is in them, and their schemas.

One consistent look at the control rows, taken and checked as `holdfast status` does it. It works while a service owns
the log, and without the key of an encrypted log; then nothing is verified, and the report says so.
"""

from __future__ import annotations

from pathlib import Path

import click
import msgspec

from holdfast import Keyring, Settings
from holdfast.cli.exit_codes import DAMAGED, FINE
from holdfast.cli.inspection import summary
from holdfast.cli.inspection.at_root import Root, log_id_option, place_argument, refuse_log_id
from holdfast.cli.inspection.root_report import tell_topics
from holdfast.cli.inspection.summary import PartitionStatus, TopicStatus
from holdfast.cli.options import NEEDS_KEY, json_option, keyring_option, load_keyring
from holdfast.cli.output import emit_json, emit_problems, emit_table, flush, say, say_holdfast_error
from holdfast.cli.text import short
from holdfast.errors import Corrupt
from holdfast.journal.proving.inspected_database import ControlRows, InspectedDatabase
from holdfast.log_directory import Directory
from holdfast.model.control_rows import SchemaRow, TopicRow
from holdfast.model.record_json import iso

EPILOG = """\b
Examples:
  holdfast topics data
  holdfast topics data --json | jq 'select(.kind == "typed") | .schemas[-1].columns'
Records are those that can be read: retention may have removed those before 'first'."""


class SchemaVersionLine(msgspec.Struct, frozen=True):
    """One version of a typed topic's schema; `columns` maps names to Arrow types."""

    version: int
    fingerprint: str
    """12 digits."""
    created: str | None
    """When it began."""
    columns: dict[str, str]
    """Names and Arrow types."""


class RetentionPolicy(msgspec.Struct, frozen=True):
    """A topic's own retention policy; None is no limit."""

    bytes_max: int | None
    """Null is no limit, of each."""
    age_max_us: int | None
    records_max: int | None


class TopicEntryLine(msgspec.Struct, frozen=True):
    """A topic."""

    topic: str
    """Its name."""
    kind: str
    """`raw`, `typed`, or of raw records with a codec its name."""
    created: str | None
    """When it was created."""
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
    partitions: list[PartitionStatus]
    """One by one."""
    schemas: list[SchemaVersionLine]
    """Of a typed topic, the oldest first."""
    retention: RetentionPolicy | None
    """The topic's own policy; null where the settings hold."""


@click.command("topics", epilog=EPILOG)
@place_argument
@log_id_option
@keyring_option
@json_option
def topics_command(place: Path | Root, log_id: str, reference: str | None, as_json: bool) -> int:
    """List the topics of the log in DIR, or of the store at URL: kind, records, marks, segments, schemas."""
    settings = Settings.load()
    if isinstance(place, Root):
        return tell_topics(place, place.options(reference, log_id, settings), as_json=as_json)
    refuse_log_id(place, log_id)
    return _topics_of(Directory(place.absolute()), load_keyring(reference, settings), as_json=as_json)


def _topics_of(place: Directory, keyring: Keyring | None, *, as_json: bool) -> int:
    log_id = place.require_log()
    problems: list[Corrupt] = []
    with InspectedDatabase.open(place.database) as database:
        inspection = database.examine(log_id, keyring, problems)
        control = inspection.control
        found = summary.topics(control, database.bytes_of(control))
    rows = {topic.id: topic for topic in control.topics}
    lines = [_line(rows[topic_id], status, control, problems) for topic_id, status in found.items()]
    _tell(lines, problems, as_json=as_json)
    if inspection.keyless:
        say(f"note: the log is encrypted and there is no key: nothing was verified; {NEEDS_KEY}")
    flush()
    return DAMAGED if problems else FINE


def _line(row: TopicRow, status: TopicStatus, control: ControlRows, problems: list[Corrupt]) -> TopicEntryLine:
    own = status.partitions
    return TopicEntryLine(
        topic=row.name,
        kind=status.kind,
        created=iso(row.created_us),
        records=sum(partition.records for partition in own),
        tail_records=sum(partition.tail_records for partition in own),
        tail_bytes=sum(partition.tail_bytes for partition in own),
        segments=sum(partition.segments for partition in own),
        segment_bytes=sum(partition.segment_bytes for partition in own),
        partitions=own,
        schemas=[_version(schema, row.name, problems) for schema in control.schemas if schema.topic_id == row.id],
        retention=next(
            (
                RetentionPolicy(policy.bytes_max or None, policy.age_max_us or None, policy.records_max or None)
                for policy in control.policies
                if policy.topic_id == row.id
            ),
            None,
        ),
    )


def _version(row: SchemaRow, topic: str, problems: list[Corrupt]) -> SchemaVersionLine:
    from holdfast.model.schema import TopicSchema

    columns: dict[str, str] = {}
    try:
        columns = {column.name: str(column.type) for column in TopicSchema.parse(row.definition).declared}
    except Corrupt as damage:
        problems.append(Corrupt(f"{damage.message} version={row.version}", topic=topic))
    return SchemaVersionLine(row.version, short(row.fingerprint), iso(row.created_us), columns)


def _tell(lines: list[TopicEntryLine], problems: list[Corrupt], *, as_json: bool) -> None:
    if as_json:
        for line in lines:
            emit_json(line)
        for damage in problems:
            say_holdfast_error(damage, as_json=True)
        return
    if not lines:
        say("no topics")
    else:
        rows = [_cells(line, partition) for line in lines for partition in line.partitions]
        emit_table(_COLUMNS, rows)
    emit_problems(problems)


_COLUMNS = (
    "topic", "kind", "partition", "records", "first", "durable", "sealed", "shipped", "settled", "segments",
    "bytes", "tail", "schema",
)  # fmt: skip


def _cells(line: TopicEntryLine, partition: PartitionStatus) -> tuple[object, ...]:
    version = line.schemas[-1].version if line.schemas else None
    return (
        line.topic,
        line.kind,
        partition.partition,
        partition.records,
        partition.first,
        partition.durable,
        partition.sealed,
        partition.shown_shipped,
        partition.settled,
        partition.segments,
        partition.segment_bytes,
        partition.tail_bytes,
        version,
    )
