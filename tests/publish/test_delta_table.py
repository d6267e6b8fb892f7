"""A published topic is a Delta table: the same rows as `holdfast.read`, in every version what was settled then."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from random import Random

import deltalake
import polars as pl
import pyarrow as pa
import pytest

import holdfast
from holdfast.compaction.compact_root import compact
from holdfast.publish.delta import delta_log
from holdfast.store import layout
from tests.publish.worlds import World, delta_rows, files_below, keyed, log_folder

pytestmark = pytest.mark.disk

SCHEMA = pa.schema([pa.field("city", pa.string()), pa.field("count", pa.int64(), nullable=False)])


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.close()


def fill(world: World, topic: str = "orders", rows: int = 5, partitions: int = 2) -> None:
    orders = world.log.topic(topic, partitions=partitions)
    for number in range(rows):
        orders.append(b"p%d" % number, key=b"k%d" % number, headers={"h": b"v"} if number % 2 else None, kind="made")
    world.settle()


def random_step(world: World, random: Random, schemas: list[pa.Schema]) -> None:
    """One thing that may happen to a log between two publications."""
    what = random.choice(("raw", "typed", "typed", "evolve", "expire", "join", "nothing"))
    if what == "raw":
        fill(world, "raw", random.randrange(1, 5))
    elif what == "typed":
        topic = world.log.topic("typed", schema=schemas[-1], partitions=2)
        for number in range(random.randrange(1, 5)):
            topic.append({"city": random.choice(("Bern", None)), "count": number})
        world.settle()
    elif what == "evolve":
        schemas.append(schemas[-1].append(pa.field(f"more{len(schemas)}", pa.float64())))
    else:
        rearrange(world, random, what)


def rearrange(world: World, random: Random, what: str) -> None:
    topic, partition = random.choice(("raw", "typed")), random.randrange(2)
    if what == "nothing" or topic not in world.log.topics() or not (world.root / layout.LOG).exists():
        return
    segments = world.segments(topic, partition)
    expired = len(list((world.root / layout.expired_folder(topic, partition)).glob("*")))
    if what == "expire" and len(segments) > 2 + expired and not rewritten(world, topic, partition):
        world.expire(topic, partition, expired + 1)
    if what == "join":
        done = rewritten(world, topic, partition)
        ends = [
            one.number for one in segments if one.schema == segments[-1].schema and one.number >= max(done, expired)
        ]
        if len(ends) >= 2:
            world.join(topic, partition, ends[0], ends[1] + 1)


def rewritten(world: World, topic: str, partition: int) -> int:
    from holdfast.root.rewrites import read_rewrites

    found = read_rewrites(world.store(), world.log.id, topic, partition)
    return max((output.upto for rewrite in found for output in rewrite.outputs), default=0)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("round_", range(12))
@pytest.mark.parametrize("shipped", [False, True])
def test_the_table_equals_what_holdfast_reads_whatever_happened(
    tmp_path: Path, seed: int, round_: int, shipped: bool, monkeypatch: pytest.MonkeyPatch
):
    """Random appends, seals, ships, schema versions, expiries, rewrites: after each publication both read the same
    rows, and every version goes on showing what was settled when it was published."""
    monkeypatch.setattr(delta_log, "_CHECKPOINT_LEAST", 3)
    live(World(tmp_path, shipped=shipped), Random(f"{seed}-{round_}-{shipped}"), 20)


@pytest.mark.soak
@pytest.mark.parametrize("shipped", [False, True])
def test_the_table_equals_what_holdfast_reads_after_a_long_life(tmp_path: Path, seed: int, shipped: bool):
    live(World(tmp_path, shipped=shipped), Random(f"{seed}-{shipped}"), 120)


def live(world: World, random: Random, steps: int) -> None:
    """A life of so many steps, published now and then."""
    schemas = [SCHEMA]
    shown: dict[str, dict[int, object]] = {"raw": {}, "typed": {}}
    try:
        for _ in range(steps):
            random_step(world, random, schemas)
            for topic in world.log.topics() if random.random() < 0.6 and (world.root / layout.LOG).exists() else ():
                report = world.publisher().publish(topic)
                assert delta_rows(world.table(topic)) == world.expected(topic)
                shown[topic][report.version] = world.expected(topic)
        for topic, history in shown.items():
            for version, rows in history.items():
                assert delta_rows(world.table(topic), version) == rows
    finally:
        world.close()


def test_polars_reads_the_table(world: World):
    """All rows, with the partition where Polars takes it from the table's log."""
    fill(world, rows=7)
    world.publisher().publish("orders")
    url = str(world.table("orders"))
    assert keyed(pl.scan_delta(url, use_pyarrow=True).collect().to_arrow()) == world.expected("orders")
    # Polars' own reader looks for partitions in paths, and finds none; all else is the same.
    own = pl.scan_delta(url).drop("partition").sort("offset", "payload").collect().to_dicts()
    rows = sorted(world.expected("orders").values(), key=lambda row: (row["offset"], row["payload"]))
    assert own == [{name: value for name, value in row.items() if name != "partition"} for row in rows]
    assert pl.scan_delta(url).filter(pl.col("offset") >= 2).collect().height == sum(r["offset"] >= 2 for r in rows)


