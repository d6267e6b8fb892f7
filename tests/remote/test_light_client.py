"""A client is light: what it needs to append, read and consume loads nothing of what only a log's owner does."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.remote.served import ServedLog

pytestmark = pytest.mark.disk

CLIENT = """
import json, sys
import holdfast

with holdfast.connect(sys.argv[1]) as log:
    topic = log.topic(sys.argv[2])
    topic.append(b"x", key="k", idempotency_key="once")
    assert [record.payload for record in topic.read()] == [b"x"]
    assert next(topic.follow(0)).payload == b"x"
    with topic.consumer("c") as consumer:
        assert consumer.poll(1, 20)
        with log.transaction() as tx:
            tx.append(topic, b"y")
            tx.put("space", "k", b"v")
            tx.consumed(consumer)
    log.producer(sys.argv[2]).append(topic, b"z", sequence=1)
    assert log.space("space").get("k") == b"v"
    assert log.marks(sys.argv[2])[0].durable == 3
    import pyarrow
    rows = log.topic(sys.argv[2] + "-rows", schema=pyarrow.schema([("n", pyarrow.int64())]))
    rows.append({"n": 1})
    assert rows.read().to_arrow().num_rows == 1
print(json.dumps(sorted(sys.modules)))
"""

OWNERS = [
    "apsw",
    "cryptography",
    "obstore",
    "holdfast.channels.participant",
    "holdfast.compaction",
    "holdfast.crypto.vault",
    "holdfast.journal.backend",
    "holdfast.journal.commit.staging",
    "holdfast.journal.commit.writer",
    "holdfast.journal.groups",
    "holdfast.journal.journal",
    "holdfast.journal.proving",
    "holdfast.journal.sqlite",
    "holdfast.execution.work",
    "holdfast.log.local_log",
    "holdfast.log.upkeep",
    "holdfast.reconcile",
    "holdfast.root",
    "holdfast.segments.file.segment_reader",
    "holdfast.segments.manifest.local_manifest",
    "holdfast.segments.retention",
    "holdfast.segments.sealing",
    "holdfast.sharing",
    "holdfast.shipping.lanes",
    "holdfast.shipping.shipper",
    "holdfast.store.s3",
]
"""What only those load who have the log itself, with everything in it."""


def test_a_client_loads_nothing_of_what_an_owner_does(served: ServedLog, name: str) -> None:
    program = [sys.executable, "-c", CLIENT, served.url, name]
    done = subprocess.run(program, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    loaded = json.loads(done.stdout)
    assert [one for one in loaded if any(one == part or one.startswith(f"{part}.") for part in OWNERS)] == []
    ours = [one for one in loaded if one.partition(".")[0] == "holdfast"]
    assert len(ours) < 180, ours
