"""The state of one channel in memory.

It is changed by `protocol` alone and knows neither clock nor disk. `restored` makes it from what was kept, `snapshot`
is what to keep. What can be derived is not kept: the filter is filled from the newest ids that are remembered and from
what waits, as many as it had, so it is the same after a restart as before it.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from holdfast.channels.channel_settings import ChannelSettings
from holdfast.channels.keeping.snapshot import (
    BufferedMessage,
    ChannelData,
    ChannelMeta,
    KnownMessage,
    RepairRequest,
    RepairResponse,
    UnacknowledgedMessage,
)
from holdfast.channels.protocol.answer_limits import AnswerLimits
from holdfast.channels.protocol.frontier import LooseEnds
from holdfast.channels.protocol.known_ids import KnownIds
from holdfast.channels.protocol.lamport import bounds
from holdfast.channels.wire.dialect import Dialect
from holdfast.channels.wire.message import HistoryEntry, SdsMessage

if TYPE_CHECKING:
    from holdfast.channels.protocol.catching_up import Help

MARKS_MAX = 1_000
"""Ids that are remembered as met, and as sync messages; the oldest go first."""


RESUME_BEHIND = 10
"""With so many requests a channel that is loaded was behind when it was kept."""


class Rules(msgspec.Struct, frozen=True):
    """What does not change about a channel."""

    channel_id: str
    participant_id: str
    """Empty: no repair, and no message is recognised as our own."""
    dialect: Dialect
    settings: ChannelSettings
    encrypted: bool = False
    """Messages travel under a key."""

    @property
    def t_max_ms(self) -> int:
        """The longest wait for a request or a response."""
        settings = self.settings
        return settings.repair_t_max_ms or max(self.dialect.response_window_ms, settings.repair_t_min_ms)

    def request_due(self, message_id: str, now: int) -> int:
        """When to ask for a missing message."""
        delay = self.dialect.request_delay_ms(
            self.participant_id, message_id, self.settings.repair_t_min_ms, self.t_max_ms
        )
        return now + delay

    def response_due(self, sender_id: str, message_id: str, now: int, most_ms: int | None = None) -> int:
        """When to answer a request; within this time, if one is given."""
        window = self.t_max_ms if most_ms is None else min(most_ms, self.t_max_ms)
        return now + self.dialect.response_delay_ms(self.participant_id, sender_id, message_id, window)


class MessageHistory:
    """Messages that were sent or delivered, oldest first; the only truth about what was delivered.

    The oldest in the order of insertion goes first. Causal history takes the newest: the last inserted, or, where the
    dialect sorts, those with the highest (Lamport time, id).
    """

    def __init__(self, limit: int, *, is_sorted: bool) -> None:
        self._limit = limit
        self._messages: dict[str, SdsMessage] = {}
        self._sorted: list[tuple[int, str]] | None = [] if is_sorted else None
        self.loose = LooseEnds()
        self._orders: dict[str, tuple[int, str]] = {}
        """Where messages are in `_sorted`."""

    def add(self, message: SdsMessage, clock: int | None = None) -> list[str]:
        """Insert a message, or replace the one with its id in its place; returns the ids that had to go.

        Where history is sorted, a message from ahead of the channel's clock is as new as the newest here: else those
        who send from the future would be the newest until then, and the only ones that are named.
        """
        known = self._messages.get(message.message_id)
        self._messages[message.message_id] = message
        if known is not None:
            self.loose.remove(known)
        self.loose.add(message)
        if self._sorted is not None:
            self._unsort(message.message_id)
            lamport = message.lamport or 0
            if clock is not None and lamport > clock:
                lamport = self._sorted[-1][0] if self._sorted else 0
            order = lamport, message.message_id
            self._orders[message.message_id] = order
            insort(self._sorted, order)
        gone = []
        while len(self._messages) > self._limit:
            gone.append(next(iter(self._messages)))
            self.loose.remove(self._messages.pop(gone[-1]))
            self._unsort(gone[-1])
        return gone

    def _unsort(self, message_id: str) -> None:
        order = self._orders.pop(message_id, None)
        if order is not None and self._sorted is not None:
            del self._sorted[bisect_left(self._sorted, order)]

    def tail(self, count: int) -> list[SdsMessage]:
        """The newest messages, oldest first."""
        if self._sorted is not None:
            return [self._messages[message_id] for _, message_id in self._sorted[-count:]]
        newest = list(islice(reversed(self._messages.values()), count))
        newest.reverse()
        return newest

    def get(self, message_id: str) -> SdsMessage | None:
        """A message, if it is here."""
        return self._messages.get(message_id)

    def lacks(self, entries: Iterable[HistoryEntry]) -> list[HistoryEntry]:
        """Those of the messages that are not here."""
        messages = self._messages
        return [entry for entry in entries if entry.message_id not in messages]

    def ids(self) -> list[str]:
        """All ids, oldest first."""
        return list(self._messages)

    def messages(self) -> list[SdsMessage]:
        """All messages, oldest first."""
        return list(self._messages.values())

    def __contains__(self, message_id: str) -> bool:
        return message_id in self._messages

    def __len__(self) -> int:
        return len(self._messages)


class ChannelState:
    """Everything that a channel knows."""

    def __init__(self, rules: Rules) -> None:
        settings = rules.settings
        self.rules = rules
        self.lamport = 0
        self.history = MessageHistory(settings.history_max, is_sorted=rules.dialect.is_sorted)
        self.known = KnownIds(settings.remembered_max)
        self.filter = rules.dialect.new_filter(settings.bloom_capacity, settings.bloom_error_rate)
        self.outgoing: list[UnacknowledgedMessage] = []
        self.incoming: dict[str, BufferedMessage] = {}
        self.incoming_bytes = 0
        self.waiting: dict[str, list[str]] = {}
        """Ids that are missing, and who waits for each."""
        self.requests: dict[str, RepairRequest] = {}
        self.responses: dict[str, RepairResponse] = {}
        self.met: dict[str, None] = {}
        self.lost: dict[str, None] = {}
        """Those of `met` that nobody has."""
        self.synced: dict[str, None] = {}
        """Ids of sync messages: nim-sds takes them for content and may name them as causes."""
        self.hints: dict[str, bytes] = {}
        self.asked: dict[str, int] = {}
        """How often we have asked for what is in `requests`, since the start."""
        self.guard = AnswerLimits(settings)
        self.behind = False
        """We lack so much that we ask promptly, and for many at once."""
        self.asked_ms = 0
        self.asked_for = 0
        """When we asked like that the last time, and for how many."""
        self.named: dict[str, HistoryEntry] = {}
        """What others have named to help us since we are behind, what can be delivered next first."""
        self.ahead = 16
        """How many of these to ask for beyond what could wait here."""
        self.help: Help | None = None
        """What to name for a participant who is behind."""
        self.helped_ms = 0
        self.answering = False
        """A participant who is behind waits for our answers."""
        self.syncs = 0
        """Sync messages sent since the start: whose turn it is to be named."""

    @property
    def hurried(self) -> bool:
        """Whether repairs should be looked at soon."""
        return self.behind or self.answering or self.help is not None

    def has(self, message_id: str) -> bool:
        """Whether a message that depends on this one need not wait for it."""
        return (
            message_id in self.history
            or message_id in self.met
            or message_id in self.synced
            or message_id in self.known
        )

    def known_of(self, message: SdsMessage) -> KnownMessage:
        """A message of history as it is remembered."""
        place = self.known.get(message.message_id)
        return KnownMessage(message.message_id, 0 if place is None else place.at_ms, message.sender_id)

    def show(self, message_id: str) -> None:
        """Let our filter say that we have this one."""
        if not self.filter.knows(message_id):
            self.filter.add(message_id)

    def unmark(self, message_id: str) -> None:
        """It is here itself, and need not count as met any more."""
        self.met.pop(message_id, None)
        self.lost.pop(message_id, None)

    def mark(self, marks: dict[str, None], message_id: str) -> None:
        """Remember an id in `met` or `synced`."""
        marks[message_id] = None
        if len(marks) > MARKS_MAX:
            oldest = next(iter(marks))
            del marks[oldest]
            if marks is self.met:
                self.lost.pop(oldest, None)

    def buffer(self, buffered: BufferedMessage) -> None:
        """Let a message wait."""
        self.unbuffer(buffered.message.message_id)
        self.incoming[buffered.message.message_id] = buffered
        self.incoming_bytes += buffered.message.size
        for missing in buffered.missing:
            self.waiting.setdefault(missing, []).append(buffered.message.message_id)

    def unbuffer(self, message_id: str) -> BufferedMessage | None:
        """Take a message out of the waiting ones."""
        buffered = self.incoming.pop(message_id, None)
        if buffered is None:
            return None
        self.incoming_bytes -= buffered.message.size
        for missing in buffered.missing:
            self.waiting[missing].remove(message_id)
            if not self.waiting[missing]:
                del self.waiting[missing]
        return buffered

    def snapshot(self) -> ChannelMeta:
        """All but history, to be kept."""
        return ChannelMeta(
            lamport=self.lamport,
            outgoing=tuple(self.outgoing),
            incoming=tuple(self.incoming.values()),
            requests=tuple(self.requests.values()),
            responses=tuple(self.responses.values()),
            met=tuple(self.met),
            dialect=self.rules.dialect.name,
            encrypted=self.rules.encrypted,
            lost=tuple(self.lost),
            filter_ids=len(self.filter),
            filter_rolled=self.filter.rolled,
        )


class RestoredState(NamedTuple):
    """What was made of what was kept."""

    state: ChannelState
    beyond: list[str]
    """Ids that are beyond today's history limit."""
    unknown: list[KnownMessage]
    """Messages of history that are not among the ids that were kept: a backend may keep none."""


