"""Reports of pipelines on a real S3 server, where nothing can be replaced or appended to, and several write at once."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from holdfast.clock import SystemClock
from holdfast.store.store_kinds import open_any_store
from pyspark_holdfast.pipeline.reports.report_files import ReportFiles
from tests.pipeline.report_data import run_report
from tests.store import shipped_logs
from tests.store.servers import S3Server

pytestmark = pytest.mark.store


def test_runs_that_report_at_once_lose_nothing(s3_server: S3Server, prefix: str) -> None:
    """All reports and all lineage are there, and the page of the next run shows all."""
    settings, url = shipped_logs.settings(s3_server.endpoint).store, shipped_logs.url(prefix)
    with ThreadPoolExecutor(4) as threads:
        pages = list(threads.map(lambda number: ReportFiles(url, settings).keep(run_report(number=number)), range(12)))
    assert set(pages) == {f"{url}/index.html"}
    ReportFiles(url, settings).keep(run_report(number=12))
    store = open_any_store(url, settings, SystemClock())
    try:
        keys = [one.key for one in store.list("")]
        assert len([key for key in keys if key.startswith("runs/")]) == 13
        lines = [line for key in keys if key.startswith("lineage/") for line in store.get(key).splitlines()]
        assert len({json.loads(line)["run"]["runId"] for line in lines}) == 2 * 13
        assert b"after the last of 13 runs" in store.get("index.html")
    finally:
        store.close()
