"""Ids that are derived from what they name, so that nothing else can come under them.

    id    16 hex digits of chance · 40 hex digits of SHA-256 over that, channel, sender, Lamport time, content, causes

Without this the first message with an id counts: an attacker who hears one and is faster with another one under its id,
or with the same one and causes that nobody has, keeps it from being delivered. With it (`channels.derived_ids`) what
was sent is the only message that its id fits, in all that decides about its delivery; the filter and the requests for
repair that go with it differ from time to time and are not covered. Everybody in the channel must do it: messages under
other ids are refused. It does not say who the sender is: a stranger may send messages of his own, in any participant's
name.
"""

from __future__ import annotations

from hashlib import sha256

import msgspec

from holdfast.channels.wire.message import SdsMessage, raw
from holdfast.errors import Invalid

_SALT_DIGITS, _HASH_DIGITS = 16, 40


def with_derived_id(message: SdsMessage) -> SdsMessage:
    """The message, with the beginning of its random id as the chance in its id."""
    salt = message.message_id[:_SALT_DIGITS]
    return msgspec.structs.replace(message, message_id=salt + _digest(salt, message))


def check_derived_id(message: SdsMessage) -> None:
    """Refuse a message that is not the one that its id names."""
    message_id = message.message_id
    salt = message_id[:_SALT_DIGITS]
    if len(message_id) != _SALT_DIGITS + _HASH_DIGITS or message_id[_SALT_DIGITS:] != _digest(salt, message):
        raise Invalid(
            f"a message's id is not derived from what it says channel={message.channel_id!r}",
            hint="it is forged, or not all participants have channels.derived_ids",
        )


def _digest(salt: str, message: SdsMessage) -> str:
    lamport = b"" if message.lamport is None else message.lamport.to_bytes(8, "big")
    parts = [
        b"holdfast message 1",
        raw(salt),
        raw(message.channel_id),
        raw(message.sender_id),
        lamport,
        message.content,
    ]
    for cause in message.causal_history:
        parts += [raw(cause.message_id), cause.retrieval_hint, raw(cause.sender_id)]
    digest = sha256()
    for part in parts:
        digest.update(len(part).to_bytes(4, "big") + part)
    return digest.hexdigest()[:_HASH_DIGITS]
