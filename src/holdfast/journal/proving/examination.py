"""The examination of a database: every control row with a verdict on it, going on after whatever is damaged.

There is one examination, and it is used twice. Opening a log (`recovery`) turns bad verdicts into a refusal, or into
warnings. `holdfast inspect`, `status` and `topics` print rows and verdicts of a database in any state.

A verdict says whether the row's stamp matches, whether the row fits the rows around it, and what is wrong if it does
not. Links, digests and places need no key. Stamps and bodies of an encrypted log do; without it they are *unchecked*,
which is not the same as good. Nothing is ever repaired or written.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, TypeAlias

from holdfast.crypto import digests
from holdfast.crypto.vault import KeyEpoch
from holdfast.errors import Corrupt
from holdfast.journal.backend import ControlRows, ControlTables
from holdfast.journal.proving.proofs import BAD, OK, UNCHECKED, Proofs, StampedRow
from holdfast.journal.sessions.session_table import proved
from holdfast.journal.state.state_digest import total
from holdfast.model.control_rows import (
    EpochRow,
    HeadRow,
    LogRow,
    PolicyRow,
    SchemaRow,
    SegmentRow,
    ShipmentRow,
    ShippingRow,
    SpaceRow,
    TopicRow,
    WatermarkRow,
)

PARTITIONS_MAX = 65_536
"""A number beyond this is damage, not a partition."""

ControlRow: TypeAlias = (
    LogRow
    | EpochRow
    | KeyEpoch
    | TopicRow
    | SchemaRow
    | PolicyRow
    | HeadRow
    | WatermarkRow
    | SpaceRow
    | ShippingRow
    | ShipmentRow
)


class Verdict(NamedTuple):
    """What a control row's checks say."""

    stamp: str = OK
    place: str = OK
    """Whether it fits the rows around it: a head its entries, a watermark the manifest, a shipment its partition."""
    problems: tuple[Corrupt, ...] = ()
    end: int | None = None
    """Of a head: where its entries end, if they do not end where it says."""


GOOD = Verdict()

Finding: TypeAlias = tuple[ControlRow | None, Verdict]
"""A control row and the verdict on it; None stands for the database as a whole."""


