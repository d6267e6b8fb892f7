"""Processes that ship to an S3 server until they are killed, or follow orders.

    python -m tests.crash.ship_victim work DIRECTORY ENDPOINT PREFIX CYCLE plain|encrypted
    python -m tests.crash.ship_victim obey DIRECTORY ENDPOINT PREFIX

`work` appends from several threads and seals; lines on standard output: `durable topic partition offset name` and
`shipped topic partition offset name`, written only after the acknowledgement. A store that is away is no failure;
anything else is printed as `failed …`.

`obey` takes one command per line and answers each with one line: `append NAME` and `ship NAME` (durability "durable"
and "shipped", answered with `at OFFSET`), `submit NAME` (does not wait for anything), `seal`, `settle`, `jump HOURS`
(its clock leaps forward), `state`, `close`. A refusal is answered with the error's kind and reason.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import holdfast
from holdfast import Closed, HoldfastError, Keyring, Log, Receipt, Settings, Unavailable
from holdfast.clock import SystemClock
from tests.store import shipped_logs

KEYRING = Keyring.from_callable(lambda: "k1:" + "QUJDREVGR0hJSktMTU5PUFFSU1RVVldYWVphYmNkZWY=")
TOPICS = {"orders": 3, "notes": 1}
"""Topics and their partitions."""


def settings(endpoint: str, timeout_ms: int = 3000) -> Settings:
    """Small segments, small batches, many requests: much happens in little time."""
    return shipped_logs.settings(
        endpoint,
        store={"timeout_ms": timeout_ms},
        shipping={
            "shipped_timeout_ms": 10 * timeout_ms,
            "request_timeout_ms": timeout_ms,
            "connect_timeout_ms": 1000,
            "checkpoint_every": 5,
            "max_in_flight_requests": 4,
            "batch_size_threshold": 5,
            "drain_timeout_ms": 3000,
            "retry_base_delay_ms": 20,
            "retry_delay_max_ms": 500,  # a server that starts is not hammered at
        },
        segments={"rows_max": 40, "trim_entries": 4, "idle_ratio": 0},
        journal={"checkpoint_bytes": "256KiB"},
    )


def tell(line: str) -> None:
    """One line; a single write, so that lines never mix."""
    os.write(1, f"{line}\n".encode())


# -- at work ----------------------------------------------------------------------------------------------


def acknowledge(how: str, receipts: list[Receipt], names: list[str]) -> None:
    named = zip(receipts, names, strict=True)
    tell("\n".join(f"{how} {r.topic} {r.partition} {r.offset} {name}" for r, name in named))


def append_and_wait(log: Log, cycle: int, number: int) -> None:
    """Each on the store before the next; while the store is away it hears nothing, and goes on."""
    name = f"{cycle}-waits-{number}"
    topic = "orders" if number % 2 else "notes"
    try:
        receipt = log.topic(topic).append(name.encode(), key=b"%d" % number, durability="shipped")
    except Unavailable:
        return
    acknowledge("shipped", [receipt], [name])


def append_batch_and_wait(log: Log, cycle: int, number: int) -> None:
    names = [f"{cycle}-batch-{number}.{member}" for member in range(number % 10 + 1)]
    try:
        receipts = log.topic("orders").append_batch(
            [name.encode() for name in names], partition=number % TOPICS["orders"], durability="shipped"
        )
    except Unavailable:
        return
    acknowledge("shipped", list(receipts), names)


def append_and_go_on(log: Log, cycle: int, number: int) -> None:
    name = f"{cycle}-goes-on-{number}"
    receipt = log.topic("orders" if number % 3 else "notes").append(name.encode(), key=b"%d" % number)
    acknowledge("durable", [receipt], [name])
    threading.Event().wait(0.02)  # the server has to live on the same machine


def seal(log: Log, cycle: int, number: int) -> None:
    threading.Event().wait(0.05)
    log.seal()


def again_and_again(action: Callable[[Log, int, int], None], log: Log, cycle: int) -> None:
    """Do it until we are killed; a failure is printed, and fails the test."""
    try:
        for number in range(10**9):
            action(log, cycle, number)
    except BaseException as error:
        tell(f"failed {action.__name__}: {error!r}".replace("\n", " "))
        raise


def work(directory: str, endpoint: str, prefix: str, cycle: int, keyring: Keyring | None) -> None:
    log = holdfast.open(Path(directory), store=shipped_logs.url(prefix), settings=settings(endpoint), keyring=keyring)
    for topic, partitions in TOPICS.items():
        log.topic(topic, partitions=partitions)
    tell("ready")
    for action in (append_and_wait, append_batch_and_wait, append_and_go_on, seal):
        threading.Thread(target=again_and_again, args=(action, log, cycle), daemon=True).start()
    threading.Event().wait()


# -- at command -------------------------------------------------------------------------------------------


class LeapingClock(SystemClock):
    """A clock that leaps forward on request, as if the process had slept for hours."""

    leapt_us = 0

    def now_us(self) -> int:
        return super().now_us() + self.leapt_us

    def monotonic(self) -> float:
        return super().monotonic() + self.leapt_us / 1e6


def obey(directory: str, endpoint: str, prefix: str) -> None:
    clock = LeapingClock()
    try:
        log = holdfast.open(
            Path(directory), store=shipped_logs.url(prefix), settings=settings(endpoint, 20_000), clock=clock
        )
        topic = log.topic("orders", partitions=1)
    except HoldfastError as error:
        tell(refusal(error))
        return
    tell("ready")
    for line in sys.stdin:
        command, _, name = line.strip().partition(" ")
        try:
            if command in ("append", "ship"):
                receipt = topic.append(name.encode(), durability="shipped" if command == "ship" else "durable")
                tell(f"at {receipt.offset}")
            elif command == "submit":
                topic.submit(name.encode())
                tell("submitted")
            elif command == "seal":
                log.seal()
                tell("sealed")
            elif command == "settle":
                log.ship()
                tell("settled")
            elif command == "jump":
                clock.leapt_us += int(float(name) * 3600e6)
                tell("jumped")
            elif command == "state":
                shipping = log.stats().shipping
                assert shipping is not None
                tell(f"ended {shipping.ended}")
            else:
                log.close()
                tell("closed")
                return
        except HoldfastError as error:
            tell(refusal(error))


def refusal(error: HoldfastError) -> str:
    reason = error.reason if isinstance(error, Closed) else ""
    print(error, file=sys.stderr)
    return f"refused {type(error).__name__} {reason}".strip()


if __name__ == "__main__":
    if sys.argv[1] == "work":
        work(sys.argv[2], sys.argv[3], sys.argv[4], int(sys.argv[5]), KEYRING if sys.argv[6] == "encrypted" else None)
    else:
        obey(sys.argv[2], sys.argv[3], sys.argv[4])
