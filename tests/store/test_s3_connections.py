"""The pool: always enough connections, never a dead one handed out, and no hammering on a closed door."""

from __future__ import annotations

import asyncio
import gc
import os
import socket
import struct
from contextlib import asynccontextmanager

import pytest

from holdfast.errors import Invalid
from holdfast.store.port import StoreUnavailable
from holdfast.store.s3 import async_pool as pooling
from holdfast.store.s3.async_pool import AsyncPool
from holdfast.store.s3.connections import Endpoint
from holdfast.testing.manual_clock import ManualClock

pytestmark = pytest.mark.store


class Peer:
    """A TCP server that keeps its connections, and can hang up on them."""

    def __init__(self, meet=None):
        self.accepted, self.clients, self._meet, self._tasks = 0, [], meet, set()
        self.port = 0

    async def __aenter__(self):
        await self.come_up()
        return self

    async def __aexit__(self, *_):
        self.go_down()
        await asyncio.gather(*self._tasks)

    async def come_up(self):
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    def go_down(self):
        self._server.close()
        self.hang_up()

    def hang_up(self, *, reset=False):
        for writer in self.clients:
            if reset:
                linger = struct.pack("ii", 1, 0)
                writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            writer.transport.abort() if reset else writer.close()
        self.clients.clear()

    async def _serve(self, reader, writer):
        self.accepted += 1
        self.clients.append(writer)
        self._tasks.add(asyncio.current_task())
        try:
            if self._meet is not None:
                await self._meet(reader, writer)
            while await reader.read(1024):
                pass
        except ConnectionError:
            pass
        finally:
            if writer in self.clients:
                self.clients.remove(writer)
            writer.close()


async def fine(connection):
    """An ask that is always answered."""
    connection.served += 1
    connection.reusable = True


async def silent(connection):
    """An ask that is never answered."""
    await asyncio.sleep(60)


@asynccontextmanager
async def pool_at(port, ask=fine, *, target=4, connect_timeout=5.0, heartbeat=60.0, tls=False, host="127.0.0.1"):
    pool = AsyncPool(
        Endpoint(host, port, tls),
        ask,
        target=target,
        connect_timeout=connect_timeout,
        heartbeat=heartbeat,
        clock=ManualClock(),
    )
    pool.start()
    try:
        yield pool
    finally:
        await pool.close()


async def until(condition, seconds=60):
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.005)


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def test_it_opens_as_many_connections_as_it_is_asked_for():
    """Before anybody asks for one; true sockets, each counted once."""

    async def run():
        async with Peer() as peer, pool_at(peer.port, target=7) as pool:
            await until(lambda: pool.state().healthy == 7)
            connection = await pool.acquire(5)
            state = pool.state()
            assert (state.target, state.healthy, state.in_use, state.opening) == (7, 7, 1, 0)
            pool.release(connection)
            assert pool.state().in_use == 0
            await asyncio.sleep(0.05)
            assert peer.accepted == 7

    asyncio.run(run())


def test_the_connection_used_last_is_used_next():
    """Few are kept busy, so that the others may rest and be asked."""

    async def run():
        async with Peer() as peer, pool_at(peer.port) as pool:
            await until(lambda: pool.state().healthy == 4)
            one = await pool.acquire(5)
            other = await pool.acquire(5)
            pool.release(other)
            pool.release(one)
            assert await pool.acquire(5) is one

    asyncio.run(run())


@pytest.mark.parametrize("reset", [False, True])
def test_connections_that_the_peer_closed_are_replaced(reset):
    """While they were idle, without anybody having stumbled over them."""

    async def run():
        async with Peer() as peer, pool_at(peer.port) as pool:
            await until(lambda: pool.state().healthy == len(peer.clients) == 4)
            for connection in pool._connections:
                connection.served = 1
            peer.hang_up(reset=reset)
            await until(lambda: pool.state().replaced_total == 4 and pool.state().healthy == 4)
            await until(lambda: peer.accepted == 8)

    asyncio.run(run())


