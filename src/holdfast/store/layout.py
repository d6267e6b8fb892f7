"""Where things lie under a store's root: the only module that spells a key.

    topics/<topic>/<partition>/segments/<20 digits>-<16 hex digits of sha256>.parquet

A log's own `segments/` directory is such a root. Names are made here and taken apart here; what does not come
apart is not ours.
"""

from __future__ import annotations

import re
from typing import NamedTuple

TEMPORARY = ".tmp"
EXPIRED = ".expired"

_SEGMENT = re.compile(r"([0-9]{20})-([0-9a-f]{16})\.parquet\Z")
_TEMPORARY = re.compile(r"([0-9]{20})(?:-[0-9]+)?\.parquet\.tmp\Z")


class SegmentName(NamedTuple):
    """A segment file's name, taken apart."""

    number: int
    hash: str


def partition_folder(topic: str, partition: int) -> str:
    """The folder of one partition."""
    return f"topics/{topic}/{partition}"


def segments_folder(topic: str, partition: int) -> str:
    """The folder of one partition's segment files."""
    return f"{partition_folder(topic, partition)}/segments"


def segment_name(number: int, sha256: bytes) -> str:
    """The file name of a finished segment."""
    return f"{number:020d}-{sha256[:8].hex()}.parquet"


def temporary_name(number: int, epoch: int = 0) -> str:
    """The file name of a segment that is being written, in this ownership of the log.

    With the epoch in it, an owner that was shut down in the middle of a seal, and wakes up later, touches no file of
    the next one.
    """
    return f"{number:020d}-{epoch}.parquet{TEMPORARY}"


def segment_key(topic: str, partition: int, number: int, sha256: bytes) -> str:
    """The full key of a finished segment."""
    return f"{segments_folder(topic, partition)}/{segment_name(number, sha256)}"


def parse_segment_name(name: str) -> SegmentName | None:
    """A finished segment's file name, or None."""
    found = _SEGMENT.match(name)
    return SegmentName(int(found[1]), found[2]) if found else None


def parse_temporary_name(name: str) -> int | None:
    """The number of a segment that is being written, or None."""
    found = _TEMPORARY.match(name)
    return int(found[1]) if found else None
