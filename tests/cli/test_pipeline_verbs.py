"""`holdfast spark pipeline` with a real Spark: run, run again, fail, backfill, and a service that has to stop.

Every JVM costs seconds: there are two, one of a service, one for all questions.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

import holdfast
from pyspark_holdfast.pipeline.run_report import RunReport
from tests.cli.conftest import MAIN, objects
from tests.cli.test_spark import ASKING

pytestmark = [pytest.mark.spark, pytest.mark.timeout(450)]

PATIENCE = 400
FILE = """
import os
import signal
import sys

from pyspark.sql import functions
from pyspark.sql.types import LongType
from pyspark_holdfast.pipeline import Pipeline, count, keyed, table, windowed

import beside


@functions.udf(LongType())
def doubled(number):
    return beside.twice(number)


@table
def copies(orders):
    "Every order, with a number that a function of this file made."
    return orders.select("offset", "timestamp", doubled("offset").alias("double"))


@table(inputs="copies", kind=keyed("double", order_by="offset"))
def latest(copies):
    if "STOPPED_AT_WORK" in os.environ:
        os.kill(os.getpid(), signal.SIGTERM)
    return copies.select("double", "offset")


@functions.udf(LongType())
def refusing(number):
    if BREAKS:
        raise ValueError("this table is broken")
    return number


@table(inputs="orders")
def broken(orders):
    return orders.select(refusing("offset").alias("offset"))


BREAKS = {breaks}
pipeline = Pipeline("shop", root={root!r}, tables={tables!r}, of=[copies, latest, broken])
if __name__ == "__main__":
    sys.exit(pipeline.main())
"""
LOCAL = ["--master", "local[1]"]


class Shop(NamedTuple):
    """A pipeline in a folder, and what it said."""

    folder: Path
    service: dict[str, Any]
    answers: dict[str, dict[str, Any]]
    noise: str
    """What the JVM wrote while it answered."""

    @property
    def reports(self) -> Path:
        return self.folder / "tables" / "_reports"


def fill(root: Path, count: int) -> None:
    with holdfast.open(root) as log:
        log.topic("orders").append_batch([b"%d" % n for n in range(count)])
        log.seal()


def write(folder: Path, name: str, *, breaks: bool) -> Path:
    path = folder / name
    path.write_text(FILE.format(breaks=breaks, root=str(folder / "log"), tables=str(folder / "tables")))
    return path


def served(file: Path) -> dict[str, Any]:
    """A service that has to stop while it works on its second table."""
    arguments = ["spark", "pipeline", "run", str(file), "--every", "1h", "--json", *LOCAL]
    done = subprocess.run(
        [sys.executable, "-c", MAIN, *arguments],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
        env={**os.environ, "STOPPED_AT_WORK": "1"},
    )
    return {"code": done.returncode, "out": done.stdout, "err": done.stderr}


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Shop:
    folder = tmp_path_factory.mktemp("shop")
    (folder / "beside.py").write_text("def twice(number):\n    return 2 * number\n")
    fill(folder / "log", 10)
    fine = str(write(folder, "shop.py", breaks=False))
    service = served(Path(fine))
    fill(folder / "log", 5)
    broken = str(write(folder, "broken.py", breaks=True))
    verbs = ["spark", "pipeline"]
    questions = {
        "behind": [*verbs, "status", fine, "--json"],
        "broken": [*verbs, "run", broken, *LOCAL],
        "only": [*verbs, "run", fine, "--only", "broken", "--json", *LOCAL],
        "nothing": [*verbs, "run", fine, "--json", "--master", "not a master"],
        "backfill": [*verbs, "backfill", fine, "copies", "--from", "run:2", "--json", *LOCAL],
        "status": [*verbs, "status", fine],
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
    assert "answers:" in done.stdout, done.stderr
    return Shop(folder, service, json.loads(done.stdout.rpartition("answers:")[2]), done.stderr)


def outcomes(answer: dict[str, Any]) -> dict[str, str]:
    return {table["name"]: table["outcome"] for table in json.loads(answer["out"])["tables"]}


def test_a_service_ends_cleanly_when_it_is_asked_to(shop: Shop) -> None:
    """SIGTERM at work: the table comes to its commit, no other begins; exit code 0, no traceback on stderr."""
    assert shop.service["code"] == 0, shop.service["err"]
    assert outcomes(shop.service) == {"copies": "written", "latest": "written"}
    assert "Traceback" not in shop.service["err"]
    assert shop.service["err"].splitlines()[-2:] == ["stopped", f"reports: {shop.reports}/index.html"]


def test_progress_is_reported_table_by_table(shop: Shop) -> None:
    """In the order of the run, with rows and seconds, on stderr."""
    lines = [line for line in shop.service["err"].splitlines() if "rows written" in line]
    assert [line.partition(":")[0] for line in lines] == ["copies", "latest"]
    assert lines[0].startswith("copies: 10 rows written")
    assert lines[0].endswith(" s)")


def test_a_run_is_reported_whole(shop: Shop) -> None:
    """What was read, from where to where, and what came of it: as in the report's file."""
    report = msgspec.json.decode(shop.service["out"], type=RunReport)
    copies, latest = report.tables
    assert (copies.rows_in, copies.rows_out, copies.rows, copies.run, copies.version) == (10, 10, 10, 1, 0)
    assert copies.description == "Every order, with a number that a function of this file made."
    assert copies.columns == {"offset": "bigint", "timestamp": "timestamp", "double": "bigint"}
    (orders,) = copies.inputs
    assert (orders.name, orders.begin, orders.end, orders.rows, orders.lag) == ("orders", {"0": 0}, {"0": 10}, 10, 0)
    assert orders.columns["value"] == "binary"
    assert latest.inputs[0].columns["double"] == "bigint"
    kept = [msgspec.json.decode(path.read_bytes(), type=RunReport) for path in (shop.reports / "runs").iterdir()]
    assert report in kept


