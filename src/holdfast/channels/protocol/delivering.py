"""Delivery in causal order: what came into history, and what waited for it, and for that, and so on."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush

import msgspec

from holdfast.channels.channel_events import MessageReady
from holdfast.channels.keeping.snapshot import BufferedMessage, KnownMessage, Note, NoteKind
from holdfast.channels.protocol.catching_up import came
from holdfast.channels.protocol.lamport import after_hearing, bounds
from holdfast.channels.protocol.repairing import settle
from holdfast.channels.protocol.state import ChannelState
from holdfast.channels.protocol.steps import StepEffects
from holdfast.channels.wire.message import SdsMessage


def deliver(state: ChannelState, message: SdsMessage, now: int, received: int, effects: StepEffects) -> None:
    """Put a message into history and tell of it, unless it is our own."""
    rules = state.rules
    assert message.lamport is not None
    if not rules.dialect.ticks_on_receipt:
        most = bounds(rules.dialect, rules.settings, now)
        state.lamport = after_hearing(state.lamport, message.lamport, most, tick=0)
    remember(state, message, now, effects)
    effects.changed = True
    if rules.participant_id and message.sender_id == rules.participant_id:
        return  # it came back to us: we know it
    waited = max(0, now - received)
    effects.notes.append(note("delivered", message, now, waited_ms=waited))
    effects.events.append(
        MessageReady(rules.channel_id, message.message_id, message.sender_id, message.content, message.lamport)
    )


def remember(state: ChannelState, message: SdsMessage, now: int, effects: StepEffects) -> None:
    """Put a message into history, and its id among those that are known; what has to go for it, goes."""
    state.unmark(message.message_id)
    came(state, message.message_id)
    known = KnownMessage(message.message_id, now, message.sender_id)
    if state.known.add(known):
        effects.known.append(known)
    effects.appended.append(message.message_id)
    for gone in state.history.add(message, state.lamport):
        state.hints.pop(gone, None)
        effects.evicted.append(gone)


def released(state: ChannelState, message_ids: Sequence[str]) -> list[BufferedMessage]:
    """Those that waited for these ids, and wait for nothing any more."""
    here: dict[str, set[str]] = {}
    for message_id in message_ids:
        for waiter in state.waiting.pop(message_id, ()):
            here.setdefault(waiter, set()).add(message_id)
    free = []
    for waiter, ids in here.items():
        buffered = state.incoming[waiter]
        missing = tuple(other for other in buffered.missing if other not in ids)
        state.incoming[waiter] = msgspec.structs.replace(buffered, missing=missing)
        if not missing:
            free.append(state.incoming[waiter])
    return free


def deliver_released(state: ChannelState, free: Sequence[BufferedMessage], now: int, effects: StepEffects) -> None:
    """Deliver messages that wait for nothing, and those that waited for them, and so on, in a stable order."""
    ready: list[tuple[int, str]] = []
    for buffered in free:
        heappush(ready, (buffered.message.lamport or 0, buffered.message.message_id))
    while ready:
        _, message_id = heappop(ready)
        buffered = state.incoming[message_id]
        state.unbuffer(message_id)
        deliver(state, buffered.message, now, buffered.received_ms, effects)
        for further in released(state, [message_id]):
            heappush(ready, (further.message.lamport or 0, further.message.message_id))


def mark_met(
    state: ChannelState, message_ids: Sequence[str], now: int, effects: StepEffects, *, lost: bool = False
) -> None:
    """These ids count as delivered; with `lost`, because nobody has them."""
    fresh = [message_id for message_id in dict.fromkeys(message_ids) if not state.has(message_id)]
    for message_id in fresh:
        if not lost:  # our filter acknowledges: never what nobody has
            state.show(message_id)
        state.mark(state.met, message_id)
        if lost:
            state.mark(state.lost, message_id)
        settle(state, message_id)
        effects.changed = True
    deliver_released(state, released(state, fresh), now, effects)


def note(kind: NoteKind, message: SdsMessage, now: int, *, waited_ms: int = 0, missing: tuple[str, ...] = ()) -> Note:
    """Something that happened, for those who look at it from outside."""
    content = message.content if kind in ("sent", "delivered") else b""
    causes = message.causal_history if content else ()
    return Note(
        kind, message.message_id, message.sender_id, message.lamport or 0, now, content, waited_ms, missing, causes
    )
