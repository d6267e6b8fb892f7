"""The verbs of the journal by hand: what is done to an execution, each with its promise."""

from __future__ import annotations

import threading
from uuid import UUID

import pytest

from holdfast import Invalid, Log, NotFound, Unavailable
from holdfast.errors import ExecutionCanceled, ExecutionHeld, UnsupportedEntryKind
from holdfast.execution.journal.entries import (
    Administered,
    EffectIntent,
    Ended,
    Folded,
    Forked,
    Opened,
    PromiseCreated,
    PromiseResolved,
    SignalSent,
    SignalTaken,
    StepResult,
    TimerArmed,
    TimerFired,
)
from holdfast.execution.journal.execution_id import derived_id, fresh_id, given_id
from holdfast.execution.journal.execution_journal import ExecutionJournal
from tests.executions.test_live_journal import result, room_of
from tests.failing_commits import refuse_next_commit

pytestmark = pytest.mark.disk


def journal_of(log: Log) -> ExecutionJournal:
    return log.executions.journal


def opened(log: Log, kind: str = "import", execution: UUID | None = None) -> UUID:
    found = execution or fresh_id(room_of(log).clock)
    journal_of(log).open_execution(found, kind)
    return found


def steps(log: Log, execution: UUID) -> list[str]:
    return [one.entry.path for one in journal_of(log).read_execution(execution) if isinstance(one.entry, StepResult)]


# -- ids ------------------------------------------------------------------------------------------------------


def test_derived_ids_are_the_same_wherever_they_are_derived():
    """A domain and a payload have one id; lengths are framed, so that no two pairs run together."""
    assert derived_id("orders", "42") == derived_id("orders", b"42")
    assert derived_id("orders", "42").version == 8
    assert derived_id("order", "s42") != derived_id("orders", "42")
    assert str(derived_id("orders", "42")) == str(given_id(str(derived_id("orders", "42"))))


def test_fresh_ids_sort_by_time(open_log):
    """UUID version 7."""
    clock = room_of(open_log()).clock
    ids = [fresh_id(clock) for _ in range(3)]
    assert {one.version for one in ids} == {7}
    assert len(set(ids)) == 3


# -- open and end ---------------------------------------------------------------------------------------------


def test_opening_is_fresh_then_resumes(open_log):
    """The first time there is no past; after a restart there is."""
    log = open_log()
    execution = fresh_id(room_of(log).clock)
    assert journal_of(log).open_execution(execution, "import") is False
    journal_of(log).append(execution, result("a"))
    log.close()
    again = open_log()
    assert journal_of(again).open_execution(execution, "import") is True


def test_one_owner_at_a_time(open_log):
    """The second opener learns who holds it; after a release it may."""
    log = open_log()
    execution = opened(log)
    with pytest.raises(ExecutionHeld) as caught:
        opened(log, execution=execution)
    assert caught.value.holder.startswith("thread:MainThread")
    journal_of(log).release(execution)
    opened(log, execution=execution)


