"""What is stored of consumers is what format 0012 says."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast import Corrupt
from holdfast.log.consumers.stored_positions import (
    COMMITTED,
    ConsumerPositions,
    RetentionWait,
    StoredPosition,
    known_items,
    known_records,
    position_items,
    position_record,
    read_items,
    read_record,
)
from holdfast.model.record import Record

pytestmark = pytest.mark.unit

PAGE = (Path(__file__).parents[2] / "docs/formats/0012-consumers.md").read_text()
PLACE = ("billing", "orders")
AT = 1_700_000_000_000_000


def test_the_example_of_the_page_is_what_is_written():
    ((key, number, body),) = position_items(PLACE, {0: StoredPosition(120, AT)})
    columns = position_record(COMMITTED, PLACE, {0: StoredPosition(120, AT)}, AT)
    assert f"key     {key.hex()}" in PAGE
    assert f"body    {body.decode()}" in PAGE
    assert f"payload {columns.payloads[0].decode()}" in PAGE
    assert (number, columns.extras[0]) == (0, (b"billing/orders", b"committed", None))


def test_items_and_records_come_back():
    known = ConsumerPositions(
        {PLACE: {0: StoredPosition(1, 5), 7: StoredPosition(2, 6)}}, {"orders": RetentionWait(("billing",), 3, 4, 9)}
    )
    assert read_items(known_items(known)) == known
    again, columns = ConsumerPositions({}, {}), known_records(known, AT)
    for payload in columns.payloads:
        read_record(again, Record(payload))
    assert again == known


def test_the_latest_word_counts_in_whatever_order():
    known = ConsumerPositions({}, {})
    for at in (3, 1, 5, 2):
        (payload,) = position_record(COMMITTED, PLACE, {0: StoredPosition(at * 10, at)}, AT).payloads
        read_record(known, Record(payload))
    assert known.positions == {PLACE: {0: StoredPosition(50, 5)}}


@pytest.mark.parametrize("body", [b"", b"[]", b'{"next":-1,"at":1}', b'{"next":1}', b'{"next":1,"at":0}', b"\xff"])
def test_an_item_that_cannot_be_understood_is_damage(body):
    ((key, _, _),) = position_items(PLACE, {0: StoredPosition(120, AT)})
    with pytest.raises(Corrupt, match="cannot be understood"):
        read_items([(key, 0, body)])
    assert read_items([(b"something\0new", 0, body)]) == ConsumerPositions({}, {})