def test_duckdb_reads_the_table(world: World):
    import duckdb

    try:
        duckdb.sql("load delta")
    except duckdb.Error as error:
        pytest.skip(f"DuckDB's extension is not here: {str(error).splitlines()[0][:80]}")
    fill(world, rows=7)
    world.publisher().publish("orders")
    found = duckdb.sql(f"select * from delta_scan('{world.table('orders').as_uri()}')").to_arrow_table()
    assert keyed(found) == world.expected("orders")


def test_nothing_new_makes_no_commit(world: World):
    fill(world)
    assert world.publisher().publish("orders").state == "published"
    before = files_below(world.root)
    again = world.publisher().publish("orders")
    assert (again.state, again.commits, again.version) == ("unchanged", 0, 0)
    assert files_below(world.root) == before


def test_a_dry_run_writes_nothing_and_tells_what_would_be(world: World):
    fill(world)
    before = files_below(world.root)
    planned = world.publisher().publish("orders", dry_run=True)
    assert (planned.state, planned.added, planned.version) == ("published", 2, -1)
    assert files_below(world.root) == before


def test_a_topic_without_rows_is_an_empty_table(world: World):
    fill(world)
    world.log.topic("typed", schema=SCHEMA)
    world.log.topic("typed", schema="latest").append({"city": "x", "count": 1})
    world.settle()
    world.expire("typed", 0, 1)
    world.publisher().publish("typed")
    table = deltalake.DeltaTable(str(world.table("typed"))).to_pyarrow_table()
    assert (table.num_rows, table.column_names) == (0, ["_partition", "_offset", "_time", "city", "count"])


def test_only_what_is_settled_is_shown(tmp_path: Path):
    """Rows that are sealed here and not on the store are in no table; `txn` says how far each partition is settled."""
    world = World(tmp_path, shipped=True)
    try:
        fill(world, rows=6)
        world.publisher().publish("orders")
        orders = world.log.topic("orders")
        orders.append(b"only here", partition=0)
        report = world.publisher().publish("orders")
        assert report.state == "unchanged"
        table = deltalake.DeltaTable(str(world.table("orders")))
        for partition, marks in enumerate(world.log.marks("orders")):
            assert table.transaction_version(f"holdfast:{world.log.id}:orders:{partition}") == marks.settled
            assert report.settled[str(partition)] == marks.settled
    finally:
        world.close()


def test_rewrites_change_no_data_and_expiries_do(world: World):
    """Streams that follow a table skip what compaction does, and see what retention removes."""
    for _ in range(4):
        fill(world, rows=2, partitions=1)
    world.publisher().publish("orders")
    world.join("orders", 0, 1, 3)
    report = world.publisher().publish("orders")
    assert (report.added, report.removed) == (1, 2)
    assert delta_rows(world.table("orders")) == world.expected("orders")
    assert changes(world, 1) == {"add": [False], "remove": [False, False]}
    world.expire("orders", 0, 1)
    world.publisher().publish("orders")
    assert changes(world, 2) == {"add": [], "remove": [True]}
    assert delta_rows(world.table("orders")) == world.expected("orders")


def test_a_rewrite_of_published_and_new_segments_shows_each_row_once(world: World):
    """First the new rows as they are, then the joined file: a follower of the table misses nothing, and sees nothing
    twice."""
    fill(world, rows=2, partitions=1)
    world.publisher().publish("orders")
    fill(world, rows=2, partitions=1)
    world.join("orders", 0, 0, 2)
    assert world.publisher().publish("orders").commits == 2
    assert changes(world, 1) == {"add": [True], "remove": []}
    assert changes(world, 2) == {"add": [False], "remove": [False, False]}
    assert delta_rows(world.table("orders")) == world.expected("orders")


