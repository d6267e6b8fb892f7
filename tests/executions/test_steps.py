"""Steps: a finished one is never run again, a guarded one is durable before and after."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import msgspec
import pytest

from holdfast import Invalid, Log, Settings, Unavailable
from holdfast.errors import AmbiguousEffect, Closed, Diverged, ExecutionCanceled, ExecutionHeld, Full, StepFailed
from holdfast.execution.journal.entries import AmbiguityResolved, AttemptFailed, EffectIntent, Entry, Opened, StepResult
from holdfast.execution.journal.execution_record import in_order
from holdfast.execution.steps.context import Context
from holdfast.testing import ManualClock
from tests.failing_commits import refuse_next_commit

pytestmark = pytest.mark.disk

GUARDED: dict[str, Any] = {"effect": "exactly_once_guarded", "on_ambiguous": "fail"}


def entries(log: Log, execution: UUID) -> list[Entry]:
    return [one for one in in_order(log._executions.room().store.load(execution)[0]) if not isinstance(one, Opened)]


class Calls:
    """A function that notes what it was called with."""

    def __init__(self, gives: object = None, raises: Exception | None = None) -> None:
        self.seen: list[tuple[Any, ...]] = []
        self._gives, self._raises = gives, raises

    def __call__(self, *args: Any) -> Any:
        self.seen.append(args)
        if self._raises is not None:
            raise self._raises
        return self._gives


class Die(BaseException):
    """The process ends here."""


def die(*_: object) -> None:
    raise Die


@dataclass
class Order:
    number: int
    items: tuple[str, ...] = ()


class Price(msgspec.Struct):
    amount: int


class Unmakeable(Exception):
    """An exception that cannot be made of its arguments."""

    def __init__(self, *, code: int) -> None:
        super().__init__(f"code {code}")
        self.code = code


class Declined(Exception):
    def __init__(self, card: str, limit: int) -> None:
        super().__init__(card, limit)
        self.card, self.limit = card, limit


@pytest.fixture
def log(open_log: Callable[..., Log]) -> Log:
    return open_log()


def test_a_fresh_step_runs_and_is_recorded(log: Log) -> None:
    """In the order of the program."""
    fetch = Calls(7)
    with log.execution("import") as ctx:
        assert ctx.step("fetch", fetch, "a") == 7
    recorded = [one for one in entries(log, ctx.id) if isinstance(one, StepResult)]
    assert [(one.path, one.effect, one.is_error) for one in recorded] == [("fetch", "at_least_once", False)]
    assert fetch.seen == [("a",)]


def test_a_recorded_step_is_not_run_again(log: Log) -> None:
    """Of every effect, in another process as in this one."""
    fetch = Calls({"total": [1, 2.5, None, "x", b"y"]})
    results = []
    execution = uuid4()
    for _ in range(3):
        with log.execution("import", id=execution) as ctx:
            results.append(
                [
                    ctx.step("a", fetch, 1, effect="idempotent"),
                    ctx.step("b", fetch, 1, effect="at_least_once"),
                    ctx.step("c", fetch, 1, **GUARDED),
                ]
            )
    assert len(fetch.seen) == 3
    assert results[0] == results[1] == results[2]


def test_the_past_is_there_after_the_log_was_closed(open_log: Callable[..., Log]) -> None:
    fetch, execution = Calls([1, 2]), uuid4()
    for _ in range(2):
        log = open_log()
        with log.execution("import", id=execution) as ctx:
            value = ctx.step("a", fetch), ctx.now(), ctx.uuid(), ctx.random()
            if not ctx.resumed:
                first = value
        log.close()
    assert value == first
    assert len(fetch.seen) == 1


def test_a_guarded_step_writes_its_intent_first(log: Log) -> None:
    """The intent is durable when the function is called, the result when the step returns."""
    durable: list[list[type]] = []

    def charge() -> int:
        durable.append([type(one) for one in entries(log, ctx.id)])  # what is committed, read from the disk
        return 1

    with log.execution("pay") as ctx:
        ctx.step("charge", charge, **GUARDED)
        durable.append([type(one) for one in entries(log, ctx.id)])
    assert durable == [[EffectIntent], [EffectIntent, StepResult]]


def test_what_was_buffered_before_is_durable_with_the_intent(log: Log) -> None:
    """Nothing that a guarded effect may build upon is missing when it happens."""
    seen: list[str] = []

    def charge() -> None:
        seen.extend(one.path for one in entries(log, ctx.id) if isinstance(one, StepResult))

    with log.execution("pay") as ctx:
        for _ in range(20):
            ctx.step("prepare", Calls(1))
        ctx.step("charge", charge, **GUARDED)
    assert len(seen) == 20


def test_divergence_is_found_before_anything_runs_and_names_both(log: Log) -> None:
    """Another argument, another effect or another fingerprint at the same path."""
    execution, other = uuid4(), Calls(2)
    with log.execution("import", id=execution) as ctx:
        ctx.step("fetch", Calls(1), "monday")
    asked: list[Callable[[Context], Any]] = [
        lambda ctx: ctx.step("fetch", other, "tuesday"),
        lambda ctx: ctx.step("fetch", other, "monday", effect="idempotent"),
        lambda ctx: ctx.step("fetch", other, "monday", fingerprint=1),
        lambda ctx: ctx.step("fetch", other),
    ]
    for ask in asked:
        with pytest.raises(Diverged) as caught, log.execution("import", id=execution) as ctx:
            ask(ctx)
        assert caught.value.path == "fetch"
        assert caught.value.recorded.hex()[:16] in str(caught.value)
        assert caught.value.asked.hex()[:16] in str(caught.value)
        assert "version" in caught.value.hint
    assert other.seen == []
    with log.execution("import", id=execution) as ctx:  # the right program goes on
        assert ctx.step("fetch", other, "monday") == 1


def test_an_inserted_step_does_not_break_what_runs(log: Log) -> None:
    """Steps are named by path, not by position."""
    execution, again, added = uuid4(), Calls(0), Calls("new")
    with log.execution("import", id=execution) as ctx:
        ctx.step("a", Calls(1))
        ctx.step("b", Calls(2))
        ctx.step("b", Calls(3))
    with log.execution("import", id=execution) as ctx:
        assert ctx.step("before", added) == "new"
        assert ctx.step("a", again) == 1
        with ctx.scope("part") as part:
            assert part.step("b", added) == "new"
            assert part.path == "part"
        assert [ctx.step("b", again), ctx.step("b", again), ctx.step("b", added)] == [2, 3, "new"]
    assert again.seen == []


def test_the_order_of_keyword_arguments_and_dictionaries_does_not_matter(log: Log) -> None:
    execution = uuid4()

    def add(**numbers: int) -> int:
        return sum(numbers.values())

    for given in ({"a": 1, "b": 2}, {"b": 2, "a": 1}):
        with log.execution("import", id=execution) as ctx:
            assert ctx.step("add", add, **given) == 3
            assert ctx.step("len", len, given) == 2


@pytest.mark.parametrize("policy", ["fail", "skip", "rerun"])
def test_an_effect_that_may_have_happened_is_resolved_by_its_policy(
    log: Log, policy: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Skip takes it for done and does not run it; each resolution leaves an audit record."""
    execution, charge = uuid4(), Calls(5)
    options: dict[str, Any] = {"effect": "exactly_once_guarded", "on_ambiguous": policy}
    with pytest.raises(Die), log.execution("pay", id=execution) as ctx:
        ctx.step("charge", die, 1, **options)
    with caplog.at_level(logging.WARNING, "holdfast.execution"):
        if policy == "fail":
            for _ in range(2):
                with pytest.raises(AmbiguousEffect), log.execution("pay", id=execution) as ctx:
                    ctx.step("charge", charge, 1, **options)
        else:
            for _ in range(2):
                with log.execution("pay", id=execution) as ctx:
                    assert ctx.step("charge", charge, 1, skipped=-1, **options) == (5 if policy == "rerun" else -1)
    assert len(charge.seen) == (policy == "rerun")
    audits = [one for one in entries(log, execution) if isinstance(one, AmbiguityResolved)]
    assert [one.policy for one in audits] == [policy] * (2 if policy == "fail" else 1)
    said = [record.__dict__ for record in caplog.records if record.__dict__.get("action") == "execution_ambiguous"]
    assert [(one["step"], one["policy"], one["execution"]) for one in said] == [
        ("charge", policy, str(execution)) for _ in audits
    ]


