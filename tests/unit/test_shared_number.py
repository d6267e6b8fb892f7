"""A number that one process raises and others read: as it is now, after its maker was killed, and nothing else."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.journal.shared_number import SharedNumber

pytestmark = pytest.mark.unit

MAKER = """
import socket, sys
from holdfast.journal.shared_number import SharedNumber
number = SharedNumber.create(7, 1)
sock = socket.socket(fileno=int(sys.argv[1]))
socket.send_fds(sock, [b"it"], [number.descriptor])
for line in sys.stdin:
    number.raise_to(int(line))
    print("raised", flush=True)
"""


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_another_process_reads_what_was_raised_before_it_was_announced_and_after_its_maker_was_killed() -> None:
    ours, theirs = socket.socketpair()
    before = open_descriptors()
    maker = subprocess.Popen(
        [sys.executable, "-c", MAKER, str(theirs.fileno())],
        pass_fds=[theirs.fileno()],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert maker.stdin is not None
    assert maker.stdout is not None
    _, descriptors, _, _ = socket.recv_fds(ours, 10, 1)
    number = SharedNumber.received(descriptors[0])
    assert number is not None
    assert (number.of, number.value) == (7, 1)
    for value in (2, 255, 256, 2**40, 2**62):
        print(value, file=maker.stdin, flush=True)
        assert maker.stdout.readline() == "raised\n"
        assert number.value == value
    maker.send_signal(signal.SIGKILL)
    maker.wait()
    assert (number.of, number.value) == (7, 2**62)
    with pytest.raises(TypeError):
        number.raise_to(1)  # it is another's
    maker.stdin.close()
    maker.stdout.close()
    del number
    assert open_descriptors() == before
    ours.close()
    theirs.close()


def _file(path: Path) -> int:
    path.write_bytes(bytes(16))
    return os.open(path, os.O_RDONLY)


def _memory(size: int) -> int:
    descriptor = os.memfd_create("x", os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, size)
    return descriptor


OTHERS: dict[str, Callable[[Path], int]] = {
    "a file": lambda place: _file(place / "file"),
    "memory that can be taken away": lambda place: _memory(16),
    "empty memory": lambda place: _memory(0),
    "a directory": lambda place: os.open(place, os.O_RDONLY),
    "a pipe": lambda place: os.pipe2(os.O_CLOEXEC)[1],
}


@pytest.mark.parametrize("kind", OTHERS)
def test_what_is_no_such_number_is_not_read_and_is_closed(kind: str, tmp_path: Path) -> None:
    descriptor = OTHERS[kind](tmp_path)
    assert SharedNumber.received(descriptor) is None
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)


def test_memory_that_is_handed_out_cannot_be_taken_away() -> None:
    number = SharedNumber.create(1, 5)
    assert number is not None
    with pytest.raises(PermissionError):
        os.ftruncate(number.descriptor, 0)
    assert number.value == 5


def test_a_system_without_such_memory_has_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "memfd_create")
    assert SharedNumber.create(1, 1) is None
