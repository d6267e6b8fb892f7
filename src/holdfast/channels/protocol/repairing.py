"""Repair (SDS-R): asking for messages that are missing, and answering those who ask.

Requests and responses wait for times that participants and messages determine, so that of many who could speak only one
or a few do; a participant that hears another one answer keeps silent. Requests go out with other messages, a few at a
time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

from holdfast.channels.channel_events import RepairReady
from holdfast.channels.keeping.snapshot import KnownMessage, RepairRequest, RepairResponse
from holdfast.channels.protocol.catching_up import (
    AGAIN_MS,
    BULK,
    SPREAD_MS,
    is_behind,
    next_named,
    offer,
    room_for,
    spread,
)
from holdfast.channels.protocol.lamport import sendable
from holdfast.channels.protocol.state import ChannelState
from holdfast.channels.protocol.steps import StepEffects
from holdfast.channels.wire.message import ENTRIES_BYTES_MAX, HistoryEntry, SdsMessage
from holdfast.channels.wire.wire_fields import write_entry

FEW = 3
"""Who asks for more at once is behind: nobody else does by default."""
ANSWER_MS = 2_000
"""Within this time a participant who is behind is answered."""
WANTED_MAX = 200
"""So many are looked for in the log at once."""
ALWAYS_FIT = 20
"""Entries of the largest ids and hints: less than half of ENTRIES_BYTES_MAX."""

_SIZE = 1_024
"""What an answer from the log is taken for, as long as it is not found."""
_PATIENCE_MS = 60_000
"""How long an answer waits for the budget, at least."""


_TAKEN_MAX = 256
"""Requests of one received message that are looked at."""


def due_requests(state: ChannelState, now: int, *, bytes_max: int | None = None) -> tuple[HistoryEntry, ...]:
    """What to ask for now: what messages here wait for, then what only syncs have named; the most overdue first.

    For many at once, in so many bytes, if we are behind.
    """
    if not state.requests:
        return ()
    due = [
        (message_id not in state.waiting, request.due_ms, request.entry)
        for message_id, request in state.requests.items()
        if request.due_ms <= now
    ]
    due.sort(key=lambda found: found[:2])  # of those due at once, those that were missed first
    most = state.rules.settings.repair_requests_max
    asked = [entry for *_, entry in due]
    if bytes_max is not None and state.behind and most:
        most = max(most, BULK)
        asked = list(_shared(state, asked, most))
    asked = asked[:most]
    return tuple(asked if len(asked) <= ALWAYS_FIT else fitting(asked, bytes_max))


def _shared(state: ChannelState, due: Sequence[HistoryEntry], most: int) -> Sequence[HistoryEntry]:
    """Half for what others have named to help us, in their order; nearly all of it where little else could wait here.

    A few of the others go along even then: peers that do not help are walked back through, message by message.
    """
    by_id = {entry.message_id: entry for entry in due}
    following = [entry.message_id for entry in next_named(state)]
    named = [by_id.pop(message_id) for message_id in following if message_id in by_id]
    others = [entry for one, entry in by_id.items() if one not in state.named or one in state.waiting]
    settings = state.rules.settings
    if state.named and len(state.incoming) >= room_for(state, "", settings.incoming_max):
        return [*named[: most - most // 8], *others[: most // 8]]
    return [*named[: most // 2], *others, *named[most // 2 :]]


def fitting(entries: Sequence[HistoryEntry], bytes_max: int | None = None) -> Sequence[HistoryEntry]:
    """The first ones, as far as half of what a message may name in bytes: else long ids of strangers silence us."""
    left = ENTRIES_BYTES_MAX // 2 if bytes_max is None else min(bytes_max, ENTRIES_BYTES_MAX // 2)
    for number, entry in enumerate(entries):
        left -= len(write_entry(entry))
        if left < 0:
            return entries[:number]
    return entries


def ask_for(state: ChannelState, missing: Sequence[HistoryEntry], now: int, *, behind: bool = False) -> bool:
    """Ask for missing messages, in a while, or soon if we are behind; tells whether anything has changed."""
    rules = state.rules
    if not rules.participant_id:
        return False
    asked = False
    for entry in missing:
        # What waits here already is not missing on the network's account.
        if entry.message_id not in state.requests and entry.message_id not in state.incoming:
            state.requests[entry.message_id] = RepairRequest(_bare(entry), _due(state, entry.message_id, now))
            asked = True
    if state.requests and (behind or state.behind) and (asked or not state.behind):
        _hurry(state, now)
        asked = True
    if asked:
        _trim_requests(state)
    return asked


def _trim_requests(state: ChannelState) -> None:
    """Keep those that are due first; half is for what others have named, in their order."""
    most = state.rules.settings.repairs_max
    if len(state.requests) > most:
        by_due = sorted(state.requests, key=lambda one: state.requests[one].due_ms)
        named = [message_id for message_id in state.named if message_id in state.requests]
        others = [message_id for message_id in by_due if message_id not in state.named]
        kept = named[: max(most // 2, most - len(others))]
        kept += others[: most - len(kept)]
        state.requests = {message_id: state.requests[message_id] for message_id in kept}


def _hurry(state: ChannelState, now: int) -> None:
    """We are behind: what was never asked for is asked for soon, all of it at once."""
    state.behind = True
    soon = now + spread(state, SPREAD_MS)
    for message_id, request in state.requests.items():
        if request.due_ms > soon and message_id not in state.asked:
            state.requests[message_id] = RepairRequest(request.entry, soon)


def ask_later(state: ChannelState, message_id: str, now: int) -> None:
    """Let a request wait anew."""
    state.requests[message_id] = RepairRequest(state.requests[message_id].entry, _due(state, message_id, now))


def _due(state: ChannelState, message_id: str, now: int) -> int:
    """When to ask for a message; if we are behind in a little while, and later each time."""
    due = state.rules.request_due(message_id, now)
    if not state.behind:
        return due
    times = max(0, state.asked.get(message_id, 1) - 1)
    return min(due, now + (AGAIN_MS << min(times, 16)) + spread(state, SPREAD_MS))


def settle(state: ChannelState, message_id: str) -> bool:
    """A message is here, or nobody wants it any more: whether it was asked for, or to be answered with."""
    asked = state.requests.pop(message_id, None)
    state.asked.pop(message_id, None)  # if there is no room for it, we begin anew: it is there
    answered = state.responses.pop(message_id, None)
    return asked is not None or answered is not None


def take_requests(state: ChannelState, message: SdsMessage, now: int, effects: StepEffects) -> None:
    """What others ask for: nobody else has to ask just now, and perhaps we can answer."""
    rules = state.rules
    if not message.repair_request:
        return
    is_hurried = _is_asked_by_one_behind(state, message, now)
    soon = _answered_together(state, message, now) if is_hurried else None
    for entry in message.repair_request[:_TAKEN_MAX]:
        message_id = entry.message_id
        if message_id in state.requests and state.guard.may_postpone(message_id):
            ask_later(state, message_id, now)
            effects.changed = True
        if not rules.participant_id or not entry.sender_id or not _can_answer(state, message_id):
            continue
        if rules.dialect.responds(rules.participant_id, entry.sender_id, message_id, rules.settings.response_groups):
            due = rules.response_due(entry.sender_id, message_id, now) if soon is None else soon
            if _answer_at(state, entry, state.guard.not_before(message_id, due)):
                state.answering = state.answering or is_hurried
                effects.changed = True
    _trim(state.responses, rules.settings.repairs_max)


def _answered_together(state: ChannelState, message: SdsMessage, now: int) -> int:
    """When a participant that is behind is answered: all at once, so that it comes in the order of the requests.

    Who of us is the first to answer depends on the first that was asked for.
    """
    first = message.repair_request[0]
    return state.rules.response_due(first.sender_id, first.message_id, now, ANSWER_MS)


def _answer_at(state: ChannelState, entry: HistoryEntry, due: int) -> bool:
    """Answer then, unless we do so earlier."""
    planned = state.responses.get(entry.message_id)
    if planned is not None and planned.due_ms <= due:
        return False
    state.responses.pop(entry.message_id, None)  # it takes its place among those that it is asked for with
    state.responses[entry.message_id] = RepairResponse(_bare(entry), due, planned.data if planned else b"")
    return True


def _is_asked_by_one_behind(state: ChannelState, message: SdsMessage, now: int) -> bool:
    """Whether the requester is far behind; then we prepare to help."""
    rules = state.rules
    if not rules.participant_id or message.sender_id == rules.participant_id:
        return False
    settings = rules.settings
    theirs = rules.dialect.read_filter(message.bloom_filter, settings.bloom_capacity, settings.bloom_error_rate)
    many = len(message.repair_request) > FEW
    if theirs is None:
        return many
    if not (many or is_behind(state, message, theirs)):
        return False
    offer(state, message, theirs, now)
    return True


def _can_answer(state: ChannelState, message_id: str) -> bool:
    """Whether we have it at hand, or its record may be in the log."""
    if message_id in state.history:
        return True
    place = state.known.get(message_id)
    return place is not None and place.at_ms > 0


def sweep_repairs(state: ChannelState, now: int, effects: StepEffects) -> None:
    """Answer what is due, and ask for what is waited for and was never asked for."""
    rules = state.rules
    t_max = rules.t_max_ms
    # Sync messages ask for a few at a time: each request has had its turn before it is given up.
    turns = -(-len(state.requests) // max(1, rules.settings.repair_requests_max))
    wait_max_ms = max(t_max, turns * rules.settings.sync_interval_ms)
    _answer(state, now, effects)
    for message_id, response in state.responses.items():
        if response.due_ms - now > t_max + state.guard.cooldown_ms:  # the clock went back
            due = rules.response_due(response.entry.sender_id, message_id, now)
            state.responses[message_id] = RepairResponse(response.entry, due, response.data)
            effects.changed = True
    for message_id, request in list(state.requests.items()):
        if request.due_ms - now > t_max:
            ask_later(state, message_id, now)
            effects.changed = True
        elif now - request.due_ms > wait_max_ms and message_id not in state.waiting:
            del state.requests[message_id]
            effects.changed = True
    state.asked = {message_id: times for message_id, times in state.asked.items() if message_id in state.requests}
    state.guard.forget_all_but(state.requests)
    room = rules.settings.repairs_max - len(state.requests)
    unasked = [entry for entry in next_named(state) if entry.message_id not in state.requests]
    effects.changed = ask_for(state, [*unasked, *islice(_unasked(state), room)], now) or effects.changed
    _look_ahead(state, now, effects)


def _look_ahead(state: ChannelState, now: int, effects: StepEffects) -> None:
    """Whether a sync message should go out at once, and whether there is still reason to hurry."""
    soon = now + 2 * ANSWER_MS
    state.answering = state.answering and any(response.due_ms <= soon for response in state.responses.values())
    if state.behind and not (state.requests or state.incoming):
        state.behind = False
        state.named.clear()
    if state.behind and state.requests and state.rules.settings.repair_requests_max:
        nearly_done = len(state.requests) * 4 <= state.asked_for and now - state.asked_ms >= SPREAD_MS
        if nearly_done:  # what is left leads to more: ask for it, so that others help with the next ones
            for message_id, request in state.requests.items():
                state.requests[message_id] = RepairRequest(request.entry, min(request.due_ms, now))
            effects.changed = True
        if due_requests(state, now, bytes_max=ENTRIES_BYTES_MAX):
            effects.sync_due = True
    if state.help is not None and not -ANSWER_MS <= now - state.help.due_ms <= ANSWER_MS:
        state.help = None  # the clock moved, or nobody looked for long
    if state.help is not None and state.help.due_ms <= now:
        effects.sync_due = True


def _answer(state: ChannelState, now: int, effects: StepEffects) -> None:
    """Answer what is due, as far as the budget goes: if not for all, the small ones first."""
    guard, rules = state.guard, state.rules
    guard.fill(now)
    due = [(one.due_ms, message_id) for message_id, one in state.responses.items() if one.due_ms <= now]
    due.sort(key=lambda found: found[0])  # those due at once in the order in which they were asked for
    sizes = {message_id: _answer_size(state, message_id) for _, message_id in due}
    if not guard.affords(sizes.values()):  # a few bytes more or less do not change the order
        due.sort(key=lambda found: sizes[found[1]].bit_length())
    for due_ms, message_id in due:
        if not guard.may_answer and now - due_ms <= max(rules.t_max_ms, _PATIENCE_MS):
            continue
        if not _is_at_hand(state, message_id) and len(effects.wanted) >= WANTED_MAX:
            continue  # the next time
        response = state.responses.pop(message_id)
        effects.changed = True
        if not guard.may_answer:  # it has waited for long enough: a participant that still lacks it asks again
            guard.withheld += 1
            continue
        known, place = state.history.get(message_id), state.known.get(message_id)
        message = None if known is None else sendable(known, rules.dialect, rules.settings, now)
        data = response.data if message is None else rules.dialect.encode(message)
        if data:
            guard.answer(message_id, len(data), now)
            effects.events.append(RepairReady(rules.channel_id, message_id, data))
        elif place is not None and place.at_ms:  # else it has left history meanwhile: another participant may have it
            effects.wanted.append(KnownMessage(message_id, place.at_ms, place.sender_id))


def _is_at_hand(state: ChannelState, message_id: str) -> bool:
    return message_id in state.history or bool(state.responses[message_id].data)


def _answer_size(state: ChannelState, message_id: str) -> int:
    known = state.history.get(message_id)
    return (len(state.responses[message_id].data) or _SIZE) if known is None else known.size


def _unasked(state: ChannelState) -> Iterator[HistoryEntry]:
    """What is waited for and nobody was asked for: there was no room for the request, or for what came.

    First what the oldest ones wait for: these are the next to be delivered.
    """
    unasked = [
        (state.incoming[waiters[0]].message, missing)
        for missing, waiters in state.waiting.items()
        if missing not in state.requests and missing not in state.incoming
    ]
    unasked.sort(key=lambda found: (found[0].lamport or 0, found[0].message_id))
    for waiter, missing in unasked:
        named = (entry for entry in waiter.causal_history if entry.message_id == missing)
        yield next(named, HistoryEntry(missing))


def _bare(entry: HistoryEntry) -> HistoryEntry:
    """Without its hint, which serves nobody who asks or answers."""
    return HistoryEntry(entry.message_id, b"", entry.sender_id) if entry.retrieval_hint else entry


def _trim(repairs: dict[str, RepairResponse], most: int) -> None:
    """Keep those that are due first."""
    if len(repairs) > most:
        for message_id in sorted(repairs, key=lambda one: repairs[one].due_ms)[most:]:
            del repairs[message_id]
