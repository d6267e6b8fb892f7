"""The bytes of a new object, proven while they are read: what a file gives must be what its hash was made of.

A sealed segment is uploaded long after it was written. If its file was damaged, cut or replaced meanwhile, nothing of
it may be stored under a name that promises the hash. Bytes in memory cannot change.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256

from holdfast.store.port import Body, StoreUnavailable


def proven_chunks(body: Body) -> Iterator[bytes | memoryview]:
    """The bytes, piece by piece; raises after the last one when they were not those that the body names."""
    if body.path is None:
        yield from body.chunks()
        return
    digest, size = sha256(), 0
    try:
        for chunk in body.chunks():
            digest.update(chunk)
            size += len(chunk)
            if size > body.size:
                break
            yield chunk
    except OSError as error:
        raise StoreUnavailable(f"cannot read the file to be stored path={body.path}", cause="disk") from error
    if size != body.size or digest.digest() != body.sha256:
        raise StoreUnavailable(
            f"the file is not what its hash says, and is not stored path={body.path}",
            cause="bad_digest",
            hint="check the log's own copy: holdfast inspect",
        )


def proven_bytes(body: Body) -> bytes:
    """All of it; raises instead when it is not what the body names."""
    return body.data if body.data is not None else b"".join(proven_chunks(body))
