"""Offsets by topic and partition, in Kafka's notation: `{"orders":{"0":1200,"1":900}}`.

One notation says where to start, where to end, and how far a stream is. -2 stands for the earliest and -1 for the
latest offset there is. What a read covered (its marks, for `asOf`) has a pair in place of each offset,
`{"orders":{"0":[300,1200]}}`: where it began, and where it ended (exclusive). Marks may also be given as offsets; they
then mean their ends, to go on where a read ended. Equal offsets are equal text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import msgspec

from holdfast.errors import Invalid
from holdfast.model.topic_name import check_name

Where = tuple[str, int]
"""A topic's name and a partition's number."""

Offsets = Mapping[Where, int]

EARLIEST, LATEST = -2, -1


class Mark(NamedTuple):
    """What a read covered of one partition."""

    start: int | None
    """None in older marks, which did not say it."""
    end: int


_SHAPE = """write {"orders":{"0":1200,"1":900}}; -2 stands for the earliest, -1 for the latest offset"""
_PARTITION_MAX, _OFFSET_MAX = 65_535, 2**62

Said = int | tuple[int, int]
"""An offset, or where a read began and ended, as JSON."""

_decoder: msgspec.json.Decoder[dict[str, dict[str, Said]]] = msgspec.json.Decoder(dict[str, dict[str, Said]])


def parse_offsets(text: str | bytes, *, least: int = EARLIEST) -> dict[Where, int]:
    """Offsets from text; Invalid if it is not such text.

    >>> parse_offsets('{"orders":{"1":900}}')
    {('orders', 1): 900}
    """
    return offsets_of(_decoded(text), least=least)


def parse_marks(text: str | bytes) -> dict[Where, Mark]:
    """Marks from text, also from older text without starts; Invalid if it is neither.

    >>> parse_marks('{"orders":{"0":[300,1200],"1":900}}')
    {('orders', 0): Mark(start=300, end=1200), ('orders', 1): Mark(start=None, end=900)}
    """
    return dict(_marks(_decoded(text), least=0))


def offsets_of(nested: Mapping[str, Mapping[str, Said]], *, least: int = EARLIEST) -> dict[Where, int]:
    """Offsets from decoded JSON."""
    return {where: mark.end for where, mark in _marks(nested, least)}


def _decoded(text: str | bytes) -> dict[str, dict[str, Said]]:
    try:
        return _decoder.decode(text)
    except (msgspec.MsgspecError, UnicodeEncodeError):
        raise Invalid("these are not offsets by topic and partition", hint=_SHAPE) from None


def _marks(nested: Mapping[str, Mapping[str, Said]], least: int) -> Iterator[tuple[Where, Mark]]:
    for topic, partitions in nested.items():
        for number, said in partitions.items():
            mark = Mark(None, said) if isinstance(said, int) else Mark(*said)
            is_number = number.isascii() and number.isdigit() and int(number) <= _PARTITION_MAX
            is_span = mark.start is None or 0 <= mark.start <= mark.end
            if not is_number or not is_span or not least <= mark.end < _OFFSET_MAX:
                raise Invalid("these are not offsets by topic and partition", hint=_SHAPE)
            yield (check_name(topic), int(number)), mark


def nested(offsets: Offsets) -> dict[str, dict[str, int]]:
    """Offsets as nested dictionaries, sorted by topic and partition."""
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


def format_marks(marks: Mapping[Where, Mark]) -> str:
    """Marks as text; equal marks are equal text.

    >>> format_marks({("orders", 0): Mark(300, 1200)})
    '{"orders":{"0":[300,1200]}}'
    """
    topics: dict[str, dict[str, Said]] = {}
    for (topic, partition), (start, end) in sorted(marks.items()):
        topics.setdefault(topic, {})[str(partition)] = end if start is None else (min(start, end), end)
    return msgspec.json.encode(topics).decode()
