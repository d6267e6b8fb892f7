"""`holdfast spark read`: one question to a root through a real Spark, in text and as JSON, with our exit codes.

Every JVM costs seconds, so the questions are asked one after the other in one process of their own.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import holdfast
from holdfast import Record
from tests.cli.conftest import Run, segment_files

pytestmark = [pytest.mark.spark, pytest.mark.timeout(450)]

PATIENCE = 400
ASKING = """
import json, sys
from click.testing import CliRunner
from holdfast.cli.program import program

def ask(arguments):
    done = CliRunner().invoke(program, arguments)
    return {"code": done.exit_code, "out": done.stdout, "err": done.stderr}

questions = json.load(sys.stdin)
print("answers:" + json.dumps({name: ask(arguments) for name, arguments in questions.items()}))
"""


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten records in each of two partitions of `orders`, two rows in `rows`; all sealed."""
    path = tmp_path_factory.mktemp("spark") / "log"
    with holdfast.open(path) as opened:
        orders = opened.topic("orders", partitions=2)
        for partition in (0, 1):
            records = [Record(b"%d-%d" % (partition, n), time=n * 10**6, key=b"k") for n in range(10)]
            orders.append_batch(records, partition=partition)
        rows = opened.topic("rows", schema=pa.schema([("name", pa.string()), ("price", pa.float64())]))
        rows.append([{"name": "\x1b[31mred", "price": 1.5}, {"name": "plain"}])
        opened.seal()
    return path


@pytest.fixture(scope="module")
def damaged(log: Path) -> Path:
    """The same with a segment of `orders` that is gone."""
    path = shutil.copytree(log, log.parent / "damaged")
    segment_files(path, "orders", 1)[0].unlink()
    return Path(path)


@pytest.fixture(scope="module")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root that a log ships to, of three segments."""
    path = tmp_path_factory.mktemp("shipped")
    with holdfast.open(path / "log", store=str(path / "root")) as opened:
        for _ in range(3):
            opened.topic("orders").append(b"x")
            opened.seal()
        opened.ship(60)
    return path / "root"


@pytest.fixture(scope="module")
def answers(log: Path, damaged: Path, shipped: Path) -> dict[str, dict[str, Any]]:
    """What is said to each question: exit code, stdout, stderr."""
    read, local = ["spark", "read", str(log)], ["--master", "local[1]"]
    questions = {
        "table": [*read, "orders", "--limit", "2", *local],
        "text": [*read, "rows", "--columns", "_offset,name", *local],
        "json": [*read, "orders", "--where", "partition = 1 and offset >= 4", "--limit", "3", "--json", *local],
        "count": [
            *read,
            "orders",
            "--count",
            "--option",
            "verify=full",
            "--where",
            "timestamp < '1970-01-01 00:00:04'",
            *local,
        ],
        "no topic": [*read, "ordres", "--json", *local],
        "no column": [*read, "orders", "--where", "nothing = 1", *local],
        "compact": ["spark", "compact", str(shipped), "orders", "--json", *local],
        "damaged": ["spark", "read", str(damaged), "orders", "--option", "verify=hash", *local],
    }
    done = subprocess.run(
        [sys.executable, "-c", ASKING],
        input=json.dumps(questions),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        env={**os.environ, "TZ": "UTC"},
        check=False,
    )
    found: dict[str, dict[str, Any]] = json.loads(done.stdout.rpartition("answers:")[2])
    return found


def marks(log: Path) -> str:
    """What was settled of this log's orders."""
    log_id = json.loads((log / "segments/log.json").read_bytes())["log"]
    return f'{{"{log_id}":{{"orders":{{"0":[0,10],"1":[0,10]}}}}}}'


def test_a_table_is_printed_and_words_go_to_stderr(answers: dict[str, dict[str, Any]], log: Path) -> None:
    """Rows on stdout; on stderr which way was taken and how far it is settled."""
    done = answers["table"]
    assert done["code"] == 0, done["err"]
    lines = [line for line in done["out"].splitlines() if line.startswith("|")]
    assert [cell.strip() for cell in lines[0].strip("|").split("|")] == [
        "topic",
        "partition",
        "offset",
        "timestamp",
        "key",
        "value",
        "headers",
        "kind",
    ]
    assert len(lines) == 1 + 2
    assert "reading through " in done["err"]
    assert f"settled: {marks(log)}" in done["err"]


def test_a_payload_does_not_steer_a_terminal(answers: dict[str, dict[str, Any]]) -> None:
    """Escapes are printed as what they are."""
    assert answers["text"]["code"] == 0, answers["text"]["err"]
    assert r"\x1b[31mred" in answers["text"]["out"]
    assert "\x1b" not in answers["text"]["out"]
    assert "price" not in answers["text"]["out"]


