"""A consumer of a server's log: a named reader whose position lives in the log, and whose member lives in the server.

It has the verbs and promises of a consumer of this process: what was given out and not committed comes again after a
crash of either side, to this member or to another. One member is used by one thread, or one task, at a time.
"""

from __future__ import annotations

import warnings
from asyncio import to_thread
from collections import deque
from collections.abc import AsyncIterator, Callable, Generator, Iterator, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from datetime import UTC, datetime
from threading import RLock
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar
from weakref import ReferenceType, ref

from holdfast.arguments import seconds, whole
from holdfast.caller import in_coroutine, once
from holdfast.errors import Closed, Invalid, NotFound, OutcomeUnknown, Unavailable
from holdfast.log.consumers.any_consumer import PAGE_RECORDS, AnyConsumer, checked_limit, page_records
from holdfast.log.topics.following import has_ended
from holdfast.log.topics.reading import parse_position, position_text
from holdfast.log.topics.validation import time_of
from holdfast.remote.consuming.member_session import MemberSession, MemberState
from holdfast.remote.consuming.remote_committing import Consumed, RemoteCommitting
from holdfast.remote.http.exchange import Pauses, monotonic
from holdfast.remote.own_thread import awaited, begin
from holdfast.remote.writing.remote_journal import RemoteJournal

if TYPE_CHECKING:
    import pyarrow as pa

    from holdfast.journal.queue.ticket import UnitTicket

Item = TypeVar("Item")

_WAIT_S = 20.0

Items = Callable[["pa.RecordBatch"], Iterator[Item]]
Place = Callable[[Item], tuple[int, int]]