def test_what_was_skipped_gives_nothing_unless_it_is_asked_to(log: Log) -> None:
    execution = uuid4()

    def charge() -> int:
        raise Die

    for _ in range(2):
        try:
            with log.execution("pay", id=execution) as ctx:
                assert ctx.step("charge", charge, effect="exactly_once_guarded", effect_kind="cost_bearing") is None
        except Die:
            pass


@pytest.mark.parametrize("kind", [None, "destructive", "security_relevant", "money_moving", "custom"])
def test_a_guarded_step_without_a_policy_is_refused_before_its_place_counts(log: Log, kind: Any) -> None:
    """At construction; only a cost-bearing one has a default."""
    with log.execution("pay") as ctx:
        with pytest.raises(Invalid, match="policy"):
            ctx.step("charge", Calls(1), effect="exactly_once_guarded", effect_kind=kind)
        with pytest.raises(Invalid, match="guarded"):
            ctx.step("charge", Calls(1), on_ambiguous="skip")
        with pytest.raises(Invalid, match="twice"):
            ctx.step("charge", Calls(1), retries=1, **GUARDED)
        ctx.step("charge", Calls(1))
    assert [one.path for one in entries(log, ctx.id) if isinstance(one, StepResult)] == ["charge"]


def test_a_committed_guarded_result_is_never_run_again(log: Log) -> None:
    """Whatever else was recorded at its path, by a program that had diverged."""
    execution, charge = uuid4(), Calls(2)
    with log.execution("pay", id=execution) as ctx:
        path, key = "charge", ctx.live.key("charge", "exactly_once_guarded", b"")
        live = ctx.live
        live.write(StepResult(path, b"?" * 32, "exactly_once_guarded", b"\x01", 1)).result()
        live.write(StepResult(path, key, "exactly_once_guarded", b"\x07", 1)).result()
    with log.execution("pay", id=execution) as ctx:
        assert ctx.step("charge", charge, **GUARDED) == 7
    assert charge.seen == []


