"""Repair (SDS-R): asking for messages that are missing, and answering those who ask.

Requests and responses wait for times that participants and messages determine, so that of many who could speak only one
or a few do; whoever hears another one speak keeps silent. Requests go out with other messages, a few at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

from holdfast.channels.events import RepairReady
from holdfast.channels.lamport import sendable
from holdfast.channels.message import ENTRIES_BYTES_MAX, HistoryEntry
from holdfast.channels.snapshot import RepairRequest, RepairResponse
from holdfast.channels.state import ChannelState
from holdfast.channels.steps import Step
from holdfast.channels.wire import write_entry

ALWAYS_FIT = 20
"""Entries of the largest ids and hints: less than half of ENTRIES_BYTES_MAX."""

_PATIENCE_MS = 60_000
"""How long an answer waits for the budget, at least."""


def due_requests(state: ChannelState, now: int) -> tuple[HistoryEntry, ...]:
    """What to ask for now: what messages here wait for, then what only syncs have named; the most overdue first."""
    if not state.requests:
        return ()
    due = sorted(
        (message_id not in state.waiting, request.due_ms, message_id)
        for message_id, request in state.requests.items()
        if request.due_ms <= now
    )
    asked = [state.requests[message_id].entry for *_, message_id in due[: state.rules.settings.repair_requests_max]]
    return tuple(asked if len(asked) <= ALWAYS_FIT else fitting(asked))


def fitting(entries: Sequence[HistoryEntry]) -> Sequence[HistoryEntry]:
    """The first ones, as far as half of what a message may name in bytes: else long ids of strangers silence us."""
    left = ENTRIES_BYTES_MAX // 2
    for number, entry in enumerate(entries):
        left -= len(write_entry(entry))
        if left < 0:
            return entries[:number]
    return entries


def ask_for(state: ChannelState, missing: Sequence[HistoryEntry], now: int) -> bool:
    """Ask for missing messages, in a while; tells whether there is anything new to ask for."""
    rules = state.rules
    if not rules.participant_id:
        return False
    asked = False
    for entry in missing:
        # What waits here already is not missing on the network's account.
        if entry.message_id not in state.requests and entry.message_id not in state.incoming:
            state.requests[entry.message_id] = RepairRequest(_bare(entry), rules.request_due(entry.message_id, now))
            asked = True
    if asked:
        _trim(state.requests, rules.settings.repairs_max)
    return asked


def ask_later(state: ChannelState, message_id: str, now: int) -> None:
    """Let a request wait anew."""
    entry = state.requests[message_id].entry
    state.requests[message_id] = RepairRequest(entry, state.rules.request_due(message_id, now))


def settle(state: ChannelState, message_id: str) -> bool:
    """A message is here, or nobody wants it any more: whether it was asked for, or to be answered with."""
    asked = state.requests.pop(message_id, None)
    answered = state.responses.pop(message_id, None)
    return asked is not None or answered is not None


def take_requests(state: ChannelState, requests: Sequence[HistoryEntry], now: int, effects: Step) -> None:
    """What others ask for: nobody else has to ask just now, and perhaps we can answer."""
    rules = state.rules
    for entry in requests[: rules.settings.repair_taken_max]:
        message_id = entry.message_id
        if message_id in state.requests and state.guard.may_postpone(message_id):
            ask_later(state, message_id, now)
            effects.changed = True
        known = state.history.get(message_id)
        if known is None or not rules.participant_id or not entry.sender_id or message_id in state.responses:
            continue
        if rules.dialect.responds(rules.participant_id, entry.sender_id, message_id, rules.settings.response_groups):
            due = state.guard.not_before(message_id, rules.response_due(entry.sender_id, message_id, now))
            state.responses[message_id] = RepairResponse(_bare(entry), due)
            effects.changed = True
    _trim(state.responses, rules.settings.repairs_max)


def sweep_repairs(state: ChannelState, now: int, effects: Step) -> None:
    """Answer what is due, and ask for what is waited for and was never asked for."""
    rules = state.rules
    t_max = rules.t_max_ms
    # Sync messages ask for a few at a time: each request has had its turn before it is given up.
    turns = -(-len(state.requests) // max(1, rules.settings.repair_requests_max))
    patience = max(t_max, turns * rules.settings.sync_interval_ms)
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
        elif now - request.due_ms > patience and message_id not in state.waiting:
            del state.requests[message_id]
            effects.changed = True
    state.asked = {message_id: times for message_id, times in state.asked.items() if message_id in state.requests}
    state.guard.forget_all_but(state.requests)
    room = rules.settings.repairs_max - len(state.requests)
    effects.changed = ask_for(state, list(islice(_unasked(state), room)), now) or effects.changed


def _answer(state: ChannelState, now: int, effects: Step) -> None:
    """Answer what is due, as far as the budget goes: if not for all, the small ones first."""
    guard, rules = state.guard, state.rules
    guard.fill(now)
    due = sorted((one.due_ms, message_id) for message_id, one in state.responses.items() if one.due_ms <= now)
    sizes = {message_id: _answer_size(state, message_id) for _, message_id in due}
    if not guard.affords(sizes.values()):
        due.sort(key=lambda found: (sizes[found[1]], found))
    for due_ms, message_id in due:
        if not guard.may_answer and now - due_ms <= max(rules.t_max_ms, _PATIENCE_MS):
            continue
        response = state.responses.pop(message_id)
        effects.changed = True
        if not guard.may_answer:  # it has waited for long enough: whoever still lacks it asks again
            guard.withheld += 1
            continue
        known = state.history.get(message_id)
        message = None if known is None else sendable(known, rules.dialect, rules.settings, now)
        data = response.data if message is None else rules.dialect.encode(message)
        if data:  # else it has left history meanwhile: somebody else may have it
            guard.answer(message_id, len(data), now)
            effects.events.append(RepairReady(rules.channel_id, message_id, data))


def _answer_size(state: ChannelState, message_id: str) -> int:
    known = state.history.get(message_id)
    return len(state.responses[message_id].data) if known is None else known.size


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


def _trim(repairs: dict[str, RepairRequest] | dict[str, RepairResponse], most: int) -> None:
    """Keep those that are due first."""
    if len(repairs) > most:
        for message_id in sorted(repairs, key=lambda one: (repairs[one].due_ms, one))[most:]:
            del repairs[message_id]
