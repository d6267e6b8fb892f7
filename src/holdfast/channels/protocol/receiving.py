"""Messages of others: what they acknowledge, what they ask for, and whether they can be delivered."""

from __future__ import annotations

import msgspec

from holdfast.channels.channel_events import MessageReady, MessageSent, MissingDependencies
from holdfast.channels.keeping.snapshot import BufferedMessage
from holdfast.channels.keeping.stored_message import StoredMessage
from holdfast.channels.protocol.catching_up import (
    came_in_vain,
    goes_before,
    heard_help,
    is_far_behind,
    room_for,
    take_help,
)
from holdfast.channels.protocol.delivering import deliver, deliver_released, note, released
from holdfast.channels.protocol.lamport import LamportBounds, after_hearing, bounds, check
from holdfast.channels.protocol.repairing import ask_for, settle, take_requests
from holdfast.channels.protocol.sending import check_content
from holdfast.channels.protocol.state import ChannelState, Rules
from holdfast.channels.protocol.steps import Received, StepEffects
from holdfast.channels.wire.derived_ids import check_derived_id
from holdfast.channels.wire.message import HistoryEntry, SdsMessage

INCOMING_BYTES_MAX = 64 * 2**20
"""Bytes of messages that may wait for others; beyond that newcomers are refused, as if they were lost."""


def receive(
    state: ChannelState, message: SdsMessage, now: int, effects: StepEffects, written: StoredMessage | None = None
) -> None:
    """Take a message: deliver it, let it wait, or know it already."""
    rules, lamport = state.rules, message.lamport
    _check(rules, message)
    if lamport is None:
        _receive_ephemeral(state, message, effects)
        return
    most = bounds(rules.dialect, rules.settings, now)
    check(rules.channel_id, lamport, most)
    state.guard.clock_refused_in_a_row = 0
    message_id = message.message_id
    own = bool(rules.participant_id) and message.sender_id == rules.participant_id
    if _is_forged(state, message):
        state.guard.forged += 1
        effects.received = _received(message, duplicate=True, own=own)
        return
    # The one that sent it again has answered for us, and no request is needed.
    was_asked = message_id in state.asked and message_id in state.requests
    effects.changed = settle(state, message_id)
    if (
        message_id in state.history
        or message_id in state.known
        or (message_id in state.synced and message.kind == "sync")
    ):
        effects.received = _received(message, duplicate=True, own=own)
        return
    waiting = state.incoming.get(message_id)
    if waiting is None:
        if not own:
            _review_acknowledgements(state, message, now, effects)
        take_requests(state, message, now, effects)
    else:
        message = waiting.message  # the first one counts: another with its id may be forged
    missing = _missing(state, message, waiting)
    behind = bool(missing) and is_far_behind(state, message, missing, was_asked)
    if message.kind == "sync":
        _receive_sync(state, message, missing, own, behind, now, effects)
    elif missing:
        _wait(state, message, missing, waiting, own, behind, now, effects)
    else:
        if waiting is None:
            state.show(message_id)
            _hear(state, lamport, most)
            if written is not None:
                effects.written = {message_id: written}
        state.unbuffer(message_id)
        deliver(state, message.without_bloom(), now, waiting.received_ms if waiting else now, effects)
        deliver_released(state, released(state, [message_id]), now, effects)
        effects.received = _received(message, own=own)


def _check(rules: Rules, message: SdsMessage) -> None:
    if rules.settings.derived_ids:
        check_derived_id(message)
    if message.content:
        check_content(message.content, rules.settings.content_bytes_max)


def _is_forged(state: ChannelState, message: SdsMessage) -> bool:
    """Whether we have another message under this id: then it answers for nobody."""
    known = state.history.get(message.message_id)
    return known is not None and (known.content, known.sender_id) != (message.content, message.sender_id)


def _received(message: SdsMessage, *, duplicate: bool = False, own: bool = False) -> Received:
    return Received(
        message.channel_id, message.message_id, message.sender_id, message.content, duplicate=duplicate, own=own
    )


def _receive_ephemeral(state: ChannelState, message: SdsMessage, effects: StepEffects) -> None:
    rules = state.rules
    own = bool(rules.participant_id) and message.sender_id == rules.participant_id
    effects.received = _received(message, own=own)
    if not own:
        effects.events.append(
            MessageReady(rules.channel_id, message.message_id, message.sender_id, message.content, None)
        )