# -- errors ------------------------------------------------------------------------------------------------------


def test_an_error_that_ends_the_block_is_tried_again_by_the_next_run(log: Log) -> None:
    execution, first, second = uuid4(), Calls(1), Calls(raises=ConnectionError("down"))
    with pytest.raises(ConnectionError, match="down"), log.execution("import", id=execution) as ctx:
        ctx.step("a", first)
        ctx.step("b", second)
    assert log.executions.show(execution).summary.status == "failed"
    fixed = Calls(2)
    with log.execution("import", id=execution) as ctx:
        assert [ctx.step("a", first), ctx.step("b", fixed)] == [1, 2]
    assert [len(one.seen) for one in (first, second, fixed)] == [1, 1, 1]
    with log.execution("import", id=execution) as ctx:
        assert ctx.step("b", fixed) == 2
    assert len(fixed.seen) == 1


def test_an_error_that_the_program_went_on_with_is_raised_again(log: Log) -> None:
    """Exceptions round-trip: type, arguments, attributes; the program takes the same turn."""
    execution, turns = uuid4(), []
    failing = Calls(raises=Declined("4711", 30))
    for _ in range(2):
        with log.execution("pay", id=execution) as ctx:
            try:
                ctx.step("charge", failing)
            except Declined as error:
                turns.append((error.card, error.limit, str(error), ctx.step("refuse", Calls("no"))))
    assert len(failing.seen) == 1
    assert turns == [turns[0]] * 2


