"""A consumer: a named reader whose position lives in the log.

    consumer = topic.consumer("billing")
    for record in consumer:
        handle(record)
        consumer.commit()        # what was given out so far is consumed, durably

Records come in the order of their partition, as they become durable. After a crash the next consumer of that name goes
on behind what was committed: a record that was given out and not committed comes again. Together with a transaction
(`tx.consumed(consumer)`) it is exactly once inside one log.

Several consumers of one name on one topic are members: they share its partitions (`members`). One member is used by
one thread, or one task, at a time. What lies in a page was not given out yet: `given` is where the page begins.
"""

from __future__ import annotations

import warnings
from _thread import RLock
from asyncio import AbstractEventLoop, get_running_loop, to_thread
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from datetime import datetime
from threading import Thread, current_thread
from typing import TYPE_CHECKING, Generic, TypeVar
from weakref import ReferenceType, ref

from holdfast.arguments import seconds, whole
from holdfast.caller import in_coroutine, refuse_second
from holdfast.errors import Invalid, OutcomeUnknown, Unavailable
from holdfast.journal.state.partition import Partition
from holdfast.log.consumers.any_consumer import PAGE_RECORDS, AnyConsumer, checked_limit, page_records
from holdfast.log.consumers.commit_ticket import CommitTicket
from holdfast.log.consumers.consumer_status import lag_of
from holdfast.log.consumers.members import Members, PositionCommit, Positions, lost
from holdfast.log.consumers.partition_pages import OnExpired, PageSource, PartitionPages, Read, emptied
from holdfast.log.consumers.quick_commits import QuickCommits
from holdfast.log.consumers.stored_positions import StoredPosition
from holdfast.log.ports import TopicSource
from holdfast.log.topics.following import has_ended
from holdfast.log.topics.reading import position_text

if TYPE_CHECKING:
    from holdfast.journal.journal_port import JournalPort

Item = TypeVar("Item")
_AWAY_S = 0.2
Find = Callable[[int, int | str | datetime], int]
"""The offset of a partition that is meant by an offset, a name, a position or a time."""


