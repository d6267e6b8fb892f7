"""Tokens of the HTTP server: who has one may do what its scopes say, in topics that its patterns match.

A token is text, shown once when it is made: `hft1_`, an id, and 32 random bytes. The file has its hash and what it
allows; whoever reads the file can use none of them. The id is no secret: it stands in lists and logs. Hashes are
compared in constant time. Secrets are random, so a fast hash is as good as a slow one.

The file is replaced as a whole, durably, by one writer at a time; a server looks whether it has changed. One that
others may read or write, or that is no regular file, is refused: then nobody has access, rather than everybody.
"""

from __future__ import annotations

import os
import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error as NotBase64
from pathlib import Path
from typing import Literal, get_args

import msgspec
from blake3 import blake3

from holdfast import disk
from holdfast.clock import Clock
from holdfast.crypto import digests
from holdfast.errors import Corrupt, Invalid, NotFound, Unavailable

Scope = Literal["append", "read", "admin"]
SCOPES: tuple[Scope, ...] = get_args(Scope)
FILE = "TOKENS"
FORMAT = "holdfast tokens 1"

_PREFIX = "hft1_"
_ID_CHARS = 8
_SECRET_BYTES = 32
_HASH = "holdfast 2026-11 server token"
_FILE_BYTES_MAX = 4 * 2**20
_TOKENS_MAX = 10_000
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,99}")
_PATTERN = re.compile(r"[A-Za-z0-9._*-]{1,255}")


class StoredToken(msgspec.Struct, frozen=True):
    """What is kept of a token."""

    id: str
    name: str
    hash: str
    scopes: tuple[Scope, ...]
    topics: tuple[str, ...]
    created_us: int
    expires_us: int | None = None
    rate_max: float | None = None

    def has_expired(self, now_us: int) -> bool:
        """Whether its time is over."""
        return self.expires_us is not None and now_us >= self.expires_us


class _File(msgspec.Struct, frozen=True):
    format: str
    tokens: tuple[StoredToken, ...]


_decode = msgspec.json.Decoder(_File).decode


def split(text: str) -> tuple[str, bytes] | None:
    """Id and secret of what somebody gives as a token; None where it is none."""
    body = text.removeprefix(_PREFIX)
    token_id, line, secret = body.partition("_")
    if body == text or not line or len(token_id) != _ID_CHARS or len(secret) > 2 * _SECRET_BYTES:
        return None
    try:
        found = urlsafe_b64decode(secret + "=" * (-len(secret) % 4))
    except (NotBase64, ValueError):
        return None
    return (token_id, found) if len(found) == _SECRET_BYTES else None


def hash_of(token_id: str, secret: bytes) -> bytes:
    """What is stored; it binds the secret to its id."""
    return blake3(token_id.encode() + b"\0" + secret, derive_key_context=_HASH).digest()


def is_token(stored: StoredToken, secret: bytes) -> bool:
    """Whether this is the token's secret; it takes as long whether it is or not."""
    return digests.same(hash_of(stored.id, secret), bytes.fromhex(stored.hash))


def make(
    name: str, scopes: tuple[Scope, ...], topics: tuple[str, ...], clock: Clock, *,
    expires_us: int | None = None, rate_max: float | None = None,
) -> tuple[str, StoredToken]:  # fmt: skip
    """A new token: its text, to be given out once, and what is stored of it."""
    if not _NAME.fullmatch(name):
        raise Invalid("a token's name has letters, digits and . _ @ -, at most 100", hint="for instance 'web-1'")
    if not scopes or not set(scopes) <= set(SCOPES):
        raise Invalid("a token needs scopes", hint=f"some of {', '.join(SCOPES)}")
    if not topics or not all(map(_PATTERN.fullmatch, topics)):
        raise Invalid("a token needs patterns of topics", hint="for instance 'orders', 'orders.*', or '*' for all")
    if rate_max is not None and not 0 < rate_max <= 1e6:
        raise Invalid("a rate is a number of requests per second above 0", hint="for instance --rate 100")
    token_id = clock.random_bytes(_ID_CHARS // 2).hex()
    secret = clock.random_bytes(_SECRET_BYTES)
    stored = StoredToken(
        token_id, name, hash_of(token_id, secret).hex(), tuple(s for s in SCOPES if s in scopes), tuple(topics),
        clock.now_us(), expires_us, rate_max,
    )  # fmt: skip
    return _PREFIX + token_id + "_" + urlsafe_b64encode(secret).rstrip(b"=").decode(), stored


class TokenFile:
    """The tokens of one server."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> tuple[StoredToken, ...]:
        """All tokens, none where there is no file; Invalid, Corrupt or Unavailable where it cannot be believed."""
        try:
            content, mode = disk.read_small_file(self.path, _FILE_BYTES_MAX)
        except FileNotFoundError:
            return ()
        except OSError as error:
            raise Unavailable(
                f"the tokens cannot be read path={self.path}: {error.strerror}", hint="check the file and its directory"
            ) from error
        if mode & 0o077:
            raise Invalid(f"others may read or write the tokens path={self.path}", hint=f"chmod 600 {self.path}")
        try:
            found = _decode(content)
        except msgspec.MsgspecError:
            raise self._damaged() from None
        if found.format != FORMAT:
            raise Invalid(f"a newer holdfast wrote the tokens path={self.path}", hint="upgrade holdfast")
        if any(not re.fullmatch(r"[0-9a-f]{64}", one.hash) for one in found.tokens):
            raise self._damaged()
        return found.tokens

    def add(self, token: StoredToken, clock: Clock) -> None:
        """Keep one more, durably; Invalid where a token has its name."""
        self._require(clock)
        with disk.alone_with(self.path):
            known = self.read()
            if any(one.name == token.name for one in known):
                raise Invalid(f"there is a token of this name name={token.name}", hint="revoke it first")
            if len(known) >= _TOKENS_MAX:
                raise Invalid(f"there are too many tokens max={_TOKENS_MAX}", hint="revoke those that nobody uses")
            self._write((*known, token), clock)

    def revoke(self, name: str, clock: Clock) -> StoredToken:
        """Take one away, by name or id, durably."""
        if not self.path.exists():
            raise NotFound(f"there are no tokens path={self.path}", hint="holdfast token create DIR NAME …")
        with disk.alone_with(self.path):
            known = self.read()
            found = next((one for one in known if name in (one.name, one.id)), None)
            if found is None:
                raise NotFound("there is no such token", hint="'holdfast token list DIR' shows them")
            self._write(tuple(one for one in known if one is not found), clock)
        return found

    def changed(self) -> tuple[int, int, int] | None:
        """Something that is another value once the file is another one; None where there is none."""
        try:
            status = os.stat(self.path)
        except OSError:
            return None
        return status.st_ino, status.st_mtime_ns, status.st_mode

    def _require(self, clock: Clock) -> None:
        if not self.path.exists():
            empty = msgspec.json.encode(_File(FORMAT, ()))
            try:
                disk.write_new_file(self.path, empty, token=clock.random_bytes(8).hex())
            except FileExistsError:
                pass

    def _write(self, tokens: tuple[StoredToken, ...], clock: Clock) -> None:
        content = msgspec.json.format(msgspec.json.encode(_File(FORMAT, tokens)), indent=1) + b"\n"
        disk.write_file(self.path, content, token=clock.random_bytes(8).hex())

    def _damaged(self) -> Corrupt:
        return Corrupt(
            "the tokens are damaged", path=str(self.path), hint="remove the file and make tokens again, or restore it"
        )