def test_status_says_how_far_tables_are_behind(shop: Shop) -> None:
    """Before the second run, as JSON; after it, as text."""
    behind = {one["name"]: one for one in objects(shop.answers["behind"]["out"])}
    assert shop.answers["behind"]["code"] == 0, shop.answers["behind"]["err"]
    assert (behind["copies"]["run"], behind["copies"]["rows"], behind["copies"]["inputs"][0]["lag"]) == (1, 10, 5)
    assert behind["copies"]["started_ms"] > 0
    lines = shop.answers["status"]["out"].splitlines()
    assert [line.split()[:2] for line in lines[1:]] == [["copies", "append"], ["latest", "keyed"], ["broken", "append"]]
    assert lines[1].split()[2:5] == ["3", "2", "15"]


def test_a_table_that_fails_is_reported_and_the_others_are_written(shop: Shop) -> None:
    """Exit code 1; what the function raised in a worker, with its line, and no stack of Python's or Java's."""
    done = shop.answers["broken"]
    assert done["code"] == 1
    assert [line.split()[:2] for line in done["out"].splitlines()[1:]] == [
        ["copies", "written"],
        ["latest", "written"],
        ["broken", "failed"],
    ]
    line = FILE.partition("raise ValueError")[0].count("\n") + 1
    assert done["err"].splitlines()[-2] == f"broken: ValueError: this table is broken (broken.py:{line})"
    assert "Traceback" not in done["err"]
    assert "warning" not in done["err"]
    assert "\tat org.apache.spark" not in shop.noise


def test_only_some_tables_run(shop: Shop) -> None:
    """What failed before is made up for."""
    assert shop.answers["only"]["code"] == 0, shop.answers["only"]["err"]
    assert outcomes(shop.answers["only"]) == {"broken": "written"}
    assert json.loads(shop.answers["only"]["out"])["tables"][0]["rows_in"] == 15


def test_nothing_new_starts_no_spark(shop: Shop) -> None:
    """The master is none, and nobody notices."""
    done = shop.answers["nothing"]
    assert done["code"] == 0, done["err"]
    assert set(outcomes(done).values()) == {"unchanged"}
    assert "starting Spark" not in done["err"]


def test_a_backfill_is_reported_as_a_run(shop: Shop) -> None:
    """With its reason, and what must be done next."""
    done = shop.answers["backfill"]
    assert done["code"] == 0, done["err"]
    report = json.loads(done["out"])
    assert (report["reason"], report["tables"][0]["outcome"], report["tables"][0]["rows"]) == (
        "backfill",
        "written",
        15,
    )


def test_the_page_and_the_lineage_tell_of_all_runs(shop: Shop) -> None:
    """Of the service and of all commands after it."""
    page = (shop.reports / "index.html").read_text(encoding="utf-8")
    assert "after the last of 5 runs" in page
    assert "this table is broken" in page
    events = objects((shop.reports / "lineage.jsonl").read_text(encoding="utf-8"))
    ends = [(one["job"]["name"], one["eventType"]) for one in events if one["eventType"] != "START"]
    assert ends.count(("shop.copies", "COMPLETE")) == 3
    assert ends.count(("shop.broken", "FAIL")) == 1
    versions = [
        output["facets"]["version"]["datasetVersion"]
        for one in events
        if (one["job"]["name"], one["eventType"]) == ("shop.copies", "COMPLETE")
        for output in one["outputs"]
    ]
    assert versions == ["0", "1", "2"]
