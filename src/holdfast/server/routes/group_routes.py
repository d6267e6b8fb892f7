"""`POST /v1/groups`: one group of a client's queue, under the client's session and a number: written once.

For `holdfast.connect`. The journal keeps the number with the records, in one commit (`journal/sessions`); a group that
comes again gets the answer that it had. Answered when all of it survives power loss, or is known to have been refused.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import NamedTuple

from holdfast.errors import HoldfastError, Invalid, OutcomeUnknown
from holdfast.journal.session_access import ForwardedTicket, Refusal
from holdfast.journal.session_access import RunOutcome as StoredRun
from holdfast.journal.state.partition import Partition
from holdfast.log.consumers.members import Committing
from holdfast.log.local_parts import parts_of
from holdfast.remote.wire.error_message import ErrorBody
from holdfast.remote.wire.group_message import (
    Consumed,
    GroupMessage,
    GroupOutcome,
    ItemOutcome,
    RunOutcome,
    consumed_in,
    decode_group,
    encode_outcome,
)
from holdfast.server.api_answers import Answer, json_answer
from holdfast.server.api_request import ApiRequest
from holdfast.server.checked_groups import CheckedGroup, Forwardable, ItemRefused
from holdfast.server.http_errors import Refusal as HttpRefusal
from holdfast.server.http_errors import body_of, headers_of, status_of, without_places
from holdfast.server.routes.consumer_routes import Member, gone, held_members
from holdfast.server.served import Served

MSGPACK = "application/msgpack"

_SESSION_DIGITS = 32
_LARGE_BYTES = 64 * 1024


async def write_group(request: ApiRequest, served: Served) -> Answer:
    """Write a group, once."""
    if request.media_type != MSGPACK:
        raise HttpRefusal(415, "a group is MessagePack", hint=f"send Content-Type: {MSGPACK}")
    number = _Number(_session(request), _number(request, b"sequence"), _number(request, b"floor"))
    content = await request.body()
    at_once = len(content) <= _LARGE_BYTES
    message = decode_group(content) if at_once else await served.read(partial(decode_group, content), request.caller)
    journal, timeout = parts_of(served.log).journal, served.settings.request_timeout_ms / 1000
    if not journal.owned:  # whoever owns the log must know the session, or a repeat would be written twice
        raise Invalid("this server does not own the log", hint="holdfast serve DIR --share owns it; others are members")
    served.sessions.enter(request.caller, number.session)
    _check_known(request, journal.sessions.last(number.session) or 0)
    consumed = consumed_in(message)
    try:
        if consumed:
            named = [(one.topic, one.consumer, one.member) for one in consumed]
            async with held_members(served, request.caller, named) as found:
                sent = await _put_with_positions(request, served, message, number, found)
        else:
            group = CheckedGroup(served, request.caller)
            items = (
                group.items(message) if at_once else await served.read(partial(group.items, message), request.caller)
            )
            sent = await _put(served, number, items)
    except ItemRefused as refused:
        return _refusal(request, refused.error, refused.index)
    await _done(sent, timeout)
    outcomes = [_item(outcome.error, outcome.runs, journal.partitions) for outcome in sent.outcomes()]
    return Answer(encode_outcome(GroupOutcome(outcomes)), MSGPACK)


async def _put(served: Served, number: _Number, items: list[Forwardable]) -> ForwardedTicket:
    journal, timeout = parts_of(served.log).journal, served.settings.request_timeout_ms / 1000
    return await journal.when_room(lambda left: journal.sessions.put(*number, items, left), timeout)


async def _put_with_positions(
    request: ApiRequest, served: Served, message: GroupMessage, number: _Number, members: dict[str, Member]
) -> ForwardedTicket:
    """Put a group that commits positions of members, which are held: a repeat waits for the first, and finds it known.

    Of a number that is known no position is taken: its member may be gone, or elsewhere, and nothing is written.
    """

    def take(told: Consumed) -> Committing | None:
        if told.member not in members:
            raise gone(told.consumer, told.topic)
        return members[told.member].consumer.consumed_at(told.position)

    is_known = parts_of(served.log).journal.sessions.is_known(*number)
    group = CheckedGroup(served, request.caller, None if is_known else take)
    try:
        return await _put(served, number, await served.read(partial(group.items, message), request.caller))
    finally:
        group.queued()


class _Number(NamedTuple):
    session: bytes
    sequence: int
    floor: int


def _check_known(request: ApiRequest, last: int) -> None:
    """What may have been written before is not written again by a log that has forgotten who sent it."""
    if request.header(b"holdfast-stored") is not None and _number(request, b"stored") > last:
        raise HttpRefusal(
            409,
            "the log has forgotten what this client sent, which may have been written",
            kind="OutcomeUnknown",
            hint="read it back, or give idempotency_key; journal.sessions_max says how many clients it knows",
        )


async def _done(sent: ForwardedTicket, timeout: float) -> None:
    group = sent.group
    if group is None or group.done:
        return
    future = group.signal.future(asyncio.get_running_loop(), timeout)
    if not group.done:
        await future
    if not group.done:
        raise OutcomeUnknown(f"no acknowledgement within {timeout:g} s", hint="send it again under the same number")


def _refusal(request: ApiRequest, error: HoldfastError, index: int) -> Answer:
    """Nothing of the group was written, because of this item."""
    status = status_of(error)
    headers = [*headers_of(error, status), (b"holdfast-item", str(index).encode())]
    return json_answer(body_of(error, request.id), status, headers)


def _session(request: ApiRequest) -> bytes:
    text = request.header(b"holdfast-session") or ""
    if len(text) != _SESSION_DIGITS or not all(letter in "0123456789abcdef" for letter in text):
        raise Invalid("Holdfast-Session has 32 hexadecimal digits", hint="choose 16 random bytes per client")
    return request.caller.own(bytes.fromhex(text))


def _number(request: ApiRequest, name: bytes) -> int:
    text = request.header(b"holdfast-" + name) or ""
    if not text.isascii() or not text.isdecimal() or len(text) > 18:
        raise Invalid(f"Holdfast-{name.decode().capitalize()} is a whole number", hint="1, 2, 3 …")
    return int(text)


# -- what became of it ------------------------------------------------------------------------------------


def _item(error: Refusal | None, runs: tuple[StoredRun, ...], partitions: object) -> ItemOutcome:
    if error is not None:
        return ItemOutcome([], _told(error))
    return ItemOutcome([_run(run, partitions) for run in runs])


def _run(run: StoredRun, partitions: object) -> RunOutcome:
    numbers: dict[int, Partition] = partitions  # type: ignore[assignment]
    refused = [(at, _told(refusal)) for at, refusal in run.refused]
    repeats = [(one.position, numbers[one.partition_id].number, one.offset, one.seq) for one in run.repeats]
    place = numbers[run.partition_id]
    return RunOutcome(place.topic, place.number, run.count, run.first, run.seq, run.repeated, repeats, refused)


def _told(refusal: Refusal) -> ErrorBody:
    fields = {name: value for name, value in refusal.fields.items() if name != "path"}
    return ErrorBody(refusal.kind, without_places(refusal.message), without_places(refusal.hint), fields)
