"""Random histories with crashes: batch, stream, fast path and `holdfast.read` all give what the log itself gives.

The log is written by processes of its own, which append, seal, ship, expire and die. After each life the log's own
reading, through its database, is the model; the four ways to read a root must equal it, row for row, up to what is
settled. The streams go on from their checkpoints, with other limits each time.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pytest

import holdfast
import pyspark_holdfast
from holdfast.errors import NotFound
from tests.spark.model_writer import RAW_PARTITIONS
from tests.store.servers import ACCESS_KEY, BUCKET, REGION, SECRET_KEY

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

TOPICS = {"raw": RAW_PARTITIONS, "typed": 1}
Rows = dict[tuple[int, int], tuple[Any, ...]]
"""Rows by partition and offset, without these."""


class World(NamedTuple):
    """One log, where it is read from, and how that is reached."""

    path: Path
    root: str
    store: dict[str, Any]
    """Settings of the writer; empty when the log's own directory is the root."""
    options: dict[str, str]
    """Options of readers."""


def world(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> World:
    if kind == "own":
        return World(tmp_path / "log", str(tmp_path / "log"), {}, {})
    if kind == "directory":
        return World(tmp_path / "log", str(tmp_path / "store"), {"url": f"file://{tmp_path}/store"}, {})
    server = request.getfixturevalue("s3_server")
    secrets = tmp_path / "credentials"
    secrets.write_text(f"access_key_id = {ACCESS_KEY}\nsecret_access_key = {SECRET_KEY}\n")
    secrets.chmod(0o600)
    root = f"s3://{BUCKET}/{request.getfixturevalue('prefix')}"
    shared = {"endpoint": server.endpoint, "region": REGION, "credentials": f"file:{secrets}"}
    return World(tmp_path / "log", root, {"url": root, **shared}, shared)


def live(
    world: World, rng: random.Random, number: int, *, is_last: bool, read: dict[str, Any] | None
) -> set[tuple[str, int, int]]:
    """One life of the writer; what it was acknowledged for."""
    life = {
        "path": str(world.path), "store": world.store, "seed": rng.getrandbits(32), "number": number, "read": read,
        "steps": rng.randint(8, 16), "dies": not is_last and rng.random() < 0.5, "is_last": is_last,
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-m", "tests.spark.model_writer", json.dumps(life)],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
        env=os.environ,
        timeout=240,
        check=False,
    )
    assert done.returncode == (9 if life["dies"] else 0), done.stderr
    return {(topic, int(p), int(o)) for topic, p, o in (line.split() for line in done.stdout.splitlines())}


def own_rows(log: holdfast.Log, topic: str) -> Rows:
    """What the log itself says."""
    if topic == "raw":
        table = log.topic("raw").read().to_arrow()
        names = ["time", "key", "payload", "headers", "kind"]
    else:
        table = log.topic("typed", schema="latest").read().to_arrow()
        names = ["_time", *(name for name in table.column_names if not name.startswith("_"))]
    return by_place(
        table, names, "partition" if topic == "raw" else "_partition", "offset" if topic == "raw" else "_offset"
    )


def read_rows(table: pa.Table, topic: str) -> Rows:
    """The same of what was read from the root; Spark's columns have Kafka's names."""
    mark = "" if topic == "raw" else "_"
    if topic == "raw":
        own = "payload" in table.column_names
        names = ["time" if own else "timestamp", "key", "payload" if own else "value", "headers", "kind"]
    else:
        names = ["_time", *(name for name in table.column_names if not name.startswith("_"))]
    return by_place(table, names, f"{mark}partition", f"{mark}offset")


def by_place(table: pa.Table, names: list[str], partition: str, offset: str) -> Rows:
    rows: Rows = {}
    for each in table.to_pylist():
        place = (each[partition], each[offset])
        assert place not in rows, f"there twice: {place}"
        # Absent and empty headers are one and the same to a log.
        rows[place] = tuple(each[name] or None if name == "headers" else each[name] for name in names)
    return rows


def stream_on(spark: SparkSession, world: World, topic: str, directory: Path, rng: random.Random) -> dict[str, int]:
    """Let a stream catch up, from its checkpoint; how far it is then."""
    limits = rng.choice(
        [{"maxSegmentsPerTrigger": "2"}, {"maxOffsetsPerTrigger": "70"}, {"maxBytesPerTrigger": "20000"}, {}]
    )

    def land(batch: Any, number: int) -> None:
        batch.write.mode("overwrite").parquet(f"{directory}/{topic}/batch={number:06d}")

    frame = spark.readStream.format("holdfast").options(topic=topic, **world.options, **limits).load(world.root)
    query = frame.writeStream.foreachBatch(land).option("checkpointLocation", f"{directory}/checkpoint-{topic}")
    running = query.trigger(availableNow=True).start()
    running.awaitTermination()
    (marks,) = json.loads(pyspark_holdfast.settled_marks(world.root, topic=topic, **world.options)).values()
    return {partition: end for partition, (_, end) in marks[topic].items()}


def landed(spark: SparkSession, topic: str, directory: Path) -> Rows:
    batches = [str(path) for path in Path(directory, topic).glob("batch=*")]
    frame = spark.read.option("mergeSchema", "true").parquet(*batches)
    return read_rows(frame.toArrow(), topic)


def compare(spark: SparkSession, world: World, topic: str, model: Rows) -> None:
    """Three ways to read a root at rest."""
    (topics,) = json.loads(pyspark_holdfast.settled_marks(world.root, topic=topic, **world.options)).values()
    marks = topics[topic]
    one = holdfast.read(world.root, topic, store=world.options)
    # A version of the schema that nothing is settled of yet may be the log's own secret.
    expected = {place: row for place, row in model.items() if place[1] < marks[str(place[0])][1]}

    def rows(table: pa.Table) -> Rows:
        return {place: pad(row, expected) for place, row in read_rows(table, topic).items()}

    assert rows(one.to_arrow()) == expected
    assert one.count() == len(expected)
    batch = spark.read.format("holdfast").options(topic=topic, **world.options).load(world.root)
    assert rows(batch.toArrow()) == expected
    fast = pyspark_holdfast.read(spark, world.root, topic, **world.options)
    assert rows(fast.toArrow()) == expected


def run(spark: SparkSession, world: World, seed: int, directory: Path, lives: int) -> None:
    rng = random.Random(seed)
    read: dict[str, Any] | None = None
    everything: dict[str, Rows] = {topic: {} for topic in TOPICS}
    for number in range(lives):
        acknowledged = live(world, rng, number, is_last=number == lives - 1, read=read)
        streamed: dict[str, Any] = {}
        with holdfast.open(world.path, read_only=True) as log:
            for topic in TOPICS:
                if topic not in log.topics():
                    continue
                model = own_rows(log, topic)
                everything[topic] = {**{k: pad(v, model) for k, v in everything[topic].items()}, **model}
                lost = {place for name, *place_ in acknowledged if name == topic for place in [tuple(place_)]}
                assert lost <= everything[topic].keys()
                try:
                    compare(spark, world, topic, model)
                except NotFound as nothing_there:
                    assert "there is no" in str(nothing_there)
                    continue
                streamed[topic] = stream_on(spark, world, topic, directory, rng)
        read = streamed if not world.store else None
    for topic in TOPICS:
        found = landed(spark, topic, directory)
        assert {k: pad(v, everything[topic]) for k, v in found.items()} == everything[topic]


def pad(row: tuple[Any, ...], rows: Rows) -> tuple[Any, ...]:
    """A row of an older schema as one of the newest: what it lacks is null."""
    width = len(next(iter(rows.values()), row))
    return row + (None,) * (width - len(row))


@pytest.mark.sampled(1)
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("kind", "seed"), [("own", 1), ("directory", 2), ("s3", 3)])
def test_all_ways_to_read_give_what_the_log_gives(
    spark: SparkSession, tmp_path: Path, request: pytest.FixtureRequest, kind: str, seed: int, is_sampled: bool
) -> None:
    run(spark, world(kind, tmp_path, request), seed, tmp_path / "landed", lives=2 if is_sampled else 3)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", ["own", "directory", "s3"])
def test_all_ways_to_read_give_what_the_log_gives_for_many_histories(
    spark: SparkSession, tmp_path: Path, request: pytest.FixtureRequest, kind: str
) -> None:
    for seed in range(100, 110):
        place = tmp_path / str(seed)
        place.mkdir()
        own = world(kind, place, request)
        if kind == "s3":
            root = f"{own.root}-{seed}"
            own = own._replace(root=root, store={**own.store, "url": root})
        run(spark, own, seed, place / "landed", lives=5)
