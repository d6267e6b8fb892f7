"""`holdfast inspect`: a log's files as text, for whoever debugs the format or looks at damage.

It prints what is stored and whether it can be proved, and goes on after damage (exit code 3 at the end).
Salts, nonces, keys, bodies and hashes of idempotency keys are never printed; payloads, keys and headers of
records only with `--reveal`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TypeVar

import click
import msgspec

from holdfast import Settings, disk
from holdfast.cli.exit_codes import DAMAGED, FINE
from holdfast.cli.inspection import inspect_lines
from holdfast.cli.inspection.control_tables import Glance, database, glance
from holdfast.cli.inspection.examination import Examination, Examined
from holdfast.cli.options import NEEDS_KEY, json_option, keyring_option, load_keyring
from holdfast.cli.output import BAD, OK, emit, emit_facts, emit_json, emit_problems, emit_table, flush, say
from holdfast.errors import Corrupt, Invalid, NotFound
from holdfast.log.topics.topic_partitions import no_topic
from holdfast.log_directory import Directory

_PAGE_LINES = 500
_ENTRIES_MAX = 2**32
_FORMAT = "FORMAT"

Row = TypeVar("Row")

EPILOG = """\b
Checks: ok, BAD, or unchecked (encrypted and no key, or behind other damage).
Digests and links are checked without a key; stamps and bodies need it when the log is encrypted.
Example:
  holdfast inspect data --topic orders --entries 5 --records"""


def _count(_ctx: click.Context, _option: click.Parameter, value: str) -> int | None:
    if value == "all":
        return None
    if not value.isdecimal() or int(value) > _ENTRIES_MAX:
        raise click.BadParameter("give a number or 'all'")
    return int(value)


@click.command("inspect", epilog=EPILOG)
@click.argument("path", metavar="PATH", type=click.Path(path_type=Path))
@click.option(
    "--entries", "newest", metavar="N", default="20", show_default=True, callback=_count,
    help="Newest entries, epochs, key epochs and segments of each partition to show and check; a number or 'all'.",
)  # fmt: skip
@click.option("--topic", help="Topics, heads, shipments, segments and entries of this topic only.")
@click.option("--records", is_flag=True, help="List the records in each entry: offset, time, sizes.")
@click.option("--reveal", is_flag=True, help="List records with their payloads, keys and headers.")
@keyring_option
@json_option
def inspect_command(
    path: Path,
    newest: int | None,
    topic: str | None,
    records: bool,
    reveal: bool,
    reference: str | None,
    as_json: bool,
) -> int:
    """Print what is in a log and whether it is intact; PATH is its directory or its durable.db."""
    settings = Settings.load()
    keyring = load_keyring(reference, settings)
    inspection = _Inspection(as_json, newest, topic, records or reveal, reveal, settings.journal.entry_bytes_max)
    place, file = _find(path.absolute())
    format_id = inspection.show_format(place)
    try:
        if not file.exists():
            raise Corrupt("the log's database is gone", path=str(file))
        with database(file) as backend:
            seen = glance(backend, newest)
            examination = Examination(backend, seen, format_id, keyring, inspection.problems)
            inspection.show(seen, examination)
    except Corrupt as error:
        inspection.problems.append(error)
    inspection.show_problems()
    flush()
    return DAMAGED if inspection.problems else FINE


def _find(path: Path) -> tuple[Directory | None, Path]:
    """The log's directory and its database, given either; a copy of a database has no directory."""
    place = Directory(path if path.is_dir() else path.parent)
    if path.is_dir() and (place.database.exists() or (path / _FORMAT).exists()):
        return place, place.database
    if not path.is_file():
        raise NotFound(f"there is no log path={path}", hint="give a log's directory, or its durable.db")
    return place if path == place.database else None, path


