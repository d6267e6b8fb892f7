"""The members of one consumer on one topic: which of them has which partition, and how far each partition is consumed.

All members live in this process and share the partitions (`assignment`). A partition that should go to another member
goes there

* at once, if its holder has nothing of it under way: all that was given out is committed;
* otherwise when the holder commits, or closes;
* when the holder is dead: nobody refers to it any more, its thread has ended, or its event loop is closed;
* by force, when the holder has kept it so for `patience` seconds.

The next member begins with what is committed. What a holder had given out and not committed is given out again, and a
commit of it is refused: of two members that both worked on a record only one gets it committed. For that, a partition
does not move while a commit of it is on its way, or a transaction has taken its position and has not ended.

Members in other processes that share the log are members here too, at the log's owner: each is a `Member` that speaks
for it (`sharing/calls`), and whose death is the end of its connection. What is theirs is committed by units that they
forward; `begin_forwarded` says whether such a unit is still theirs to commit. At their side is `shared_members`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from threading import RLock
from typing import TYPE_CHECKING, NamedTuple, Protocol
from weakref import ReferenceType, ref

from holdfast.errors import HoldfastError, Invalid
from holdfast.journal.queue.ticket import UnitTicket
from holdfast.journal.state.partition import Partition
from holdfast.log.consumers.assignment import assign
from holdfast.log.consumers.stored_positions import Place, StoredPosition

if TYPE_CHECKING:
    from holdfast.journal.journal_port import JournalPort, Operation

_LOST = "lost_partitions"
LOOK_AGAIN_S = 0.1
"""How often a member looks whether a partition that is to be its own has become free."""
LOOK_FOR_DEAD_S = 1.0


class Member(Protocol):
    """What the others need to know of a member."""

    named: tuple[int, ...] | None
    """The partitions that it named; None for one that takes its share."""

    def is_dead(self) -> bool:
        """Whether nobody can use it any more, although nobody closed it."""

    def is_idle(self, number: int) -> bool:
        """Whether it has nothing of this partition under way; the members' lock is held."""

    def take(self, part: Partition, at: int) -> None:
        """It has this partition from now on, beginning here; the members' lock is held."""

    def lose(self, number: int, *, refuse: bool) -> None:
        """It has this partition no more; `refuse` its next commit, for it may have given out what is not committed."""

    def begin_again(self, failed: Mapping[int, StoredPosition]) -> None:
        """A commit of its was refused elsewhere: of these it gives out again what was in it; the lock is held."""


class Positions(Protocol):
    """Where members keep their positions: in a log that is open here, or at a server."""

    @property
    def timeout(self) -> float:
        """How long to wait for room and for an acknowledgement."""

    def later(self, before: int = 0) -> int:
        """A time for the next word about something of which the last one came at `before`."""

    def operations(self, place: Place, positions: Mapping[int, StoredPosition]) -> tuple[list[Operation], int]:
        """What makes positions durable, and its bytes."""

    def stored(self, place: Place, positions: Mapping[int, StoredPosition]) -> None:
        """These are durable now."""

    def partition(self) -> Partition | None:
        """The partition that records of positions go to, where they are made here."""

    def refuse_second(self) -> None:
        """Refuse a call of a thread that was interrupted with what members wait for while they have their own lock."""


class _Share:
    """One partition."""

    __slots__ = ("committing", "holder", "kept", "part", "submitted", "wanted_since")

    def __init__(self, part: Partition, kept: StoredPosition) -> None:
        self.part = part
        self.kept = kept
        """What is committed."""
        self.submitted = kept
        """What will be committed, if nothing fails."""
        self.holder: int | None = None
        self.wanted_since: float | None = None
        """Since when another member waits for it."""
        self.committing: ReferenceType[PositionCommit] | None = None
        """A commit has taken its position, and is not queued yet."""


class _PendingCommit(NamedTuple):
    """A commit on its way."""

    ticket: UnitTicket
    positions: Mapping[int, StoredPosition]
    member_id: int | None
    moved: set[int]
    """Partitions that were given to a member anew since: whatever comes of this says nothing of what that has."""

    def own(self) -> Mapping[int, StoredPosition]:
        """The positions without those."""
        return {number: kept for number, kept in self.positions.items() if number not in self.moved}


