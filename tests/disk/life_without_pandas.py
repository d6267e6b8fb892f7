"""A whole life of a log, as a process: append, seal, ship, read, look, restore. Fails where something loads pandas."""

from __future__ import annotations

import sys
import tempfile
from datetime import UTC, datetime

import pyarrow as pa

import holdfast

SCHEMA = pa.schema(
    [
        pa.field("text", pa.string()),
        pa.field("number", pa.int64(), nullable=False),
        pa.field("list", pa.list_(pa.int32())),
        pa.field("at", pa.timestamp("us", "UTC")),
        pa.field("flag", pa.bool_()),
        pa.field("part", pa.struct([pa.field("share", pa.float64())])),
    ]
)


def check(after: str) -> None:
    assert "pandas" not in sys.modules, f"{after} loads pandas"


def raw(log: holdfast.Log) -> None:
    topic = log.topic("raw", partitions=2)
    for n in range(50):
        headers = {"trace": b"t", "more": "text"} if n % 3 else None
        topic.append(b"%d" % n, key=b"k%d" % n, kind="order", headers=headers, idempotency_key=b"%d" % n)
    topic.append_batch([b"one", b"two"])
    check("append")
    log.seal()
    check("seal")
    log.ship()
    check("ship")
    topic.append(b"tail", headers={"a": b"b"})
    assert len(list(topic.read())) == 53
    assert len(list(topic.read(reverse=True, limit=3))) == 3
    now = datetime.now(UTC)
    assert topic.read(start=1, limit=2, since=datetime(2020, 1, 1, tzinfo=UTC), until=now).to_arrow().num_rows == 2
    check("read")


def typed(log: holdfast.Log) -> None:
    topic = log.topic("typed", schema=SCHEMA)
    whole = {"text": "a", "number": 1, "list": [1, None], "at": datetime.now(UTC), "flag": True, "part": {"share": 0.5}}
    topic.append([whole, {"number": 2}, {"number": 3, "list": []}])
    check("a typed append")
    log.seal()
    check("a typed seal")
    log.ship()
    topic.append(topic.read(columns=SCHEMA.names).to_arrow().select(SCHEMA.names))
    topic = log.topic("typed", schema=SCHEMA.append(pa.field("later", pa.float64())))
    rows = list(topic.read())
    assert [row["number"] for row in rows] == [1, 2, 3] * 2
    assert rows[0]["at"] == whole["at"]
    assert topic.read(start=1, since=datetime(2020, 1, 1, tzinfo=UTC), columns=["number"]).to_arrow().num_rows == 5
    check("a typed read")


def life(folder: str, keys: str | None) -> None:
    keyring = holdfast.Keyring.from_reference(keys) if keys else None
    store = f"file://{folder}/store"
    with holdfast.open(f"{folder}/log", store=store, keyring=keyring) as log:
        raw(log)
        typed(log)
        assert not log.reconcile(deep=True).findings
        assert not log.reconcile(remote=True, deep=True).findings
        log.retain()
        check("reconcile")
    check("close")
    for topic, count in (("raw", 53), ("typed", 6)):
        assert holdfast.read(store, topic, keyring=keys).to_arrow().num_rows == count
    check("holdfast.read")
    holdfast.restore(store, f"{folder}/back", keyring=keyring)
    with holdfast.open(f"{folder}/back", store=store, keyring=keyring) as log:
        assert len(list(log.topic("raw").read())) == 53
        log.topic("raw").append(b"on", headers={"a": b"b"})
        log.seal()
    check("restore")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        holdfast.Keyring.generate().save(f"{folder}/keys")
        life(f"{folder}/plain", None)
        life(f"{folder}/keyed", f"file:{folder}/keys")
    print("without pandas")


if __name__ == "__main__":
    main()
