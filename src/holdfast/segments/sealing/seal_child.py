"""What runs in the child process: entries in, a segment file out, one after the other (`python -m` this module).

It proves and decrypts what it is handed, as a reader of the journal does, and writes the file with the very code that
seals in the roller's thread: the bytes are the same. It opens nothing. The parent lends it the open file, syncs it,
gives it its name and commits; a child that dies in the middle leaves a temporary file of the parent's and nothing else.

It has no master key, and what keys it has came over the socket: the file's own, and of the entries' key epochs what
decrypts and no more. It ends when its parent hangs up or is gone. Ctrl-C is the parent's to answer.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import closing

import msgspec
import pyarrow as pa

from holdfast import __version__
from holdfast.crypto.cipher import AesGcmCipher, NotAuthentic, Subkeys, decrypting_cipher
from holdfast.crypto.segment_key import SegmentKey
from holdfast.crypto.vault import PLAIN
from holdfast.journal.entry_reader import BadEntry, proved_body
from holdfast.model.entry import Entry, Place
from holdfast.model.segment import SegmentFacts
from holdfast.segments.file.segment_writer import SegmentWriter
from holdfast.segments.manifest.entry_batches import stored_batches
from holdfast.segments.sealing import seal_frames as frames
from holdfast.segments.sealing.read_ahead import read_ahead
from holdfast.segments.sealing.seal_frames import Begin, Broken, Channel, Failed

_BATCHES_AHEAD = 4
_NICE = 10
"""Appends go first, where cores are few. Nobody waits for a lock of ours; in the roller's thread somebody would."""
_LOOK_S = 5.0
"""How often to look whether the parent is there, should somebody else hold its end of the socket."""


class _Abandoned(Exception):
    """The parent has given this segment up."""


class LentFile:
    """An open file of the parent's, which makes it durable itself."""

    def __init__(self, descriptor: int) -> None:
        self.size = 0
        self._descriptor = descriptor

    def write(self, content: bytes | memoryview) -> None:
        """Append bytes."""
        rest = memoryview(content)
        while rest:
            rest = rest[os.write(self._descriptor, rest) :]
        self.size += len(content)

    def finish(self) -> None:
        """All is written."""
        self.close()

    def close(self) -> None:
        """Let go of our copy; closing again does nothing."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


class _Incoming:
    """The entries of one segment as they arrive, and what opens them."""

    def __init__(self, channel: Channel, begin: Begin) -> None:
        self._channel = channel
        self._begin = begin
        self._place = Place(begin.head.log_id, begin.head.topic, begin.head.partition)
        self._ciphers: dict[int, AesGcmCipher] = {}
        self._ended = False

    def entries(self) -> Iterator[Entry]:
        """Until the end; raises _Abandoned."""
        while not self._ended:
            frame = self._channel.receive(self._bytes_max)
            if frame.kind == frames.ENTRIES:
                yield from frames.entries_of(frame.content)
            elif frame.kind == frames.KEY:
                number, subkeys = msgspec.msgpack.decode(frame.content, type=tuple[int, Subkeys])
                self._ciphers[number] = decrypting_cipher(subkeys.scheme, subkeys)
            elif frame.kind == frames.END:
                self._ended = True
            elif frame.kind == frames.ABANDON:
                self._ended = True
                raise _Abandoned
            else:
                raise Broken(f"a frame that does not belong here kind={frame.kind}")

    def drain(self) -> None:
        """Take what is still to come, after a failure: the parent looks for an answer behind the end only."""
        for _ in self.entries():
            pass

    def body(self, entry: Entry) -> bytes:
        """The body of an entry, proved and opened."""
        return proved_body(self._place, entry, self._decrypt)

    def malformed(self, entry: Entry, reason: object) -> Exception:
        """What is raised if a body is not what its header says."""
        return BadEntry(f"an entry's body is malformed: {reason} offset={entry.first}")

    def _decrypt(self, key_epoch: int, body: bytes, associated: bytes) -> bytes:
        if (key_epoch == PLAIN) == self._begin.keyed:
            raise NotAuthentic
        return body if key_epoch == PLAIN else self._ciphers[key_epoch].decrypt(body, associated)

    def _bytes_max(self, kind: int) -> int:
        return self._begin.frame_bytes_max if kind == frames.ENTRIES else frames.CONTROL_BYTES_MAX


def _write(begin: Begin, descriptor: int, incoming: _Incoming) -> SegmentFacts:
    columns = pa.ipc.read_schema(pa.py_buffer(begin.columns)) if begin.columns else None
    key = None
    if begin.encrypted_with is not None and begin.subkeys is not None:
        key = SegmentKey.of_subkeys(begin.encrypted_with, begin.subkeys)
    schema, batches = stored_batches(columns, incoming, incoming.entries())
    with (
        closing(LentFile(descriptor)) as file,
        SegmentWriter(file, begin.head, schema, begin.shape, key, key_column=begin.key_column) as writer,
        closing(read_ahead(batches, _BATCHES_AHEAD)) as ahead,
    ):
        for batch in ahead:
            writer.write(batch)
        return writer.finish()


def _answer(begin: Begin, descriptor: int, incoming: _Incoming) -> SegmentFacts | Failed:
    try:
        return _write(begin, descriptor, incoming)
    except (_Abandoned, Broken):
        raise
    except Exception as error:  # the parent tries again by itself, and finds the same or does better
        failed = Failed((isinstance(error, OSError) and error.errno) or 0, f"{type(error).__name__}: {error}"[:1000])
        incoming.drain()
        return failed


def serve(channel: Channel) -> None:
    """Write segments until the parent hangs up."""
    channel.send(frames.READY, __version__.encode())
    while True:
        frame = channel.receive(lambda _: frames.CONTROL_BYTES_MAX)
        if frame.kind == frames.ABANDON:  # of a segment that is done with
            continue
        if frame.kind != frames.BEGIN or frame.descriptor is None:
            raise Broken(f"a segment was to begin kind={frame.kind}")
        begin = msgspec.msgpack.decode(frame.content, type=Begin)
        try:
            answer = _answer(begin, frame.descriptor, _Incoming(channel, begin))
        except _Abandoned:
            continue
        channel.send(frames.FAILED if isinstance(answer, Failed) else frames.DONE, msgspec.msgpack.encode(answer))


def main() -> None:
    """The whole life of the child."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(_NICE)
    parent = int(sys.argv[2])

    def look() -> None:
        if os.getppid() != parent:
            raise Broken("the parent is gone")

    try:
        serve(Channel(socket.socket(fileno=int(sys.argv[1])), _LOOK_S, look))
    except Broken:
        pass  # as every life of it ends
    finally:
        os._exit(0)  # nothing here is worth a longer goodbye: a helper thread may still wait for the socket


if __name__ == "__main__":
    main()
