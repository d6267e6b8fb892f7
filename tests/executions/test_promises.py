"""A promise is settled by its token, once, from anywhere; nobody finds the token in the log."""

from __future__ import annotations

import asyncio
from base64 import urlsafe_b64decode, urlsafe_b64encode
from uuid import UUID

import pytest

from holdfast import Keyring
from holdfast.crypto import digests
from holdfast.errors import (
    Diverged,
    ExecutionCanceled,
    Full,
    HoldfastError,
    Invalid,
    NotFound,
    PromiseFailed,
    PromiseRejected,
    Unavailable,
    WaitTimedOut,
)
from holdfast.execution.journal.entries import PromiseResolved
from holdfast.execution.journal.execution_id import derived_id
from holdfast.execution.journal.folding import fold
from holdfast.execution.waits import promise_token
from holdfast.execution.waits.promise_token import Token, parse_token
from holdfast.execution.waits.timers import sleep
from holdfast.testing import ManualClock
from tests.executions.waiting_room import ID, Aside, open_log, promise_at, room_of, running, wait_until
from tests.failing_commits import refuse_next_commit

pytestmark = pytest.mark.disk

OTHER = derived_id("tests", "other")


def test_a_promise_is_settled_with_its_token_and_its_waiter_gets_the_value(tmp_path):
    with open_log(tmp_path / "log") as log, running(log) as live:
        promise = promise_at(log, live)
        waiter = Aside(promise.result)
        wait_until(lambda: len(room_of(log).waiters) == 1)
        assert log.executions.resolve(promise.token(), {"by": "ann", "amount": 3}) is True
        assert waiter.result() == {"by": "ann", "amount": 3}
        assert promise.is_settled


def test_coroutines_await_it(tmp_path):
    async def program() -> object:
        promise = promise_at(log, live)
        waiting = [asyncio.ensure_future(promise.wait(60)), asyncio.ensure_future(promise.wait())]
        await log.executions.resolve_async(await promise.token_async(), [1, 2])
        return [await promise, *await asyncio.gather(*waiting)]

    with open_log(tmp_path / "log") as log, running(log) as live:
        assert asyncio.run(program()) == [[1, 2]] * 3


def test_a_coroutine_that_is_cancelled_leaves_and_another_one_waits_on(tmp_path):
    async def program() -> object:
        promise = promise_at(log, live)
        first = asyncio.ensure_future(promise.wait())
        await asyncio.sleep(0)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        assert len(room_of(log).waiters) == 0
        second = asyncio.ensure_future(promise.wait())
        await log.executions.resolve_async(await promise.token_async(), "yes")
        return await second

    with open_log(tmp_path / "log") as log, running(log) as live:
        assert asyncio.run(program()) == "yes"


def test_the_first_who_settles_it_counts_and_the_second_changes_nothing(tmp_path):
    with open_log(tmp_path / "log") as log:
        with running(log) as live:
            promise = promise_at(log, live)
            token = promise.token()
            assert log.executions.resolve(token, 1)
            assert not log.executions.resolve(token, 2)
            assert not log.executions.reject(token, "no")
            assert promise.result() == 1
        with running(log) as live:
            assert promise_at(log, live).result() == 1


def test_a_rejected_promise_raises_what_its_holder_said_on_every_run(tmp_path):
    with open_log(tmp_path / "log") as log:
        with running(log) as live:
            promise = promise_at(log, live)
            log.executions.reject(promise.token(), "too expensive")
            with pytest.raises(PromiseFailed, match="too expensive") as caught:
                promise.result()
            assert caught.value.reason == "too expensive"
        with running(log) as live, pytest.raises(PromiseFailed, match="too expensive"):
            promise_at(log, live).result()