def test_compaction_of_a_published_topic_changes_no_row(tmp_path: Path):
    """Real compaction, again and again, with rows that settle in between; older versions show what they showed."""
    world, shown = World(tmp_path, shipped=True), []
    for _ in range(3):
        for _ in range(3):
            fill(world, rows=3, partitions=1)
        shown.append((world.publisher().publish("orders").version, world.expected("orders")))
        assert compact(world.place, "orders").files_after < 6
        report = world.publisher().publish("orders")
        assert (report.commits, delta_rows(world.table("orders"))) == (1, world.expected("orders"))
        assert set(changes(world, report.version)["add"]) == {False}
    for version, rows in shown:
        assert delta_rows(world.table("orders"), version) == rows
    # What compaction joined leaves the table as a whole, behind what is retired of it.
    world.expire("orders", 0, 2)
    world.publisher().publish("orders")
    assert set(delta_rows(world.table("orders"))) >= set(world.expected("orders"))
    world.close()


def changes(world: World, version: int) -> dict[str, list[bool]]:
    """The `dataChange` of all files in a commit."""
    import json

    lines = (log_folder(world.table("orders")) / f"{version:020d}.json").read_text().splitlines()
    actions = [json.loads(line) for line in lines]
    return {kind: [action[kind]["dataChange"] for action in actions if kind in action] for kind in ("add", "remove")}


def test_a_full_vacuum_without_retention_takes_nothing_away(world: World):
    """A VACUUM that keeps to the protocol is refused, and nothing is deleted: delta-rs would delete manifests. One that
    does not ask finds nothing to delete but in folders that begin with `_`, which it must not touch."""
    for _ in range(3):
        fill(world, rows=3)
    world.publisher().publish("orders")
    before, rows = files_below(world.root), world.expected("orders")
    table = deltalake.DeltaTable(str(world.table("orders")))
    with pytest.raises(deltalake.exceptions.DeltaError, match="holdfast"):
        table.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False, full=True)
    assert files_below(world.root) == before
    known = {path.removeprefix("file://") for path in table.file_uris()}
    for folder, folders, names in os.walk(world.table("orders")):
        folders[:] = [name for name in folders if not name.startswith(("_", "."))]
        assert {str(Path(folder) / name) for name in names} <= known
    assert world.expected("orders") == rows
    fill(world, rows=2)
    assert world.publisher().publish("orders").state == "published"


def test_nobody_else_may_write(world: World):
    """An engine that keeps to the protocol refuses to write: it does not know our feature."""
    fill(world)
    world.publisher().publish("orders")
    table = deltalake.DeltaTable(str(world.table("orders")))
    for act in (lambda: table.delete(), lambda: table.optimize.compact()):
        with pytest.raises(deltalake.exceptions.DeltaError):
            act()
    assert delta_rows(world.table("orders")) == world.expected("orders")


def test_checkpoints_say_what_the_commits_say(world: World, monkeypatch: pytest.MonkeyPatch):
    """With and without them the table is the same, also when the commits before one are gone, and when it is gone."""
    monkeypatch.setattr(delta_log, "_CHECKPOINT_LEAST", 4)
    for turn in range(13):
        fill(world, rows=2, partitions=1)
        if turn == 6:
            world.expire("orders", 0, 2)
        if turn == 8:
            world.join("orders", 0, 3, 6)
        world.publisher().publish("orders")
    folder, rows = log_folder(world.table("orders")), world.expected("orders")
    checkpoints = sorted(path.name for path in folder.glob("*.checkpoint.parquet"))
    assert len(checkpoints) == 3
    assert checkpoints[-1][:20] == f"{13:020d}"
    assert delta_rows(world.table("orders")) == rows
    for commit in sorted(folder.glob("*.json"))[:13]:
        commit.rename(commit.with_suffix(".gone"))
    assert delta_rows(world.table("orders")) == rows
    for commit in folder.glob("*.gone"):
        commit.rename(commit.with_suffix(".json"))
    for path in (*folder.glob("*.parquet"), folder / "_last_checkpoint"):
        path.unlink()
    assert delta_rows(world.table("orders")) == rows
    fill(world, rows=1, partitions=1)
    assert world.publisher().publish("orders").version == 14


def test_unpublishing_removes_the_table_and_no_data(world: World):
    fill(world)
    before = files_below(world.root)
    world.publisher().publish("orders")
    assert world.publisher().unpublish("orders") == 1
    assert files_below(world.root) == before
    with pytest.raises(holdfast.NotFound):
        world.publisher().unpublish("orders")
    first = world.publisher().publish("orders")
    assert (first.version, delta_rows(world.table("orders"))) == (0, world.expected("orders"))


def test_reconciliation_finds_nothing_wrong_with_a_published_topic(tmp_path: Path):
    world = World(tmp_path, shipped=True)
    try:
        fill(world)
        world.publisher().publish("orders")
        assert not world.log.reconcile(remote=True, deep=True).findings
        assert not world.log.reconcile(deep=True).findings
    finally:
        world.close()
