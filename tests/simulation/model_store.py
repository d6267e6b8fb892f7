"""A model of an object store: create-only, strongly consistent, and as unkind to its clients as a network can be.

`ModelStore` is the truth: what is there at this moment, and the history of all requests. `ModelRemote` (async) and
`ModelFace` (sync) are one client's way to it; between them and the truth stands a `FaultPolicy`, which decides each
request's fate from a seed: it may be late, lost before or after it took effect, take effect hours after the client was
answered by a time-out (a zombie), or be turned away. A client that goes away does not take its requests with it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from hashlib import sha256
from math import inf
from random import Random
from typing import NamedTuple, TypeVar

from holdfast.errors import NotFound
from holdfast.store.object_keys import check_key, check_prefix
from holdfast.store.pool_state import PoolState
from holdfast.store.port import AlreadyExists, Body, Cause, ObjectInfo, StoreRefused, StoreUnavailable
from tests.simulation.virtual_loop import Delays, VirtualLoop

Result = TypeVar("Result")
Span = tuple[float, float]

TIMEOUT_S = 30.0
"""After which a client gets a time-out."""


class Request:
    """One request of the history: when it was sent, took effect (if it did) and was answered, and how."""

    __slots__ = ("answered", "effective", "key", "outcome", "owner", "sent", "verb")

    def __init__(self, owner: str, verb: str, key: str, sent: float) -> None:
        self.owner, self.verb, self.key, self.sent = owner, verb, key, sent
        self.effective: float | None = None
        self.answered: float | None = None
        self.outcome = "under way"

    def __repr__(self) -> str:
        return (
            f"{self.sent:.3f} {self.owner} {self.verb} {self.key} → {self.outcome}"
            f" effective={self.effective} answered={self.answered}"
        )


class ModelStore:
    """What is there, and all that ever happened."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop
        self.objects: dict[str, bytes] = {}
        self.history: list[Request] = []
        self.last_landing = 0.0
        """When the last request that is still travelling arrives."""
        self.on_delete: Callable[[list[str]], None] = lambda keys: None
        self.on_create: Callable[[str], None] = lambda key: None

    def begin(self, owner: str, verb: str, key: str) -> Request:
        """A request is sent."""
        request = Request(owner, verb, key, self._loop.time())
        self.history.append(request)
        return request

    def create(self, key: str, data: bytes) -> None:
        """Create an object."""
        if check_key(key) in self.objects:
            raise AlreadyExists(key)
        self.objects[key] = data
        try:
            self.on_create(key)
        except Exception as error:  # the waiter for an answer still gets it
            self._loop.call_exception_handler({"message": "an object was judged", "exception": error})

    def head(self, key: str) -> ObjectInfo | None:
        """What there is under a key."""
        data = self.objects.get(check_key(key))
        return None if data is None else ObjectInfo(key, len(data), 0)

    def read(self, key: str) -> bytes | None:
        """An object's bytes."""
        return self.objects.get(check_key(key))

    def list(self, prefix: str, after: str | None = None) -> list[ObjectInfo]:
        """What there is below a prefix."""
        check_prefix(prefix)
        found = sorted(key for key in self.objects if key.startswith(prefix) and (after is None or key > after))
        return [ObjectInfo(key, len(self.objects[key]), 0) for key in found]

    def delete(self, keys: Sequence[str]) -> None:
        """Remove objects."""
        there = [key for key in keys if self.objects.pop(check_key(key), None) is not None]
        if there:
            self.on_delete(there)

    def travels(self, until: float) -> None:
        """Something will land then."""
        self.last_landing = max(self.last_landing, until)


# -- what becomes of a request ----------------------------------------------------------------------------


class Rates(NamedTuple):
    """How often requests meet each fate, and how slow things are."""

    lost_before: float = 0.0
    lost_after: float = 0.0
    late: float = 0.0
    """Takes effect after the client got a time-out."""
    slow_down: float = 0.0
    conflict: float = 0.0
    server_error: float = 0.0
    forbidden: float = 0.0
    latency: float = 0.02
    """Mean, in seconds."""
    late_max: float = 600.0

    @classmethod
    def drawn(cls, random: Random) -> Rates:
        """Each schedule has a mix of its own: some faults never, some often."""
        chance = random.choice((0.02, 0.1, 0.3))
        fates = [random.random() * chance if random.random() < 0.6 else 0.0 for _ in _FATES]
        return cls._make([*fates, random.choice((0.001, 0.02, 0.5)), random.choice((40.0, 600.0, 20_000.0))])


class Fate(NamedTuple):
    """What becomes of one request."""

    lands: float | None
    """Seconds until it takes effect; None: never."""
    answered: float
    """Seconds until the client hears something."""
    failure: StoreUnavailable | StoreRefused | None = None
    """What it hears; None: the truth."""
    name: str = "answered"