@pytest.mark.parametrize(
    "error",
    [
        ValueError("text", 3),
        KeyError("k"),
        FileNotFoundError(2, "No such file", "a.txt"),
        TimeoutError(),
        UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"),
        Invalid("no", hint="do"),
        ZeroDivisionError("x"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_exception_comes_back_as_it_was(log: Log, error: Exception) -> None:
    execution, seen = uuid4(), []
    for _ in range(2):
        with log.execution("e", id=execution) as ctx:
            try:
                ctx.step("a", Calls(raises=error))
            except Exception as caught:
                seen.append((type(caught), str(caught), caught.args, getattr(caught, "hint", None)))
    assert seen[0] == seen[1]
    assert seen[0][0] is type(error)


def test_an_exception_that_cannot_be_made_again_is_step_failed_from_the_first_run_on(log: Log) -> None:
    execution, seen = uuid4(), []
    for _ in range(2):
        with log.execution("e", id=execution) as ctx:
            with pytest.raises(StepFailed) as caught:
                ctx.step("a", Calls(raises=Unmakeable(code=3)))
            seen.append((caught.value.type_name, caught.value.message, caught.value.path))
    assert seen[0] == seen[1]
    assert seen[0][0].endswith("Unmakeable")


def test_a_journal_cannot_have_anything_called_but_an_exceptions_class(log: Log) -> None:
    """What it names must be an exception's class in a loaded module, under its own name; else it is StepFailed."""
    from holdfast.execution.steps.step_errors import StoredError, decode_error

    for module, name in [
        ("os", "system"),
        ("os", "error"),  # an alias of OSError
        ("builtins", "exit"),
        ("builtins", "SystemExit"),
        ("builtins", "OSError.__class__"),
        ("builtins", "OSError.__init__.__objclass__"),
        ("antigravity", "X"),
        ("subprocess", "Popen"),
        ("", ""),
    ]:
        stored = msgspec.msgpack.encode(StoredError(module, name, "text", ["true"]))
        error = decode_error(stored, "a")
        assert type(error) is StepFailed
        assert "text" in str(error)
        assert error.type_name.endswith(name)
    kept = msgspec.msgpack.encode(StoredError("builtins", "OSError", "", ["x"], {"place": 1, "__notes__": [1]}))
    assert vars(decode_error(kept, "a")) == {"place": 1}


def test_a_journal_imports_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a module of a package that is loaded, nor what a module would load when it is asked for a name."""
    from holdfast.execution.steps.step_errors import StoredError, decode_error

    package = tmp_path / "loadedpackage"
    package.mkdir()
    (package / "__init__.py").write_text(
        "class Here(ValueError): pass\ndef __getattr__(name):\n    from loadedpackage import effects\n"
    )
    (package / "effects.py").write_text("class Gone(ValueError): pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    import loadedpackage  # type: ignore[import-not-found]

    for module, name in [("loadedpackage.effects", "Gone"), ("loadedpackage", "Gone"), ("loadedpackage", "__path__")]:
        stored = msgspec.msgpack.encode(StoredError(module, name, "text", []))
        assert type(decode_error(stored, "a")) is StepFailed
    assert "loadedpackage.effects" not in sys.modules
    stored = msgspec.msgpack.encode(StoredError("loadedpackage", "Here", "text", ["text"]))
    assert type(decode_error(stored, "a")) is loadedpackage.Here
    del sys.modules["loadedpackage"]


def test_a_guarded_steps_error_is_kept_unless_it_may_run_twice(log: Log) -> None:
    """A card that was declined must not be taken for charged, nor charged again, on the next run."""
    for policy, runs in (("fail", 1), ("skip", 1), ("rerun", 3)):
        execution, charge = uuid4(), Calls(raises=Declined("4711", 30))
        for _ in range(3):
            with pytest.raises(Declined), log.execution("pay", id=execution) as ctx:
                ctx.step("charge", charge, effect="exactly_once_guarded", on_ambiguous=policy)  # type: ignore[arg-type]
        assert len(charge.seen) == runs


def test_no_stack_is_in_the_journal(log: Log) -> None:
    with log.execution("e") as ctx, pytest.raises(ValueError, match="x"):
        ctx.step("a", Calls(raises=ValueError("x")))
    stored = [one.payload for one in entries(log, ctx.id) if isinstance(one, StepResult)]
    assert b"test_steps.py" not in stored[0]


# -- values ------------------------------------------------------------------------------------------------------


def test_a_value_is_the_same_on_the_first_run_as_on_later_ones(log: Log) -> None:
    """What the function's annotation or `returns` says; plain data without either."""

    def order() -> Order:
        return Order(3, ("a", "b"))

    def orders() -> dict[str, list[Order]]:
        return {"x": [Order(1)]}

    execution, seen = uuid4(), []
    identity = UUID(int=5)
    for _ in range(2):
        with log.execution("e", id=execution) as ctx:
            seen.append(
                [
                    ctx.step("order", order),
                    ctx.step("orders", orders),
                    ctx.step("price", Calls(Price(5)), returns=Price),
                    ctx.step("tuple", Calls((1, 2))),
                    ctx.step("typed", Calls((1, 2)), returns=tuple[int, int]),
                    ctx.step("uuid", Calls(identity)),
                    ctx.step("typed uuid", Calls(identity), returns=UUID),
                    ctx.step("none", Calls(None), returns=int),
                    ctx.step("float", Calls(1), returns=float),
                ]
            )
    assert seen[0] == seen[1]
    assert [type(value) for value in seen[0]] == [type(value) for value in seen[1]]
    assert seen[0][0] == Order(3, ("a", "b"))
    assert seen[0][2:7] == [Price(5), [1, 2], (1, 2), str(identity), identity]


def test_what_cannot_be_stored_is_loud_and_names_the_step(log: Log) -> None:
    """And nothing is recorded; of a guarded step the intent stays."""
    execution = uuid4()
    for value in (object(), 2**80, "\ud800", lambda: 1):
        with pytest.raises(Invalid, match="step=a"), log.execution("e", id=execution) as ctx:
            ctx.step("a", Calls(value))
    assert not [one for one in entries(log, execution) if isinstance(one, StepResult)]
    with pytest.raises(Invalid, match="step=b"), log.execution("e", id=execution) as ctx:
        ctx.step("b", Calls(object()), **GUARDED)
    with pytest.raises(AmbiguousEffect), log.execution("e", id=execution) as ctx:
        ctx.step("b", Calls(1), **GUARDED)


def test_a_result_of_another_type_than_it_says_is_loud(log: Log) -> None:
    def number() -> int:
        return "text"  # type: ignore[return-value]

    with pytest.raises(Invalid, match="step=number"), log.execution("e") as ctx:
        ctx.step("number", number)
    execution = uuid4()
    with log.execution("e", id=execution) as ctx:
        ctx.step("a", Calls("text"))
    with pytest.raises(Invalid, match="recorded"), log.execution("e", id=execution) as ctx:
        ctx.step("a", Calls("text"), returns=int)


def test_large_results_are_kept_beside_the_journal(open_log: Callable[..., Log]) -> None:
    """A claim check: proved when it is read, in the same commit as its entry."""
    execution, large = uuid4(), Calls(b"x" * 3_000_000)
    for _ in range(2):
        log = open_log()
        with log.execution("e", id=execution) as ctx:
            assert len(ctx.step("large", large)) == 3_000_000
            assert len(ctx.step("guarded", large, **GUARDED)) == 3_000_000
        log.close()
    log = open_log()
    assert len(large.seen) == 2
    kept = [name for name in log._journal.spaces.names() if name.startswith(f"execution-data/{execution}/")]
    assert len(kept) == 2
    too_large = Calls(b"x" * (40 * 2**20))
    with pytest.raises(Invalid, match="step=large"), log.execution("e") as ctx:
        ctx.step("large", too_large)


def test_arguments_that_are_no_data_count_by_their_type(log: Log) -> None:
    execution, fetch = uuid4(), Calls(1)
    for _ in range(2):
        with log.execution("e", id=execution) as ctx:
            ctx.step("fetch", fetch, object(), [1])
    with pytest.raises(Diverged), log.execution("e", id=execution) as ctx:
        ctx.step("fetch", fetch, Calls(), [1])
    assert len(fetch.seen) == 1


# -- trying again --------------------------------------------------------------------------------------------------


class Flaky:
    """Fails so many times."""

    def __init__(self, failures: int) -> None:
        self.left = failures

    def __call__(self) -> str:
        if self.left:
            self.left -= 1
            raise ConnectionError(f"{self.left} left")
        return "ok"


def test_a_step_is_tried_again_with_growing_pauses(log: Log) -> None:
    with log.execution("e") as ctx:
        assert ctx.step("a", Flaky(3), retries=3, backoff=0.001) == "ok"
        with pytest.raises(ConnectionError, match="0 left"):
            ctx.step("b", Flaky(3), retries=2, backoff=0.001)
    attempts = [one for one in entries(log, ctx.id) if isinstance(one, AttemptFailed) and one.path == "a"]
    assert [one.attempt for one in attempts] == [1, 2, 3]
    assert [one.error for one in attempts] == ["ConnectionError"] * 3
    gaps = [one.retry_us - one.at_us for one in attempts]
    assert gaps == [1_000, 2_000, 4_000]
    result = next(one for one in entries(log, ctx.id) if isinstance(one, StepResult) and one.path == "a")
    assert result.attempts == 4


def test_attempts_are_counted_over_runs(open_log: Callable[..., Log]) -> None:
    """A run that dies between attempts does not begin anew, and the pause goes on where it was."""
    clock, execution = ManualClock(), uuid4()
    log = open_log(clock=clock)
    seen: list[int] = []

    def work() -> str:
        seen.append(ctx.current.attempt)
        if len(seen) == 1:
            ctx.live.suspend("test")  # it is to leave off during the pause
        if len(seen) <= 2:
            raise ConnectionError
        return "ok"

    with pytest.raises(Closed, match="test"), log.execution("e", id=execution) as ctx:
        ctx.step("a", work, retries=2, backoff=30)
    clock.advance(40)
    with pytest.raises(Closed, match="test"), log.execution("e", id=execution) as ctx:
        seen_before = len(seen)
        ctx.live.suspend("test")
        ctx.step("a", work, retries=2, backoff=30)
    assert len(seen) == seen_before
    clock.advance(40)
    with log.execution("e", id=execution) as ctx:

        def last() -> str:
            seen.append(ctx.current.attempt)
            return "ok"

        assert ctx.step("a", last, retries=2, backoff=0) == "ok"
    assert seen == [1, 2]


def test_a_heartbeat_is_found_by_the_next_attempt(log: Log) -> None:
    found: list[Any] = []
    execution = uuid4()

    def work() -> None:
        found.append(ctx.current.last_heartbeat)
        ctx.heartbeat({"row": 10 * len(found)})
        raise Die

    for _ in range(3):
        with pytest.raises(Die), log.execution("e", id=execution) as ctx:
            ctx.step("a", work)
        log.flush()
    assert found == [None, {"row": 10}, {"row": 20}]


def test_a_function_that_blocks_learns_that_its_time_is_up(open_log: Callable[..., Log]) -> None:
    clock = ManualClock()
    log = open_log(clock=clock)

    def work() -> None:
        ctx.heartbeat()
        clock.advance(5)
        ctx.heartbeat()

    with log.execution("e") as ctx, pytest.raises(TimeoutError, match="'a' took longer"):
        ctx.step("a", work, timeout=3)


# -- values that are made once -------------------------------------------------------------------------------------


def test_time_ids_and_randomness_are_the_same_on_every_run(log: Log) -> None:
    execution, seen = uuid4(), []
    for _ in range(3):
        with log.execution("e", id=execution) as ctx:
            seen.append((ctx.now(), ctx.now(), ctx.uuid(), ctx.random(), ctx.random()))
    assert seen[0] == seen[1] == seen[2]
    assert seen[0][3] != seen[0][4]
    assert seen[0][0].utcoffset() is not None
    assert seen[0][2].version == 4


def test_a_version_is_what_the_execution_began_with(log: Log) -> None:
    """Past this place: 1. Not there yet: the newest, for good."""
    old, young = uuid4(), uuid4()
    with log.execution("e", id=old) as ctx:
        ctx.step("a", Calls(1))
        ctx.step("b", Calls(1))
    with pytest.raises(Die), log.execution("e", id=young) as ctx:
        ctx.step("a", Calls(1))
        raise Die
    for execution, expected in ((old, 1), (young, 2), (uuid4(), 2)):
        for _ in range(2):
            with log.execution("e", id=execution) as ctx:
                ctx.step("a", Calls(1))
                assert ctx.version("tax", 2) == expected
                assert ctx.version("tax", 2) == expected
                ctx.step("b", Calls(1))
    with log.execution("e", id=young) as ctx:
        assert ctx.version("tax", 3) == 2
    with pytest.raises(Diverged), log.execution("e", id=young) as ctx:
        ctx.version("tax", 1)


# -- what is refused -----------------------------------------------------------------------------------------------


def test_a_step_inside_of_a_step_is_refused(log: Log) -> None:
    """It would not be there when the outer one is replayed."""
    with log.execution("e") as ctx:
        with pytest.raises(Invalid, match="inside of a step"):
            ctx.step("outer", lambda: ctx.step("inner", Calls(1)))
        with pytest.raises(Invalid, match="inside of a step"):
            ctx.step("outer2", ctx.now)
        assert ctx.step("another", lambda: _other(log)) == 1  # another execution's steps are no part of it


def _other(log: Log) -> int:
    with log.execution("other") as ctx:
        return ctx.step("inner", Calls(1))  # type: ignore[no-any-return]


def test_a_context_is_of_no_use_after_its_block(log: Log) -> None:
    with log.execution("e") as ctx:
        pass
    for ask in (lambda: ctx.step("a", Calls(1)), lambda: ctx.scope("x"), ctx.now):
        with pytest.raises(Invalid, match="ended"):
            ask()


def test_careless_calls_are_refused_before_anything_is_recorded(log: Log) -> None:
    async def coroutine() -> None:
        pass

    with log.execution("e") as ctx:
        for ask in (
            lambda: ctx.step("", Calls()),
            lambda: ctx.step("a/b", Calls()),
            lambda: ctx.step("a", 5),
            lambda: ctx.step("a", coroutine),
            lambda: ctx.step("a", Calls(), effect="maybe"),
            lambda: ctx.step("a", Calls(), retries=-1),
            lambda: ctx.step("a", Calls(), retries="many"),
            lambda: ctx.step([], Calls()),
            lambda: ctx.step("a", Calls(), retries=[1]),
            lambda: ctx.step("a", Calls(), effect=[]),
            lambda: ctx.step("a", Calls(), timeout={}),
            lambda: ctx.step("a", Calls(), timeout="long"),
            lambda: ctx.current,
            lambda: ctx.heartbeat(),
            lambda: ctx.set_result(object()),
            lambda: ctx.step("a", Calls(), returns=Order | Price),
        ):
            with pytest.raises(Invalid):
                ask()
    assert [one for one in entries(log, ctx.id) if isinstance(one, StepResult)] == []
    for bad in ({"id": "nonsense"}, {"on_journal_loss": "hope"}, {"always_replay": "yes"}):
        with pytest.raises(Invalid):
            log.execution("e", **bad)  # type: ignore[arg-type]


def test_an_execution_is_run_by_one_at_a_time(log: Log) -> None:
    """The second one learns who has it."""
    with log.execution("e") as ctx, pytest.raises(ExecutionHeld) as caught, log.execution("e", id=ctx.id):
        pass
    assert "thread:" in caught.value.holder


def test_a_canceled_execution_stops_before_its_next_step_and_never_goes_on(log: Log) -> None:
    after = Calls(1)
    with pytest.raises(ExecutionCanceled), log.execution("e") as ctx:
        ctx.step("a", Calls(1))
        log.executions.cancel(ctx.id, "enough")
        assert ctx.cancelled
        ctx.step("b", after)
    assert after.seen == []
    assert log.executions.show(ctx.id).summary.status == "canceled"
    with pytest.raises(ExecutionCanceled), log.execution("e", id=ctx.id):
        pass


def test_the_number_of_steps_is_bounded(open_log: Callable[..., Log]) -> None:
    log = open_log(settings=Settings.from_mapping({"executions": {"steps_max": 10}}))
    with log.execution("e") as ctx:
        for _ in range(100):  # those that are finished are folded, and count no more
            ctx.step("a", Calls(1))
    with pytest.raises(Full, match="10 steps"), log.execution("e") as ctx:
        for _ in range(100):
            ctx.promise("a")


def test_a_long_execution_is_folded_and_replayed_all_the_same(open_log: Callable[..., Log]) -> None:
    """Results, errors that the program went on with, and errors that ended a run, are what they were."""
    log = open_log(settings=Settings.from_mapping({"executions": {"steps_max": 20}}))
    execution, seen, number = uuid4(), [], Calls(1)
    for run in range(4):
        try:
            with log.execution("e", id=execution) as ctx:
                found: list[Any] = [ctx.step("a", number) for _ in range(60)]
                try:
                    ctx.step("caught", Calls(raises=KeyError("k")))
                except KeyError:
                    found.append(ctx.random())
                ctx.step("ends", Calls(run, ValueError() if run < 2 else None))
                found += [ctx.step("b", number) for _ in range(60)]
                seen.append(found)
        except ValueError:
            assert run < 2
    assert len(number.seen) == 120
    assert seen[0] == seen[1]


def test_how_a_block_ends_is_recorded(log: Log) -> None:
    with log.execution("e") as done:
        done.set_result({"rows": 3})
    with pytest.raises(ValueError, match="no"), log.execution("e") as failed:
        raise ValueError("no")
    with pytest.raises(Die), log.execution("e") as killed:
        raise Die
    show = log.executions.show
    assert [show(one.id).summary.status for one in (done, failed, killed)] == ["completed", "failed", "running"]


# -- with the journal's failure ------------------------------------------------------------------------------------


@pytest.mark.parametrize("guarded", [False, True])
def test_a_program_fails_with_its_journal_unless_it_may_go_on(
    log: Log, monkeypatch: pytest.MonkeyPatch, guarded: bool
) -> None:
    """A guarded effect never happens without its intent; what was lost is run again by the next run."""
    options = GUARDED if guarded else {}
    execution, charge = uuid4(), Calls(1)
    with pytest.raises(Unavailable), log.execution("pay", id=execution) as ctx:
        refuse_next_commit(log, monkeypatch, Unavailable("the disk is full"))
        ctx.step("charge", charge, **options)
    assert len(charge.seen) == (not guarded)
    assert log.executions.show(execution).summary.status == "running"
    with log.execution("pay", id=execution, on_journal_loss="continue-undurable") as ctx:
        refuse_next_commit(log, monkeypatch, Unavailable("the disk is full"))
        assert ctx.step("charge", charge, **GUARDED) == 1
        assert ctx.is_undurable
        assert ctx.step("next", charge) == 1
    before = len(charge.seen)
    with log.execution("pay", id=execution) as ctx:
        assert not ctx.is_undurable
        ctx.step("charge", charge, **options)
    assert len(charge.seen) == before + 1


def test_always_replay_yields_the_same_journal(open_log: Callable[..., Log]) -> None:
    def program(ctx: Context) -> list[Any]:
        found = [ctx.step("a", Calls({"x": (1, 2)})), ctx.step("b", Calls(b"x" * 2_000_000)), ctx.now()]
        found += [ctx.step("g", Calls([1]), **GUARDED), ctx.random(), ctx.scope("s").step("a", Calls(None))]
        with pytest.raises(ValueError, match="v"):
            ctx.step("e", Calls(raises=ValueError("v")))
        return found

    journals, execution = [], uuid4()
    for name, always in (("one", False), ("two", True)):
        log = open_log(name, clock=ManualClock(seed=1))
        with log.execution("e", id=execution, always_replay=always) as ctx:
            values = program(ctx)
        journals.append((values, entries(log, execution)))
    assert journals[0] == journals[1]
