"""Proofs that both ends of the socket have the keys of an encrypted log, made and checked when they meet.

Whoever is the same user can open the socket; in a log with keys that is not enough to append to it, or to pass for its
owner. A proof is an empty message under the log's keys, bound to log, session and direction: so it proves nothing for
another log, another session, or the other way. In a log without keys it is empty, and must be.
"""

from __future__ import annotations

import msgspec

from holdfast.crypto.cipher import NotAuthentic
from holdfast.crypto.segment_key import EncryptedWith, MessageKeys
from holdfast.errors import HoldfastError, Invalid

HELLO, WELCOME = b"holdfast 1 hello|", b"holdfast 1 welcome|"
ROTATE, KEYS = b"holdfast 1 rotate|", b"holdfast 1 keys|"
"""What a message is bound to: what it is for."""


class _Proof(msgspec.Struct, frozen=True, array_like=True, gc=False):
    key_id: str
    scheme: str
    salt: bytes
    commitment: bytes
    body: bytes


_decode = msgspec.msgpack.Decoder(_Proof).decode


def make_proof(keys: MessageKeys, direction: bytes, session: bytes) -> bytes:
    """What only somebody with the log's keys can make; empty without keys."""
    return encrypted(keys, direction, session, b"")


def encrypted(keys: MessageKeys, direction: bytes, session: bytes, content: bytes) -> bytes:
    """A message for somebody with the log's keys; empty without keys."""
    key = keys.fresh()
    if key is None:
        return b""
    body = bytes(key.encrypt(content, direction + keys.log_id + session))
    with_ = key.encrypted_with
    return msgspec.msgpack.encode(_Proof(with_.key_id, with_.scheme, with_.salt, with_.commitment, body))


def check_proof(keys: MessageKeys, direction: bytes, session: bytes, proof: bytes) -> str:
    """Raise Invalid where the other end does not have this log's keys; the name of the key that it proved."""
    if not keys.keyed:
        if proof:
            raise Invalid("this log is not encrypted, but the other process has a key", hint="open it without keyring")
        return ""
    decrypted(keys, direction, session, proof)
    return _decode(proof).key_id


def decrypted(keys: MessageKeys, direction: bytes, session: bytes, message: bytes) -> bytes:
    """What somebody with the log's keys has said; Invalid where that is not so."""
    try:
        found = _decode(message)
        encrypted_with = EncryptedWith(found.key_id, found.scheme, found.salt, found.commitment)
        return bytes(keys.of(encrypted_with).decrypt(found.body, direction + keys.log_id + session))
    except (msgspec.MsgspecError, NotAuthentic, HoldfastError, ValueError):
        raise Invalid(
            "the two processes do not have the same keys of this log",
            hint="open a shared log with the same keyring in every process",
        ) from None
