"""One connection at the owner's side: bytes in, frames out of them; frames in, bytes out. Never blocks.

It reads into a buffer of its own, and a frame that is larger than that gets memory of its own once its header has been
checked. What cannot be sent at once waits here, bounded: a client that does not read is disconnected.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import suppress

from holdfast.journal.shared_number import SharedNumber
from holdfast.owner.peer import Peer
from holdfast.owner.wire import (
    BEFORE_HELLO,
    BEFORE_PROOF,
    CHALLENGE,
    HEADER,
    BadFrame,
    Challenge,
    Header,
    Hello,
    Limits,
    frame,
    header,
)
from holdfast.sharing.unsent import Unsent

_BUFFER_BYTES = 64 * 1024
_UNSENT_BYTES_MAX = 64 * 2**20

Handle = Callable[["ClientConnection", Header, memoryview, memoryview, bool], None]


class ClientConnection:
    """One client, as the host's thread sees it: all of it is that thread's, but for `calls`, which `CallRunner` guards.

    `caller` is set once; others look at it.
    """

    def __init__(self, sock: socket.socket, number: int) -> None:
        self.sock = sock
        self.number = number
        self.limits: Limits = BEFORE_HELLO
        self.caller: Peer | None = None
        self.hello: Hello | None = None
        """What it said, while it has to prove that it has the log's keys …"""
        self.challenge = b""
        """… bound to these bytes."""
        self.since = 0.0
        """When it came; then, when the frame began that is not here yet."""
        self.is_open = True
        self.is_paused = False
        """Nothing more is read from it until what it sent last could be taken."""
        self.watched = 0
        """What the host waits for, as its selector has it."""
        self.calls = 0
        """Calls of it that are not answered yet."""
        self._buffer = bytearray(_BUFFER_BYTES)
        self._view = memoryview(self._buffer)
        self._begin = self._end = 0
        self._large: memoryview | None = None
        self._large_header: Header | None = None
        self._large_end = 0
        self._unsent = Unsent()

    # -- in -----------------------------------------------------------------------------------------------

    def receive(self) -> bool:
        """Take what is there; False when the other end is gone."""
        try:
            if self._large is not None:
                count = self.sock.recv_into(self._large[self._large_end :])
                self._large_end += count
            else:
                if self._end == len(self._buffer):
                    self._compact()
                count = self.sock.recv_into(self._view[self._end :])
                self._end += count
        except (BlockingIOError, InterruptedError):
            return True
        except OSError:
            return False
        return count > 0

    def work(self, handle: Handle, may_hold: Callable[[int], bool]) -> None:
        """Have each whole frame that is here handled; `may_hold` is asked before a large one gets memory of its own."""
        while self.is_open and not self.is_paused:
            if self._large is not None:
                if self._large_end < len(self._large):
                    return
                self._handle_large(handle)
                continue
            here = self._end - self._begin
            if here < HEADER.size:
                break
            found = header(self._buffer, self._begin, self.limits)
            if here >= found.size:
                at = self._begin + HEADER.size
                self._begin += found.size
                middle = at + found.head
                handle(self, found, self._view[at:middle], self._view[middle : middle + found.body], False)
                continue
            if found.size > len(self._buffer):
                if not may_hold(found.size):
                    raise BadFrame("too much is on its way from all clients together")
                self._begin_large(found)
                continue
            break
        if self._begin == self._end:
            self._begin = self._end = 0

    @property
    def holds(self) -> int:
        """Bytes of memory for a frame that is on its way."""
        return 0 if self._large is None else len(self._large)

    @property
    def has_begun(self) -> bool:
        """Whether a part of a frame is here."""
        return self._large is not None or self._begin != self._end

    def _compact(self) -> None:
        here = self._end - self._begin
        self._view[:here] = bytes(self._view[self._begin : self._end])
        self._begin, self._end = 0, here

    def _begin_large(self, found: Header) -> None:
        here = self._end - self._begin
        self._large = memoryview(bytearray(found.size))
        self._large[:here] = self._view[self._begin : self._end]
        self._large_header, self._large_end = found, here
        self._begin = self._end = 0

    def _handle_large(self, handle: Handle) -> None:
        large, found = self._large, self._large_header
        assert large is not None
        assert found is not None
        self._large = self._large_header = None
        middle = HEADER.size + found.head
        handle(self, found, large[HEADER.size : middle], large[middle:], True)

    # -- out ----------------------------------------------------------------------------------------------

    def send(self, buffers: list[bytes | memoryview]) -> None:
        """Have these sent, in order; by the host's thread."""
        self._unsent.add(buffers)

    def ask_for_proof(self, hello: Hello, challenge: Challenge) -> bool:
        """Let nothing in but the proof that this challenge asks for; False when the other end is gone."""
        self.hello, self.challenge, self.limits = hello, challenge.nonce, BEFORE_PROOF
        self.send(frame(CHALLENGE, challenge))
        return self.flush()

    def welcome(self, buffers: list[bytes | memoryview], number: SharedNumber | None) -> bool:
        """Send the first frame, and with it the number that both ends read from now on; False as `flush`."""
        self.send(buffers)
        if number is not None:
            try:
                self._unsent.sent(socket.send_fds(self.sock, buffers, [number.descriptor]))
            except OSError:  # nothing waits before the first frame: there is room, or nobody to read it
                return False
        return self.flush()

    @property
    def has_unsent(self) -> bool:
        """Whether something waits to be sent."""
        return bool(self._unsent)

    def flush(self) -> bool:
        """Send what can be sent now; False when the other end is gone, or does not read."""
        try:
            return self._unsent.flush(self.sock) or self._unsent.size <= _UNSENT_BYTES_MAX
        except OSError:
            return False

    def close(self) -> None:
        """End it."""
        self.is_open = False
        with suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)
        self.sock.close()
        if self.caller is not None:
            self.caller.end()
