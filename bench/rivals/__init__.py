"""The rivals: servers that acknowledge a durable append, each driven by its fastest Python client found here.

Measured, for every rival alike: 64 producers, each with one 200-byte append under way, acknowledged only
after the server has synced it. Every server is asked for its durability settings after it has started, and is
refused (`Unfair`) when they are not the ones named. Unix sockets are used where the server has them, because
they are faster than loopback; nothing listens beyond 127.0.0.1.

Settled in the rivals' favour: whichever of several clients was fastest in this harness speaks for the rival
(`run`); the slower ones, and a client in C where the rival ships one, can be measured beside it (`others`).
Housekeeping that would fall into another contestant's sample (vacuum, snapshots) is off or forced between
samples.

Unfair would be: batching for one side only. A rival's batch interface (COPY, pipelines) is a different
question, as is a journal that is handed a thousand rows per call; neither is compared here with single
appends.

A rival that is not installed is absent: one line in the report, no failure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Protocol

from bench.measure import PRODUCERS, Contestant, Sample
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

    def run(self, seconds: float, producers: int) -> Sample:
        """One sample with the fastest Python client."""
        ...

    def others(self, producers: int) -> Sequence[Contestant]:
        """Slower clients and clients in C, for remarks."""
        ...

    def stop(self) -> None:
        """Stop the server by its pid and remove its directory; harmless when it was never started."""
        ...


@dataclass(slots=True)
class Field:
    """The rivals that run: their contestants, the bracketed others, and a line for each that is absent."""

    contestants: list[Contestant] = field(default_factory=list)
    others: list[Contestant] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)
    absent: list[str] = field(default_factory=list)


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
            entered.contestants.append(Contestant(name, partial(rival.run, producers=producers)))
            entered.others.extend(rival.others(producers))
        yield entered