def test_two_threads_fight_and_one_wins(open_log):
    """Whoever comes second is told so, however close it is."""
    log = open_log()
    for _ in range(20):
        execution = fresh_id(room_of(log).clock)
        outcomes: list[str] = []
        start = threading.Barrier(4)

        def fight(execution: UUID = execution, start: threading.Barrier = start, out: list[str] = outcomes) -> None:
            start.wait()
            try:
                opened(log, execution=execution)
            except ExecutionHeld:
                out.append("held")
            else:
                out.append("won")

        threads = [threading.Thread(target=fight) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(outcomes) == ["held", "held", "held", "won"]


@pytest.mark.parametrize("status", ["completed", "failed", "aborted"])
def test_opening_it_again_un_finalizes_it(open_log, status):
    """An end is taken back when somebody goes on."""
    log = open_log()
    execution = opened(log)
    assert journal_of(log).finalize(execution, status) is True
    before = room_of(log).store.rows[execution]
    assert before.ended_us
    opened(log, execution=execution)
    row = room_of(log).store.rows[execution]
    assert (row.status, row.ended_us, row.generation) == ("running", 0, before.generation + 1)


def test_one_that_was_canceled_is_never_opened_again(open_log):
    """Not even after a restart."""
    log = open_log()
    execution = opened(log)
    journal_of(log).finalize(execution, "canceled")
    with pytest.raises(ExecutionCanceled):
        opened(log, execution=execution)
    log.close()
    with pytest.raises(ExecutionCanceled):
        opened(open_log(), execution=execution)


def test_the_first_end_sticks(open_log):
    """finalize is one-shot: later ones are silent."""
    log = open_log()
    execution = opened(log)
    assert journal_of(log).finalize(execution, "failed") is True
    assert journal_of(log).finalize(execution, "completed") is False
    assert room_of(log).store.rows[execution].status == "failed"
    with pytest.raises(Invalid):
        journal_of(log).finalize(execution, "running")


def test_a_kind_is_for_good(open_log):
    """An execution is opened under the kind that it began with."""
    log = open_log()
    execution = opened(log, "import")
    journal_of(log).release(execution)
    with pytest.raises(Invalid, match="'import'"):
        opened(log, "export", execution)


# -- append and read ------------------------------------------------------------------------------------------


def test_append_returns_the_number_and_reads_back(open_log):
    """Numbers are dense and go on after a restart; payloads and effects are what they were."""
    log = open_log()
    execution = opened(log)
    intent = EffectIntent("pay", b"k" * 32, "exactly_once_guarded", 5)
    assert journal_of(log).append(execution, intent) == 1  # 0 says that it was opened
    assert journal_of(log).append_batch(execution, [result("a"), result("b")]) == [2, 3]
    assert journal_of(log).last_seq(execution) == 3
    log.close()
    again = open_log()
    opened(again, execution=execution)
    assert journal_of(again).append(execution, result("c", b"third")) == 5
    found = journal_of(again).read_execution(execution)
    assert [one.seq for one in found] == [0, 1, 2, 3, 4, 5]
    assert found[1].entry == intent
    assert found[5].entry == result("c", b"third")


def test_an_unknown_execution_has_no_entries(open_log):
    """Reading it is no error, writing it is."""
    log = open_log()
    unknown = fresh_id(room_of(log).clock)
    assert journal_of(log).read_execution(unknown) == []
    assert journal_of(log).last_seq(unknown) is None
    assert journal_of(log).lookup_committed_result(unknown, bytes(32)) is None
    with pytest.raises(NotFound):
        journal_of(log).append(unknown, result("a"))
    with pytest.raises(NotFound):
        journal_of(log).finalize(unknown, "completed")
    with pytest.raises(NotFound):
        journal_of(log).fold(unknown)


def test_kinds_with_a_verb_of_their_own_fail_closed(open_log):
    """promise_and_timer_entries_fail_closed: nothing of the batch is written."""
    log = open_log()
    execution = opened(log)
    refused = [
        PromiseCreated("p", bytes(16), bytes(32), 1),
        PromiseResolved(bytes(16), b"", 1),
        TimerArmed("t", bytes(16), 1, 1),
        TimerFired("t", bytes(16), 1),
        Folded(1, 1, (), 1),
        SignalSent("s", b"", b"", 1),
        SignalTaken("s", b"", 1),
        Opened(1, 1),
        Ended("completed", b"", 1),
        Administered("x", "", 1),
        Forked(bytes(16), 1),
    ]
    for entry in refused:
        with pytest.raises(UnsupportedEntryKind, match=type(entry).__name__):
            journal_of(log).append_batch(execution, [result("a"), entry])
    assert journal_of(log).last_seq(execution) == 0


def test_a_step_has_one_result(open_log):
    """A second result poisons nothing; the first one counts, and its number is returned."""
    log = open_log()
    execution = opened(log)
    assert journal_of(log).append(execution, result("a", b"first")) == 1
    assert journal_of(log).append_batch(execution, [result("b"), result("a", b"second")]) == [2, 1]
    assert steps(log, execution) == ["a", "b"]
    with pytest.raises(Invalid, match="one result"):
        journal_of(log).append_batch(execution, [result("c"), result("c")])


def test_a_batch_is_all_or_nothing(open_log, monkeypatch):
    """A refused commit leaves nothing of it, and the execution is gone on with after it is opened again."""
    log = open_log()
    execution = opened(log)
    refuse_next_commit(log, monkeypatch, Unavailable("the disk is full"))
    with pytest.raises(Unavailable):
        journal_of(log).append_batch(execution, [result("a"), result("b")])
    assert steps(log, execution) == []
    journal_of(log).release(execution)
    opened(log, execution=execution)
    journal_of(log).append_batch(execution, [result("a"), result("b")])
    assert steps(log, execution) == ["a", "b"]


def test_a_batch_is_bounded_and_what_is_taken_can_be_read(open_log):
    """Many large entries at once: taken as long as the topic can give them back, refused beyond, before anything."""
    log = open_log()
    execution = opened(log)
    taken = [result(str(number), bytes(1_000_000)) for number in range(15)]
    journal_of(log).append_batch(execution, taken)
    with pytest.raises(Invalid, match="one commit"):
        journal_of(log).append_batch(execution, [result(f"x{number}", bytes(1_000_000)) for number in range(20)])
    assert len(steps(log, execution)) == 15
    assert sum(len(record.payload) for record in log.topic("_executions").read()) > 15_000_000


def test_a_range_is_bounded_by_steps_and_by_a_limit(open_log):
    """read_execution_range: from a step on, by step and number."""
    log = open_log()
    execution = opened(log)
    journal = journal_of(log)
    journal.append(execution, EffectIntent("0", b"k" * 32, "exactly_once_guarded", 1))
    for number in range(1, 10):
        journal.append(execution, result(str(number)))
    journal.append(execution, result("0"))
    assert [one.entry.path for one in journal.read_execution_range(execution, 0, 3)] == ["0", "0", "1"]
    assert [one.entry.path for one in journal.read_execution_range(execution, 7)] == ["7", "8", "9"]
    assert [one.entry.path for one in journal.read_execution_range(execution, "8", 1)] == ["8"]
    assert journal.read_execution_range(execution, 10) == journal.read_execution_range(execution, "gone") == []


def test_a_committed_result_is_found_by_its_key(open_log):
    """Hit and miss, also after a fold."""
    log = open_log()
    execution = opened(log)
    journal = journal_of(log)
    journal.append(execution, result("a", b"1"))
    journal.append(execution, result("b", b"2"))
    key = result("a").key
    assert journal.lookup_committed_result(execution, key).payload == b"1"
    assert journal.lookup_committed_result(execution, bytes(32)) is None
    assert journal.fold(execution)
    assert journal.lookup_committed_result(execution, key).payload == b"1"


def test_what_is_redacted_shows_no_payload(open_log):
    """Kinds, paths, sizes and the beginning of keys."""
    log = open_log()
    execution = opened(log)
    journal_of(log).append(execution, result("a", b"SECRET-PAYLOAD"))
    shown = journal_of(log).read_redacted(execution)
    assert "SECRET" not in repr(shown)
    assert (shown[1].kind, shown[1].path, shown[1].payload_bytes) == ("StepResult", "a", 14)
    assert shown[1].key == result("a").key[:8].hex()


def test_listing_filters_and_is_bounded(open_log):
    """Newest first; by status, by kind, up to a limit."""
    log = open_log()
    first, second, third = opened(log, "import"), opened(log, "export"), opened(log, "import")
    journal_of(log).finalize(second, "failed")
    listed = journal_of(log).list_executions
    assert [row.execution for row in listed()] == [third, second, first]
    assert [row.execution for row in listed(kind="import", limit=1)] == [third]
    assert [row.execution for row in listed(status="failed")] == [second]
    with pytest.raises(Invalid):
        listed(status="unheard-of")


def test_everything_flows_into_the_topic_in_the_same_commit(open_log):
    """Entries, rows and what was pruned are records of `_executions`, keyed by the execution."""
    log = open_log()
    execution = opened(log)
    journal_of(log).append(execution, result("a"))
    journal_of(log).finalize(execution, "completed")
    records = list(log.topic("_executions").read())
    assert {record.key for record in records} == {str(execution).encode()}
    assert [record.kind for record in records] == ["entries", "status", "entries", "entries", "status"]