@pytest.mark.parametrize("reset", [False, True])
def test_a_stale_connection_is_not_handed_out(reset):
    """Also when only the kernel knows yet that the peer has hung up."""

    async def run():
        with socket.create_server(("127.0.0.1", 0)) as server:
            async with pool_at(server.getsockname()[1], target=2) as pool:
                await until(lambda: pool.state().healthy == 2)
                accepted = [server.accept()[0] for _ in range(2)]
                last_used = pool._idle[-1]
                ours = last_used._transport.get_extra_info("sockname")
                (doomed,) = [each for each in accepted if each.getpeername() == ours]
                if reset:
                    doomed.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                doomed.close()
                connection = await pool.acquire(5)  # the loop has not been asked in between
                assert connection is not last_used
                assert connection.alive
                for each in accepted:
                    each.close()

    asyncio.run(run())


def test_a_connection_that_may_not_be_used_again_is_replaced():
    """Its user says so."""

    async def run():
        async with Peer() as peer, pool_at(peer.port, target=1) as pool:
            connection = await pool.acquire(5)
            connection.reusable = False
            pool.release(connection)
            assert await pool.acquire(5) is not connection
            assert pool.state().replaced_total == 1

    asyncio.run(run())


def test_who_comes_when_all_are_in_use_waits_for_the_next_one():
    """That is the back-pressure; first come, first served."""

    async def run():
        async with Peer() as peer, pool_at(peer.port, target=1) as pool:
            connection = await pool.acquire(5)
            waiting = [asyncio.create_task(pool.acquire(5)) for _ in range(2)]
            await asyncio.sleep(0.02)
            assert not any(task.done() for task in waiting)
            pool.release(connection)
            assert await waiting[0] is connection
            assert not waiting[1].done()
            pool.release(connection)
            assert await waiting[1] is connection

    asyncio.run(run())


def test_who_stops_waiting_loses_no_connection():
    """Even when it was handed over in the same moment."""

    async def run():
        async with Peer() as peer, pool_at(peer.port, target=1) as pool:
            connection = await pool.acquire(5)
            waiting = asyncio.create_task(pool.acquire(5))
            await asyncio.sleep(0)
            pool.release(connection)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            assert pool.state().in_use == 0
            assert await pool.acquire(1) is connection

    asyncio.run(run())


def refused():
    return pool_at(free_port(), connect_timeout=1)


def unknown_name():
    return pool_at(80, host="store.invalid", connect_timeout=5)


def too_long_a_name():
    return pool_at(80, host="x" * 70 + ".invalid", connect_timeout=5)


@pytest.mark.parametrize(
    ("open_pool", "cause"), [(refused, "refused"), (unknown_name, "dns"), (too_long_a_name, "dns")]
)
def test_waiting_in_vain_ends_with_the_reason(open_pool, cause):
    """The last failure to connect, in one word."""

    async def run():
        async with open_pool() as pool:
            await until(lambda: pool._failures)
            with pytest.raises(StoreUnavailable) as caught:
                await pool.acquire(0.1)
            assert caught.value.cause == cause
            assert not pool._waiters, "a store that is away for hours must not leave a heap of waiters"

    asyncio.run(run())


def test_a_peer_that_does_not_speak_tls_is_a_failure_of_tls():
    """It answers, but not what was expected."""

    async def plain(reader, writer):
        await reader.read(10)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    async def run():
        async with Peer(plain) as peer, pool_at(peer.port, tls=True) as pool:
            with pytest.raises(StoreUnavailable) as caught:
                await pool.acquire(0.5)
            assert caught.value.cause == "tls"

    asyncio.run(run())


def test_a_handshake_that_never_ends_is_a_time_out():
    """The peer accepts and says nothing."""

    async def run():
        async with Peer() as peer, pool_at(peer.port, tls=True, connect_timeout=0.1) as pool:
            with pytest.raises(StoreUnavailable) as caught:
                await pool.acquire(0.5)
            assert caught.value.cause == "timeout"

    asyncio.run(run())


async def at_once(reader, writer):
    writer.close()


async def banner(reader, writer):
    writer.write(b"SSH-2.0-OpenSSH_9.6\r\n")


