"""The channels that a participant has open: loaded when they are first touched, found by the messages that name them.

One caller loads a channel, others wait for it. What cannot be loaded is not opened: going on with half of a channel's
past would be worse than not going on.
"""

from __future__ import annotations

import logging
from _thread import RLock
from collections.abc import Callable
from typing import Literal

import msgspec

from holdfast.caller import once
from holdfast.channels.channel import Channel, as_failure
from holdfast.channels.channel_events import Event
from holdfast.channels.channel_settings import ChannelSettings
from holdfast.channels.input_checks import checked_id
from holdfast.channels.keeping.persistence import Persistence
from holdfast.channels.keeping.snapshot import ChannelData
from holdfast.channels.keeping.stored_message import StoredMessage
from holdfast.channels.protocol.state import Rules, restored
from holdfast.channels.protocol.steps import Resume
from holdfast.channels.wire.channel_keys import ChannelKeys
from holdfast.channels.wire.detect import detect, dialect
from holdfast.channels.wire.dialect import DialectName
from holdfast.channels.wire.encrypted_messages import EncryptedDialect, is_encrypted, route_of
from holdfast.channels.wire.message import SdsMessage
from holdfast.errors import Corrupt, Full, HoldfastError, Invalid, NotFound

logger = logging.getLogger("holdfast.channels")

Recover = Literal["fail", "empty"]
Taken = tuple[SdsMessage, DialectName, StoredMessage | None]
"""A message, its wire format, and its bytes, if it can be kept by them."""


