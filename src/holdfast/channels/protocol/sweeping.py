"""What time does to a channel: messages are sent again, given up, or delivered without what is lost."""

from __future__ import annotations

import msgspec

from holdfast.channels.channel_events import DependenciesLost, MessageGivenUp, ResendDue
from holdfast.channels.keeping.snapshot import UnacknowledgedMessage
from holdfast.channels.protocol.delivering import deliver_released, mark_met, note
from holdfast.channels.protocol.lamport import sendable
from holdfast.channels.protocol.state import ChannelState
from holdfast.channels.protocol.steps import StepEffects


def sweep_buffers(state: ChannelState, now: int, effects: StepEffects) -> None:
    """Send again what nobody has acknowledged, give up what was sent often enough, and what is lost."""
    rules, settings = state.rules, state.rules.settings
    kept: list[UnacknowledgedMessage] = []
    for entry in state.outgoing:
        message_id = entry.message.message_id
        if entry.sent_ms > now:  # the clock went back: begin to wait again
            kept.append(msgspec.structs.replace(entry, sent_ms=now))
        elif now - entry.sent_ms <= settings.resend_interval_ms:
            kept.append(entry)
        elif entry.attempts < settings.resend_attempts_max:
            again = msgspec.structs.replace(entry, attempts=entry.attempts + 1, sent_ms=now)
            kept.append(again)
            fresh = msgspec.structs.replace(
                sendable(entry.message, rules.dialect, settings, now), bloom_filter=state.filter.to_bytes()
            )
            data = rules.dialect.encode(fresh)
            effects.events.append(ResendDue(rules.channel_id, message_id, data, again.attempts))
        else:
            effects.events.append(MessageGivenUp(rules.channel_id, message_id))
            effects.notes.append(note("given_up", entry.message, now))
    effects.changed = kept != state.outgoing
    state.outgoing = kept
    _give_up_lost(state, now, effects)
    state.filter.clean()


def _give_up_lost(state: ChannelState, now: int, effects: StepEffects) -> None:
    wait_max_ms = state.rules.settings.lost_after_ms
    if not wait_max_ms:
        return
    for message_id, buffered in state.incoming.items():
        if buffered.received_ms > now:  # the clock went back: begin to wait again
            state.incoming[message_id] = msgspec.structs.replace(buffered, received_ms=now)
            effects.changed = True
    overdue = [buffered for buffered in state.incoming.values() if now - buffered.received_ms > wait_max_ms]
    overdue.sort(key=lambda buffered: (buffered.message.lamport or 0, buffered.message.message_id))
    for message_id in [found.message.message_id for found in overdue]:
        waiting = state.incoming.get(message_id)
        # What waits here itself is not lost: its own turn comes.
        lost = [] if waiting is None else [missing for missing in waiting.missing if missing not in state.incoming]
        if waiting is None or not lost:
            continue
        entries = tuple(entry for entry in waiting.message.causal_history if entry.message_id in lost)
        effects.events.append(DependenciesLost(state.rules.channel_id, message_id, entries))
        effects.notes.append(note("lost", waiting.message, now, missing=tuple(lost)))
        mark_met(state, lost, now, effects, lost=True)
    _break_cycles(state, wait_max_ms, now, effects)


def _break_cycles(state: ChannelState, wait_max_ms: int, now: int, effects: StepEffects) -> None:
    """Messages that wait only for each other, which no honest sender makes: the first of them goes ahead."""
    stuck = [
        (state.incoming[message_id].message.lamport or 0, message_id)
        for message_id in _hopeless(state)
        if now - state.incoming[message_id].received_ms > wait_max_ms
    ]
    for _, message_id in sorted(stuck):
        buffered = state.incoming.get(message_id)
        if buffered is None:
            continue  # one that was before it has released it
        entries = tuple(entry for entry in buffered.message.causal_history if entry.message_id in buffered.missing)
        effects.events.append(DependenciesLost(state.rules.channel_id, message_id, entries))
        effects.notes.append(note("lost", buffered.message, now, missing=buffered.missing))
        state.buffer(msgspec.structs.replace(buffered, missing=()))
        deliver_released(state, [state.incoming[message_id]], now, effects)


def _hopeless(state: ChannelState) -> list[str]:
    """Buffered messages that nothing which may still come can release."""
    hopeful = [
        message_id for missing, own in state.waiting.items() if missing not in state.incoming for message_id in own
    ]
    seen = set(hopeful)
    while hopeful:
        for waiter in state.waiting.get(hopeful.pop(), ()):
            if waiter not in seen:
                seen.add(waiter)
                hopeful.append(waiter)
    return [message_id for message_id in state.incoming if message_id not in seen]
