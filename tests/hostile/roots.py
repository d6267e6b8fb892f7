"""Roots with one of each kind of object, made by the product itself, plain or keyed, and the directory that owns them.

A root is kept as its objects; a test spoils copies of it. A new kind of object belongs to `make`, and `KINDS`
in `mutations` fails until it knows it.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

import holdfast
from holdfast import Keyring, Log, Settings
from holdfast.clock import SystemClock
from holdfast.crypto.signatures import Signer
from holdfast.reader.lease import Lease
from holdfast.root.objects import documents
from holdfast.root.objects.documents import ExpiredDocument
from holdfast.root.root_store import RootStore
from holdfast.root.root_trust import RootTrust
from holdfast.store import layout
from holdfast.store.directory import DirectoryStore
from holdfast.store.port import Body
from tests.segments.planting import fill
from tests.sink_topics import SinkTopic

SCHEMA = pa.schema(
    {
        "n": pa.int64(),
        "name": pa.string(),
        "tags": pa.list_(pa.string()),
        "point": pa.list_(pa.float32(), 3),
        "flag": pa.bool_(),
        "inner": pa.struct({"a": pa.int32(), "b": pa.map_(pa.string(), pa.float64())}),
    }
)
Objects = dict[str, bytes]


class Made(NamedTuple):
    """A root, and the log that owns it."""

    root: Path
    objects: Objects
    directory: Path
    """The owner's, closed."""
    keyring: Keyring | None


def settings(root: Path) -> Settings:
    """How the log is opened that ships to a root."""
    return Settings.from_mapping(
        {
            "store": {"url": root.as_uri()},
            "journal": {"ack_timeout_ms": "60s"},
            "segments": {"rows_max": 10, "seal_on_close": False},
            "shipping": {
                "checkpoint_every": 2,
                "retry_base_delay_ms": 1,
                "retry_delay_max_ms": 10,
                "drain_timeout_ms": 2_000,
                "shipped_timeout_ms": 20_000,
            },
            "retention": {"interval_ms": 3_600_000},
            "reconcile": {"pass_interval_ms": 3_600_000},
            "disk": {"free_bytes_min": 0},
        }
    )


def write_expiry(root: Path, log: Log, keyring: Keyring | None) -> None:
    """Retire the first segment, as retention on the store does."""
    expired = ExpiredDocument(log=log.id, topic="orders", partition=0, upto=1, first=10, expired_us=1)
    store = RootStore(DirectoryStore(root, SystemClock()), RootTrust(Signer.of(keyring)))
    store.create(layout.expired_key("orders", 0, 1), Body.of(documents.encode(expired)))


def write_sink(root: Path, keyring: Keyring | None) -> None:
    """A topic that a sink writes: two batches, of which the second is not applied."""
    sink = SinkTopic(DirectoryStore(root, SystemClock()), keyring=keyring)
    sink.write({0: [[b"a", b"b"], [b"c"]], 1: [[b"d"]]}, writer="query", batch=0)
    sink.write({0: [[b"e"]], 2: [[b"f"] * 20]}, writer="query", batch=1, applied=False)


def make(base: Path, keyring: Keyring | None = None) -> Made:
    """Two owners, one after the other: segments of raw and typed topics, starts, checkpoints, a tail, an expiry.

    And a sink that writes to the same root, and small segments that were compacted.
    """
    root, first, second = base / "root", base / "first", base / "second"
    log = holdfast.open(first, settings=settings(root), keyring=keyring)
    log.topic("orders", partitions=2)
    rows = log.topic("rows", schema=SCHEMA)
    for _ in range(2):
        fill(log, "orders", 1, partition=0)
        fill(log, "orders", 1, partition=1)
    log.topic("orders").append_batch(
        [holdfast.Record(b"x" * i, key=b"k%d" % (i % 3), kind="order", headers={"a": b"b"}) for i in range(10)]
    )
    rows.append([row(i) for i in range(10)])
    for i in range(5):
        log.topic("orders").append(b"once %d" % i, partition=1, idempotency_key=f"once-{i}")
    log.seal()
    log.ship(20)
    log.close()
    holdfast.restore(root.as_uri(), second, settings=Settings(), keyring=keyring)
    log = holdfast.open(second, settings=settings(root), keyring=keyring)
    fill(log, "orders", 1, partition=0)
    log.ship(20)
    for turn in range(4):
        log.topic("orders").append(b"tail %d" % turn, partition=turn % 2, durability="shipped")
    log.topic("rows", schema="latest").append([row(99)], durability="shipped")
    fill(log, "many", 3)
    log.ship(20)
    log.close()
    keys = f"file:{base / 'keys'}" if keyring is not None else None
    assert holdfast.compact(root.as_uri(), ("many",), keyring=keys).files_after
    write_expiry(root, log, keyring)
    write_sink(root, keyring)
    Lease(DirectoryStore(root, SystemClock()), log.id, "a-reader", 3600, SystemClock()).renew({("orders", 0): 1})
    return Made(root, objects_of(root), second, keyring)


def row(i: int) -> dict[str, object]:
    """A typed row; others for other numbers."""
    point = None if i % 3 else [0.5, 1.5, float(i)]
    inner = {"a": i, "b": [("x", 1.5), ("y", None)]}
    tags = [None, [], ["a", None, "b" * i]][i % 3]
    return {"n": i, "name": f"name {i}", "tags": tags, "point": point, "flag": i % 2 == 0, "inner": inner}


def objects_of(root: Path) -> Objects:
    """All files below a root."""
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


def lay_out(objects: Objects, root: Path) -> None:
    """Put a root's objects into a directory."""
    shutil.rmtree(root, ignore_errors=True)
    for key, data in objects.items():
        path = root / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