class RemoteConsumer(AnyConsumer, Generic[Item]):
    """A named reader of one topic; get it with `topic.consumer(name)`."""

    _journal: RemoteJournal

    def __init__(
        self, journal: RemoteJournal, session: MemberSession, items: Items[Item], place: Place[Item], named: Any
    ) -> None:
        self.name, self.topic, self.named = session.name, session.topic, named
        self._journal = journal
        self._session = session
        self._items = items
        self._place = place
        self._timeout = journal.settings.ack_timeout_ms / 1000
        self._page: deque[Item] = deque()
        self._lock = RLock()
        self._given: dict[int, int] = {}
        """Behind which offset of each partition everything was given out …"""
        self._fetched: dict[int, int] = {}
        """… and fetched."""
        self._generation = 0
        self._is_lost = False
        """Something was given out by an earlier membership, and not committed."""
        self._committed: dict[int, int] = {}
        """Behind which offset of each partition everything is consumed, or was when we got it."""
        self._committing: ReferenceType[RemoteCommitting] | None = None
        """A transaction has the position, and has not ended."""
        self._queued: _Queued | None = None
        """The last position that went with a transaction, until it is known what became of it."""
        self._closed = False
        self._take_up(session.state.position)

    def _take_up(self, position: str) -> None:
        self._page.clear()
        self._given = dict(parse_position(position))
        self._fetched = dict(self._given)
        self._committed = {**self._given, **parse_position(self._session.state.committed)}
        self._generation = self._session.generation

    # -- records ------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Item]:
        return self

    def __next__(self) -> Item:
        while True:
            found = self._taken(1)
            if found:
                return found[0]
            if not self._more(None, PAGE_RECORDS):
                raise StopIteration

    def __aiter__(self) -> AsyncIterator[Item]:
        return self

    async def __anext__(self) -> Item:
        while True:
            found = self._taken(1)
            if found:
                return found[0]
            if not await awaited(lambda: self._more(None, PAGE_RECORDS), "holdfast-poll"):
                raise StopAsyncIteration

    def poll(self, limit: int = 100, timeout: float | None = None) -> list[Item]:
        """Up to `limit` records: those that are there, or else the next ones.

        Waits until there is one, at most `timeout` seconds (0: not at all; None: for ever). An empty list means that
        the time is over, or that the client or the consumer was closed.
        """
        if in_coroutine():
            warnings.warn("poll() blocks the event loop; use: await consumer.poll_async(…)", RuntimeWarning, 2)
        return self._poll(checked_limit(limit), None if timeout is None else monotonic() + seconds(timeout))

    async def poll_async(self, limit: int = 100, timeout: float | None = None) -> list[Item]:
        """What `poll` does, for coroutines."""
        limit, deadline = checked_limit(limit), None if timeout is None else monotonic() + seconds(timeout)
        while not (found := self._taken(limit)) and await awaited(lambda: self._more(deadline, limit), "holdfast-poll"):
            pass
        return found

    def _poll(self, limit: int, deadline: float | None) -> list[Item]:
        while not (found := self._taken(limit)) and self._more(deadline, limit):
            pass
        return found

    @property
    def _is_ready(self) -> bool:
        """Whether the page may be given out: not where a transaction was refused, and it may have to go back."""
        queued = self._queued
        return bool(self._page) and (queued is None or not queued.ticket.done or queued.ticket.is_stored)

    def _taken(self, limit: int) -> list[Item]:
        with once(self._lock):
            if not self._is_ready:
                return []
            taken = [self._page.popleft() for _ in range(min(limit, len(self._page)))]
            for item in taken:
                number, offset = self._place(item)
                self._given[number] = offset + 1
            return taken

    def _more(self, deadline: float | None, limit: int) -> bool:
        """Fetch a page, waiting at the server for one; False when nothing more comes, or the time is over."""
        pauses = Pauses()
        records = page_records(limit)
        while True:
            with once(self._lock):
                if self._is_ready:  # a cancelled task left it
                    return True
                if self._closed or has_ended(self._journal):
                    return False
                left = _WAIT_S if deadline is None else max(0.0, min(_WAIT_S, deadline - monotonic()))
                try:
                    self._settle()
                    if self._page or self._fetch(records, left):
                        return True
                    pauses = Pauses()
                except Unavailable:
                    if self._journal.end is not None:
                        return False
                    if deadline is not None and monotonic() >= deadline:
                        raise
                    self._wait(pauses.next())
            if deadline is not None and monotonic() >= deadline:
                return False

    def _wait(self, pause: float) -> None:
        try:
            self._session._exchange.pause(pause)
        except Closed:
            pass

    def _fetch(self, records: int, wait: float) -> bool:
        page = self._session.poll(records, wait, self._fetched)
        if self._session.generation != self._generation:
            self._is_lost = self._is_lost or bool(self._uncommitted())
            self._take_up(self._session.state.position)
            return False
        for number in self._given.keys() - page.position.keys():  # another member has it now
            self._is_lost = self._is_lost or number in self._uncommitted()
            self._drop(number)
        for batch in page.batches() if page.body else ():
            self._page.extend(self._items(batch))
        self._fetched.update(page.position)
        for number, at in page.position.items():
            if number not in self._given:
                self._given[number] = self._committed[number] = self._first_of(number, at)
        return bool(self._page)

    def _drop(self, number: int) -> None:
        for known in (self._given, self._fetched, self._committed):
            known.pop(number, None)

    def _first_of(self, number: int, otherwise: int) -> int:
        return next((at for part, at in map(self._place, self._page) if part == number), otherwise)

    def _uncommitted(self) -> dict[int, int]:
        """How far it has given out records, of partitions where that is not what is committed."""
        return {number: at for number, at in self._given.items() if at != self._committed.get(number)}

    # -- how far it is ------------------------------------------------------------------------------------

    def given(self, number: int) -> int:
        """The offset behind the last record of this partition that was given out."""
        return self._given[number]

    @property
    def partitions(self) -> tuple[int, ...]:
        """The partitions that this member has now."""
        return tuple(sorted(self._look().partitions))

    @property
    def position(self) -> str:
        """How far it has given out records of its partitions, as text: for `topic.read(position)` or `seek`."""
        with once(self._lock):
            return position_text(self._given)

    @property
    def committed(self) -> str:
        """How far its partitions are consumed, durably."""
        return self._look().committed

    @property
    def lag(self) -> int:
        """How many durable records of its partitions are not committed as consumed."""
        return self._look().lag

    def _look(self) -> MemberState:
        self._require_open()
        with once(self._lock):
            return self._session.look()

    def seek(self, to: int | str | datetime, *, partition: int | None = None) -> None:
        """Go on from somewhere else, in all partitions that this member has or in one; `commit()` makes it durable.

        `to` is an offset (a negative one counts from the end), 'first', 'next', 'committed' (what was given out since
        the last commit comes again), a position such as `.position` gives, or a time: then the first record of that
        time or later.
        """
        self._require_open()
        if isinstance(to, datetime):
            time_of(to)  # what is no time is refused in the words of any log
            to = to.astimezone(UTC).isoformat()
        elif not isinstance(to, str):
            to = whole(to, "an offset")
        elif to not in ("first", "next", "committed"):
            parse_position(to)
        with once(self._lock):
            found = self._session.seek(to, None if partition is None else whole(partition, "partition"))
            self._page.clear()
            self._given.update(found)
            self._fetched = dict(self._given)

    # -- committing ---------------------------------------------------------------------------------------

    def commit(self, timeout: float | None = None) -> None:
        """Make it durable that all records given out so far are consumed; returns after the fsync there.

        Raises Invalid, and commits nothing, where another member has one of these partitions now: all that was given
        out since the last commit is given out again, here or there.
        """
        if in_coroutine():
            warnings.warn("commit() blocks the event loop; use: await consumer.commit_async()", RuntimeWarning, 2)
        self._commit(self._timeout if timeout is None else seconds(timeout))

    async def commit_async(self, timeout: float | None = None) -> None:
        """What `commit` does, for coroutines. Cancelling it does not take the commit back."""
        wait = self._timeout if timeout is None else seconds(timeout)
        await awaited(lambda: self._commit(wait), "holdfast-commit")

    def submit_commit(self) -> RemoteCommitTicket:
        """Have it committed and return a ticket: `ticket.result()` or `await ticket`. Reading need not wait for it."""
        with once(self._lock):
            self._require_uncontested()
            position = self._uncommitted()
        return RemoteCommitTicket(begin(lambda: self._commit(self._timeout, position), "holdfast-commit"))

    def _commit(self, timeout: float, position: Mapping[int, int] | None = None) -> None:
        with once(self._lock):
            self._require_uncontested(timeout)
            position = self._uncommitted() if position is None else position
            if not position:
                return
            try:
                self._session.commit(position, timeout)
            except NotFound:  # the server does not know this member any more
                self._session.join()
                self._take_up(self._session.state.position)
                raise self._lost() from None
            except Invalid:
                self._take_up(self._session.look().committed)
                raise
            self._committed.update(position)

    def _require_uncontested(self, timeout: float = 0.0) -> None:
        """What was given out may be committed: by nobody else, and in order. Waits for a commit that is on its way."""
        self._require_open()
        if self._committing is not None and self._committing() is not None:
            raise Invalid(
                f"a transaction that has not ended has this consumer's position consumer={self.name!r}",
                hint="commit with the transaction, or by commit(), not both",
            )
        if self._queued is not None and not self._queued.ticket.wait(timeout):
            raise OutcomeUnknown(
                f"a commit is not acknowledged yet consumer={self.name!r}", hint="the server may be away; commit again"
            )
        self._settle()
        if self._is_lost:
            self._is_lost = False
            self._take_up(self._session.look().committed)
            raise self._lost()

    def _lost(self) -> Invalid:
        return Invalid(
            f"this member was taken for gone: what it gave out is given out again consumer={self.name!r}"
            f" topic={self.topic!r}",
            hint="handle it again, or handle it in a transaction with tx.consumed(consumer)",
        )

    # -- in transactions ----------------------------------------------------------------------------------

    def commit_operations(self) -> RemoteCommitting | None:
        """The position as it is now, to be committed with a transaction; None where nothing has changed."""
        with once(self._lock):
            self._require_uncontested()
            position = self._uncommitted()
            if not position:
                return None
            told = Consumed(self.topic, self.name, self._session.id, position)
            committing = RemoteCommitting(self, self._journal, told)
            self._committing = ref(committing)
            return committing

    def position_queued(self, ticket: UnitTicket, position: Mapping[int, int]) -> None:
        """A transaction that has its position is on its way."""
        with self._lock:
            self._committing, self._queued = None, _Queued(ticket, position, dict(self._given))

    def position_stored(self) -> None:
        """That transaction is durable."""
        with self._lock:
            self._settle()

    def position_failed(self) -> None:
        """That transaction was not queued, and never will be."""
        with self._lock:
            self._committing = None

    def _settle(self) -> None:
        """Take up what became of a transaction that had the position; the lock is held."""
        queued = self._queued
        if queued is None or not queued.ticket.done:
            return
        if queued.ticket.is_stored:
            self._committed.update((number, at) for number, at in queued.position.items() if number in self._given)
        else:
            told, given = self._session.look(), dict(self._given)
            self._agree(told)
            # Whoever made the transaction was told; what was given out behind it must not be committed, either.
            self._is_lost = self._is_lost or given not in (self._given, queued.given)
        self._queued = None

    def _agree(self, told: MemberState) -> None:
        """A commit was refused: what was given out is given out again, if the server says that it goes on before it."""
        if self._session.generation != self._generation:
            self._take_up(told.position)
            return
        position = parse_position(told.position)
        for number in [one for one, at in self._fetched.items() if position.get(one) != at]:
            self._page = deque(item for item in self._page if self._place(item)[0] != number)
            self._drop(number)
            if number in position:
                self._given[number] = self._fetched[number] = self._committed[number] = position[number]

    # -- the end ------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Give its partitions back, and end whoever iterates; commits nothing. Closing again does nothing."""
        if not self._closed:
            self._closed = True
            if in_coroutine():
                begin(self._session.leave, "holdfast-leave")
            else:
                self._session.leave()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await to_thread(self.close)

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"partitions={sorted(self._given)}"
        return f"RemoteConsumer({self.name!r}, topic={self.topic!r}, {state})"


class _Queued(NamedTuple):
    """A position that went with a transaction."""

    ticket: UnitTicket
    position: Mapping[int, int]
    given: Mapping[int, int]
    """How far records were given out when it went."""


class RemoteCommitTicket:
    """The promise of a consumer's commit; `result()` or `await` returns once it is durable."""

    def __init__(self, future: Future[None]) -> None:
        self._future = future

    @property
    def done(self) -> bool:
        """Whether the outcome is known."""
        return self._future.done()

    def result(self, timeout: float | None = None) -> None:
        """Wait until the position survives power loss; raises what became of it if it does not."""
        try:
            self._future.result(timeout)
        except FutureTimeout:
            raise OutcomeUnknown("a commit is not acknowledged yet", hint="ask the ticket again") from None

    def __await__(self) -> Generator[Any, None, None]:
        return awaited(self._future.result).__await__()

    def __repr__(self) -> str:
        return f"RemoteCommitTicket(done={self.done})"
