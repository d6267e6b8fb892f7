"""Who asks: the token of a request, as the file has it now. What a token may do stands in `caller`.

Decided once, at the start: a server without tokens allows everything to everybody, and is allowed to listen on loopback
only (`listening`). As soon as there is a file of tokens, a token is needed, and stays needed if the file goes: a file
that was lost, damaged, older than the log knows or opened to others lets nobody in. Nor is a log that had tokens served
without them, unless that is said out loud.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from threading import Thread

from holdfast import disk
from holdfast.clock import Clock
from holdfast.errors import Full, HoldfastError, Invalid, Unavailable
from holdfast.server.request_caller import Caller, NotKnown
from holdfast.server.tokens import SCOPES, StoredToken, TokenFile, hash_of, is_token, split

logger = logging.getLogger("holdfast.server")

_LOOK_AGAIN_S = 1.0
_TOKEN_BYTES_MAX = 4096
_WHERE_LISTED = "'holdfast token list DIR' shows them"


class Access:
    """The tokens of a server, as they are now."""

    def __init__(self, file: TokenFile, reference: str | None, clock: Clock, rate_max: float) -> None:
        self._file = file
        self._clock = clock
        self._rate_max = rate_max
        self._given = None if reference is None else _given(reference, clock)
        self._anyone = Caller(None, rate_max)
        self._changed = file.changed()
        self._stored = {one.id: one for one in file.read()}
        if self._changed is not None:
            file.remember_quietly()
        self._callers: dict[str, Caller] = {}
        self._failure: HoldfastError | None = None
        self._looked = clock.monotonic()
        self._is_needed = self._given is not None or self._changed is not None
        """Whether a token is needed; never again False."""

    @property
    def is_needed(self) -> bool:
        """Whether a token is needed."""
        self._look()
        return self._is_needed

    def caller(self, authorization: str | None) -> Caller:
        """The caller with this `Authorization`; Denied where there is none, Full for one that asks too often."""
        now = self._clock.monotonic()
        if now - self._looked >= _LOOK_AGAIN_S:
            self._look()
        caller = self._known(authorization) if self._is_needed else self._anyone
        if not caller.limit.take(now):
            raise Full(f"too many requests token={caller.id}", hint="wait as long as Retry-After says")
        return caller

    def is_still_known(self, caller: Caller) -> bool:
        """Whether what was allowed at the start of a long request is still allowed."""
        self._look()
        if caller.token is None:
            return not self._is_needed
        if caller.token.has_expired(self._clock.now_us()):
            return False
        return caller.token is self._given or self._stored.get(caller.id) == caller.token

    def require_still_known(self, caller: Caller) -> None:
        """Raise Denied where it is not."""
        if not self.is_still_known(caller):
            raise NotKnown("this token is not known, or has expired", hint=_WHERE_LISTED)

    def _known(self, authorization: str | None) -> Caller:
        if authorization is None:
            raise NotKnown("a token is needed", hint="send it as 'Authorization: Bearer hft1_…'")
        scheme, _, text = authorization.partition(" ")
        parts = split(text.strip()) if scheme.lower() == "bearer" else None
        if parts is None:
            raise NotKnown("this is no token", hint="send it as 'Authorization: Bearer hft1_…', all of it")
        if self._failure is not None:  # what is wrong is for who runs the server, not for clients
            raise Unavailable("tokens cannot be checked at the moment", hint="the server's own log says why")
        token_id, secret = parts
        stored = self._stored.get(token_id)
        if stored is None and self._given is not None and self._given.id == token_id:
            stored = self._given
        if stored is None or not is_token(stored, secret) or stored.has_expired(self._clock.now_us()):
            raise NotKnown("this token is not known, or has expired", hint=_WHERE_LISTED)
        caller = self._callers.get(token_id)
        if caller is None or caller.token is not stored:
            own = self._rate_max if stored.rate_max is None else stored.rate_max
            caller = self._callers[token_id] = Caller(stored, own)
        return caller

    def _look(self) -> None:
        """Take over what has changed in the file."""
        self._looked = self._clock.monotonic()
        changed = self._file.changed()
        if changed == self._changed and self._failure is None:
            return
        try:
            found = self._file.read()
            self._failure = None
        except HoldfastError as error:
            found, self._failure = (), error
            logger.error("nobody gets in: %s (%s)", error.message, error.hint, extra={"action": "tokens_refused"})
        if self._failure is None and changed is not None:  # not here: this may be an event loop
            Thread(target=self._file.remember_quietly, name="holdfast-tokens", daemon=True).start()
        self._changed = changed
        self._is_needed = self._is_needed or changed is not None
        known = self._stored
        self._stored = {one.id: known[one.id] if known.get(one.id) == one else one for one in found}
        self._callers = {name: one for name, one in self._callers.items() if name in self._stored}


def _given(reference: str, clock: Clock) -> StoredToken:
    """A token that a setting names, with all rights."""
    parts = split(read_reference(reference))
    if parts is None:
        raise Invalid(
            "what server.token names is no token",
            hint="it is what 'holdfast token create' prints: 57 characters that begin with hft1_",
        )
    token_id, secret = parts
    hashed = hash_of(token_id, secret).hex()
    return StoredToken(token_id, "server.token", hashed, SCOPES, ("*", "_*"), clock.now_us())


def read_reference(reference: str) -> str:
    """What `env:NAME` or `file:PATH` holds; the text itself is never an argument or a setting."""
    scheme, _, rest = reference.partition(":")
    if scheme == "env" and rest:
        if rest not in os.environ:
            raise Invalid(f"the environment has no token name={rest}", hint=f"set {rest}, or name another reference")
        return os.environ[rest].strip()
    if scheme == "file" and rest:
        try:
            content, mode = disk.read_small_file(Path(rest), _TOKEN_BYTES_MAX)
        except OSError as error:
            raise Invalid(f"the token cannot be read path={rest}: {error.strerror}", hint="name another file") from None
        if mode & 0o077:
            raise Invalid(f"others may read the token path={rest}", hint=f"chmod 600 {rest}")
        return content.decode("ascii", "replace").strip()
    raise Invalid("a token comes by reference", hint="write 'env:NAME' or 'file:PATH', never a token")
