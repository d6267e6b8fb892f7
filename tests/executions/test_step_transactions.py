"""A step that is a transaction: its changes and its result are one commit."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pytest

from holdfast import Full, Log, Unavailable
from holdfast.execution.journal.entries import EffectIntent, StepResult
from tests.executions.test_steps import Calls, Die, entries
from tests.failing_commits import refuse_next_commit

pytestmark = pytest.mark.disk


@pytest.fixture
def log(open_log: Callable[..., Log]) -> Log:
    return open_log()


def payloads(log: Log, topic: str) -> list[bytes]:
    return [record.payload for record in log.topic(topic).read()]


def test_it_is_written_once_and_replayed(log: Log) -> None:
    execution, runs = uuid4(), []

    def book(tx: Any, number: int) -> dict[str, int]:
        runs.append(number)
        tx.append("orders", b"order")
        tx.append("payments", b"payment", key=b"k")
        tx.put("balances", "acme", b"%d" % number)
        return {"booked": number}

    for _ in range(3):
        with log.execution("e", id=execution) as ctx:
            assert ctx.transaction("book", book, 5) == {"booked": 5}
    assert (runs, payloads(log, "orders"), payloads(log, "payments")) == ([5], [b"order"], [b"payment"])
    assert log.space("balances").get("acme") == b"5"
    assert [type(one) for one in entries(log, execution) if isinstance(one, (StepResult, EffectIntent))] == [StepResult]


def test_coroutines_have_it_too(log: Log) -> None:
    execution = uuid4()

    async def book(tx: Any) -> int:
        await asyncio.sleep(0)
        tx.append("orders", b"a")
        return 1

    def book_in_thread(tx: Any) -> int:
        tx.append("orders", b"b")
        return 2

    async def run() -> list[int]:
        async with log.execution("e", id=execution) as ctx:
            return [await ctx.transaction("one", book), await ctx.transaction("two", book_in_thread)]

    assert asyncio.run(run()) == asyncio.run(run()) == [1, 2]
    assert payloads(log, "orders") == [b"a", b"b"]


def test_one_that_raises_or_dies_writes_nothing_and_is_run_again(log: Log) -> None:
    execution, errors = uuid4(), [ValueError("no"), Die(), None]

    def book(tx: Any) -> int:
        tx.append("orders", b"order")
        error = errors.pop(0)
        if error is not None:
            raise error
        return 1

    with pytest.raises(ValueError, match="no"), log.execution("e", id=execution) as ctx:
        ctx.transaction("book", book)
    with pytest.raises(Die), log.execution("e", id=execution) as ctx:
        ctx.transaction("book", book)
    assert "orders" not in log.topics() or payloads(log, "orders") == []
    with log.execution("e", id=execution) as ctx:
        assert ctx.transaction("book", book) == 1
    assert payloads(log, "orders") == [b"order"]


def test_one_that_could_not_be_committed_is_no_error_of_the_step(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither its changes nor its result are there, and nothing that a later run would replay."""
    execution = uuid4()
    log.topic("orders")

    def book(tx: Any) -> int:
        tx.append("orders", b"order")
        refuse_next_commit(log, monkeypatch, Unavailable("the disk is full"))
        return 1

    with pytest.raises(Unavailable), log.execution("e", id=execution) as ctx:
        ctx.transaction("book", book)
    assert payloads(log, "orders") == []
    assert log.executions.show(execution).summary.status == "running"

    def again(tx: Any) -> int:
        tx.append("orders", b"order")
        return 2

    with log.execution("e", id=execution) as ctx:
        assert ctx.transaction("book", again) == 2
    assert payloads(log, "orders") == [b"order"]


def test_one_that_changes_nothing_is_a_step(log: Log) -> None:
    execution, runs = uuid4(), []
    for _ in range(2):
        with log.execution("e", id=execution) as ctx:
            assert ctx.transaction("nothing", lambda tx: runs.append(1)) is None
    assert runs == [1]


def test_a_large_result_is_in_the_same_commit(log: Log) -> None:
    execution, large = uuid4(), b"x" * 2_000_000

    def book(tx: Any) -> bytes:
        tx.append("orders", b"order")
        return large

    for _ in range(2):
        with log.execution("e", id=execution) as ctx:
            assert ctx.transaction("book", book) == large
    assert payloads(log, "orders") == [b"order"]


def test_errors_that_mean_that_nothing_was_written_can_be_tried_again(log: Log) -> None:
    tries = [Full("no room"), None]

    def book(tx: Any) -> int:
        tx.append("orders", b"order")
        error = tries.pop(0)
        if error is not None:
            raise error
        return 1

    with log.execution("e") as ctx:
        assert ctx.transaction("book", book, retries=1, backoff=0) == 1
        assert ctx.step("after", Calls(2)) == 2
    assert payloads(log, "orders") == [b"order"]
