from __future__ import annotations

from pathlib import Path

import pytest

import holdfast
from tests.cli.conftest import TYPED, Owner, Run, objects, segment_files, tamper

pytestmark = pytest.mark.disk


def test_a_topic_is_described_in_json(run: Run, sealed_log: Path) -> None:
    """Each topic is one object with its kind, what it holds, how far it got and its schemas."""
    result = run("topics", sealed_log, "--json")
    assert (result.exit_code, result.stderr) == (0, "")
    idle, orders, rows = objects(result.stdout)
    assert [(line["topic"], line["kind"], len(line["partitions"])) for line in (idle, orders, rows)] == [
        ("idle", "raw", 2),
        ("orders", "raw", 1),
        ("rows", "typed", 1),
    ]
    assert (orders["records"], orders["tail_records"], orders["segments"]) == (35, 5, 3)
    assert orders["segment_bytes"] == sum(file.stat().st_size for file in segment_files(sealed_log))
    assert orders["partitions"][0]["sealed"] == orders["partitions"][0]["settled"] == 30
    assert (orders["schemas"], orders["retention"]) == ([], None)
    assert [(schema["version"], schema["columns"]) for schema in rows["schemas"]] == [
        (1, {"a": "int64", "s": "string"})
    ]


def test_schema_versions_and_policies_are_reported(run: Run, sealed_log: Path) -> None:
    """A new version of a schema and a retention policy are part of the description."""
    import pyarrow as pa

    with holdfast.open(sealed_log) as opened:
        opened.topic("rows", schema=TYPED.append(pa.field("new", pa.float64())))
        opened.set_retention("rows", records_max=1000)
    rows = objects(run("topics", sealed_log, "--json").stdout)[-1]
    assert [list(schema["columns"]) for schema in rows["schemas"]] == [["a", "s"], ["a", "s", "new"]]
    assert rows["retention"] == {"bytes_max": None, "age_max_us": None, "records_max": 1000}


def test_topics_in_text_is_a_table(run: Run, sealed_log: Path) -> None:
    """In text each partition is a row of an aligned table."""
    table = [line.split() for line in run("topics", sealed_log).stdout.splitlines()]
    assert table[0][:4] == ["topic", "kind", "partition", "records"]
    assert [line[:4] for line in table[1:]] == [
        ["idle", "raw", "0", "0"],
        ["idle", "raw", "1", "0"],
        ["orders", "raw", "0", "35"],
        ["rows", "typed", "0", "3"],
    ]


def test_topics_works_beside_an_owner_and_without_the_key(run: Run, owner: Owner, log: Path, secret_log: Path) -> None:
    """A log that is owned, or encrypted, can be listed; without the key it says that nothing was verified."""
    assert objects(run("topics", log, "--json").stdout)[-1]["records"] == 11
    hidden = run("topics", secret_log, "--json")
    assert (hidden.exit_code, objects(hidden.stdout)[0]["records"]) == (0, 1)
    assert "nothing was verified" in hidden.stderr


def test_an_empty_log_has_no_topics(run: Run, tmp_path: Path) -> None:
    """Without topics it says so in words, and prints no data."""
    holdfast.open(tmp_path / "empty").close()
    result = run("topics", tmp_path / "empty")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "no topics\n")


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_damage_is_reported_and_the_rest_is_shown(run: Run, sealed_log: Path, form: list[str]) -> None:
    """A schema that cannot be read is damage: exit code 3, and the topics are still listed."""
    tamper(sealed_log, "UPDATE schemas SET definition = x'00'")
    result = run("topics", sealed_log, *form)
    assert (result.exit_code, "orders" in result.stdout) == (3, True)
    assert "schema is damaged" in result.stdout + result.stderr
