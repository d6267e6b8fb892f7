"""Executions made again of the topic `_executions`: after a log was restored or rebuilt, which brings no spaces back.

The topic has all that the spaces had, in the same commits: blocks, folded stretches, rows, values kept by reference,
and what was pruned. What it no longer has (it was not shipped, or has expired) is not made up: an execution whose
journal has a gap keeps its row and what is left, and cannot be resumed.

While it goes on, a mark stands in the index: if the process dies, all of it is done again, with the same outcome.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator

import msgspec

from holdfast.errors import Corrupt
from holdfast.execution.journal.commit_parts import BLOCK_KEY, DATA_PREFIX, FOLDED_KEY, INDEX, PREFIX, Item, block_item
from holdfast.execution.journal.entries import Block, ExecutionRow, Folded, decode_any_block, decode_row, encode_row
from holdfast.execution.journal.execution_id import ExecutionId
from holdfast.journal.journal import Journal
from holdfast.model.record import Record

MARK = b"!"
"""The key of the item that is in the index while it is made again."""
_COMMIT_BYTES = 2**20
_TIMEOUT_S = 60.0
_NUMBERS = range(2**63)
_KINDS = frozenset({"status", "entries", "folded", "data", "pruned"})

_data = msgspec.msgpack.Decoder(tuple[str, int, bytes])

logger = logging.getLogger("holdfast.executions")


class _ExecutionHistory:
    """What the topic says of one execution."""

    __slots__ = ("blocks", "data", "row")

    def __init__(self) -> None:
        self.row: ExecutionRow | None = None
        self.blocks: dict[int, Item] = {}
        """By their numbers."""
        self.data: dict[str, dict[int, bytes]] = {}
        """Parts of large results, by where they go."""


def is_needed(journal: Journal, has_records: Callable[[], bool]) -> bool:
    """Whether there should be executions here and there are none, or not all."""
    index = journal.spaces.load(INDEX)
    if index:
        return any(key == MARK for key, _, _ in index)
    return has_records() and INDEX not in journal.spaces.names()


def rebuild(journal: Journal, records: Iterable[Record]) -> int:
    """Make all spaces of executions again; durable when this returns. How many executions there are."""
    found = _found(records)
    lost = [execution for execution, one in found.items() if one.row is None]
    for execution in lost:
        del found[execution]
    if lost:
        logger.warning(
            "%d executions cannot be made again: what said that they began has expired first=%s",
            len(lost),
            lost[0],
            extra={"action": "executions_lost", "count": len(lost)},
        )
    _change(journal, INDEX, [(MARK, 0, b"")])
    for execution, one in found.items():
        name = str(execution)
        journal.spaces.change(PREFIX + name, drop=True, timeout=_TIMEOUT_S).result()
        for items in _chunks(one.blocks[number] for number in sorted(one.blocks)):
            _change(journal, PREFIX + name, items)
        for space, parts in one.data.items():
            for items in _chunks((number.to_bytes(4, "big"), number, body) for number, body in parts.items()):
                _change(journal, DATA_PREFIX + space, items)
    rows = [one.row for one in found.values() if one.row is not None]
    for items in _chunks((row.id, row.created_us, encode_row(row)) for row in rows):
        _change(journal, INDEX, items)
    journal.spaces.change(INDEX, [], [MARK], timeout=_TIMEOUT_S).result()
    logger.info("executions were made again of what was restored", extra={"action": "executions_rebuilt"})
    return len(rows)


def _found(records: Iterable[Record]) -> dict[ExecutionId, _ExecutionHistory]:
    found: dict[ExecutionId, _ExecutionHistory] = {}
    for record in records:
        if record.kind not in _KINDS:  # a newer version's, or of a program that took this for a topic of its own
            continue
        execution = _execution(record)
        if record.kind == "pruned":
            found.pop(execution, None)
            continue
        try:
            _take(found.setdefault(execution, _ExecutionHistory()), execution, record)
        except (ValueError, OverflowError):  # nothing that was ever written
            raise _forged(record) from None
    return found


def _execution(record: Record) -> ExecutionId:
    try:
        return ExecutionId((record.key or b"").decode())
    except ValueError:
        raise _forged(record) from None


def _forged(record: Record) -> Corrupt:
    return Corrupt(
        f"a record of the executions' topic is not what was ever written offset={record.offset}",
        hint="restore the log from a store that nothing else writes to",
    )


def _take(one: _ExecutionHistory, execution: ExecutionId, record: Record) -> None:
    """One more record of an execution; raises ValueError for what cannot be one."""
    match record.kind:
        case "status":
            one.row = row = decode_row(record.payload)
            if row.id != execution.bytes or row.created_us not in _NUMBERS:
                raise ValueError
        case "entries":
            _take_entries(one, execution, record.payload)
        case "folded":
            _take_folded(one, execution, record.payload)
        case "data":
            name, number, body = _data.decode(record.payload)
            if not name.startswith(f"{execution}/") or not 0 <= number < 2**32:
                raise ValueError
            one.data.setdefault(name, {})[number] = body


def _take_entries(one: _ExecutionHistory, execution: ExecutionId, body: bytes) -> None:
    block = _block(execution, body)
    if isinstance(block.entries[0], Folded):  # the past was written anew
        one.blocks.clear()
    key, number, _ = block_item(BLOCK_KEY, execution, block.first, list(block.entries))
    one.blocks[number] = (key, number, body)


def _take_folded(one: _ExecutionHistory, execution: ExecutionId, body: bytes) -> None:
    block = _block(execution, body)
    entry = block.entries[0]
    if not isinstance(entry, Folded) or not 0 < entry.count <= entry.upto == block.first + 1:
        raise ValueError
    first = entry.upto - entry.count
    one.blocks = {number: item for number, item in one.blocks.items() if not first <= number < entry.upto}
    key, number, _ = block_item(FOLDED_KEY, execution, block.first, [entry], entry.count)
    one.blocks[number] = (key, number, body)


def _block(execution: ExecutionId, body: bytes) -> Block:
    block = decode_any_block(body)
    if block.execution != execution.bytes or not block.entries or block.first not in _NUMBERS:
        raise ValueError
    return block


def _chunks(items: Iterable[Item]) -> Iterator[list[Item]]:
    chunk: list[Item] = []
    size = 0
    for item in items:
        if chunk and size + len(item[2]) > _COMMIT_BYTES:
            yield chunk
            chunk, size = [], 0
        chunk.append(item)
        size += len(item[2])
    if chunk:
        yield chunk


def _change(journal: Journal, name: str, items: list[Item]) -> None:
    journal.spaces.change(name, items, timeout=_TIMEOUT_S).result()
