"""Executions that are looked at, started and changed by hand: who wins, what is kept, what is known afterwards."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

import holdfast
from holdfast import Invalid, Log, NotFound, Unavailable
from holdfast.errors import ExecutionCanceled, ExecutionHeld
from holdfast.execution.execution_room import ExecutionRoom
from holdfast.execution.journal.entries import (
    AmbiguityResolved,
    AttemptFailed,
    EffectIntent,
    PromiseCreated,
    PromiseResolved,
    SignalSent,
    StepResult,
    TimerArmed,
)
from holdfast.execution.journal.execution_id import derived_id, fresh_id
from holdfast.execution.journal.live_execution import LiveExecution
from holdfast.execution.work.requests import apply

pytestmark = pytest.mark.disk

GUARDED = "exactly_once_guarded"


def room_of(log: Log) -> ExecutionRoom:
    return log._executions.room()


def begin(log: Log, kind: str = "import") -> LiveExecution:
    room = room_of(log)
    return room.live.open(fresh_id(room.clock), kind)


def step(live: LiveExecution, name: str, effect: str = "idempotent") -> str:
    path = live.place(name)
    live.write(StepResult(path, live.key(path, effect, b"argument"), effect, b"\xa5value", live.clock.now_us()))
    return path


def end(log: Log, live: LiveExecution, status: str = "completed") -> UUID:
    ticket = live.finish(status, b"\xa4done")  # type: ignore[arg-type]
    assert ticket is not None
    ticket.result()
    room_of(log).live.release(live)
    return live.id


def paths(log: Log, execution: UUID) -> list[str]:
    return [one.path for one in log.executions.show(execution).steps]


def events(log: Log, execution: UUID) -> list[str]:
    return [one.what for one in log.executions.show(execution).events]


# -- looking --------------------------------------------------------------------------------------------------


def test_looking_makes_nothing(open_log):
    """A log that nobody ran an execution in has none afterwards, and no topic for them."""
    log = open_log()
    assert log.executions.list() == []
    with pytest.raises(NotFound):
        log.executions.show(derived_id("a", "b"))
    assert "_executions" not in log.topics()


@pytest.mark.parametrize("status", ["completed", "failed", "aborted"])
def test_what_has_ended_waits_for_nothing_and_tries_nothing_again(open_log, status):
    """While it runs its timer waits and its step is tried again; then neither, and nothing of it is due."""
    log = open_log()
    live = begin(log)
    now = live.clock.now_us()
    live.write(TimerArmed(live.place("sleep"), bytes(16), now + 10**9, now))
    live.write(AttemptFailed(live.place("fetch"), 1, "error", now, now + 10**9)).result()

    def seen() -> list[tuple[str, bool]]:
        details = log.executions.show(live.id)
        return [(step.state, bool(step.due_us)) for step in details.steps]

    assert seen() == [("waiting", True), ("retrying", True)]
    end(log, live, status)
    assert seen() == [("left", False), ("failed", False)]
    assert log.executions.summary(live.id).due_us == 0


def test_executions_are_listed_newest_first_and_by_status_and_kind(open_log):
    """What is asked for is what is listed; unknown words are refused."""
    log = open_log()
    first, second = log.executions.start("a"), log.executions.start("b")
    log.executions.cancel(first)
    assert [one.id for one in log.executions.list()] == [second, first]
    assert [one.id for one in log.executions.list(status="canceled")] == [first]
    assert [one.id for one in log.executions.list(status=["queued", "canceled"], kind="b")] == [second]
    assert len(log.executions.list(limit=1)) == 1
    for wrong in ({"status": "done"}, {"limit": 0}):
        with pytest.raises(Invalid):
            log.executions.list(**wrong)


def test_payloads_are_shown_only_to_those_who_ask(open_log):
    """Arguments, results and ends are hidden by default."""
    log = open_log()
    started = log.executions.start("a", "secret", word="secret")
    live = begin(log)
    step(live, "charge")
    ended = end(log, live)
    for execution in (started, ended):
        assert "secret" not in repr(log.executions.show(execution))
        assert "value" not in repr(log.executions.show(execution).steps).replace("value=UNSET", "")
    assert log.executions.show(started, reveal=True).input == [["secret"], {"word": "secret"}]
    shown = log.executions.show(ended, reveal=True)
    assert (shown.steps[0].value, shown.result) == ("value", "done")


def test_a_log_that_another_handle_reads_shows_what_is_durable(open_log, tmp_path):
    """Looking works beside the owner; changes are made by it."""
    log = open_log()
    started = log.executions.start("a")
    with holdfast.open(tmp_path / "log", read_only=True) as reader:
        assert reader.executions.list()[0].id == started
        assert reader.executions.show(started).summary.status == "queued"
        asked = reader.executions.start("b", "word", id=derived_id("a", "b"))
        assert log.executions.show(asked, reveal=True).input == [["word"], {}]
        assert reader.executions.cancel(started) == "canceled"
        assert log.executions.summary(started).status == "canceled"
        assert reader.executions.summary(started).status == "canceled"
        with pytest.raises(ExecutionCanceled):
            reader.executions.result(started, timeout=1)
        log.close()
        with pytest.raises(Unavailable, match="nobody owns"):
            reader.executions.cancel(asked)


# -- starting -------------------------------------------------------------------------------------------------


def test_starting_twice_is_starting_once(open_log):
    """The id stands for the work: the same again is no second one, and something else under it is refused."""
    log = open_log()
    mine = derived_id("order", "42")
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: log.executions.start("import", 1, id=mine), range(16)))
    assert set(found) == {mine}
    assert len(log.executions.list()) == 1
    for other in (("import", 2), ("export", 1)):
        with pytest.raises(Invalid, match="another kind or other arguments"):
            log.executions.start(*other, id=mine)


@pytest.mark.parametrize(
    "options",
    [
        {"not_before": "tomorrow"},
        {"priority": 2**40},
        {"priority": "high"},
        {"queue": ""},
        {"id": "no uuid"},
        {"argument": object()},
        {"argument": b"x" * 2_000_000},
    ],
)
def test_what_cannot_be_started_is_refused_before_anything_is_written(open_log, options):
    """Bad arguments leave nothing behind."""
    log = open_log()
    with pytest.raises(Invalid) as refused:
        log.executions.start("import", **options)
    assert refused.value.hint
    assert log.executions.list() == []


def test_started_executions_are_still_there_after_a_crash(open_log, tmp_path):
    """What start() returned is durable, with its arguments, queue and time."""
    due = datetime.now(UTC) + timedelta(days=1)
    log = open_log()
    started = log.executions.start("import", {"a": [1]}, queue="night", priority=7, not_before=due)
    log.close()
    row = room_of(open_log()).store.rows[started]
    assert (row.queue, row.priority, row.due_us) == ("night", 7, int(due.timestamp() * 1e6))


# -- its end --------------------------------------------------------------------------------------------------


def test_canceling_races_with_the_end_and_the_first_one_counts(open_log):
    """However the race goes: one end, the same for all who ask, and it is what is stored."""
    log = open_log()
    for _ in range(40):
        live = begin(log)
        both = threading.Barrier(2)

        def finish(live=live, both=both):
            both.wait()
            ticket = live.finish("completed", b"\xc0")
            if ticket is not None:
                ticket.result()

        program = threading.Thread(target=finish)
        program.start()
        both.wait()
        outcome = log.executions.cancel(live.id)
        program.join()
        room_of(log).live.release(live)
        assert outcome in ("canceled", "completed")
        assert log.executions.summary(live.id).status == outcome
        ends = [what for what in events(log, live.id) if what in ("completed", "canceled")]
        assert set(ends) == {outcome}
        assert log.executions.cancel(live.id) == outcome  # and stays


def test_a_canceled_program_hears_of_it_and_its_execution_never_goes_on(open_log):
    """Cancel ends the execution at once, tells the program, and leaves its reason."""
    log = open_log()
    live = begin(log)
    assert log.executions.cancel(live.id, "no longer wanted") == "canceled"
    with pytest.raises(ExecutionCanceled, match="no longer wanted"):
        live.check()
    assert live.finish("completed") is None
    room_of(log).live.release(live)
    assert log.executions.summary(live.id).note == "no longer wanted"
    for again in (lambda: log.executions.resume(live.id), lambda: room_of(log).live.open(live.id, "import")):
        with pytest.raises(ExecutionCanceled):
            again()
    with pytest.raises(ExecutionCanceled):
        log.executions.result(live.id)


def test_a_result_is_waited_for(open_log):
    """result() returns when the end is durable; without an end it says so after its time-out."""
    log = open_log()
    live = begin(log)
    with pytest.raises(Unavailable, match="has not ended"):
        log.executions.result(live.id, timeout=0.01)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(log.executions.result, live.id, 30)
        end(log, live)
        assert waiting.result(30) == "done"
    with pytest.raises(NotFound):
        log.executions.result(derived_id("a", "b"))


# -- another way ----------------------------------------------------------------------------------------------


def test_a_fork_begins_with_its_past_and_leaves_the_original_alone(open_log):
    """Steps before the cut have the original's keys, later ones their own; who asks twice gets the same fork."""
    log = open_log()
    live = begin(log)
    key = live.key(step(live, "fetch"), "idempotent", b"argument")
    for name in ("charge", "notify"):
        step(live, name)
    original = end(log, live)
    before = log.executions.show(original, reveal=True)
    mine = derived_id("fork", "1")
    assert log.executions.fork(original, before="charge", id=mine) == mine
    assert log.executions.fork(original, before="charge", id=mine) == mine
    assert paths(log, mine) == ["fetch"]
    assert log.executions.show(original, reveal=True) == before
    assert log.executions.summary(mine).parent == original
    fork = room_of(log).live.open(mine, "import")
    assert fork.key(fork.place("fetch"), "idempotent", b"argument") == key
    assert fork.key(fork.place("charge"), "idempotent", b"argument") != live.key("charge", "idempotent", b"argument")
    step(fork, "other")
    end(log, fork)
    second = log.executions.fork(mine)  # a fork of a fork: each path keeps the keys that it has
    again = room_of(log).live.open(second, "import")
    assert again.key("fetch", "idempotent", b"argument") == key
    assert again.key("other", "idempotent", b"argument") == fork.key("other", "idempotent", b"argument")
    room_of(log).live.release(again)


