"""How large an object may be that is read whole: by its kind, which follows from its key.

A writer to a store may put gigabytes where a line of JSON should be. So every store compares an object's size with
these before it reads a byte of it. They leave room: what we write of a kind is far smaller, but for commit batches and
topics, which are as large as a user's largest batch and schemas.
"""

from __future__ import annotations

from holdfast.errors import Corrupt

DOCUMENT = 64 * 2**10
"""Claims, floors, adoptions, expiries, manifest objects, the log's own: a kilobyte or two."""
TOPIC = 64 * 2**20
"""All versions of a schema of up to 16 MiB."""
REWRITE = 32 * 2**20
"""Ten thousand files that took the place of segments."""
SINK = 32 * 2**20
"""A batch of ten thousand files, and the marks of a hundred thousand queries."""
FRONTIER = 32 * 2**20
"""One number for every partition of every topic."""
LEASE = 4 * 2**20
"""One number for every partition of every topic that a stream reads."""
CHECKPOINT = 256 * 2**20
"""More than a million segments of one partition."""
KEYS = 2**30
"""A window of idempotency keys of the largest size that can be set."""
BATCH = 2**30 + 2**26
"""One append of the largest size that can be set."""
ANY = 2**31
"""Keys that are not ours."""

_LARGE_DOCUMENTS = {"topic": TOPIC, "rewrites": REWRITE, "intents": REWRITE, "sink": SINK}


def largest(key: str) -> int:
    """The most bytes that an object under this key may have."""
    folder, _, name = key.rpartition("/")
    room = folder.rpartition("/")[2].removeprefix("_")
    if name.endswith(".json"):
        if key.startswith("frontiers/"):
            return FRONTIER
        return LEASE if key.startswith("leases/") else _LARGE_DOCUMENTS.get(room, DOCUMENT)
    if name.endswith((".floor", ".adopted")):
        return DOCUMENT
    if name.endswith(".arrow"):
        return BATCH
    if name.endswith(".keys"):
        return KEYS
    return CHECKPOINT if room == "checkpoints" else ANY


def require(key: str, size: int, bytes_max: int | None) -> int:
    """The size, if an object may have it (`bytes_max`, or what its kind may have); raises Corrupt."""
    most = largest(key) if bytes_max is None else bytes_max
    if size > most:
        raise Corrupt(
            f"an object of the store is larger than it can be bytes={size} max={most}",
            path=key,
            hint="another program wrote it; nothing of it was read"
            if bytes_max is None
            else "see store.read_bytes_max",
        )
    return size