class Members:
    """The members of one consumer on one topic, and the positions that they share."""

    def __init__(
        self,
        place: Place,
        parts: Sequence[Partition],
        kept: Positions,
        begin: Mapping[int, StoredPosition],
        monotonic: Callable[[], float],
    ) -> None:
        """`begin` is what is committed of each partition."""
        self.place = place
        self.lock = RLock()
        self._positions = kept
        self._shares = {part.number: _Share(part, begin[part.number]) for part in parts}
        self.first = parts[0]
        self.signal = parts[0].signal
        self._members: dict[int, ReferenceType[Member]] = {}
        self._next_id = 0
        self._queued: deque[_PendingCommit] = deque()
        self._monotonic = monotonic
        self._patience: dict[int, float] = {}
        self.is_even = False
        """One member has everything: there is nothing to balance until another one comes, or it goes."""

    @property
    def is_sure(self) -> bool:
        """Whether it is known what is committed: an owner knows."""
        return True

    # -- coming and going ---------------------------------------------------------------------------------

    def join(self, member: Member, patience: float) -> int:
        """A member comes; returns its id. It waits `patience` seconds for what others have."""
        with self.lock:
            for number in member.named or ():
                if any(number in (other.named or ()) for _, other in self._alive()):
                    raise Invalid(
                        f"another member has named this partition consumer={self.place[0]!r} partition={number}",
                        hint="leave partitions out to share them, or close the other member first",
                    )
            self.is_even = False
            self._next_id += 1
            self._members[self._next_id] = ref(member)
            self._patience[self._next_id] = patience
            self.balance()
            return self._next_id

    def require_partition(self, number: int) -> None:
        """Raise Invalid unless the topic has this partition."""
        if number not in self._shares:
            raise Invalid(
                f"topic {self.place[1]!r} has no partition {number}",
                hint=f"its partitions are 0 to {len(self._shares) - 1}",
            )

    def leave(self, member_id: int) -> None:
        """A member goes; what it had is free."""
        with self.lock:
            self._drop(member_id)
            self.balance()

    def has(self, member_id: int) -> bool:
        """Whether it is a member, and was not taken for dead."""
        return member_id in self._members

    @property
    def count(self) -> int:
        """How many members there are."""
        with self.lock:
            return len(self._alive())

    def wait_seconds(self, member_id: int) -> float | None:
        """How soon a member should look again whether something has become free; None where only news matter."""
        with self.lock:
            if len(self._members) == 1:
                return None
            return LOOK_AGAIN_S if self.is_waiting(member_id) else LOOK_FOR_DEAD_S

    def _alive(self) -> list[tuple[int, Member]]:
        found = [(number, reference()) for number, reference in self._members.items()]
        return [(number, member) for number, member in found if member is not None]

    def _drop(self, member_id: int) -> None:
        self.is_even = False
        self._members.pop(member_id, None)
        self._patience.pop(member_id, None)
        for share in self._shares.values():
            if share.holder == member_id:
                share.holder, share.wanted_since = None, None

    # -- who has what -------------------------------------------------------------------------------------

    def balance(self) -> None:
        """Give free partitions to those who should have them, and others as far as their holders let go."""
        with self.lock:
            self.settle()
            if self.is_even:
                return
            alive = dict(self._alive())
            # One who is alone cannot be in anybody's way; taken for dead, it would only have to come back.
            gone = [n for n in self._members if n not in alive or (len(alive) > 1 and alive[n].is_dead())]
            for number in gone:
                self._bury(number, alive.pop(number, None))
            moved = [self._move(self._shares[n], owner, alive) for n, owner in self._wanted().items()]
            # With others, one has to look whether they are still alive.
            self.is_even = len(alive) == 1 and all(share.holder in alive for share in self._shares.values())
        if any(moved):
            self.signal.notify()  # members sleep on it

    def _wanted(self) -> dict[int, int]:
        held = {number: share.holder for number, share in self._shares.items() if share.holder is not None}
        return assign(list(self._shares), [(number, member.named) for number, member in self._alive()], held)

    def _bury(self, member_id: int, member: Member | None) -> None:
        for number, share in self._shares.items():
            if share.holder == member_id and member is not None:
                member.lose(number, refuse=not member.is_idle(number))
        self._drop(member_id)

    def _move(self, share: _Share, owner: int, alive: Mapping[int, Member]) -> bool:
        if share.holder == owner:
            share.wanted_since = None
            return False
        if self._is_committing(share) or not (share.holder is None or self._lets_go(share, owner, alive)):
            return False
        number = share.part.number
        if share.holder is not None:
            holder = alive[share.holder]
            holder.lose(number, refuse=not holder.is_idle(number))
        share.holder, share.wanted_since = owner, None
        share.submitted = share.kept
        alive[owner].take(share.part, share.kept.next)
        return True

    def _lets_go(self, share: _Share, owner: int, alive: Mapping[int, Member]) -> bool:
        assert share.holder is not None
        if alive[share.holder].is_idle(share.part.number):
            return True
        now = self._monotonic()
        if share.wanted_since is None:
            share.wanted_since = now
        return now - share.wanted_since >= self._patience[owner]

    def is_wanted(self, number: int) -> bool:
        """Whether another member waits for this partition."""
        return self._shares[number].wanted_since is not None

    def _is_committing(self, share: _Share) -> bool:
        if share.committing is not None and share.committing() is not None:
            return True
        return any(share.part.number in queued.positions for queued in self._queued)

    # -- how far it is consumed ---------------------------------------------------------------------------

    def committed(self, number: int) -> int:
        """The offset behind what is durable as consumed."""
        with self.lock:
            self.settle()
            return self._shares[number].kept.next

    def durable_at(self, number: int) -> int:
        """The same, as far as it was looked at; the lock is held."""
        return self._shares[number].kept.next

    def submitted(self, number: int) -> int:
        """The offset behind what is consumed, or about to be."""
        return self._shares[number].submitted.next

    def begin(self, member_id: int, given: Mapping[int, int]) -> PositionCommit | None:
        """Take these positions, to commit them; None where nothing has changed."""
        with self.lock:
            positions: dict[int, StoredPosition] = {}
            for number, at in given.items():
                share = self._shares[number]
                if share.holder != member_id:  # cannot happen: it has heard of it; but never commit for another one
                    raise lost(self.place, [number])
                if share.committing is not None and share.committing() is not None:
                    raise Invalid(
                        f"a transaction that has not ended has this consumer's position consumer={self.place[0]!r}",
                        hint="commit with the transaction, or by commit(), not both",
                    )
                if at != share.submitted.next:
                    positions[number] = self._after(share.submitted, at)
            if not positions:
                return None
            committing = PositionCommit(self, positions, member_id, self.scope(member_id))
            for number in positions:
                self._shares[number].committing = ref(committing)
            return committing

    def begin_forwarded(self, member_id: int | None, positions: dict[int, StoredPosition]) -> PositionCommit:
        """Take positions that a member in another process commits; raises where they are not its own any more.

        None is a member that this owner does not know: it came before the log changed hands, or its connection was cut.
        Each position says which one it follows, and counts only behind that: of two that were given out the same
        records one commits them, whichever member had the partition meanwhile, and whichever process owned the log.
        """
        with self.lock:
            self.settle()
            for number, kept in positions.items():
                share = self._shares.get(number)
                if share is None or share.holder != member_id or not kept.after == self._newest(share).at < kept.at:
                    raise lost(self.place, [number])
            committing = PositionCommit(self, positions, member_id)
            for number in positions:
                self._shares[number].committing = ref(committing)
            return committing

    def _newest(self, share: _Share) -> StoredPosition:
        """What the next commit follows; that may have come with the one before it, which is not queued yet."""
        committing = None if share.committing is None else share.committing()
        return share.submitted if committing is None else committing.positions[share.part.number]

    def _after(self, before: StoredPosition, at: int) -> StoredPosition:
        """The position that follows one; in the owner's process none can come between."""
        return StoredPosition(at, self._positions.later(before.at))

    def kept(self, number: int) -> StoredPosition:
        """What is committed of a partition, as far as it was looked at; the lock is held."""
        return self._shares[number].kept

    def is_waiting(self, member_id: int) -> bool:
        """Whether another member still has a partition that is to be this member's."""
        with self.lock:
            return any(owner == member_id and self._shares[n].holder != owner for n, owner in self._wanted().items())

    def scope(self, member_id: int) -> str | None:
        """What the units that commit for a member say of it; members of the owner's own process need not say anything.

        See `shared_members`.
        """
        return None

    def amend(self, positions: dict[int, StoredPosition], given: Mapping[int, int]) -> None:
        """Move positions on that are queued and not made into a change yet; the lock is held."""
        for number, at in given.items():
            share = self._shares[number]
            if at != share.submitted.next:
                share.submitted = positions[number] = self._after(share.submitted, at)

    def end(self, positions: Mapping[int, StoredPosition], member_id: int | None, ticket: UnitTicket | None) -> None:
        """What was taken is queued; without a ticket it is not, and never will be."""
        with self.lock:
            for number, kept in positions.items():
                share = self._shares[number]
                share.committing = None
                if ticket is not None:
                    share.submitted = kept
            if ticket is not None:
                self._queued.append(_PendingCommit(ticket, positions, member_id, set()))

    def settle(self) -> None:
        """Take up what became of commits."""
        with self.lock:
            while self._queued and self._queued[0].ticket.done:
                queued = self._queued.popleft()
                unit = queued.ticket.unit
                if queued.ticket.is_stored:
                    self._stored(queued.own())
                else:
                    self._failed(unit.error or unit.group.error, queued.member_id, queued.own())

    def _stored(self, positions: Mapping[int, StoredPosition]) -> None:
        for number, kept in positions.items():
            share = self._shares[number]
            if kept.at > share.kept.at:
                share.kept = kept
        self._positions.stored(self.place, positions)

    def _failed(self, error: HoldfastError | None, member_id: int | None, own: Mapping[int, StoredPosition]) -> None:
        """Whatever waits behind it may be stored all the same; what is not is submitted again by the next commit."""
        on_the_way = [queued.own() for queued in self._queued]
        for number, share in self._shares.items():
            waiting = [own[number] for own in on_the_way if number in own]
            share.submitted = waiting[-1] if waiting else share.kept

    @property
    def newest(self) -> UnitTicket | None:
        """The last commit that is on its way; None where all are durable, or failed."""
        with self.lock:
            return self._queued[-1].ticket if self._queued else None

    def operations(self, positions: Mapping[int, StoredPosition]) -> tuple[list[Operation], int]:
        """What makes positions durable, and its bytes."""
        return self._positions.operations(self.place, positions)


