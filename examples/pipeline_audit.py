"""An audit trail on an encrypted log: who did what, what was denied, and whether anything is missing.

    python -m examples.pipeline_audit [DIRECTORY]
    cd DIRECTORY; holdfast spark pipeline run …/pipeline_audit.py --root store --tables tables --keyring file:keyring

Services append what happens as JSON to the topic `audit`, each with a number of its own. Whoever can read the store
sees nothing of it; Spark decrypts with a keyring that it finds by its reference. Each service counts its events, so an
event that never came is a hole in its numbers: `completeness` finds it. One service is down between the two runs, and
sends what it kept when it is back.

The tables are not encrypted: keep them where only those may look who may read the trail.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zlib import crc32

import holdfast
from holdfast import Keyring, Record
from pyspark_holdfast.pipeline import Pipeline, append, count, max_of, min_of, snapshot, table, whole, windowed
from pyspark_holdfast.pipeline.builtin import bronze, health

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

START = datetime(2026, 6, 1, tzinfo=UTC)
EVENTS_PER_PART = 300
SERVICES = ("billing", "files", "login")
ACTORS = ("ada", "ada", "brian", "edsger", "grace", "grace", "ken", "mallory")
ACTIONS = {"billing": ("refund", "view_invoice"), "files": ("read", "write", "share"), "login": ("sign_in", "sign_out")}
SCHEMA = "service string, number long, actor string, action string, object string, outcome string, at timestamp"
NEVER_SENT = ("files", 17)
"""An event that its service lost."""
HELD_BACK = range(60, 80)
"""Numbers of `billing` that come with the second part."""


# -- the tables ---------------------------------------------------------------------------------------------

trail = bronze("audit", schema=SCHEMA, called="trail")
"""Every event, decoded; what cannot be decoded stays, with its bytes."""


@table(
    inputs="trail",
    kind=windowed(
        "at",
        "1d",
        by=["actor", "action", "outcome"],
        values={"events": count(), "first": min_of("at"), "last": max_of("at")},
    ),
)
def activity(trail: DataFrame) -> DataFrame:
    """Who did what, by day."""
    return trail.where("_problem IS NULL")


@table(inputs="trail", kind=append())
def denied(trail: DataFrame) -> DataFrame:
    """Every attempt that was denied, with its place in the log: that is where the proof is."""
    return trail.where("outcome = 'denied'").select(
        "_partition", "_offset", "at", "actor", "service", "action", "object"
    )


@table(inputs=whole("trail"), kind=snapshot())
def completeness(trail: DataFrame) -> DataFrame:
    """Of each service: how many events there are, and which of its numbers are missing."""
    from pyspark.sql import functions as F  # noqa: N812

    numbers = (
        trail.where("_problem IS NULL")
        .groupBy("service")
        .agg(F.count("*").alias("events"), F.max("number").alias("newest"), F.collect_set("number").alias("there"))
    )
    wanted = F.sequence(F.lit(0).cast("long"), F.col("newest"))
    return numbers.select("service", "events", "newest", F.array_except(wanted, "there").alias("missing"))


TABLES = [trail, activity, denied, completeness, *health("audit")]


# -- something to read --------------------------------------------------------------------------------------


def events(part: int) -> Iterator[dict[str, Any]]:
    """What services send in a part, in order."""
    for number in range((part + 1) * EVENTS_PER_PART):
        event = _event(number)
        is_late = event["service"] == "billing" and event["number"] in HELD_BACK
        if (event["service"], event["number"]) != NEVER_SENT and part == (1 if is_late else number // EVENTS_PER_PART):
            yield event


def _event(number: int) -> dict[str, Any]:
    dice, service = crc32(b"event %d" % number), SERVICES[number % len(SERVICES)]
    actor = ACTORS[dice % len(ACTORS)]
    return {
        "service": service,
        "number": number // len(SERVICES),
        "actor": actor,
        "action": ACTIONS[service][dice // 8 % len(ACTIONS[service])],
        "object": f"{service}/{dice // 64 % 40}",
        "outcome": "denied" if actor == "mallory" and dice % 3 else "allowed",
        "at": (START + timedelta(minutes=5 * number)).isoformat(),
    }


def write(directory: Path, part: int) -> int:
    """Append a part's events, encrypted, and ship them; returns how many records."""
    keyring = directory / "keyring"
    if not keyring.exists():
        Keyring.generate().save(keyring)
    with holdfast.open(directory / "log", store=directory / "store", keyring=Keyring.from_file(keyring)) as log:
        records = [Record(json.dumps(event).encode(), key=event["service"].encode()) for event in events(part)]
        if part == 1:
            records.append(Record(b"\x00 not what was agreed on"))
        log.topic("audit", partitions=1).append_batch(records)
        log.seal()
        log.ship(60)
    return len(records)


# -- run it -------------------------------------------------------------------------------------------------


def pipeline(directory: Path) -> Pipeline:
    """The pipeline over what was shipped, with the keys that it needs, by reference."""
    return Pipeline(
        "audit",
        root=directory / "store",
        tables=directory / "tables",
        of=TABLES,
        options={"keyring": f"file:{(directory / 'keyring').absolute()}"},
    )


def run(directory: Path, spark: SparkSession) -> bool:
    """Two parts, and a run after each; True when all went well."""
    from pyspark_holdfast.pipeline import read_table

    good = True
    for part in (0, 1):
        rows = write(directory, part)
        report = pipeline(directory).run(spark)
        good = good and report.is_fine
        print(f"part {part + 1}: {rows} records")
        for one in report.tables:
            print(f"  {one.name:<15} {one.outcome:<9} {one.rows_in:>4} rows in, {one.rows:>4} rows in the table")
        read_table(spark, directory / "tables" / "completeness").orderBy("service").show(truncate=False)
    refused = read_table(spark, directory / "tables" / "denied")
    refused.groupBy("actor", "service", "action").count().orderBy("actor", "service", "action").show()
    return good


def main() -> int:
    """Write, run, and show."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path, nargs="?", help="where to keep it (default: a temporary directory)")
    options = parser.parse_args()
    import pyspark_holdfast

    with tempfile.TemporaryDirectory() as temporary:
        directory = options.directory or Path(temporary)
        directory.mkdir(parents=True, exist_ok=True)
        return 0 if run(directory, pyspark_holdfast.session("local[2]")) else 1


if __name__ == "__main__":
    sys.exit(main())