@pytest.mark.parametrize("changed", range(16, 64, 5))
def test_no_other_token_settles_it(tmp_path, changed):
    """Each part of a token is bound: execution, promise and secret."""
    with open_log(tmp_path / "log") as log:
        with running(log, OTHER) as other:
            foreign = promise_at(log, other).token()
        with running(log) as live:
            promise = promise_at(log, live)
            body = bytearray(urlsafe_b64decode(promise.token()[5:] + "=="))
            body[changed] ^= 1
            wrong = "hfp1_" + urlsafe_b64encode(bytes(body)).rstrip(b"=").decode()
            with pytest.raises(NotFound if changed < 32 else PromiseRejected):
                log.executions.resolve(wrong, "mine")
            secret = parse_token(foreign).secret
            with pytest.raises(PromiseRejected):
                log.executions.resolve(Token(ID, promise.id.bytes, secret).text(), "mine")
            assert not promise.is_settled
            assert log.executions.resolve(promise.token(), "right")
            with pytest.raises(NotFound if changed < 32 else PromiseRejected):  # also when it is settled already
                log.executions.resolve(wrong, "mine")


@pytest.mark.parametrize(
    "given", ["", "hfp1_", "hfp1_" + "A" * 85, "hfp1_" + "A" * 87, "x" * 91, None, b"x", 7, "hfp1_é"]
)
def test_what_is_no_token_is_refused_and_not_repeated(tmp_path, given):
    with open_log(tmp_path / "log") as log, pytest.raises(Invalid, match="no promise's token") as caught:
        log.executions.resolve(given, 1)
    assert "AAAA" not in str(caught.value)


def test_a_promise_of_an_execution_that_is_not_there_is_not_found(tmp_path):
    with open_log(tmp_path / "log") as log, pytest.raises(NotFound):
        log.executions.resolve(Token(OTHER, bytes(16), bytes(32)).text(), 1)


def test_tokens_are_compared_in_constant_time_and_before_anything_else_is_said(tmp_path, monkeypatch):
    """Every stored hash is compared, by the comparison that takes as long for a wrong one."""
    compared = []
    monkeypatch.setattr(
        promise_token.digests, "same", lambda a, b: compared.append((a, b)) or digests.hmac.compare_digest(a, b)
    )
    with open_log(tmp_path / "log") as log:
        tokens = []
        for _ in range(3):
            with running(log) as live:
                tokens.append(promise_at(log, live).token())
        token = tokens[0]
        assert log.executions.resolve(token, 1)
        assert [one for one, _ in compared].count(parse_token(token).hash()) == 3
        wrong = parse_token(token)._replace(secret=bytes(32))
        with pytest.raises(PromiseRejected):
            log.executions.resolve(wrong.text(), 1)
        assert [one for one, _ in compared].count(wrong.hash()) == 3


@pytest.mark.parametrize("keyed", [False, True])
def test_no_byte_on_disk_is_a_token_only_hashes_are(tmp_path, keyed):
    keyring = Keyring.generate() if keyed else None
    with open_log(tmp_path / "log", keyring=keyring) as log:
        with running(log) as live:
            promise = promise_at(log, live)
            token = promise.token()
            log.executions.resolve(token, "a value that is not secret")
        log.seal()
    secret = parse_token(token)
    stored = b"".join(path.read_bytes() for path in (tmp_path / "log").rglob("*") if path.is_file())
    for part in (secret.secret, token.encode(), secret.secret.hex().encode(), urlsafe_b64encode(secret.secret)[:42]):
        assert part not in stored
    assert (secret.hash() in stored) is not keyed  # and the test would find what is there
    assert (b"a value that is not secret" in stored) is not keyed


def test_a_resumed_program_has_no_token_of_old_but_may_have_another_and_all_are_good(tmp_path):
    """It may have died before it gave the first one away, or after."""
    with open_log(tmp_path / "log") as log:
        with running(log) as live:
            promise = promise_at(log, live)
            first, number = promise.token(), promise.id
        with running(log) as live:
            promise = promise_at(log, live)
            assert promise._token is None
            assert promise.id == number
            second = promise.token()
            assert second != first
            assert promise.token() == second
            assert log.executions.resolve(first, "the old one")
            assert not log.executions.resolve(second, "the new one")
            assert promise.result() == "the old one"


def test_a_promise_has_so_many_tokens(tmp_path, monkeypatch):
    monkeypatch.setattr("holdfast.execution.waits.promises.TOKENS_MAX", 2)
    with open_log(tmp_path / "log") as log:
        for _ in range(2):
            with running(log) as live:
                promise_at(log, live).token()
        with running(log) as live, pytest.raises(Full, match="2 tokens"):
            promise_at(log, live).token()


