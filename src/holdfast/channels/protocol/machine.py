"""The protocol as a pure state machine: a step takes a state, an input and the time, and gives effects.

There is no clock here, no disk, no thread and no chance. A step first refuses what it must refuse and raises then, with
the state as it was; after that it cannot fail. The state is moved through: a step changes it in place and the caller
continues with it (copying a thousand messages per message would be pure, too, and useless). What a step gives back is
everything that the world should learn of it: events in causal order, how history changed, whether there is anything to
keep.

Rules that differ from the reference implementations, on purpose (docs/decisions/0009 has all of them):

- `ready` comes in causal order, dependents after what they depend on, and among equals by (Lamport time, id).
- What was delivered, or sent, is known for good, far beyond history, and is not delivered again; what has left history
  is answered from the log.
- A message of ours that comes back and that we do not know any more is put into history, not delivered to ourselves.
- Who is far behind asks at once, and for many; others help, and name what its filter lacks.
- A buffered message that is received again keeps what it waits for; only what came meanwhile is taken off.
- A request for repair stays until the message is here: each time that it is sent, or heard from others, its wait starts
  over. One that only a sync message gave rise to goes after a few times.
- A message names the messages that no other one names before the newest, so that everything is named by something.
- A filter that says yes to everything acknowledges nothing. Lamport times are bounded by the wall clock (`lamport`).
- Messages are kept without the filter that came with them; what is sent again has today's filter, or none.
"""

from __future__ import annotations

from holdfast.channels.protocol.delivering import deliver_released, mark_met
from holdfast.channels.protocol.receiving import receive
from holdfast.channels.protocol.repairing import sweep_repairs
from holdfast.channels.protocol.sending import send, send_ephemeral, send_sync
from holdfast.channels.protocol.state import ChannelState
from holdfast.channels.protocol.steps import (
    Input,
    MarkMet,
    Receive,
    Resume,
    Send,
    SendEphemeral,
    SendSync,
    StepEffects,
    SweepBuffers,
    SweepRepairs,
)
from holdfast.channels.protocol.sweeping import sweep_buffers


def step(state: ChannelState, given: Input, now: int) -> tuple[ChannelState, StepEffects]:
    """One step, at this time (Unix, in milliseconds)."""
    effects = StepEffects()
    match given:
        case Send():
            send(state, given, now, effects)
        case Receive():
            receive(state, given.message, now, effects, given.written)
        case SendSync():
            send_sync(state, given, now, effects)
        case SendEphemeral():
            send_ephemeral(state, given, effects)
        case MarkMet():
            mark_met(state, given.message_ids, now, effects)
        case SweepBuffers():
            sweep_buffers(state, now, effects)
        case SweepRepairs():
            sweep_repairs(state, now, effects)
        case Resume():
            deliver_released(state, [b for b in state.incoming.values() if not b.missing], now, effects)
    return state, effects