def _receive_sync(
    state: ChannelState,
    message: SdsMessage,
    missing: list[HistoryEntry],
    own: bool,
    behind: bool,
    now: int,
    effects: StepEffects,
) -> None:
    """What a participant knows: it is no part of the conversation, but says what we lack."""
    assert message.lamport is not None
    _hear(state, message.lamport, bounds(state.rules.dialect, state.rules.settings, now))
    heard_help(state, message)
    state.mark(state.synced, message.message_id)
    is_awaited = message.message_id in state.waiting
    effects.changed = effects.changed or state.rules.dialect.ticks_on_receipt or is_awaited
    if missing:
        effects.events.append(MissingDependencies(state.rules.channel_id, message.message_id, tuple(missing)))
    has_room = len(state.incoming) < state.rules.settings.incoming_max
    if missing and (has_room or state.behind):  # else first what makes room; help begins with that
        if behind or state.behind:
            take_help(state, missing)
        effects.changed = ask_for(state, missing, now, behind=behind) or effects.changed
    deliver_released(state, released(state, [message.message_id]), now, effects)
    effects.received = _received(message, own=own)


def _hear(state: ChannelState, lamport: int, most: LamportBounds) -> None:
    """The clock when a message is received for the first time."""
    if state.rules.dialect.ticks_on_receipt:
        state.lamport = after_hearing(state.lamport, lamport, most, tick=1)


def _review_acknowledgements(state: ChannelState, message: SdsMessage, now: int, effects: StepEffects) -> None:
    if not state.outgoing:
        return
    settings, dialect = state.rules.settings, state.rules.dialect
    named = {entry.message_id for entry in message.causal_history}
    theirs = None
    if message.bloom_filter and any(entry.message.message_id not in named for entry in state.outgoing):
        theirs = dialect.read_filter(message.bloom_filter, settings.bloom_capacity, settings.bloom_error_rate)
    kept = []
    for entry in state.outgoing:
        message_id = entry.message.message_id
        hits = entry.possible_acks + (theirs is not None and message_id in theirs)
        if message_id in named or hits >= dialect.acks_needed:
            effects.events.append(MessageSent(state.rules.channel_id, message_id))
            effects.notes.append(note("acknowledged", entry.message, now))
        else:
            kept.append(entry if hits == entry.possible_acks else msgspec.structs.replace(entry, possible_acks=hits))
    effects.changed = effects.changed or kept != state.outgoing
    state.outgoing = kept


def _missing(state: ChannelState, message: SdsMessage, waiting: BufferedMessage | None) -> list[HistoryEntry]:
    """What a message depends on and is not here; one that waits already never waits for more than it did."""
    absent = state.history.lacks(message.causal_history)
    if not absent:  # as usual
        return absent
    considered = None if waiting is None else set(waiting.missing)
    return [
        entry
        for entry in absent
        if not state.has(entry.message_id)
        and entry.message_id != message.message_id
        and (considered is None or entry.message_id in considered)
    ]


def _wait(
    state: ChannelState,
    message: SdsMessage,
    missing: list[HistoryEntry],
    waiting: BufferedMessage | None,
    own: bool,
    behind: bool,
    now: int,
    effects: StepEffects,
) -> None:
    rules = state.rules
    assert message.lamport is not None
    refused = waiting is None and not _has_room(state, message)
    goes_before(state, message.message_id, missing)
    if waiting is None and not refused:
        state.show(message.message_id)
        _hear(state, message.lamport, bounds(rules.dialect, rules.settings, now))
    ids = tuple(dict.fromkeys(entry.message_id for entry in missing))
    if not refused and (waiting is None or ids != waiting.missing):
        received = now if waiting is None else waiting.received_ms
        state.buffer(BufferedMessage(message.without_bloom(), ids, received))
        effects.changed = True
    effects.events.append(MissingDependencies(rules.channel_id, message.message_id, tuple(missing)))
    if waiting is None and not refused:
        effects.notes.append(note("missing", message, now, missing=ids))
    if refused:
        came_in_vain(state, message.message_id)
        # The oldest first, so that what comes next can be delivered and makes room; with enough room, itself as well.
        room = rules.settings.repairs_max - len(state.requests)
        wanted = missing[:room]
        if len(missing) < room // 2:
            wanted.append(HistoryEntry(message.message_id, b"", message.sender_id))
        asked = ask_for(state, wanted, now, behind=behind)
    else:
        asked = ask_for(state, missing, now, behind=behind)
    effects.changed = asked or effects.changed
    effects.received = Received(
        message.channel_id,
        message.message_id,
        message.sender_id,
        message.content,
        tuple(missing),
        duplicate=waiting is not None,
        own=own,
        refused=refused,
    )


def _has_room(state: ChannelState, message: SdsMessage) -> bool:
    most = room_for(state, message.message_id, state.rules.settings.incoming_max)
    bytes_most = room_for(state, message.message_id, INCOMING_BYTES_MAX)
    return len(state.incoming) < most and state.incoming_bytes + message.size <= bytes_most
