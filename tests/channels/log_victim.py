"""A process that leads the scripted conversation and tells each operation that is kept, until killed.

    python -m tests.channels.log_victim DIRECTORY

Lines on standard output: the number of operations that are kept. When all are, it waits to be killed.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from holdfast.testing import ManualClock
from tests.channels.conversation import ROOM, SCRIPT, open_log, take


def main(directory: str) -> None:
    clock = ManualClock()
    log = open_log(Path(directory), clock)
    channels = log.channels("alice")
    channels.ensure_channel(ROOM)
    os.write(1, b"ready\n")
    for number, (_, operation) in enumerate(SCRIPT, 1):
        take(channels, clock, operation)
        assert ROOM not in channels.channels() or channels.channel(ROOM).persistence.ok
        os.write(1, b"%d\n" % number)
    sys.stdin.read()


if __name__ == "__main__":
    main(sys.argv[1])