def test_a_rewound_execution_is_what_it_was_before_that_step(open_log):
    """Its journal equals that of a run that came just that far; only an audit record tells the rest."""
    log = open_log()
    live, fresh = begin(log), begin(log)
    for name in ("fetch", "charge", "notify"):
        step(live, name)
    end(log, live)
    step(fresh, "fetch")
    room_of(log).live.release(fresh)
    log.executions.rewind(live.id, before="charge")
    assert paths(log, live.id) == paths(log, fresh.id) == ["fetch"]
    assert events(log, live.id) == ["opened", "rewound"]
    log.executions.rewind(live.id, before="charge")  # asked for twice
    assert events(log, live.id) == ["opened", "rewound"]
    log.close()
    log = open_log()
    again = room_of(log).live.open(live.id, "import")
    assert again.look("fetch") is not None
    assert again.look("charge") is None
    step(again, "charge")
    end(log, again)
    assert paths(log, live.id) == ["fetch", "charge"]
    assert log.executions.summary(live.id).generation == 1


def test_guarded_effects_are_not_repeated_by_accident(open_log):
    """Neither a fork nor a rewind may repeat a guarded effect, done or only begun, unless it is asked to."""
    log = open_log()
    live = begin(log)
    step(live, "fetch")
    step(live, "charge", GUARDED)
    step(live, "notify")
    live.write(EffectIntent("ship", b"k" * 32, GUARDED, 1)).result()
    room_of(log).live.release(live)
    for cut in ("fetch", "charge"):
        for change in (log.executions.fork, log.executions.rewind):
            with pytest.raises(Invalid, match="would happen again steps=charge,ship"):
                change(live.id, before=cut)
    assert paths(log, live.id) == ["fetch", "charge", "notify", "ship"]
    forked = log.executions.fork(live.id, before="charge", repeat_guarded=True)
    assert paths(log, forked) == ["fetch"]
    kept = log.executions.fork(live.id)  # nothing is behind its end
    assert paths(log, kept) == ["fetch", "charge", "notify", "ship"]


