"""Rebuilding where the beginning of a partition, or of a schema, is not what files alone would make one think."""

from __future__ import annotations

from datetime import timedelta

import pyarrow as pa
import pytest

import holdfast
from holdfast import Invalid

pytestmark = pytest.mark.disk


@pytest.mark.parametrize("database", ["readable", "gone"])
def test_what_lies_before_a_topics_first_offset_was_never_lost(open_log, tmp_path, database):
    with open_log() as log:
        log.topic("continued", first_offset=1000).append(b"x")
        log.seal()
    if database == "gone":
        (tmp_path / "log" / "durable.db").unlink()
    report = holdfast.rebuild(tmp_path / "log")
    assert [lost for lost in report.lost if lost.records] == []
    with open_log() as log:
        assert [record.offset for record in log.topic("continued").read()] == [1000]
        assert log.reconcile(deep=True).clean


def test_a_partition_without_files_goes_on_where_it_was(open_log, tmp_path):
    with open_log() as log:
        log.topic("empty", first_offset=500)
        log.topic("expired").append_batch([b"a", b"b"])
        log.seal()
        log.set_retention("expired", age_max=timedelta(microseconds=1))
        log.retain()
    assert holdfast.rebuild(tmp_path / "log").lost == ()
    with open_log() as log:
        assert list(log.topic("expired").read()) == list(log.topic("empty").read()) == []
        log.set_retention("expired")  # else the roller may expire what is sealed below before it is read
        assert log.topic("expired").append(b"c").offset == 2
        assert log.topic("empty").append(b"c").offset == 500
        assert log.reconcile(deep=True).clean
        log.seal()
        assert [record.offset for record in log.topic("expired").read()] == [2]
        assert log.reconcile(deep=True).clean


def test_rows_appended_after_a_rebuild_can_be_read_whatever_types_were_declared(open_log, tmp_path):
    schema = pa.schema([pa.field("city", pa.dictionary(pa.int32(), pa.string()))])
    with open_log() as log:
        log.topic("typed", schema=schema).append({"city": "Bern"})
        log.seal()
    (tmp_path / "log" / "durable.db").unlink()
    holdfast.rebuild(tmp_path / "log")
    with open_log() as log:
        with pytest.raises(Invalid, match="changed its type"):
            log.topic("typed", schema=schema)
        typed = log.topic("typed", schema="latest")
        typed.append({"city": "Basel"})
        assert [row["city"] for row in typed.read()] == ["Bern", "Basel"]
        log.seal()
        assert typed.read().to_arrow().column("city").to_pylist() == ["Bern", "Basel"]
    with open_log() as log:
        assert log.topic("typed", schema=pa.schema([pa.field("city", pa.string())])).schema.names == ["city"]
        assert log.reconcile(deep=True).clean


def test_a_missing_first_segment_is_lost_where_the_journal_knows_that_it_was_not_expired(open_log, tmp_path):
    with open_log() as log:
        for _ in range(2):
            log.topic("t").append_batch([b"a", b"b"])
            log.seal()
    min((tmp_path / "log").glob("segments/topics/t/0/segments/*.parquet")).unlink()
    report = holdfast.rebuild(tmp_path / "log")
    assert [(lost.first, lost.records) for lost in report.lost] == [(0, 2)]
