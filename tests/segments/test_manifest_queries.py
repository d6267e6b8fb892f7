"""The manifest is searched, never scanned: by offset, by number, by state, however many segments there are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import apsw
import pytest

from holdfast import Log
from holdfast.journal.groups.group_files import GroupFiles
from holdfast.journal.groups.unfolded_rows import UnfoldedRows
from holdfast.journal.sqlite.stored_rows import StoredRows
from holdfast.model.control_rows import EXPIRED, EXPIRING, LOST

pytestmark = pytest.mark.disk

Look = Callable[[StoredRows], object]

LOOKS: dict[str, Look] = {
    "by number": lambda rows: rows.segment(1, 7),
    "by offset": lambda rows: rows.segment_holding(1, 70),
    "a page": lambda rows: rows.segments(1, 5, 9),
    "expiring": lambda rows: rows.segments_in_state(EXPIRING),
    "expired": lambda rows: rows.segments_in_state(EXPIRED),
    "lost": lambda rows: rows.segments_in_state(LOST),
    "the tail's bytes": lambda rows: rows.tail_bytes(1, 0, 10),
    "what is to be trimmed": lambda rows: rows.entries_below(1, 10, 64),
}


@pytest.mark.parametrize("look", LOOKS)
def test_no_question_to_the_manifest_scans_a_table(open_log: Callable[..., Log], look: str) -> None:
    log = open_log()
    connection = apsw.Connection(str(log.path / "durable.db"), flags=apsw.SQLITE_OPEN_READONLY)
    asked: list[tuple[str, Any]] = []

    def note(cursor: apsw.Cursor, sql: str, bindings: Any) -> bool:
        asked.append((sql, bindings))
        return True

    connection.exec_trace = note
    LOOKS[look](StoredRows(connection, log.path, GroupFiles(log.path / "durable.db"), UnfoldedRows()))
    connection.exec_trace = None
    assert asked
    for sql, bindings in asked:
        steps = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {sql}", bindings)]
        scans = [step for step in steps if step.startswith("SCAN") and "(subquery" not in step]
        assert not scans, (sql, steps)
    connection.close()


def test_a_time_is_found_without_reading_all_rows(
    open_log: Callable[..., Log], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sixty segments, one hour each: a window of one hour needs a handful of rows."""
    log = open_log(segments={"seal_on_close": False})
    topic = log.topic("hours")
    start, hour = 1_700_000_000_000_000, 3_600_000_000
    for number in range(60):
        topic.append(b"x", time=start + number * hour)
        log.seal("hours")
    fetched: list[int] = []
    original = StoredRows.segment

    def counted(rows: StoredRows, partition_id: int, number: int) -> Any:
        fetched.append(number)
        return original(rows, partition_id, number)

    monkeypatch.setattr(StoredRows, "segment", counted)
    found = [record.offset for record in topic.read(since=start + 40 * hour, until=start + 40 * hour)]
    assert found == [40]
    assert len(set(fetched)) < 25
