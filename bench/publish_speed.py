"""Topics as Delta tables: what publishing costs, and what a scan of the table costs beside the bare files.

Measured: the seconds to publish 10,000 segments of one partition at once, from a root as a shipper leaves it (with a
manifest checkpoint) and from a log's own directory (none); the requests and the seconds of one more segment after
10 and after 10,000; and Polars on the table beside Polars on the same files.

Publishing reads manifests and no data, so the 10,000 segments have manifest objects and no files. What would be unfair:
files in the page cache for one side only; both read the same ones, in turns.
"""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

import holdfast
from bench import measure
from bench.material import QUIET
from bench.measure import Bar, Contestant, Measured, Options, Part, Sample
from holdfast.clock import SystemClock
from holdfast.model.segment import NO_CHAIN, Segment, SegmentFacts, SegmentHead
from holdfast.publish.publication import Publisher
from holdfast.root.objects import checkpoint, documents
from holdfast.root.objects.documents import LogDocument, SegmentDocument, TopicDocument
from holdfast.root.root_store import RootStore
from holdfast.root.root_trust import RootTrust
from holdfast.store import layout
from holdfast.store.directory import DirectoryStore
from holdfast.store.port import ObjectInfo

LOG, TOPIC = bytes(range(16)), "orders"
SEGMENTS, FEW = 10_000, 10
SECONDS_MAX = 5.0
POLARS_MIN = 0.9
SCANNED_SEGMENTS, SCANNED_ROWS = 40, 100_000
TABLE, FILES = "Polars on the table", "Polars on the files"
CLOCK = SystemClock()


def main(options: Options) -> None:
    """All of it, printed and kept."""
    with measure.workspace(options) as directory:
        facts = measure.machine(directory)
        made = parts(directory, options)
    print(*(measure.report(part) for part in made), sep="\n")
    measure.save_parts("publish_speed", made, facts)


def parts(directory: Path, options: Options) -> list[Part]:
    """Publishing, and scanning what was published."""
    segments = SEGMENTS // 10 if options.quick else SEGMENTS
    claims = []
    for name, has_checkpoints in (("a store's root", True), ("a log's own directory", False)):
        root = directory / f"many-{has_checkpoints}"
        made = make_root(root, segments, has_checkpoints=has_checkpoints)
        seconds = publish_all(root, segments)
        claims.append(measure.claim(f"publishing {segments:,} segments of {name}", seconds, SECONDS_MAX, "s"))
    much = one_more(root, made)
    few = one_more(directory / "few", make_root(directory / "few", FEW, has_checkpoints=False), first=True)
    claims.append(measure.claim("requests of one more segment, beyond those after 10", much[0] - few[0], 0, "requests"))
    claims.append(f"one more segment: {much[0]} requests, {much[1]:.4f} s; after {FEW}: {few[0]}, {few[1]:.4f} s")
    return [Part("publishing", Measured(), (), claims), scanning(directory / "scanned", options)]


# -- publishing ---------------------------------------------------------------------------------------------


def make_root(root: Path, segments: int, *, has_checkpoints: bool) -> list[SegmentDocument]:
    """A root whose one partition has so many manifest objects."""
    made: list[SegmentDocument] = []
    for number in range(segments):
        made.append(_next(made))
        _write(root, layout.manifest_key(TOPIC, 0, number), documents.encode(made[-1]))
    if has_checkpoints:
        _write(root, layout.checkpoint_key(TOPIC, 0, segments - 1), checkpoint.encode(made))
    _write(root, layout.LOG, documents.encode(LogDocument(log=LOG.hex(), created_us=0)))
    topic = TopicDocument(log=LOG.hex(), topic=TOPIC, version=1, partitions=1, first_offset=0)
    _write(root, layout.topic_key(TOPIC, 1), documents.encode(topic))
    return made


def publish_all(root: Path, segments: int) -> float:
    """The seconds to publish all of it."""
    began = time.perf_counter()
    report = _publisher(DirectoryStore(root, CLOCK)).publish(TOPIC)
    seconds = time.perf_counter() - began
    if report.files != segments:
        raise RuntimeError(f"not all was published; files={report.files} wanted={segments}")
    return seconds


