"""The owner checks who comes: the protocol's version, the log, its settings, its keys.

A *member* shares the log: it may own it next, and so must have the owner's settings. A *caller* only asks for verbs and
appends, with whatever settings it has; it never owns the log. A log that was not opened to be shared has callers alone.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

import holdfast
from holdfast.clock import Clock
from holdfast.errors import Closed, HoldfastError, Invalid
from holdfast.journal.journal import Journal
from holdfast.owner.wire import NONCE_BYTES, PROTOCOL, Challenge, Hello, Welcome
from holdfast.sharing import key_proof
from holdfast.sharing.key_proof import check_keyed, check_proof, make_proof

_NAMED_MAX = 5
"""Settings that a refusal names."""


class Greeting:
    """What one owner says to those who come."""

    def __init__(self, journal: Journal, clock: Clock, digests: Mapping[str, bytes] | None) -> None:
        """`digests` of the settings that members must have, too; None: nobody shares this log."""
        self._journal = journal
        self._clock = clock
        self._digests = digests

    def greet(self, hello: Hello, challenge: bytes, proof: bytes) -> Welcome | Challenge:
        """Check who comes; raises what refuses it. In a log with keys it is challenged first: `challenge` is empty."""
        if hello.protocol != PROTOCOL:
            raise other_version(owner=(PROTOCOL, holdfast.__version__), other=(hello.protocol, hello.version))
        journal = self._journal
        if hello.log != journal.log_id:
            raise Invalid("this is the socket of another log", hint="its directory was replaced: open it again")
        if hello.shares:
            self._check_member(hello)
        keys = journal.message_keys
        check_keyed(keys, hello)
        if keys.keyed and not challenge:
            return Challenge(self._clock.random_bytes(NONCE_BYTES))
        check_proof(keys, key_proof.HELLO, hello, challenge, proof)
        last = journal.sessions.last(hello.session) or 0
        own = make_proof(keys, key_proof.WELCOME, hello, challenge)
        return Welcome(PROTOCOL, holdfast.__version__, journal.epoch, last, own)

    def _check_member(self, hello: Hello) -> None:
        if self._digests is None:  # it waits for an owner that shares the log, as if nobody was here
            raise Closed(f"the log is open in process {os.getpid()}, which does not share it")
        others = sorted(name for name, digest in self._digests.items() if hello.settings.get(name) != digest)
        if others:
            raise Invalid(
                f"this process has other settings than the log's owner: {', '.join(others[:_NAMED_MAX])}",
                hint="open a shared log with the same settings, store and keys in every process; restart all of them"
                " to change one",
            )


def check_protocol(hello: Hello, welcome: Welcome) -> None:
    """Raise Invalid where the owner that welcomed us speaks another protocol."""
    if welcome.protocol != PROTOCOL:
        raise other_version(owner=(welcome.protocol, welcome.version), other=(hello.protocol, hello.version))


def other_version(*, owner: tuple[int, str], other: tuple[int, str]) -> HoldfastError:
    """Said by the owner and read at the other end, or both there: so it names them, instead of here and there."""
    return Invalid(
        "this process speaks another version of the socket's protocol than the log's owner"
        f" protocol={other[0]} version={other[1]} owner_protocol={owner[0]} owner_version={owner[1]}",
        hint="run the same version of holdfast in every process that uses this log",
    )
