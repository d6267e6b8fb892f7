"""A process that takes turns in several spaces at once and tells each acknowledgement, until it is killed.

    python -m tests.crash.spaces_victim DIRECTORY

Lines on standard output: `space turn`, written only after the acknowledgement.
"""

from __future__ import annotations

import os
import sys
import threading
from collections import deque
from pathlib import Path

from holdfast import Log
from holdfast.journal.queue.ticket import UnitTicket
from tests.crash.spaces_workload import SPACES, Notes, begin_turn, check_space, open_log

WINDOW = 8
"""Turns of one space that are under way: several in one group."""


def take_turns(log: Log, space: int) -> None:
    turn = check_space(log, space, -1)
    window: deque[tuple[int, UnitTicket]] = deque()
    while True:
        turn += 1
        window.append((turn, begin_turn(log, space, turn)))
        if len(window) > (WINDOW if space else 0):
            done, ticket = window.popleft()
            ticket.result()
            os.write(1, b"%d %d\n" % (space, done))


def main(directory: str) -> None:
    log = open_log(Path(directory), Notes().keyring)
    os.write(1, b"ready\n")
    for space in range(SPACES):
        threading.Thread(target=take_turns, args=(log, space), daemon=True).start()
    threading.Event().wait()


if __name__ == "__main__":
    main(sys.argv[1])
