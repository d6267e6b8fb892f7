"""The victim of `segment_victim`, which seals in a child process; that is killed, too, again and again.

python -m tests.crash.seal_process_victim DIRECTORY CYCLE
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time

import msgspec

from holdfast import Log
from holdfast.segments.sealing import seal_process
from tests.crash import segment_victim

seal_process.START_BYTES_MIN = 0
seal_process._RETRY_S = 0.02

CHILD_KILLED = "child"
"""The first word of a line that tells a kill of the child."""


def kill_the_child(log: Log, cycle: int, number: int) -> None:
    """At some moment: while it starts, waits, is handed entries or encodes them."""
    time.sleep(random.Random(f"{cycle} {number}").random() * 0.2)
    assert log._maintenance._roller is not None
    process = log._maintenance._roller._sealer._process
    assert process is not None
    pid = process.pid
    if pid is not None:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            return
        stats = log.stats().segments
        os.write(1, f"{CHILD_KILLED} {pid} {stats.seals_in_process_total} {stats.seals_total}\n".encode())


if __name__ == "__main__":
    settings = segment_victim.SETTINGS
    segment_victim.SETTINGS = msgspec.structs.replace(
        settings, segments=msgspec.structs.replace(settings.segments, seal_in="process")
    )
    segment_victim.ACTIONS += (kill_the_child,)
    segment_victim.main(sys.argv[1], int(sys.argv[2]))