def test_what_came_from_outside_stays_and_an_open_promise_is_not_forked(open_log):
    """Signals and settled promises survive a rewind; a promise that is open belongs to the original alone."""
    log = open_log()
    live = begin(log)
    step(live, "first")
    live.write(PromiseCreated("approval", b"p" * 16, b"h" * 32, 1), PromiseCreated("open", b"q" * 16, b"h" * 32, 1))
    step(live, "second")
    live.write(SignalSent("go", b"s" * 16, b"\xc0", 1), PromiseResolved(b"p" * 16, b"\xc0", 1)).result()
    room_of(log).live.release(live)
    forked = log.executions.fork(live.id, before="second")
    states = {one.path: one.state for one in log.executions.show(forked).steps}
    assert states == {"first": "done", "approval": "done"}
    log.executions.rewind(live.id, before="second")
    states = {one.path: one.state for one in log.executions.show(live.id).steps}
    assert states == {"first": "done", "approval": "done", "open": "waiting"}
    again = room_of(log).live.open(live.id, "import")
    again.recorded.all()
    assert list(again.recorded.signals) == [b"s" * 16]
    room_of(log).live.release(again)


def test_scopes_are_cut_as_a_whole(open_log):
    """The path of a scope stands for all that is in it; a path that was never recorded is not found."""
    log = open_log()
    live = begin(log)
    for path in ("first", "rows/a", "rows/b", "rows2"):
        live.write(StepResult(path, b"k" * 32, "idempotent", b"\xc0", 1))
    end(log, live)
    with pytest.raises(NotFound, match="'row'"):
        log.executions.rewind(live.id, before="row")
    assert paths(log, log.executions.fork(live.id, before="rows")) == ["first"]
    assert paths(log, log.executions.fork(live.id, before="rows/b")) == ["first", "rows/a"]


