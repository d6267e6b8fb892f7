"""Messages under a key that all participants of a channel share: strangers can neither read nor forge them.

    packet    0x00 0x01 · route (8 bytes) · AES-256-GCM blob of the message's bytes (`holdfast.crypto.cipher`)

Keys are derived from the shared key and the channel's id, so a packet can be read only in its own channel. Every packet
has a key of its own, from fresh randomness: clones of a process and restored machines use none twice. The route shows
whose packet it is, without naming the channel: it is derived like the keys, and the same in every packet of a channel
under one key. So an onlooker sees that packets belong together, when, and how long they are, and nothing else.

The first byte is one that no message of either wire format begins with. Every kind of message goes this way: encryption
is a dialect around the channel's own (`EncryptedDialect`), and what a channel sends is what its dialect encodes.

What it does not do: it proves that a sender has the key, not which of its holders that is; and a packet that is
replayed by an eavesdropper is read again: to the protocol it is a duplicate.
"""

from __future__ import annotations

from holdfast.channels.keeping.stored_message import StoredMessage
from holdfast.channels.wire.dialect import Dialect, DialectName
from holdfast.channels.wire.message import BLOOM_BYTES_MAX, CONTENT_BYTES_MAX, ENTRIES_BYTES_MAX, SdsMessage, raw
from holdfast.crypto.cipher import SYSTEM_RANDOM, AesGcmCipher, KeySource, NotAuthentic, Random
from holdfast.crypto.keyring import Keyring
from holdfast.errors import Invalid

MAGIC = b"\x00\x01"
_ROUTE_BYTES = 8
_HEAD_BYTES = len(MAGIC) + _ROUTE_BYTES
_PACKET_BYTES_MAX = CONTENT_BYTES_MAX + BLOOM_BYTES_MAX + ENTRIES_BYTES_MAX + 2**16
"""More than any message has: nothing larger is decrypted."""
_DOMAIN = b"hfc1"
_SALT = b"holdfast channel".ljust(32, b"\0")


def is_encrypted(data: bytes) -> bool:
    """Whether these bytes claim to be an encrypted packet; no plain message does."""
    return data[:1] == MAGIC[:1]


def route_of(data: bytes) -> bytes:
    """Which channel and key a packet is of; Invalid if it is none that we know how to read."""
    if data[: len(MAGIC)] != MAGIC or not _HEAD_BYTES <= len(data) <= _PACKET_BYTES_MAX:
        raise Invalid(
            "these bytes are not an encrypted message of a known version",
            hint="drop them; or a newer holdfast sent them",
        )
    return data[len(MAGIC) : _HEAD_BYTES]


class ChannelCipher:
    """Encrypts and decrypts the packets of one channel: the keyring's first key encrypts, all of them decrypt."""

    def __init__(self, channel_id: str, keyring: Keyring, random: Random = SYSTEM_RANDOM) -> None:
        self._channel_id = channel_id
        self._ciphers: dict[bytes, AesGcmCipher] = {}
        for key_id in keyring.ids:
            source = KeySource(keyring.key(key_id), _SALT, b"channel|" + raw(channel_id), _DOMAIN)
            cipher = AesGcmCipher(source, encrypts=key_id == keyring.current, random=random)
            self._ciphers.setdefault(source.derive("1 route")[:_ROUTE_BYTES], cipher)
        self._head = MAGIC + next(iter(self._ciphers))
        self._encrypt = next(iter(self._ciphers.values())).encrypt

    @property
    def routes(self) -> tuple[bytes, ...]:
        """The routes of packets that it can decrypt."""
        return tuple(self._ciphers)

    def encrypt(self, data: bytes) -> bytes:
        """A message's bytes as a packet."""
        return self._head + bytes(self._encrypt(data, self._head))

    def decrypt(self, packet: bytes) -> bytes:
        """The message's bytes; Invalid if anything of the packet was changed, or it is of another channel or key."""
        cipher = self._ciphers.get(route_of(packet))
        try:
            if cipher is None:
                raise NotAuthentic
            return cipher.decrypt(packet[_HEAD_BYTES:], packet[:_HEAD_BYTES])
        except NotAuthentic:
            raise Invalid(
                f"an encrypted message is not authentic channel={self._channel_id!r}",
                hint="drop it: it was damaged or forged on the way",
            ) from None

    def __repr__(self) -> str:
        return f"ChannelCipher({self._channel_id!r}, {len(self._ciphers)} keys)"


class EncryptedDialect:
    """A dialect whose messages travel as encrypted packets; in everything else it is the one inside."""

    def __init__(self, inside: Dialect, cipher: ChannelCipher) -> None:
        self.inside = inside
        self.cipher = cipher
        self.name: DialectName = inside.name
        self.clock_unit_ms = inside.clock_unit_ms
        self.ticks_on_receipt = inside.ticks_on_receipt
        self.is_sorted = inside.is_sorted
        self.carries_ephemeral = inside.carries_ephemeral
        self.acks_needed = inside.acks_needed
        self.response_window_ms = inside.response_window_ms
        self.new_filter = inside.new_filter
        self.read_filter = inside.read_filter
        self.request_delay_ms = inside.request_delay_ms
        self.response_delay_ms = inside.response_delay_ms
        self.responds = inside.responds

    def encode(self, message: SdsMessage) -> bytes:
        """The message as a packet."""
        return self.cipher.encrypt(self.inside.encode(message))

    def write(self, message: SdsMessage) -> tuple[bytes, StoredMessage | None]:
        """The message as a packet, and as it is inside."""
        data, written = self.inside.write(message)
        return self.cipher.encrypt(data), written

    def read(self, data: bytes) -> tuple[SdsMessage, StoredMessage | None]:
        """The message in a packet, and as it is inside."""
        return self.inside.read(self.cipher.decrypt(data))

    def decode(self, data: bytes) -> SdsMessage:
        """The message in a packet; Invalid when there is none, or it is not authentic."""
        return self.inside.decode(self.cipher.decrypt(data))
