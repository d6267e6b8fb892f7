"""Reports as a pipeline would make them, without a pipeline."""

from __future__ import annotations

from random import Random
from uuid import UUID

from pyspark_holdfast.pipeline.reports.report_files import file_name
from pyspark_holdfast.pipeline.reports.report_history import RunHistory, with_report
from pyspark_holdfast.pipeline.run_report import InputReport, Outcome, RunReport, TableReport

START_MS = 1_794_800_000_000
COLUMNS = {"order_id": "bigint", "status": "string", "amount": "decimal(18,2)", "at": "timestamp"}


def topic_input(name: str = "orders", rows: int = 100, lag: int = 0, at: int = 0) -> InputReport:
    return InputReport(
        name=name,
        kind="topic",
        place="s3://bucket/prefix",
        source="ab" * 16,
        begin={"0": at, "1": at},
        end={"0": at + rows // 2, "1": at + rows - rows // 2},
        rows=rows,
        lag=lag,
        columns={"value": "binary"},
    )


def table_input(name: str, version: int = 3, lag: int = 0, *, is_whole: bool = False) -> InputReport:
    return InputReport(
        name=name,
        kind="table",
        place=f"s3://bucket/tables/{name}",
        source="cd" * 16,
        begin={"version": version - 1},
        end={"version": version},
        rows=10,
        lag=lag,
        is_whole=is_whole,
    )


def table_report(name: str = "orders_now", outcome: Outcome = "written", **other: object) -> TableReport:
    values: dict[str, object] = {
        "name": name, "kind": "keyed", "outcome": outcome, "place": f"s3://bucket/tables/{name}", "table_id": "ef" * 16,
        "run": 4, "version": 3, "inputs": [topic_input()], "rows_in": 100, "rows_out": 90, "rows": 12_345, "files": 16,
        "bytes": 3_456_789, "files_added": 2, "files_removed": 2, "bytes_written": 45_678, "columns": COLUMNS,
        "started_ms": START_MS + 500, "seconds": 2.5,
    }  # fmt: skip
    if outcome == "failed":
        values |= {"error": "order_id is null in 3 rows", "error_kind": "Invalid", "hint": "choose another key"}
    return TableReport(**(values | other))  # type: ignore[arg-type]


def run_report(*tables: TableReport, number: int = 0, **other: object) -> RunReport:
    values: dict[str, object] = {
        "pipeline": "shop",
        "id": str(UUID(int=number + 1)),
        "started_ms": START_MS + 30_000 * number,
        "seconds": 4.25,
        "tables": list(tables) or [table_report()],
    }
    return RunReport(**(values | other))  # type: ignore[arg-type]


def history_of(*reports: RunReport) -> RunHistory:
    history = RunHistory()
    for report in reports:
        history = with_report(history, file_name(report), report)
    return history


def shop(runs: int, seed: int = 7) -> list[RunReport]:
    """A pipeline of five tables over so many runs; the last one has a failure."""
    random, found, at = Random(seed), [], 0
    for number in range(runs):
        started = START_MS + 600_000 * number
        rows = round(random.lognormvariate(7, 0.7)) if random.random() > 0.1 else 0
        lag = round(random.lognormvariate(4, 1)) if random.random() > 0.6 else 0
        at += rows
        orders = topic_input("orders", rows, lag, at - rows)
        clicks = topic_input("clicks", rows * 7, lag * 3, at * 7)
        outcome: Outcome = "written" if rows else "unchanged"
        is_bad = number == runs - 1 or random.random() < 0.04
        failed: Outcome = "failed" if is_bad else outcome
        after: Outcome = "skipped" if is_bad else outcome
        took = [random.lognormvariate(0.6, 0.4) for _ in range(5)]
        made: dict[str, object] = {"started_ms": started + 300, "version": number, "run": number + 1, "error": ""}
        bronze, now = table_input("orders_bronze", number), table_input("orders_now", number, is_whole=True)
        done = 0 if is_bad else rows
        tables = [
            ("orders_bronze", outcome, "append", [orders], rows, rows, at, "Every order, decoded."),
            ("orders_now", outcome, "keyed", [bronze], rows, rows * 2 // 3, at // 3, "The latest state of each order."),
            ("revenue_by_hour", outcome, "windowed", [bronze], rows, 12 if rows else 0, number * 12, ""),
            (
                "sessions",
                failed,
                "append",
                [clicks, topic_input("users", 10)],
                done * 7,
                done,
                at,
                "Clicks by visitor.",
            ),
            ("conversion", after, "snapshot", [table_input("sessions", number), now], done, done and 40, 40, ""),
        ]
        reports = [
            table_report(
                name,
                how,
                kind=kind,
                inputs=inputs,
                rows_in=rows_in,
                rows_out=rows_out,
                rows=total,
                description=words,
                seconds=seconds,
                files=number % 16 + 1,
                bytes=total * 84,
                **(made | ({"error": "order_id is null in 3 rows"} if how == "failed" else {})),
            )
            for (name, how, kind, inputs, rows_in, rows_out, total, words), seconds in zip(tables, took, strict=True)
        ]
        found.append(run_report(*reports, number=number, started_ms=started, seconds=sum(took)))
    return found
