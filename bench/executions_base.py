"""What executions stand on: lookups by key.

`keys`: `topic.latest(key)` among a thousand segments of one partition, plain and encrypted, of keys that are in one
segment and of keys that are in none; and what the indexes cost when a tail is sealed.

Fair and unfair: lookups run in one thread, one after the other, each of another key. Files are in the page cache. The
first lookup reads all indexes, later ones have them in memory (`segments.key_index_bytes_max`); it is told apart.
A segment has 200 records, every one with a key of its own: that is the most that an index has to hold. The scan beside
it reads the key column of everything, as a reader without indexes must. Sealing is measured with and without the index
in turns, by a log that does nothing else, with keys that repeat (as customers do) and with keys that never do.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from unittest.mock import patch

from bench import material, measure
from bench.material import KEYRING, RAW_BATCH, TOPIC
from bench.measure import Bar, Contestant, Options, Part, Sample
from holdfast import Keyring, Log, Record, Topic
from holdfast.segments.file import segment_writer

LIMIT = "20 ms"
SEGMENT_RECORDS = 200
LOOKUPS = 50


def keys(directory: Path, options: Options) -> Part:
    """Lookups by key, beside a scan; and what sealing pays for them."""
    segments = 100 if options.quick else 1_000
    with ExitStack() as stack:
        contestants: list[Contestant] = []
        claims: list[str] = []
        bars: list[Bar] = []
        for kind, keyring in (("plain", None), ("encrypted", KEYRING)):
            log = stack.enter_context(material.fresh(directory / kind, keyring))
            topic = _filled(log, segments)
            first = _timed(partial(topic.latest, b"key-of-none"))
            claims.append(f"{kind}, {segments} segments: the first lookup reads all indexes: {first * 1e3:,.0f} ms")
            for what, wanted in (("found", _present), ("absent", _absent)):
                name = f"latest, {kind}, {what}"
                contestants.append(_lookups(name, topic, wanted(segments)))
                bars.append(Bar(name, LIMIT, 1.0))
            contestants.append(_scan(f"scan, {kind}", topic))
        contestants.append(Contestant(LIMIT, lambda _: Sample(LIMIT, 1, 0.02)))
        for repeats in (True, False):
            with_index, without = (
                f"seal, {'some' if repeats else 'all different'} keys{end}" for end in ("", ", no index")
            )
            records = _records(20_000 if options.quick else 200_000, repeats)
            for name, is_indexed in ((with_index, True), (without, False)):
                contestants.append(_seal(name, directory / "seal", records, is_indexed))
            bars.append(Bar(with_index, without, 0.97))
            claims.append(_growth(directory / "seal", records, with_index))
        measured = measure.interleave(contestants, options)
    return Part(f"lookup by key among {segments} segments", measured, bars, claims, [LIMIT])


def _filled(log: Log, segments: int) -> Topic:
    topic = log.topic(TOPIC)
    payloads = material.payloads(SEGMENT_RECORDS)
    for number in range(segments):
        topic.append_batch([Record(p, key=b"key-%d-%d" % (i, number)) for i, p in enumerate(payloads)])
        log.seal(timeout=60)
    topic.append_batch([Record(p, key=b"tail-%d" % i) for i, p in enumerate(payloads)])
    return topic


def _present(segments: int) -> Iterator[bytes]:
    chance = random.Random(1)
    while True:
        yield b"key-%d-%d" % (chance.randrange(SEGMENT_RECORDS), chance.randrange(segments))


def _absent(segments: int) -> Iterator[bytes]:
    chance = random.Random(2)
    while True:
        yield b"key-%d-%d" % (chance.randrange(SEGMENT_RECORDS), segments + chance.randrange(10**6))


def _lookups(name: str, topic: Topic, wanted: Iterator[bytes]) -> Contestant:
    def run(_seconds: float) -> Sample:
        cpu = time.process_time()
        taken = sorted(_timed(partial(topic.latest, next(wanted))) for _ in range(LOOKUPS))
        return Sample(
            name,
            LOOKUPS,
            sum(taken),
            p50_ms=statistics.median(taken) * 1e3,
            p99_ms=measure.percentile(taken, 0.99) * 1e3,
            cpu_seconds=time.process_time() - cpu,
        )

    return Contestant(name, run)


def _scan(name: str, topic: Topic) -> Contestant:
    """Without indexes: everything is read once, and compared."""

    def run(_seconds: float) -> Sample:
        import pyarrow as pa
        import pyarrow.compute as pc

        cpu, began = time.process_time(), time.perf_counter()
        wanted = pa.scalar(b"key-of-none", pa.binary())
        if any(pc.any(pc.equal(batch.column("key"), wanted)).as_py() for batch in topic.read().batches()):
            raise RuntimeError("this key is in no record")
        return Sample(name, 1, time.perf_counter() - began, cpu_seconds=time.process_time() - cpu)

    return Contestant(name, run)


def _records(count: int, repeats: bool) -> list[Record]:
    chance = random.Random(3)
    most = 1_000 if repeats else 10**9
    return [Record(p, key=b"customer-%09d" % chance.randrange(most)) for p in material.payloads(count)]


def _seal(name: str, path: Path, records: Sequence[Record], is_indexed: bool) -> Contestant:
    def run(_seconds: float) -> Sample:
        with _tail(path, records) as log, _indexing(is_indexed):
            cpu, began = time.process_time(), time.perf_counter()
            log.seal(timeout=600)
            return Sample(name, len(records), time.perf_counter() - began, cpu_seconds=time.process_time() - cpu)

    return Contestant(name, run)


def _growth(path: Path, records: Sequence[Record], name: str) -> str:
    sizes = []
    for is_indexed in (True, False):
        with _tail(path, records) as log, _indexing(is_indexed):
            log.seal(timeout=600)
            sizes.append(sum(file.stat().st_size for file in material.files(path)))
    return (
        f"{name}: {(sizes[0] - sizes[1]) / len(records):.2f} bytes a record, {sizes[0] / sizes[1] - 1:.1%} of the file"
    )


@contextmanager
def _tail(path: Path, records: Sequence[Record], keyring: Keyring | None = None) -> Iterator[Log]:
    with material.fresh(path, keyring) as log:
        topic = log.topic(TOPIC)
        for at in range(0, len(records), RAW_BATCH):
            topic.append_batch(records[at : at + RAW_BATCH])
        yield log


class _NoIndex:
    """In the place of the builder: does nothing, and has nothing to store."""

    def __init__(self, *_: object) -> None:
        pass

    def add(self, keys: object) -> None:
        pass

    def close(self) -> None:
        pass

    def result(self) -> None:
        return None


@contextmanager
def _indexing(is_on: bool) -> Iterator[None]:
    with ExitStack() as stack:
        if not is_on:
            stack.enter_context(patch.object(segment_writer, "KeyIndexBuilder", _NoIndex))
        yield


def _timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began
