"""A consumer that commits every 100 records, beside bare reading of the same records.

One topic in a log of its own, records of 100 bytes, once in segments and once in the tail. Every round reads all of
them: bare (`topic.read()`), by a consumer that submits a commit after every 100 records and waits for the last one, and
by one that waits for every commit. The last is bound by the disk's fsync, not by reading: it is shown, not compared.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import holdfast
from bench import measure
from bench.measure import Bar, Contestant, Options, Part, Sample
from holdfast import Record, Topic

EVERY = 100
_BATCH = 1_000
_names = (f"reader-{number}" for number in itertools.count())


def consumers(scratch: Path, options: Options) -> Part:
    """All ways, in turn, over the same records."""
    count = 40_000 if options.quick else 200_000
    with holdfast.open(scratch / "log") as log:
        places = {"segments": log.topic("sealed"), "tail": log.topic("unsealed")}
        for place, topic in places.items():
            for _ in range(count // _BATCH):
                topic.append_batch([b"x" * 100] * _BATCH)
            if place == "segments":
                log.seal(topic.name)
        contestants = [
            Contestant(f"{way}, {place}", _reading(f"{way}, {place}", topic, read, count))
            for place, topic in places.items()
            for way, read in (("bare", _bare), ("submitted", _submitting), ("waiting", _waiting))
        ]
        measured = measure.interleave(contestants, options)
    bars = [Bar(f"submitted, {place}", f"bare, {place}", 0.7) for place in places]
    references = [f"bare, {place}" for place in places]
    return Part("a consumer that commits every 100 records", measured, bars=bars, references=references)


def _reading(name: str, topic: Topic, read: Callable[[Topic, int], None], count: int) -> Callable[[float], Sample]:
    def sample(_seconds: float) -> Sample:
        cpu, began = time.process_time(), time.perf_counter()
        read(topic, count)
        seconds = time.perf_counter() - began
        return Sample(name, count, seconds, cpu_seconds=time.process_time() - cpu)

    return sample


def _bare(topic: Topic, count: int) -> None:
    assert sum(1 for _ in topic.read()) == count


def _submitting(topic: Topic, count: int) -> None:
    with topic.consumer(next(_names)) as consumer:
        for number, _ in enumerate(_some(consumer, count), 1):
            if number % EVERY == 0:
                consumer.submit_commit()
        consumer.commit()
        assert consumer.lag == 0


def _waiting(topic: Topic, count: int) -> None:
    with topic.consumer(next(_names)) as consumer:
        for number, _ in enumerate(_some(consumer, count), 1):
            if number % EVERY == 0:
                consumer.commit()


def _some(consumer: Iterator[Record], count: int) -> Iterator[Record]:
    return itertools.islice(consumer, count)
