"""Frames as they travel: golden files of each kind, and what is not a frame."""

from __future__ import annotations

import pytest

from holdfast.journal.journal import Run
from holdfast.journal.journal_settings import JournalSettings
from holdfast.journal.queue.forwarded import ForwardedProduced, ForwardedRows, ForwardedUnit
from holdfast.journal.state.operations import ChangeSpace
from holdfast.model.record_columns import Columns, EncodedRows
from holdfast.owner import wire
from holdfast.owner.group_frames import GroupReader
from tests.sharing.golden_frames import PARTITIONS, PLACE, ROWS, frames

pytestmark = pytest.mark.unit

KINDS = {**wire.BEFORE_HELLO, **wire.BEFORE_PROOF, **wire.BEFORE_WELCOME, **wire.FROM_OWNER, **wire.from_client(2**20)}


@pytest.mark.parametrize("name", sorted(frames()))
@pytest.mark.sampled(12)
def test_frames_are_what_they_always_were(name: str) -> None:
    stored = (PLACE / f"{name}.frame").read_bytes()
    assert frames()[name] == stored
    found = wire.header(stored, 0, KINDS)
    assert found.size == len(stored)
    head, body = stored[16 : 16 + found.head], stored[16 + found.head :]
    if found.kind != wire.GROUP and head:
        again = b"".join(wire.frame(found.kind, wire.decoded(found.kind, head), body))
        assert again == stored


def test_a_stored_group_gives_its_items() -> None:
    stored = (PLACE / "group.frame").read_bytes()
    found = wire.header(stored, 0, KINDS)
    view = memoryview(stored)
    reader = GroupReader(PARTITIONS, JournalSettings())
    group, items = reader.read(view[16 : 16 + found.head], view[16 + found.head :], keeps=True)
    assert (group.sequence, group.floor) == (42, 40)
    rows, batch, transaction, produced = items
    assert isinstance(rows, ForwardedRows)
    assert (rows.partition, rows.rows) == (PARTITIONS[3], ROWS)
    assert isinstance(batch, ForwardedUnit)
    assert (batch.alone, batch.records) == (True, 2)
    typed = batch.operations[0]
    assert isinstance(typed, Run)
    assert isinstance(typed.columns, EncodedRows)
    assert bytes(typed.columns.body) == b"the bytes of an entry's body"
    assert typed.columns.key == typed.columns.batch == bytes(range(32))
    assert isinstance(transaction, ForwardedUnit)
    assert (transaction.scope, transaction.reissue) == ("scope", True)
    columns, keyed, change = transaction.operations
    assert isinstance(columns, Run)
    assert isinstance(columns.columns, Columns)
    assert columns.columns.extras == {1: (b"k", None, None)}
    assert isinstance(keyed, Run)
    assert (keyed.rows, keyed.extras, keyed.keyed) == (ROWS, True, True)
    assert isinstance(change, ChangeSpace)
    assert (change.name, change.puts, change.deletes) == (b"space/stock", ((b"chairs", 1, b"12"),), (b"tables",))
    assert isinstance(produced, ForwardedProduced)
    assert (produced.producer, produced.sequence, produced.start) == (b"device-7", 9, 1)


def test_a_frame_that_has_no_place_here_is_refused_unread() -> None:
    for kind, head, body in ((wire.HELLO, 2**20, 0), (wire.GROUP, 1, 1), (0, 0, 0), (99, 0, 0), (wire.HELLO, 1, 1)):
        with pytest.raises(wire.BadFrame):
            wire.header(wire.HEADER.pack(kind, 1, 0, head, body), 0, wire.BEFORE_HELLO)
    with pytest.raises(wire.BadFrame):
        wire.header(wire.HEADER.pack(wire.HELLO, 2, 0, 1, 0), 0, wire.BEFORE_HELLO)
