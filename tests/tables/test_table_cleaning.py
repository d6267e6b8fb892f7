"""Cleaning removes what nobody needs, by its cause, and nothing else."""

from __future__ import annotations

from pathlib import Path

import deltalake
import msgspec
import pyarrow as pa
import pytest

from holdfast.clock import SystemClock
from holdfast.errors import NotFound
from holdfast.store.memory import MemoryStore
from holdfast.store.port import Body
from holdfast.store.s3.s3_store import S3Store
from holdfast.store.store_kinds import open_any_store
from holdfast.tables import table_cleaning, table_replay
from holdfast.tables.data_file import FileWriter
from holdfast.tables.table_layout import DELETED
from holdfast.tables.table_log import TableLog, retention
from holdfast.testing import ManualClock
from tests.publish.counting_store import CountingStore
from tests.store.conftest import prefix, s3_server  # noqa: F401
from tests.store.servers import ACCESS_KEY, REGION, SECRET_KEY, S3Server
from tests.store.shipped_logs import settings, url
from tests.tables.table_worlds import NAME, SCHEMA, World, ordered

HOUR = 3_600


def memory() -> World:
    clock = ManualClock()
    return World(Path("nowhere"), MemoryStore("tables", clock), clock)


def data_files(world: World) -> set[str]:
    return {info.key.removeprefix(f"{NAME}/") for info in world.store.list(f"{NAME}/data/")}


def replaced(world: World, turns: int) -> list[str]:
    """Runs that replace all rows, an hour apart; returns the file of each."""
    paths = []
    for turn in range(turns):
        world.run([{"id": turn, "status": "x"}], removed=world.log().snapshot().files)
        paths.append(world.log().snapshot().files[0].path)
        world.clock.advance(HOUR)
    return paths


