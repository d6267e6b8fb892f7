"""Consumers over HTTP: positions live in the log, members in the server.

A member belongs to the token that made it, is used by one request at a time, and goes when it was not used for a
while: its partitions then go to others, and what it had given out and not committed comes again. A client names the
position that it really got to, with each poll and commit, so that an answer that was lost on its way loses nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping
from functools import partial
from typing import Any, Literal
from weakref import WeakValueDictionary

import msgspec

from holdfast.errors import Invalid, NotFound
from holdfast.log.consumers.consumer import Consumer
from holdfast.log.consumers.member_messages import AskConsumers, ForgetConsumer
from holdfast.log.consumers.members import PositionCommit
from holdfast.log.local_parts import parts_of
from holdfast.log.topics.reading import Reading, parse_position
from holdfast.log.topics.typed_topic import TypedTopic
from holdfast.model.record_json import moment, record_line
from holdfast.owner.verbs import VERBS
from holdfast.server.api_answers import ARROW, JSON, Answer, encode, json_answer
from holdfast.server.api_request import WAIT_SECONDS_MAX, ApiRequest
from holdfast.server.guards.places import Places
from holdfast.server.http_errors import RefusedRequest
from holdfast.server.record_pages import arrow, lines
from holdfast.server.request_caller import Caller
from holdfast.server.served import AnyKind, Served

_POLL_RECORDS_MAX = 10_000
_ID_BYTES = 16


class MemberBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A member to be made."""

    start: int | str = "first"
    partitions: list[int] | None = None
    on_expired: Literal["fail", "first"] = "fail"
    patience: float = 30.0
    member: str | None = None
    """Its id, 32 hexadecimal digits of the client's own choosing: sent again, it is the same member."""


class PollBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What to give out."""

    limit: int = 100
    timeout: float = 0.0
    position: str | None = None


class CommitBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How far the client really got."""

    position: str


class SeekBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where to go on."""

    to: int | str
    partition: int | None = None


class MemberAnswer(msgspec.Struct, frozen=True):
    """A member as it is now."""

    member: str
    partitions: tuple[int, ...]
    position: str
    committed: str
    lag: int


class ClientMember:
    """A member of a consumer, kept for a client."""

    def __init__(self, number: str, owner: Caller, topic: AnyKind, consumer: Consumer[Any]) -> None:
        self.id = number
        self.owner = owner
        self.topic = topic
        self.consumer = consumer
        self.lock = asyncio.Lock()
        self.used_at = asyncio.get_running_loop().time()

    def consumed_at(self, at: Mapping[int, int]) -> ConsumedAt:
        """Its position for a transaction: as far as its client says that it got."""
        return ConsumedAt(self.consumer, at)

    def shown(self) -> MemberAnswer:
        """What it has, and how far it is."""
        one = self.consumer
        return MemberAnswer(self.id, one.partitions, one.position, one.committed, one.lag)


class ConsumedAt:
    """A consumer whose records were given on: `tx.consumed` of it commits what its client says."""

    def __init__(self, consumer: Consumer[Any], at: Mapping[int, int]) -> None:
        self._consumer = consumer
        self._at = at

    def commit_operations(self) -> PositionCommit | None:
        """The position, to be committed with something else; None where nothing has changed."""
        return self._consumer.consumed_at(self._at)


class ClientMembers:
    """All of them. Those that nobody uses go."""

    def __init__(self, places: Places, timeout: float) -> None:
        self._members: dict[str, ClientMember] = {}
        self._joining: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._places = places
        self._timeout = timeout
        self._reaper: asyncio.Task[None] | None = None

    def alone(self, member: str | None) -> asyncio.Lock:
        """Held while a member of this id is made: of two requests for one of them the second finds it."""
        if member is None:
            return asyncio.Lock()
        return self._joining.setdefault(member, asyncio.Lock())

    async def make(self, number: str, caller: Caller, topic: AnyKind, make: Awaitable[Consumer[Any]]) -> ClientMember:
        """A new member, in a place of its own; a client that goes meanwhile leaves none behind."""
        making = asyncio.ensure_future(make)
        try:
            consumer = await asyncio.shield(making)
        except asyncio.CancelledError:
            making.add_done_callback(_close_unused)
            raise
        member = ClientMember(number, caller, topic, consumer)
        self._add(member)
        return member

    def _add(self, member: ClientMember) -> None:
        """Keep one more, whose place was taken."""
        self._members[member.id] = member
        if self._reaper is None or self._reaper.done():
            self._reaper = asyncio.ensure_future(self._reap())

    def check_id(self, member: str) -> None:
        """Raise Invalid unless a new member may have this id."""
        if member in self._members or len(member) != 2 * _ID_BYTES or set(member) - set("0123456789abcdef"):
            raise Invalid("a member's id is 32 hexadecimal digits of its own", hint="leave it out, or choose at random")

    def take_place(self, caller: Caller) -> None:
        """For a member that is about to be made; Full where there is none."""
        self._places.take(caller)

    def give_back(self, caller: Caller) -> None:
        """It was not made."""
        self._places.give_back(caller)

    def get(self, request: ApiRequest) -> ClientMember:
        """The member that a request names; NotFound where it is gone, or another caller's."""
        found = self.find(request.caller, request.params["topic"], request.params["name"], request.params["member"])
        if found is None:
            raise NotFound("there is no such member", hint="it was not used for a while: make another one")
        return found

    def find(self, caller: Caller, topic: str, name: str, member: str) -> ClientMember | None:
        """A caller's member of this consumer; None where it is gone, or another caller's."""
        found = self._members.get(member)
        if found is None or found.owner.id != caller.id or (found.consumer.topic, found.consumer.name) != (topic, name):
            return None
        found.used_at = asyncio.get_running_loop().time()
        return found

    def remove(self, member: ClientMember) -> None:
        """Let one go."""
        if self._members.pop(member.id, None) is not None:
            self._places.give_back(member.owner)

    async def _reap(self) -> None:
        loop = asyncio.get_running_loop()
        while self._members:
            await asyncio.sleep(min(1.0, self._timeout / 4))
            for member in list(self._members.values()):
                if loop.time() - member.used_at > self._timeout and not member.lock.locked():
                    self.remove(member)
                    await asyncio.to_thread(member.consumer.close)