class Consumer(AnyConsumer, Generic[Item]):
    """A named reader of one topic; get it with `topic.consumer(name)`.

    >>> import holdfast, tempfile
    >>> with tempfile.TemporaryDirectory() as directory, holdfast.open(directory) as log:
    ...     orders = log.topic("orders")
    ...     _ = orders.append_batch([b"one", b"two", b"three"])
    ...     with orders.consumer("billing") as consumer:
    ...         [record.payload for record in consumer.poll(2)], consumer.lag
    ...         consumer.commit()
    ...     orders.consumer("billing").poll(10)[0].payload
    ([b'one', b'two'], 3)
    b'three'
    """

    _journal: JournalPort

    def __init__(
        self,
        journal: JournalPort,
        kept: Positions,
        members: Members,
        read: Read[Item],
        find: Find,
        marks: TopicSource,
        *,
        named: Iterable[int] | None,
        on_expired: OnExpired,
        patience: float,
    ) -> None:
        self._journal = journal
        self._kept = kept
        self._members = members
        self._find = find
        self._marks = marks
        self._is_away = False
        """What is far away did not answer when it was asked last."""
        self.name, self.topic = members.place
        self._source = PageSource(self.name, read, on_expired)
        self.named = None if named is None else tuple(named)
        self._patience = patience
        self._slots: dict[int, PartitionPages[Item]] = {}
        self._lost: dict[int, int] = {}
        """Partitions of which something was given out that is given out again, here or there, and how far that was."""
        self._page: deque[Item] = deque()
        self._page_records = PAGE_RECORDS
        self._paged: PartitionPages[Item] | None = None
        """Whose records are in the page."""
        self._filling: PartitionPages[Item] | None = None
        self._turn = 0
        self._lock = RLock()
        """One at a time reads or commits; a task that was cancelled may leave a thread behind that still reads."""
        self._commits = QuickCommits(journal, kept, members)
        self._user: ReferenceType[Thread] | None = None
        self._loop: AbstractEventLoop | None = None
        self._closed = False
        self._refuse_second()
        self._id = members.join(self, patience)

    # -- records ------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Item]:
        return self

    def __next__(self) -> Item:
        # Hazard: another thread empties the page when it takes its partition away, at any moment.
        while True:
            try:
                return self._page.popleft()
            except IndexError:
                if not self._more():
                    raise StopIteration from None

    def __aiter__(self) -> AsyncIterator[Item]:
        return self

    async def __anext__(self) -> Item:
        while True:
            try:
                return self._page.popleft()
            except IndexError:
                if not await self._more_async():
                    raise StopAsyncIteration from None

    def poll(self, limit: int = 100, timeout: float | None = None) -> list[Item]:
        """Up to `limit` records: those that are there, or else the next ones.

        Waits until there is one, at most `timeout` seconds (0: not at all; None: forever). An empty list means that
        the time is over, or that the log or the consumer was closed.
        """
        if in_coroutine():
            warnings.warn("poll() blocks the event loop; use: await consumer.poll_async(…)", RuntimeWarning, 2)
        limit, deadline = self._asked_for(limit), self._deadline(timeout)
        while not self._page and self._more(deadline):
            pass
        return self._taken(limit)

    async def poll_async(self, limit: int = 100, timeout: float | None = None) -> list[Item]:
        """What `poll` does, for coroutines."""
        limit, deadline = self._asked_for(limit), self._deadline(timeout)
        while not self._page and await self._more_async(deadline):
            pass
        return self._taken(limit)

    def _taken(self, limit: int) -> list[Item]:
        # Of one page only: between here and the caller nothing is waited for, so nothing that is given out gets lost.
        taken: list[Item] = []
        try:
            taken.extend(self._page.popleft() for _ in range(min(limit, len(self._page))))
        except IndexError:  # its partition was taken away: a commit of what is taken will be refused
            pass
        return taken

    def _asked_for(self, limit: int) -> int:
        limit = checked_limit(limit)
        self._page_records = page_records(limit)
        return limit

    def _deadline(self, timeout: float | None) -> float | None:
        return None if timeout is None else self._journal.clock.monotonic() + seconds(timeout)

    def _more(self, deadline: float | None = None) -> bool:
        """Read a page, or wait for news; False when nothing more comes."""
        self._used_by_thread()
        if self._fill():
            return True
        if self._is_over() or (left := self._left(deadline)) <= 0:
            return False
        self._members.signal.sleep(self._news, left)
        return True

    async def _more_async(self, deadline: float | None = None) -> bool:
        loop = get_running_loop()
        self._loop, self._user = loop, None
        if await to_thread(self._fill):
            return True
        if self._is_over() or (left := self._left(deadline)) <= 0:
            return False
        future = self._members.signal.future(loop, left)
        if not self._news():
            await future
        return True

    def _left(self, deadline: float | None) -> float:
        """How long to sleep before looking again; 0 when the time is over."""
        look_again = self._members.wait_seconds(self._id)
        wait = min(self._marks.listen(), _AWAY_S) if self._is_away else self._marks.listen()
        wait = wait if look_again is None else min(wait, look_again)
        return wait if deadline is None else min(wait, deadline - self._journal.clock.monotonic())

    def _is_over(self) -> bool:
        return self._closed or has_ended(self._journal)

    def _news(self) -> bool:
        if self._closed or self._journal.end is not None:
            return True
        return any(slot.part.durable > slot.at and not self._is_handed_over(slot) for slot in [*self._slots.values()])

    def _refuse_second(self) -> None:
        """Refuse a call of a thread that was interrupted in the middle of another one, perhaps of another member."""
        self._journal.refuse_second()
        self._kept.refuse_second()
        refuse_second(self._lock)
        refuse_second(self._members.lock)

    # -- pages --------------------------------------------------------------------------------------------

    def _fill(self) -> bool:
        """Read the next page of a partition that has something; False when none has."""
        self._refuse_second()
        with self._lock:
            if self._page:  # a cancelled task left it
                return True
            if self._closed or self._journal.end is not None:
                return False
            try:
                self._is_away = False
                self._marks.refresh()
                for slot in self._waiting():
                    self._read_page(slot)
                    if self._page:
                        return True
            except Unavailable:
                if not self._marks.is_far:
                    raise
                self._is_away = True  # nothing is lost: it is asked again
            return False

    def _waiting(self) -> list[PartitionPages[Item]]:
        """Partitions that have something to give, the one that comes after the last one first."""
        members = self._members
        if not members.has(self._id):  # taken for dead: come back
            self._id = members.join(self, self._patience)
        members.balance()
        if not members.is_sure:  # nothing is given out that may have been consumed
            return []
        with members.lock:
            slots = [slot for _, slot in sorted(self._slots.items()) if not self._is_handed_over(slot)]
            self._turn += 1
            turn = self._turn % max(1, len(slots))
        return [slot for slot in (*slots[turn:], *slots[:turn]) if slot.has_more]

    def _is_handed_over(self, slot: PartitionPages[Item]) -> bool:
        """Another member waits for it, and all that was given out is about to be committed: no more of it."""
        number = slot.part.number
        return self._members.is_wanted(number) and self._members.submitted(number) == slot.at

    def _read_page(self, slot: PartitionPages[Item]) -> None:
        with self._members.lock:
            if self._slots.get(slot.part.number) is not slot or self._is_handed_over(slot):  # it went meanwhile
                return
            self._filling = self._paged = slot
        try:
            slot.fill(self._page, self._page_records)
        finally:
            with self._members.lock:
                self._filling = None
                if self._slots.get(slot.part.number) is not slot:  # taken away while it was read
                    self._page.clear()

    # -- how far it is ------------------------------------------------------------------------------------

    def given(self, number: int) -> int:
        """The offset behind the last record of this partition that was given out."""
        slot = self._slots[number]
        return slot.at - (len(self._page) if self._paged is slot else 0)

    @property
    def partitions(self) -> tuple[int, ...]:
        """The partitions that this member has now."""
        self._refuse_second()
        return self._numbers()

    def _numbers(self) -> tuple[int, ...]:
        self._members.balance()
        return tuple(sorted(self._slots))

    @property
    def position(self) -> str:
        """How far it has given out records of its partitions, as text: for `topic.read(position)` or `seek`."""
        self._refuse_second()
        with self._members.lock:
            return position_text({number: self.given(number) for number in self._numbers()})

    @property
    def committed(self) -> str:
        """How far its partitions are consumed, durably."""
        self._refuse_second()
        with self._members.lock:
            return position_text({number: self._members.committed(number) for number in self._numbers()})

    @property
    def lag(self) -> int:
        """How many durable records of its partitions are not committed as consumed."""
        self._refuse_second()
        if not in_coroutine():  # what this process itself has committed just now may not have been looked at
            self._marks.refresh()
        with self._members.lock:
            return sum(lag_of(self._slots[n].part, self._members.committed(n)) for n in self._numbers())

    def seek(self, to: int | str | datetime, *, partition: int | None = None) -> None:
        """Go on from somewhere else, in all partitions that this member has or in one; `commit()` makes it durable.

        `to` is an offset (a negative one counts from the end), 'first', 'next', 'committed' (what was given out since
        the last commit comes again; waits for commits that are on their way), a position such as `.position` gives, or
        a time: then the first record of that time or later.
        """
        self._refuse_second()
        with self._lock:
            self._require_open()
            numbers = self._numbers() if partition is None else (whole(partition, "partition"),)
            for number in numbers:
                if number not in self._slots:
                    raise Invalid(
                        f"this member does not have partition {number} consumer={self.name!r}",
                        hint="consumer.partitions says which it has; name it with partitions=[…] when it is made",
                    )
            if to == "committed":
                self._wait_for_commits()
                found = {number: self._members.committed(number) for number in numbers}
            else:
                found = {number: self._find(number, to) for number in numbers}
            with self._members.lock:
                for number in found.keys() & self._slots.keys():
                    self._put_back(self._slots[number], found[number])

    def _wait_for_commits(self) -> None:
        """Nobody knows what is committed while a commit is on its way: one that was cancelled or timed out, say."""
        ticket = self._members.newest
        if ticket is not None and not ticket.wait(self._kept.timeout):
            raise OutcomeUnknown(
                f"a commit is not acknowledged yet consumer={self.name!r}", hint="the disk may be stalled; seek again"
            )

    def _put_back(self, slot: PartitionPages[Item], at: int) -> None:
        if self._paged is slot:
            self._page.clear()
        slot.go_to(at)

    # -- committing ---------------------------------------------------------------------------------------

    def commit(self, timeout: float | None = None) -> None:
        """Make it durable that all records given out so far are consumed; returns after the fsync.

        Raises Invalid, and commits nothing, where another member has one of these partitions now: all that was given
        out since the last commit is given out again, here or there. Raises OutcomeUnknown when there was no
        acknowledgement within `timeout` seconds (default: `journal.ack_timeout_ms`).
        """
        if in_coroutine():
            warnings.warn("commit() blocks the event loop; use: await consumer.commit_async()", RuntimeWarning, 2)
        wait = self._kept.timeout if timeout is None else seconds(timeout)
        self._submit(wait).result(wait)

    async def commit_async(self, timeout: float | None = None) -> None:
        """What `commit` does, for coroutines. Cancelling it does not take the commit back."""
        wait = self._kept.timeout if timeout is None else seconds(timeout)
        await (await self._journal.when_room(self._submit, wait))

    def submit_commit(self) -> CommitTicket:
        """Queue a commit and return its ticket: `ticket.result()` or `await ticket`. Reading need not wait for it.

        Commits are durable in order. Those that find the journal busy become one.
        """
        return self._submit(self._kept.timeout)

    def _submit(self, wait: float) -> CommitTicket:
        self._refuse_second()
        with self._lock:
            amended = None if self._lost or self._closed else self._commits.amend(self._given)
            if amended is not None:
                return amended
            committing = self._begin()
            if committing is None:
                return CommitTicket(self._members, self._members.newest)
            return self._commits.submit(committing, wait)

    def _given(self) -> dict[int, int]:
        return {number: self.given(number) for number in self._slots}

    def commit_operations(self) -> PositionCommit | None:
        """The position as it is now, to be committed with something else; None where nothing has changed."""
        return self._take_position(None)

    def consumed_at(self, at: Mapping[int, int]) -> PositionCommit | None:
        """The same for a server that gave records on: its client says how far they were consumed; other partitions stay
        as they are.

        It goes on giving out where it is. Raises where it has one of these partitions no more.
        """
        return self._take_position(at)

    def _take_position(self, at: Mapping[int, int] | None) -> PositionCommit | None:
        self._refuse_second()
        with self._lock:
            committing = self._begin(at)
            if committing is not None:
                self._commits.forget_newest()
            return committing

    def _begin(self, at: Mapping[int, int] | None = None) -> PositionCommit | None:
        self._require_open()
        if self._loop is None:
            self._used_by_thread()
        with self._members.lock:
            self._members.balance()
            gone = set(self._lost) | (set() if at is None else at.keys() - self._slots.keys())
            if gone:
                refused, self._lost = sorted(gone), {}
                # Nobody can tell apart what was made of these records and of others: all of it comes again.
                for number, slot in self._slots.items():
                    self._put_back(slot, self._members.submitted(number))
                raise lost(self._members.place, refused)
            if at is not None:
                return self._members.begin(self._id, {number: self._find(number, to) for number, to in at.items()})
            given = self._given()
            for number, slot in self._slots.items():
                if self._members.is_wanted(number):  # it goes as soon as this is durable
                    self._put_back(slot, given[number])
            return self._members.begin(self._id, given)

    # -- as a member --------------------------------------------------------------------------------------

    def is_dead(self) -> bool:
        """Whether the thread or the loop that used it last has ended."""
        if self._loop is not None:
            return self._loop.is_closed()
        user = None if self._user is None else self._user()
        return self._user is not None and (user is None or not user.is_alive())

    def is_idle(self, number: int) -> bool:
        """Whether all of this partition that was given out is committed, and nothing is about to be."""
        slot = self._slots.get(number)
        if slot is None:
            return True
        if self._filling is slot or (self._paged is slot and self._page):
            return False
        return slot.at == self._members.durable_at(number)

    def take(self, part: Partition, at: int) -> None:
        """It has this partition from now on."""
        self._slots[part.number] = PartitionPages(part, at, self._source)

    def lose(self, number: int, *, refuse: bool) -> None:
        """It has this partition no more."""
        slot = self._slots.pop(number, None)
        if slot is not None and refuse:
            self._lost.setdefault(number, slot.at)
        if slot is not None and self._paged is slot:
            self._page.clear()

    def begin_again(self, failed: Mapping[int, StoredPosition]) -> None:
        """A commit was refused: it comes again, and so does what was given out since, of which a commit is refused."""
        for number, kept in failed.items():
            slot = self._slots.get(number)
            if slot is not None:
                self._lost.setdefault(number, slot.at - (emptied(self._page) if self._paged is slot else 0))
                self.take(slot.part, self._members.submitted(number))
            if self._lost.get(number) == kept.next:
                self._lost.pop(number)

    def _used_by_thread(self) -> None:
        thread = current_thread()
        if self._user is None or self._user() is not thread:
            self._user, self._loop = ref(thread), None

    # -- the end ------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Give its partitions back, and end its iterators; commits nothing. Closing again does nothing."""
        if not self._closed:
            self._refuse_second()
            self._closed = True
            self._members.leave(self._id)
            with self._members.lock:
                self._slots.clear()
                self._page.clear()
            self._members.signal.notify()

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"partitions={sorted(self._slots)}"
        return f"Consumer({self.name!r}, topic={self.topic!r}, {state})"
