"""A process that consumes a shared log: `python -m tests.sharing.consuming DIRECTORY PATIENCE`.

It polls, and says what it was given as `given PARTITION:OFFSET …`. It commits when it reads a line on its standard
input, and says `committed`, or `refused` and why; at the end of its input it closes the consumer and ends.
"""

from __future__ import annotations

import sys
import threading

import holdfast
from holdfast import Invalid
from tests.sharing.owner import SETTINGS


def main() -> None:
    asked, over = threading.Semaphore(0), threading.Event()

    def listen() -> None:
        for _ in sys.stdin:
            asked.release()
        over.set()

    threading.Thread(target=listen, daemon=True).start()
    with (
        holdfast.open(sys.argv[1], share=True, settings=SETTINGS) as log,
        log.topic("orders", partitions=4).consumer("billing", patience=float(sys.argv[2])) as consumer,
    ):
        print("ready", flush=True)
        while not over.is_set():
            given = consumer.poll(100, timeout=0.05)
            if given:
                print("given", *(f"{record.partition}:{record.offset}" for record in given), flush=True)
            if asked.acquire(blocking=False):
                try:
                    consumer.commit()
                    print("committed", flush=True)
                except Invalid as error:
                    print("refused", error.message, flush=True)


if __name__ == "__main__":
    main()
