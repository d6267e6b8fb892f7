"""A channel in a test's hands: one state with a time of its own, and messages as any stranger may make them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from holdfast.channels.channel_events import Event, MessageReady
from holdfast.channels.channel_settings import ChannelSettings
from holdfast.channels.keeping.snapshot import ChannelData, KnownMessage
from holdfast.channels.protocol import machine, receiving, steps
from holdfast.channels.protocol.state import ChannelState, Rules, restored
from holdfast.channels.protocol.steps import Received, StepEffects
from holdfast.channels.wire.detect import dialect as dialect_named
from holdfast.channels.wire.dialect import DialectName
from holdfast.channels.wire.message import HistoryEntry, SdsMessage

NOW = 1_700_000_000_000
ROOM = "room"

Kind = TypeVar("Kind")


def entry(message_id: str, sender: str = "zed", hint: bytes = b"") -> HistoryEntry:
    return HistoryEntry(message_id, hint, sender)


def message(
    message_id: str,
    *causes: str | HistoryEntry,
    lamport: int | None = 1,
    sender: str = "bob",
    content: bytes = b"content",
    bloom: bytes = b"",
    requests: Iterable[HistoryEntry] = (),
    channel: str = ROOM,
) -> SdsMessage:
    """A message of somebody else."""
    named = tuple(entry(cause) if isinstance(cause, str) else cause for cause in causes)
    return SdsMessage(message_id, channel, lamport, content, sender, named, bloom, tuple(requests))


class Machine:
    """One participant's state of one channel; only `pass_ms` and `now` move its time."""

    def __init__(
        self, participant_id: str = "alice", dialect: DialectName = "nim", *, now: int = NOW, **settings: Any
    ) -> None:
        self.rules = Rules(ROOM, participant_id, dialect_named(dialect), ChannelSettings(**settings))
        self.state = ChannelState(self.rules)
        self.now = now
        self.events: list[Event] = []
        self.known: list[KnownMessage] = []

    def take(self, given: steps.Input) -> StepEffects:
        self.state, effects = machine.step(self.state, given, self.now)
        self.events += effects.events
        self.known += effects.known
        del self.known[: -len(self.state.known)]
        return effects

    def send(
        self, message_id: str, content: bytes = b"content", hints: Mapping[str, bytes] | None = None
    ) -> SdsMessage:
        """Send, and give what others read."""
        data = self.take(steps.Send(content, message_id, hints or {})).data
        assert data is not None
        return self.rules.dialect.decode(data)

    def sync(self, message_id: str) -> SdsMessage | None:
        data = self.take(steps.SendSync(message_id)).data
        return None if data is None else self.rules.dialect.decode(data)

    def receive(self, given: SdsMessage) -> Received:
        received = self.take(steps.Receive(given)).received
        assert received is not None
        return received

    def mark(self, *message_ids: str) -> StepEffects:
        return self.take(steps.MarkMet(message_ids))

    def sweep_buffers(self) -> StepEffects:
        return self.take(steps.SweepBuffers())

    def sweep_repairs(self) -> StepEffects:
        return self.take(steps.SweepRepairs())

    def pass_ms(self, passed: int) -> None:
        self.now += passed

    def of_kind(self, kind: type[Kind]) -> list[Kind]:
        return [event for event in self.events if isinstance(event, kind)]

    @property
    def ready(self) -> list[str]:
        return [event.message_id for event in self.of_kind(MessageReady)]

    @property
    def missing(self) -> dict[str, set[str]]:
        """What each waiting message waits for."""
        return {message_id: set(buffered.missing) for message_id, buffered in self.state.incoming.items()}

    @property
    def outgoing(self) -> list[str]:
        return [unacknowledged.message.message_id for unacknowledged in self.state.outgoing]

    def restart(self) -> None:
        """As if it had been kept and loaded again."""
        kept = ChannelData(
            self.state.snapshot(), tuple(self.state.history.messages()), dict(self.state.hints), tuple(self.known)
        )
        self.state, _, unknown = restored(self.rules, kept, self.now)
        self.known += unknown

    def check(self) -> None:
        """What holds in every state."""
        state, settings = self.state, self.rules.settings
        index = {message_id: set(waiters) for message_id, waiters in state.waiting.items()}
        expected: dict[str, set[str]] = {}
        for message_id, buffered in state.incoming.items():
            assert buffered.message.message_id == message_id
            assert buffered.missing, "what waits for nothing was not delivered"
            assert len(set(buffered.missing)) == len(buffered.missing)
            assert message_id not in state.history, "delivered, and waiting"
            for missing in buffered.missing:
                assert not state.has(missing), "it waits for what is here"
                expected.setdefault(missing, set()).add(message_id)
        assert index == expected
        assert all(len(set(waiters)) == len(waiters) for waiters in state.waiting.values())
        assert state.incoming_bytes == sum(buffered.message.size for buffered in state.incoming.values())
        ids = state.history.ids()
        assert len(set(ids)) == len(ids) <= settings.history_max
        assert len(state.outgoing) <= settings.outgoing_max
        assert len(state.incoming) <= settings.incoming_max
        assert state.incoming_bytes <= receiving.INCOMING_BYTES_MAX
        assert len(state.requests) <= settings.repairs_max
        assert len(state.responses) <= settings.repairs_max
        assert len(state.filter.ids) <= settings.bloom_capacity * 6 // 5
        assert set(state.hints) <= set(ids)
        assert len(state.known) <= settings.remembered_max
        assert all(message_id in state.known for message_id in ids)
        assert set(state.lost) <= set(state.met)
        named = {entry.message_id for kept in state.history.messages() for entry in kept.causal_history}
        assert set(state.history.loose) == set(ids) - named
        assert not any(kept.bloom_filter for kept in state.history.messages())
