"""Large results: kept beside the journal, in a space of their own, and referred to by the entry.

A result that is larger than `executions.payload_bytes_max` is cut into parts, which become durable in the same commit
as the entry that refers to them. The reference has the length and the hash of the whole. The space goes with its
execution: all names that begin with `execution-data/<id>/` do. The parts are also records of the topic `_executions`,
as far as one commit may have so many bytes: larger ones do not come back when a log is restored, and say so.
"""

from __future__ import annotations

from blake3 import blake3

from holdfast.errors import Corrupt, Invalid
from holdfast.execution.journal.commit_parts import DATA_PREFIX, data_records
from holdfast.execution.journal.execution_id import ExecutionId
from holdfast.journal.journal import Journal, Operation

PART_BYTES = 2**20
_HASH_BYTES, _NAME_BYTES = 32, 16


def space_of(execution: ExecutionId, path: str) -> str:
    """Where the large result of a step is kept."""
    return f"{DATA_PREFIX}{execution}/{blake3(path.encode()).digest()[:_NAME_BYTES].hex()}"


def put_aside(
    journal: Journal, execution: ExecutionId, path: str, payload: bytes
) -> tuple[bytes, list[Operation], int]:
    """The reference to a payload, the operations that keep it, and their bytes."""
    most = journal.settings.queue_bytes_max // 2
    if len(payload) > most:
        raise Invalid(
            f"the result of this step has {len(payload)} bytes, more than {most} step={path}",
            hint="write it to a topic, a file or a store inside of the step, and return where it is",
        )
    starts = range(0, len(payload), PART_BYTES)
    items = [(n.to_bytes(4, "big"), n, payload[at : at + PART_BYTES]) for n, at in enumerate(starts)]
    space = space_of(execution, path)
    operations, size = journal.spaces.operations(space, items, [])
    if 2 * len(payload) <= journal.settings.batch_bytes_max:
        operations.append(data_records(journal, execution, space, items))
        size *= 2
    return blake3(payload).digest() + len(payload).to_bytes(8, "big"), operations, size


def fetched(journal: Journal, execution: ExecutionId, path: str, reference: bytes) -> bytes:
    """The payload that a reference stands for, proved."""
    length = int.from_bytes(reference[_HASH_BYTES:], "big")
    # Behind it there may be parts of a longer one, which was forgotten by a rewind and came back with a restore.
    payload = b"".join(body for _, _, body in journal.spaces.load(space_of(execution, path)))[:length]
    if len(payload) != length or blake3(payload).digest() != reference[:_HASH_BYTES]:
        raise Corrupt(
            f"the large result of a step is not what its entry says execution={execution} step={path}",
            hint="rewind the execution to before this step, or fork it there",
        )
    return payload
