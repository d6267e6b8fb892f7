"""How long `durability="shipped"` takes, beside one PUT to the same server.

Measured: clients that append a record of 200 bytes and wait until it counts on the store, one after the other, with
`batch_timeout_ms` 5 and otherwise the defaults; one client, and eight at once. Beside them the bare PUT: obstore, one
object of 4 KiB after the other, create-only, with sha256.

The promise: the median is at most the time-out and two PUTs. A record is written to the journal and synced, waits for
what is under way (or for the time-out), is sent, and counts when the store has said that nobody has taken over. The PUT
is that of one client alone, also for the bar of eight. Beside eight others on the same server a PUT takes longer; what
eight bare clients get is in the table, and told.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path

import obstore

from bench import measure, ship_speed
from bench.material import TOPIC
from bench.measure import PAYLOAD, Contestant, Measured, Options, Part, Sample
from bench.seaweedfs import SeaweedFS

BATCH_TIMEOUT_MS = 5.0
OBJECT = bytes(4 * 2**10)
CLIENTS = (1, 8)


def part(directory: Path, options: Options, server: SeaweedFS) -> Part:
    """Bare and waiting clients in turn, one and eight of them."""
    contestants: list[Contestant] = []
    for clients in CLIENTS:
        bare, ours = _names(clients)
        contestants += [
            Contestant(bare, partial(_put, bare, server, clients)),
            Contestant(ours, partial(_shipped, ours, server, directory / "log", clients)),
        ]
    measured = measure.interleave(contestants, options)
    return Part("waiting for the store", measured, (), [_claim(measured, n) for n in CLIENTS] + [_told(measured)])


def _names(clients: int) -> tuple[str, str]:
    return f"bare PUT, clients: {clients}", f"shipped, clients: {clients}"


def _claim(measured: Measured, clients: int) -> str:
    alone, ours = _names(CLIENTS[0])[0], _names(clients)[1]
    bound = round(BATCH_TIMEOUT_MS + 2 * _p50(measured, alone), 2)
    return measure.claim(f"p50 of {ours}: time-out and 2 PUTs,", _p50(measured, ours), bound, "ms")


def _told(measured: Measured) -> str:
    bare, ours = _names(CLIENTS[-1])
    return f"p50 of {ours} is {_p50(measured, ours) / _p50(measured, bare):.2f} x that of as many bare clients"


def _p50(measured: Measured, name: str) -> float:
    return statistics.median(sample.p50_ms or 0.0 for sample in measured.samples[name])


def _put(name: str, server: SeaweedFS, clients: int, seconds: float) -> Sample:
    client, numbers = server.shipping_client(ship_speed.place()), count()

    def put() -> None:
        obstore.put(client, f"{next(numbers):020d}", OBJECT, mode="create", use_multipart=False)

    return measure.drive_threads(name, [put] * clients, seconds)


def _shipped(name: str, server: SeaweedFS, path: Path, clients: int, seconds: float) -> Sample:
    shipping = {"batch_timeout_ms": BATCH_TIMEOUT_MS}
    with ship_speed.shipping(path, server, ship_speed.place(), shipping=shipping) as log:
        append: Callable[[], object] = partial(log.topic(TOPIC).append, PAYLOAD, durability="shipped")
        return measure.drive_threads(name, [append] * clients, seconds)
