"""Frames out of a socket, and into one, at a client's side."""

from __future__ import annotations

import socket

import msgspec

from holdfast.journal.shared_number import SharedNumber
from holdfast.owner.wire import BEFORE_WELCOME, HEADER, BadFrame, Limits, decoded, header

_BUFFER_BYTES = 64 * 1024
_BUFFERS_AT_ONCE = 512


class FrameReader:
    """Frames out of a socket: filled by one call for each that it has something, then taken one by one.

    By one thread at a time.
    """

    def __init__(self, sock: socket.socket | None, limits: Limits) -> None:
        self._sock = sock
        self._limits = limits
        self._buffer = bytearray(_BUFFER_BYTES)
        self._view = memoryview(self._buffer)
        self._begin = self._end = 0

    def fill(self, flags: int = 0) -> bool:
        """Take what the socket has, waiting for the first of it (but see `flags`); False when it has ended."""
        assert self._sock is not None
        if self._begin == self._end:
            self._begin = self._end = 0
        elif self._end == len(self._buffer):
            self._make_room()
        count = self._sock.recv_into(self._view[self._end :], 0, flags)
        self._end += count
        return count > 0

    def fill_with_descriptors(self) -> list[int] | None:
        """The same before the first frame, and what is handed over with it, at most one; None when it has ended."""
        assert self._sock is not None
        room, flags = len(self._buffer) - self._end, getattr(socket, "MSG_CMSG_CLOEXEC", 0)
        data, descriptors, _, _ = socket.recv_fds(self._sock, room, 1, flags)
        self._view[self._end : self._end + len(data)] = data
        self._end += len(data)
        return descriptors if data else None

    def next(self) -> tuple[int, memoryview, memoryview] | None:
        """The next frame; None when it is not here as a whole. It is valid until the next `fill`."""
        here = self._end - self._begin
        if here < HEADER.size:
            return None
        found = header(self._buffer, self._begin, self._limits)
        if here < found.size:
            if self._begin + found.size > len(self._buffer):
                self._make_room(found.size)
            return None
        at = self._begin + HEADER.size
        middle = at + found.head
        self._begin += found.size
        return found.kind, self._view[at:middle], self._view[middle : middle + found.body]

    def _make_room(self, size: int = 0) -> None:
        here = bytes(self._view[self._begin : self._end])
        if size > len(self._buffer):
            self._buffer = bytearray(size)
            self._view = memoryview(self._buffer)
        self._view[: len(here)] = here
        self._begin, self._end = 0, len(here)


def receive_one(sock: socket.socket) -> tuple[int, msgspec.Struct, SharedNumber | None]:
    """The owner's first frame, waiting for it, and the number that came with it; raises BadFrame."""
    frames, number = FrameReader(sock, BEFORE_WELCOME), None
    while (found := frames.next()) is None:
        descriptors = frames.fill_with_descriptors()
        if descriptors is None:
            raise BadFrame("the owner hung up")
        for descriptor in descriptors:
            number = SharedNumber.received(descriptor)
    return found[0], decoded(found[0], found[1]), number


def send(sock: socket.socket, buffers: list[bytes | memoryview]) -> None:
    """Send all of these, however long it takes."""
    at = 0
    while at < len(buffers):
        some = buffers[at : at + _BUFFERS_AT_ONCE]
        sent = sock.sendmsg(some)
        whole = sum(map(len, some))
        if sent == whole:
            at += len(some)
            continue
        while sent >= len(buffers[at]):
            sent -= len(buffers[at])
            at += 1
        if sent:
            buffers[at] = memoryview(buffers[at])[sent:]
