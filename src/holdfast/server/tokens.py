"""Tokens of the HTTP server: who has one may do what its scopes say, in topics that its patterns match.

A token is text, shown once when it is made: `hft1_`, an id, and 32 random bytes. The file has its hash and what it
allows; a reader of the file can use none of them. The id is no secret: it stands in lists and logs. Hashes are
compared in constant time. Secrets are random, so a fast hash is as good as a slow one.

The file is replaced as a whole, durably, by one writer at a time; a server looks whether it has changed. One that
another user owns, that others may read, write or replace, or that is no regular file, is refused: then nobody has
access, rather than everybody.

Each change has a number, and the log remembers the newest in a topic of its own (`TokenMemory`), which comes back with
a restore: an older file is refused, so that it does not revive what was revoked, and so is a lost one. In a log with
keys the file carries a signature over number and tokens.
"""

from __future__ import annotations

import logging
import os
import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error as NotBase64
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec
from blake3 import blake3

from holdfast import disk
from holdfast.clock import Clock
from holdfast.crypto import digests
from holdfast.crypto.signatures import Signature, Signer, UnknownKey
from holdfast.errors import Corrupt, HoldfastError, Invalid, NotFound, Unavailable, other_version
from holdfast.log.local_parts import parts_of

if TYPE_CHECKING:
    from holdfast.log.log import Log

SCOPES = ("append", "read", "consume:*", "produce:*", "admin", "audit")
"""All rights. `consume` and `produce` go with a name, or a pattern of names."""
FILE = "TOKENS"
FORMAT = "holdfast tokens 1"

TOPIC = "_tokens"
"""What the log remembers: one record for each change of the file, so its end is the number of the newest."""

_PREFIX = "hft1_"
_ID_CHARS = 8
_SECRET_BYTES = 32
_HASH = "holdfast 2026-11 server token"
_ANEW = "put the newest back, or remove the file and make tokens again: holdfast token create"
_FILE_BYTES_MAX = 4 * 2**20
_TOKENS_MAX = 10_000
_BEHIND_MAX = 10_000
"""So many changes may have been made since the log heard of one."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,99}")
_SCOPE = re.compile(r"append|read|admin|audit|(consume|produce):[!-~]{1,200}")
_PATTERN = re.compile(r"[A-Za-z0-9._*-]{1,255}")

logger = logging.getLogger("holdfast.server")


class StoredToken(msgspec.Struct, frozen=True):
    """What is kept of a token."""

    id: str
    name: str
    hash: str
    scopes: tuple[str, ...]
    topics: tuple[str, ...]
    created_us: int
    expires_us: int | None = None
    rate_max: float | None = None

    def has_expired(self, now_us: int) -> bool:
        """Whether its time is over."""
        return self.expires_us is not None and now_us >= self.expires_us


class _File(msgspec.Struct, frozen=True):
    format: str
    change: int
    tokens: tuple[StoredToken, ...]
    key_id: str = ""
    mac: str = ""
    """Both empty in a log without keys; the signature is over the file without it."""


_decode = msgspec.json.Decoder(_File).decode


def split(text: str) -> tuple[str, bytes] | None:
    """Id and secret of what a caller gives as a token; None where it is none."""
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
    name: str,
    scopes: tuple[str, ...],
    topics: tuple[str, ...],
    clock: Clock,
    *,
    expires_us: int | None = None,
    rate_max: float | None = None,
) -> tuple[str, StoredToken]:
    """A new token: its text, to be given out once, and what is stored of it."""
    if not _NAME.fullmatch(name):
        raise Invalid("a token's name has letters, digits and . _ @ -, at most 100", hint="for instance 'web-1'")
    if not scopes or not all(map(_SCOPE.fullmatch, scopes)):
        raise Invalid("a token needs scopes", hint="append, read, admin, audit, consume:NAME or produce:NAME")
    if not topics or not all(map(_PATTERN.fullmatch, topics)):
        raise Invalid("a token needs patterns of topics", hint="for instance 'orders', 'orders.*', or '*' for all")
    if rate_max is not None and not 0 < rate_max <= 1e6:
        raise Invalid("a rate is a number of requests per second above 0", hint="for instance --rate 100")
    token_id = clock.random_bytes(_ID_CHARS // 2).hex()
    secret = clock.random_bytes(_SECRET_BYTES)
    stored = StoredToken(
        token_id,
        name,
        hash_of(token_id, secret).hex(),
        tuple(dict.fromkeys(scopes)),
        tuple(topics),
        clock.now_us(),
        expires_us,
        rate_max,
    )
    return _PREFIX + token_id + "_" + urlsafe_b64encode(secret).rstrip(b"=").decode(), stored


class TokenMemory:
    """What a log remembers of its tokens: how often they were changed."""

    def __init__(self, log: Log) -> None:
        self._log = log

    @property
    def signer(self) -> Signer | None:
        """Who signs the file; None in a log without keys."""
        return parts_of(self._log).journal.signer

    @property
    def log_id(self) -> str:
        """Which log's tokens they are."""
        return self._log.id

    @property
    def changes(self) -> int:
        """The number of the newest change that the log knows; 0: it never had tokens."""
        return self._log.marks(TOPIC)[0].durable if TOPIC in self._log.topics() else 0

    def raise_to(self, change: int) -> None:
        """Remember this change and those before it, durably."""
        missing = change - self.changes
        if missing > 0:
            parts_of(self._log).topics.own(TOPIC).append_batch([b""] * missing)


class _Read(NamedTuple):
    change: int
    tokens: tuple[StoredToken, ...]


