"""The manifest's rows, as the writer changes them: sealing, trimming, expiring, each inside a group's transaction.

Every operation is a compare-and-set: it says what it expects to find, and if that has changed, its
unit fails alone and nothing changed. A watermark only ever moves forward.
"""

from __future__ import annotations

from holdfast.crypto.vault import Vault
from holdfast.errors import Corrupt, Invalid
from holdfast.journal.backend import Backend
from holdfast.journal.state.operations import Change, Expire, MarkSegments, MarkShipped, Seal, Trim
from holdfast.journal.state.state_digest import Vouched
from holdfast.model.control_rows import EXPIRING, LIVE, SegmentRow, WatermarkRow, stamped


def apply(backend: Backend, vault: Vault, operation: Seal | Trim | Expire | MarkSegments | MarkShipped) -> None:
    """Do what an operation says, inside the open transaction."""
    match operation:
        case Seal():
            seal(backend, vault, operation)
        case Trim():
            trim(backend, operation)
        case Expire():
            expire(backend, vault, operation)
        case MarkSegments():
            mark(backend, vault, operation)
        case MarkShipped():
            mark_shipped(backend, vault, operation)


def seal(backend: Backend, vault: Vault, operation: Seal) -> None:
    """Insert the segment that follows the newest one, and move the watermark behind it."""
    partition, row = operation.partition, operation.row
    before = partition.sealed
    if (row.number, row.first_offset) != (before.segments, before.sealed_offset) or row.end > partition.durable:
        raise Invalid(
            f"a segment does not follow the sealed ones topic={partition.topic} partition={partition.number}"
            f" number={row.number} first={row.first_offset}",
            hint="this is a defect in holdfast; nothing was changed",
        )
    backend.insert_segment(stamped(row._replace(key_epoch=vault.epoch), vault))
    after = before._replace(segments=row.number + 1, sealed_offset=row.end, chain=row.chain, key_epoch=vault.epoch)
    operation.watermark = stamped(after, vault)
    backend.store_watermark(operation.watermark)
    operation.change = Change(segments=1, stamps=_stamp(operation.watermark))


def trim(backend: Backend, operation: Trim) -> None:
    """Remove the next slice of entries below the watermark."""
    partition = operation.partition
    removed = backend.trim_entries(partition.id, partition.sealed.sealed_offset, operation.slice_max)
    operation.bodies = removed
    operation.change = Change(entries=-len(removed))


def expire(backend: Backend, vault: Vault, operation: Expire) -> None:
    """Mark the oldest segments as expiring and let the partition begin behind them."""
    partition = operation.partition
    before = partition.sealed
    upto = max(before.first_segment, min(operation.upto, before.segments))
    rows = backend.segments(partition.id, before.first_segment, upto)
    if len(rows) != upto - before.first_segment:
        raise Corrupt("rows of the manifest are missing", path=str(backend.path), topic=partition.topic)
    for row in rows:
        _prove(row, vault)
    live = [_moved(row, EXPIRING, vault) for row in rows if row.state == LIVE]
    backend.store_states(live)
    operation.expiring = live
    if rows:
        after = before._replace(first_segment=upto, first_offset=rows[-1].end, key_epoch=vault.epoch)
        operation.watermark = stamped(after, vault)
        backend.store_watermark(operation.watermark)
        operation.change = Change(stamps=_stamp(operation.watermark))


def mark(backend: Backend, vault: Vault, operation: MarkSegments) -> None:
    """Move segments to another state; all of them must be as they were seen."""
    for seen in operation.rows:
        if backend.segments(seen.partition_id, seen.number, seen.number + 1) != [seen]:
            raise Invalid(
                f"a segment has changed since it was read number={seen.number}", hint="read it again and retry"
            )
        _prove(seen, vault)
    backend.store_states([_moved(row, operation.state, vault) for row in operation.rows])


def mark_shipped(backend: Backend, vault: Vault, operation: MarkShipped) -> None:
    """Write down how far the log is on its store."""
    backend.store_shipping(stamped(operation.shipping._replace(key_epoch=vault.epoch), vault))
    rows = [stamped(row._replace(key_epoch=vault.epoch), vault) for row in operation.shipments]
    backend.store_shipments(rows)


def _prove(row: SegmentRow, vault: Vault) -> None:
    if not vault.verify(row.key_epoch, row.message(), row.stamp):
        raise Corrupt(f"a row of the manifest does not match its stamp number={row.number}")


def _moved(row: SegmentRow, state: int, vault: Vault) -> SegmentRow:
    return stamped(row._replace(state=state, key_epoch=vault.epoch), vault)


def _stamp(row: WatermarkRow) -> dict[Vouched, bytes]:
    return {("watermark", row.partition_id): row.stamp}
