"""Offsets by topic and partition, in Kafka's notation: `{"orders":{"0":1200,"1":900}}`.

One notation says where to start, where to end, and how far a stream is. -2 stands for the earliest and -1 for the
latest offset there is. Offsets that a person writes mean those of whichever log is read.

Marks are what a read gives: they belong to one log, and begin with its id. What a read covered (for `asOf`) has a pair
in place of each offset, where it began and where it ended (exclusive): `{"<id>":{"orders":{"0":[300,1200]}}}`; how far
a stream is has offsets. Given as offsets, marks mean their ends, to go on where a read ended. At another log they are
refused. Equal offsets are equal text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import msgspec

from holdfast.errors import Invalid
from holdfast.model.topic_name import check_name

Where = tuple[str, int]
"""A topic's name and a partition's number."""

Offsets = Mapping[Where, int]

EARLIEST, LATEST = -2, -1


class PartitionMark(NamedTuple):
    """What a read covered of one partition."""

    start: int | None
    """None: only an offset is known."""
    end: int


class ReadMarks(NamedTuple):
    """What a read covered, or offsets; by partition."""

    log: str
    """The id of the log that they belong to; empty: whichever is read."""
    of: Mapping[Where, PartitionMark]

    @property
    def ends(self) -> dict[Where, int]:
        """Only the offsets."""
        return {where: mark.end for where, mark in self.of.items()}

    def end(self, where: Where, default: int) -> int:
        """The offset of a partition, if it is named."""
        mark = self.of.get(where)
        return default if mark is None else mark.end


_SHAPE = """write {"orders":{"0":1200,"1":900}}; -2 is the earliest, -1 the latest offset"""
_MARKS_SHAPE = "give the text that marks_of(df), settled_marks(root) or reading.marks returned"
_PARTITION_MAX, _OFFSET_MAX = 65_535, 2**62
_LOG_ID = re.compile(r"[0-9a-f]{32}\Z")

Said = int | tuple[int, int]
"""An offset, or where a read began and ended, as JSON."""
Nested = Mapping[str, Mapping[str, Said]]
"""By topic and partition."""

_decoder: msgspec.json.Decoder[dict[str, dict[str, Said | dict[str, Said]]]] = msgspec.json.Decoder(
    dict[str, dict[str, Said | dict[str, Said]]]
)


def parse_offsets(text: str | bytes, *, least: int = EARLIEST) -> ReadMarks:
    """Offsets from text, or marks, which belong to a log; Invalid if it is neither.

    >>> parse_offsets('{"orders":{"1":900}}').ends
    {('orders', 1): 900}
    """
    return marks_in(_decoded(text), least=least)


def parse_marks(text: str | bytes) -> ReadMarks:
    """Marks of a read from text; Invalid if it is anything else.

    >>> parse_marks('{"000102030405060708090a0b0c0d0e0f":{"orders":{"0":[300,1200]}}}').of
    {('orders', 0): PartitionMark(start=300, end=1200)}
    """
    found = parse_offsets(text, least=0)
    if not found.log or any(mark.start is None for mark in found.of.values()):
        raise Invalid(
            "these are not the marks of a read: they name a log, and where it began and ended", hint=_MARKS_SHAPE
        )
    return found


def marks_in(decoded: Mapping[str, Any], *, least: int = EARLIEST) -> ReadMarks:
    """Offsets or marks from decoded JSON."""
    logs = [name for name, topics in decoded.items() if _is_log(name, topics)]
    if not logs:
        return ReadMarks("", dict(_spans(decoded, least)))
    if len(decoded) > 1:
        raise Invalid("these are marks of several logs", hint="read one log at a time, each with its own marks")
    return ReadMarks(logs[0], dict(_spans(decoded[logs[0]], least)))


def _is_log(name: str, below: Mapping[str, object]) -> bool:
    """Whether a name is that of a log, and not of a topic that is called alike."""
    return _LOG_ID.match(name) is not None and all(isinstance(one, dict) for one in below.values())


def _decoded(text: str | bytes) -> dict[str, Any]:
    try:
        return _decoder.decode(text)
    except (msgspec.MsgspecError, UnicodeEncodeError):
        raise Invalid("these are not offsets by topic and partition", hint=_SHAPE) from None


def _spans(topics: Mapping[str, Mapping[str, Any]], least: int) -> Iterator[tuple[Where, PartitionMark]]:
    for topic, partitions in topics.items():
        for number, said in partitions.items():
            mark = _mark(said)
            is_number = number.isascii() and number.isdigit() and int(number) <= _PARTITION_MAX
            is_span = mark.start is None or 0 <= mark.start <= mark.end
            if not is_number or not is_span or not least <= mark.end < _OFFSET_MAX:
                raise Invalid("these are not offsets by topic and partition", hint=_SHAPE)
            yield (check_name(topic), int(number)), mark


def _mark(said: object) -> PartitionMark:
    if isinstance(said, int):
        return PartitionMark(None, said)
    if isinstance(said, tuple | list) and len(said) == 2:
        return PartitionMark(*said)
    raise Invalid("these are not offsets by topic and partition", hint=_SHAPE)


def nested(offsets: Offsets) -> dict[str, dict[str, int]]:
    """Offsets as nested dictionaries, sorted by topic and partition."""
    topics: dict[str, dict[str, int]] = {}
    for (topic, partition), offset in sorted(offsets.items()):
        topics.setdefault(topic, {})[str(partition)] = offset
    return topics


def format_marks(marks: ReadMarks) -> str:
    """Marks as text; equal marks are equal text.

    >>> format_marks(ReadMarks("000102030405060708090a0b0c0d0e0f", {("orders", 0): PartitionMark(300, 1200)}))
    '{"000102030405060708090a0b0c0d0e0f":{"orders":{"0":[300,1200]}}}'
    """
    topics: dict[str, dict[str, Said]] = {}
    for (topic, partition), (start, end) in sorted(marks.of.items()):
        topics.setdefault(topic, {})[str(partition)] = end if start is None else (min(start, end), end)
    return msgspec.json.encode({marks.log: topics} if marks.log else topics).decode()


def require_log(marks: ReadMarks, log: str, *, what: str, hint: str) -> None:
    """Refuse marks of another log: its offsets mean other records."""
    if marks.log and marks.log != log:
        raise Invalid(f"{what} another log than the one at this root log={log} expected={marks.log}", hint=hint)
