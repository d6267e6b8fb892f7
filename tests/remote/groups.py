"""Groups as a client sends them, made by hand; and what became of them."""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

from holdfast.journal.journal import Run
from holdfast.journal.queue.forwarded import ForwardedRows, ForwardedUnit, Item
from holdfast.journal.sessions.outcomes import Outcomes
from holdfast.journal.state.operations import ChangeSpace
from holdfast.model.record_columns import EncodedRows
from holdfast.owner.group_frames import PackedGroup
from holdfast.owner.wire import ANSWER, FROM_OWNER, HEADER, GroupAnswer, decoded, header

NOWHERE = 999_999
"""The id of no partition."""


def partition(number: int) -> Any:
    """A partition, as far as packing needs one: its id."""
    return SimpleNamespace(id=number)


def rows(number: int, *payloads: bytes, keys: Iterable[bytes | None] | None = None) -> ForwardedRows:
    """Plain records for the partition with this id."""
    chosen = [None] * len(payloads) if keys is None else list(keys)
    return ForwardedRows(partition(number), [(one, 1, None, key) for one, key in zip(payloads, chosen, strict=True)], 0)


def unit(*operations: Any, alone: bool = False) -> ForwardedUnit:
    """What is durable together."""
    return ForwardedUnit(list(operations), 0, 0, alone=alone)


def typed(number: int, encoded: EncodedRows, key: bytes | None = None, batch: bytes | None = None) -> Run:
    """Rows of a typed topic."""
    encoded.key, encoded.batch = key, batch
    return Run.unplaced(partition(number), encoded)


def space(name: str, key: bytes, body: bytes) -> ChangeSpace:
    """An item put into a space."""
    return ChangeSpace(b"space/" + name.encode(), ((key, 0, body),))


def packed(*items: Item, sequence: int = 1, floor: int | None = None) -> bytes:
    """The body of a request."""
    return b"".join(PackedGroup(sequence, list(items)).buffers(sequence if floor is None else floor))


def outcomes(content: bytes) -> Outcomes:
    """What an answer says."""
    found = header(content, 0, FROM_OWNER)
    assert (found.kind, found.size) == (ANSWER, len(content))
    answer = decoded(ANSWER, content[HEADER.size :])
    assert isinstance(answer, GroupAnswer)
    return answer.outcomes
