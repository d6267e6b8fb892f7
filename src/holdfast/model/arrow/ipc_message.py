"""Single messages of Arrow's IPC format, as schemas and rows are kept: the whole of the bytes is one message.

Arrow reads a message from the front of some bytes and does not mind what follows; here anything that follows is refused
(ValueError). Arrow also does not expose whether a message is compressed, so that is read from its metadata: a
flatbuffer, the layout of which is fixed by Arrow's format (Message.fbs). Pure; the content of the message is not
checked.
"""

from __future__ import annotations

import struct

import pyarrow as pa

_PREFIX_BYTES = 8
"""A marker and the length of the metadata."""
_MESSAGE_HEADER = 2
_BATCH_COMPRESSION = 3
"""Places of fields in the tables Message and RecordBatch."""


def read_alone(data: bytes | memoryview, kind: str) -> pa.Message:
    """The message that the bytes are; raises ValueError or Arrow's exceptions for anything else."""
    message = pa.ipc.read_message(pa.py_buffer(data))
    if message.type != kind or length(message) != len(data):
        raise ValueError(f"not a {kind} alone")
    return message


def length(message: pa.Message) -> int:
    """How many bytes a message takes."""
    return _PREFIX_BYTES + int(message.metadata.size) + (0 if message.body is None else int(message.body.size))


def is_compressed(message: pa.Message) -> bool:
    """Whether the buffers of a record batch are compressed."""
    metadata = message.metadata.to_pybytes()
    header = _field(metadata, _follow(metadata, 0), _MESSAGE_HEADER)
    if header is None:
        raise ValueError("a message without a header")
    return _field(metadata, _follow(metadata, header), _BATCH_COMPRESSION) is not None


def _follow(metadata: bytes, at: int) -> int:
    (distance,) = struct.unpack_from("<I", metadata, at)
    return at + int(distance)


def _field(metadata: bytes, table: int, place: int) -> int | None:
    """Where a table's field lies, None when it is left out. A table starts with the way back to its list of places."""
    (back,) = struct.unpack_from("<i", metadata, table)
    places = table - back
    (size,) = struct.unpack_from("<H", metadata, places)
    entry = 4 + 2 * place
    if entry + 2 > size:
        return None
    (distance,) = struct.unpack_from("<H", metadata, places + entry)
    return table + int(distance) if distance else None
