"""`holdfast inspect`: a log's files as text, for debugging the format and looking at damage.

It prints what is stored and whether it can be proved, and goes on after damage (exit code 3 at the end).
Salts, nonces, keys, bodies and hashes of idempotency keys are never printed; payloads, keys and headers of
records only with `--reveal`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby, islice
from pathlib import Path

import click
import msgspec

from holdfast import Settings, disk
from holdfast.cli.exit_codes import DAMAGED, FINE
from holdfast.cli.inspection import inspect_lines, line_types
from holdfast.cli.inspection.own_tables import own_tables
from holdfast.cli.inspection.typed_entries import typed_decoder
from holdfast.cli.options import NEEDS_KEY, json_option, keyring_option, load_keyring
from holdfast.cli.output import emit, emit_facts, emit_json, emit_problems, emit_table, flush, say
from holdfast.crypto.vault import KeyEpoch
from holdfast.errors import Corrupt, Invalid, NotFound
from holdfast.journal.proving.inspected_database import BAD, OK, InspectedDatabase, Inspection
from holdfast.log.topics.topic_partitions import no_topic
from holdfast.log_directory import Directory
from holdfast.model.control_rows import EpochRow, LogRow, ShipmentRow, ShippingRow, TopicRow, WatermarkRow

_PAGE_LINES = 500
_ENTRIES_MAX = 2**32
_FORMAT = "FORMAT"

EPILOG = """\b
Checks: ok, BAD, or unchecked (encrypted and no key, or after other damage).
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
    "--entries",
    "newest",
    metavar="N",
    default="20",
    show_default=True,
    callback=_count,
    help="Newest entries, epochs, key epochs and segments of each partition to show and check; a number or 'all'.",
)
@click.option("--topic", help="Topics, heads, shipments, segments and entries of this topic only.")
@click.option("--records", is_flag=True, help="List the records in each entry: offset, time, sizes.")
@click.option("--reveal", is_flag=True, help="List records with their payloads, keys and headers; warns first.")
@keyring_option
@json_option
def inspect_command(
    path: Path, newest: int | None, topic: str | None, records: bool, reveal: bool, reference: str | None, as_json: bool
) -> int:
    """Print what is in a log and whether it is intact; PATH is its directory or its durable.db."""
    settings = Settings.load()
    keyring = load_keyring(reference, settings)
    report = _Report(as_json, newest, topic, records or reveal, reveal, settings.journal.entry_bytes_max)
    place, file = _find(path.absolute())
    format_id = report.show_format(place)
    try:
        if not file.exists():
            raise Corrupt("the log's database is gone", path=str(file))
        with InspectedDatabase.open(file) as database:
            report.show(database.examine(format_id, keyring, report.problems, newest))
        report.show_tables(place)
    except Corrupt as error:
        report.problems.append(error)
    report.show_problems()
    flush()
    return DAMAGED if report.problems else FINE


def _find(path: Path) -> tuple[Directory | None, Path]:
    """The log's directory and its database, given either one; a copy of a database has no directory."""
    place = Directory(path if path.is_dir() else path.parent)
    if path.is_dir() and (place.database.exists() or (path / _FORMAT).exists()):
        return place, place.database
    if not path.is_file():
        raise NotFound(f"there is no log path={path}", hint="give a log's directory, or its durable.db")
    return place if path == place.database else None, path


