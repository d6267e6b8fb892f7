"""The child process that encodes segments, as the roller sees it (`segments.seal_in = "process"`).

Encoding Parquet takes a processor for a while, and in a thread it takes the interpreter's lock as well, for which
appends then wait. So a child encodes; everything that makes a segment part of the log stays with the roller: which
entries, the file and its sync, its name, the commit. The child gets entries as they are stored, and the open file.

It is started when it is first worth it, kept while the log is open, and ends when this end of the socket is closed,
however this process ends. Nothing secret is in its arguments or its environment; keys go over the socket, which is
anonymous, and master keys go nowhere. It inherits no other descriptor.

A child that dies, hangs or talks nonsense costs an attempt: it is killed, the roller seals in its own thread, and
another child is tried after a pause that grows to a minute. Where no child can be (the user's own cipher, an
interpreter that is none), the roller's thread seals, which is said once in the logs and always in the stats.
"""

from __future__ import annotations

import logging
import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import msgspec

from holdfast import __version__
from holdfast.clock import Clock
from holdfast.journal.entry_reader import Reader
from holdfast.model.entry import Entry
from holdfast.model.segment import SegmentFacts
from holdfast.segments.segment_stats import Counters

if TYPE_CHECKING:
    from holdfast.crypto.segment_key import SegmentKey
    from holdfast.disk import NewFile
    from holdfast.segments.sealing.seal_frames import Begin, Channel

logger = logging.getLogger("holdfast.segments")

START_BYTES_MIN = 2**20
"""Less is sealed in the thread as long as there is no child: starting one costs half a second of a processor."""
_WAIT_S = 0.1
_START_S, _STALL_S, _END_S = 30.0, 60.0, 1.0
_RETRY_S, _RETRY_MAX_S = 1.0, 60.0
_MODULE = "holdfast.segments.sealing.seal_child"
_PYTHON = re.compile(r"(python|pypy)[0-9.]*[a-z]*\Z", re.IGNORECASE)
_ENVIRONMENT = re.compile(r"(PATH|LANG|LC_\w+|TZ|TZDIR|LD_LIBRARY_PATH|DYLD_\w+|PYTHONHOME|ARROW_\w+)\Z")
"""What the child gets of the environment: what it takes to run. The rest may hold secrets."""


class Entries(Protocol):
    """What goes into one segment, and how many records of it were taken so far."""

    rows: int

    def __iter__(self) -> Iterator[Entry]: ...
    def __next__(self) -> Entry: ...


