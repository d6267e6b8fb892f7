"""The members of a consumer in one of the processes that share a log; the log's owner says which of them has what.

Each member here is a member there, too, under a token of its own. The owner's word (`Assignment`) is asked for when the
owner says that something changed, when this member waits for a partition, and once a second. Between two words nothing
changes here: a member reads its partitions from the log's files by itself. A partition that another member waits for is
*offered* as soon as this member has nothing of it under way, and from then on it gives out no more of it.

Commits are units that this process forwards, like any other. They say which member commits, and the owner refuses what
is not that member's any more: also a commit that was on its way when the partition was taken away.

When the log changes hands, members come again with their tokens. A partition of which nobody has committed meanwhile is
gone on with, as if nothing had happened; what another member committed is its own. While there is no owner a member
goes on with what it has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Protocol, TypeVar
from weakref import ref

import msgspec

from holdfast.caller import in_coroutine
from holdfast.errors import HoldfastError, Invalid, OutcomeUnknown
from holdfast.journal.commit.owner_calls import Nothing
from holdfast.journal.state.partition import Partition
from holdfast.log.consumers.member_messages import (
    Assignment,
    JoinConsumer,
    LeaveConsumer,
    MemberPartition,
    SyncMember,
    scope_of,
)
from holdfast.log.consumers.members import LOOK_AGAIN_S, LOOK_FOR_DEAD_S, Member, Members, Positions, is_lost
from holdfast.log.consumers.stored_positions import Place, StoredPosition

Reply = TypeVar("Reply")


class Ask(Protocol):
    """Asks the owner for something: its name, the request, the type of the answer, a time-out."""

    def __call__(self, name: str, request: msgspec.Struct, answer: type[Reply], timeout: float) -> Reply: ...  # noqa: D102


_SYNC_S = 1.0
_TOKEN_BYTES = 16


class _Here:
    """What is known of one member of this process."""

    def __init__(self, token: bytes, named: tuple[int, ...] | None, patience: float) -> None:
        self.token = token
        self.named = named
        self.patience = patience
        self.turn = 0
        self.turns: dict[int, int] = {}
        """In which turn it got each partition."""
        self.is_waiting = False


class SharedMembers(Members):
    """The members of one consumer on one topic that are in this process."""

    def __init__(
        self,
        place: Place,
        parts: Sequence[Partition],
        kept: Positions,
        monotonic: Callable[[], float],
        random_bytes: Callable[[int], bytes],
        ask: Ask,
        call: Ask,
        timeout: float,
    ) -> None:
        """`ask` asks the owner, and the next one if that dies meanwhile; `call` does not."""
        super().__init__(place, parts, kept, {part.number: StoredPosition(0, 0) for part in parts}, monotonic)
        self.begin_at: Mapping[int, int] = {}
        """Where partitions begin of which nothing was committed yet, for the next one that joins."""
        self._random_bytes = random_bytes
        self._ask = ask
        self._call = call
        self._timeout = timeout
        self._here: dict[int, _Here] = {}
        self._gone: list[bytes] = []
        """Tokens of members that nobody uses any more; the owner does not know that yet."""
        self._look_at = 0.0
        self._is_stale = False
        """Whether the owner said that something has changed."""
        self._is_refused = False
        """Whether a commit failed since."""

    # -- coming and going ---------------------------------------------------------------------------------

    def join(self, member: Member, patience: float) -> int:
        """A member comes; the owner says what it has."""
        here = _Here(self._random_bytes(_TOKEN_BYTES), member.named, patience)
        assignment = self._join(here, self._timeout)
        with self.lock:
            self._next_id += 1
            member_id = self._next_id
            self._members[member_id] = ref(member, partial(self._lost_sight, here.token, member_id))
            self._here[member_id] = here
            self._take(member_id, member, assignment)
            return member_id

    def _join(self, here: _Here, timeout: float) -> Assignment:
        request = JoinConsumer(*self.place, here.token, here.named, here.patience, dict(self.begin_at))
        return self._ask("join_consumer", request, Assignment, timeout)

    def leave(self, member_id: int) -> None:
        """A member goes; what it had is free."""
        with self.lock:
            here = self._here.pop(member_id, None)
            self._drop(member_id)
        if here is not None:
            self._leave(here.token)

    def _leave(self, token: bytes) -> None:
        try:
            self._call("leave_consumer", LeaveConsumer(*self.place, token), Nothing, _SYNC_S)
        except HoldfastError:  # the owner has ended, and everybody has to come again; or the next request says it
            self._gone.append(token)

    def _lost_sight(self, token: bytes, member_id: int, _: object) -> None:
        """Nobody refers to a member any more. Called by the collector, anywhere: it must not wait for anything."""
        self._gone.append(token)
        self._is_stale = True

    # -- who has what -------------------------------------------------------------------------------------

    def balance(self) -> None:
        """Take up what the owner says, if it is time to ask."""
        with self.lock:
            self.settle()
            if in_coroutine():  # asking would block its loop: the reader of the next page asks, in a thread
                return
            now = self._monotonic()
            if not (self._is_stale or self._is_refused or now >= self._look_at or self._offers()):
                return
            self._is_stale = False
            self._look_at = now + LOOK_FOR_DEAD_S
            for member_id, member in self._alive():
                if not self._sync(member_id, member):
                    return
                self._bury_dead(member_id, member)
            self._is_refused = False
            if any(here.is_waiting for here in self._here.values()):
                self._look_at = now + LOOK_AGAIN_S

    def _bury_dead(self, member_id: int, member: Member) -> None:
        """Let go of what a member has that another one waits for, if nobody here can use it any more."""
        held = [share for share in self._shares.values() if share.holder == member_id]
        if any(share.wanted_since is not None for share in held) and member.is_dead():
            here = self._here.pop(member_id)
            self._bury(member_id, member)
            self._leave(here.token)

    def changed(self) -> None:
        """The owner says that something has changed, or there is another owner."""
        self._is_stale = True
        self.balance()
        self.signal.notify()

    def _offers(self) -> bool:
        return any(share.wanted_since is not None and self._is_idle(number) for number, share in self._shares.items())

    def _is_idle(self, number: int) -> bool:
        share = self._shares[number]
        reference = None if share.holder is None else self._members.get(share.holder)
        holder = None if reference is None else reference()
        return holder is not None and not self._is_committing(share) and holder.is_idle(number)

    @property
    def is_sure(self) -> bool:
        """Whether it is known what is committed: not where a commit failed since the owner said so last."""
        return not self._is_refused

    def _sync(self, member_id: int, member: Member) -> bool:
        """Ask the owner; False where there is none."""
        here = self._here.get(member_id)
        if here is None:
            return True
        offered = tuple(
            number
            for number, share in self._shares.items()
            if share.holder == member_id and share.wanted_since is not None and self._is_idle(number)
        )
        gone = tuple(self._gone)
        try:
            request = SyncMember(*self.place, here.token, offered, gone)
            assignment = self._call("sync_member", request, Assignment, _SYNC_S)
            del self._gone[: len(gone)]
            if not assignment.is_member:
                assignment = self._join(here, _SYNC_S)
                here.turns = {}
        except Invalid:
            raise
        except HoldfastError:  # no owner at the moment: go on with what is there
            return False
        self._take(member_id, member, assignment)
        return True

    def _take(self, member_id: int, member: Member, assignment: Assignment) -> None:
        """Make it so, as the owner says; the lock is held."""
        here = self._here[member_id]
        moved = False
        for number, share in self._shares.items():
            held = assignment.held.get(number)
            if held is None:
                if share.holder == member_id:
                    self._let_go(number, member)
                    moved = True
            elif not self._goes_on(member_id, number, held):
                self._get(member_id, number, held, member)
                moved = True
            if share.holder == member_id:
                share.wanted_since = self._monotonic() if number in assignment.wanted else None
        here.turn, here.is_waiting = assignment.turn, assignment.is_waiting
        here.turns = {number: held.turn for number, held in assignment.held.items()}
        if moved:
            self.signal.notify()

    def _goes_on(self, member_id: int, number: int, held: MemberPartition) -> bool:
        """Whether this member has had a partition all the time, and may go on where it is."""
        share, turn = self._shares[number], self._here[member_id].turns.get(number)
        if share.holder != member_id or (turn is not None and turn != held.turn):
            return False
        newest = self._newest(share).at  # it may be stored before the thread that commits has noted that it is queued
        if turn is None and held.kept.at not in {share.kept.at, newest, *self._queued_at(number)}:
            return False  # another owner than before, and another member has committed meanwhile
        if held.kept.at > newest:
            return False  # a commit of ours is stored that we took for failed: what it consumed must not come again
        if held.kept.at > share.kept.at:
            share.kept = held.kept
        return True

    def _queued_at(self, number: int) -> Iterable[int]:
        return (queued.positions[number].at for queued in self._queued if number in queued.positions)

    def _get(self, member_id: int, number: int, held: MemberPartition, member: Member) -> None:
        share = self._shares[number]
        if share.holder is not None:
            reference = self._members.get(share.holder)
            before = None if reference is None else reference()
            if before is not None:
                self._let_go(number, before)
        share.holder, share.kept, share.submitted = member_id, held.kept, held.kept
        for queued in self._queued:
            queued.moved.add(number)
        member.take(share.part, held.kept.next)

    def _let_go(self, number: int, member: Member) -> None:
        share = self._shares[number]
        member.lose(number, refuse=not member.is_idle(number))
        share.holder, share.wanted_since = None, None

    # -- commits ------------------------------------------------------------------------------------------

    def scope(self, member_id: int) -> str | None:
        """Which member commits, and the last turn that it knows of."""
        here = self._here[member_id]
        return scope_of(here.token, here.turn)

    def _after(self, before: StoredPosition, at: int) -> StoredPosition:
        """The position that follows one, and says so: the owner looks whether another one came between."""
        return StoredPosition(at, self._positions.later(before.at), after=before.at)

    def _stored(self, positions: Mapping[int, StoredPosition]) -> None:
        for number, kept in positions.items():
            share = self._shares[number]
            if kept.at > share.kept.at:
                share.kept = kept

    def _failed(self, error: HoldfastError | None, member_id: int | None, own: Mapping[int, StoredPosition]) -> None:
        """Where a partition is another member's, or nobody knows: ask, and give out again what was not committed.

        Only the member that committed, as long as it had the partitions: what others here have in hand has not failed.
        A commit that is refused for any other reason, with the transaction that it is part of, moves nothing.
        """
        super()._failed(error, member_id, own)
        if is_lost(error) or isinstance(error, OutcomeUnknown):
            self._is_refused = True
            member = dict(self._alive()).get(member_id or 0)
            if member is not None:
                member.begin_again(own)

    # -- how often to look --------------------------------------------------------------------------------

    def wait_seconds(self, member_id: int) -> float | None:
        """How soon a member should look again."""
        here = self._here.get(member_id)
        return LOOK_AGAIN_S if here is not None and here.is_waiting else LOOK_FOR_DEAD_S
