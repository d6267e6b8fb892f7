"""Proofs that both ends of the socket have the keys of an encrypted log, made and checked when they meet.

Every process of the same user can open the socket; in a log with keys that is not enough to append to it, or to pass
for its owner. A proof is an empty message under the log's keys, bound to log, session, direction, and fresh random
bytes of both ends: so it proves nothing for another log, another session, another connection, or the other way. In a
log without keys it is empty, and must be.

It does not help against a process that stands between the two and hands on all that they say: what comes behind the
proofs is not signed. Only processes of the same user can get there.
"""

from __future__ import annotations

import msgspec

from holdfast.crypto.cipher import NotAuthentic
from holdfast.crypto.segment_key import MessageKeys, SegmentKeyFacts
from holdfast.errors import HoldfastError, Invalid
from holdfast.owner.wire import Hello

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


def make_proof(keys: MessageKeys, direction: bytes, hello: Hello, challenge: bytes) -> bytes:
    """What only a holder of the log's keys can make; empty without keys."""
    return encrypted(keys, direction, _meeting(hello, challenge), b"")


def _meeting(hello: Hello, challenge: bytes) -> bytes:
    """One connection: no other one has these bytes."""
    return hello.session + hello.nonce + challenge


def encrypted(keys: MessageKeys, direction: bytes, bound_to: bytes, content: bytes) -> bytes:
    """A message for a holder of the log's keys; empty without keys."""
    key = keys.fresh()
    if key is None:
        return b""
    body = bytes(key.encrypt(content, direction + keys.log_id + bound_to))
    with_ = key.encrypted_with
    return msgspec.msgpack.encode(_Proof(with_.key_id, with_.scheme, with_.salt, with_.commitment, body))


def check_keyed(keys: MessageKeys, hello: Hello) -> None:
    """Raise Invalid where one of the two has keys and the other one none."""
    if hello.keyed and not keys.keyed:
        raise Invalid("this log is not encrypted, but the other process has a key", hint="open it without keyring")
    if keys.keyed and not hello.keyed:
        raise _other_keys()


def check_proof(keys: MessageKeys, direction: bytes, hello: Hello, challenge: bytes, proof: bytes) -> str:
    """Raise Invalid where the other end does not have this log's keys; the name of the key that it proved."""
    if not keys.keyed:
        if proof:
            raise Invalid("this log is encrypted, but was opened without keys", hint="open it with its keyring")
        return ""
    decrypted(keys, direction, _meeting(hello, challenge), proof)
    return _decode(proof).key_id


def decrypted(keys: MessageKeys, direction: bytes, bound_to: bytes, message: bytes) -> bytes:
    """What a holder of the log's keys has said; Invalid where that is not so."""
    try:
        found = _decode(message)
        encrypted_with = SegmentKeyFacts(found.key_id, found.scheme, found.salt, found.commitment)
        return bytes(keys.of(encrypted_with).decrypt(found.body, direction + keys.log_id + bound_to))
    except (msgspec.MsgspecError, NotAuthentic, HoldfastError, ValueError):
        raise _other_keys() from None


def _other_keys() -> Invalid:
    return Invalid(
        "the two processes do not have the same keys of this log",
        hint="open a shared log with the same keyring in every process",
    )
