"""A log and a sink in one root on a real S3 server: each keeps to its own topics, and both are read."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import holdfast
from holdfast import Invalid
from holdfast.clock import SystemClock
from holdfast.store.store_kinds import open_any_store
from holdfast.store.store_settings import StoreSettings
from tests.sink_topics import SinkTopic
from tests.store import shipped_logs
from tests.store.servers import S3Server

pytestmark = pytest.mark.store


@pytest.fixture
def store(s3_server: S3Server) -> StoreSettings:
    return shipped_logs.settings(s3_server.endpoint).store


@pytest.fixture
def sink(s3_server: S3Server, prefix: str, store: StoreSettings):
    files = open_any_store(shipped_logs.url(prefix), store, SystemClock())
    yield lambda: SinkTopic(files)
    files.close()


def payloads(prefix: str, topic: str, store: StoreSettings) -> list[bytes]:
    rows = holdfast.read(shipped_logs.url(prefix), topic, store=store).to_arrow()
    return sorted(rows["payload"].to_pylist())


def test_a_log_and_a_sink_share_a_root(tmp_path: Path, s3_server: S3Server, prefix: str, store: StoreSettings, sink):
    """Names are refused both ways round the clock; compaction, reconciliation and restore meet both."""
    settings = shipped_logs.settings(s3_server.endpoint, store={"url": shipped_logs.url(prefix)})
    with holdfast.open(tmp_path / "log", settings=settings) as log:
        log.topic("orders").append(b"1", durability="shipped")
        spark = sink()
        spark.write({0: [[b"a"], [b"b"]], 1: [[b"c"]]})
        spark.write({0: [[b"d"]]}, applied=False)
        before = spark.objects()
        with pytest.raises(Invalid, match="a sink writes topic 'spark'"):
            log.topic("spark")
        log.topic("orders").append(b"2", durability="shipped")
        log.seal()
        log.ship(60)
        assert log.reconcile(remote=True, deep=True).clean
        assert spark.objects() == before
        assert payloads(prefix, "spark", store) == [b"a", b"b", b"c", b"d"]
        assert payloads(prefix, "orders", store) == [b"1", b"2"]
    holdfast.compact(shipped_logs.url(prefix), store=store)
    report = holdfast.restore(shipped_logs.url(prefix), tmp_path / "again", settings=settings)
    assert (report.records, report.sink_topics) == (2, ("spark",))
    spark.write({0: [[b"e"]]})
    assert payloads(prefix, "spark", store) == [b"a", b"b", b"c", b"d", b"e"]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("turn", range(3))
def test_a_name_has_one_winner(tmp_path: Path, s3_server: S3Server, prefix: str, store: StoreSettings, sink, turn: int):
    """Both want it at once: one of them has the topic, as a whole, and the other one says so."""
    settings = shipped_logs.settings(s3_server.endpoint, store={"url": shipped_logs.url(prefix)})
    with holdfast.open(tmp_path / "log", settings=settings) as log, ThreadPoolExecutor(2) as threads:
        log.topic("orders").append(b"1", durability="shipped")
        spark = sink()

        def append() -> bool:
            try:
                log.topic("spark").append(b"mine", durability="shipped", timeout=60)
            except Invalid as refused:
                assert "a sink writes topic 'spark'" in refused.message
                return False
            return True

        def write() -> bool:
            try:
                spark.describe(1)
            except Exception as taken:
                assert "AlreadyExists" in type(taken).__name__
                return False
            return True

        both = threads.submit(append), threads.submit(write)
        log_wins, sink_wins = (one.result(90) for one in both)
        assert log_wins != sink_wins
        log.topic("orders").append(b"2", durability="shipped", timeout=60)
        if sink_wins:
            spark.write({0: [[b"theirs"]]})
            assert payloads(prefix, "spark", store) == [b"theirs"]
            assert payloads(prefix, "orders", store) == []