def _close_unused(making: asyncio.Future[Consumer[Any]]) -> None:
    """Nobody waits for this consumer any more: its partitions go to others."""
    if not making.cancelled() and making.exception() is None:
        asyncio.get_running_loop().run_in_executor(None, making.result().close)


def _members(served: Served) -> ClientMembers:
    found = served.members
    if not isinstance(found, ClientMembers):
        found = served.members = ClientMembers(served.member_places, served.settings.member_timeout_ms / 1000)
    return found


# -- routes -----------------------------------------------------------------------------------------------


async def list_consumers(request: ApiRequest, served: Served) -> Answer:
    """How far consumers are, as `log.consumers()` says it: those that the token may see."""
    topic = request.text("topic")
    return json_answer(await served.verb(request.caller, VERBS["consumers"], AskConsumers(topic)))


async def show_consumer(request: ApiRequest, served: Served) -> Answer:
    """One consumer of a topic."""
    topic, name = request.params["topic"], request.params["name"]
    found = [one for one in await served.read(partial(served.log.consumers, topic)) if one.consumer == name]
    if not found:
        raise NotFound("there is no such consumer", hint="GET /v1/consumers lists them")
    return json_answer(found[0])


async def forget_consumer(request: ApiRequest, served: Served) -> Answer:
    """Let go of a consumer's position: 204."""
    body = ForgetConsumer(request.params["name"], request.params["topic"])
    await served.verb(request.caller, VERBS["forget_consumer"], body)
    return Answer(status=204)


async def join(request: ApiRequest, served: Served) -> Answer:
    """Make a member: 201. A client may choose the id (`member`, 32 hexadecimal digits): sent again, it is the same
    member.
    """
    body = await request.json(MemberBody)
    members = _members(served)
    async with members.alone(body.member):
        if body.member is not None:
            if known := members.find(request.caller, request.params["topic"], request.params["name"], body.member):
                return json_answer(await served.read(known.shown), 201)
            members.check_id(body.member)
        member = await _made(request, served, body)
    return json_answer(await served.read(member.shown), 201)


async def _made(request: ApiRequest, served: Served, body: MemberBody) -> ClientMember:
    topic, members = served.topic(request.params["topic"]), _members(served)
    make = partial(
        topic.consumer,
        request.params["name"],
        start=_place(body.start),
        partitions=body.partitions,
        on_expired=body.on_expired,
        patience=min(body.patience, WAIT_SECONDS_MAX),
    )
    number = body.member or served.clock.random_bytes(_ID_BYTES).hex()
    members.take_place(request.caller)
    try:
        return await members.make(number, request.caller, topic, served.read(make))
    except BaseException:
        members.give_back(request.caller)
        raise


async def show_member(request: ApiRequest, served: Served) -> Answer:
    """A member as it is now."""
    return json_answer(await served.read(_members(served).get(request).shown))


