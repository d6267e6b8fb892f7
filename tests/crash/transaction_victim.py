"""A process that takes turns of several actors at once and tells each acknowledgement, until it is killed.

    python -m tests.crash.transaction_victim DIRECTORY

Lines on standard output: `actor turn`, written only after the transaction's block has ended.
"""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

from tests.crash.transaction_workload import ACTORS, Notes, Topics, check_actor, open_log, take_turn


def take_turns(topics: Topics, actor: int) -> None:
    turn = check_actor(topics, actor, -1)
    while True:
        turn += 1
        take_turn(topics, actor, turn)
        os.write(1, b"%d %d\n" % (actor, turn))


def main(directory: str) -> None:
    topics = open_log(Path(directory), Notes().keyring)
    os.write(1, b"ready\n")
    for actor in range(ACTORS):
        threading.Thread(target=take_turns, args=(topics, actor), daemon=True).start()
    threading.Event().wait()


if __name__ == "__main__":
    main(sys.argv[1])
