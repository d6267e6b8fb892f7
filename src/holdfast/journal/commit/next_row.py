"""The log's own row as it will be after a group: what each count becomes. Pure; the writer stamps and stores it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from holdfast.journal.commit.staging import Staging
from holdfast.journal.queue.group import Run
from holdfast.journal.state.operations import NO_CHANGE, Change, ChangeSpace
from holdfast.journal.state.state_digest import Vouched
from holdfast.model.control_rows import LogRow

Propose = Callable[[Mapping[Vouched, bytes]], bytes]
"""The sum over all rows that the log's row vouches for, once these have these stamps."""

Place = tuple[int, int]
"""The file in which the group after this one may be, and where it begins there at the earliest."""


def filed_row(old: LogRow, staging: Staging) -> LogRow:
    """The row with a group in it that is in a file: sum, place and stamp are left for when the database gets them."""
    sessions = old[18:20] if staging.sessions is None else (staging.sessions.count, staging.sessions.sum)
    return LogRow._make(
        (
            *old[:7],
            old.entries + staging.next_seq - old.next_seq,
            staging.next_seq,
            old.groups + 1,
            *old[10:18],
            *sessions,
            old.key_epoch,
            b"",
        )
    )


def next_row(old: LogRow, staging: Staging, heads: dict[Vouched, bytes], propose: Propose, place: Place) -> LogRow:
    """The row with this group in it, not stamped yet; `heads` are the stamps of the heads that it moves."""
    if staging.is_plain:
        return LogRow._make(
            (
                *old[:7],
                old.entries + staging.next_seq - old.next_seq,
                staging.next_seq,
                old.groups + 1,
                old.keys,
                propose(heads),
                *old[12:16],
                *place,
                *old[18:20],
                staging.key_epoch,
                b"",
            )
        )
    changes = [op.change for unit in staging.units for op in unit.operations if not isinstance(op, (Run, ChangeSpace))]
    change = _sum(changes) if changes else NO_CHANGE
    spaces, sessions = staging.spaces, staging.sessions
    return LogRow(
        old.log_id,
        old.created_us,
        old.keyed,
        old.epoch,
        old.key_epochs + change.key_epochs,
        old.topics + change.topics,
        old.partitions + change.partitions,
        old.entries + staging.next_seq - old.next_seq + change.entries,
        staging.next_seq,
        old.groups + 1,
        old.keys + len(staging.keys),
        propose({**change.stamps, **spaces.stamps, **heads}),
        old.segments + change.segments,
        old.schemas + change.schemas,
        old.policies + change.policies,
        old.spaces + spaces.added,
        *place,
        old.sessions if sessions is None else sessions.count,
        old.session_sum if sessions is None else sessions.sum,
        staging.key_epoch,
        b"",
    )


def _sum(changes: list[Change]) -> Change:
    stamps: dict[Vouched, bytes] = {}
    for change in changes:
        stamps.update(change.stamps)
    counts = [sum(column) for column in zip(*(change[:-1] for change in changes), strict=True)]
    return Change._make([*counts, stamps])
