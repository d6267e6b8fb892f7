"""Offsets by topic and partition, in Kafka's notation: `{"orders":{"0":1200,"1":900}}`.

One notation serves where to start, where to end, what was read (marks, for `asOf`) and how far a stream is. -2 stands
for the earliest and -1 for the latest offset there is. Equal offsets are equal text.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from holdfast.errors import Invalid
from holdfast.store.names import check_name

Where = tuple[str, int]
"""A topic's name and a partition's number."""

Offsets = Mapping[Where, int]

EARLIEST, LATEST = -2, -1
_SHAPE = """write {"orders":{"0":1200,"1":900}}; -2 stands for the earliest, -1 for the latest offset"""
_PARTITION_MAX, _OFFSET_MAX = 65_535, 2**62

_decoder: msgspec.json.Decoder[dict[str, dict[str, int]]] = msgspec.json.Decoder(dict[str, dict[str, int]])


def parse_offsets(text: str | bytes, *, least: int = EARLIEST) -> dict[Where, int]:
    """Offsets out of their text; Invalid when it is none.

    >>> parse_offsets('{"orders":{"1":900}}')
    {('orders', 1): 900}
    """
    try:
        return offsets_of(_decoder.decode(text), least=least)
    except msgspec.MsgspecError:
        raise Invalid("these are not offsets by topic and partition", hint=_SHAPE) from None


def offsets_of(nested: Mapping[str, Mapping[str, int]], *, least: int = EARLIEST) -> dict[Where, int]:
    """The same from what JSON decodes to."""
    found: dict[Where, int] = {}
    for topic, partitions in nested.items():
        for number, offset in partitions.items():
            is_number = number.isascii() and number.isdigit() and int(number) <= _PARTITION_MAX
            if not is_number or not least <= offset < _OFFSET_MAX:
                raise Invalid("these are not offsets by topic and partition", hint=_SHAPE)
            found[check_name(topic), int(number)] = offset
    return found


def nested(offsets: Offsets) -> dict[str, dict[str, int]]:
    """Offsets as JSON has them, sorted by topic and partition."""
    topics: dict[str, dict[str, int]] = {}
    for (topic, partition), offset in sorted(offsets.items()):
        topics.setdefault(topic, {})[str(partition)] = offset
    return topics


def format_offsets(offsets: Offsets) -> str:
    """Offsets as text; equal offsets are equal text.

    >>> format_offsets({("orders", 10): 5, ("orders", 2): 7})
    '{"orders":{"2":7,"10":5}}'
    """
    return msgspec.json.encode(nested(offsets)).decode()
