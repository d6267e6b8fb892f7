"""Groups that are in files alone, proved: they follow the database's own row, and each other, and nobody made them up.

Each frame of a file names what it follows, and has a proof over all that it says (`group_frame`). The first one behind
the database's own row names that row's stamp, each other one the proof of the frame before it. So a holder of the keys
knows that these groups are those that an owner wrote after this very row, in this order, none left out. That row, and
the heads in the database that they go on from, are proved by their stamps, as ever.

What the log's row and the heads are after such groups follows from their entries: an examination gets them as the owner
will store them, stamps and sum included. The sum goes on from the stored one, so what does not fit the heads in the
database before does not fit the sum after, either.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from holdfast.crypto.vault import Vault
from holdfast.errors import Corrupt
from holdfast.journal.backend import ControlRows, ControlTables
from holdfast.journal.groups.group_frame import FrameProof
from holdfast.journal.groups.unfolded_rows import UnfoldedRows
from holdfast.journal.proving.proofs import BAD, OK, Proofs
from holdfast.journal.state.state_digest import moved
from holdfast.model.control_rows import HeadRow, LogRow


class ProvedGroups(NamedTuple):
    """How far the groups behind a row of the database were proved."""

    base: bytes = b""
    """The stamp of that row."""
    groups: int = 0
    """The newest group that was proved, and the proof of its frame; without one, the group of the row."""
    newest: bytes = b""

    @classmethod
    def none(cls, stored: LogRow) -> ProvedGroups:
        """Nothing but the row, which is proved by its stamp."""
        return cls(stored.stamp, stored.groups)

    def go_on(self, proofs: Iterable[FrameProof], key_epoch: int, vault: Vault) -> ProvedGroups | None:
        """The same with the groups that came since; None where one of them does not follow, or is not proved."""
        base, groups, newest = self
        for one in proofs:
            if one.group <= groups:
                continue
            follows = one.before == newest if newest else one.base == base
            if not follows or (one.group, one.key_epoch) != (groups + 1, key_epoch):
                return None
            if not vault.is_proof(key_epoch, one.digest, one.proof):
                return None
            groups, newest = one.group, one.proof
        return ProvedGroups(base, groups, newest)


def take_in(control: ControlRows, tables: ControlTables, proofs: Proofs) -> None:
    """Give the rows that follow from groups in files the stamps that the database's would have; tell what is wrong.

    Without the key there are none: rows stay unchecked.
    """
    stored, late, vault = control.stored, tables.late, proofs.vault
    if not late.proofs or stored is None or control.log is None or vault is None:
        return
    if proofs.key_epoch(stored.key_epoch)[0] is not OK:
        return
    if proofs.stamp(stored) is BAD:
        control.damage.append(_damage(control, "the log's own row does not match its stamp"))
    proved = ProvedGroups.none(stored).go_on(late.proofs, stored.key_epoch, vault)
    if proved is None or proved.groups != late.groups:
        control.damage.append(_damage(control, "groups in files do not follow the database's own row, or were changed"))
    before = {head.partition_id: head for head in tables.stored_heads("ORDER BY partition_id")}
    if not _do_follow(late, stored, before):
        control.damage.append(_damage(control, "entries in files do not follow those in the database"))
    stamp_of = vault.stamp_under(stored.key_epoch)
    heads: dict[int, HeadRow] = {}
    for number in late.partitions:
        if number not in before:
            continue
        if proofs.stamp(before[number]) is BAD:
            control.damage.append(_damage(control, "a head does not match its stamp"))
        head = late.head_after(before[number])
        heads[number] = head._replace(stamp=stamp_of(head.message()))
    stamps = [(before[number].stamp, head.stamp) for number, head in heads.items()]
    row = control.log._replace(heads=moved(stamp_of, stored.heads, stamps))
    control.log = row._replace(stamp=stamp_of(row.message()))
    control.heads = [heads.get(head.partition_id, head) for head in control.heads]


def _do_follow(late: UnfoldedRows, stored: LogRow, heads: dict[int, HeadRow]) -> bool:
    """Whether entries go on where the database's end: in the order of commits, and in each partition."""
    seq, ends = stored.next_seq, {number: (head.next_offset, head.link) for number, head in heads.items()}
    for entry in late.entries:
        if entry.seq != seq or ends.get(entry.partition_id) != (entry.first, entry.link):
            return False
        seq, ends[entry.partition_id] = seq + 1, (entry.first + entry.count, entry.digest)
    return True


def _damage(control: ControlRows, message: str) -> Corrupt:
    return Corrupt(message, path=str(control.path))
