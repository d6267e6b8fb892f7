"""A topic that a sink writes, in the root of a log that has one of the same name: the log leaves it alone."""

from __future__ import annotations

import pyarrow as pa
import pytest

import holdfast
from holdfast import Invalid
from holdfast.store import layout
from tests.segments.planting import wait_for
from tests.shipping.conftest import mark
from tests.sink_topics import SinkTopic

pytestmark = pytest.mark.store


@pytest.fixture
def begun(open_shipped, root):
    """A log that has shipped, so that its root is there."""
    log = open_shipped()
    log.topic("orders").append(b"1", durability="shipped")
    return log


@pytest.fixture
def sink(begun, root):
    """A sink's topic `spark` in the same root."""
    sink = SinkTopic(root.store)
    sink.write({0: [[b"a"], [b"b"]], 1: [[b"c"]]})
    return sink


@pytest.mark.parametrize("schema", [None, pa.schema({"n": pa.int64()})], ids=["raw", "typed"])
def test_a_log_refuses_to_make_a_topic_that_a_sink_writes(begun, sink, schema):
    """With a remedy, and nothing is written, here or there."""
    before = sink.objects()
    with pytest.raises(Invalid, match="a sink writes topic 'spark'") as refused:
        begun.topic("spark", schema=schema)
    assert "another name" in refused.value.hint
    assert begun.topics() == ["orders"]
    begun.topic("orders").append(b"2", durability="shipped")
    assert sink.objects() == before


def test_the_name_is_free_where_no_sink_has_it(begun, sink):
    begun.topic("sparks").append(b"x", durability="shipped")
    assert begun.topics() == ["orders", "sparks"]


def _appended_while_away(log, faults):
    faults.away()
    wait_for(lambda: _fails(log))
    return log.topic("spark").append(b"mine", timeout=20)


def _fails(log):
    log.topic("orders").submit(b"x")
    return log.stats().shipping.alarm is not None


def test_a_topic_that_was_made_while_the_store_was_away_is_not_shipped_over_a_sinks(open_shipped, root, faults, lines):
    """It takes no more records, with an alarm; what it has stays here; the others go on; the sink's is as it was."""
    log = open_shipped(shipping={"max_retry_attempts": 1})
    log.topic("orders").append(b"1", durability="shipped")
    _appended_while_away(log, faults)
    sink = SinkTopic(root.store)
    sink.write({0: [[b"a"]]})
    before = sink.objects()
    faults.back()
    log.topic("orders").append(b"2", durability="shipped", timeout=20)
    wait_for(lambda: (alarm := log.stats().shipping.alarm) is not None and alarm.cause == "taken")
    assert "a sink writes topic 'spark'" in log.stats().shipping.alarm.message
    assert len(lines("topic_taken")) == 1
    wait_for(lambda: "a sink writes topic 'spark'" in log._journal.shipping.alarm)  # for `holdfast status DIR`
    for verb in (log.topic("spark").append, log.topic("spark").submit, log.topic("spark").offer):
        with pytest.raises(Invalid, match="a sink writes topic 'spark'"):
            verb(b"more")
    with pytest.raises(Invalid, match="a sink writes topic 'spark'"):
        log.topic("spark").append_batch([b"more"])
    assert [record.payload for record in log.topic("spark").read()] == [b"mine"]
    log.topic("orders").append(b"3", durability="shipped")
    assert "a sink writes topic 'spark'" in log._journal.shipping.alarm
    log.seal()
    with pytest.raises(Invalid, match="a sink writes topic 'spark'"):
        log.ship(20)
    assert mark(log).settled == mark(log).durable
    assert (mark(log, "spark").shipped, mark(log, "spark").settled) == (0, 0)
    assert sink.objects() == before
    assert all(entry.topic == "orders" for batch in root.batches() for entry in batch.entries)
    with pytest.raises(Invalid, match="a sink writes topic"):
        log.topic("spark").append(b"more", durability="shipped")


