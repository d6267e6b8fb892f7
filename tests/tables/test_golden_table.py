"""A table that was written once is read forever: by us, and by others."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import deltalake
import pytest

from holdfast.errors import Corrupt, Invalid
from holdfast.store.directory import DirectoryStore
from holdfast.tables.table_commit import TableCommitInfo, TableState
from holdfast.tables.table_log import TableLog
from holdfast.tables.table_run import Position, TableRun
from holdfast.testing import ManualClock
from tests.golden.make_table import NAME, described, make_table

pytestmark = pytest.mark.disk

GOLDEN = Path(__file__).parents[1] / "golden/table"
PAGE = (Path(__file__).parents[2] / "docs/formats/0009-tables.md").read_text(encoding="utf-8")
EXPECTED = json.loads((GOLDEN / "expected.json").read_text())


@pytest.fixture
def table(tmp_path: Path) -> Path:
    shutil.copytree(GOLDEN, tmp_path / "tables")
    return tmp_path / "tables"


def test_every_version_is_read_exactly(table: Path):
    store = DirectoryStore(table, ManualClock())
    log = TableLog(store, NAME, ManualClock())
    for expected in EXPECTED:
        assert described(log.snapshot(expected["version"]), store) == expected
    assert log.snapshot().version == len(EXPECTED) - 1
    assert list(table.rglob("*.checkpoint.parquet"))


def test_others_read_the_same_rows(table: Path):
    for expected in EXPECTED:
        rows = deltalake.DeltaTable(str(table / NAME), version=expected["version"]).to_pyarrow_table().to_pylist()
        ours = [row.replace("zoneinfo.ZoneInfo(key='UTC')", "") for row in expected["rows"]]
        assert sorted(repr(row).replace("zoneinfo.ZoneInfo(key='UTC')", "") for row in rows) == ours


def test_the_same_commits_are_written_today(table: Path, tmp_path: Path):
    """Names, runs, positions and the order of actions; sizes of files are Arrow's business."""
    make_table(tmp_path / "today")

    def outline(path: Path) -> list[tuple[str, list[str]]]:
        found = []
        for commit in sorted(path.glob("*.json")):
            lines = [json.loads(line) for line in commit.read_bytes().splitlines()]
            info = {**lines[0]["commitInfo"], "state": None, "check": None, "previous": None}
            found.append((json.dumps(info), [next(iter(line)) for line in lines]))
        return found

    assert outline(tmp_path / "today" / NAME / "_delta_log") == outline(table / NAME / "_delta_log")
    files = [sorted(found.name for found in place.rglob("*.parquet")) for place in (tmp_path / "today", table)]
    assert files[0] == files[1]


def test_a_golden_table_that_was_damaged_is_refused(table: Path):
    log = TableLog(DirectoryStore(table, ManualClock()), NAME, ManualClock())
    newest = max((table / NAME / "_delta_log").glob("*.json"))
    data = newest.read_bytes()
    newest.write_bytes(data.replace(b'"0":60', b'"0":61'))
    with pytest.raises(Corrupt):
        log.snapshot()
    newest.write_bytes(data[:-1])
    with pytest.raises((Corrupt, Invalid)):
        log.snapshot()


def test_every_field_of_a_commit_is_documented():
    ours = set(TableCommitInfo.__struct_encode_fields__) - {"holdfast"}
    for name in (*ours, *TableRun.__struct_fields__, *Position.__struct_fields__, *TableState.__struct_fields__):
        assert f"`{name}`" in PAGE, name
