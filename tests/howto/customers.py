"""Customers: clients that order over HTTP, all at once, and remember what they were promised.

Careful ones send an order under a key, and again until it is acknowledged. Careless ones send it once, without a key:
when the connection breaks they do not know what became of it. Each order has a connection of its own, so that workers
share them.
"""

from __future__ import annotations

import http.client
import json
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from threading import Condition, Event, Thread
from types import TracebackType
from typing import NamedTuple, Self

import holdfast
from tests.howto.servers import PATIENCE

THINKING_S = 0.01
"""Between two orders: servers that start beside them need the machine, too."""
REQUEST_S = 30.0
"""A request that takes longer counts as one that hangs."""


class Response(NamedTuple):
    """What came back over HTTP."""

    status: int
    headers: http.client.HTTPMessage
    body: bytes


class Answer(NamedTuple):
    """What a server acknowledged."""

    offset: int
    worker: int

    @classmethod
    def of(cls, response: Response) -> Self:
        """What a response says."""
        return cls(**json.loads(response.body))


def ask(port: int, path: str, body: bytes, headers: Mapping[str, str]) -> Response:
    """One request, over a connection of its own."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=REQUEST_S)
    try:
        connection.request("POST", path, body, dict(headers))
        response = connection.getresponse()
        return Response(response.status, response.headers, response.read())
    finally:
        connection.close()


class Customers:
    """So many clients of each kind, until the block ends."""

    def __init__(self, port: int, careful: int = 3, careless: int = 2, path: str = "/orders") -> None:
        self._port = port
        self._path = path
        self._changed = Condition()
        self._enough = Event()
        self.acknowledged: dict[str, Answer] = {}
        self.unknown: set[str] = set()
        """Orders of careless customers whose connection broke."""
        self.problems: list[str] = []
        kinds = [(f"careful-{n}", self._careful) for n in range(careful)]
        kinds += [(f"careless-{n}", self._careless) for n in range(careless)]
        self._threads = [Thread(target=self._order_on, args=one) for one in kinds]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Order nothing more; returns when all that was asked for is answered."""
        self._enough.set()
        for thread in self._threads:
            thread.join()

    # -- waiting for what they see ------------------------------------------------------------------------

    def wait_until(self, seen: Callable[[dict[str, Answer]], bool]) -> None:
        """Wait until this is so; asked again after each order that is acknowledged."""
        with self._changed:
            in_time = self._changed.wait_for(lambda: bool(self.problems) or seen(self.acknowledged), PATIENCE)
        assert not self.problems, self.problems
        assert in_time, f"{len(self.acknowledged)} orders by {self.workers()}"

    def wait_for_workers(self, count: int, besides: set[int] | None = None) -> set[int]:
        """Wait until so many workers have answered, besides these; which ones."""
        known = besides or set()
        self.wait_until(lambda acknowledged: len({answer.worker for answer in acknowledged.values()} - known) >= count)
        return self.workers() - known

    def workers(self) -> set[int]:
        """The workers that have answered."""
        with self._changed:
            return {answer.worker for answer in self.acknowledged.values()}

    # -- ordering -----------------------------------------------------------------------------------------

    def _order_on(self, name: str, order: Callable[[str], None]) -> None:
        number = 0
        try:
            while not self._enough.wait(THINKING_S):
                order(f"{name}-{number}")
                number += 1
        except Exception as error:
            with self._changed:
                self.problems.append(f"{name}-{number}: {type(error).__name__}: {error}")
                self._changed.notify_all()

    def _careful(self, key: str) -> None:
        while not self._enough.is_set():
            try:
                self.acknowledge(key, self._ask(key, {"Idempotency-Key": key}))
                return
            except (ConnectionError, http.client.HTTPException):
                continue  # its worker was killed: again, under the same key
        with self._changed:
            self.unknown.add(key)

    def _careless(self, key: str) -> None:
        try:
            self.acknowledge(key, self._ask(key, {}))
        except (ConnectionError, http.client.HTTPException):
            with self._changed:
                self.unknown.add(key)

    def _ask(self, order: str, headers: dict[str, str]) -> Response:
        return ask(self._port, self._path, order.encode(), headers)

    def acknowledge(self, key: str, response: Response) -> None:
        """An order was taken, and this says where it is."""
        if response.status != 200:
            raise RuntimeError(f"{response.status} {response.body.decode()}")
        with self._changed:
            self.acknowledged[key] = Answer.of(response)
            self._changed.notify_all()

    # -- the judgement ------------------------------------------------------------------------------------

    def check(self, data: Path) -> None:
        """Every acknowledged order is in the log, once and where it was said to be; no other is there twice."""
        assert not self.problems, self.problems
        with holdfast.open(data, read_only=True) as log:
            stored = [(record.payload.decode(), record.offset) for record in log.topic("orders").read()]
        counts = Counter(order for order, _ in stored)
        assert [order for order, count in counts.items() if count > 1] == []
        places = dict(stored)
        assert {key: places.get(key) for key in self.acknowledged} == {
            key: answer.offset for key, answer in self.acknowledged.items()
        }
        assert set(places) - set(self.acknowledged) <= self.unknown
