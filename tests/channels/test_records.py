"""The records of `_channels`: at whom something happened, and what it waits for, whole."""

from __future__ import annotations

import pytest

from holdfast.channels import HistoryEntry, SdsMessage
from holdfast.channels.wire.nim import NIM

pytestmark = pytest.mark.disk


def test_a_record_says_at_whom_it_happened(open_log):
    """Several participants may be kept in one log, and their records in one topic."""
    log = open_log()
    alice, bob = log.channels("alice"), log.channels("b\udcffb")
    bob.ensure_channel("room")
    bob.unwrap_received_message(alice.wrap_outgoing_message(b"hello", "room", "a1"))
    found = [
        (one.kind, one.headers["participant_id"], one.headers["sender_id"]) for one in log.topic("_channels").read()
    ]
    assert found == [("sent", b"alice", b"alice"), ("delivered", b"b\xffb", b"alice")]


def test_of_many_long_ids_that_are_missing_as_many_are_named_as_fit_and_none_is_cut(open_log):
    """Headers are bounded; half an id would be another one."""
    log = open_log()
    alice = log.channels("alice")
    alice.ensure_channel("room")
    ids = [f"{number:04}" + "x" * 1000 for number in range(20)]
    causes = tuple(HistoryEntry(one, b"", "bob") for one in ids)
    alice.unwrap_received_message(NIM.encode(SdsMessage("b1", "room", 1, b"content", "bob", causes)))
    (record,) = log.topic("_channels").read()
    assert record.headers["missing"].decode().split("\n") == ids[:8]
