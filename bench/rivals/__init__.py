"""The rivals: servers that acknowledge a durable append, each driven by its fastest Python client found here.

Measured, for every rival alike: 64 producers, each with one 200-byte append under way, acknowledged only
after the server has synced it. Every server is asked for its durability settings after it has started, and is
refused (`Unfair`) when they are not the ones named. Unix sockets are used where the server has them, because
they are faster than loopback; nothing listens beyond 127.0.0.1.

Settled in the rivals' favour: a rival may bring several Python clients, because threads or asyncio may win,
by machine and by load; a bar is held against the one with the best median (`Field.fastest`). A client in C,
where the rival ships one, shows the server without Python. Housekeeping that would fall into another
contestant's sample (vacuum, snapshots) is off or forced between samples.

Unfair would be: batching for one side only. A rival's batch interface (COPY, pipelines) is a different
question, as is a journal that is handed a thousand rows per call; neither is compared here with single
appends.

A rival that is not installed is absent: one line in the report, no failure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Protocol

from bench.measure import PRODUCERS, Contestant, Measured
from bench.rivals.server import Absent


class Rival(Protocol):
    """A server that can be started in a directory, sampled many times, and stopped."""

    @property
    def version(self) -> str:
        """The server's version and client, known after `start`."""
        ...

    def start(self, directory: Path) -> None:
        """Start in a directory of its own; raises `Absent` when not installed, `Unfair` when not durable."""
        ...

    def clients(self, producers: int) -> Sequence[Contestant]:
        """Its Python clients; the first is the fastest as a rule, and bears the plain name of the rival."""
        ...

    def natives(self, producers: int) -> Sequence[Contestant]:
        """Its clients in C, for remarks."""
        ...

    def stop(self) -> None:
        """Stop the server by its pid and remove its directory; harmless when it was never started."""
        ...


@dataclass(slots=True)
class Field:
    """The rivals that run, with their clients, and a line for each rival that is absent."""

    clients: dict[str, Sequence[Contestant]] = field(default_factory=dict)
    natives: list[Contestant] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)
    absent: list[str] = field(default_factory=list)

    @property
    def contestants(self) -> list[Contestant]:
        """All Python clients of all rivals."""
        return list(chain.from_iterable(self.clients.values()))

    def fastest(self, rival: str, measured: Measured) -> str:
        """The name of the client that speaks for `rival`; the rival's own name when none was measured."""
        names = [client.name for client in self.clients.get(rival, ()) if client.name in measured.samples]
        return max(names, key=measured.median, default=rival)


# Each import stays in a function of its own: a client library that is missing must not hide the other rivals.


def _postgresql() -> Rival:
    from bench.rivals.postgresql import PostgreSQL

    return PostgreSQL()


def _jetstream() -> Rival:
    from bench.rivals.jetstream import JetStream

    return JetStream()


def _redis() -> Rival:
    from bench.rivals.redis_stream import RedisStream

    return RedisStream()


KNOWN: dict[str, Callable[[], Rival]] = {"postgresql": _postgresql, "jetstream": _jetstream, "redis": _redis}


@contextmanager
def running(directory: Path, producers: int = PRODUCERS) -> Iterator[Field]:
    """Start every rival that is installed, and stop them all in the end."""
    entered = Field()
    with ExitStack() as stack:
        for name, load in KNOWN.items():
            try:
                rival = load()
                stack.callback(rival.stop)
                rival.start(directory / name)
            except (Absent, ImportError) as absence:
                entered.absent.append(f"{name}: absent, {absence}")
                continue
            entered.versions[name] = rival.version
            entered.clients[name] = rival.clients(producers)
            entered.natives.extend(rival.natives(producers))
        yield entered
