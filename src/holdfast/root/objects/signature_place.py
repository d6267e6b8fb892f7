"""Where an object carries its signature: in a place that no reader of the object trips over.

    documents (.json, .floor, …)   two last fields, "key_id" and "mac": it stays one JSON object on one line
    commit batches (.arrow)        behind the end of the stream, where Arrow has stopped reading
    checkpoints (.parquet)         between the data and the footer, where no Parquet tool looks

Segments are not signed: each has a key of its own and proves itself, and its manifest object, which is signed, names
its hash. Leases come from readers who may have no key. Pure: bytes in, bytes out. docs/formats/0006-store.md.
"""

from __future__ import annotations

import re

from holdfast.crypto.signatures import MAC_BYTES, Signature
from holdfast.store import layout

_MAGIC = b"hfsigned"
_PARQUET, _PARQUET_TAIL_BYTES = b"PAR1", 8
_KEY_ID_BYTES_MAX = 64
_JSON = re.compile(rb',"key_id":"([A-Za-z0-9._-]{0,64})","mac":"([0-9a-f]{64})"\}\n\Z')
BYTES_MAX = 256
"""More than any signature takes."""


_JSON_KINDS = (".json", ".floor", ".adopted")


def is_signed_kind(key: str) -> bool:
    """Whether objects under this key are signed in a log with keys: all but segments and leases."""
    return not key.startswith(layout.LEASES) and not layout.is_segment_key(key)


def attach(key: str, data: bytes, signature: Signature) -> bytes:
    """An object with its signature."""
    if _is_json(key):
        return b'%b,"key_id":"%b","mac":"%b"}\n' % (
            data.removesuffix(b"}\n"),
            signature.key_id.encode(),
            signature.mac.hex().encode(),
        )
    at = _place(key, data)
    return b"".join((data[:at], _block(signature), data[at:]))


def detach(key: str, data: bytes) -> tuple[bytes, Signature | None]:
    """An object without its signature, and the signature; None where there is none, or nothing that looks like one."""
    if _is_json(key):
        found = _JSON.search(data[-BYTES_MAX:])
        if found is None:
            return data, None
        body = data[: len(data) - len(found[0])] + b"}\n"
        return body, Signature(found[1].decode(), bytes.fromhex(found[2].decode()))
    end = _place(key, data)
    start, signature = _read_block(data, end)
    if signature is None:
        return data, None
    return data[:start] + data[end:], signature


def _is_json(key: str) -> bool:
    return key.endswith(_JSON_KINDS)


def _place(key: str, data: bytes) -> int:
    """Where a block stands, or would: behind everything, or before a Parquet footer."""
    if not key.endswith(".parquet") or data[-len(_PARQUET) :] != _PARQUET:
        return len(data)
    footer = int.from_bytes(data[-_PARQUET_TAIL_BYTES : -len(_PARQUET)], "little") + _PARQUET_TAIL_BYTES
    return max(0, len(data) - footer)


def _block(signature: Signature) -> bytes:
    key_id = signature.key_id.encode()
    return b"".join((signature.mac, key_id, bytes((len(key_id),)), _MAGIC))


def _read_block(data: bytes, end: int) -> tuple[int, Signature | None]:
    at = end - len(_MAGIC) - 1
    if at < MAC_BYTES or data[at + 1 : end] != _MAGIC or data[at] > min(_KEY_ID_BYTES_MAX, at - MAC_BYTES):
        return end, None
    start = at - data[at]
    try:
        key_id = data[start:at].decode("ascii")
    except UnicodeDecodeError:
        return end, None
    return start - MAC_BYTES, Signature(key_id, bytes(data[start - MAC_BYTES : start]))
