"""Compaction of an encrypted log's own files: bundles, read by the log, by others, and by a rebuild."""

from __future__ import annotations

import pytest

import holdfast
from holdfast import Keyring, Log
from tests.bundle_data import Masked
from tests.segments.planting import TEN, files, fill, offsets

pytestmark = pytest.mark.disk
NEVER = {"interval_ms": 3_600_000}
SOON = {"delete_after_ms": 0}


@pytest.fixture(params=["keyring", "cipher"])
def how(request) -> dict[str, object]:
    """How the log is encrypted."""
    return {"keyring": Keyring.generate("k1")} if request.param == "keyring" else {"cipher": Masked()}


def compacted(open_log, how: dict[str, object]) -> Log:
    """Four small segments, with another key from the third on, in one file."""
    log = open_log(segments=TEN, retention=NEVER, shipping=SOON, **how)
    fill(log, "orders", 2)
    if "keyring" in how:
        how["keyring"] = how["keyring"].rotated("k2")
        log.rotate_key(how["keyring"])
    fill(log, "orders", 2)
    report = log.compact()
    assert (report.files_before, report.files_after) == (4, 1)
    assert not report.problems
    return log


def test_an_encrypted_log_reads_its_bundles(open_log, how, tmp_path):
    """Forwards, backwards, in part, after it is reopened, compacted again, and by others in its directory."""
    log = compacted(open_log, how)
    topic = log.topic("orders")
    assert len(files(log, "orders")) == 1
    assert offsets(topic) == list(range(40))
    assert [record.offset for record in topic.read(reverse=True)] == list(range(40))[::-1]
    assert [record.offset for record in topic.read(start=13, end=27)] == list(range(13, 27))
    assert log.reconcile(deep=True).clean
    fill(log, "orders", 4)
    log.close()
    again = open_log(segments=TEN, retention=NEVER, shipping=SOON, **how)
    assert again.compact().files_after == 1
    assert offsets(again.topic("orders")) == list(range(80))
    assert again.reconcile(deep=True).clean
    if "keyring" in how:
        how["keyring"].save(tmp_path / "keyring")
        found = holdfast.read(str(again.path), "orders", keyring=f"file:{tmp_path}/keyring").to_arrow()
        assert found["offset"].to_pylist() == list(range(80))


def test_a_log_is_rebuilt_from_its_bundles(open_log, how):
    """Its database is gone: bundles and the documents beside them give all records back."""
    log = compacted(open_log, how)
    log.close()
    for database in log.path.glob("durable.db*"):
        database.unlink()
    report = holdfast.rebuild(log.path, **how)
    assert report.records == 40
    again = open_log(segments=TEN, retention=NEVER, shipping=SOON, **how)
    assert offsets(again.topic("orders")) == list(range(40))
    assert again.reconcile(deep=True).clean


@pytest.mark.parametrize("is_encrypted", [False, True])
def test_a_rebuild_without_the_rewrites_is_refused(open_log, is_encrypted):
    """Their documents are gone with the database: nothing is guessed, and nothing is called expired that is there."""
    how = {"keyring": Keyring.generate("k1")} if is_encrypted else {}
    log = open_log(segments=TEN, retention=NEVER, shipping=SOON, **how)
    fill(log, "orders", 2)
    log.compact()
    fill(log, "orders", 1)
    log.close()
    for database in log.path.glob("durable.db*"):
        database.unlink()
    (rewrites,) = log.path.glob("segments/topics/orders/0/_rewrites")
    rewrites.rename(log.path / "elsewhere")
    with pytest.raises(holdfast.Corrupt, match="the rewrite that says which is gone") as refused:
        holdfast.rebuild(log.path, **how)
    assert "_rewrites" in refused.value.hint
    (log.path / "elsewhere").rename(rewrites)
    assert holdfast.rebuild(log.path, **how).records == 30


@pytest.mark.parametrize("is_encrypted", [False, True])
def test_a_rebuild_leaves_out_what_was_never_swapped_in(open_log, is_encrypted, tmp_path):
    """A compaction that ended before its swap left a long file: the segments themselves are there, and count."""
    how = {"keyring": Keyring.generate("k1")} if is_encrypted else {}
    log = open_log(segments=TEN, retention=NEVER, shipping=SOON, **how)
    fill(log, "orders", 3)
    segments = files(log, "orders")
    kept = [(path, path.read_bytes()) for path in segments]
    log.compact()
    log.close()
    for path, content in kept:
        path.write_bytes(content)
    (rewrites,) = log.path.glob("segments/topics/orders/0/_rewrites")
    rewrites.rename(tmp_path / "elsewhere")
    for database in log.path.glob("durable.db*"):
        database.unlink()
    assert holdfast.rebuild(log.path, **how).segments == 3
    again = open_log(segments=TEN, retention=NEVER, shipping=SOON, **how)
    assert offsets(again.topic("orders")) == list(range(30))


def test_a_damaged_bundle_is_found(open_log, how):
    """By who reads it, and by a deep reconciliation."""
    log = compacted(open_log, how)
    (path,) = files(log, "orders")
    content = bytearray(path.read_bytes())
    content[len(content) // 4] ^= 1
    path.write_bytes(content)
    with pytest.raises(holdfast.Corrupt):
        offsets(log.topic("orders"))
    assert not log.reconcile(deep=True).clean
