"""Tables of executions say what their journals say: events, steps, executions, and which of them are stuck."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args
from uuid import UUID

import msgspec
import pyarrow as pa
import pytest

import holdfast
from holdfast import Invalid, Keyring, Log, Record
from holdfast.execution.journal.entries import (
    Administered,
    AmbiguityResolved,
    AttemptFailed,
    EffectIntent,
    Entry,
    Heartbeat,
    PromiseCreated,
    PromiseResolved,
    StepResult,
    TimerArmed,
    encode_block,
)
from holdfast.execution.journal.live_execution import LiveExecution
from holdfast.log.topics.topic import Topic
from holdfast.testing import ManualClock, run_table
from pyspark_holdfast.pipeline.builtin import (
    execution_events,
    execution_runs,
    execution_steps,
    executions,
    stuck_executions,
)
from pyspark_holdfast.pipeline.builtin.execution_events import COLUMNS, rows_of
from tests.spark.test_builtin_tables import load, require_documented, rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

Row = dict[str, Any]
SECRET = b"4111-1111-1111-1111"
PAID, WAITING, SLEEPING, BROKEN = (UUID(int=number) for number in range(1, 5))


class Story:
    """Four executions: one that is done, one that waits, one that sleeps for two hours, and one that broke."""

    def __init__(self, log: Log, clock: ManualClock) -> None:
        self.log, self.clock = log, clock
        self.live = log._executions.room().live
        self.begun = clock.now_us()

    def open(self, execution: UUID, kind: str) -> LiveExecution:
        return self.live.open(execution, kind)

    def write(self, live: LiveExecution, *entries: Entry) -> None:
        live.write(*entries).wait(10)

    def step(self, live: LiveExecution, path: str, seconds: float, effect: str = "idempotent", **more: Any) -> None:
        started = self.clock.now_us()
        self.clock.advance(seconds)
        now = self.clock.now_us()
        self.write(live, StepResult(path, path.encode(), effect, SECRET, now, started, **more))

    def pay(self) -> None:
        live = self.open(PAID, "pay")
        self.step(live, "fetch", 0.25)
        self.write(live, EffectIntent("charge", b"k", "exactly_once_guarded", self.clock.now_us()))
        self.clock.advance(1)
        now = self.clock.now_us()
        self.write(live, AttemptFailed("charge", 1, f"TimeoutError: {SECRET.decode()}", now, now + 1_000_000))
        self.write(live, AmbiguityResolved("charge", b"k", "exactly_once_guarded", "rerun", now))
        self.clock.advance(1)
        self.step(live, "charge", 0.5, "exactly_once_guarded", attempts=2)
        self.step(live, "mail/render#2", 0.125)
        self.end(live, "completed")

    def wait_and_sleep(self) -> None:
        approval = self.open(WAITING, "approve")
        now = self.clock.now_us()
        self.write(approval, PromiseCreated("approval", b"p" * 16, b"h" * 32, now), Heartbeat("approval", SECRET, now))
        nap = self.open(SLEEPING, "nap")
        self.write(nap, TimerArmed("sleep", b"t" * 16, now + 7_200_000_000, now))
        broken = self.open(BROKEN, "broken")
        self.write(broken, TimerArmed("lost", b"l" * 16, now + 60_000_000, now))
        self.step(broken, "load", 0.5, is_error=True)
        self.end(broken, "failed")

    def settle(self) -> None:
        live = self.live.get(WAITING)
        assert live is not None
        self.clock.advance(60)
        now = self.clock.now_us()
        self.write(live, PromiseResolved(b"p" * 16, SECRET, now), Administered("canceled", "by hand", now))
        self.end(live, "canceled")

    def end(self, live: LiveExecution, status: Any) -> None:
        ticket = live.finish(status, b"", "as it was asked")
        assert ticket is not None
        ticket.wait(10)
        self.live.release(live)


def records(log: Log) -> list[Record]:
    return list(log.topic("_executions").read())


def tables_of(spark: SparkSession, root: Path, **options: str) -> tuple[DataFrame, DataFrame, DataFrame]:
    events = execution_events()(load(spark, root, "_executions", **options)).cache()
    return events, execution_steps()(events, events).cache(), execution_runs()(events, events).cache()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def test_a_timeline_of_steps_with_retries_durations_and_what_is_waited_for(
    spark: SparkSession, tmp_path: Path, clock: ManualClock
) -> None:
    """Of an encrypted log. Sizes and types are shown; no payload, and no text of an error, is in any table."""
    keyring = Keyring.generate()
    keyring.save(tmp_path / "keyring")
    with holdfast.open(tmp_path / "log", clock=clock, keyring=keyring) as log:
        story = Story(log, clock)
        story.pay()
        story.wait_and_sleep()
        later = clock.now_us()
        log.seal()
        expected = sum(1 for record in records(log) for _ in rows_of(as_columns(record)))
    events, steps, runs = tables_of(spark, tmp_path / "log", keyring=f"file:{tmp_path / 'keyring'}")
    assert events.count() == expected
    assert events.where("_problem is not null").count() == 0
    for frame in (events, steps, runs):
        require_documented(frame, "executions")
        assert SECRET.decode() not in str(frame.toArrow().to_pylist())
    found = {(UUID(row["execution_id"]), row["path"]): row for row in steps.toArrow().to_pylist()}
    charge = found[PAID, "charge"]
    assert (charge["state"], charge["what"], charge["effect"]) == ("done", "step", "exactly_once_guarded")
    assert (charge["begins_ms"], charge["duration_ms"]) == (250, 2500)
    assert (charge["attempts"], charge["retries"], charge["last_error"]) == (2, 1, "TimeoutError")
    assert (charge["resolution"], charge["bytes"]) == ("rerun", len(SECRET))
    assert [(found[PAID, path]["name"], found[PAID, path]["duration_ms"]) for path in ("fetch", "mail/render#2")] == [
        ("fetch", 250),
        ("render", 125),
    ]
    left = [(path, row["what"], row["state"]) for (_, path), row in sorted(found.items()) if row["state"] != "done"]
    assert left == [
        ("approval", "promise", "waiting"),
        ("sleep", "timer", "waiting"),
        ("load", "step", "failed"),
        ("lost", "timer", "left"),
    ]
    by_id = {UUID(row["execution_id"]): row for row in runs.toArrow().to_pylist()}
    paid = by_id[PAID]
    assert (paid["status"], paid["execution_kind"], paid["note"]) == ("completed", "pay", "as it was asked")
    assert (paid["steps"], paid["retries"], paid["ambiguities"], paid["opened"]) == (3, 1, 1, 1)
    assert (paid["duration_ms"], paid["last_path"], paid["waits_for"]) == (2875, "mail/render#2", None)
    assert by_id[WAITING]["waits_for"] == "promise approval"
    assert (by_id[SLEEPING]["waits_for"], by_id[SLEEPING]["steps"]) == ("timer sleep", 0)
    assert (by_id[BROKEN]["status"], by_id[BROKEN]["steps_failed"]) == ("failed", 1)
    assert (by_id[BROKEN]["waits_for"], by_id[BROKEN]["due_at"]) == (None, None)  # it has ended
    # Stuck: neither the one that sleeps, nor those that have ended.
    now = records_time(later) + timedelta(hours=1)
    assert [UUID(row.execution_id) for row in stuck_executions(runs, "59m", now).collect()] == [WAITING]
    late = stuck_executions(runs, "1h", now + timedelta(hours=2)).collect()
    assert [UUID(row.execution_id) for row in late] == [WAITING, SLEEPING]
    with pytest.raises(Invalid):
        stuck_executions(runs, "soon")


def as_columns(record: Record) -> Row:
    """As Spark has it."""
    return {
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.time,
        "key": record.key,
        "kind": record.kind,
        "value": record.payload,
    }


def records_time(time_us: int) -> Any:
    from datetime import UTC, datetime

    return datetime.fromtimestamp(time_us / 1e6, UTC)


@pytest.mark.full("three runs of a pipeline; the tables of channels have the same in the gate")
def test_executions_in_increments_are_the_executions_in_one_run(
    spark: SparkSession, tmp_path: Path, clock: ManualClock
) -> None:
    """A promise that is settled later, an id that is pruned and used again: corrected by what is new."""
    with holdfast.open(tmp_path / "log", clock=clock) as log:
        story = Story(log, clock)
        story.pay()
        story.wait_and_sleep()
        first = len(records(log))
        story.settle()
        Topic.submit(log.topic("_executions"), b"", key=str(PAID).encode(), kind="pruned").result()
        story.live.store.rows.pop(PAID)  # as if it had never been
        second = len(records(log))
        live = story.open(PAID, "pay")
        story.step(live, "fetch", 3)
        log.seal()
        happened = records(log)
    parts = [{"happened": part} for part in (happened[:first], happened[first:second], happened[second:])]
    beside = [execution_events("happened")]
    _, steps, runs = tables_of(spark, tmp_path / "log")
    found = run_table(execution_runs(), parts[0], then=parts[1:], beside=beside, spark=spark)
    assert found == rows(runs, "execution_id", "reuse")
    paid = [row for row in found if UUID(row["execution_id"]) == PAID]
    assert [(row["reuse"], row["status"], row["pruned_at"] is None) for row in paid] == [
        (0, "completed", False),
        (1, "running", True),
    ]
    approval = next(row for row in rows(steps, "path") if row["path"] == "approval")
    assert (approval["state"], approval["duration_ms"]) == ("done", 60_500)
    assert [one.name for one in executions()] == ["execution_events", "execution_steps", "executions"]


def test_a_record_that_does_not_decode_is_a_row_that_says_so() -> None:
    """An entry of a newer holdfast, and bytes that are none: nothing is left out, and nothing stops the table."""
    newer = msgspec.msgpack.encode([1, PAID.bytes, 0, [[99, "path", 0]]])
    for value in (newer, b"\xc1", b""):
        for kind in ("entries", "status"):
            record = Record(value, key=str(PAID).encode(), kind=kind, time=5, offset=7)
            (row,) = rows_of(as_columns(record))
            assert (row["kind"], row["_offset"], row["bytes"]) == ("unknown", 7, len(value))
            assert row["execution_id"] == str(PAID)
            assert row["_problem"]


@pytest.mark.parametrize("kind", get_args(Entry), ids=lambda kind: kind.__name__)
def test_every_kind_of_entry_has_a_row(kind: type[Any]) -> None:
    """Also those that are added later: what they have in common with others stands in the same columns."""
    values: dict[Any, Any] = {str: "text", bytes: b"bytes", int: 7, bool: True}
    fields = {field.name: values.get(field.type, ()) for field in msgspec.structs.fields(kind)}
    block = encode_block(PAID, 3, [kind(**fields)])
    record = Record(block, key=str(PAID).encode(), kind="entries", time=5, offset=7)
    (row,) = rows_of(as_columns(record))
    assert (row["seq"], row["at"], row["_problem"]) == (3, 7, None)
    assert row["path"] == fields.get("path")
    assert set(row) == set(COLUMNS.names)
    pa.RecordBatch.from_pylist([row], schema=COLUMNS)
