"""A table's log: versions, runs, races, growth, and commits that come too late."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest

from holdfast.clock import SystemClock
from holdfast.errors import Corrupt, Invalid, NotFound
from holdfast.store.memory import MemoryStore
from holdfast.store.port import Body, Store, StoreUnavailable
from holdfast.tables import log_reading, table_log
from holdfast.tables.table_log import TableLog, retention
from tests.publish.counting_store import CountingStore
from tests.sampling import Some
from tests.tables.table_worlds import NAME, SCHEMA, Died, FaultyStore, World, ordered

pytestmark = pytest.mark.disk

ROW = {"id": 1, "status": "open"}
NOTE = b'{"commitInfo":{"timestamp":1,"operation":"VACUUM START","operationParameters":{}}}\n'


def rows_of(first: int, count: int = 1) -> list[dict[str, object]]:
    return [{"id": first + at, "status": "open"} for at in range(count)]


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


@pytest.fixture
def memory() -> World:
    clock = SystemClock()
    return World(Path("nowhere"), MemoryStore("tables", clock), clock)


# -- versions and runs ----------------------------------------------------------------------------------------


def test_where_there_is_no_table_there_is_an_empty_snapshot(memory: World):
    snapshot = memory.log().snapshot()
    assert (snapshot.version, snapshot.files, snapshot.run, snapshot.schema) == (-1, (), None, None)
    assert memory.log().runs() == []
    for call in (lambda: memory.log().snapshot(0), lambda: memory.log().version_of_run(1)):
        with pytest.raises(NotFound):
            call()
    assert memory.log().clean(keep_ms=0).files == 0


def test_rows_and_positions_are_one_commit(world: World):
    """A reader that has the rows has the position, of each version, with and without checkpoints."""
    for turn in range(1, 9):
        world.run(rows_of(turn))
        for version in range(turn):
            snapshot = world.log().snapshot(version)
            assert snapshot.run is not None
            assert snapshot.run.reads["raw"].marks == {"0": 10 * (version + 1)}
            assert len(world.rows(version)) == version + 1
    assert world.log().snapshot().checkpoint > 0
    assert [(version, run.run) for version, run in world.log().runs(3)] == [(7, 8), (6, 7), (5, 6)]


def test_history_tells_others_what_happened(world: World):
    world.run(rows_of(1))
    world.run(rows_of(2), removed=world.log().snapshot().files)
    history = world.delta().history()
    assert [entry["operation"] for entry in history] == ["WRITE", "WRITE"]
    assert [entry["operationParameters"]["mode"] for entry in history] == ["Overwrite", "Append"]
    assert world.delta().metadata().name == NAME
    assert world.delta().metadata().configuration["delta.deletedFileRetentionDuration"] == "interval 604800 seconds"
    assert (world.delta().protocol().min_reader_version, world.delta().protocol().min_writer_version) == (1, 2)


def test_time_travel_by_run_passes_notes(world: World):
    """Somebody's VACUUM noted that it was here; runs and versions are no longer the same numbers."""
    world.run(rows_of(1))
    world.commit_path(1).write_bytes(NOTE)
    world.commit_path(2).write_bytes(NOTE)
    for turn in (2, 3, 4, 5):
        world.run(rows_of(turn))
    assert [world.log().version_of_run(run) for run in range(1, 6)] == [0, 3, 4, 5, 6]
    for run in (0, 6, -1):
        with pytest.raises(NotFound):
            world.log().version_of_run(run)
    assert len(world.rows(world.log().version_of_run(3))) == 3
    assert world.delta_rows() == world.rows()


def test_the_configuration_is_what_the_last_change_said(world: World):
    world.run(rows_of(1))
    made = world.made(rows_of(2))
    change = msgspec.structs.replace(made.change, configuration={"holdfast.buckets": "32", **retention(3_600_000)})
    world.log().commit(made.before, change)
    world.run(rows_of(3))
    for version, buckets in ((0, None), (1, "32"), (2, "32")):
        assert world.log().snapshot(version).configuration.get("holdfast.buckets") == buckets
    assert world.delta().metadata().configuration["delta.deletedFileRetentionDuration"] == "interval 3600 seconds"


# -- races --------------------------------------------------------------------------------------------------------


def test_of_two_runs_at_once_one_is_committed(world: World):
    world.run(rows_of(1))
    mine, other = world.made(rows_of(2)), world.made(rows_of(3))
    assert world.log().commit(other.before, other.change) is not None
    assert world.log().commit(mine.before, mine.change) is None
    assert world.rows() == world.delta_rows() == ordered([*rows_of(1), *rows_of(3)])
    with pytest.raises(Invalid, match="next run"):
        world.log().commit(world.log().snapshot(), mine.change)
    assert world.log().clean(keep_ms=10**9).files == 1, "the loser's file"


