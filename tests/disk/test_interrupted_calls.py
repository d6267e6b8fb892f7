"""A log that is used by a signal handler, or by `__del__`, in the middle of another call of the same thread.

It gets what it asks for, or a typed refusal at once: nobody waits for what only the interrupted call can let go of.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from types import FrameType
from typing import Any

import pyarrow as pa
import pytest
from tests.remote.served import ServedLog

import holdfast
from holdfast import Log, Unavailable, signals
from holdfast.journal.queue.group import Run
from holdfast.journal.queue.ticket import Ticket
from holdfast.log.consumers.consumer import Consumer
from holdfast.sharing.wakeup_pipe import WakeupPipe

pytestmark = pytest.mark.disk

_TIMES = 16
_ROOT = str(Path(holdfast.__file__).parent)


def at_every_step(
    call: Callable[[], object],
    handle: Callable[[], object],
    step: int = 1,
    most: int = 100_000,
    within: tuple[str, ...] = (_ROOT,),
    while_: Callable[[], bool] = lambda: True,
) -> int:
    """Call again and again, each time with the handler at another bytecode of holdfast's; how often it came.

    Where that would be more often than `most`, steps are left out, more and more of them. `within` are the files that
    count, and only those steps do at which `while_` holds.
    """
    nth, times = 1, 0
    wrong: list[BaseException] = []
    while True:
        seen, was_handled = 0, False

        def trace(frame: FrameType, event: str, _: object, nth: int = nth) -> Any:
            nonlocal seen, was_handled
            if not frame.f_code.co_filename.startswith(within) or was_handled:
                return None
            frame.f_trace_opcodes = True
            if event == "opcode" and while_():
                seen += 1
                if seen == nth and not was_handled:
                    was_handled = True
                    try:
                        handle()
                    except BaseException as error:  # from here it would end the call, perhaps with a lock held
                        wrong.append(error)
            return trace

        sys.settrace(trace)
        try:
            call()
        finally:
            sys.settrace(None)
        if wrong:
            raise wrong[0]
        if not was_handled:
            return times
        times += 1
        nth += max(step, nth * 4 // most)


@contextmanager
def opened(kind: str, tmp_path: Path) -> Iterator[Log]:
    settings = {"segments": {"seal_on_close": False}, "journal": {"ack_timeout_ms": 20_000}}
    if kind == "client":
        with ServedLog(tmp_path / "log") as server, server.connect() as log:
            yield log  # type: ignore[misc]
        return
    with holdfast.open(tmp_path / "log", share=kind == "member", settings=settings) as log:
        if kind == "member":
            with holdfast.open(tmp_path / "log", share=True, settings=settings) as member:
                yield member
        else:
            yield log


@pytest.mark.parametrize("kind", ["owner", "member", "client"])
def test_a_handler_that_appends_in_the_middle_of_a_submit(tmp_path: Path, kind: str) -> None:
    with opened(kind, tmp_path) as log:
        topic = log.topic("t")
        asked: list[bytes] = []
        written: list[bytes] = []
        refused: list[Unavailable] = []

        def handle() -> None:
            for verb in (topic.submit, topic.append):
                payload = b"handler-%d" % len(asked)
                asked.append(payload)
                try:
                    verb(payload)
                    written.append(payload)
                except Unavailable as error:
                    assert "interrupted" in error.message
                    assert error.hint
                    refused.append(error)
            payload = b"offered-%d" % len(asked)
            asked.append(payload)
            if topic.offer(payload):
                written.append(payload)

        def call() -> None:
            payload = b"call-%d" % len(asked)
            written.append(payload)
            topic.submit(payload)

        times = at_every_step(call, handle, step=1 if kind == "owner" else 9)
        log.flush()
        assert times > 5
        assert refused, "it never came while the lock was held"
        assert sorted(record.payload for record in topic.read()) == sorted(written)


VERBS = [
    "append", "offer", "append_batch", "flush", "stats", "transaction", "read", "marks", "poll", "commit", "consumed",
]  # fmt: skip


@pytest.mark.sampled(2, each=("kind",))
@pytest.mark.parametrize("kind", ["owner", "member", "client"])
@pytest.mark.parametrize("verb", VERBS)
def test_a_handler_in_the_middle_of_any_verb_is_answered(tmp_path: Path, kind: str, verb: str) -> None:
    """With what it asked for, or at once with a refusal: also where another thread would have to bring the answer."""
    with opened(kind, tmp_path) as log:
        topic = log.topic("t")
        log.topic("in").append_batch([b"%d" % number for number in range(1_000)])
        consumer, given = log.topic("in").consumer("c"), list[int]()

        def poll() -> None:
            given.extend(record.offset for record in consumer.poll(1, timeout=0))

        def transaction(*consumed: Any) -> None:
            with log.transaction() as tx:
                tx.append("t", b"in a transaction")
                for one in consumed:
                    tx.consumed(one)

        calls: dict[str, Callable[[], object]] = {
            "append": lambda: topic.append(b"a"),
            "offer": lambda: topic.offer(b"o"),
            "append_batch": lambda: topic.append_batch([b"b"]),
            "flush": log.flush,
            "stats": log.stats,
            "transaction": transaction,
            "read": lambda: next(iter(topic.read(limit=1)), None),
            "marks": topic.marks,
            "poll": poll,
            "commit": consumer.commit,
            "consumed": lambda: transaction(consumer),
        }

        def handle() -> None:
            for call in calls.values():
                try:
                    call()
                except Unavailable as error:
                    assert "interrupted" in error.message
                except holdfast.Invalid as error:  # it interrupted that transaction
                    assert "a transaction that has not ended has this consumer's position" in error.message

        assert at_every_step(calls[verb], handle, most=_TIMES)
        assert len(given) == len(set(given)), "a record was given out twice"


def test_the_end_of_an_object_in_the_middle_of_a_submit(open_log: Callable[..., Log]) -> None:
    topic = open_log().topic("t")
    came: list[object] = []

    class Farewell:
        def __del__(self) -> None:
            try:
                came.append(topic.append(b"farewell"))
            except Unavailable as error:
                came.append(error)

    def handle() -> None:
        Farewell()

    times = at_every_step(lambda: topic.submit(b"call"), handle)
    assert len(came) == times
    assert any(isinstance(one, Unavailable) for one in came)


def ticket_of_the_open_group(log: Log) -> Ticket:
    """It cannot be done while the interrupted call keeps the queue; a ticket from before may be, at any moment."""
    journal = log._journal
    return Ticket(Run(journal._queue._open, journal.topics["t"][0]), 0, 60)


WAITS: dict[str, Callable[[Log, Consumer[Any]], object]] = {
    "seal": lambda log, consumer: log.seal(),
    "wait_sealed": lambda log, consumer: log.topic("t").wait_sealed(10**6, 60),
    "follow": lambda log, consumer: next(log.topic("empty").follow()),  # on "t" there may be a record just now
    "consumer": lambda log, consumer: log.topic("t").consumer("c", start="next"),
    "poll": lambda log, consumer: consumer.poll(timeout=60),
    "result": lambda log, consumer: ticket_of_the_open_group(log).result(),
}


@pytest.mark.parametrize("kind", ["owner", "member"])
@pytest.mark.parametrize("wait", WAITS)
def test_a_handler_does_not_wait_for_what_only_the_interrupted_call_lets_go_of(
    tmp_path: Path, kind: str, wait: str
) -> None:
    with opened(kind, tmp_path) as log, log.topic("empty").consumer("e") as consumer:
        topic = log.topic("t")
        topic.append(b"first")
        queue = log._journal._queue
        refused = []

        def handle() -> None:
            if queue._is_inside():  # elsewhere it may wait, as anybody may
                with pytest.raises(Unavailable, match="interrupted") as error:
                    WAITS[wait](log, consumer)
                refused.append(error)

        at_every_step(lambda: topic.submit(b"call"), handle, step=7)
        assert refused
        assert topic.append(b"and on").offset > 1


OTHERS_MAY_HAVE: dict[str, Callable[[Log, Consumer[Any]], object]] = {
    "topic": lambda log, consumer: log.topic("new"),
    "consumers": lambda log, consumer: log.topic("t").consumer("f", start="next"),
    "members": lambda log, consumer: consumer.poll(timeout=0),
    "commits": lambda log, consumer: consumer.commit(),
}


@pytest.mark.parametrize("kind", ["owner", "member"])
def test_a_handler_does_not_wait_for_a_thread_that_waits_for_the_interrupted_call(tmp_path: Path, kind: str) -> None:
    """A thread that has what it asks for may wait for the queue, or for news, which the interrupted one keeps."""
    with opened(kind, tmp_path) as log, log.topic("t").consumer("e") as consumer:
        run_execution(log)
        journal = log._journal
        asks = dict(OTHERS_MAY_HAVE)
        if kind == "owner":
            asks |= {
                "statuses": lambda log, consumer: log.consumers(),
                "executions": lambda log, consumer: log.executions.list(),
                "rows": lambda log, consumer: log.stats(),
            }
        positions = {name: asks[name] for name in asks.keys() & {"consumers", "members", "commits", "statuses"}}
        for lock, refused in (
            (journal._queue.lock, asks),
            (consumer._kept._lock, positions),  # type: ignore[attr-defined]
            (journal._catch_up._lock, asks if kind == "member" else {}),
        ):
            for ask in refused.values():
                with lock, pytest.raises(Unavailable, match="interrupted"):
                    ask(log, consumer)
        log.topic("new").append(b"and on")


def test_a_handler_that_opens_a_consumer_while_one_is_opened_over_http(tmp_path: Path) -> None:
    with opened("client", tmp_path) as log:
        topic, lock = log.topic("t"), log._consumers._lock  # type: ignore[attr-defined]

        def handle() -> None:
            with pytest.raises(Unavailable, match="interrupted"):
                topic.consumer("d")

        assert at_every_step(lambda: topic.consumer("c").close(), handle, most=20, while_=lock._is_owned)


ASKS: dict[str, Callable[[Log, int], object]] = {
    "topic": lambda log, number: log.topic(f"new-{number}"),
    "stats": lambda log, number: log.stats(),
    "seal": lambda log, number: log.seal(),
    "execution": lambda log, number: run_execution(log),
}


def run_execution(log: Log) -> None:
    with log.execution("work") as ctx:
        ctx.step("one", lambda: 1)


@pytest.mark.parametrize("kind", ["owner", "member"])
@pytest.mark.parametrize("verb", ASKS)
def test_a_handler_in_the_middle_of_waiting_for_another_thread(tmp_path: Path, kind: str, verb: str) -> None:
    """It is answered by the very thread that is about to wake whom it interrupted; and may ask for the same again."""
    with opened(kind, tmp_path) as log:
        topic, numbers = log.topic("t"), count()

        def handle() -> None:
            for ask in (lambda log, number: topic.append(b"handler"), ASKS[verb]):
                try:
                    ask(log, next(numbers))
                except Unavailable as error:
                    assert "interrupted" in error.message

        times = at_every_step(
            lambda: ASKS[verb](log, next(numbers)), handle, most=200, within=(threading.__file__, signals.__file__)
        )
        assert times or verb == "stats"  # of an owner it waits for nobody


@pytest.mark.parametrize("kind", ["owner", "member"])
def test_a_handler_while_an_execution_is_changed(tmp_path: Path, kind: str) -> None:
    """The writer, who makes the commits of executions, does not wait for who was interrupted while it changes one."""
    with opened(kind, tmp_path) as log:
        topic = log.topic("t")
        run_execution(log)
        owner: Any = log if kind == "owner" else log._executions._context.journal.news.owned_here()
        lock, answers = owner._executions._stored().lock, []

        def handle() -> None:
            try:
                answers.append(topic.append(b"handler"))
            except Unavailable as error:
                assert "interrupted" in error.message

        times = at_every_step(lambda: run_execution(log), handle, most=60, while_=lock._is_owned)
        assert len(answers) > times // 2 > 20


def test_a_handler_in_the_middle_of_a_typed_row(open_log: Callable[..., Log]) -> None:
    topic = open_log().topic("t", schema=pa.schema([("n", pa.int64())]))
    written, refused = [], []

    def append(number: int) -> None:
        topic.submit({"n": number})
        written.append(number)

    def handle() -> None:
        try:
            append(-len(written))
        except Unavailable as error:
            refused.append(error)

    at_every_step(lambda: append(len(written)), handle, step=5)
    topic.append({"n": 10**6})
    assert refused
    assert sorted(row["n"] for row in topic.read()) == sorted([*written, 10**6])


def test_a_handler_that_uses_a_consumer_in_the_middle_of_its_commit(open_log: Callable[..., Log]) -> None:
    """Its own, or another member of the same name: what is committed is what one of them was given, each once."""
    log = open_log()
    topic = log.topic("t", partitions=2)
    topic.append_batch([b"%d" % number for number in range(400)])
    with topic.consumer("c") as consumer, topic.consumer("c") as other, topic.consumer("d") as third:
        given: list[tuple[int, int]] = []
        refused = []

        def commit(one: Any) -> None:
            given.extend((record.partition, record.offset) for record in one.poll(1, timeout=0))
            one.commit()

        def handle() -> None:
            for one in (consumer, other, third):
                try:
                    one.poll(1, timeout=0) if one is third else commit(one)
                    assert len(one.partitions) in (1, 2)
                except Unavailable as error:
                    assert "interrupted" in error.message
                    refused.append(error)

        at_every_step(lambda: commit(consumer), handle, most=60)
        assert refused
        assert len(given) == len(set(given))
        for one in (consumer, other):
            one.commit()
        assert [status.members for status in log.consumers("t")] == [2, 1]


def test_a_handler_in_the_middle_of_a_ring_wakes_the_thread_that_sends() -> None:
    """It waits for that thread, and what it interrupted cannot wake it meanwhile."""
    pipe = WakeupPipe()
    heard: list[bool] = []

    def call() -> None:
        with suppress(BlockingIOError):
            pipe._out.recv(4096)
        pipe._is_asleep = True
        pipe.ring()

    def handle() -> None:
        pipe.ring()
        heard.append(pipe.wait(None, 0)[0])

    try:
        assert at_every_step(call, handle) > 5
        assert all(heard)
    finally:
        pipe.close()


@pytest.mark.filterwarnings("ignore:.*blocks the event loop")  # which a handler may do
def test_a_handler_that_interrupts_the_loop_of_a_coroutine(tmp_path: Path) -> None:
    """Also in the middle of a turn that the loop takes for a member: it is refused, and nobody waits for nobody."""
    with opened("member", tmp_path) as log:
        topic = log.topic("t")
        written: list[bytes] = []
        refused: list[Unavailable] = []

        def handle() -> None:
            payload = b"handler-%d" % len(written)
            for verb in (topic.submit, topic.append, lambda _: log.topic(f"new-{len(written) % 3}")):
                try:
                    verb(payload)
                    written.extend([payload] if verb == topic.submit or verb == topic.append else [])
                except Unavailable as error:
                    assert "interrupted" in error.message
                    refused.append(error)

        async def use() -> None:
            for number in range(30):
                written.append(b"call-%d-%d" % (len(written), number))
                await topic.append_async(written[-1])

        asyncio.run(use())
        at_every_step(lambda: asyncio.run(use()), handle, most=24)
        assert refused
        log.flush()
        assert sorted(record.payload for record in topic.read()) == sorted(written)
