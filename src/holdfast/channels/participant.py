"""All channels of one participant: the operations and the callbacks. What comes round at intervals is in `sweeps`.

`Channels` finds a message's channel, loads it when it is first touched, takes the step, waits until it is kept, and
notifies the application. Every operation exists for threads and, with `_async`, for coroutines; both may be used at
once.

What fails. An operation that is refused raises and changed nothing. One whose state cannot be kept succeeds in memory
(see `Channel.persistence`). Loading, removing and resetting speak about what is kept, so they raise. A callback that
raises is logged; it spoils neither the operation nor the callbacks after it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Self

from holdfast.channels.callbacks import Callback, Callbacks
from holdfast.channels.channel import Channel
from holdfast.channels.channel_events import (
    DependenciesLost,
    MessageGivenUp,
    MessageReady,
    MessageSent,
    MissingDependencies,
    PeriodicSync,
    RepairReady,
    ResendDue,
)
from holdfast.channels.channel_settings import ChannelSettings
from holdfast.channels.delivered import Delivered
from holdfast.channels.hints import Provider, fresh_hints
from holdfast.channels.input_checks import checked_content, checked_hint, checked_id, checked_ids
from holdfast.channels.keeping.persistence import NoPersistence, Persistence
from holdfast.channels.keeping.waiting import await_kept, kept_async, warn_on_loop
from holdfast.channels.open_channels import OpenChannels, Recover, Taken
from holdfast.channels.protocol import sending, steps
from holdfast.channels.protocol.steps import Input, Received, StepEffects
from holdfast.channels.sweeps import Sweeps
from holdfast.channels.wire.channel_keys import ChannelKeys, Keys
from holdfast.channels.wire.dialect import DialectName
from holdfast.channels.wire.message import SdsMessage
from holdfast.channels.wire.message_ids import MessageIds
from holdfast.clock import Clock, SystemClock
from holdfast.errors import Closed, Full, HoldfastError, Invalid, NotFound, Unavailable


class Channels:
    """Reliable channels of one participant, over any transport that may lose, repeat and reorder.

    >>> alice, bob = Channels("alice"), Channels("bob")
    >>> for participant in (alice, bob):
    ...     participant.ensure_channel("room")
    >>> data = alice.wrap_outgoing_message(b"hello", "room")
    >>> bob.unwrap_received_message(data).content
    b'hello'
    """

    def __init__(
        self,
        participant_id: str,
        persistence: Persistence | None = None,
        *,
        settings: ChannelSettings | None = None,
        clock: Clock | None = None,
        retrieval_hint: Provider | None = None,
        recover: Recover = "fail",
        keys: Keys | None = None,
    ) -> None:
        """`participant_id` names this participant to the others; empty means that nothing is repaired.

        `retrieval_hint(channel_id, message_id)` is asked how others can fetch a message. With `recover="empty"` a
        channel whose kept state is damaged starts from nothing instead of raising Corrupt. `keys` are the keys that
        participants share (`docs/howto/channels.md`); else `channels.keyring`, else there are none.
        """
        if recover not in ("fail", "empty"):
            raise Invalid(f"unknown recover={recover!r}", hint="use 'fail' or 'empty'")
        self.participant_id = checked_id("participant_id", participant_id, empty=True)
        self.settings = settings or ChannelSettings()
        self.backend = persistence or NoPersistence()
        self._clock = clock or SystemClock()
        self._ids = MessageIds(self._clock)
        self._hint_provider = retrieval_hint
        self._callbacks = Callbacks()
        self._open = OpenChannels(
            self.participant_id,
            self.settings,
            self.backend,
            recover,
            self._callbacks.tell,
            self._now,
            ChannelKeys(self.settings.keyring or None if keys is None else keys),
        )
        self._carried_bytes_max: int | None = None
        self._sweeps = Sweeps(self._open, self.settings, self._clock, blocks=self.backend.blocks, new_sync=self._sync)
        self._closed = self._forked = False
        self.refused_total = 0
        """Messages that were not taken: not decodable, absurd, or for channels that are not ours."""

    # -- callbacks ----------------------------------------------------------------------------------------

    def set_callbacks(
        self,
        *,
        message_ready: Callable[[MessageReady], None] | None = None,
        message_sent: Callable[[MessageSent], None] | None = None,
        message_given_up: Callable[[MessageGivenUp], None] | None = None,
        missing_dependencies: Callable[[MissingDependencies], None] | None = None,
        dependencies_lost: Callable[[DependenciesLost], None] | None = None,
        repair_ready: Callable[[RepairReady], None] | None = None,
        resend_due: Callable[[ResendDue], None] | None = None,
        periodic_sync: Callable[[PeriodicSync], None] | None = None,
    ) -> None:
        """Say whom to tell; replaces all callbacks that were set before.

        They are called outside of all locks, one at a time per channel, and may call any operation.
        """
        given: dict[type, Callback | None] = {
            MessageReady: message_ready, MessageSent: message_sent, MessageGivenUp: message_given_up,
            MissingDependencies: missing_dependencies, DependenciesLost: dependencies_lost, RepairReady: repair_ready,
            ResendDue: resend_due, PeriodicSync: periodic_sync,
        }  # fmt: skip
        self._callbacks.replace(given)

    def set_transport(self, broadcast: Callable[[bytes], None] | None, *, bytes_max: int | None = None) -> None:
        """Say who carries what is due: resends, repairs and syncs go to `broadcast`, whichever callbacks are set.

        `bytes_max` is the largest message that it can carry; content that would become a larger one is refused. What
        `wrap_outgoing_message` returns is still the caller's to send; `holdfast.channels.Link` does both.
        """
        self._callbacks.broadcast = broadcast
        self._carried_bytes_max = bytes_max

    def delivered(self, channel_id: str, *, waiting_max: int = 1_000) -> Delivered:
        """The messages of a channel as they are delivered from now on, as an async iterator.

        When `waiting_max` of them were not asked for, received content is refused, and comes again later.
        """
        self._check_open()
        self.channel(channel_id)
        return self._callbacks.subscribers.add(channel_id, waiting_max)

    # -- channels -----------------------------------------------------------------------------------------

    def ensure_channel(self, channel_id: str, *, dialect: DialectName | None = None) -> None:
        """Load a channel, or create it; from then on messages for it are accepted.

        `dialect` is its wire format (default: `channels.dialect`); a channel that is kept has one already. Raises
        what kept it from being loaded: nothing is worse than going on with half of a channel's past.
        """
        self._ensure(channel_id, dialect)

    async def ensure_channel_async(self, channel_id: str, *, dialect: DialectName | None = None) -> None:
        """`ensure_channel` for coroutines."""
        if self._open.get(channel_id) is None:
            await asyncio.to_thread(self._ensure, channel_id, dialect)
        else:
            self._ensure(channel_id, dialect)

    def channel(self, channel_id: str) -> Channel:
        """A channel that is loaded, to look at; NotFound otherwise."""
        channel = self._open.get(channel_id)
        if channel is None:
            raise NotFound(f"the channel is not open channel={channel_id!r}", hint="call ensure_channel() first")
        return channel

    def channels(self) -> list[str]:
        """The ids of the channels that are loaded, sorted."""
        return [channel.id for channel in self._open.all()]

    def _ensure(self, channel_id: str, name: DialectName | None = None) -> Channel:
        self._check_open()
        return self._open.ensure(channel_id, name)

    def remove_channel(self, channel_id: str) -> None:
        """Forget a channel, in memory and on disk, whether it is loaded or not; what is under way is dropped."""
        self._check_open()
        self._open.remove(channel_id)
        self._callbacks.subscribers.end(channel_id)

    async def remove_channel_async(self, channel_id: str) -> None:
        """`remove_channel` for coroutines."""
        await asyncio.to_thread(self.remove_channel, channel_id)

    def reset(self) -> None:
        """Forget all channels that are loaded; tries each of them, and raises the first failure at the end."""
        failure: HoldfastError | None = None
        for channel_id in self.channels():
            try:
                self.remove_channel(channel_id)
            except HoldfastError as error:
                failure = failure or error
        if failure is not None:
            raise failure

    async def reset_async(self) -> None:
        """`reset` for coroutines."""
        await asyncio.to_thread(self.reset)

    # -- sending and receiving ----------------------------------------------------------------------------

    def wrap_outgoing_message(self, content: bytes, channel_id: str, message_id: str | None = None) -> bytes:
        """The bytes to broadcast for some content; from now on it is sent again until a participant has it.

        Its id must be unique in the channel; by default it is random.
        """
        content = self._content(content)
        channel = self._ensure(channel_id)
        return _data(self._operate(channel, self._send(content, channel, message_id)))

    def wrap_with_id(self, content: bytes, channel_id: str, message_id: str | None = None) -> tuple[str, bytes]:
        """`wrap_outgoing_message`, with the message's id before its bytes."""
        content = self._content(content)
        channel = self._ensure(channel_id)
        effects = self._operate(channel, self._send(content, channel, message_id))
        return effects.message_id, _data(effects)

    async def _load_async(self, channel_id: str) -> Channel:
        return await asyncio.to_thread(self._ensure, channel_id)

    async def wrap_outgoing_message_async(
        self, content: bytes, channel_id: str, message_id: str | None = None
    ) -> bytes:
        """`wrap_outgoing_message` for coroutines."""
        content = self._content(content)
        channel = self._open.get(channel_id) or await self._load_async(channel_id)
        return _data(await self._operate_async(channel, self._send(content, channel, message_id)))

    async def wrap_with_id_async(
        self, content: bytes, channel_id: str, message_id: str | None = None
    ) -> tuple[str, bytes]:
        """`wrap_with_id` for coroutines."""
        content = self._content(content)
        channel = self._open.get(channel_id) or await self._load_async(channel_id)
        effects = await self._operate_async(channel, self._send(content, channel, message_id))
        return effects.message_id, _data(effects)

    def wrap_ephemeral_message(self, content: bytes, channel_id: str, message_id: str | None = None) -> bytes:
        """The bytes to broadcast for content that is neither kept, nor ordered, nor sent again (`rfc` only)."""
        given = steps.SendEphemeral(checked_content(content), self._message_id(message_id))
        return _data(self._operate(self._ensure(channel_id), given))

    async def wrap_ephemeral_message_async(
        self, content: bytes, channel_id: str, message_id: str | None = None
    ) -> bytes:
        """`wrap_ephemeral_message` for coroutines."""
        given = steps.SendEphemeral(checked_content(content), self._message_id(message_id))
        channel = self._open.get(channel_id) or await self._load_async(channel_id)
        return _data(await self._operate_async(channel, given))

    def unwrap_received_message(self, data: bytes) -> Received:
        """Take a message that came in; the application learns of it by callbacks and by the result.

        Raises Invalid when it is no message or an absurd one, NotFound when its channel is not ours (see
        `channels.accept_unknown_channels`); both are counted in `refused_total`.
        """
        message, name, written = self._decoded(data)
        return _received(self._operate(self._channel_of(message, name), steps.Receive(message, written)))

    async def unwrap_received_message_async(self, data: bytes) -> Received:
        """`unwrap_received_message` for coroutines."""
        message, name, written = self._decoded(data)
        channel = self._open.get(message.channel_id)
        if channel is None:
            channel = await asyncio.to_thread(self._channel_of, message, name)
        return _received(await self._operate_async(channel, steps.Receive(message, written)))

    def mark_dependencies_met(self, message_ids: Iterable[str], channel_id: str) -> None:
        """The application has these messages from elsewhere, or can do without: nobody has to wait for them."""
        self._operate(self.channel(channel_id), steps.MarkMet(checked_ids(message_ids)))

    async def mark_dependencies_met_async(self, message_ids: Iterable[str], channel_id: str) -> None:
        """`mark_dependencies_met` for coroutines."""
        await self._operate_async(self.channel(channel_id), steps.MarkMet(checked_ids(message_ids)))

    def set_retrieval_hint(self, channel_id: str, message_id: str, hint: bytes) -> None:
        """Say how others can fetch a message; goes with every message that names it."""
        self.channel(channel_id).set_hint(message_id, checked_hint(hint))

    def _send(self, content: bytes, channel: Channel, message_id: str | None) -> steps.Send:
        hints = fresh_hints(channel, self._hint_provider)
        return steps.Send(content, self._message_id(message_id), hints, self._carried_bytes_max)

    def _content(self, content: bytes) -> bytes:
        """Content that can be sent: refused before its channel is even loaded."""
        given = checked_content(content)
        sending.check_content(given, self.settings.content_bytes_max)
        return given

    def new_message_id(self) -> str:
        """A random id, for those who want to know it before they send."""
        return self._ids.new()

    def _message_id(self, message_id: str | None) -> str:
        if message_id is None:
            return self._ids.new()
        if self.settings.derived_ids:
            raise Invalid("ids are derived from their messages here", hint="leave message_id out: channels.derived_ids")
        return checked_id("message_id", message_id)

    def _decoded(self, data: bytes) -> Taken:
        self._check_open()
        try:
            taken = self._open.decode(bytes(data))
            self._callbacks.subscribers.check_room(taken[0])
        except (Invalid, Full):
            self.refused_total += 1
            raise
        return taken

    def _channel_of(self, message: SdsMessage, name: DialectName) -> Channel:
        try:
            return self._open.named_by(message, name)
        except (Invalid, NotFound, Full):
            self.refused_total += 1
            raise

    # -- sweeps -------------------------------------------------------------------------------------------

    def check_unacknowledged_messages(self, channel_id: str) -> None:
        """Look at what waits in one channel: `resend_due`, `message_given_up`, `dependencies_lost` may follow."""
        self._operate(self.channel(channel_id), steps.SweepBuffers())

    async def check_unacknowledged_messages_async(self, channel_id: str) -> None:
        """`check_unacknowledged_messages` for coroutines."""
        await self._operate_async(self.channel(channel_id), steps.SweepBuffers())

    def run_buffer_sweep(self) -> None:
        """`check_unacknowledged_messages` for all channels."""
        self._check_open()
        self._sweeps.run(steps.SweepBuffers)

    async def run_buffer_sweep_async(self) -> None:
        """`run_buffer_sweep` for coroutines."""
        self._check_open()
        await self._sweeps.run_async(steps.SweepBuffers)

    def run_repair_sweep(self) -> None:
        """Look at requests and responses of all channels: `repair_ready` may follow."""
        self._check_open()
        self._sweeps.run(steps.SweepRepairs)

    async def run_repair_sweep_async(self) -> None:
        """`run_repair_sweep` for coroutines."""
        self._check_open()
        await self._sweeps.run_async(steps.SweepRepairs)

    def run_periodic_sync(self) -> None:
        """Tell others what we know, in every channel where there is anything to tell: `periodic_sync` follows."""
        self._check_open()
        self._sweeps.run(self._sync)

    async def run_periodic_sync_async(self) -> None:
        """`run_periodic_sync` for coroutines."""
        self._check_open()
        await self._sweeps.run_async(self._sync)

    def _sync(self) -> steps.SendSync:
        return steps.SendSync(self._message_id(None), self._carried_bytes_max)

    def start_periodic_tasks(self) -> None:
        """Sweep and sync from a thread of their own, from now on; starting again changes nothing.

        Callbacks come from that thread. On an event loop, use `run_periodic_tasks_async` instead.
        """
        self._check_open()
        self._sweeps.start(self.run_buffer_sweep, self.run_repair_sweep, self.run_periodic_sync)

    async def run_periodic_tasks_async(self) -> None:
        """Sweep and sync on this event loop, until it is cancelled or the channels are closed."""
        tasks = self.run_buffer_sweep_async, self.run_repair_sweep_async, self.run_periodic_sync_async
        await self._sweeps.run_periodically(lambda: self._closed, *tasks)

    def stop_periodic_tasks(self) -> None:
        """Stop sweeping; returns when the last sweep has ended."""
        self._sweeps.stop()

    # -- one operation ------------------------------------------------------------------------------------

    def _operate(self, channel: Channel, given: Input) -> StepEffects:
        self._check_open()
        if self.backend.blocks:
            warn_on_loop(4)
        try:
            effects, flight = channel.take(given)
        except Invalid as error:
            self._note_refusal(channel, given, error)
            raise
        await_kept(channel, flight, self.settings.ack_timeout_ms / 1000)
        return effects

    async def _operate_async(self, channel: Channel, given: Input) -> StepEffects:
        if self.backend.blocks:
            return await asyncio.to_thread(self._operate, channel, given)
        self._check_open()
        try:
            effects, flight = channel.take(given)
        except Invalid as error:
            self._note_refusal(channel, given, error)
            raise
        if flight.settled:
            channel.tell()
        else:
            effects.release()
            await kept_async(channel, flight)
        return effects

    def _note_refusal(self, channel: Channel, given: Input, error: Invalid) -> None:
        if isinstance(given, steps.Receive):
            self.refused_total += 1
            channel.refuse(error)

    # -- lifetime -----------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Keep whatever is not kept yet; raises Unavailable when something still is not."""
        for channel in self._open.all():
            for _ in range(2):  # what is under way may fail: then once more, complete
                flight = channel.flush()
                if flight is None:
                    break
                await_kept(channel, flight, self.settings.ack_timeout_ms / 1000)
                if flight.commit is not None and not flight.commit.done:
                    break
        failing = [channel.id for channel in self._open.all() if not channel.persistence.ok]
        if failing:
            raise Unavailable(
                f"not everything could be kept channels={','.join(failing)}", hint="channel(…).persistence says why"
            )

    def close(self) -> None:
        """Stop sweeping, keep what is not kept yet, and let go; closing again does nothing."""
        if self._closed:
            return
        self.stop_periodic_tasks()
        try:
            self.flush()
        finally:
            self._closed = True
            self._callbacks.subscribers.end()
            self.backend.close()

    def forget(self) -> None:
        """In a forked child: refuse everything, whatever lock was held when it was forked; the parent goes on."""
        self._closed = self._forked = True
        self._sweeps.forget()
        self._callbacks.subscribers.forget()
        self._open.forget()

    async def close_async(self) -> None:
        """`close` for coroutines."""
        await asyncio.to_thread(self.close)

    @property
    def closed(self) -> bool:
        """Whether they are closed."""
        return self._closed

    def _check_open(self) -> None:
        if self._forked:
            raise Closed("these channels were opened before a fork", reason="forked")
        if self._closed:
            raise Closed("these channels are closed", hint="make new ones")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close()
        except HoldfastError:
            if error is None:  # what the block raised matters more
                raise

    def __repr__(self) -> str:
        return f"Channels({self.participant_id!r}, {'closed' if self._closed else f'{len(self._open.all())} open'})"

    def _now(self) -> int:
        return self._clock.now_us() // 1000


def _data(effects: StepEffects) -> bytes:
    assert effects.data is not None
    return effects.data


def _received(effects: StepEffects) -> Received:
    assert effects.received is not None
    return effects.received
