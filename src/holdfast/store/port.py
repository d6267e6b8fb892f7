"""What holdfast asks of an object store: a few verbs, and two ways in which they fail.

Objects are created once and never changed, so `create` is the only way to write: it fails with `AlreadyExists` where
the key is taken, and the caller then reads back and compares, because it may be the caller's own object, whose reply
was lost. When `create` returns, the object is as durable as the store makes anything. No verb retries a `create`.

Failures have two kinds, because the caller acts differently: `StoreUnavailable` may pass (of a `create` the outcome is
unknown then), `StoreRefused` will not pass by itself (no such bucket, not allowed, not supported). Both carry a `cause`
in one word, for counting. Keys are relative to the store's root and are spelled by `layout` alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Literal, NamedTuple, Protocol

from holdfast.errors import Invalid, Unavailable

CHUNK_BYTES = 2**20

Cause = Literal[
    "slow_down",
    "server_error",
    "conflict",
    "timeout",
    "reset",
    "refused",
    "dns",
    "tls",
    "truncated",
    "redirect",
    "clock_skew",
    "credentials",
    "no_bucket",
    "forgotten",
    "taken",
    "forbidden",
    "bad_digest",
    "unsupported",
    "disk",
    "other",
]
"""Why a request failed, in one word."""


class AlreadyExists(Exception):
    """The key is taken: by this very object, whose reply was lost, or by another one. Read back to know."""


class StoreUnavailable(Unavailable):
    """The store did not do it, or did not say that it did; the same request may succeed later."""

    def __init__(
        self, message: str, *, cause: Cause = "other", retry_after: float = 0.0, hint: str | None = None
    ) -> None:
        super().__init__(
            message, hint="check the address of the store and the network; it is tried again" if hint is None else hint
        )
        self.cause: Cause = cause
        self.retry_after = retry_after
        """Seconds that the store asked to be left alone; 0 when it did not ask."""


class StoreRefused(Invalid):
    """The store will not do it until something is changed: credentials, bucket, address, clock."""

    def __init__(self, message: str, *, cause: Cause = "other", hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.cause: Cause = cause


class ObjectInfo(NamedTuple):
    """What a listing says about an object."""

    key: str
    size: int
    modified_us: int


class Body(NamedTuple):
    """The bytes of one object, in memory or in a file that does not change."""

    size: int
    known_sha256: bytes
    """The hash of the bytes; empty where it was not needed yet."""
    data: bytes | None = None
    path: Path | None = None
    handed: Callable[[], None] | None = None
    """Called once the bytes were handed to what carries them, a connection or a thread: from any thread, with each
    attempt. A hint for watchers; nothing depends on it.
    """

    @classmethod
    def of(cls, data: bytes) -> Body:
        """Bytes in memory. Their sender hashes them: a loop must not stand still for that."""
        return cls(len(data), b"", data)

    @classmethod
    def file(cls, path: Path, size: int, digest: bytes) -> Body:
        """A file whose size and hash are known already."""
        return cls(size, digest, None, path)

    @property
    def sha256(self) -> bytes:
        """The hash of the bytes."""
        return self.known_sha256 or sha256(self.read()).digest()

    def hashed(self) -> Body:
        """The same, with its hash made."""
        return self if self.known_sha256 else self._replace(known_sha256=self.sha256)

    def chunks(self) -> Iterator[bytes | memoryview]:
        """The bytes, piece by piece."""
        if self.data is not None:
            view = memoryview(self.data)
            for start in range(0, len(view), CHUNK_BYTES):
                yield view[start : start + CHUNK_BYTES]
            return
        assert self.path is not None
        with self.path.open("rb") as stream:
            while chunk := stream.read(CHUNK_BYTES):
                yield chunk

    def read(self) -> bytes:
        """All of it."""
        return self.data if self.data is not None else b"".join(self.chunks())


class Store(Protocol):
    """An object store, used from any thread. Reads may be repeated inside; `create` never is."""

    @property
    def url(self) -> str:
        """Where it is, without secrets."""

    def create(self, key: str, body: Body) -> None:
        """Create an object; raises AlreadyExists where the key is taken. One attempt."""

    def get(self, key: str, bytes_max: int | None = None) -> bytes:
        """The whole object; raises NotFound. One that has more than `bytes_max`, or by default more than an object
        under this key may have (`object_limits`), is Corrupt, found before its bytes are read.
        """

    def get_range(self, key: str, start: int, length: int) -> bytes:
        """A part of an object, which must have that many bytes; raises NotFound."""

    def head(self, key: str) -> ObjectInfo | None:
        """What there is under a key; None when there is nothing."""

    def list(self, prefix: str, after: str | None = None) -> Iterator[ObjectInfo]:
        """Objects whose keys begin with a prefix (which ends in `/` or is empty), all levels, ordered by key;
        only those behind `after`, if given.
        """

    def folders(self, prefix: str) -> Sequence[str]:
        """The names of the folders right below a prefix (which ends in `/` or is empty), sorted."""

    def delete(self, keys: Sequence[str]) -> None:
        """Remove objects; a key that has none is ignored."""

    def close(self) -> None:
        """Let go of connections and threads."""