@pytest.mark.parametrize("meet", [at_once, banner])
def test_a_peer_that_accepts_and_hangs_up_is_not_hammered(meet):
    """It counts as one that refuses: one attempt at a time, with growing pauses, however large the pool."""

    async def answered_by_peer(connection):
        await connection.changed(5)
        raise StoreUnavailable("no answer", cause="reset")

    async def run():
        async with Peer(meet) as peer, pool_at(peer.port, answered_by_peer, target=8) as pool:
            await until(lambda: pool._failures >= 4)
            assert peer.accepted <= 8 + 4
            assert pool.state().healthy == 0

    asyncio.run(run())


def test_a_store_that_refuses_is_tried_one_connection_at_a_time(monkeypatch):
    """And the pauses grow up to their cap."""
    attempts, pauses = [], []
    monkeypatch.setattr(pooling, "PAUSE_BASE", 0.001)
    monkeypatch.setattr(pooling, "PAUSE_CAP", 0.016)

    async def run():
        async with pool_at(free_port(), target=32) as pool:
            connect, call_later = pool._connect, asyncio.get_running_loop().call_later

            def later(seconds, call, *arguments):
                if call == pool._resume:
                    pauses.append(seconds)
                return call_later(seconds, call, *arguments)

            monkeypatch.setattr(asyncio.get_running_loop(), "call_later", later)

            async def counted(endpoint):
                attempts.append(pool.state().opening)
                return await connect(endpoint)

            monkeypatch.setattr(pool, "_connect", counted)
            await until(lambda: len(pauses) >= 9)

    asyncio.run(run())
    assert set(attempts) == {1}
    ceilings = [0.001, 0.002, 0.004, 0.008, 0.016, 0.016, 0.016, 0.016, 0.016]
    assert all(ceiling / 2 <= pause <= ceiling for pause, ceiling in zip(pauses, ceilings, strict=False))


def test_it_recovers_by_itself_when_the_store_is_back():
    """All connections, after the first one that answered."""

    async def run():
        async with Peer() as peer, pool_at(peer.port, target=5) as pool:
            await until(lambda: pool.state().healthy == len(peer.clients) == 5)
            peer.go_down()
            await until(lambda: pool.state().healthy == 0 and pool._failures >= 2)
            waiting = asyncio.create_task(pool.acquire(10))
            await peer.come_up()
            connection = await waiting
            await until(lambda: pool.state().healthy == 5)
            pool.release(connection)

    asyncio.run(run())


def test_after_a_failure_a_connection_counts_only_when_it_answers():
    """A machine that accepts for a store that is not there is not healthy."""

    async def run():
        async with pool_at(free_port(), silent, connect_timeout=0.2) as pool:
            await until(lambda: pool._failures)
            async with Peer() as peer:
                pool._endpoint = Endpoint("127.0.0.1", peer.port, False)
                await until(lambda: peer.accepted >= 2)
                assert pool.state().healthy == 0

    asyncio.run(run())


def test_idle_connections_are_asked_and_stay_when_they_answer():
    """Only some at a time, so that requests find others meanwhile."""
    most = 0

    async def ask(connection):
        nonlocal most
        most = max(most, len(pool._asked))
        await asyncio.sleep(0.01)
        await fine(connection)

    async def run():
        nonlocal pool
        async with Peer() as peer, pool_at(peer.port, ask, target=8, heartbeat=0.05) as pool:
            await until(lambda: pool.state().heartbeats_total >= 16)
            assert pool.state().replaced_total == 0
            assert pool.state().healthy == 8
            assert pool.state().in_use == 0, "a heartbeat is no use"
            assert peer.accepted == 8

    pool = None
    asyncio.run(run())
    assert most == 2


def test_idle_connections_that_do_not_answer_are_replaced():
    """A firewall that forgot them says nothing: nobody else would notice."""
    deaf = True

    async def ask(connection):
        await (silent if deaf else fine)(connection)

    async def run():
        nonlocal deaf
        async with Peer() as peer, pool_at(peer.port, ask, target=2, heartbeat=0.05, connect_timeout=0.1) as pool:
            await until(lambda: pool.state().replaced_total >= 2)
            deaf = False
            await until(lambda: pool.state().healthy == 2)
            assert peer.accepted >= 4

    asyncio.run(run())