class FaultPolicy:
    """One client's network, from a seed. After `clears_at` everything works, with some latency."""

    def __init__(
        self,
        random: Random,
        rates: Rates | None = None,
        *,
        clears_at: float = inf,
        outages: Sequence[Span] = (),
        expired: Sequence[Span] = (),
        suspended: Sequence[Span] = (),
    ) -> None:
        self._random = random
        self._rates = rates or Rates()
        self._clears_at = clears_at
        self._outages = outages
        self._expired = expired
        self._suspended = suspended
        """When the client's machine is stopped: nothing leaves it, nothing arrives."""

    def fate(self, now: float) -> Fate:
        """Of a request that is sent now."""
        fate = self._fate(now)
        if not self._suspended:
            return fate
        lands = None if fate.lands is None else self._awake(now) - now + fate.lands
        return fate._replace(lands=lands, answered=self._awake(self._awake(now) + fate.answered) - now)

    def thread_delays(self, now: float) -> Delays:
        """When what a thread asks for takes effect, and how long after that the answer is there."""
        before = self._awake(now) - now + self._latency()
        if now < self._clears_at and self._random.random() < self._rates.late:
            before += self._random.uniform(0, TIMEOUT_S)
        return before, self._awake(now + before + self._latency()) - now - before

    def unanswered(self, now: float) -> Fate:
        """Of what a thread asks, at the moment at which it takes effect; its delays are those of the thread."""
        return self._fate(now)

    def _fate(self, now: float) -> Fate:
        latency = self._latency()
        if _within(self._outages, now):
            cause: Cause = self._random.choice(("refused", "timeout", "dns", "reset"))
            return Fate(None, TIMEOUT_S if cause == "timeout" else latency, _unavailable(cause), "outage")
        if _within(self._expired, now):
            return Fate(None, latency, StoreRefused("the credentials have expired", cause="credentials"), "expired")
        if now < self._clears_at:
            unlucky = self._unlucky(latency)
            if unlucky is not None:
                return unlucky
        return Fate(latency / 2, latency)

    def _unlucky(self, latency: float) -> Fate | None:
        rates, drawn = self._rates, self._random.random()
        for rate, fate in zip(rates, _FATES, strict=False):
            if drawn < rate:
                return fate(self._random, latency, rates)
            drawn -= rate
        return None

    def _latency(self) -> float:
        return self._random.expovariate(1 / self._rates.latency)

    def _awake(self, when: float) -> float:
        """The first moment from then on at which the client's machine runs."""
        for start, end in self._suspended:
            if start <= when < end:
                return end
        return when


def _unavailable(cause: Cause, retry_after: float = 0.0) -> StoreUnavailable:
    return StoreUnavailable(f"the model store failed cause={cause}", cause=cause, retry_after=retry_after)


def _lost_before(random: Random, latency: float, rates: Rates) -> Fate:
    cause: Cause = random.choice(("reset", "timeout", "truncated"))
    return Fate(None, TIMEOUT_S if cause == "timeout" else latency, _unavailable(cause), "lost before")


def _lost_after(random: Random, latency: float, rates: Rates) -> Fate:
    cause: Cause = random.choice(("reset", "timeout", "server_error"))
    return Fate(latency / 2, TIMEOUT_S if cause == "timeout" else latency, _unavailable(cause), "lost after")


def _late(random: Random, latency: float, rates: Rates) -> Fate:
    answered_after = random.choice((latency, TIMEOUT_S))
    return Fate(answered_after + random.random() * rates.late_max, answered_after, _unavailable("timeout"), "late")


def _slow_down(random: Random, latency: float, rates: Rates) -> Fate:
    return Fate(None, latency, _unavailable("slow_down", random.choice((0.0, 1.0, 20.0))), "slow down")


def _conflict(random: Random, latency: float, rates: Rates) -> Fate:
    return Fate(None, latency, _unavailable("conflict"), "conflict")


def _server_error(random: Random, latency: float, rates: Rates) -> Fate:
    return Fate(None, latency, _unavailable("server_error"), "server error")


def _forbidden(random: Random, latency: float, rates: Rates) -> Fate:
    return Fate(None, latency, StoreRefused("not allowed", cause="forbidden"), "forbidden")


_FATES = (_lost_before, _lost_after, _late, _slow_down, _conflict, _server_error, _forbidden)
"""In the order of the rates."""


def _within(spans: Sequence[Span], now: float) -> bool:
    return any(start <= now < end for start, end in spans)


# -- clients ----------------------------------------------------------------------------------------------


