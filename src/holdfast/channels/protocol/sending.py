"""Messages of our own: content, ephemeral content, and sync messages.

Everything that may refuse a message comes before anything is changed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from holdfast.channels.channel_events import PeriodicSync
from holdfast.channels.keeping.snapshot import UnacknowledgedMessage
from holdfast.channels.protocol.delivering import deliver_released, note, released, remember
from holdfast.channels.protocol.lamport import bounds, for_sending
from holdfast.channels.protocol.repairing import ALWAYS_FIT, ask_later, due_requests, fitting, settle
from holdfast.channels.protocol.state import ChannelState
from holdfast.channels.protocol.steps import Send, SendEphemeral, SendSync, StepEffects
from holdfast.channels.wire.derived_ids import with_derived_id
from holdfast.channels.wire.message import HistoryEntry, SdsMessage
from holdfast.errors import Full, Invalid

BULK_BYTES_MAX = 2**16
"""What a sync message may ask for, and name, each, when a participant is behind."""
_ENVELOPE_BYTES = 4_096
"""What a message has besides its filter and its entries: three ids, at most."""
_ASKED_MAX = 5
"""How often we ask for a message that no other one waits for."""


def send(state: ChannelState, given: Send, now: int, effects: StepEffects) -> None:
    """Content for everybody: it is ours to send again until a participant has it."""
    rules, settings = state.rules, state.rules.settings
    check_content(given.content, settings.content_bytes_max)
    if len(state.outgoing) >= settings.outgoing_max:
        raise Full(
            f"{settings.outgoing_max} messages wait for acknowledgement channel={rules.channel_id}",
            hint="wait for message_sent or message_given_up, or raise channels.outgoing_max",
        )
    message = _message(state, given.message_id, given.content, causal_history(state, given.hints), now)
    if message.message_id in state.incoming:
        raise Invalid(
            f"a message with this id came in and waits for others channel={rules.channel_id}",
            hint="ids must be unique in a channel; leave the choice to wrap_outgoing_message",
        )
    data, written = rules.dialect.write(message)
    _check_carried(data, message, given.bytes_max)
    effects.data, effects.message_id = data, message.message_id
    if written is not None:
        effects.written = {message.message_id: written}
    state.hints.update((named, hint) for named, hint in given.hints.items() if named in state.history)
    _went_out(state, message, now)
    message = message.without_bloom()
    state.outgoing.append(UnacknowledgedMessage(message, now))
    state.show(message.message_id)
    remember(state, message, now, effects)
    effects.notes.append(note("sent", message, now))
    effects.changed = True
    # After a loss of state others may know our message, and name it, before we send it again.
    settle(state, message.message_id)
    deliver_released(state, released(state, [message.message_id]), now, effects)


def send_sync(state: ChannelState, given: SendSync, now: int, effects: StepEffects) -> None:
    """Tell others what we know and what we miss; nothing, where there is nothing to tell."""
    if not (state.history or state.requests):
        return
    rules = state.rules
    room = BULK_BYTES_MAX
    if given.bytes_max is not None:
        room = max(0, min(room, (given.bytes_max - len(state.filter.to_bytes()) - _ENVELOPE_BYTES) // 2))
    is_help = state.help is not None and state.help.due_ms <= now
    causes = tuple(fitting(state.help.entries, room)) if state.help is not None and is_help else _loose_ends(state)
    message = _message(state, given.message_id, b"", causes, now, room)
    effects.data = rules.dialect.encode(message)
    if is_help:
        state.help, state.helped_ms = None, now
    else:
        state.syncs += 1
    if state.behind and message.repair_request:
        state.asked_ms, state.asked_for = now, len(message.repair_request)
    _went_out(state, message, now)
    state.mark(state.synced, message.message_id)
    effects.events.append(PeriodicSync(rules.channel_id, effects.data))
    effects.changed = True


def send_ephemeral(state: ChannelState, given: SendEphemeral, effects: StepEffects) -> None:
    """Content for whom it may reach: neither kept, nor ordered, nor sent again."""
    rules = state.rules
    check_content(given.content, rules.settings.content_bytes_max)
    if not rules.dialect.carries_ephemeral:
        raise Invalid(
            f"the {rules.dialect.name} wire format has no ephemeral messages channel={rules.channel_id}",
            hint="use a channel with dialect='rfc', or wrap_outgoing_message",
        )
    message = SdsMessage(given.message_id, rules.channel_id, None, given.content, rules.participant_id)
    effects.data = rules.dialect.encode(with_derived_id(message) if rules.settings.derived_ids else message)


def check_content(content: bytes, most: int) -> None:
    """Refuse what no message may carry."""
    if not content:
        raise Invalid("a message needs content", hint="sync messages are made by run_periodic_sync()")
    if len(content) > most:
        raise Invalid(
            f"the content has {len(content)} bytes, {most} are allowed", hint="see channels.content_bytes_max"
        )


def _check_carried(data: bytes, message: SdsMessage, most: int | None) -> None:
    # What is sent again carries the filter of that day, which may have become a fifth larger.
    size = len(data) + len(message.bloom_filter) // 5
    if most is not None and size > most:
        raise Invalid(
            f"the message needs {size} bytes, its transport carries {most} content={len(message.content)} "
            f"filter={len(message.bloom_filter)}",
            hint="send less at once, or lower channels.bloom_capacity or channels.causal_history_max",
        )


def _message(
    state: ChannelState,
    message_id: str,
    content: bytes,
    causes: tuple[HistoryEntry, ...],
    now: int,
    bytes_max: int | None = None,
) -> SdsMessage:
    """A message as it would be sent now; nothing is changed yet, for it may be refused."""
    rules, dialect = state.rules, state.rules.dialect
    lamport = for_sending(state.lamport, dialect, bounds(dialect, rules.settings, now), now)
    message = SdsMessage(
        message_id,
        rules.channel_id,
        lamport,
        content,
        rules.participant_id,
        causes,
        state.filter.to_bytes(),
        due_requests(state, now, bytes_max=bytes_max),
    )
    return with_derived_id(message) if rules.settings.derived_ids else message


def _went_out(state: ChannelState, message: SdsMessage, now: int) -> None:
    assert message.lamport is not None
    state.lamport = message.lamport
    for entry in message.repair_request:
        message_id = entry.message_id
        state.asked[message_id] = state.asked.get(message_id, 0) + 1
        state.guard.asked(message_id)
        if message_id in state.waiting or state.asked[message_id] < _ASKED_MAX:
            ask_later(state, message_id, now)
        else:  # only a sync message named it; the next one will, if a participant still has it
            del state.requests[message_id]
            state.named.pop(message_id, None)


def causal_history(state: ChannelState, fresh: Mapping[str, bytes] | None = None) -> tuple[HistoryEntry, ...]:
    """What a message sent now names, with these hints before those that are known: loose ends, and then the newest."""
    hints = {**state.hints, **fresh} if fresh else state.hints
    most = state.rules.settings.causal_history_max
    newest = state.history.tail(most)
    return _entries(_with_loose_ends(state, newest) if len(state.history.loose) > 1 else newest, hints)


def _with_loose_ends(state: ChannelState, newest: Sequence[SdsMessage]) -> Sequence[SdsMessage]:
    """The newest, but of those that others name so many fewer as there are loose ends besides, the oldest first.

    One that nobody has named for half of a history is left to sync messages: others may have let it go by now.
    """
    loose = state.history.loose
    chosen = {message.message_id for message in newest}
    recent = loose.among(max(1, state.rules.settings.history_max // 2))
    besides = [message_id for message_id in recent if message_id not in chosen]
    given = [message.message_id for message in newest if message.message_id not in loose][: len(besides)]
    added = [message for message_id in besides[: len(given)] if (message := state.history.get(message_id)) is not None]
    return [*added, *(message for message in newest if message.message_id not in given)]


def _entries(messages: Sequence[SdsMessage], hints: Mapping[str, bytes]) -> tuple[HistoryEntry, ...]:
    entries = [
        HistoryEntry(message.message_id, hints.get(message.message_id, b""), message.sender_id) for message in messages
    ]
    return tuple(entries) if len(entries) <= ALWAYS_FIT else tuple(fitting(entries[::-1])[::-1])


def _loose_ends(state: ChannelState) -> tuple[HistoryEntry, ...]:
    """What a sync message names: messages that no other one names, in turns if they are many, and then the newest.

    A message names the newest ones only. Of those sent at the same time some may be named by none, and a participant
    that missed one of them would never learn of it. From the loose ends, all of history is found.
    """
    most = state.rules.settings.causal_history_max
    loose = list(state.history.loose)
    if len(loose) > most:
        turn = state.syncs * most % len(loose)
        loose = [*loose[turn:], *loose[:turn]]
    newest = [message.message_id for message in reversed(state.history.tail(most))]
    chosen = set(list(dict.fromkeys([*loose, *newest]))[:most])
    return _entries([message for message in state.history.messages() if message.message_id in chosen], state.hints)