class TokenFile:
    """The tokens of one server; with the memory of its log, they are proved by it."""

    def __init__(self, path: Path, memory: TokenMemory | None = None) -> None:
        self.path = path
        self.memory = memory

    def read(self) -> tuple[StoredToken, ...]:
        """All tokens, none where there is no file; Invalid, Corrupt or Unavailable where it cannot be believed."""
        return self._read().tokens

    def remember(self) -> None:
        """Let the log know how often the file was changed; raises what appending raises."""
        if self.memory is not None:
            self.memory.raise_to(self._read().change)

    def remember_quietly(self) -> None:
        """The same where nobody waits for it: a log that takes no records hears of it later."""
        try:
            self.remember()
        except HoldfastError as error:
            logger.warning(
                "the log could not note a change of its tokens: %s", error.message, extra={"action": "tokens_unnoted"}
            )

    def _read(self) -> _Read:
        known = 0 if self.memory is None else self.memory.changes
        try:
            content = disk.read_own_file(self.path, _FILE_BYTES_MAX)
        except FileNotFoundError:
            return _Read(known, ())
        except disk.NotOwn as why:
            hint = f"make it yours alone: chown, chmod 600 {self.path}, chmod go-w {self.path.parent}"
            raise Invalid(f"the tokens cannot be believed: {why} path={self.path}", hint=hint) from None
        except (disk.NotRegular, disk.TooLong):
            raise self._damaged() from None
        except OSError as error:
            raise Unavailable(
                f"the tokens cannot be read path={self.path}: {error.strerror}", hint="check the file and its directory"
            ) from error
        try:
            found = _decode(content)
        except msgspec.MsgspecError:
            raise self._damaged() from None
        if found.format != FORMAT:
            raise other_version("file of tokens", path=self.path)
        if any(not re.fullmatch(r"[0-9a-f]{64}", one.hash) for one in found.tokens):
            raise self._damaged()
        self._prove(found, known)
        return _Read(found.change, found.tokens)

    def _prove(self, found: _File, known: int) -> None:
        if self.memory is None:
            return
        if self.memory.signer is not None and not self._is_signed(found, self.memory.signer):
            raise Corrupt("the tokens are not signed by this log's keys", path=str(self.path), hint=_ANEW)
        if found.change < known:
            raise Invalid(
                f"the tokens are older than what the log knows path={self.path} change={found.change} known={known}",
                hint="it would revive what was revoked: put the newest back, or remove it and make tokens anew",
            )
        if found.change > known + _BEHIND_MAX:
            raise self._damaged()

    def _is_signed(self, found: _File, signer: Signer) -> bool:
        assert self.memory is not None
        try:
            signature = Signature(found.key_id, bytes.fromhex(found.mac))
            return signer.proves(self.memory.log_id, FILE, _signed(found), signature)
        except (ValueError, UnknownKey):
            return False

    def add(self, token: StoredToken, clock: Clock) -> None:
        """Keep one more, durably; Invalid where a token has its name."""
        self._require(clock)
        with disk.alone_with(self.path):
            change, known = self._read()
            if any(one.name == token.name for one in known):
                raise Invalid(f"there is a token of this name name={token.name}", hint="revoke it first")
            if len(known) >= _TOKENS_MAX:
                raise Invalid(f"there are too many tokens max={_TOKENS_MAX}", hint="revoke those that nobody uses")
            self._write(change + 1, (*known, token), clock)

    def revoke(self, name: str, clock: Clock) -> StoredToken:
        """Take one away, by name or id, durably."""
        if not self.path.exists():
            raise NotFound(f"there are no tokens path={self.path}", hint="holdfast token create DIR NAME …")
        with disk.alone_with(self.path):
            change, known = self._read()
            found = next((one for one in known if name in (one.name, one.id)), None)
            if found is None:
                raise NotFound("there is no such token", hint="'holdfast token list DIR' shows them")
            self._write(change + 1, tuple(one for one in known if one is not found), clock)
        return found

    def changed(self) -> tuple[int, ...] | None:
        """Something that is another value once the file is another one or another's; None where there is none."""
        try:
            file, folder = os.lstat(self.path), os.stat(self.path.parent)
        except OSError:
            return None
        return file.st_ino, file.st_mtime_ns, file.st_ctime_ns, folder.st_mode, folder.st_uid

    def _require(self, clock: Clock) -> None:
        if not self.path.exists():
            empty = self._encode(0 if self.memory is None else self.memory.changes, ())
            try:
                disk.write_new_file(self.path, empty, token=clock.random_bytes(8).hex())
            except FileExistsError:
                pass

    def _write(self, change: int, tokens: tuple[StoredToken, ...], clock: Clock) -> None:
        disk.write_file(self.path, self._encode(change, tokens), token=clock.random_bytes(8).hex())

    def _encode(self, change: int, tokens: tuple[StoredToken, ...]) -> bytes:
        file = _File(FORMAT, change, tokens)
        if self.memory is not None and self.memory.signer is not None:
            key_id, mac = self.memory.signer.sign(self.memory.log_id, FILE, _signed(file))
            file = msgspec.structs.replace(file, key_id=key_id, mac=mac.hex())
        return msgspec.json.format(msgspec.json.encode(file), indent=1) + b"\n"

    def _damaged(self) -> Corrupt:
        return Corrupt("the tokens are damaged", path=str(self.path), hint=_ANEW)


def _signed(file: _File) -> bytes:
    return msgspec.json.encode(msgspec.structs.replace(file, key_id="", mac=""))
