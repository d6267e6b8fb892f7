"""What the routes of one server share: the log, its topics, threads for what blocks, and what is counted.

Nothing that blocks runs on the event loop. Reading goes to threads of its own, few of them, and that also bounds how
many pages are in memory; long work (sealing, shipping, reconciling) has others, so that it cannot hold up reads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from holdfast.clock import Clock, SystemClock
from holdfast.errors import Closed, Denied, Invalid
from holdfast.log.local_parts import parts_of
from holdfast.log.log import Log
from holdfast.log.topics.topic import Topic
from holdfast.log.topics.topic_partitions import NoTopic
from holdfast.log.topics.typed_topic import TypedTopic
from holdfast.model.topic_name import check_name
from holdfast.owner.log_owner import LogOwner
from holdfast.owner.peer import Peer
from holdfast.owner.verb import Request, Result, Verb
from holdfast.server.access import Access
from holdfast.server.api_request import ApiRequest, ClientGone
from holdfast.server.audit import Audit
from holdfast.server.client_peers import ClientPeers
from holdfast.server.guards.browser_guard import BrowserGuard
from holdfast.server.guards.places import Places, TokenSessions, share_of
from holdfast.server.request_caller import Caller
from holdfast.server_settings import ServerSettings

Value = TypeVar("Value")
AnyKind = Topic | TypedTopic

_READERS, _WORKERS = 8, 4
WORK_SECONDS = 600.0
"""How long a request waits for long work; the work itself goes on."""


class Served:
    """One log, served."""

    def __init__(
        self, log: Log, settings: ServerSettings, access: Access, guard: BrowserGuard, clock: Clock | None = None
    ) -> None:
        self.log = log
        self.settings = settings
        self.access = access
        self.guard = guard
        self.clock = clock or SystemClock()
        share = settings.token_share
        self.bodies = Places(settings.bodies_bytes_max, "bytes of bodies", share, settings.body_bytes_max)
        self.answers = Places(settings.bodies_bytes_max, "bytes of answers", share, settings.page_bytes_max)
        self.requests = Places(settings.requests_max, "requests", share)
        self.followers = Places(settings.followers_max, "followers", share)
        self.member_places = Places(settings.members_max, "members of consumers", share)
        places = Places(settings.followers_max, "clients that hear of changes", share)
        self.peers = ClientPeers(places, self.member_places, settings.member_timeout_ms / 1000, self.clock)
        self.sessions = TokenSessions(parts_of(log).journal, self.clock, share)
        self.audit = Audit(log, is_wanted=settings.audit)
        self.draining = asyncio.Event()
        """Set when the server shuts down: followers end, nothing new is begun."""
        self.members: Any = None
        """Members of consumers that live here, once there are any."""
        self.owner = LogOwner(log, wait_max=WORK_SECONDS)
        """What does the verbs."""
        self._topics: dict[str, AnyKind] = {}
        self._readers = ThreadPoolExecutor(_READERS, "holdfast-http-read")
        self._workers = ThreadPoolExecutor(_WORKERS, "holdfast-http-work")
        self._works = Places(_WORKERS, "long requests", share)
        self._turns: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()
        self._own_readers = share_of(_READERS, share)

    # -- topics -------------------------------------------------------------------------------------------

    def topic(self, name: str) -> AnyKind:
        """The topic of this name, raw or typed; NotFound where there is none."""
        found = self._topics.get(name)
        return self._find(name) if found is None else found

    def _find(self, name: str) -> AnyKind:
        known = self.log.topics()
        if check_name(name) not in known:
            raise NoTopic(name, known, hint="PUT /v1/topics/NAME creates one")
        try:
            found: AnyKind = self.log.topic(name, schema="latest")
        except Invalid:
            found = self.log.topic(name)
        self._topics[name] = found
        return found

    def raw(self, name: str) -> Topic:
        """The raw topic of this name."""
        found = self.topic(name)
        if isinstance(found, TypedTopic):
            raise Invalid(f"topic {name!r} is typed", hint="its records are rows: see its schema")
        return found

    def require_producer(self, caller: Caller, name: str) -> None:
        """Raise Denied where the name is not the caller's to use, or its producer appends to topics of others.

        Producers belong to the log. A client that moved the numbers of another one would make it leave records out.
        """
        caller.require_producer(name)
        journal = parts_of(self.log).journal
        for number in journal.sessions.partitions_of(name.encode()):
            if not caller.may("append", journal.partitions[number].topic):
                raise Denied(f"this producer appends to a topic that is not this token's token={caller.id}")

    # -- verbs --------------------------------------------------------------------------------------------

    async def verb(
        self, caller: Caller, verb: Verb[Request, Result], message: Request, peer: Peer | None = None
    ) -> Result:
        """Do what the table of verbs says, if the caller may ask for it."""
        work = partial(verb.done, self.owner, peer or Peer(bytes(16), 0, _nobody_hears, caller), message)
        return await (self.do(caller, work) if verb.is_long else self.read(work))

    # -- threads ------------------------------------------------------------------------------------------

    async def read(self, work: Callable[[], Value], caller: Caller | None = None) -> Value:
        """Do what reads, in a thread. What may take a while counts for its caller."""
        loop = asyncio.get_running_loop()
        if caller is None or caller.is_anyone:
            return await loop.run_in_executor(self._readers, work)
        turns = self._turns.setdefault(caller.id, asyncio.Semaphore(self._own_readers))
        await turns.acquire()
        future = loop.run_in_executor(self._readers, work)
        future.add_done_callback(partial(_ended, turns))
        return await asyncio.shield(future)  # the thread goes on when its caller goes, and so does its turn

    async def do(self, caller: Caller, work: Callable[[], Value]) -> Value:
        """Do what may take long, in a thread. It goes on, and keeps its place, when its caller goes."""
        self._works.take(caller)
        future = asyncio.get_running_loop().run_in_executor(self._workers, work)
        future.add_done_callback(partial(self._done, caller))
        return await asyncio.shield(future)

    def _done(self, caller: Caller, future: asyncio.Future[Value]) -> None:
        self._works.give_back(caller)
        if not future.cancelled():
            future.exception()  # its caller may have gone: then nobody looks at it

    async def waiting(self, request: ApiRequest, wait: Coroutine[Any, Any, Value]) -> Value | None:
        """Wait for something that a client asked for, whose body was read; None when the server shuts down.

        When the client goes, so does its place among the requests: else few who ask and go would keep all places.
        A caller that may no longer ask when it is there is refused.
        """
        waiting = asyncio.ensure_future(wait)
        gone, draining = asyncio.ensure_future(request.gone()), asyncio.ensure_future(self.draining.wait())
        try:
            await asyncio.wait({waiting, gone, draining}, return_when=asyncio.FIRST_COMPLETED)
            if gone.done() and not waiting.done():
                raise ClientGone
            self.access.require_still_known(request.caller)
            return waiting.result() if waiting.done() else None
        finally:
            for one in (waiting, gone, draining):
                one.cancel()
            await asyncio.gather(waiting, gone, draining, return_exceptions=True)

    def check_ready(self) -> None:
        """Raise Closed unless requests can be answered."""
        if self.draining.is_set():
            raise Closed("the server is shutting down", hint="ask again, or another server")
        end = parts_of(self.log).journal.end
        if end is not None:
            raise end.again()

    def close(self) -> None:
        """The threads end with what they are doing."""
        self.owner.stop()
        self._readers.shutdown(wait=False, cancel_futures=True)
        self._workers.shutdown(wait=False, cancel_futures=True)


def _nobody_hears(_event: str, _body: bytes) -> None:
    """A single request takes no events."""


def _ended(turns: asyncio.Semaphore, future: asyncio.Future[Any]) -> None:
    turns.release()
    if not future.cancelled():
        future.exception()  # the caller may have gone: then nobody looks at it
