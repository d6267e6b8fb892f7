"""A process that shares a log and appends: `python -m tests.sharing.member DIRECTORY NAME TASKS`.

Each of its tasks is a producer: it appends `NAME-TASK:NUMBER`, one after the other, and writes a line for each
acknowledgement. It ends when its standard input does, and says what went wrong, if anything did.
"""

from __future__ import annotations

import asyncio
import sys
import threading

import holdfast
from holdfast import Log

SETTINGS = {"journal": {"ack_timeout_ms": 60_000}, "segments": {"seal_on_close": False}}


async def produce(log: Log, name: str, stop: threading.Event) -> None:
    topic, number = log.topic("events"), 0
    while not stop.is_set():
        receipt = await topic.append_async(f"{name}:{number}".encode())
        sys.stdout.write(f"{name}:{number} {receipt.offset}\n")
        sys.stdout.flush()
        number += 1


async def run(directory: str, name: str, tasks: int) -> None:
    stop = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), stop.set()), daemon=True).start()
    async with holdfast.open(directory, share=True, settings=SETTINGS) as log:
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        await asyncio.gather(*(produce(log, f"{name}-{task}", stop) for task in range(tasks)))


if __name__ == "__main__":
    asyncio.run(run(sys.argv[1], sys.argv[2], int(sys.argv[3])))
