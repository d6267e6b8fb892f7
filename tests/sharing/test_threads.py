"""What several threads use at once, used so: threads and event loops, in a process that switches all the time.

Connections are cut fifty times a second and the log changes hands meanwhile. Each run ends by itself, after so many
appends: nobody is left waiting, nothing escapes but what is documented, and what was acknowledged is there exactly
once, in order and where the receipt says.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

import holdfast
from holdfast import Log
from holdfast.journal.commit import forwarder
from holdfast.owner import event_relay, owner_notifications
from holdfast.owner.event_relay import ShippingEventRelay
from holdfast.owner.owner_notifications import OwnerNotifications
from holdfast.owner.peer import Peer
from holdfast.sharing import membership, owner_link
from holdfast.sharing.hosting import client_connection
from holdfast.sharing.loop_driver import LoopDriver
from holdfast.sharing.membership import Membership
from holdfast.sharing.owner_link import SocketLink
from holdfast.sharing.unanswered import UnansweredGroups
from tests.remote.cutting_proxy import CuttingProxy
from tests.remote.served import ServedLog

pytestmark = pytest.mark.disk

THREADS, LOOPS = 4, 2
SIZES = [pytest.param(400, id="small"), pytest.param(2_000, id="large", marks=pytest.mark.soak)]
_CUT_S = 0.02
_HANGS_S = 120
SETTINGS = {"journal": {"ack_timeout_ms": 60_000}, "segments": {"seal_on_close": False}}

Work = Callable[[str], object]
WorkAsync = Callable[[str], Coroutine[Any, Any, object]]


@pytest.fixture(autouse=True)
def switching() -> Iterator[None]:
    """Threads take turns as often as the interpreter allows."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


class MemberPartition:
    """A lock that knows which thread has it."""

    def __init__(self) -> None:
        self._lock: Any = threading.RLock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def _is_owned(self) -> bool:
        return bool(self._lock._is_owned())

    @property
    def is_mine(self) -> bool:
        return self._is_owned()


_GUARDED: dict[type, tuple[str, set[str]]] = {
    SocketLink: ("turns", {"_sock", "_met", "_known", "_loop_driver", "_unsent", "_frames", "_sent_by_thread"}),
    Membership: (
        "_lock",
        {"_owner", "_host", "_is_over", "_keeps", "_wanted", "_leaving", "_held_off_until", "_is_paused"},
    ),
    Peer: ("_lock", {"is_gone", "_ends"}),
    ShippingEventRelay: ("_lock", {"_subscribers", "_is_told", "_has_gap"}),
    OwnerNotifications: ("_lock", {"_shipping", "_thread"}),
}
"""Which lock guards what: nobody changes it without."""