@pytest.mark.parametrize("fault", ["before", "after"])
def test_a_lost_reply_is_recognised(memory: World, fault: str):
    """Of each request of a commit, with its checkpoint: the store did it, or did not, and says neither."""
    for turn in range(3):
        memory.run(rows_of(turn))
    at, outcomes = 0, []
    while not outcomes or outcomes[-1] != "done":
        at += 1
        copy = World(memory.path, copied(memory.store), memory.clock)
        made = copy.made(rows_of(50))
        store = FaultyStore(copy.store, fault, at)
        try:
            after = TableLog(store, NAME, memory.clock).commit(made.before, made.change)
        except StoreUnavailable:
            after = copy.log().snapshot()  # while it looked behind itself; the next snapshot tells
            outcomes.append("refused")
        else:
            outcomes.append("repeated" if store.steps >= at else "done")
        assert after is not None, at
        assert after.version == 3, at
        assert copy.rows() == ordered([*memory.rows(), *rows_of(50)]), at
    assert outcomes[0] == "repeated"
    assert at > 5


def test_a_lost_reply_is_ours_and_another_commit_in_our_place_is_not(memory: World):
    store = FaultyStore(memory.store)
    mine = World(memory.path, store, memory.clock)
    made, other = mine.made(rows_of(1)), memory.made(rows_of(1))
    store.fault, store.at = "after", store.steps + 1
    assert mine.log().commit(made.before, made.change) is not None
    assert memory.log().commit(other.before, other.change) is None
    assert len(memory.rows()) == 1


@pytest.mark.parametrize("die", ["die", "die after"])
def test_killed_between_any_two_requests_the_table_is_the_one_before_or_the_one_after(
    memory: World, die: str, some: Some
):
    """Files, commit, checkpoint, hint, cleaning: at each step the process is gone; the next one goes on."""
    for turn in range(4):
        memory.run(rows_of(turn))
    before, new = memory.rows(), rows_of(50)
    removed = memory.log().snapshot().files[:1]
    after = ordered([row for row in [*before, *new] if row["id"] != 0])

    def attempt(store: FaultyStore) -> None:
        faulty = World(memory.path, store, memory.clock)
        made = faulty.made(new, removed=removed)
        faulty.log().commit(made.before, made.change)
        faulty.log().clean(keep_ms=0)

    counted = FaultyStore(copied(memory.store))
    attempt(counted)
    assert counted.steps > 20
    for at in some(range(1, counted.steps + 1), 12):
        copy = World(memory.path, copied(memory.store), memory.clock)
        with pytest.raises(Died):
            attempt(FaultyStore(copy.store, die, at))
        assert copy.rows() in (before, after), at
        copy.run(rows_of(60))
        copy.log().clean(keep_ms=0)
        names = [info.key for info in copy.store.list(f"{NAME}/data/")]
        assert len(names) == len(copy.log().snapshot().files), "nothing is left of the one that died"


def copied(store: Store) -> MemoryStore:
    made = MemoryStore("copy", SystemClock())
    for info in store.list(""):
        made.create(info.key, Body.of(store.get(info.key)))
    return made


def add_rows(world: World, first: int, count: int) -> None:
    for at in range(first, first + count):
        while True:
            made = world.made(rows_of(at))
            if world.log().commit(made.before, made.change) is not None:
                break


def test_threads_at_once_commit_each_row_once_while_others_clean(memory: World):
    def clean() -> None:
        for _ in range(20):
            memory.log().clean(keep_ms=0)
            assert len(memory.rows()) >= 0

    with ThreadPoolExecutor(5) as threads:
        adding = [threads.submit(add_rows, memory, 100 * number, 12) for number in range(3)]
        cleaning = [threads.submit(clean) for _ in range(2)]
        for one in (*adding, *cleaning):
            one.result()
    assert [row["id"] for row in sorted(memory.rows(), key=lambda row: row["id"])] == [
        100 * number + at for number in range(3) for at in range(12)
    ]
    assert memory.log().snapshot().version == 35