class SealProcess:
    """The child of one log; used by the roller's thread, and killed by whoever closes the log."""

    def __init__(self, clock: Clock, counters: Counters, on_wait: Callable[[], None]) -> None:
        self._clock = clock
        self._counters = counters
        self._on_wait = on_wait
        self._child: subprocess.Popen[bytes] | None = None
        self._channel: Channel | None = None
        self._moved = 0.0
        """When the conversation got on last."""
        self._patience = _STALL_S
        self._is_tidy = True
        """Whether the next frame would be understood: none is half sent, and no answer is on its way."""
        self._resume, self._pause = 0.0, 0.0
        self._refused: set[str] = set()
        self._dying: list[subprocess.Popen[bytes]] = []

    @property
    def pid(self) -> int | None:
        """Of the child that is there."""
        return None if self._child is None else self._child.pid

    def takes(self, size: int, key: SegmentKey | None) -> bool:
        """Whether a segment of about this size goes to the child; starts one if that is worth it."""
        if key is not None and key.subkeys() is None:
            self._refuse("the log has a cipher of your own, which stays in this process")
            return False
        if self._channel is not None:
            return True
        if size < START_BYTES_MIN or self._clock.monotonic() < self._resume:
            return False
        return self._start()

    def write(
        self, begin: Begin, file: NewFile, entries: Entries, reader: Reader, rest: Callable[[], None]
    ) -> SegmentFacts | None:
        """Have the child write the file; None if it failed. What the disk told the child is raised: OSError.

        `rest` is called between pieces of work. When this returns the file is complete and not yet durable.
        """
        from holdfast.segments.sealing import seal_frames as frames

        self._begin_waiting(_STALL_S)
        try:
            self._send(frames.BEGIN, msgspec.msgpack.encode(begin), descriptor=file.fileno())
            self._send_entries(entries, reader, rest)
            self._send(frames.END)
            facts = self._answer()
            if facts is not None and (facts.rows, facts.size) != (entries.rows, os.fstat(file.fileno()).st_size):
                raise frames.Broken("it wrote another file than it says")
        except (frames.Broken, msgspec.MsgspecError) as problem:
            self._failed(str(problem))
            return None
        except BaseException:
            self._abandon()
            raise
        if facts is not None:
            self._pause = 0.0
            self._counters.seals_in_process += 1
        return facts

    def stop(self) -> None:
        """End the child, and wait for its end for a moment."""
        self._drop()
        for child in self._dying:
            _wait(child, _END_S)
        self._dying = [child for child in self._dying if child.poll() is None]

    def kill(self) -> None:
        """End the child now, from any thread: whoever waits for it is told that it is gone."""
        if (child := self._child) is not None:
            child.kill()

    def forget(self) -> None:
        """In a forked child: close our copy of the socket, or the parent's child would outlive the parent."""
        if self._channel is not None:
            self._channel.close()

    # -- the conversation ---------------------------------------------------------------------------------

    def _send_entries(self, entries: Iterator[Entry], reader: Reader, rest: Callable[[], None]) -> None:
        from holdfast.segments.sealing import seal_frames as frames

        known = {0}
        for piece in _pieces(entries):
            for number in {entry.key_epoch for entry in piece} - known:
                known.add(number)
                self._send(frames.KEY, msgspec.msgpack.encode((number, reader.subkeys(number))))
            self._send(frames.ENTRIES, *frames.entries_parts(piece))
            self._on_wait()
            rest()
            self._moved = self._clock.monotonic()

    def _send(self, kind: int, *parts: bytes, descriptor: int | None = None) -> None:
        assert self._channel is not None
        self._is_tidy = False
        self._channel.send(kind, *parts, descriptor=descriptor)
        self._is_tidy = True
        self._moved = self._clock.monotonic()

    def _answer(self) -> SegmentFacts | None:
        from holdfast.segments.sealing import seal_frames as frames

        assert self._channel is not None
        self._is_tidy = False
        frame = self._channel.receive(lambda _: frames.ANSWER_BYTES_MAX)
        self._is_tidy = True
        if frame.kind == frames.DONE:
            return msgspec.msgpack.decode(frame.content, type=SegmentFacts)
        if frame.kind != frames.FAILED:
            raise frames.Broken(f"an answer of an unknown kind={frame.kind}")
        failed = msgspec.msgpack.decode(frame.content, type=frames.Failed)
        if failed.errno:
            raise OSError(failed.errno, os.strerror(failed.errno))
        self._counters.process_failures += 1
        logger.warning("the sealing process refused: %s", failed.message, extra={"action": "seal_process_refused"})
        return None

    def _abandon(self) -> None:
        """Something else went wrong in the middle: the child forgets this segment, or ends."""
        from holdfast.segments.sealing import seal_frames as frames

        try:
            if self._is_tidy:
                self._send(frames.ABANDON)
        finally:
            if not self._is_tidy:
                self._drop()

    def _begin_waiting(self, patience: float) -> None:
        self._moved, self._patience = self._clock.monotonic(), patience

    def _look(self) -> None:
        """Nothing moves at the moment: go on waiting, or give up."""
        from holdfast.segments.sealing.seal_frames import Broken

        self._on_wait()
        if self._clock.monotonic() - self._moved > self._patience:
            raise Broken(f"nothing moved for {self._patience:g} s")

    # -- the child ----------------------------------------------------------------------------------------

    def _refuse(self, reason: str) -> None:
        """Something cannot be sealed in the child; said once."""
        if reason not in self._refused:
            self._refused.add(reason)
            logger.warning(
                "sealing in the thread, not in a process: %s",
                reason,
                extra={"action": "seal_process_unavailable", "reason": reason},
            )

    def _start(self) -> bool:
        reason = unable()
        if reason is not None:
            self._refuse(reason)
            self._resume = float("inf")
            return False
        from holdfast.segments.sealing import seal_frames as frames

        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self._channel = frames.Channel(ours, _WAIT_S, self._look)
        self._begin_waiting(_START_S)
        try:
            with theirs:
                self._child = _spawn(theirs.fileno())
            frame = self._channel.receive(lambda _: frames.ANSWER_BYTES_MAX)
            if (frame.kind, bytes(frame.content)) != (frames.READY, __version__.encode()):
                raise frames.Broken("it is another version")
        except (frames.Broken, OSError, RuntimeError) as problem:  # RuntimeError: the interpreter is about to end
            self._failed(f"it did not start: {problem}")
            return False
        except BaseException:
            self._drop()
            raise
        logger.info("a process seals", extra={"action": "seal_process_started", "pid": self._child.pid})
        return True

    def _failed(self, reason: str) -> None:
        """The child is of no use any more."""
        status = self._drop()
        self._pause = min(_RETRY_MAX_S, self._pause * 2 or _RETRY_S)
        self._resume = self._clock.monotonic() + self._pause
        self._counters.process_failures += 1
        logger.warning(
            "the sealing process failed: %s",
            reason,
            extra={"action": "seal_process_failed", "status": status, "retry_s": self._pause},
        )

    def _drop(self) -> int | None:
        """Hang up, and see to it that the child ends."""
        channel, self._channel = self._channel, None
        child, self._child = self._child, None
        if channel is not None:
            channel.close()
        if child is None:
            return None
        child.kill()  # it holds nothing that is not given up by now
        _wait(child, _END_S)
        if child.poll() is None:  # as one that waits for a disk does
            self._dying.append(child)
        return child.returncode


