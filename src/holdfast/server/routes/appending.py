"""`POST /v1/topics/{topic}/records`: a body of records or rows, durable when it is answered.

A small body is parsed and queued on the event loop; a large one in a thread. Either way the answer waits for the
group commit without a thread. A client that goes away takes nothing back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import msgspec

from holdfast.errors import Invalid, NotFound
from holdfast.log.topics.topic import Topic
from holdfast.log.topics.typed_topic import TypedTopic
from holdfast.model.record import Durability, Receipt
from holdfast.model.record_json import moment
from holdfast.server.api_answers import Answer, json_answer
from holdfast.server.api_request import ApiRequest
from holdfast.server.request_bodies import RequestRecords, records_of, rows_of
from holdfast.server.served import AnyKind, Served

_LARGE_BYTES = 128 * 1024
_NAMING = (b"idempotency-key", b"holdfast-producer", b"holdfast-sequence")


class RunAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    """Consecutive records of a body, and where they are."""

    partition: int
    offset: int
    count: int
    seq: int
    repeated: bool = False


class AppendAnswer(msgspec.Struct, frozen=True):
    """Where the records of a body are."""

    topic: str
    count: int
    runs: list[RunAnswer]
    repeated: bool


async def append(request: ApiRequest, served: Served) -> Answer:
    """Append a body. Answers when everything in it survives power loss."""
    topic = _topic(request, served)
    content = await request.body()
    return await append_body(request, served, topic, content)


async def append_body(request: ApiRequest, served: Served, topic: AnyKind, content: bytes) -> Answer:
    """Append what a request has in its body."""
    options = _AppendOptions(request, served)
    if options.producer is not None:
        served.require_producer(request.caller, options.producer)
        served.sessions.enter(request.caller, options.producer.encode(), is_producer=True)
    parse = rows_of if isinstance(topic, TypedTopic) else records_of
    if len(content) <= _LARGE_BYTES:
        given = parse(request, topic, content)  # type: ignore[arg-type]
    else:
        given = await served.read(lambda: parse(request, topic, content), request.caller)  # type: ignore[arg-type]
    receipts = await _Appending(served, topic, options, given).done()
    return answer_of(topic.name, receipts, is_one=given.is_one)


def _topic(request: ApiRequest, served: Served) -> AnyKind:
    name = request.params["topic"]
    try:
        return served.topic(name)
    except NotFound:
        if not request.caller.may("admin", name):
            raise
        served.log.topic(name)
        return served.topic(name)


class _AppendOptions:
    """How a body is to be appended."""

    __slots__ = ("durability", "key", "partition", "producer", "sequence", "time", "timeout")

    def __init__(self, request: ApiRequest, served: Served) -> None:
        self.timeout: float | None = None
        self.durability: Durability = "durable"
        self.partition: int | None = None
        self.time: str | int | None = None
        if request.scope["query_string"]:
            self._read_query(request, served)
        self.key: bytes | None = None
        self.producer: str | None = None
        self.sequence: int | None = None
        if not request.headers.keys().isdisjoint(_NAMING):
            self._read_names(request)

    def _read_names(self, request: ApiRequest) -> None:
        """What makes a repeat of this body known."""
        self.key = request.header_bytes(b"idempotency-key")
        self.producer = request.header_text(b"holdfast-producer")
        number = request.header(b"holdfast-sequence")
        if (self.producer is None) != (number is None):
            raise Invalid("Holdfast-Producer and Holdfast-Sequence go together", hint="send both, or neither")
        if number is not None:
            if not number.isdecimal() or not number.isascii() or len(number) > 18:
                raise Invalid("Holdfast-Sequence is a whole number", hint="1, 2, 3 …")
            if self.key is not None:
                raise Invalid("a producer's body needs no Idempotency-Key", hint="send one of them")
            self.sequence = int(number)

    def _read_query(self, request: ApiRequest, served: Served) -> None:
        self.timeout = request.seconds("timeout", most=served.settings.request_timeout_ms / 1000)
        durability = request.text("durability") or "durable"
        if durability not in ("durable", "shipped"):
            raise Invalid("durability is 'durable' or 'shipped'", hint="leave it out for 'durable'")
        self.durability = cast("Durability", durability)
        self.partition = request.whole("partition")
        time = request.text("time")
        if time is not None:
            self.time = moment(time) if time[:1].isdigit() or time[:1] == "-" else time


class _Appending:
    """One body on its way into the log."""

    def __init__(self, served: Served, topic: AnyKind, options: _AppendOptions, given: RequestRecords) -> None:
        self._served = served
        self._topic = topic
        self._asked = options
        self._given = given
        self._partition = given.partition if options.partition is None else options.partition

    async def done(self) -> Sequence[Receipt]:
        """The receipts, once all of it is durable."""
        if self._asked.producer is not None:
            return await self._produced()
        if isinstance(self._topic, TypedTopic):
            return await self._rows(self._topic)
        return await self._records(self._topic)

    async def _rows(self, topic: TypedTopic) -> Sequence[Receipt]:
        options = self._asked
        return await topic.append_async(
            self._given.items,
            time=options.time,
            partition=self._partition,
            idempotency_key=options.key,
            timeout=options.timeout,
            durability=options.durability,
        )

    async def _records(self, topic: Topic) -> Sequence[Receipt]:
        options, given = self._asked, self._given
        if options.time is not None:
            raise Invalid("records have a time each", hint="leave 'time' out of the query")
        if options.key is not None:
            return await self._keyed(topic, options.key)
        records = cast("list[Any]", given.items)
        if len(records) > 1:
            return await topic.append_batch_async(
                records, partition=self._partition, timeout=options.timeout, durability=options.durability
            )
        return [await self._one(topic, records[0], None)]

    async def _keyed(self, topic: Topic, key: bytes) -> Sequence[Receipt]:
        records = cast("list[Any]", self._given.items)
        if self._given.is_one:
            return [await self._one(topic, records[0], key)]
        if self._asked.durability != "durable":
            raise Invalid("several records with keys are answered when they are durable", hint="ask for one at a time")
        journal_room = self._asked.timeout
        tickets = []
        for number, record in enumerate(records):
            tickets.append(await self._queued(topic, record, b"%b:%d" % (key, number), journal_room))
        return [await ticket for ticket in tickets]

    async def _queued(self, topic: Topic, record: Any, key: bytes, timeout: float | None) -> Any:
        given = fields_of(record)
        wait = self._served.log.settings.journal.ack_timeout_ms / 1000 if timeout is None else timeout

        def put(left: float) -> Any:
            return topic.submit(**given, partition=self._partition, idempotency_key=key, timeout=left)

        return await topic._journal.when_room(put, wait)

    async def _one(self, topic: Topic, record: Any, key: bytes | None) -> Receipt:
        return await topic.append_async(
            **fields_of(record),
            partition=self._partition,
            idempotency_key=key,
            timeout=self._asked.timeout,
            durability=self._asked.durability,
        )

    async def _produced(self) -> Sequence[Receipt]:
        """As number so-and-so of a producer."""
        options, records = self._asked, self._given.items
        producer = self._served.log.producer(options.producer or "")
        common: dict[str, Any] = {
            "sequence": options.sequence,
            "partition": self._partition,
            "timeout": options.timeout,
            "durability": options.durability,
        }
        if isinstance(self._topic, TypedTopic):
            found = await producer.append_async(self._topic, records, time=options.time, **common)
            return cast("Sequence[Receipt]", found)
        if self._given.is_one:
            receipt = await producer.append_async(self._topic, **fields_of(records[0]), **common)
            return [cast("Receipt", receipt)]
        return await producer.append_batch_async(self._topic, records, **common)


def fields_of(record: Any) -> dict[str, Any]:
    """A record as the arguments of an append."""
    if type(record) is bytes:
        return {"payload": record}
    from holdfast.model.record import NOW

    return {
        "payload": record.payload,
        "key": record.key,
        "kind": record.kind,
        "headers": record.headers,
        "time": None if record.time == NOW else record.time,
    }


def answer_of(topic: str, receipts: Sequence[Receipt], *, is_one: bool) -> Answer:
    """Receipts as an answer."""
    if is_one:
        return json_answer(receipts[0])
    runs = runs_of(receipts)
    return json_answer(AppendAnswer(topic, len(receipts), runs, all(run.repeated for run in runs)))


def runs_of(receipts: Sequence[Receipt]) -> list[RunAnswer]:
    """Receipts, those that follow one another as one."""
    own = getattr(receipts, "runs", None)
    if own is not None and len(own) == 1:
        first = receipts[0]
        return [RunAnswer(first.partition, first.offset, len(receipts), first.seq, first.repeated)]
    found: list[tuple[Receipt, int]] = []
    for receipt in receipts:
        if found:
            first, count = found[-1]
            same = (first.partition, first.offset + count, first.seq, first.repeated)
            if same == (receipt.partition, receipt.offset, receipt.seq, receipt.repeated):
                found[-1] = (first, count + 1)
                continue
        found.append((receipt, 1))
    return [RunAnswer(one.partition, one.offset, count, one.seq, one.repeated) for one, count in found]
