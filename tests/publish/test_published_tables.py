"""The owner of a log keeps its tables: behind what is settled, by itself, and never at the cost of its own work."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import holdfast
from holdfast import publish_tables, unpublish_tables
from holdfast.cli.program import program
from holdfast.log.upkeep import published_tables
from tests.publish.test_delta_table import fill
from tests.publish.worlds import World, delta_rows, log_folder

pytestmark = pytest.mark.disk

SOON = {"delta": True, "interval_ms": 100}
NEVER = {"delta": True, "interval_ms": 3_600_000}


def until(reached: Callable[[], Any]) -> None:
    """Wait for what a background thread is about to do."""
    import time

    deadline = time.monotonic() + 60
    while not reached():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize("shipped", [False, True])
def test_an_owner_publishes_what_settles(tmp_path: Path, shipped: bool):
    world = World(tmp_path, shipped=shipped, publish=SOON)
    fill(world)
    until(lambda: settled_is_shown(world))
    fill(world)
    until(lambda: settled_is_shown(world))
    assert delta_rows(world.table("orders")) == world.expected("orders")
    stats = world.log.stats().tables
    assert (stats.problems, stats.versions["orders"] + 1) == ({}, stats.commits_total)
    world.close()


def settled_is_shown(world: World) -> bool:
    report = world.publisher().state("orders")
    ends = {str(number): marks.settled for number, marks in enumerate(world.log.marks("orders"))}
    return report is not None and report.settled == ends


@pytest.mark.parametrize("shipped", [False, True])
def test_closing_publishes_what_is_left(tmp_path: Path, shipped: bool):
    world = World(tmp_path, shipped=shipped, publish=NEVER)
    fill(world)
    assert not log_folder(world.table("orders")).exists()
    world.close()
    assert delta_rows(world.table("orders")) == world.expected("orders")


def test_a_table_that_somebody_made_is_kept_up_to_date(tmp_path: Path):
    """Also without publish.delta: one that falls behind is of no use. One that was removed stays removed."""
    world = World(tmp_path, publish={"interval_ms": 100})
    fill(world)
    fill(world, "other")
    publish_tables(world.place, "orders")
    fill(world)
    until(lambda: settled_is_shown(world))
    assert not log_folder(world.table("other")).exists()
    unpublish_tables(world.place)
    fill(world)
    world.close()
    assert not list(log_folder(world.table("orders")).glob("*"))


def test_a_short_run_leaves_no_table_behind(tmp_path: Path):
    """A process that ends before its first look still brings the tables of its own directory up to date."""
    world = World(tmp_path)
    fill(world)
    publish_tables(world.place, "orders")
    fill(world)
    world.close()
    assert delta_rows(world.table("orders")) == world.expected("orders")


def test_a_foreign_commit_raises_an_alarm_and_stops_nothing_else(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    """Sealing, shipping and other topics go on; the table is left alone; after the remedy publishing goes on."""
    world = World(tmp_path, shipped=True, publish=SOON)
    fill(world)
    until(lambda: settled_is_shown(world))
    foreign = log_folder(world.table("orders")) / f"{1:020d}.json"
    foreign.write_text('{"remove":{"path":"x","dataChange":true}}\n')
    fill(world)
    fill(world, "other")
    until(lambda: "orders" in world.log.stats().tables.problems)
    until(lambda: log_folder(world.table("other")).exists())
    assert [record.levelname for record in caplog.records if getattr(record, "action", "") == "table_alarm"] == [
        "ERROR"
    ]
    assert all(marks.settled == marks.durable for marks in world.log.marks("orders"))
    assert foreign.read_text().startswith('{"remove"')
    unpublish_tables(world.place, "orders")
    until(lambda: settled_is_shown(world))
    until(lambda: not world.log.stats().tables.problems)
    assert delta_rows(world.table("orders")) == world.expected("orders")
    world.close()


def test_what_cannot_be_published_is_reported_once_and_stops_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    import pyarrow as pa

    world = World(tmp_path, publish=SOON)
    world.log.topic("bad", schema=pa.schema({"age": pa.uint8()})).append({"age": 1})
    fill(world)
    until(lambda: settled_is_shown(world) and world.log.stats().tables.problems)
    assert "age" in world.log.stats().tables.problems["bad"]
    world.close()
    assert len([record for record in caplog.records if getattr(record, "action", "") == "table_late"]) == 1


def test_retention_of_the_own_directory_tells_the_table_before_files_go(tmp_path: Path):
    """A reader of the table never meets a file that retention has removed."""
    world = World(tmp_path, publish=NEVER, retention={"records_max": 4})
    for _ in range(3):
        fill(world, rows=2, partitions=1)
    publish_tables(world.place)
    for _ in range(4):
        fill(world, rows=2, partitions=1)
        world.log.retain()
        assert set(delta_rows(world.table("orders"))) <= set(world.expected("orders"))
    world.close()


def test_compaction_and_retention_of_the_own_directory_never_break_the_table(tmp_path: Path):
    """The log joins its own files, retires some, and its table is always whole: it shows at least what is left."""
    world = World(tmp_path, publish=NEVER, retention={"records_max": 9})
    publish_later = False
    for turn in range(12):
        fill(world, rows=2, partitions=1)
        if turn % 3 == 2:
            world.log.compact()
        world.log.retain()
        if publish_later:
            assert set(delta_rows(world.table("orders"))) <= {(0, offset) for offset in range(2 * turn + 2)}
            publish_tables(world.place)
            assert set(delta_rows(world.table("orders"))) >= set(world.expected("orders"))
        elif turn == 1:
            publish_tables(world.place)
            publish_later = True
    world.close()


def test_a_defect_in_publishing_stops_neither_retention_nor_sealing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    world = World(tmp_path, publish=SOON, retention={"records_max": 2})

    def broken(self: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(published_tables.PublishedTables, "_publisher", broken)
    for _ in range(4):
        fill(world, rows=2, partitions=1)
    assert world.log.retain().dry_run is False
    assert world.log.marks("orders")[0].settled == 8
    assert len(world.expected("orders")) < 8
    world.close()


def test_an_encrypted_log_says_that_it_cannot_be_published(tmp_path: Path):
    keyring = holdfast.Keyring.generate()
    with holdfast.open(tmp_path / "log", keyring=keyring, settings={"publish": {"delta": True}}) as log:
        assert "encrypted" in log.stats().tables.problems[""]


def test_a_log_that_publishes_nothing_starts_no_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Without a table and without the setting, nothing is written and nothing is loaded when it is closed."""
    monkeypatch.setattr(published_tables.PublishedTables, "_publisher", lambda self: pytest.fail("it looked"))
    world = World(tmp_path)
    fill(world)
    world.close()
    assert not log_folder(world.table("orders")).exists()