class OpenChannels:
    """Channels by id."""

    def __init__(
        self,
        participant_id: str,
        settings: ChannelSettings,
        backend: Persistence,
        recover: Recover,
        tell: Callable[[Event], None],
        now: Callable[[], int],
        keys: ChannelKeys,
    ) -> None:
        self._participant_id = participant_id
        self._settings = settings
        self._backend = backend
        self._recover = recover
        self._tell = tell
        self._now = now
        self._keys = keys
        self._routes: dict[bytes, Channel] = {}
        """Channels with a key, by how their packets begin."""
        self._warned = False
        self._channels: dict[str, Channel] = {}
        self._spoken: list[DialectName] = []
        """Wire formats of the channels that are open."""
        self._loading = RLock()

    def get(self, channel_id: str) -> Channel | None:
        """An open channel."""
        return self._channels.get(channel_id)

    def all(self) -> list[Channel]:
        """All of them, by id."""
        return [channel for _, channel in sorted(self._channels.items())]

    def ensure(self, channel_id: str, name: DialectName | None = None) -> Channel:
        """A channel, loaded or created if it is not open; in this wire format, if one is given."""
        channel = self._channels.get(channel_id)
        if channel is None:
            checked_id("channel_id", channel_id)
            with once(self._loading):  # one caller loads, the others find it
                channel = self._channels.get(channel_id)
                if channel is None:
                    channel = self._load(channel_id, name)
            channel.tell()
        if name is not None and channel.dialect != name:
            raise Invalid(
                f"the channel speaks {channel.dialect}, not {name} channel={channel_id!r}",
                hint="a channel's wire format is chosen when it is created; remove_channel() forgets it",
            )
        return channel

    def remove(self, channel_id: str) -> None:
        """Forget a channel, in memory and on disk, whether it is open or not."""
        with once(self._loading):  # else a caller who is loading it would go on with what is gone
            channel = self._channels.get(channel_id)
            if channel is None:
                self._drop(channel_id)
                return
        with channel.lock:
            try:
                self._drop(channel_id)
            except HoldfastError:
                channel.doubt()
                raise
            channel.forget()
            self._channels.pop(channel_id, None)
            self._routes = {route: one for route, one in self._routes.items() if one is not channel}

    def decode(self, data: bytes) -> Taken:
        """A message in the wire format of its channel; which one that is, the bytes tell."""
        if is_encrypted(data):
            return self._decode_encrypted(data)
        taken = self._decode_plain(data)
        message = taken[0]
        if self._routes:
            channel = self._channels.get(message.channel_id)
            if channel is not None and channel.state.rules.encrypted:
                raise self._not_encrypted(message)
        return taken

    def _not_encrypted(self, message: SdsMessage) -> Invalid:
        self._warn_of_keys()
        return Invalid(
            f"the channel has a key, and the message is not encrypted channel={message.channel_id!r}",
            hint="drop it: it is not authenticated; all participants need the key",
        )

    def _decode_encrypted(self, data: bytes) -> Taken:
        channel = self._routes.get(route_of(data))
        if channel is None:
            self._warn_of_keys()
            raise Invalid(
                "a message is encrypted, and no key of an open channel decrypts it",
                hint="its channel is not open, or all participants need the same key: see keys=…",
            )
        message, written = channel.state.rules.dialect.read(data)
        if message.channel_id != channel.id:
            raise Invalid(
                f"an encrypted message names another channel channel={channel.id!r}",
                hint="drop it: a holder of the key is sending hostile messages",
            )
        return message, channel.dialect, written

    def _warn_of_keys(self) -> None:
        """Once: it may be a member who lacks the key, which nobody else would tell."""
        if not self._warned:
            self._warned = True
            logger.warning(
                "messages are refused that are encrypted with a key that is not here, or not encrypted although "
                "their channel has a key: do all participants have the same one?",
                extra={"action": "channel_key_mismatch"},
            )

    def _decode_plain(self, data: bytes) -> Taken:
        for name in self._spoken:
            try:
                message, written = dialect(name).read(data)
            except Invalid:
                continue
            channel = self._channels.get(message.channel_id)
            if channel is not None and channel.dialect == name:
                return message, name, written
        found = detect(data)
        if found is None:
            raise Invalid(
                "these bytes are not a message of a channel", hint="drop them; see the reference of wire formats"
            )
        message, written = dialect(found).read(data)
        channel = self._channels.get(message.channel_id)
        if channel is not None and channel.dialect != found:
            raise Invalid(
                f"the message is in the wire format {found}, not {channel.dialect} channel={channel.id!r}",
                hint="all participants of a channel must use the same wire format",
            )
        return message, found, written

    def named_by(self, message: SdsMessage, name: DialectName) -> Channel:
        """The channel that a message names; a stranger's may create it only where that is allowed."""
        channel = self._channels.get(message.channel_id)
        if channel is not None:
            return channel
        if not self._settings.accept_unknown_channels:
            raise NotFound(
                f"a message names a channel that is not open channel={message.channel_id!r}",
                hint="call ensure_channel() for the channels you take part in, or set channels.accept_unknown_channels",
            )
        if len(self._channels) >= self._settings.channels_max:
            raise Full(
                f"{self._settings.channels_max} channels are open, and a message names another one",
                hint="remove_channel() some, or raise channels.channels_max",
            )
        if self._keys.has(message.channel_id):
            raise self._not_encrypted(message)
        return self.ensure(message.channel_id, name)

    def forget(self) -> None:
        """In a forked child: the holder of a lock is not here."""
        self._loading = RLock()
        for channel in self._channels.values():
            channel.lock = RLock()

    def _load(self, channel_id: str, name: DialectName | None) -> Channel:
        data = self._kept(channel_id)
        rules, data = self._rules(channel_id, name, data)
        state, beyond, unknown = restored(rules, data, self._now())
        channel = Channel(state, self._backend, self._tell, self._now)
        channel.mend(beyond, unknown)
        if any(not buffered.missing for buffered in state.incoming.values()):
            channel.take(Resume())
        self._channels[channel_id] = channel
        if isinstance(rules.dialect, EncryptedDialect):
            self._routes = {**self._routes, **dict.fromkeys(rules.dialect.cipher.routes, channel)}
        self._spoken = sorted({one.dialect for one in list(self._channels.values())})
        return channel

    def _rules(self, channel_id: str, name: DialectName | None, data: ChannelData) -> tuple[Rules, ChannelData]:
        spoken = dialect(data.meta.dialect or name or self._settings.dialect)
        cipher = self._keys.cipher(channel_id)
        if cipher is None:
            if data.meta.encrypted:  # else it would go on in the clear, with everybody who listens
                raise Invalid(
                    f"the channel was used with a key, and no key was passed channel={channel_id!r}",
                    hint="give keys=… as before; or remove_channel() to start over without one",
                )
            return Rules(channel_id, self._participant_id, spoken, self._settings), data
        # Answers that another participant kept are plain bytes: they are not sent.
        ours = tuple(msgspec.structs.replace(one, data=b"") for one in data.meta.responses)
        data = msgspec.structs.replace(data, meta=msgspec.structs.replace(data.meta, responses=ours))
        encrypted = EncryptedDialect(spoken, cipher)
        return Rules(channel_id, self._participant_id, encrypted, self._settings, encrypted=True), data

    def _kept(self, channel_id: str) -> ChannelData:
        try:
            return self._backend.load_channel(channel_id)
        except Exception as error:
            failure = as_failure(error)
            if isinstance(failure, Corrupt) and self._recover == "empty":
                logger.error(
                    "channel starts from nothing (recover='empty'): what was kept of it is damaged channel=%s: %s",
                    channel_id,
                    failure.message,
                    extra={"action": "channel_recovered_empty", "channel": channel_id},
                )
                self._drop(channel_id)
                return ChannelData()
            logger.error(
                "channel cannot be loaded channel=%s: %s",
                channel_id,
                failure.message,
                extra={"action": "channel_not_loaded", "channel": channel_id},
            )
            raise failure from error

    def _drop(self, channel_id: str) -> None:
        try:
            self._backend.drop_channel(channel_id)
        except Exception as error:
            failure = as_failure(error)
            logger.error(
                "channel cannot be dropped channel=%s: %s",
                channel_id,
                failure.message,
                extra={"action": "channel_not_dropped", "channel": channel_id},
            )
            raise failure from error
