"""Other versions of Spark: refused in one sentence, or served with what they have; here without one of them."""

from __future__ import annotations

import sys
from pathlib import Path

import pyspark
import pytest
from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

import pyspark_holdfast
from holdfast import Invalid
from holdfast.reader.read_options import ReadOptions
from pyspark_holdfast.versions import columnless_rows, stream_triggers
from pyspark_holdfast.versions.columnless_rows import check_columns
from pyspark_holdfast.versions.newest_java import newest_java
from pyspark_holdfast.versions.stream_triggers import AllTriggers, JsonOffsets, check_limits

pytestmark = pytest.mark.unit


@pytest.fixture(autouse=True)
def unloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was looked up before is looked up again."""
    for name in ("DefaultSource", "marks_of"):
        monkeypatch.delitem(vars(pyspark_holdfast), name, raising=False)


@pytest.mark.parametrize(("version", "age"), [("3.5.6", "older"), ("4.4.0.dev1", "newer"), ("10.0", "newer")])
def test_another_spark_is_refused_in_a_sentence_with_the_versions(
    monkeypatch: pytest.MonkeyPatch, version: str, age: str
) -> None:
    """Also by the format: Spark must find it, or it says that there is none."""
    monkeypatch.setattr(pyspark, "__version__", version)
    sentence = f"holdfast works with Spark 4.0 to 4.3, and this one is {age} spark={version}"
    source = pyspark_holdfast.DefaultSource
    assert issubclass(source, DataSource)
    assert source.name() == "holdfast"
    for refused in (lambda: pyspark_holdfast.marks_of, source({}).schema, lambda: source({}).writer(None, False)):
        with pytest.raises(Invalid) as error:
            refused()
        assert error.value.message == sentence
        assert "install" not in error.value.hint


@pytest.mark.parametrize("version", ["4.0.0", "4.3.99"])
def test_versions_within_the_range_are_taken(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    monkeypatch.setattr(pyspark, "__version__", version)
    assert pyspark_holdfast.DefaultSource.__name__ == "HoldfastSource"


def test_a_package_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """And not that there is no such format; nor is the advice to install a second Spark."""
    monkeypatch.setitem(sys.modules, "pyspark_holdfast.source", None)
    source = pyspark_holdfast.DefaultSource
    with pytest.raises(
        Invalid, match=r"pyspark_holdfast\.source.* cannot be loaded by the Python that Spark runs"
    ) as error:
        source({}).streamReader(None)
    assert "[spark]" not in error.value.hint


def test_limits_are_refused_where_spark_does_not_keep_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_triggers, "HAS_LIMITS", False)
    check_limits(ReadOptions(topics=("a",)))
    with pytest.raises(Invalid, match=r"this needs Spark 4\.2 or newer: maxBytesPerTrigger, maxSegmentsPerTrigger"):
        check_limits(ReadOptions(topics=("a",), max_bytes=1, max_segments=2))


@pytest.mark.parametrize(("hadoop", "newest"), [("3.4.2", 23), ("3.5.0", None), ("4.0.0", None), ("", None)])
def test_an_older_hadoop_takes_no_new_java(tmp_path: Path, hadoop: str, newest: int | None) -> None:
    (tmp_path / "jars").mkdir()
    (tmp_path / "jars" / (f"hadoop-client-api-{hadoop}.jar" if hadoop else "other.jar")).touch()
    assert newest_java(str(tmp_path)) == newest


class Stream(AllTriggers):
    """A stream whose root grows by one between any two questions."""

    def __init__(self) -> None:
        self.settled = 0

    def _where(self) -> tuple[str, str]:
        return "", ""

    def first_start(self) -> JsonOffsets:
        self.settled += 1
        return {"log": {"orders": {"0": self.settled}}}

    def next_end(self, start: JsonOffsets, *, is_limited: bool) -> JsonOffsets:
        self.begun = start
        return self.first_start()


def test_before_4_2_a_batch_begins_where_the_last_one_ended() -> None:
    """Spark asks for the end of the first batch, then where it begins: that may not have moved meanwhile."""
    stream = Stream()
    end = stream.latestOffset()
    assert stream.begun == stream.initialOffset() == {"log": {"orders": {"0": 1}}}
    stream.saw(end)
    stream.latestOffset()
    assert stream.begun == end
    restarted = Stream()
    restarted.saw(end)
    restarted.latestOffset()
    assert restarted.begun == end


def test_rows_without_columns_are_refused_where_they_are_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before 4.1 a count of them is 0, whatever is there."""
    monkeypatch.setattr(columnless_rows, "ARE_KEPT", False)
    check_columns(StructType().add("offset", "long"))
    with pytest.raises(Invalid, match=r"this needs Spark 4\.1 or newer: rows without columns"):
        check_columns(StructType())