class _Report:
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
            self._facts(_FORMAT, line_types.FormatLine(None, None, "absent"))
            return None
        try:
            log_id, check = place.log_id(), OK
        except Corrupt as error:
            log_id, check = None, BAD
            self.problems.append(error)
        text = _first_line(file)
        self._facts(_FORMAT, line_types.FormatLine(text, None if log_id is None else log_id.hex(), check))
        return log_id

    def show(self, found: Inspection) -> None:
        """The database."""
        if self._records and found.keyless:
            raise Invalid("this log is encrypted; its records cannot be listed without the key", hint=NEEDS_KEY)
        if self._reveal:
            say("warning: payloads, keys and headers follow in the clear")
        if found.keyless:
            say(f"note: the log is encrypted and there is no key: stamps and bodies are unchecked; {NEEDS_KEY}")
        topics = self._chosen(found)
        partitions = {row.partition_id for row in found.control.heads if topics is None or row.topic_id in topics}
        shown = [
            (row, verdict)
            for row, verdict in found.findings
            if type(row) in inspect_lines.CONTROL_LINES and self._is_shown(row, topics, partitions)
        ]
        for kind, rows in groupby(shown, key=lambda one: type(one[0])):
            title, line = inspect_lines.CONTROL_LINES[kind]
            lines = (line(row, verdict, found) for row, verdict in rows)
            if kind in (LogRow, ShippingRow):
                self._facts(title, next(lines))
            else:
                self._table(title, lines)
        sealed = [number for number in found.control.watermarks if topics is None or number in partitions]
        segments = found.segments(self._newest, sealed)
        self._table("segments", (inspect_lines.segment_line(row, verdict, found) for row, verdict in segments))
        self._show_entries(found, None if topics is None else partitions)

    def show_tables(self, place: Directory | None) -> None:
        """The tables that topics are published as, in this directory."""
        found = [] if place is None else [one for one in own_tables(place) if self._topic in (None, one.topic)]
        self.problems += [
            Corrupt(one.reason, topic=one.topic, hint=one.hint) for one in found if one.reason is not None
        ]
        self._table(
            "tables",
            (
                line_types.TableLine(
                    one.topic,
                    "delta",
                    one.version,
                    one.files,
                    one.rows,
                    sum(one.settled.values()),
                    OK if one.reason is None else BAD,
                )
                for one in found
            ),
        )

    def show_problems(self) -> None:
        """What is damaged."""
        if self._as_json:
            for found in self.problems:
                emit_json(inspect_lines.problem_line(found))
        else:
            emit_problems(self.problems)

    def _chosen(self, found: Inspection) -> set[int] | None:
        """The ids of the topics that are wanted; None for every row, also those that belong to no topic."""
        if self._topic is None:
            return None
        chosen = {number for number, name in found.names.items() if name == self._topic}
        if not chosen:
            raise no_topic(self._topic, list(found.names.values()))
        return chosen

    def _is_shown(self, row: object, topics: set[int] | None, partitions: set[int]) -> bool:
        if isinstance(row, (EpochRow, KeyEpoch)):
            return self._newest != 0
        if topics is None:
            return True
        if isinstance(row, TopicRow):
            return row.id in topics
        if isinstance(row, (WatermarkRow, ShipmentRow)):
            return row.partition_id in partitions
        return getattr(row, "topic_id", None) in topics if hasattr(row, "topic_id") else True

    def _show_entries(self, found: Inspection, partitions: set[int] | None) -> None:
        decode = typed_decoder(found.control.schemas)
        entries = found.entries(self._newest, partitions, self._bytes_max, decode)
        if not self._records:
            self._table("entries", (inspect_lines.entry_line(row, verdict, found) for row, verdict in entries))
            return
        for row, verdict in entries:
            self._table(f"entry {row.entry.seq}", [inspect_lines.entry_line(row, verdict, found)])
            lines = inspect_lines.content_lines(row, verdict, found, reveal=self._reveal)
            self._table(f"records of entry {row.entry.seq}", lines)

    # -- one part -----------------------------------------------------------------------------------------

    def _facts(self, title: str, line: line_types.Line) -> None:
        if self._as_json:
            emit_json(line)
        else:
            if title != _FORMAT:
                emit("")
            emit(f"-- {title}")
            emit_facts(list(zip(line.__struct_fields__, _values(line), strict=True)))

    def _table(self, title: str, rows: Iterable[line_types.Line]) -> None:
        """Rows of one kind, page by page, so that a long table is never held in memory."""
        remaining = iter(rows)
        while page := list(islice(remaining, _PAGE_LINES)):
            if self._as_json:
                for line in page:
                    emit_json(line)
            else:
                emit("")
                emit(f"-- {title}")
                emit_table(page[0].__struct_fields__, [_values(line) for line in page])


def _values(line: line_types.Line) -> Sequence[object]:
    return [None if value is msgspec.UNSET else value for value in msgspec.structs.astuple(line)]


def _first_line(file: Path) -> str:
    """The first line of FORMAT, if it is a small, regular file."""
    try:
        return disk.read_file(file, 4096).decode("ascii", "replace").partition("\n")[0][:80]
    except (OSError, disk.NotRegular, disk.TooLong):
        return ""
