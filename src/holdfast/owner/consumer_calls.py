"""At the owner of a shared log: members of consumers that live in other processes.

The owner coordinates all members of a consumer, its own and others (`log/consumers/members.py`). One in another process
is represented by a `RemoteMember`: it notes what the real one gets and has to let go of, which is the answer when that
one asks; an event has it ask. Its death is the end of its connection.

`guard` looks at what clients forward. A unit that changes positions must be of a member that still has the partitions;
else it is refused, alone, and nothing of it is written. What it lets through keeps the partitions where they are until
the commit is settled, as a commit of the owner's own members does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import count
from threading import Lock, Thread
from typing import TYPE_CHECKING

from holdfast.errors import HoldfastError, Invalid
from holdfast.journal.commit.owner_calls import Nothing
from holdfast.journal.queue.forwarded import ForwardedUnit
from holdfast.journal.queue.ticket import UnitTicket
from holdfast.journal.state.operations import ChangeSpace
from holdfast.log.consumers.member_messages import (
    Assignment,
    JoinConsumer,
    LeaveConsumer,
    MemberPartition,
    SyncMember,
    members_of,
)
from holdfast.log.consumers.members import Members, PositionCommit, lost
from holdfast.log.consumers.stored_positions import SPACE, Place, StoredPosition, read_items
from holdfast.owner.peer import Peer
from holdfast.signals import Flag

if TYPE_CHECKING:
    from holdfast.journal.journal import Unit
    from holdfast.journal.queue.forwarded import Item
    from holdfast.journal.state.partition import Partition
    from holdfast.log.local_parts import LocalParts

_LOOK_AGAIN_S = 1.0
_MEMBERS_MAX = 10_000
_SPACE = SPACE.encode()


class RemoteMember:
    """A member in another process, as the others know it."""

    def __init__(self, caller: Peer, token: bytes, named: tuple[int, ...] | None, turns: Iterator[int]) -> None:
        """`turns` counts for all members, and goes on when one comes again."""
        self._turns = turns
        self.caller = caller
        self.token = token
        self.named = named
        self.id = 0
        self.turn = 0
        self.held: dict[int, int] = {}
        """The turn in which it got each partition that it has."""
        self.lost: dict[int, int] = {}
        """The turn in which it lost a partition last."""
        self.offered: frozenset[int] = frozenset()

    def is_dead(self) -> bool:
        """Whether its connection has ended."""
        return self.caller.is_gone

    def is_idle(self, number: int) -> bool:
        """Whether it said that it has nothing of this partition under way."""
        return number in self.offered

    def take(self, part: Partition, at: int) -> None:
        """It has this partition from now on."""
        self.turn = next(self._turns)
        self.held[part.number] = self.turn
        self.caller.tell("members", b"")

    def lose(self, number: int, *, refuse: bool) -> None:
        """It has this partition no more."""
        self.turn = next(self._turns)
        self.held.pop(number, None)
        self.lost[number] = self.turn
        self.caller.tell("members", b"")

    def begin_again(self, failed: Mapping[int, StoredPosition]) -> None:
        """It does so itself, when its commit is refused."""


class ConsumerCalls:
    """The members in other processes, of all consumers of one owned log.

    Calls and the host's thread use it at once. `_lock` guards who the members are; a thread that joins one holds
    `_joining` until it is in there, so that one that asks twice comes once, and the limit is kept. `_joining` is taken
    first, then a consumer's own lock, then `_lock`.
    """

    def __init__(self, parts: LocalParts) -> None:
        self._consumers = parts.consumers
        self._remote: dict[bytes, tuple[Members, RemoteMember]] = {}
        self._turns = count(parts.context.clock.now_us())  # further than any owner before
        self._joining = Lock()
        self._lock = Lock()
        self._news = Flag()
        self._is_over = False
        self._thread: Thread | None = None

    # -- calls --------------------------------------------------------------------------------------------

    def join(self, caller: Peer, request: JoinConsumer) -> Assignment:
        """A member comes, or comes back."""
        members = self._consumers.members_at((request.name, request.topic), request.begin)
        for number in request.named or ():
            members.require_partition(number)
        with self._joining:
            known = self._known(request.token)
            if known is not None:
                if known[1].caller is caller:  # it was asked before
                    return self._assignment(*known)
                self._bury(request.token)
            member = self._admit(caller, request, members)
        caller.at_end(self._news.set)
        self._start()
        self._news.set()
        return self._assignment(members, member)

    def _known(self, token: bytes) -> tuple[Members, RemoteMember] | None:
        with self._lock:
            return self._remote.get(token)

    def _all(self) -> list[tuple[bytes, Members, RemoteMember]]:
        with self._lock:
            return [(token, *known) for token, known in self._remote.items()]

    def _admit(self, caller: Peer, request: JoinConsumer, members: Members) -> RemoteMember:
        """One more member; with `_joining` held."""
        if len(self._all()) >= _MEMBERS_MAX:
            raise Invalid(f"the log has {_MEMBERS_MAX} members of consumers already", hint="close some")
        member = RemoteMember(caller, request.token, request.named, self._turns)
        with members.lock:
            member.id = members.join(member, request.patience)
            with self._lock:
                self._remote[request.token] = (members, member)
        return member

    def sync(self, caller: Peer, request: SyncMember) -> Assignment:
        """What a member has now."""
        for token in request.gone:
            self._bury(token)
        known = self._known(request.token)
        if known is None or known[1].caller is not caller:
            return Assignment(is_member=False)
        members, member = known
        with members.lock:
            member.offered = frozenset(request.offered)
            members.balance()
            member.offered = frozenset()
            return self._assignment(members, member)

    def leave(self, request: LeaveConsumer) -> Nothing:
        """A member goes."""
        self._bury(request.token)
        return Nothing()

    def _assignment(self, members: Members, member: RemoteMember) -> Assignment:
        with members.lock:
            return Assignment(
                True,
                {number: MemberPartition(members.kept(number), turn) for number, turn in member.held.items()},
                tuple(number for number in member.held if members.is_wanted(number)),
                members.is_waiting(member.id),
                member.turn,
            )

    def _bury(self, token: bytes) -> None:
        with self._lock:
            known = self._remote.pop(token, None)
        if known is not None:
            known[0].leave(known[1].id)
            self._tell(known[0])

    def _tell(self, members: Members) -> None:
        """Members that wait for a partition look."""
        for _, other, member in self._all():
            if other is members:
                member.caller.tell("members", b"")

    # -- those whose connection has ended -----------------------------------------------------------------

    def _start(self) -> None:
        with self._lock:
            if self._thread is None:
                self._thread = Thread(target=self._work, name="holdfast-members", daemon=True)
                self._thread.start()

    def stop(self) -> None:
        """The owner ends."""
        self._is_over = True
        self._news.set()

    def _work(self) -> None:
        while not self._is_over:
            self._news.wait(_LOOK_AGAIN_S)
            self._news.clear()
            for token, members, member in self._all():
                if member.is_dead():
                    self._bury(token)
                elif members.is_waiting(member.id):
                    members.balance()
                    self._tell_holders(members)

    def _tell_holders(self, members: Members) -> None:
        """A member waits: those that have what it waits for are asked to offer it."""
        for _, other, member in self._all():
            with members.lock:
                is_wanted = other is members and any(members.is_wanted(number) for number in member.held)
            if is_wanted:
                member.caller.tell("members", b"")

    # -- commits ------------------------------------------------------------------------------------------

    def guard(self, items: list[Item]) -> tuple[list[Item], Callable[[], None]]:
        """What a client forwards, with what must not be written refused; and what to call once it is queued, or not."""
        if not any(_changes_positions(item) for item in items):
            return items, _nothing
        taken: list[tuple[list[Unit], list[PositionCommit]]] = []
        guarded = [self._guarded(item, taken) if isinstance(item, ForwardedUnit) else item for item in items]
        return guarded, partial(_queued, taken)

    def _guarded(self, unit: ForwardedUnit, taken: list[tuple[list[Unit], list[PositionCommit]]]) -> ForwardedUnit:
        if not _changes_positions(unit):
            return unit
        tokens = members_of(unit.scope)
        try:
            placed: list[Unit] = []
            taken.append((placed, self._taken(unit, tokens or {})))
            unit = unit._replace(placed=placed)
        except HoldfastError as error:
            unit = unit._replace(refusal=error)
        return unit if tokens is None else unit._replace(scope=None, reissue=False)

    def _taken(self, unit: ForwardedUnit, tokens: dict[bytes, int]) -> list[PositionCommit]:
        taken: list[PositionCommit] = []
        try:
            for operation in unit.operations:
                if isinstance(operation, ChangeSpace) and operation.name == _SPACE:
                    known = read_items(operation.puts)
                    if operation.deletes or operation.drop or known.waits:
                        raise Invalid("members commit positions, and nothing else", hint="this is a defect in holdfast")
                    for place, positions in known.positions.items():
                        taken.append(self._take(place, dict(positions), tokens))
        except BaseException:
            for committing in taken:
                committing.failed()
            raise
        return taken

    def _take(self, place: Place, positions: dict[int, StoredPosition], tokens: dict[bytes, int]) -> PositionCommit:
        members = self._consumers.members_if(place)
        if members is None:
            raise lost(place, sorted(positions))
        for token, turn in tokens.items():
            known = self._known(token)
            if known is not None and known[0] is members:
                missed = [number for number in positions if known[1].lost.get(number, 0) > turn]
                if missed:
                    raise lost(place, missed)
                return members.begin_forwarded(known[1].id, positions)
        return members.begin_forwarded(None, positions)


def _queued(taken: list[tuple[list[Unit], list[PositionCommit]]]) -> None:
    """What was let through is in the queue; or it is not, and never will be: it was known, or there was no room."""
    for placed, several in taken:
        for committing in several:
            if placed:
                committing.queued(UnitTicket(placed[0], 0.0))
            else:
                committing.failed()


def _nothing() -> None:
    pass


def _changes_positions(item: Item) -> bool:
    return isinstance(item, ForwardedUnit) and any(
        isinstance(operation, ChangeSpace) and operation.name == _SPACE for operation in item.operations
    )