def test_it_is_settled_while_nobody_runs_its_execution_and_after_the_log_was_closed(tmp_path):
    with open_log(tmp_path / "log") as log, running(log) as live:
        token = promise_at(log, live).token()
    with open_log(tmp_path / "log") as log:
        assert log.executions.resolve(token, 5)
        assert not log.executions.resolve(token, 6)
    with open_log(tmp_path / "log") as log, running(log) as live:
        assert promise_at(log, live).result() == 5


def test_a_token_is_given_out_when_the_promise_is_durable_and_not_before(tmp_path):
    from tests.stalled import stalled

    with open_log(tmp_path / "log") as log, running(log) as live:
        topic = log.topic("other")
        with stalled(topic):
            promise = promise_at(log, live)
            asked = Aside(promise.token)
            asked.thread.join(0.2)
            assert asked.thread.is_alive()
        assert asked.result().startswith("hfp1_")


def test_a_time_out_is_a_time_out_on_every_later_run_even_if_the_value_came(tmp_path):
    clock = ManualClock()
    with open_log(tmp_path / "log", clock=clock) as log:
        with running(log) as live:
            promise = promise_at(log, live)
            token = promise.token()
            waiter = Aside(promise.result, 60)
            wait_until(lambda: len(room_of(log).waiters) == 1)
            clock.advance(61)
            with pytest.raises(WaitTimedOut):
                waiter.result()
            log.executions.resolve(token, "late")
            assert promise.result() == "late"
        with running(log) as live:
            promise = promise_at(log, live)
            with pytest.raises(TimeoutError):  # it is that, too
                promise.result(60)
            assert promise.result() == "late"


def test_a_value_that_came_in_time_is_there_on_every_later_run(tmp_path):
    clock = ManualClock()
    with open_log(tmp_path / "log", clock=clock) as log:
        with running(log) as live:
            promise = promise_at(log, live)
            log.executions.resolve(promise.token(), "soon")
            assert promise.result(60) == "soon"
        clock.advance(10_000)
        with running(log) as live:
            assert promise_at(log, live).result(60) == "soon"


def test_the_value_is_of_the_type_that_the_program_asks_for(tmp_path):
    with open_log(tmp_path / "log") as log, running(log) as live:
        good, bad = promise_at(log, live, returns=dict[str, int]), promise_at(log, live, returns=int)
        log.executions.resolve(good.token(), {"a": 1})
        log.executions.resolve(bad.token(), "text")
        assert good.result() == {"a": 1}
        with pytest.raises(Invalid, match="not of the requested type"):
            bad.result()


def test_values_that_cannot_be_stored_or_are_too_large_are_refused_and_the_promise_stays_open(tmp_path):
    with open_log(tmp_path / "log", executions={"payload_bytes_max": 1000}) as log, running(log) as live:
        promise = promise_at(log, live)
        for value in (object(), "x" * 1000, 2**70):
            with pytest.raises(Invalid):
                log.executions.resolve(promise.token(), value)
        assert not promise.is_settled
        assert log.executions.resolve(promise.token(), "x" * 990)


def test_a_canceled_execution_takes_nothing_and_its_waiters_leave(tmp_path):
    with open_log(tmp_path / "log") as log, running(log) as live:
        promise = promise_at(log, live)
        token = promise.token()
        waiter = Aside(promise.result)
        wait_until(lambda: len(room_of(log).waiters) == 1)
        log.executions.cancel(ID)
        with pytest.raises(ExecutionCanceled):
            waiter.result()
        with pytest.raises(ExecutionCanceled):
            log.executions.resolve(token, 1)


def test_no_more_wait_than_may(tmp_path):
    with open_log(tmp_path / "log", executions={"waiting_max": 1}) as log, running(log) as live:
        promise = promise_at(log, live)
        waiter = Aside(promise.result)
        wait_until(lambda: len(room_of(log).waiters) == 1)
        with pytest.raises(Full, match="waiting_max"):
            sleep(live, room_of(log).waiters, live.place("sleep"), 60).result()
        log.executions.resolve(promise.token(), 1)
        assert waiter.result() == 1
        assert len(room_of(log).waiters) == 0