class PositionCommit:
    """Positions that were taken from a consumer, to be committed together with something else.

    `operations` go into one unit of the journal. The caller that queues it says so with `queued(ticket)`, whatever
    comes of it afterwards; or `failed()`, if it never will.
    """

    records = 1

    def __init__(
        self, members: Members, positions: dict[int, StoredPosition], member_id: int | None, scope: str | None = None
    ) -> None:
        self._members = members
        self._member_id = member_id
        self.positions = positions
        self.scope = scope
        """The member that commits, as the unit says; None in the owner's process."""
        self._made: tuple[list[Operation], int] | None = None

    @property
    def operations(self) -> list[Operation]:
        """An item of the space for each position, and a record."""
        return self._operations()[0]

    @property
    def size(self) -> int:
        """Their bytes."""
        return self._operations()[1]

    def _operations(self) -> tuple[list[Operation], int]:
        if self._made is None:
            self._made = self._members.operations(self.positions)
        return self._made

    def is_of(self, journal: JournalPort) -> bool:
        """Whether its consumer reads the log of this journal."""
        return journal.owns(self._members.first)

    def queued(self, ticket: UnitTicket) -> None:
        """The unit is in the journal's queue."""
        self._members.end(self.positions, self._member_id, ticket)

    def stored(self) -> None:
        """The unit is durable."""
        self._members.balance()

    def failed(self) -> None:
        """There will be no such unit: nothing of it was queued."""
        self._members.end(self.positions, self._member_id, None)


def lost(place: Place, numbers: Sequence[int]) -> Invalid:
    """Why a commit is refused."""
    which = ", ".join(map(str, sorted(numbers)))
    error = Invalid(
        f"another member has these partitions now; nothing was committed consumer={place[0]!r} topic={place[1]!r}"
        f" partitions={which}",
        hint="drop what you made of records since the last commit, and go on: they are given out again, here or there."
        " Commit more often than every `patience` seconds",
    )
    vars(error)[_LOST] = which  # goes with it to the process that forwarded the commit
    return error


def is_lost(error: HoldfastError | None) -> bool:
    """Whether this is why a commit was refused."""
    return error is not None and _LOST in vars(error)