def test_an_effect_of_unknown_outcome_is_settled_by_hand(open_log):
    """The result is recorded with the intent's own key, and with an audit record; only where one is due."""
    log = open_log()
    live = begin(log)
    key = live.key(live.place("charge"), GUARDED, b"argument")
    live.write(EffectIntent("charge", key, GUARDED, 1)).result()
    with pytest.raises(ExecutionHeld):
        log.executions.settle(live.id, "charge", "paid")
    room_of(log).live.release(live)
    with pytest.raises(NotFound):
        log.executions.settle(live.id, "other", "paid")
    log.executions.settle(live.id, "charge", "paid")
    with pytest.raises(Invalid, match="has a result already"):
        log.executions.settle(live.id, "charge", "paid")
    shown = log.executions.show(live.id, reveal=True)
    assert (shown.steps[0].value, shown.steps[0].ambiguous) == ("paid", ("settled",))
    assert [one.what for one in shown.events] == ["opened", "ambiguous", "settled"]
    again = room_of(log).live.open(live.id, "import")
    record = again.look("charge")
    assert record is not None
    assert record.result is not None
    assert record.result.key == key
    room_of(log).live.release(again)


def test_the_second_opener_learns_who_runs_an_execution(open_log):
    """One live owner; changes by hand are refused while it runs, all but to cancel it."""
    log = open_log()
    live = begin(log)
    step(live, "charge")
    live.write(AmbiguityResolved("charge", b"k" * 32, GUARDED, "rerun", 1)).result()
    for change in (
        lambda: log.executions.rewind(live.id, before="charge"),
        lambda: log.executions.resume(live.id),
        lambda: room_of(log).live.open(live.id, "import"),
    ):
        with pytest.raises(ExecutionHeld) as held:
            change()
        assert held.value.holder == f"thread:{threading.current_thread().name}"
    room_of(log).live.release(live)
    log.executions.resume(live.id)
    assert log.executions.summary(live.id).status == "queued"


def test_every_change_by_hand_is_in_the_topic(open_log):
    """Audit records are ordinary records: they are shipped, and Spark sees them."""
    log = open_log()
    live = begin(log)
    step(live, "charge")
    end(log, live, "failed")
    log.executions.resume(live.id)
    log.executions.rewind(live.id, before="charge")
    log.executions.fork(live.id)
    log.executions.cancel(live.id)
    text = b"".join(record.payload for record in log.topic("_executions").read())
    for action in (b"resumed", b"rewound", b"before=charge", b"forked", b"canceled"):
        assert action in text


@pytest.mark.parametrize(
    "wrong",
    [
        {"input": "text"},
        {"input": b"\xc1"},
        {"input": b"\x01"},
        {"input": b"x" * 3_000_000},
        {"kind": "a/b"},
        {"queue": ""},
        {"priority": 2**70},
        {"due_us": "soon"},
        {"id": "none"},
    ],
)
def test_a_request_from_outside_is_checked_like_a_call(open_log, wrong):
    """What another process asks for cannot put a row into the log that nobody can read."""
    log = open_log()
    good = {
        "id": str(derived_id("a", "b")),
        "kind": "a",
        "queue": "default",
        "input": b"\x92\x90\x80",
        "priority": 0,
        "due_us": 0,
    }
    with pytest.raises(Invalid):
        apply(log.executions, "start", good | wrong)
    assert log.executions.list() == []
    assert apply(log.executions, "start", good) == "queued"
    with pytest.raises(Invalid):
        apply(log.executions, "no such thing", {})
    log.close()
    assert len(open_log().executions.list()) == 1