@pytest.mark.crash
def test_processes_at_once_commit_each_row_once(tmp_path: Path):
    command = [sys.executable, "-m", "tests.tables.test_table_log", str(tmp_path)]
    processes = [subprocess.Popen([*command, str(100 * number)]) for number in range(2)]
    assert [process.wait() for process in processes] == [0, 0]
    world = World(tmp_path)
    assert [row["id"] for row in world.delta_rows()] == [row["id"] for row in world.rows()]
    assert {row["id"] for row in world.rows()} == {100 * number + at for number in range(2) for at in range(6)}
    assert world.log().snapshot().version == 11


# -- commits that come too late -----------------------------------------------------------------------------------


def late(world: World) -> tuple[World, object]:
    """A run that fell asleep before its commit; meanwhile its place in the log was taken and cleaned."""
    world.run(rows_of(1))
    made = world.made(rows_of(50))
    for turn in range(2, 12):
        world.run(rows_of(turn))
    world.log().clean(keep_ms=0)
    assert not world.commit_path(1).exists()
    return world, made


def test_a_commit_into_a_cleaned_place_is_taken_back(world: World):
    world, made = late(world)
    before = world.rows()
    assert world.log().commit(made.before, made.change) is None
    assert not world.commit_path(1).exists()
    assert world.rows() == world.delta_rows() == before


def test_a_commit_into_a_cleaned_place_that_nobody_takes_back_is_never_seen(world: World):
    world, made = late(world)
    before = world.rows()
    store = FaultyStore(world.store, "die after", 1)
    with pytest.raises(Died):
        TableLog(store, NAME, world.clock).commit(made.before, made.change)
    assert world.commit_path(1).exists()
    (world.commits / "_last_checkpoint").unlink()  # so that the whole log is looked at
    assert world.rows() == before
    world.run(rows_of(99))
    world.log().clean(keep_ms=0)
    assert not world.commit_path(1).exists()
    assert world.rows() == world.delta_rows() == ordered([*before, *rows_of(99)])


def test_a_first_commit_that_comes_too_late_is_no_version_of_the_table(world: World):
    """Two runs began before there was a table. One fell asleep, and died when it had committed, much later."""
    made = world.made(rows_of(50))
    for turn in range(1, 12):
        world.run(rows_of(turn))
    world.log().clean(keep_ms=0)
    with pytest.raises(Died):
        TableLog(FaultyStore(world.store, "die after", 1), NAME, world.clock).commit(made.before, made.change)
    assert world.commit_path(0).exists()
    with pytest.raises(NotFound):
        world.log().snapshot(0)
    (world.commits / "_last_checkpoint").unlink()
    assert len(world.rows()) == 11
    assert world.log().runs()[-1][1].run > 1


def test_a_commit_in_a_hole_that_is_just_being_cleaned_is_taken_back(world: World):
    """Only its own place was removed yet: the commits around it are still there, and do not follow it."""
    world.run(rows_of(1))
    made = world.made(rows_of(50))
    for turn in range(2, 12):
        world.run(rows_of(turn))
    before = world.rows()
    world.commit_path(1).unlink()
    assert world.log().commit(made.before, made.change) is None
    assert world.rows() == before


# -- what is refused ------------------------------------------------------------------------------------------------


def test_a_change_that_does_not_fit_is_refused_before_anything_is_written(world: World):
    world.run(rows_of(1))
    made = world.made(rows_of(2))
    run, change = made.change.run, made.change
    replace = msgspec.structs.replace
    wrong = {
        "another table": replace(change, run=replace(run, table="other")),
        "another pipeline": replace(change, run=replace(run, pipeline="other")),
        "a run too far": replace(change, run=replace(run, run=5)),
        "the same run": replace(change, run=replace(run, run=1)),
        "a file twice": replace(change, added=(*change.added, *change.added)),
        "a file of another run": replace(change, added=made.before.files),
        "a file of a later run": replace(change, added=(replace(change.added[0], run=9),)),
        "a file elsewhere": replace(change, added=(replace(change.added[0], path="../x.parquet"),)),
        "stats that are none": replace(change, added=(replace(change.added[0], stats="{}"),)),
        "a file that is not there": replace(change, removed=change.added),
    }
    before = world.files()
    for what, one in wrong.items():
        with pytest.raises(Invalid) as refused:
            world.log().commit(made.before, one)
        assert refused.value.hint, what
    assert world.files() == before