@pytest.fixture(params=["by commits", "by the checkpoint"])
def walk(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How cleaning knows what kept versions need: a short history is read, a long one stands in the checkpoint."""
    if request.param == "by the checkpoint":
        monkeypatch.setattr(table_cleaning, "_WALK_MAX", 0)
    return str(request.param)


@pytest.mark.unit
@pytest.mark.sampled(99)
@pytest.mark.usefixtures("walk")
@pytest.mark.parametrize("hours", [0.5, 1.5, 3.5, 100])
def test_versions_of_the_time_that_is_kept_can_be_read_whole(hours: float):
    """Also the one that was the newest when that time began: somebody may read it since then."""
    world = memory()
    paths = replaced(world, 8)
    report = world.log().clean(keep_ms=round(hours * HOUR * 1000))
    oldest = max(0, 7 - int(hours))
    assert data_files(world) == set(paths[oldest:])
    assert (report.files, report.oldest) == (oldest, oldest)
    for version in range(oldest, 8):
        assert world.rows(version) == [{"id": version, "status": "x"}]
    for version in range(oldest):
        with pytest.raises(NotFound) as gone:
            world.rows(version)
        assert gone.value.hint


@pytest.mark.unit
@pytest.mark.usefixtures("walk")
def test_files_of_runs_that_never_committed_go_and_those_of_a_run_that_is_writing_stay():
    world = memory()
    world.run([{"id": 1, "status": "x"}])
    lost = world.write([{"id": 2, "status": "x"}], SCHEMA, 2)  # an attempt of run 2 that died
    running = world.write([{"id": 3, "status": "x"}], SCHEMA, 3)
    foreign = ["data/mine.parquet", "data/notes.txt", "_other/0000000001-ab-0.parquet"]
    for path in foreign:
        world.store.create(f"{NAME}/{path}", Body.of(b"x"))
    assert world.log().clean(keep_ms=0).files == 0, "run 2 may be writing still"
    world.run([{"id": 4, "status": "x"}])
    world.clock.advance(10_000 * HOUR)  # age is no reason
    report = world.log().clean(keep_ms=0)
    assert (report.files, report.bytes) == (1, lost[0].size)
    there = {info.key.removeprefix(f"{NAME}/") for info in world.store.list("") if "_delta_log" not in info.key}
    live = {file.path for file in world.log().snapshot().files}
    assert there == {*live, running[0].path, *foreign}
    assert world.log().clean(keep_ms=0).files == 0


@pytest.mark.unit
@pytest.mark.usefixtures("walk")
def test_deleted_keys_stay_as_long_as_a_kept_version_names_them():
    world = memory()

    def keys(run: int) -> dict[str, str]:
        with FileWriter(world.store, NAME, pa.schema({"id": pa.int64()}), run, "ab", "0", folder=DELETED) as writer:
            writer.write(pa.record_batch({"id": [run]}))
            return {"0": writer.finish()[0].path}

    named = []
    for run in (1, 2, 3):
        named.append(keys(run))
        world.run([{"id": run, "status": "x"}], tombstones=named[-1])
        world.clock.advance(HOUR)

    def there() -> set[str]:
        return {info.key.removeprefix(f"{NAME}/") for info in world.store.list(f"{NAME}/{DELETED}/")}

    world.log().clean(keep_ms=2 * HOUR * 1000)
    assert there() == {path for one in named[1:] for path in one.values()}
    world.log().clean(keep_ms=0)
    assert there() == set(named[-1].values())


@pytest.mark.unit
def test_old_commits_go_once_a_checkpoint_stands_for_them():
    world = memory()
    for turn in range(20):
        world.run([{"id": turn, "status": "x"}])
    before = len(list(world.store.list(f"{NAME}/_delta_log/")))
    rows, runs = world.rows(), world.log().runs()
    report = world.log().clean(keep_ms=0)
    after = len(list(world.store.list(f"{NAME}/_delta_log/")))
    assert report.commits == before - after > 15
    assert world.rows() == rows
    assert world.log().runs() == runs[: len(world.log().runs())]
    assert world.log().version_of_run(20) == 19
    with pytest.raises(NotFound):
        world.log().version_of_run(1)
    world.run([{"id": 99, "status": "x"}])
    assert len(world.rows()) == 21


@pytest.mark.unit
def test_cleaning_costs_what_is_new_and_not_what_is_kept(monkeypatch: pytest.MonkeyPatch):
    """Twenty versions are kept: their files are known from the checkpoint, and none of them is lost."""
    monkeypatch.setattr(table_cleaning, "_WALK_MAX", 4)
    world = memory()
    replaced(world, 40)
    store = CountingStore(world.store)
    report = TableLog(store, NAME, world.clock).clean(keep_ms=20 * HOUR * 1000)
    assert (report.files, report.oldest) == (20, 20)
    assert len([verb for verb, _ in store.requests if verb == "get"]) < 25
    for version in (20, 21, 30, 39):
        assert world.rows(version) == [{"id": version, "status": "x"}]


@pytest.mark.unit
def test_more_files_that_left_than_a_checkpoint_tells_are_read_from_commits(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(table_cleaning, "_WALK_MAX", 0)
    for module in (table_cleaning, table_replay):
        monkeypatch.setattr(module, "TOMBSTONES_MAX", 3)
    world = memory()
    paths = replaced(world, 12)
    world.log().clean(keep_ms=9 * HOUR * 1000 + 1)
    assert data_files(world) == set(paths[2:])


@pytest.mark.unit
def test_a_longer_time_than_checkpoints_tell_is_read_from_commits(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(table_cleaning, "_WALK_MAX", 0)
    world = memory()
    world.run()
    made = world.made()
    change = msgspec.structs.replace(made.change, configuration=retention(2 * HOUR * 1000))
    assert world.log().commit(made.before, change) is not None
    paths = replaced(world, 10)
    world.log().clean(keep_ms=8 * HOUR * 1000 + 1)
    assert data_files(world) == set(paths[1:])


@pytest.mark.unit
def test_a_clock_that_went_back_removes_nothing_that_is_needed():
    world = memory()
    replaced(world, 3)
    world.clock.jump(-1_000 * HOUR)
    replaced(world, 3)
    world.log().clean(keep_ms=0)
    assert world.rows() == [{"id": 2, "status": "x"}]


@pytest.mark.unit
def test_a_clock_that_is_wrong_for_a_while_removes_nothing(walk):
    """Ahead by more than a year, and right again: also where it was wrong while the table was written."""
    world = memory()
    paths = replaced(world, 5)
    for jump in (400, -400):
        world.clock.jump(jump * 24 * HOUR)
        world.log().clean(keep_ms=24 * HOUR * 1000)
        paths += replaced(world, 2)
        world.log().clean(keep_ms=24 * HOUR * 1000)
        assert data_files(world) == set(paths)


@pytest.mark.store
@pytest.mark.usefixtures("s3_server")
def test_a_table_on_s3_is_a_table_to_others(s3_server: S3Server, prefix: str, monkeypatch):  # noqa: F811
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
    clock = SystemClock()
    store = open_any_store(url(prefix), settings(s3_server.endpoint).store, clock)
    assert isinstance(store, S3Store)
    world = World(Path("nowhere"), store, clock)
    rows = []
    for turn in range(8):
        rows.append({"id": turn, "status": "x" * turn})
        removed = world.log().snapshot().files[:1] if turn == 4 else ()
        world.run(rows[-1:], removed=removed)
    rows = ordered(rows[1:])
    mine, other = world.made(rows[:1]), world.made(rows[:1])
    assert world.log().commit(other.before, other.change) is not None
    assert world.log().commit(mine.before, mine.change) is None
    rows = ordered([*rows, rows[0]])
    options = {
        "AWS_ACCESS_KEY_ID": ACCESS_KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
        "AWS_REGION": REGION,
        "AWS_ENDPOINT_URL": s3_server.endpoint,
        "AWS_ALLOW_HTTP": "true",
    }

    def delta_rows() -> list[dict[str, object]]:
        table = deltalake.DeltaTable(f"{url(prefix)}/{NAME}", storage_options=options)
        return ordered(table.to_pyarrow_table().to_pylist())

    assert world.rows() == delta_rows() == rows
    report = world.log().clean(keep_ms=0)
    assert report.files == 2, "the one that was replaced, and the loser's"
    assert world.rows() == delta_rows() == rows