def one_more(root: Path, made: list[SegmentDocument], *, first: bool = False) -> tuple[int, float]:
    """Requests and seconds of the third of three further segments, each published alone."""
    if first:
        publish_all(root, len(made))
    for _ in range(3):
        made.append(_next(made))
        _write(root, layout.manifest_key(TOPIC, 0, len(made) - 1), documents.encode(made[-1]))
        store = _Counted(root, CLOCK)
        began = time.perf_counter()
        _publisher(store).publish(TOPIC)
    return store.requests, time.perf_counter() - began


class _Counted(DirectoryStore):
    requests = 0

    def _more(self) -> None:
        self.requests += 1

    def create(self, key: str, body: Any) -> None:
        self._more()
        super().create(key, body)

    def get(self, key: str, bytes_max: int | None = None) -> bytes:
        self._more()
        return super().get(key, bytes_max)

    def get_range(self, key: str, start: int, length: int) -> bytes:
        self._more()
        return super().get_range(key, start, length)

    def list(self, prefix: str, after: str | None = None) -> Any:
        self._more()
        found: list[ObjectInfo] = list(super().list(prefix, after))
        return iter(found)


def _publisher(store: DirectoryStore) -> Publisher:
    return Publisher(RootStore(store, RootTrust(None)), CLOCK, delete_after_ms=7 * 86_400_000)


def _next(made: list[SegmentDocument]) -> SegmentDocument:
    number = len(made)
    previous = bytes.fromhex(made[-1].chain) if made else NO_CHAIN
    mark = number.to_bytes(32, "big")
    head = SegmentHead(
        log_id=LOG,
        topic=TOPIC,
        partition=0,
        number=number,
        first=number * 100,
        epoch=1,
        schema=bytes(16),
        previous=previous,
    )
    facts = SegmentFacts(
        rows=100,
        size=10_000,
        time_min=number,
        time_max=number + 1,
        sha256=mark,
        content=b"c" + mark[1:],
        footer=bytes(16),
        key_id="",
    )
    segment = Segment(head=head, facts=facts)
    return SegmentDocument.of(segment, slot=number, chain=segment.chain, sealed_us=number)


def _write(root: Path, key: str, data: bytes) -> None:
    (root / key).parent.mkdir(parents=True, exist_ok=True)
    (root / key).write_bytes(data)


# -- scanning -----------------------------------------------------------------------------------------------


def scanning(directory: Path, options: Options) -> Part:
    """Polars on the table and on the files: all columns of numbers and text, added up."""
    segments = SCANNED_SEGMENTS // 4 if options.quick else SCANNED_SEGMENTS
    url = _scanned(directory, segments)
    files = sorted(str(path) for path in Path(url).glob("0/segments/*.parquet"))
    rows = segments * SCANNED_ROWS
    contestants = [
        Contestant(TABLE, partial(_scan, TABLE, lambda: pl.scan_delta(url), rows)),
        Contestant(FILES, partial(_scan, FILES, lambda: pl.scan_parquet(files), rows)),
    ]
    for contestant in contestants:
        contestant.run(0)
    return Part("a scan by Polars", measure.interleave(contestants, options), [Bar(TABLE, FILES, POLARS_MIN)])


def _scanned(directory: Path, segments: int) -> str:
    schema = pa.schema({"city": pa.string(), "count": pa.int64(), "price": pa.float64()})
    random = np.random.default_rng(7)
    cities = np.array([f"city {number}" for number in range(1000)])
    with holdfast.open(directory, settings={"segments": QUIET}) as log:
        topic = log.topic(TOPIC, schema=schema)
        for _ in range(segments):
            columns = {
                "city": cities[random.integers(0, 1000, SCANNED_ROWS)],
                "count": random.integers(0, 10**6, SCANNED_ROWS),
                "price": random.random(SCANNED_ROWS),
            }
            topic.append(pa.record_batch(columns, schema=schema))
            log.seal()
    (report,) = holdfast.publish_tables(directory)
    return report.table.removeprefix("file://")


def _scan(name: str, scan: Any, rows: int, _seconds: float) -> Sample:
    cpu, began = time.process_time(), time.perf_counter()
    found = (
        scan()
        .select(
            pl.len(), pl.col("count").sum(), pl.col("price").mean(), pl.col("city").n_unique(), pl.col("_offset").max()
        )
        .collect()
    )
    sample = Sample(name, rows, time.perf_counter() - began, cpu_seconds=time.process_time() - cpu)
    if found["len"][0] != rows:
        raise RuntimeError(f"not all rows were read; rows={found['len'][0]} wanted={rows}")
    return sample
