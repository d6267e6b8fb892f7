"""Names of executions and of what happens in them: ids, paths of steps, fingerprints.

An execution's id is a UUID: fresh ones carry the time (version 7); one that is derived from a domain and a payload
(version 8) is the same wherever it is derived, so that a second caller finds the first one's work.

A step is named by its *path*: its name, with `#2` behind it the second time, below the path of the scope it runs in. A
path does not depend on how many other steps there are. Its *key* is a fingerprint over execution, path and what the
step does; it decides whether a record matches the program, and an effect can be deduplicated by it.
"""

from __future__ import annotations

from collections.abc import Iterable
from struct import Struct
from uuid import UUID

from blake3 import blake3

from holdfast.clock import Clock
from holdfast.errors import Invalid

NAME_BYTES_MAX = 200
PATH_BYTES_MAX = 1_000
KEY_BYTES = 32

_DERIVE = "holdfast 2026-11 execution id"
_KEY = "holdfast 2026-11 step key"
_INNER = "holdfast 2026-11 id inside an execution"

_LENGTH = Struct("<I").pack

ExecutionId = UUID

_GOOD_NAMES_MAX = 10_000
_good_names: set[object] = set()
"""Names that were checked: a program uses the same ones again and again."""


def fresh_id(clock: Clock) -> ExecutionId:
    """A new id, UUID version 7: ids sort by the time they were made."""
    millis = max(0, clock.now_us() // 1000) & (2**48 - 1)
    random = int.from_bytes(clock.random_bytes(10), "big")
    number = millis << 80 | 0x7 << 76 | (random >> 62 & 0xFFF) << 64 | 0b10 << 62 | random & (2**62 - 1)
    return UUID(int=number)


def derived_id(domain: str, payload: bytes | str | int) -> ExecutionId:
    """The id that this domain and payload always have (UUID version 8); a number is its digits.

    So a second caller finds the first one's work: `log.execution("import", id=execution_id("import", "2026-11-16"))`.
    """
    if isinstance(payload, bool) or not isinstance(payload, bytes | str | int):
        raise Invalid(
            f"a payload is bytes, text or a whole number, not {type(payload).__name__}", hint="for instance 7"
        )
    body = payload if isinstance(payload, bytes) else str(payload).encode()
    return _version_8(blake3(_framed([domain.encode(), body]), derive_key_context=_DERIVE).digest()[:16])


def inner_id(execution: ExecutionId, path: str, purpose: str) -> UUID:
    """The id of a promise, timer … at a path: the same on every run."""
    framed = _framed([execution.bytes, path.encode(), purpose.encode()])
    return _version_8(blake3(framed, derive_key_context=_INNER).digest()[:16])


def given_id(given: object) -> ExecutionId:
    """What a caller says is an id."""
    if isinstance(given, UUID):
        return given
    if isinstance(given, str):
        try:
            return UUID(given)
        except ValueError:
            pass
    raise Invalid(
        f"this is not an execution id: {given!r}"[:200],
        hint="a UUID; holdfast.execution_id('domain', 'payload') derives one",
    )


def step_key(execution: ExecutionId, path: str, effect: str, operation: bytes) -> bytes:
    """The fingerprint of a step: 32 bytes over execution, path, effect class and what it is called with."""
    framed = _framed([execution.bytes, path.encode(), effect.encode(), operation])
    return blake3(framed, derive_key_context=_KEY).digest()


def step_hasher(execution: ExecutionId) -> blake3:
    """What the keys of all steps of an execution begin with."""
    return blake3(_framed([execution.bytes]), derive_key_context=_KEY)


def step_key_from(hasher: blake3, path: str, effect: bytes, operation: bytes) -> bytes:
    """What `step_key` gives, from `step_hasher` of the same execution; the effect comes `framed`."""
    where = path.encode()
    own = hasher.copy()
    own.update(_LENGTH(len(where)) + where + effect + _LENGTH(len(operation)) + operation)
    return own.digest()


def framed(part: bytes) -> bytes:
    """A part with its length."""
    return _LENGTH(len(part)) + part


def checked_name(name: object, what: str = "step") -> str:
    """A name that may be part of a path."""
    if type(name) is str and name in _good_names:
        return name
    if not isinstance(name, str) or not name or len(name.encode("utf-8", "replace")) > NAME_BYTES_MAX:
        raise Invalid(f"a {what}'s name is text of 1 to {NAME_BYTES_MAX} bytes", hint=f"for instance '{what}-1'")
    if "/" in name or "#" in name or not name.isprintable():
        raise Invalid(f"a {what}'s name has no '/', '#' or control characters: {name!r}", hint="they make up paths")
    if len(_good_names) < _GOOD_NAMES_MAX:
        _good_names.add(name)
    return name


def joined(parent: str, name: str, occurrence: int) -> str:
    """A path: where, what, and the how-manieth of that name there."""
    own = name if occurrence == 1 else f"{name}#{occurrence}"
    return f"{parent}/{own}" if parent else own


def _framed(parts: Iterable[bytes]) -> bytes:
    """Parts with their lengths: no two lists of parts have the same bytes."""
    return b"".join(map(framed, parts))


def _version_8(digest: bytes) -> UUID:
    number = int.from_bytes(digest, "big")
    return UUID(int=number & ~(0xF << 76) & ~(0b11 << 62) | 0x8 << 76 | 0b10 << 62)