# -- the command line ----------------------------------------------------------------------------------------


def run(*arguments: object) -> Any:
    return CliRunner().invoke(program, [str(argument) for argument in arguments])


def test_the_command_line_publishes_shows_and_removes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    import pyarrow as pa

    monkeypatch.chdir(tmp_path)
    world = World(tmp_path)
    world.log.topic("bad", schema=pa.schema({"age": pa.uint8()})).append({"age": 1})
    fill(world)
    dry = run("publish", world.place, "--dry-run")
    assert (dry.exit_code, "would be published" in dry.output) == (0, True)
    assert not log_folder(world.table("orders")).exists()
    done = run("publish", world.place, "--json")
    lines = {line["topic"]: line for line in map(json.loads, done.stdout.splitlines())}
    assert (lines["orders"]["state"], lines["bad"]["state"], done.exit_code) == ("published", "refused", 0)
    assert "age" in lines["bad"]["reason"]
    named = run("publish", world.place, "bad")
    assert (named.exit_code, "age" in named.output) == (1, True)
    fill(world, rows=3)
    for place in (world.place, world.root.as_uri()):
        status = run("status", place, "--json")
        (shown,) = [json.loads(line) for line in status.stdout.splitlines()]
        table = shown["tables"][0] if "tables" in shown else {t["topic"]: t for t in shown["topics"]}["orders"]["table"]
        assert (table["version"], table["rows"]) == (0, 5)
        assert "orders" in run("status", place).stdout
    assert table["lag_records"] == 3
    inspected = [json.loads(line) for line in run("inspect", world.place, "--json").stdout.splitlines()]
    assert [line["rows"] for line in inspected if line["type"] == "table"] == [5]
    (log_folder(world.table("orders")) / f"{1:020d}.json").write_text('{"remove":{"path":"x","dataChange":true}}\n')
    assert run("publish", world.place).exit_code == 1
    assert "another writer" in run("status", world.place).output
    assert run("inspect", world.place).exit_code == 3
    assert run("unpublish", world.place, "orders").exit_code == 0
    assert run("unpublish", world.place, "orders").exit_code == 1
    assert run("publish", world.place, "--as", "iceberg").exit_code == 1
    world.close()


def test_reconciliation_leaves_the_tables_of_topics_alone(tmp_path: Path):
    """A published table is no garbage of the log's own directory, whatever its commits and checkpoints are called; what
    lies below a topic that does not exist still is."""
    with holdfast.open(tmp_path / "log") as log:
        log.topic("orders").append(b"1")
        log.seal()
        publish_tables(tmp_path / "log")
        folder = log_folder(tmp_path / "log/segments/topics/orders")
        (folder / "_last_checkpoint").write_text("{}")
        strange = tmp_path / "log/segments/topics/nobody/_delta_log/00000000000000000000.json"
        strange.parent.mkdir(parents=True)
        strange.write_text("{}")
        before = {path.name for path in folder.iterdir()}
        found = log.reconcile(deep=True, fix=True)
        assert [repair.path for repair in found.repairs] == [strange.relative_to(tmp_path / "log").as_posix()]
        assert {path.name for path in folder.iterdir()} == before