async def poll(request: ApiRequest, served: Served) -> Answer:
    """The next records: a page as reading gives it, with `position`, `partitions` and `lag`. Waits at most `timeout`
    seconds (60 at most) for the first record. `position` is how far the client really got: where an answer was lost
    on its way, those records come again.
    """
    body = await request.json(PollBody)
    member, form = _members(served).get(request), request.accepts((JSON, ARROW))
    async with member.lock:
        if body.position is not None and body.position != member.consumer.position:
            await served.read(partial(_go_to, member.consumer, position_of(body.position)))
        limit = min(body.limit, _POLL_RECORDS_MAX)
        timeout = min(max(0.0, body.timeout), WAIT_SECONDS_MAX)
        items = await served.waiting(request, member.consumer.poll_async(limit, timeout)) or []
        answer = await served.read(partial(_page, member, items, form), request.caller)
    member.used_at = asyncio.get_running_loop().time()
    return answer


def _page(member: ClientMember, items: list[Any], form: str) -> Answer:
    """What a member gave out, in the form of a page."""
    shown, topic = member.shown(), member.topic
    if form == ARROW:
        headers = [
            (b"holdfast-position", shown.position.encode()),
            (b"holdfast-partitions", encode(shown.partitions)),
            (b"holdfast-lag", encode(shown.lag)),
        ]
        return Answer(arrow(_again(topic, items)), ARROW, headers=headers)
    if isinstance(topic, TypedTopic):
        found = [line for _, _, line in lines(topic, _again(topic, items))]
    else:
        found = [encode(record_line(topic.name, item)) for item in items]
    return Answer(b'{"records":[' + b",".join(found) + b"]," + encode(shown)[1:], JSON)


def _again(topic: AnyKind, items: list[Any]) -> Reading[Any]:
    """The same records as a reading: what is given out at a time is a run of one partition."""
    if not items:
        return topic.read(limit=0)
    place = topic._shape().place
    (partition, first), (_, last) = place(items[0]), place(items[-1])
    return topic.read(first, last + 1, partition=partition)


async def commit(request: ApiRequest, served: Served) -> Answer:
    """Make it durable that everything below `position` (required) is consumed, in the partitions that it names. It
    does not move what `poll` gives out. 409 where another member has one of these partitions now.
    """
    body = await request.json(CommitBody)
    member, position = _members(served).get(request), position_of(body.position)
    async with member.lock:
        consumer = member.consumer
        at = await served.read(partial(_changed, served, consumer, position))
        transaction = served.log.transaction()
        try:
            async with transaction:
                await served.read(partial(transaction.consumed, member.consumed_at(at)))
        except Invalid as error:
            raise RefusedRequest(409, error.message, hint=error.hint) from None
        return json_answer({"committed": await served.read(lambda: consumer.committed)})


def position_of(text: str) -> Mapping[int, int]:
    """A position that a client names."""
    if not text.startswith("{"):
        raise Invalid("not a position", hint="give what the last answer had as 'position'")
    return parse_position(text)


def _changed(served: Served, consumer: Consumer[Any], position: Mapping[int, int]) -> dict[int, int]:
    """What of a position is to be committed; Invalid where there are no such offsets.

    A client names partitions that have gone to others, too: that is no error if it has nothing of them to commit.
    """
    kept = parts_of(served.log).consumers.positions((consumer.name, consumer.topic))
    changed = {number: at for number, at in position.items() if number not in kept or kept[number].next != at}
    for number in changed.keys() & set(consumer.partitions):
        consumer._find(number, changed[number])
    return changed


def _go_to(consumer: Consumer[Any], position: Mapping[int, int]) -> None:
    """Give out what comes behind a position.

    Of a partition that it does not name nothing has arrived at the client: it goes on behind what is committed.
    """
    for number in consumer.partitions:
        if position.get(number, -1) != consumer.given(number):
            consumer.seek(position.get(number, "committed"), partition=number)


async def seek(request: ApiRequest, served: Served) -> Answer:
    """Go on from somewhere else: `to` is an offset, `first`, `next`, `committed`, a position, or a time as ISO 8601."""
    body = await request.json(SeekBody)
    member = _members(served).get(request)
    async with member.lock:
        await served.read(partial(member.consumer.seek, _place(body.to), partition=body.partition))
        return json_answer({"position": await served.read(lambda: member.consumer.position)})


async def leave(request: ApiRequest, served: Served) -> Answer:
    """Let a member go: 204."""
    member = _members(served).get(request)
    async with member.lock:
        _members(served).remove(member)
        await served.read(member.consumer.close)
    return Answer(status=204)


def _place(given: int | str) -> Any:
    """An offset, a word, a position, or a time."""
    if isinstance(given, int) or given in ("first", "next", "committed") or given.startswith("{"):
        return given
    from datetime import UTC, datetime, timedelta

    try:
        return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=moment(given))
    except OverflowError:
        raise Invalid("no calendar has this time", hint="for instance 2026-01-31T12:00:00Z, or 'first'") from None
