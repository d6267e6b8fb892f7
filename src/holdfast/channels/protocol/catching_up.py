"""Catching up: how a participant that is far behind gets on, and how others help.

Who was away finds out with the first message that it hears: it names what is not here, all of it. Asking patiently, for
three at a time, each naming ten more, would take hours. So a participant that is *behind* asks promptly and for
hundreds at once, in a sync message made for that, and asks again soon, then ever more rarely, until nothing is waited
for.

Who hears such a request answers promptly, too, and *helps*: the filter that came with it shows what the other one has,
so a sync message names what it lacks, oldest first, hundreds at once. One round of help spares fifty of asking. What
others helped with is requested, and answered, in order, the oldest first: each has all that it needs before it, and
need not wait. So however much was missed, and however small the buffers are, it gets less with each round. Only so many
are requested ahead as could wait here, and a few more; half of the room to wait is theirs, and of all requests.

All of this is ordinary SDS: requests and names, more and sooner. Times are spread by participant, within a second or
two; a participant that hears another one ask for the same, or help with the same, waits.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

import msgspec

from holdfast.channels.protocol.state import ChannelState
from holdfast.channels.wire.dialect import Filter
from holdfast.channels.wire.message import HistoryEntry, SdsMessage

BEHIND = 10
"""So many missing messages at once are no accident of the network."""
BULK = 256
"""The most that are asked for, or named to help, at once: 20 KB, with usual ids."""
SPREAD_MS = 1_000
"""Over this time participants spread what they do promptly."""
AGAIN_MS = 5_000
"""After this time what nobody answered is asked for again, then after twice as long, and so on."""
HELP_PAUSE_MS = 1_000
"""We help no more often than this."""
STRIDE = 256
"""So far apart we look for what a participant has; its filter may hold no more than that."""
NAMED_MAX = 4 * BULK
"""So many names of those who helped us are remembered."""
AHEAD = 64
"""So many of them are asked for beyond what could wait here, at most: as many as came in order the last time."""
_PROBES = 4
"""So many ids in a row that a participant has, or lacks, tell on which side of a gap they are."""
_MARGIN = 32
"""Before a gap others may be missing, too: not everybody hears everything in the same order."""


class Help(msgspec.Struct, frozen=True):
    """What to name for a participant who is behind."""

    entries: tuple[HistoryEntry, ...]
    due_ms: int


def spread(state: ChannelState, within_ms: int) -> int:
    """Our own share of a short time: the same for all messages, so that they go together."""
    rules = state.rules
    return rules.dialect.request_delay_ms(rules.participant_id, rules.channel_id, 0, min(within_ms, rules.t_max_ms))


def is_far_behind(state: ChannelState, message: SdsMessage, missing: Sequence[HistoryEntry], was_asked: bool) -> bool:
    """Whether we lack much: an answer lacks something itself, nothing that a message names is here, or many are not."""
    enough = max(2, min(BEHIND, state.rules.settings.causal_history_max))
    return (
        (was_asked and bool(missing))
        or enough <= len(missing) == len(message.causal_history)
        or len(state.requests) >= BEHIND
    )


def offer(state: ChannelState, message: SdsMessage, theirs: Filter, now: int) -> None:
    """Prepare to help the sender of a request, unless we do already."""
    if state.help is not None or 0 <= now - state.helped_ms < HELP_PAUSE_MS:
        return
    ids = state.known.ids()
    asked = {entry.message_id for entry in message.repair_request}
    until = _first(ids, asked)
    lacked = [] if until is None else _lacked(ids, until, theirs)
    entries = [entry for entry in (_entry(state, message_id) for message_id in lacked) if entry is not None]
    if sum(entry.message_id not in asked for entry in entries) * 2 > len(entries):  # else it knows what comes next
        state.help = Help(tuple(entries), now + spread(state, SPREAD_MS))


def is_behind(state: ChannelState, message: SdsMessage, theirs: Filter) -> bool:
    """Whether a participant who asks for a message lacks those before it, too."""
    ids = state.filter.ids
    until = _first(ids, {entry.message_id for entry in message.repair_request})
    if until is None:  # so long ago that our filter has let it go
        return any(entry.message_id in state.known for entry in message.repair_request)
    before = ids[max(0, until - _PROBES) : until]
    return len(before) == _PROBES and not any(message_id in theirs for message_id in before)


def heard_help(state: ChannelState, message: SdsMessage) -> None:
    """A participant names things: if it is what we were about to name, that is done."""
    if state.help is not None:
        named = {entry.message_id for entry in message.causal_history}
        if sum(entry.message_id in named for entry in state.help.entries) * 2 >= len(state.help.entries):
            state.help = None


def _entry(state: ChannelState, message_id: str) -> HistoryEntry | None:
    """A message that we could answer with."""
    place = state.known.get(message_id)
    if place is None or not place.sender_id or not (place.at_ms or message_id in state.history):
        return None
    return HistoryEntry(message_id, b"", place.sender_id)


def take_help(state: ChannelState, missing: Sequence[HistoryEntry]) -> None:
    """Remember what others name to help us, the newest help first: it begins with what can be delivered next.

    A sync message that only says what its sender has names no more than any other message.
    """
    if len(missing) > state.rules.settings.causal_history_max:
        named = {entry.message_id: entry for entry in missing} | state.named
        state.named = dict(islice(named.items(), NAMED_MAX))


def goes_before(state: ChannelState, message_id: str, missing: Sequence[HistoryEntry]) -> None:
    """What others helped with came and lacks something all the same: that comes first.

    Our filter may say of a message that it is here when it is not; then nobody names it.
    """
    if message_id not in state.named:
        return
    following = {entry.message_id for entry in next_named(state)}
    if message_id in following:
        state.named = {one.message_id: one for one in missing if one.message_id not in following} | state.named


def came_in_vain(state: ChannelState, message_id: str) -> None:
    """There was no room for a message; if others helped with it, one before it was lost: ask for fewer at once."""
    if message_id in state.named:
        state.ahead = max(1, state.ahead - 1)


def came(state: ChannelState, message_id: str) -> None:
    """A message is delivered; if others helped with it, it may be more the next time."""
    if state.named.pop(message_id, None) is not None:
        state.ahead = min(AHEAD, state.ahead + 1)


def next_named(state: ChannelState) -> list[HistoryEntry]:
    """What others named that comes next: what could wait here, and a little more. These are always asked for."""
    settings = state.rules.settings
    room = max(0, settings.incoming_max - len(state.incoming)) + state.ahead
    lacking = (entry for message_id, entry in state.named.items() if message_id not in state.incoming)
    return list(islice(lacking, min(room, max(1, settings.repairs_max // 2))))


def room_for(state: ChannelState, message_id: str, most: int) -> int:
    """How much of a limit on what waits is there for a message: half is for what others helped us with."""
    return most if not state.named or message_id in state.named else max(1, most // 2)


def _first(ids: Sequence[str], asked: set[str]) -> int | None:
    return next((at for at, message_id in enumerate(ids) if message_id in asked), None)


def _lacked(ids: Sequence[str], until: int, theirs: Filter) -> list[str]:
    """Ids that a participant lacks, from the beginning of a gap that lasts at least up to there."""

    def has(at: int) -> bool:
        return all(message_id in theirs for message_id in ids[at : at + _PROBES])

    step, low, high = 1, max(0, until - _PROBES), until
    while low > 0 and not has(low):
        low, high, step = max(0, low - step), low, min(step * 2, STRIDE)
    if not has(low):  # its filter does not reach back so far: what came just before must do
        start = max(0, until - BULK)
    else:
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if has(middle) else (low, middle)
        start = max(0, low - _MARGIN)
    lacked: list[str] = []
    for message_id in ids[start : start + 2 * BULK]:
        if message_id not in theirs:
            lacked.append(message_id)
            if len(lacked) == BULK:
                break
    return lacked
