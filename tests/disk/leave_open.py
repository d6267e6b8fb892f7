"""Processes that end without closing their log, each in its way: `leave_open.py WAY DIRECTORY [STORE]`."""

from __future__ import annotations

import asyncio
import atexit
import multiprocessing
import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import holdfast

RECORDS = 3000
ending = threading.Event()
threading._register_atexit(ending.set)  # the main thread has ended, and the log's own hook has run


def fill(topic: holdfast.Topic, records: int = RECORDS) -> None:
    for number in range(records):
        topic.submit(b"%d" % number)


def end(topic: holdfast.Topic) -> None:
    fill(topic)


def leave(topic: holdfast.Topic) -> None:
    fill(topic)
    sys.exit(3)


def fail(topic: holdfast.Topic) -> None:
    fill(topic)
    raise LookupError("at top level")


def offer(topic: holdfast.Topic) -> None:
    for number in range(RECORDS):
        assert topic.offer(b"%d" % number)


def loop(topic: holdfast.Topic) -> None:
    async def main() -> None:
        fill(topic)

    asyncio.run(main())


def thread(topic: holdfast.Topic) -> None:
    """A thread that begins to submit when the main thread has ended."""

    def work() -> None:
        ending.wait()
        fill(topic)

    threading.Thread(target=work).start()


def service(topic: holdfast.Topic) -> None:
    """A thread that works on when the main thread has ended: it waits for the store, seals, ships and closes."""
    log = _kept[0]

    def work() -> None:
        threading.main_thread().join()
        for number in range(3):
            topic.append(b"%d" % number, durability="shipped")
            log.seal()
            log.ship()
        log.close()

    threading.Thread(target=work).start()


def daemon(topic: holdfast.Topic) -> None:
    """A daemon that never stops submitting."""
    began = threading.Event()

    def work() -> None:
        try:
            for number in range(10**9):
                topic.submit(b"%d" % number)
                if number == RECORDS:
                    began.set()
        except holdfast.Closed:
            pass

    threading.Thread(target=work, daemon=True).start()
    began.wait()


def executor(topic: holdfast.Topic) -> None:
    """Work that an executor begins when the main thread has ended."""
    ThreadPoolExecutor(1).submit(lambda: (ending.wait(), fill(topic)))


def at_exit(topic: holdfast.Topic) -> None:
    """The application's own last words, of which some come after everything else."""
    atexit.register(fill, topic)


def fork(topic: holdfast.Topic) -> None:
    """A child that ends before its parent does not touch the parent's log."""
    fill(topic)
    child = os.fork()
    if child == 0:
        sys.exit(0)
    assert os.waitpid(child, 0)[1] == 0


def in_child(directory: str) -> None:
    fill(_open(directory))


def spawn(topic: holdfast.Topic) -> None:
    """A child process of multiprocessing that leaves a log of its own open, of either kind."""
    fill(topic)
    for method in ("spawn", "fork"):
        child = multiprocessing.get_context(method).Process(target=in_child, args=(f"{sys.argv[2]}-{method}",))
        child.start()
        child.join()
        assert child.exitcode == 0


_kept = []


def _open(directory: str, store: str | None = None) -> holdfast.Topic:
    log = holdfast.open(directory, store=store)
    _kept.append(log)
    return log.topic("orders")


if __name__ == "__main__":
    globals()[sys.argv[1]](_open(*sys.argv[2:]))
