"""A process that owns a log and sends numbers of three sessions, telling each answer, until it is killed.

    python -m tests.crash.session_victim DIRECTORY files|database

Lines on standard output: `session number first seq`, written only after the answer. It goes on where the log is.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import holdfast
from holdfast import Log, Settings
from holdfast.journal.session_access import ForwardedRows, Outcome

SESSIONS = [b"a" * 16, b"b" * 16, b"device"]
"""A member that takes its answers, one that takes them late, and a producer."""
NUMBERS = 13


def settings_of(way: str) -> Settings:
    journal = {"group_file_bytes": "64KiB" if way == "files" else 0}
    return Settings.from_mapping({"journal": journal, "segments": {"seal_on_close": False}})


def send(log: Log, name: bytes, number: int) -> Outcome:
    """Two records under a number of a session."""
    log.topic("t")
    journal = log._journal
    rows = [(b"%s %d %d" % (name.hex().encode(), number, i), 1, None, None) for i in (0, 1)]
    item = ForwardedRows(journal.topics["t"][0], rows, 40)
    if len(name) == 16:
        floor = number if name == SESSIONS[0] else max(1, number - 20)
        sent = journal.sessions.put(name, number, floor, [item], 20)
    else:
        sent = journal.sessions.produce(name, number, item, 20)
    assert sent.wait(20)
    return sent.outcomes()[0]


def main(directory: Path, way: str) -> None:
    log = holdfast.open(directory, settings=settings_of(way))
    sessions = log._journal.sessions
    last = {name: (sessions.last(name) if len(name) == 16 else sessions.last_produced(name)) for name in SESSIONS}
    os.write(1, b"ready\n")
    for step in range(10**9):
        for name in SESSIONS:
            number = max(1, (last[name] or 0) + step)  # the last one again, then those behind it
            (run,) = send(log, name, number).runs
            os.write(1, b"%s %d %d %d\n" % (name.hex().encode(), number, run.first, run.seq))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
