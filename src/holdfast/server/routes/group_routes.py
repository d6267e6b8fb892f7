"""`POST /v1/groups`: one group of a client's queue, under the client's session and a number: written once.

For `holdfast.connect`. The body is the frame that members of a shared log send to its owner (`owner/group_frames.py`),
and so is the answer. The journal keeps the number with the records, in one commit (`journal/sessions`); a group that
comes again gets the answer that it had. Answered when all of it survives power loss, or is known to have been refused.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

from msgspec.structs import replace

from holdfast.errors import Invalid, OutcomeUnknown
from holdfast.journal.session_access import ForwardedTicket, ForwardedUnit, Outcome, Refusal
from holdfast.log.consumers.stored_positions import SPACE as POSITIONS_SPACE
from holdfast.log.local_parts import parts_of
from holdfast.owner.group_frames import GroupHead, GroupReader
from holdfast.owner.machine_paths import without_places
from holdfast.owner.wire import ANSWER, GROUP, HEADER, BadFrame, GroupAnswer, begin_frame, from_client, header
from holdfast.server.api_answers import Answer
from holdfast.server.api_request import ApiRequest
from holdfast.server.http_errors import RefusedRequest
from holdfast.server.routes.call_routes import MSGPACK, session_of
from holdfast.server.routes.group_screening import GroupScreening
from holdfast.server.served import Served

if TYPE_CHECKING:
    from holdfast.journal.queue.forwarded import Item
    from holdfast.journal.sessions.outcomes import Outcomes

_NUMBER_DIGITS = 18
_POSITIONS_SPACE = POSITIONS_SPACE.encode()
_LARGE_BYTES = 64 * 1024
_ITEMS_MAX = 16_384


async def write_group(request: ApiRequest, served: Served) -> Answer:
    """Write a group of a client's queue, once."""
    if request.media_type != MSGPACK:
        raise RefusedRequest(415, "a group is MessagePack", hint=f"send Content-Type: {MSGPACK}")
    journal, session = parts_of(served.log).journal, session_of(request)
    content = await request.body()
    if not journal.owned:  # the log's owner must know the session, or a repeat would be written twice
        raise Invalid("this server does not own the log", hint="holdfast serve DIR --share owns it; others are members")
    served.sessions.enter(request.caller, session)
    _check_known(request, journal.sessions.last(session) or 0)
    screening = GroupScreening(served, request.caller)
    at_once = len(content) <= _LARGE_BYTES and _POSITIONS_SPACE not in content  # those may wait for a commit
    read = partial(_read, served, content, screening)
    head, items = read() if at_once else await served.read(read, request.caller)
    queued = _nothing
    if screening.has_members:
        items, queued = await served.read(partial(served.owner.consumers.guard, items), request.caller)
    try:
        sent = await _put(served, session, head, items)
    finally:
        queued()
    if isinstance(sent, ForwardedTicket):
        await _done(sent, served.settings.request_timeout_ms / 1000)
        sent = sent.outcomes()
    return Answer(begin_frame(ANSWER, GroupAnswer(head.sequence, tuple(map(_shown, sent))), 0), MSGPACK)


def _shown(outcome: Outcome) -> Outcome:
    """Without paths of this machine, which errors may name."""
    if outcome.error is None and not any(run.refused for run in outcome.runs):
        return outcome
    runs = tuple(replace(run, refused=tuple((at, _bare(why)) for at, why in run.refused)) for run in outcome.runs)
    return Outcome(None if outcome.error is None else _bare(outcome.error), runs)


def _bare(refusal: Refusal) -> Refusal:
    fields = {name: value for name, value in refusal.fields.items() if name != "path"}
    return Refusal(refusal.kind, without_places(refusal.message), without_places(refusal.hint), fields)


def _read(served: Served, content: bytes, screening: GroupScreening) -> tuple[GroupHead, list[Item]]:
    journal = parts_of(served.log).journal
    reader = GroupReader(journal.partitions, journal.settings, screening)
    view = memoryview(content)
    try:
        found = header(view, 0, from_client(len(content))) if len(view) >= HEADER.size else None
        if found is None or found.kind != GROUP or found.size != len(view):
            raise BadFrame("this is no frame of a group")
        at = HEADER.size + found.head
        head, items = reader.read(view[HEADER.size : at], view[at:], keeps=True)
    except BadFrame as error:
        raise Invalid(f"the body is not a group: {error}", hint="see docs/reference/http.md#groups") from None
    if len(items) > _ITEMS_MAX:
        raise Invalid(f"a group has up to {_ITEMS_MAX} items", hint="send several groups")
    return head, items


async def _put(served: Served, session: bytes, head: GroupHead, items: list[Item]) -> ForwardedTicket | Outcomes:
    """Put a group; where all of it is refused, that is the answer, and nothing is known under its number."""
    journal, timeout = parts_of(served.log).journal, served.settings.request_timeout_ms / 1000
    refused = [one.refusal for one in items if isinstance(one, ForwardedUnit) and one.refusal is not None]
    if len(refused) == len(items) and not journal.sessions.is_known(session, head.sequence, head.floor):
        return tuple(map(Outcome.refused, refused))
    return await journal.when_room(
        lambda left: journal.sessions.put(session, head.sequence, head.floor, items, left), timeout
    )


def _nothing() -> None:
    """No position was taken."""


async def _done(sent: ForwardedTicket, timeout: float) -> None:
    group = sent.group
    if group is None or group.done:
        return
    future = group.signal.future(asyncio.get_running_loop(), timeout)
    if not group.done:
        await future
    if not group.done:
        raise OutcomeUnknown(f"no acknowledgement within {timeout:g} s", hint="send it again under the same number")


def _check_known(request: ApiRequest, last: int) -> None:
    """What may have been written before is not written again by a log that has forgotten who sent it."""
    text = request.header(b"holdfast-stored")
    if text is None:
        return
    if not text.isascii() or not text.isdecimal() or len(text) > _NUMBER_DIGITS:
        raise Invalid("Holdfast-Stored is a whole number", hint="1, 2, 3 …")
    if int(text) > last:
        raise RefusedRequest(
            409,
            "the log has forgotten what this client sent, which may have been written",
            kind="OutcomeUnknown",
            hint="read it back, or give idempotency_key; journal.sessions_max says how many clients it knows",
        )