class _Inspection:
    """Prints the parts of a log in order and gathers what is damaged."""

    def __init__(
        self, as_json: bool, newest: int | None, topic: str | None, records: bool, reveal: bool, bytes_max: int
    ) -> None:
        self._as_json = as_json
        self._newest = newest
        self._topic = topic
        self._records = records
        self._reveal = reveal
        self._bytes_max = bytes_max
        self.problems: list[Corrupt] = []

    def show_format(self, place: Directory | None) -> bytes | None:
        """The file FORMAT; returns the log's id if it can be read."""
        if place is None or not (file := place.path / _FORMAT).exists():
            self._facts(_FORMAT, inspect_lines.FormatLine(None, None, "absent"))
            return None
        try:
            log_id, check = place.log_id(), OK
        except Corrupt as error:
            log_id, check = None, BAD
            self.problems.append(error)
        text = _first_line(file)
        self._facts(_FORMAT, inspect_lines.FormatLine(text, None if log_id is None else log_id.hex(), check))
        return log_id

    def show(self, seen: Glance, examination: Examination) -> None:
        """The database."""
        if self._records and examination.keyless:
            raise Invalid("this log is encrypted; its records cannot be listed without the key", hint=NEEDS_KEY)
        if self._reveal:
            say("warning: payloads, keys and headers follow in the clear")
        if examination.keyless:
            say(f"note: the log is encrypted and there is no key: stamps and bodies are unchecked; {NEEDS_KEY}")
        chosen = self._chosen(seen)
        if seen.log is not None:
            self._facts("log", inspect_lines.log_line(seen.log, seen.version, seen.idempotency_keys, examination))
        self._table("epochs", (inspect_lines.epoch_line(row, examination) for row in self._newest_of(seen.epochs)))
        self._table(
            "key epochs", (inspect_lines.key_epoch_line(row, examination) for row in self._newest_of(seen.key_epochs))
        )
        self._table("topics", (inspect_lines.topic_line(row, examination) for row in seen.topics if row.id in chosen))
        heads = [row for row in seen.heads if row.topic_id in chosen or self._topic is None]
        schemas = [row for row in seen.schemas if row.topic_id in chosen or self._topic is None]
        policies = [row for row in seen.policies if row.topic_id in chosen or self._topic is None]
        self._table("schemas", (inspect_lines.schema_line(row, examination) for row in schemas))
        self._table("policies", (inspect_lines.policy_line(row, examination) for row in policies))
        self._table("heads", (inspect_lines.head_line(row, examination) for row in heads))
        ours = {row.partition_id for row in heads}
        marks = [row for row in seen.watermarks.values() if row.partition_id in ours or self._topic is None]
        self._table("watermarks", (inspect_lines.watermark_line(row, examination) for row in marks))
        if seen.shipping is not None:
            self._facts("shipping", inspect_lines.shipping_line(seen.shipping, examination))
        shipments = [row for row in examination.stored_shipments() if row.partition_id in ours or self._topic is None]
        self._table("shipments", (inspect_lines.shipment_line(row, examination) for row in shipments))
        segments = examination.segments(self._newest, [row.partition_id for row in marks])
        self._table("segments", map(inspect_lines.segment_line, segments))
        partitions = None if self._topic is None else [row.partition_id for row in heads]
        self._show_entries(examination, examination.entries(self._newest, partitions, self._bytes_max))

    def show_problems(self) -> None:
        """What is damaged."""
        if self._as_json:
            for found in self.problems:
                emit_json(inspect_lines.problem_line(found))
        else:
            emit_problems(self.problems)

    def _newest_of(self, rows: list[Row]) -> list[Row]:
        return rows if self._newest is None else rows[max(0, len(rows) - self._newest) :]

    def _chosen(self, seen: Glance) -> set[int]:
        chosen = {row.id for row in seen.topics if self._topic in {None, row.name}}
        if self._topic is not None and not chosen:
            raise no_topic(self._topic, [row.name for row in seen.topics])
        return chosen

    def _show_entries(self, examination: Examination, entries: Iterator[Examined]) -> None:
        if not self._records:
            self._table("entries", map(inspect_lines.entry_line, entries))
            return
        for examined in entries:
            self._table(f"entry {examined.stored.entry.seq}", [inspect_lines.entry_line(examined)])
            self._table(f"records of entry {examined.stored.entry.seq}", self._contents(examined, examination))

    def _contents(self, examined: Examined, examination: Examination) -> Iterator[inspect_lines.Line]:
        """The records or rows of an entry."""
        first, partition = examined.stored.entry.first, examined.partition
        if partition is None:
            return iter(())
        if examined.rows is not None:
            return inspect_lines.row_lines(first, partition, examined.rows, reveal=self._reveal)
        if examined.columns is None:
            return iter(())
        if self._reveal:
            return inspect_lines.revealed_lines(first, partition, examined.columns, examination.problems)
        return inspect_lines.size_lines(first, partition, examined.columns)

    # -- one part -----------------------------------------------------------------------------------------

    def _facts(self, title: str, line: inspect_lines.Line) -> None:
        if self._as_json:
            emit_json(line)
        else:
            if title != _FORMAT:
                emit("")
            emit(f"-- {title}")
            emit_facts(list(zip(line.__struct_fields__, _values(line), strict=True)))

    def _table(self, title: str, rows: Iterable[inspect_lines.Line]) -> None:
        """Rows of one kind; a long table is printed page by page, so that none is held in memory."""
        remaining = iter(rows)
        while page := list(islice(remaining, _PAGE_LINES)):
            if self._as_json:
                for line in page:
                    emit_json(line)
            else:
                emit("")
                emit(f"-- {title}")
                emit_table(page[0].__struct_fields__, [_values(line) for line in page])


def _values(line: inspect_lines.Line) -> Sequence[object]:
    return [None if value is msgspec.UNSET else value for value in msgspec.structs.astuple(line)]


def _first_line(file: Path) -> str:
    """What FORMAT begins with, if it is a file, and a small one."""
    try:
        return disk.read_file(file, 4096).decode("ascii", "replace").partition("\n")[0][:80]
    except (OSError, disk.NotRegular, disk.TooLong):
        return ""