def test_a_waiter_for_such_a_record_learns_of_it_at_once(open_shipped, root, faults):
    """Not when the time is over."""
    log = open_shipped(shipping={"shipped_timeout_ms": 600_000, "max_retry_attempts": 1})
    log.topic("orders").append(b"1", durability="shipped")
    faults.away()
    wait_for(lambda: _fails(log))
    ticket = log.topic("spark").submit(b"mine")
    SinkTopic(root.store).write({0: [[b"a"]]})
    faults.back()
    with pytest.raises(Invalid, match="a sink writes topic 'spark'"):
        ticket.shipped(120)


def test_it_is_found_again_when_the_log_is_opened_again(open_shipped, root, faults, tmp_path):
    """Before anything is shipped; and a log that is restored from there never had it."""
    log = open_shipped(shipping={"max_retry_attempts": 1})
    log.topic("orders").append(b"1", durability="shipped")
    _appended_while_away(log, faults)
    log.close()
    sink = SinkTopic(root.store)
    sink.write({0: [[b"a"]], 1: [[b"b"]]})
    before = sink.objects()
    faults.back()
    log = open_shipped(name="log")
    wait_for(lambda: (alarm := log.stats().shipping.alarm) is not None and alarm.cause == "taken")
    with pytest.raises(Invalid, match="a sink writes topic 'spark'"):
        log.topic("spark").append(b"more")
    log.topic("orders").append(b"last", durability="shipped")
    assert [span.topic for span in log.unshipped()] == ["spark"]
    log.close()
    assert sink.objects() == before
    report = holdfast.restore(root.url, tmp_path / "again")
    assert report.sink_topics == ("spark",)
    with holdfast.open(tmp_path / "again", read_only=True) as again:
        assert again.topics() == ["orders"]
        assert [record.payload for record in again.topic("orders").read()][-1] == b"last"
    assert sink.objects() == before


def test_a_sink_that_is_faster_by_one_request_wins(begun, root, faults):
    """The log has looked, and found nothing; its own document comes too late."""
    gate = faults.hold(layout.topic_folder("spark"))
    topic = begun.topic("spark")
    ticket = topic.submit(b"mine")
    assert gate.arrived.wait(20)
    sink = SinkTopic(root.store)
    sink.write({0: [[b"a"]]})
    before = sink.objects()
    gate.open()
    with pytest.raises(Invalid, match="a sink writes topic 'spark'"):
        ticket.shipped(20)
    begun.topic("orders").append(b"2", durability="shipped")
    assert sink.objects() == before


def test_a_lost_reply_is_no_sink(begun, root, faults):
    """The document that stands there is the log's own."""
    faults.lose(layout.topic_folder("spark"))
    begun.topic("spark").append(b"x", durability="shipped")
    assert [document.version for document in root.topic_documents("spark")] == [1]


def test_what_a_taken_topic_holds_does_not_keep_a_log_from_closing_or_from_cleaning(open_shipped, root, faults):
    """Other topics drain within the usual time, and their batches go when they are settled."""
    log = open_shipped(shipping={"max_retry_attempts": 1})
    log.topic("orders").append(b"1", durability="shipped")
    _appended_while_away(log, faults)
    SinkTopic(root.store).write({0: [[b"a"]]})
    faults.back()
    wait_for(lambda: (alarm := log.stats().shipping.alarm) is not None and alarm.cause == "taken")
    log.topic("orders").append_batch([b"x"] * 50)
    log.seal()
    log.close()
    assert root.manifest("orders")[-1].end >= 51
    assert not root.batches()


def test_a_root_that_a_sink_made_is_no_other_logs(open_shipped, root):
    """Nothing is written there."""
    sink = SinkTopic(root.store)
    sink.write({0: [[b"a"]]})
    before = root.objects()
    with pytest.raises(Invalid, match="another log"):
        open_shipped()
    assert root.objects() == before