def test_a_table_has_a_limited_number_of_files(memory: World, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(table_log, "FILES_MAX", 2)
    for turn in range(2):
        memory.run(rows_of(turn))
    with pytest.raises(Invalid, match="too many files") as refused:
        memory.run(rows_of(2))
    assert refused.value.hint
    memory.run(memory.rows(), removed=memory.log().snapshot().files, is_rewrite=True)
    memory.run(rows_of(2))
    assert len(memory.rows()) == 3


def test_rows_of_an_older_run_may_be_computed_again(world: World):
    """A backfill writes files anew, which stand for the rows of the run that they replace."""
    for turn in (1, 2, 3):
        world.run(rows_of(turn))
    made = world.made(rows_of(2), removed=world.log().snapshot().files[1:2], reason="backfill")
    change = msgspec.structs.replace(
        made.change, added=tuple(msgspec.structs.replace(file, run=2) for file in made.change.added)
    )
    world.log().commit(made.before, change)
    assert sorted(file.run for file in world.log().snapshot().files) == [1, 2, 3]
    world.log().clean(keep_ms=0)
    assert world.rows() == world.delta_rows() == ordered([row for turn in (1, 2, 3) for row in rows_of(turn)])


def test_a_table_grows_by_columns_only(world: World):
    world.run(rows_of(1))
    more = pa.schema([*SCHEMA, pa.field("at", pa.timestamp("us"))])
    world.run([{"id": 2, "status": None, "at": None}], more)
    assert world.delta().protocol().reader_features == ["timestampNtz"]
    assert world.rows() == world.delta_rows()
    assert [column.name for column in world.delta().schema().fields] == ["id", "status", "at"]
    assert world.log().snapshot(0).schema == SCHEMA
    for wrong, what in (
        (SCHEMA, "missing"),
        (pa.schema([pa.field("id", pa.int32()), *list(more)[1:]]), "another type"),
        (pa.schema([*more, pa.field("odd name", pa.int32())]), "odd name"),
        (pa.schema([*more, pa.field("u", pa.uint8())]), "'u'"),
    ):
        with pytest.raises(Invalid, match=what) as refused:
            world.log().commit(*vars_of(world, wrong))
        assert refused.value.hint


def vars_of(world: World, schema: pa.Schema) -> tuple[object, object]:
    made = world.made()
    return made.before, msgspec.structs.replace(made.change, schema=schema)


def test_a_snapshot_table_may_have_other_columns_once_all_rows_are_replaced(world: World):
    world.run(rows_of(1), kind="snapshot")
    other = pa.schema({"id": pa.string(), "n": pa.int32()})
    files = world.log().snapshot().files
    with pytest.raises(Invalid):
        world.run([{"id": "a", "n": 1}], other, kind="snapshot")
    world.log().clean(keep_ms=10**9)
    world.run([{"id": "a", "n": 1}], other, files, kind="snapshot")
    assert world.rows() == world.delta_rows() == [{"id": "a", "n": 1}]
    assert world.rows(0) == world.delta_rows(0) == rows_of(1)


# -- cost -------------------------------------------------------------------------------------------------------------


def requests(world: World) -> CountingStore:
    store = CountingStore(world.store)
    TableLog(store, NAME, world.clock).snapshot()
    return store


def test_opening_costs_what_is_new_since_the_checkpoint(memory: World):
    """Three requests and one per commit since; with ten times the history it is the same."""
    counts = []
    for turns in (7, 70):
        while memory.log().snapshot().version < turns:
            memory.run()
        counts.append(requests(memory).steps)
    assert max(counts) <= 8, counts


def test_a_checkpoint_that_cannot_be_used_costs_time_and_no_rows(world: World, caplog: pytest.LogCaptureFixture):
    for turn in range(8):
        world.run(rows_of(turn))
    before = world.rows()
    for found in world.commits.glob("*.checkpoint.parquet"):
        found.write_bytes(found.read_bytes()[:-100] + bytes(100))
    assert world.rows() == before
    assert "cannot be used" in caplog.text
    for found in world.commits.glob("*.checkpoint.parquet"):
        found.unlink()
    (world.commits / "_last_checkpoint").unlink()
    world.delta().create_checkpoint()  # somebody else's, in its own form
    assert world.rows() == before


def test_too_many_commits_are_not_read(memory: World, monkeypatch: pytest.MonkeyPatch):
    for turn in range(3):
        memory.run(rows_of(turn))
    monkeypatch.setattr(log_reading, "_REPLAY_COMMITS_MAX", 2)
    memory.store.delete([info.key for info in memory.store.list(f"{NAME}/_delta_log/") if "checkpoint" in info.key])
    with pytest.raises(Corrupt, match="more than can be read"):
        memory.rows()


if __name__ == "__main__":
    add_rows(World(Path(sys.argv[1]), clock=SystemClock()), int(sys.argv[2]), 6)
