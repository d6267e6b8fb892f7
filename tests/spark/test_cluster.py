"""On a real standalone cluster of a master and two workers: spark-submit, and nothing there but the wheel."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast
from holdfast import Keyring
from pyspark_holdfast.jobs import compact
from tests.spark.cluster import Cluster, cluster

pytestmark = pytest.mark.spark

JOB = Path(__file__).with_name("cluster_job.py")
WRITERS = ("apsw", "holdfast.log", "holdfast.shipping", "holdfast.journal", "holdfast.segments.sealing")
"""What no executor may load."""


@pytest.fixture(scope="module")
def standalone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with cluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


def expected(log: holdfast.Log) -> list[list[object]]:
    return sorted([r.partition, r.offset, r.payload.hex()] for r in log.topic("orders").read())


@pytest.mark.full("eight JVMs, a minute: the import contract and a local Spark hold the readers")
@pytest.mark.timeout(600)
def test_a_cluster_reads_everything_once_and_its_workers_load_no_writer(standalone: Cluster, tmp_path: Path) -> None:
    """Encrypted, in batch and as a stream, with the key by reference; a worker imports readers only."""
    Keyring.generate().save(tmp_path / "keyring")
    with holdfast.open(tmp_path / "log", keyring=Keyring.from_file(tmp_path / "keyring")) as log:
        topic = log.topic("orders", partitions=2)
        for number in range(6):
            topic.append_batch([b"%d-%d" % (number, each) for each in range(50)], partition=number % 2)
            log.seal()
        rows = expected(log)
    reference = f"keyring=file:{tmp_path / 'keyring'}"
    done = standalone.submit(JOB, str(tmp_path / "log"), "orders", str(tmp_path / "out"), reference, "minPartitions=4")
    assert done.returncode == 0, done.stderr[-4000:]
    answer = json.loads(done.stdout.splitlines()[-1])
    assert answer["master"] == standalone.url
    assert answer["executors"] == 2
    assert answer["rows"] == answer["streamed"] == rows
    assert answer["read_by_hand"] == len(rows)
    assert "holdfast.reader.piece_rows" in answer["loaded"]
    assert not [name for name in answer["loaded"] if name.startswith(WRITERS)]
    secret = (tmp_path / "keyring").read_text().partition(":")[2].strip()
    assert secret not in done.stdout + done.stderr


@pytest.mark.full("eight JVMs, a minute: a local Spark compacts in the gate")
@pytest.mark.timeout(600)
def test_a_cluster_compacts(standalone: Cluster, tmp_path: Path) -> None:
    """The job as spark-submit runs it: the file is the script, executors make the files, and the report is one line."""
    root = tmp_path / "root"
    with holdfast.open(tmp_path / "log", store=str(root)) as log:
        for _ in range(6):
            for partition in range(2):
                log.topic("orders", partitions=2).append_batch([b"x"] * 10, partition=partition)
            log.seal()
        log.ship(60)
        rows = expected(log)
    done = standalone.submit(Path(compact.__file__), str(root), "orders", "--target-size", "1MiB")
    assert done.returncode == 0, done.stderr[-3000:]
    report = json.loads(done.stdout.splitlines()[-1])
    assert (report["files_before"], report["files_after"]) == (12, 2)
    found = holdfast.read(str(root), "orders").to_arrow()
    columns = (found[name].to_pylist() for name in ("partition", "offset", "payload"))
    assert [[p, at, row.hex()] for p, at, row in zip(*columns, strict=True)] == rows
