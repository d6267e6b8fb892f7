"""What the roller and its child process say to each other: frames over a socket that nobody else has.

    parent:  begin (with the open file) · key · entries … · end, or abandon
    child:   ready, once · done or failed, after each end

A frame is its kind (1 byte), its length (8 bytes, little endian) and its content; a longer one than its kind may have
ends the conversation. Nothing here is stored, and both sides are of one version, which `ready` proves: so there is no
format to keep.

Waiting is bounded: a channel that has waited for a while asks its owner whether to go on.
"""

from __future__ import annotations

import array
import socket
import struct
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec

from holdfast.crypto.cipher import Subkeys
from holdfast.crypto.segment_key import EncryptedWith
from holdfast.model.entry import Entry
from holdfast.model.segment import SegmentHead
from holdfast.segments.file.file_shape import FileShape

READY, BEGIN, KEY, ENTRIES, END, ABANDON, DONE, FAILED = range(1, 9)
CONTROL_BYTES_MAX = 32 * 2**20
"""Of every frame but entries: a schema has up to 16 MiB."""
ANSWER_BYTES_MAX = 64 * 2**10
FRAME_BYTES, FRAME_ENTRIES = 2**20, 1024
"""When a frame with entries is full."""
FRAME_OVERHEAD_BYTES = FRAME_BYTES + FRAME_ENTRIES * 256
"""What it may have beside its largest entry: others before that, and what is said about each."""
_HEAD = struct.Struct("<BQ")
_LENGTH = struct.Struct("<I")
_BODY = Entry._fields.index("body")


class Broken(Exception):
    """The other side is gone, or does not speak this protocol."""


class Frame(NamedTuple):
    """One frame, as it was received."""

    kind: int
    content: bytearray
    descriptor: int | None = None


class Begin(msgspec.Struct, frozen=True, array_like=True):
    """One segment to be written."""

    head: SegmentHead
    columns: bytes
    """The stored schema of typed entries, serialized; empty for raw ones."""
    shape: FileShape
    key_column: str | None
    keyed: bool
    """Whether entries are encrypted: then one that is not was put there."""
    encrypted_with: EncryptedWith | None
    subkeys: Subkeys | None
    """Of this one file; the keys of entries follow, by key epoch."""
    frame_bytes_max: int
    """Of a frame with entries."""


class Failed(msgspec.Struct, frozen=True, array_like=True):
    """Why the child could not write a segment."""

    errno: int
    """Of an operating system's error; 0 for any other."""
    message: str


class Channel:
    """One end of the socket. `on_wait` is called while nothing moves; it raises to give up."""

    def __init__(self, end: socket.socket, wait_s: float, on_wait: Callable[[], None]) -> None:
        self._socket = end
        self._on_wait = on_wait
        end.settimeout(wait_s)

    def send(self, kind: int, *parts: bytes | memoryview, descriptor: int | None = None) -> None:
        """Send one frame, and lend an open file with it; returns when the system has taken all of it."""
        views = [memoryview(part) for part in parts]
        views.insert(0, memoryview(_HEAD.pack(kind, sum(view.nbytes for view in views))))
        ancillary = [] if descriptor is None else [_rights(descriptor)]
        while views:
            sent = self._waiting(self._socket.sendmsg, views, ancillary)
            ancillary = []
            while views and sent >= views[0].nbytes:
                sent -= views.pop(0).nbytes
            if sent:
                views[0] = views[0][sent:]

    def receive(self, bytes_max: Callable[[int], int]) -> Frame:
        """The next frame; `bytes_max` says how long one of a kind may be. Raises Broken, also at the end."""
        head, descriptor = self._head()
        kind, size = _HEAD.unpack(head)
        if size > bytes_max(kind):
            raise Broken(f"a frame is too long kind={kind} bytes={size}")
        content = bytearray(size)
        rest = memoryview(content)
        while rest:
            rest = rest[self._some(self._waiting(self._socket.recv_into, rest)) :]
        return Frame(kind, content, descriptor)

    def close(self) -> None:
        """Hang up."""
        self._socket.close()

    def _head(self) -> tuple[bytes, int | None]:
        head, descriptor = b"", None
        while len(head) < _HEAD.size:
            part, ancillary, _, _ = self._waiting(
                self._socket.recvmsg, _HEAD.size - len(head), socket.CMSG_SPACE(_DESCRIPTOR_BYTES)
            )
            self._some(len(part))
            head += part
            for _, kind, content in ancillary:
                if kind == socket.SCM_RIGHTS:
                    descriptor = array.array("i", content[:_DESCRIPTOR_BYTES])[0]
        return head, descriptor

    @staticmethod
    def _some(count: int) -> int:
        if not count:
            raise Broken("the other side has hung up")
        return count

    def _waiting(self, call: Callable[..., Any], *args: Any) -> Any:
        while True:
            try:
                return call(*args)
            except TimeoutError:
                self._on_wait()
            except OSError as error:
                raise Broken(f"the other side has hung up: {error.strerror}") from None


_DESCRIPTOR_BYTES = array.array("i").itemsize


def _rights(descriptor: int) -> tuple[int, int, array.array[int]]:
    return socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [descriptor])


def entries_parts(entries: Sequence[Entry]) -> tuple[bytes, bytes, bytes]:
    """Entries as the content of a frame: lengths and bodies apart, so that bodies are copied once at most."""
    about = msgspec.msgpack.encode([(*entry[:_BODY], len(entry.body), entry.schema) for entry in entries])
    bodies = entries[0].body if len(entries) == 1 else b"".join([entry.body for entry in entries])
    return _LENGTH.pack(len(about)), about, bodies


def entries_of(content: bytearray) -> list[Entry]:
    """The entries of such a frame."""
    (size,) = _LENGTH.unpack_from(content)
    at = _LENGTH.size + size
    view = memoryview(content)
    entries = []
    for row in msgspec.msgpack.decode(view[_LENGTH.size : at], type=list[tuple[Any, ...]]):
        length = row[_BODY]
        entries.append(Entry._make((*row[:_BODY], bytes(view[at : at + length]), *row[_BODY + 1 :])))
        at += length
    return entries
