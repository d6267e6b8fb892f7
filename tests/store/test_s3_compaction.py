"""Compaction on a real S3 server: two compactors and a reader at once, and thousands of ranges that must fit."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from threading import Event

import pytest

import holdfast
from holdfast.store.store_settings import StoreSettings
from tests.store import shipped_logs
from tests.store.servers import S3Server

pytestmark = pytest.mark.store


@pytest.fixture
def store(s3_server: S3Server) -> StoreSettings:
    return shipped_logs.settings(s3_server.endpoint).store


def filled(directory: Path, server: S3Server, prefix: str, rows: list[bytes], each: int = 3) -> list[bytes]:
    """Segments of so many records each in two partitions; returns what a reader must find."""
    settings = shipped_logs.settings(server.endpoint, store={"url": shipped_logs.url(prefix)})
    with holdfast.open(directory, settings=settings) as log:
        topic = log.topic("orders", partitions=2)
        for at in range(0, len(rows), each):
            for partition in range(2):
                topic.append_batch(rows[at : at + each], partition=partition)
            log.seal()
        log.ship(60)
    return [*rows, *rows]


def payloads(prefix: str, store: StoreSettings) -> list[bytes]:
    return holdfast.read(shipped_logs.url(prefix), "orders", store=store).to_arrow()["payload"].to_pylist()


def test_two_compactors_and_a_reader(tmp_path: Path, s3_server: S3Server, prefix: str, store: StoreSettings):
    """One of the two wins each partition; the reader never sees both sides, or neither."""
    rows = filled(tmp_path / "log", s3_server, prefix, [b"%d" % number for number in range(36)])
    url, ended = shipped_logs.url(prefix), Event()

    def read_on() -> int:
        count = 0
        while not ended.is_set() or not count:
            assert payloads(prefix, store) == rows
            count += 1
        return count

    with ThreadPoolExecutor(3) as threads:
        reading = threads.submit(read_on)
        both = [threads.submit(holdfast.compact, url, store=store) for _ in range(2)]
        reports = [one.result(60) for one in both]
        ended.set()
        assert reading.result(60) > 0
    assert {report.files_after for report in reports} == {2}
    assert sum(report.rewritten_files for report in reports) == 24, "each file was replaced by one of them"
    assert holdfast.compact(url, store=store, delete_after_ms=0).removed_files == 24
    assert payloads(prefix, store) == rows


def test_files_that_take_several_ranges(tmp_path: Path, s3_server: S3Server, prefix: str, store: StoreSettings):
    """Sources and outputs of more than one request each."""
    random = Random(7)
    rows = filled(tmp_path / "log", s3_server, prefix, [random.randbytes(2**20) for _ in range(10)], each=5)
    report = holdfast.compact(shipped_logs.url(prefix), store=store)
    assert (report.files_before, report.files_after) == (4, 2)
    assert payloads(prefix, store) == rows
