"""The end of the interpreter waits for the threads of Arrow that hold a file, and for nothing else."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.unit

CHILD = """
import atexit, threading, time, weakref
from holdfast.segments.file import arrow_file

class File:
    size, is_shut = 3, {is_shut}

    def read_at(self, start, end):
        return memoryview(b"abc")[start:end]

def tell():
    print("held" if held() is not None else "returned")

atexit.register(tell)  # called last
file = File()
lent = arrow_file.lend(file)
if {content}:
    lent = arrow_file.ArrowFile(file).read(2)
    held = weakref.ref(lent)
else:
    held = arrow_file._lent._references[0][0]

def hold(lent):
    time.sleep({seconds})
    lent.clear()

class Reading:
    def __init__(self):
        self.itself = self

    def __del__(self):
        file.is_shut = True

if {is_left}:
    Reading()

threading.Thread(target=hold, args=([lent],), daemon=True).start()
del lent
"""


@pytest.mark.parametrize(
    ("is_shut", "seconds", "said"),
    [
        pytest.param(True, 0.05, "returned", id="a finished file that a thread holds is waited for"),
        pytest.param(False, 60, "held", id="one in use belongs to somebody"),
        pytest.param(True, 60, "held", id="nobody waits forever"),
    ],
)
@pytest.mark.parametrize("content", [False, True], ids=["the file", "bytes of it"])
def test_the_end_waits_until_files_are_returned(is_shut, seconds, said, content):
    assert end_of(CHILD.format(is_shut=is_shut, seconds=seconds, content=content, is_left=False)) == said


def test_a_reading_that_nobody_ended_shuts_its_file_before_the_end():
    """It holds itself, so that only the collector finds it."""
    assert end_of(CHILD.format(is_shut=False, seconds=0.05, content=False, is_left=True)) == "returned"


def end_of(child: str) -> str:
    ended = subprocess.run([sys.executable, "-c", child], capture_output=True, text=True, check=True, timeout=60)
    assert ended.stderr == ""
    return ended.stdout.strip()