def test_a_quiet_pool_has_one_timer():
    """Nothing is polled."""

    async def run():
        async with Peer() as peer, pool_at(peer.port, target=6) as pool:
            await until(lambda: pool.state().healthy == 6)
            connection = await pool.acquire(5)
            pool.release(connection)
            await asyncio.sleep(0)
            scheduled = [each for each in asyncio.get_running_loop()._scheduled if not each.cancelled()]
            assert [each._callback for each in scheduled] == [pool._beat]

    asyncio.run(run())


def test_it_moves_to_another_endpoint():
    """Idle connections at once, those in use when they come back; nothing of the old place is handed out."""

    async def run():
        async with Peer() as old, Peer() as new, pool_at(old.port, target=3) as pool:
            await until(lambda: pool.state().healthy == 3)
            connection = await pool.acquire(5)
            pool.move(Endpoint("127.0.0.1", new.port, False))
            pool.release(connection)
            assert not connection.alive
            assert (await pool.acquire(5)).endpoint.port == new.port
            await until(lambda: pool.state().healthy == len(new.clients) == 3 and not old.clients)
            assert new.accepted == 3

    asyncio.run(run())


def test_a_connection_handed_over_while_the_pool_moves_is_not_used():
    """Its requests would be signed for another server."""

    async def run():
        async with Peer() as old, Peer() as new, pool_at(old.port, target=1) as pool:
            connection = await pool.acquire(5)
            waiting = asyncio.create_task(pool.acquire(5))
            await asyncio.sleep(0)
            pool.release(connection)
            pool.move(Endpoint("127.0.0.1", new.port, False))
            assert (await waiting).endpoint.port == new.port

    asyncio.run(run())


def test_close_leaves_nothing():
    """No socket, no task, no timer; those who wait learn of it."""

    async def run():
        async with Peer() as peer:
            before = set(os.listdir("/proc/self/fd"))
            async with pool_at(peer.port, target=4) as pool:
                await until(lambda: pool.state().healthy == 4)
                for _ in range(4):
                    await pool.acquire(5)
                await until(lambda: len(peer.clients) == 4)
                waiting = asyncio.create_task(pool.acquire(5))
                await asyncio.sleep(0.01)
                await pool.close()
                with pytest.raises(StoreUnavailable):
                    await waiting
                with pytest.raises(StoreUnavailable):
                    await pool.acquire(1)
                await until(lambda: not peer.clients)
                await asyncio.sleep(0.01)
                gc.collect()
                assert set(os.listdir("/proc/self/fd")) <= before
                assert pool.state().healthy == 0
                assert [each for each in asyncio.get_running_loop()._scheduled if not each.cancelled()] == []
                assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(run())


def test_close_while_connections_are_being_opened_leaves_nothing():
    """Not even one that is in the middle of its handshake."""

    async def run():
        async with Peer() as peer:
            async with pool_at(peer.port, tls=True):
                await until(lambda: peer.accepted)
            await until(lambda: not peer.clients)

    asyncio.run(run())


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_child_lets_go_of_the_sockets():
    """They are the parent's: the peer must see them end when the parent ends, and no sooner."""

    async def run():
        async with Peer() as peer, pool_at(peer.port, target=3) as pool:
            await until(lambda: pool.state().healthy == len(peer.clients) == 3)
            descriptors = [connection._descriptor for connection in pool._connections]
            child = os.fork()
            if child == 0:
                pool.abandon()
                targets = {os.readlink(f"/proc/self/fd/{each}") for each in descriptors}
                os._exit(0 if targets == {"/dev/null"} else 1)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
            await asyncio.sleep(0.05)
            assert pool.state().healthy == 3
            assert pool.state().replaced_total == 0
            assert len(peer.clients) == 3

    asyncio.run(run())


def test_a_server_with_several_addresses_is_reached_at_the_one_that_answers():
    """localhost is ::1 first, where nobody listens."""

    async def run():
        async with Peer() as peer, pool_at(peer.port, host="localhost", target=2) as pool:
            await until(lambda: pool.state().healthy == 2)

    asyncio.run(run())


def test_certificates_that_cannot_be_loaded_are_reported_at_once(tmp_path):
    """Not with the first connection."""
    with pytest.raises(Invalid):
        AsyncPool(
            Endpoint("x", 1, True),
            fine,
            target=1,
            connect_timeout=1,
            heartbeat=1,
            clock=ManualClock(),
            ca_file=str(tmp_path / "none"),
        )