class ModelRemote:
    """One client's connections: `Remote`."""

    def __init__(self, store: ModelStore, policy: FaultPolicy, owner: str) -> None:
        self._store, self._policy, self._owner = store, policy, owner

    async def start(self) -> None:
        """Nothing to open."""

    async def create(self, key: str, body: Body) -> None:
        """Create an object."""
        data = body.read()
        assert (len(data), sha256(data).digest()) == (body.size, body.sha256)
        await self._request("create", key, lambda: self._store.create(key, data))

    async def read(self, key: str) -> bytes | None:
        """An object's bytes."""
        return await self._request("read", key, lambda: self._store.read(key))

    async def head(self, key: str) -> ObjectInfo | None:
        """What there is under a key."""
        return await self._request("head", key, lambda: self._store.head(key))

    def pool(self) -> PoolState:
        """No connections of our own."""
        return PoolState()

    def requests(self) -> None:
        return None

    async def close(self) -> None:
        """Nothing to close; what travels goes on travelling."""

    async def _request(self, verb: str, key: str, effect: Callable[[], Result]) -> Result:
        loop = asyncio.get_running_loop()
        fate = self._policy.fate(loop.time())
        request = self._store.begin(self._owner, verb, key)
        reply: asyncio.Future[Result] = loop.create_future()
        truth: list[Result | AlreadyExists] = []

        def land() -> None:
            request.effective = loop.time()
            try:
                truth.append(effect())
            except AlreadyExists as taken:
                truth.append(taken)

        def answer() -> None:
            request.answered, request.outcome = loop.time(), fate.name
            if reply.done():  # the client has gone
                return
            found = truth[0] if fate.failure is None else fate.failure
            if isinstance(found, Exception):
                reply.set_exception(found)
            else:
                reply.set_result(found)

        if fate.lands is not None:
            loop.call_later(fate.lands, land)
            self._store.travels(loop.time() + fate.lands)
        loop.call_later(fate.answered, answer)
        return await reply


class ModelFace:
    """One client's threads: `Store`. Delays are the loop's business (`VirtualLoop.thread_delays`)."""

    def __init__(self, store: ModelStore, policy: FaultPolicy, owner: str, loop: VirtualLoop) -> None:
        self._store, self._policy, self._owner, self._loop = store, policy, owner, loop

    @property
    def url(self) -> str:
        """No real place."""
        return "model://store"

    def create(self, key: str, body: Body) -> None:
        """Create an object."""
        data = body.read()
        self._do("create", key, lambda: self._store.create(key, data))

    def get(self, key: str, bytes_max: int | None = None) -> bytes:
        """The whole object."""
        found = self._do("read", key, lambda: self._store.read(key))
        if found is None:
            raise NotFound(f"there is no such object key={key}")
        return found

    def get_range(self, key: str, start: int, length: int) -> bytes:
        """A part of an object."""
        return self.get(key)[start : start + length]

    def head(self, key: str) -> ObjectInfo | None:
        """What there is under a key."""
        return self._do("head", key, lambda: self._store.head(key))

    def list(self, prefix: str, after: str | None = None) -> Iterator[ObjectInfo]:
        """Objects below a prefix."""
        return iter(self._do("list", prefix, lambda: self._store.list(prefix, after)))

    def folders(self, prefix: str) -> Sequence[str]:
        """Folders right below a prefix."""
        rest = [info.key.removeprefix(prefix).partition("/") for info in self.list(prefix)]
        return sorted({name for name, slash, _ in rest if slash})

    def delete(self, keys: Sequence[str]) -> None:
        """Remove objects; one that fails may have removed a part of them, or remove them when nobody expects it."""
        now = self._loop.time()
        fate = self._policy.unanswered(now)
        request = self._store.begin(self._owner, "delete", f"{len(keys)}: {' '.join(keys[:3])}")
        request.answered, request.outcome = now, fate.name
        if fate.name == "late" and fate.lands is not None:
            request.effective = now + fate.lands
            self._store.travels(request.effective)
            self._loop.call_later(fate.lands, self._store.delete, list(keys))
        elif fate.lands is not None:
            request.effective = now
            self._store.delete(keys if fate.failure is None else keys[: len(keys) // 2])
        if fate.failure is not None:
            raise fate.failure

    def close(self) -> None:
        """Nothing to let go of."""

    def _do(self, verb: str, key: str, effect: Callable[[], Result]) -> Result:
        fate = self._policy.unanswered(self._loop.time())
        request = self._store.begin(self._owner, verb, key)
        request.answered, request.outcome = self._loop.time(), fate.name
        if fate.lands is not None:
            request.effective = self._loop.time()
            result = effect()
        if fate.failure is not None:
            raise fate.failure
        return result
