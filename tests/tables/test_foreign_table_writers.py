"""Others that write to a pipeline's table, and logs that are not what they should be."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import deltalake
import pyarrow as pa
import pytest
from blake3 import blake3

from holdfast.clock import SystemClock
from holdfast.errors import Corrupt, HoldfastError, Invalid, NotFound
from holdfast.store.directory import DirectoryStore
from holdfast.store.memory import MemoryStore
from holdfast.store.port import Body
from holdfast.tables.table_log import ForeignCommit
from tests.hostile.mutations import EXTREMES, flipped
from tests.tables.table_worlds import NAME, SCHEMA, Row, World

pytestmark = pytest.mark.disk

CLOCK = SystemClock()


@pytest.fixture
def world(tmp_path: Path) -> World:
    made = World(tmp_path, clock=CLOCK)
    for turn in range(5):
        made.run([{"id": turn, "status": "open"}, {"id": turn + 100, "status": None}])
    return made


# -- other writers ------------------------------------------------------------------------------------------------


def new_rows() -> pa.Table:
    return pa.table({"id": [7], "status": ["new"]}, schema=SCHEMA)


def merged(table: deltalake.DeltaTable) -> None:
    merge = table.merge(new_rows(), "target.id = source.id", source_alias="source", target_alias="target")
    merge.when_matched_update_all().when_not_matched_insert_all().execute()


WRITERS: dict[str, Callable[[deltalake.DeltaTable], Any]] = {
    "append": lambda table: deltalake.write_deltalake(table, new_rows(), mode="append"),
    "overwrite": lambda table: deltalake.write_deltalake(table, new_rows(), mode="overwrite"),
    "delete": lambda table: table.delete("id = 1"),
    "update": lambda table: table.update(updates={"status": "'x'"}, predicate="id = 1"),
    "merge": merged,
    "optimize": lambda table: table.optimize.compact(),
    "restore": lambda table: table.restore(1),
    "properties": lambda table: table.alter.set_table_properties({"delta.appendOnly": "true"}),
    "columns": lambda table: table.alter.add_columns(deltalake.schema.Field("more", "string")),
}


@pytest.mark.sampled(99)
@pytest.mark.parametrize("kind", WRITERS)
def test_a_foreign_commit_is_found_and_never_overwritten(world: World, kind: str):
    rows, made = world.rows(), world.made([{"id": 9, "status": "late"}])
    WRITERS[kind](world.delta())
    before = world.files()
    for call in (world.log().snapshot, lambda: world.log().clean(keep_ms=0), lambda: world.log().runs()):
        with pytest.raises(ForeignCommit) as found:
            call()
        assert "remove this commit" in found.value.hint
    assert world.log().commit(made.before, made.change) is None, "its place is taken"
    assert world.files() == before
    assert world.rows(4) == rows, "older versions can be read"
    for version in range(5, 9):  # the remedy
        world.commit_path(version).unlink(missing_ok=True)
    assert world.rows() == rows
    world.run([{"id": 10, "status": "after"}])
    assert len(world.rows()) == len(world.delta_rows()) == len(rows) + 1


def test_a_vacuum_changes_nothing(world: World):
    """Files that left the table are gone, versions that need them too; notes are passed over."""
    world.run([{"id": 0, "status": "x"}], removed=world.log().snapshot().files[:2])
    world.delta().vacuum(dry_run=False, retention_hours=0, enforce_retention_duration=False)
    assert world.log().snapshot().version >= 5
    world.run([{"id": 11, "status": "after"}])
    assert world.rows() == world.delta_rows()
    with pytest.raises(NotFound, match="gone"):
        world.rows(1)


def test_a_table_that_is_not_ours_is_left_alone(tmp_path: Path):
    deltalake.write_deltalake(str(tmp_path / NAME), new_rows())
    world = World(tmp_path)
    with pytest.raises(ForeignCommit):
        world.log().snapshot()
    with pytest.raises(ForeignCommit):
        world.run()


# -- what anybody may have written ------------------------------------------------------------------------------------


def forged(path: Path, change: Callable[[list[dict[str, Any]]], None]) -> bytes:
    """A commit with other content, and the digest that anybody can compute."""
    lines = [json.loads(line) for line in path.read_bytes().splitlines()]
    change(lines)
    return checked(lines)


def checked(lines: list[dict[str, Any]]) -> bytes:
    if lines and isinstance(lines[0].get("commitInfo"), dict):
        lines[0]["commitInfo"].pop("check", None)
    first, *rest = [json.dumps(line, separators=(",", ":")).encode() for line in lines] or [b""]
    body = first[:-2] + b"\n" + b"".join(line + b"\n" for line in rest)
    return first[:-2] + b',"check":"' + blake3(body).hexdigest().encode() + b'"}}' + body[len(first) - 2 :]


def test_a_forged_commit_without_changes_is_read(world: World):
    """The forger of these tests can forge."""
    path, rows = world.commit_path(4), world.rows()
    path.write_bytes(forged(path, lambda lines: None))
    assert world.rows() == rows


def set_in(where: str, value: Any) -> Callable[[list[dict[str, Any]]], None]:
    """Set `add.size` and the like, in the first line that has it."""

    def change(lines: list[dict[str, Any]]) -> None:
        *parents, name = where.split(".")
        found: Any = next(line for line in lines if parents[0] in line)
        for parent in parents:
            found = found[parent]
        found[name] = value

    return change


FORGED: dict[str, Callable[[list[dict[str, Any]]], None]] = {
    "a newer format": set_in("commitInfo.holdfast.format", 2),
    "another table": set_in("commitInfo.holdfast.table", "other"),
    "another run": set_in("commitInfo.holdfast.run", 9),
    "a negative mark": set_in("commitInfo.holdfast.reads", {"raw": {"source": "log", "marks": {"0": -5}}}),
    "a mark beyond": set_in("commitInfo.holdfast.reads", {"raw": {"source": "log", "marks": {"0": 2**63}}}),
    "other rows": set_in("commitInfo.state.rows", 3),
    "another digest": set_in("commitInfo.state.digest", "0" * 32),
    "a digest that is none": set_in("commitInfo.state.digest", "x" * 32),
    "another commit before": set_in("commitInfo.previous", "0" * 64),
    "a path outside": set_in("add.path", "../../etc/passwd"),
    "an absolute path": set_in("add.path", "file:///etc/passwd"),
    "a hidden path": set_in("add.path", "_deleted/0000000005-ab-0-0.parquet"),
    "another size": set_in("add.size", 1),
    "no size": set_in("add.size", None),
    "a huge size": set_in("add.size", 2**62),
    "a partition": set_in("add.partitionValues", {"x": "1"}),
    "stats of text": set_in("add.stats", "none"),
    "a deletion vector": set_in("add.deletionVector", {"storageType": "u"}),
    "a run of text": set_in("add.tags", {"run": "one"}),
    "no tags": set_in("add.tags", {}),
    "a file twice": lambda lines: lines.append(lines[-1]),
    "a file that is not there": lambda lines: lines.append(
        {"remove": {"path": "x", "deletionTimestamp": 1, "dataChange": True, "extendedFileMetadata": True,
                    "partitionValues": {}, "size": 1, "tags": {}}}),
    "an unknown action": lambda lines: lines.append({"domainMetadata": {"domain": "x"}}),
    "a protocol alone": lambda lines: lines.insert(1, {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7}}),
    "no actions": lambda lines: lines.__delitem__(slice(1, None)),
    "two infos": lambda lines: lines.append(lines[0]),
    "two in a line": lambda lines: lines[1].update(lines[2]),
}  # fmt: skip


@pytest.mark.sampled(99)
@pytest.mark.parametrize("kind", FORGED)
def test_a_forged_commit_is_a_typed_error(world: World, kind: str):
    path = world.commit_path(4)
    path.write_bytes(forged(path, FORGED[kind]))
    before = world.files()
    for call in (world.rows, world.run):
        with pytest.raises((Corrupt, Invalid)) as found:
            call()
        assert found.value.hint
    assert {name: data for name, data in world.files().items() if "/data/" not in name} == {
        name: data for name, data in before.items() if "/data/" not in name
    }


def test_a_protocol_that_asks_for_more_is_refused(tmp_path: Path):
    world = World(tmp_path)
    world.run([{"id": 1, "status": "x"}])
    for reader, writer, features in ((2, 5, None), (3, 7, ["deletionVectors"]), (1, 4, None)):
        protocol = {"minReaderVersion": reader, "minWriterVersion": writer}
        protocol |= {} if features is None else {"readerFeatures": features, "writerFeatures": features}
        path = world.commit_path(0)
        path.write_bytes(forged(path, protocol_of(protocol)))
        with pytest.raises((Invalid, Corrupt)) as found:
            world.rows()
        assert found.value.hint


def protocol_of(protocol: dict[str, Any]) -> Callable[[list[dict[str, Any]]], None]:
    def change(lines: list[dict[str, Any]]) -> None:
        next(line for line in lines if "protocol" in line)["protocol"] = protocol

    return change


def test_odd_things_in_place_of_a_commit_are_typed_errors(world: World, tmp_path: Path):
    odd = {
        "empty": b"", "no json": b"\x00\xff" * 100, "half": world.commit_path(4).read_bytes()[:-9], "a list": b"[1]\n",
        "deep": b'{"commitInfo":' * 50_000, "many": b"{}\n" * 50_000, "long": b'{"add":"' + b"x" * 2_000_000 + b'"}\n',
        "many checked": checked([json.loads(world.commit_path(4).read_bytes().splitlines()[0]), *({},) * 400_000]),
    }  # fmt: skip
    for what, data in odd.items():
        world.commit_path(5).write_bytes(data)
        with pytest.raises((Corrupt, Invalid)) as found:
            world.rows()
        assert found.value.hint, what
    with world.commit_path(5).open("wb") as stream:
        stream.truncate(2**40)
    with pytest.raises(Corrupt):
        world.rows()
    world.commit_path(5).unlink()
    os.symlink(world.commit_path(4), world.commit_path(5))
    assert len(world.rows()) == 10, "a link is no object"


def test_a_hint_that_makes_no_sense_is_passed_over(world: World):
    rows = world.rows()
    for hint in (
        b"",
        b"{",
        b'{"version":"x"}',
        b'{"version":-3}',
        b'{"version":999}',
        b'{"version":1}',
        b"x" * 100_000,
    ):
        (world.commits / "_last_checkpoint").write_bytes(hint)
        assert world.rows() == rows


# -- anything, changed by chance --------------------------------------------------------------------------------------


def objects_of(world: World) -> dict[str, bytes]:
    return {info.key: world.store.get(info.key, 2**30) for info in world.store.list("")}


def laid_out(objects: dict[str, bytes]) -> World:
    store = MemoryStore("hostile", CLOCK)
    for key, data in objects.items():
        store.create(key, Body.of(data))
    return World(Path("nowhere"), store, CLOCK)


def damaged(chance: Random, objects: dict[str, bytes], key: str) -> bytes | None:
    data = objects[key]
    way = chance.randrange(8)
    if way < 2 and key.endswith(".json"):  # one digit of a number: it is JSON still
        at = chance.choice([at for at, letter in enumerate(data) if chr(letter).isdigit()])
        return data[:at] + b"%d" % chance.randrange(10) + data[at + 1 :]
    if way < 4:
        return flipped(chance, data)
    return (data[: chance.randrange(len(data))], data + chance.randbytes(9), chance.choice([*objects.values()]), None)[
        way - 4
    ]


Contents = tuple[list[Row], object]
"""Rows, and how far the inputs were read."""


def contents_of(world: World, version: int | None = None) -> Contents:
    snapshot = world.log().snapshot(version)
    return world.rows_of(snapshot), None if snapshot.run is None else snapshot.run.reads


def versions_of(world: World) -> list[Contents]:
    return [contents_of(world, version) for version in range(world.log().snapshot().version + 1)]


def test_damage_never_gives_other_rows_or_positions_than_those_of_a_version(world: World, seed: int, some: Any):
    """One object of a table is damaged, swapped or removed: an error of ours, or what some version was."""
    world.run([{"id": 50, "status": "x"}], removed=world.log().snapshot().files[:1])
    expected, objects = versions_of(world), objects_of(world)
    outcomes = {"rows": 0, "refused": 0}
    for case in some(range(600), 150):
        chance = Random(seed + case)
        key = chance.choice(sorted(objects))
        spoiled = damaged(chance, objects, key)
        changed = {name: data for name, data in {**objects, key: spoiled}.items() if data is not None}
        try:
            found = contents_of(laid_out(changed))
        except (Corrupt, Invalid, NotFound):
            outcomes["refused"] += 1
        else:
            assert found in (*expected, ([], None)), (case, key)
            assert found[0] or key.endswith(".json"), (case, key)
            outcomes["rows"] += 1
    assert min(outcomes.values()) > 20, outcomes


def other(chance: Random, value: Any) -> Any:
    if isinstance(value, dict):
        name = chance.choice([*value, "new"])
        return {**value, name: other(chance, value.get(name, 0))}
    if isinstance(value, list):
        return [other(chance, one) for one in value] or [{}]
    if isinstance(value, bool) or value is None or chance.random() < 0.2:
        return chance.choice((None, True, "", [], {}, 1.5, "x" * 10_000, [[]] * 100))
    if isinstance(value, int):
        return chance.choice((value + 1, value - 1, *EXTREMES))
    return chance.choice((value[:-1], value + "0", "../../x", "a\0b", "0" * len(value), "{}", '{"type":"struct"}'))


def test_forged_values_are_rows_or_errors_of_ours(world: World, seed: int, some: Any):
    """Somebody computes the digests anew: then it is his table, but nothing worse."""
    objects = objects_of(world)
    keys = [key for key in objects if key.endswith(".json")]
    for case in some(range(600), 80):
        chance = Random(seed + case)
        key = chance.choice(keys)
        lines = [json.loads(line) for line in objects[key].splitlines()]
        at = chance.randrange(len(lines))
        lines[at] = other(chance, lines[at])
        table = laid_out({**objects, key: checked(lines)})
        for call in (table.rows, table.log().runs, table.run):
            try:
                call()
            except HoldfastError as error:
                assert error.hint, (case, key)


def test_links_in_the_table_are_not_followed(world: World, tmp_path: Path):
    outside = tmp_path / "outside"
    (world.table / "data").rename(outside)
    os.symlink(outside, world.table / "data")
    with pytest.raises(HoldfastError):
        World(tmp_path, DirectoryStore(tmp_path, CLOCK)).rows()