def test_rows_come_as_json_and_then_what_was_read(answers: dict[str, dict[str, Any]], log: Path) -> None:
    """One object per row, and one about all of them."""
    assert answers["json"]["code"] == 0, answers["json"]["err"]
    *rows, last = [json.loads(line) for line in answers["json"]["out"].splitlines()]
    assert [(row["partition"], row["offset"], row["headers"]) for row in rows] == [(1, n, None) for n in (4, 5, 6)]
    assert (last["rows"], last["marks"]) == (3, marks(log))
    assert last["path"] in ("native", "format")
    assert last["reason"]


def test_count_prints_a_number(answers: dict[str, dict[str, Any]]) -> None:
    """All rows that match, whatever the limit is."""
    assert (answers["count"]["code"], answers["count"]["out"]) == (0, "8\n"), answers["count"]["err"]


def test_an_option_of_the_format_reaches_it(answers: dict[str, dict[str, Any]]) -> None:
    """verify=full is not for Spark's own reader."""
    assert "reading through format: verify=full" in answers["count"]["err"]


def test_a_topic_that_is_not_there_is_not_found(answers: dict[str, dict[str, Any]]) -> None:
    """Exit code 1, and the error as JSON on the last line, with the topics that there are."""
    assert (answers["no topic"]["code"], answers["no topic"]["out"]) == (1, "")
    error = json.loads(answers["no topic"]["err"].splitlines()[-1])
    assert error["error"] == "NotFound"
    assert "orders" in error["hint"]


def test_what_spark_does_not_understand_is_reported_in_one_line(answers: dict[str, dict[str, Any]]) -> None:
    """Exit code 1, without a traceback."""
    assert answers["no column"]["code"] == 1
    assert "nothing" in answers["no column"]["err"]
    assert "Traceback" not in answers["no column"]["err"]


def test_compaction_prints_its_report(answers: dict[str, dict[str, Any]]) -> None:
    """The same as without Spark."""
    assert answers["compact"]["code"] == 0, answers["compact"]["err"]
    report = json.loads(answers["compact"]["out"])
    assert (report["files_before"], report["files_after"], report["rewritten_rows"]) == (3, 1, 3)


@pytest.mark.parametrize(
    "arguments",
    [
        ["read", "data"],
        ["read", "data", "a", "b"],
        ["read", "data", "a", "--dry-run"],
        ["compact", "data", "--count"],
        ["compact", "data", "--option", "verify=off"],
    ],
)
def test_what_belongs_to_the_other_action_is_wrong_usage(run: Run, arguments: list[str]) -> None:
    """Exit code 2, before Spark is started."""
    done = run("spark", *arguments)
    assert done.exit_code == 2
    assert "starting Spark" not in done.stderr


def test_a_root_that_cannot_be_compacted_is_refused_before_spark_starts(run: Run, log: Path) -> None:
    """A log's own directory, for instance."""
    done = run("spark", "compact", str(log))
    assert done.exit_code == 1
    assert "own directory" in done.stderr
    assert "starting Spark" not in done.stderr


def test_a_missing_segment_is_damage(answers: dict[str, dict[str, Any]]) -> None:
    """Exit code 3, with the segment's key."""
    assert answers["damaged"]["code"] == 3, answers["damaged"]["err"]
    assert "topics/orders/1/segments/" in answers["damaged"]["err"]


def test_options_that_do_not_exist_are_refused_before_spark_starts(run: Run) -> None:
    """Exit code 1, with what was meant."""
    done = run("spark", "read", "data", "orders", "--option", "kering=x")
    assert done.exit_code == 1
    assert "there is no option kering (did you mean keyring?)" in done.stderr
    assert "starting Spark" not in done.stderr


@pytest.mark.parametrize("option", ["verify", "Topic=orders"])
def test_an_option_without_a_value_or_in_place_of_an_argument_is_wrong_usage(run: Run, option: str) -> None:
    """Exit code 2, before Spark is started."""
    done = run("spark", "read", "data", "orders", "--option", option)
    assert done.exit_code == 2
    assert "NAME=VALUE" in done.stderr or "ROOT and TOPIC" in done.stderr
    assert "starting Spark" not in done.stderr


def test_without_pyspark_it_says_what_to_install(run: Run, log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exit code 1, and the command to run."""
    monkeypatch.setitem(sys.modules, "pyspark.sql", None)
    done = run("spark", "read", str(log), "orders")
    assert done.exit_code == 1
    assert "pip install 'holdfast-log[spark]'" in done.stderr
