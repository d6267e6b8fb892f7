"""A member of a consumer, as the server keeps it: joined, polled, committed, and joined again when it is gone there.

A member that was not heard of for a while, or whose server was started anew, is gone; what it had given out and not
committed comes again, to it or to others. So this counts how often it joined: a commit of what an earlier membership
gave out is refused, as it is where another member of this process has taken a partition over.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.clock import SystemClock
from holdfast.errors import HoldfastError, NotFound
from holdfast.log.topics.reading import parse_position, position_text
from holdfast.remote.http.exchange import ARROW, JSON, Answer, Exchange, Question

if TYPE_CHECKING:
    import pyarrow as pa

_WAIT_S_MAX = 20.0
_ID_BYTES = 16


class MemberState(msgspec.Struct):
    """What a server says of a member."""

    member: str = ""
    partitions: tuple[int, ...] = ()
    position: str = "{}"
    committed: str = "{}"
    lag: int = 0


class Page(msgspec.Struct):
    """What a poll gave."""

    body: bytes
    position: Mapping[int, int]
    partitions: tuple[int, ...]

    def batches(self) -> list[pa.RecordBatch]:
        """Its rows."""
        from holdfast.remote.reading.page_stream import batches_of

        return list(batches_of(self.body))


class MemberSession:
    """One membership of one consumer; used by one thread at a time."""

    def __init__(self, exchange: Exchange, topic: str, name: str, options: Mapping[str, Any], timeout: float) -> None:
        self.topic, self.name = topic, name
        self.generation = 0
        """How often it has joined."""
        self.state = MemberState()
        self._exchange = exchange
        self._options = dict(options)
        self._timeout = timeout
        self.join()

    @property
    def id(self) -> str:
        """Under which the server knows it."""
        return self.state.member

    def join(self) -> None:
        """Become a member, under an id of our own: asking again after a lost answer makes no second one."""
        body = {**self._options, "member": SystemClock().random_bytes(_ID_BYTES).hex()}
        answer = self._ask("POST", (), body, self._timeout, again=True)
        self.state = answer.decoded(MemberState)
        self.generation += 1
        self._options["start"] = self._options.get("start", "first")

    def poll(self, limit: int, wait: float, position: Mapping[int, int]) -> Page:
        """Up to so many records behind a position; joins again where it must."""
        wait = min(wait, _WAIT_S_MAX)
        body = {"limit": limit, "timeout": wait, "position": position_text(position)}
        try:
            answer = self._ask("POST", (self.id, "poll"), body, self._timeout + wait, accept=ARROW)
        except NotFound:
            self.join()
            return Page(b"", parse_position(self.state.position), self.state.partitions)
        told = parse_position(answer.headers.get("holdfast-position", "{}"))
        return Page(answer.body, told, tuple(sorted(told)))

    def commit(self, position: Mapping[int, int], timeout: float) -> None:
        """Make it durable that all below is consumed; committing the same again changes nothing."""
        body = {"position": position_text(position)}
        self.state = msgspec.structs.replace(
            self.state, committed=self._ask("POST", (self.id, "commit"), body, timeout).decoded(MemberState).committed
        )

    def seek(self, to: object, partition: int | None) -> Mapping[int, int]:
        """Go on from somewhere else; where that is."""
        answer = self._ask("POST", (self.id, "seek"), {"to": to, "partition": partition}, self._timeout)
        return parse_position(answer.decoded(MemberState).position)

    def look(self) -> MemberState:
        """What the server says of it now."""
        try:
            self.state = self._ask("GET", (self.id,), None, self._timeout).decoded(MemberState)
        except NotFound:
            self.join()
        return self.state

    def leave(self) -> None:
        """Give its partitions back; a server that cannot be asked notices by itself."""
        try:
            self._ask("DELETE", (self.id,), None, 2.0)
        except HoldfastError:
            pass

    def _ask(
        self,
        method: str,
        path: tuple[str, ...],
        body: object,
        timeout: float,
        *,
        accept: str = JSON,
        again: bool = True,
    ) -> Answer:
        place = ("v1", "topics", self.topic, "consumers", self.name, "members", *path)
        headers = {"Accept": accept} | ({} if body is None else {"Content-Type": JSON})
        content = None if body is None else msgspec.json.encode(body)
        return self._exchange.ask(Question(method, place, body=content, headers=headers, again=again), timeout)
