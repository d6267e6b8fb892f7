"""Only type-checked: what users write must be what the types say."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, assert_type

import holdfast
from holdfast import Keyring, Log, Marks, PayloadCipher, Receipt, Record, Settings, Stats, Ticket, Topic, TypedTopic
from holdfast.clock import Clock
from holdfast.results import (
    BatchTicket,
    CommitTicket,
    Consumer,
    ConsumerStatus,
    Pending,
    PendingBatch,
    RestoreReport,
    Space,
    Transaction,
    ValueTopic,
    Watermark,
)


def blocking(log: Log) -> None:
    topic = log.topic("t", partitions=2)
    assert_type(topic, Topic)
    assert_type(topic.append(b"x", key="k", headers={"a": b"b", "c": "d"}, time=datetime.now(UTC)), Receipt)
    assert_type(topic.submit(b"x", idempotency_key=b"k", timeout=1.5), Ticket)
    assert_type(topic.submit(b"x").result(timeout=1), Receipt)
    assert_type(topic.append(b"x", idempotency_key="k").repeated, bool)
    assert_type(log.read_only, bool)
    assert_type(log.topic("rows", schema="latest", partitions=2, key="customer"), TypedTopic)
    assert_type(log.topic("rows", schema="latest").key, str | None)
    values = log.topic("values", codec="json")
    assert_type(values, ValueTopic)
    assert_type(values.append({"id": 1}, key="k", timeout=1.5), Receipt)
    assert_type(log.topic("values", codec=Marks).append_batch([1, "two"]), Sequence[Receipt])
    assert_type(next(values.read()).value, Any)
    assert_type(topic.offer(b"x", partition=1), bool)
    assert_type(topic.append_batch([b"x", Record(b"y", key=b"k")]), Sequence[Receipt])
    assert_type(topic.submit_batch([b"x"]), BatchTicket)
    for record in topic.read(start=-5, limit=2, reverse=True):
        assert_type(record, Record)
    assert_type(topic.latest("c-42"), Record | None)
    assert_type(log.topic("rows", schema="latest").latest(42, partition=1), dict[str, Any] | None)
    assert_type(next(iter(topic.read(key=b"c-42"))), Record)
    assert_type(next(topic.follow()), Record)
    assert_type(topic.consumer("billing", start="next"), Consumer[Record])
    assert_type(next(topic.consumer("billing")), Record)
    assert_type(topic.consumer("billing").poll(10, 0.5), list[Record])
    assert_type(topic.consumer("billing").submit_commit(), CommitTicket)
    assert_type(log.consumers(), list[ConsumerStatus])
    assert_type(log.marks("t"), tuple[Marks, ...])
    assert_type(log.marks("t")[0].shipped, int | None)
    assert_type(log.marks("t")[0].settled, int)
    assert_type(log.stats(), Stats)
    assert_type(topic.watermark(), Watermark)
    assert_type(log.stats().journal.commit_seconds.quantile(0.99), float)


async def asynchronous(topic: Topic) -> None:
    assert_type(await topic.submit(b"x"), Receipt)
    assert_type(await topic.submit_batch([b"x"]), Sequence[Receipt])
    assert_type(await topic.append_async(b"x", durability="shipped"), Receipt)
    assert_type(await topic.append_batch_async([b"x"]), Sequence[Receipt])
    async for record in topic.follow(0):
        assert_type(record.at, datetime)
    async for record in topic.read(limit=3):
        assert_type(record, Record)


async def asynchronous_log(path: Path) -> None:
    async with holdfast.open(path) as log:
        assert_type(log, Log)
        await log.seal_async("t", timeout=3)
        await log.ship_async()
        await log.flush_async()
        assert_type(await log.topic("t", schema="latest").append_async({"a": 1}), Sequence[Receipt])
    await log.close_async()


def transactions(log: Log, typed: TypedTopic) -> None:
    with log.transaction(timeout=3, durability="shipped") as tx:
        assert_type(tx, Transaction)
        one = tx.append("t", b"x", key="k", headers={"h": b"1"}, kind="made", time=7, partition=0, idempotency_key=b"i")
        assert_type(one, Pending)
        rows = tx.append(typed, [{"a": 1}], time="at", idempotency_key="k")
        assert_type(rows, PendingBatch)
        assert_type(tx.append_batch(log.topic("t"), [b"a", Record(b"b")]), PendingBatch)
        tx.put(log.space("s"), "k", b"v")
        tx.delete("s", b"k")
        tx.consumed(log.topic("t").consumer("c"))
    assert_type(one.receipt, Receipt)
    assert_type(rows.receipts, Sequence[Receipt])
    assert_type(tx.receipts, list[Receipt])
    assert_type(log.space("s"), Space)
    assert_type(log.space("s").get(b"k"), bytes | None)
    assert_type(log.space("s").items(), list[tuple[bytes, bytes]])
    assert_type(log.spaces(), list[str])


async def asynchronous_transactions(log: Log) -> None:
    async with log.transaction() as tx:
        assert_type(tx, Transaction)
    await log.space("s").put_async("k", b"v")


class Hsm:
    """A cipher of the user's own fits the protocol by its shape."""

    name = "hsm"

    def encrypt(self, plaintext: bytes, associated: bytes) -> bytes:
        return plaintext + associated

    def decrypt(self, encrypted: bytes, associated: bytes) -> bytes:
        return encrypted + associated

    def mac(self, message: bytes) -> bytes:
        return message


def rarely_named(clock: Clock) -> None:
    assert_type(holdfast.restore("s3://bucket/prefix", "p", clock=clock), RestoreReport)


def opening() -> None:
    cipher: PayloadCipher = Hsm()
    with holdfast.open("p", cipher=cipher, settings=Settings()) as log:
        assert_type(log, Log)
    assert_type(Keyring.from_env("X").rotated("y"), Keyring)
    try:
        holdfast.open("p", read_only=True).close()
    except holdfast.Corrupt as error:
        assert_type(error.offset, int | None)
    except holdfast.OutcomeUnknown as error:
        assert_type(error.idempotency_key, bytes | None)
