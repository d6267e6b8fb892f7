"""An owner that was suspended, overtaken, and wakes up: it is acknowledged nothing, and leaves nothing that counts.

A is a process of its own (SIGSTOP, SIGCONT); B restores from the store, which takes the log over, and goes on: it
ships, seals, and removes what A left. What A has under way meanwhile waits in a proxy, and reaches the server later.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal
from uuid import uuid4

import obstore
import pytest

import holdfast
from holdfast import Log
from tests.crash.ship_victim import settings
from tests.store import shipped_logs
from tests.store.fault_proxy import Fault, FaultProxy, Request, _Message, _Upstream
from tests.store.servers import S3Server, weed
from tests.store.shipped_logs import Place

pytestmark = [pytest.mark.crash, pytest.mark.store]

PATIENCE = 30.0
FENCED = "refused Closed fenced"


class HoldingProxy(FaultProxy):
    """Holds one request of A until it is released: before the server hears of it, or its answer."""

    def __init__(self, upstream_port: int) -> None:
        super().__init__(upstream_port, self._choose)
        self._wanted: Callable[[Request], bool] = lambda request: False
        self._when: Literal["before", "after"] = "before"
        self._go_on = asyncio.Event()
        self.held = threading.Event()
        self.passed = threading.Event()

    def hold(self, wanted: Callable[[Request], bool], when: Literal["before", "after"] = "before") -> None:
        """The next request like this waits."""
        self._wanted, self._when = wanted, when

    def release(self) -> None:
        """What was held goes on; returns when it has reached the server."""
        assert self.held.is_set()
        self._loop.call_soon_threadsafe(self._go_on.set)
        assert self.passed.wait(PATIENCE)

    def _choose(self, request: Request) -> Fault | None:
        if self.held.is_set() or not self._wanted(request):
            return None
        return Fault("held", "pass")

    async def _apply(self, fault: Fault, message: _Message, client: asyncio.StreamWriter, upstream: _Upstream) -> bool:
        if fault.name != "held":
            return await super()._apply(fault, message, client, upstream)
        await message.invite(client)
        data = message.head + await message.body()
        if self._when == "after":
            await upstream.send(data, 0)
            reply = await upstream.reply(message.method)
        self.held.set()
        await self._go_on.wait()
        if self._when == "before":
            await upstream.send(data, 0)
            reply = await upstream.reply(message.method)
        self.passed.set()
        return await self._answer(Fault("pass", "pass"), reply, client)


class Owner:
    """A process that owns a log and follows orders."""

    def __init__(self, directory: Path, endpoint: str, prefix: str) -> None:
        command = [sys.executable, "-m", "tests.crash.ship_victim", "obey", str(directory), endpoint, prefix]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, **shipped_logs.ENVIRONMENT}
        )
        self.opened = self._answer()

    def ask(self, command: str) -> str:
        """Its answer to a command."""
        self.tell(command)
        return self._answer()

    def tell(self, command: str) -> None:
        """A command whose answer is asked for later (`answer`)."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{command}\n".encode())
        self._process.stdin.flush()

    def answer(self) -> str:
        return self._answer()

    def suspend(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()

    def _answer(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().decode().strip()


class Stage:
    """One root on the server, its owner A, and its later owner B."""

    def __init__(self, directory: Path, server: S3Server) -> None:
        self.directory, self.server = directory, server
        self.prefix = uuid4().hex
        self.proxy = HoldingProxy(server.port)
        self._owners: list[Owner] = []
        self.a = self.open_a()
        self._copies = 0

    def open_a(self) -> Owner:
        self._owners.append(Owner(self.directory / "a", self.proxy.endpoint, self.prefix))
        return self._owners[-1]

    def take_over(self, *, seals: bool = True) -> dict[Place, bytes]:
        """B restores, ships, seals, and removes commit batches; returns its history."""
        own = settings(self.server.endpoint)
        holdfast.restore(shipped_logs.url(self.prefix), self.directory / "b", settings=own)
        history: dict[Place, bytes] = {}
        for session in range(2):
            with self.open_b() as log:
                topic = log.topic("orders")
                for number in range(3):
                    topic.append(f"b {session} {number}".encode(), durability="shipped")
                if seals:
                    log.seal()
                    log.ship(PATIENCE)
                topic.append(f"b {session} tail".encode(), durability="shipped")
                history = shipped_logs.records(log)
        return history

    def open_b(self) -> Log:
        own = settings(self.server.endpoint)
        return holdfast.open(self.directory / "b", store=shipped_logs.url(self.prefix), settings=own)

    def visible(self) -> dict[Place, bytes]:
        """What a restore would see now."""
        self._copies += 1
        copy = self.directory / f"copy{self._copies}"
        return shipped_logs.restored(self.server.endpoint, self.prefix, copy)[1]

    def keys(self, below: str) -> list[str]:
        pages = obstore.list(self.server.client(), f"{self.prefix}/{below}")
        return [str(info["path"]).removeprefix(f"{self.prefix}/") for page in pages for info in page]

    def end(self) -> None:
        for owner in self._owners:
            owner.end()
        self.proxy.close()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with weed(tmp_path_factory.mktemp("weed")) as own:
        yield own


@pytest.fixture
def stage(server: S3Server, tmp_path: Path) -> Iterator[Stage]:
    """A has shipped a segment and a tail."""
    built = Stage(tmp_path, server)
    try:
        assert built.a.opened == "ready"
        assert built.a.ask("ship a 0") == "at 0"
        assert built.a.ask("seal") == "sealed"
        assert built.a.ask("settle") == "settled"
        assert built.a.ask("ship a 1") == "at 1"
        yield built
    finally:
        built.end()


def require_fenced(stage: Stage, history: dict[Place, bytes]) -> None:
    """A is acknowledged nothing any more, says why, takes no records either, and nothing of it counts."""
    assert stage.a.ask("ship zombie") == FENCED
    assert stage.a.ask("append zombie") == FENCED
    assert "another process has taken this log over" in stage.a.ask("state")
    assert stage.visible() == history
    assert not any(b"zombie" in payload for payload in history.values())
    with stage.open_b() as log:
        log.topic("orders").append(b"b goes on", durability="shipped")
        history = shipped_logs.records(log)
    assert stage.visible() == history


# -- suspended --------------------------------------------------------------------------------------------


def test_a_suspended_owner_wakes_up_fenced(stage: Stage) -> None:
    """Also when B has removed all that A had shipped in batches."""
    stage.a.suspend()
    history = stage.take_over()
    assert [payload for _, payload in sorted(history.items())][:2] == [b"a 0", b"a 1"]
    assert not [key for key in stage.keys("tail/00000000000000000001/") if key.endswith(".arrow")]
    stage.a.resume()
    require_fenced(stage, history)


def test_an_owner_that_slept_for_hours_wakes_up_fenced(stage: Stage) -> None:
    """Nothing depends on the clock: its own is hours ahead now, so that the server refuses its signatures at first."""
    stage.a.suspend()
    history = stage.take_over()
    stage.a.resume()
    assert stage.a.ask("jump 5") == "jumped"
    require_fenced(stage, history)


def test_an_owner_that_is_overtaken_while_it_works_is_fenced(stage: Stage) -> None:
    """Not suspended at all: it appends on, and its next acknowledgement fails."""
    history = stage.take_over()
    require_fenced(stage, history)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("what_for", ["nothing", "something"])
def test_an_owner_that_is_opened_again_stays_fenced(stage: Stage, what_for: str) -> None:
    """With nothing to ship, or with records that never arrived: it is refused, and nothing of it counts."""
    stage.a.suspend()
    history = stage.take_over()
    stage.a.resume()
    if what_for == "something":
        assert stage.a.ask("submit zombie") == "submitted"
        assert stage.a.ask("ship zombie") == FENCED
    stage.a.ask("close")
    for _ in range(2):
        stage.a.end()
        stage.a = stage.open_a()
        assert stage.a.opened == FENCED or stage.a.ask("ship zombie") == FENCED
        assert stage.visible() == history


# -- with a request under way -----------------------------------------------------------------------------


@pytest.mark.sampled(1)
@pytest.mark.parametrize("seals", [True, False], ids=["removed", "kept"])
def test_a_batch_that_arrives_after_the_takeover_does_not_count(stage: Stage, seals: bool) -> None:
    """Everything had changed when it arrived; what B wrote in its place is in segments, or still in batches."""
    stage.proxy.hold(lambda request: request.method == "PUT" and "/tail/" in request.path)
    assert stage.a.ask("submit zombie") == "submitted"
    assert stage.proxy.held.wait(PATIENCE)
    stage.a.suspend()
    history, before = stage.take_over(seals=seals), set(stage.keys("tail/"))
    stage.proxy.release()
    assert len(set(stage.keys("tail/")) - before) == 1, "it was applied after all"
    stage.a.resume()
    require_fenced(stage, history)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("part", ["/segments/", "/_manifest/"], ids=["segment", "manifest"])
def test_a_segment_that_arrives_after_the_takeover_does_not_count(stage: Stage, part: str) -> None:
    """Its records came in a batch before, and are B's: they are there once, in a segment of B."""
    stage.proxy.hold(lambda request: request.method == "PUT" and part in request.path)
    assert stage.a.ask("ship a 2") == "at 2"
    stage.a.tell("seal")
    assert stage.proxy.held.wait(PATIENCE)
    stage.a.suspend()
    history, before = stage.take_over(), set(stage.keys("topics/"))
    stage.proxy.release()
    late = set(stage.keys("topics/")) - before
    assert len(late) == (0 if part == "/_manifest/" else 1), "it was applied, unless its place was taken"
    stage.a.resume()
    assert stage.a.answer() == "sealed"
    assert [payload for _, payload in sorted(history.items())][:4] == [b"a 0", b"a 1", b"a 2", b"b 0 0"]
    require_fenced(stage, history)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("request_", ["floor", "removal"])
def test_tidying_that_arrives_after_the_takeover_removes_nothing_of_the_successor(stage: Stage, request_: str) -> None:
    """A says which batches it does not need any more, or removes them, when all of that is B's business."""
    if request_ == "floor":
        stage.proxy.hold(lambda request: request.method == "PUT" and request.path.endswith(".floor"))
    else:
        stage.proxy.hold(lambda request: request.method in ("POST", "DELETE"))
    stage.a.tell("close")
    assert stage.proxy.held.wait(PATIENCE)
    stage.a.suspend()
    history = stage.take_over()
    stage.proxy.release()
    stage.a.resume()
    assert stage.a.answer() == "closed"
    assert stage.visible() == history


def test_a_claim_that_arrives_after_the_takeover_is_refused(stage: Stage) -> None:
    """A is opened again, and B is faster by the time that A's claim needs to arrive."""
    assert stage.a.ask("close") == "closed"
    stage.proxy.hold(lambda request: request.method == "PUT" and "/epochs/" in request.path)
    stage.a = stage.open_a()
    assert stage.a.ask("submit zombie") == "submitted"
    assert stage.proxy.held.wait(PATIENCE)
    stage.a.suspend()
    history = stage.take_over()
    stage.proxy.release()
    stage.a.resume()
    require_fenced(stage, history)


def test_a_question_that_arrives_after_the_takeover_is_answered_truly(stage: Stage) -> None:
    """The batch arrived before the takeover, the question whether it counts did not: B has it, A hears nothing."""
    stage.proxy.hold(lambda request: request.method == "HEAD" and "/epochs/" in request.path)
    stage.a.tell("ship a, unheard")
    assert stage.proxy.held.wait(PATIENCE)
    history = stage.take_over()
    assert b"a, unheard" in history.values()
    stage.proxy.release()
    assert stage.a.answer() == FENCED
    require_fenced(stage, history)


def test_an_answer_that_arrives_after_the_takeover_was_true(stage: Stage) -> None:
    """Nobody had taken over when A asked: so what A hears is on the store, is in B's history."""
    stage.proxy.hold(lambda request: request.method == "HEAD" and "/epochs/" in request.path, "after")
    stage.a.tell("ship a, heard")
    assert stage.proxy.held.wait(PATIENCE)
    history = stage.take_over()
    stage.proxy.release()
    assert stage.a.answer() == "at 2"
    assert history["orders", 0, 2] == b"a, heard"
    require_fenced(stage, history)
