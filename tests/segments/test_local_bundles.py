"""Compaction of an encrypted log's own files: bundles, read by the log, by others, and by a rebuild."""

from __future__ import annotations

import hashlib

import pytest

import holdfast
from holdfast import Keyring, Log
from tests.segments.planting import TEN, files, fill, offsets

pytestmark = pytest.mark.disk
NEVER = {"interval_ms": 3_600_000}
SOON = {"delete_after_ms": 0}


class Masked:
    """A cipher of the user's own, good for tests only."""

    name = "masked"

    def encrypt(self, plaintext, associated):
        return self.mac(bytes(plaintext) + associated) + bytes(byte ^ 0x5A for byte in plaintext)

    def decrypt(self, encrypted, associated):
        plaintext = bytes(byte ^ 0x5A for byte in encrypted[32:])
        if self.mac(plaintext + associated) != encrypted[:32]:
            raise ValueError("no")
        return plaintext

    def mac(self, message):
        return hashlib.sha256(b"secret" + bytes(message)).digest()


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