class Examination:
    """Examines the control rows of one log, inside the transaction that read them."""

    def __init__(
        self,
        tables: ControlTables,
        control: ControlRows,
        proofs: Proofs,
        log_id: bytes | None,
        *,
        is_opening: bool = False,
    ) -> None:
        self._tables = tables
        self._control = control
        self._proofs = proofs
        self._log_id = log_id
        self._is_opening = is_opening
        self._problems: list[Corrupt] = []
        """What is wrong with the row in hand."""
        self._names = control.topic_names
        self._heads = {head.partition_id: head for head in control.heads if 0 <= head.number < PARTITIONS_MAX}

    def findings(self) -> Iterator[Finding]:
        """Every control row with its verdict, in the order in which they are printed."""
        control = self._control
        self._problems += control.damage
        yield None, self._verdict()
        yield control.log, self._log()
        for epoch in control.epochs:
            yield epoch, self._stamped(epoch, f"epoch {epoch.number}")
        # Opening a log needs the key epochs that its rows name; one that nothing needs cannot stop it.
        for key_epoch in control.key_epochs if not self._is_opening else ():
            yield key_epoch, self._verdict(self._key_epoch(key_epoch.number))
        yield from self._topics()
        yield from self._schemas()
        for policy in control.policies:
            yield policy, self._policy(policy)
        for head in control.heads:
            yield head, self._head(head)
        for mark in control.watermarks.values():
            yield mark, self._watermark(mark)
        for space in control.spaces:
            yield space, self._stamped(space, "a space")
        if not self._is_opening:  # the opener of the log proves them when it takes them in
            yield None, self._sessions()
        yield from self._shipped()

    # -- the whole ----------------------------------------------------------------------------------------

    def _log(self) -> Verdict:
        """The log's own row, and whether everything is there that it vouches for."""
        row = self._control.log
        if row is None:
            self._bad("the database has lost the log's own row")
            return self._verdict(UNCHECKED)
        if self._log_id is not None and self._log_id != row.log_id:
            self._bad("the database belongs to another log than FORMAT says")
        stamp = self._stamp(row, "the log's own row")
        if not self._control.damage:
            self._count(row, is_proved=stamp is OK)
        if stamp is OK:
            self._vouch(row)
        return self._verdict(stamp)

    def _count(self, row: LogRow, *, is_proved: bool) -> None:
        """Whether there are as many rows as the log's own row says."""
        counts = self._tables.counts()
        if counts is None:
            self._problems += self._control.damage
            return
        last = row.next_seq - 1
        # Entries that were sealed are gone; the last of all may be among them.
        may_be_gone = self._is_opening or any(mark.segments for mark in self._control.watermarks.values())
        if counts.last_seq > last or (counts.last_seq < last and not may_be_gone):
            self._bad(f"the sequence does not end where it should seq={counts.last_seq} expected={last}")
        for name, count in counts._asdict().items() if is_proved else ():
            if name != "last_seq" and count != getattr(row, name):
                self._bad(f"rows are missing, or there are too many {name}={count} expected={getattr(row, name)}")

    def _vouch(self, row: LogRow) -> None:
        """What no single row shows: one that is good in itself, and not the one that was there last."""
        vault, control = self._proofs.vault, self._control
        if vault is None or not row.epoch:
            return
        vouched: list[StampedRow] = [*control.heads, *control.watermarks.values(), *control.policies, *control.spaces]
        if total(vault.stamp_under(row.key_epoch), [one.stamp for one in vouched]) != row.heads:
            self._bad(
                "the heads are not those that the log's own row vouches for, or the watermarks, policies or spaces"
            )

    # -- topics and partitions ----------------------------------------------------------------------------

    def _topics(self) -> Iterator[Finding]:
        numbers: dict[int, list[int]] = {}
        for head in self._control.heads:
            numbers.setdefault(head.topic_id, []).append(head.number)
        for topic in self._control.topics:
            own, place = numbers.get(topic.id, []), OK
            stamp = self._stamp(topic, "a topic", topic.name)
            if len(own) != topic.partitions or own != list(range(len(own))):
                place = self._bad("a topic has lost a partition's head", topic.name)
            yield topic, self._verdict(stamp, place)

    def _schemas(self) -> Iterator[Finding]:
        versions = dict.fromkeys(self._names, 0)
        for schema in self._control.schemas:
            topic, place = self._names.get(schema.topic_id), OK
            stamp = self._stamp(schema, "a schema", topic)
            if topic is None:
                place = self._bad(f"a schema belongs to no topic version={schema.version}")
            elif schema.version != versions[schema.topic_id] + 1:
                place = self._bad(f"a schema does not follow the one before it version={schema.version}", topic)
            elif stamp is not BAD:
                versions[schema.topic_id] += 1
            yield schema, self._verdict(stamp, place)

    def _policy(self, policy: PolicyRow) -> Verdict:
        topic = self._names.get(policy.topic_id)
        stamp = self._stamp(policy, "a retention policy", topic)
        return self._verdict(stamp, OK if topic is not None else self._bad("a retention policy belongs to no topic"))

    def _head(self, head: HeadRow) -> Verdict:
        """Whether a head is of a partition, and ends where its entries end, with the digest of the last one."""
        topic = self._names.get(head.topic_id)
        stamp = self._stamp(head, "a head", topic, head.number)
        if topic is None:
            self._bad(f"a head belongs to no topic partition_id={head.partition_id}")
        elif head.partition_id not in self._heads:
            self._bad(f"a head is out of range partition_id={head.partition_id}", topic)
        known = len(self._tables.damage)
        last = self._tables.last_entry(head.partition_id)
        if len(self._tables.damage) > known:
            self._problems += self._tables.damage[known:]
            return self._verdict(stamp, UNCHECKED)
        if last is not None:
            end, digest = last.first_offset + last.count, last.digest
        else:  # nothing was written yet, or all of it was sealed and trimmed
            mark = self._control.watermarks.get(head.partition_id)
            is_sealed = self._is_opening or (mark is not None and mark.segments)
            end, digest = 0 if mark is None else mark.sealed_offset, head.link if is_sealed else digests.NO_LINK
        if (end, digest) == (head.next_offset, head.link):
            return self._verdict(stamp)
        lost = end < head.next_offset
        why = "entries below the head are missing" if lost else "the head was put back, or the last entry replaced"
        message = f"a head and its last entry disagree head={head.next_offset} entries={end}: {why}"
        place = self._bad(message, topic, head.number, min(end, head.next_offset))
        return self._verdict(stamp, place)._replace(end=end)

    def _watermark(self, mark: WatermarkRow) -> Verdict:
        """Whether the manifest ends where a watermark says, with that chain value."""
        topic, number = place = self._place(mark.partition_id)
        stamp = self._stamp(mark, "a watermark", topic, number)
        if number is None:
            return self._verdict(
                stamp, self._bad(f"a watermark belongs to no partition partition_id={mark.partition_id}")
            )
        if not mark.first_offset <= mark.sealed_offset <= self._heads[mark.partition_id].next_offset:
            return self._verdict(stamp, self._bad("a watermark is beyond its head", *place, mark.sealed_offset))
        if not mark.segments or self._is_end(self._tables.segment(mark.partition_id, mark.segments - 1), mark):
            return self._verdict(stamp)
        return self._verdict(stamp, self._bad("the manifest does not end at its watermark", *place, mark.sealed_offset))

    def _is_end(self, newest: SegmentRow | None, mark: WatermarkRow) -> bool:
        if newest is None or (newest.end, newest.chain) != (mark.sealed_offset, mark.chain):
            return False
        self._key_epoch(newest.key_epoch)
        return self._proofs.stamp(newest) is not BAD

    def _place(self, partition_id: int) -> tuple[str | None, int | None]:
        """Topic and number of a partition; none where its head is lost, out of range, or belongs to no topic."""
        head = self._heads.get(partition_id)
        topic = None if head is None else self._names.get(head.topic_id)
        return (None, None) if head is None or topic is None else (topic, head.number)

    def _sessions(self) -> Verdict:
        """Whether the sessions of producers are those that the log's own row vouches for."""
        vault, row = self._proofs.vault, self._control.log
        if vault is not None and row is not None:
            try:
                proved(self._tables.sessions(), row, vault, str(self._control.path))
            except Corrupt as damage:
                self._problems.append(damage)
        return self._verdict()

    # -- the store ----------------------------------------------------------------------------------------

    def _shipped(self) -> Iterator[Finding]:
        """How far the log is on its store: never further than it is here."""
        control, shipping = self._control, self._control.shipping
        if shipping is None:
            if control.shipments:
                self._bad("the row that says where the log is shipped to is lost")
                yield None, self._verdict()
            return
        stamp, place = self._stamp(shipping, "what was shipped"), OK
        if control.log is not None and shipping.shipped_seq >= control.log.next_seq:
            place = self._bad(f"more was shipped than there is shipped_seq={shipping.shipped_seq}")
        yield shipping, self._verdict(stamp, place)
        for row in control.shipments.values():
            yield row, self._shipment(row)
        for head in control.heads if not control.damage else ():
            if head.partition_id not in control.shipments:
                topic = self._names.get(head.topic_id)
                self._bad("how far a partition is on the store is lost", topic, head.number, head.next_offset)
        yield None, self._verdict()

    def _shipment(self, row: ShipmentRow) -> Verdict:
        topic, number = place = self._place(row.partition_id)
        stamp = self._stamp(row, "a shipment", topic, number)
        if number is None:
            return self._verdict(
                stamp, self._bad(f"a shipment belongs to no partition partition_id={row.partition_id}")
            )
        mark = self._control.watermarks.get(row.partition_id)
        segments, sealed = (0, 0) if mark is None else (mark.segments, mark.sealed_offset)
        if (
            0 <= row.settled_segments <= min(segments, row.slots)
            and row.settled_offset <= min(sealed, row.shipped_offset)
            and row.shipped_offset <= self._heads[row.partition_id].next_offset
        ):
            return self._verdict(stamp)
        message = "a shipment is further than its partition"
        return self._verdict(stamp, self._bad(message, *place, row.shipped_offset))

    # -- verdicts -----------------------------------------------------------------------------------------

    def _stamped(self, row: StampedRow, what: str) -> Verdict:
        return self._verdict(self._stamp(row, what))

    def _stamp(self, row: StampedRow, what: str, topic: str | None = None, partition: int | None = None) -> str:
        found = self._proofs.stamp(row)
        if found is BAD:
            self._bad(f"{what} does not match its stamp", topic, partition)
        elif found is UNCHECKED:
            self._key_epoch(row.key_epoch)
        return found

    def _key_epoch(self, number: int) -> str:
        if (message := self._proofs.blame(number)) is not None:
            self._bad(message)
        return self._proofs.key_epoch(number)[0]

    def _verdict(self, stamp: str = OK, place: str = OK) -> Verdict:
        if stamp is OK and place is OK and not self._problems:
            return GOOD
        problems, self._problems = tuple(self._problems), []
        return Verdict(stamp, place, problems)

    def _bad(
        self, message: str, topic: str | None = None, partition: int | None = None, offset: int | None = None
    ) -> str:
        path = str(self._control.path)
        self._problems.append(Corrupt(message, path=path, topic=topic, partition=partition, offset=offset))
        return BAD