def test_what_was_a_promise_is_no_timer(tmp_path):
    """Steps ask by themselves; the others are asked here."""
    with open_log(tmp_path / "log") as log:
        with running(log) as live:
            promise_at(log, live, "x").token()
        with running(log) as live, pytest.raises(Diverged, match="timer is requested where a promise"):
            sleep(live, room_of(log).waiters, live.place("x"), 60)


def test_a_visitor_and_an_opener_do_not_meet(tmp_path):
    """Promises are settled while executions are opened and let go: all values arrive, none twice."""
    with open_log(tmp_path / "log") as log:
        tokens = []
        with running(log) as live:
            for number in range(15):
                tokens.append(promise_at(log, live, f"p{number}").token())

        def settle() -> int:
            return sum(log.executions.resolve(token, number) for number, token in enumerate(tokens))

        settling = [Aside(settle) for _ in range(2)]
        runs = 0
        while runs < 5 or any(one.thread.is_alive() for one in settling):
            runs += 1
            with running(log) as live:
                promise_at(log, live, f"run{runs}")
        assert sum(one.result() for one in settling) == len(tokens)
        with running(log) as live:
            assert [promise_at(log, live, f"p{number}").result() for number in range(15)] == list(range(15))
            resolved = [
                e for block in room_of(log).store.load(ID)[0] for e in block() if isinstance(e, PromiseResolved)
            ]
            assert len(resolved) == len(tokens)


def test_what_could_not_be_stored_is_not_taken_for_settled_by_a_second_caller(tmp_path, monkeypatch):
    """The program may have seen the value; the log has not got it until the execution is opened again."""
    with open_log(tmp_path / "log") as log:
        with running(log) as live:
            token = promise_at(log, live).token()
            refuse_next_commit(log, monkeypatch, Unavailable("the disk is full"))
            for _ in range(3):
                with pytest.raises(HoldfastError):
                    log.executions.resolve(token, 1)
        assert log.executions.resolve(token, 2)
        assert not log.executions.resolve(token, 3)
        with running(log) as live:
            assert promise_at(log, live).result() == 2


def test_a_folded_journal_keeps_promises_and_their_tokens(tmp_path):
    with open_log(tmp_path / "log") as log:
        with running(log) as live:
            settled, open_one = promise_at(log, live, "a"), promise_at(log, live, "b")
            log.executions.resolve(settled.token(), 1)
            token = open_one.token()
            fold(room_of(log).store, live.journal)
        assert log.executions.resolve(token, 2)
        with running(log) as live:
            assert [promise_at(log, live, name).result() for name in ("a", "b")] == [1, 2]


def test_tokens_and_their_hashes_are_what_the_format_says():
    """Tokens that were given out stay good: format 0011."""
    token = Token(UUID(int=1), bytes(range(16)), bytes(range(32)))
    text = "hfp1_AAAAAAAAAAAAAAAAAAAAAQABAgMEBQYHCAkKCwwNDg8AAQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHw"
    assert token.text() == text
    assert parse_token(text) == token
    assert token.hash().hex() == "46db08636e4e7727469de582e84092cf098e613cef6e76b7f34ad584d7c5a324"


def test_a_token_may_be_an_argument_of_a_step(tmp_path):
    """Each run has another one of the same promise; that is no divergence. One of another promise is."""
    sent: list[str] = []

    def begin(log, name):
        with log.execution("e", id=ID) as ctx:
            approval, other = ctx.promise("approval"), ctx.promise("other")
            token = {"approval": approval, "other": other}[name].token()
            ctx.step("ask", sent.append, f"https://shop.example/approve?token={token}")
            raise ConnectionError("it ends here")

    for name, expected in (("approval", ConnectionError), ("approval", ConnectionError), ("other", Diverged)):
        with open_log(tmp_path / "log") as log:
            if sent:
                log.executions.resume(ID)
            with pytest.raises(expected):
                begin(log, name)
    assert len(sent) == 1