@pytest.fixture(autouse=True)
def guarded(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Finds who changes something without its lock, whether or not another thread comes in between this time."""
    broken: list[str] = []
    for module in (forwarder, owner_link, membership, client_connection, event_relay, owner_notifications):
        for name in ("Lock", "RLock"):
            monkeypatch.setattr(module, name, MemberPartition, raising=False)

    def guard(kind: type, lock: str, names: set[str]) -> None:
        def change(self: object, name: str, value: object) -> None:
            held = vars(self).get(lock)
            if name in names and name in vars(self) and isinstance(held, MemberPartition) and not held.is_mine:
                broken.append(f"{kind.__name__}.{name} without {lock} in {threading.current_thread().name}")
            object.__setattr__(self, name, value)

        monkeypatch.setattr(kind, "__setattr__", change)

    for kind, (lock, names) in _GUARDED.items():
        guard(kind, lock, names)
    first = UnansweredGroups.first.fget
    links: list[SocketLink] = []
    make = SocketLink.__init__
    monkeypatch.setattr(SocketLink, "__init__", lambda self, *given: (links.append(self), make(self, *given))[1])

    def looked_at(self: UnansweredGroups) -> int:
        if not any(link._unanswered is self and link.turns.is_mine for link in links):  # type: ignore[attr-defined]
            broken.append(f"UnansweredGroups.first without a turn in {threading.current_thread().name}")
        return first(self)  # type: ignore[misc]

    monkeypatch.setattr(UnansweredGroups, "first", property(looked_at))
    yield broken
    assert not broken, sorted(set(broken))


@pytest.fixture(autouse=True)
def escaped(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[BaseException]]:
    """What ended a thread, of ours or of holdfast's: nothing may."""
    found: list[BaseException] = []
    monkeypatch.setattr(threading, "excepthook", lambda given: found.append(given.exc_value))
    yield found
    assert not found, found


def all_at_once(work: Work, work_async: WorkAsync | None, disturb: Callable[[int], object]) -> None:
    """Do this in four threads and on two loops, and disturb them until all have ended; raises what went wrong."""
    failures: list[BaseException] = []

    def run(call: Callable[[], object]) -> None:
        try:
            call()
        except BaseException as error:  # also what is no Exception: it must not come here
            failures.append(error)

    calls = [lambda name=f"thread-{number}": work(name) for number in range(THREADS)]
    if work_async is not None:
        calls += [lambda name=f"loop-{number}": asyncio.run(work_async(name)) for number in range(LOOPS)]
    running = [threading.Thread(target=run, args=(call,), daemon=True) for call in calls]
    for thread in running:
        thread.start()
    for turn in range(int(_HANGS_S / _CUT_S)):
        for thread in running:
            thread.join(_CUT_S / len(running))
        if not any(thread.is_alive() for thread in running):
            break
        disturb(turn)
    for thread in running:
        thread.join(_HANGS_S / len(running))
    assert not any(thread.is_alive() for thread in running), "somebody waits for nothing"
    assert not failures, failures


class Appended:
    """What was acknowledged to whom."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.receipts: dict[str, int] = {}

    def to(self, topic: Any) -> tuple[Work, WorkAsync]:
        """Appending to a topic, by the worker of this name."""

        def work(name: str) -> None:
            for number in range(self.count):
                self.receipts[f"{name}:{number}"] = topic.append(f"{name}:{number}".encode()).offset

        async def work_async(name: str) -> None:
            async def one(task: int) -> None:
                for number in range(self.count // 2):
                    payload = f"{name}-{task}:{number}"
                    self.receipts[payload] = (await topic.append_async(payload.encode())).offset

            await asyncio.gather(one(0), one(1))

        return work, work_async

    def check(self, topic: Any) -> None:
        stored = [record.payload.decode() for record in topic.read()]
        assert {payload: offset for offset, payload in enumerate(stored)} == self.receipts
        assert len(stored) == len(self.receipts) == self.count * (THREADS + LOOPS)
        numbers: dict[str, int] = {}
        for payload in stored:
            name, number = payload.split(":")
            assert int(number) == numbers.get(name, -1) + 1, payload
            numbers[name] = int(number)


def link_of(log: Log) -> SocketLink:
    link = log._journal.link
    assert isinstance(link, SocketLink)
    return link


def membership_of(log: Log) -> Membership:
    shared: Any = log._lifetime.shared
    return shared._membership


def cut(log: Log) -> None:
    """End a member's connection, as if its owner were gone."""
    sock = link_of(log)._sock
    if sock is not None:
        with suppress(OSError):
            sock.shutdown(2)


class Members:
    """Several members of one log, all in this process."""

    def __init__(self, directory: Path, count: int = 3) -> None:
        self._stack = ExitStack()
        self.logs = [
            self._stack.enter_context(holdfast.open(directory, share=True, settings=SETTINGS)) for _ in range(count)
        ]

    def disturb(self, turn: int) -> None:
        """Cut all connections; now and then, have the owner hand over."""
        for log in self.logs:
            cut(log)
        if turn % 20 == 19:
            for log in self.logs:
                if membership_of(log)._host is not None:
                    with suppress(holdfast.Invalid):  # it keeps it
                        membership_of(log).hand_over(lambda: None)

    def __enter__(self) -> Members:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()


@pytest.mark.parametrize("count", SIZES)
def test_a_shared_log_stands_threads_loops_and_cuts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    turns: list[LoopDriver] = []
    begin = LoopDriver.__init__
    monkeypatch.setattr(LoopDriver, "__init__", lambda self, *given: (turns.append(self), begin(self, *given))[1])
    with Members(tmp_path / "log") as members:
        log = members.logs[-1]
        appended = Appended(count)
        all_at_once(*appended.to(log.topic("t")), members.disturb)
        appended.check(log.topic("t"))
        driving = link_of(log)._loop_driver
        forgotten = [one for one in turns if one._descriptor >= 0 and not one.is_over and one is not driving]
        assert not forgotten, "a loop was left with turns that nobody ends"


@pytest.mark.parametrize("count", SIZES)
def test_the_queue_of_a_journal(open_log: Callable[..., Log], count: int) -> None:
    """It has room for a few records: everybody waits for room all the time, and nobody is refused in the end."""
    log = open_log(journal={"queue_records_max": 4, "group_records_max": 2, "ack_timeout_ms": 60_000})
    appended = Appended(count)
    all_at_once(*appended.to(log.topic("t")), lambda turn: log.flush())
    appended.check(log.topic("t"))
    stats = log.stats().journal
    assert (stats.refused_total, stats.queue_records, stats.queue_bytes) == (0, 0, 0)


@pytest.mark.parametrize("count", SIZES)
def test_the_client_of_a_server(tmp_path: Path, count: int) -> None:
    with (
        ServedLog(tmp_path / "log") as server,
        CuttingProxy(server.upstream) as proxy,
        server.connect(proxy.url, settings={"journal": {"ack_timeout_ms": 60_000}}) as log,
    ):
        topic, appended = log.topic("t"), Appended(count // 16 * 2)
        all_at_once(*appended.to(topic), lambda turn: proxy.cut_all())
        appended.check(topic)


@pytest.mark.parametrize("count", SIZES)
def test_the_members_of_a_consumer(tmp_path: Path, count: int) -> None:
    """What they read and write on in one transaction is written once, however partitions move."""
    with Members(tmp_path / "log") as members:
        payloads = [b"%d" % number for number in range(count)]
        members.logs[0].topic("in", partitions=4).append_batch(payloads)
        done = threading.Event()

        def work(name: str) -> None:
            log = members.logs[int(name[-1]) % 3]
            with log.topic("in").consumer("c", patience=0.2) as consumer:
                while not done.is_set():
                    try:
                        move(log, consumer.poll(5, timeout=0.01), consumer)
                    except holdfast.HoldfastError:  # it is another one's by now, or nobody knows
                        consumer.seek("committed")
                    if log.topic("out").marks()[0].durable >= count:
                        done.set()

        def move(log: Log, records: list[Any], consumer: Any) -> None:
            if records:
                with log.transaction() as tx:
                    for record in records:
                        tx.append("out", record.payload)
                    tx.consumed(consumer)

        members.logs[0].topic("out")
        all_at_once(work, None, members.disturb)
        assert sorted(record.payload for record in members.logs[0].topic("out").read()) == sorted(payloads)


@pytest.mark.parametrize("count", SIZES)
def test_members_that_ask_for_executions(tmp_path: Path, count: int) -> None:
    """One of them gets the log, and keeps it; the others learn so, and nothing else ever comes out."""
    for again in range(max(2, count // 50)):
        with Members(tmp_path / str(again), THREADS) as members:
            begin, got = threading.Barrier(THREADS), []

            def work(name: str, members: Members = members, begin: Any = begin, got: list[str] = got) -> None:
                log = members.logs[int(name[-1])]
                begin.wait(60)
                with suppress(holdfast.Invalid), log.execution("work", id=UUID(int=int(name[-1]) + 1)) as ctx:
                    got.extend(ctx.step(f"s{number}", lambda: name) for number in range(3))

            all_at_once(work, None, lambda turn, members=members: cut(members.logs[turn % THREADS]))
            assert len(got) == 3, got
            assert len(set(got)) == 1
