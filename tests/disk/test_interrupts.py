"""Ctrl-C: at whichever line it strikes a caller, what was acknowledged is right and the log goes on."""

from __future__ import annotations

from itertools import count

import pytest
from tests.harness.interrupts import interrupt_at

from holdfast.journal.queue import group, queue, queued_groups

pytestmark = pytest.mark.disk

OURS = {queue.__file__, queued_groups.__file__, group.__file__}


@pytest.mark.parametrize(
    "verb",
    [
        lambda topic: topic.submit(b"struck", key=b"s", idempotency_key="s", time=1),
        lambda topic: topic.offer(b"struck", kind="s", time=1),
        lambda topic: topic.submit_batch([b"struck", b"struck too"]),
    ],
    ids=["submit", "offer", "submit_batch"],
)
def test_an_interrupt_at_any_line_harms_nobody_else(open_log, verb):
    """The record that was struck is there or not; those before and after it are whole, in order and acknowledged."""
    log = open_log(journal={"flush_interval_ms": 1, "ack_timeout_ms": 10_000})
    for nth in count(1):
        topic = log.topic(f"t{nth}")
        before = [topic.submit(b"before", key=b"b", time=100 + i) for i in range(2)]
        struck = interrupt_at(nth, lambda topic=topic: verb(topic), OURS)
        after = [topic.submit(b"after", key=b"a", time=200 + i) for i in range(2)]
        topic.flush()
        stored = {r.offset: r for r in topic.read()}
        for i, ticket in enumerate(before):
            found = stored[ticket.result().offset]
            assert (found.payload, found.key, found.time) == (b"before", b"b", 100 + i), nth
        for i, ticket in enumerate(after):
            found = stored[ticket.result().offset]
            assert (found.payload, found.key, found.time) == (b"after", b"a", 200 + i), nth
        assert [r.payload for r in stored.values() if b"struck" not in r.payload] == [b"before"] * 2 + [b"after"] * 2
        if not struck:
            break
    assert nth > 5
    assert log.stats().journal.poisoned is None
    assert (log.stats().journal.queue_records, log.stats().journal.queue_bytes) == (0, 0)


def test_an_interrupt_leaves_no_half_of_a_transaction(open_log):
    """Struck at any line on its way into the queue it is there as a whole or not at all, and the log goes on."""
    log = open_log(journal={"ack_timeout_ms": 10_000})
    first, second = log.topic("first"), log.topic("second")
    wanted: list[bytes] = []

    def commit(body: bytes) -> None:
        with log.transaction() as tx:
            tx.append(first, body)
            tx.append(second, body)
            tx.put("space", "newest", body)

    for nth in count(1):
        struck = interrupt_at(nth, lambda body=b"struck %d" % nth: commit(body), OURS)
        log.flush()
        found = [record.payload for record in first.read()]
        assert found == [record.payload for record in second.read()], nth
        assert log.space("space").get("newest") == (found[-1] if found else None), nth
        assert found in (wanted, [*wanted, b"struck %d" % nth])
        commit(b"after %d" % nth)
        wanted = [*found, b"after %d" % nth]
        if not struck:
            break
    assert nth > 5
    assert [record.payload for record in second.read()] == wanted
    assert (log.stats().journal.queue_records, log.stats().journal.queue_bytes) == (0, 0)
