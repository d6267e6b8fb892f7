"""Options of a write, as Spark's users give them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from holdfast.errors import Invalid
from holdfast.sink.sink_target import BatchMark
from pyspark_holdfast.sink.write_options import WRITE_OPTION_NAMES, parse_write_options

pytestmark = pytest.mark.unit

GOOD = {"path": "/root", "topic": "t"}


def test_options_are_parsed() -> None:
    """Capitals do not matter; what reads take to reach a store, writes take, too."""
    given = {
        **GOOD, "txnappid": "a", "TXNVERSION": "3", "segmentBytes": "65536", "compressionLevel": "9", "region": "eu",
        "keyring": "env:KEYS", "logId": "ab" * 16, "checkpointLocation": "/c",
    }  # fmt: skip
    parsed = parse_write_options(given, is_stream=False)
    assert parsed.mark == BatchMark("a", 3)
    target = parsed.target
    assert (target.place, target.topic, target.segment_bytes, target.compression_level) == ("/root", "t", 65536, 9)
    assert (target.keyring, target.log_id, target.store.region) == ("env:KEYS", "ab" * 16, "eu")
    assert parse_write_options(GOOD, is_stream=True).mark is None


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"path": ""}, "there is no root"),
        ({"topic": ""}, "there is no topic"),
        ({"topic": "../x"}, "not a topic name"),
        ({"topic": "_executions"}, "holdfast's own"),
        ({"topik": "t"}, "there is no option topik (did you mean topic?)"),
        ({"startingOffsets": "earliest"}, "there is no option startingoffsets"),
        ({"txnAppId": "a"}, "belong together"),
        ({"txnVersion": "1"}, "belong together"),
        ({"txnAppId": "a", "txnVersion": "-1"}, "numbered from 0"),
        ({"txnAppId": "a", "txnVersion": "x"}, "must be a number"),
        ({"txnAppId": "", "txnVersion": "1"}, "1 to 256"),
        ({"txnAppId": "x" * 257, "txnVersion": "1"}, "1 to 256"),
        ({"keyring": "swordfish"}, "must be env:NAME or file:PATH"),
        ({"logId": "x"}, "32 hex digits"),
        ({"segmentBytes": "1"}, "must be at least"),
        ({"compressionLevel": "23"}, "must be between"),
        ({"timeoutMs": "-1"}, "timeout"),
    ],
)
@pytest.mark.sampled(20)
def test_what_is_wrong_is_refused(given: dict[str, str], words: str) -> None:
    """With its name, and without a value that may be a secret."""
    with pytest.raises(Invalid, match=re.escape(words)) as raised:
        parse_write_options({**GOOD, **given}, is_stream=False)
    assert "swordfish" not in str(raised.value)


def test_all_problems_are_reported_at_once() -> None:
    """So nobody corrects them one by one."""
    with pytest.raises(Invalid) as raised:
        parse_write_options({"keyring": "x", "nonsense": "y"}, is_stream=False)
    assert all(word in raised.value.message for word in ("no root", "no topic", "keyring", "nonsense"))


def test_a_stream_has_its_own_marks() -> None:
    """Its query's id, which its checkpoint keeps."""
    with pytest.raises(Invalid, match="known by its checkpoint"):
        parse_write_options({**GOOD, "txnAppId": "a", "txnVersion": "1"}, is_stream=True)


def test_every_option_is_documented() -> None:
    """In the reference of Spark."""
    text = (Path(__file__).parents[2] / "docs/reference/spark.md").read_text()
    part = text.partition("## Options of writes")[2].partition("\n## ")[0]
    missing = [name for name in WRITE_OPTION_NAMES if f"`{name}`" not in part and f"`{name}`" not in text]
    assert part
    assert not missing