def unable() -> str | None:
    """Why no child can be started here; None if one can."""
    if getattr(sys, "frozen", False) or not sys.executable or not _PYTHON.match(Path(sys.executable).stem):
        return f"sys.executable is not a Python interpreter: {sys.executable or 'unknown'}"
    return None


def _spawn(descriptor: int) -> subprocess.Popen[bytes]:
    # The names that this interpreter finds, in its own order; without -P the child would look in its folder first.
    path = [entry or os.getcwd() for entry in sys.path]
    environment = {name: value for name, value in os.environ.items() if _ENVIRONMENT.match(name)}
    environment["PYTHONPATH"] = os.pathsep.join(entry for entry in path if os.pathsep not in entry)
    return subprocess.Popen(  # noqa: S603  # our own interpreter and our own module
        [sys.executable, "-P", "-m", _MODULE, str(descriptor), str(os.getpid())],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        pass_fds=(descriptor,),
        env=environment,
        process_group=0,
    )


def _wait(child: subprocess.Popen[bytes], timeout: float) -> None:
    try:
        child.wait(timeout)
    except subprocess.TimeoutExpired:
        pass


def _pieces(entries: Iterator[Entry]) -> Iterator[list[Entry]]:
    """Entries in pieces that are worth a frame; an error comes after what was read before it."""
    from holdfast.segments.sealing.seal_frames import FRAME_BYTES, FRAME_ENTRIES

    piece: list[Entry] = []
    size = 0
    for entry in entries:
        piece.append(entry)
        size += len(entry.body)
        if size >= FRAME_BYTES or len(piece) == FRAME_ENTRIES:
            yield piece
            piece, size = [], 0
    if piece:
        yield piece