def restored(rules: Rules, data: ChannelData, now: int) -> RestoredState:
    """The state that was kept.

    Waits that ran out while nobody was here begin anew: else all of them would end at once, in every participant
    that was restarted. Times further ahead than any wait come from a clock that was wrong: they begin anew, too.
    """
    state = ChannelState(rules)
    meta = data.meta
    # A clock that was wrong may have kept a time at which all others refuse us.
    most = bounds(rules.dialect, rules.settings, now)
    state.lamport = min(meta.lamport, most.sent)
    gone = _unique(
        message_id
        for message in data.history
        for message_id in state.history.add(message.without_bloom(), state.lamport or most.sent)
    )
    unknown = _remember(state, data)
    state.outgoing = [_bare(entry) for entry in meta.outgoing]
    state.met = dict.fromkeys(meta.met[-MARKS_MAX:])
    state.lost = {message_id: None for message_id in meta.lost if message_id in state.met}
    for buffered in meta.incoming:
        message_id = buffered.message.message_id
        if message_id in state.history:
            continue
        missing = tuple(dep for dep in dict.fromkeys(buffered.missing) if not state.has(dep) and dep != message_id)
        state.buffer(msgspec.structs.replace(buffered, message=buffered.message.without_bloom(), missing=missing))
    t_max = rules.t_max_ms
    for request in meta.requests:
        message_id = request.entry.message_id
        due = request.due_ms
        if not -t_max <= due - now <= t_max:
            due = rules.request_due(message_id, now)
        state.requests[message_id] = RepairRequest(request.entry, due)
    for response in meta.responses:
        message_id, due = response.entry.message_id, response.due_ms
        if not 0 <= due - now <= t_max:
            due = rules.response_due(response.entry.sender_id, message_id, now)
        state.responses[message_id] = RepairResponse(response.entry, due, response.data)
    state.behind = len(state.requests) >= RESUME_BEHIND
    state.hints = {message_id: hint for message_id, hint in data.hints.items() if message_id in state.history}
    _fill_filter(state, data)
    beyond = [message_id for message_id in gone if message_id not in state.history]
    return RestoredState(state, beyond, unknown)


def _remember(state: ChannelState, data: ChannelData) -> list[KnownMessage]:
    """The ids that were kept; tells what history has besides."""
    for known in data.known:
        state.known.add(known)
    of_history = (KnownMessage(message.message_id, 0, message.sender_id) for message in data.history)
    return [known for known in of_history if state.known.add(known)]


def _fill_filter(state: ChannelState, data: ChannelData) -> None:
    """The filter holds what it held: the newest ids that were here, what waits, and what was marked as met."""
    met = (message_id for message_id in state.met if message_id not in state.lost)
    held = dict.fromkeys((*state.incoming, *met))
    past = list(dict.fromkeys((*(known.message_id for known in data.known), *state.history.ids())))
    # A snapshot of another implementation does not say how many: as many as history has.
    room = max(0, data.meta.filter_ids - len(held)) if data.meta.filter_ids else len(state.history)
    state.filter.restore([*past[max(0, len(past) - room) :], *held], rolled=data.meta.filter_rolled)


def _bare(entry: UnacknowledgedMessage) -> UnacknowledgedMessage:
    if not entry.message.bloom_filter:
        return entry
    return msgspec.structs.replace(entry, message=entry.message.without_bloom())


def _unique(ids: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(ids))
